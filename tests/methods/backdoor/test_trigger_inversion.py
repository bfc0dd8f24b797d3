"""Trigger inversion: the optimisation, the index among classes, its controls, and what it finds."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from audits.methods.backdoor import _poison
from audits.methods.backdoor import trigger_inversion as method
from audits.methods.contract import Result, no_progress
from audits.methods.errors import UnsuitableInput
from audits.methods.stats import benjamini_hochberg
from audits.methods.verdict import Verdict, judge


def verdicts(result):
    indices = result.named("anomaly_index")
    adjusted = benjamini_hochberg([m.p_value for m in indices])
    bound = method.METHOD.bounds[0]
    return {m.subject: judge(m, bound, result.controls, p).verdict for m, p in zip(indices, adjusted, strict=True)}


@pytest.fixture(scope="module")
def planted():
    return method.example(np.random.default_rng(0))


@pytest.fixture(scope="module")
def result(planted):
    return method.audit(**planted, rng=np.random.default_rng(1))


@pytest.fixture(scope="module")
def clean_result(planted):
    twin = _poison.clean_twin(planted["model"].module, planted["images"], planted["y_true"], 5)
    model = method._Network(twin, planted["model"].classes)
    return method.audit(model, planted["images"], planted["y_true"], np.random.default_rng(2))


# ------------------------------------------------------------------------------------------------------------ by hand


def test_anomaly_index_by_hand():
    # Median 3, absolute deviations 2 1 0 1 7 with median 1, so the index is (3 - s) / 1.4826.
    index = method.anomaly_index(np.array([1.0, 2.0, 3.0, 4.0, 10.0]))
    assert index == pytest.approx(np.array([2, 1, 0, -1, -7]) / 1.4826)


def test_anomaly_index_of_mostly_equal_sizes_is_undefined():
    assert method.indices_over_repeats(np.array([[5.0, 5.0, 5.0, 5.0, 1.0]] * 3), 0.95) is None
    assert method.anomaly_index(np.array([5.0, 5.0, 5.0, 5.0, 1.0])) is None


def test_cost_rises_after_five_good_updates_and_falls_after_five_bad_ones():
    schedule = method._Schedule(2)
    for _ in range(4):
        schedule.update(torch.tensor([1.0, 0.0]))
    assert schedule.cost.tolist() == pytest.approx([1e-3, 1e-3])
    schedule.update(torch.tensor([1.0, 0.0]))
    assert schedule.cost.tolist() == pytest.approx([1.5e-3, 1e-3 / 1.5**1.5])
    for _ in range(5):
        schedule.update(torch.tensor([1.0, 0.0]))
    assert schedule.cost.tolist() == pytest.approx([2.25e-3, 1e-3 / 1.5**3])


def test_apply_by_hand():
    stamped = method.apply(np.array([[0.0, 0.5]]), np.array([[[1.0, 1.0]]]), np.array([[[[0.2, 0.2]]]]))
    assert stamped.ravel() == pytest.approx([0.2, 0.6])


# ---------------------------------------------------------------------------------------------------------- agreement


def test_adam_agrees_with_torch():
    generator = torch.Generator().manual_seed(0)
    ours = torch.rand(3, 4, generator=generator)
    theirs = ours.clone().requires_grad_(True)
    mine = method._Adam(ours)
    known = torch.optim.Adam([theirs], lr=0.1, betas=(0.5, 0.9), eps=method.TINY)
    for _ in range(7):
        gradient = torch.rand(3, 4, generator=generator) - 0.5
        theirs.grad = gradient.clone()
        known.step()
        mine.update(ours, gradient)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_inversion_finds_the_only_pixel_that_matters():
    # Class 1 wins exactly if pixel (2, 1) is above 0.55, so the smallest mask is on that pixel alone.
    linear = nn.Linear(16, 2)
    with torch.no_grad():
        linear.weight.zero_()
        linear.weight[1, 9] = 20
        linear.bias.copy_(torch.tensor([11.0, 0.0]))
    linear.requires_grad_(False)
    images = np.random.default_rng(0).uniform(0, 0.4, (64, 1, 4, 4)).astype(np.float32)
    found = method.invert(
        nn.Sequential(nn.Flatten(), linear), images, [1], 0, steps=300, batch=16, progress=no_progress
    )
    mask = found.masks[0]
    assert found.found.all()
    assert np.unravel_index(mask.argmax(), mask.shape) == (2, 1)
    assert mask[2, 1] / mask.sum() > 0.75
    assert found.patterns[0, 0, 2, 1] > 0.9


# --------------------------------------------------------------------------------------------------------------- null


@pytest.mark.parametrize("k", [6, 10, 43])
def test_chance_is_uniform_for_normal_sizes(k):
    rng = np.random.default_rng(k)
    p_values = [method.chance(method.anomaly_index(rng.normal(size=k))[0], k) for _ in range(2_000)]
    # Standard error of a share of 2,000 near 0.05 is 0.005.
    assert np.mean(np.array(p_values) <= 0.05) == pytest.approx(0.05, abs=0.02)
    assert np.mean(p_values) == pytest.approx(0.5, abs=0.03)


def test_rule_of_the_controls_keeps_to_its_level():
    rng = np.random.default_rng(3)
    alarms = [
        any(method.stands_out(float(index), 10) for index in method.anomaly_index(rng.normal(size=10)))
        for _ in range(2_000)
    ]
    assert np.mean(alarms) < 0.065


def test_clean_network_is_not_accused(clean_result):
    assert Verdict.EXCEEDS not in verdicts(clean_result).values()
    assert clean_result.controls[0].kind == "negative"
    assert clean_result.controls[0].passed


# ------------------------------------------------------------------------------------------------------------ planted


def test_planted_trigger_is_found_with_its_class_and_place(result):
    accused = [subject for subject, verdict in verdicts(result).items() if verdict is Verdict.EXCEEDS]
    assert accused == ["class f"]
    top = int(result.arrays["shown"][0])
    mask = result.arrays["masks"][0]
    assert top == 5
    assert mask[1:3, 1:3].sum() / mask.sum() > 0.7  # the planted square
    success = result.find("attack_success_rate", "class f")
    assert success.low > 0.75
    assert success.low <= success.value <= success.high


def test_planted_patch_of_the_control_is_found(result, clean_result):
    for one in (result, clean_result):
        control = one.controls[1]
        assert (control.kind, control.passed) == ("positive", True)


def test_a_plant_that_is_missed_takes_away_within(clean_result):
    missed = [
        c if c.kind == "negative" else method.Control("planted patch", "positive", "", False, 1)
        for c in clean_result.controls
    ]
    judged = {judge(m, method.METHOD.bounds[0], missed).verdict for m in clean_result.named("anomaly_index")}
    assert judged == {Verdict.CANNOT_TELL}


def test_index_over_repetitions_by_hand():
    # Log norms 1 2 3 4 10 on average, deviation 1.4826 as above. The first class lies 2 - 0.2 and 2 + 0.2 below the
    # median 3 in the two repetitions: mean 2, standard deviation 0.2 sqrt 2, so Student's half width (1 degree of
    # freedom, 12.7062) is 12.7062 * 0.2. The others do not move.
    logs = np.tile([1.0, 2.0, 3.0, 4.0, 10.0], (2, 1))
    logs[:, 0] += [0.2, -0.2]
    indices = method.indices_over_repeats(np.exp(logs), 0.95)
    assert indices.value == pytest.approx(np.array([2, 1, 0, -1, -7]) / 1.4826)
    assert indices.high[0] - indices.value[0] == pytest.approx(12.7062 * 0.2 / 1.4826, rel=1e-5)
    assert indices.low[1:] == pytest.approx(indices.value[1:])


def test_interval_covers_the_index_that_more_repetitions_would_give():
    rng = np.random.default_rng(6)
    centre = rng.normal(4, 0.4, size=10)
    truth = method.anomaly_index(centre)[0]
    covered = []
    for _ in range(400):
        indices = method.indices_over_repeats(np.exp(centre + rng.normal(scale=0.05, size=(4, 10))), 0.95)
        covered.append(indices.low[0] <= truth <= indices.high[0])
    assert 0.85 < np.mean(covered) < 0.99  # the deviation is taken as known, which costs a little


def test_same_seed_gives_the_same_result(planted, result):
    again = method.audit(**planted, rng=np.random.default_rng(1))
    assert again.to_json() == result.to_json()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "accused"), [("digits_backdoored", ["class 3"]), ("digits_clean", [])], ids=["backdoored", "clean"]
)
def test_sample_networks_are_told_apart(name, accused):
    from safetensors import safe_open

    from audits.engine.architectures import build, options_from_metadata
    from audits.samples.recipe import FILES

    with safe_open(FILES / f"{name}.safetensors", "pt") as file:
        named = options_from_metadata(file.metadata())
        network = build(named.name, named.options)
        network.load_state_dict({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    with np.load(FILES / "digits_sample.npz") as sample:
        images, y_true = sample["images"][:, None].astype(np.float32) / 255, sample["labels"]
    model = method._Network(network.eval(), named.class_names)
    found = method.audit(model, images, y_true, np.random.default_rng(0), batch=8, repeats=3)
    assert [subject for subject, verdict in verdicts(found).items() if verdict is Verdict.EXCEEDS] == accused
    assert all(control.passed for control in found.controls)


# --------------------------------------------------------------------------------------------------------- degenerate


class Fake:
    module = None
    classes = tuple("ab")


def test_model_without_gradients_is_refused_in_words():
    with pytest.raises(UnsuitableInput, match="needs gradients"):
        method.audit(Fake(), np.zeros((80, 1, 4, 4)), np.zeros(80, int), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (x[:20], y[:20]), "at least 60 clean images"),
        (lambda x, y: (x[:, 0], y), "shape"),
        (lambda x, y: (x * 255, y), "between 0 and 1"),
        (lambda x, y: (np.full_like(x, np.nan), y), "between 0 and 1"),
        (lambda x, y: (x, np.zeros_like(y)), "one class"),
        (lambda x, y: (x, y + 5), "has 8 classes"),
    ],
)
def test_unsuitable_images_are_refused_in_words(planted, change, words):
    images, y_true = change(planted["images"], planted["y_true"])
    with pytest.raises(UnsuitableInput, match=words):
        method.audit(planted["model"], images, y_true, np.random.default_rng(0))


def test_few_classes_have_no_index_but_sizes_and_pictures():
    rng = np.random.default_rng(4)
    images = rng.random((80, 3, 4, 4)).astype(np.float32)
    model = method._Network(nn.Sequential(nn.Flatten(), nn.Linear(48, 3)), ("a", "b", "c"))
    found = method.audit(model, images, rng.integers(0, 3, 80), rng, steps=60, repeats=3)
    assert all(m.value is None and "too few" in m.undefined for m in found.named("anomaly_index"))
    assert found.controls == ()
    assert len(method.figures(found)) == 3


def test_network_that_never_obeys_gives_an_undefined_index_not_a_number():
    linear = nn.Linear(16, 8)
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.copy_(torch.arange(8.0))
    model = method._Network(nn.Sequential(nn.Flatten(), linear), tuple("abcdefgh"))
    rng = np.random.default_rng(5)
    found = method.audit(
        model, rng.random((80, 1, 4, 4)).astype(np.float32), rng.integers(0, 8, 80), rng, steps=60, repeats=3
    )
    assert all("no mask was found" in m.undefined for m in found.named("anomaly_index"))
    assert found.find("attack_success_rate", "class a").value == 0


def test_audited_model_and_images_are_left_alone(planted):
    module, images = planted["model"].module, planted["images"]
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    copied, gradients = images.copy(), [p.requires_grad for p in module.parameters()]
    state = torch.get_rng_state()
    method.audit(**planted, rng=np.random.default_rng(1), steps=50, repeats=3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert [p.requires_grad for p in module.parameters()] == gradients
    assert np.array_equal(images, copied)
    assert torch.equal(torch.get_rng_state(), state)


# ------------------------------------------------------------------------------------------------------------- plants


def test_planted_copy_obeys_and_the_twin_does_not(planted):
    images, y_true = planted["images"], planted["y_true"]
    trigger = _poison.corner_trigger(images, np.zeros((8, 8)))
    module = planted["model"].module
    stamped = trigger.stamp(images[y_true != 2])
    copied = _poison.planted_copy(module, images, y_true, trigger, 2, 0)
    twin = _poison.clean_twin(module, images, y_true, 0)
    assert np.mean(_poison.classify(copied, stamped) == 2) > 0.9
    assert np.mean(_poison.classify(twin, stamped) == 2) < 0.4
    assert np.mean(_poison.classify(twin, images) == y_true) > 0.9


def test_trigger_takes_the_free_corner_and_a_colour_that_shows():
    avoid = np.ones((9, 9))
    avoid[6:, :3] = 0
    trigger = _poison.corner_trigger(np.ones((5, 3, 9, 9), np.float32), avoid)
    assert trigger.mask.nonzero()[0].min() == 6
    assert trigger.mask.nonzero()[1].max() == 2
    assert trigger.pixels == 4
    assert trigger.pattern.max() == 0


def test_figures_are_drawn_from_the_stored_result(result):
    stored = Result.from_json(json.loads(json.dumps(result.to_json())), result.arrays)
    drawn = method.figures(stored)
    assert [bool(figure.pictures) for figure in drawn] == [False, True, True]
    assert "class f needs the smallest mask" in drawn[0].alt
    assert len(drawn[1].pictures) == 8
    assert all(figure.table.rows for figure in drawn)
