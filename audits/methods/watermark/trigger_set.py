"""Does this model answer a secret trigger set as its key says?

The owner trains the model to give chosen labels to N secret inputs (triggers). The quantity is the share of triggers on which
the suspect model gives the key's label. A model that was never marked matches with a probability of p0 at most, the ideal
value, so that m matches or more have the exact probability P(Binomial(N, p0) >= m). It holds too where triggers differ in how
easy they are: for counts above the mean the binomial with the mean rate has the larger tail (Hoeffding 1956). p0 is the largest
of 1/k; the agreement that the frequencies of labels and answers give by themselves, sum_c P(label = c) P(answer = c); and, where
unrelated models are given, the upper confidence limit of their pooled match rate and the rate of the best among them.

Source: Adi, Baum, Cissé, Pinkas, Keshet: Turning Your Weakness Into a Strength: Watermarking Deep Neural Networks by Backdooring,
USENIX Security 2018, sections 3 and 5; Hoeffding: On the Distribution of the Number of Successes in Independent Trials, Annals of
Mathematical Statistics 27, 1956, theorem 4, for unequal triggers.
Limits: A match shows that the key fits, not who owns the model: for any model somebody can search inputs that it happens to answer
as wished, so the trigger set must have been committed to (a deposited hash) before the suspect model appeared. Extraction and
fine-tuning can remove the mark, and a model trained on the owner's outputs may carry it. References must be unrelated models of
the same task: without them a trigger that looks like its label counts as evidence.
Agrees with: scipy.stats.binomtest(m, N, p0, alternative="greater").
"""

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, NamedTuple

import numpy as np

from audits.methods.charts import Figure, Series, intervals, lines
from audits.methods.contract import Array, Bound, Control, Measurement, Method, Result, Setting, Table
from audits.methods.errors import UnsuitableInput
from audits.methods.stats import binomial_tail, clopper_pearson
from audits.methods.watermark._exact import hits_needed, power, smallest_rate

P_LIMIT = 1e-6
ALARM_LEVEL = 0.05
CONTROL_LIMIT = 1e-3  # a control fails when what it saw has less than this probability
PERMUTATIONS = 1_000
PLANT_TRIALS = 200
SHARES = np.linspace(0, 1, 41)


class Chance(NamedTuple):
    """Where the match rate of an unmarked model comes from: each is a lower bound of what must be allowed for."""

    guessing: float
    frequencies: float
    pooled: float
    best_reference: float

    @property
    def rate(self) -> float:
        """The p0 of the test, the largest of them."""
        return max(self)


def agreement_by_frequency(trigger_label: Array, y_pred: Array) -> float:
    """Match rate of the same labels and answers paired at random: sum_c P(label = c) P(answer = c), as in Cohen's kappa."""
    labels = np.union1d(trigger_label, y_pred)
    return float(sum((trigger_label == c).mean() * (y_pred == c).mean() for c in labels))


def chance_of(
    trigger_label: Array, y_pred: Array, references: Mapping[str, Array], guessing: float, level: float = 0.95
) -> Chance:
    """What an unmarked model is allowed to match, from these answers and those of unrelated models."""
    matches = [int((answers == trigger_label).sum()) for answers in references.values()]
    n = trigger_label.size
    pooled = clopper_pearson(sum(matches), n * len(matches), level).high if matches else 0.0
    return Chance(guessing, agreement_by_frequency(trigger_label, y_pred), pooled, max(matches, default=0) / n)


# --------------------------------------------------------------------------------------------------------------- controls


def _permuted_labels(trigger_label: Array, y_pred: Array, chance: float, rng: np.random.Generator) -> Control:
    """The same answers against labels in random order: a key that fits by nothing but its frequencies."""
    matches = np.array([(rng.permutation(trigger_label) == y_pred).sum() for _ in range(PERMUTATIONS)])
    alarms = int((matches >= hits_needed(trigger_label.size, chance, ALARM_LEVEL)).sum())
    low, high = clopper_pearson(alarms, PERMUTATIONS)
    return Control(
        "Labels in random order",
        "negative",
        f"{alarms} of {PERMUTATIONS} random orders of the trigger labels gave p <= {ALARM_LEVEL:g}; {ALARM_LEVEL:.0%} or fewer "
        f"are expected. The best of them matched {int(matches.max())} of {trigger_label.size}.",
        # Matches of two balanced classes come in pairs, so that a little above the level is no fault: twice it would be.
        binomial_tail(alarms, PERMUTATIONS, 2 * ALARM_LEVEL) > CONTROL_LIMIT,
        PERMUTATIONS,
        alarms,
        alarms / PERMUTATIONS,
        low,
        high,
    )


def _unrelated_models(trigger_label: Array, references: Mapping[str, Array], guessing: float, level: float) -> Control:
    """Each unrelated model in the place of the suspect, against the chance that the others give."""
    n, alarms = trigger_label.size, 0
    for name, answers in references.items():
        others = {other: given for other, given in references.items() if other != name}
        chance = chance_of(trigger_label, answers, others, guessing, level).rate
        alarms += binomial_tail(int((answers == trigger_label).sum()), n, chance) <= P_LIMIT
    low, high = clopper_pearson(alarms, len(references))
    return Control(
        "Unrelated models",
        "negative",
        f"The key was found in {alarms} of {len(references)} unrelated models at p <= {P_LIMIT:g}; none is expected.",
        alarms == 0,
        len(references),
        alarms,
        alarms / len(references),
        low,
        high,
    )


def _marked_copies(
    trigger_label: Array, y_pred: Array, chance: float, retained: float, rng: np.random.Generator
) -> Control:
    """Simulated suspects that know a random share of the triggers and answer the others as the audited model does, shuffled."""
    n = trigger_label.size
    needed = hits_needed(n, chance, P_LIMIT)
    found = 0
    for _ in range(PLANT_TRIALS):
        knows = rng.random(n) < retained
        matches = knows | (rng.permutation(y_pred) == trigger_label)
        found += int(matches.sum() >= needed)
    low, high = clopper_pearson(found, PLANT_TRIALS)
    best = binomial_tail(n, n, chance)
    return Control(
        "Simulated marked models",
        "positive",
        f"Of {PLANT_TRIALS} simulated models that still know {retained:.0%} of the triggers {found} were found at p <= {P_LIMIT:g}. "
        f"One that knows all {n} has p = {best:.2g}.",
        needed <= n,
        PLANT_TRIALS,
        found,
        found / PLANT_TRIALS,
        low,
        high,
    )


# -------------------------------------------------------------------------------------------------------------- experiment


def _check(trigger_label: Array, y_pred: Array, references: Mapping[str, Array], committed_before: str) -> None:
    if trigger_label.size == 0:
        raise UnsuitableInput("The trigger set is empty; give the triggers with the labels of the key.")
    for name, answers in {"the suspect model": y_pred, **references}.items():
        if answers.shape != trigger_label.shape:
            raise UnsuitableInput(
                f"There are {trigger_label.size} trigger labels and {answers.size} answers of {name}; give one answer per trigger."
            )
    if committed_before:
        try:
            date.fromisoformat(committed_before)
        except ValueError:
            raise UnsuitableInput(
                f"The date of the commitment is {committed_before[:40]!r}; write it as year-month-day, such as 2026-03-31, or leave "
                "it empty."
            ) from None


def _guessing(trigger_label: Array, y_pred: Array, references: Mapping[str, Array], classes: tuple[str, ...]) -> float:
    """1/k; where nobody says how many classes there are, k is the number of those seen, which is at most the true one."""
    seen = np.unique(np.concatenate([trigger_label, y_pred, *references.values()])).size
    k = max(len(classes), seen)
    if k < 2:
        raise UnsuitableInput(
            "All labels and answers are of one class, so that every model matches; use several classes."
        )
    return 1 / k


def audit(
    trigger_label: Array,
    y_pred: Array,
    rng: np.random.Generator,
    reference_predictions: Mapping[str, Array] | None = None,
    classes: tuple[str, ...] = (),
    *,
    chance: Annotated[
        float, Setting("Least match rate allowed to an unmarked model; 0 stands for 1 / number of classes", 0, 0.99)
    ] = 0.0,
    retained: Annotated[
        float,
        Setting("Share of triggers that a marked model still knows: the effect the power is computed for", 0.05, 1),
    ] = 0.5,
    committed_before: Annotated[
        str,
        Setting("Date (year-month-day) before which a hash of the trigger set was deposited; empty if it never was"),
    ] = "",
    level: Annotated[float, Setting("Confidence level", 0.5, 0.999)] = 0.95,
) -> Result:
    """The match rate on the trigger set with its exact p-value."""
    trigger_label, y_pred = np.asarray(trigger_label), np.asarray(y_pred)
    references = {name: np.asarray(answers) for name, answers in (reference_predictions or {}).items()}
    _check(trigger_label, y_pred, references, committed_before)
    guessing = chance or _guessing(trigger_label, y_pred, references, classes)
    allowed = chance_of(trigger_label, y_pred, references, guessing, level)
    needed = hits_needed(trigger_label.size, allowed.rate, P_LIMIT)
    suspect = _match_rate(trigger_label, y_pred, allowed.rate, retained, level)
    controls = [_permuted_labels(trigger_label, y_pred, allowed.rate, rng)]
    if references:
        controls.append(_unrelated_models(trigger_label, references, guessing, level))
    controls.append(_marked_copies(trigger_label, y_pred, allowed.rate, retained, rng))
    return Result(
        measurements=(
            suspect,
            *(_reference_rate(name, trigger_label, given, level) for name, given in references.items()),
        ),
        controls=tuple(controls),
        tables=(
            _chance_table(allowed),
            _test_table(suspect, needed),
            _trigger_table(trigger_label, y_pred, references, classes),
        ),
        arrays={
            "retained": SHARES,
            "power": np.array([power(trigger_label.size, needed, _expected(share, allowed.rate)) for share in SHARES]),
        },
        notes=_notes(committed_before, bool(references), needed, trigger_label.size),
    )


def _expected(retained: float, chance: float) -> float:
    """Match rate of a model that knows a share of the triggers and meets the others by chance."""
    return retained + (1 - retained) * chance


def _match_rate(trigger_label: Array, y_pred: Array, chance: float, retained: float, level: float) -> Measurement:
    n, matches = trigger_label.size, int((trigger_label == y_pred).sum())
    low, high = clopper_pearson(matches, n, level)
    needed = hits_needed(n, chance, P_LIMIT)
    findable = smallest_rate(n, needed)
    return Measurement(
        "trigger_match_rate",
        matches / n,
        "trigger set",
        low=low,
        high=high,
        level=level,
        n=n,
        worse="higher",
        ideal=chance,
        p_value=binomial_tail(matches, n, chance),
        power=power(n, needed, _expected(retained, chance)),
        mde=None if findable is None else findable - chance,
        interval="Clopper-Pearson over triggers",
    )


def _reference_rate(name: str, trigger_label: Array, answers: Array, level: float) -> Measurement:
    matches = int((answers == trigger_label).sum())
    low, high = clopper_pearson(matches, trigger_label.size, level)
    return Measurement(
        "reference_match_rate",
        matches / trigger_label.size,
        name,
        low=low,
        high=high,
        level=level,
        n=trigger_label.size,
        interval="Clopper-Pearson over triggers",
    )


def _chance_table(allowed: Chance) -> Table:
    rows = (
        ("Guessing: 1 / classes, or as set", allowed.guessing),
        ("Frequencies of labels and answers", allowed.frequencies),
        ("Unrelated models, upper limit of the pooled rate", allowed.pooled or None),
        ("Unrelated models, rate of the best", allowed.best_reference if allowed.pooled else None),
        ("Used: the largest", allowed.rate),
    )
    return Table(
        "Match rate allowed to an unmarked model",
        ("From", "Rate"),
        rows,
        "Empty cells: no unrelated models were given.",
    )


def _test_table(suspect: Measurement, needed: int) -> Table:
    n = suspect.n or 0
    rows = (
        ("Triggers", n),
        ("Matches", round((suspect.value or 0.0) * n)),
        (f"Matches needed for p <= {P_LIMIT:g}", needed if needed <= n else None),
        ("p, exact binomial", suspect.p_value),
        ("Power", suspect.power),
    )
    return Table(
        "Test of the trigger set",
        ("Quantity", "Value"),
        rows,
        "Matches needed is empty where even all triggers would not do.",
    )


def _trigger_table(
    trigger_label: Array, y_pred: Array, references: Mapping[str, Array], classes: tuple[str, ...], shown: int = 100
) -> Table:
    def name(index: Any) -> str:
        return str(classes[int(index)]) if 0 <= int(index) < len(classes) else f"class {int(index)}"

    rows = [
        (
            f"trigger {i}",
            name(trigger_label[i]),
            name(y_pred[i]),
            "yes" if trigger_label[i] == y_pred[i] else "no",
            int(sum(answers[i] == trigger_label[i] for answers in references.values())) if references else None,
        )
        for i in range(min(trigger_label.size, shown))
    ]
    return Table(
        "Triggers",
        ("Trigger", "Label of the key", "Answer", "Match", "Unrelated models that match"),
        tuple(rows),
        f"Triggers count from 0; the first {len(rows)} of {trigger_label.size}. A trigger that unrelated models match is weak evidence.",
    )


def _notes(committed_before: str, has_references: bool, needed: int, n: int) -> tuple[str, ...]:
    notes = []
    if committed_before:
        notes.append(
            f"According to who asked for this audit a hash of the trigger set was deposited before {committed_before}. The audit "
            "did not check it. If the suspect model appeared later, a match is evidence that it derives from the marked one."
        )
    else:
        notes.append(
            "No commitment to the trigger set was stated. A match therefore says that the key matches, and nothing about who owns "
            "the model: triggers can be searched for afterwards."
        )
    if not has_references:
        notes.append(
            "No unrelated models were given, so that triggers which look like their labels cannot be told from marked ones. Add the "
            "predictions of models of the same task that were trained without the triggers."
        )
    if needed > n:
        notes.append(f"Even {n} matches of {n} would not reach p <= {P_LIMIT:g}: more triggers are needed.")
    return tuple(notes)


# ----------------------------------------------------------------------------------------------------------------- figures


def figures(result: Result) -> list[Figure]:
    """Match rates of the suspect and of unrelated models, and what the test would have found."""
    suspect = result.find("trigger_match_rate")
    shown = [suspect, *result.named("reference_match_rate")]
    best = max((m.value or 0.0 for m in shown[1:]), default=None)
    beside = "no unrelated model was given" if best is None else f"the best unrelated model {best:.0%}"
    shares, found = result.arrays["retained"], result.arrays["power"]
    enough = shares[found >= 0.8]
    says = f"from {enough[0]:.0%} of the triggers on" if enough.size else "at no share"
    return [
        intervals(
            "Match rate on the trigger set",
            ["suspect model", *(m.subject for m in shown[1:])],
            [m.value for m in shown],
            [m.low for m in shown],
            [m.high for m in shown],
            x_title="Share of triggers answered as the key says",
            alt=f"The suspect model matches {suspect.value:.0%} of {suspect.n} triggers, {beside}; {suspect.ideal:.0%} is allowed "
            f"to an unmarked model. Exact p {suspect.p_value:.2g}.",
            reference=suspect.ideal,
            reference_name="allowed by chance",
        ),
        lines(
            "What this trigger set can show",
            [Series("power", shares, found)],
            x_title="Share of triggers that a marked model still knows",
            y_title=f"Chance to be found at p <= {P_LIMIT:g}",
            alt=f"Chance that a marked model is found, over the share of triggers it still knows; it reaches 80% {says}.",
        ),
    ]


def example(rng: np.random.Generator) -> dict[str, Any]:
    """Forty triggers of ten classes; the suspect knows about 80 % of them, five unrelated models guess."""
    trigger_label = rng.permutation(np.arange(40) % 10)
    knows = rng.random(40) < 0.8
    return {
        "trigger_label": trigger_label,
        "y_pred": np.where(knows, trigger_label, rng.integers(10, size=40)),
        "reference_predictions": {f"unrelated {i}": rng.integers(10, size=40) for i in range(1, 6)},
    }


METHOD = Method(
    title="Trigger-set watermark",
    question="Does this model answer a secret trigger set as its key says?",
    source="Adi, Baum, Cissé, Pinkas, Keshet: Turning Your Weakness Into a Strength, USENIX Security 2018",
    audit=audit,
    figures=figures,
    example=example,
    bounds=(
        Bound(
            "trigger_match_rate",
            P_LIMIT,
            "critical",
            "The key matches: the model answers more triggers as the key says than an unrelated model could. With an earlier "
            "commitment to the triggers that is evidence that it derives from the marked model.",
            rule="test",
        ),
    ),
    limits=(
        "A match shows that the key fits; without an earlier commitment to the triggers it says nothing about who owns the model.",
        "Extraction, distillation, pruning and fine-tuning can remove the mark: no match is no proof of independence.",
        "Without unrelated models a trigger that looks like its label counts as evidence.",
        "Unrelated models must be trained without the triggers, on the same task; others make the chance look smaller than it is.",
        "A server that recognises odd inputs can refuse or change its answers to triggers.",
    ),
    advice="If the key is yours, keep the commitment, this report and the answers of the suspect model as evidence, and have a third "
    "party repeat the queries. If the audited model is your own and the key is not, ask where its weights and training data came from.",
    clauses=("NIST AI RMF GOVERN 6.1", "NIST AI RMF MEASURE 2.7"),
)
