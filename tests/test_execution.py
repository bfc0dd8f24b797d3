"""From a claimed row to a stored outcome, with the child process replaced by what it might answer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.core.files.storage import default_storage

from audits import execution
from audits.engine.job import Job, Outcome
from audits.methods.contract import Control, Measurement, Result
from audits.models import Finding, Preparation, Run, RunResult, Status
from audits.models.work import ClockTimestamp
from tests.factories import cast, make_audit, make_dataset, make_model

pytestmark = pytest.mark.django_db

GAP = "demographic_parity_difference"


def result(low: float = 0.15, high: float = 0.25) -> Result:
    gap = Measurement(GAP, 0.2, "sex", low=low, high=high, level=0.95, n=100, worse="higher", p_value=0.001)
    return Result(
        [gap], [Control("shuffled", "negative", "Groups shuffled.", True, 100, 5)], arrays={"null": np.zeros(3)}
    )


def outcome(status: str = "completed", **fields: Any) -> Outcome:
    made = result()
    given = {
        "status": status,
        "reason": "",
        "detail": "",
        "data": {"result": made.to_json(), "ledger": {"rows": 100, "used": 100, "dropped": []}, "classes": ["0", "1"]},
        "arrays": dict(made.arrays),
        "seconds": {"computing": 1.0},
        "sandbox": {"level": "B"},
    }
    return Outcome(**(given | fields))


def queued_run(**fields: Any) -> Run:
    people = cast()
    dataset = make_dataset(people.team, people.alice, columns=["label", "sex"])
    given = {"roles": {"y_pred": "label", "sensitive_features": ["sex"]}, "methods": ["fairness.group_metrics"]}
    return make_audit(people.team, people.alice, dataset=dataset, **(given | fields)).runs.get()


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Job]]:
    """Replaces the child: `child(answer)` makes every job give that answer and returns the list of jobs asked."""

    def answer_with(answer: Outcome | Callable[[Job], Outcome]) -> list[Job]:
        asked: list[Job] = []

        def run_job(job: Job, **_: Any) -> Outcome:
            asked.append(job)
            return answer(job) if callable(answer) else answer

        monkeypatch.setattr(execution, "run_job", run_job)
        return asked

    return answer_with


def test_a_completed_run_stores_its_result_and_its_finding(child: Any) -> None:
    run = queued_run()
    child(outcome())
    execution.execute(run.pk)
    run.refresh_from_db()
    assert run.status == Status.COMPLETED
    assert run.result.sha256 == execution.result_digest(run.result.data, run.result.ledger, {"null": np.zeros(3)})
    finding = Finding.objects.get(audit=run.audit, measurement__name=GAP)
    assert finding.verdict == "exceeds"


def test_a_second_delivery_of_the_same_message_does_nothing(child: Any) -> None:
    run = queued_run()
    asked = child(outcome())
    execution.execute(run.pk)
    execution.execute(run.pk)
    assert len(asked) == 1
    assert RunResult.objects.filter(run=run).count() == 1


def test_a_worker_that_was_overtaken_writes_nothing(child: Any) -> None:
    run = queued_run()

    def overtaken(_: Job) -> Outcome:
        Run.objects.filter(pk=run.pk).update(attempt=7)
        return outcome()

    child(overtaken)
    execution.execute(run.pk)
    run.refresh_from_db()
    assert run.status == Status.RUNNING
    assert not RunResult.objects.exists()
    assert not Finding.objects.exists()
    folder = f"results/{run.audit.team_id}"
    assert not default_storage.exists(folder) or default_storage.listdir(folder)[1] == []


def test_the_inputs_fault_fails_the_run_with_its_sentence(child: Any) -> None:
    run = queued_run()
    child(outcome("failed", reason="Group metrics need two groups; “sex” has only “F”."))
    execution.execute(run.pk)
    run.refresh_from_db()
    assert (run.status, run.reason) == (Status.FAILED, "Group metrics need two groups; “sex” has only “F”.")
    assert run.audit.evaluated_at is None or not Finding.objects.exists()


def test_an_internal_error_gives_the_user_a_reference_and_the_log_the_traceback(child: Any, caplog: Any) -> None:
    run = queued_run()
    child(outcome("errored", reason="The method stopped.", detail="Traceback: secret detail"))
    execution.execute(run.pk)
    run.refresh_from_db()
    assert run.status == Status.ERRORED
    assert run.reference in run.reason
    assert "secret detail" not in run.reason
    assert run.reference in caplog.text
    assert "secret detail" in caplog.text


def test_an_answer_that_is_no_result_errors_the_run(child: Any) -> None:
    run = queued_run()
    child(outcome(data={"result": {"measurements": [{"name": "x", "value": None}]}, "ledger": {}}))
    execution.execute(run.pk)
    run.refresh_from_db()
    assert run.status == Status.ERRORED
    assert not RunResult.objects.exists()


def test_a_lost_lease_leaves_the_row_to_its_new_holder(child: Any) -> None:
    run = queued_run()
    child(outcome("cancelled"))
    execution.execute(run.pk)
    run.refresh_from_db()
    assert run.status == Status.RUNNING


def test_a_cancelled_run_ends_cancelled(child: Any) -> None:
    run = queued_run()

    def cancelled(_: Job) -> Outcome:
        Run.objects.filter(pk=run.pk).update(cancel_requested=True)
        return outcome("cancelled")

    child(cancelled)
    execution.execute(run.pk)
    run.refresh_from_db()
    assert run.status == Status.CANCELLED


def test_derived_inputs_are_computed_once_for_all_runs(child: Any) -> None:
    people = cast()
    audit = make_audit(
        people.team,
        people.alice,
        dataset=make_dataset(people.team, people.alice, columns=["label", "sex", "age"]),
        model=make_model(people.team, people.alice),
        roles={"y_true": "label", "sensitive_features": ["sex"], "features": ["age"]},
        methods=["fairness.group_metrics", "fairness.calibration"],
    )

    def answer(job: Job) -> Outcome:
        if job.task == "prepare":
            return outcome(
                arrays={name: np.zeros(5) for name in job.wanted},
                data={"prepared": list(job.wanted), "classes": ["0", "1"]},
            )
        return outcome()

    asked = child(answer)
    for run in audit.runs.all():
        execution.execute(run.pk)
    wanted = [name for job in asked if job.task == "prepare" for name in job.wanted]
    assert sorted(wanted) == ["y_pred", "y_score"]
    assert Preparation.objects.count() == 2
    assert all(job.prepared for job in asked if job.task == "measure")


def test_the_sweep_ends_what_was_lost_three_times(child: Any) -> None:
    run = queued_run()
    Run.objects.filter(pk=run.pk).update(status=Status.RUNNING, tries=3, attempt=3, lease_until=run.created_at)
    execution.sweep(lambda _: None, lambda _: None)
    run.refresh_from_db()
    assert run.status == Status.ERRORED
    assert "lost" in run.reason


def test_the_sweep_announces_forgotten_and_lost_runs() -> None:
    run = queued_run()
    rung: list[Any] = []
    Run.objects.filter(pk=run.pk).update(rung_at=None)
    execution.sweep(lambda row: rung.append(row.pk), lambda _: None)
    execution.sweep(lambda row: rung.append(row.pk), lambda _: None)
    assert rung == [run.pk]
    Run.objects.filter(pk=run.pk).update(status=Status.RUNNING, attempt=1, lease_until=run.created_at, rung_at=None)
    execution.sweep(lambda row: rung.append(row.pk), lambda _: None)
    assert rung == [run.pk, run.pk]
    assert Run.objects.filter(pk=run.pk, rung_at__lte=ClockTimestamp()).exists()
