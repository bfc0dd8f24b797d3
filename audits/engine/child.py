"""What runs in the sealed child: reads the job, opens the files, measures, and leaves the outcome in the scratch folder."""

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from audits.engine import inputs, wire
from audits.engine.datasets import Dataset, describe, open_dataset
from audits.engine.loaders import inspect_model, open_model
from audits.methods.catalogue import find
from audits.methods.contract import Array, Classifier
from audits.methods.errors import AuditError

Answer = tuple[dict[str, Any], dict[str, Array]]


class Clock:
    """Wall seconds by part of the job."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the time of the block to the part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


class Reporter:
    """Progress that the parent reads from a small file, written at most ten times a second."""

    def __init__(self, path: Path) -> None:
        self.path, self.last = path, 0.0

    def __call__(self, share: float, words: str = "") -> None:
        """Notes a share in [0, 1] and a few words."""
        now = time.monotonic()
        if now - self.last < 0.1 and share < 1.0:
            return
        self.last = now
        temporary = self.path.with_suffix(".new")
        temporary.write_text(f"{share}\n{words}")
        temporary.rename(self.path)


def main(job_path: str, scratch: str) -> None:
    """Writes `outcome.json` and, where there are arrays, `arrays.npz`."""
    began = time.monotonic()
    job = json.loads(Path(job_path).read_text())
    clock = Clock()
    clock.seconds["start"] = began - job["began"]
    place = Path(scratch)
    told: dict[str, Any]
    arrays: dict[str, Array] = {}
    try:
        data, arrays = perform(job, clock, Reporter(place / "progress"))
        told = {"status": "completed", "data": data}
    except AuditError as error:
        told = {"status": "failed", "reason": str(error)}
    except Exception as error:  # noqa: BLE001  the one place where an unexpected error becomes an outcome
        told = _unexpected(error)
    with clock.part("storing"):
        if arrays:
            wire.write_arrays(str(place / "arrays.npz"), arrays)
    wire.write_json(str(place / "outcome.json"), told | {"seconds": clock.seconds})


_NO_MEMORY = {
    "status": "failed",
    "reason": "This needs more memory than it may use. Try fewer records or a smaller file.",
}


def _unexpected(error: Exception) -> dict[str, Any]:
    """Memory that ran out is told apart; libraries say so in their own ways."""
    if isinstance(error, MemoryError) or re.search("bad.?alloc|(cannot|can't|failed to) allocate", str(error), re.I):
        return _NO_MEMORY
    return {"status": "errored", "reason": "The method stopped with an internal error.", "detail": _trace(error)}


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-15_000:]


def perform(job: Mapping[str, Any], clock: Clock, report: Reporter) -> Answer:
    """Does the job and returns plain data and arrays."""
    if job["task"] == "inspect_dataset":
        with clock.part("reading"):
            return describe(_dataset(job)), {}
    if job["task"] == "inspect_model":
        with clock.part("reading"):
            return inspect_model(_model(job)), {}
    with clock.part("imports"):
        _import_heavy(job)
    with clock.part("reading"):
        dataset = _dataset(job)
        model = _model(job) if job["model"] else None
    if job["task"] == "prepare":
        with clock.part("computing"):
            return _prepare(job, dataset, model, report)
    return _measure(job, dataset, model, clock, report)


def _import_heavy(job: Mapping[str, Any]) -> None:
    """Imports what reading will need, so that its time is told apart."""
    import polars  # noqa: F401

    if job["method"]:
        find(job["method"])


def _dataset(job: Mapping[str, Any]) -> Dataset:
    return open_dataset(job["dataset"]["path"])


def _model(job: Mapping[str, Any]) -> Classifier:
    return open_model(job["model"]["path"], job["model"]["options"], level=job["level"])


def _prepare(job: Mapping[str, Any], dataset: Dataset, model: Classifier | None, report: Reporter) -> Answer:
    if model is None:
        raise ValueError("a preparation needs a model")
    classes, arrays = inputs.derive(dataset, model, job["roles"], job["positive_label"], job["wanted"], report)
    return {"prepared": list(arrays), "classes": list(classes)}, arrays


def _measure(
    job: Mapping[str, Any], dataset: Dataset, model: Classifier | None, clock: Clock, report: Reporter
) -> Answer:
    entry = find(job["method"])
    with clock.part("reading"):
        assembled = inputs.assemble(entry, dataset, model, job)
    runtime = {
        "rng": np.random.default_rng(job["seed"]),
        "progress": report,
        "classes": assembled.classes,
    }
    names = {i.name for i in entry.inputs}
    given = assembled.values | {name: value for name, value in runtime.items() if name in names}
    with clock.part("computing"):
        result = entry.method.audit(**given, **entry.settings(job["settings"]))
    report(1.0, "storing")
    data = {"result": result.to_json(), "ledger": assembled.ledger, "classes": list(assembled.classes)}
    return data, {name: np.asarray(array) for name, array in result.arrays.items()}


if __name__ == "__main__":
    main(*sys.argv[1:3])
    os._exit(0)  # all is written; taking large libraries down in order costs seconds
