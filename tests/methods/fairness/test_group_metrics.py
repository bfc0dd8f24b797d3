"""Group metrics: rates and gaps by hand, against fairlearn, under the null, with planted gaps, and where they are undefined."""

import json
from itertools import combinations

import numpy as np
import pytest

from audits.methods import stats
from audits.methods.contract import Result
from audits.methods.errors import UnsuitableInput
from audits.methods.fairness import group_metrics
from audits.methods.fairness._counts import Grouping
from audits.methods.fairness.group_metrics import METHOD, Settings, audit, study
from audits.methods.verdict import Verdict, judge

QUICK = {"replicates": 200, "permutations": 200}


def rng(seed=0):
    return np.random.default_rng(seed)


def rows(cells):
    """Rows of y_true, y_pred, group from {group: (tn, fp, fn, tp)}."""
    outcome = np.concatenate([np.repeat(np.arange(4), counts) for counts in cells.values()])
    group = np.repeat(list(cells), [sum(counts) for counts in cells.values()])
    return outcome // 2, outcome % 2, group


def run(cells, **settings):
    y_true, y_pred, group = rows(cells)
    return audit(y_pred, {"sex": group}, rng(), y_true, **{**QUICK, **settings})


def bound(name):
    return next(one for one in METHOD.bounds if one.measurement == name)


def as_rows(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


# ---------------------------------------------------------------------------------------------------------------- by hand

# f: 10 records, 4 selected, 5 positives of which 3 found, 5 negatives of which 1 selected
# m: 20 records, 12 selected, 12 positives of which 9 found, 8 negatives of which 3 selected
BY_HAND = {"f": (4, 1, 2, 3), "m": (5, 3, 3, 9)}


def test_rates_by_hand():
    result = run(BY_HAND, smallest_group=1)
    found = {(m.subject, m.name): m.value for m in result.measurements if m.subject.startswith("sex: ")}
    assert found == {
        ("sex: f", "selection_rate"): 4 / 10,
        ("sex: f", "tpr"): 3 / 5,
        ("sex: f", "fpr"): 1 / 5,
        ("sex: f", "fnr"): 2 / 5,
        ("sex: f", "ppv"): 3 / 4,
        ("sex: f", "accuracy"): 7 / 10,
        ("sex: m", "selection_rate"): 12 / 20,
        ("sex: m", "tpr"): 9 / 12,
        ("sex: m", "fpr"): 3 / 8,
        ("sex: m", "fnr"): 3 / 12,
        ("sex: m", "ppv"): 9 / 12,
        ("sex: m", "accuracy"): 14 / 20,
    }


def test_gaps_by_hand():
    result = run(BY_HAND, smallest_group=1)
    assert result.find("demographic_parity_difference", "sex").value == 12 / 20 - 4 / 10
    assert result.find("demographic_parity_ratio", "sex").value == (4 / 10) / (12 / 20)
    assert result.find("equalized_odds_difference", "sex").value == 3 / 8 - 1 / 5  # FPR .175 is above TPR .15
    assert result.find("equalized_odds_ratio", "sex").value == (1 / 5) / (3 / 8)
    gap = next(row for row in as_rows(result.table("Gaps")) if row["Gap"] == "equalized_odds_difference")
    assert (gap["Lowest group"], gap["Lowest rate"]) == ("f (FPR)", 1 / 5)
    assert (gap["Highest group"], gap["Highest rate"]) == ("m (FPR)", 3 / 8)


def test_two_groups_have_newcombes_interval():
    """Callbacks by race, Bertrand and Mullainathan: 157 of 2435 against 235 of 2435."""
    y_pred = np.repeat([1, 0, 1, 0], [157, 2278, 235, 2200])
    race = np.repeat(["black", "white"], 2435)
    result = audit(y_pred, {"race": race}, rng(), **QUICK)
    gap = result.find("demographic_parity_difference", "race")
    assert (gap.value, gap.low, gap.high) == pytest.approx((0.03203, 0.01678, 0.04738), abs=5e-6)
    assert (gap.low, gap.high) == pytest.approx(stats.newcombe(235, 2435, 157, 2435), abs=1e-14)
    ratio = result.find("demographic_parity_ratio", "race")
    assert ratio.value == pytest.approx(0.6681, abs=5e-5)
    assert (ratio.low, ratio.high) == pytest.approx((0.5510, 0.8118), abs=4e-3)  # the log interval, another method


def test_permutation_p_is_that_of_the_exact_test():
    # two groups of 40, 10 and 20 selected: two-sided hypergeometric P(|difference| >= 1/4) summed exactly
    from scipy.stats import hypergeom

    y_pred = np.repeat([1, 0, 1, 0], [10, 30, 20, 20])
    group = np.repeat(["a", "b"], 40)
    k = np.arange(31)
    chance = hypergeom.pmf(k, 80, 30, 40)
    exact = chance[np.abs(2 * k - 30) >= 10].sum()
    draws = 20_000
    found = audit(y_pred, {"g": group}, rng(), replicates=200, permutations=draws)
    p = found.find("demographic_parity_difference").p_value
    assert abs(p - exact) < 4 * np.sqrt(exact / draws)


def test_small_counts_have_wilson_intervals_and_say_so():
    result = run({"f": (100, 0, 41, 9), "m": (50, 40, 30, 30)})
    few = result.find("tpr", "sex: f")
    assert few.interval == "Wilson score"
    assert (few.low, few.high) == pytest.approx(stats.wilson(9, 50), abs=1e-14)
    none = result.find("fpr", "sex: f")
    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(stats.wilson(0, 100).high, abs=1e-14)
    many = result.find("tpr", "sex: m")
    assert many.interval == "percentile bootstrap of the counts, 200 samples"
    assert many.low < 0.5 < many.high


def test_error_rates_obey_the_identity_of_chouldechova():
    """FPR = prevalence / (1 - prevalence) * (1 - PPV) / PPV * TPR in every group."""
    result = audit(**METHOD.example(rng(1)), rng=rng(), **QUICK)
    for row in as_rows(result.table("Groups")):
        odds = row["Positives"] / (row["Records"] - row["Positives"])
        ppv, tpr = row["Positive predictive value"], row["True positive rate"]
        assert row["False positive rate"] == pytest.approx(odds * (1 - ppv) / ppv * tpr, abs=1e-12)


def test_differing_base_rates_are_pointed_out():
    notes = " ".join(run({"f": (400, 100, 50, 50), "m": (150, 100, 100, 250)}).notes)
    assert "share of positive labels differs between groups of sex (0.167 to 0.583)" in notes
    assert "share of positive" not in " ".join(run({"f": (200, 50, 50, 200), "m": (150, 100, 50, 200)}).notes)


# -------------------------------------------------------------------------------------------------- agreement with fairlearn


def four_columns(n, seed=2):
    generator = rng(seed)
    columns = {
        "sex": generator.choice(["f", "m"], n),
        "race": generator.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1]),
        "age": generator.choice(["18-30", "31-60", "61+"], n),
        "region": generator.choice(["n", "e", "s", "w"], n),
    }
    y_true = generator.integers(0, 2, n)
    y_pred = (generator.random(n) < 0.2 + 0.4 * y_true + 0.15 * (columns["sex"] == "m")).astype(int)
    return y_true, y_pred, columns


def test_every_point_equals_fairlearns_to_the_last_bit():
    """Rates of all intersections to depth 3, and gaps over all groups, with ==."""
    import pandas as pd
    from fairlearn import metrics as fl
    from sklearn.metrics import accuracy_score, precision_score

    y_true, y_pred, columns = four_columns(3000)
    result = audit(y_pred, columns, rng(), y_true, max_depth=3, smallest_group=1, **QUICK)
    groups = {(row["Grouping"], row["Group"]): row for row in as_rows(result.table("Groups"))}
    gaps = {(row["Grouping"], row["Gap"]): row for row in as_rows(result.table("Gaps"))}
    metrics = {
        "Selection rate": fl.selection_rate,
        "True positive rate": fl.true_positive_rate,
        "False positive rate": fl.false_positive_rate,
        "False negative rate": fl.false_negative_rate,
        "Positive predictive value": precision_score,
        "Accuracy": accuracy_score,
    }
    compared = compared_gaps = 0
    for depth in (1, 2, 3):
        for chosen in combinations(columns, depth):
            name = " × ".join(chosen)
            frame = pd.DataFrame({column: columns[column] for column in chosen})
            theirs = fl.MetricFrame(metrics=metrics, y_true=y_true, y_pred=y_pred, sensitive_features=frame)
            defined = True
            for index, expected in theirs.by_group.iterrows():
                row = groups[name, " × ".join(index) if isinstance(index, tuple) else index]
                for title in metrics:
                    defined &= row[title] is not None
                    assert row[title] is None or row[title] == expected[title], (name, index, title)
                    compared += row[title] is not None
            if not defined:
                continue  # fairlearn reads 0/0 as 0
            difference, ratio = theirs.difference(), theirs.ratio()
            for gap, expected in {
                "demographic_parity_difference": difference["Selection rate"],
                "demographic_parity_ratio": ratio["Selection rate"],
                "equalized_odds_difference": max(difference["True positive rate"], difference["False positive rate"]),
                "equalized_odds_ratio": min(ratio["True positive rate"], ratio["False positive rate"]),
            }.items():
                assert gaps[name, gap]["Over all groups"] == gaps[name, gap]["Value"] == expected, (name, gap)
                compared_gaps += 1
    assert compared > 700
    assert compared_gaps >= 40


def test_gap_names_mean_what_fairlearns_functions_mean():
    from fairlearn import metrics as fl

    y_true, y_pred, columns = four_columns(2000)
    result = audit(y_pred, columns, rng(), y_true, max_depth=1, **QUICK)
    for name in group_metrics.JUDGED:
        theirs = getattr(fl, name)(y_true, y_pred, sensitive_features=columns["race"])
        assert result.find(name, "race").value == theirs


def test_bootstrap_limits_are_those_of_a_row_bootstrap():
    """Ends of the percentile interval of a rate against resampled rows; each end has a Monte-Carlo error of some 2 % of the width."""
    y_true, y_pred, columns = four_columns(1500, seed=3)
    found = audit(y_pred, columns, rng(), y_true, max_depth=1, replicates=4000, permutations=200).find("tpr", "race: b")
    generator, member = rng(4), columns["race"] == "b"
    values = np.empty(4000)
    for i in range(values.size):
        picked = generator.integers(0, y_pred.size, y_pred.size)
        values[i] = y_pred[picked][member[picked] & (y_true[picked] == 1)].mean()
    low, high = np.quantile(values, [0.025, 0.975])
    assert abs(found.low - low) < 0.1 * (high - low)
    assert abs(found.high - high) < 0.1 * (high - low)


# ------------------------------------------------------------------------------------------------------------------- null


def null_study(seed, groups=4, n=1500):
    generator = rng(seed)
    y_true, y_pred = generator.integers(0, 2, n), generator.integers(0, 2, n)
    group = generator.integers(0, groups, n)
    counts = np.bincount(group * 4 + 2 * y_true + y_pred, minlength=4 * groups).reshape(groups, 4)
    grouping = Grouping(("g",), tuple("abcdefgh"[:groups]), counts)
    return {gap.name: gap for gap in study(grouping, Settings(200, 400, 0.95, 30), generator).gaps}


def test_without_a_gap_alarms_come_at_the_stated_rate():
    """400 data sets: p <= .05 and intervals without 0 in about 5 %; 400 trials have a standard error of 1.1 points."""
    found = [null_study(seed) for seed in range(400)]
    for name in group_metrics.JUDGED:
        p_values = np.array([gaps[name].p_value for gaps in found])
        assert np.mean(p_values <= 0.05) <= 0.085
        assert 0.42 < p_values.mean() < 0.58
        ideal = 1.0 if name.endswith("ratio") else 0.0
        missed = np.mean([not gaps[name].low <= ideal <= gaps[name].high for gaps in found])
        assert missed <= 0.085


def test_a_large_sample_without_a_gap_is_within_the_bounds():
    generator = rng(5)
    n = 40_000
    y_true, y_pred = generator.integers(0, 2, n), generator.integers(0, 2, n)
    result = audit(y_pred, {"sex": generator.choice(["f", "m"], n)}, rng(), y_true, **QUICK)
    assert [c.passed for c in result.controls] == [True] * 4
    for name in group_metrics.JUDGED:
        assert judge(result.find(name, "sex"), bound(name), result.controls).verdict is Verdict.WITHIN


# ---------------------------------------------------------------------------------------------------------------- planted


def test_planted_gaps_are_recovered_within_the_interval():
    """Selection .30 and .55, TPR gap .35, FPR gap .15: 300 samples, intervals of all four gaps cover and exclude the ideal."""
    rates = {"f": (0.2, 0.4), "m": (0.35, 0.75)}  # FPR, TPR; half of the records are positive
    truth = {
        "demographic_parity_difference": 0.25,
        "demographic_parity_ratio": 0.30 / 0.55,
        "equalized_odds_difference": 0.35,
        "equalized_odds_ratio": 0.4 / 0.75,
    }
    covered, excluded = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    generator, trials = rng(6), 300
    for _ in range(trials):
        counts = []
        for fpr, tpr in rates.values():
            fp, tp = generator.binomial(300, fpr), generator.binomial(300, tpr)
            counts.append([300 - fp, fp, 300 - tp, tp])
        grouping = Grouping(("sex",), ("f", "m"), np.array(counts))
        for gap in study(grouping, Settings(200, 200, 0.95, 30), generator).gaps:
            if gap.name in truth:
                covered[gap.name] += gap.low <= truth[gap.name] <= gap.high
                excluded[gap.name] += not gap.low <= (1.0 if gap.is_ratio else 0.0) <= gap.high
    for name in truth:
        assert covered[name] >= 0.91 * trials, name
        assert excluded[name] >= 0.99 * trials, name


def test_a_planted_gap_exceeds_its_bounds_and_an_innocent_column_does_not():
    result = audit(**METHOD.example(rng(7)), rng=rng(), **QUICK)
    for name in group_metrics.JUDGED:
        assert judge(result.find(name, "sex"), bound(name), result.controls).verdict is Verdict.EXCEEDS
        assert judge(result.find(name, "race"), bound(name), result.controls).verdict is not Verdict.EXCEEDS


def test_an_effect_in_an_intersection_alone_is_found_there():
    generator = rng(8)
    n = 8000
    sex, race = generator.choice(["f", "m"], n), generator.choice(["a", "b"], n)
    chance = np.where((sex == "f") == (race == "a"), 0.7, 0.4)  # an exclusive or: no gap by sex, none by race
    result = audit((generator.random(n) < chance).astype(int), {"sex": sex, "race": race}, rng(), **QUICK)
    assert result.find("demographic_parity_difference", "sex").value < 0.05
    assert result.find("demographic_parity_difference", "race").value < 0.05
    found = result.find("demographic_parity_difference", "sex × race")
    assert found.low < 0.3 < found.high
    assert found.low > 0.2


def test_the_smallest_detectable_gap_is_found_in_four_samples_of_five():
    generator, trials = rng(9), np.array([400, 250])
    pooled = np.array([160, 100])  # a rate of .4
    size = group_metrics.smallest_detectable(pooled, trials, 0.95)
    hits = 0
    for _ in range(1000):
        successes = generator.binomial(trials, [0.4 - size * 0.4, 0.4 + size * 0.6])
        hits += group_metrics.spread(successes, trials, 0.95).difference_low > 0
    assert 0.74 < hits / 1000 < 0.88


def test_controls_state_alarms_and_a_found_plant():
    result = audit(**METHOD.example(rng(10)), rng=rng(), **QUICK)
    assert [(c.kind, c.passed, c.trials) for c in result.controls] == [
        ("negative", True, 400),
        ("positive", True, 400),
        ("negative", True, 400),
        ("positive", True, 400),
    ]
    assert result.controls[0].alarms <= 40
    assert result.controls[1].alarms >= 360


def test_the_negative_control_fails_where_the_intervals_are_too_narrow(monkeypatch):
    """The control can fail: with the critical value halved, shuffled groups raise far too many alarms."""
    whole = group_metrics.critical_value
    monkeypatch.setattr(group_metrics, "critical_value", lambda groups, level: whole(groups, level) / 2)
    result = audit(**METHOD.example(rng(11)), rng=rng(), **QUICK)
    assert not result.controls[0].passed
    judged = judge(
        result.find("demographic_parity_difference", "sex"), bound("demographic_parity_difference"), result.controls
    )
    assert judged.verdict is Verdict.CANNOT_TELL


# ------------------------------------------------------------------------------------------------------------- degenerate


def test_without_true_labels_only_selection_is_reported_and_the_notes_say_so():
    example = METHOD.example(rng(12))
    del example["y_true"]
    result = audit(**example, rng=rng(), **QUICK)
    assert {m.name for m in result.measurements} == {
        "selection_rate",
        "demographic_parity_difference",
        "demographic_parity_ratio",
    }
    assert "No true labels were given" in result.notes[0]
    with_labels = audit(**METHOD.example(rng(12)), rng=rng(), **QUICK)
    for name in ("demographic_parity_difference", "demographic_parity_ratio"):
        assert result.find(name, "sex").value == with_labels.find(name, "sex").value
    assert len(group_metrics.figures(result)) == 5


def test_a_rate_without_records_is_undefined_with_its_reason():
    result = run({"f": (40, 20, 0, 0), "m": (20, 20, 20, 20)})
    tpr = result.find("tpr", "sex: f")
    assert tpr.value is None
    assert tpr.undefined == "no positives in sex: f"
    odds = result.find("equalized_odds_difference", "sex")
    assert odds.value is None
    assert odds.undefined == "fewer than two groups of sex have at least 30 positives"
    assert judge(odds, bound("equalized_odds_difference")).verdict is Verdict.CANNOT_TELL
    assert result.find("demographic_parity_difference", "sex").value is not None


def test_nobody_selected_has_no_ratio():
    result = run({"f": (40, 0, 40, 0), "m": (50, 0, 50, 0)})
    assert result.find("demographic_parity_difference", "sex").value == 0
    assert result.find("demographic_parity_ratio", "sex").undefined.endswith("so the ratio is 0/0")
    assert result.find("equalized_odds_ratio", "sex").value is None
    assert result.find("ppv", "sex: f").undefined == "no selected records in sex: f"


def test_small_groups_are_listed_and_named_but_not_judged():
    cells = {"a": (50, 50, 50, 50), "b": (50, 40, 50, 60), "tiny": (3, 0, 4, 0)}
    result = run(cells)
    tiny = result.find("selection_rate", "sex: tiny")
    assert (tiny.value, tiny.n, tiny.low) == (0.0, 7, 0.0)
    assert tiny.high == pytest.approx(stats.wilson(0, 7).high, abs=1e-14)
    assert any("Left out of the demographic parity gap of sex (fewer than 30 records): tiny" in n for n in result.notes)
    gap = next(row for row in as_rows(result.table("Gaps")) if row["Gap"] == "demographic_parity_difference")
    assert (gap["Value"], gap["Over all groups"]) == (0.0, 0.5)
    assert (gap["Groups compared"], gap["Groups in all"]) == (2, 3)
    assert run(cells, smallest_group=1).find("demographic_parity_difference", "sex").value == 0.5


def test_only_small_groups_cannot_be_compared():
    result = run({"a": (5, 5, 5, 5), "b": (5, 5, 5, 5)})
    for name in group_metrics.JUDGED:
        assert result.find(name, "sex").value is None
    assert result.controls == ()
    assert len(group_metrics.figures(result)) == 3


@pytest.mark.parametrize(
    ("y_pred", "groups", "words"),
    [
        (np.array([], int), np.array([], str), "There are no predictions"),
        (np.array([0, 1, 2]), np.array(["a", "b", "a"]), "Group metrics need two classes"),
        (np.array(["yes", "no"]), np.array(["a", "b"]), "Group metrics need two classes"),
        (np.array([0, 1]), np.array(["a", "a"]), "holds only one group"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(y_pred, groups, words):
    with pytest.raises(UnsuitableInput, match=words):
        audit(y_pred, {"sex": groups}, rng())


def test_labels_of_another_length_are_refused():
    with pytest.raises(UnsuitableInput, match="3 true labels for 2 predictions"):
        audit(np.array([0, 1]), {"sex": np.array(["a", "b"])}, rng(), np.array([0, 1, 1]))


def test_thousands_of_groups_are_capped_in_words():
    generator = rng(13)
    n = 30_000
    columns = {
        "sex": generator.choice(["f", "m"], n),
        "zip": generator.integers(0, 1500, n).astype(str),
    }
    result = audit(generator.integers(0, 2, n), columns, rng(), max_depth=2, **QUICK)
    table = result.table("Groups")
    assert len(table.rows) == group_metrics.MOST_ROWS
    sexes = [row["Group"] for row in as_rows(table) if row["Grouping"] == "sex"]
    assert sexes == ["f", "m"]
    assert "groups of intersections are not shown" in table.notes


def test_more_groups_than_can_be_paired_have_no_interval(monkeypatch):
    monkeypatch.setattr(group_metrics, "MOST_GROUPS", 3)
    result = run(dict.fromkeys("abcd", (10, 20, 10, 20)))
    gap = result.find("demographic_parity_difference", "sex")
    assert (gap.value, gap.low, gap.high, gap.p_value, gap.mde) == (0.0, None, None, None, None)
    assert "merge levels" in gap.interval
    assert judge(gap, bound(gap.name)).verdict is Verdict.CANNOT_TELL


# ----------------------------------------------------------------------------------------------------- the result as a whole


def test_the_same_seed_gives_the_same_result_and_inputs_are_left_alone():
    example = METHOD.example(rng(14))
    before = {name: column.copy() for name, column in example["sensitive_features"].items()}
    first, second = audit(**example, rng=rng(1), **QUICK), audit(**example, rng=rng(1), **QUICK)
    assert first.to_json() == second.to_json()
    for name, column in before.items():
        assert (example["sensitive_features"][name] == column).all()


def test_counts_in_the_millions_are_studied_like_counts_in_the_hundreds():
    """Nothing is allocated by record: 10 000 times the records give the same gaps with intervals a hundredth as wide."""
    counts = np.array([[400, 100, 200, 300], [250, 250, 100, 400]])
    small = study(Grouping(("g",), ("a", "b"), counts), Settings(200, 200, 0.95, 30), rng())
    large = study(Grouping(("g",), ("a", "b"), counts * 10_000), Settings(200, 200, 0.95, 30), rng())
    compared = 0
    for a, b in zip(small.gaps, large.gaps, strict=True):
        assert a.value == pytest.approx(b.value, abs=1e-15)
        if a.low > 0 and a.high < 1:  # not cut at its natural end
            assert (a.high - a.low) / (b.high - b.low) == pytest.approx(100, rel=0.05)
            compared += 1
    assert compared >= 6


def test_figures_survive_storage_and_state_their_finding():
    result = audit(**METHOD.example(rng(15)), rng=rng(), **QUICK)
    stored = Result.from_json(json.loads(json.dumps(result.to_json())), result.arrays)
    drawn = group_metrics.figures(stored)
    assert [figure.to_json() for figure in drawn] == [figure.to_json() for figure in group_metrics.figures(result)]
    assert [figure.title for figure in drawn] == [
        "Demographic parity difference by grouping",
        "Selection rate by sex",
        "True and false positive rates by sex",
        "Demographic parity difference of sex against chance",
        "Selection rate by race",
        "True and false positive rates by race",
        "Demographic parity difference of race against chance",
    ]
    gap = result.find("demographic_parity_difference", "sex")
    assert f"The observed difference is {gap.value:.3f}" in drawn[3].alt
    assert all(figure.table.rows and figure.alt for figure in drawn)
