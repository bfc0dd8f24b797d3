"""The shared statistics: by hand, against scipy and scikit-learn, and by the coverage of their intervals."""

import numpy as np
import pytest
from scipy import stats as scipy_stats
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score

from audits.methods.stats import (
    auc_delong,
    benjamini_hochberg,
    binomial_tail,
    clopper_pearson,
    holm,
    mde_two_proportions,
    newcombe,
    normal_quantile,
    percentile_interval,
    permutation_p,
    wilson,
)

ALMOST_NEVER = 1e-4  # a simulation may miss its bound this rarely if the code is right
SHARES = np.linspace(0.02, 0.98, 49)


def proportion_coverage(interval, n, share):
    """Exact chance that the interval of X ~ Bin(n, share) contains the share."""
    low, high = np.array([interval(x, n) for x in range(n + 1)]).T
    return float(binom.pmf(np.arange(n + 1), n, share)[(low <= share) & (share <= high)].sum())


# quantiles and tails


@pytest.mark.parametrize("probability", [0.001, 0.025, 0.5, 0.8, 0.975])
def test_normal_quantile_agrees_with_scipy(probability):
    assert normal_quantile(probability) == pytest.approx(norm.ppf(probability), abs=1e-9)


def test_binomial_tail_by_hand():
    assert binomial_tail(2, 3, 0.5) == pytest.approx(0.5, abs=1e-12)  # 3/8 + 1/8
    assert binomial_tail(0, 3, 0.5) == 1
    assert binomial_tail(4, 3, 0.5) == 0


# one proportion


def test_wilson_by_hand():
    # 1 of 2 at z = 1.959964: centre 1/2, half width z / (1 + z²/2) * sqrt(1/8 + z²/16) = 0.405468...
    z = norm.ppf(0.975)
    half = z / (1 + z * z / 2) * np.sqrt(1 / 8 + z * z / 16)
    assert wilson(1, 2) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-12)


@pytest.mark.parametrize(("successes", "n"), [(0, 7), (3, 7), (7, 7), (157, 2435), (12, 1000)])
def test_intervals_of_a_proportion_agree_with_scipy(successes, n):
    theirs = scipy_stats.binomtest(successes, n)
    assert wilson(successes, n) == pytest.approx(tuple(theirs.proportion_ci(method="wilson")), abs=1e-12)
    assert clopper_pearson(successes, n) == pytest.approx(tuple(theirs.proportion_ci(method="exact")), abs=1e-9)
    assert wilson(successes, n, 0.8) == pytest.approx(tuple(theirs.proportion_ci(0.8, method="wilson")), abs=1e-12)


def test_published_wilson_interval_of_the_resume_study():
    assert wilson(157, 2435) == pytest.approx((0.05539, 0.07493), abs=5e-6)


def test_no_trials_leave_everything_possible():
    assert wilson(0, 0) == (0, 1)
    assert clopper_pearson(0, 0) == (0, 1)


@pytest.mark.parametrize("n", [5, 12, 40, 150])
def test_clopper_pearson_covers_at_least_at_its_level(n):
    covered = [proportion_coverage(clopper_pearson, n, share) for share in SHARES]
    assert min(covered) >= 0.95
    assert np.mean(covered) < 0.995  # and is not everything


@pytest.mark.parametrize("n", [12, 40, 150])
def test_wilson_covers_at_its_level_on_average(n):
    covered = [proportion_coverage(wilson, n, share) for share in SHARES]
    assert 0.94 < np.mean(covered) < 0.965
    assert min(covered) > 0.83  # its known dips lie near 0 and 1


# difference of two proportions


def test_newcombe_by_hand():
    # Newcombe (1998), table II, case (a): 56/70 - 48/80, method 10: 0.0524 to 0.3339.
    assert newcombe(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_published_newcombe_interval_of_the_resume_study():
    assert newcombe(235, 2435, 157, 2435) == pytest.approx((0.01678, 0.04738), abs=5e-6)


def test_newcombe_turns_with_its_groups_and_stays_inside_one():
    low, high = newcombe(9, 10, 2, 14)
    assert newcombe(2, 14, 9, 10) == pytest.approx((-high, -low), abs=1e-12)
    low, high = newcombe(10, 10, 0, 10)
    assert 0 < low < high == 1


@pytest.mark.parametrize(("n_a", "n_b"), [(20, 20), (15, 60)])
def test_newcombe_covers_at_its_level(n_a, n_b):
    table = np.array([[newcombe(x, n_a, y, n_b) for y in range(n_b + 1)] for x in range(n_a + 1)])
    covered = []
    for a in (0.05, 0.2, 0.5, 0.8):
        for b in (0.1, 0.3, 0.5, 0.9):
            weight = np.outer(binom.pmf(range(n_a + 1), n_a, a), binom.pmf(range(n_b + 1), n_b, b))
            inside = (table[..., 0] <= a - b) & (a - b <= table[..., 1])
            covered.append(weight[inside].sum())
    assert 0.935 < np.mean(covered) < 0.975
    assert min(covered) > 0.9


def test_smallest_detectable_difference_matches_the_rule_of_thumb():
    assert mde_two_proportions(392, 392, 0.5) == pytest.approx(0.10, abs=1e-3)  # 2.8 sqrt(2 p (1 - p) / n)
    assert mde_two_proportions(392, 392, 0.5, power=0.9) > 0.11
    assert mde_two_proportions(2, 2, 0.5) == 1
    assert 0 < mde_two_proportions(100, 100, 0.0) < 0.1  # a rate of 0 is not known without error


def test_smallest_detectable_difference_is_found_in_four_of_five_samples():
    rng = np.random.default_rng(1)
    gap = mde_two_proportions(400, 400, 0.5)
    a, b = rng.binomial(400, 0.5 + gap / 2, 2000), rng.binomial(400, 0.5 - gap / 2, 2000)
    found = np.mean([newcombe(x, 400, y, 400).low > 0 for x, y in zip(a, b, strict=True)])
    assert found == pytest.approx(0.8, abs=0.04)


# resampling


def test_permutation_p_counts_the_observed_value_in():
    assert permutation_p(2.0, np.array([0.0, 1.0, 2.0, 3.0])) == 3 / 5
    assert permutation_p(9.0, np.zeros(99)) == 0.01
    assert permutation_p(1.0, np.array([])) == 1


def test_permutation_p_takes_equal_sums_in_another_order_as_equal():
    assert 0.1 + 0.2 > 0.3  # rounding
    assert permutation_p(0.1 + 0.2, np.full(9, 0.3)) == 1
    assert permutation_p(0.3 + 1e-9, np.full(9, 0.3)) == 0.1


def test_permutation_p_is_valid_where_nothing_is_to_be_found():
    rng = np.random.default_rng(2)
    draws = rng.integers(0, 6, (4000, 20))  # many ties
    alarms = sum(permutation_p(row[0], row[1:]) <= 0.05 for row in draws)
    assert binomial_tail(alarms, 4000, 0.05) > ALMOST_NEVER


def test_percentile_interval_takes_the_middle_share():
    replicates = np.stack([np.arange(101.0), np.arange(101.0) * 2], axis=1)
    low, high = percentile_interval(replicates, 0.9)
    assert low == pytest.approx([5, 10])
    assert high == pytest.approx([95, 190])


# many tests


def test_adjusted_p_values_by_hand():
    # BH, sorted .01 .02 .03 .5: times 4/rank .04 .04 .04 .5. Holm: times 4, 3, 2, 1, kept rising: .04 .06 .06 .5.
    p = [0.03, 0.5, 0.01, 0.02]
    assert benjamini_hochberg(p) == pytest.approx([0.04, 0.5, 0.04, 0.04])
    assert holm(p) == pytest.approx([0.06, 0.5, 0.04, 0.06])


def test_adjusted_p_values_agree_with_scipy_and_stay_in_place():
    p = np.random.default_rng(3).random(50) ** 3
    assert benjamini_hochberg(p) == pytest.approx(scipy_stats.false_discovery_control(p), abs=1e-12)
    assert (holm(p) >= benjamini_hochberg(p)).all()
    for adjust in (benjamini_hochberg, holm):
        assert adjust([]).shape == (0,)
        assert adjust([0.2]) == pytest.approx([0.2])
        assert adjust([0.9, 0.8]).max() <= 1


def test_holm_keeps_the_family_wise_error_rate():
    p = np.random.default_rng(4).random((4000, 8))
    wrong = sum(holm(row).min() <= 0.05 for row in p)
    assert binomial_tail(wrong, 4000, 0.05) > ALMOST_NEVER


# AUC


def delong_by_definition(positive, negative):
    """AUC and its variance from the full matrix of comparisons (DeLong et al. 1988, equations 3 to 6)."""
    wins = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    by_positive, by_negative = wins.mean(axis=1), wins.mean(axis=0)
    variance = by_positive.var(ddof=1) / positive.size + by_negative.var(ddof=1) / negative.size
    return wins.mean(), variance


@pytest.mark.parametrize("decimals", [8, 0])
def test_auc_and_its_interval_agree_with_the_definition_and_scikit_learn(decimals):
    rng = np.random.default_rng(5)
    positive, negative = rng.normal(1, 1, 40).round(decimals), rng.normal(0, 1, 70).round(decimals)
    auc, variance = delong_by_definition(positive, negative)
    found = auc_delong(positive, negative)
    assert found.value == pytest.approx(auc, abs=1e-12)
    assert found.value == pytest.approx(
        roc_auc_score(np.repeat([1, 0], [40, 70]), np.concatenate([positive, negative])), abs=1e-12
    )
    half = norm.ppf(0.975) * np.sqrt(variance) / (auc * (1 - auc))
    ends = 1 / (1 + np.exp(-(np.log(auc / (1 - auc)) + np.array([-half, half]))))
    assert (found.low, found.high) == pytest.approx(tuple(ends), abs=1e-12)


def test_auc_turns_with_its_sides():
    rng = np.random.default_rng(6)
    positive, negative = rng.normal(1, 1, 30), rng.normal(0, 1, 50)
    forth, back = auc_delong(positive, negative), auc_delong(negative, positive)
    assert (back.value, back.low, back.high) == pytest.approx(
        (1 - forth.value, 1 - forth.high, 1 - forth.low), abs=1e-12
    )


def auc_misses(rng, draw, truth, runs):
    """How often the interval misses the true AUC, and its mean width."""
    found = [auc_delong(*draw(rng)) for _ in range(runs)]
    assert all(one.low <= one.value <= one.high for one in found)
    return sum(not one.low <= truth <= one.high for one in found), np.mean([one.high - one.low for one in found])


@pytest.mark.parametrize(
    ("shift", "n1", "n0", "widest"),
    [
        (0.0, 25, 25, 0.33),
        (1.0, 50, 200, 0.16),
        (2.0, 40, 40, 0.13),
        (3.3, 50, 50, 0.04),  # near separation: AUC 0.990, some samples separate
        (4.5, 50, 50, 0.05),  # AUC 0.9993, half of the samples separate
        (5.5, 50, 50, 0.08),  # AUC 0.99995, nearly all do
    ],
)
def test_auc_interval_covers_and_is_not_vacuous(shift, n1, n0, widest):
    rng = np.random.default_rng(7)
    truth = norm.cdf(shift / np.sqrt(2))
    misses, width = auc_misses(rng, lambda r: (r.normal(shift, 1, n1), r.normal(0, 1, n0)), truth, 600)
    # the interval is asymptotic: at these sizes it covers at 93 % or more
    assert binomial_tail(misses, 600, 0.07) > ALMOST_NEVER
    assert width < widest


@pytest.mark.parametrize(("p1", "p0", "n"), [(0.9, 0.05, 40), (0.99, 0.01, 60), (0.3, 0.3, 30), (0.02, 0.02, 30)])
def test_auc_interval_covers_where_scores_take_two_values(p1, p0, n):
    rng = np.random.default_rng(8)

    def draw(r):
        return (r.random(n) < p1).astype(float), (r.random(n) < p0).astype(float)

    misses, _ = auc_misses(rng, draw, 0.5 + (p1 - p0) / 2, 600)
    assert binomial_tail(misses, 600, 0.07) > ALMOST_NEVER


def test_auc_of_separated_scores_keeps_an_honest_bound():
    # Separation needs min(n1, n0) independent pairs in order: AUC^25 >= 0.025.
    ahead = auc_delong(np.arange(25.0) + 100, np.arange(40.0))
    assert (ahead.value, ahead.high) == (1, 1)
    assert ahead.low == pytest.approx(0.025 ** (1 / 25), abs=1e-12)
    behind = auc_delong(np.arange(40.0), np.arange(25.0) + 100)
    assert (behind.value, behind.low) == (0, 0)
    assert behind.high == pytest.approx(1 - 0.025 ** (1 / 25), abs=1e-12)


def test_auc_of_equal_scores_is_a_half_with_chance_inside():
    found = auc_delong(np.ones(50), np.ones(80))
    edge = 0.025 ** (1 / 50)
    assert found == pytest.approx((0.5, 0.5 - (1 - edge**2) / 2, 0.5 + (1 - edge**2) / 2), abs=1e-12)


def test_auc_needs_two_records_on_each_side():
    with pytest.raises(ValueError, match="got 1 and 5"):
        auc_delong(np.ones(1), np.ones(5))
