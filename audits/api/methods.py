"""The catalogue of audit methods over REST."""

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from audits.api.serializers import MethodFilters, MethodSerializer
from audits.api.views import TeamView
from audits.methods.catalogue import catalogue
from audits.methods.contract import Input
from audits.models import Artifact
from audits.services.audits import applicability


class MethodView(TeamView):
    """An endpoint on the catalogue."""

    serializer_class = MethodSerializer
    filters = MethodFilters
    pagination_class = None

    def get_serializer_context(self) -> dict[str, Any]:
        """What each method lacks, where artifacts were named."""
        return super().get_serializer_context() | {"lacking": self.lacking(**self.wanted())}

    def lacking(self, dataset: UUID | None = None, model: UUID | None = None) -> dict[str, tuple[Input, ...]] | None:
        """Inputs that each method lacks, going by the roles that the columns seem to have."""
        if dataset is None and model is None:
            return None
        columns = self.artifact("dataset", dataset).columns if dataset else []
        roles = {str(column["suggested_role"]): column["name"] for column in columns if column.get("suggested_role")}
        has_model = model is not None and bool(self.artifact("model", model))
        return {one.entry.key: one.missing for one in applicability(roles=roles, has_model=has_model)}

    def artifact(self, kind: str, pk: UUID) -> Artifact:
        """The team's artifact of that kind."""
        artifact = Artifact.objects.select_related("inspection").filter(team=self.team, kind=kind, pk=pk).first()
        if artifact is None:
            raise ValidationError({kind: [f"Your team has no {Artifact.Kind(kind).label} with the id {pk}."]})
        return artifact


class Methods(MethodView):
    """The methods there are."""

    @extend_schema(
        operation_id="methods_list",
        parameters=[MethodFilters],
        responses=inline_serializer("MethodList", {"results": MethodSerializer(many=True)}),
    )
    def get(self, request: Request) -> Response:
        """Every method with its inputs, settings and bounds, by family; all on one page."""
        return Response({"results": self.get_serializer(list(catalogue().values()), many=True).data})


class OneMethod(MethodView):
    """One method."""

    @extend_schema(operation_id="methods_retrieve", parameters=[MethodFilters], responses=MethodSerializer)
    def get(self, request: Request, key: str) -> Response:
        """Its card."""
        entry = catalogue().get(key)
        if entry is None:
            raise NotFound(f"There is no audit method “{key[:60]}”; /api/v1/methods/ lists them all.")
        return Response(self.get_serializer(entry).data)
