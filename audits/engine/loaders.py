"""Uploaded models, opened in the child. The kind of a file is told by its content; what is code by nature is refused in words.

Each becomes a `Classifier`: class names, `scores(x)`, `features(x)`, and the torch module where there is one. `x` is a polars table of
columns or an array of images (n, channels, height, width) in [0, 1].
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from audits.engine.columns import as_table, check_columns, check_width, matrix, some
from audits.engine.networks import open_safetensors, open_state_dict
from audits.engine.wire import printable
from audits.methods.contract import Array, Classifier
from audits.methods.errors import RefusedArtifact, UnreadableArtifact, UnsuitableInput

BATCH = 1024
MAX_TRIAL = 50_000_000  # numbers of one record that a trial makes up

_CONVERT = "Save a scikit-learn model with skops.io.dump(model, path), a network's weights with safetensors, or export the model to ONNX."


def open_model(path: str, options: Mapping[str, Any] | None = None, *, level: str = "B") -> Classifier:
    """Opens a model by its content. Raises RefusedArtifact, UnreadableArtifact or UnsuitableInput in words."""
    options = options or {}
    with open(path, "rb") as file:
        head = file.read(16)
    if not head:
        raise UnreadableArtifact("The file is empty (0 bytes). Choose the file again.")
    if head.startswith(b"PK\x03\x04"):
        return _from_zip(path, options, level)
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        raise RefusedArtifact(f"This is a Python pickle; opening one runs code that its author chose. {_CONVERT}")
    if head.startswith(b"\x89HDF"):
        raise RefusedArtifact(
            "This is a Keras HDF5 file, whose layers may hold code. Export the model to ONNX with tf2onnx."
        )
    if head.startswith(b"GGUF"):
        raise UnsuitableInput("This is a GGUF language model; language models are not audited yet.")
    if head.startswith((b"\x78\x01", b"\x78\x9c", b"\x78\xda", b"\x1f\x8b", b"BZh", b"\xfd7zXZ")):
        raise RefusedArtifact(
            f"This is a compressed file, most likely a joblib pickle, which runs code when opened. {_CONVERT}"
        )
    if head[8:9] == b"{":
        return open_safetensors(path, options)
    if head[:1] in (b"\x08", b"\x0a", b"\x12"):
        return OnnxClassifier(path)
    if head[:1] in (b"(", b"c", b"]", b"}") or head.startswith(b"I"):
        raise RefusedArtifact(
            f"This looks like an old Python pickle; opening one runs code that its author chose. {_CONVERT}"
        )
    raise UnreadableArtifact(
        "This file is of no known model format. Models are ONNX, skops, safetensors or a PyTorch state dict; the file may be damaged or cut off."
    )


def _from_zip(path: str, options: Mapping[str, Any], level: str) -> Classifier:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        raise UnreadableArtifact("The archive is damaged or cut off. Save the model again.") from None
    if "schema.json" in names:
        return SkopsClassifier(path)
    if any(name.endswith(("constants.pkl", "archive_format", ".pt2")) or "/code/" in name for name in names):
        raise RefusedArtifact(f"This is a TorchScript or torch.export archive, which holds code. {_CONVERT}")
    if any(name.endswith("data.pkl") for name in names):
        return open_state_dict(path, options, level)
    if "config.json" in names or any(name.endswith(".weights.h5") for name in names):
        raise RefusedArtifact(
            "This is a Keras archive, whose layers may hold code. Export the model to ONNX with tf2onnx."
        )
    if any(name.endswith(".npy") for name in names):
        raise UnreadableArtifact("This is an NPZ file of arrays, not a model. Upload it as a data set.")
    raise UnreadableArtifact(
        "This zip archive is no model format that is known here. Models are ONNX, skops, safetensors or a state dict."
    )


def _distribution(values: Array) -> Array:
    """Rows as probabilities: as they are where they sum to one, else by softmax; one column is P(second class)."""
    values = np.asarray(values, np.float64)
    if values.ndim == 1 or values.shape[1] == 1:
        second = values.reshape(-1)
        if ((second < 0) | (second > 1)).any():
            second = 1 / (1 + np.exp(-second))
        return np.column_stack([1 - second, second])
    if (values >= -1e-6).all() and np.allclose(values.sum(axis=1), 1, atol=1e-3):
        return values
    shifted = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


# ----------------------------------------------------------------------------------------------------------------- ONNX


class OnnxClassifier:
    """An ONNX graph through onnxruntime: one matrix or image input, or one named input per column."""

    format = "ONNX"
    module = None

    def __init__(self, path: str) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            with open(path, "rb") as file:  # from bytes, so that no external data can be found beside it
                self.session = ort.InferenceSession(file.read(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001  onnxruntime raises classes of its own, one per status code
            said = printable(str(error)).strip().splitlines() or [""]
            raise UnreadableArtifact(f"The ONNX file cannot be opened: {said[0][:300]}.") from None
        self.inputs = self.session.get_inputs()
        self.outputs = self.session.get_outputs()
        self.by_column = len(self.inputs) > 1 or self._is_text(self.inputs[0])
        self.classes: tuple[str, ...] = self._classes()

    @staticmethod
    def _is_text(node: Any) -> bool:
        return "string" in node.type

    def _label_output(self) -> Any | None:
        labels = [o for o in self.outputs if "int64" in o.type or "string" in o.type]
        return labels[0] if labels and len(self.outputs) > 1 else None

    def _score_output(self) -> Any:
        scores = [o for o in self.outputs if o.type.startswith(("tensor(float", "tensor(double"))]
        if not scores:
            told = ", ".join(o.type for o in self.outputs)
            raise UnsuitableInput(
                f"The ONNX model has no output of scores (found {told}). Export it with probabilities as a tensor (skl2onnx: zipmap=False)."
            )
        return scores[-1]

    def _classes(self) -> tuple[str, ...]:
        width = self._score_output().shape[-1]
        count = width if isinstance(width, int) and width > 1 else 2
        if known := self.session.get_modelmeta().custom_metadata_map.get("class_names"):
            names = _json_or_none(known)
            if isinstance(names, list) and len(names) == count:
                return tuple(str(name) for name in names)
        return tuple(str(i) for i in range(count))

    def name_classes(self, labels: Sequence[str]) -> None:
        """Takes the data's labels, in sorted order, as the names of numbered classes: ONNX keeps no readable list of its own."""
        if len(labels) == len(self.classes):
            self.classes = tuple(labels)

    @property
    def label_type(self) -> str:
        """Type of the label output, empty where there is none."""
        label = self._label_output()
        return "" if label is None else str(label.type)

    def predict_labels(self, x: Any, rows: int = 2000) -> tuple[Array, Array]:
        """Labels as the graph writes them, and the index of the highest score, of the first rows."""
        label = self._label_output()
        if label is None:
            raise ValueError("the graph has no label output")
        feed = self._feed(x[:rows])
        labels, scores = self.session.run([label.name, self._score_output().name], feed)
        return np.asarray(labels).reshape(-1), _distribution(scores).argmax(axis=1)

    def trial(self) -> Any | None:
        """Two blank records, None where the graph leaves their shape open."""
        import polars as pl

        if self.by_column:
            return pl.DataFrame({n.name: ["", ""] if self._is_text(n) else [0.0, 0.0] for n in self.inputs})
        sides = self.inputs[0].shape[1:]
        if not sides or not all(isinstance(side, int) for side in sides) or np.prod(sides) > MAX_TRIAL:
            return None
        return np.zeros((2, *sides), np.float32)

    def _feed(self, x: Any) -> dict[str, Array]:
        if not hasattr(x, "schema"):
            return {self.inputs[0].name: np.asarray(x, np.float32)}
        if not self.by_column:
            return {self.inputs[0].name: matrix(x).astype(self._number_type(self.inputs[0]))}
        feed = {}
        for node in self.inputs:
            column = x[node.name]
            if self._is_text(node):
                values = np.array([["" if v is None else str(v)] for v in column.to_list()], object)
            else:
                if not (column.dtype.is_numeric() or str(column.dtype) == "Boolean"):
                    raise UnsuitableInput(f"The model reads numbers from “{node.name}”, but that column holds text.")
                values = column.to_numpy().astype(self._number_type(node))[:, None]
            feed[node.name] = values
        return feed

    @staticmethod
    def _number_type(node: Any) -> type:
        return np.float64 if "double" in node.type else np.int64 if "int64" in node.type else np.float32

    def check(self, x: Any) -> None:
        """Raises UnsuitableInput where the columns or the image size do not fit."""
        x = as_table(x)
        shape = self.inputs[0].shape
        if hasattr(x, "schema"):
            if self.by_column:
                return check_columns([node.name for node in self.inputs], x.columns)
            if len(shape) > 2:
                raise UnsuitableInput(f"The model reads images of shape {shape[1:]}; give the image column its role.")
            return check_width(shape[-1] if isinstance(shape[-1], int) else None, x.width)
        expected = tuple(side for side in shape[1:] if isinstance(side, int))
        if len(shape) != x.ndim or (len(expected) == x.ndim - 1 and expected != x.shape[1:]):
            raise UnsuitableInput(
                f"The model reads records of shape {shape[1:]}; the images have shape {list(x.shape[1:])}."
            )
        return None

    def scores(self, x: Any) -> Array:
        """See Classifier."""
        x = as_table(x)
        self.check(x)
        name = self._score_output().name
        parts = []
        for start in range(0, len(x), BATCH):
            try:
                parts.append(self.session.run([name], self._feed(x[start : start + BATCH]))[0])
            except UnsuitableInput:
                raise
            except Exception as error:  # noqa: BLE001  as above
                said = printable(str(error)).strip().splitlines() or [""]
                raise UnsuitableInput(f"The ONNX model fails on these records: {said[0][:300]}.") from None
        return _distribution(np.concatenate(parts))

    def features(self, x: Any) -> Array:
        """Not available."""
        raise UnsuitableInput(
            "An ONNX file does not give the activations of its layer before last. Upload the weights (safetensors) with an architecture, "
            "or a data set with a column of features."
        )

    def describe(self) -> dict[str, Any]:
        """What it reads and returns."""
        inputs = [{"name": n.name, "type": n.type, "shape": [str(s) for s in n.shape]} for n in self.inputs]
        names = [node.name for node in self.inputs] if self.by_column else []
        return {
            "inputs": inputs,
            "feature_names": names,
            "parameters": None,
            "architecture": self.session.get_modelmeta().producer_name,
        }


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# ---------------------------------------------------------------------------------------------------------------- skops


class SkopsClassifier:
    """A scikit-learn model from a skops file in which every type is trusted by skops itself."""

    format = "skops"
    module = None

    def __init__(self, path: str) -> None:
        import skops.io

        try:
            untrusted = skops.io.get_untrusted_types(file=path)
            model: Any = None if untrusted else skops.io.load(path, trusted=[])
        except Exception as error:  # noqa: BLE001  a damaged archive fails in many ways inside skops
            raise UnreadableArtifact(f"The skops file cannot be read: {printable(str(error))[:300]}.") from None
        if untrusted:
            raise RefusedArtifact(
                f"The skops file holds types that could run code: {some(untrusted)}. "
                "Save the model without custom functions, or export it to ONNX."
            )
        self.model: Any = model
        if not hasattr(model, "predict_proba"):
            raise UnsuitableInput(
                f"The model in this file ({type(self.model).__name__}) gives no class probabilities. Upload a classifier with predict_proba."
            )
        self.classes = tuple(_text(c) for c in self.model.classes_)

    @property
    def feature_names(self) -> list[str]:
        """Columns the model was fitted on, empty where it was fitted on a matrix."""
        return [str(name) for name in getattr(self.model, "feature_names_in_", [])]

    def scores(self, x: Any) -> Array:
        """See Classifier."""
        x = as_table(x)
        if not hasattr(x, "schema"):
            x = np.asarray(x, np.float64).reshape(len(x), -1)
            check_width(getattr(self.model, "n_features_in_", None), x.shape[1])
        elif names := self.feature_names:
            check_columns(names, x.columns)
            x = x.select(names)
        else:
            check_width(getattr(self.model, "n_features_in_", None), x.width)
            x = matrix(x).astype(np.float64)
        try:
            return np.asarray(self.model.predict_proba(x), np.float64)
        except (ValueError, TypeError) as error:
            raise UnsuitableInput(f"The model fails on these records: {printable(str(error))[:300]}.") from None

    def features(self, x: Any) -> Array:
        """Not available."""
        raise UnsuitableInput(
            "A scikit-learn model has no layer before last. Upload a network, or a data set with a column of features."
        )

    def describe(self) -> dict[str, Any]:
        """What it reads and returns."""
        steps = [type(step).__name__ for _, step in getattr(self.model, "steps", [("", self.model)])]
        width = getattr(self.model, "n_features_in_", None)
        inputs = [{"name": name, "type": "column", "shape": []} for name in self.feature_names]
        return {
            "inputs": inputs or [{"name": "matrix", "type": "number", "shape": ["n", str(width)]}],
            "feature_names": self.feature_names,
            "parameters": None,
            "architecture": " → ".join(steps),
        }


def _text(label: Any) -> str:
    label = label.item() if isinstance(label, np.generic) else label
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


# ----------------------------------------------------------------------------------------------------------- inspection


def inspect_model(model: Any) -> dict[str, Any]:
    """What the model reads and returns, as plain values; where its shape is known it has answered two blank records."""
    told = model.describe()
    return {
        "kind": "model",
        "format": model.format,
        "classes": [printable(name)[:100] for name in model.classes],
        "warnings": [*getattr(model, "warnings", []), *_trial(model)],
    } | told


def _trial(model: Any) -> list[str]:
    x = model.trial() if hasattr(model, "trial") else None
    if x is None:
        return []
    try:
        scores = model.scores(x)
    except UnsuitableInput as error:
        return [f"A trial on two blank records failed: {error}"]
    if scores.shape != (2, len(model.classes)):
        return [
            f"A trial on two blank records gave scores of shape {list(scores.shape)} for {len(model.classes)} classes."
        ]
    return [] if np.isfinite(scores).all() else ["A trial on two blank records gave scores that are not numbers."]
