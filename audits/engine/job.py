"""A job for the confined child and its outcome: JSON and pickle-free arrays cross the line, and the parent checks all of it."""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from audits.engine import sandbox, wire
from audits.engine.sandbox import Ended, Limits
from audits.engine.seal import CANNOT_SEAL
from audits.methods.contract import Array, Control, Measurement, Result, Table

__all__ = ["File", "Job", "Limits", "Outcome", "run_job"]

CHILD = Path(__file__).with_name("child.py")
MAX_ARRAY_BYTES = 1 << 30
MAX_ARRAYS = 200
MAX_PARTS = 20_000  # measurements, controls, tables or notes of one result
MAX_REASON = 2_000  # characters that a user is shown


@dataclass(frozen=True)
class File:
    """An uploaded file on this machine's disk. `options` say what the file itself does not, e.g. its architecture."""

    path: str
    format: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """What the child shall do. See `inputs.py` for roles, favourable outcome and missing values."""

    task: Literal["inspect_dataset", "inspect_model", "prepare", "measure"]
    dataset: File | None = None
    model: File | None = None
    roles: Mapping[str, Any] = field(default_factory=dict)
    positive_label: str = ""
    missing: str = "group"
    method: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    wanted: tuple[str, ...] = ()
    prepared: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How the job ended. `reason` is for the user, `detail` for the operator's log."""

    status: Literal["completed", "failed", "errored", "cancelled"]
    reason: str = ""
    detail: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    sandbox: dict[str, Any] = field(default_factory=dict)


def run_job(job: Job, *, limits: Limits | None = None, beat: Callable[[float, str], bool] | None = None) -> Outcome:
    """Runs the job in a sealed child. `beat(share, words)` is called twice a second; False cancels. Never raises for the child."""
    limits, level = limits or Limits(), sandbox.probe()
    with sandbox.room() as room:
        told = {"level": level.level, "began": time.monotonic()}
        written = os.path.join(room.job, "job.json")
        Path(written).write_text(json.dumps(asdict(job) | told))
        files = [file.path for file in (job.dataset, job.model) if file] + list(job.prepared.values())
        scratch = Path(room.scratch)
        ended = sandbox.run(
            str(CHILD),
            [written, room.scratch],
            room=room,
            readable=[os.path.abspath(file) for file in files],
            limits=limits,
            level=level,
            beat=(lambda: beat(*_progress(scratch))) if beat else None,
        )
        return _outcome(job, ended, scratch, limits, _shown(level, ended))


def _shown(level: sandbox.Level, ended: Ended) -> dict[str, Any]:
    layers = [*level.layers, *(["own user"] if ended.has_own_user else [])]
    return {
        "level": level.level,
        "layers": list(dict.fromkeys(layers)),
        "lacking": list(level.reasons),
        "landlock_abi": level.landlock_abi,
    }


def _progress(scratch: Path) -> tuple[float, str]:
    try:
        with wire.open_regular(str(scratch / "progress")) as file:
            share, _, words = file.read(1000).decode("utf-8", "replace").partition("\n")
        number = float(share)
    except (OSError, ValueError):
        return 0.0, ""
    return (min(max(number, 0.0), 1.0) if math.isfinite(number) else 0.0), wire.printable(words)[:200]


def _outcome(job: Job, ended: Ended, scratch: Path, limits: Limits, shown: dict[str, Any]) -> Outcome:
    seconds = {"total": ended.seconds}
    if ended.why == "cancelled":
        return Outcome("cancelled", sandbox=shown, seconds=seconds)
    if ended.why != "exited" or ended.code != 0:
        status, reason = _death(ended, limits)
        return Outcome(status, reason, ended.log, seconds=seconds, sandbox=shown)
    try:
        return _believed(job, scratch, shown, ended)
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        detail = wire.printable(f"{type(error).__name__}: {error}") + f"\n{ended.log}"
        reason = "The child process gave an answer that is not a result."
        return Outcome("errored", reason, detail, seconds=seconds, sandbox=shown)


_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_OUT_OF_MEMORY = ("bad_alloc", "memory allocation of", "out of memory", "MemoryError", "can't allocate memory")


def _death(ended: Ended, limits: Limits) -> tuple[Literal["failed", "errored"], str]:
    """Status and sentence for a child that did not end by itself."""
    memory = f"{limits.memory_bytes / (1 << 30):g} GiB"
    if ended.why == "wall":
        return "failed", f"This took longer than {_span(limits.wall_seconds)} and was stopped. Try fewer records."
    if ended.why == "scratch":
        return "failed", "This wrote more than it may to its scratch folder and was stopped. Try a smaller file."
    if ended.why == "output":
        return (
            "failed",
            "The library that reads this file printed without end and was stopped. The file may be damaged.",
        )
    number = -ended.code
    if number == signal.SIGXCPU:
        return "failed", f"This used more than {_span(limits.cpu_seconds)} of processor time and was stopped."
    if ended.code and any(words in ended.log for words in _OUT_OF_MEMORY):
        return "failed", f"This needs more memory than it may use ({memory}). Try fewer records or a smaller file."
    if number in _CRASHES:
        name = signal.Signals(number).name
        return "failed", f"The file crashes the library that reads it ({name}). It is damaged or was made to do so."
    if number == signal.SIGSYS:
        return "failed", "The file made its library call the system in a way that is forbidden here. Do not trust it."
    if number == signal.SIGKILL:
        return (
            "errored",
            f"The child process was killed from outside, most likely because the machine ran out of memory; it may use {memory}.",
        )
    if ended.code == CANNOT_SEAL:
        return "errored", "The child process could not lock itself in and opened nothing."
    return "errored", f"The child process ended with code {ended.code}."


def _span(seconds: float) -> str:
    return f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} seconds"


# -------------------------------------------------------------------------------------------------------------- checking


def _believed(job: Job, scratch: Path, shown: dict[str, Any], ended: Ended) -> Outcome:
    """The outcome that the child wrote, checked piece by piece."""
    begun = time.monotonic()
    told = wire.read_json(str(scratch / "outcome.json"))
    status, reason, detail = told["status"], told.get("reason", ""), told.get("detail", "")
    if not isinstance(reason, str) or not isinstance(detail, str) or status not in ("completed", "failed", "errored"):
        raise wire.Malformed(f"status {status!r} with reason {reason!r}")
    reason, detail = wire.printable(reason)[:MAX_REASON], wire.printable(detail)
    seconds = _timings(told.get("seconds", {}), ended.seconds)
    if status != "completed":
        if not reason:
            raise wire.Malformed(f"{status} without a reason")
        return Outcome(status, reason, detail or ended.log, seconds=seconds, sandbox=shown)
    stored = scratch / "arrays.npz"
    arrays = wire.read_arrays(str(stored), MAX_ARRAY_BYTES, MAX_ARRAYS) if os.path.lexists(stored) else {}
    data = _checked(job, told["data"], arrays)
    seconds["checking"] = time.monotonic() - begun
    return Outcome(status, "", detail, data, arrays, seconds, shown)


def _timings(told: Any, total: float) -> dict[str, float]:
    """Seconds by part as the child says, and the whole as it was measured outside."""
    parts = {str(name)[:40]: float(value) for name, value in list(told.items())[:20]}
    if any(not 0 <= value <= total + 1 for value in parts.values()):
        raise wire.Malformed(f"timings {parts} in {total:.1f} seconds")
    return parts | {"total": total}


def _checked(job: Job, data: Any, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """What the task promises, or Malformed."""
    if not isinstance(data, dict):
        raise wire.Malformed(f"data is a {type(data).__name__}")
    if job.task == "measure":
        return {**data, "result": _checked_result(data["result"], arrays)}
    if job.task == "prepare":
        if sorted(data["prepared"]) != sorted(arrays) or not set(arrays) <= set(job.wanted):
            raise wire.Malformed(f"prepared {data['prepared']}, stored {sorted(arrays)}, wanted {job.wanted}")
        return data
    if arrays or data["kind"] != job.task.removeprefix("inspect_"):
        raise wire.Malformed("not an inspection report")
    return data


def _checked_result(data: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Any]:
    """The result in its own words again: what `Result` does not know has no way through."""
    if any(len(data[part]) > MAX_PARTS for part in ("measurements", "controls", "tables", "notes")):
        raise wire.Malformed(f"a result with more than {MAX_PARTS:,} measurements, controls, tables or notes")
    result = Result.from_json(data, arrays)
    parts: tuple[Measurement | Control | Table, ...] = (*result.measurements, *result.controls, *result.tables)
    for part in parts:
        hints = get_type_hints(type(part))
        for entry in fields(part):
            if not conforms(getattr(part, entry.name), hints[entry.name]):
                raise wire.Malformed(f"{type(part).__name__}.{entry.name} is {getattr(part, entry.name)!r:.60}")
    plain: dict[str, Any] = wire.checked_value(result.to_json())
    return plain


def conforms(value: Any, hint: Any) -> bool:
    """Whether a plain value has the annotated type; covers what results are made of."""
    if hint is None or hint is type(None):
        return value is None
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(conforms(value, option) for option in arguments)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(conforms(entry, arguments[0]) for entry in value)
    return type(value) is hint or (hint is float and type(value) is int)
