"""Uploads over REST."""

from typing import Any, ClassVar

from django.conf import settings
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from audits.api.errors import Conflict, TooLarge
from audits.api.permissions import READ, SUBMIT
from audits.api.serializers import (
    ArtifactDetailSerializer,
    ArtifactFilters,
    ArtifactSerializer,
    ReadAgainSerializer,
    UploadSerializer,
)
from audits.api.views import TeamView
from audits.models import Artifact, Status
from audits.services import artifacts
from audits.uploads import TOO_LARGE

ROWS = Artifact.objects.select_related("team", "uploaded_by", "inspection")
UNREAD = (Status.FAILED, Status.ERRORED, Status.CANCELLED)


class Artifacts(ListModelMixin, TeamView):
    """Models and data sets of the team."""

    queryset = ROWS
    serializer_class = ArtifactSerializer
    filters = ArtifactFilters
    rights: ClassVar = {"GET": READ, "POST": SUBMIT}
    parser_classes: ClassVar = [MultiPartParser]

    @extend_schema(operation_id="artifacts_list", parameters=[ArtifactFilters])
    def get(self, request: Request) -> Response:
        """Newest first, without their inspection reports."""
        return self.list(request)

    @extend_schema(operation_id="artifacts_upload", request=UploadSerializer, responses={201: ArtifactDetailSerializer})
    def post(self, request: Request) -> Response:
        """Stores a file and has it read in the confined child; its status says when that is done."""
        asked = self.upload(request)
        artifact = artifacts.receive_artifact(
            actor=request.user,
            team=self.team,
            kind=asked["kind"],
            upload=asked["file"],
            name=asked.get("name", ""),
            options=asked.get("options"),
        )
        return Response(
            ArtifactDetailSerializer(artifact).data, status=201, headers={"Location": f"{request.path}{artifact.pk}/"}
        )

    def upload(self, request: Request) -> dict[str, Any]:
        """The form; an upload that was stopped half-way is explained before its missing file is."""
        request.data  # noqa: B018  reads the body
        if getattr(request, TOO_LARGE, False):
            raise TooLarge(f"An upload may hold {settings.UPLOAD_LIMIT_MB} MiB; this one is larger and was not kept.")
        return self.body(UploadSerializer)


@extend_schema_view(get=extend_schema(operation_id="artifacts_retrieve"))
class OneArtifact(RetrieveModelMixin, TeamView):
    """One model or data set."""

    queryset = ROWS
    serializer_class = ArtifactDetailSerializer

    def get(self, request: Request, id: str) -> Response:
        """Its status, and what was read in it."""
        return self.retrieve(request)


class ReadAgain(TeamView):
    """Reading a file once more."""

    queryset = ROWS
    serializer_class = ArtifactDetailSerializer
    rights: ClassVar = {"POST": SUBMIT}

    @extend_schema(
        operation_id="artifacts_read_again", request=ReadAgainSerializer, responses={202: ArtifactDetailSerializer}
    )
    def post(self, request: Request, id: str) -> Response:
        """Has a file read again that could not be read, for example after its architecture was named."""
        artifact = self.get_object()
        asked = self.body(ReadAgainSerializer)
        if artifact.inspection.status not in UNREAD:
            raise Conflict(
                f"Only a file that could not be read is read again; this one is {artifact.inspection.status}."
            )
        artifacts.read_again(actor=request.user, artifact=artifact, options=asked.get("options"))
        return Response(self.get_serializer(self.get_object()).data, status=202)
