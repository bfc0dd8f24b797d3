"""Does the loss of a record give away that the model was trained on it?

The attack calls a record a member where its loss lies below a threshold. Measured are the area under its ROC curve
`membership_auc` = P(loss of a member < loss of a non-member) + P(tie) / 2 (ideal 0.5), the true positive rate at a false
positive rate of 1 % and of 0.1 % (ideal: the false positive rate itself), and the membership advantage TPR - FPR (ideal 0).
A low false positive rate is what matters to the few records that are exposed: an average over all records hides them.

How sure. AUC: DeLong; its p-value is that of Mann and Whitney, one-sided, ties corrected. TPR at FPR f: the threshold is
the f-quantile of the non-members' loss and itself uncertain, so it is enclosed between two order statistics of the
non-members (binomial, alpha / 4 each side), and the members below each get a Clopper-Pearson bound (alpha / 4 each side):
the interval covers at least at its level, for any distribution. Advantage: the threshold is chosen on a random half and
judged on the other, since the largest TPR - FPR of all thresholds is biased upward.

Source: Yeom, Giacomelli, Fredrikson and Jha, "Privacy Risk in Machine Learning", CSF 2018 (threshold attack, advantage);
Carlini, Chien, Nasr, Song, Terzis and Tramèr, "Membership Inference Attacks From First Principles", S&P 2022 (low FPR).
Limits: members and non-members must come from one distribution, which cannot be seen from losses; a loss threshold is a
weak attack, and calibrated ones (LiRA, RMIA) find more.
Agrees with: scikit-learn's roc_curve and roc_auc_score, scipy's mannwhitneyu.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

import numpy as np

from audits.methods.charts import Figure, Series, histogram, intervals, lines
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
from audits.methods.privacy._membership import DRAWN, finite, member_mask, thinned
from audits.methods.stats import (
    Estimate,
    auc_delong,
    binomial_tail,
    clopper_pearson,
    newcombe,
    normal_quantile,
    permutation_p,
)

LOW_FPRS = (0.01, 0.001)
FEWEST = 25  # members, and non-members: with fewer the planted AUC below would be missed too often
FEWEST_IN_GROUP = 10
PLANTED_AUC = 0.75
PLANTED_TRIALS = 100
PLANTED_RECORDS = 5000  # a plant that so few records show, more would show as well
ROC_POINTS = 120
CELLS = 4_000_000  # of a block of shuffled membership marks
ROUNDING = 1e-9  # 0.001 * 3000 must count as 3


def percent(share: float) -> str:
    """0.001 as "0.1 %"."""
    return f"{100 * share:g} %"


# ------------------------------------------------------------------------------------------------- one ROC, its quantities


class Shared(NamedTuple):
    """What every labelling of the same losses shares, in order of rising loss: mid-ranks (n,), last places of ties (u,)."""

    ranks: Array
    ends: Array


class Attack(NamedTuple):
    """The attack under b labellings: AUC (b,), largest TPR - FPR (b,), TPR at each of `LOW_FPRS` (b, 2)."""

    auc: Array
    advantage: Array
    tpr: Array


def shared_ranks(record_loss: Array) -> Shared:
    """Ranks and ties of the losses."""
    from scipy.stats import rankdata

    ordered = np.sort(record_loss)
    return Shared(rankdata(ordered), np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)))


def attack(members: Array, shared: Shared) -> Attack:
    """The attack for each row of `members` (b, n): membership in order of rising loss."""
    n = members.shape[1]
    n1 = int(members[0].sum())
    n0 = n - n1
    caught = members.cumsum(axis=1, dtype=np.int32)[:, shared.ends]
    false = shared.ends[None] + 1 - caught
    auc = 1 - (members @ shared.ranks - n1 * (n1 + 1) / 2) / (n1 * n0)
    advantage = np.maximum(0.0, (caught / n1 - false / n0).max(axis=1))
    tpr = np.zeros((len(members), len(LOW_FPRS)))
    for column, fpr in enumerate(LOW_FPRS):
        thresholds = (false <= fpr * n0 + ROUNDING).sum(axis=1)  # both counts rise along the row
        reached = np.take_along_axis(caught, np.maximum(thresholds - 1, 0)[:, None], axis=1)[:, 0]
        tpr[:, column] = np.where(thresholds > 0, reached, 0) / n1
    return Attack(auc, advantage, tpr)


def null_spread(shared: Shared, n1: int, n0: int) -> float:
    """Standard deviation of the AUC where membership says nothing about the loss, ties corrected (Mann and Whitney 1947)."""
    n = n1 + n0
    ties = np.diff(shared.ends, prepend=-1).astype(float)
    correction = float((ties**3 - ties).sum()) / (n * (n - 1))
    return math.sqrt(max(0.0, (n + 1 - correction) / (12 * n1 * n0)))


def mann_whitney_p(auc: Array, spread: float, n1: int, n0: int) -> Array:
    """One-sided p-values of AUCs above 1/2, normal approximation with continuity correction; 1 where all losses are equal."""
    from scipy.stats import norm

    if spread == 0:
        return np.ones_like(auc)
    return np.asarray(norm.sf((auc - 0.5 - 0.5 / (n1 * n0)) / spread))


def tpr_at_fpr(member: Array, other: Array, fpr: float, level: float) -> Estimate:
    """TPR of the largest threshold whose FPR is at most `fpr`, with an interval that covers at least at `level`.

    `member` (n1,) and `other` (n0,) are sorted losses; a record is called a member where its loss is below the threshold.
    With X ~ Bin(n0, fpr), the true threshold lies above the l-th smallest loss of the non-members unless X < l, and not above
    the u-th unless X >= u; l and u make each of these less likely than alpha / 4.
    """
    from scipy.stats import binom

    n1, n0, alpha = member.size, other.size, 1 - level
    at = math.floor(fpr * n0 + ROUNDING)
    l = int(binom.ppf(alpha / 4, n0, fpr))  # noqa: E741 - the name of the order statistic
    u = int(binom.ppf(1 - alpha / 4, n0, fpr)) + 1

    def caught(place: int) -> int:
        """Members whose loss is below that of the non-member in this place."""
        return int(np.searchsorted(member, other[place], side="left"))

    value = caught(at) / n1 if at < n0 else 1.0
    low = clopper_pearson(caught(l - 1), n1, 1 - alpha / 2).low if l > 0 else 0.0
    high = clopper_pearson(caught(u - 1), n1, 1 - alpha / 2).high if u <= n0 else 1.0
    return Estimate(value, low, high)


def non_members_needed(fpr: float, level: float) -> int:
    """Fewest non-members with which the lower bound of `tpr_at_fpr` can leave 0: (1 - fpr)^n < alpha / 4."""
    return math.ceil(math.log((1 - level) / 4) / math.log1p(-fpr))


class Advantage(NamedTuple):
    """TPR - FPR of a threshold chosen on other records, Newcombe interval, exact one-sided p-value; n records judged."""

    value: float
    low: float
    high: float
    p_value: float
    n: int


def split_advantage(member: Array, other: Array, level: float, rng: np.random.Generator) -> Advantage:
    """Membership advantage with the threshold chosen on a random half of each side and judged on the other half.

    The p-value is Fisher's: of all records below the threshold, at least so many are members (hypergeometric).
    """
    from scipy.stats import hypergeom

    (choose_1, judge_1), (choose_0, judge_0) = (np.array_split(rng.permutation(side), 2) for side in (member, other))
    candidates = np.unique(np.concatenate([choose_1, choose_0]))
    tpr = np.searchsorted(np.sort(choose_1), candidates, side="right") / choose_1.size
    fpr = np.searchsorted(np.sort(choose_0), candidates, side="right") / choose_0.size
    threshold = candidates[np.argmax(tpr - fpr)]
    caught, false = int((judge_1 <= threshold).sum()), int((judge_0 <= threshold).sum())
    low, high = newcombe(caught, judge_1.size, false, judge_0.size, level)
    n = judge_1.size + judge_0.size
    p_value = float(hypergeom.sf(caught - 1, n, judge_1.size, caught + false))
    return Advantage(caught / judge_1.size - false / judge_0.size, low, high, min(1.0, p_value), n)


# ------------------------------------------------------------------------------------------------------------ the controls


def shuffled(n1: int, n0: int, trials: int, rng: np.random.Generator) -> Iterator[Array]:
    """Blocks of shuffled membership marks, together (trials, n1 + n0)."""
    marks = np.repeat([True, False], [n1, n0])
    rows = max(1, CELLS // marks.size)
    for start in range(0, trials, rows):
        yield rng.permuted(np.broadcast_to(marks, (min(rows, trials - start), marks.size)), axis=1)


def shuffled_attacks(
    shared: Shared, n1: int, n0: int, trials: int, rng: np.random.Generator, progress: Progress
) -> Attack:
    """The attack under `trials` shuffled labellings: its null distribution on these very losses."""
    done, blocks = 0, []
    for block in shuffled(n1, n0, trials, rng):
        blocks.append(attack(block, shared))
        done += len(block)
        progress(0.1 + 0.5 * done / trials, "shuffling membership")
    return Attack(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def planted_shift(record_loss: Array, auc: float) -> float:
    """By how much a record's loss must fall to lie below that of another record with probability `auc` (bisection)."""
    ordered = np.sort(record_loss)
    below, enough = 0.0, float(np.ptp(ordered)) + 1.0
    for _ in range(30):
        shift = (below + enough) / 2
        left = np.searchsorted(ordered, ordered - shift, side="left").mean()
        right = np.searchsorted(ordered, ordered - shift, side="right").mean()
        if 1 - (left + right) / (2 * ordered.size) >= auc:
            enough = shift
        else:
            below = shift
    return enough


def _negative_control(null: Attack, spread: float, n1: int, n0: int, level: float) -> Control:
    trials = null.auc.size
    alarms = int((mann_whitney_p(null.auc, spread, n1, n0) <= 1 - level).sum())
    low, high = clopper_pearson(alarms, trials, level)
    return Control(
        "membership shuffled",
        "negative",
        f"With the membership marks shuffled, the AUC test called in {alarms} of {trials} trials at a rate of "
        f"{percent(round(1 - level, 6))}.",
        passed=binomial_tail(alarms, trials, 1 - level) > 0.001,
        trials=trials,
        alarms=alarms,
        value=alarms / trials,
        low=low,
        high=high,
    )


def _positive_control(record_loss: Array, n1: int, level: float, rng: np.random.Generator) -> Control:
    shift = planted_shift(record_loss, PLANTED_AUC)
    n = min(record_loss.size, PLANTED_RECORDS)
    n1 = min(max(round(n * n1 / record_loss.size), FEWEST), n - FEWEST)
    n0 = n - n1
    found = 0
    for _ in range(PLANTED_TRIALS):
        planted = rng.choice(record_loss, n, replace=False)
        planted[:n1] -= shift
        shared = shared_ranks(planted)
        members = (np.argsort(planted, kind="stable") < n1)[None]
        p_value = mann_whitney_p(attack(members, shared).auc, null_spread(shared, n1, n0), n1, n0)[0]
        found += int(p_value <= 1 - level)
    low, high = clopper_pearson(found, PLANTED_TRIALS)
    return Control(
        "planted shift of members' losses",
        "positive",
        f"With membership of {n:,} records shuffled and members' losses lowered by {shift:.3g} nats (an AUC of {PLANTED_AUC:g} or "
        f"more), the AUC test called in {found} of {PLANTED_TRIALS} trials.",
        passed=found >= 0.8 * PLANTED_TRIALS,
        trials=PLANTED_TRIALS,
        alarms=found,
        value=found / PLANTED_TRIALS,
        low=low,
        high=high,
    )


# --------------------------------------------------------------------------------------------------------- the measurements


def _auc(member: Array, other: Array, level: float, subject: str = "") -> Measurement:
    """AUC of one set of records; `member` (n1,) and `other` (n0,) are losses."""
    estimate = auc_delong(-member, -other, level)
    n1, n0 = member.size, other.size
    spread = null_spread(shared_ranks(np.concatenate([member, other])), n1, n0)
    reach = normal_quantile(0.5 + level / 2) + normal_quantile(0.8)
    return Measurement(
        "membership_auc",
        estimate.value,
        subject=subject,
        low=estimate.low,
        high=estimate.high,
        level=level,
        n=n1 + n0,
        worse="higher",
        ideal=0.5,
        p_value=float(mann_whitney_p(np.array([estimate.value]), spread, n1, n0)[0]),
        mde=min(0.5, reach * spread) if spread > 0 else None,
        interval="DeLong, on the logit scale; exact bounds where losses separate or are all equal",
    )


def _tpr(member: Array, other: Array, fpr: float, level: float, p_value: float) -> Measurement:
    """TPR at one false positive rate; losses are sorted."""
    name = f"tpr_at_fpr_{fpr:g}"
    subject = f"at {percent(fpr)} false positives"
    needed = math.ceil(1 / fpr)
    if other.size < needed:
        reason = f"{percent(fpr)} FPR needs at least {needed:,} non-members; there are {other.size:,}"
        return Measurement(name, None, subject=subject, worse="higher", ideal=fpr, undefined=reason)
    estimate = tpr_at_fpr(member, other, fpr, level)
    return Measurement(
        name,
        estimate.value,
        subject=subject,
        low=estimate.low,
        high=estimate.high,
        level=level,
        n=member.size + other.size,
        worse="higher",
        ideal=fpr,
        p_value=p_value,
        interval="order statistics of the non-members for the threshold, Clopper-Pearson for the members below it",
    )


def _group_aucs(
    record_loss: Array, members: Array, sensitive_features: Mapping[str, Array], level: float
) -> list[Measurement]:
    """AUC of every group of every sensitive column; undefined with the reason where a side is too small."""
    found = []
    for column, values in sensitive_features.items():
        groups = np.asarray(values).astype(str)
        for group in np.unique(groups):
            inside = groups == group
            member, other = record_loss[inside & members], record_loss[inside & ~members]
            subject = f"{column}: {group}"
            if min(member.size, other.size) < FEWEST_IN_GROUP:
                reason = (
                    f"a group needs {FEWEST_IN_GROUP} members and {FEWEST_IN_GROUP} non-members; there are {member.size} "
                    f"and {other.size}"
                )
                found.append(
                    Measurement(
                        "membership_auc", None, subject=subject, n=int(inside.sum()), worse="higher", undefined=reason
                    )
                )
            else:
                found.append(_auc(member, other, level, subject))
    return found


def _loss_table(member: Array, other: Array) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, side in (("Members", member), ("Non-members", other)):
        low, middle, high = np.quantile(side, [0.05, 0.5, 0.95])
        rows.append((name, side.size, float(side.mean()), low, middle, high))
    return Table("Loss by membership, nats", ("", "Records", "Mean", "5 %", "Median", "95 %"), tuple(rows))


def _advantage_table(actual: Attack, null: Attack, split: Advantage) -> Table:
    middle, top = np.quantile(null.advantage, [0.5, 0.95])
    rows: tuple[tuple[Cell, ...], ...] = (
        ("Threshold chosen on one half, judged on the other", split.value),
        ("Largest over all thresholds, same records (biased upward)", float(actual.advantage[0])),
        ("The same with membership shuffled, median", float(middle)),
        ("The same with membership shuffled, 95 % quantile", float(top)),
    )
    return Table("Membership advantage", ("How", "TPR - FPR"), rows)


def roc_with_band(member: Array, other: Array, level: float) -> Array:
    """Rows of FPR, TPR, low, high on a logarithmic grid of FPR, shape (4, p); losses are sorted."""
    grid = np.unique(np.geomspace(1 / other.size, 1, ROC_POINTS))[:-1]
    estimates = [(fpr, *tpr_at_fpr(member, other, fpr, level)) for fpr in grid]
    return np.array([*estimates, (1.0, 1.0, 1.0, 1.0)]).T


def _notes(non_members: int, level: float) -> tuple[str, ...]:
    notes = []
    for fpr in LOW_FPRS:
        needed = non_members_needed(fpr, level)
        if 1 / fpr <= non_members < needed:
            notes.append(
                f"The lower bound of the TPR at {percent(fpr)} FPR stays 0 below {needed:,} non-members (there are "
                f"{non_members:,}): the threshold is not known well enough to prove a leak there."
            )
    notes.append(
        "Whether members and non-members come from one distribution was not tested; it cannot be seen from losses alone."
    )
    return tuple(notes)


def _sides(record_loss: Array, is_member: Array) -> tuple[Array, Array]:
    """Losses (n,) and membership (n,), checked."""
    losses = finite(record_loss, "loss")
    members = member_mask(is_member, losses.size, "record")
    n1 = int(members.sum())
    if min(n1, losses.size - n1) < FEWEST:
        raise UnsuitableInput(
            f"Membership inference needs at least {FEWEST} members and {FEWEST} non-members; there are {n1} and "
            f"{losses.size - n1}. Add held-out records from the same source as the training set."
        )
    return losses, members


def audit(
    record_loss: Array,
    is_member: Array,
    rng: np.random.Generator,
    sensitive_features: Mapping[str, Array] | None = None,
    progress: Progress = no_progress,
    *,
    level: Annotated[float, Setting("Confidence level of the intervals", 0.5, 0.999)] = 0.95,
    permutations: Annotated[int, Setting("Shuffles of the membership marks", 200, 10_000)] = 500,
) -> Result:
    """The loss threshold attack on members and non-members, overall and by group."""
    losses, members = _sides(record_loss, is_member)
    member, other = np.sort(losses[members]), np.sort(losses[~members])
    n1, n0 = member.size, other.size
    shared = shared_ranks(losses)
    spread = null_spread(shared, n1, n0)
    actual = attack(members[np.argsort(losses, kind="stable")][None], shared)
    null = shuffled_attacks(shared, n1, n0, permutations, rng, progress)
    split = split_advantage(member, other, level, rng)
    measurements = [_auc(member, other, level)]
    for column, fpr in enumerate(LOW_FPRS):
        p_value = permutation_p(float(actual.tpr[0, column]), null.tpr[:, column])
        measurements.append(_tpr(member, other, fpr, level, p_value))
    measurements.append(
        Measurement(
            "membership_advantage",
            split.value,
            low=split.low,
            high=split.high,
            level=level,
            n=split.n,
            worse="higher",
            ideal=0.0,
            p_value=split.p_value,
            interval="Newcombe, threshold chosen on the other half of the records",
        )
    )
    measurements += _group_aucs(losses, members, sensitive_features or {}, level)
    progress(0.7, "planting a leak")
    controls = (
        _negative_control(null, spread, n1, n0, level),
        _positive_control(losses, n1, level, rng),
    )
    progress(0.95, "drawing the ROC curve")
    return Result(
        measurements=tuple(measurements),
        controls=controls,
        tables=(_loss_table(member, other), _advantage_table(actual, null, split)),
        arrays={
            "roc": roc_with_band(member, other, level),
            "null_auc": null.auc,
            "loss_member": thinned(member, rng),
            "loss_non_member": thinned(other, rng),
        },
        notes=_notes(n0, level),
    )


# -------------------------------------------------------------------------------------------------------------- the figures


def _roc_figure(result: Result) -> Figure:
    fpr, tpr, low, high = result.arrays["roc"]
    said = [
        f"TPR {m.value:.3g} {m.subject}" if m.value is not None else f"undefined {m.subject}"
        for m in (result.find(f"tpr_at_fpr_{rate:g}") for rate in LOW_FPRS)
    ]
    return lines(
        "ROC curve of the loss attack, log axes",
        [Series("Loss attack", fpr, tpr, low, high)],
        x_title="False positive rate",
        y_title="True positive rate",
        alt=f"{'; '.join(said)}. The dotted diagonal is chance; a curve above it at the left exposes single records.",
        diagonal=True,
        log=True,
    )


def _group_figure(groups: list[Measurement]) -> Figure:
    defined = [m for m in groups if m.value is not None]
    worst = max(defined, key=lambda m: m.value or 0.0, default=None)
    alt = "No group is large enough." if worst is None else f"Highest in {worst.subject} ({worst.value:.3f})."
    return intervals(
        "Membership AUC by group",
        [m.subject for m in groups],
        [m.value for m in groups],
        [m.low for m in groups],
        [m.high for m in groups],
        x_title="AUC of the loss attack",
        alt=f"AUC of the loss attack by group; 0.5 is chance. {alt}",
        reference=0.5,
        reference_name="chance",
        counts=[m.n or 0 for m in groups],
    )


def figures(result: Result) -> list[Figure]:
    """ROC on log axes with its band, losses on both sides, AUC under shuffled membership, and AUC by group."""
    overall = result.find("membership_auc", "")
    null = result.arrays["null_auc"]
    drawn = [
        _roc_figure(result),
        histogram(
            "Loss of members and non-members",
            result.arrays["loss_member"],
            x_title="Loss, nats",
            alt=f"Losses of members against non-members (at most {DRAWN:,} drawn of each); a member's is lower with probability "
            f"{overall.value:.3f}.",
            second=result.arrays["loss_non_member"],
            names=("Members", "Non-members"),
        ),
        histogram(
            "AUC with membership shuffled",
            null,
            x_title="AUC of the loss attack",
            alt=f"Observed AUC {overall.value:.3f}; with membership shuffled it stays between {null.min():.3f} and "
            f"{null.max():.3f} in {null.size} trials.",
            marker=overall.value,
            marker_name="observed",
        ),
    ]
    groups = [m for m in result.named("membership_auc") if m.subject]
    return [*drawn, _group_figure(groups)] if groups else drawn


def example(rng: np.random.Generator) -> dict[str, object]:
    """1,000 members and 1,000 non-members; members' losses are lower, those of group B most."""
    is_member = np.repeat([1, 0], 1000)
    group = rng.choice(["A", "B"], 2000)
    shrink = np.where(is_member == 1, np.where(group == "B", 0.4, 0.8), 1.0)
    return {
        "record_loss": shrink * rng.gamma(2.0, 0.5, 2000),
        "is_member": is_member,
        "sensitive_features": {"group": group},
    }


METHOD = Method(
    title="Membership inference from losses",
    question="Does the loss of a record give away that the model was trained on it, and whose records most?",
    source="Yeom et al., CSF 2018; Carlini et al., “Membership Inference Attacks From First Principles”, S&P 2022",
    audit=audit,
    figures=figures,
    example=example,
    limits=(
        "Members and non-members must come from one distribution: another time or source looks like a leak.",
        "Copies of members among the non-members hide a leak.",
        "The AUC is an average; it hides the few records that are exposed, which the low false positive rates show.",
        "A loss threshold is a weak attack: LiRA or RMIA with reference models may succeed where it fails.",
    ),
    advice="Reduce overfitting (earlier stopping, regularisation, more data), remove duplicates, or train with differential "
    "privacy; look first at the groups and records with the highest exposure. Do not give out per-record losses or confidences.",
    bounds=(
        Bound(
            "membership_auc",
            0.6,
            "medium",
            "At 0.6 an attacker who sees one member and one non-member names the member three times in five.",
        ),
        Bound(
            "tpr_at_fpr_0.01",
            0.05,
            "medium",
            "Five times as many members named as chance would at one false accusation in a hundred.",
        ),
        Bound(
            "tpr_at_fpr_0.001",
            0.01,
            "high",
            "Ten times as many members named as chance would at one false accusation in a thousand: those few are exposed.",
        ),
    ),
    clauses=("GDPR Art. 5(1)(f)", "EU AI Act Art. 15(5)", "NIST AI 100-2e2023", "NIST AI RMF MEASURE 2.10"),
)
