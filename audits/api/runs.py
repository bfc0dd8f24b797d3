"""Runs over REST: how far, with what result; cancel and repeat."""

from typing import ClassVar

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from audits.api.errors import Conflict
from audits.api.permissions import SUBMIT
from audits.api.serializers import ResultSerializer, RunSerializer
from audits.api.views import TeamView
from audits.models import Run
from audits.services.audits import cancel_runs, retry_run


class RunView(TeamView):
    """An endpoint on one run."""

    queryset = Run.objects.select_related("audit__team", "result")
    serializer_class = RunSerializer
    team_path = "audit__team"


@extend_schema_view(get=extend_schema(operation_id="runs_retrieve"))
class OneRun(RetrieveModelMixin, RunView):
    """One method on one audit's artifacts."""

    def get(self, request: Request, id: str) -> Response:
        """Status, progress, time and, where it failed, the reason in words."""
        return self.retrieve(request)


class OneResult(RunView):
    """What a run measured."""

    @extend_schema(operation_id="runs_result", responses=ResultSerializer)
    def get(self, request: Request, id: str) -> Response:
        """Measurements, controls, tables and the row ledger; 409 while there is no result."""
        run = self.get_object()
        if not hasattr(run, "result"):
            why = f": {run.reason}" if run.reason else "."
            raise Conflict(f"This run has no result; it is {run.status}{why}", code="no_result")
        return Response(ResultSerializer(run.result).data)


class CancelRun(RunView):
    """Stopping a run."""

    rights: ClassVar = {"POST": SUBMIT}

    @extend_schema(operation_id="runs_cancel", request=None, responses={202: RunSerializer})
    def post(self, request: Request, id: str) -> Response:
        """Stops the run; one that has ended stays as it is."""
        run = self.get_object()
        cancel_runs(actor=request.user, audit=run.audit, runs=[run])
        return Response(self.get_serializer(self.get_object()).data, status=202)


class RetryRun(RunView):
    """Repeating a run."""

    rights: ClassVar = {"POST": SUBMIT}

    @extend_schema(operation_id="runs_retry", request=None, responses={202: RunSerializer})
    def post(self, request: Request, id: str) -> Response:
        """Queues a run again that failed, errored or was cancelled."""
        run = self.get_object()
        if not retry_run(actor=request.user, run=run):
            raise Conflict(f"Only a run that failed, errored or was cancelled is repeated; this one is {run.status}.")
        return Response(self.get_serializer(self.get_object()).data, status=202)
