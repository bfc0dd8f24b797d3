"""What people may do, and what they are told when they may not or cannot."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.core.files.storage import default_storage
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from audits.methods.errors import AuditError
from audits.models import ApiToken, Audit, Event, Finding, Role, Run, Status, Team
from audits.services import artifacts, audits, demo, reviews, teams
from tests.factories import cast, make_audit, make_dataset, make_model

pytestmark = pytest.mark.django_db

ROLES = {"y_pred": "label", "sensitive_features": ["sex"]}


def ask(people: Any, **fields: Any) -> Audit:
    dataset = fields.pop("dataset", None) or make_dataset(people.team, people.alice, columns=["label", "sex"])
    given = {"actor": people.alice, "team": people.team, "roles": ROLES, "methods": {"fairness.group_metrics": {}}}
    return audits.request_audit(dataset=dataset, **(given | fields))


def test_an_upload_is_stored_under_its_hash_and_queued_for_reading() -> None:
    people = cast()
    upload = SimpleUploadedFile("../../etc/passwd.csv", b"a,b\n1,2\n")
    artifact = artifacts.receive_artifact(actor=people.alice, team=people.team, kind="dataset", upload=upload)
    assert artifact.filename == "passwd.csv"
    assert artifact.file.name == f"artifacts/{people.team.pk}/{artifact.sha256}"
    with default_storage.open(artifact.file.name) as stored:
        assert stored.read() == b"a,b\n1,2\n"
    assert artifact.inspection.status == Status.QUEUED


def test_an_empty_upload_is_refused_in_words() -> None:
    people = cast()
    with pytest.raises(AuditError, match="empty"):
        artifacts.receive_artifact(
            actor=people.alice, team=people.team, kind="dataset", upload=SimpleUploadedFile("a.csv", b"")
        )


@pytest.mark.parametrize("name", ["bob", "vera", "mallory"])
def test_only_auditors_and_owners_submit(name: str) -> None:
    people = cast()
    with pytest.raises(PermissionDenied):
        ask(people, actor=getattr(people, name))
    assert not Audit.objects.exists()


def test_a_request_queues_one_run_per_method_and_keeps_the_policy_it_used() -> None:
    audit = ask(cast())
    run = audit.runs.get()
    assert (run.status, run.method) == (Status.QUEUED, "fairness.group_metrics")
    assert audit.policy["version"]
    assert audit.policy["bounds"]["fairness.group_metrics"]


def test_the_same_idempotency_key_gives_the_same_audit() -> None:
    people = cast()
    dataset = make_dataset(people.team, people.alice, columns=["label", "sex"])
    first = ask(people, dataset=dataset, idempotency_key="k")
    assert ask(people, dataset=dataset, idempotency_key="k") == first
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"roles": {"y_pred": "labell"}}, "no column 'labell'.*label, sex"),
        ({"roles": {"nonsense": "label"}}, "no column role 'nonsense'"),
        ({"roles": {"y_pred": ["label", "sex"]}}, "takes one column; found 2"),
        ({"methods": {}}, "at least one"),
        ({"methods": {"fairness.nonsense": {}}}, "no audit method 'fairness.nonsense'"),
        ({"methods": {"privacy.loss_membership": {}}}, "needs.*Was in the training set"),
        ({"methods": {"fairness.group_metrics": {"level": 7}}}, "between 0.5 and 0.999; found 7"),
        ({"methods": {"fairness.group_metrics": {"speed": 7}}}, "no setting 'speed'"),
        ({"missing": "guess"}, "found 'guess'"),
    ],
)
def test_a_request_that_cannot_work_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(AuditError, match=words):
        ask(cast(), **fields)
    assert not Audit.objects.exists()


def test_artifacts_of_another_team_cannot_be_audited() -> None:
    people = cast()
    foreign = make_dataset(people.other_team, people.mallory, columns=["label", "sex"])
    with pytest.raises(AuditError, match="belong to the team"):
        ask(people, dataset=foreign)


def test_a_model_in_the_place_of_the_data_set_is_refused_in_words() -> None:
    people = cast()
    with pytest.raises(AuditError, match="is a model, where a data set is needed"):
        ask(people, dataset=make_model(people.team, people.alice))


def test_reading_again_changes_nothing_of_a_file_that_was_read() -> None:
    people = cast()
    model = make_model(people.team, people.alice)
    artifacts.read_again(actor=people.alice, artifact=model, options={"architecture": "cnn"})
    model.refresh_from_db()
    assert model.options == {}
    assert model.inspection.status == Status.COMPLETED


def test_methods_that_cannot_run_say_what_they_lack() -> None:
    lacking = {a.entry.key: [i.name for i in a.missing] for a in audits.applicability(roles=ROLES, has_model=False)}
    assert lacking["fairness.group_metrics"] == []
    assert "model" in lacking["backdoor.trigger_inversion"]


def test_a_queued_run_is_cancelled_at_once_and_may_be_retried() -> None:
    people = cast()
    audit = ask(people)
    assert audits.cancel_runs(actor=people.alice, audit=audit) == 1
    run = audit.runs.get()
    assert run.status == Status.CANCELLED
    assert audits.retry_run(actor=people.alice, run=run)
    run.refresh_from_db()
    assert (run.status, run.cancel_requested) == (Status.QUEUED, False)


def finding_of(people: Any) -> Finding:
    audit = ask(people)
    return Finding.objects.create(
        team=people.team, audit=audit, run=audit.runs.get(), identity="0", method="fairness.group_metrics",
        measurement={"name": "gap", "subject": "sex"}, bound={}, verdict="exceeds", because="", severity=3,
    )  # fmt: skip


def test_a_reviewer_decides_with_a_reason_and_the_event_tells_it() -> None:
    people = cast()
    finding = finding_of(people)
    with pytest.raises(AuditError, match="needs a reason"):
        reviews.decide(actor=people.bob, finding=finding, state="false_positive")
    reviews.decide(actor=people.bob, finding=finding, state="false_positive", reason="Label noise, see ticket.")
    finding.refresh_from_db()
    assert finding.state == "false_positive"
    assert Event.objects.filter(verb="decided on", detail__after="false_positive").exists()


def test_an_accepted_risk_needs_an_end() -> None:
    people = cast()
    finding = finding_of(people)
    with pytest.raises(AuditError, match="date in the future"):
        reviews.decide(actor=people.bob, finding=finding, state="accepted", reason="Known.")
    later = timezone.localdate() + timedelta(days=30)
    reviews.decide(actor=people.bob, finding=finding, state="accepted", reason="Known.", expires_on=later)


@pytest.mark.parametrize("name", ["vera", "mallory"])
def test_viewers_and_outsiders_neither_comment_nor_decide(name: str) -> None:
    people = cast()
    finding = finding_of(people)
    with pytest.raises(PermissionDenied):
        reviews.comment(actor=getattr(people, name), finding=finding, text="hello")
    with pytest.raises(PermissionDenied):
        reviews.decide(actor=getattr(people, name), finding=finding, state="confirmed")


def test_a_token_is_stored_hashed_and_dies_with_the_membership() -> None:
    people = cast()
    token, secret = teams.issue_token(actor=people.bob, team=people.team, name="ci", scopes=["read"])
    assert secret not in str(token.__dict__)
    assert ApiToken.objects.for_secret(secret) == token
    people.team.memberships.filter(user=people.bob).delete()
    assert ApiToken.objects.for_secret(secret) is None


def test_an_expired_token_does_not_work() -> None:
    people = cast()
    token, secret = teams.issue_token(actor=people.bob, team=people.team, name="ci", scopes=["read"])
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now())
    assert ApiToken.objects.for_secret(secret) is None


def test_querysets_show_a_team_to_its_members_alone() -> None:
    people = cast()
    audit = ask(people)
    make_model(people.team, people.alice)
    assert list(Audit.objects.visible_to(people.vera)) == [audit]
    assert not Audit.objects.visible_to(people.mallory).exists()
    assert not Team.objects.visible_to(people.mallory).filter(pk=people.team.pk).exists()
    assert Run.objects.visible_to(people.bob).count() == 1
    assert not Run.objects.visible_to(people.mallory).exists()


def test_the_demo_team_is_made_once() -> None:
    team = demo.demo_team("a password of some length")
    assert demo.demo_team("a password of some length") == team
    roles = {m.user.username: m.role for m in team.memberships.select_related("user")}
    assert roles == {"alice": Role.OWNER, "bob": Role.REVIEWER, "vera": Role.VIEWER}


def test_make_audit_of_the_factories_gives_what_a_request_gives() -> None:
    people = cast()
    dataset = make_dataset(people.team, people.alice, columns=["label", "sex"])
    audit = make_audit(people.team, people.alice, dataset=dataset, roles=ROLES, methods=["fairness.group_metrics"])
    assert audit.policy["bounds"].keys() == {"fairness.group_metrics"}
