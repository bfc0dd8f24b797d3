"""Calibration within groups: by hand, against scikit-learn, under the null, with planted miscalibration, and where undefined."""

import json

import numpy as np
import pytest

from audits.methods import stats
from audits.methods.contract import Result
from audits.methods.errors import UnsuitableInput
from audits.methods.fairness import calibration
from audits.methods.fairness.calibration import METHOD, Bins, audit, expit
from audits.methods.verdict import Verdict, judge

QUICK = {"replicates": 200}


def rng(seed=0):
    return np.random.default_rng(seed)


def bound(name):
    return next(one for one in METHOD.bounds if one.measurement == name)


def sample(n, seed, shift=0.0, slope=1.0):
    """Scores, labels and chances; the logit of the chance is shift + slope * logit(score)."""
    generator = rng(seed)
    linear = generator.normal(0, 1.2, n)
    chance = expit(shift + slope * linear)
    return expit(linear), (generator.random(n) < chance).astype(int), chance


def two_groups(n, seed, shift):
    """Scores that are the chances in group a and too low by `shift` on the logit in group b."""
    generator = rng(seed)
    group = generator.choice(["a", "b"], n)
    linear = generator.normal(0, 1.2, n)
    y_true = (generator.random(n) < expit(linear + shift * (group == "b"))).astype(int)
    return {"y_true": y_true, "y_score": expit(linear), "sensitive_features": {"g": group}}


# ---------------------------------------------------------------------------------------------------------------- by hand

Y = np.array([0, 0, 1, 0, 1, 1, 1, 1])
S = np.array([0.1, 0.1, 0.1, 0.1, 0.8, 0.8, 0.8, 0.8])


def test_bins_and_error_by_hand():
    index = calibration.bin_index(S, 2)
    assert index.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    bins = calibration.fill_bins(index, Y, S)
    # observed .25 and 1, scores .1 and .8: (.15 + .2) / 2
    assert calibration.plug_in_ece(bins) == pytest.approx(0.175, abs=1e-15)


def test_ties_never_split_a_bin():
    score = np.array([0.2] * 70 + [0.5] * 5 + [0.9] * 25)
    index = calibration.bin_index(score, 10)
    # deciles .1 to .7 are .2, those of .8 and .9 are .9: two edges are left
    assert [np.unique(score[index == i]).tolist() for i in range(index.max() + 1)] == [[0.2], [0.5, 0.9]]


def test_debiasing_in_closed_form_is_the_simulated_expectation():
    mean, sd = np.array([0.0, 0.02, -0.1]), np.array([0.05, 0.03, 0.04])
    simulated = np.abs(rng().normal(mean, sd, size=(400_000, 3))).mean(axis=0)
    assert calibration.mean_absolute_normal(mean, sd) == pytest.approx(simulated, abs=3e-4)
    assert calibration.mean_absolute_normal(np.zeros(1), np.ones(1)).item() == pytest.approx(np.sqrt(2 / np.pi))


def test_calibration_in_the_large_by_hand():
    y_true = np.repeat([1, 0], [40, 60])
    y_score = np.tile([0.2, 0.4], 50)
    sums = calibration.residuals(np.zeros(100, int), y_true, y_score, 1)
    assert sums.mean.item() == pytest.approx(0.4 - 0.3, abs=1e-15)
    low, high = sums.limits(1.96)
    half = 1.96 * np.std(y_true - y_score, ddof=1) / 10
    assert (low.item(), high.item()) == pytest.approx((0.1 - half, 0.1 + half), abs=1e-12)


def test_few_events_have_wilsons_limits_less_the_mean_score():
    y_true = np.repeat([1, 0], [2, 48])
    sums = calibration.residuals(np.zeros(50, int), y_true, np.full(50, 0.1), 1)
    low, high = sums.limits(stats.normal_quantile(0.975))
    wilson = stats.wilson(2, 50)
    assert (low.item(), high.item()) == pytest.approx((wilson.low - 0.1, wilson.high - 0.1), abs=1e-12)


def test_spiegelhalters_z_by_hand():
    # scores .2 and .6, labels 1 and 0: ((.8)(.6) + (-.6)(-.2)) / sqrt(.36 * .16 + .04 * .24)
    found = calibration.spiegelhalter_z(np.array([1, 0]), np.array([0.2, 0.6]))
    assert found == pytest.approx(0.6 / np.sqrt(0.0672), abs=1e-12)
    assert calibration.spiegelhalter_z(np.array([1, 0]), np.array([0.5, 1.0])) is None


def test_intercept_by_hand():
    # one score of .5: the intercept is the logit of the observed share, its variance 1 / (n p (1 - p))
    fit = calibration.fit_logistic(np.ones((50, 1)), np.zeros(50), np.repeat([1.0, 0.0], [40, 10]))
    assert fit.coefficients.item() == pytest.approx(np.log(4), abs=1e-9)
    assert fit.standard_errors.item() == pytest.approx(1 / np.sqrt(50 * 0.8 * 0.2), abs=1e-9)


# -------------------------------------------------------------------------------------------------------------- agreement


def test_slope_is_scikit_learns_unpenalised_regression():
    from sklearn.linear_model import LogisticRegression

    y_score, y_true, _ = sample(3000, 1, shift=0.3, slope=0.7)
    _, fit = calibration.recalibration(y_true, y_score)
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(calibration.logit(y_score)[:, None], y_true)
    assert fit.coefficients[-1] == pytest.approx(theirs.coef_.item(), abs=1e-5)


def test_reliability_is_scikit_learns_calibration_curve():
    from sklearn.calibration import calibration_curve

    y_score, y_true, _ = sample(2000, 2)
    bins = calibration.fill_bins(calibration.bin_index(y_score, 10), y_true, y_score)
    share, score = calibration_curve(y_true, y_score, n_bins=10, strategy="quantile")
    # interpolated edges there, order statistics here: at most one record in 200 changes its bin
    assert bins.positives / bins.records == pytest.approx(share, abs=0.006)
    assert bins.score_sum / bins.records == pytest.approx(score, abs=0.006)


# ------------------------------------------------------------------------------------------------------------------- null


def test_calibrated_scores_raise_alarms_at_the_stated_rate():
    """300 calibrated samples: p of the ECE, Spiegelhalter's z, slope and the two intervals; standard error 1.3 points."""
    trials, alarms = 300, dict.fromkeys(("ece", "z", "slope", "intercept", "ece interval"), 0)
    generator = rng(3)
    settings = calibration.Settings(10, 200, 0.95, 30)
    for seed in range(trials):
        y_score, y_true, _ = sample(600, seed)
        one = calibration.measure_group(("", 0, "x"), y_true.astype(float), y_score, settings, generator)
        alarms["ece"] += one.p_value <= 0.05
        alarms["z"] += abs(one.z) > 1.96
        alarms["slope"] += abs(one.slope.coefficients[-1] - 1) > 1.96 * one.slope.standard_errors[-1]
        alarms["intercept"] += abs(one.intercept.coefficients[-1]) > 1.96 * one.intercept.standard_errors[-1]
        alarms["ece interval"] += one.ece.low > 0
    for name, count in alarms.items():
        assert count / trials <= 0.095, name
    for name in ("ece", "z", "slope", "intercept"):
        assert count_is_not_vacuous(alarms[name], trials), name


def count_is_not_vacuous(count, trials):
    """A test at 5 % that never alarms in 300 trials is not a test at 5 %."""
    return count / trials >= 0.015


@pytest.mark.parametrize(("sizes", "mean"), [((1000, 300), 0.0), ((60, 60), -2.5), ((300,) * 6, 0.0)])
def test_equal_groups_have_a_gap_interval_with_zero_at_the_stated_rate(sizes, mean):
    generator, trials = rng(4), 600
    group = np.repeat(np.arange(len(sizes)), sizes)
    missed = small = 0
    for _ in range(trials):
        y_score = expit(generator.normal(mean, 1.2, group.size))
        y_true = (generator.random(group.size) < y_score).astype(float)
        sums = calibration.residuals(group, y_true, y_score, len(sizes))
        missed += calibration.gap_interval(sums, 0.95).low > 0
        small += calibration.gap_p_value(sums) <= 0.05
    assert missed / trials <= 0.08
    assert small / trials <= 0.08


def test_binwise_draws_are_close_to_recordwise_draws_and_never_narrower(monkeypatch):
    y_score, _, _ = sample(4000, 5)
    index = calibration.bin_index(y_score, 10)
    exact = calibration.null_ece(index, y_score, 4000, rng())
    monkeypatch.setattr(calibration, "EXACT_RECORDS", 0)
    binwise = calibration.null_ece(index, y_score, 4000, rng())
    assert exact.mean() * 0.99 < binwise.mean() < exact.mean() * 1.05


# ---------------------------------------------------------------------------------------------------------------- planted


def ece_coverage(n, shift, slope, trials, seed):
    """Share of samples whose interval holds the true binned error given the scores, mean width, mean estimate, mean truth."""
    generator = rng(seed)
    covered, widths, values, truths = 0, [], [], []
    for i in range(trials):
        y_score, y_true, chance = sample(n, seed + i, shift, slope)
        index = calibration.bin_index(y_score, 10)
        truth = calibration.plug_in_ece(calibration.fill_bins(index, chance, y_score))
        found = calibration.ece_estimate(calibration.fill_bins(index, y_true, y_score), 0.95, 200, generator)
        covered += found.low <= truth <= found.high
        widths.append(found.high - found.low)
        values.append(found.value)
        truths.append(truth)
    return covered / trials, np.mean(widths), np.mean(values), np.mean(truths)


@pytest.mark.parametrize(
    ("n", "shift", "slope", "widest"),
    [(1000, 0.0, 1.0, 0.07), (1000, 0.5, 1.0, 0.07), (1000, 0.0, 0.5, 0.085), (10_000, 0.5, 1.0, 0.022)],
)
def test_the_interval_of_the_error_covers_and_is_not_vacuous(n, shift, slope, widest):
    covered, width, value, truth = ece_coverage(n, shift, slope, trials=300, seed=1000)
    assert covered >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 300)
    assert width < widest
    assert abs(value - truth) < 0.025


def test_debiasing_removes_bias():
    plug_ins, debiased = [], []
    for seed in range(200):
        y_score, y_true, _ = sample(500, seed)
        bins = calibration.fill_bins(calibration.bin_index(y_score, 10), y_true, y_score)
        plug_ins.append(calibration.plug_in_ece(bins))
        debiased.append(calibration.ece_estimate(bins, 0.95, 200, rng(seed)).value)
    assert np.mean(debiased) < 0.7 * np.mean(plug_ins)  # the truth is 0


def test_planted_slope_and_shift_are_recovered():
    covered = {"slope": 0, "intercept": 0}
    for seed in range(200):
        y_score, y_true, _ = sample(800, seed, slope=0.6)
        fit = calibration.recalibration(y_true, y_score)[1]
        covered["slope"] += abs(fit.coefficients[-1] - 0.6) < 1.96 * fit.standard_errors[-1]
        y_score, y_true, _ = sample(800, seed, shift=-0.4)
        fit = calibration.recalibration(y_true, y_score)[0]
        covered["intercept"] += abs(fit.coefficients[0] + 0.4) < 1.96 * fit.standard_errors[0]
    assert min(covered.values()) >= 0.90 * 200
    assert max(covered.values()) < 200


def test_a_planted_gap_is_covered_and_exceeds_its_bound():
    linear = rng(6).normal(0, 1.2, 400_000)
    truth = float(np.mean(expit(linear + 0.6) - expit(linear)))
    covered, trials = 0, 300
    for seed in range(trials):
        inputs = two_groups(1500, seed, 0.6)
        group = (inputs["sensitive_features"]["g"] == "b").astype(int)
        low, high = calibration.gap_interval(calibration.residuals(group, inputs["y_true"], inputs["y_score"], 2), 0.95)
        covered += low <= truth <= high
    assert covered / trials >= 0.91
    assert covered < trials
    result = audit(**two_groups(6000, 7, 0.6), rng=rng(), **QUICK)
    assert all(control.passed for control in result.controls)
    gap = result.find("calibration_gap", "g")
    assert gap.p_value < 1e-6
    assert judge(gap, bound("calibration_gap"), result.controls).verdict is Verdict.EXCEEDS
    error = result.find("ece_debiased", "g: b")
    assert judge(error, bound("ece_debiased"), result.controls).verdict is Verdict.EXCEEDS
    assert judge(result.find("ece_debiased", "g: a"), bound("ece_debiased"), result.controls).verdict is Verdict.WITHIN


def test_a_large_calibrated_sample_is_within_its_bounds():
    result = audit(**two_groups(20_000, 8, 0.0), rng=rng(), **QUICK)
    assert [c.kind for c in result.controls] == ["negative", "positive", "negative", "positive"]
    for measurement in result.named("ece_debiased") + result.named("calibration_gap"):
        assert judge(measurement, bound(measurement.name), result.controls).verdict is Verdict.WITHIN


def test_an_error_of_the_smallest_detectable_size_is_found_in_four_samples_of_five():
    settings = calibration.Settings(10, 400, 0.95, 30)
    generator, found, trials = rng(9), 0, 150
    for _ in range(trials):
        y_score = generator.uniform(0.3, 0.6, 1000)
        index = calibration.bin_index(y_score, 10)
        null = calibration.null_ece(index, y_score, 400, generator)
        spread = np.sqrt(np.mean(y_score * (1 - y_score)) / 1000)
        size = float(np.quantile(null, 0.95)) + 0.8416 * spread
        y_true = (generator.random(1000) < y_score + size).astype(float)
        one = calibration.measure_group(("", 0, "x"), y_true, y_score, settings, generator)
        assert one.mde == pytest.approx(size, rel=0.15)
        found += one.p_value <= 0.05
    assert found / trials >= 0.74


def test_the_negative_control_can_fail(monkeypatch):
    monkeypatch.setattr(calibration, "critical_value", lambda groups, level: 0.8)
    result = audit(**two_groups(1500, 10, 0.0), rng=rng(), **QUICK)
    control = next(c for c in result.controls if c.name == "Labels drawn from the scores, calibration gap")
    assert not control.passed


# ------------------------------------------------------------------------------------------------------------- degenerate

N = 200
GROUP = np.array(["a", "b"] * (N // 2))


@pytest.mark.parametrize(
    ("y_true", "y_score", "words"),
    [
        (np.array([], int), np.array([], float), "There are no true labels"),
        (rng().integers(0, 3, N), rng().random(N), "Calibration within groups needs two classes"),
        (rng().integers(0, 2, N), rng().normal(0, 2, N), "probabilities between 0 and 1; the scores run from -"),
        (rng().integers(0, 2, N), np.full(N, 0.3), "Every record has the same score, 0.3"),
        (np.ones(N, int), rng().random(N), "Every true label is 1"),
        (rng().integers(0, 2, N), np.full(N, np.nan), "some scores are missing"),
        (rng().integers(0, 2, N), rng().random(N - 1), "200 true labels for 199 scores"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(y_true, y_score, words):
    with pytest.raises(UnsuitableInput, match=words):
        audit(y_true, y_score, {"g": GROUP[: y_true.size]}, rng())


def test_one_group_is_refused_in_words():
    with pytest.raises(UnsuitableInput, match="holds only one group"):
        audit(rng().integers(0, 2, N), rng().random(N), {"g": np.repeat("a", N)}, rng())


def test_one_label_in_a_group_leaves_slope_and_intercept_undefined():
    y_score = rng(1).random(N)
    y_true = np.where(GROUP == "a", 1, rng(2).integers(0, 2, N))
    result = audit(y_true, y_score, {"g": GROUP}, rng(), **QUICK)
    for name in ("calibration_slope", "calibration_intercept"):
        assert result.find(name, "g: a").undefined == "only label 1 in g: a"
        assert result.find(name, "g: b").value is not None
    large = result.find("calibration_in_the_large", "g: a")
    assert large.value == pytest.approx(1 - y_score[GROUP == "a"].mean())
    assert large.interval.startswith("Wilson")


def test_equal_scores_in_a_group_leave_the_slope_undefined():
    y_score = np.where(GROUP == "a", 0.4, rng(3).random(N))
    result = audit(rng(4).integers(0, 2, N), y_score, {"g": GROUP}, rng(), **QUICK)
    assert result.find("calibration_slope", "g: a").undefined == "all scores are equal in g: a"
    assert result.find("calibration_intercept", "g: a").value is not None


def test_separated_labels_leave_the_slope_undefined():
    y_score = rng(5).random(N)
    y_true = (y_score > 0.5).astype(int)
    result = audit(y_true, y_score, {"g": GROUP}, rng(), **QUICK)
    assert "separates the labels" in result.find("calibration_slope", "all records").undefined


def test_scores_that_are_the_labels_are_defined_everywhere_they_can_be():
    y_true = rng(6).integers(0, 2, N)
    result = audit(y_true, y_true.astype(float), {"g": GROUP}, rng(), **QUICK)
    gap = result.find("calibration_gap", "g")
    assert (gap.value, gap.low) == (0.0, 0.0)
    assert 0 < gap.high < 0.1  # never certain from 100 records a group
    assert result.find("spiegelhalter_z", "g: a").value is None
    assert result.controls == ()
    assert any("clipped" in note for note in result.notes)


def test_small_groups_are_listed_and_left_out_of_the_gap_in_words():
    group = np.array(["a", "b"] * 100 + ["tiny"] * 5)
    y_score = rng(7).random(group.size)
    y_true = (rng(8).random(group.size) < y_score).astype(int)
    result = audit(y_true, y_score, {"g": group}, rng(), **QUICK)
    assert result.find("ece_debiased", "g: tiny").n == 5
    assert "Left out of the gap of g (fewer than 30 records): tiny." in result.notes
    only = audit(y_true[-25:], y_score[-25:], {"g": group[-25:]}, rng(), **QUICK)
    assert only.find("calibration_gap", "g").undefined == "fewer than two groups of g have at least 30 records"


def test_more_groups_than_are_measured_are_counted_in_words(monkeypatch):
    monkeypatch.setattr(calibration, "MOST_GROUPS", 2)
    group = np.array(["a", "b", "b", "c", "c", "c"] * 100)
    y_score = rng(9).random(group.size)
    y_true = (rng(10).random(group.size) < y_score).astype(int)
    result = audit(y_true, y_score, {"g": group}, rng(), **QUICK)
    assert {m.subject for m in result.named("ece_debiased")} == {"all records", "g: b", "g: c"}
    assert "g has 3 groups; only the 2 largest were measured. Merge levels to see the others." in result.notes


def test_intersections_are_measured_on_request():
    inputs = two_groups(1200, 11, 0.0)
    inputs["sensitive_features"]["h"] = rng(12).choice(["x", "y"], 1200)
    result = audit(**inputs, rng=rng(), max_depth=2, **QUICK)
    assert [m.subject for m in result.named("calibration_gap")] == ["g", "h", "g × h"]
    assert "g × h: a × x" in {row[0] for row in result.table("Calibration by group").rows}


def test_the_bins_of_an_estimate_need_not_be_of_equal_size():
    bins = Bins(np.array([10, 90]), np.array([5, 45]), np.array([5.0, 45.0]))
    found = calibration.ece_estimate(bins, 0.95, 200, rng())
    assert found.low == found.value == 0
    assert found.high > 0


# ----------------------------------------------------------------------------------------------------- the result as a whole


def test_the_same_seed_gives_the_same_result_and_inputs_are_left_alone():
    example = METHOD.example(rng(13))
    before = example["y_score"].copy()
    first, second = audit(**example, rng=rng(1), **QUICK), audit(**example, rng=rng(1), **QUICK)
    assert first.to_json() == second.to_json()
    assert (example["y_score"] == before).all()


def test_figures_survive_storage_and_state_their_finding():
    result = audit(**METHOD.example(rng(14)), rng=rng(), **QUICK)
    stored = Result.from_json(json.loads(json.dumps(result.to_json())), result.arrays)
    drawn = calibration.figures(stored)
    assert [figure.to_json() for figure in drawn] == [figure.to_json() for figure in calibration.figures(result)]
    assert [figure.title for figure in drawn] == [
        "Reliability over all records",
        "Reliability by sex",
        "Expected calibration error by group",
        "Calibration in the large by group",
        "Calibration slope by group",
    ]
    assert "farthest from 0 is sex: male" in drawn[3].alt
    assert all(figure.table.rows and figure.alt for figure in drawn)
