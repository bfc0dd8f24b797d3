"""The lease: who may work on a row, and who may still write."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from audits.models import Run, Status
from audits.models.work import MAX_TRIES, ClockTimestamp
from tests.factories import cast, make_audit, make_dataset

pytestmark = pytest.mark.django_db


def queued_run() -> Run:
    people = cast()
    dataset = make_dataset(people.team, people.alice, columns=["label", "sex"])
    return make_audit(people.team, people.alice, dataset=dataset, methods=["fairness.group_metrics"]).runs.get()


def expire(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(lease_until=ClockTimestamp() - timedelta(seconds=1))


def test_a_queued_run_is_claimed_once() -> None:
    run = queued_run()
    assert Run.objects.claim(run.pk, "first") == 1
    assert Run.objects.claim(run.pk, "second") is None
    run.refresh_from_db()
    assert (run.status, run.owner) == (Status.RUNNING, "first")


@pytest.mark.django_db(transaction=True)
def test_of_many_workers_that_claim_at_once_one_succeeds() -> None:
    run = queued_run()

    def claim(name: str) -> int | None:
        try:
            return Run.objects.claim(run.pk, name)
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        attempts = list(pool.map(claim, map(str, range(16))))
    assert sorted(filter(None, attempts)) == [1]


def test_an_expired_lease_is_taken_over_and_the_zombie_writes_nothing() -> None:
    run = queued_run()
    Run.objects.claim(run.pk, "zombie")
    expire(run)
    assert Run.objects.claim(run.pk, "heir") == 2
    assert not Run.objects.renew(run.pk, 1, 0.5, "still here")
    assert not Run.objects.finish(run.pk, 1, Status.COMPLETED)
    assert Run.objects.finish(run.pk, 2, Status.COMPLETED)


def test_a_renewed_lease_is_not_taken_over() -> None:
    run = queued_run()
    Run.objects.claim(run.pk, "worker")
    expire(run)
    assert Run.objects.renew(run.pk, 1, 0.25, "counting")
    assert Run.objects.claim(run.pk, "other") is None
    run.refresh_from_db()
    assert (run.percent, run.progress_words) == (25, "counting")


def test_after_three_lost_workers_nobody_claims_it_any_more() -> None:
    run = queued_run()
    for attempt in range(1, MAX_TRIES + 1):
        assert Run.objects.claim(run.pk, "worker") == attempt
        expire(run)
    assert Run.objects.claim(run.pk, "worker") is None
    assert list(Run.objects.worn_out()) == [run]
    assert not Run.objects.to_ring().exists()


def test_a_person_may_queue_it_again_and_the_fencing_number_goes_on_rising() -> None:
    run = queued_run()
    Run.objects.claim(run.pk, "worker")
    Run.objects.finish(run.pk, 1, Status.FAILED, "too few records")
    assert Run.objects.requeue(run.pk)
    assert Run.objects.claim(run.pk, "worker") == 2


def test_a_completed_run_is_not_queued_again() -> None:
    run = queued_run()
    Run.objects.claim(run.pk, "worker")
    Run.objects.finish(run.pk, 1, Status.COMPLETED)
    assert not Run.objects.requeue(run.pk)


def test_cancelling_stops_the_heartbeat() -> None:
    run = queued_run()
    Run.objects.claim(run.pk, "worker")
    Run.objects.filter(pk=run.pk).update(cancel_requested=True)
    assert not Run.objects.renew(run.pk, 1, 0.5, "")
    assert Run.objects.finish(run.pk, 1, Status.CANCELLED)


def test_a_queued_run_is_announced_again_but_not_at_every_sweep() -> None:
    run = queued_run()
    Run.objects.filter(pk=run.pk).update(rung_at=None)
    assert Run.objects.mark_rung(run.pk)
    assert not Run.objects.mark_rung(run.pk)


def test_a_failure_without_a_reason_is_refused_by_the_database() -> None:
    run = queued_run()
    Run.objects.claim(run.pk, "worker")
    with pytest.raises(IntegrityError), transaction.atomic():
        Run.objects.finish(run.pk, 1, Status.FAILED, "")
