"""Spectral signatures: the published score, the test among classes, and what it finds."""

import json

import numpy as np
import pytest

from audits.methods.backdoor import spectral_signatures as method
from audits.methods.contract import Result
from audits.methods.errors import UnsuitableInput
from audits.methods.verdict import Verdict, judge

CLASSES = tuple("abcdefgh")


def clean(rng, sizes=(60,) * 8, d=10):
    """Classes of normal features with a covariance that they share, at different places."""
    shape = rng.normal(size=(d, d))
    y_true = np.repeat(np.arange(len(sizes)), sizes)
    centres = rng.normal(scale=3, size=(len(sizes), d))
    return centres[y_true] + rng.standard_normal((len(y_true), d)) @ shape, y_true


def even(k):
    """Classes of one size: nothing to correct."""
    return method.Usual(np.zeros(k), np.zeros(k))


def ranking(scores, is_poison):
    """Chance that a poisoned record scores above a clean one."""
    return float((scores[is_poison][:, None] > scores[~is_poison][None]).mean())


# ------------------------------------------------------------------------------------------------------------ by hand


def test_published_score_by_hand():
    # Centred already; X'X = diag(8, 2), so the top direction is the first axis and the scores are the squared first
    # coordinates; its share of the variance is 8 / 10.
    rows = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert method.published_scores(rows + 5) == pytest.approx([4, 4, 0, 0], abs=1e-12)
    assert method.top_projection(rows).share == pytest.approx(0.8)


def test_split_in_two_by_hand():
    # {0, 1} and {10, 11}: means 0.5 and 10.5, squares within 4 * 0.25 = 1, spread sqrt(1 / 4), gap 10 / 0.5.
    split = method.split_in_two(np.array([11.0, 0.0, 10.0, 1.0]))
    assert split == pytest.approx((0.5, 20.0))


def test_log_mean_squared_score_by_hand():
    # Median 0, fourth powers 16, 1, 0, 1, 16: mean 6.8.
    projection = method.Projection(np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), 1.0)
    assert method.log_mean_squared_score([projection]) == pytest.approx([np.log(6.8)])


# ---------------------------------------------------------------------------------------------------------- agreement


def test_published_score_agrees_with_the_full_svd():
    # The formula of algorithm 1 and of ART's SpectralSignatureDefense.
    rows = np.random.default_rng(1).normal(size=(200, 30)) * np.linspace(1, 4, 30)
    centred = rows - rows.mean(axis=0)
    _, _, right = np.linalg.svd(centred, full_matrices=False)
    assert method.published_scores(rows) == pytest.approx((centred @ right[0]) ** 2, rel=1e-9, abs=1e-9)


def test_excess_agrees_with_students_two_sample_test():
    from scipy.stats import ttest_ind_from_stats

    quantity = np.random.default_rng(2).normal(size=9)
    excess = method.excess_over_others(quantity, even(quantity.size))
    for c in range(9):
        others = np.delete(quantity, c)
        known = ttest_ind_from_stats(
            quantity[c], 0, 1, others.mean(), others.std(ddof=1), 8, equal_var=True, alternative="greater"
        )
        assert excess.p_value[c] == pytest.approx(known.pvalue)


def test_whitened_score_does_not_depend_on_the_scale_or_rotation_of_the_features():
    rng = np.random.default_rng(3)
    x, y = clean(rng)
    rotation, _ = np.linalg.qr(rng.normal(size=(10, 10)))
    one = method.audit(x, y, CLASSES, np.random.default_rng(0), plants=10)
    other = method.audit(1e4 * x @ rotation, y, CLASSES, np.random.default_rng(0), plants=10)
    assert other.arrays["scores"] == pytest.approx(one.arrays["scores"], rel=1e-3, abs=1e-4)


# --------------------------------------------------------------------------------------------------------------- null


def test_false_alarms_stay_at_the_stated_rate():
    # Classes of unequal size, since small classes have heavier tails of the quantity by themselves.
    rng = np.random.default_rng(4)
    sizes = [25, 30, 40, 60, 80, 120, 200, 300]
    twins = method.twin_quantities(sizes, 6, 60, rng)
    usual = method.Usual(twins.mean(axis=0), twins.var(axis=0, ddof=1))
    alarms = 0
    for _ in range(300):
        groups = method.Groups.of([rng.standard_normal((size, 6)) for size in sizes])
        quantity = method.log_mean_squared_score(method.whitened_projections(groups))
        alarms += bool(method.found(method.excess_over_others(quantity, usual).p_value).any())
    assert alarms <= 10  # the 99.9 % quantile of Binomial(300, 0.01)


def test_clean_classes_are_not_named_and_the_value_is_near_the_ideal():
    x, y = clean(np.random.default_rng(5))
    result = method.audit(x, y, CLASSES, np.random.default_rng(6))
    verdicts = {judge(m, method.METHOD.bounds[0], result.controls).verdict for m in result.measurements}
    assert verdicts == {Verdict.WITHIN}
    assert np.mean([m.low <= 0 <= m.high for m in result.measurements]) > 0.8


def test_smallest_effect_shown_is_found_about_four_times_in_five():
    rng = np.random.default_rng(7)
    hits = []
    for _ in range(400):
        quantity = rng.normal(size=8)
        excess = method.excess_over_others(quantity, even(quantity.size))
        mde = method._measurements(CLASSES, list(range(8)), np.full(8, 50), excess, None, 0.95)[0].mde
        # The class lies where its expectation plus the effect puts it; its own deviation is what the scale speaks of.
        moved = quantity.copy()
        moved[0] += mde
        hits.append(method.excess_over_others(moved, even(8)).p_value[0] * 8 <= method.SIGNIFICANT)
    assert 0.7 < np.mean(hits) < 0.9


# ------------------------------------------------------------------------------------------------------------ planted


def test_planted_population_is_found_and_its_distance_recovered():
    rng = np.random.default_rng(8)
    result = method.audit(**method.example(rng), rng=rng)
    named = [m for m in result.measurements if judge(m, method.METHOD.bounds[0], result.controls).verdict == "exceeds"]
    assert [m.subject for m in named] == ["class f"]
    is_poison = np.zeros(960, bool)
    is_poison[600:624] = True
    of_class = np.arange(600, 720)
    assert ranking(result.arrays["scores"][of_class], is_poison[of_class]) > 0.99
    assert result.arrays["flagged"][is_poison].all()
    row = next(row for row in result.table("Classes").rows if row[0] == "class f")
    assert row[6] == pytest.approx(24 / 120, abs=0.02)
    assert row[7] == pytest.approx(10, abs=2)


def test_power_is_the_share_of_plants_found_and_grows_with_their_distance():
    x, y = clean(np.random.default_rng(9), sizes=(50,) * 8)
    near, far = (
        method.audit(x, y, CLASSES, np.random.default_rng(10), plant_shift=shift, plants=24).controls[1]
        for shift in (1.5, 12.0)
    )
    assert near.alarms < 6
    assert far.alarms == far.trials
    assert near.passed
    assert "is enough for half" in near.says


def test_weak_plants_leave_the_verdict_open():
    x, y = clean(np.random.default_rng(9), sizes=(50,) * 8)
    result = method.audit(x, y, CLASSES, np.random.default_rng(10), plant_shift=1.5, plants=24)
    verdicts = {judge(m, method.METHOD.bounds[0], result.controls).verdict for m in result.measurements}
    assert verdicts == {Verdict.CANNOT_TELL}


def test_planting_changes_the_class_asked_for_and_no_other():
    x, y = clean(np.random.default_rng(11))
    groups = method.Groups.of([x[y == c] for c in range(8)])
    planted = method.plant(groups, 3, 0.2, 9.0, np.random.default_rng(0))
    changed = [c for c in range(8) if not np.array_equal(planted.rows[c], groups.rows[c])]
    assert changed == [3]
    moved = (planted.rows[3] != groups.rows[3]).any(axis=1)
    assert moved.sum() == 12
    step = (planted.rows[3] - groups.rows[3])[moved][0] @ groups.whitener(3)
    assert np.linalg.norm(step) == pytest.approx(9)


@pytest.mark.slow
def test_poison_in_the_sample_training_set_is_found_through_the_backdoored_network():
    import torch
    from safetensors import safe_open

    from audits.engine.architectures import build, options_from_metadata
    from audits.samples.recipe import FILES

    with safe_open(FILES / "digits_backdoored.safetensors", "pt") as file:
        named = options_from_metadata(file.metadata())
        network = build(named.name, named.options)
        network.load_state_dict({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    with np.load(FILES / "digits_suspect.npz") as suspect, np.load(FILES / "digits_suspect_truth.npz") as truth:
        images, labels, is_poison = suspect["images"], suspect["labels"], truth["is_poison"]
    with torch.no_grad():
        features = network.body(torch.from_numpy(images[:, None].astype(np.float32) / 255)).numpy()
    result = method.audit(features, labels, named.class_names, np.random.default_rng(0))
    named_classes = [
        m.subject
        for m in result.measurements
        if judge(m, method.METHOD.bounds[0], result.controls).verdict == "exceeds"
    ]
    assert named_classes == ["class 3"]
    of_class = labels == 3
    assert ranking(result.arrays["scores"][of_class], is_poison[of_class]) > 0.95


# --------------------------------------------------------------------------------------------------------- degenerate


@pytest.mark.parametrize(
    ("embeddings", "y_true", "words"),
    [
        (np.zeros((0, 4)), np.zeros(0, int), "no records"),
        (np.zeros(10), np.zeros(10, int), "matrix of features"),
        (np.ones((200, 4)), np.repeat(np.arange(8), 25), "same features"),
        (np.full((200, 4), np.nan), np.repeat(np.arange(8), 25), "infinite or missing"),
        (np.random.default_rng(0).normal(size=(80, 4)), np.repeat(np.arange(8), 10), "No class has 20"),
    ],
)
def test_unsuitable_input_is_refused_in_words(embeddings, y_true, words):
    with pytest.raises(UnsuitableInput, match=words):
        method.audit(embeddings, y_true, CLASSES, np.random.default_rng(0))


def test_few_classes_are_undefined_but_ranked():
    rng = np.random.default_rng(12)
    x, y = clean(rng, sizes=(100, 100))
    x[:15] += 40
    result = method.audit(x, y, ("no", "yes"), rng)
    assert [m.value for m in result.measurements] == [None, None]
    assert "needed to know what is usual" in result.measurements[0].undefined
    assert result.arrays["flagged"][:15].all()
    assert len(method.figures(result)) == 1


def test_small_classes_dead_features_and_constant_classes_are_survived():
    rng = np.random.default_rng(13)
    x, y = clean(rng, sizes=(60, 60, 60, 60, 60, 60, 60, 5))
    x[:, 0] = 0
    x[y == 2] = 1.0
    result = method.audit(x, y, CLASSES, rng, plants=10)
    assert [m.subject for m in result.measurements] == [f"class {name}" for name in "abcdefg"]
    assert any("h (5)" in note for note in result.notes)


def test_inputs_are_left_alone():
    x, y = clean(np.random.default_rng(14))
    before = x.copy()
    method.audit(x, y, CLASSES, np.random.default_rng(0), plants=10)
    assert np.array_equal(x, before)


def test_figures_are_drawn_from_the_stored_result():
    rng = np.random.default_rng(15)
    result = method.audit(**method.example(rng), rng=rng, plants=10)
    stored = Result.from_json(json.loads(json.dumps(result.to_json())), result.arrays)
    drawn = method.figures(stored)
    assert len(drawn) == 2
    assert "class f stands out most" in drawn[0].alt
    assert all(figure.table.rows for figure in drawn)
