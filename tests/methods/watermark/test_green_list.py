"""The green-list watermark: the lists of the public implementation, exact tests, honest controls."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audits import samples
from audits.methods.contract import Array, Result
from audits.methods.errors import UnsuitableInput
from audits.methods.stats import clopper_pearson
from audits.methods.verdict import Verdict, judge
from audits.methods.watermark import green_list
from audits.methods.watermark._exact import hits_needed, power, smallest_rate
from audits.methods.watermark.green_list import (
    METHOD,
    PUBLIC_KEY,
    GreenLists,
    audit,
    distinct_bigrams,
    green_bigrams,
    plant,
    under_wrong_keys,
    wrong_keys,
    z_score,
)

KEY = 7_919
VOCABULARY = 97
SMALL: dict[str, Any] = {"hashing_key": KEY, "vocabulary": VOCABULARY}


def object_array(texts: list[Any]) -> Array:
    out = np.empty(len(texts), object)
    out[:] = [np.asarray(text) for text in texts]
    return out


def random_texts(rng: np.random.Generator, n: int, length: int, vocabulary: int = VOCABULARY) -> Array:
    return object_array(list(rng.integers(1, vocabulary, size=(n, length))))


def marked_texts(rng: np.random.Generator, n: int, length: int, share: float, key: int = KEY) -> Array:
    lists = GreenLists(key, VOCABULARY, 0.25)
    return object_array([plant(text, lists, share, rng) for text in random_texts(rng, n, length)])


def run(texts: Array, seed: int = 0, **settings: Any) -> Result:
    return audit(texts, np.random.default_rng(seed), **(SMALL | settings))


def row(result: Result, quantity: str) -> Any:
    return dict(result.table("All texts together").rows)[quantity]


# ------------------------------------------------------------------------------------------------------------ the lists


def shuffled_by_hand(seed: int, vocabulary: int, size: int) -> set[int]:
    """The forward Fisher-Yates shuffle, step by step on a list."""
    draws = np.random.RandomState(seed).randint(0, 2**32, size=size, dtype=np.uint32).tolist()
    entries = list(range(vocabulary))
    for i in range(size):
        j = i + draws[i] % (vocabulary - i)
        entries[i], entries[j] = entries[j], entries[i]
    return set(entries[:size])


@pytest.mark.parametrize(("vocabulary", "gamma"), [(2, 0.5), (7, 0.25), (50, 0.9), (1_000, 0.25)])
def test_green_list_is_the_shuffle_by_hand(vocabulary: int, gamma: float) -> None:
    lists = GreenLists(KEY, vocabulary, gamma)
    for previous in range(min(vocabulary, 40)):
        green = np.flatnonzero(lists.contain(previous, np.arange(vocabulary)))
        assert set(green.tolist()) == shuffled_by_hand(KEY * previous, vocabulary, lists.size)


@pytest.mark.parametrize("key", [1, PUBLIC_KEY, 2**40 + 7, 2**63 - 1])
@pytest.mark.parametrize(("vocabulary", "gamma"), [(100, 0.5), (5_000, 0.25), (50_257, 0.25)])
def test_green_list_is_that_of_torch(key: int, vocabulary: int, gamma: float) -> None:
    import torch

    lists = GreenLists(key, vocabulary, gamma)
    for previous in (0, 1, vocabulary // 2, vocabulary - 1):
        generator = torch.Generator().manual_seed((key * previous) % (2**64 - 1))
        expected = torch.randperm(vocabulary, generator=generator)[: lists.size].sort().values.numpy()
        assert np.array_equal(np.flatnonzero(lists.contain(previous, np.arange(vocabulary))), expected)


def test_counts_and_z_are_those_of_transformers() -> None:
    from transformers import GPT2Config, WatermarkDetector, WatermarkingConfig

    vocabulary = 5_000
    rng = np.random.default_rng(4)
    texts = np.minimum(rng.zipf(1.3, size=(3, 80)), vocabulary - 2)
    import torch

    config = WatermarkingConfig(
        greenlist_ratio=0.25, hashing_key=PUBLIC_KEY, seeding_scheme="lefthash", context_width=1
    )
    model = GPT2Config(vocab_size=vocabulary, bos_token_id=vocabulary - 1)
    detector = WatermarkDetector(model, "cpu", config, ignore_repeated_ngrams=True)
    theirs = detector(torch.from_numpy(texts), return_dict=True)
    bigrams = distinct_bigrams(list(texts), vocabulary)
    green = bigrams.per_text(green_bigrams(bigrams, GreenLists(PUBLIC_KEY, vocabulary, 0.25)))
    scored = bigrams.per_text(np.ones(bigrams.token.size, bool))
    assert scored.tolist() == theirs.num_tokens_scored.tolist()
    assert green.tolist() == theirs.num_green_tokens.tolist()
    ours = [z_score(int(g), int(n), 0.25) for g, n in zip(green, scored, strict=True)]
    assert ours == pytest.approx(theirs.z_score.tolist(), abs=1e-12)


# -------------------------------------------------------------------------------------------------------------- by hand


def test_a_bigram_counts_once_per_text_and_once_in_the_set() -> None:
    # Text 0 holds (1,2) and (2,1) twice each, text 1 holds (2,1) and (1,1); (0,2) says nothing about the key.
    bigrams = distinct_bigrams([np.array([1, 2, 1, 2, 1]), np.array([2, 1, 1]), np.array([0, 2]), np.array([3])], 10)
    assert list(zip(bigrams.previous.tolist(), bigrams.token.tolist(), strict=True)) == [(1, 1), (1, 2), (2, 1)]
    assert bigrams.per_text(np.ones(3, bool)).tolist() == [2, 2, 0, 0]
    assert bigrams.per_text(np.array([False, False, True])).tolist() == [1, 1, 0, 0]


def test_all_green_text_by_hand() -> None:
    # Five distinct bigrams, all green: p = (1/4)^5, z = (5 - 5/4) / sqrt(5 * 1/4 * 3/4) = sqrt(15).
    lists = GreenLists(KEY, VOCABULARY, 0.25)
    text = [3]
    while len(text) < 6:
        candidates = np.setdiff1d(np.arange(1, VOCABULARY), text)
        text.append(int(candidates[lists.contain(text[-1], candidates)][0]))
    result = run(object_array([text]))
    share = result.find("green_share")
    assert (share.value, share.n, share.ideal) == (1.0, 5, 0.25)
    assert share.p_value == pytest.approx(4.0**-5, rel=1e-12)
    assert share.low == pytest.approx(0.025**0.2, rel=1e-9)  # all of n: the lower end is (alpha/2)^(1/n)
    assert row(result, "z") == pytest.approx(np.sqrt(15), rel=1e-12)


def test_hits_needed_by_hand() -> None:
    # n = 4, p = 1/2: P(X >= 4) = 1/16, P(X >= 3) = 5/16.
    assert [hits_needed(4, 0.5, limit) for limit in (0.32, 0.3, 0.0625, 0.06)] == [3, 4, 4, 5]
    assert power(4, 3, 0.5) == pytest.approx(5 / 16)
    assert power(4, 5, 1.0) == 0.0
    assert smallest_rate(4, 5) is None
    # P(X >= 4 | n = 4) = rate^4 = 0.8
    assert smallest_rate(4, 4) == pytest.approx(0.8**0.25)


# ----------------------------------------------------------------------------------------------------------------- null


def test_text_without_the_mark_gives_false_alarms_at_the_stated_rate() -> None:
    rng = np.random.default_rng(1)
    texts = list(random_texts(rng, 4, 60))
    bigrams = distinct_bigrams(texts, VOCABULARY)
    lists = GreenLists(KEY, VOCABULARY, 0.25)
    keys = wrong_keys(rng, 1_000, KEY)
    wrong = under_wrong_keys(bigrams, green_bigrams(bigrams, lists), lists, 0.25, keys)
    alarms = int((wrong.p_exact <= 0.05).sum())
    low, _ = clopper_pearson(alarms, 1_000, 0.999)
    assert low <= 0.05
    assert alarms > 5  # the test is not dead
    assert not wrong.over_dispersed


def test_mark_of_another_key_is_not_found() -> None:
    texts = marked_texts(np.random.default_rng(2), 5, 80, 0.7, key=15_013)
    share = run(texts).find("green_share")
    assert share.p_value is not None
    assert share.p_value > 0.01
    assert run(texts, hashing_key=15_013).find("green_share").p_value < 1e-12


def test_what_follows_token_0_is_no_evidence_since_it_is_green_under_every_key() -> None:
    green_after_0 = np.flatnonzero(GreenLists(1, VOCABULARY, 0.25).contain(0, np.arange(VOCABULARY)))
    assert np.array_equal(
        green_after_0, np.flatnonzero(GreenLists(KEY, VOCABULARY, 0.25).contain(0, np.arange(VOCABULARY)))
    )
    pairs = [[0, token] for token in green_after_0]
    with pytest.raises(UnsuitableInput, match="depends on the key"):
        run(object_array(pairs))


# -------------------------------------------------------------------------------------------------------------- planted


def test_planted_mark_is_found_and_its_size_recovered() -> None:
    result = run(marked_texts(np.random.default_rng(3), 6, 80, 0.55))
    share = result.find("green_share")
    assert share.low <= 0.55 <= share.high
    assert judge(share, METHOD.bounds[0], result.controls).verdict is Verdict.EXCEEDS
    assert all(control.passed for control in result.controls)
    assert row(result, "p, share of wrong keys at least as green") == pytest.approx(1 / 201)
    assert row(result, "Bigrams scored under wrong keys") == share.n  # so small a set is scored whole


def test_interval_covers_the_planted_share_at_its_level() -> None:
    rng = np.random.default_rng(5)
    covered, widths = 0, []
    for _ in range(300):
        key = int(wrong_keys(rng, 1, KEY)[0])
        lists = GreenLists(key, 2_000, 0.25)
        bigrams = distinct_bigrams([plant(rng.integers(1, 2_000, size=50), lists, 0.5, rng)], 2_000)
        low, high = clopper_pearson(int(green_bigrams(bigrams, lists).sum()), bigrams.token.size)
        covered += low <= 0.5 <= high
        widths.append(high - low)
    assert covered / 300 >= 0.92
    assert np.mean(widths) < 0.32


def test_stated_power_is_the_rate_at_which_marks_are_found() -> None:
    rng = np.random.default_rng(6)
    n, trials, found = 49, 300, 0
    needed = hits_needed(n, 0.25, green_list.P_LIMIT)
    for _ in range(trials):
        lists = GreenLists(int(wrong_keys(rng, 1, KEY)[0]), 2_000, 0.25)
        bigrams = distinct_bigrams([plant(rng.integers(1, 2_000, size=50), lists, 0.5, rng)], 2_000)
        found += int(green_bigrams(bigrams, lists).sum()) >= needed
    low, high = clopper_pearson(found, trials, 0.999)
    assert low <= power(n, needed, 0.5) <= high


def test_marked_texts_are_told_from_plain_ones() -> None:
    rng = np.random.default_rng(7)
    texts = object_array([*marked_texts(rng, 3, 90, 0.7), *random_texts(rng, 5, 90), [4]])
    result = run(texts)
    found = {cells[0] for cells in result.table("Texts").rows if cells[-1] == "yes"}
    assert found == {"text 0", "text 1", "text 2"}
    assert result.find("flagged_share").value == 3 / 8
    assert ("text 8", 0, 0, None, None, None, None, None, None, "not tested") in result.table("Texts").rows
    assert any("1 of 9 texts" in note for note in result.notes)


def test_sample_texts_are_told_apart() -> None:
    import polars as pl

    table = pl.read_parquet(Path(samples.__file__).parent / "files" / "watermarked_texts.parquet")
    result = audit(object_array(table["token_ids"].to_list()), np.random.default_rng(0), vocabulary=5_000)
    found = {int(str(cells[0]).split()[1]) for cells in result.table("Texts").rows if cells[-1] == "yes"}
    assert found == set(np.flatnonzero(table["planted"].to_numpy()).tolist())
    assert all(control.passed for control in result.controls)


# ----------------------------------------------------------------------------------------------------------- judgements


def test_short_text_cannot_tell() -> None:
    result = run(object_array([[5, 9, 30, 12]]))
    share = result.find("green_share")
    assert share.power == 0.0
    assert share.mde is None
    assert judge(share, METHOD.bounds[0], result.controls).verdict is Verdict.CANNOT_TELL


def test_long_text_without_the_mark_is_within() -> None:
    result = run(random_texts(np.random.default_rng(8), 10, 60))
    assert judge(result.find("green_share"), METHOD.bounds[0], result.controls).verdict is Verdict.WITHIN


def test_p_value_is_calibrated_on_wrong_keys_where_bigrams_are_not_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    # Fake lists: a coin per key decides a third of the tokens at once, so that z varies far more than the binomial's.
    def coin(lists: GreenLists, previous: int, tokens: Array) -> Array:
        fair = np.random.default_rng(lists.key * 1_000 + previous).random(tokens.size) < 0.25
        return np.where(tokens % 3 == 0, np.random.default_rng(lists.key).random() < 0.25, fair)

    monkeypatch.setattr(GreenLists, "contain", coin)
    texts = random_texts(np.random.default_rng(9), 8, 80)
    key = next(key for key in range(1, 99, 2) if np.random.default_rng(key).random() < 0.25)
    result = run(texts, hashing_key=key)
    share = result.find("green_share")
    assert row(result, "p, exact binomial") < 1e-6
    assert share.p_value is not None
    assert share.p_value > 0.01
    assert any("varies more" in note for note in result.notes)


# ----------------------------------------------------------------------------------------------------------- degenerate


@pytest.mark.parametrize(
    ("texts", "settings", "words"),
    [
        ([], {}, "no texts"),
        ([[5]], {}, "longer texts"),
        ([[], [7]], {}, "longer texts"),
        ([[1, VOCABULARY]], {}, "outside a vocabulary of 97"),
        ([[-1, 3]], {}, "id of -1"),
        ([[0.5, 0.25]], {}, "whole numbers"),
        ([[[1, 2], [3, 4]]], {}, "whole numbers"),
        ([[1, 2]], {"gamma": 0.01}, "empty green list"),
        ([[1, 2]], {"marked_share": 0.25}, "must be above gamma"),
        ([[1, 2, 3]], {"hashing_key": 2**32}, "same green list"),
    ],
)
def test_unsuitable_input_is_refused_in_words(texts: list[Any], settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsuitableInput, match=words):
        run(object_array(texts), **settings)


def test_one_repeated_token_is_one_bigram() -> None:
    share = run(object_array([[5] * 50])).find("green_share")
    assert share.n == 1


def test_wrong_keys_never_hold_the_audited_one() -> None:
    keys = wrong_keys(np.random.default_rng(0), 5_000, PUBLIC_KEY)
    assert keys.size == 5_000
    assert PUBLIC_KEY not in keys.tolist()
    assert (keys % 2 == 1).all()
    first = int(wrong_keys(np.random.default_rng(0), 1, 0)[0])
    assert first not in wrong_keys(np.random.default_rng(0), 10, first).tolist()


def test_the_key_is_not_in_the_result() -> None:
    result = run(marked_texts(np.random.default_rng(10), 2, 60, 0.6, key=123_456_789), hashing_key=123_456_789)
    assert "123456789" not in json.dumps(result.to_json())


def test_figures_are_drawn_from_the_stored_result() -> None:
    result = run(marked_texts(np.random.default_rng(11), 4, 60, 0.6))
    stored = io.BytesIO()
    np.savez(stored, **result.arrays)
    stored.seek(0)
    with np.load(stored, allow_pickle=False) as arrays:
        back = Result.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False)), dict(arrays))
    first, second = METHOD.figures(back)
    assert [figure.to_json() for figure in (first, second)] == [figure.to_json() for figure in METHOD.figures(result)]
    assert "audited key" in first.alt
    assert len(second.table.rows) == 4
