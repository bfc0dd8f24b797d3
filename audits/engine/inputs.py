"""From a data set, column roles and a model to the inputs of a method, with a ledger of every record that was left out."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from audits.engine import wire
from audits.engine.datasets import Dataset
from audits.methods.catalogue import Entry
from audits.methods.contract import INPUTS, Array, Classifier, Kind, Progress
from audits.methods.errors import UnsuitableInput

MAX_CLASSES = 1000
MAX_NAMED_GROUPS = 100
MAX_GROUPS = 20  # distinct numbers in a sensitive column before it is cut into quartiles
LOSS_FLOOR = 1e-12  # keeps log finite
LABELS = ("y_true", "y_pred", "trigger_label", "reference_predictions")
MISSING_GROUP = "missing"


@dataclass(frozen=True)
class Assembled:
    """Inputs by name, class names by index, and what became of the records."""

    values: dict[str, Any]
    classes: tuple[str, ...]
    ledger: dict[str, Any]


# --------------------------------------------------------------------------------------------------------------- labels


def label_texts(values: Array) -> Array:
    """Labels as texts, None where missing; 1, 1.0 and "1" are one label."""
    if values.dtype == object:
        return values
    if values.dtype.kind == "f":
        finite = np.isfinite(values)
        whole = bool(np.all(values[finite] == np.round(values[finite])))
        texts = [None if not math.isfinite(v) else str(int(v)) if whole else f"{v:g}" for v in values.tolist()]
    else:
        texts = [str(v) for v in values.tolist()]
    out = np.empty(len(texts), object)
    out[:] = texts
    return out


def _sorted_labels(labels: set[str]) -> list[str]:
    try:
        return sorted(labels, key=float)
    except ValueError:
        return sorted(labels)


def _distinct(name: str, texts: Array) -> set[str]:
    found = {text for text in texts if text is not None}
    if not found:
        raise UnsuitableInput(f"The column for “{INPUTS[name].title}” is empty in every record.")
    if len(found) > MAX_CLASSES:
        raise UnsuitableInput(
            f"The column for “{INPUTS[name].title}” has {len(found):,} different values, so it is a number and not a class. "
            "Choose a column of classes, or cut it into classes first."
        )
    numeric = {text for text in found if _is_number(text)}
    if numeric and len(numeric) < len(found):
        words = sorted(found - numeric)
        raise UnsuitableInput(
            f"The column for “{INPUTS[name].title}” mixes numbers ({_some(sorted(numeric))}) and words ({_some(words)}). "
            "Use one spelling per class."
        )
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _some(labels: Sequence[str]) -> str:
    shown = ", ".join(f"“{wire.printable(label)[:40]}”" for label in labels[:6])
    return shown + (", …" if len(labels) > 6 else "")


def class_names(dataset: Dataset, roles: Mapping[str, Any], model: Classifier | None, positive: str) -> tuple[str, ...]:
    """Names of the classes by index; with two classes the favourable one is the second."""
    labels = ("y_true", "y_pred", "trigger_label")
    given = {role: _distinct(role, label_texts(dataset.column(roles[role]))) for role in labels if role in roles}
    if "y_true" in given and "y_pred" in given:
        _refuse_two_spellings(given["y_true"], given["y_pred"])
    found = set().union(*given.values())
    if model is not None:
        _name_numbered(model, found)
        if unknown := found - set(model.classes):
            raise UnsuitableInput(
                f"The model answers {_some(model.classes)}; the data hold the labels {_some(_sorted_labels(unknown))}, which it does not know. "
                "Bring the labels to one spelling."
            )
        names = list(model.classes)
    else:
        names = _sorted_labels(found)
    return _positive_last(names, positive)


def _refuse_two_spellings(true: set[str], predicted: set[str]) -> None:
    """Otherwise two classes would silently become four, and no prediction would ever be right."""
    both = true | predicted
    apart = len(both) > 2 and not true & predicted
    if apart or len({label.casefold() for label in both}) < len(both):
        raise UnsuitableInput(
            f"The true labels are {_some(_sorted_labels(true))}, the predictions {_some(_sorted_labels(predicted))}. "
            "Bring them to one spelling."
        )


def _name_numbered(model: Classifier, found: set[str]) -> None:
    """An ONNX graph numbers its classes where it keeps no names: then the data's labels, sorted, name them."""
    numbered = tuple(model.classes) == tuple(str(i) for i in range(len(model.classes)))
    naming = getattr(model, "name_classes", None)
    if numbered and naming and found and not found <= set(model.classes):
        naming(_sorted_labels(found))


def _positive_last(names: list[str], positive: str) -> tuple[str, ...]:
    if positive and names and positive not in names:
        raise UnsuitableInput(f"The favourable outcome “{positive[:60]}” is none of the labels {_some(names)}.")
    if positive and len(names) == 2:
        names = [name for name in names if name != positive] + [positive]
    return tuple(names)


def _indices(texts: Array, classes: Sequence[str], title: str) -> Array:
    place: dict[str | None, int] = {name: i for i, name in enumerate(classes)}
    place[None] = -1
    unknown = sorted({t for t in texts if t not in place})
    if unknown:
        raise UnsuitableInput(
            f"“{title}” holds {_some(unknown)}, but the classes are {_some(classes)}. Bring the labels to one spelling."
        )
    return np.array([place[t] for t in texts], np.int64)


# ------------------------------------------------------------------------------------------------------- derived inputs


def derive(
    dataset: Dataset,
    model: Classifier,
    roles: Mapping[str, Any],
    positive: str,
    wanted: Sequence[str],
    report: Progress,
) -> tuple[tuple[str, ...], dict[str, Array]]:
    """Predictions, scores, losses and features of the model on all records; NaN where a record's label is missing."""
    _check_roles(dataset, roles)
    x = model_input(dataset, roles)
    report(0.05, "reading the records")
    if hasattr(model, "check"):
        model.check(x)
    _learn_onnx_names(model, x)
    classes = class_names(dataset, roles, model, positive)
    order = [model.classes.index(name) for name in classes]
    arrays: dict[str, Array] = {}
    if {"y_pred", "y_score", "record_loss"} & set(wanted):
        scores = _scores(model, x, report)[:, order]
        if "y_pred" in wanted:
            arrays["y_pred"] = scores.argmax(axis=1)
        if "y_score" in wanted:
            if len(classes) != 2:
                raise UnsuitableInput(f"A score needs two classes; the model has {len(classes)} ({_some(classes)}).")
            arrays["y_score"] = np.clip(scores[:, 1], 0.0, 1.0)
        if "record_loss" in wanted:
            truth = _indices(label_texts(dataset.column(roles["y_true"])), classes, INPUTS["y_true"].title)
            chosen = np.clip(scores[np.arange(len(truth)), np.maximum(truth, 0)], LOSS_FLOOR, 1.0)
            arrays["record_loss"] = np.where(truth < 0, np.nan, -np.log(chosen))
    if "embeddings" in wanted:
        report(0.6, "features of the layer before last")
        arrays["embeddings"] = model.features(x)
    return classes, arrays


def _learn_onnx_names(model: Classifier, x: Any) -> None:
    """Reads the names of an ONNX graph's classes off the labels it writes for some records, where every class occurs."""
    if "string" not in getattr(model, "label_type", "") and "int64" not in getattr(model, "label_type", ""):
        return
    labels, index = model.predict_labels(x)  # type: ignore[attr-defined]
    names = {int(i): str(label) for label, i in zip(labels.tolist(), index.tolist(), strict=True)}
    if len(names) == len(model.classes) and len(set(names.values())) == len(names):
        model.classes = tuple(names[i] for i in range(len(names)))


def _scores(model: Classifier, x: Any, report: Progress) -> Array:
    parts, n = [], len(x)
    size = max(1, n // 20)
    for start in range(0, n, size):
        parts.append(model.scores(x[start : start + size]))
        report(0.05 + 0.5 * min(1.0, (start + size) / n), "predicting")
    scores = np.concatenate(parts)
    if not np.isfinite(scores).all():
        raise UnsuitableInput(
            "The model gives scores that are not numbers on some records. Check it for missing inputs or broken weights."
        )
    return scores


def _check_roles(dataset: Dataset, roles: Mapping[str, Any]) -> None:
    """Every named column exists, and columns come as a list only where a role takes several."""
    for role, named in roles.items():
        several = INPUTS[role].kind is Kind.COLUMNS
        columns = named if several else [named]
        if not isinstance(columns, list | tuple) or not all(isinstance(column, str) for column in columns):
            raise UnsuitableInput(f"“{INPUTS[role].title}” needs {'a list of columns' if several else 'one column'}.")
        if unknown := [column for column in columns if column not in dataset.names]:
            raise UnsuitableInput(
                f"“{INPUTS[role].title}” names {_some(unknown)}, which the data set does not have. It has {_some(dataset.names)}."
            )


def model_input(dataset: Dataset, roles: Mapping[str, Any]) -> Any:
    """What the model reads: images, or a table of the chosen columns."""
    if "images" in roles:
        return as_images(dataset, roles["images"])
    if "features" in roles:
        return dataset.frame(roles["features"])
    raise UnsuitableInput(
        "The model's inputs are not named. Give the columns it reads the role “Model inputs”, or a column the role “Images”."
    )


def as_images(dataset: Dataset, name: str) -> Array:
    """Images as float32 (n, channels, height, width) in [0, 1]."""
    array = dataset.column(name)
    if dataset.kind(name) != "image" or array.ndim not in (3, 4):
        raise UnsuitableInput(
            f"“{name}” does not hold images; an image is an array of height × width, with channels before or after."
        )
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[1] not in (1, 3, 4) and array.shape[3] in (1, 3, 4):
        array = np.moveaxis(array, 3, 1)
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array, np.float32) / np.float32(255)
    array = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
        raise UnsuitableInput(
            f"The images in “{name}” are neither bytes nor numbers between 0 and 1. Scale them to [0, 1]."
        )
    return array


# --------------------------------------------------------------------------------------------------------------- method


def assemble(entry: Entry, dataset: Dataset, model: Classifier | None, job: Mapping[str, Any]) -> Assembled:
    """All inputs of the method. Raises UnsuitableInput in words where one cannot be had."""
    roles: Mapping[str, Any] = job["roles"]
    _check_roles(dataset, roles)
    prepared = {name: wire.read_arrays(path, 4 << 30) for name, path in job["prepared"].items()}
    classes = _classes(entry, dataset, roles, model, prepared, job["positive_label"])
    raw: dict[str, Any] = {}
    dropped: dict[str, Array] = {}
    notes: list[str] = []
    for wanted in entry.inputs:
        name = wanted.name
        if wanted.kind is Kind.RUNTIME:
            continue
        if wanted.kind is Kind.MODEL and model is not None:
            raw[name] = model
        elif name in prepared:
            raw[name] = _of_all_records(name, prepared[name][name], dataset.rows)
        elif name in roles:
            raw[name] = _read(name, dataset, roles[name], classes, job["missing"], notes)
        elif wanted in entry.required:
            raise UnsuitableInput(f"This method needs “{wanted.title}”: {wanted.help} Give a column that role.")
        else:
            continue
        _note_missing(name, raw[name], dataset.rows, dropped)
    keep = _kept(dataset.rows, dropped, job["missing"])
    ledger = _ledger(dataset.rows, dropped, keep, notes)
    if not keep.any():
        raise UnsuitableInput("No record is left: every one lacks a value that this method needs.")
    values = {
        name: value if INPUTS[name].kind is Kind.MODEL else _select(name, value, keep) for name, value in raw.items()
    }
    return Assembled(values, classes, ledger)


def _of_all_records(name: str, array: Array, rows: int) -> Array:
    if len(array) != rows:
        raise ValueError(f"{name} was prepared for {len(array):,} records; the data set has {rows:,}")
    return array


def _classes(
    entry: Entry,
    dataset: Dataset,
    roles: Mapping[str, Any],
    model: Classifier | None,
    prepared: Mapping[str, Mapping[str, Array]],
    positive: str,
) -> tuple[str, ...]:
    for arrays in prepared.values():
        if "classes" in arrays:
            return tuple(json.loads(bytes(arrays["classes"]).decode()))
    needed = {i.name for i in entry.inputs}
    if not needed & {"y_true", "y_pred", "trigger_label", "classes", "model", "reference_predictions"}:
        return ()
    uses_model = model if "model" in needed else None
    # A method that asks the model itself sees the classes in the model's own order.
    return class_names(dataset, roles, uses_model, "" if uses_model is not None else positive)


def _read(name: str, dataset: Dataset, column: Any, classes: Sequence[str], missing: str, notes: list[str]) -> Any:
    if name == "sensitive_features":
        return {c: _groups(c, dataset, missing, notes) for c in column}
    if name == "features":
        return {c: dataset.column(c) for c in column}
    if name == "reference_predictions":
        return {c: _indices(label_texts(dataset.column(c)), classes, c) for c in column}
    if name in LABELS:
        return _indices(label_texts(dataset.column(column)), classes, INPUTS[name].title)
    if name == "images":
        return as_images(dataset, column)
    if name == "token_ids":
        return _token_ids(dataset, column)
    if name == "is_member":
        return _membership(dataset.column(column), column)
    if name == "embeddings":
        return _vectors(dataset, column)
    values = _numbers(dataset, column, INPUTS[name].title)
    if name == "y_score" and ((values < 0) | (values > 1)).any():
        low, high = np.nanmin(values), np.nanmax(values)
        raise UnsuitableInput(
            f"A score is a probability between 0 and 1; “{column}” runs from {low:g} to {high:g}. Convert it first."
        )
    return values


def _numbers(dataset: Dataset, column: str, title: str) -> Array:
    values = dataset.column(column)
    if values.dtype == object or values.ndim != 1:
        example = next((v for v in values if v is not None), "")
        raise UnsuitableInput(f"“{title}” needs a column of numbers; “{column}” holds “{str(example)[:40]}”.")
    return values.astype(np.float64)


def _groups(column: str, dataset: Dataset, missing: str, notes: list[str]) -> Array:
    """Group names of a sensitive column; many different numbers are cut at their quartiles."""
    values = dataset.column(column)
    if values.ndim != 1 or dataset.kind(column) in ("tokens", "vector", "image"):
        raise UnsuitableInput(f"A sensitive column holds one group name per record; “{column}” holds arrays.")
    if values.dtype != object and len(np.unique(values[~np.isnan(values.astype(float))])) > MAX_GROUPS:
        texts = _quartiles(values.astype(float))
        notes.append(f"“{column}” has many different numbers and was cut into quarters of the records.")
    else:
        texts = label_texts(values).copy()
    if (count := len({t for t in texts if t is not None})) > MAX_NAMED_GROUPS:
        raise UnsuitableInput(
            f"“{column}” has {count:,} different values, so it names records and not groups; at most {MAX_NAMED_GROUPS} groups are compared. "
            "Choose another column, or merge its values first."
        )
    if missing == "group":
        texts[np.array([t is None for t in texts])] = MISSING_GROUP
    return texts


def _quartiles(values: Array) -> Array:
    edges = np.unique(np.nanquantile(values, [0, 0.25, 0.5, 0.75, 1]))
    names = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    place = np.clip(np.searchsorted(edges, values, side="left") - 1, 0, len(names) - 1)
    out = np.empty(len(values), object)
    out[:] = [None if np.isnan(v) else names[i] for v, i in zip(values, place, strict=True)]
    return out


_IN, _OUT = {"1", "true", "in", "yes", "member", "train"}, {"0", "false", "out", "no", "non-member", "test"}


def _membership(values: Array, column: str) -> Array:
    texts = [None if t is None else str(t).lower() for t in label_texts(values)]
    if unknown := sorted({t for t in texts if t is not None} - _IN - _OUT):
        raise UnsuitableInput(
            f"“{column}” says who was trained on: 1 or 0, true or false, in or out. Found {_some(unknown)}."
        )
    return np.array([-1 if t is None else int(t in _IN) for t in texts], np.int64)


def _token_ids(dataset: Dataset, column: str) -> Array:
    values = dataset.column(column)
    out = np.empty(len(values), object)
    for i, row in enumerate(values):
        if row is None:
            continue
        if isinstance(row, str):
            words = row.replace(",", " ").split()
            if not all(word.isdigit() for word in words):
                raise UnsuitableInput(
                    f"“{column}” needs token ids (whole numbers); found “{row[:40]}”. Run the tokenizer first."
                )
            out[i] = np.array(words, np.int64)
        else:
            numbers = np.atleast_1d(np.asarray(row))
            if numbers.dtype.kind not in "iu" and not np.array_equal(numbers, np.round(numbers)):
                raise UnsuitableInput(f"“{column}” needs token ids (whole numbers); found {numbers[:3]}.")
            ids = numbers.astype(np.int64)
            out[i] = ids[ids >= 0]  # padding is -1
    return out


def _vectors(dataset: Dataset, column: str) -> Array:
    values = dataset.column(column)
    if values.dtype == object:
        widths = {len(row) for row in values if row is not None}
        if len(widths) != 1:
            raise UnsuitableInput(
                f"The vectors in “{column}” differ in length ({sorted(widths)[:5]}). They must all have the same."
            )
        values = np.stack([np.full(widths.copy().pop(), np.nan) if row is None else row for row in values])
    if values.ndim != 2:
        raise UnsuitableInput(f"“{column}” needs one vector per record; it has the shape {list(values.shape)}.")
    return values.astype(np.float64)


# --------------------------------------------------------------------------------------------------------------- ledger


def _note_missing(name: str, value: Any, rows: int, dropped: dict[str, Array]) -> None:
    """Marks records that lack this input."""
    columns = value if isinstance(value, dict) else {"": value}
    for column, array in columns.items():
        if not isinstance(array, np.ndarray) or len(array) != rows:
            continue
        lacking: Any
        if array.dtype == object:
            lacking = np.array([v is None for v in array])
        elif array.dtype.kind == "f":
            lacking = ~np.isfinite(array.reshape(rows, -1)).all(axis=1)
        elif name in (*LABELS, "is_member"):
            lacking = array < 0
        else:
            continue
        if lacking.any():
            dropped[f"“{column}” is missing" if column else f"{INPUTS[name].title} is missing"] = lacking


def _kept(rows: int, dropped: Mapping[str, Array], missing: str) -> Array:
    keep = np.ones(rows, bool)
    for reason, lacking in dropped.items():
        if missing == "refuse":
            raise UnsuitableInput(
                f"{reason} in {int(lacking.sum()):,} of {rows:,} records, and this audit refuses missing values. Fill them, or choose to drop them."
            )
        keep &= ~lacking
    return keep


def _ledger(rows: int, dropped: Mapping[str, Array], keep: Array, notes: list[str]) -> dict[str, Any]:
    """Rows in, dropped by the first reason that applies, used."""
    told = []
    left: Any = np.ones(rows, bool)
    for reason, lacking in dropped.items():
        if count := int((lacking & left).sum()):
            told.append({"reason": reason, "rows": count})
        left = left & ~lacking
    return {"rows": rows, "dropped": told, "used": int(keep.sum()), "notes": notes}


def _select(name: str, value: Any, keep: Array) -> Any:
    if keep.all():
        return value
    if isinstance(value, dict):
        return {column: array[keep] for column, array in value.items()}
    return value[keep]
