"""Audits: list, request, progress and report."""

import uuid
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST, require_safe
from django_htmx.http import HttpResponseClientRefresh

from audits.forms import AuditForm
from audits.methods.errors import AuditError
from audits.models import Artifact, Audit, Role, Run
from audits.reports import artifact_hashes, audit_report, role_lines, run_report, with_tallies
from audits.services import audits as service
from audits.services.access import require
from audits.views.context import current_team, rights, team_or_404

PER_PAGE = 30


@require_safe
def audit_list(request: HttpRequest) -> HttpResponse:
    """All audits of the team with their verdict counts, the newest first."""
    audits = with_tallies(Audit.objects.visible_to(request.user).filter(team=current_team(request)))
    audits = audits.select_related("dataset", "model", "requested_by")
    page = Paginator(audits, PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "audit_list.html", {"page": page})


# ------------------------------------------------------------------------------------------------------------------- new


def new(request: HttpRequest) -> HttpResponse:
    """The form for a new audit. `step=refresh` shows it again for changed choices and starts nothing."""
    team = team_or_404(request)
    require(request.user, team, Role.AUDITOR)
    if request.method != "POST":
        form = AuditForm(initial=_asked_for(request), team=team, user=request.user)
        return _form_page(request, form)
    form = AuditForm(request.POST, team=team, user=request.user)
    if "refresh" in request.POST.getlist("step"):
        return _form_page(request, form, quiet=True)
    if form.is_valid():
        try:
            audit = _requested(request, team, form.cleaned_data)
        except AuditError as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, "The audit is queued. This page follows it.")
            return redirect("audit", audit.pk)
    return _form_page(request, form, status=422)


def _asked_for(request: HttpRequest) -> dict[str, Any]:
    """Files named in the address, for links such as “audit this”; what is not a known file is left out by the form."""
    return {name: request.GET[name] for name in ("dataset", "model") if request.GET.get(name)}


def _requested(request: HttpRequest, team: Any, data: dict[str, Any]) -> Audit:
    return service.request_audit(
        actor=request.user,
        team=team,
        dataset=data["dataset"],
        model=data["model"],
        roles=data["roles"],
        methods=data["methods"],
        title=data["title"],
        positive_label=data["positive_label"],
        missing=data["missing"],
    )


def _form_page(request: HttpRequest, form: AuditForm, *, quiet: bool = False, status: int = 200) -> HttpResponse:
    """The page of the form; `quiet` shows no errors, because the user has not finished yet."""
    found = service.applicability(roles=form.roles(), has_model=form.chosen_model is not None)
    families = form.families({one.entry.key: one.missing for one in found})
    context = {
        "form": form,
        "families": families,
        "quiet": quiet,
        "runnable": sum(not one.missing for one in found),
        "datasets_ready": form.fields["dataset"].queryset.exists(),
        "unread": Artifact.objects.visible_to(request.user).filter(team=current_team(request), inspection__report=None),
    }
    return render(request, "audit_new.html", context, status=status)


# ------------------------------------------------------------------------------------------------------ progress, report


@require_safe
def detail(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """One audit: its progress while it runs, its report once every run has ended."""
    audit = _audit(request, pk)
    context = {
        "audit": audit,
        "roles": role_lines(audit),
        "files": artifact_hashes(audit),
        **rights(request, audit.team),
    }
    if audit.is_final:
        return render(request, "audit_report.html", context | {"report": audit_report(audit)})
    return render(request, "audit_progress.html", context | _progress(audit))


@require_GET
def progress(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """The runs with their bars, for htmx to ask again; once all have ended the page loads anew and shows the report."""
    audit = _audit(request, pk)
    if not request.htmx:
        return redirect("audit", audit.pk)
    if audit.is_final:
        return HttpResponseClientRefresh()
    context = {"audit": audit, **_progress(audit), **rights(request, audit.team)}
    return render(request, "_audit_progress.html", context)


def _progress(audit: Audit) -> dict[str, Any]:
    runs = [run_report(run, draw=False) for run in audit.runs.select_related("result")]
    done = sum(run.run.is_final for run in runs)
    return {"runs": runs, "done": done, "share": sum(run.run.percent for run in runs) / max(len(runs), 1)}


@require_POST
def cancel(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Stops every run of the audit that has not ended."""
    audit = _audit(request, pk)
    stopped = service.cancel_runs(actor=request.user, audit=audit)
    messages.info(
        request, f"{stopped} run{'' if stopped == 1 else 's'} will stop." if stopped else "All runs had ended."
    )
    return redirect("audit", audit.pk)


@require_POST
def cancel_run(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Stops one run."""
    run = _run(request, pk)
    service.cancel_runs(actor=request.user, audit=run.audit, runs=[run])
    return redirect("audit", run.audit_id)


@require_POST
def retry_run(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Queues a run again that ended without a result."""
    run = _run(request, pk)
    if not service.retry_run(actor=request.user, run=run):
        messages.info(request, "This run did not end without a result, so there is nothing to repeat.")
    return redirect("audit", run.audit_id)


def _audit(request: HttpRequest, pk: uuid.UUID) -> Audit:
    visible = Audit.objects.visible_to(request.user)
    related = ("team", "requested_by", "dataset__inspection", "model__inspection")
    return get_object_or_404(visible.select_related(*related), pk=pk)


def _run(request: HttpRequest, pk: uuid.UUID) -> Run:
    return get_object_or_404(Run.objects.visible_to(request.user).select_related("audit__team"), pk=pk)
