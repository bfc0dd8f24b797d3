"""Audits over REST: request, watch, cancel."""

from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import UUID

from django.db.models import Prefetch
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.exceptions import ValidationError
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from audits.api.errors import Conflict
from audits.api.permissions import READ, SUBMIT
from audits.api.serializers import AuditDetailSerializer, AuditFilters, AuditRequestSerializer, AuditSerializer
from audits.api.views import TeamView
from audits.models import Artifact, Audit, Finding
from audits.services.audits import cancel_runs, request_audit

VERDICTS_ONLY = Prefetch("findings", Finding.objects.order_by().only("audit_id", "verdict"))
ROWS = Audit.objects.select_related("team", "dataset", "model", "requested_by").prefetch_related("runs", VERDICTS_ONLY)
KEY_LENGTH = 100
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description=f"Up to {KEY_LENGTH} characters. The same key gives the same audit again instead of a second one.",
)


class Audits(ListModelMixin, TeamView):
    """Audits of the team."""

    queryset = ROWS
    serializer_class = AuditSerializer
    filters = AuditFilters
    rights: ClassVar = {"GET": READ, "POST": SUBMIT}

    @extend_schema(operation_id="audits_list", parameters=[AuditFilters])
    def get(self, request: Request) -> Response:
        """Newest first."""
        return self.list(request)

    @extend_schema(
        operation_id="audits_request",
        request=AuditRequestSerializer,
        responses={202: AuditDetailSerializer},
        parameters=[IDEMPOTENCY_KEY],
    )
    def post(self, request: Request) -> Response:
        """Queues one run per method."""
        asked = self.body(AuditRequestSerializer)
        dataset = self.artifact("dataset", asked.pop("dataset"))
        model = self.artifact("model", asked["model"]) if asked.get("model") else None
        asked.pop("model", None)
        key = _idempotency_key(request)
        audit = request_audit(
            actor=request.user, team=self.team, dataset=dataset, model=model, idempotency_key=key, **asked
        )
        audit = ROWS.get(pk=audit.pk)
        _same_request(audit, dataset, model, asked["methods"])
        headers = {"Location": f"{request.path}{audit.pk}/"}
        return Response(AuditDetailSerializer(audit).data, status=202, headers=headers)

    def artifact(self, kind: str, pk: UUID) -> Artifact:
        """The team's artifact of that kind."""
        rows = Artifact.objects.select_related("inspection").filter(team=self.team, kind=kind)
        artifact = rows.filter(pk=pk).first()
        if artifact is None:
            noun = Artifact.Kind(kind).label
            raise ValidationError({kind: [f"Your team has no {noun} with the id {pk}; /api/v1/artifacts/ lists them."]})
        return artifact


def _idempotency_key(request: Request) -> str | None:
    key: str | None = request.headers.get("Idempotency-Key")
    if key is not None and not (0 < len(key) <= KEY_LENGTH and key.isascii() and key.isprintable()):
        raise ValidationError({"Idempotency-Key": [f"It holds 1 to {KEY_LENGTH} printable ASCII characters."]})
    return key


def _same_request(audit: Audit, dataset: Artifact, model: Artifact | None, methods: Mapping[str, Any]) -> None:
    """A key that was used for something else gives nobody the wrong audit."""
    earlier = (audit.dataset_id, audit.model_id, {run.method for run in audit.runs.all()})
    if earlier != (dataset.pk, model.pk if model else None, set(methods)):
        raise Conflict("This Idempotency-Key was used for another audit. Use a new key.", code="idempotency_key_reused")


@extend_schema_view(get=extend_schema(operation_id="audits_retrieve"))
class OneAudit(RetrieveModelMixin, TeamView):
    """One audit."""

    queryset = ROWS
    serializer_class = AuditDetailSerializer

    def get(self, request: Request, id: str) -> Response:
        """Its status, its runs, and how many checks came out how."""
        return self.retrieve(request)


class CancelAudit(TeamView):
    """Stopping an audit."""

    queryset = ROWS
    serializer_class = AuditDetailSerializer
    rights: ClassVar = {"POST": SUBMIT}

    @extend_schema(operation_id="audits_cancel", request=None, responses={202: AuditDetailSerializer})
    def post(self, request: Request, id: str) -> Response:
        """Stops every run that has not ended; those that have ended stay as they are."""
        cancel_runs(actor=request.user, audit=self.get_object())
        return Response(self.get_serializer(self.get_object()).data, status=202)
