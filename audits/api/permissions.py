"""What a caller may do: the role in the team decides for people; for a token its scope as well."""

from functools import cached_property
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

from django.http import Http404
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from audits.models import ApiToken, Role, Team
from audits.services.access import require

Scope = ApiToken.Scope


class Right(NamedTuple):
    """What a request needs. Without a scope no token will do: a person must have signed in."""

    scope: ApiToken.Scope | None
    role: Role


READ = Right(Scope.READ, Role.VIEWER)
SUBMIT = Right(Scope.SUBMIT, Role.AUDITOR)
REVIEW = Right(Scope.REVIEW, Role.REVIEWER)
IN_PERSON = Right(None, Role.VIEWER)


class Guarded:
    """What `TeamPermission` needs to know of a view."""

    request: Request
    kwargs: dict[str, Any]
    rights: ClassVar[dict[str, Right]] = {"GET": READ}
    team_path = "team"

    @cached_property
    def team(self) -> Team:
        """The team that the request is about."""
        return team_of(self.request)

    @property
    def is_detail(self) -> bool:
        """Whether the address names one row."""
        return "id" in self.kwargs

    def right(self, method: str) -> Right | None:
        """What the request method needs; None where the view does not have it."""
        return self.rights.get("GET" if method == "HEAD" else method)


class TeamPermission(BasePermission):
    """Deny by default: a view says for each method which right it needs."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Before anything of the body is read, so that nobody uploads what is then refused."""
        if not request.user.is_authenticated:
            return False
        right = view.right(request.method)
        if right is None:
            return not hasattr(view, request.method.lower())  # no such method: let it be answered with 405
        if isinstance(request.auth, ApiToken):
            _require_scope(request.auth, right)
        if not view.is_detail:
            require(request.user, view.team, right.role)
        return True

    def has_object_permission(self, request: Request, view: Any, obj: Any) -> bool:
        """The role in the team of the row, which need not be the session's team."""
        team = obj
        for name in view.team_path.split("__"):
            team = getattr(team, name)
        require(request.user, team, view.right(request.method).role)
        return True


def _require_scope(token: ApiToken, right: Right) -> None:
    if right.scope is None:
        raise PermissionDenied("A token cannot do this. Sign in and do it in person.")
    if right.scope not in token.scopes:
        held = ", ".join(token.scopes)
        raise PermissionDenied(f"This needs a token with the scope {right.scope.value}; this one has {held}.")


def team_of(request: Request) -> Team:
    """A token's own team; for a person the one named by ?team=, else the session's, else the first."""
    named = request.query_params.get("team")
    own = Team.objects.visible_to(request.user)
    if isinstance(request.auth, ApiToken):
        own = own.filter(pk=request.auth.team_id)
    if named is not None:
        team = own.filter(pk=_uuid(named)).first()
        if team is None:
            raise Http404
        return team
    chosen = str(request.session.get("team", "")) if request.auth is None else ""
    team = next((team for team in own if str(team.pk) == chosen), None) or own.first()
    if team is None:
        raise PermissionDenied("You belong to no team yet. Ask an owner to add you.")
    return team


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ValidationError({"team": [f"“{text[:60]}” is not the id of a team."]}) from None
