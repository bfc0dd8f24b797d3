"""CPU cost of the group metrics against fairlearn's bootstrap: 785 subgroups, 7 metrics, 1,000 samples, 1,000,000 rows.

    python -m benchmarks.group_metrics [--quick]

fairlearn's cost is linear in rows, bootstrap samples and frames. It is measured here on its cheapest frame (one column of two
groups) with and without bootstrap samples, and multiplied by 14 frames and 1,000 samples: a lower bound of what it would take.
Ours is measured in full: encoding the string columns, counting, bootstrap, permutation null, controls and tables. Both sides are
CPU seconds (user and system) of this process in the same run.
"""

import argparse
import itertools
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from audits.methods.contract import Array, Result
from audits.methods.fairness import group_metrics
from audits.methods.fairness._counts import count_cells, groupings

LEVELS: Mapping[str, tuple[str, ...]] = {
    "sex": ("female", "male"),
    "race": ("asian", "black", "hispanic", "native", "other", "white"),
    "age": ("18-25", "26-35", "36-50", "51-65", "66+"),
    "region": tuple(f"R{i:02d}" for i in range(10)),
}
SHARES: Mapping[str, tuple[float, ...]] = {
    "sex": (0.51, 0.49),
    "race": (0.06, 0.13, 0.18, 0.02, 0.04, 0.57),
    "age": (0.14, 0.2, 0.28, 0.23, 0.15),
    "region": (0.2, 0.17, 0.14, 0.12, 0.1, 0.09, 0.07, 0.05, 0.04, 0.02),
}
DEPTH, SAMPLES = 3, 1000
FRAMES = [chosen for depth in range(1, DEPTH + 1) for chosen in itertools.combinations(LEVELS, depth)]
SUBGROUPS = sum(int(np.prod([len(LEVELS[name]) for name in chosen])) for chosen in FRAMES)


class Data(NamedTuple):
    """Labels and predictions (n,), and the four columns as codes (n,) each."""

    y_true: Array
    y_pred: Array
    codes: dict[str, Array]

    def strings(self) -> dict[str, Array]:
        """The columns as the strings that people upload."""
        return {name: np.array(LEVELS[name])[code] for name, code in self.codes.items()}


def make(n: int) -> Data:
    """A table with a gap in every column; fixed seed."""
    rng = np.random.default_rng(20240607)
    codes = {name: rng.choice(len(LEVELS[name]), n, p=SHARES[name]).astype(np.uint8) for name in LEVELS}
    shift = 0.25 * codes["sex"] + 0.12 * codes["race"] - 0.1 * codes["age"] + 0.03 * codes["region"] - 0.6
    z = rng.standard_normal(n) + shift
    y_true = rng.random(n) < 1 / (1 + np.exp(-1.4 * z))
    y_pred = z + 0.8 * rng.standard_normal(n) > 0
    return Data(y_true.astype(np.int8), y_pred.astype(np.int8), codes)


def cpu_seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """User and system seconds of one call, and what it returned."""
    start = time.process_time()
    out = call()
    return time.process_time() - start, out


def ours(data: Data, columns: Mapping[str, Array]) -> Result:
    """The whole audit."""
    return group_metrics.audit(
        data.y_pred, columns, np.random.default_rng(1), data.y_true, max_depth=DEPTH, replicates=SAMPLES
    )


def fairlearn_frame(data: Data, columns: Mapping[str, Array], chosen: tuple[str, ...], samples: int) -> Any:
    """One MetricFrame with its differences, ratios and (for samples > 0) all bootstrap intervals."""
    import pandas as pd
    from fairlearn import metrics as fl
    from sklearn.metrics import accuracy_score, precision_score

    def ppv(y_true: Array, y_pred: Array) -> float:
        return float(precision_score(y_true, y_pred, zero_division=0))

    frame = fl.MetricFrame(
        metrics={
            "selection_rate": fl.selection_rate,
            "tpr": fl.true_positive_rate,
            "fpr": fl.false_positive_rate,
            "fnr": fl.false_negative_rate,
            "ppv": ppv,
            "accuracy": accuracy_score,
            "count": fl.count,
        },
        y_true=data.y_true,
        y_pred=data.y_pred,
        sensitive_features=pd.DataFrame({name: columns[name] for name in chosen}),
        **({"n_boot": samples, "ci_quantiles": [0.025, 0.975], "random_state": 7} if samples else {}),
    )
    frame.difference(), frame.ratio()
    if samples:
        _ = frame.by_group_ci, frame.difference_ci(), frame.ratio_ci()
    return frame


def check_points(n: int) -> None:
    """Every defined rate of every subgroup, and every gap over all groups, against fairlearn: equal, or the script fails."""
    data = make(n)
    columns = data.strings()
    result = ours(data, columns)
    groups, gaps = result.table("Groups"), result.table("Gaps")
    rows = {(row[0], row[2]): dict(zip(groups.columns, row, strict=True)) for row in groups.rows}
    over_all = {(row[0], row[2]): row[gaps.columns.index("Over all groups")] for row in gaps.rows}
    titles = {name: rate.title for name, rate in group_metrics.rates_of(4).items()}
    compared = undefined = compared_gaps = 0
    for chosen in FRAMES:
        frame = fairlearn_frame(data, columns, chosen, 0)
        grouping, complete = " × ".join(chosen), True
        for index, theirs in frame.by_group.iterrows():
            group = " × ".join(index) if isinstance(index, tuple) else index
            if (grouping, group) not in rows:
                if not theirs.isna().all():
                    raise SystemExit(f"{grouping}: {group} is missing")
                continue
            row = rows[grouping, group]
            for name, title in titles.items():
                if row[title] is None:
                    undefined, complete = undefined + 1, False
                elif row[title] != theirs[name]:
                    raise SystemExit(f"{name} of {grouping}: {group} is {row[title]!r}, fairlearn's {theirs[name]!r}")
                else:
                    compared += 1
        if complete:
            compared_gaps += _check_gaps(over_all, grouping, frame)
    print(
        f"points at n={n:,}: {len(rows)} subgroups with records, {compared} rates and {compared_gaps} gaps equal fairlearn's"
    )
    print(
        f"  to the last bit; {undefined} rates are 0/0 (fairlearn: 0; here: undefined, and such groupings' gaps not compared)"
    )


def _check_gaps(over_all: Mapping[tuple[Any, Any], Any], grouping: str, frame: Any) -> int:
    difference, ratio = frame.difference(), frame.ratio()
    theirs = {
        "demographic_parity_difference": difference["selection_rate"],
        "demographic_parity_ratio": ratio["selection_rate"],
        "equalized_odds_difference": max(difference["tpr"], difference["fpr"]),
        "equalized_odds_ratio": min(ratio["tpr"], ratio["fpr"]),
    }
    for name, value in theirs.items():
        if over_all[grouping, name] != value:
            raise SystemExit(f"{name} of {grouping} is {over_all[grouping, name]!r}, fairlearn's {value!r}")
    return len(theirs)


def compare(n: int, samples: int) -> float:
    """CPU ratio at n rows; `samples` bootstrap samples of fairlearn are measured."""
    data = make(n)
    columns = data.strings()
    ours(make(2000), make(2000).strings())  # imports and caches of both sides are warmed first
    fairlearn_frame(make(2000), make(2000).strings(), ("sex",), 1)
    mine, result = cpu_seconds(lambda: ours(data, columns))
    without, _ = cpu_seconds(lambda: fairlearn_frame(data, columns, ("sex",), 0))
    with_samples, _ = cpu_seconds(lambda: fairlearn_frame(data, columns, ("sex",), samples))
    each = (with_samples - without) / samples
    theirs = len(FRAMES) * (without + SAMPLES * each)
    shown = len(result.table("Groups").rows)
    print(f"n={n:,}, {shown} subgroups with records of {SUBGROUPS}, {SAMPLES} bootstrap samples, CPU seconds:")
    print(f"  this project, measured in full    {mine:12.2f}")
    print(f"  fairlearn, frame of sex, no CI    {without:12.2f}   measured")
    print(f"  fairlearn, one bootstrap sample   {each:12.2f}   measured over {samples} sample(s) of that frame")
    print(
        f"  fairlearn, 14 frames, 1000 samples{theirs:12.0f}   extrapolated: 14 x (frame + 1000 x sample), the cheapest frame"
    )
    print(f"  ratio                             {theirs / mine:12,.0f}")
    return theirs / mine


def scaling(sizes: tuple[int, ...]) -> None:
    """Our cost by rows: the counting pass (columns as codes), and everything after it."""
    settings = group_metrics.Settings(SAMPLES, 2000, 0.95, 30)
    print("own cost in CPU seconds        counting       after counting (bootstrap, null, intervals)")
    for n in sizes:
        data = make(n)
        outcome = 2 * data.y_true.astype(np.int64) + data.y_pred
        counting, table = cpu_seconds(lambda data=data, outcome=outcome: count_cells(data.codes, outcome, 4))
        rng = np.random.default_rng(1)
        after, _ = cpu_seconds(
            lambda table=table, rng=rng: [group_metrics.study(one, settings, rng) for one in groupings(table, DEPTH)]
        )
        print(f"  n={n:<12,}               {counting:8.3f}       {after:8.2f}")


def main() -> None:
    """Run the check, the comparison and the scaling."""
    parser = argparse.ArgumentParser(description="CPU cost of the group metrics against fairlearn")
    parser.add_argument("--quick", action="store_true", help="20,000 rows instead of 1,000,000")
    quick = parser.parse_args().quick
    warnings.filterwarnings("ignore")
    check_points(5_000 if quick else 100_000)
    if quick:
        compare(20_000, samples=2)
    else:
        ratio = compare(1_000_000, samples=1)
        print(f"goal: at least 100,000 times less CPU: {'reached' if ratio >= 1e5 else 'MISSED'}")
    scaling((10_000, 100_000) if quick else (10_000, 100_000, 1_000_000, 10_000_000))


if __name__ == "__main__":
    main()
