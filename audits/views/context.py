"""Whose page this is: the current team and what the user may do there."""

import uuid
from typing import Any

from django.http import Http404, HttpRequest

from audits.models import Role, Team

SESSION_KEY = "team"
_READ = "memberships_read"  # set on the request, so that a page asks once


def current_team(request: HttpRequest) -> Team | None:
    """The team chosen in this session, else the user's first; None for a user without a team."""
    return _team_and_role(request)[0]


def team_or_404(request: HttpRequest) -> Team:
    """The current team, where a page has no meaning without one. Raises Http404."""
    chosen = current_team(request)
    if chosen is None:
        raise Http404("You are not in a team yet. Ask an owner to add you.")
    return chosen


def rights(request: HttpRequest, team: Team | None) -> dict[str, Any]:
    """What the user may do in the team, for templates that hide what a service would refuse."""
    current, role = _team_and_role(request)
    if team is not None and team != current:
        role = team.role_of(request.user)
    rank = role.rank if role else -1
    return {
        "role": role,
        "may_review": rank >= Role.REVIEWER.rank,
        "may_audit": rank >= Role.AUDITOR.rank,
    }


def team(request: HttpRequest) -> dict[str, Any]:
    """Context processor: the current team, all teams of the user, and the user's rights."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {"current_team": None, "teams": []}
    current = current_team(request)
    return {"current_team": current, "teams": [m.team for m in _memberships(request)], **rights(request, current)}


def _team_and_role(request: HttpRequest) -> tuple[Team | None, Role | None]:
    memberships = _memberships(request)
    chosen = request.session.get(SESSION_KEY)
    for membership in memberships:
        if str(membership.team_id) == chosen:
            return membership.team, Role(membership.role)
    if memberships:
        return memberships[0].team, Role(memberships[0].role)
    return None, None


def _memberships(request: HttpRequest) -> list[Any]:
    """The user's places in teams, read once per request."""
    found: list[Any] | None = getattr(request, _READ, None)
    if found is None:
        found = list(request.user.memberships.select_related("team").order_by("team__name", "team_id"))
        setattr(request, _READ, found)
    return found


def choose(request: HttpRequest, team_id: uuid.UUID) -> None:
    """Remembers the team for this session."""
    request.session[SESSION_KEY] = str(team_id)
