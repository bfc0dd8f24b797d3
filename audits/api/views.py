"""What every endpoint does: the caller's rows only, named query parameters only, nothing cached."""

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import Http404, HttpResponseBase
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.generics import GenericAPIView
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from audits.api.parsing import BoundedJSONParser
from audits.api.permissions import Guarded
from audits.api.schema import OneShapeSchema
from audits.models import ApiToken

PAGING = ("cursor", "page_size")


class TeamView(Guarded, GenericAPIView):
    """An endpoint on rows of a team. A row of another team does not exist for the caller."""

    parser_classes: ClassVar[list[Any]] = [BoundedJSONParser]
    filters: type[serializers.Serializer] | None = None
    lookup_url_kwarg = "id"
    metadata_class = None
    schema = OneShapeSchema()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuses a query parameter that the endpoint does not know: a misspelt filter must not widen a list."""
        super().initial(request, *args, **kwargs)
        known = ["team"]
        if request.method in ("GET", "HEAD"):
            known += [*self.filters().fields] if self.filters else []
            known += PAGING if self.paginator and not self.is_detail else ()
        for name, values in request.query_params.lists():
            if name not in known:
                raise ValidationError({name[:60]: [f"There is no such parameter; there are {', '.join(known)}."]})
            if len(values) > 1:
                raise ValidationError({name: [f"It is given {len(values)} times; give it once."]})

    def get_queryset(self) -> QuerySet[Any]:
        """The caller's rows. A list, and everything a token sees, is of one team."""
        rows = self.queryset.visible_to(self.request.user)
        if not self.is_detail or isinstance(self.request.auth, ApiToken):
            rows = rows.filter(**{self.team_path: self.team})
        return rows

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """A list narrowed by its query parameters."""
        return queryset if self.is_detail else self.narrowed(queryset, self.wanted())

    def wanted(self) -> dict[str, Any]:
        """The query parameters as values. Raises ValidationError for one that does not fit."""
        if self.filters is None:
            return {}
        asked = self.filters(data=self.request.query_params.dict())
        asked.is_valid(raise_exception=True)
        return asked.validated_data

    def narrowed(self, rows: QuerySet[Any], wanted: Mapping[str, Any]) -> QuerySet[Any]:
        """Rows that have what is wanted; filters are named like their field unless a view says otherwise."""
        return rows.filter(**wanted)

    def body(self, shape: type[serializers.Serializer]) -> dict[str, Any]:
        """The request body as values. Raises ValidationError for one that does not fit."""
        if not isinstance(self.request.data, dict):
            raise ValidationError("The body must be a JSON object.")
        asked = shape(data=self.request.data)
        asked.is_valid(raise_exception=True)
        return asked.validated_data

    def finalize_response(self, request: Request, response: HttpResponseBase, *args: Any, **kwargs: Any) -> Response:
        """What an audit says is confidential: no cache keeps it."""
        response.headers.setdefault("Cache-Control", "no-store")
        return super().finalize_response(request, response, *args, **kwargs)


class Nowhere(APIView):
    """Any other address under /api/v1/ answers 404 in the shape of all errors."""

    authentication_classes = ()
    permission_classes = (AllowAny,)
    schema = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Whatever the method."""
        raise Http404
