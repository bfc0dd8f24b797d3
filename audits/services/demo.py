"""The demo team: three people, the sample files, the sample audits. Doing it again adds what is not there."""

import secrets
from collections.abc import Callable

from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import transaction

from audits.models import Artifact, Audit, Membership, Role, Team, User
from audits.models.work import FINAL, Status
from audits.samples.demo import AUDITS, FOLDER, NAMES, SampleAudit
from audits.services.artifacts import receive_artifact
from audits.services.audits import request_audit
from audits.services.teams import add_member, create_team

TEAM = "Demo team"
PEOPLE = (
    ("alice", "Alice", "Owner", Role.OWNER),
    ("bob", "Bob", "Reviewer", Role.REVIEWER),
    ("vera", "Vera", "Viewer", Role.VIEWER),
)
MODEL_ENDINGS = (".skops", ".onnx", ".safetensors")


@transaction.atomic
def demo_team(password: str) -> Team:
    """The demo team with its three members, who all sign in with `password`."""
    users = [_user(name, first, last, password) for name, first, last, _ in PEOPLE]
    owner = users[0]
    membership = Membership.objects.filter(user=owner, team__name=TEAM).select_related("team").first()
    team = membership.team if membership else create_team(name=TEAM, owner=owner)
    for user, (*_, role) in zip(users[1:], PEOPLE[1:], strict=True):
        if team.role_of(user) != role:
            add_member(team=team, actor=owner, user=user, role=role)
    return team


def _user(name: str, first: str, last: str, password: str) -> User:
    user, _ = User.objects.get_or_create(username=name, defaults={"first_name": first, "last_name": last})
    if not user.check_password(password):
        user.set_password(password)
        user.save(update_fields=["password"])
    return user


def demo_artifacts(team: Team) -> dict[str, Artifact]:
    """The sample files as artifacts by file name; those that are not there yet are uploaded."""
    owner = User.objects.get(username=PEOPLE[0][0])
    there = {artifact.filename: artifact for artifact in team.artifacts.select_related("inspection")}
    for filename in sorted({name for sample in AUDITS for name in (sample.dataset, sample.model) if name}):
        if filename not in there:
            kind = Artifact.Kind.MODEL if filename.endswith(MODEL_ENDINGS) else Artifact.Kind.DATASET
            upload = SimpleUploadedFile(filename, (FOLDER / filename).read_bytes())
            there[filename] = receive_artifact(
                actor=owner, team=team, kind=kind, upload=upload, name=NAMES.get(filename, filename)
            )
    return there


def request_sample(team: Team, sample: SampleAudit, artifacts: dict[str, Artifact]) -> Audit:
    """The sample audit, requested now if it was not before."""
    return request_audit(
        actor=User.objects.get(username=PEOPLE[0][0]),
        team=team,
        title=sample.title,
        dataset=artifacts[sample.dataset],
        model=artifacts[sample.model] if sample.model else None,
        roles=sample.roles,
        positive_label=sample.positive_label,
        methods=sample.methods,
        seed=1,
        idempotency_key=f"sample: {sample.title}",
    )


def run_demo(team: Team, *, pause: Callable[[], None], say: Callable[[str], None]) -> bool:
    """Requests the sample audits as their files are read and waits until all have ended. True: every run completed."""
    waiting = list(AUDITS)
    audits: list[Audit] = []
    while waiting:
        artifacts = demo_artifacts(team)
        for sample in list(waiting):
            files = [artifacts[name] for name in (sample.dataset, sample.model) if name]
            if broken := [f for f in files if f.inspection.is_final and f.inspection.status != Status.COMPLETED]:
                say(f"{broken[0].name}: {broken[0].inspection.reason}")
                return False
            if all(f.inspection.status == Status.COMPLETED for f in files):
                audits.append(request_sample(team, sample, artifacts))
                waiting.remove(sample)
        if waiting:
            pause()
    ended: set[str] = set()
    while len(ended) < len(audits):
        for audit in audits:
            if audit.title not in ended and audit.is_final:
                ended.add(audit.title)
                say(f"{audit.title}: {_outcome(audit)}")
        if len(ended) < len(audits):
            pause()
    return all(run.status == Status.COMPLETED for audit in audits for run in audit.runs.filter(status__in=FINAL))


def _outcome(audit: Audit) -> str:
    failed = [f"{run.entry.method.title} {run.status}: {run.reason}" for run in audit.runs.exclude(status="completed")]
    exceeds = audit.findings.exceeding().count()
    return "; ".join(failed) or f"{exceeds} of {audit.findings.count()} checks exceed their bound"


def random_password() -> str:
    """A password that can be typed from a terminal."""
    return "-".join(secrets.token_hex(2) for _ in range(4))
