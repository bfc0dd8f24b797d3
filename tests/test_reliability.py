"""Killing anything at any moment neither loses nor doubles a result: real workers, a real broker, real signals."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from audits import execution
from audits.models import Artifact, Audit, Run, RunResult, Status
from audits.samples.demo import FOLDER
from audits.services.artifacts import receive_artifact
from audits.services.audits import request_audit, retry_run
from tests.factories import cast
from tests.live import until, worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

ROLES = {"y_true": "label", "y_pred": "prediction", "sensitive_features": ["sex", "race", "age_group"]}
SLOW = {"replicates": 20_000, "max_depth": 3}  # some seconds of work


@pytest.fixture
def people() -> Any:
    return cast()


@pytest.fixture
def dataset(people: Any) -> Artifact:
    content = (FOLDER / "adult_predictions.csv").read_bytes()
    upload = SimpleUploadedFile("adult_predictions.csv", content)
    artifact = receive_artifact(actor=people.alice, team=people.team, kind="dataset", upload=upload)
    execution.inspect(artifact.pk)
    artifact.inspection.refresh_from_db()
    assert artifact.inspection.status == Status.COMPLETED, artifact.inspection.reason
    return artifact


def ask(people: Any, dataset: Artifact, **settings: Any) -> Run:
    audit = request_audit(
        actor=people.alice,
        team=people.team,
        dataset=dataset,
        roles=ROLES,
        positive_label="1",
        methods={"fairness.group_metrics": settings},
        seed=1,
    )
    return audit.runs.get()


def state(run: Run) -> str:
    run.refresh_from_db()
    return run.status


def computing(run: Run) -> bool:
    return state(run) == Status.RUNNING and run.progress > 0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    return tmp_path


def test_a_run_whose_worker_is_killed_completes_on_another_with_one_result(
    people: Any, dataset: Artifact, folder: Path
) -> None:
    run = ask(people, dataset, **SLOW)
    with worker(folder, "first") as first:
        until(lambda: computing(run) and first.sealed_children(), 60, "the run to compute", first)
        children = first.sealed_children()
        first.kill()
    until(
        lambda: not any(child.is_running() and child.status() != "zombie" for child in children), 5, "its child to die"
    )
    assert state(run) == Status.RUNNING
    with worker(folder, "second") as second:
        until(lambda: state(run) == Status.COMPLETED, 90, "the second worker to complete the run", second)
    assert run.attempt == 2
    assert "second" not in run.reason
    assert RunResult.objects.filter(run=run).count() == 1
    assert RunResult.objects.get(run=run).attempt == 2
    assert Audit.objects.get(pk=run.audit_id).evaluated_at


def test_a_killed_child_ends_the_run_in_words_and_leaves_the_worker_at_work(
    people: Any, dataset: Artifact, folder: Path
) -> None:
    run = ask(people, dataset, **SLOW)
    with worker(folder, "only") as only:
        until(lambda: computing(run) and only.sealed_children(), 60, "the run to compute", only)
        for child in only.sealed_children():
            os.kill(child.pid, signal.SIGKILL)
        until(lambda: state(run) in (Status.FAILED, Status.ERRORED), 30, "the run to end", only)
        assert "killed" in run.reason
        assert not RunResult.objects.exists()
        assert retry_run(actor=people.alice, run=run)
        until(lambda: state(run) == Status.COMPLETED, 90, "the same worker to complete it", only)
        assert only.process.poll() is None
    assert RunResult.objects.filter(run=run).count() == 1


def test_runs_queued_while_the_broker_loses_everything_all_complete(
    people: Any, dataset: Artifact, folder: Path
) -> None:
    from auditor.embedded import start_valkey

    broker = start_valkey(folder / "valkey")
    with pytest.MonkeyPatch.context() as patch:
        from auditor.celery import app

        patch.setattr(app.conf, "broker_url", broker.url)
        app.pool.force_close_all()
        runs = [ask(people, dataset, replicates=200) for _ in range(4)]
    broker.kill()
    again = start_valkey(folder / "valkey-after", port=broker.port)  # empty: nothing of the old queue is left
    try:
        with worker(folder, "after", BROKER_URL=again.url) as after:
            until(lambda: all(state(run) == Status.COMPLETED for run in runs), 120, "all runs to complete", after)
    finally:
        again.stop()
    assert RunResult.objects.count() == len(runs)


def test_a_broker_that_restarts_under_a_live_worker_is_found_again(
    people: Any, dataset: Artifact, folder: Path
) -> None:
    from auditor.embedded import start_valkey

    broker = start_valkey(folder / "valkey")
    with worker(folder, "live", BROKER_URL=broker.url) as live:
        first = ask(
            people, dataset, replicates=200
        )  # its message goes to the session's broker: only the sweep finds it
        until(lambda: state(first) == Status.COMPLETED, 60, "the first run", live)
        broker.kill()
        second = ask(people, dataset, replicates=200)
        again = start_valkey(folder / "valkey-after", port=broker.port)
        try:
            until(lambda: state(second) == Status.COMPLETED, 60, "the second run, after the restart", live)
        finally:
            live.stop()
            again.stop()
    assert RunResult.objects.count() == 2
