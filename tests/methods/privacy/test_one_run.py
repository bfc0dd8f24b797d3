"""The one-run privacy audit: the theorem against published numbers, its validity on mechanisms of known ε, its refusals."""

import json
import math
import time

import numpy as np
import pytest
from scipy.stats import binom

from audits.methods.contract import Result
from audits.methods.errors import UnsuitableInput
from audits.methods.privacy.one_run import (
    GUESS_TABLE,
    METHOD,
    Guessing,
    audit,
    by_falling_score,
    correct_guesses,
    correct_needed,
    declared_guesses,
    detectable_epsilon,
    epsilon_lower_bound,
    example,
    figures,
    p_value_curve,
)
from audits.methods.stats import binomial_tail
from audits.methods.verdict import Verdict, judge

ALMOST_NEVER = 1e-4
GAUSSIAN_EPSILON = {1.0: 4.37718, 0.5: 9.99726}  # noise multiplier: ε of the Gaussian mechanism at δ 1e-5


def p_value_by_definition(m, guesses, correct, epsilon, delta):
    """β + 2 m δ max_i P[v - i <= Bin(r, q) < v] / i, by differences of the distribution function."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    law = binom(guesses, q)
    widths = np.arange(1, correct + 1)
    window = ((law.cdf(correct - 1) - law.cdf(correct - widths - 1)) / widths).max()
    return min(1.0, law.sf(correct - 1) + 2 * m * delta * window)


def randomised_response(rng, m, epsilon):
    """Inclusion bits and scores that are the bits, each kept with probability e^ε / (1 + e^ε): exactly (ε, 0)-private."""
    bits = rng.integers(0, 2, m)
    kept = rng.random(m) < math.exp(epsilon) / (1 + math.exp(epsilon))
    return np.where(kept, bits, 1 - bits).astype(float), bits


def gaussian_mechanism(rng, m, noise):
    """Dirac canaries in gradient space: each coordinate is the canary's bit plus noise."""
    bits = rng.integers(0, 2, m)
    return bits + noise * rng.standard_normal(m), bits


def bound(score, bits, rng, delta=1e-5, guesses=0):
    """The audit's lower bound without its controls."""
    declared = declared_guesses(score.size, guesses, "both")
    ordered = by_falling_score(score, bits.astype(bool), rng)[None]
    return max(
        epsilon_lower_bound(score.size, one.total, int(correct_guesses(ordered, one)[0]), delta, 0.05 / len(declared))
        for one in declared
    )


def claim_bound():
    return next(entry for entry in METHOD.bounds if entry.measurement == "epsilon_excess")


# the theorem


@pytest.mark.parametrize(
    ("m", "guesses", "correct", "delta", "epsilon"),
    [
        (1000, 1000, 1000, 0, 5.80907),
        (1000, 100, 100, 0, 3.49297),
        (1000, 100, 100, 1e-5, 3.46538),
        (1000, 200, 150, 1e-5, 0.81997),
        (5000, 500, 450, 1e-5, 1.94142),
        (100, 50, 40, 1e-5, 0.77352),
    ],
)
def test_bound_equals_that_of_the_published_code(m, guesses, correct, delta, epsilon):
    assert epsilon_lower_bound(m, guesses, correct, delta, 0.05) == pytest.approx(epsilon, abs=6e-6)


@pytest.mark.parametrize("guesses", [10, 100, 1000])
def test_bound_of_a_perfect_attack_has_a_closed_form(guesses):
    # All right and δ = 0: p = q^r = 0.05, so q = 0.05^(1/r) and ε = log(q / (1 - q)) = -log(0.05^(-1/r) - 1).
    expected = -math.log(0.05 ** (-1 / guesses) - 1)
    assert epsilon_lower_bound(guesses, guesses, guesses, 0.0, 0.05) == pytest.approx(expected, abs=1e-8)


def test_p_value_by_hand():
    # r = 2, both right, ε = log 3 so q = 3/4: β = 9/16; P[Bin = 1] / 1 = 6/16, P[Bin in {0, 1}] / 2 = 7/32; α = 6/16.
    # m = 4, δ = 0.01: p = 9/16 + 2 * 4 * 0.01 * 6/16 = 0.5925.
    assert p_value_curve(4, 2, 2, 0.01)(math.log(3)) == pytest.approx(0.5925, abs=1e-12)


@pytest.mark.parametrize("m", [10, 100, 1000])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 6.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3, 0.1])
def test_p_value_equals_its_definition(m, epsilon, delta):
    for guesses in {1, 10, m}:
        for correct in {1, guesses // 2, guesses - 1, guesses} - {0}:
            expected = p_value_by_definition(m, guesses, correct, epsilon, delta)
            assert p_value_curve(m, guesses, correct, delta)(epsilon) == pytest.approx(expected, abs=1e-9)


def test_no_right_guess_proves_nothing():
    assert p_value_curve(100, 50, 0, 1e-5)(3.0) == 1
    assert epsilon_lower_bound(100, 50, 0, 1e-5, 0.05) == 0


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_fewest_right_guesses_that_refute_are_found(epsilon, delta):
    scan = [v for v in range(1, 81) if p_value_by_definition(160, 80, v, epsilon, delta) <= 0.05]
    assert correct_needed(160, 80, epsilon, delta, 0.05) == scan[0]
    assert scan == list(range(scan[0], 81))  # p falls as more guesses are right


def test_nothing_is_enough_where_delta_swallows_the_level():
    assert correct_needed(1000, 10, 0.0, 0.1, 0.05) is None
    assert detectable_epsilon(1000, [10], 0.0, 0.1, 0.05) is None


def test_guesses_are_counted_from_both_ends():
    bits = np.array([[True, True, False, True, False, False]])  # by falling score
    assert correct_guesses(bits, Guessing(2, 2))[0] == 4
    assert correct_guesses(bits, Guessing(4, 0))[0] == 3
    assert correct_guesses(bits, Guessing(3, 3))[0] == 4


@pytest.mark.parametrize("guesses", [1000, 5000])
def test_bound_takes_milliseconds(guesses):
    started = time.perf_counter()
    epsilon_lower_bound(guesses, guesses, int(0.7 * guesses), 1e-5, 0.05)
    assert time.perf_counter() - started < 0.25  # about 1 to 3 ms where nothing else runs


# validity on mechanisms whose ε is known


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_bound_is_valid_and_tight_for_randomised_response(epsilon):
    # The right guesses are Bin(m, q), so the chance that the bound passes the true ε is a binomial tail: exact, no simulation.
    m, q = 1000, math.exp(epsilon) / (1 + math.exp(epsilon))
    wrong = binom.sf(correct_needed(m, m, epsilon, 0.0, 0.05) - 1, m, q)
    assert 0.025 < wrong <= 0.05  # counts are whole, so not 0.05 itself
    typical = epsilon_lower_bound(m, m, round(m * q), 0.0, 0.05)
    assert typical <= epsilon
    assert epsilon == 0 or typical > 0.75 * epsilon


@pytest.mark.parametrize("delta", [1e-4, 1e-3])
def test_bound_is_valid_for_mechanisms_that_fail_with_probability_delta(delta):
    m, epsilon = 300, 1.0
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    needed = correct_needed(m, m, epsilon, delta, 0.05)
    each_bit_leaks = binom.sf(needed - 1, m, delta + (1 - delta) * q)
    all_leak_at_once = delta + (1 - delta) * binom.sf(needed - 1, m, q)
    assert max(each_bit_leaks, all_leak_at_once) <= 0.05


def test_corrected_bound_is_valid_on_randomised_response_with_tied_scores():
    rng = np.random.default_rng(1)
    bounds = np.array([bound(*randomised_response(rng, 400, 1.0), rng, delta=0.0) for _ in range(300)])
    assert binomial_tail(int((bounds > 1.0).sum()), 300, 0.05) > ALMOST_NEVER
    assert np.median(bounds) > 0.4


@pytest.mark.parametrize("noise", [1.0, 0.5])
def test_bound_stays_below_the_true_epsilon_of_the_gaussian_mechanism(noise):
    rng = np.random.default_rng(2)
    bounds = np.array([bound(*gaussian_mechanism(rng, 500, noise), rng) for _ in range(100)])
    assert binomial_tail(int((bounds > GAUSSIAN_EPSILON[noise]).sum()), 100, 0.05) > ALMOST_NEVER
    assert np.median(bounds) > 0.2 * GAUSSIAN_EPSILON[noise]  # not vacuous


def test_more_canaries_prove_more_but_never_too_much():
    rng = np.random.default_rng(3)
    few, many = (np.array([bound(*gaussian_mechanism(rng, m, 1.0), rng) for _ in range(60)]) for m in (200, 5000))
    assert np.median(many) > np.median(few) > 0.5
    assert max(few.max(), many.max()) < GAUSSIAN_EPSILON[1.0]


def test_scores_that_know_nothing_prove_nothing_at_the_stated_rate():
    rng = np.random.default_rng(4)
    alarms = sum(bound(rng.standard_normal(300), rng.integers(0, 2, 300), rng) > 0 for _ in range(400))
    assert binomial_tail(alarms, 400, 0.05) > ALMOST_NEVER


def test_smallest_detectable_epsilon_is_found_in_four_of_five_runs():
    rng = np.random.default_rng(5)
    m = 500
    epsilon = detectable_epsilon(m, [m], 0.5, 0.0, 0.05)
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    found = (rng.binomial(m, q, 4000) >= correct_needed(m, m, 0.5, 0.0, 0.05)).mean()
    assert found == pytest.approx(0.8, abs=0.03)


# the audit


def test_planted_leak_is_proven_and_controls_pass():
    rng = np.random.default_rng(6)
    result = audit(**example(rng), rng=rng)
    proven = result.find("epsilon_lower_bound")
    assert 1.5 < proven.value < GAUSSIAN_EPSILON[0.5]
    assert (proven.low, proven.high) == (proven.value, None)
    assert proven.p_value < 0.01
    assert result.find("largest_provable_epsilon").value > proven.value
    accuracy = result.find("guess_accuracy")
    assert 0.5 < accuracy.low < accuracy.value < accuracy.high
    assert [control.kind for control in result.controls] == ["negative", "positive"]
    assert all(control.passed for control in result.controls)
    assert result.controls[0].alarms <= 0.08 * result.controls[0].trials
    assert len(result.table(GUESS_TABLE).rows) == 7


def test_false_claim_is_refuted():
    rng = np.random.default_rng(7)
    result = audit(*gaussian_mechanism(rng, 2000, 0.5), rng, claimed_epsilon=1.0)
    excess = result.find("epsilon_excess")
    assert excess.value == pytest.approx(result.find("epsilon_lower_bound").value - 1.0)
    assert excess.high is None
    assert excess.p_value < 0.05
    assert judge(excess, claim_bound(), result.controls, excess.p_value).verdict == Verdict.EXCEEDS
    assert any("refuted: this run proves" in note for note in result.notes)


def test_true_claim_is_not_refuted_and_never_verified():
    rng = np.random.default_rng(8)
    result = audit(*gaussian_mechanism(rng, 2000, 1.0), rng, claimed_epsilon=4.4)
    excess = result.find("epsilon_excess")
    judgement = judge(excess, claim_bound(), result.controls, excess.p_value)
    assert excess.value < 0
    assert judgement.verdict == Verdict.CANNOT_TELL
    assert f"{excess.mde:.3g}" in judgement.because
    assert any("That does not verify it" in note for note in result.notes)


def test_claim_and_bound_agree_on_refutation():
    rng = np.random.default_rng(9)
    score, bits = gaussian_mechanism(rng, 500, 0.5)
    proven = audit(score, bits, np.random.default_rng(0), permutations=200).find("epsilon_lower_bound").value
    for claimed in (proven - 1e-4, proven + 1e-4):
        excess = audit(score, bits, np.random.default_rng(0), claimed_epsilon=claimed, permutations=200).find(
            "epsilon_excess"
        )
        assert (excess.value > 0) == (excess.p_value <= 0.05)


def test_claim_beyond_a_perfect_attack_is_said_to_be_out_of_reach():
    rng = np.random.default_rng(10)
    result = audit(*gaussian_mechanism(rng, 100, 0.1), rng, claimed_epsilon=8.0, permutations=200)
    assert result.find("epsilon_excess").mde is None
    assert any("even a perfect attack proves no more than" in note for note in result.notes)


def test_no_claim_means_an_excess_that_is_undefined_and_not_zero():
    rng = np.random.default_rng(11)
    result = audit(**example(rng), rng=rng, permutations=200)
    assert result.find("epsilon_excess").value is None
    assert any("No claimed ε was given" in note for note in result.notes)


def test_one_count_fixed_beforehand_needs_no_correction():
    rng = np.random.default_rng(12)
    score, bits = gaussian_mechanism(rng, 1000, 0.5)
    result = audit(score, bits, rng, guesses=200, permutations=200)
    (row,) = result.table(GUESS_TABLE).rows
    assert row[:3] == (200, 100, 100)
    expected = epsilon_lower_bound(1000, 200, row[3], 1e-5, 0.05)
    assert result.find("epsilon_lower_bound").value == pytest.approx(expected, abs=1e-12)


def test_guessing_only_included_canaries():
    rng = np.random.default_rng(13)
    score, bits = gaussian_mechanism(rng, 1000, 0.5)
    result = audit(score, bits, rng, sides="in only", permutations=200)
    rows = result.table(GUESS_TABLE).rows
    assert all(row[2] == 0 for row in rows)
    assert max(row[0] for row in rows) == 500
    assert result.find("epsilon_lower_bound").value > 1.5


# degenerate


def test_equal_scores_prove_nothing_even_when_sorted_by_membership():
    rng = np.random.default_rng(14)
    result = audit(np.ones(500), np.repeat([1, 0], 250), rng)
    assert result.find("epsilon_lower_bound").value == 0
    assert all(control.passed for control in result.controls)


def test_scores_that_point_the_wrong_way_prove_nothing():
    rng = np.random.default_rng(15)
    score, bits = gaussian_mechanism(rng, 500, 0.3)
    result = audit(-score, bits, rng, permutations=200)
    assert result.find("epsilon_lower_bound").value == 0
    assert result.find("epsilon_lower_bound").p_value == 1
    figures(result)


def test_large_delta_leaves_nothing_to_prove_and_says_so():
    rng = np.random.default_rng(16)
    result = audit(*gaussian_mechanism(rng, 1000, 0.3), rng, delta=0.1, permutations=200)
    assert result.find("epsilon_lower_bound").value == 0
    assert result.find("epsilon_lower_bound").mde is None
    assert not result.controls[1].passed
    assert any("no attack could prove an ε above 0" in note for note in result.notes)


def test_unusual_share_of_included_canaries_is_mentioned():
    rng = np.random.default_rng(17)
    bits = np.repeat([1, 0], [550, 450])
    result = audit(rng.standard_normal(1000), bits, rng, permutations=200)
    assert any("550 of 1000 canaries were included; for fair coins that is unusual" in note for note in result.notes)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (np.ones(500, int), "500 of 500 canaries were included, which fair coins do not give"),
        (np.zeros(500, int), "0 of 500 canaries"),
        (np.ones(20, int), "20 of 20 canaries"),
        (np.repeat([1, 0], [400, 100]), "draw the coins again"),
        (np.repeat([1, 0], 5), "at least 20 canaries, better a thousand; there are 10"),
        (np.repeat([1, 3], 50), "found 3"),
    ],
)
def test_unsuitable_inclusion_is_refused_in_words(bits, words):
    with pytest.raises(UnsuitableInput, match=words):
        audit(np.arange(float(bits.size)), bits, np.random.default_rng(0))


def test_other_unsuitable_inputs_are_refused_in_words():
    rng = np.random.default_rng(0)
    bits = np.tile([0, 1], 50)
    with pytest.raises(UnsuitableInput, match="1 of 100 records have no finite score"):
        audit(np.append(np.ones(99), np.nan), bits, rng)
    with pytest.raises(UnsuitableInput, match="100 scores but 50 membership marks"):
        audit(np.ones(100), bits[:50], rng)
    with pytest.raises(UnsuitableInput, match="101 guesses were asked for, but 100 canaries allow at most 100"):
        audit(np.arange(100.0), bits, rng, guesses=101)
    with pytest.raises(UnsuitableInput, match="allow at most 50"):
        audit(np.arange(100.0), bits, rng, guesses=51, sides="in only")


# the result and its figures


def test_same_seed_gives_the_same_result_and_inputs_stay_as_they_were():
    given = example(np.random.default_rng(1))
    before = given["canary_score"].copy()
    first, second = (audit(**given, rng=np.random.default_rng(2)) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert np.array_equal(given["canary_score"], before)


def test_figures_are_drawn_from_the_stored_result_alone():
    rng = np.random.default_rng(18)
    result = audit(**example(rng), rng=rng, claimed_epsilon=2.0)
    stored = Result.from_json(json.loads(json.dumps(result.to_json())), result.arrays)
    drawn = figures(stored)
    json.dumps([figure.to_json() for figure in drawn], allow_nan=False)
    assert len(drawn) == 3
    assert f"{result.find('epsilon_lower_bound').value:.3g}" in drawn[0].alt
    curve = result.arrays["epsilon_p_value"]
    assert (np.diff(curve) >= -1e-12).all()
    crossing = result.arrays["epsilon_grid"][np.argmax(curve > 0.05)]
    step = result.arrays["epsilon_grid"][1]
    assert result.find("epsilon_lower_bound").value == pytest.approx(crossing - step / 2, abs=0.51 * step)
