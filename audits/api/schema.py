"""What the OpenAPI document says of all endpoints: how to sign in, and the one shape of errors."""

from typing import Any
from uuid import UUID

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from audits.api.authentication import SCHEME, TokenAuthentication

TEAM = OpenApiParameter(
    "team", UUID, OpenApiParameter.QUERY, description="For a person in several teams; a token has one team of its own"
)


class ErrorDetailSerializer(serializers.Serializer):
    """What went wrong."""

    code = serializers.CharField(help_text="For machines, e.g. invalid, unsuitable_input, permission_denied")
    message = serializers.CharField(help_text="A sentence for people: what was found, what is needed")
    fields = serializers.DictField(
        child=serializers.ListField(child=serializers.CharField()), help_text="Sentences by field, where it is one"
    )


class ErrorSerializer(serializers.Serializer):
    """The shape of every error."""

    error = ErrorDetailSerializer()


class OneShapeSchema(AutoSchema):
    """Every operation also answers errors, and takes the team of a person who has several."""

    def get_override_parameters(self) -> list[Any]:
        """Query parameters that no serializer names."""
        return [*super().get_override_parameters(), TEAM]

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        bodies = super()._get_response_bodies(direction)
        error = self.resolve_serializer(ErrorSerializer, direction)
        content = {"application/json": {"schema": error.ref}}
        return bodies | {"default": {"content": content, "description": "Any error: 4xx is the caller's, 5xx ours"}}


class TokenScheme(OpenApiAuthenticationExtension):
    """The token in the document."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        """As OpenAPI says it."""
        return {"type": "http", "scheme": SCHEME.lower(), "description": "A token aud_… from /api/v1/tokens/"}
