"""Ring 3: what is stored. One module per noun."""

from audits.models.artifacts import Artifact, Inspection
from audits.models.audits import Audit, Preparation, Run, RunResult, Step
from audits.models.events import Event
from audits.models.reviews import Comment, Decision, Finding
from audits.models.teams import ApiToken, Membership, Role, Team, User
from audits.models.work import Status

__all__ = [
    "ApiToken",
    "Artifact",
    "Audit",
    "Comment",
    "Decision",
    "Event",
    "Finding",
    "Inspection",
    "Membership",
    "Preparation",
    "Role",
    "Run",
    "RunResult",
    "Status",
    "Step",
    "Team",
    "User",
]
