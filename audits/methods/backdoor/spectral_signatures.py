"""Spectral signatures: does one class of a training set hold a second population that a planted trigger would leave?

Let X_c (n_c, d) be the features, in the layer before last, of the records *labelled* c. Published signature of record i:
s_i = ((x_i - mean of X_c) . v)^2 with v the top right singular vector of the centred X_c; records with the highest s_i
are suspected. Natural variation of a class often outweighs the poison in v, so features are first whitened, by a mixture of the
mean covariance of the *other* classes and that of the central 60 % of the class itself, which poison in c hardly touches; both
scores are kept, records are ranked by the whitened one.

The paper scores records and leaves open which class is poisoned. Here each class has the quantity
q_c = ln mean_i (z_i - median z)^4, z the whitened projection on the top direction: the mean squared score. From it goes what
normal data of the same shape give (simulated), which takes out the size of the class. The excess of class c is q_c minus
the mean of the other classes, in nats; 0 is ideal. Its p-value is that of one more draw from the normal sample of the others
(Student's t with k - 2 degrees of freedom, Grubbs 1950). Two controls: on normal data without a second population the rule must
keep to its level, and a second population planted in the given features must be found as often as the stated power.

Source: Tran, Li and Madry, "Spectral Signatures in Backdoor Attacks", NeurIPS 2018, algorithm 1 (score, removal of 1.5 epsilon);
whitening after Hayase et al., "SPECTRE", ICML 2021, with a simpler robust estimate; Grubbs, "Sample
criteria for testing outlying observations", Annals of Mathematical Statistics 1950.
Limits: on small data sets and where about half of a class is poisoned the ranking is no better than chance, though the class may
still stand out; several poisoned classes mask each other; a class with two natural styles looks poisoned; clean-label and
adaptive poison leaves no signature. Fewer than six classes give no measure of what is usual.
Measured on convolutional networks for 4,000 MNIST digits, none used to choose the statistic, though the level was set after
seeing the clean ones: no class named on 16 clean ones, the poisoned class on 12 of 15 with 13 to 33 % of a class poisoned (8 of 9 patches, 4 of 6 blends); the AUC of
poison in its class is 0.93 or more by the whitened score in 14 of the 15 and by the published one in 6.
Agrees with: SpectralSignatureDefense of the Adversarial Robustness Toolbox 1.20 (published score, same formula by full SVD).
"""

from typing import Annotated, NamedTuple

import numpy as np

from audits.methods.charts import Figure, bars, histogram
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
from audits.methods.stats import binomial_tail, clopper_pearson, holm, normal_quantile

MIN_CLASSES = 6
MIN_ROWS = 20  # of a class, for its top direction to mean anything
MAX_DIMENSIONS = 128  # features are reduced to their leading within-class directions, to bound the cost
RIDGE = 0.1  # of the mean variance, so that dead directions are not blown up
CENTRAL = 0.6  # of a class, assumed to be clean
OWN_WEIGHT = 0.3  # of the class's central part in the whitening covariance, the rest is the other classes'
TRIMMING_ROUNDS = 3
REMOVAL = 1.5  # times the expected share, the paper's margin
CALIBRATION_TWINS = 20
CONTROL_TWINS = 40
TWIN_ROWS = 2_000  # of a class; beyond it the simulated quantity no longer moves
SIGNIFICANT = 0.01  # classes differ by nature: on 32 clean networks a level of 5 % named a class four times, 1 % never
TOLERATED = 0.05  # rate of alarms on normal twins that the negative control lets pass
POWER_LEVEL = 0.8
MAX_LISTED = 200
MAX_DOUBLINGS = 4  # of the planted distance


# --------------------------------------------------------------------------------------------------------------- scores


class Projection(NamedTuple):
    """Centred projections (n,) of a class on its top direction, and the share of its variance that lies there."""

    values: Array
    share: float


def top_projection(rows: Array) -> Projection:
    """Projection of centred rows (n, d) on their top right singular vector; its sign makes the third moment positive."""
    centred = rows - rows.mean(axis=0)
    variances, directions = np.linalg.eigh(centred.T @ centred)
    values = centred @ directions[:, -1]
    total = float(variances.sum())
    if total <= 0:
        return Projection(np.zeros(len(rows)), 0.0)
    return Projection(values if (values**3).sum() >= 0 else -values, float(variances[-1]) / total)


def published_scores(rows: Array) -> Array:
    """Spectral signature of each row of one class, (n,): squared projection on the top singular vector (Tran et al. 2018)."""
    return np.square(top_projection(rows).values)


def covariance(rows: Array) -> Array:
    """Within-class covariance (d, d)."""
    centred = rows - rows.mean(axis=0)
    return centred.T @ centred / len(rows)


def whitener(matrix: Array) -> Array:
    """W (d, d) with W.T S W near the identity for the covariance S; directions without variance are held down by a ridge."""
    variances, directions = np.linalg.eigh(matrix)
    floor = RIDGE * max(float(variances.mean()), np.finfo(float).tiny)
    return directions / np.sqrt(np.maximum(variances, 0) + floor)


def central_covariance(rows: Array, start: Array) -> Array:
    """Covariance (d, d) of the central 60 % of the rows by Mahalanobis distance, refined as in the fast MCD estimate.

    The first distances are from the median under the whitener `start`, which comes from the other classes: a covariance of
    all rows would already hold the poison and hide it.
    """
    distances = np.square((rows - np.median(rows, axis=0)) @ start).sum(axis=1)
    for _ in range(TRIMMING_ROUNDS):
        kept = rows[distances <= np.quantile(distances, CENTRAL)]
        own = covariance(kept)
        distances = np.square((rows - kept.mean(axis=0)) @ whitener(own)).sum(axis=1)
    return own


class Groups(NamedTuple):
    """The rows of each class (n_c, d), their covariances and those of their central parts (k, d, d)."""

    rows: list[Array]
    covariances: Array
    central: Array

    @classmethod
    def of(cls, rows: list[Array]) -> "Groups":
        groups = cls(rows, np.array([covariance(r) for r in rows]), np.empty(0))
        central = [central_covariance(r, whitener(groups.others(c))) for c, r in enumerate(rows)]
        return groups._replace(central=np.array(central))

    def others(self, c: int) -> Array:
        """Mean covariance (d, d) of the classes other than c."""
        return (self.covariances.sum(axis=0) - self.covariances[c]) / max(1, len(self.rows) - 1)

    def whitener(self, c: int) -> Array:
        """The whitening matrix (d, d) of class c: by the other classes and by its own central part."""
        return whitener((1 - OWN_WEIGHT) * self.others(c) + OWN_WEIGHT * self.central[c])

    def replaced(self, c: int, rows: Array) -> "Groups":
        """The same with other rows in class c."""
        covariances, central = self.covariances.copy(), self.central.copy()
        covariances[c] = covariance(rows)
        central[c] = central_covariance(rows, whitener(self.others(c)))
        return Groups([rows if j == c else kept for j, kept in enumerate(self.rows)], covariances, central)

    def subset(self, chosen: list[int]) -> "Groups":
        """Only these classes."""
        return Groups([self.rows[c] for c in chosen], self.covariances[chosen], self.central[chosen])


def whitened_projections(groups: Groups) -> list[Projection]:
    """Per class the projection of its whitened rows on their top direction."""
    return [top_projection(rows @ groups.whitener(c)) for c, rows in enumerate(groups.rows)]


def log_mean_squared_score(projections: list[Projection]) -> Array:
    """ln mean (z - median z)^4 per class, (k,): the log of the mean squared spectral score, about the median."""
    fourth = [np.mean((p.values - np.median(p.values)) ** 4) for p in projections]
    return np.log(np.maximum(fourth, np.finfo(float).tiny))


class Split(NamedTuple):
    """Best split of a projection in two: share of the smaller side, gap of the means in pooled standard deviations."""

    share: float
    gap: float


def split_in_two(values: Array) -> Split:
    """Two groups of one dimension with the least variance within (Otsu 1979), each of two rows or more."""
    ordered = np.sort(values)
    n = ordered.size
    left = np.arange(2, n - 1)
    sums, squares = np.cumsum(ordered), np.cumsum(ordered**2)
    mean_left, mean_right = sums[left - 1] / left, (sums[-1] - sums[left - 1]) / (n - left)
    within = squares[-1] - left * mean_left**2 - (n - left) * mean_right**2
    best = int(within.argmin())
    spread = np.sqrt(max(float(within[best]), 0.0) / n)
    gap = float((mean_right[best] - mean_left[best]) / spread) if spread > 0 else 0.0
    return Split(float(min(left[best], n - left[best]) / n), gap)


# ----------------------------------------------------------------------------------------------------------------- test


class Excess(NamedTuple):
    """Per class (k,): excess over the other classes in nats, half width of its prediction interval, p-value, its scale."""

    value: Array
    half: Array
    p_value: Array
    scale: Array


class Usual(NamedTuple):
    """What normal data of the same shape give per class: mean of the quantity (k,) and its variance from draw to draw (k,)."""

    mean: Array
    noise: Array

    def subset(self, chosen: list[int]) -> "Usual":
        """Only these classes."""
        return Usual(self.mean[chosen], self.noise[chosen])


def excess_over_others(quantity: Array, usual: Usual, level: float = 0.95) -> Excess:
    """Each class against the normal sample of the others: t = excess / scale with k - 2 degrees of freedom.

    A class whose quantity is noisier than the others', because it is small, has that much more variance in its scale.
    """
    from scipy.stats import t

    corrected, k = quantity - usual.mean, quantity.size
    others = np.array([np.delete(corrected, c) for c in range(k)])
    noise_of_others = (usual.noise.sum() - usual.noise) / (k - 1)
    variance = others.var(axis=1, ddof=1) * (1 + 1 / (k - 1)) + np.maximum(usual.noise - noise_of_others, 0)
    value, scale = corrected - others.mean(axis=1), np.sqrt(np.maximum(variance, 1e-24))
    return Excess(value, t.ppf(0.5 + level / 2, k - 2) * scale, t.sf(value / scale, k - 2), scale)


def twin_quantities(sizes: list[int], d: int, draws: int, rng: np.random.Generator) -> Array:
    """The quantity of normal classes of these sizes with one covariance, shape (draws, k): nothing to be found."""
    return np.array(
        [
            log_mean_squared_score(
                whitened_projections(Groups.of([rng.standard_normal((min(size, TWIN_ROWS), d)) for size in sizes]))
            )
            for _ in range(draws)
        ]
    )


def plant(groups: Groups, c: int, share: float, shift: float, rng: np.random.Generator) -> Groups:
    """Moves a share of the rows of class c in one random direction, by `shift` standard deviations of the whitened class."""
    direction = rng.standard_normal(groups.rows[c].shape[1])
    step = np.linalg.solve(groups.whitener(c).T, shift * direction / np.linalg.norm(direction))
    moved = groups.rows[c].copy()
    moved[rng.choice(len(moved), max(2, round(share * len(moved))), replace=False)] += step
    return groups.replaced(c, moved)


def found(p_values: Array) -> Array:
    """Which classes the method names, (k,): Holm over the classes at 1 %."""
    return holm(p_values) <= SIGNIFICANT


# ---------------------------------------------------------------------------------------------------------------- audit


def audit(
    embeddings: Array,
    y_true: Array,
    classes: tuple[str, ...],
    rng: np.random.Generator,
    progress: Progress = no_progress,
    *,
    epsilon: Annotated[float, Setting("Expected share of poison in the poisoned class", 0.01, 0.5)] = 0.2,
    plant_shift: Annotated[
        float, Setting("Distance of the planted population, in standard deviations of the whitened class", 1, 50)
    ] = 10.0,
    plants: Annotated[int, Setting("Plants of the positive control", 10, 500)] = 40,
    level: Annotated[float, Setting("Confidence level", 0.5, 0.999)] = 0.95,
) -> Result:
    """Scores every record and tests every class of (features, label) for a second population."""
    features = _checked(embeddings, y_true)
    sizes = np.bincount(y_true, minlength=len(classes))
    tested = [int(c) for c in np.flatnonzero(sizes >= MIN_ROWS)]
    if not tested:
        raise UnsuitableInput(
            f"No class has {MIN_ROWS} records; the largest has {int(sizes.max())}. Give more records of each class."
        )
    raw = [features[y_true == c] for c in tested]
    groups = Groups.of(_reduced(raw))
    projections = whitened_projections(groups)
    published, scores = _scores(features, y_true, tested, raw, projections)
    quantity = log_mean_squared_score(projections)
    table = _Classes(classes, tested, sizes, quantity, projections, [top_projection(rows).share for rows in raw])

    if len(tested) < MIN_CLASSES:
        reason = f"{len(tested)} classes have {MIN_ROWS} records; {MIN_CLASSES} are needed to know what is usual"
        measurements = [
            Measurement("spectral_excess", None, f"class {classes[c]}", undefined=reason, n=int(sizes[c]))
            for c in tested
        ]
        flagged, listing = _suspects(classes, y_true, published, scores, tested[int(quantity.argmax())], epsilon)
        return Result(
            tuple(measurements),
            tables=(table.rows(None), listing),
            arrays=_arrays(published, scores, flagged, projections, int(quantity.argmax())),
            notes=_notes(classes, tested, sizes, epsilon),
        )

    progress(0.1, "normal twins")
    d = groups.rows[0].shape[1]
    row_counts = [len(rows) for rows in groups.rows]
    twins = twin_quantities(row_counts, d, CALIBRATION_TWINS, rng)
    usual = Usual(twins.mean(axis=0), twins.var(axis=0, ddof=1))
    excess = excess_over_others(quantity, usual, level)
    negative = _negative_control(twin_quantities(row_counts, d, CONTROL_TWINS, rng), usual)
    clean = _unnamed(excess)
    positive = _positive_control(groups.subset(clean), usual.subset(clean), rng, progress, epsilon, plant_shift, plants)
    worst = int(excess.value.argmax())
    flagged, listing = _suspects(classes, y_true, published, scores, tested[worst], epsilon)
    return Result(
        _measurements(classes, tested, sizes, excess, positive.value, level),
        controls=(negative, positive),
        tables=(table.rows(excess), listing),
        arrays=_arrays(published, scores, flagged, projections, worst),
        notes=_notes(classes, tested, sizes, epsilon),
    )


def _checked(embeddings: Array, y_true: Array) -> Array:
    if embeddings.ndim != 2 or embeddings.shape[1] < 2:
        raise UnsuitableInput(
            f"Spectral signatures need a matrix of features with at least two columns; found shape {embeddings.shape}."
        )
    if len(embeddings) == 0:
        raise UnsuitableInput("There are no records to score.")
    features = embeddings.astype(float)
    if not np.isfinite(features).all():
        raise UnsuitableInput("The features hold infinite or missing values; the layer before last must give numbers.")
    if np.ptp(features, axis=0).max() == 0:
        raise UnsuitableInput("Every record has the same features; there is no direction to look along.")
    return features


def _reduced(groups: list[Array]) -> list[Array]:
    """The groups on the leading principal axes of their mean covariance, scaled to a common size; (n_c, <= 128) each."""
    mean = np.mean([covariance(rows) for rows in groups], axis=0)
    variances, axes = np.linalg.eigh(mean)
    kept = axes[:, ::-1][:, :MAX_DIMENSIONS]
    scale = np.sqrt(max(float(variances[-1]), np.finfo(float).tiny))
    return [rows @ kept / scale for rows in groups]


def _scores(
    features: Array, y_true: Array, tested: list[int], raw: list[Array], projections: list[Projection]
) -> tuple[Array, Array]:
    """Published and whitened score of each record, (n,) each; records of untested classes score 0."""
    published, scores = np.zeros(len(features)), np.zeros(len(features))
    for c, rows, projection in zip(tested, raw, projections, strict=True):
        published[y_true == c] = published_scores(rows)
        scores[y_true == c] = np.square(projection.values)
    return published, scores


def _negative_control(quantities: Array, usual: Usual) -> Control:
    alarms = sum(bool(found(excess_over_others(row, usual).p_value).any()) for row in quantities)
    trials = len(quantities)
    low, high = clopper_pearson(alarms, trials)
    return Control(
        "normal twins",
        "negative",
        f"In {trials} data sets of the same size, normal and without a second population, a class was named {alarms} times; "
        f"at most {TOLERATED:.0%} are tolerated.",
        # More alarms than this rate explains would mean that the sizes of the classes mislead the test.
        passed=binomial_tail(alarms, trials, TOLERATED) > 0.01,
        trials=trials,
        alarms=alarms,
        value=alarms / trials,
        low=low,
        high=high,
    )


def _unnamed(excess: Excess) -> list[int]:
    """Classes to plant in: those not named already, since one poisoned class masks another; all where too few remain."""
    unnamed = np.flatnonzero(~found(excess.p_value))
    return [int(i) for i in (unnamed if unnamed.size >= MIN_CLASSES else np.arange(excess.value.size))]


def _positive_control(
    groups: Groups,
    usual: Usual,
    rng: np.random.Generator,
    progress: Progress,
    epsilon: float,
    shift: float,
    plants: int,
) -> Control:
    """Plants in each class in turn; its value is the share found at the distance asked for, the power of the test.

    Where fewer than half are found the distance is doubled until they are, so that the reader learns what would be seen.
    """
    hits = 0
    for trial in range(plants):
        hits += _is_found(groups, usual, trial % len(groups.rows), epsilon, shift, rng)
        progress(0.2 + 0.7 * (trial + 1) / plants, f"plant {trial + 1} of {plants}")
    seen = shift if 2 * hits >= plants else _distance_seen(groups, usual, epsilon, shift, rng)
    low, high = clopper_pearson(hits, plants)
    words = "no distance tried is enough" if seen is None else f"{seen:g} is enough for half of the classes"
    return Control(
        "planted population",
        "positive",
        f"A share of {epsilon:.0%} of one class was moved by {shift:g} standard deviations of the whitened class; the class was "
        f"named in {hits} of {plants} trials; {words}.",
        # How often is the power that each measurement states, and is judged there; a plant never found voids the method.
        passed=seen is not None,
        trials=plants,
        alarms=hits,
        value=hits / plants,
        low=low,
        high=high,
    )


def _is_found(groups: Groups, usual: Usual, c: int, epsilon: float, shift: float, rng: np.random.Generator) -> bool:
    planted = plant(groups, c, epsilon, shift, rng)
    quantity = log_mean_squared_score(whitened_projections(planted))
    return bool(found(excess_over_others(quantity, usual).p_value)[c])


def _distance_seen(
    groups: Groups, usual: Usual, epsilon: float, shift: float, rng: np.random.Generator
) -> float | None:
    """The first of the doubled distances at which a plant is found in at least half of the classes; None where none is."""
    k = len(groups.rows)
    for doublings in range(1, MAX_DOUBLINGS + 1):
        distance = shift * 2**doublings
        if 2 * sum(_is_found(groups, usual, c, epsilon, distance, rng) for c in range(k)) >= k:
            return distance
    return None


def _measurements(
    classes: tuple[str, ...], tested: list[int], sizes: Array, excess: Excess, power: float | None, level: float
) -> tuple[Measurement, ...]:
    from scipy.stats import t

    k = len(tested)
    shown = excess.scale * (t.ppf(1 - SIGNIFICANT / k, k - 2) + normal_quantile(POWER_LEVEL))
    return tuple(
        Measurement(
            "spectral_excess",
            excess.value[i],
            f"class {classes[c]}",
            low=excess.value[i] - excess.half[i],
            high=excess.value[i] + excess.half[i],
            level=level,
            n=int(sizes[c]),
            unit="nats",
            worse="higher",
            ideal=0.0,
            p_value=excess.p_value[i],
            power=power,
            mde=shown[i],
            interval="Student prediction interval from the other classes",
        )
        for i, c in enumerate(tested)
    )


class _Classes(NamedTuple):
    """What the table of classes shows."""

    classes: tuple[str, ...]
    tested: list[int]
    sizes: Array
    quantity: Array
    projections: list[Projection]
    shares: list[float]

    def rows(self, excess: Excess | None) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for i, c in enumerate(self.tested):
            split = split_in_two(self.projections[i].values)
            tested = (None, None) if excess is None else (float(excess.value[i]), float(excess.p_value[i]))
            rows.append(
                (
                    f"class {self.classes[c]}",
                    int(self.sizes[c]),
                    self.shares[i],
                    float(self.quantity[i]),
                    *tested,
                    split.share,
                    split.gap,
                )
            )
        return Table(
            "Classes",
            (
                "Class",
                "Records",
                "Share of variance in the top direction",
                "Log mean squared score (nats)",
                "Excess over the other classes (nats)",
                "p-value",
                "Share of the smaller group",
                "Gap between the groups (standard deviations)",
            ),
            tuple(rows),
            notes="The share of variance is that of the features as they are; the groups split the whitened projection.",
        )


def _suspects(
    classes: tuple[str, ...], y_true: Array, published: Array, scores: Array, c: int, epsilon: float
) -> tuple[Array, Table]:
    """The 1.5 epsilon highest scores of class c: as booleans (n,) and as a table."""
    rows = np.flatnonzero(y_true == c)
    count = min(len(rows), max(1, round(REMOVAL * epsilon * len(rows))))
    suspects = rows[np.argsort(-scores[rows], kind="stable")[:count]]
    flagged = np.zeros(len(y_true), bool)
    flagged[suspects] = True
    listed = suspects[:MAX_LISTED]
    table = Table(
        "Records to look at",
        ("Row", "Class", "Whitened score", "Published score"),
        tuple((int(row), f"class {classes[c]}", float(scores[row]), float(published[row])) for row in listed),
        notes=f"The {len(listed)} highest of {count} records of the class that stands out most; where its p-value is not "
        "small they are no evidence. Rows count from 0.",
    )
    return flagged, table


def _arrays(
    published: Array, scores: Array, flagged: Array, projections: list[Projection], worst: int
) -> dict[str, Array]:
    return {
        "published_scores": published.astype(np.float32),
        "scores": scores.astype(np.float32),
        "flagged": flagged,
        "projection": projections[worst].values.astype(np.float32),
    }


def _notes(classes: tuple[str, ...], tested: list[int], sizes: Array, epsilon: float) -> tuple[str, ...]:
    small = [f"{classes[c]} ({int(sizes[c])})" for c in range(len(classes)) if c not in tested]
    notes = [f"Poison is expected to be {epsilon:.0%} of its class; far more or far less is found less often."]
    if small:
        notes.append(f"Not tested, fewer than {MIN_ROWS} records: {', '.join(small[:20])}.")
    return tuple(notes)


# -------------------------------------------------------------------------------------------------------------- figures


def figures(result: Result) -> list[Figure]:
    """Excess by class, and the projection of the class that stands out most."""
    table = result.table("Classes")
    names = [str(row[0]) for row in table.rows]
    excesses = [None if row[4] is None else float(row[4]) for row in table.rows]
    worst = str(result.table("Records to look at").rows[0][1])
    place = names.index(worst)
    projection, row = result.arrays["projection"], table.rows[place]
    found_out = "" if row[5] is None else f" (p {float(row[5]):.2g})"
    drawn = []
    if any(value is not None for value in excesses):
        drawn.append(
            bars(
                "Excess of the mean squared spectral score",
                names,
                excesses,
                y_title="Excess over the other classes (nats)",
                alt=f"{worst} stands out most, by {excesses[place]:.2f} nats{found_out}; 0 means like the other classes.",
                reference=0.0,
                reference_name="like the others",
                highlight=place,
            )
        )
    smaller, gap = float(row[6] or 0), float(row[7] or 0)
    drawn.append(
        histogram(
            f"Projection of {worst} on its top direction",
            projection,
            x_title="Projection (whitened, no unit)",
            alt=f"Of {worst}, the best split in two puts {smaller:.0%} on the smaller side, {gap:.1f} standard deviations "
            "away; a planted population shows as a second hill.",
        )
    )
    return drawn


def example(rng: np.random.Generator) -> dict[str, object]:
    """Eight classes of 120 records in 12 dimensions; in class 5 a fifth lies 10 standard deviations off."""
    centres = rng.normal(scale=4, size=(8, 12))
    y_true = np.repeat(np.arange(8), 120)
    embeddings = centres[y_true] + rng.standard_normal((960, 12))
    direction = rng.standard_normal(12)
    embeddings[600:624] += 10 * direction / np.linalg.norm(direction)
    return {"embeddings": embeddings, "y_true": y_true, "classes": tuple("abcdefgh")}


METHOD = Method(
    title="Spectral signatures",
    question="Does one class of the training set hold a second population, as a planted trigger would leave?",
    source="Tran, Li and Madry, Spectral Signatures in Backdoor Attacks, NeurIPS 2018",
    audit=audit,
    figures=figures,
    example=example,
    limits=(
        "On small data sets, or where about half of a class is poisoned, the ranking of records is no better than chance.",
        "A class with two natural styles can stand out without any poison: look at the records.",
        "Several poisoned classes hide each other; clean-label and adaptive poison leave no signature.",
        "It looks at the data through the features of the model; with the features of another model it may see nothing.",
    ),
    advice="Look at the listed records. If they share a mark or their labels are wrong, remove them, train again and audit the new "
    "model; before removing, check which groups of people the records belong to.",
    bounds=(
        Bound(
            "spectral_excess",
            SIGNIFICANT,
            "high",
            "A class whose features hold a far larger second population than the other classes' do may have been poisoned.",
            rule="test",
        ),
    ),
    clauses=("EU AI Act Art. 15(5)", "NIST AI RMF MEASURE 2.7", "OWASP LLM04 Data and Model Poisoning"),
)
