"""Are decisions and errors spread alike over groups and their intersections?

For every sensitive column, and every intersection of them up to a chosen depth, the selection rate P(y_pred = 1 | group) and
the error rates (TPR, FPR, FNR, PPV, accuracy) of each group, and the gaps between groups under fairlearn's names:

    demographic_parity_difference  max - min of the selection rate (ideal 0)
    demographic_parity_ratio       min / max of the selection rate (ideal 1)
    equalized_odds_difference      the larger of the max - min of TPR and of FPR (ideal 0)
    equalized_odds_ratio           the smaller of the min / max of TPR and of FPR (ideal 1)

0/0 is undefined, never 0. A gap compares the groups that have at least `smallest_group` records *of the kind its rate is over*
(positives for TPR, negatives for FPR); every other group is listed with its wide interval, and the gap over all groups stands
beside the one that is judged.

Intervals. A single rate has the percentile interval of the count bootstrap, or Wilson's where a percentile bootstrap cannot
work (fewer than 10 successes or failures). The bootstrap of max - min is biased upward near a tie, so a gap has the interval that
follows from Newcombe's intervals of all pairs of groups held simultaneously at the studentized-range critical value: with all
pairs covered, the gap is. Coverage of a 95 % interval over 4 000 simulated samples (mean width):

    groups (records)                 true gap   this interval    percentile bootstrap   basic bootstrap
    2 (300, 300)                     0          .948 (.109)      .431 (.109)            .934 (.061)
    2 (300, 300)                     .2         .956 (.152)      .956 (.151)            .948 (.151)
    2 (800, 60)                      0          .948 (.172)      .000 (.175)            .922 (.098)
    2 (800, 60)                      .2         .954 (.248)      .951 (.250)            .899 (.245)
    6 (300 each)                     0          .954 (.181)      .000 (.114)            .773 (.090)
    6 (300 each), three low          .2         .985 (.218)      .442 (.124)            .863 (.124)
    6 (1000, 500, 300, 150, 80, 40)  0          .954 (.330)      .000 (.224)            .865 (.156)
    6 (1000, 500, 300, 150, 80, 40)  .2         .988 (.341)      .474 (.208)            .883 (.208)

The p-value comes from shuffling the group labels (within true labels for TPR and FPR), drawn exactly from the counts.

Source: Hardt, Price and Srebro, "Equality of opportunity in supervised learning", NeurIPS 2016; Feldman et al., "Certifying and
removing disparate impact", KDD 2015; US Uniform Guidelines, 29 CFR 1607.4(D) (four-fifths rule); Chouldechova, "Fair prediction with
disparate impact", Big Data 2017; intervals after Newcombe, Statistics in Medicine 1998 (method 10), Donner and Zou, Statistical
Methods in Medical Research 2012 (ratios), and Agresti et al., Biometrics 2008 (score limits at the studentized range).
Limits: gaps say nothing about causes, about the quality of the labels, or about groups that no column names.
Agrees with: fairlearn 0.15 `MetricFrame`, `demographic_parity_*` and `equalized_odds_*` to the last bit where no rate is 0/0
(fairlearn sets those to 0).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from audits.methods.charts import Figure, histogram, intervals
from audits.methods.contract import (
    Array,
    Bound,
    Cell,
    Control,
    Measurement,
    Method,
    Progress,
    Result,
    Setting,
    Table,
    no_progress,
)
from audits.methods.errors import UnsuitableInput
from audits.methods.fairness._counts import (
    MOST_OF_ROOM,
    Grouping,
    binary_labels,
    bootstrap_counts,
    count_cells,
    critical_value,
    difference_interval,
    groupings,
    planted_successes,
    rates_of,
    ratio_interval,
    shares,
    shuffled_successes,
    successes_and_trials,
    wilson_limits,
)
from audits.methods.stats import normal_quantile, percentile_interval, permutation_p

FEWEST_FOR_BOOTSTRAP = 10  # successes and failures below which the percentile interval of a proportion falls short
BOOTSTRAP_CELLS = 20_000_000  # bootstrap counts held at once; beyond it single rates have Wilson intervals
MOST_GROUPS = 3_000  # groups of one grouping whose pairs are compared
MOST_ROWS = 1_000  # rows of the table of groups
TIE = 1e-12  # null draws that equal the observed gap up to rounding count as hits
PLANT = 0.2  # size of the planted gap
TRIALS = 200  # control trials per column
FOUND = 0.6  # share of plants that must be found; they are made large enough to be found in 80 %
ODDS = ("tpr", "fpr")
SHUFFLED = ("selection_rate", *ODDS)  # rates whose gaps are judged, and so are held against chance
GAP_INTERVAL = "Newcombe intervals of all pairs of groups, simultaneous by the studentized range"

# ------------------------------------------------------------------------------------------------------------- the rates


@dataclass(frozen=True)
class Settings:
    """The settings of `audit` that its parts need."""

    replicates: int
    permutations: int
    level: float
    smallest_group: int


@dataclass(frozen=True)
class GroupRates:
    """One rate in every group of a grouping, all arrays of shape (groups,); NaN where there are no trials."""

    successes: Array
    trials: Array
    value: Array
    low: Array
    high: Array
    by_bootstrap: Array

    def large(self, smallest: int) -> Array:
        """Indices of the groups with at least `smallest` trials."""
        return np.flatnonzero(self.trials >= max(smallest, 1))


def group_rates(grouping: Grouping, replicates: Array | None, level: float) -> dict[str, GroupRates]:
    """Every rate with its interval; `replicates` (B, groups, outcomes) are bootstrap counts, None for Wilson throughout."""
    z = normal_quantile(0.5 + level / 2)
    out = {}
    for name, rate in rates_of(grouping.counts.shape[1]).items():
        successes, trials = successes_and_trials(grouping.counts, rate)
        value = shares(successes, trials)
        low, high = wilson_limits(successes, np.maximum(trials, 1), z)
        low, high = np.where(trials > 0, low, np.nan), np.where(trials > 0, high, np.nan)
        enough = np.minimum(successes, trials - successes) >= FEWEST_FOR_BOOTSTRAP
        by_bootstrap = enough & (replicates is not None)
        if replicates is not None and enough.any():
            drawn = shares(*successes_and_trials(replicates[:, enough], rate)).T
            drawn = np.where(np.isnan(drawn), value[enough, None], drawn)  # chance below exp(-20) per draw
            low[enough], high[enough] = percentile_interval(drawn, level, axis=-1)
        out[name] = GroupRates(successes, trials, value, low, high, by_bootstrap)
    return out


# -------------------------------------------------------------------------------------------------------------- the gaps


class Spread(NamedTuple):
    """Gap of one rate as a difference and as a ratio, each with an interval. `ratio` is None where the largest rate is 0."""

    difference: float
    difference_low: float | None
    difference_high: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None


def spread(successes: Array, trials: Array, level: float) -> Spread:
    """Gap over groups that all have trials; successes and trials (groups,), at least two groups."""
    value = successes / trials
    difference = float(value.max() - value.min())
    ratio = float(value.min() / value.max()) if value.max() > 0 else None
    if trials.size > MOST_GROUPS:
        return Spread(difference, None, None, ratio, None, None)
    low, high = wilson_limits(successes, trials, critical_value(trials.size, level))
    difference_low, difference_high = difference_interval(value, low, high)
    if ratio is None:
        return Spread(difference, float(difference_low), float(difference_high), None, None, None)
    ratio_low, ratio_high = ratio_interval(value, low, high)
    return Spread(difference, float(difference_low), float(difference_high), ratio, float(ratio_low), float(ratio_high))


def differences(rates: Array) -> Array:
    """max - min over groups of `rates` (..., groups)."""
    return rates.max(axis=-1) - rates.min(axis=-1)


def ratios(rates: Array) -> Array:
    """min / max over groups of `rates` (..., groups); 1 where all are 0, for then no group differs."""
    largest = rates.max(axis=-1)
    return np.divide(rates.min(axis=-1), largest, out=np.ones_like(largest), where=largest > 0)


def smallest_detectable(successes: Array, trials: Array, level: float) -> float:
    """Smallest difference between the smallest and the largest group that the interval excludes 0 for with 80 % power."""
    rate = float(successes.sum() / trials.sum())
    rate = min(max(rate, 0.5 / trials.sum()), 1 - 0.5 / trials.sum())
    ordered = np.sort(trials)
    z = critical_value(trials.size, level) + normal_quantile(0.8)
    return float(min(1.0, z * np.sqrt(rate * (1 - rate) * (1 / ordered[0] + 1 / ordered[-1]))))


def extremes(groups: Sequence[str], rates: GroupRates, large: Array) -> tuple[str, float, str, float]:
    """Lowest group and its rate, highest group and its rate, among the groups `large`."""
    value = rates.value[large]
    low, high = int(value.argmin()), int(value.argmax())
    return groups[large[low]], float(value[low]), groups[large[high]], float(value[high])


@dataclass(frozen=True)
class Gap:
    """One gap of one grouping. `null` holds the gaps under shuffled group labels, `bootstrap` the gaps of the replicates."""

    name: str
    value: float | None
    undefined: str = ""
    low: float | None = None
    high: float | None = None
    level: float = 0.95
    compared: int = 0
    n: int = 0
    lowest: str = ""
    lowest_rate: float | None = None
    highest: str = ""
    highest_rate: float | None = None
    over_all: float | None = None
    mde: float | None = None
    null: Array | None = None
    bootstrap: Array | None = None

    @property
    def is_ratio(self) -> bool:
        """A ratio is worse when lower, and ideally 1."""
        return self.name.endswith("_ratio")

    @property
    def p_value(self) -> float | None:
        """Permutation p-value; a ratio counts the null draws at most as large."""
        if self.value is None or self.null is None:
            return None
        sign = -1.0 if self.is_ratio else 1.0
        return permutation_p(sign * self.value - TIE, sign * self.null)


@dataclass(frozen=True)
class RateGaps:
    """What the gaps of one rate are made from: the large groups, their spread, and rates under resampling."""

    rate: GroupRates
    large: Array
    spread: Spread
    part: Spread
    null: Array | None
    replicates: Array | None

    def detectable(self, kind: str, level: float) -> float | None:
        """Smallest detectable difference, or ratio below 1 by so much; None where the pairs are not compared."""
        successes, trials = self.rate.successes[self.large], self.rate.trials[self.large]
        if trials.size > MOST_GROUPS:
            return None
        difference = smallest_detectable(successes, trials, level)
        if kind == "difference":
            return difference
        pooled = successes.sum() / trials.sum()
        return float(min(1.0, difference / pooled)) if pooled > 0 else None


def rate_gaps(
    name: str, rate: GroupRates, outcomes: int, replicates: Array | None, settings: Settings, rng: np.random.Generator
) -> RateGaps | None:
    """Gap of one rate over its large groups, None where fewer than two are large.

    `part` is the spread at level sqrt(level): TPR and FPR are independent, so both intervals hold together at `level`.
    """
    large = rate.large(settings.smallest_group)
    if large.size < 2:
        return None
    successes, trials, level = rate.successes[large], rate.trials[large], settings.level
    null, drawn = None, None
    if name in SHUFFLED and large.size <= MOST_GROUPS:
        null = shuffled_successes(successes, trials, settings.permutations, rng) / trials
    if replicates is not None:
        drawn = shares(*successes_and_trials(replicates[:, large], rates_of(outcomes)[name]))
        drawn = np.where(np.isnan(drawn), rate.value[large], drawn)
    return RateGaps(
        rate,
        large,
        spread(successes, trials, level),
        spread(successes, trials, level**0.5),
        null,
        drawn,
    )


def _over_all(rate: GroupRates, kind: str) -> float | None:
    value = rate.value[rate.trials > 0]
    if value.size < 2 or (kind == "ratio" and value.max() == 0):
        return None
    return float((ratios if kind == "ratio" else differences)(value))


def one_rate_gaps(prefix: str, gaps: RateGaps, grouping: Grouping, level: float) -> Iterator[Gap]:
    """Difference and ratio of one rate, e.g. prefix "demographic_parity" for the selection rate."""
    lowest, lowest_rate, highest, highest_rate = extremes(grouping.groups, gaps.rate, gaps.large)
    for kind, reduce in (("difference", differences), ("ratio", ratios)):
        value, low, high = gaps.spread[:3] if kind == "difference" else gaps.spread[3:]
        yield Gap(
            name=f"{prefix}_{kind}",
            value=value,
            undefined="" if value is not None else "the rate is 0 in every group, so the ratio is 0/0",
            low=low,
            high=high,
            level=level,
            compared=gaps.large.size,
            n=int(gaps.rate.trials[gaps.large].sum()),
            lowest=lowest,
            lowest_rate=lowest_rate,
            highest=highest,
            highest_rate=highest_rate,
            over_all=_over_all(gaps.rate, kind),
            mde=None if value is None else gaps.detectable(kind, level),
            null=None if gaps.null is None else reduce(gaps.null),
            bootstrap=None if gaps.replicates is None else reduce(gaps.replicates),
        )


def equalized_odds_gaps(
    tpr: Sequence[Gap], fpr: Sequence[Gap], parts: Sequence[RateGaps], level: float
) -> Iterator[Gap]:
    """The worse of the TPR gap and the FPR gap, as a difference and as a ratio; `parts` hold their simultaneous intervals."""
    for kind, worst, t, f in zip(("difference", "ratio"), (max, min), tpr, fpr, strict=True):
        offset = 0 if kind == "difference" else 3
        if t.value is None or f.value is None:
            side = "true" if t.value is None else "false"
            yield Gap(
                f"equalized_odds_{kind}", None, f"no group has a {side} positive, so the ratio is 0/0", level=level
            )
            continue
        source, label = (t, "TPR") if worst(t.value, f.value) == t.value else (f, "FPR")
        lows, highs = ([part.part[offset + i] for part in parts] for i in (1, 2))
        yield Gap(
            name=f"equalized_odds_{kind}",
            value=worst(t.value, f.value),
            low=_worst(worst, lows),
            high=_worst(worst, highs),
            level=level,
            compared=min(t.compared, f.compared),
            n=t.n + f.n,
            lowest=f"{source.lowest} ({label})",
            lowest_rate=source.lowest_rate,
            highest=f"{source.highest} ({label})",
            highest_rate=source.highest_rate,
            over_all=_worst(worst, [t.over_all, f.over_all]),
            mde=_worst(max, [part.detectable(kind, level**0.5) for part in parts]),
            null=_worst_arrays(kind, t.null, f.null),
            bootstrap=_worst_arrays(kind, t.bootstrap, f.bootstrap),
        )


def _worst(worst: Any, values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return worst(known) if len(known) == len(values) else None


def _worst_arrays(kind: str, a: Array | None, b: Array | None) -> Array | None:
    if a is None or b is None:
        return None
    return np.maximum(a, b) if kind == "difference" else np.minimum(a, b)


# ----------------------------------------------------------------------------------------------------------- one grouping

PREFIXES = {"selection_rate": "demographic_parity", "tpr": "tpr", "fpr": "fpr", "ppv": "ppv", "accuracy": "accuracy"}
JUDGED = tuple(
    f"{prefix}_{kind}" for prefix in ("demographic_parity", "equalized_odds") for kind in ("difference", "ratio")
)


@dataclass(frozen=True)
class Study:
    """All rates and gaps of one grouping."""

    grouping: Grouping
    rates: Mapping[str, GroupRates]
    parts: Mapping[str, RateGaps | None]
    gaps: tuple[Gap, ...]


def study(grouping: Grouping, settings: Settings, rng: np.random.Generator) -> Study:
    """Measure one grouping."""
    outcomes = grouping.counts.shape[1]
    replicates = None
    if grouping.counts.size * settings.replicates <= BOOTSTRAP_CELLS:
        replicates = bootstrap_counts(grouping.counts, settings.replicates, rng)
    rates = group_rates(grouping, replicates, settings.level)
    parts = {
        name: rate_gaps(name, rates[name], outcomes, replicates, settings, rng) for name in PREFIXES if name in rates
    }
    return Study(grouping, rates, parts, tuple(_gaps(grouping, parts, settings)))


def _gaps(grouping: Grouping, parts: Mapping[str, RateGaps | None], settings: Settings) -> Iterator[Gap]:
    found: dict[str, list[Gap]] = {}
    for name, part in parts.items():
        if part is None:
            why = _too_small(grouping, name, settings.smallest_group)
            found[name] = [Gap(f"{PREFIXES[name]}_{kind}", None, why) for kind in ("difference", "ratio")]
        else:
            found[name] = list(one_rate_gaps(PREFIXES[name], part, grouping, settings.level))
        yield from found[name]
    if not set(ODDS) <= parts.keys():
        return
    odds = [part for part in (parts[name] for name in ODDS) if part is not None]
    if len(odds) == len(ODDS):
        yield from equalized_odds_gaps(found["tpr"], found["fpr"], odds, settings.level)
        return
    lacking = next(name for name in ODDS if parts[name] is None)
    for kind in ("difference", "ratio"):
        yield Gap(f"equalized_odds_{kind}", None, _too_small(grouping, lacking, settings.smallest_group))


def _too_small(grouping: Grouping, rate: str, smallest: int) -> str:
    among = rates_of(grouping.counts.shape[1])[rate].among
    return f"fewer than two groups of {grouping.name} have at least {smallest} {among}"


# --------------------------------------------------------------------------------------------------------------- controls


class Sample(NamedTuple):
    """Successes (draws, groups) out of trials (groups,) of one rate in simulated data."""

    successes: Array
    trials: Array


def alarms(samples: Sequence[Sample], level: float) -> int:
    """In how many draws the interval of the worst gap over the given rates excludes 0."""
    part = level ** (1 / len(samples))
    called: Array = np.zeros(samples[0].successes.shape[0], bool)
    for successes, trials in samples:
        low, high = wilson_limits(successes, trials, critical_value(trials.size, part))
        called |= difference_interval(successes / trials, low, high)[0] > 0
    return int(np.count_nonzero(called))


def _shuffled(part: RateGaps, rng: np.random.Generator) -> Sample:
    successes, trials = part.rate.successes[part.large], part.rate.trials[part.large]
    draws = max(20, min(TRIALS, BOOTSTRAP_CELLS // trials.size**2))
    return Sample(shuffled_successes(successes, trials, draws, rng), trials)


def controls(studies: Sequence[Study], settings: Settings, rng: np.random.Generator) -> Iterator[Control]:
    """Shuffled groups and a planted gap, over the single columns, for demographic parity and for equalized odds."""
    singles = [study for study in studies if len(study.grouping.columns) == 1]
    for names, title in ((("selection_rate",), "demographic parity"), (ODDS, "equalized odds")):
        sets = [[one.parts.get(name) for name in names] for one in singles]
        usable = [[part for part in parts if part is not None] for parts in sets]
        usable = [
            parts
            for parts in usable
            if len(parts) == len(names) and all(part.large.size <= MOST_GROUPS for part in parts)
        ]
        if not usable:
            continue
        nulls = [
            gap.null
            for one in singles
            for gap in one.gaps
            if gap.name == f"{title.replace(' ', '_')}_difference" and gap.null is not None
        ]
        yield _negative(usable, nulls, title, settings.level, rng)
        yield _positive(usable, title, settings.level, rng)


def _negative(
    columns: Sequence[Sequence[RateGaps]], nulls: Sequence[Array], title: str, level: float, rng: np.random.Generator
) -> Control:
    from scipy.stats import binom

    called = trials = 0
    for parts in columns:
        samples = [_shuffled(part, rng) for part in parts]
        draws = min(sample.successes.shape[0] for sample in samples)
        called += alarms([Sample(sample.successes[:draws], sample.trials) for sample in samples], level)
        trials += draws
    most = int(binom.ppf(0.999, trials, 1 - level))
    widest = max(nulls, key=lambda null: float(null.mean()))
    low, high = percentile_interval(widest, 0.9)
    return Control(
        name=f"Shuffled groups, {title}",
        kind="negative",
        says=f"With the group labels shuffled, the interval excluded a gap of 0 in {called} of {trials} trials "
        f"({called / trials:.1%}; its own rate is {1 - level:.1%}, and at most {most} may). Chance alone gives a difference of "
        f"{widest.mean():.3f} on average and {high:.3f} at the 95th percentile, in the column where it is largest.",
        passed=called <= most,
        trials=trials,
        alarms=called,
        value=float(widest.mean()),
        low=float(low),
        high=float(high),
    )


def _plant(part: RateGaps, level: float) -> tuple[float, bool]:
    """Size of the gap to plant in one rate, and whether its rates leave room for it."""
    share = float(part.rate.successes[part.large].sum() / part.rate.trials[part.large].sum())
    size = max(PLANT, part.detectable("difference", level**0.5) or 1.0)
    return size, size <= MOST_OF_ROOM * max(share, 1 - share)


def _positive(columns: Sequence[Sequence[RateGaps]], title: str, level: float, rng: np.random.Generator) -> Control:
    fit = [parts for parts in columns if _plant(parts[0], level)[1]]
    called = trials = 0
    sizes = []
    for parts in fit or columns:  # where no column can show a gap, the control fails, and rightly so
        samples = [_shuffled(part, rng) for part in parts]
        draws = min(sample.successes.shape[0] for sample in samples)
        samples = [Sample(sample.successes[:draws], sample.trials) for sample in samples]
        largest = int(samples[0].trials.argmax())
        successes, size = planted_successes(*samples[0], largest, _plant(parts[0], level)[0], rng)
        called += alarms([Sample(successes, samples[0].trials), *samples[1:]], level)
        trials += draws
        sizes.append(size)
    sizes_in_words = f"{min(sizes):.2f}" if max(sizes) - min(sizes) < 0.005 else f"{min(sizes):.2f} to {max(sizes):.2f}"
    what = "selection rate" if title == "demographic parity" else "true positive rate"
    skipped = len(columns) - len(fit) if fit else 0
    return Control(
        name=f"Planted gap, {title}",
        kind="positive",
        says=f"The {what} of the largest group was moved by {sizes_in_words} in data whose groups were shuffled; "
        f"the interval excluded a gap of 0 in {called} of {trials} trials ({called / trials:.0%}, at least {FOUND:.0%} needed)."
        + (f" {skipped} columns with groups too small to show any plant were left out." if skipped else ""),
        passed=called >= FOUND * trials,
        trials=trials,
        alarms=called,
        value=called / trials,
    )


# ------------------------------------------------------------------------------------------------------------------ audit


def audit(
    y_pred: Array,
    sensitive_features: Mapping[str, Array],
    rng: np.random.Generator,
    y_true: Array | None = None,
    progress: Progress = no_progress,
    *,
    max_depth: Annotated[int, Setting("How many columns an intersection may combine", 1, 4)] = 2,
    replicates: Annotated[int, Setting("Bootstrap samples for the intervals of rates", 200, 20_000)] = 1000,
    permutations: Annotated[int, Setting("Shuffles of the group labels for the p-values", 200, 100_000)] = 2000,
    level: Annotated[float, Setting("Confidence level", 0.5, 0.999)] = 0.95,
    smallest_group: Annotated[int, Setting("Records a group needs to take part in a judged gap", 1, 100_000)] = 30,
) -> Result:
    """Rates per group, gaps per column and intersection; without `y_true` the selection rate alone."""
    settings = Settings(replicates, permutations, level, smallest_group)
    outcome, outcomes = _outcomes(y_true, y_pred)
    table = count_cells(sensitive_features, outcome, outcomes)
    chosen = list(groupings(table, max_depth))
    studies = []
    for done, grouping in enumerate(chosen):
        progress(done / len(chosen), grouping.name)
        studies.append(study(grouping, settings, rng))
    return Result(
        measurements=(*_gap_measurements(studies), *_rate_measurements(studies, settings)),
        controls=tuple(controls(studies, settings, rng)),
        tables=(_gap_table(studies, settings), _group_table(studies)),
        arrays=_null_arrays(studies),
        notes=tuple(_notes(studies, settings, y_true is None)),
    )


def _outcomes(y_true: Array | None, y_pred: Array) -> tuple[Array, int]:
    """The outcome of each record and how many outcomes there are: 2 * y_true + y_pred of 4, or y_pred of 2."""
    predicted = binary_labels(y_pred, "predictions", "Group metrics need")
    if y_true is None:
        return predicted, 2
    if len(y_true) != len(y_pred):
        raise UnsuitableInput(
            f"There are {len(y_true)} true labels for {len(y_pred)} predictions; every record needs both."
        )
    return 2 * binary_labels(y_true, "true labels", "Group metrics need") + predicted, 4


def _gap_measurements(studies: Sequence[Study]) -> Iterator[Measurement]:
    for one in studies:
        for gap in one.gaps:
            if gap.name not in JUDGED:
                continue
            yield Measurement(
                name=gap.name,
                value=gap.value,
                undefined=gap.undefined,
                subject=one.grouping.name,
                low=gap.low,
                high=gap.high,
                level=gap.level if gap.low is not None else None,
                n=gap.n or None,
                worse="lower" if gap.is_ratio else "higher",
                ideal=1.0 if gap.is_ratio else 0.0,
                p_value=gap.p_value,
                mde=gap.mde,
                interval=_gap_interval(gap),
            )


def _gap_interval(gap: Gap) -> str:
    if gap.value is None:
        return ""
    if gap.low is None:
        return f"none: more than {MOST_GROUPS} groups; merge levels of the columns to compare them"
    return GAP_INTERVAL


def _rate_measurements(studies: Sequence[Study], settings: Settings) -> Iterator[Measurement]:
    for one in studies:
        if len(one.grouping.columns) > 1:
            continue
        for i, group in enumerate(one.grouping.groups[:MOST_ROWS]):
            subject = f"{one.grouping.name}: {group}"
            for name, rate in one.rates.items():
                among = rates_of(one.grouping.counts.shape[1])[name].among
                defined = rate.trials[i] > 0
                yield Measurement(
                    name=name,
                    value=float(rate.value[i]) if defined else None,
                    undefined="" if defined else f"no {among} in {subject}",
                    subject=subject,
                    low=float(rate.low[i]) if defined else None,
                    high=float(rate.high[i]) if defined else None,
                    level=settings.level if defined else None,
                    n=int(rate.trials[i]),
                    interval=_rate_interval(bool(rate.by_bootstrap[i]), settings) if defined else "",
                )


def _rate_interval(by_bootstrap: bool, settings: Settings) -> str:
    return f"percentile bootstrap of the counts, {settings.replicates} samples" if by_bootstrap else "Wilson score"


# ----------------------------------------------------------------------------------------------------------------- tables

GAP_COLUMNS = (
    "Grouping",
    "Columns",
    "Gap",
    "Value",
    "Low",
    "High",
    "p-value",
    "Groups compared",
    "Groups in all",
    "Over all groups",
    "Lowest group",
    "Lowest rate",
    "Highest group",
    "Highest rate",
    "By chance, mean",
    "By chance, edge",
    "Bootstrap low",
    "Bootstrap high",
    "Smallest detectable",
)


def _gap_table(studies: Sequence[Study], settings: Settings) -> Table:
    rows = [_gap_row(one.grouping, gap, settings.level) for one in studies for gap in one.gaps]
    notes = (
        f"Groups compared have at least {settings.smallest_group} records of the kind the rate is over. Low and high: {GAP_INTERVAL}. "
        "By chance: the gap under shuffled group labels (for a ratio its mean and 5th percentile), for the gaps that are judged. Bootstrap: percentile interval, "
        "shown for comparison with other tools; it is biased away from equality where groups are nearly tied. "
        "Empty cells are undefined: fewer than two groups compared, or 0/0."
    )
    return Table("Gaps", GAP_COLUMNS, tuple(rows), notes)


def _gap_row(grouping: Grouping, gap: Gap, level: float) -> tuple[Cell, ...]:
    null_mean = null_edge = boot_low = boot_high = None
    if gap.null is not None:
        null_mean = float(gap.null.mean())
        null_edge = float(np.quantile(gap.null, 0.05 if gap.is_ratio else 0.95))
    if gap.bootstrap is not None:
        boot_low, boot_high = (float(end) for end in percentile_interval(gap.bootstrap, level))
    return (
        grouping.name,
        len(grouping.columns),
        gap.name,
        gap.value,
        gap.low,
        gap.high,
        gap.p_value,
        gap.compared,
        len(grouping.groups),
        gap.over_all,
        gap.lowest or None,
        gap.lowest_rate,
        gap.highest or None,
        gap.highest_rate,
        null_mean,
        null_edge,
        boot_low,
        boot_high,
        gap.mde,
    )


def _group_table(studies: Sequence[Study]) -> Table:
    rates = rates_of(studies[0].grouping.counts.shape[1])
    labels = len(rates) > 1
    columns = ["Grouping", "Columns", "Group", "Records", *(("Positives",) if labels else ()), "Selected"]
    for rate in rates.values():
        columns += [rate.title, f"{rate.title}, low", f"{rate.title}, high"]
    keep, hidden = _rows_kept(studies)
    rows = [_group_row(one, i, labels) for one, indices in zip(studies, keep, strict=True) for i in indices]
    notes = "Empty cells are undefined: the group has no record of the kind the rate is over."
    if hidden:
        notes += (
            f" {hidden} groups of intersections are not shown: those whose selection rate departs least, "
            "in standard errors, from that of all records."
        )
    return Table("Groups", tuple(columns), tuple(rows), notes)


def _rows_kept(studies: Sequence[Study]) -> tuple[list[list[int]], int]:
    """Indices of the groups shown per grouping, and how many are not: single columns first, then the farthest from the mean."""
    departures = []
    for one in studies:
        rate = one.rates["selection_rate"]
        mean = rate.successes.sum() / rate.trials.sum()
        error = np.sqrt(max(mean * (1 - mean), 1e-12) / rate.trials)  # 1e-12 keeps constant predictions finite
        single = len(one.grouping.columns) == 1
        departures.append(np.full(rate.trials.size, np.inf) if single else np.abs(rate.value - mean) / error)
    everything = np.concatenate(departures)
    if everything.size <= MOST_ROWS:
        return [list(range(part.size)) for part in departures], 0
    shown = np.zeros(everything.size, bool)
    shown[np.argsort(-everything, kind="stable")[:MOST_ROWS]] = True
    parts = np.split(shown, np.cumsum([part.size for part in departures])[:-1])
    return [np.flatnonzero(part).tolist() for part in parts], int(everything.size - MOST_ROWS)


def _group_row(one: Study, i: int, labels: bool) -> tuple[Cell, ...]:
    selection = one.rates["selection_rate"]
    row: list[Cell] = [one.grouping.name, len(one.grouping.columns), one.grouping.groups[i], int(selection.trials[i])]
    if labels:
        row.append(int(one.rates["tpr"].trials[i]))
    row.append(int(selection.successes[i]))
    for rate in one.rates.values():
        for numbers in (rate.value, rate.low, rate.high):
            row.append(float(numbers[i]) if rate.trials[i] > 0 else None)
    return tuple(row)


def _null_arrays(studies: Sequence[Study]) -> dict[str, Array]:
    """Null draws of the demographic parity difference of each single column, by the column's position."""
    arrays = {}
    for i, one in enumerate(studies):
        gap = one.gaps[0]
        if len(one.grouping.columns) == 1 and gap.null is not None:
            arrays[f"null_demographic_parity_difference_{i}"] = gap.null
    return arrays


# ------------------------------------------------------------------------------------------------------------------ notes


def _notes(studies: Sequence[Study], settings: Settings, without_labels: bool) -> Iterator[str]:
    if without_labels:
        yield (
            "No true labels were given: only selection rates were measured. TPR, FPR, FNR, PPV, accuracy and equalized odds "
            "need them."
        )
    for one in studies:
        yield from _left_out(one, settings.smallest_group)
        if len(one.grouping.groups) > MOST_GROUPS:
            yield (
                f"{one.grouping.name} has {len(one.grouping.groups)} groups; with more than {MOST_GROUPS} compared, "
                "gaps have no interval and no p-value. Merge levels to judge them."
            )
        if not without_labels and len(one.grouping.columns) == 1:
            yield from _base_rates(one, settings)


def _left_out(one: Study, smallest: int) -> Iterator[str]:
    rates = rates_of(one.grouping.counts.shape[1])
    for name, gap in (("selection_rate", "demographic parity"), ("tpr", "TPR"), ("fpr", "FPR")):
        if name not in one.rates:
            continue
        small = np.flatnonzero(one.rates[name].trials < smallest)
        if small.size:
            names = ", ".join(one.grouping.groups[i] for i in small[:5])
            more = f" and {small.size - 5} more" if small.size > 5 else ""
            yield (
                f"Left out of the {gap} gap of {one.grouping.name} (fewer than {smallest} {rates[name].among}): {names}{more}. "
                "They are listed with their intervals, and the gap over all groups stands beside it."
            )


def _base_rates(one: Study, settings: Settings) -> Iterator[str]:
    """Chouldechova (2017): where base rates differ, calibration and equal error rates exclude one another."""
    records, positives = one.rates["accuracy"].trials, one.rates["tpr"].trials
    large = np.flatnonzero(records >= settings.smallest_group)
    if large.size < 2 or large.size > MOST_GROUPS:
        return
    found = spread(positives[large], records[large], settings.level)
    if found.difference_low is not None and found.difference_low > 0:
        share = positives[large] / records[large]
        yield (
            f"The share of positive labels differs between groups of {one.grouping.name} ({share.min():.3f} to {share.max():.3f}): "
            "an imperfect model cannot have both equal error rates and equal predictive values there (Chouldechova 2017)."
        )


# ---------------------------------------------------------------------------------------------------------------- figures


def figures(result: Result) -> list[Figure]:
    """Gaps by grouping, then per column its selection rates, its TPR and FPR, and its gap against chance."""
    gaps, groups = result.table("Gaps"), result.table("Groups")
    drawn = [_overview(result)]
    singles = list(dict.fromkeys(row[0] for row in gaps.rows if row[1] == 1))
    for i, column in enumerate(singles):
        rows = [dict(zip(groups.columns, row, strict=True)) for row in groups.rows if row[:2] == (column, 1)]
        drawn.append(_selection_figure(str(column), rows))
        if "Positives" in groups.columns:
            drawn.append(_odds_figure(str(column), rows))
        null = result.arrays.get(f"null_demographic_parity_difference_{i}")
        gap = result.find("demographic_parity_difference", str(column))
        if null is not None and gap.value is not None:
            drawn.append(_null_figure(str(column), null, gap))
    return drawn


def _overview(result: Result) -> Figure:
    found = result.named("demographic_parity_difference")
    known = [one for one in found if one.value is not None]
    widest = max(known, key=lambda one: one.value or 0.0, default=None)
    alt = (
        "No grouping has two groups large enough to compare."
        if widest is None
        else f"Of {len(found)} groupings, {widest.subject} has the largest difference in selection rate, {widest.value:.3f}."
    )
    return intervals(
        "Demographic parity difference by grouping",
        [one.subject for one in found],
        [one.value for one in found],
        [one.low for one in found],
        [one.high for one in found],
        x_title="Difference in selection rate, highest minus lowest group",
        alt=alt,
        reference=0.0,
        reference_name="equal",
        counts=[one.n or 0 for one in found],
    )


def _selection_figure(column: str, rows: list[dict[str, Any]]) -> Figure:
    selected, records = sum(row["Selected"] for row in rows), sum(row["Records"] for row in rows)
    lowest = min(rows, key=lambda row: row["Selection rate"])
    highest = max(rows, key=lambda row: row["Selection rate"])
    return intervals(
        f"Selection rate by {column}",
        [row["Group"] for row in rows],
        [row["Selection rate"] for row in rows],
        [row["Selection rate, low"] for row in rows],
        [row["Selection rate, high"] for row in rows],
        x_title="Selection rate (share of records decided favourably)",
        alt=f"Selection rates range from {lowest['Selection rate']:.3f} ({lowest['Group']}) "
        f"to {highest['Selection rate']:.3f} ({highest['Group']}).",
        reference=selected / records,
        reference_name="all records",
        counts=[row["Records"] for row in rows],
    )


def _odds_figure(column: str, rows: list[dict[str, Any]]) -> Figure:
    titles = (("True positive rate", "TPR"), ("False positive rate", "FPR"))
    cells = [(row, title, short) for title, short in titles for row in rows]
    said = []
    for title, short in titles:
        known = [row for row in rows if row[title] is not None]
        if not known:
            said.append(f"{short} is undefined in every group.")
            continue
        low, high = min(known, key=lambda row: row[title]), max(known, key=lambda row: row[title])
        said.append(f"{short} ranges from {low[title]:.3f} ({low['Group']}) to {high[title]:.3f} ({high['Group']}).")
    return intervals(
        f"True and false positive rates by {column}",
        [f"{row['Group']}, {short}" for row, _, short in cells],
        [row[title] for row, title, _ in cells],
        [row[f"{title}, low"] for row, title, _ in cells],
        [row[f"{title}, high"] for row, title, _ in cells],
        x_title="Rate (share of positives or of negatives decided favourably)",
        alt=" ".join(said),
    )


def _null_figure(column: str, null: Array, gap: Measurement) -> Figure:
    return histogram(
        f"Demographic parity difference of {column} against chance",
        null,
        x_title="Difference in selection rate under shuffled groups",
        alt=f"The observed difference is {gap.value:.3f}; shuffled groups give {null.mean():.3f} on average and "
        f"{np.quantile(null, 0.95):.3f} at the 95th percentile (p = {gap.p_value:.2g}).",
        marker=gap.value,
        marker_name="observed",
    )


# ------------------------------------------------------------------------------------------------------------------- card


def example(rng: np.random.Generator) -> dict[str, Any]:
    """1 500 records in which women are selected 25 points less often than men of equal label; race plays no part."""
    n = 1500
    sex = rng.choice(["female", "male"], n)
    race = rng.choice(["Asian", "Black", "White"], n, p=[0.2, 0.3, 0.5])
    y_true = rng.integers(0, 2, n)
    chance = 0.25 + 0.3 * y_true + 0.25 * (sex == "male")
    return {
        "y_true": y_true,
        "y_pred": (rng.random(n) < chance).astype(np.int64),
        "sensitive_features": {"sex": sex, "race": race},
    }


METHOD = Method(
    title="Group metrics",
    question="Are decisions and errors spread alike over groups and their intersections?",
    source="Hardt, Price and Srebro 2016; Feldman et al. 2015; 29 CFR 1607.4(D); Chouldechova 2017",
    audit=audit,
    figures=figures,
    example=example,
    limits=(
        "A gap says nothing about its cause, and equal rates do not make a decision just.",
        "Error rates are only as good as the true labels; where labels exist for selected people only, they mislead.",
        "Groups that no column names are not seen, and small groups are seen only vaguely.",
        "Four fifths is a screening rule, not a legal conclusion.",
    ),
    advice="Look at the worst group's counts and labels first. Then compare within qualified people, look for proxies of the "
    "column among the model's inputs, collect more records of small groups, and retrain or set the threshold with the gap in view.",
    bounds=(
        Bound(
            "demographic_parity_difference",
            0.1,
            "medium",
            "A difference of ten points in who is selected is large enough to need a reason.",
        ),
        Bound(
            "demographic_parity_ratio",
            0.8,
            "high",
            "Four-fifths screening rule (29 CFR 1607.4(D)); a screening rule, not a legal conclusion.",
        ),
        Bound(
            "equalized_odds_difference",
            0.1,
            "high",
            "People of equal label meet error rates that differ by ten points.",
        ),
        Bound(
            "equalized_odds_ratio",
            0.8,
            "medium",
            "Four fifths carried over to error rates, as a screening rule; not a legal conclusion.",
        ),
    ),
    clauses=(
        "EU AI Act Art. 10(2)(f)",
        "EU AI Act Art. 15(1)",
        "NIST AI RMF MEASURE 2.11",
        "29 CFR 1607.4(D)",
        "NYC Local Law 144 (impact ratio)",
    ),
)
