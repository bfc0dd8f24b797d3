"""The trigger-set watermark: exact p-values, what unmarked models may match, and no word about owners without a commitment."""

import io
import json
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from audits.methods.contract import Array, Control, Result
from audits.methods.errors import UnsuitableInput
from audits.methods.verdict import Verdict, judge
from audits.methods.watermark._exact import hits_needed
from audits.methods.watermark.trigger_set import METHOD, P_LIMIT, agreement_by_frequency, audit, chance_of

TEN = tuple(str(digit) for digit in range(10))
LABELS = np.arange(30) % 10


def run(trigger_label: Array, y_pred: Array, references: dict[str, Array] | None = None, **settings: Any) -> Result:
    given = {"classes": TEN} | settings
    return audit(trigger_label, y_pred, np.random.default_rng(0), references, **given)


def answering(matches: int, labels: Array = LABELS) -> Array:
    """Answers of which exactly the first `matches` are the key's."""
    return np.where(np.arange(labels.size) < matches, labels, (labels + 1) % 10)


def control(result: Result, name: str) -> Control:
    return next(one for one in result.controls if one.name == name)


# -------------------------------------------------------------------------------------------------------------- by hand


def test_all_triggers_matched_by_hand() -> None:
    # 30 of 30 at p0 = 1/10: p = 10^-30; the lower end of the interval is (alpha/2)^(1/30).
    rate = run(LABELS, LABELS).find("trigger_match_rate")
    assert (rate.value, rate.ideal, rate.n) == (1.0, pytest.approx(0.1), 30)
    assert rate.p_value == pytest.approx(1e-30, rel=1e-9)
    assert rate.low == pytest.approx(0.025 ** (1 / 30), rel=1e-9)
    assert rate.high == 1.0


def test_fourteen_of_thirty_are_enough_and_thirteen_are_not() -> None:
    assert hits_needed(30, 0.1, P_LIMIT) == 14
    assert run(LABELS, answering(14)).find("trigger_match_rate").p_value <= P_LIMIT
    assert run(LABELS, answering(13)).find("trigger_match_rate").p_value > P_LIMIT


def test_agreement_by_frequency_by_hand() -> None:
    # Labels: 3/4 of class 0, answers: 1/2 of class 0. 3/4 * 1/2 + 1/4 * 1/2 = 1/2.
    assert agreement_by_frequency(np.array([0, 0, 0, 1]), np.array([0, 1, 0, 1])) == 0.5


@pytest.mark.parametrize("matches", [0, 3, 9, 30])
def test_p_value_is_that_of_scipy(matches: int) -> None:
    rate = run(LABELS, answering(matches)).find("trigger_match_rate")
    assert rate.p_value == pytest.approx(binomtest(matches, 30, rate.ideal, alternative="greater").pvalue, rel=1e-9)


def test_chance_is_the_largest_of_its_sources() -> None:
    # Two references that match 3 and 12 of 30. The upper limit of 15 of 60 pooled is 0.3789; the best has 0.4.
    references = {"a": answering(3), "b": answering(12)}
    chance = chance_of(LABELS, LABELS, references, 0.1)
    assert chance.pooled == pytest.approx(binomtest(15, 60).proportion_ci(0.95, "exact").high)
    assert chance.best_reference == 0.4
    assert chance.rate == 0.4
    assert run(LABELS, LABELS, references).find("trigger_match_rate").ideal == 0.4


def test_classes_not_named_are_counted_from_what_is_seen() -> None:
    assert run(LABELS, LABELS, classes=()).find("trigger_match_rate").ideal == pytest.approx(0.1)
    assert run(LABELS % 2, LABELS % 2, classes=()).find("trigger_match_rate").ideal == pytest.approx(0.5)


def test_stated_chance_is_a_floor() -> None:
    assert run(LABELS, LABELS, chance=0.3).find("trigger_match_rate").ideal == 0.3
    assert run(LABELS, LABELS, {"a": answering(15)}, chance=0.3).find("trigger_match_rate").ideal > 0.3


# ----------------------------------------------------------------------------------------------------------------- null


def test_unmarked_models_are_found_no_more_often_than_stated() -> None:
    rng = np.random.default_rng(1)
    small = 0
    for _ in range(2_000):
        labels, answers = rng.integers(10, size=(2, 40))
        chance = chance_of(labels, answers, {}, 0.1).rate
        small += binomtest(int((labels == answers).sum()), 40, chance, alternative="greater").pvalue <= 0.05
    assert small / 2_000 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2_000)
    assert small > 20  # the test is not dead


def test_a_model_that_always_answers_the_commonest_label_does_not_match_the_key() -> None:
    # 25 of 30 triggers have label 3. 25 matches would have p = 1e-20 at 1/10, and mean nothing.
    labels = np.where(np.arange(30) < 25, 3, np.arange(30) % 3)
    rate = run(labels, np.full(30, 3)).find("trigger_match_rate")
    assert rate.value == pytest.approx(25 / 30)
    assert rate.p_value > 0.4


@pytest.mark.parametrize("seed", range(8))
def test_negative_controls_pass_for_unmarked_models_of_two_classes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(40) % 2)
    result = run(labels, rng.permutation(labels), {"a": rng.permutation(labels)}, classes=("no", "yes"))
    assert all(one.passed for one in result.controls if one.kind == "negative")


# -------------------------------------------------------------------------------------------------------------- planted


def test_marked_model_exceeds_and_its_match_rate_is_covered() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        labels = rng.integers(10, size=40)
        answers = np.where(rng.random(40) < 0.7, labels, rng.integers(10, size=40))  # matches 0.7 + 0.3 / 10
        found = binomtest(int((labels == answers).sum()), 40).proportion_ci(0.95, "exact")
        covered += found.low <= 0.73 <= found.high
    assert covered / 200 >= 0.92
    result = run(labels, answers, {"a": rng.integers(10, size=40)})
    rate = result.find("trigger_match_rate")
    assert rate.low <= 0.73 <= rate.high
    assert judge(rate, METHOD.bounds[0], result.controls).verdict is Verdict.EXCEEDS


def test_power_is_the_rate_at_which_simulated_marked_models_are_found() -> None:
    rng = np.random.default_rng(3)
    result = run(rng.permutation(LABELS), rng.permutation(LABELS), retained=0.5)
    planted = control(result, "Simulated marked models")
    expected = result.find("trigger_match_rate").power
    assert expected is not None
    assert 0.3 < expected < 0.99
    assert planted.low <= expected <= planted.high


def test_unmarked_model_is_within_where_the_trigger_set_is_large() -> None:
    rng = np.random.default_rng(4)
    labels, answers, other = rng.integers(10, size=(3, 100))
    result = run(labels, answers, {"a": other})
    assert judge(result.find("trigger_match_rate"), METHOD.bounds[0], result.controls).verdict is Verdict.WITHIN


def test_too_few_triggers_cannot_tell_even_when_all_match() -> None:
    result = run(LABELS[:4], LABELS[:4])
    rate = result.find("trigger_match_rate")
    assert rate.power == 0.0
    assert rate.mde is None
    assert judge(rate, METHOD.bounds[0], result.controls).verdict is Verdict.CANNOT_TELL
    assert any("more triggers are needed" in note for note in result.notes)


def test_unrelated_model_that_matches_the_key_spoils_the_finding() -> None:
    result = run(LABELS, LABELS, {"a": answering(2), "copy": LABELS})
    assert not control(result, "Unrelated models").passed
    assert judge(result.find("trigger_match_rate"), METHOD.bounds[0], result.controls).verdict is Verdict.CANNOT_TELL


# ---------------------------------------------------------------------------------------------------------------- words


def test_without_a_commitment_nothing_is_said_about_owners() -> None:
    notes = " ".join(run(LABELS, LABELS).notes)
    assert "the key matches, and nothing about who owns" in notes
    assert "unrelated models were given" in notes


def test_a_commitment_is_told_as_unchecked() -> None:
    notes = " ".join(run(LABELS, LABELS, {"a": answering(1)}, committed_before="2026-03-31").notes)
    assert "before 2026-03-31" in notes
    assert "did not check" in notes
    assert "nothing about who owns" not in notes


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        ((LABELS[:0], LABELS[:0]), {}, "empty"),
        ((LABELS, LABELS[:9]), {}, "30 trigger labels and 9 answers of the suspect model"),
        ((LABELS, LABELS, {"other": LABELS[:9]}), {}, "9 answers of other"),
        ((LABELS * 0, LABELS * 0), {"classes": ()}, "several classes"),
        ((LABELS, LABELS), {"committed_before": "last year"}, "year-month-day"),
    ],
)
def test_unsuitable_input_is_refused_in_words(arguments: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsuitableInput, match=words):
        run(*arguments, **settings)


def test_labels_of_one_class_show_nothing() -> None:
    result = run(LABELS * 0, LABELS * 0)
    rate = result.find("trigger_match_rate")
    assert rate.p_value == 1.0
    assert judge(rate, METHOD.bounds[0], result.controls).verdict is Verdict.CANNOT_TELL


def test_figures_are_drawn_from_the_stored_result() -> None:
    result = run(LABELS, answering(20), {"a": answering(3), "<b>": answering(1)})
    stored = io.BytesIO()
    np.savez(stored, **result.arrays)
    stored.seek(0)
    with np.load(stored, allow_pickle=False) as arrays:
        back = Result.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False)), dict(arrays))
    rates, found = METHOD.figures(back)
    assert [figure.to_json() for figure in (rates, found)] == [figure.to_json() for figure in METHOD.figures(result)]
    assert "67% of 30 triggers" in rates.alt
    assert len(rates.table.rows) == 3
    assert "from" in found.alt
