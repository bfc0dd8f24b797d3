"""The words that every audit method speaks: inputs, settings, measurements, controls, results and the card.

A method is one module. The signature of its `audit` function says what it needs: positional parameters are inputs, named
from `INPUTS` (a default of None makes one optional); keyword-only parameters are settings, annotated with `Setting`.
Form, REST schema, methods page and contract tests all follow from that signature and the `Method` card.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Severity = Literal["low", "medium", "high", "critical"]
Worse = Literal["higher", "lower", ""]

# ---------------------------------------------------------------------------------------------------------------- inputs


class Kind(StrEnum):
    """How an input reaches a method."""

    COLUMN = "column"  # one number or label per record, shape (n,)
    COLUMNS = "columns"  # several columns by name: dict of arrays of shape (n,)
    ARRAY = "array"  # one array per record, shape (n, ...)
    MODEL = "model"  # the audited model, a `Classifier`
    RUNTIME = "runtime"  # given by the engine, never asked of the user


@dataclass(frozen=True)
class Input:
    """One name of the vocabulary. `derived_from` lists the sets of inputs that the engine can compute it from."""

    name: str
    title: str
    kind: Kind
    help: str
    derived_from: tuple[frozenset[str], ...] = ()


_FROM_MODEL = (frozenset({"model", "features"}), frozenset({"model", "images"}))

INPUTS: Mapping[str, Input] = {
    entry.name: entry
    for entry in (
        Input(
            "y_true",
            "True label",
            Kind.COLUMN,
            "What really happened: class indices (n,), 1 is the favourable outcome.",
        ),
        Input("y_pred", "Prediction", Kind.COLUMN, "What the model decided: class indices (n,).", _FROM_MODEL),
        Input("y_score", "Score", Kind.COLUMN, "Probability of the favourable outcome in [0, 1], (n,).", _FROM_MODEL),
        Input(
            "sensitive_features",
            "Sensitive columns",
            Kind.COLUMNS,
            "Group membership, e.g. sex and race: a dict of string arrays (n,). They need not be inputs of the model.",
        ),
        Input("features", "Model inputs", Kind.COLUMNS, "The columns the model reads: a dict of arrays (n,)."),
        Input("images", "Images", Kind.ARRAY, "Images as float32 (n, channels, height, width) in [0, 1]."),
        Input("embeddings", "Features of the layer before last", Kind.ARRAY, "Real matrix (n, d).", _FROM_MODEL),
        Input(
            "token_ids",
            "Token ids",
            Kind.ARRAY,
            "Tokenised text: an object array (n,) of integer arrays, one text each.",
        ),
        Input(
            "is_member", "Was in the training set", Kind.COLUMN, "1 for a record trained on, 0 for one held out, (n,)."
        ),
        Input(
            "record_loss",
            "Loss of each record",
            Kind.COLUMN,
            "Loss of the model on each record in nats, (n,).",
            tuple(needs | {"y_true"} for needs in _FROM_MODEL),
        ),
        Input(
            "canary_score",
            "Canary score",
            Kind.COLUMN,
            "The auditor's score that a canary was trained on, higher is surer, (n,).",
        ),
        Input(
            "trigger_label",
            "Trigger label",
            Kind.COLUMN,
            "Secret label that the owner gave each trigger of a trigger set: class indices (n,).",
        ),
        Input(
            "reference_predictions",
            "Predictions of unrelated models",
            Kind.COLUMNS,
            "One column per model: a dict of (n,).",
        ),
        Input("model", "Model", Kind.MODEL, "The audited model."),
        Input("classes", "Class names", Kind.RUNTIME, "Names of the classes by index, tuple of str."),
        Input("rng", "Randomness", Kind.RUNTIME, "numpy Generator, the only source of randomness."),
        Input("progress", "Progress", Kind.RUNTIME, "Call it with a share in [0, 1] and a few words."),
    )
}

Progress = Callable[[float, str], None]


def no_progress(share: float, words: str = "") -> None:
    """Stands in for `progress` where nobody watches."""


class Classifier(Protocol):
    """The audited model as a method sees it. `x` is what the input `features` or `images` holds."""

    classes: tuple[str, ...]
    module: Any
    """The torch module, mapping images to logits; None where there are no gradients."""

    def scores(self, x: Any) -> Array:
        """Class probabilities, shape (n, k)."""

    def features(self, x: Any) -> Array:
        """Activations of the layer before last, shape (n, d)."""


# -------------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Setting:
    """Annotation of a keyword-only parameter of `audit`: help text, range or choices. A secret is never shown again."""

    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unit: str = ""
    secret: bool = False


# --------------------------------------------------------------------------------------------------------------- results


def _finite(name: str, value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise ValueError(
            f"{name} is {value}; an undefined quantity is None with a reason, an open side of an interval is None"
        )


@dataclass(frozen=True)
class Measurement:
    """One measured quantity with how surely it is known.

    `value` None needs `undefined`, a reason in words. `low` or `high` None is an open side of the interval.
    `mde` is the smallest departure from `ideal` that this sample would have shown with 80 % power.
    `power` is the measured or computed chance that this test finds the effect it looks for.
    """

    name: str
    value: float | None
    subject: str = ""
    low: float | None = None
    high: float | None = None
    level: float | None = None
    n: int | None = None
    unit: str = ""
    worse: Worse = ""
    ideal: float | None = None
    p_value: float | None = None
    power: float | None = None
    mde: float | None = None
    undefined: str = ""
    interval: str = ""

    def __post_init__(self) -> None:
        for name in ("value", "low", "high", "p_value", "power", "mde", "ideal"):
            number = getattr(self, name)
            _finite(f"{self.name}.{name}", number)
            object.__setattr__(self, name, None if number is None else float(number))
        if self.n is not None:
            object.__setattr__(self, "n", int(self.n))
        if self.value is None and not self.undefined:
            raise ValueError(f"{self.name} has no value and no reason")
        if self.value is not None and self.undefined:
            raise ValueError(f"{self.name} has a value and a reason why it has none")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"{self.name}: interval [{self.low}, {self.high}] is upside down")


@dataclass(frozen=True)
class Control:
    """The method on an input where the answer is known, so that a reader can trust or distrust the finding.

    `negative`: nothing to find (shuffled labels, a wrong key); `positive`: a plant that must be found.
    `alarms` of `trials` says how often the method called; a control that did not pass makes the verdict *cannot tell*.
    """

    name: str
    kind: Literal["negative", "positive"]
    says: str
    passed: bool
    trials: int
    alarms: int | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            number = getattr(self, name)
            _finite(f"{self.name}.{name}", number)
            object.__setattr__(self, name, None if number is None else float(number))
        object.__setattr__(self, "passed", bool(self.passed))
        object.__setattr__(self, "trials", int(self.trials))
        object.__setattr__(self, "alarms", None if self.alarms is None else int(self.alarms))


Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """Rows of plain values. An undefined cell is None; `notes` says why cells are."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: str = ""

    def __post_init__(self) -> None:
        rows = tuple(tuple(_plain(cell) for cell in row) for row in self.rows)
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", rows)
        for row in rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: a row of {len(row)} cells under {len(self.columns)} columns")


def _plain(cell: Any) -> Cell:
    """numpy scalars become Python's own; NaN and infinities are refused."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, float):
        _finite("cell", cell)
    return cell


@dataclass(frozen=True)
class Result:
    """What a method measured. `arrays` are named numeric arrays that figures need; `notes` say what was not tested."""

    measurements: tuple[Measurement, ...]
    controls: tuple[Control, ...] = ()
    tables: tuple[Table, ...] = ()
    arrays: Mapping[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("measurements", "controls", "tables", "notes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, array in self.arrays.items():
            if np.asarray(array).dtype.kind not in "biuf":
                raise ValueError(f"array {name!r} has dtype {np.asarray(array).dtype}; results hold numbers only")

    def find(self, name: str, subject: str | None = None) -> Measurement:
        """The first measurement of that name (and subject). Raises KeyError where there is none."""
        for measurement in self.measurements:
            if measurement.name == name and subject in (None, measurement.subject):
                return measurement
        raise KeyError((name, subject))

    def named(self, name: str) -> list[Measurement]:
        """All measurements of that name, in order."""
        return [measurement for measurement in self.measurements if measurement.name == name]

    def table(self, title: str) -> Table:
        """The table of that title. Raises KeyError where there is none."""
        for table in self.tables:
            if table.title == title:
                return table
        raise KeyError(title)

    def to_json(self) -> dict[str, Any]:
        """Everything but the arrays, as plain values."""
        return {
            "measurements": [asdict(measurement) for measurement in self.measurements],
            "controls": [asdict(control) for control in self.controls],
            "tables": [asdict(table) for table in self.tables],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> "Result":
        """The inverse of `to_json`. Raises TypeError or ValueError on anything that is not a result."""
        return cls(
            measurements=tuple(Measurement(**item) for item in data["measurements"]),
            controls=tuple(Control(**item) for item in data["controls"]),
            tables=tuple(Table(**item) for item in data["tables"]),
            arrays=dict(arrays or {}),
            notes=tuple(str(note) for note in data["notes"]),
        )


# ------------------------------------------------------------------------------------------------------------------ card


@dataclass(frozen=True)
class Bound:
    """Where a policy draws the line for one measurement.

    `interval`: the measurement's interval is held against `limit`. `test`: its adjusted p-value is held against `limit`.
    A method's card suggests bounds; a policy adopts, changes or drops them, and the audit keeps what was used.
    """

    measurement: str
    limit: float
    severity: Severity
    why: str
    rule: Literal["interval", "test"] = "interval"


@dataclass(frozen=True)
class Method:
    """The card of an audit method. `example(rng)` returns inputs with a planted effect, small enough for a test."""

    title: str
    question: str
    source: str
    audit: Callable[..., Result]
    figures: Callable[[Result], list[Any]]
    example: Callable[[np.random.Generator], dict[str, Any]]
    limits: tuple[str, ...]
    advice: str
    bounds: tuple[Bound, ...] = ()
    clauses: tuple[str, ...] = ()
    cost: Literal["seconds", "minutes", "hours"] = "seconds"
    version: str = "1"
