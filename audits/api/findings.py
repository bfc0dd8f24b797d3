"""Findings over REST: read, comment, decide, export."""

import csv
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from audits.api.permissions import REVIEW
from audits.api.serializers import (
    SEVERITIES,
    CommentRequestSerializer,
    CommentSerializer,
    DecisionRequestSerializer,
    DecisionSerializer,
    FindingDetailSerializer,
    FindingFilters,
    FindingSerializer,
    method_title,
)
from audits.api.views import TeamView
from audits.models import Finding
from audits.services import reviews

Cell = str | int | float | None

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a spreadsheet may take for a formula
ROWS_AT_ONCE = 2000


class FindingView(TeamView):
    """An endpoint on findings."""

    queryset = Finding.objects.select_related("team")
    serializer_class = FindingSerializer

    def narrowed(self, rows: QuerySet[Any], wanted: Mapping[str, Any]) -> QuerySet[Any]:
        """Two filters are words for something else in the row."""
        columns = {name: wanted[name] for name in ("audit", "verdict", "state") if name in wanted}
        if "family" in wanted:
            columns["method__startswith"] = f"{wanted['family']}."
        if "severity" in wanted:
            columns["severity"] = SEVERITIES.index(wanted["severity"]) + 1
        return rows.filter(**columns)


class Findings(ListModelMixin, FindingView):
    """Findings of the team, also the checks that passed."""

    filters = FindingFilters

    @extend_schema(operation_id="findings_list", parameters=[FindingFilters])
    def get(self, request: Request) -> Response:
        """Newest first."""
        return self.list(request)


@extend_schema_view(get=extend_schema(operation_id="findings_retrieve"))
class OneFinding(RetrieveModelMixin, FindingView):
    """One finding."""

    queryset = Finding.objects.select_related("team").prefetch_related("comments__author", "decisions__author")
    serializer_class = FindingDetailSerializer

    def get(self, request: Request, id: str) -> Response:
        """With what was said and decided about it."""
        return self.retrieve(request)


class Comments(FindingView):
    """Remarks on a finding."""

    rights: ClassVar = {"POST": REVIEW}

    @extend_schema(
        operation_id="findings_comment", request=CommentRequestSerializer, responses={201: CommentSerializer}
    )
    def post(self, request: Request, id: str) -> Response:
        """Adds a remark."""
        finding = self.get_object()
        remark = reviews.comment(actor=request.user, finding=finding, **self.body(CommentRequestSerializer))
        return Response(CommentSerializer(remark).data, status=201)


class Decisions(FindingView):
    """Decisions on a finding."""

    rights: ClassVar = {"POST": REVIEW}

    @extend_schema(
        operation_id="findings_decide", request=DecisionRequestSerializer, responses={201: DecisionSerializer}
    )
    def post(self, request: Request, id: str) -> Response:
        """Changes the state. Accepting a risk and calling a finding false need a reason, accepting also an end."""
        finding = self.get_object()
        decision = reviews.decide(actor=request.user, finding=finding, **self.body(DecisionRequestSerializer))
        return Response(DecisionSerializer(decision).data, status=201)


# ---------------------------------------------------------------------------------------------------------------- export


class AlwaysJSON(BaseContentNegotiation):
    """The export is CSV whatever the caller accepts, and its errors are JSON."""

    def select_parser(self, request: Request, parsers: list[Any]) -> Any:
        """The first."""
        return parsers[0]

    def select_renderer(
        self, request: Request, renderers: list[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """The first."""
        return renderers[0], renderers[0].media_type


class FindingsCSV(FindingView):
    """Findings as a table."""

    queryset = Finding.objects.select_related("team", "audit")
    filters = FindingFilters
    pagination_class = None
    content_negotiation_class = AlwaysJSON

    @extend_schema(
        operation_id="findings_csv",
        tags=["findings"],
        parameters=[FindingFilters],
        responses={(200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        """All findings that the filters leave, newest first. Text that a spreadsheet would compute starts with '."""
        rows = self.filter_queryset(self.get_queryset()).order_by("-created_at", "-pk")
        return StreamingHttpResponse(
            csv_lines(rows),
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="findings.csv"'},
        )


class _Echo:
    """A file that hands back what is written, so that lines can be streamed."""

    def write(self, line: str) -> str:
        """The line itself."""
        return line


def csv_lines(findings: QuerySet[Finding]) -> Iterator[str]:
    """One line per finding under a line of names; rows are fetched as they are sent."""
    writer = csv.writer(_Echo(), quoting=csv.QUOTE_NONNUMERIC)  # quoted text holds no delimiter in any locale
    yield writer.writerow(COLUMNS)
    for finding in findings.iterator(chunk_size=ROWS_AT_ONCE):
        yield writer.writerow([safe(cell) for cell in _cells(finding).values()])


COLUMNS = (
    "id",
    "audit",
    "audit_title",
    "family",
    "method",
    "method_title",
    "measurement",
    "subject",
    "value",
    "undefined",
    "low",
    "high",
    "level",
    "n",
    "unit",
    "p_value",
    "p_adjusted",
    "limit",
    "verdict",
    "because",
    "severity",
    "state",
    "created_at",
)


def _cells(finding: Finding) -> dict[str, Cell]:
    measured = finding.measurement
    known: dict[str, Cell] = {
        "id": str(finding.pk),
        "audit": str(finding.audit_id),
        "audit_title": finding.audit.title,
        "family": finding.family,
        "method": finding.method,
        "method_title": method_title(finding.method),
        "measurement": measured["name"],
        "p_adjusted": finding.p_adjusted,
        "limit": finding.bound["limit"],
        "verdict": finding.verdict,
        "because": finding.because,
        "severity": SEVERITIES[finding.severity - 1],
        "state": finding.state,
        "created_at": finding.created_at.isoformat(),
    }
    return {name: known[name] if name in known else measured[name] for name in COLUMNS}


def safe(cell: Cell) -> Cell:
    """Text that a spreadsheet would compute gets a leading apostrophe; numbers stay numbers."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell
