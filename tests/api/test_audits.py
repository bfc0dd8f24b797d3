"""Requesting, watching and cancelling audits over REST."""

import threading
import uuid
from typing import Any

import pytest
from django.db import connection

from audits.methods.catalogue import catalogue
from audits.methods.contract import Setting
from audits.models import Audit, Run, Status
from tests.api.callers import Caller, error, person, token
from tests.factories import Cast, cast, make_audit, make_dataset, make_finding, make_model, make_result

pytestmark = pytest.mark.django_db

METHOD = "fairness.group_metrics"
ROLES = {"y_pred": "prediction", "sensitive_features": ["sex"]}


def request_body(people: Cast, **change: Any) -> dict[str, Any]:
    dataset = make_dataset(people.team, people.alice)
    return {"dataset": str(dataset.pk), "roles": ROLES, "methods": {METHOD: {}}, "seed": 7} | change


def test_a_request_answers_with_the_audit_and_its_runs() -> None:
    people = cast()
    response = person(people.alice).post("/audits/", request_body(people, title="Credit", positive_label="yes"))
    assert response.status_code == 202
    body = response.json()
    assert (body["title"], body["status"], body["seed"], body["positive_label"]) == ("Credit", "queued", 7, "yes")
    assert body["verdicts"] == {"exceeds": 0, "within": 0, "cannot tell": 0}
    assert [(run["method"], run["status"]) for run in body["runs"]] == [(METHOD, "queued")]
    assert body["policy"]["bounds"][METHOD]
    assert response.headers["Location"] == f"/api/v1/audits/{body['id']}/"
    assert person(people.alice).get(f"/audits/{body['id']}/").json() == body


def test_methods_are_named_with_settings_or_alone() -> None:
    people = cast()
    alice = person(people.alice)
    alone = alice.post("/audits/", request_body(people, methods=[METHOD])).json()["runs"][0]["settings"]
    chosen = alice.post("/audits/", request_body(people, methods={METHOD: {"level": 0.9}})).json()["runs"][0][
        "settings"
    ]
    assert (alone["level"], chosen["level"]) == (0.95, 0.9)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dataset": "1"}, "dataset"),
        ({"dataset": None}, "dataset"),
        ({"dataset": str(uuid.uuid4())}, "dataset"),
        ({"model": str(uuid.uuid4())}, "model"),
        ({"roles": []}, "roles"),
        ({"roles": {"y_pred": 3}}, "roles"),
        ({"roles": {"y_pred": [["a"]]}}, "roles"),
        ({"methods": "all"}, "methods"),
        ({"methods": [1]}, "methods"),
        ({"methods": {METHOD: 3}}, "methods"),
        ({"missing": "guess"}, "missing"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**53}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"title": "a" * 201}, "title"),
        ({"positive_label": {}}, "positive_label"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_at_its_field(change: dict[str, Any], field: str) -> None:
    people = cast()
    response = person(people.alice).post("/audits/", request_body(people, **change))
    assert response.status_code == 400
    assert set(error(response)["fields"]) == {field}
    assert not Audit.objects.exists()


def test_a_model_is_not_taken_for_a_data_set() -> None:
    people = cast()
    model = make_model(people.team, people.alice)
    found = error(person(people.alice).post("/audits/", request_body(people, dataset=str(model.pk))))
    assert "data set" in found["fields"]["dataset"][0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"level": 7}, "between"),
        ({"level": "x"}, "number"),
        ({"level": 10**400}, "needs"),
        ({"speed": 1}, "no setting"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_words(settings: dict[str, Any], words: str) -> None:
    people = cast()
    response = person(people.alice).post("/audits/", request_body(people, methods={METHOD: settings}))
    assert response.status_code == 400
    assert words in error(response)["message"]


def test_the_same_key_gives_the_same_audit() -> None:
    people = cast()
    alice, body = person(people.alice), request_body(people)
    first = alice.post("/audits/", body, **{"Idempotency-Key": "build 7"})
    again = alice.post("/audits/", body, **{"Idempotency-Key": "build 7"})
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert Audit.objects.count() == Run.objects.count() == 1


def test_a_key_that_was_used_for_something_else_is_refused() -> None:
    people = cast()
    alice = person(people.alice)
    alice.post("/audits/", request_body(people), **{"Idempotency-Key": "build 7"})
    response = alice.post("/audits/", request_body(people), **{"Idempotency-Key": "build 7"})
    assert response.status_code == 409
    assert error(response)["code"] == "idempotency_key_reused"


def test_another_teams_key_is_another_key() -> None:
    people = cast()
    body = request_body(people)
    theirs = {**body, "dataset": str(make_dataset(people.other_team, people.mallory).pk)}
    one = person(people.alice).post("/audits/", body, **{"Idempotency-Key": "k"}).json()
    other = person(people.mallory).post("/audits/", theirs, **{"Idempotency-Key": "k"}).json()
    assert one["id"] != other["id"]


@pytest.mark.parametrize("key", ["", "a" * 101, "a\tb", "ü"])
def test_a_key_that_cannot_be_kept_is_refused(key: str) -> None:
    people = cast()
    response = person(people.alice).post("/audits/", request_body(people), **{"Idempotency-Key": key})
    assert response.status_code == 400
    assert "Idempotency-Key" in error(response)["fields"]


@pytest.mark.django_db(transaction=True)
def test_the_same_key_twice_at_once_gives_one_audit() -> None:
    people = cast()
    body = request_body(people)
    start = threading.Barrier(4)
    answers = []

    def ask(caller: Caller) -> None:
        start.wait()
        answers.append(caller.post("/audits/", body, **{"Idempotency-Key": "k"}))
        connection.close()

    threads = [threading.Thread(target=ask, args=(token(people.alice, people.team, "submit"),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [202] * 4
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert Audit.objects.count() == Run.objects.count() == 1


def test_an_audit_with_a_run_that_failed_is_incomplete_and_says_why() -> None:
    people = cast()
    audit = make_audit(people.team, people.alice, methods=[METHOD, "privacy.loss_membership"])
    bad = audit.runs.get(method="privacy.loss_membership")
    alice = person(people.alice)
    make_finding_of = audit.runs.get(method=METHOD)
    Run.objects.filter(pk=bad.pk).update(status=Status.FAILED, reason="Too few members.")
    assert alice.get(f"/audits/{audit.pk}/").json()["status"] == "running"
    make_result(make_finding_of)
    body = alice.get(f"/audits/{audit.pk}/").json()
    assert body["status"] == "incomplete"
    assert [run["reason"] for run in body["runs"] if run["status"] == "failed"] == ["Too few members."]


def test_verdicts_are_counted() -> None:
    people = cast()
    audit = make_audit(
        people.team,
        people.alice,
        methods=[METHOD],
        bounds={METHOD: [{"measurement": "selection_rate_difference", "limit": 0.1, "severity": "high", "why": "w"}]},
    )
    make_finding(audit)
    body = person(people.alice).get("/audits/").json()["results"][0]
    assert body["status"] == "completed"
    assert body["verdicts"] == {"exceeds": 1, "within": 0, "cannot tell": 1}
    assert "policy" not in body


def test_a_list_is_narrowed_to_a_data_set_and_a_model() -> None:
    people = cast()
    model = make_model(people.team, people.alice)
    audit = make_audit(people.team, people.alice, model=model)
    make_audit(people.team, people.alice)
    alice = person(people.alice)
    for query in ({"model": str(model.pk)}, {"dataset": str(audit.dataset_id)}):
        assert [row["id"] for row in alice.get("/audits/", query).json()["results"]] == [str(audit.pk)]


def test_a_secret_setting_never_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    people = cast()
    secret = next(p for p in catalogue()[METHOD].parameters if p.name == "level")
    monkeypatch.setitem(vars(secret), "setting", Setting("Level", 0.5, 0.999, secret=True))
    alice = person(people.alice)
    made = alice.post("/audits/", request_body(people, methods={METHOD: {"level": 0.8125}}))
    assert made.status_code == 202
    run = made.json()["runs"][0]
    assert run["settings"]["level"] == "••••••"
    answers = [
        made,
        alice.get(f"/audits/{made.json()['id']}/"),
        alice.get("/audits/"),
        alice.get(f"/runs/{run['id']}/"),
    ]
    assert not any("0.8125" in answer.content.decode() for answer in answers)
    schema = alice.get(f"/methods/{METHOD}/").json()["settings"]["properties"]["level"]
    assert schema["writeOnly"] is True
    assert "default" not in schema


def test_an_audit_whose_method_an_upgrade_removed_is_still_shown() -> None:
    people = cast()
    audit = make_audit(people.team, people.alice, methods=["fairness.removed"])
    audit.runs.update(settings={"key": "hush"})
    run = person(people.alice).get(f"/audits/{audit.pk}/").json()["runs"][0]
    assert (run["method"], run["title"], run["settings"]) == ("fairness.removed", "fairness.removed", {})
    assert person(people.alice).get("/audits/").status_code == 200


# ------------------------------------------------------------------------------------------------------------------ runs


def test_a_result_keeps_undefined_as_null_with_its_reason() -> None:
    people = cast()
    run = make_audit(people.team, people.alice, methods=[METHOD]).runs.get()
    result = make_result(run)
    body = person(people.alice).get(f"/runs/{run.pk}/result/").json()
    known, undefined = body["measurements"][:2]
    assert (known["value"], known["low"], known["undefined"]) == (0.213, 0.181, "")
    assert (undefined["value"], undefined["undefined"]) == (None, "no positives in group B")
    assert body["controls"][0]["passed"] is True
    assert body["tables"][0]["rows"] == [["female", 400], ["male", 600]]
    assert body["ledger"]["used"] == 988
    assert body["sha256"] == result.sha256
    assert (body["run"], body["method"]) == (str(run.pk), METHOD)


def test_a_run_without_a_result_says_how_it_stands() -> None:
    people = cast()
    run = make_audit(people.team, people.alice, methods=[METHOD]).runs.get()
    alice = person(people.alice)
    assert "it is queued" in error(alice.get(f"/runs/{run.pk}/result/"))["message"]
    Run.objects.filter(pk=run.pk).update(status=Status.FAILED, reason="Group B is empty.")
    response = alice.get(f"/runs/{run.pk}/result/")
    assert response.status_code == 409
    assert "Group B is empty." in error(response)["message"]


def test_cancelling_a_run_leaves_the_others() -> None:
    people = cast()
    audit = make_audit(people.team, people.alice, methods=[METHOD, "privacy.loss_membership"])
    one, other = audit.runs.all()
    response = person(people.alice).post(f"/runs/{one.pk}/cancel/")
    assert response.json()["status"] == "cancelled"
    other.refresh_from_db()
    assert other.status == Status.QUEUED


def test_cancelling_an_audit_stops_what_has_not_ended() -> None:
    people = cast()
    audit = make_audit(people.team, people.alice, methods=[METHOD, "privacy.loss_membership"])
    make_result(audit.runs.get(method=METHOD))
    body = person(people.alice).post(f"/audits/{audit.pk}/cancel/").json()
    assert body["status"] == "incomplete"
    assert {run["method"]: run["status"] for run in body["runs"]} == {
        METHOD: "completed",
        "privacy.loss_membership": "cancelled",
    }


def test_only_a_run_that_ended_without_a_result_is_repeated() -> None:
    people = cast()
    run = make_audit(people.team, people.alice, methods=[METHOD]).runs.get()
    alice = person(people.alice)
    refused = alice.post(f"/runs/{run.pk}/retry/")
    assert refused.status_code == 409
    assert "queued" in error(refused)["message"]
    Run.objects.filter(pk=run.pk).update(status=Status.ERRORED, reason="Lost.")
    again = alice.post(f"/runs/{run.pk}/retry/")
    assert (again.status_code, again.json()["status"], again.json()["reason"]) == (202, "queued", "")
