"""The counting core of the group metrics: rows are counted once into a table of cells, all else works on the table.

Resampling n rows with replacement and counting them again is one draw of Multinomial(n, counts / n); shuffling the group
labels among rows is one multivariate hypergeometric draw. Both are the exact distributions, not approximations, and their
cost does not depend on the number of rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from audits.methods.contract import Array
from audits.methods.errors import UnsuitableInput
from audits.methods.stats import normal_quantile

DENSE_CELLS = 200_000  # above this many cells most are empty, and only those that hold records are kept
MOST_OF_ROOM = 0.95  # a planted rate keeps this distance from 0 or 1, as a share of the way there
BLOCK = 2_000_000  # numbers per temporary array when all pairs of groups are compared

# ------------------------------------------------------------------------------------------------------------------ rates


class Rate(NamedTuple):
    """A share of records: which outcomes count as successes, and among which outcomes."""

    title: str
    successes: tuple[int, ...]
    trials: tuple[int, ...]
    among: str


TN, FP, FN, TP = range(4)  # outcome = 2 * y_true + y_pred
RATES: Mapping[str, Rate] = {
    "selection_rate": Rate("Selection rate", (FP, TP), (TN, FP, FN, TP), "records"),
    "tpr": Rate("True positive rate", (TP,), (FN, TP), "positives"),
    "fpr": Rate("False positive rate", (FP,), (TN, FP), "negatives"),
    "fnr": Rate("False negative rate", (FN,), (FN, TP), "positives"),
    "ppv": Rate("Positive predictive value", (TP,), (FP, TP), "selected records"),
    "accuracy": Rate("Accuracy", (TN, TP), (TN, FP, FN, TP), "records"),
}
RATES_WITHOUT_LABELS: Mapping[str, Rate] = {
    "selection_rate": Rate("Selection rate", (1,), (0, 1), "records")  # outcome = y_pred
}


def rates_of(outcomes: int) -> Mapping[str, Rate]:
    """The rates that a table with so many outcomes holds: 4 with true labels, 2 without."""
    return RATES if outcomes == 4 else RATES_WITHOUT_LABELS


def successes_and_trials(counts: Array, rate: Rate) -> tuple[Array, Array]:
    """Numerator and denominator of the rate; `counts` (..., outcomes) gives two arrays of shape (...)."""
    return counts[..., rate.successes].sum(axis=-1), counts[..., rate.trials].sum(axis=-1)


def shares(successes: Array, trials: Array) -> Array:
    """successes / trials, NaN where there are no trials. NaN stays inside the family and becomes "undefined" at its border."""
    trials = np.broadcast_to(trials, np.shape(successes))
    return np.divide(successes, trials, out=np.full(np.shape(successes), np.nan), where=trials > 0)


# --------------------------------------------------------------------------------------------------------------- counting


@dataclass(frozen=True)
class CellTable:
    """Records counted by all sensitive columns and the outcome; cells without records are not kept.

    `codes` (cells, columns) are indices into `levels`; `counts` (cells, outcomes).
    """

    columns: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    codes: Array
    counts: Array


def binary_labels(labels: Array, what: str, needs: str) -> Array:
    """The labels as int64. Raises UnsuitableInput unless they are 0 and 1; `needs` begins its sentence."""
    labels = np.asarray(labels)
    if labels.size == 0:
        raise UnsuitableInput(f"There are no {what}; at least two groups with records are needed.")
    if labels.dtype.kind not in "biuf" or not ((labels == 0) | (labels == 1)).all():
        found = ", ".join(sorted({str(value) for value in np.unique(labels)[:6].tolist()}))
        raise UnsuitableInput(
            f"{needs} two classes, 0 and 1 (1 is the favourable outcome); the {what} hold {found}. "
            "For more classes mark the favourable ones 1 and all others 0."
        )
    return labels.astype(np.int64)


def encode(values: Array) -> tuple[Array, tuple[str, ...]]:
    """Codes (n,) and the sorted levels they index."""
    values = np.asarray(values)
    if values.dtype != object:
        levels, codes = np.unique(values, return_inverse=True)
        return codes, tuple(str(level) for level in levels.tolist())
    items = [str(value) for value in values.tolist()]
    ordered = tuple(sorted(set(items)))
    index = {level: code for code, level in enumerate(ordered)}
    return np.fromiter(map(index.__getitem__, items), np.int64, len(items)), ordered


def encode_columns(sensitive_features: Mapping[str, Array], n: int) -> tuple[list[Array], list[tuple[str, ...]]]:
    """Codes and levels of each column. Raises UnsuitableInput for no column, another length, or a column of one group."""
    if not sensitive_features:
        raise UnsuitableInput("No sensitive column was given; choose at least one, e.g. sex or age group.")
    codes, levels = [], []
    for name, values in sensitive_features.items():
        if len(values) != n:
            raise UnsuitableInput(f"Column “{name}” has {len(values)} values for {n} records; every record needs one.")
        code, level = encode(values)
        if len(level) < 2:
            raise UnsuitableInput(
                f"Column “{name}” holds only one group, “{level[0]}”; a comparison needs at least two. "
                "Leave the column out or add records of another group."
            )
        codes.append(code)
        levels.append(level)
    return codes, levels


def count_cells(sensitive_features: Mapping[str, Array], outcome: Array, outcomes: int) -> CellTable:
    """Count the rows once; `outcome` (n,) holds integers below `outcomes`."""
    codes, levels = encode_columns(sensitive_features, len(outcome))
    sizes = [len(level) for level in levels]
    if np.prod(sizes, dtype=float) * outcomes <= DENSE_CELLS:
        cells, counts = _count_dense(codes, sizes, outcome, outcomes)
    else:
        cells, counts = _count_sparse(codes, sizes, outcome, outcomes)
    return CellTable(tuple(sensitive_features), tuple(levels), cells, counts)


def _count_dense(codes: list[Array], sizes: list[int], outcome: Array, outcomes: int) -> tuple[Array, Array]:
    joint = np.ravel_multi_index((*codes, outcome), (*sizes, outcomes))
    counts = np.bincount(joint, minlength=int(np.prod(sizes)) * outcomes).reshape(-1, outcomes)
    filled = np.flatnonzero(counts.any(axis=1))
    return np.stack(np.unravel_index(filled, sizes), axis=1), counts[filled]


def _count_sparse(codes: list[Array], sizes: list[int], outcome: Array, outcomes: int) -> tuple[Array, Array]:
    first, cell = distinct_rows(codes, sizes)
    counts = np.bincount(cell * outcomes + outcome, minlength=first.size * outcomes).reshape(-1, outcomes)
    return np.stack([code[first] for code in codes], axis=1), counts


def distinct_rows(codes: list[Array], sizes: list[int]) -> tuple[Array, Array]:
    """Index of the first row of each distinct combination, and for every row the combination it has."""
    joint, span = codes[0].astype(np.int64), sizes[0]
    for code, size in zip(codes[1:], sizes[1:], strict=True):
        if span * size >= 2**62:  # renumber before the mixed-radix code leaves int64
            joint = np.unique(joint, return_inverse=True)[1]
            span = int(joint.max()) + 1
        joint, span = joint * size + code, span * size
    _, first, cell = np.unique(joint, return_index=True, return_inverse=True)
    return first, cell


@dataclass(frozen=True)
class Grouping:
    """One column or intersection of columns: its groups that hold records, and their `counts` (groups, outcomes)."""

    columns: tuple[str, ...]
    groups: tuple[str, ...]
    counts: Array

    @property
    def name(self) -> str:
        """E.g. "sex × race"."""
        return " × ".join(self.columns)


def groupings(table: CellTable, max_depth: int) -> Iterator[Grouping]:
    """All single columns, then all pairs, up to intersections of `max_depth` columns."""
    for depth in range(1, min(max_depth, len(table.columns)) + 1):
        for chosen in combinations(range(len(table.columns)), depth):
            yield marginal(table, chosen)


def marginal(table: CellTable, chosen: tuple[int, ...]) -> Grouping:
    """The table summed over the columns that are not chosen."""
    codes = [table.codes[:, column] for column in chosen]
    sizes = [len(table.levels[column]) for column in chosen]
    first, group = distinct_rows(codes, sizes)
    outcomes = table.counts.shape[1]
    counts = np.zeros((first.size, outcomes), np.int64)
    np.add.at(counts, group, table.counts)
    names = [[table.levels[column][code] for code in table.codes[first, column]] for column in chosen]
    return Grouping(
        tuple(table.columns[column] for column in chosen),
        tuple(" × ".join(parts) for parts in zip(*names, strict=True)),
        counts,
    )


# ------------------------------------------------------------------------------------------------------------- resampling


def bootstrap_counts(counts: Array, replicates: int, rng: np.random.Generator) -> Array:
    """Counts of `replicates` bootstrap samples of the rows, shape (replicates, *counts.shape)."""
    flat = counts.ravel()
    filled = np.flatnonzero(flat)
    filled = filled[np.argsort(-flat[filled], kind="stable")]  # big cells first: rounding never reaches an empty cell
    total = int(flat.sum())
    out = np.zeros((replicates, flat.size), np.int64)
    out[:, filled] = rng.multinomial(total, flat[filled] / total, size=replicates)
    return out.reshape(replicates, *counts.shape)


def shuffled_successes(successes: Array, trials: Array, draws: int, rng: np.random.Generator) -> Array:
    """Successes per group after the group labels were shuffled among the trials, shape (draws, groups)."""
    return rng.multivariate_hypergeometric(trials, int(successes.sum()), size=draws, method="marginals")


def planted_successes(
    successes: Array, trials: Array, group: int, size: float, rng: np.random.Generator
) -> tuple[Array, float]:
    """`successes` (draws, groups) with the rate of one group moved by `size` through binomial thinning, and the size planted.

    The rate falls where it is at least a half and rises elsewhere, so that there is always room; the size is cut at `MOST_OF_ROOM`.
    """
    share = float(successes.sum() / (trials.sum() * successes.shape[0]))
    falls = share >= 0.5
    room = share if falls else 1 - share
    size = min(size, MOST_OF_ROOM * room)
    out = successes.copy()
    if falls:
        out[:, group] -= rng.binomial(successes[:, group], size / room)
    else:
        out[:, group] += rng.binomial(trials[group] - successes[:, group], size / room)
    return out, size


# -------------------------------------------------------------------------------------------- intervals of max-min gaps


def wilson_limits(successes: Array, trials: Array, z: float) -> tuple[Array, Array]:
    """Wilson (1927) limits at `z` standard errors for arrays of counts; `stats.wilson` is the scalar version by level."""
    share = shares(successes, trials)
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * np.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low = np.where(successes == 0, 0.0, np.maximum(0.0, centre - half))
    high = np.where(successes == trials, 1.0, np.minimum(1.0, centre + half))
    return low, high


@cache
def critical_value(groups: int, level: float) -> float:
    """Standard errors that hold all pairs of `groups` independent means at once: studentized range quantile / sqrt(2).

    Tukey-Kramer; conservative for unequal variances (Hayter 1984). For two groups it is the normal quantile.
    """
    if groups == 2:
        return normal_quantile(0.5 + level / 2)
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(level, groups, np.inf) / np.sqrt(2))


def _over_pairs(value: Array, low: Array, high: Array, pair: str, block: int = BLOCK) -> tuple[Array, Array]:
    """Largest difference (or smallest ratio) of any ordered pair of groups: its lower and upper limit, shape (...).

    `value`, `low`, `high` (..., groups) are each group's estimate and its limits at the critical value for all pairs.
    """
    best, idle = (np.min, np.inf) if pair == "ratio" else (np.max, -np.inf)
    limits = _ratio_limits if pair == "ratio" else _difference_limits
    groups = np.arange(value.shape[-1])
    rows = max(1, block // value.size)
    lows, highs = [], []
    for start in range(0, groups.size, rows):
        part = groups[start : start + rows]
        pair_low, pair_high = limits(
            [x[..., part, None] for x in (value, low, high)], [x[..., None, :] for x in (value, low, high)]
        )
        itself = part[:, None] == groups
        lows.append(best(np.where(itself, idle, pair_low), axis=(-2, -1)))
        highs.append(best(np.where(itself, idle, pair_high), axis=(-2, -1)))
    return best(np.stack(lows), axis=0), best(np.stack(highs), axis=0)


def _difference_limits(a: list[Array], b: list[Array]) -> tuple[Array, Array]:
    """Limits of a - b from each one's estimate and limits (Newcombe 1998, method 10)."""
    value = a[0] - b[0]
    return value - np.hypot(a[0] - a[1], b[2] - b[0]), value + np.hypot(a[2] - a[0], b[0] - b[1])


def _ratio_limits(a: list[Array], b: list[Array]) -> tuple[Array, Array]:
    """Limits of a / b from each one's estimate and limits (Donner and Zou 2012, eq. 10); no upper limit where b may be 0."""
    product = a[0] * b[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        under = b[2] * (2 * b[0] - b[2])
        low = (product - np.sqrt(np.maximum(product**2 - a[1] * (2 * a[0] - a[1]) * under, 0))) / under
        over = b[1] * (2 * b[0] - b[1])
        high = (product + np.sqrt(np.maximum(product**2 - a[2] * (2 * a[0] - a[2]) * over, 0))) / over
    low = np.where(np.isfinite(low), low, 0.0)
    return low, np.where(b[1] > 0, high, np.inf)


def difference_interval(value: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Interval of max - min over groups, shape (...), from each group's limits (..., groups) at `critical_value`.

    With all pairs covered at once, the largest of the pairs' lower limits lies below the largest true difference, and the
    largest of their upper limits above it; so the gap is covered at least at the level, ties or not.
    """
    gap_low, gap_high = _over_pairs(value, low, high, "difference")
    return np.maximum(gap_low, 0.0), np.minimum(gap_high, 1.0)


def ratio_interval(value: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Interval of min / max over groups in [0, 1], built like `difference_interval`; the largest rate must be above 0."""
    ratio_low, ratio_high = _over_pairs(value, low, high, "ratio")
    return np.maximum(ratio_low, 0.0), np.minimum(ratio_high, 1.0)
