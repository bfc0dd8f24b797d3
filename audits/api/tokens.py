"""A caller's own tokens over REST. A token makes and revokes no tokens."""

from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from audits.api.permissions import IN_PERSON, READ
from audits.api.serializers import NewTokenSerializer, TokenRequestSerializer, TokenSerializer
from audits.api.views import TeamView
from audits.models import ApiToken
from audits.services.teams import issue_token, revoke_token

ROWS = ApiToken.objects.select_related("team")


class Tokens(ListModelMixin, TeamView):
    """The caller's tokens in the team."""

    queryset = ROWS
    serializer_class = TokenSerializer
    rights: ClassVar = {"GET": READ, "POST": IN_PERSON}

    @extend_schema(operation_id="tokens_list")
    def get(self, request: Request) -> Response:
        """Newest first, without their secrets."""
        return self.list(request)

    @extend_schema(operation_id="tokens_issue", request=TokenRequestSerializer, responses={201: NewTokenSerializer})
    def post(self, request: Request) -> Response:
        """A new token; its secret is in this answer and nowhere else. Needs a session."""
        token, secret = issue_token(actor=request.user, team=self.team, **self.body(TokenRequestSerializer))
        return Response(TokenSerializer(token).data | {"secret": secret}, status=201)


class OneToken(TeamView):
    """One of the caller's tokens."""

    queryset = ROWS
    serializer_class = TokenSerializer
    rights: ClassVar = {"DELETE": IN_PERSON}

    @extend_schema(operation_id="tokens_revoke", responses={204: None})
    def delete(self, request: Request, id: str) -> Response:
        """Revokes it at once. Needs a session."""
        revoke_token(actor=request.user, token=self.get_object())
        return Response(status=204)
