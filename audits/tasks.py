"""Celery's entry points: an id in, one call, no logic. A lost message costs one sweep, a doubled one nothing."""

import logging
import random
import threading
from typing import Any

from celery import shared_task, signals
from django.conf import settings
from django.db import close_old_connections, transaction

from audits import execution
from audits.engine import sandbox
from audits.models import Inspection, Run

log = logging.getLogger(__name__)

SWEEP_SECONDS = 5.0


@shared_task
def run_method(run_id: str) -> None:
    """Executes one run."""
    execution.execute(run_id)


@shared_task
def inspect_artifact(artifact_id: str) -> None:
    """Reads one artifact in the confined child."""
    execution.inspect(artifact_id)


@shared_task
def sweep() -> None:
    """Looks after lost and forgotten work."""
    execution.sweep(_send_run, _send_inspection)


def ring_run(run: Run) -> None:
    """Tells the workers about a queued run once the transaction commits; without a broker the sweep does it later."""
    transaction.on_commit(lambda: _send_run(run), robust=True)  # no partial: Django logs a failure by the name it lacks


def ring_inspection(inspection: Inspection) -> None:
    """Tells the workers about an artifact to read once the transaction commits."""
    transaction.on_commit(lambda: _send_inspection(inspection), robust=True)


def _send_run(run: Run) -> None:
    queue = "light" if run.entry.method.cost == "seconds" else "heavy"
    run_method.apply_async((str(run.pk),), queue=queue)


def _send_inspection(inspection: Inspection) -> None:
    inspect_artifact.apply_async((str(inspection.pk),), queue="light")


@signals.worker_init.connect
def refuse_without_a_border(**_: Any) -> None:
    """A worker that cannot confine the child well enough does not start."""
    found = sandbox.probe()
    log.info("sandbox level %s (%s)", found.level, ", ".join(found.layers))
    if found.level > settings.SANDBOX_REQUIRED:
        raise SystemExit(
            f"This host confines the child only at level {found.level}: {'; '.join(found.reasons)}. "
            f"Level {settings.SANDBOX_REQUIRED} is required; set SANDBOX_REQUIRED={found.level} to accept the weaker border."
        )


@signals.worker_ready.connect
def keep_sweeping(**_: Any) -> None:
    """Every worker sweeps, so that no single process has to live."""
    threading.Thread(target=_sweep_for_ever, name="sweep", daemon=True).start()


def _sweep_for_ever() -> None:
    pause = threading.Event()
    while True:
        pause.wait(min(SWEEP_SECONDS, settings.LEASE_SECONDS / 4) * random.uniform(0.8, 1.2))  # noqa: S311
        close_old_connections()
        try:
            sandbox.sweep_scratch(older_than_seconds=24 * 3600)
            sweep()
        except Exception:
            log.exception("the sweep failed and will be tried again")
