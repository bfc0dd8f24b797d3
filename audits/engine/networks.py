"""Networks rebuilt from bare weights: safetensors, which cannot hold code, and PyTorch state dicts read as weights alone."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.engine.architectures import build, options_from_metadata
from audits.engine.columns import as_table, matrix
from audits.engine.wire import printable
from audits.methods.contract import Array
from audits.methods.errors import RefusedArtifact, UnreadableArtifact, UnsuitableInput

if TYPE_CHECKING:
    import torch

BATCH = 1024
MAX_HEADER = 16 << 20
MAX_TENSORS = 20_000


class TorchClassifier:
    """A network of the short list, rebuilt from its weights."""

    def __init__(
        self,
        kind: str,
        name: str,
        module: "torch.nn.Module",
        classes: Sequence[str] | None,
        record_shape: tuple[int, ...],
    ) -> None:
        import torch

        torch.set_num_threads(1)
        self.format, self.architecture, self.record_shape = kind, name, record_shape
        self.module = module.eval()
        width = int(module.head.out_features)  # type: ignore[union-attr, arg-type]
        if classes is not None and len(classes) != width:
            raise UnsuitableInput(f"The file names {len(classes)} classes, but the network has {width} outputs.")
        self.classes = tuple(classes) if classes else tuple(str(i) for i in range(width))
        self.warnings: list[str] = []
        if any(not bool(torch.isfinite(p).all()) for p in module.parameters()):
            self.warnings.append("Some weights are not finite numbers; the network's answers are meaningless.")

    def _run(self, x: Any, part: Any) -> Array:
        import torch

        x = as_table(x)
        array = matrix(x) if hasattr(x, "schema") else np.ascontiguousarray(x, np.float32)
        out = []
        with torch.no_grad():
            for start in range(0, len(array), BATCH):
                try:
                    out.append(part(torch.from_numpy(array[start : start + BATCH])).numpy())
                except RuntimeError as error:
                    raise UnsuitableInput(
                        f"The network cannot read records of shape {list(array.shape[1:])}: {printable(str(error)).splitlines()[0][:200]}."
                    ) from None
        return np.concatenate(out).astype(np.float64)

    def scores(self, x: Any) -> Array:
        """See Classifier."""
        logits = self._run(x, self.module)
        with np.errstate(invalid="ignore"):  # broken weights give NaN, which the caller refuses in words
            shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))

    def features(self, x: Any) -> Array:
        """See Classifier."""
        return self._run(x, self.module.body)

    def trial(self) -> Array:
        """Two blank records of the shape that it reads."""
        return np.zeros((2, *self.record_shape), np.float32)

    def describe(self) -> dict[str, Any]:
        """What it reads and returns."""
        count = sum(p.numel() for p in self.module.parameters())
        return {
            "inputs": [
                {
                    "name": "images" if self.architecture == "cnn" else "matrix",
                    "type": "float32",
                    "shape": ["n", *map(str, self.record_shape)],
                }
            ],
            "feature_names": [],
            "parameters": int(count),
            "architecture": self.architecture,
        }


def _declared(options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], list[str] | None] | None:
    if not options.get("architecture"):
        return None
    names = options.get("class_names")
    return str(options["architecture"]), dict(options.get("options") or {}), [str(n) for n in names] if names else None


_NAME_IT = (
    "The file holds weights but not how to compute with them. Name its architecture on the upload page, or write it into the file's "
    'header: {"architecture": "cnn", "options": …}.'
)


def open_safetensors(path: str, options: Mapping[str, Any]) -> TorchClassifier:
    header = _header(path)
    metadata = header.get("__metadata__") or {}
    declared = _declared(options) or (options_from_metadata(metadata) if metadata.get("architecture") else None)
    if declared is None:
        raise UnsuitableInput(_NAME_IT)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise UnreadableArtifact(f"The safetensors file is damaged: {printable(str(error))[:200]}.") from None
    return _network("safetensors", weights, declared)


def _header(path: str) -> dict[str, Any]:
    """The header, with bounds of our own and no key twice. Raises UnreadableArtifact."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= MAX_HEADER:
            raise UnreadableArtifact(
                f"The safetensors header says it has {length:,} bytes; at most {MAX_HEADER:,} are read."
            )
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise UnreadableArtifact(f"The safetensors header is damaged: {printable(str(error))[:200]}.") from None
    if not isinstance(header, dict) or len(header) > MAX_TENSORS:
        raise UnreadableArtifact(
            "The safetensors header is not a list of tensors, or names more of them than any network has."
        )
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise UnreadableArtifact("The metadata in the safetensors header must be texts by name.")
    return header


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def open_state_dict(path: str, options: Mapping[str, Any], level: str) -> TorchClassifier:
    if level == "D":
        raise RefusedArtifact(
            "PyTorch files are not opened on this host, whose border is too weak (level D). Save the weights as safetensors."
        )
    declared = _declared(options)
    import pickle

    import torch

    try:
        weights = torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise RefusedArtifact(
            f"This PyTorch file holds more than weights; opening it would run code. Save model.state_dict() alone, or use safetensors. "
            f"Found: {printable(str(error)).splitlines()[0][:200]}."
        ) from None
    except (RuntimeError, ValueError, OSError, EOFError, KeyError) as error:
        raise UnreadableArtifact(f"The PyTorch file is damaged or cut off: {printable(str(error))[:200]}.") from None
    if isinstance(weights, dict):  # training loops wrap the weights with their own counters
        weights = next((weights[key] for key in ("state_dict", "model_state_dict") if key in weights), weights)
    if not isinstance(weights, dict) or not all(isinstance(v, torch.Tensor) for v in weights.values()):
        raise UnsuitableInput("The PyTorch file is not a state dict of tensors. Save model.state_dict().")
    if declared is None:
        raise UnsuitableInput(_NAME_IT)
    return _network("PyTorch state dict", weights, declared)


def _network(
    kind: str, weights: Mapping[str, Any], declared: tuple[str, Mapping[str, Any], Sequence[str] | None]
) -> TorchClassifier:
    name, options, classes = declared
    module = build(name, options)
    try:
        module.load_state_dict(dict(weights))
    except RuntimeError as error:
        said = " ".join(printable(str(error)).split())
        raise UnsuitableInput(
            f"The weights do not fit the architecture {name} with {dict(options)}: {said[:400]}."
        ) from None
    sides = ("inputs",) if name == "mlp" else ("channels", "height", "width")
    return TorchClassifier(kind, name, module, classes, tuple(int(options[side]) for side in sides))
