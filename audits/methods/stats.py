"""The statistics that methods share. Pure functions; scipy is imported where it is needed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from audits.methods.contract import Array


class Interval(NamedTuple):
    """A confidence interval, ends included."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A point estimate with its confidence interval."""

    value: float
    low: float
    high: float


def normal_quantile(probability: float) -> float:
    """Inverse of the standard normal distribution function."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)


def wilson(successes: float, n: float, level: float = 0.95) -> Interval:
    """Wilson (1927) score interval of a proportion; for n = 0 it is [0, 1]."""
    if n <= 0:
        return Interval(0.0, 1.0)
    z = normal_quantile(0.5 + level / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(float(low), float(high))


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Exact interval of a proportion (Clopper and Pearson 1934): it covers at least at its level. For n = 0 it is [0, 1]."""
    from scipy.stats import beta

    alpha = 1 - level
    low = 0.0 if successes == 0 else float(beta.ppf(alpha / 2, successes, n - successes + 1))
    high = 1.0 if successes == n else float(beta.ppf(1 - alpha / 2, successes + 1, n - successes))
    return Interval(low, high)


def newcombe(successes_a: int, n_a: int, successes_b: int, n_b: int, level: float = 0.95) -> Interval:
    """Interval of the difference of two independent proportions p_a - p_b (Newcombe 1998, method 10)."""
    a, b = successes_a / n_a, successes_b / n_b
    low_a, high_a = wilson(successes_a, n_a, level)
    low_b, high_b = wilson(successes_b, n_b, level)
    low = a - b - np.hypot(a - low_a, high_b - b)
    high = a - b + np.hypot(high_a - a, b - low_b)
    return Interval(float(low), float(high))


def binomial_tail(successes: int, n: int, probability: float) -> float:
    """P(X >= successes) for X ~ Binomial(n, probability), exact."""
    from scipy.stats import binom

    return float(binom.sf(successes - 1, n, probability))


def permutation_p(observed: float, null: Array) -> float:
    """Share of null draws at least as large as the observed value, the observed one counted in: (1 + hits) / (1 + draws).

    A draw within rounding error of the observed value counts as a hit: the same sum in another order must not look smaller.
    """
    tolerance = 1e-12 * max(1.0, abs(observed)) if np.isfinite(observed) else 0.0
    return float((1 + np.count_nonzero(null >= observed - tolerance)) / (1 + null.size))


def percentile_interval(replicates: Array, level: float = 0.95, axis: int = 0) -> tuple[Array, Array]:
    """Percentile bootstrap interval along `axis`: (low, high), linear interpolation between order statistics."""
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2], axis=axis)
    return low, high


def benjamini_hochberg(p_values: Sequence[float] | Array) -> Array:
    """Adjusted p-values that control the false discovery rate (Benjamini and Hochberg 1995), shape (m,)."""
    p = np.asarray(p_values, float)
    m = p.size
    order = np.argsort(p)[::-1]
    adjusted = np.minimum.accumulate(p[order] * m / np.arange(m, 0, -1))
    out = np.empty(m)
    out[order] = np.minimum(adjusted, 1.0)
    return out


def holm(p_values: Sequence[float] | Array) -> Array:
    """Adjusted p-values that control the family-wise error rate (Holm 1979), shape (m,)."""
    p = np.asarray(p_values, float)
    m = p.size
    order = np.argsort(p)
    adjusted = np.maximum.accumulate(p[order] * np.arange(m, 0, -1))
    out = np.empty(m)
    out[order] = np.minimum(adjusted, 1.0)
    return out


def auc_delong(positive: Array, negative: Array, level: float = 0.95) -> Estimate:
    """Area under the ROC curve, P(positive > negative) + P(tie) / 2, with the interval of DeLong et al. (1988).

    Mid-ranks make it O(n log n) (Sun and Xu 2014). The interval is built on the logit scale, so it stays inside [0, 1]. Where
    the variance estimate is zero, exact bounds stand in for it, with edge = (alpha/2)^(1/min(n1, n0)):
    complete separation holds in min(n1, n0) independent pairs, so the AUC is at least edge (or at most 1 - edge);
    all scores equal leaves at most a share 1 - edge of other scores on each side, so the AUC is 1/2 ± (1 - edge^2) / 2.
    """
    from scipy.stats import rankdata

    n1, n0 = positive.size, negative.size
    if n1 < 2 or n0 < 2:
        raise ValueError(f"an AUC interval needs two records on each side, got {n1} and {n0}")
    ranks = rankdata(np.concatenate([positive, negative]))
    above = (ranks[:n1] - rankdata(positive)) / n0  # share of negatives below each positive, ties half
    below = 1 - (ranks[n1:] - rankdata(negative)) / n1  # share of positives above each negative
    auc = float(above.mean())
    variance = float(above.var(ddof=1) / n1 + below.var(ddof=1) / n0)
    alpha = 1 - level
    edge = (alpha / 2) ** (1 / min(n1, n0))
    if auc == 1.0:
        return Estimate(1.0, edge, 1.0)
    if auc == 0.0:
        return Estimate(0.0, 0.0, 1 - edge)
    if variance <= 0:  # all scores are one value
        half = (1 - edge * edge) / 2
        return Estimate(auc, 0.5 - half, 0.5 + half)
    logit = np.log(auc / (1 - auc))
    half = normal_quantile(1 - alpha / 2) * np.sqrt(variance) / (auc * (1 - auc))
    low, high = 1 / (1 + np.exp(-np.array([logit - half, logit + half])))
    return Estimate(auc, float(low), float(high))


def mde_two_proportions(n_a: float, n_b: float, rate: float, level: float = 0.95, power: float = 0.8) -> float:
    """Smallest difference of two proportions near `rate` that a two-sided test at `level` finds with `power`."""
    z = normal_quantile(0.5 + level / 2) + normal_quantile(power)
    rate = min(max(rate, 0.5 / max(n_a, n_b, 1)), 1 - 0.5 / max(n_a, n_b, 1))
    return float(min(1.0, z * np.sqrt(rate * (1 - rate) * (1 / n_a + 1 / n_b))))
