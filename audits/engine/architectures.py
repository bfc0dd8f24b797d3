"""The networks that a file of bare weights may name: a file without code cannot say how to compute, so it picks from this list.

A safetensors header carries strings only. It names its network as
`{"architecture": "cnn", "options": "{\\"channels\\": 1, ...}", "class_names": "[\\"cat\\", \\"dog\\"]"}`, the last two in JSON.
Every network is `head(body(x))`: `body` ends at the activations of the layer before last, `head` is linear and gives logits.
The names of the weights follow from that: `body.<index>.weight`, `body.<index>.bias`, `head.weight`, `head.bias`.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from audits.methods.errors import UnreadableArtifact, UnsuitableInput

if TYPE_CHECKING:
    import torch

MAX_SIZE = 1_000_000  # of any one option: no layer needs more
MAX_LAYERS = 32
MAX_PARAMETERS = 50_000_000  # 200 MB in float32
MAX_ACTIVATIONS = 20_000_000  # of one layer for one record, 80 MB in float32
MAX_METADATA = 1_000_000  # characters of JSON read from a header
MAX_CLASSES = 100_000
SHOWN = 60  # characters of a file's own words that a message repeats


@dataclass(frozen=True)
class Option:
    """One option of a network: a whole number of at least one, or a list of such numbers."""

    name: str
    help: str
    is_list: bool = False


@dataclass(frozen=True)
class Architecture:
    """A network in words, for forms and for the methods page."""

    description: str
    options: tuple[Option, ...]
    layers: Callable[[Mapping[str, Any]], list["Layer"]]


class Layer(NamedTuple):
    """A step of the body. `shape`: out and in sizes of its weights, empty without weights; `activations` per record."""

    kind: str
    shape: tuple[int, ...]
    activations: int


class Named(NamedTuple):
    """What the header of a weights file says about its network."""

    name: str
    options: Mapping[str, Any]
    class_names: tuple[str, ...] | None


# -------------------------------------------------------------------------------------------------------------- the list


def _mlp(options: Mapping[str, Any]) -> list[Layer]:
    width = options["inputs"]
    layers = [Layer("flatten", (), width)]
    for hidden in options["hidden"]:
        layers += [Layer("linear", (hidden, width), hidden), Layer("relu", (), hidden)]
        width = hidden
    return layers


def _cnn(options: Mapping[str, Any]) -> list[Layer]:
    channels, height, width = options["channels"], options["height"], options["width"]
    layers = []
    for filters in options["filters"]:
        if min(height, width) < 2:
            raise UnsuitableInput(
                f"A cnn halves the picture after each of its {len(options['filters'])} convolutions, and a picture of "
                f"{options['height']} × {options['width']} is too small for that; name fewer filters or larger pictures."
            )
        area = height * width
        layers += [Layer("conv", (filters, channels, 3, 3), filters * area), Layer("relu", (), filters * area)]
        channels, height, width = filters, height // 2, width // 2
        layers.append(Layer("pool", (), channels * height * width))
    flat, hidden = channels * height * width, options["hidden"]
    return [*layers, Layer("flatten", (), flat), Layer("linear", (hidden, flat), hidden), Layer("relu", (), hidden)]


ARCHITECTURES: Mapping[str, Architecture] = {
    "mlp": Architecture(
        "Fully connected network: each hidden layer is linear and ReLU. Inputs are flattened first, so pictures fit too.",
        (
            Option("inputs", "numbers per record"),
            Option("hidden", "width of each hidden layer", is_list=True),
            Option("classes", "number of classes"),
        ),
        _mlp,
    ),
    "cnn": Architecture(
        "Convolutional network: per entry of filters a 3 × 3 convolution with padding 1, ReLU and 2 × 2 max-pooling; then "
        "a linear layer of width hidden with ReLU.",
        (
            Option("channels", "channels of a picture"),
            Option("height", "height of a picture in pixels"),
            Option("width", "width of a picture in pixels"),
            Option("filters", "filters of each convolution", is_list=True),
            Option("hidden", "width of the layer before last"),
            Option("classes", "number of classes"),
        ),
        _cnn,
    ),
}


# ------------------------------------------------------------------------------------------------------------- building


def build(name: str, options: Mapping[str, Any]) -> "torch.nn.Module":
    """The network of that name with fresh weights; `body` and `head` are its two parts, its output is logits (n, k).

    Raises UnsuitableInput for a name that is not on the list and for options that are missing, unknown, or too large.
    """
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise UnsuitableInput(
            f"The file names the network {_shown(name)}, which is not among those that can be rebuilt from bare weights: "
            f"{', '.join(ARCHITECTURES)}. Rename the weights to one of these, or upload the model as ONNX."
        )
    checked = _checked(name, architecture, options)
    layers = architecture.layers(checked)
    width = layers[-1].activations
    _refuse_giants(name, [*layers, Layer("linear", (checked["classes"], width), checked["classes"])])
    return _module(layers, width, checked["classes"])


def _checked(name: str, architecture: Architecture, options: Mapping[str, Any]) -> dict[str, Any]:
    known = [option.name for option in architecture.options]
    for given in options:
        if given not in known:
            raise UnsuitableInput(f"The network {name} has no option {_shown(given)}; it has {', '.join(known)}.")
    checked: dict[str, Any] = {}
    for option in architecture.options:
        if option.name not in options:
            raise UnsuitableInput(f"The network {name} needs the option {option.name} ({option.help}).")
        checked[option.name] = _sizes(name, option, options[option.name])
    if checked["classes"] < 2:
        raise UnsuitableInput(f"The network {name} needs at least two classes; the file says {checked['classes']}.")
    return checked


def _sizes(name: str, option: Option, value: Any) -> int | list[int]:
    if not option.is_list:
        return _size(name, option, value)
    if not isinstance(value, list | tuple) or len(value) > MAX_LAYERS:
        raise UnsuitableInput(
            f"The option {option.name} of the network {name} ({option.help}) must be a list of at most {MAX_LAYERS} whole "
            f"numbers; found {_shown(value)}."
        )
    return [_size(name, option, entry) for entry in value]


def _size(name: str, option: Option, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SIZE:
        raise UnsuitableInput(
            f"The option {option.name} of the network {name} ({option.help}) must be a whole number from 1 to "
            f"{MAX_SIZE:,}; found {_shown(value)}."
        )
    return value


def _refuse_giants(name: str, layers: list[Layer]) -> None:
    """Counts before anything is allocated, so that a few bytes in a header cannot ask for all memory."""
    parameters = sum(prod(layer.shape) + layer.shape[0] for layer in layers if layer.shape)
    if parameters > MAX_PARAMETERS:
        raise UnsuitableInput(
            f"The network {name} with these options has {parameters:,} weights; at most {MAX_PARAMETERS:,} can be rebuilt."
        )
    activations = max(layer.activations for layer in layers)
    if activations > MAX_ACTIVATIONS:
        raise UnsuitableInput(
            f"The network {name} with these options has a layer of {activations:,} activations for each record; at most "
            f"{MAX_ACTIVATIONS:,} can be computed."
        )


def _module(layers: list[Layer], width: int, classes: int) -> "torch.nn.Module":
    from torch import nn

    def part(layer: Layer) -> nn.Module:
        match layer.kind:
            case "conv":
                return nn.Conv2d(layer.shape[1], layer.shape[0], 3, padding=1)
            case "linear":
                return nn.Linear(layer.shape[1], layer.shape[0])
            case "pool":
                return nn.MaxPool2d(2)
            case "flatten":
                return nn.Flatten()
            case _:
                return nn.ReLU()

    body = nn.Sequential(*(part(layer) for layer in layers))
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(width, classes)))


# ------------------------------------------------------------------------------------------------------------ the header


def options_from_metadata(metadata: Mapping[str, str]) -> Named:
    """Name, options and class names (None where absent) from the header of a safetensors file.

    Raises UnsuitableInput where the header names no network, UnreadableArtifact where its JSON is not what it should be.
    """
    name = metadata.get("architecture")
    if not name:
        raise UnsuitableInput(
            "The weights file does not say which network its weights belong to. Save it with the metadata "
            f'"architecture" (one of {", ".join(ARCHITECTURES)}) and "options" (JSON), or upload the model as ONNX.'
        )
    options = _json(metadata, "options", "{}")
    if not isinstance(options, dict):
        raise UnreadableArtifact(f"The options in the header must be a JSON object; found {_shown(options)}.")
    if "class_names" not in metadata:
        return Named(name, options, None)
    class_names = _json(metadata, "class_names", "[]")
    if not isinstance(class_names, list) or not all(isinstance(entry, str) for entry in class_names):
        raise UnreadableArtifact(
            f"The class names in the header must be a JSON list of texts; found {_shown(class_names)}."
        )
    if len(class_names) > MAX_CLASSES or len(set(class_names)) != len(class_names):
        raise UnreadableArtifact(
            f"The header lists {len(class_names):,} class names; they must be different and at most {MAX_CLASSES:,}."
        )
    return Named(name, options, tuple(class_names))


def _json(metadata: Mapping[str, str], key: str, default: str) -> Any:
    text = metadata.get(key, default)
    if len(text) > MAX_METADATA:
        raise UnreadableArtifact(f"The {key} in the header is longer than {MAX_METADATA:,} characters.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableArtifact(f"The {key} in the header is not JSON: {_shown(text)}.") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
