"""The one check of rights that every service makes first."""

from django.core.exceptions import PermissionDenied

from audits.models import Role, Team, User


def require(actor: User, team: Team, role: Role) -> None:
    """Raises PermissionDenied, in words, unless the actor has at least that role in the team."""
    own = team.role_of(actor)
    if own is None or own.rank < role.rank:
        held = f"you are {own.label.lower()}" if own else "you are not a member"
        raise PermissionDenied(f"This needs the role {role.label.lower()} or above in {team.name}; {held}.")
