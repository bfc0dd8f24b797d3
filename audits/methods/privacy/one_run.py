"""How much privacy loss does one training run with canaries prove?

m canaries are each put into the training set by their own fair coin, the model is trained once, and the auditor scores
every canary. She guesses "in" for the highest scores and "out" for the lowest and abstains between. If training were
(ε, δ)-differentially private, the number of right guesses would be dominated by randomised response: with
q = e^ε / (1 + e^ε), r guesses and v of them right,

    p(ε) = P[Bin(r, q) >= v] + 2 m δ max_{1<=i<=v} P[v - i <= Bin(r, q) < v] / i.

`epsilon_lower_bound` is the largest ε with p(ε) <= 1 - level; ideal 0 (nothing proven). It is evidence against privacy
only: no run of this audit can confirm a claimed ε.

The counts r are fixed before any score is seen, either the user's one or the list `SHARES` of the canaries with a
Bonferroni correction over its entries; each r is declared, so the theorem holds for each. Choosing r by the scores, as the
hull of the ROC curve does, is not covered. Equal scores are ordered by chance.

Source: Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023, Theorem 5.2 and appendix D.
Limits: canaries interfere with each other, so the bound stays below what many runs would prove (a Gaussian mechanism of
ε 4.4 yields about 1.5 from 2,000 canaries); weak canaries or scores prove little; the inclusion coins must be fair and
independent and unknown to the scorer.
Agrees with: the p-value and the bound of the paper's appendix D and of jax_privacy's one-run auditor (at a fixed threshold).
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from audits.methods.charts import Figure, Series, histogram, lines
from audits.methods.contract import (
    Array,
    Bound,
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
from audits.methods.stats import binomial_tail, clopper_pearson

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the canaries: the guess counts declared when the user fixes none
FEWEST_CANARIES = 20
FEWEST_GUESSES = 8  # below, even all right says nothing at a level of 95 % after correction: 2**-7 > 0.05 / 7
UNFAIR = 1e-6  # p-value below which the inclusion coins are taken for unfair
ODD = 0.01  # p-value below which the report mentions it
PLANTED_SHIFT = 4.0  # standard deviations of the score
PLANTED_TRIALS = 50
TOLERANCE = 1e-9
CELLS = 4_000_000  # of a block of shuffled inclusion bits
GUESS_TABLE = "Guesses and what they prove"


# ----------------------------------------------------------------------------------------------------------- the theorem


def p_value_curve(m: int, guesses: int, correct: int, delta: float) -> Callable[[float], float]:
    """p(ε): chance of at least `correct` right of `guesses` if training were (ε, δ)-private, m canaries (Theorem 5.2).

    The window probabilities P[v - i <= Bin(r, q) < v] for all i are one cumulative sum over the binomial probabilities,
    which are built in log space: log q = -log(1 + e^-ε), log(1 - q) = -ε + log q.
    """
    from scipy.special import betainc, gammaln

    if correct == 0:
        return lambda epsilon: 1.0
    below = np.arange(correct - 1, -1, -1)  # v-1, v-2, ..., 0
    log_choose = gammaln(guesses + 1) - gammaln(below + 1) - gammaln(guesses - below + 1)
    widths = np.arange(1, correct + 1)

    def p_value(epsilon: float) -> float:
        log_q = -math.log1p(math.exp(-epsilon))
        beta = float(betainc(correct, guesses - correct + 1, math.exp(log_q)))  # P[Bin(r, q) >= v]
        if delta == 0:
            return beta
        window = np.cumsum(np.exp(log_choose + below * log_q + (guesses - below) * (log_q - epsilon)))
        return min(1.0, beta + 2 * m * delta * float((window / widths).max()))

    return p_value


def epsilon_lower_bound(m: int, guesses: int, correct: int, delta: float, alpha: float) -> float:
    """Largest ε with p(ε) <= alpha, at least 0: training is not (ε', δ)-private for any smaller ε', wrong at most in a share alpha."""
    from scipy.optimize import brentq

    p_value = p_value_curve(m, guesses, correct, delta)
    if p_value(0.0) > alpha:
        return 0.0
    beyond = 1.0
    while p_value(beyond) <= alpha:
        beyond *= 2
    root = float(brentq(lambda epsilon: p_value(epsilon) - alpha, 0.0, beyond, xtol=TOLERANCE))
    return max(0.0, root - TOLERANCE)  # one tolerance down: never beyond the true root


def correct_needed(m: int, guesses: int, epsilon: float, delta: float, alpha: float) -> int | None:
    """Fewest right guesses that refute (ε, δ)-privacy; None where not even all right would. p falls as they grow."""
    fewest, most = math.ceil(guesses / 2), guesses
    if p_value_curve(m, guesses, most, delta)(epsilon) > alpha:
        return None
    while fewest < most:
        middle = (fewest + most) // 2
        if p_value_curve(m, guesses, middle, delta)(epsilon) <= alpha:
            most = middle
        else:
            fewest = middle + 1
    return most


def detectable_epsilon(m: int, counts: Sequence[int], epsilon: float, delta: float, alpha: float) -> float | None:
    """Smallest true ε whose best attack, right with chance e^ε / (1 + e^ε) each, refutes `epsilon` in 80 % of runs.

    P[Bin(r, q) >= v] is the regularised incomplete beta function of q, so q is its inverse at 0.8.
    """
    from scipy.special import betaincinv

    found = []
    for guesses in counts:
        needed = correct_needed(m, guesses, epsilon, delta, alpha)
        if needed is not None:
            q = float(betaincinv(needed, guesses - needed + 1, 0.8))
            found.append(math.log(q / (1 - q)))
    return min(found) if found else None


# ------------------------------------------------------------------------------------------------------------ the guesses


class Guessing(NamedTuple):
    """How many canaries are called "in" from the top and "out" from the bottom."""

    top: int
    bottom: int

    @property
    def total(self) -> int:
        """All guesses, r."""
        return self.top + self.bottom


def declared_guesses(m: int, guesses: int, sides: str) -> list[Guessing]:
    """The guess counts that are fixed before any score is seen."""
    room = m if sides == "both" else m // 2  # half the canaries are in: guessing "in" further down proves nothing
    if guesses > room:
        raise UnsuitableInput(
            f"{guesses} guesses were asked for, but {m} canaries allow at most {room} on this side; ask for fewer."
        )
    wanted = [guesses] if guesses else sorted({math.ceil(share * room) for share in SHARES})
    counts = [count for count in wanted if guesses or count >= FEWEST_GUESSES]
    if sides == "both":
        return [Guessing(math.ceil(count / 2), count // 2) for count in counts]
    return [Guessing(count, 0) for count in counts]


def correct_guesses(members: Array, guessing: Guessing) -> Array:
    """Right guesses of each row of `members` (b, m): inclusion bits in order of falling score. Shape (b,)."""
    top = members[:, : guessing.top].sum(axis=1, dtype=np.int64)
    bottom = members[:, members.shape[1] - guessing.bottom :].sum(axis=1, dtype=np.int64)
    return top + guessing.bottom - bottom


def by_falling_score(score: Array, included: Array, rng: np.random.Generator) -> Array:
    """Inclusion bits in order of falling score, equal scores in random order, shape (m,)."""
    return included[np.lexsort((rng.random(score.size), -score))]


# ------------------------------------------------------------------------------------------------------------- the audit


class Guessed(NamedTuple):
    """What one declared guess count proved."""

    guessing: Guessing
    correct: int
    epsilon: float
    p_value: float


def _checked(canary_score: Array, is_member: Array) -> tuple[Array, Array, float]:
    """Scores (m,), inclusion (m,) and the p-value of the coins being fair."""
    from scipy.stats import binomtest

    score = finite(canary_score, "score")
    included = member_mask(is_member, score.size, "canary")
    m, inside = score.size, int(included.sum())
    if m < FEWEST_CANARIES:
        raise UnsuitableInput(
            f"One-run auditing needs at least {FEWEST_CANARIES} canaries, better a thousand; there are {m}."
        )
    fair = float(binomtest(inside, m).pvalue)
    if inside in (0, m) or fair < UNFAIR:
        raise UnsuitableInput(
            f"{inside} of {m} canaries were included, which fair coins do not give (p {fair:.1g}). The bound holds only if "
            "each canary entered the training set by its own fair coin; draw the coins again and retrain."
        )
    return score, included, fair


def _bits(included: Array, trials: int, rng: np.random.Generator) -> list[Array]:
    """Blocks of shuffled inclusion bits, together (trials, m)."""
    rows = max(1, CELLS // included.size)
    sizes = [min(rows, trials - start) for start in range(0, trials, rows)]
    return [rng.permuted(np.broadcast_to(included, (size, included.size)), axis=1) for size in sizes]


def _alarms(blocks: Sequence[Array], declared: Sequence[Guessing], needed: Sequence[int | None]) -> int:
    """In how many rows some declared guess count proves an ε above 0."""
    alarms = 0
    for block in blocks:
        called = np.zeros(len(block), bool)
        for guessing, enough in zip(declared, needed, strict=True):
            if enough is not None:
                called |= correct_guesses(block, guessing) >= enough
        alarms += int(called.sum())
    return alarms


def _negative_control(
    included: Array,
    declared: Sequence[Guessing],
    needed: Sequence[int | None],
    level: float,
    trials: int,
    rng: np.random.Generator,
) -> Control:
    alarms = _alarms(_bits(included, trials, rng), declared, needed)
    low, high = clopper_pearson(alarms, trials, level)
    return Control(
        "inclusion bits shuffled",
        "negative",
        f"With the inclusion bits shuffled, {alarms} of {trials} audits proved an ε above 0; at most {1 - level:.1%} may.",
        passed=binomial_tail(alarms, trials, 1 - level) > 0.001,
        trials=trials,
        alarms=alarms,
        value=alarms / trials,
        low=low,
        high=high,
    )


def _positive_control(
    score: Array, included: Array, declared: Sequence[Guessing], needed: Sequence[int | None], rng: np.random.Generator
) -> Control:
    shift = PLANTED_SHIFT * (float(score.std()) or 1.0)
    found = 0
    for _ in range(PLANTED_TRIALS):
        planted = rng.permutation(score) + shift * included
        found += _alarms([by_falling_score(planted, included, rng)[None]], declared, needed)
    low, high = clopper_pearson(found, PLANTED_TRIALS)
    return Control(
        "planted canaries",
        "positive",
        f"With the scores shuffled and those of included canaries raised by {PLANTED_SHIFT:g} standard deviations, "
        f"{found} of {PLANTED_TRIALS} audits proved an ε above 0.",
        passed=found >= 0.8 * PLANTED_TRIALS,
        trials=PLANTED_TRIALS,
        alarms=found,
        value=found / PLANTED_TRIALS,
        low=low,
        high=high,
    )


def _guess_table(guessed: Sequence[Guessed], level: float) -> Table:
    rows = []
    for one in guessed:
        low, high = clopper_pearson(one.correct, one.guessing.total, level)
        share = one.correct / one.guessing.total
        rows.append((one.guessing.total, *one.guessing, one.correct, share, low, high, one.epsilon, one.p_value))
    columns = (
        "Guesses",
        "Called in",
        "Called out",
        "Right",
        "Share right",
        "Low",
        "High",
        "ε proven",
        "p-value of ε = 0",
    )
    return Table(GUESS_TABLE, columns, tuple(rows), "Interval, ε and p-value are corrected for all rows (Bonferroni).")


def _p_curve(m: int, best: Guessed, tries: int, delta: float, furthest: float) -> tuple[Array, Array]:
    """Corrected p-value of the best guess count over a grid of ε, two arrays (61,)."""
    grid = np.linspace(0, max(1.0, 1.25 * furthest), 61)
    p_value = p_value_curve(m, best.guessing.total, best.correct, delta)
    return grid, np.minimum(1.0, tries * np.array([p_value(epsilon) for epsilon in grid]))


def _excess(
    m: int, guessed: Sequence[Guessed], bound: float, claimed: float, delta: float, level: float
) -> Measurement:
    tries, counts = len(guessed), [one.guessing.total for one in guessed]
    p_claim = min(p_value_curve(m, one.guessing.total, one.correct, delta)(claimed) for one in guessed)
    shown = detectable_epsilon(m, counts, claimed, delta, (1 - level) / tries)
    return Measurement(
        "epsilon_excess",
        bound - claimed,
        subject=f"over the claim of ε {claimed:g} at δ {delta:g}",
        low=bound - claimed,
        level=level,
        n=m,
        worse="higher",
        p_value=min(1.0, tries * p_claim),
        mde=None if shown is None else shown - claimed,
        interval="lower bound on ε less the claim; open above, since no audit can confirm a claim",
    )


def _claim_note(claimed: float, bound: float, ceiling: float, m: int) -> str:
    if claimed == 0:
        return "No claimed ε was given, so nothing was held against a claim; the lower bound stands on its own."
    if bound > claimed:
        return f"The claim of ε {claimed:g} is refuted: this run proves at least {bound:.3g}."
    if ceiling <= claimed:
        return (
            f"With {m} canaries even a perfect attack proves no more than ε {ceiling:.3g}, so a claim of {claimed:g} cannot be "
            "refuted here; use more canaries."
        )
    return f"The claim of ε {claimed:g} is not refuted by this run. That does not verify it."


def audit(
    canary_score: Array,
    is_member: Array,
    rng: np.random.Generator,
    progress: Progress = no_progress,
    *,
    delta: Annotated[float, Setting("The δ at which ε is bounded", 0.0, 0.1)] = 1e-5,
    level: Annotated[float, Setting("Confidence level of the bound", 0.5, 0.999)] = 0.95,
    claimed_epsilon: Annotated[
        float, Setting("ε that was claimed for the training; 0 for no claim", 0.0, 1000.0)
    ] = 0.0,
    guesses: Annotated[
        int,
        Setting(
            "Canaries to guess, fixed before seeing scores; 0 tries seven shares of them and corrects for it", 0, 10**7
        ),
    ] = 0,
    sides: Annotated[
        str, Setting("Guess “in” at the top and “out” at the bottom, or only “in”", choices=("both", "in only"))
    ] = "both",
    permutations: Annotated[int, Setting("Shuffles of the negative control", 200, 10_000)] = 500,
) -> Result:
    """Lower bound on ε from one training run with canaries included by fair coins."""
    score, included, fair = _checked(canary_score, is_member)
    m = score.size
    declared = declared_guesses(m, guesses, sides)
    tries = len(declared)
    alpha = (1 - level) / tries
    ordered = by_falling_score(score, included, rng)[None]
    progress(0.1, "bounding ε")
    guessed = []
    for guessing in declared:
        correct = int(correct_guesses(ordered, guessing)[0])
        p_none = p_value_curve(m, guessing.total, correct, delta)(0.0)
        epsilon = epsilon_lower_bound(m, guessing.total, correct, delta, alpha)
        guessed.append(Guessed(guessing, correct, epsilon, min(1.0, tries * p_none)))
    best = max(guessed, key=lambda one: (one.epsilon, -one.p_value))
    counts = [one.total for one in declared]
    ceiling = max(epsilon_lower_bound(m, count, count, delta, alpha) for count in counts)
    progress(0.4, "running the controls")
    needed = [correct_needed(m, count, 0.0, delta, alpha) for count in counts]
    controls = (
        _negative_control(included, declared, needed, level, permutations, rng),
        _positive_control(score, included, declared, needed, rng),
    )
    right = clopper_pearson(best.correct, best.guessing.total, 1 - alpha)
    how = f"{tries} guess counts declared beforehand, Bonferroni" if tries > 1 else "one guess count, fixed beforehand"
    measurements = [
        Measurement(
            "epsilon_lower_bound",
            best.epsilon,
            subject=f"at δ {delta:g}",
            low=best.epsilon,
            level=level,
            n=m,
            worse="higher",
            ideal=0.0,
            p_value=min(one.p_value for one in guessed),
            mde=detectable_epsilon(m, counts, 0.0, delta, alpha),
            interval=f"one-run test of Steinke et al. 2023, {how}; open above",
        ),
        Measurement(
            "largest_provable_epsilon",
            ceiling,
            subject="by a perfect attack on these canaries",
            n=m,
            interval="computed from the number of canaries, not estimated",
        ),
        Measurement(
            "guess_accuracy",
            best.correct / best.guessing.total,
            subject=f"{best.guessing.total} guesses on {m} canaries",
            low=right.low,
            high=right.high,
            level=level,
            n=best.guessing.total,
            worse="higher",
            ideal=0.5,
            interval=f"Clopper-Pearson, guesses taken as independent, corrected for {tries}",
        ),
    ]
    if claimed_epsilon == 0:
        unasked = "no claimed ε was given to hold the bound against"
        measurements.append(Measurement("epsilon_excess", None, subject="no claim", undefined=unasked))
    else:
        measurements.append(_excess(m, guessed, best.epsilon, claimed_epsilon, delta, level))
    notes = [_claim_note(claimed_epsilon, best.epsilon, ceiling, m)]
    if ceiling == 0:
        notes.append(
            f"With {m} canaries at δ {delta:g} no attack could prove an ε above 0; use more canaries or a smaller δ."
        )
    if fair < ODD:
        notes.append(
            f"{int(included.sum())} of {m} canaries were included; for fair coins that is unusual (p {fair:.2g})."
        )
    grid, curve = _p_curve(m, best, tries, delta, max(best.epsilon, claimed_epsilon))
    progress(1.0, "done")
    return Result(
        measurements=tuple(measurements),
        controls=controls,
        tables=(_guess_table(guessed, 1 - alpha),),
        arrays={
            "epsilon_grid": grid,
            "epsilon_p_value": curve,
            "score_in": thinned(score[included], rng),
            "score_out": thinned(score[~included], rng),
        },
        notes=tuple(notes),
    )


# ------------------------------------------------------------------------------------------------------------ the figures


def figures(result: Result) -> list[Figure]:
    """The bound by guess count, the p-value over ε, and the scores of included and left-out canaries."""
    bound = result.find("epsilon_lower_bound")
    accuracy = result.find("guess_accuracy")
    rows = result.table(GUESS_TABLE).rows
    grid, curve = result.arrays["epsilon_grid"], result.arrays["epsilon_p_value"]
    significance = 1 - (bound.level or 0.0)
    proven = f"{bound.value:.3g}" if bound.value else "nothing above 0"
    return [
        lines(
            "ε proven by each declared number of guesses",
            [Series("ε proven", np.array([row[0] for row in rows], float), np.array([row[7] for row in rows], float))],
            x_title="Guesses (canaries)",
            y_title="Lower bound on ε",
            alt=f"The best of {len(rows)} declared guess counts proves {proven}; {accuracy.subject}, "
            f"{accuracy.value:.1%} of them right.",
            markers=True,
        ),
        lines(
            "How well each ε explains the right guesses",
            [
                Series("p-value", grid, curve),
                Series(f"significance {significance:.3g}", grid, np.full(grid.size, significance)),
            ],
            x_title="ε of the training",
            y_title="p-value, corrected",
            alt=f"An ε is refuted where the p-value lies below {significance:.3g}: up to {proven}.",
        ),
        histogram(
            "Scores of included and left-out canaries",
            result.arrays["score_in"],
            x_title="Canary score",
            alt=f"Scores of canaries in training against those left out (at most {DRAWN:,} drawn of each); the attack guesses "
            f"{accuracy.value:.1%} right.",
            second=result.arrays["score_out"],
            names=("Included", "Left out"),
        ),
    ]


def example(rng: np.random.Generator) -> dict[str, Array]:
    """1,000 canaries of a Gaussian mechanism with noise 0.5 (ε 10 at δ 1e-5): well separated scores."""
    is_member = rng.integers(0, 2, 1000)
    return {"canary_score": is_member + 0.5 * rng.standard_normal(1000), "is_member": is_member}


METHOD = Method(
    title="Privacy audit from one training run",
    question="How large is the ε that one training run with canaries proves, and does it refute a claimed ε?",
    source="Steinke, Nasr and Jagielski, “Privacy Auditing with One (1) Training Run”, NeurIPS 2023",
    audit=audit,
    figures=figures,
    example=example,
    limits=(
        "A lower bound: it can refute a claimed ε, never confirm one.",
        "Weak canaries or weak scores prove little; a small bound is not evidence of privacy.",
        "Many canaries in one run mask each other: the bound stays well below the true ε of most mechanisms.",
        "Each canary must have entered by its own fair coin, and the scores must not have seen the coins.",
        "Bounds made for one mechanism (f-DP of the Gaussian, Mahloujifar et al. 2024) are tighter where they apply.",
    ),
    advice="If the bound exceeds the claim, treat the guarantee as void: look for gradients that escape clipping (batch "
    "statistics, auxiliary losses), noise of the wrong scale, sampling that the accountant does not model, or steps that it did "
    "not count. If it merely is large, add noise, lower the clipping norm or train for fewer steps, and audit again.",
    bounds=(
        Bound(
            "epsilon_excess",
            0.0,
            "critical",
            "A proven ε above the claimed one means the privacy guarantee given to people is false.",
        ),
    ),
    clauses=("GDPR Art. 25", "EU AI Act Art. 15(5)", "NIST SP 800-226", "NIST AI RMF MEASURE 2.10"),
)
