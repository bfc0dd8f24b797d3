"""What people say and decide about findings."""

from datetime import date

from django.db import transaction
from django.utils import timezone

from audits.methods.errors import AuditError
from audits.models import Comment, Decision, Event, Finding, Role, User
from audits.services.access import require

State = Finding.State
NEEDS_REASON = (State.ACCEPTED, State.FALSE_POSITIVE)


@transaction.atomic
def comment(*, actor: User, finding: Finding, text: str) -> Comment:
    """Adds a remark."""
    require(actor, finding.team, Role.REVIEWER)
    if not text.strip():
        raise AuditError("The comment is empty. Write something first.")
    remark = Comment.objects.create(finding=finding, author=actor, text=text.strip())
    Event.record("commented on", finding, team=finding.team, actor=actor)
    return remark


@transaction.atomic
def decide(*, actor: User, finding: Finding, state: str, reason: str = "", expires_on: date | None = None) -> Decision:
    """Changes the state of a finding. Accepting a risk and calling a finding false need a reason, accepting also an end."""
    require(actor, finding.team, Role.REVIEWER)
    if state not in State.values:
        raise AuditError(f"A finding is one of {', '.join(State.values)}; found {state!r}.")
    if state in NEEDS_REASON and not reason.strip():
        raise AuditError(f"“{State(state).label}” needs a reason that others can read later.")
    if state == State.ACCEPTED and (expires_on is None or expires_on <= timezone.localdate()):
        raise AuditError("An accepted risk needs a date in the future on which it is looked at again.")
    if state != State.ACCEPTED:
        expires_on = None
    before = finding.state
    decision = Decision.objects.create(
        finding=finding, author=actor, state=state, reason=reason.strip(), expires_on=expires_on
    )
    finding.state = state
    finding.save(update_fields=["state"])
    Event.record("decided on", finding, team=finding.team, actor=actor, before=before, after=state)
    return decision
