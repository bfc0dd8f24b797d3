"""Do these texts carry the green-list watermark of this key?

A marking generator splits the vocabulary anew at every token: the token before it, times a secret key, seeds a permutation
whose first `gamma` share is the green list, and green tokens get a bonus. Whoever holds the key can count. The quantity is
the share of green tokens among the distinct bigrams; without the mark each is green with probability gamma, the ideal value,
so that the count is binomial and its upper tail is exact at any length. z = (g - gamma n) / sqrt(n gamma (1 - gamma)) is
given beside it. A bigram counts once per text, and once in the whole set: a repeated one carries no new evidence. Bigrams after
token 0 do not count: zero times any key is zero, so that their green list is the same under every key.

Source: Kirchenbauer, Geiping, Wen, Katz, Miers, Goldstein: A Watermark for Large Language Models, ICML 2023, algorithm 2 and
equation 3; Fernandez, Chaffin, Tit, Chappelier, Furon: Three Bricks to Consolidate Watermarks for Large Language Models,
WIFS 2023, for exact tests and for counting a bigram once.
Limits: Needs the key and the tokenizer's ids, without prompt and start token. Short or low-entropy text (code, lists, quotations)
cannot carry the mark. Detection shows a key, not an author: marks can be learnt from marked text and forged (Jovanović, Staab,
Vechev: Watermark Stealing in Large Language Models, ICML 2024), and paraphrase removes them. Many texts mean many tests.
Agrees with: transformers.WatermarkDetector(seeding_scheme="lefthash", context_width=1, ignore_repeated_ngrams=True), token for
token, but for those after token 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from audits.methods.charts import Figure, histogram, intervals
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
from audits.methods.stats import binomial_tail, clopper_pearson, holm, permutation_p
from audits.methods.watermark._exact import hits_needed, power, smallest_rate

PUBLIC_KEY = 15_485_863  # the millionth prime, default of the paper's code and of transformers
P_LIMIT = 1e-3
ALARM_LEVEL = 0.05  # wrong keys are counted as alarms at this p-value, since 200 of them say little about smaller ones
CONTROL_LIMIT = 1e-3  # a control fails when what it saw has less than this probability
WRONG_KEY_DRAWS = 1e8  # work of the negative control: about a second
LOOKUP_DRAWS = 3_000  # a lookup costs as much as this many draws before it draws at all
PLANT_TRIALS = 20
PLANT_TOKENS = 100
CANDIDATES = 64  # of so many random tokens one is green but for (1 - gamma)^64
TABLE_ROWS = 50
FIGURE_ROWS = 20


class GreenLists:
    """The green lists of one key: for each previous token, the first `size` entries of torch.randperm(vocabulary).

    torch's CPU generator is MT19937 seeded by the low 32 bits, which numpy has too, and randperm is a forward Fisher-Yates
    shuffle: step i swaps entries i and j_i = i + draw_i mod (vocabulary - i), and never touches entry i again. So only the
    first `size` draws matter, and whether a token ends up among them follows from where the swaps move it.
    """

    def __init__(self, key: int, vocabulary: int, gamma: float) -> None:
        self.key = key
        self.vocabulary = vocabulary
        self.size = int(vocabulary * gamma)
        self._step = np.arange(self.size, dtype=np.int32)
        self._span = (vocabulary - self._step).astype(np.uint32)
        self._generator = np.random.RandomState(0)  # a hash function of the scheme, not a source of chance

    def seed(self, previous: int) -> int:
        """What the generator is seeded with; only the low 32 bits count."""
        return (self.key * previous) % (2**64 - 1) & 0xFFFFFFFF

    def contain(self, previous: int, tokens: Array) -> Array:
        """Which of `tokens` (m,) are green after the token `previous`, (m,) bool."""
        self._generator.seed(self.seed(previous))
        draws = self._generator.randint(0, 2**32, size=self.size, dtype=np.uint32)
        swapped_with = self._step + (draws % self._span).astype(np.int32)
        last_swap = np.full(self.vocabulary, -1, np.int32)
        last_swap[swapped_with] = self._step  # where an entry is swapped twice the later step stays
        return _end_among_first(tokens, swapped_with, last_swap)


def _end_among_first(tokens: Array, swapped_with: Array, last_swap: Array) -> Array:
    """Which tokens the swaps bring among the first entries.

    A token at entry e since step s goes there for good at a later step that swaps with e. Without one it is swapped away
    at step e, if there is such a step, to entry j_e, and the question is asked again from there.
    """
    found = np.zeros(tokens.size, bool)
    entry, since = tokens.astype(np.int64), np.full(tokens.size, -1, np.int64)
    open_ = np.arange(tokens.size)
    while open_.size:
        hit = last_swap[entry[open_]] > since[open_]
        found[open_[hit]] = True
        open_ = open_[~hit]
        open_ = open_[entry[open_] < swapped_with.size]
        since[open_] = entry[open_]
        entry[open_] = swapped_with[entry[open_]]
    return found


@dataclass(frozen=True)
class Bigrams:
    """The distinct bigrams of a set of texts: `previous` and `token` (d,), sorted by `previous`.

    `text` and `member` (p,) say which text holds which of them, each pair once.
    """

    previous: Array
    token: Array
    text: Array
    member: Array
    n_texts: int

    def per_text(self, chosen: Array) -> Array:
        """How many of the chosen bigrams, (d,) bool, each text holds, (n_texts,)."""
        return np.bincount(self.text[chosen[self.member]], minlength=self.n_texts)

    def runs(self) -> Iterator[slice]:
        """The bigrams of one previous token after the other."""
        starts = np.flatnonzero(np.diff(self.previous, prepend=-1))
        return map(slice, starts, [*starts[1:], self.previous.size])


def distinct_bigrams(texts: Sequence[Array], vocabulary: int) -> Bigrams:
    """Each bigram of the texts once, but for those after token 0, and which texts hold it. Ids must be in [0, vocabulary)."""
    previous = np.concatenate([text[:-1] for text in texts]).astype(np.int64)
    token = np.concatenate([text[1:] for text in texts]).astype(np.int64)
    text_of = np.repeat(np.arange(len(texts)), [max(text.size - 1, 0) for text in texts])
    keyed = previous != 0
    previous, token, text_of = previous[keyed], token[keyed], text_of[keyed]
    codes, which = np.unique(previous * vocabulary + token, return_inverse=True)
    pairs = np.unique(text_of * codes.size + which)
    return Bigrams(
        codes // vocabulary, codes % vocabulary, pairs // max(codes.size, 1), pairs % max(codes.size, 1), len(texts)
    )


def green_bigrams(bigrams: Bigrams, lists: GreenLists, progress: Progress = no_progress) -> Array:
    """Which bigrams end in a green token, (d,) bool: one green list per distinct previous token."""
    green = np.zeros(bigrams.previous.size, bool)
    for run in bigrams.runs():
        green[run] = lists.contain(int(bigrams.previous[run.start]), bigrams.token[run])
        if run.start % 1024 == 0:
            progress(run.start / bigrams.previous.size, "green lists")
    return green


def z_score(green: float, n: int, gamma: float) -> float:
    """Standardised excess of green tokens, equation 3 of the paper."""
    return float((green - gamma * n) / np.sqrt(n * gamma * (1 - gamma)))


# --------------------------------------------------------------------------------------------------------------- controls


class WrongKeys(NamedTuple):
    """The same texts under wrong keys: `z` (keys,), beside `observed` by the audited key, on the `n` bigrams used."""

    z: Array
    observed: float
    p_exact: Array
    n: int
    n_previous: int
    over_dispersed: bool

    def calibrated(self, z: float) -> float:
        """P-value of a z as one more draw from the wrong keys', by Student's t: (z - mean) / (sd sqrt(1 + 1/keys))."""
        from scipy.stats import t

        spread = self.z.std(ddof=1) * np.sqrt(1 + 1 / self.z.size)
        return float(t.sf((z - self.z.mean()) / spread, self.z.size - 1))


def under_wrong_keys(
    bigrams: Bigrams, green: Array, lists: GreenLists, gamma: float, keys: Array, progress: Progress = no_progress
) -> WrongKeys:
    """Scores the bigrams of the most frequent previous tokens under every wrong key, as many as the work allows."""
    from scipy.stats import binom, chi2

    ids, which, counts = np.unique(bigrams.previous, return_inverse=True, return_counts=True)
    affordable = max(1, int(WRONG_KEY_DRAWS / (keys.size * (lists.size + LOOKUP_DRAWS))))
    kept = np.argsort(-counts, kind="stable")[:affordable]
    chosen = np.isin(which, kept)
    part = Bigrams(bigrams.previous[chosen], bigrams.token[chosen], np.empty(0, int), np.empty(0, int), 0)
    n = int(chosen.sum())
    hits = np.empty(keys.size, int)
    for i, key in enumerate(keys):
        hits[i] = green_bigrams(part, GreenLists(int(key), lists.vocabulary, gamma)).sum()
        progress(i / keys.size, "wrong keys")
    z = np.array([z_score(hit, n, gamma) for hit in hits])
    excess = chi2.sf(z.var(ddof=1) * (keys.size - 1), keys.size - 1)
    observed = z_score(float(green[chosen].sum()), n, gamma)
    return WrongKeys(
        z, observed, binom.sf(hits - 1, n, gamma), n, min(ids.size, affordable), bool(excess < CONTROL_LIMIT)
    )


def wrong_keys(rng: np.random.Generator, n: int, key: int) -> Array:
    """Random keys other than `key`, (n,). They are odd, so that no two tokens share a seed."""
    keys = rng.integers(0, 2**31, size=n + 1) * 2 + 1
    return keys[keys != key % 2**32][:n]


def plant(text: Array, lists: GreenLists, share: float, rng: np.random.Generator) -> Array:
    """The text with tokens replaced by random green ones, at random places, so that the green share becomes `share`."""
    marked = text.astype(np.int64)
    gamma = lists.size / lists.vocabulary
    for i in range(1, marked.size):
        if rng.random() < (share - gamma) / (1 - gamma):
            candidates = rng.integers(lists.vocabulary, size=CANDIDATES)
            green = candidates[lists.contain(int(marked[i - 1]), candidates)]
            marked[i] = green[0] if green.size else marked[i]
    return marked


def _negative_control(wrong: WrongKeys, covered: float) -> Control:
    p_values = np.array([wrong.calibrated(z) for z in wrong.z]) if wrong.over_dispersed else wrong.p_exact
    trials, alarms = wrong.z.size, int((p_values <= ALARM_LEVEL).sum())
    low, high = clopper_pearson(alarms, trials)
    says = (
        f"{alarms} of {trials} wrong keys gave p <= {ALARM_LEVEL:g} on these texts, {ALARM_LEVEL:.0%} or fewer are expected. "
        f"They were scored on {wrong.n} bigrams, those after the {wrong.n_previous} most frequent tokens ({covered:.0%} of all)."
    )
    passed = binomial_tail(alarms, trials, ALARM_LEVEL) > CONTROL_LIMIT
    return Control("Wrong keys", "negative", says, passed, trials, alarms, alarms / trials, low, high)


def _positive_control(
    texts: Sequence[Array], lists: GreenLists, gamma: float, share: float, rng: np.random.Generator
) -> Control:
    """Plants other keys in the longest text, so that a mark of the audited key already there cannot help."""
    excerpt = max(texts, key=len)[:PLANT_TOKENS]
    keys = wrong_keys(rng, PLANT_TRIALS, lists.key)
    found, powers = 0, []
    for key in keys:
        other = GreenLists(int(key), lists.vocabulary, gamma)
        bigrams = distinct_bigrams([plant(excerpt, other, share, rng)], lists.vocabulary)
        n = bigrams.previous.size
        found += binomial_tail(int(green_bigrams(bigrams, other).sum()), n, gamma) <= P_LIMIT
        powers.append(power(n, hits_needed(n, gamma, P_LIMIT), share))
    expected = float(np.mean(powers))
    low, high = clopper_pearson(found, PLANT_TRIALS)
    says = (
        f"Marks with {share:.0%} green tokens were planted in {excerpt.size} tokens of the longest text, each by another key: "
        f"{found} of {PLANT_TRIALS} were found at p <= {P_LIMIT:g}, {expected:.0%} are expected."
    )
    passed = binomial_tail(PLANT_TRIALS - found, PLANT_TRIALS, 1 - expected) > CONTROL_LIMIT
    return Control("Planted mark", "positive", says, passed, PLANT_TRIALS, found, found / PLANT_TRIALS, low, high)


# -------------------------------------------------------------------------------------------------------------- experiment


def _checked(token_ids: Array, vocabulary: int) -> list[Array]:
    texts = [np.asarray(text) for text in token_ids]
    if not texts:
        raise UnsuitableInput("There are no texts; give at least one with two tokens or more.")
    for i, text in enumerate(texts):
        if text.ndim != 1 or (text.size and text.dtype.kind not in "iu"):
            raise UnsuitableInput(f"Text {i} is not a row of whole numbers; give the token ids of the tokenizer.")
        if text.size and (text.min() < 0 or text.max() >= vocabulary):
            raise UnsuitableInput(
                f"Text {i} has a token id of {int(text.max() if text.max() >= vocabulary else text.min())}, outside a vocabulary of "
                f"{vocabulary}. Set the vocabulary size of the model that wrote the texts: the green lists depend on it."
            )
    return texts


def _checked_lists(hashing_key: int, vocabulary: int, gamma: float, marked_share: float, previous: Array) -> GreenLists:
    lists = GreenLists(hashing_key, vocabulary, gamma)
    if lists.size < 1:
        raise UnsuitableInput(
            f"A share of {gamma:g} of {vocabulary} tokens is an empty green list; raise gamma or the vocabulary."
        )
    if marked_share <= gamma:
        raise UnsuitableInput(
            f"The green share of marked text ({marked_share:g}) must be above gamma ({gamma:g}), the share without a mark."
        )
    tokens = np.unique(previous).tolist()
    if len({lists.seed(token) for token in tokens}) < len(tokens):
        raise UnsuitableInput(
            "This key gives several tokens the same green list, so that bigrams are no independent evidence. Use a key that "
            "is not a multiple of a large power of two."
        )
    return lists


def audit(
    token_ids: Array,
    rng: np.random.Generator,
    progress: Progress = no_progress,
    *,
    hashing_key: Annotated[
        int, Setting("Secret key of the mark; the default is the public one of the paper", 1, 2**63 - 1, secret=True)
    ] = PUBLIC_KEY,
    vocabulary: Annotated[
        int, Setting("Vocabulary size of the model that wrote the texts (its logits, not its tokenizer)", 2, 10_000_000)
    ] = 50_257,
    gamma: Annotated[float, Setting("Share of the vocabulary that is green", 0.01, 0.9)] = 0.25,
    marked_share: Annotated[
        float,
        Setting("Green share that marked text of this kind would have: the effect the power is computed for", 0, 1),
    ] = 0.5,
    n_wrong_keys: Annotated[int, Setting("Wrong keys tried as a control", 200, 5_000)] = 200,
    level: Annotated[float, Setting("Confidence level", 0.5, 0.999)] = 0.95,
) -> Result:
    """The green share of the whole set and of each text, with exact p-values and what wrong and planted keys give."""
    texts = _checked(token_ids, vocabulary)
    bigrams = distinct_bigrams(texts, vocabulary)
    if not bigrams.previous.size:
        raise UnsuitableInput(
            "No text has a pair of tokens that depends on the key (those after token 0 do not); give longer texts."
        )
    lists = _checked_lists(hashing_key, vocabulary, gamma, marked_share, bigrams.previous)
    green = green_bigrams(bigrams, lists, lambda share, words: progress(share / 2, words))
    keys = wrong_keys(rng, n_wrong_keys, hashing_key)
    wrong = under_wrong_keys(bigrams, green, lists, gamma, keys, lambda share, words: progress(0.5 + share / 2, words))
    n, hits = green.size, int(green.sum())
    exact = binomial_tail(hits, n, gamma)
    p_value = max(exact, wrong.calibrated(z_score(hits, n, gamma))) if wrong.over_dispersed else exact
    per_text = _score_texts(bigrams, green, gamma, level)
    return Result(
        measurements=(_green_share(hits, n, gamma, marked_share, level, p_value), _flagged(per_text, level)),
        controls=(
            _negative_control(wrong, wrong.n / n),
            _positive_control(texts, lists, gamma, marked_share, rng),
        ),
        tables=(_whole_set(hits, n, gamma, exact, p_value, wrong), _text_table(per_text)),
        arrays={
            "wrong_key_z": wrong.z,
            "observed_z": np.array([wrong.observed]),
            "text_scored": per_text.scored,
            "text_green": per_text.green,
            "gamma": np.array([gamma]),
        },
        notes=_notes(per_text, wrong, hashing_key),
    )


class TextScores(NamedTuple):
    """Per text, (n,): distinct bigrams, green ones, exact p and Holm's adjusted p (1 for a text without bigrams)."""

    scored: Array
    green: Array
    p: Array
    adjusted: Array
    z: list[float | None]
    low: Array
    high: Array

    @property
    def flagged(self) -> Array:
        """Texts in which the mark is found, corrected for the number of texts, (n,) bool."""
        return (self.adjusted <= P_LIMIT) & (self.scored > 0)


def _score_texts(bigrams: Bigrams, green: Array, gamma: float, level: float) -> TextScores:
    from scipy.stats import binom

    scored, hits = bigrams.per_text(np.ones(green.size, bool)), bigrams.per_text(green)
    p = binom.sf(hits - 1, scored, gamma)
    adjusted = np.ones(p.size)
    adjusted[scored > 0] = holm(p[scored > 0])
    z = [z_score(g, int(n), gamma) if n else None for g, n in zip(hits, scored, strict=True)]
    ends = np.array([clopper_pearson(int(g), int(n), level) for g, n in zip(hits, scored, strict=True)])
    return TextScores(scored, hits, p, adjusted, z, ends[:, 0], ends[:, 1])


def _green_share(hits: int, n: int, gamma: float, marked_share: float, level: float, p_value: float) -> Measurement:
    low, high = clopper_pearson(hits, n, level)
    needed = hits_needed(n, gamma, P_LIMIT)
    findable = smallest_rate(n, needed)
    return Measurement(
        "green_share",
        hits / n,
        "all texts",
        low=low,
        high=high,
        level=level,
        n=n,
        worse="higher",
        ideal=gamma,
        p_value=p_value,
        power=power(n, needed, marked_share),
        mde=None if findable is None else findable - gamma,
        interval="Clopper-Pearson over distinct bigrams",
    )


def _flagged(texts: TextScores, level: float) -> Measurement:
    tested, flagged = int((texts.scored > 0).sum()), int(texts.flagged.sum())
    low, high = clopper_pearson(flagged, tested, level)
    return Measurement(
        "flagged_share",
        flagged / tested,
        "texts",
        low=low,
        high=high,
        level=level,
        n=tested,
        worse="higher",
        ideal=0.0,
        interval="Clopper-Pearson over texts",
    )


def _whole_set(hits: int, n: int, gamma: float, exact: float, p_value: float, wrong: WrongKeys) -> Table:
    rows = (
        ("Distinct bigrams scored", n),
        ("Green among them", hits),
        ("Green expected without the mark", gamma * n),
        ("z", z_score(hits, n, gamma)),
        ("p, exact binomial", exact),
        ("p, used for the verdict", p_value),
        ("Bigrams scored under wrong keys", wrong.n),
        ("z of the audited key on these", wrong.observed),
        ("Mean z of the wrong keys", float(wrong.z.mean())),
        ("Standard deviation of their z", float(wrong.z.std(ddof=1))),
        ("p, share of wrong keys at least as green", permutation_p(wrong.observed, wrong.z)),
    )
    return Table(
        "All texts together", ("Quantity", "Value"), rows, "A bigram that several texts share counts once here."
    )


def _text_table(texts: TextScores) -> Table:
    order = np.argsort(texts.p, kind="stable")[:TABLE_ROWS]
    rows = []
    for i in order:
        n = int(texts.scored[i])
        tested = n > 0
        rows.append(
            (
                f"text {i}",
                n,
                int(texts.green[i]),
                texts.green[i] / n if tested else None,
                texts.low[i] if tested else None,
                texts.high[i] if tested else None,
                texts.z[i],
                texts.p[i] if tested else None,
                texts.adjusted[i] if tested else None,
                "not tested" if not tested else "yes" if texts.flagged[i] else "no",
            )
        )
    columns = ("Text", "Bigrams", "Green", "Green share", "Low", "High", "z", "p, exact", "p, Holm", "Mark found")
    shown = f"The {len(rows)} texts with the smallest p of {texts.p.size}. " if texts.p.size > len(rows) else ""
    return Table(
        "Texts",
        columns,
        tuple(rows),
        shown + "Texts count from 0. Empty cells: the text has no bigram that depends on the key.",
    )


def _notes(texts: TextScores, wrong: WrongKeys, key: int) -> tuple[str, ...]:
    notes = ["The finding is that the mark of this key is there; it does not say who wrote or generated a text."]
    if key == PUBLIC_KEY:
        notes.append(
            "The key is the public default of the method: anyone can mark texts with it, and anyone can find it."
        )
    if untested := int((texts.scored == 0).sum()):
        notes.append(
            f"{untested} of {texts.scored.size} texts have no pair of tokens that depends on the key and were not tested."
        )
    if wrong.over_dispersed:
        notes.append(
            f"Under wrong keys z varies more than the exact test assumes (standard deviation {wrong.z.std(ddof=1):.2f}). "
            "The p-value of the whole set is therefore the larger of the exact one and the one calibrated on wrong keys; "
            "those of single texts are too small."
        )
    return tuple(notes)


# ----------------------------------------------------------------------------------------------------------------- figures


def figures(result: Result) -> list[Figure]:
    """The audited key among wrong ones, and the green share of the texts with most of it."""
    share = result.find("green_share")
    observed, null = float(result.arrays["observed_z"][0]), result.arrays["wrong_key_z"]
    beaten = int((null < observed).sum())
    table = result.table("Texts")
    top = [row for row in table.rows if row[3] is not None][:FIGURE_ROWS]
    flagged = sum(row[-1] == "yes" for row in top)
    gamma = float(result.arrays["gamma"][0])
    return [
        histogram(
            "The audited key among wrong keys",
            null,
            x_title="z, standardised excess of green tokens",
            alt=f"Histogram of z under {null.size} wrong keys, from {null.min():.1f} to {null.max():.1f}; the audited key "
            f"stands at {observed:.1f}, above {beaten} of them. Green share of all texts {share.value:.3f}, p {share.p_value:.2g}.",
            marker=observed,
            marker_name="audited key",
        ),
        intervals(
            "Green share of the texts with the smallest p-values",
            [str(row[0]) for row in top],
            _column(top, 3),
            _column(top, 4),
            _column(top, 5),
            x_title="Share of green tokens",
            alt=f"Green share of {len(top)} texts with intervals against {gamma:g} without the mark; "
            f"the mark is found in {flagged} of them after correction for the number of texts.",
            reference=gamma,
            reference_name="without the mark",
            counts=[int(n) for n in _column(top, 1)],
        ),
    ]


def _column(rows: Sequence[Sequence[Any]], index: int) -> list[float]:
    return [float(row[index]) for row in rows]


def example(rng: np.random.Generator) -> dict[str, Any]:
    """Twelve texts of 60 tokens with Zipf frequencies; in the first six 40 % of the tokens were replaced by green ones."""
    vocabulary, gamma = 50_257, 0.25
    frequency = 1 / (np.arange(vocabulary) + 2.7)
    texts = np.empty(12, object)
    texts[:] = list(rng.choice(vocabulary, size=(12, 60), p=frequency / frequency.sum()))
    lists = GreenLists(PUBLIC_KEY, vocabulary, gamma)
    for i in range(6):
        texts[i] = plant(texts[i], lists, gamma + 0.4 * (1 - gamma), rng)
    return {"token_ids": texts}


METHOD = Method(
    title="Green-list text watermark",
    question="Do these texts carry the green-list watermark of this key?",
    source="Kirchenbauer, Geiping, Wen, Katz, Miers, Goldstein: A Watermark for Large Language Models, ICML 2023",
    audit=audit,
    figures=figures,
    example=example,
    bounds=(
        Bound(
            "green_share",
            P_LIMIT,
            "medium",
            "The texts hold more of the key's green tokens than chance gives: its mark is present. For the holder of the key "
            "that is the proof sought; in a data set meant to be human text it is generated text.",
            rule="test",
        ),
    ),
    limits=(
        "Detection shows a key, not an author: marks can be forged by who has seen enough marked text.",
        "Short or low-entropy text (code, lists, quotations) cannot carry the mark.",
        "Paraphrase, translation and mixing with other text weaken or remove it.",
        "A wrong tokenizer, vocabulary size, gamma or seeding scheme hides a mark that is there.",
        "Only the lefthash scheme with one token of context is tested, as torch draws it on a CPU.",
        "With many texts some have small p-values by chance; the table gives Holm's adjusted ones.",
    ),
    advice="If the mark is yours, record key, tokenizer and texts as evidence, and check that the key was never shared. If the "
    "texts should be human, set the flagged ones aside, ask where they came from, and keep them out of training sets.",
    clauses=("EU AI Act Art. 50(2)", "NIST AI RMF MEASURE 2.8"),
)
