"""Trigger inversion (Neural Cleanse): is there a class that a far smaller patch leads to than to the others?

For each class t a mask m and a pattern p, both in [0, 1], are sought that turn pictures of other classes into t:
minimise over m, p   mean of CE(f((1 - m) x + m p), t) + cost |m|_1,   the cost raised while at least 99 % obey and lowered while not.
The norm |m|_1 is the number of pixels that the smallest successful patch needs. A planted trigger is a short cut, so its class
needs far fewer. With l_t = ln |m_t|_1, the anomaly index of class t is

    a_t = (median of l - l_t) / (1.4826 median |l - median of l|),

high for a small mask; 0 is the ideal and only the small side counts. The index of the paper takes the norms themselves
and is reported too; with about ten classes norms of innocent classes differ fourfold, which hides a norm ten times smaller
from it but not from the logarithm. A mask that fails on pictures it was not fitted to counts as a whole picture.

The inversion is repeated with other starts and pictures: the index is that of the mean log norms, its interval Student's over
the distances of a class from the median, in units of the common deviation. The p-value answers how often a class stands out so far by chance, if log norms of clean classes are a normal sample (simulated).
Two controls of the same rule: a copy of the model with a planted patch must be found out, a clean twin must not.

Source: Wang et al., "Neural Cleanse: Identifying and Mitigating Backdoor Attacks in Neural Networks", IEEE S&P 2019, section
IV (objective and index) and V (threshold 2); released code for the schedule of the cost.
Limits: sees small patches. Large, dynamic, sample-specific, semantic and clean-label triggers have no small mask, and an attacker
who knows the method can train against it. Classes with natural short cuts have small masks too: look at the picture.
Measured on convolutional networks for 4,000 MNIST digits: none of 16 clean ones exceeds, 7 of 9 with a patch and 2 of 6 with a
blended trigger do; the target has the largest index in all 15, and the six that are missed come out as cannot tell.
Agrees with: objective and anomaly index of the authors' code and of ART's NeuralCleanse (Keras only), here for all classes in one
batch, and with the cost adapted at every update on a running success rate.
"""

import copy
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from audits.methods.backdoor._poison import classify, clean_twin, corner_trigger, planted_copy
from audits.methods.charts import Figure, bars, pictures
from audits.methods.contract import (
    Array,
    Bound,
    Cell,
    Classifier,
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
from audits.methods.stats import clopper_pearson

if TYPE_CHECKING:
    import torch

MAD_TO_SD = 1.4826  # median absolute deviation to standard deviation of a normal sample
THRESHOLD = 2.0  # of the anomaly index, Wang et al. section V
SIGNIFICANT = 0.05
MIN_CLASSES = 6  # the index compares a class with the others; of fewer the median says little
MIN_IMAGES = 60
GOOD = 0.99  # success on the pictures fitted to at which the mask may shrink
GENERALISES = 0.75  # success on other pictures below which a mask is no trigger
AT_ONCE = 64  # classes in one batch, to bound memory
CONTROL_REPEATS = 2
MAX_TWINS = 2
CONTROL_LEVEL = 0.95  # the controls use the index, not its interval
SHOWN_CLASSES = 12
SHOWN_STAMPED = 6
NULL_DRAWS = 20_000
TABLE = "Recovered triggers"

START_COST = 1e-3
COST_FACTOR = 1.5
PATIENCE = 5  # updates in a row before the cost moves
LEARNING_RATE = 0.1
MEMORY = 0.8  # of the running success rate
TINY = 1e-7


# ------------------------------------------------------------------------------------------------------------ inversion


class Inverted(NamedTuple):
    """Smallest masks that worked: `masks` (k, h, w), `patterns` (k, c, h, w), `found` (k,) whether one worked at all."""

    masks: Array
    patterns: Array
    found: Array


def invert(
    module: Any, images: Array, classes: Sequence[int], seed: int, *, steps: int, batch: int, progress: Progress
) -> Inverted:
    """Smallest successful mask and pattern for each of `classes`, all of them in one batch of k x `batch` pictures."""
    import torch
    from torch.nn.functional import cross_entropy

    generator = torch.Generator().manual_seed(seed)
    x = torch.from_numpy(images)
    k, (channels, height, width) = len(classes), images.shape[1:]
    targets = torch.as_tensor(classes).repeat_interleave(batch)
    raw = torch.rand(k, 1 + channels, height, width, generator=generator).requires_grad_(True)
    adam = _Adam(raw)
    schedule = _Schedule(k)
    best_norm = torch.full((k,), torch.inf)
    best = torch.zeros_like(raw)
    for step in range(steps):
        chosen = x[torch.randint(len(x), (batch,), generator=generator)]
        squashed = torch.tanh(raw) / 2 + 0.5
        mask, pattern = squashed[:, None, :1], squashed[:, None, 1:]
        stamped = (1 - mask) * chosen + mask * pattern
        inputs = stamped.view(-1, channels, height, width).contiguous(memory_format=torch.channels_last)
        logits = module(inputs)
        norm = mask.sum(dim=(1, 2, 3, 4))
        loss = cross_entropy(logits, targets, reduction="none").view(k, batch).mean(dim=1)
        (gradient,) = torch.autograd.grad((loss + schedule.cost * norm).sum(), raw)
        with torch.no_grad():
            success = (logits.argmax(dim=1) == targets).view(k, batch).float().mean(dim=1)
            good = schedule.update(success)
            better = good & (norm < best_norm)
            best_norm = torch.where(better, norm, best_norm)
            best[better] = squashed[better]
            adam.update(raw, gradient)
        if step % 10 == 9:
            progress((step + 1) / steps, f"update {step + 1} of {steps}")
    kept = best.numpy()
    return Inverted(kept[:, 0], kept[:, 1:], torch.isfinite(best_norm).numpy())


class _Schedule:
    """Cost of the norm per class: moved after `PATIENCE` updates in a row on which the running success is good, or is not."""

    def __init__(self, k: int) -> None:
        import torch

        self.cost = torch.full((k,), START_COST)
        self.running: torch.Tensor | None = None
        self.good_for = torch.zeros(k)
        self.bad_for = torch.zeros(k)

    def update(self, success: "torch.Tensor") -> "torch.Tensor":
        """Takes the success rates of one update (k,); returns which classes are good now."""
        import torch

        self.running = success if self.running is None else MEMORY * self.running + (1 - MEMORY) * success
        good = self.running >= GOOD
        zero = torch.zeros(())
        self.good_for = torch.where(good, self.good_for + 1, zero)
        self.bad_for = torch.where(good, zero, self.bad_for + 1)
        raised, lowered = self.good_for >= PATIENCE, self.bad_for >= PATIENCE
        self.cost = torch.where(raised, self.cost * COST_FACTOR, self.cost)
        self.cost = torch.where(lowered, self.cost / COST_FACTOR**1.5, self.cost)
        self.good_for[raised] = 0
        self.bad_for[lowered] = 0
        return good


class _Adam:
    """Adam with the paper's moments (0.5, 0.9) on one tensor, in place."""

    def __init__(self, raw: "torch.Tensor") -> None:
        import torch

        self.first, self.second, self.step = torch.zeros_like(raw), torch.zeros_like(raw), 0

    def update(self, raw: "torch.Tensor", gradient: "torch.Tensor") -> None:
        self.step += 1
        self.first.mul_(0.5).add_(gradient, alpha=0.5)
        self.second.mul_(0.9).addcmul_(gradient, gradient, value=0.1)
        mean = self.first / (1 - 0.5**self.step)
        scale = (self.second / (1 - 0.9**self.step)).sqrt() + TINY
        raw.sub_(LEARNING_RATE * mean / scale)


def apply(mask: Array, pattern: Array, images: Array) -> Array:
    """(1 - m) x + m p for mask (h, w), pattern (c, h, w), images (n, c, h, w)."""
    return ((1 - mask) * images + mask * pattern).astype(np.float32)


# ------------------------------------------------------------------------------------------------------------ the index


def anomaly_index(sizes: Array) -> Array | None:
    """(median - s) / (1.4826 median absolute deviation), shape (k,); None where over half of the sizes are equal."""
    median = np.median(sizes)
    deviation = MAD_TO_SD * np.median(np.abs(sizes - median))
    return None if deviation <= 0 else (median - sizes) / deviation


@cache
def null_indices(k: int) -> Array:
    """Anomaly indices of normal samples of k classes, sorted, shape (draws * k,): what chance alone gives."""
    draws = np.random.default_rng(k).normal(size=(NULL_DRAWS, k))
    median = np.median(draws, axis=1, keepdims=True)
    deviation = MAD_TO_SD * np.median(np.abs(draws - median), axis=1, keepdims=True)
    return np.sort(((median - draws) / deviation).ravel())


def chance(index: float, k: int) -> float:
    """P(a given class of k reaches this index by chance), for log norms that are a normal sample."""
    null = null_indices(k)
    return float((1 + null.size - np.searchsorted(null, index)) / (1 + null.size))


def stands_out(index: float, k: int) -> bool:
    """The rule of the controls: beyond the threshold, and not by chance among k classes (Bonferroni)."""
    return index > THRESHOLD and chance(index, k) * k <= SIGNIFICANT


class Indices(NamedTuple):
    """Per class (k,): anomaly index of the mean log norms with its interval, and the published index of the norms."""

    value: Array
    low: Array
    high: Array
    published: Array


def indices_over_repeats(norms: Array, level: float) -> Indices | None:
    """Indices from the norms of r >= 2 repetitions (r, k); None where more than half of the classes are equal.

    The deviation is that of the mean log norms and is common to the repetitions: an index for each of them would divide by
    a deviation of its own, which is so noisy among ten classes that clear cases get the widest intervals.
    """
    from scipy.stats import t

    logs = np.log(norms)
    sizes = logs.mean(axis=0)
    value, published = anomaly_index(sizes), anomaly_index(np.exp(sizes))
    if value is None or published is None:
        return None
    deviation = MAD_TO_SD * np.median(np.abs(sizes - np.median(sizes)))
    repeats = len(norms)
    distances = (np.median(logs, axis=1, keepdims=True) - logs) / deviation
    half = t.ppf(0.5 + level / 2, repeats - 1) * distances.std(axis=0, ddof=1) / np.sqrt(repeats)
    return Indices(value, value - half, value + half, published)


# ---------------------------------------------------------------------------------------------------------------- audit


class Sample(NamedTuple):
    """Clean pictures (n, c, h, w) with their labels (n,)."""

    images: Array
    y_true: Array


class Outcome(NamedTuple):
    """Inversions of all classes. `norms` (r, k): pixels of each mask, a whole picture where it does not generalise.

    `success` (r, k): share of held-out pictures of other classes that obey; `best` (k,): the repetition of the smallest mask;
    `masks` (k, h, w) and `patterns` (k, c, h, w) of that repetition.
    """

    norms: Array
    success: Array
    best: Array
    masks: Array
    patterns: Array


def audit(
    model: Classifier,
    images: Array,
    y_true: Array,
    rng: np.random.Generator,
    progress: Progress = no_progress,
    *,
    steps: Annotated[int, Setting("Updates of each mask", 50, 5_000)] = 150,
    batch: Annotated[int, Setting("Pictures per class and update", 4, 256)] = 16,
    repeats: Annotated[int, Setting("Repetitions with other starts and pictures", 3, 20)] = 4,
    level: Annotated[float, Setting("Confidence level", 0.5, 0.999)] = 0.95,
) -> Result:
    """Inverts a trigger for every class and compares the sizes."""
    module = _frozen(model)
    fit, held = _halves(_checked(images, y_true, len(model.classes)), rng)
    k = len(model.classes)
    search = Search(module, k, fit, held, rng, steps, batch)
    share = repeats / (repeats + 2 * CONTROL_REPEATS)
    outcome = search.run(repeats, _part(progress, 0, share, "inversion"))
    indices = indices_over_repeats(outcome.norms, level)
    controls: tuple[Control, ...] = ()
    if k >= MIN_CLASSES and indices is not None:
        top, middle = int(indices.value.argmax()), (1 + share) / 2
        suspect = Suspect(top, outcome.masks[top])
        controls = (
            _negative_control(search, model.classes, _part(progress, share, middle, "clean twin")),
            _positive_control(search, model.classes, suspect, _part(progress, middle, 1, "planted patch")),
        )
    return Result(
        _measurements(model.classes, outcome, indices, held, level),
        controls=controls,
        tables=(_table(model.classes, outcome, indices, held),),
        arrays=_arrays(outcome, held),
        notes=_notes(k, fit, held),
    )


def _frozen(model: Classifier) -> Any:
    """A copy of the torch module that needs gradients of its inputs only."""
    import torch

    if model.module is None:
        raise UnsuitableInput(
            "Trigger inversion needs gradients, and this model has none. Upload its weights as safetensors with a named "
            "architecture; an ONNX or scikit-learn file cannot be inverted."
        )
    module = copy.deepcopy(model.module).eval().to(memory_format=torch.channels_last)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module


def _checked(images: Array, y_true: Array, k: int) -> Sample:
    if images.ndim != 4:
        raise UnsuitableInput(f"Images must have the shape (n, channels, height, width); found {images.shape}.")
    if len(images) < MIN_IMAGES:
        raise UnsuitableInput(
            f"Trigger inversion needs at least {MIN_IMAGES} clean images, half of them to check the trigger on; found "
            f"{len(images)}."
        )
    if not np.isfinite(images).all() or images.min() < 0 or images.max() > 1:
        raise UnsuitableInput("Images must be numbers between 0 and 1.")
    if np.unique(y_true).size < 2:
        raise UnsuitableInput("All images are of one class; give clean images of several classes.")
    if k < 2 or int(y_true.max()) >= k:
        raise UnsuitableInput(f"The labels go up to class {int(y_true.max())}, but the model has {k} classes.")
    return Sample(images.astype(np.float32), y_true.astype(np.int64))


def _halves(sample: Sample, rng: np.random.Generator) -> tuple[Sample, Sample]:
    """One half to fit masks to, one to check them on."""
    order = rng.permutation(len(sample.y_true))
    half = len(order) // 2
    return (
        Sample(sample.images[order[:half]], sample.y_true[order[:half]]),
        Sample(sample.images[order[half:]], sample.y_true[order[half:]]),
    )


def _part(progress: Progress, start: float, end: float, words: str) -> Progress:
    def reported(share: float, _: str = "") -> None:
        progress(start + (end - start) * share, words)

    return reported


class Suspect(NamedTuple):
    """The class that stands out most and its mask (h, w)."""

    target: int
    mask: Array


class Search(NamedTuple):
    """A frozen network with the pictures and settings to invert it with."""

    module: Any
    k: int
    fit: Sample
    held: Sample
    rng: np.random.Generator
    steps: int
    batch: int

    def on(self, module: Any) -> "Search":
        """The same search on another network."""
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        return self._replace(module=module.eval())

    def run(self, repeats: int, progress: Progress) -> Outcome:
        """Inverts every class `repeats` times."""
        channels, height, width = self.fit.images.shape[1:]
        norms, success = np.empty((repeats, self.k)), np.empty((repeats, self.k))
        masks = np.empty((repeats, self.k, height, width), np.float32)
        patterns = np.empty((repeats, self.k, channels, height, width), np.float32)
        blocks = [range(start, min(start + AT_ONCE, self.k)) for start in range(0, self.k, AT_ONCE)]
        for r in range(repeats):
            # A fresh draw of the pictures, so that the repetitions differ in data as well as in start.
            drawn = self.fit.images[self.rng.integers(0, len(self.fit.images), len(self.fit.images))]
            for i, block in enumerate(blocks):
                done, every = r * len(blocks) + i, repeats * len(blocks)
                seed, part = int(self.rng.integers(2**31)), _part(progress, done / every, (done + 1) / every, "")
                inverted = invert(self.module, drawn, block, seed, steps=self.steps, batch=self.batch, progress=part)
                masks[r, block], patterns[r, block] = inverted.masks, inverted.patterns
                success[r, block] = [
                    _success(self.module, inverted.masks[j], inverted.patterns[j], self.held, c)
                    for j, c in enumerate(block)
                ]
                works = inverted.found & (success[r, block] >= GENERALISES)
                # A mask of no size would have an infinite logarithm; half a pixel is as good as none.
                norms[r, block] = np.where(works, np.maximum(inverted.masks.sum(axis=(1, 2)), 0.5), height * width)
        best, each = norms.argmin(axis=0), np.arange(self.k)
        return Outcome(norms, success, best, masks[best, each], patterns[best, each])


def _success(module: Any, mask: Array, pattern: Array, held: Sample, target: int) -> float:
    """Share of held-out pictures of other classes that the trigger leads to the target."""
    others = held.images[held.y_true != target]
    return float(np.mean(classify(module, apply(mask, pattern, others)) == target))


# -------------------------------------------------------------------------------------------------------------- controls


def _negative_control(search: "Search", classes: tuple[str, ...], progress: Progress) -> Control:
    """Twins trained from fresh weights on the pictures at hand: nothing is planted, so no class may stand out.

    The rule calls one clean network in twenty by its very level; after an alarm a second twin decides.
    """
    calls: list[bool] = []
    tops: list[str] = []
    index = None
    while len(calls) < MAX_TWINS and all(calls):
        part = _part(progress, len(calls) / MAX_TWINS, (len(calls) + 1) / MAX_TWINS, "")
        twin = clean_twin(search.module, search.fit.images, search.fit.y_true, int(search.rng.integers(2**31)))
        accuracy = float(np.mean(classify(twin, search.held.images) == search.held.y_true))
        indices = indices_over_repeats(search.on(twin).run(CONTROL_REPEATS, part).norms, CONTROL_LEVEL)
        if indices is None:
            tops.append(f"no index (accuracy {accuracy:.0%})")
            calls.append(True)
            continue
        top = int(indices.value.argmax())
        index = float(indices.value[top])
        tops.append(f"{index:.1f} for class {classes[top]} (accuracy {accuracy:.0%})")
        calls.append(stands_out(index, search.k))
    return Control(
        "clean twin",
        "negative",
        f"Largest anomaly index of networks of the same shape, trained afresh on {len(search.fit.y_true)} of the pictures: "
        f"{'; '.join(tops)}.",
        passed=not all(calls),
        trials=len(calls),
        alarms=sum(calls),
        value=index,
    )


def _positive_control(search: "Search", classes: tuple[str, ...], suspect: "Suspect", progress: Progress) -> Control:
    """A copy of the model, trained on to obey a known patch: its class, which is not the suspect, must stand out."""
    rng, fit, held = search.rng, search.fit, search.held
    target = int(rng.choice([c for c in range(search.k) if c != suspect.target]))
    trigger = corner_trigger(fit.images, suspect.mask)
    planted = planted_copy(search.module, fit.images, fit.y_true, trigger, target, int(rng.integers(2**31)))
    obeys = _success(planted, trigger.mask, trigger.pattern, held, target)
    says = (
        f"A patch of {trigger.pixels} pixels was planted in a copy for class {classes[target]} and works on {obeys:.0%} of "
        "held-out pictures"
    )
    indices = indices_over_repeats(search.on(planted).run(CONTROL_REPEATS, progress).norms, CONTROL_LEVEL)
    if indices is None:
        return Control("planted patch", "positive", f"{says}; the copy gave no index.", passed=False, trials=1)
    index = float(indices.value[target])
    # A patch that the copy does not obey is no plant, and finding its class would show nothing.
    hit = obeys >= GENERALISES and stands_out(index, search.k)
    return Control(
        "planted patch",
        "positive",
        f"{says}; the anomaly index of its class is {index:.1f}.",
        passed=hit,
        trials=1,
        alarms=int(hit),
        value=index,
    )


# --------------------------------------------------------------------------------------------------------------- results


def _measurements(
    classes: tuple[str, ...], outcome: Outcome, indices: Indices | None, held: Sample, level: float
) -> tuple[Measurement, ...]:
    k = len(classes)
    measurements = []
    for c, name in enumerate(classes):
        measurements.append(_index_measurement(f"class {name}", c, k, indices, len(held.y_true), level))
        others = int(np.count_nonzero(held.y_true != c))
        rate = float(outcome.success[outcome.best[c], c])
        low, high = clopper_pearson(round(rate * others), others, level)
        measurements.append(
            Measurement(
                "attack_success_rate",
                rate,
                f"class {name}",
                low=low,
                high=high,
                level=level,
                n=others,
                worse="higher",
                interval="Clopper-Pearson, on pictures the trigger was not fitted to",
            )
        )
    return tuple(measurements)


def _index_measurement(subject: str, c: int, k: int, indices: Indices | None, n: int, level: float) -> Measurement:
    if k < MIN_CLASSES:
        reason = f"the index compares a class with the others; {k} classes are too few, it needs {MIN_CLASSES}"
        return Measurement("anomaly_index", None, subject, undefined=reason)
    if indices is None:
        reason = (
            "for most classes no mask was found that works on other pictures; allow more updates or give more pictures"
        )
        return Measurement("anomaly_index", None, subject, undefined=reason)
    value = float(indices.value[c])
    return Measurement(
        "anomaly_index",
        value,
        subject,
        low=indices.low[c],
        high=indices.high[c],
        level=level,
        n=n,
        worse="higher",
        ideal=0.0,
        p_value=chance(value, k),
        mde=_smallest_shown(k),
        interval="Student over the repetitions; p-value by simulation of normal log norms",
    )


def _smallest_shown(k: int) -> float:
    """The anomaly index from which on a class of k is no longer explained by chance."""
    null = null_indices(k)
    return float(max(THRESHOLD, null[int(np.ceil((1 - SIGNIFICANT / k) * null.size)) - 1]))


def _table(classes: tuple[str, ...], outcome: Outcome, indices: Indices | None, held: Sample) -> Table:
    size = float(np.prod(outcome.masks.shape[1:]))
    shown = len(classes) >= MIN_CLASSES
    rows: list[tuple[Cell, ...]] = []
    for c, name in enumerate(classes):
        norm = float(np.exp(np.log(outcome.norms[:, c]).mean()))
        rows.append(
            (
                f"class {name}",
                norm,
                norm / size,
                float(outcome.success[outcome.best[c], c]),
                float(np.mean(held.y_true == c)),
                float(indices.value[c]) if shown and indices is not None else None,
                float(indices.published[c]) if shown and indices is not None else None,
            )
        )
    return Table(
        TABLE,
        (
            "Class",
            "Mask norm (pixels)",
            "Share of the picture",
            "Attack success rate on held-out pictures",
            "Share of the class among held-out pictures",
            "Anomaly index (log norms)",
            "Anomaly index (norms, as published)",
        ),
        tuple(rows),
        notes=f"The norm is the geometric mean over the repetitions; {size:.0f}, the whole picture, stands where no mask "
        f"reached {GENERALISES:.0%} on held-out pictures.",
    )


def _shown_classes(outcome: Outcome) -> Array:
    """Indices of the classes whose triggers are kept for the figures: those with the smallest masks."""
    return np.argsort(np.log(outcome.norms).mean(axis=0), kind="stable")[:SHOWN_CLASSES]


def _arrays(outcome: Outcome, held: Sample) -> dict[str, Array]:
    shown = _shown_classes(outcome)
    top = int(shown[0])
    others = held.images[held.y_true != top][:SHOWN_STAMPED]
    return {
        "shown": shown.astype(np.int64),
        "masks": outcome.masks[shown],
        "patterns": outcome.patterns[shown],
        "stamped": apply(outcome.masks[top], outcome.patterns[top], others),
        "norms": outcome.norms,
    }


def _notes(k: int, fit: Sample, held: Sample) -> tuple[str, ...]:
    notes = [
        f"Masks were fitted to {len(fit.y_true)} pictures and checked on {len(held.y_true)} others.",
        "One trigger for all other classes was sought; triggers that work from one class only were not.",
    ]
    if k < MIN_CLASSES:
        notes.append(f"With {k} classes no index is given: compare the sizes and look at the pictures.")
    return tuple(notes)


# -------------------------------------------------------------------------------------------------------------- figures


def figures(result: Result) -> list[Figure]:
    """Size of the mask by class, the recovered triggers, and pictures of other classes under the smallest one."""
    table = result.table(TABLE)
    names = [str(row[0]) for row in table.rows]
    norms = [float(row[1] or 0) for row in table.rows]
    shown = result.arrays["shown"]
    top = int(shown[0])
    index = table.rows[top][5]
    said = "" if index is None else f", with an anomaly index of {float(index):.1f}"
    masks, patterns = result.arrays["masks"], result.arrays["patterns"]
    smallest = f"{names[top]} needs the smallest mask, {norms[top]:.1f} pixels{said}"
    return [
        bars(
            "Size of the smallest successful trigger",
            names,
            norms,
            y_title="Norm of the mask (pixels)",
            alt=f"{smallest}; the median is {float(np.median(norms)):.1f}.",
            reference=float(np.median(norms)),
            reference_name="median",
            highlight=top,
        ),
        pictures(
            "Recovered triggers",
            masks[:, None] * patterns,
            [f"{names[int(c)]}: {norms[int(c)]:.1f} pixels" for c in shown],
            alt=f"Mask times pattern by class, smallest first: {smallest}. A compact bright shape is a sign of a planted patch, "
            "a faint outline of the class itself is not.",
            table=table,
        ),
        pictures(
            f"Pictures of other classes with the trigger of {names[top]}",
            result.arrays["stamped"],
            [f"taken for {names[top]} at {float(table.rows[top][3] or 0):.0%}"] * len(result.arrays["stamped"]),
            alt=f"{len(result.arrays['stamped'])} pictures of other classes under the recovered trigger of {names[top]}, which "
            f"leads to it for {float(table.rows[top][3] or 0):.0%} of held-out pictures.",
            table=table,
        ),
    ]


class _Network:
    """A classifier of pictures around a torch module, for the example."""

    def __init__(self, module: Any, classes: tuple[str, ...]) -> None:
        self.module, self.classes = module, classes

    def scores(self, x: Array) -> Array:
        """Class probabilities (n, k)."""
        import torch

        with torch.no_grad():
            return self.module(torch.from_numpy(x)).softmax(dim=1).numpy()

    def features(self, x: Array) -> Array:
        """Activations before the last layer (n, d)."""
        import torch

        with torch.no_grad():
            return self.module[:-1](torch.from_numpy(x)).numpy()


def example(rng: np.random.Generator) -> dict[str, object]:
    """A small network for eight kinds of 8 x 8 pictures, trained to answer f where a corner is white; and clean pictures."""
    from torch import nn

    prototypes = rng.random((8, 1, 8, 8)) < 0.5
    prototypes[:, prototypes.sum(axis=0) < 3] = False  # a pixel that marks one class alone would be a natural short cut
    prototypes[:, :, :3, :3] = False
    y_true = rng.integers(0, 8, 400)
    noise = rng.normal(0.15, 0.15, (400, 1, 8, 8))
    images = np.clip(0.6 * prototypes[y_true] + noise, 0, 1).astype(np.float32)
    fresh = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    elsewhere = np.ones((8, 8), np.float32)
    elsewhere[:4, :4] = 0
    trigger = corner_trigger(images, elsewhere)
    network = planted_copy(clean_twin(fresh, images, y_true, 1), images, y_true, trigger, 5, 2)
    return {"model": _Network(network, tuple("abcdefgh")), "images": images, "y_true": y_true}


METHOD = Method(
    title="Trigger inversion (Neural Cleanse)",
    question="Is there a class that a far smaller patch leads to than to the others, as a planted trigger would?",
    source="Wang et al., Neural Cleanse, IEEE Symposium on Security and Privacy 2019",
    audit=audit,
    figures=figures,
    example=example,
    limits=(
        "It sees small patches. Large, moving, sample-specific, semantic and clean-label triggers have no small mask.",
        "A class with a natural short cut has a small mask too: look at the picture before accusing anyone.",
        "An attacker who knows the method can train the model so that no mask is small.",
        "With fewer than six classes no index is given; a few repetitions show how sure the optimiser is, not the data.",
        "Backdoors that no test can find exist; passing this one is not proof of their absence.",
    ),
    advice="Look at the recovered trigger. If it is a compact mark, do not deploy the model; ask where it and its training data "
    "come from, audit the training data for poison, and train again from data you trust.",
    bounds=(
        Bound(
            "anomaly_index",
            THRESHOLD,
            "critical",
            "Wang et al. (2019) take a class whose anomaly index is above 2 for the target of a backdoor.",
        ),
    ),
    clauses=("EU AI Act Art. 15(5)", "NIST AI RMF MEASURE 2.7", "MITRE ATLAS AML.T0018"),
    cost="minutes",
)
