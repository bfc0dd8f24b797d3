"""One piece of work from claimed row to stored outcome.

The worker holds a lease on the row and a fencing number; the uploaded files are opened by the confined child alone. The
result is written in one transaction that holds only while the lease is still ours, so a worker that was overtaken writes nothing.
"""

import hashlib
import io
import json
import logging
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import IntegrityError, OperationalError, connection, transaction

from audits.engine.job import File, Job, Outcome, run_job
from audits.evaluation import evaluate_when_done
from audits.methods.contract import Kind, Result
from audits.methods.errors import AuditError
from audits.models import Artifact, Audit, Event, Inspection, Preparation, Run, RunResult, Status, Step
from audits.models.work import WorkQuerySet

log = logging.getLogger(__name__)

PREPARE_SHARE = 0.3  # of a run's progress bar, where derived inputs have to be computed first
DERIVED_VERSION = "1"  # raise when the engine derives inputs differently, so that stored ones are not reused


def owner() -> str:
    """Names this process in the row it holds."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Lease:
    """The right to write to one row. `beat` renews it in time; it fails for good when the row was taken or cancelled."""

    def __init__(self, rows: WorkQuerySet, pk: Any, attempt: int) -> None:
        self.rows, self.pk, self.attempt = rows, pk, attempt
        self.renewed_at = time.monotonic()
        self.start, self.span = 0.0, 1.0

    def beat(self, share: float, words: str) -> bool:
        """Called about twice a second while the child works. False stops the child."""
        now = time.monotonic()
        if now - self.renewed_at < min(settings.LEASE_SECONDS / 4, 1.0):
            return True
        try:
            held = self.rows.renew(self.pk, self.attempt, self.start + self.span * share, words)
        except OperationalError:
            log.warning("cannot renew the lease of %s", self.pk, exc_info=True)
            connection.close()
            return now - self.renewed_at < settings.LEASE_SECONDS * 0.8  # stop before somebody else may start
        self.renewed_at = now
        return held


# ---------------------------------------------------------------------------------------------------------------- runs


def execute(run_id: Any) -> None:
    """Runs one method, if its row is free. Safe to call any number of times."""
    attempt = Run.objects.claim(run_id, owner())
    if attempt is None:
        return
    run = Run.objects.select_related("audit__dataset", "audit__model", "audit__team").get(pk=run_id)
    lease = Lease(Run.objects.all(), run.pk, attempt)
    with _ending_in_words(run, attempt):
        outcome = _measure(run, lease)
        if outcome.status == "completed":
            _store(run, attempt, outcome)
        else:
            _end_unfinished(run, attempt, outcome)


def _measure(run: Run, lease: Lease) -> Outcome:
    audit = run.audit
    wanted = derived_inputs(run)
    with ExitStack() as files:
        job: dict[str, Any] = {
            "dataset": files.enter_context(_local(audit.dataset)),
            "model": files.enter_context(_local(audit.model)) if audit.model else None,
            "roles": audit.roles,
            "positive_label": audit.positive_label,
            "missing": audit.missing,
            "seed": audit.seed,
        }
        prepared: dict[str, str] = {}
        if wanted:
            lease.start, lease.span = 0.0, PREPARE_SHARE
            stored, outcome = _prepare(run, lease, job, wanted)
            if outcome is not None and outcome.status != "completed":
                return outcome
            lease.start, lease.span = PREPARE_SHARE, 1 - PREPARE_SHARE
            prepared = {name: files.enter_context(_local_name(row.file.name)) for name, row in stored.items()}
        needs_model = any(i.kind is Kind.MODEL for i in run.entry.inputs)
        if not needs_model:
            job["model"] = None
        measure = Job(task="measure", method=run.method, settings=run.settings, prepared=prepared, **job)
        return run_job(measure, beat=lease.beat)


def derived_inputs(run: Run) -> list[str]:
    """Inputs of the method that no column holds and the model can give."""
    given = frozenset(run.audit.roles) | ({"model"} if run.audit.model_id else frozenset())
    return [i.name for i in run.entry.inputs if i.name not in given and any(n <= given for n in i.derived_from)]


def _prepare(
    run: Run, lease: Lease, job: Mapping[str, Any], wanted: list[str]
) -> tuple[dict[str, Preparation], Outcome | None]:
    """Stored derived inputs by name; those that are not there yet are computed together and kept for every other run."""
    keys = {name: preparation_key(run.audit, name) for name in wanted}
    stored = {row.key: row for row in Preparation.objects.filter(team=run.audit.team, key__in=keys.values())}
    lacking = tuple(name for name in wanted if keys[name] not in stored)
    outcome = None
    if lacking:
        outcome = run_job(Job(task="prepare", wanted=lacking, **job), beat=lease.beat)
        if outcome.status != "completed":
            return {}, outcome
        for name in lacking:
            arrays = {name: outcome.arrays[name], "classes": _as_bytes(outcome.data["classes"])}
            stored[keys[name]] = _keep(run.audit, keys[name], arrays)
        Step.objects.get_or_create(
            run=run, name="prepare", defaults={"attempt": lease.attempt, "seconds": outcome.seconds}
        )
    return {name: stored[keys[name]] for name in wanted}, outcome


def preparation_key(audit: Audit, name: str) -> str:
    """Hash of all that a derived input depends on."""
    parts = {
        "version": DERIVED_VERSION,
        "name": name,
        "model": [audit.model.sha256, audit.model.options],
        "dataset": [audit.dataset.sha256, audit.dataset.options],
        "roles": {role: audit.roles.get(role) for role in ("features", "images", "y_true", "trigger_label")},
        "positive_label": audit.positive_label,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _as_bytes(names: list[str]) -> np.ndarray:
    """Class names as an array of bytes, so that an archive of numbers can carry them."""
    return np.frombuffer(json.dumps(names).encode(), np.uint8)


def _keep(audit: Audit, key: str, arrays: Mapping[str, np.ndarray]) -> Preparation:
    """Stores one derived input; where another worker was quicker, theirs stands."""
    file = default_storage.save(f"prepared/{audit.team_id}/{key}-{secrets.token_hex(4)}.npz", _npz(arrays))
    try:
        with transaction.atomic():
            return Preparation.objects.create(team=audit.team, key=key, file=file)
    except IntegrityError:
        default_storage.delete(file)
        return Preparation.objects.get(team=audit.team, key=key)


def _store(run: Run, attempt: int, outcome: Outcome) -> None:
    """Writes the result and completes the run in one transaction, or writes nothing."""
    data, ledger = outcome.data["result"], outcome.data.get("ledger", {})
    Result.from_json(data, outcome.arrays)  # the child is not believed: this raises on anything that is no result
    file = ""
    if outcome.arrays:
        file = default_storage.save(f"results/{run.audit.team_id}/{run.pk}-{attempt}.npz", _npz(outcome.arrays))
    with transaction.atomic():
        held = Run.objects.finish(
            run.pk, attempt, Status.COMPLETED, sandbox=outcome.sandbox, seconds=outcome.seconds, progress=1.0
        )
        if held:
            digest = result_digest(data, ledger, outcome.arrays)
            RunResult.objects.create(run=run, attempt=attempt, data=data, ledger=ledger, arrays=file, sha256=digest)
            _ended(run, "completed")
    if not held and file:
        log.info("run %s was overtaken; attempt %s writes nothing", run.pk, attempt)
        default_storage.delete(file)


def _end_unfinished(run: Run, attempt: int, outcome: Outcome) -> None:
    status = Status(outcome.status)
    if status is Status.CANCELLED and not Run.objects.filter(pk=run.pk, cancel_requested=True).exists():
        return  # the lease was lost, not the run: whoever holds it now will end it
    reference = ""
    reason = outcome.reason
    if status is Status.ERRORED:
        reference = secrets.token_hex(4)
        log.error("run %s errored, reference %s: %s\n%s", run.pk, reference, reason, outcome.detail)
        reason = (
            f"{reason or 'The method stopped with an internal error.'} Reference for the operator's log: {reference}."
        )
    with transaction.atomic():
        fields = {"sandbox": outcome.sandbox, "seconds": outcome.seconds, "reference": reference}
        if Run.objects.finish(run.pk, attempt, status, reason, **fields):
            _ended(run, status.value)


def _ended(run: Run, verb: str) -> None:
    Event.record(verb, run, team=run.audit.team, actor=None, method=run.method)
    evaluate_when_done(run.audit_id)


@contextmanager
def _ending_in_words(run: Run, attempt: int) -> Iterator[None]:
    """What goes wrong in this process still ends the run: the input's fault in words, ours with a reference."""
    try:
        yield
    except OperationalError:
        raise  # the database is away: nothing can be written, the lease runs out and the run is taken up again
    except AuditError as error:
        with transaction.atomic():
            if Run.objects.finish(run.pk, attempt, Status.FAILED, str(error)):
                _ended(run, "failed")
    except Exception:
        reference = secrets.token_hex(4)
        log.exception("run %s errored, reference %s", run.pk, reference)
        reason = f"The audit stopped with an internal error. Reference for the operator's log: {reference}."
        with transaction.atomic():
            if Run.objects.finish(run.pk, attempt, Status.ERRORED, reason, reference=reference):
                _ended(run, "errored")


def result_digest(data: Any, ledger: Any, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the canonical JSON of data and ledger and over every array's name, type, shape and bytes."""
    digest = hashlib.sha256(json.dumps([data, ledger], sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


# --------------------------------------------------------------------------------------------------------- inspections


def inspect(artifact_id: Any) -> None:
    """Has the confined child read an artifact, if its row is free. Safe to call any number of times."""
    attempt = Inspection.objects.claim(artifact_id, owner())
    if attempt is None:
        return
    artifact = Artifact.objects.select_related("team").get(pk=artifact_id)
    lease = Lease(Inspection.objects.all(), artifact.pk, attempt)
    task = "inspect_model" if artifact.kind == Artifact.Kind.MODEL else "inspect_dataset"
    with _local(artifact) as file:
        outcome = run_job(Job(task=task, **{artifact.kind: file}), beat=lease.beat)
    if outcome.status == "completed":
        Inspection.objects.finish(
            artifact.pk, attempt, Status.COMPLETED, report=outcome.data, sandbox=outcome.sandbox, progress=1.0
        )
        return
    reason = outcome.reason or "The file could not be read."
    if outcome.status == "errored":
        reference = secrets.token_hex(4)
        log.error("inspection of %s errored, reference %s: %s\n%s", artifact_id, reference, reason, outcome.detail)
        reason = f"{reason} Reference for the operator's log: {reference}."
    if outcome.status != "cancelled":
        Inspection.objects.finish(artifact.pk, attempt, Status(outcome.status), reason, sandbox=outcome.sandbox)


# --------------------------------------------------------------------------------------------------------------- sweep


def sweep(ring_run: Callable[[Run], None], ring_inspection: Callable[[Inspection], None]) -> None:
    """Looks after work that nobody looks after: announces it again, or ends it where its tries are used up."""
    for run in Run.objects.worn_out():
        _give_up(run, Status.ERRORED, "The worker was lost three times while it ran this method.")
    for run in Run.objects.cancelled_and_left():
        _give_up(run, Status.CANCELLED, "")
    reason = "The worker was lost three times while it read this file."
    Inspection.objects.worn_out().update(status=Status.ERRORED, reason=reason, lease_until=None)
    for rows, ring in ((Run.objects, ring_run), (Inspection.objects, ring_inspection)):
        for row in rows.to_ring()[:500]:
            if rows.mark_rung(row.pk):
                ring(row)


def _give_up(run: Run, status: Status, reason: str) -> None:
    with transaction.atomic():
        left = Run.objects.filter(pk=run.pk, attempt=run.attempt, status=run.status)
        if left.update(status=status, reason=reason, lease_until=None):
            _ended(run, status.value)


# --------------------------------------------------------------------------------------------------------------- files


@contextmanager
def _local(artifact: Artifact) -> Iterator[File]:
    with _local_name(artifact.file.name) as path:
        yield File(path=path, options=artifact.options)


@contextmanager
def _local_name(name: str) -> Iterator[str]:
    """A path on this machine; a file in an object store is fetched for the time of its use."""
    try:
        yield default_storage.path(name)
        return
    except NotImplementedError:
        pass
    with tempfile.NamedTemporaryFile(prefix="audit-input-") as copy, default_storage.open(name) as stored:
        for chunk in stored.chunks():
            copy.write(chunk)
        copy.flush()
        yield copy.name


def _npz(arrays: Mapping[str, np.ndarray]) -> "ContentFile[bytes]":
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return ContentFile(out.getvalue())
