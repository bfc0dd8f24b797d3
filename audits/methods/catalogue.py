"""The methods there are: every module of a family's folder is one. The folder is the registry, its path the key."""

import importlib
import inspect
import math
import pkgutil
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from audits import methods as package
from audits.methods.contract import INPUTS, Input, Kind, Method, Setting
from audits.methods.errors import AuditError

FAMILIES: Mapping[str, str] = {
    "fairness": "Fairness",
    "privacy": "Privacy",
    "backdoor": "Backdoor",
    "watermark": "Watermark",
}


@dataclass(frozen=True)
class Parameter:
    """A setting of a method as its signature states it."""

    name: str
    type: type
    default: Any
    setting: Setting

    def parse(self, raw: Any) -> Any:
        """The value as the method takes it. Raises AuditError in words for one that does not fit."""
        label = self.name.replace("_", " ")
        try:
            value = _cast(self.type, raw)
        except (TypeError, ValueError, OverflowError):
            kind = _TYPE_NAMES.get(self.type, self.type.__name__)
            raise AuditError(f"“{label}” needs {kind}; found {str(raw)[:60]!r}.") from None
        if self.setting.choices and value not in self.setting.choices:
            raise AuditError(f"“{label}” must be one of {', '.join(self.setting.choices)}; found {str(raw)[:60]!r}.")
        low, high = self.setting.low, self.setting.high
        outside = (low is not None and not value >= low) or (high is not None and not value <= high)
        if outside:
            span = (
                f"between {low:g} and {high:g}"
                if low is not None and high is not None
                else f"at least {low:g}"
                if low is not None
                else f"at most {high:g}"
            )
            raise AuditError(f"“{label}” must be {span}; found {value}.")
        return value


_TYPE_NAMES: Mapping[type, str] = {bool: "yes or no", int: "a whole number", float: "a number", str: "text"}
_YES, _NO = ("1", "true", "on", "yes"), ("0", "false", "off", "no", "")


def _cast(kind: type, raw: Any) -> Any:
    """`raw` as `kind`. Raises ValueError for what a bare cast would bend: 3.7 to 3, True to 1, NaN and infinity to a float."""
    if kind is bool:
        word = str(raw).lower()
        if word not in _YES + _NO:
            raise ValueError(raw)
        return word in _YES
    value = kind(raw)
    if isinstance(value, int | float):
        bent = isinstance(raw, bool) or (isinstance(raw, float) and value != raw)
        if bent or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(raw)
    return value


@dataclass(frozen=True)
class Entry:
    """A method in the catalogue, with what its signature says."""

    key: str
    family: str
    method: Method
    required: tuple[Input, ...]
    optional: tuple[Input, ...]
    parameters: tuple[Parameter, ...]

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Required and optional inputs."""
        return self.required + self.optional

    def missing(self, available: frozenset[str]) -> tuple[Input, ...]:
        """Required inputs that are neither given nor derivable from what is given; empty where the method can run."""
        return tuple(i for i in self.required if i.kind is not Kind.RUNTIME and not obtainable(i, available))

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All settings, defaults filled in. Raises AuditError for an unknown name or an unfit value."""
        known = {p.name: p for p in self.parameters}
        for name in given:
            if name not in known:
                raise AuditError(
                    f"“{self.method.title}” has no setting {str(name)[:60]!r}; it has {', '.join(known) or 'none'}."
                )
        return {name: p.parse(given[name]) if name in given else p.default for name, p in known.items()}


def obtainable(wanted: Input, available: frozenset[str]) -> bool:
    """Whether the input is among `available` or can be computed from it."""
    return wanted.name in available or any(needs <= available for needs in wanted.derived_from)


def _entry(key: str, family: str, method: Method) -> Entry:
    hints = typing.get_type_hints(method.audit, include_extras=True)
    required: list[Input] = []
    optional: list[Input] = []
    parameters: list[Parameter] = []
    for name, parameter in inspect.signature(method.audit).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            hint = hints[name]
            if typing.get_origin(hint) is not Annotated:
                raise TypeError(f"{key}: setting {name!r} needs Annotated[type, Setting(...)]")
            base, *marks = typing.get_args(hint)
            setting = next(mark for mark in marks if isinstance(mark, Setting))
            parameters.append(Parameter(name, base, parameter.default, setting))
        elif name not in INPUTS:
            raise TypeError(f"{key}: input {name!r} is not in the vocabulary")
        else:
            (required if parameter.default is inspect.Parameter.empty else optional).append(INPUTS[name])
    return Entry(key, family, method, tuple(required), tuple(optional), tuple(parameters))


@cache
def catalogue() -> Mapping[str, Entry]:
    """Every method by key, e.g. "privacy.loss_membership", in the order of families and file names."""
    entries = {}
    for family in FAMILIES:
        folder = importlib.import_module(f"{package.__name__}.{family}")
        for module in sorted(pkgutil.iter_modules(folder.__path__), key=lambda found: found.name):
            if not module.name.startswith("_"):
                key = f"{family}.{module.name}"
                entries[key] = _load(key)
    return entries


@cache
def _load(key: str) -> Entry:
    family = key.partition(".")[0]
    return _entry(key, family, importlib.import_module(f"{package.__name__}.{key}").METHOD)


def find(key: str) -> Entry:
    """The method of that key, without importing the others. Raises AuditError where there is none."""
    family, _, name = key.partition(".")
    if family in FAMILIES and name.isidentifier() and not name.startswith("_"):
        folder = importlib.import_module(f"{package.__name__}.{family}")
        if any(module.name == name for module in pkgutil.iter_modules(folder.__path__)):
            return _load(key)
    raise AuditError(f"There is no audit method {key!r}; the methods page lists them all.")
