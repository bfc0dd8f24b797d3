"""Does a score mean the same chance in every group?

Within each group of each sensitive column, and over all records:

    reliability curve            observed share against mean score in equal-mass bins, ties never split, Wilson bands
    ece_debiased                 expected calibration error, sum over bins of n_b/n |observed_b - mean score_b| (ideal 0)
    calibration_in_the_large     observed share minus mean score (ideal 0; above 0 the scores are too low)
    calibration_intercept        a of logit P(y = 1) = a + logit(score) (ideal 0)
    calibration_slope            b of logit P(y = 1) = a + b logit(score) (ideal 1; below 1 the scores are too extreme)
    spiegelhalter_z              standard normal where the scores are the chances
    calibration_gap              max - min over groups of the calibration in the large (ideal 0)

Debiasing. The plug-in error is biased upward by about the noise of the bins; the estimate is 2 ECE - E[ECE of bins drawn around the
observed ones], with normal bins and the expectation in closed form (Kumar, Liang and Ma 2019, their debiased l1 estimator). It
removes a good part of the bias, not all: no unbiased estimator of |x| exists. The p-value needs none of this: labels are drawn from the
scores, y ~ Bernoulli(score), and the plug-in error is compared with those draws.

Interval of the ECE, given the scores and bins. With d the true and D the observed departures of the bins and w their weights,
sum w|D| lies above sum w d sign(d), a normal variable with mean ECE, which gives the upper limit; and sum w|D| <= ECE + sum w|D - d|,
whose noise term is simulated, gives one lower limit. Two more come from fixed contrasts, since ECE >= |sum w t d| for any signs t: all
alike (a shift) and by the side of the mean score (too extreme, too timid). The largest of the three, at a third of the error each, is
used. Measured over 2 000 simulated samples at 95 % (scores expit(N(0, 1.2)), 10 bins):

    ECE of one group           true    mean estimate   plug-in   coverage   mean width
    1 000 records, calibrated  0       .020            .035      .970       .062
    1 000, logit shifted by .5 .096    .094            .097      .980       .064
    1 000, slope .5            .087    .087            .093      .993       .076
    10 000, calibrated         0       .006            .011      .977       .020
    10 000, slope .5           .087    .087            .088      .980       .023

    gap between groups         true    coverage   mean width
    1 000 and 300 records      0       .949       .079
    1 000 and 300 records      .115    .946       .112
    60 and 60, mean chance .12 0       .976       .156
    6 groups of 300            0       .947       .166
    6 groups of 300            .115    .985       .202

Source: Cox, "Two further applications of a model for binary regression", Biometrika 1958 (recalibration); Spiegelhalter, Statistics in
Medicine 1986; Van Calster et al., BMC Medicine 2019 (calibration hierarchy); Kumar, Liang and Ma, "Verified uncertainty calibration",
NeurIPS 2019; Pleiss et al., "On fairness and calibration", NeurIPS 2017; pairs of groups as in `group_metrics`.
Limits: bins hide what happens inside them; a score calibrated in a group can still be unfair to parts of it; a calibrated score says
nothing about the threshold. Slope and intercept assume that a line on the logit scale describes the departure.
Agrees with: scikit-learn `calibration_curve(strategy="quantile")` for scores without ties, `LogisticRegression(C=inf)` for the slope.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any, NamedTuple

import numpy as np

from audits.methods.charts import Figure, Series, intervals, lines
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
    binary_labels,
    critical_value,
    difference_interval,
    distinct_rows,
    encode_columns,
    wilson_limits,
)
from audits.methods.stats import Estimate, Interval, normal_quantile, permutation_p

TIE = 1e-12  # null draws that equal the observed error up to rounding count as hits
EPS = 1e-6  # scores are clipped here before the logit, which is infinite at 0 and 1
RECORDS_PER_BIN = 20  # smaller groups get fewer bins
FEW_EVENTS = 10  # below so many of either label the normal interval of a mean falls short
EXACT_RECORDS = 20_000  # up to this size labels are drawn record by record, above it bin by bin
MOST_GROUPS = 200  # groups measured per grouping, the largest ones
CONTROL_ROWS = 20_000_000  # records drawn for the controls in all
PLANT = 0.5  # shift of the scores on the logit scale
FOUND = 0.6  # share of plants that must be found; they are made large enough to be found in more than 80 %
EVERYONE = "all records"

# -------------------------------------------------------------------------------------------------------------- the bins


class Bins(NamedTuple):
    """Records, sum of labels and sum of scores per bin, each (bins,)."""

    records: Array
    positives: Array
    score_sum: Array

    @property
    def departures(self) -> Array:
        """Observed share minus mean score."""
        return (self.positives - self.score_sum) / self.records

    @property
    def weights(self) -> Array:
        """Share of the records."""
        return self.records / self.records.sum()

    @property
    def standard_errors(self) -> Array:
        """Of the observed share; two successes and failures are added (Agresti and Coull 1998), so that it is never 0."""
        share = (self.positives + 2) / (self.records + 4)
        return np.sqrt(share * (1 - share) / self.records)


def bin_index(y_score: Array, bins: int) -> Array:
    """Equal-mass bin of each record, (n,); equal scores share a bin, so ties make fewer and unequal bins."""
    inner = np.linspace(0, 1, bins + 1)[1:-1]
    edges = np.unique(np.quantile(y_score, inner, method="inverted_cdf"))
    return np.unique(np.searchsorted(edges, y_score, side="left"), return_inverse=True)[1]


def fill_bins(index: Array, y_true: Array, y_score: Array) -> Bins:
    """Sums over the bins."""
    return Bins(np.bincount(index), np.bincount(index, weights=y_true), np.bincount(index, weights=y_score))


# ---------------------------------------------------------------------------------------------- expected calibration error


def plug_in_ece(bins: Bins) -> float:
    """sum over bins of n_b/n |observed_b - mean score_b|, in [0, 1]."""
    return float(bins.weights @ np.abs(bins.departures))


def mean_absolute_normal(mean: Array, sd: Array) -> Array:
    """E|X| of X ~ N(mean, sd), the mean of the folded normal distribution."""
    from scipy.special import ndtr

    return sd * np.sqrt(2 / np.pi) * np.exp(-(mean**2) / (2 * sd**2)) + mean * (1 - 2 * ndtr(-mean / sd))


def ece_estimate(bins: Bins, level: float, draws: int, rng: np.random.Generator) -> Estimate:
    """Debiased ECE with its interval; see the module's text for both."""
    departures, weights, errors = bins.departures, bins.weights, bins.standard_errors
    plug_in = plug_in_ece(bins)
    debiased = 2 * plug_in - float(weights @ mean_absolute_normal(departures, errors))
    spread = float(np.sqrt(weights**2 @ errors**2))
    alpha = 1 - level
    high = plug_in + normal_quantile(1 - alpha / 2) * spread
    noise = np.abs(rng.standard_normal((draws, errors.size))) @ (weights * errors)
    by_noise = plug_in - float(np.quantile(noise, 1 - alpha / 6))
    score = bins.score_sum / bins.records
    side = np.sign(score - weights @ score)
    shift, tilt = abs(float(weights @ departures)), abs(float((weights * side) @ departures))
    by_contrast = max(shift, tilt) - normal_quantile(1 - alpha / 12) * spread
    low, high = max(0.0, by_noise, by_contrast), min(1.0, high)
    return Estimate(min(max(debiased, low), high), low, high)


def null_ece(index: Array, y_score: Array, draws: int, rng: np.random.Generator) -> Array:
    """Plug-in ECE of labels drawn from the scores, (draws,).

    Up to `EXACT_RECORDS` each label is drawn; above, the positives of a bin are Binomial(n_b, mean score), whose variance is at least
    that of the sum of its Bernoullis (Hoeffding 1956), so that p-values err upward.
    """
    records, score_sum = np.bincount(index), np.bincount(index, weights=y_score)
    if y_score.size > EXACT_RECORDS:
        positives = rng.binomial(records, np.clip(score_sum / records, 0, 1), size=(draws, records.size))
    else:
        ordered = np.split(y_score[np.argsort(index, kind="stable")], np.cumsum(records)[:-1])
        positives = np.stack([(rng.random((draws, part.size)) < part).sum(axis=1) for part in ordered], axis=1)
    return np.abs(positives - score_sum).sum(axis=1) / y_score.size


# ------------------------------------------------------------------------------------------------ calibration in the large


class Residuals(NamedTuple):
    """Sums over the records of each group, each (groups,): records, labels, scores, squared y_true - y_score."""

    records: Array
    positives: Array
    score_sum: Array
    squares: Array

    @property
    def mean(self) -> Array:
        """Calibration in the large: observed share minus mean score."""
        return (self.positives - self.score_sum) / self.records

    @property
    def few(self) -> Array:
        """Groups with too few of either label for the normal interval."""
        return np.minimum(self.positives, self.records - self.positives) < FEW_EVENTS

    @property
    def standard_errors(self) -> Array:
        """Of the mean; from the binomial variance with two successes and failures added where events are few.

        Never below 1 / n, one record off by one: scores that are always right in a sample may be wrong in the next record.
        """
        variance = (self.squares / self.records - self.mean**2) / np.maximum(self.records - 1, 1)
        variance = np.maximum(variance, 1 / self.records**2)
        share = (self.positives + 2) / (self.records + 4)
        return np.sqrt(np.where(self.few, share * (1 - share) / self.records, variance))

    def limits(self, z: float) -> tuple[Array, Array]:
        """Mean -+ z standard errors; Wilson's limits of the observed share minus the mean score where events are few."""
        half = z * self.standard_errors
        low, high = wilson_limits(self.positives, self.records, z)
        score = self.score_sum / self.records
        return np.where(self.few, low - score, self.mean - half), np.where(self.few, high - score, self.mean + half)


def residuals(group: Array, y_true: Array, y_score: Array, groups: int) -> Residuals:
    """Sums per group; `group` (n,) holds indices below `groups`."""
    sums = (None, y_true, y_score, (y_true - y_score) ** 2)
    return Residuals(*(np.bincount(group, weights=one, minlength=groups) for one in sums))


def select(sums: Residuals, chosen: Array) -> Residuals:
    """The sums of some groups."""
    return Residuals(*(one[chosen] for one in sums))


def gap_interval(sums: Residuals, level: float) -> Interval:
    """Interval of max - min of the calibration in the large: all pairs of groups at once, at least two groups."""
    low, high = sums.limits(critical_value(sums.records.size, level))
    gap_low, gap_high = difference_interval(sums.mean, low, high)
    return Interval(float(gap_low), float(gap_high))


def gap_p_value(sums: Residuals) -> float:
    """P of a pair as far apart in standard errors as the farthest observed one, by the studentized range distribution."""
    from scipy.stats import studentized_range

    mean, errors = sums.mean, sums.standard_errors
    apart = np.abs(mean[:, None] - mean) / np.hypot(errors[:, None], errors)
    p_value = float(studentized_range.sf(np.sqrt(2) * apart.max(), mean.size, np.inf))
    return min(max(p_value, 0.0), 1.0)


# ------------------------------------------------------------------------------------------------- logistic recalibration


def logit(y_score: Array) -> Array:
    """log(s / (1 - s)) of scores clipped to [EPS, 1 - EPS]."""
    clipped = np.clip(y_score, EPS, 1 - EPS)
    return np.log(clipped / (1 - clipped))


def expit(x: Array) -> Array:
    """Inverse of the logit, without overflow."""
    return 0.5 * (1 + np.tanh(x / 2))


class Fit(NamedTuple):
    """Coefficients and their standard errors, each (d,)."""

    coefficients: Array
    standard_errors: Array


def fit_logistic(design: Array, offset: Array, y_true: Array) -> Fit | None:
    """Maximum likelihood of logit P(y = 1) = offset + design @ coefficients by Newton's method with halved steps.

    `design` (n, d). None where it does not converge; a maximum exists if labels overlap along every column.
    """
    coefficients = np.zeros(design.shape[1])
    likelihood = _log_likelihood(offset, y_true)
    for _ in range(100):
        chance = expit(offset + design @ coefficients)
        gradient = design.T @ (y_true - chance)
        information = (design * (chance * (1 - chance))[:, None]).T @ design
        if np.linalg.matrix_rank(information) < coefficients.size:
            return None
        step = np.linalg.solve(information, gradient)
        if float(gradient @ step) < 1e-10:  # squared distance from the maximum in standard errors
            return Fit(coefficients, np.sqrt(np.diag(np.linalg.inv(information))))
        for halving in range(30):
            candidate = coefficients + step * 0.5**halving
            climbed = _log_likelihood(offset + design @ candidate, y_true)
            if climbed > likelihood:
                break
        else:
            return None
        coefficients, likelihood = candidate, climbed
    return None


def _log_likelihood(linear: Array, y_true: Array) -> float:
    return float((y_true * linear - np.logaddexp(0, linear)).sum())


def recalibration(y_true: Array, y_score: Array) -> tuple[Fit | str, Fit | str]:
    """Intercept with the slope held at 1, and (intercept, slope) together; a reason in words where one has no maximum."""
    if y_true.min() == y_true.max():
        reason = f"only label {int(y_true[0])}"
        return reason, reason
    x = logit(y_score)
    ones = np.ones((x.size, 1))
    intercept = fit_logistic(ones, x, y_true) or "the fit of the intercept did not converge"
    if x.min() == x.max():
        return intercept, "all scores are equal"
    positive, negative = x[y_true == 1], x[y_true == 0]
    if negative.max() <= positive.min() or positive.max() <= negative.min():
        return intercept, "a threshold on the score separates the labels, so the slope has no finite estimate"
    both = np.column_stack([ones, x - x.mean()])  # centred for a well-conditioned fit; the slope is the same
    return intercept, fit_logistic(both, np.zeros(x.size), y_true) or "the fit of the slope did not converge"


def spiegelhalter_z(y_true: Array, y_score: Array) -> float | None:
    """sum (y - s)(1 - 2s) / sqrt(sum (1 - 2s)^2 s(1 - s)); None where all scores are 0, 1 or one half."""
    variance = float(((1 - 2 * y_score) ** 2 * y_score * (1 - y_score)).sum())
    if variance <= 0:
        return None
    return float(((y_true - y_score) * (1 - 2 * y_score)).sum() / np.sqrt(variance))


# ------------------------------------------------------------------------------------------------------- groups of records


@dataclass(frozen=True)
class Settings:
    """The settings of `audit` that its parts need."""

    bins: int
    replicates: int
    level: float
    smallest_group: int


@dataclass(frozen=True)
class Grouping:
    """A column or intersection: `group` (n,) is the index of each record's group in `groups`."""

    columns: tuple[str, ...]
    groups: tuple[str, ...]
    group: Array

    @property
    def name(self) -> str:
        """E.g. "sex × race"."""
        return " × ".join(self.columns)


def groupings(sensitive_features: Mapping[str, Array], n: int, max_depth: int) -> list[Grouping]:
    """All single columns, then intersections up to `max_depth` columns, groups without records left out."""
    codes, levels = encode_columns(sensitive_features, n)
    names = tuple(sensitive_features)
    out = []
    for depth in range(1, min(max_depth, len(names)) + 1):
        for chosen in combinations(range(len(names)), depth):
            first, group = distinct_rows([codes[c] for c in chosen], [len(levels[c]) for c in chosen])
            labels = tuple(" × ".join(levels[c][codes[c][row]] for c in chosen) for row in first)
            out.append(Grouping(tuple(names[c] for c in chosen), labels, group))
    return out


@dataclass(frozen=True)
class GroupCalibration:
    """All that was measured in one group; `p_value` and `mde` are those of the ECE, `depth` counts the columns of its grouping."""

    subject: str
    depth: int
    group: str
    n: int
    positives: int
    mean_score: float
    bins: Bins
    ece: Estimate
    plug_in: float
    p_value: float
    mde: float
    in_the_large: Estimate
    intercept: Fit | str
    slope: Fit | str
    z: float | None


def measure_group(
    subject: tuple[str, int, str], y_true: Array, y_score: Array, settings: Settings, rng: np.random.Generator
) -> GroupCalibration:
    """Calibration of one group; `subject` is (grouping, its columns, group)."""
    grouping, depth, group = subject
    index = bin_index(y_score, max(1, min(settings.bins, y_score.size // RECORDS_PER_BIN)))
    bins = fill_bins(index, y_true, y_score)
    null = null_ece(index, y_score, settings.replicates, rng)
    plug_in = plug_in_ece(bins)
    sums = residuals(np.zeros(y_true.size, np.int64), y_true, y_score, 1)
    low, high = sums.limits(normal_quantile(0.5 + settings.level / 2))
    intercept, slope = recalibration(y_true, y_score)
    spread = float(np.sqrt(bins.weights**2 @ bins.standard_errors**2))
    return GroupCalibration(
        subject=f"{grouping}: {group}" if grouping else group,
        depth=depth,
        group=group,
        n=int(y_true.size),
        positives=int(y_true.sum()),
        mean_score=float(y_score.mean()),
        bins=bins,
        ece=ece_estimate(bins, settings.level, settings.replicates, rng),
        plug_in=plug_in,
        p_value=permutation_p(plug_in - TIE, null),
        # the plug-in error is at least N(ECE, spread), so at this ECE it passes the null's quantile in 80 % of samples
        mde=min(1.0, float(np.quantile(null, settings.level)) + normal_quantile(0.8) * spread),
        in_the_large=Estimate(float(sums.mean[0]), float(low[0]), float(high[0])),
        intercept=intercept,
        slope=slope,
        z=spiegelhalter_z(y_true, y_score),
    )


@dataclass(frozen=True)
class CalibrationGap:
    """Gap of the calibration in the large over the large groups of a grouping."""

    grouping: Grouping
    compared: tuple[str, ...]
    sums: Residuals | None
    value: float | None
    interval: Interval | None
    p_value: float | None
    mde: float | None


def calibration_gap(grouping: Grouping, y_true: Array, y_score: Array, settings: Settings) -> CalibrationGap:
    """The gap over groups of at least `smallest_group` records, the largest `MOST_GROUPS` of them."""
    sums = residuals(grouping.group, y_true, y_score, len(grouping.groups))
    large = np.flatnonzero(sums.records >= settings.smallest_group)
    large = np.sort(large[np.argsort(-sums.records[large], kind="stable")][:MOST_GROUPS])
    names = tuple(grouping.groups[i] for i in large)
    if large.size < 2:
        return CalibrationGap(grouping, names, None, None, None, None, None)
    sums = select(sums, large)
    errors = np.sort(sums.standard_errors)
    detectable = (critical_value(large.size, settings.level) + normal_quantile(0.8)) * np.hypot(errors[0], errors[-1])
    return CalibrationGap(
        grouping=grouping,
        compared=names,
        sums=sums,
        value=float(np.ptp(sums.mean)),
        interval=gap_interval(sums, settings.level),
        p_value=gap_p_value(sums),
        mde=min(1.0, float(detectable)),
    )


# --------------------------------------------------------------------------------------------------------------- controls


def controls(
    y_score: Array, chosen: Sequence[Grouping], settings: Settings, rng: np.random.Generator
) -> Iterator[Control]:
    """Labels drawn from the scores (nothing to find), and the same against shifted scores (something to find)."""
    trials = int(np.clip(CONTROL_ROWS // (y_score.size * (1 + len(chosen))), 40, 200))
    draws = [(rng.random(y_score.size) < y_score).astype(float) for _ in range(trials)]
    information = float((y_score * (1 - y_score)).sum())
    if information == 0:  # scores of 0 and 1 only draw no labels other than themselves
        return
    shift = max(PLANT, 5 / np.sqrt(information))
    for planted in (0.0, float(shift)):
        yield _ece_control(planted, draws, y_score, settings, rng)
    yield from _gap_controls(draws, y_score, chosen, settings)


def _verdict(kind: str, called: int, trials: int, level: float) -> tuple[bool, str]:
    from scipy.stats import binom

    if kind == "positive":
        return (
            called >= FOUND * trials,
            f"found in {called} of {trials} trials ({called / trials:.0%}, {FOUND:.0%} needed)",
        )
    most = int(binom.ppf(0.999, trials, 1 - level))
    said = f"false alarms in {called} of {trials} trials ({called / trials:.1%}; its own rate is {1 - level:.1%}, and at most {most} may)"
    return called <= most, said


def _ece_control(
    planted: float, draws: Sequence[Array], y_score: Array, settings: Settings, rng: np.random.Generator
) -> Control:
    stated = expit(logit(y_score) + planted) if planted else y_score
    index = bin_index(stated, max(1, min(settings.bins, stated.size // RECORDS_PER_BIN)))
    null = null_ece(index, stated, settings.replicates, rng)
    errors = np.array([plug_in_ece(fill_bins(index, y_true, stated)) for y_true in draws])
    called = sum(permutation_p(float(error) - TIE, null) <= 1 - settings.level for error in errors)
    kind = "positive" if planted else "negative"
    passed, said = _verdict(kind, called, len(draws), settings.level)
    what = f"scores then shifted by {planted:.2f} on the logit scale: " if planted else "nothing else changed: "
    return Control(
        name="Shifted scores, expected calibration error"
        if planted
        else "Labels drawn from the scores, expected calibration error",
        kind="positive" if planted else "negative",
        says=f"Labels drawn from the scores, {what}{said}; the plug-in error was {errors.mean():.3f} on average.",
        passed=passed,
        trials=len(draws),
        alarms=called,
        value=float(errors.mean()),
    )


def _gap_controls(
    draws: Sequence[Array], y_score: Array, chosen: Sequence[Grouping], settings: Settings
) -> Iterator[Control]:
    called = {"negative": 0, "positive": 0}
    trials, shifts = 0, []
    for one in chosen:
        records = np.bincount(one.group)
        large = np.flatnonzero(records >= settings.smallest_group)
        if len(one.columns) > 1 or not 2 <= large.size <= MOST_GROUPS:
            continue
        planted, shift = _shifted_group(one.group, large, y_score, settings.level)
        shifts.append(shift)
        for y_true in draws:
            for kind, stated in (("negative", y_score), ("positive", planted)):
                sums = select(residuals(one.group, y_true, stated, records.size), large)
                called[kind] += gap_interval(sums, settings.level).low > 0
        trials += len(draws)
    if not trials:
        return
    size = f"{min(shifts):.2f}" if max(shifts) - min(shifts) < 0.005 else f"{min(shifts):.2f} to {max(shifts):.2f}"
    for kind, what in (
        ("negative", "nothing else changed"),
        ("positive", f"the scores of the largest group then shifted by {size} on the logit scale"),
    ):
        passed, said = _verdict(kind, called[kind], trials, settings.level)
        yield Control(
            name=f"{'Shifted scores of one group' if kind == 'positive' else 'Labels drawn from the scores'}, calibration gap",
            kind="positive" if kind == "positive" else "negative",
            says=f"Labels drawn from the scores, {what}: {said}.",
            passed=passed,
            trials=trials,
            alarms=called[kind],
            value=called[kind] / trials,
        )


def _shifted_group(group: Array, large: Array, y_score: Array, level: float) -> tuple[Array, float]:
    """Scores with the largest group's shifted on the logit scale by an amount that its records can show."""
    records = np.bincount(group)[large]
    variance = np.maximum(np.bincount(group, weights=y_score * (1 - y_score))[large], 1e-12)  # keeps the ratio finite
    target = int(records.argmax())
    errors = np.sqrt(variance) / records
    others = np.delete(errors, target)
    needed = (critical_value(large.size, level) + normal_quantile(0.8)) * np.hypot(errors[target], others.min())
    shift = min(
        10.0, max(PLANT, 1.2 * float(needed) * records[target] / variance[target])
    )  # 1.2: the shift flattens out
    return np.where(group == large[target], expit(logit(y_score) + shift), y_score), shift


# ------------------------------------------------------------------------------------------------------------------ audit


def audit(
    y_true: Array,
    y_score: Array,
    sensitive_features: Mapping[str, Array],
    rng: np.random.Generator,
    progress: Progress = no_progress,
    *,
    bins: Annotated[int, Setting("Bins of equal mass", 2, 50)] = 10,
    replicates: Annotated[int, Setting("Label sets drawn from the scores for the p-values", 200, 20_000)] = 2000,
    level: Annotated[float, Setting("Confidence level", 0.5, 0.999)] = 0.95,
    smallest_group: Annotated[int, Setting("Records a group needs to take part in the gap", 2, 100_000)] = 30,
    max_depth: Annotated[int, Setting("How many columns an intersection may combine", 1, 3)] = 1,
) -> Result:
    """Calibration of every group and of all records, and its gap over the groups of each column."""
    settings = Settings(bins, replicates, level, smallest_group)
    labels, scores = _checked(y_true, y_score)
    chosen = groupings(sensitive_features, labels.size, max_depth)
    measured = [measure_group(("", 0, EVERYONE), labels, scores, settings, rng)]
    for done, grouping in enumerate(chosen):
        progress(done / (len(chosen) + 1), grouping.name)
        measured.extend(_measure_groups(grouping, labels, scores, settings, rng))
    gaps = [calibration_gap(grouping, labels, scores, settings) for grouping in chosen]
    progress(len(chosen) / (len(chosen) + 1), "controls")
    return Result(
        measurements=(*_gap_measurements(gaps, settings), *_group_measurements(measured, settings)),
        controls=tuple(controls(scores, chosen, settings, rng)),
        tables=(_gap_table(gaps, settings), _group_table(measured), _bin_table(measured, settings.level)),
        notes=tuple(_notes(chosen, scores, settings)),
    )


def _checked(y_true: Array, y_score: Array) -> tuple[Array, Array]:
    labels = binary_labels(y_true, "true labels", "Calibration within groups needs").astype(float)
    scores = np.asarray(y_score)
    if scores.shape != labels.shape:
        raise UnsuitableInput(f"There are {labels.size} true labels for {scores.size} scores; every record needs both.")
    if scores.dtype.kind not in "biuf" or not np.isfinite(scores.astype(float)).all():
        raise UnsuitableInput(
            "Calibration needs a number as score for every record; some scores are missing or not numbers."
        )
    scores = scores.astype(float)
    if scores.min() < 0 or scores.max() > 1:
        raise UnsuitableInput(
            f"Calibration needs probabilities between 0 and 1; the scores run from {scores.min():g} to {scores.max():g}. "
            "Map them to probabilities (for logits: 1 / (1 + exp(-score))) and upload those."
        )
    if scores.min() == scores.max():
        raise UnsuitableInput(
            f"Every record has the same score, {scores.min():g}; calibration needs scores that differ between records."
        )
    if labels.min() == labels.max():
        raise UnsuitableInput(f"Every true label is {int(labels[0])}; calibration needs records of both labels.")
    return labels, scores


def _measure_groups(
    grouping: Grouping, y_true: Array, y_score: Array, settings: Settings, rng: np.random.Generator
) -> Iterator[GroupCalibration]:
    records = np.bincount(grouping.group)
    order = np.argsort(grouping.group, kind="stable")
    rows = np.split(order, np.cumsum(records)[:-1])
    for i in np.sort(np.argsort(-records, kind="stable")[:MOST_GROUPS]):
        subject = (grouping.name, len(grouping.columns), grouping.groups[i])
        yield measure_group(subject, y_true[rows[i]], y_score[rows[i]], settings, rng)


def _gap_measurements(gaps: Sequence[CalibrationGap], settings: Settings) -> Iterator[Measurement]:
    for gap in gaps:
        yield Measurement(
            name="calibration_gap",
            value=gap.value,
            undefined="" if gap.sums else _too_small(gap.grouping, settings),
            subject=gap.grouping.name,
            low=gap.interval.low if gap.interval else None,
            high=gap.interval.high if gap.interval else None,
            level=settings.level if gap.interval else None,
            n=int(gap.sums.records.sum()) if gap.sums else None,
            worse="higher",
            ideal=0.0,
            p_value=gap.p_value,
            mde=gap.mde,
            interval="intervals of all pairs of groups, simultaneous by the studentized range" if gap.interval else "",
        )


def _too_small(grouping: Grouping, settings: Settings) -> str:
    return f"fewer than two groups of {grouping.name} have at least {settings.smallest_group} records"


def _group_measurements(measured: Sequence[GroupCalibration], settings: Settings) -> Iterator[Measurement]:
    for one in measured:
        if one.depth > 1:
            continue
        yield Measurement(
            name="ece_debiased",
            value=one.ece.value,
            subject=one.subject,
            low=one.ece.low,
            high=one.ece.high,
            level=settings.level,
            n=one.n,
            worse="higher",
            ideal=0.0,
            p_value=one.p_value,
            mde=one.mde,
            interval="conservative limits of the binned error; p-value from labels drawn from the scores",
        )
        yield Measurement(
            name="calibration_in_the_large",
            value=one.in_the_large.value,
            subject=one.subject,
            low=one.in_the_large.low,
            high=one.in_the_large.high,
            level=settings.level,
            n=one.n,
            ideal=0.0,
            interval=_in_the_large_interval(one),
        )
        yield _coefficient("calibration_intercept", one, one.intercept, 0.0, settings.level)
        yield _coefficient("calibration_slope", one, one.slope, 1.0, settings.level)
        yield Measurement(
            name="spiegelhalter_z",
            value=one.z,
            undefined="" if one.z is not None else f"all scores of {one.subject} are 0, 1 or one half",
            subject=one.subject,
            n=one.n,
            ideal=0.0,
            p_value=None if one.z is None else _two_sided(one.z),
        )


def _in_the_large_interval(one: GroupCalibration) -> str:
    few = min(one.positives, one.n - one.positives) < FEW_EVENTS
    return "Wilson score of the observed share, less the mean score" if few else "normal"


def _two_sided(z: float) -> float:
    from scipy.special import ndtr

    return float(2 * ndtr(-abs(z)))


def _coefficient(name: str, one: GroupCalibration, fit: Fit | str, ideal: float, level: float) -> Measurement:
    if isinstance(fit, str):
        return Measurement(name, None, one.subject, n=one.n, ideal=ideal, undefined=f"{fit} in {one.subject}")
    value, error = float(fit.coefficients[-1]), float(fit.standard_errors[-1])
    z = normal_quantile(0.5 + level / 2)
    return Measurement(
        name=name,
        value=value,
        subject=one.subject,
        low=value - z * error,
        high=value + z * error,
        level=level,
        n=one.n,
        ideal=ideal,
        p_value=_two_sided((value - ideal) / error),
        interval="Wald, logistic recalibration",
    )


# ----------------------------------------------------------------------------------------------------------------- tables


def _gap_table(gaps: Sequence[CalibrationGap], settings: Settings) -> Table:
    columns = (
        "Grouping",
        "Columns",
        "Gap",
        "Low",
        "High",
        "p-value",
        "Groups compared",
        "Groups in all",
        "Lowest group",
        "Observed minus score, lowest",
        "Highest group",
        "Observed minus score, highest",
    )
    rows: list[tuple[Cell, ...]] = []
    for gap in gaps:
        head = (gap.grouping.name, len(gap.grouping.columns))
        sizes = (len(gap.compared), len(gap.grouping.groups))
        if gap.sums is None or gap.interval is None:
            rows.append((*head, None, None, None, None, *sizes, None, None, None, None))
            continue
        mean = gap.sums.mean
        low, high = int(mean.argmin()), int(mean.argmax())
        ends = (gap.compared[low], float(mean[low]), gap.compared[high], float(mean[high]))
        rows.append((*head, gap.value, gap.interval.low, gap.interval.high, gap.p_value, *sizes, *ends))
    notes = (
        f"Groups compared have at least {settings.smallest_group} records. The gap is the largest minus the smallest "
        "calibration in the large (observed share minus mean score). Empty cells: fewer than two such groups."
    )
    return Table("Calibration gaps", columns, tuple(rows), notes)


def _group_table(measured: Sequence[GroupCalibration]) -> Table:
    columns = (
        "Group",
        "Records",
        "Positives",
        "Mean score",
        "Observed share",
        "ECE, debiased",
        "ECE, low",
        "ECE, high",
        "ECE, plug-in",
        "p-value of ECE",
        "Calibration in the large",
        "Intercept",
        "Slope",
        "Spiegelhalter z",
    )
    rows = [
        (
            one.subject,
            one.n,
            one.positives,
            one.mean_score,
            one.positives / one.n,
            one.ece.value,
            one.ece.low,
            one.ece.high,
            one.plug_in,
            one.p_value,
            one.in_the_large.value,
            None if isinstance(one.intercept, str) else float(one.intercept.coefficients[-1]),
            None if isinstance(one.slope, str) else float(one.slope.coefficients[-1]),
            one.z,
        )
        for one in measured
    ]
    notes = (
        "Empty cells are undefined: one label only, equal scores, or labels that a threshold on the score separates."
    )
    return Table("Calibration by group", columns, tuple(rows), notes)


def _bin_table(measured: Sequence[GroupCalibration], level: float) -> Table:
    columns = ("Grouping", "Group", "Bin", "Records", "Mean score", "Observed share", "Low", "High")
    z = normal_quantile(0.5 + level / 2)
    rows: list[tuple[Cell, ...]] = []
    for one in measured:
        if one.depth > 1:
            continue
        low, high = wilson_limits(one.bins.positives, one.bins.records, z)
        grouping = "" if one.depth == 0 else one.subject.removesuffix(f": {one.group}")
        for i, records in enumerate(one.bins.records):
            score, share = one.bins.score_sum[i] / records, one.bins.positives[i] / records
            rows.append(
                (grouping, one.group, i + 1, int(records), float(score), float(share), float(low[i]), float(high[i]))
            )
    notes = f"Bins of equal mass within the group; low and high are Wilson limits at {level:.0%}. Intersections are not shown."
    return Table("Reliability", columns, tuple(rows), notes)


def _notes(chosen: Sequence[Grouping], y_score: Array, settings: Settings) -> Iterator[str]:
    clipped = int(np.count_nonzero((y_score < EPS) | (y_score > 1 - EPS)))
    if clipped:
        yield (
            f"{clipped} scores lie within {EPS:g} of 0 or 1, where the logit is infinite; they were clipped for intercept and slope."
        )
    for one in chosen:
        records = np.bincount(one.group)
        small = np.flatnonzero(records < settings.smallest_group)
        if small.size:
            names = ", ".join(one.groups[i] for i in small[:5])
            more = f" and {small.size - 5} more" if small.size > 5 else ""
            yield f"Left out of the gap of {one.name} (fewer than {settings.smallest_group} records): {names}{more}."
        if records.size > MOST_GROUPS:
            yield f"{one.name} has {records.size} groups; only the {MOST_GROUPS} largest were measured. Merge levels to see the others."
    if y_score.size > EXACT_RECORDS:
        yield (
            f"In groups of more than {EXACT_RECORDS} records the labels for the p-value were drawn bin by bin, "
            "which errs towards larger p-values."
        )


# ---------------------------------------------------------------------------------------------------------------- figures

MOST_LINES = 6  # groups drawn in one reliability diagram


def figures(result: Result) -> list[Figure]:
    """A reliability diagram per column, then error, calibration in the large and slope by group."""
    rows = result.table("Reliability").rows
    columns = [name for name in dict.fromkeys(str(row[0]) for row in rows) if name]
    drawn = [_reliability(EVERYONE, [row for row in rows if row[0] == ""])]
    drawn += [_reliability(name, [row for row in rows if row[0] == name]) for name in columns]
    for name, title, x_title, ideal in (
        ("ece_debiased", "Expected calibration error by group", "Expected calibration error, debiased", 0.0),
        ("calibration_in_the_large", "Calibration in the large by group", "Observed share minus mean score", 0.0),
        ("calibration_slope", "Calibration slope by group", "Slope of the logistic recalibration", 1.0),
    ):
        drawn.append(_by_group(result.named(name), title, x_title, ideal))
    return drawn


def _reliability(column: str, rows: Sequence[tuple[Cell, ...]]) -> Figure:
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[str(row[1])] = sizes.get(str(row[1]), 0) + int(row[3] or 0)
    shown = sorted(sizes, key=lambda group: -sizes[group])[:MOST_LINES]
    series, worst, worst_size = [], "", -1.0
    for group in shown:
        score, share, low, high = np.array([row[4:] for row in rows if row[1] == group], float).T
        series.append(Series(group, score, share, low, high))
        apart = np.abs(share - score)
        if apart.max() > worst_size:
            at = int(apart.argmax())
            worst_size = float(apart[at])
            worst = f"farthest from the diagonal is {group} with mean score {score[at]:.2f} and observed share {share[at]:.2f}"
    title = "Reliability over all records" if column == EVERYONE else f"Reliability by {column}"
    hidden = f" The {MOST_LINES} largest of {len(sizes)} groups are drawn." if len(sizes) > MOST_LINES else ""
    return lines(
        title,
        series,
        x_title="Mean score in the bin",
        y_title="Observed share of positives",
        alt=f"{title}: {worst}.{hidden}",
        diagonal=True,
        markers=True,
    )


def _by_group(found: Sequence[Measurement], title: str, x_title: str, ideal: float) -> Figure:
    known = [one for one in found if one.value is not None]
    worst = max(known, key=lambda one: abs((one.value or 0.0) - ideal), default=None)
    alt = (
        f"{title}: undefined everywhere."
        if worst is None
        else f"{title}: farthest from {ideal:g} is {worst.subject} with {worst.value:.3f}."
    )
    return intervals(
        title,
        [one.subject for one in found],
        [one.value for one in found],
        [one.low for one in found],
        [one.high for one in found],
        x_title=x_title,
        alt=alt,
        reference=ideal,
        reference_name="calibrated",
        counts=[one.n or 0 for one in found],
    )


# ------------------------------------------------------------------------------------------------------------------- card


def example(rng: np.random.Generator) -> dict[str, Any]:
    """2 000 records whose score is the chance for women and 0.8 too high on the logit for men."""
    n = 2000
    sex = rng.choice(["female", "male"], n)
    linear = rng.normal(0, 1.2, n)
    return {
        "y_true": (rng.random(n) < expit(linear)).astype(np.int64),
        "y_score": expit(linear + 0.8 * (sex == "male")),
        "sensitive_features": {"sex": sex},
    }


METHOD = Method(
    title="Calibration within groups",
    question="Does a score mean the same chance in every group?",
    source="Cox 1958; Spiegelhalter 1986; Pleiss et al. 2017; Kumar, Liang and Ma 2019; Van Calster et al. 2019",
    audit=audit,
    figures=figures,
    example=example,
    limits=(
        "A score can be calibrated in a group and still be wrong for parts of it.",
        "Calibration says nothing about the threshold or about who is selected.",
        "It is measured against the recorded labels; where these are biased, a calibrated score repeats the bias.",
        "Errors inside a bin that cancel are not seen.",
    ),
    advice="Recalibrate the score on held-out data (a shift or a line on the logit scale, per group only where the law allows it), "
    "look for inputs that mean different things in different groups, and check the labels of the group that is off.",
    bounds=(
        Bound(
            "ece_debiased", 0.05, "medium", "A score that is off by five points on average misleads whoever acts on it."
        ),
        Bound(
            "calibration_gap",
            0.05,
            "high",
            "The same score means chances that differ by more than five points between groups.",
        ),
    ),
    clauses=("EU AI Act Art. 10(2)(f)", "EU AI Act Art. 15(1)", "NIST AI RMF MEASURE 2.11"),
)
