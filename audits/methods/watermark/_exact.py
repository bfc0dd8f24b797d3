"""Exact one-sided binomial tests as watermark methods use them: how many hits are needed, and how often a mark gives them."""

from audits.methods.stats import binomial_tail


def hits_needed(n: int, chance: float, limit: float) -> int:
    """Smallest count of hits in n whose probability by chance, P(X >= count), is at most `limit`; n + 1 where none is."""
    from scipy.stats import binom

    return int(binom.isf(limit, n, chance)) + 1


def power(n: int, needed: int, rate: float) -> float:
    """Probability that at least `needed` of n are hits where each is one with probability `rate`."""
    return binomial_tail(needed, n, rate) if needed <= n else 0.0


def smallest_rate(n: int, needed: int, wanted: float = 0.8) -> float | None:
    """Hit rate at which `needed` of n are reached with probability `wanted`; None where even all n would not do.

    P(Binomial(n, rate) >= needed) is the distribution function of Beta(needed, n - needed + 1) at `rate`.
    """
    from scipy.stats import beta

    return float(beta.ppf(wanted, needed, n - needed + 1)) if needed <= n else None
