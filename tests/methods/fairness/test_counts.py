"""The counting core: tables, resampling of counts, and the intervals of max-min gaps."""

from itertools import product

import numpy as np
import pytest

from audits.methods import stats
from audits.methods.errors import UnsuitableInput
from audits.methods.fairness import _counts as counts

SEX = np.array(["f", "f", "m", "m", "m", "f"])
RACE = np.array(["a", "b", "a", "a", "b", "b"], dtype=object)
OUTCOME = np.array([3, 0, 1, 2, 3, 3])


# ---------------------------------------------------------------------------------------------------------------- by hand


def test_cells_and_marginals_by_hand():
    table = counts.count_cells({"sex": SEX, "race": RACE}, OUTCOME, 4)
    found = {g.name: dict(zip(g.groups, g.counts.tolist(), strict=True)) for g in counts.groupings(table, 2)}
    assert found == {
        "sex": {"f": [1, 0, 0, 2], "m": [0, 1, 1, 1]},
        "race": {"a": [0, 1, 1, 1], "b": [1, 0, 0, 2]},
        "sex × race": {"f × a": [0, 0, 0, 1], "f × b": [1, 0, 0, 1], "m × a": [0, 1, 1, 0], "m × b": [0, 0, 0, 1]},
    }


def test_depth_limits_the_intersections():
    columns = dict.fromkeys("xyz", SEX)
    table = counts.count_cells(columns, OUTCOME, 4)
    assert [len(list(counts.groupings(table, depth))) for depth in (1, 2, 3, 4)] == [3, 6, 7, 7]


def test_rates_by_hand():
    tn, fp, fn, tp = 5, 1, 2, 4
    cells = np.array([tn, fp, fn, tp])
    found = {
        name: counts.shares(*counts.successes_and_trials(cells, rate)).item() for name, rate in counts.RATES.items()
    }
    assert found == {
        "selection_rate": 5 / 12,
        "tpr": 4 / 6,
        "fpr": 1 / 6,
        "fnr": 2 / 6,
        "ppv": 4 / 5,
        "accuracy": 9 / 12,
    }


def test_zero_over_zero_is_not_a_number():
    assert np.isnan(counts.shares(np.array([0]), np.array([0]))).all()


# ------------------------------------------------------------------------------------------------------ counting, any size


def brute_force(columns, outcome):
    """Every non-empty group of every intersection, by masks."""
    names = list(columns)
    out = {}
    for depth in (1, 2, 3):
        for chosen in [c for c in product([0, 1], repeat=len(names)) if sum(c) == depth]:
            picked = [name for name, used in zip(names, chosen, strict=True) if used]
            for levels in product(*(sorted(set(columns[name].tolist())) for name in picked)):
                mask = np.all([columns[name] == level for name, level in zip(picked, levels, strict=True)], axis=0)
                if mask.any():
                    key = (" × ".join(picked), " × ".join(map(str, levels)))
                    out[key] = np.bincount(outcome[mask], minlength=4).tolist()
    return out


def listed(table):
    return {
        (g.name, group): row
        for g in counts.groupings(table, 3)
        for group, row in zip(g.groups, g.counts.tolist(), strict=True)
    }


@pytest.mark.parametrize("dense_cells", [counts.DENSE_CELLS, 0], ids=["dense", "sparse"])
def test_counting_equals_masks(monkeypatch, dense_cells):
    monkeypatch.setattr(counts, "DENSE_CELLS", dense_cells)
    rng = np.random.default_rng(0)
    columns = {"a": rng.choice(["x", "y"], 500), "b": rng.integers(0, 7, 500), "c": rng.choice(["p", "q", "r"], 500)}
    outcome = rng.integers(0, 4, 500)
    assert listed(counts.count_cells(columns, outcome, 4)) == brute_force(columns, outcome)


def test_many_columns_do_not_overflow():
    rng = np.random.default_rng(1)
    n = 400
    columns = {f"c{i}": rng.integers(0, 300, n) for i in range(12)}  # 300^12 joint levels leave int64 far behind
    outcome = rng.integers(0, 4, n)
    table = counts.count_cells(columns, outcome, 4)
    assert table.codes.shape[0] == n
    single = next(g for g in counts.groupings(table, 1) if g.name == "c11")
    expected = {
        str(v): np.bincount(outcome[columns["c11"] == v], minlength=4).tolist() for v in set(columns["c11"].tolist())
    }
    assert dict(zip(single.groups, single.counts.tolist(), strict=True)) == expected


def test_string_and_object_columns_have_the_same_groups():
    objects, strings = counts.encode(SEX.astype(object)), counts.encode(SEX)
    assert objects[1] == strings[1] == ("f", "m")
    assert objects[0].tolist() == strings[0].tolist()


def test_a_column_of_one_group_is_refused_in_words():
    with pytest.raises(UnsuitableInput, match="Column “sex” holds only one group, “f”"):
        counts.count_cells({"sex": np.array(["f", "f"])}, np.array([0, 1]), 4)


def test_no_column_and_a_short_column_are_refused_in_words():
    with pytest.raises(UnsuitableInput, match="No sensitive column"):
        counts.count_cells({}, OUTCOME, 4)
    with pytest.raises(UnsuitableInput, match="2 values for 6 records"):
        counts.count_cells({"sex": SEX[:2]}, OUTCOME, 4)


@pytest.mark.parametrize("labels", [np.array([0, 1, 2]), np.array([0.0, np.nan]), np.array(["yes", "no"])])
def test_labels_other_than_two_classes_are_refused_in_words(labels):
    with pytest.raises(UnsuitableInput, match="need two classes"):
        counts.binary_labels(labels, "predictions", "Group metrics need")


# ------------------------------------------------------------------------------------------------------------- resampling

TABLE = np.array([[40, 10, 20, 30], [5, 0, 15, 25], [1, 2, 0, 3]])


def test_bootstrap_counts_have_the_multinomial_mean_and_variance():
    draws, n = 20_000, TABLE.sum()
    drawn = counts.bootstrap_counts(TABLE, draws, np.random.default_rng(2))
    assert (drawn.sum(axis=(1, 2)) == n).all()
    assert (drawn[:, TABLE == 0] == 0).all()
    variance = TABLE * (1 - TABLE / n)
    filled = TABLE > 0
    z = (drawn.mean(axis=0) - TABLE)[filled] / np.sqrt(variance[filled] / draws)
    assert np.abs(z).max() < 4
    assert np.allclose(drawn.var(axis=0)[filled] / variance[filled], 1, atol=0.06)


def test_bootstrap_of_counts_is_the_bootstrap_of_rows():
    rng = np.random.default_rng(3)
    group, outcome = np.divmod(np.repeat(np.arange(TABLE.size), TABLE.ravel()), 4)
    n, draws = group.size, 8_000
    by_rows = np.empty(draws)
    for i in range(draws):
        picked = rng.integers(0, n, n)
        by_rows[i] = (outcome[picked][group[picked] == 0] % 2).mean()
    cells = counts.bootstrap_counts(TABLE, draws, rng)[:, 0]
    by_counts = cells[:, [1, 3]].sum(axis=1) / cells.sum(axis=1)
    width = np.ptp(np.quantile(by_rows, [0.025, 0.975]))
    for q in (0.025, 0.5, 0.975):  # the quantile of 8 000 draws has a standard error of about 1 % of the width
        assert abs(np.quantile(by_rows, q) - np.quantile(by_counts, q)) < 0.06 * width


def test_shuffled_successes_are_the_shuffle_of_rows():
    rng = np.random.default_rng(4)
    trials, successes = np.array([30, 12, 8]), np.array([15, 2, 5])
    draws = 8_000
    drawn = counts.shuffled_successes(successes, trials, draws, rng)
    assert (drawn.sum(axis=1) == 22).all()
    assert (drawn <= trials).all()
    selected = np.repeat([1, 0], [22, 28])
    edges = np.array([0, 30, 42])
    by_rows = np.stack([np.add.reduceat(rng.permutation(selected), edges) for _ in range(draws)])
    error = np.sqrt(by_rows.var(axis=0) / draws * 2)
    assert (np.abs(drawn.mean(axis=0) - by_rows.mean(axis=0)) < 4 * error).all()
    assert np.allclose(drawn.var(axis=0) / by_rows.var(axis=0), 1, atol=0.07)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_planted_gap_has_the_size_it_says(share):
    rng = np.random.default_rng(5)
    trials = np.array([4000, 1000])
    null = rng.binomial(trials, share, size=(500, 2))
    planted, size = counts.planted_successes(null, trials, 0, 0.2, rng)
    assert size == 0.2
    moved = (planted - null).mean(axis=0) / trials
    assert moved[1] == 0
    assert abs(abs(moved[0]) - 0.2) < 0.002
    assert (planted >= 0).all()
    assert (planted <= trials).all()


# --------------------------------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (10, 10), (3, 40), (17, 18)])
def test_wilson_limits_equal_the_scalar_version(successes, n):
    low, high = counts.wilson_limits(np.array([successes]), np.array([n]), stats.normal_quantile(0.975))
    assert (low.item(), high.item()) == pytest.approx(stats.wilson(successes, n, 0.95), abs=1e-15)


def test_critical_values_are_those_of_the_tables():
    # upper 5 % points of the studentized range, infinite degrees of freedom: 2.772 (2), 3.314 (3), 4.030 (6), 5.012 (20)
    for groups, q in ((2, 2.772), (3, 3.314), (6, 4.030), (20, 5.012)):
        assert counts.critical_value(groups, 0.95) * np.sqrt(2) == pytest.approx(q, abs=1e-3)


def gap_of(successes, trials, level=0.95):
    successes, trials = np.asarray(successes), np.asarray(trials)
    z = counts.critical_value(trials.size, level)
    low, high = counts.wilson_limits(successes, trials, z)
    return successes / trials, low, high


def test_with_two_groups_the_difference_is_newcombes():
    low, high = counts.difference_interval(*gap_of([157, 235], [2435, 2435]))
    assert (low, high) == pytest.approx(stats.newcombe(235, 2435, 157, 2435, 0.95), abs=1e-15)


def test_the_ratio_interval_agrees_with_the_log_interval_on_large_samples():
    # two groups of 100 000 with rates .2 and .3: log ratio -+ 1.96 sqrt(.8/20000 + .7/30000)
    low, high = counts.ratio_interval(*gap_of([20_000, 30_000], [100_000, 100_000]))
    half = 1.959964 * np.sqrt(0.8 / 20_000 + 0.7 / 30_000)
    assert (low, high) == pytest.approx((2 / 3 * np.exp(-half), 2 / 3 * np.exp(half)), abs=2e-4)


def test_a_rate_of_zero_has_a_ratio_interval_that_starts_at_zero_and_is_not_vacuous():
    low, high = counts.ratio_interval(*gap_of([0, 200], [200, 400]))
    assert low == 0
    assert 0.01 < high < 0.1


def test_blocks_of_pairs_give_the_same_limits():
    rng = np.random.default_rng(6)
    trials = rng.integers(30, 500, 40)
    parts = gap_of(rng.binomial(trials, 0.4), trials)
    for pair in ("difference", "ratio"):
        whole = counts._over_pairs(*parts, pair)
        assert counts._over_pairs(*parts, pair, block=40 * 7) == whole


def coverage(trials, rates, replications, seed):
    """Shares of samples in which the 95 % intervals of difference and ratio cover, and their mean widths."""
    rng = np.random.default_rng(seed)
    trials, rates = np.array(trials), np.array(rates)
    z = counts.critical_value(trials.size, 0.95)
    successes = rng.binomial(trials, rates, size=(replications, trials.size))
    parts = (successes / trials, *counts.wilson_limits(successes, trials, z))
    out = []
    for (low, high), truth in (
        (counts.difference_interval(*parts), np.ptp(rates)),
        (counts.ratio_interval(*parts), rates.min() / rates.max()),
    ):
        out.append((np.mean((low <= truth + 1e-12) & (truth <= high + 1e-12)), np.mean(high - low)))
    return out


@pytest.mark.parametrize(
    ("trials", "rates", "widest"),
    [
        ([300, 300], [0.4, 0.4], 0.12),
        ([300, 300], [0.3, 0.5], 0.16),
        ([800, 60], [0.3, 0.5], 0.26),
        ([800, 60], [0.05, 0.05], 0.10),
        ([300] * 6, [0.4] * 6, 0.20),
        ([300] * 6, [0.3, 0.3, 0.3, 0.5, 0.5, 0.5], 0.24),
        ([1000, 500, 300, 150, 80, 40], [0.4] * 6, 0.36),
        ([1000, 500, 300, 150, 80, 40], [0.5, 0.5, 0.5, 0.5, 0.5, 0.3], 0.45),
    ],
)
def test_gap_intervals_cover_at_their_level_and_are_not_vacuous(trials, rates, widest):
    replications = 4000
    (difference, width), (ratio, _) = coverage(trials, rates, replications, seed=7)
    shortfall = 3 * np.sqrt(0.95 * 0.05 / replications)
    assert difference >= 0.95 - shortfall
    assert ratio >= 0.95 - shortfall
    assert width < widest


def test_the_plain_percentile_bootstrap_would_not_cover_a_tie():
    """Why the gap has an interval of its own: among six equal groups the percentile interval hardly ever reaches 0."""
    rng = np.random.default_rng(8)
    covered = 0
    for _ in range(200):
        rates = rng.binomial(300, 0.4, 6) / 300
        gaps = np.ptp(rng.binomial(300, rates, size=(400, 6)) / 300, axis=1)
        covered += np.quantile(gaps, 0.025) <= 0
    assert covered < 20
