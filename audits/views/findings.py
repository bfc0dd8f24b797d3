"""Findings: list, evidence, comments and decisions."""

import uuid
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Case, When
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from audits.forms import CommentForm, DecisionForm, FindingFilter
from audits.methods.errors import AuditError
from audits.methods.verdict import Verdict
from audits.models import Audit, Finding
from audits.reports import judge_shown, run_report
from audits.services import reviews as service
from audits.views.context import current_team, rights

PER_PAGE = 50
GRAVITY = Case(When(verdict=Verdict.EXCEEDS.value, then=0), When(verdict=Verdict.CANNOT_TELL.value, then=1), default=2)


@require_safe
def finding_list(request: HttpRequest) -> HttpResponse:
    """Findings of all audits, filtered by what the address says."""
    team = current_team(request)
    audits = Audit.objects.visible_to(request.user).filter(team=team)
    findings = Finding.objects.visible_to(request.user).filter(team=team)
    form = FindingFilter(request.GET, audits=audits)
    chosen = (
        form.narrow(findings)
        .select_related("audit")
        .order_by("-audit__created_at", GRAVITY, "-severity", "method", "id")
    )
    page = Paginator(chosen, PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "form": form,
        "page": page,
        "shown": [judge_shown(finding) for finding in page],
        "filtered": any(form.cleaned_data.values()),
    }
    return render(request, "finding_list.html", context)


@require_safe
def detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """One finding with its evidence and what people said about it."""
    return _page(request, _finding(request, pk))


def _page(
    request: HttpRequest, finding: Finding, *, status: int = 200, remark: Any = None, decision: Any = None
) -> HttpResponse:
    judged = judge_shown(finding)
    context = {
        "finding": finding,
        "judged": judged,
        "run": run_report(finding.run, [judged]),
        "comments": finding.comments.select_related("author"),
        "decisions": finding.decisions.select_related("author"),
        "earlier": _same_elsewhere(request, finding),
        "comment_form": remark or CommentForm(),
        "decision_form": decision or DecisionForm(initial={"state": finding.state}),
        **rights(request, finding.team),
    }
    return render(request, "finding_detail.html", context, status=status)


def _same_elsewhere(request: HttpRequest, finding: Finding) -> Any:
    """The same measurement of the same subject in other audits of the team, the newest first."""
    same = Finding.objects.visible_to(request.user).filter(team=finding.team_id, identity=finding.identity)
    return same.exclude(pk=finding.pk).select_related("audit").order_by("-created_at")[:10]


@require_POST
def comment(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Adds a remark."""
    finding = _finding(request, pk)
    form = CommentForm(request.POST)
    if form.is_valid():
        try:
            service.comment(actor=request.user, finding=finding, text=form.cleaned_data["text"])
        except AuditError as error:
            form.add_error("text", str(error))
        else:
            return redirect(f"{request.path.removesuffix('comment/')}#comments")
    return _page(request, finding, status=422, remark=form)


@require_POST
def decide(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Changes the state of the finding, with a reason."""
    finding = _finding(request, pk)
    form = DecisionForm(request.POST)
    if form.is_valid():
        try:
            service.decide(actor=request.user, finding=finding, **form.cleaned_data)
        except AuditError as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, "The decision is recorded.")
            return redirect("finding", finding.pk)
    return _page(request, finding, status=422, decision=form)


def _finding(request: HttpRequest, pk: uuid.UUID) -> Finding:
    visible = Finding.objects.visible_to(request.user)
    return get_object_or_404(visible.select_related("team", "audit", "run__result", "run__audit"), pk=pk)
