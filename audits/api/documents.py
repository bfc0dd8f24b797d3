"""The OpenAPI document and its page."""

from typing import Any, ClassVar

from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer


class Schema(SpectacularAPIView):
    """What the API takes and answers, as OpenAPI 3: JSON, or YAML with ?format=yaml."""

    permission_classes: ClassVar[list[Any]] = [IsAuthenticated]
    renderer_classes: ClassVar[list[Any]] = [OpenApiJsonRenderer, OpenApiYamlRenderer, JSONRenderer]


class Docs(SpectacularSwaggerSplitView):
    """Swagger UI from files that a package carries; its script comes from an address, so that the strict policy holds."""

    permission_classes: ClassVar[list[Any]] = [IsAuthenticated]
    template_name = "api_docs.html"
    url_name = "api-schema"
