"""Work that a worker claims: one conditional update takes a lease and a fencing number, a heartbeat renews it.

The row is the truth. A message from the broker only says "look here"; a lost or doubled message changes nothing. Times are
the database's own (`clock_timestamp()`), so that the clocks of hosts need not agree.
"""

from datetime import timedelta
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import F, Q

MAX_TRIES = 3
RING_AGAIN_SECONDS = 10  # a queued row is announced again after this long


class ClockTimestamp(models.Func):
    """The database's wall clock at this moment, also inside a transaction."""

    function = "clock_timestamp"
    output_field = models.DateTimeField()


class Status(models.TextChoices):
    """The life of a piece of work."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    ERRORED = "errored"
    CANCELLED = "cancelled"


FINAL = (Status.COMPLETED, Status.FAILED, Status.ERRORED, Status.CANCELLED)


def _lease_end() -> Any:
    return ClockTimestamp() + timedelta(seconds=settings.LEASE_SECONDS)


class WorkQuerySet(models.QuerySet[Any]):
    """Conditional updates; each is one statement and says by its row count whether it held."""

    def claim(self, pk: Any, owner: str) -> int | None:
        """Takes the row for `owner`. Returns the fencing number, or None where someone else has it or it is done."""
        free = Q(status=Status.QUEUED) | Q(status=Status.RUNNING, lease_until__lt=ClockTimestamp())
        taken = self.filter(free, pk=pk, tries__lt=MAX_TRIES, cancel_requested=False).update(
            status=Status.RUNNING,
            attempt=F("attempt") + 1,
            tries=F("tries") + 1,
            owner=owner[:100],
            lease_until=_lease_end(),
            started_at=ClockTimestamp(),
            progress=0.0,
            progress_words="",
        )
        return self.filter(pk=pk).values_list("attempt", flat=True).get() if taken else None

    def mine(self, pk: Any, attempt: int) -> Self:
        """The row, only while it is still held under that fencing number."""
        return self.filter(pk=pk, attempt=attempt, status=Status.RUNNING)

    def renew(self, pk: Any, attempt: int, share: float, words: str) -> bool:
        """Heartbeat: extends the lease. False: lost, cancelled or overtaken, so stop."""
        held = self.mine(pk, attempt).filter(cancel_requested=False)
        return bool(held.update(lease_until=_lease_end(), progress=share, progress_words=words[:200]))

    def finish(self, pk: Any, attempt: int, status: Status, reason: str = "", **fields: Any) -> bool:
        """Ends the row under the fencing number. False where it is no longer ours; then nothing may be written."""
        ended = self.mine(pk, attempt).update(
            status=status, reason=reason, finished_at=ClockTimestamp(), lease_until=None, **fields
        )
        return bool(ended)

    def requeue(self, pk: Any) -> bool:
        """Queues a row again that ended without a result. The fencing number goes on rising."""
        ended = self.filter(pk=pk, status__in=(Status.FAILED, Status.ERRORED, Status.CANCELLED))
        again = {"status": Status.QUEUED, "tries": 0, "cancel_requested": False, "reason": "", "progress": 0.0}
        return bool(ended.update(**again, progress_words="", finished_at=None, rung_at=None))

    def to_ring(self) -> Self:
        """Rows that wait for a worker and were not announced lately: queued ones, and running ones whose lease ended."""
        lost = Q(status=Status.RUNNING, lease_until__lt=ClockTimestamp())
        quiet = Q(rung_at__isnull=True) | Q(rung_at__lt=ClockTimestamp() - timedelta(seconds=RING_AGAIN_SECONDS))
        waiting = (Q(status=Status.QUEUED) | lost) & quiet
        return self.filter(waiting, tries__lt=MAX_TRIES, cancel_requested=False)

    def mark_rung(self, pk: Any) -> bool:
        """Notes that the row was announced. False where another sweep was quicker."""
        return bool(self.to_ring().filter(pk=pk).update(rung_at=ClockTimestamp()))

    def worn_out(self) -> Self:
        """Rows whose last allowed attempt was lost with its worker."""
        return self.filter(
            Q(status=Status.RUNNING, lease_until__lt=ClockTimestamp()) | Q(status=Status.QUEUED),
            tries__gte=MAX_TRIES,
        )

    def cancelled_and_left(self) -> Self:
        """Rows that were to be cancelled while nobody works on them."""
        left = Q(status=Status.QUEUED) | Q(status=Status.RUNNING, lease_until__lt=ClockTimestamp())
        return self.filter(left, cancel_requested=True)


class Work(models.Model):
    """Fields of a row that workers claim."""

    status = models.CharField(max_length=10, choices=Status.choices, default=Status.QUEUED)
    attempt = models.PositiveSmallIntegerField(default=0, help_text="Fencing number: only its holder may write")
    tries = models.PositiveSmallIntegerField(default=0, help_text="Claims since it was last queued by a person")
    owner = models.CharField(max_length=100, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    rung_at = models.DateTimeField(null=True, blank=True)
    progress = models.FloatField(default=0.0)
    progress_words = models.CharField(max_length=200, blank=True)
    reason = models.TextField(blank=True, help_text="Why it failed, in words for the user")
    cancel_requested = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = WorkQuerySet.as_manager()

    class Meta:
        abstract = True

    @property
    def is_final(self) -> bool:
        """Whether nothing will change any more."""
        return self.status in FINAL

    @property
    def percent(self) -> int:
        """Progress for a bar."""
        return 100 if self.status == Status.COMPLETED else round(100 * min(max(self.progress, 0.0), 1.0))


def work_constraints(name: str) -> list[models.BaseConstraint]:
    """Constraints that every kind of work has; they cannot be inherited because their names must differ."""
    return [
        models.CheckConstraint(condition=Q(status__in=Status.values), name=f"{name}_status_known"),
        models.CheckConstraint(
            condition=~Q(status=Status.RUNNING) | Q(lease_until__isnull=False), name=f"{name}_running_has_lease"
        ),
        models.CheckConstraint(
            condition=~Q(status__in=(Status.FAILED, Status.ERRORED)) | ~Q(reason=""), name=f"{name}_failure_has_reason"
        ),
    ]
