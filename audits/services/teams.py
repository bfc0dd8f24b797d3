"""Teams, their members and their tokens."""

from django.db import transaction

from audits.methods.errors import AuditError
from audits.models import ApiToken, Event, Membership, Role, Team, User
from audits.models.teams import TOKEN_DAYS
from audits.services.access import require


@transaction.atomic
def create_team(*, name: str, owner: User) -> Team:
    """A new team with its first owner."""
    team = Team.objects.create(name=name)
    Membership.objects.create(team=team, user=owner, role=Role.OWNER)
    Event.record("created", team, team=team, actor=owner)
    return team


@transaction.atomic
def add_member(*, team: Team, actor: User, user: User, role: Role) -> Membership:
    """Gives a user a role in the team, or changes it."""
    require(actor, team, Role.OWNER)
    membership, _ = Membership.objects.update_or_create(team=team, user=user, defaults={"role": role})
    Event.record("set role", membership, team=team, actor=actor, user=user.username, role=role.value)
    return membership


@transaction.atomic
def issue_token(
    *, actor: User, team: Team, name: str, scopes: list[str], days: int = TOKEN_DAYS
) -> tuple[ApiToken, str]:
    """A token for the actor in the team, and its secret, shown once."""
    require(actor, team, Role.VIEWER)
    unknown = set(scopes) - set(ApiToken.Scope.values)
    if unknown or not scopes:
        raise AuditError(f"A token needs one or more of the scopes {', '.join(ApiToken.Scope.values)}; found {scopes}.")
    if not 1 <= days <= 366:
        raise AuditError(f"A token lives between 1 and 366 days; found {days}.")
    token, secret = ApiToken.issue(user=actor, team=team, name=name.strip() or "token", scopes=scopes, days=days)
    Event.record("issued", token, team=team, actor=actor, scopes=token.scopes)
    return token, secret


@transaction.atomic
def revoke_token(*, actor: User, token: ApiToken) -> None:
    """Ends a token of the actor's own."""
    Event.record("revoked", token, team=token.team, actor=actor)
    token.delete()
