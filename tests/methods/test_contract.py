"""What every method of the catalogue promises, checked on the example of its own card. A new method is covered unedited.

A measurement with a value needs an interval or a p-value, so that a reader knows how surely it is known. There are two
exceptions: a plain count, a whole number, not negative, whose `unit` says what is counted ("rows", "classes"); and what is
computed from the design and not estimated from the data, whose `interval` then begins with "computed".
"""

import ast
import io
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from audits.methods import catalogue as catalogue_module
from audits.methods.catalogue import FAMILIES, Entry, catalogue
from audits.methods.contract import INPUTS, Kind, Measurement, Result

METHODS = Path(catalogue_module.__file__).parent
KEYS = list(catalogue())
SEED = 20_261_201
RING_1 = {"contract", "errors", "stats", "charts"}
HEAVY = ("torch", "scipy", "polars", "plotly", "pandas", "onnxruntime", "sklearn", "transformers", "PIL")

every_method = pytest.mark.parametrize("key", KEYS)


# ------------------------------------------------------------------------------------------------------- the example, run


def frozen(value: Any) -> Any:
    """A copy of an input that compares by content: arrays by type, shape and bytes, models by their weights and mode."""
    if isinstance(value, np.ndarray):
        held = [frozen(item) for item in value.ravel()] if value.dtype == object else value.tobytes()
        return (str(value.dtype), value.shape, held)
    if isinstance(value, Mapping):
        return {name: frozen(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [frozen(item) for item in value]
    if getattr(value, "module", None) is not None:
        weights = {name: frozen(tensor.detach().numpy().copy()) for name, tensor in value.module.state_dict().items()}
        return (weights, value.module.training, [p.requires_grad for p in value.module.parameters()])
    if isinstance(value, str | int | float | bool | np.generic | type(None)):
        return value
    return {name: frozen(item) for name, item in vars(value).items()}


class Run(NamedTuple):
    """The example of one method run twice with one seed, its inputs before and after, and the progress it reported."""

    first: Result
    second: Result
    before: Any
    after: Any
    progress: list[tuple[float, str]]


def prepared(entry: Entry) -> dict[str, Any]:
    inputs = entry.method.example(np.random.default_rng(SEED))
    if any(one.name == "classes" for one in entry.inputs) and "classes" not in inputs:
        labels = [
            int(np.max(inputs[name])) for name in ("y_true", "trigger_label", "y_pred") if inputs.get(name) is not None
        ]
        inputs["classes"] = tuple(f"class {i}" for i in range(max(labels, default=1) + 1))
    return inputs


def runtime(entry: Entry, progress: list[tuple[float, str]]) -> dict[str, Any]:
    def report(share: float, words: str = "") -> None:
        progress.append((share, words))

    given = {"rng": np.random.default_rng(SEED), "progress": report}
    return {one.name: given[one.name] for one in entry.inputs if one.name in given}


@cache
def ran(key: str) -> Run:
    entry = catalogue()[key]
    inputs, progress = prepared(entry), []
    before = frozen(inputs)
    first = entry.method.audit(**(runtime(entry, progress) | inputs))
    after = frozen(inputs)
    again = prepared(entry)
    second = entry.method.audit(**(runtime(entry, []) | again))
    return Run(first, second, before, after, progress)


def round_trip(result: Result) -> Result:
    """The result as it comes back from the database and the array store."""
    text = json.dumps(result.to_json(), allow_nan=False)
    stored = io.BytesIO()
    np.savez(stored, **result.arrays)
    stored.seek(0)
    with np.load(stored, allow_pickle=False) as arrays:
        return Result.from_json(json.loads(text), {name: arrays[name] for name in arrays.files})


# --------------------------------------------------------------------------------------------------------------- the card


def module_of(key: str) -> ModuleType:
    return sys.modules[f"audits.methods.{key}"]


def test_the_catalogue_has_a_method() -> None:
    assert KEYS


@every_method
def test_docstring_asks_a_question_and_names_source_and_limits(key: str) -> None:
    words = module_of(key).__doc__ or ""
    assert "?" in words
    assert "Source:" in words
    assert "Limits:" in words


@every_method
def test_card_is_complete(key: str) -> None:
    card = catalogue()[key].method
    assert card.title
    assert card.question.endswith("?")
    assert card.source
    assert card.advice
    assert card.limits
    assert all(isinstance(limit, str) and limit for limit in card.limits)


@every_method
def test_inputs_are_of_the_vocabulary_and_something_is_asked_for(key: str) -> None:
    entry = catalogue()[key]
    assert all(INPUTS[one.name] is one for one in entry.inputs)
    assert any(one.kind is not Kind.RUNTIME for one in entry.required)


@every_method
def test_example_gives_every_required_input(key: str) -> None:
    entry = catalogue()[key]
    given = set(entry.method.example(np.random.default_rng(SEED)))
    wanted = {one.name for one in entry.required} - {"rng", "progress", "classes"}
    assert wanted <= given
    assert given <= {one.name for one in entry.inputs} | {p.name for p in entry.parameters}


@every_method
def test_defaults_of_settings_are_themselves_valid(key: str) -> None:
    for parameter in catalogue()[key].parameters:
        assert parameter.setting.help
        assert type(parameter.default) is parameter.type
        assert parameter.parse(parameter.default) == parameter.default
        assert parameter.parse(str(parameter.default)) == parameter.default


@every_method
def test_bounds_name_what_the_example_measures(key: str) -> None:
    for bound in catalogue()[key].method.bounds:
        assert ran(key).first.named(bound.measurement), bound.measurement
        named = [m for m in ran(key).first.named(bound.measurement) if m.value is not None]
        assert np.isfinite(bound.limit)
        assert bound.why
        if bound.rule == "test":
            assert all(m.p_value is not None for m in named)
        else:
            assert all(m.low is not None or m.high is not None for m in named)
            assert all(m.worse in ("higher", "lower") for m in named)


# ------------------------------------------------------------------------------------------------------------- the result


@every_method
def test_result_survives_storage(key: str) -> None:
    result = ran(key).first
    assert isinstance(result, Result)
    stored = round_trip(result)
    for part in ("measurements", "controls", "tables", "notes"):
        assert getattr(stored, part) == getattr(result, part)
    assert frozen(stored.arrays) == frozen(result.arrays)


@every_method
def test_same_seed_gives_the_same_result(key: str) -> None:
    first, second = ran(key).first, ran(key).second
    assert first.to_json() == second.to_json()
    assert frozen(first.arrays) == frozen(second.arrays)


@every_method
def test_inputs_are_left_as_they_were(key: str) -> None:
    assert ran(key).after == ran(key).before


@every_method
def test_progress_is_a_share_and_words(key: str) -> None:
    for share, words in ran(key).progress:
        assert 0 <= share <= 1
        assert isinstance(words, str)


@every_method
def test_result_carries_a_control(key: str) -> None:
    assert ran(key).first.controls


def is_plain_count(measurement: Measurement) -> bool:
    value = measurement.value
    return value is not None and value >= 0 and value == int(value) and bool(measurement.unit)


@every_method
def test_every_value_says_how_surely_it_is_known(key: str) -> None:
    result = ran(key).first
    assert any(m.value is not None for m in result.measurements)
    for m in result.measurements:
        has_interval = m.low is not None or m.high is not None
        is_sure = is_plain_count(m) or m.interval.startswith("computed")
        assert m.value is None or has_interval or m.p_value is not None or is_sure, m
        assert not has_interval or (m.level is not None and 0 < m.level < 1), m


@every_method
def test_probabilities_are_probabilities(key: str) -> None:
    for m in ran(key).first.measurements:
        for share in (m.p_value, m.power):
            assert share is None or 0 <= share <= 1, m


@every_method
def test_measurements_can_be_told_apart(key: str) -> None:
    identities = [(m.name, m.subject) for m in ran(key).first.measurements]
    assert len(identities) == len(set(identities))


@every_method
def test_tables_hold_plain_values(key: str) -> None:
    result = ran(key).first
    for table in [*result.tables, *(figure.table for figure in catalogue()[key].method.figures(result))]:
        assert type(table.title) is str
        assert all(type(column) is str for column in table.columns)
        for row in table.rows:
            assert all(type(cell) in (str, int, float, bool, type(None)) for cell in row), row


# ------------------------------------------------------------------------------------------------------------ the figures


@every_method
def test_figures_can_be_drawn_from_the_stored_result(key: str) -> None:
    figures = catalogue()[key].method.figures(round_trip(ran(key).first))
    assert figures
    for figure in figures:
        json.dumps(figure.to_json(), allow_nan=False)
        assert figure.title
        assert len(figure.alt) >= 20
        assert figure.table.rows
        assert figure.traces or figure.pictures


# ------------------------------------------------------------------------------------------------------------ the imports


def top_level_imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names that a module imports when it is loaded; what stands under TYPE_CHECKING is not loaded."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Try | ast.With) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test)
        ):
            yield from top_level_imports(ast.Module(body=node.body, type_ignores=[]))


def is_allowed(name: str, family: str) -> bool:
    top, *rest = name.split(".")
    if (top, *rest[:1]) == ("audits", "methods") and len(rest) >= 2:
        own_helper = rest[1] == family and len(rest) > 2 and rest[2].startswith("_")
        return rest[1] in RING_1 or own_helper
    return top == "numpy" or top in sys.stdlib_module_names


FILES = sorted(path for family in FAMILIES for path in (METHODS / family).glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_method_files_import_only_what_the_inner_ring_may(path: Path) -> None:
    names = list(top_level_imports(ast.parse(path.read_text())))
    assert [name for name in names if not is_allowed(name, path.parent.name)] == []


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("import numpy as np\nimport json\nfrom audits.methods.stats import wilson", []),
        ("from audits.methods import stats\nfrom audits.methods.privacy._scores import loss", []),
        ("import torch", ["torch"]),
        ("from audits.methods.verdict import judge", ["audits.methods.verdict.judge"]),
        ("from audits.methods.fairness._counts import counts", ["audits.methods.fairness._counts.counts"]),
        ("from audits.methods.privacy.one_run import audit", ["audits.methods.privacy.one_run.audit"]),
        ("from . import _scores", [".._scores"]),
        ("try:\n    import scipy\nexcept ImportError:\n    pass", ["scipy"]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", []),
        ("def audit():\n    import torch", []),
    ],
)
def test_the_import_check_itself(source: str, refused: list[str]) -> None:
    names = top_level_imports(ast.parse(source))
    assert [name for name in names if not is_allowed(name, "privacy")] == refused


def test_loading_the_catalogue_loads_no_heavy_library() -> None:
    program = (
        "import json, sys\n"
        "from audits.methods.catalogue import catalogue\n"
        "catalogue()\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=METHODS.parents[1]
    )
    assert json.loads(out.stdout) == []
