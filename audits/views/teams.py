"""The team: dashboard, history, tokens, and changing to another team."""

import uuid

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from audits.forms import TokenForm
from audits.methods.errors import AuditError
from audits.models import ApiToken, Artifact, Audit, Event, Finding, Run, Status, Team
from audits.models.work import FINAL
from audits.reports import open_findings, with_tallies
from audits.services import teams as service
from audits.views.context import choose, current_team, team_or_404

PER_PAGE = 100
LATEST = 8


@require_safe
def dashboard(request: HttpRequest) -> HttpResponse:
    """Where the team stands: open findings, running audits, what is new."""
    team = current_team(request)
    audits = Audit.objects.visible_to(request.user).filter(team=team)
    unfinished = Run.objects.visible_to(request.user).filter(audit__team=team).exclude(status__in=FINAL)
    rows = open_findings(Finding.objects.visible_to(request.user).filter(team=team))
    context = {
        "open_rows": rows,
        "open_total": sum(row.total for row in rows),
        "severities": sorted(Finding.Severity, reverse=True),
        "running": unfinished.select_related("audit").order_by("audit__created_at", "created_at")[: 3 * LATEST],
        "latest": with_tallies(audits).select_related("dataset", "model")[:LATEST],
        "artifacts": Artifact.objects.visible_to(request.user).filter(team=team).select_related("inspection")[:LATEST],
        "waiting": _waiting(request, team),
    }
    return render(request, "dashboard.html", context)


def _waiting(request: HttpRequest, team: Team | None) -> int:
    """Uploads that could not be read, so that somebody has to do something."""
    broken = Q(inspection__status__in=(Status.FAILED, Status.ERRORED))
    return Artifact.objects.visible_to(request.user).filter(broken, team=team).count()


@require_safe
def events(request: HttpRequest) -> HttpResponse:
    """The team's history, the newest first."""
    found = Event.objects.visible_to(request.user).filter(team=current_team(request)).select_related("actor")
    page = Paginator(found, PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "event_list.html", {"page": page})


@require_POST
def switch(request: HttpRequest) -> HttpResponse:
    """Changes to another of the user's teams."""
    try:
        wanted = uuid.UUID(request.POST.get("team", ""))
    except ValueError:
        wanted = uuid.UUID(int=0)
    team = get_object_or_404(Team.objects.visible_to(request.user), pk=wanted)
    choose(request, team.pk)
    return redirect(reverse("dashboard"))


@never_cache
def tokens(request: HttpRequest) -> HttpResponse:
    """The user's tokens in the team. A new secret is shown in the answer itself, since storing it anywhere would keep it."""
    team = team_or_404(request)
    form = TokenForm(request.POST or None)
    secret = ""
    if request.method == "POST" and form.is_valid():
        try:
            _, secret = service.issue_token(actor=request.user, team=team, **form.cleaned_data)
            form = TokenForm()
        except AuditError as error:
            form.add_error(None, str(error))
    own = ApiToken.objects.visible_to(request.user).filter(team=team)
    context = {"form": form, "secret": secret, "tokens": own}
    return render(request, "token_list.html", context, status=422 if form.errors else 200)


@require_POST
def revoke(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Ends one of the user's tokens."""
    token = get_object_or_404(ApiToken.objects.visible_to(request.user).select_related("team"), pk=pk)
    service.revoke_token(actor=request.user, token=token)
    messages.success(request, f"The token “{token.name}” no longer works.")
    return redirect("tokens")
