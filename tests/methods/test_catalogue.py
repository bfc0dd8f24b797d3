"""The catalogue: a new method is one file, and its signature answers what it needs and which settings it takes."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from audits.methods import catalogue as catalogue_module
from audits.methods.catalogue import FAMILIES, Entry, Parameter, catalogue, find, obtainable
from audits.methods.contract import INPUTS, Setting
from audits.methods.errors import AuditError

MODULE = '''
"""Is the label ever right? Source: this test. Limits: it is a sample."""
from typing import Annotated
import numpy as np
from audits.methods.contract import Method, Result, Setting

def audit(
    y_true, y_pred, rng, embeddings=None, *,
    level: Annotated[float, Setting("Level", 0.5, 0.999)] = 0.95,
    rounds: Annotated[int, Setting("Rounds", 1)] = 3,
    rule: Annotated[str, Setting("Rule", choices=("max", "mean"))] = "max",
    exact: Annotated[bool, Setting("Exact")] = False,
):
    return Result(())

METHOD = Method(title="Sample method", question="Is it?", source="this test", audit=audit, figures=lambda result: [],
                example=lambda rng: {}, limits=("none",), advice="none")
'''


def forget() -> None:
    """What was found so far: the folders do not change while the application runs, but here they do."""
    catalogue.cache_clear()
    catalogue_module._load.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A second folder of the privacy family; what is written there leaves the catalogue with the test."""
    family = importlib.import_module("audits.methods.privacy")
    monkeypatch.setattr(family, "__path__", [*family.__path__, str(tmp_path)])
    forget()
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(f"audits.methods.privacy.{path.stem}", None)
        if hasattr(family, path.stem):
            delattr(family, path.stem)
    forget()


@pytest.fixture
def sample(folder: Path) -> Entry:
    (folder / "zz_sample.py").write_text(MODULE)
    return catalogue()["privacy.zz_sample"]


# ----------------------------------------------------------------------------------------------- a new method is one file


def test_a_new_method_is_one_file(folder: Path) -> None:
    before = set(catalogue())
    forget()
    (folder / "zz_sample.py").write_text(MODULE)
    assert set(catalogue()) - before == {"privacy.zz_sample"}
    assert find("privacy.zz_sample").family == "privacy"


def test_a_file_that_starts_with_an_underscore_is_no_method(folder: Path) -> None:
    (folder / "_zz_shared.py").write_text("VALUE = 1")
    assert not [key for key in catalogue() if "zz_shared" in key]


def test_a_module_without_a_card_fails_loudly(folder: Path) -> None:
    (folder / "zz_sample.py").write_text('"""No card."""')
    with pytest.raises(AttributeError, match="METHOD"):
        catalogue()


def test_an_input_outside_the_vocabulary_fails_loudly(folder: Path) -> None:
    (folder / "zz_sample.py").write_text(MODULE.replace("y_pred, rng", "y_guess, rng"))
    with pytest.raises(TypeError, match="'y_guess' is not in the vocabulary"):
        catalogue()


def test_a_setting_without_its_annotation_fails_loudly(folder: Path) -> None:
    (folder / "zz_sample.py").write_text(MODULE.replace('Annotated[int, Setting("Rounds", 1)]', "int"))
    with pytest.raises(TypeError, match="'rounds' needs Annotated"):
        catalogue()


def test_methods_are_sorted_by_family_and_name() -> None:
    families = list(FAMILIES)
    keys = [(families.index(entry.family), key) for key, entry in catalogue().items()]
    assert keys == sorted(keys)
    assert all(entry.key == key for key, entry in catalogue().items())


@pytest.mark.parametrize(
    "key", ["privacy.no_such", "privacy._membership", "nosuch.audit", "privacy", "", "privacy.a.b"]
)
def test_unknown_key_is_refused_in_words(key: str) -> None:
    with pytest.raises(AuditError, match=f"no audit method '{re.escape(key)}'"):
        find(key)


def test_find_gives_what_the_catalogue_lists() -> None:
    assert all(find(key) is entry for key, entry in catalogue().items())


def test_finding_one_method_loads_no_other(folder: Path, sample: Entry) -> None:
    (folder / "zz_broken.py").write_text("raise RuntimeError('was loaded')")
    forget()
    assert find("privacy.zz_sample").method.title == "Sample method"
    with pytest.raises(RuntimeError, match="was loaded"):
        find("privacy.zz_broken")


# ------------------------------------------------------------------------------------------------------------------ inputs


def test_signature_tells_required_from_optional(sample: Entry) -> None:
    assert [one.name for one in sample.required] == ["y_true", "y_pred", "rng"]
    assert [one.name for one in sample.optional] == ["embeddings"]
    assert sample.inputs == sample.required + sample.optional


@pytest.mark.parametrize(
    ("available", "missing"),
    [
        ({"y_true", "y_pred"}, []),
        ({"y_true"}, ["y_pred"]),
        ({"y_true", "model"}, ["y_pred"]),
        ({"y_true", "model", "features"}, []),
        ({"y_true", "model", "images"}, []),
        ({"model", "images"}, ["y_true"]),
        (set(), ["y_true", "y_pred"]),
    ],
)
def test_missing_names_what_is_neither_given_nor_derivable(
    sample: Entry, available: set[str], missing: list[str]
) -> None:
    assert [one.name for one in sample.missing(frozenset(available))] == missing


def test_obtainable_needs_a_whole_set_of_sources() -> None:
    loss = INPUTS["record_loss"]
    assert obtainable(loss, frozenset({"record_loss"}))
    assert obtainable(loss, frozenset({"model", "features", "y_true"}))
    assert not obtainable(loss, frozenset({"model", "features"}))
    assert not obtainable(loss, frozenset({"model", "y_true"}))
    assert not obtainable(INPUTS["is_member"], frozenset({"model", "features", "y_true"}))


# ---------------------------------------------------------------------------------------------------------------- settings


def test_settings_are_defaults_with_what_is_given(sample: Entry) -> None:
    assert sample.settings({}) == {"level": 0.95, "rounds": 3, "rule": "max", "exact": False}
    assert sample.settings({"rounds": "7", "exact": "on"})["rounds"] == 7
    assert sample.settings({"exact": "on"})["exact"] is True


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"levl": 0.9}, "has no setting 'levl'; it has level, rounds, rule, exact"),
        ({"level": 2}, "“level” must be between 0.5 and 0.999; found 2.0"),
        ({"level": "nan"}, "needs a number"),
        ({"level": "high"}, "needs a number; found 'high'"),
        ({"level": None}, "needs a number"),
        ({"rounds": 0}, "must be at least 1; found 0"),
        ({"rounds": "2.5"}, "needs a whole number"),
        ({"rule": "median"}, "must be one of max, mean; found 'median'"),
    ],
)
def test_unfit_settings_are_refused_in_words(sample: Entry, given: dict[str, object], words: str) -> None:
    with pytest.raises(AuditError, match=words):
        sample.settings(given)


@pytest.mark.parametrize(
    ("raw", "value"), [(True, True), ("true", True), ("on", True), ("1", True), ("yes", True), ("False", False)]
)
def test_truth_is_read_from_forms_and_json(raw: object, value: bool) -> None:
    assert Parameter("exact", bool, False, Setting("Exact")).parse(raw) is value


@pytest.mark.parametrize(
    ("kind", "raw", "words"),
    [
        (float, "nan", "needs a number"),
        (float, "inf", "needs a number"),
        (float, float("nan"), "needs a number"),
        (int, 2.5, "whole number"),
        (int, True, "whole number"),
        (bool, "banana", "yes or no"),
        (bool, None, "yes or no"),
    ],
)
def test_values_that_only_look_fit_are_refused(kind: type, raw: object, words: str) -> None:
    parameter = Parameter("rounds", kind, kind(), Setting("Without a range"))
    with pytest.raises(AuditError, match=words):
        parameter.parse(raw)


def test_the_packages_of_the_families_exist() -> None:
    for family in FAMILIES:
        assert importlib.import_module(f"{catalogue_module.package.__name__}.{family}").__doc__
