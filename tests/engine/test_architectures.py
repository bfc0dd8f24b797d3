"""The networks that a file of bare weights may name: what is built, and what is refused."""

import json

import pytest

from audits.engine.architectures import ARCHITECTURES, build, options_from_metadata
from audits.methods.errors import UnreadableArtifact, UnsuitableInput

MLP = {"inputs": 6, "hidden": [5, 4], "classes": 3}
CNN = {"channels": 1, "height": 28, "width": 28, "filters": [8, 16, 32], "hidden": 64, "classes": 10}


def weights(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_mlp_has_the_size_that_its_options_say():
    # (6+1)*5 + (5+1)*4 + (4+1)*3 = 35 + 24 + 15
    assert weights(build("mlp", MLP)) == 74


def test_cnn_has_the_size_that_its_options_say():
    # (9+1)*8 + (72+1)*16 + (144+1)*32 + (32*3*3+1)*64 + (64+1)*10 = 80 + 1168 + 4640 + 18496 + 650
    assert weights(build("cnn", CNN)) == 25034


def test_network_is_head_after_body_and_names_its_weights_so():
    import torch

    module = build("cnn", CNN)
    images = torch.rand(3, 1, 28, 28)
    features = module.body(images)
    assert features.shape == (3, 64)
    assert torch.equal(module(images), module.head(features))
    assert isinstance(module.head, torch.nn.Linear)
    assert set(module.state_dict()) == {
        f"{part}.{kind}" for part in ("body.0", "body.3", "body.6", "body.10", "head") for kind in ("weight", "bias")
    }


def test_mlp_flattens_pictures_and_may_have_no_hidden_layer():
    import torch

    module = build("mlp", {"inputs": 12, "hidden": [], "classes": 2})
    assert module(torch.rand(5, 3, 2, 2)).shape == (5, 2)
    assert module.body(torch.rand(5, 3, 2, 2)).shape == (5, 12)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("resnet", CNN, "not among those"),
        ("__import__('os')", {}, "not among those"),
        ("mlp", {**MLP, "dropout": 1}, "no option 'dropout'"),
        ("mlp", {"inputs": 6, "classes": 3}, "needs the option hidden"),
        ("mlp", {**MLP, "inputs": 0}, "whole number from 1"),
        ("mlp", {**MLP, "inputs": True}, "whole number from 1"),
        ("mlp", {**MLP, "inputs": 6.0}, "whole number from 1"),
        ("mlp", {**MLP, "inputs": float("nan")}, "whole number from 1"),
        ("mlp", {**MLP, "inputs": 10**30}, "whole number from 1"),
        ("mlp", {**MLP, "hidden": 5}, "list of at most"),
        ("mlp", {**MLP, "hidden": [5, "5"]}, "whole number from 1"),
        ("mlp", {**MLP, "hidden": [1] * 1000}, "list of at most"),
        ("mlp", {**MLP, "classes": 1}, "at least two classes"),
        ("mlp", {**MLP, "inputs": 100_000, "hidden": [100_000]}, "10,000,400,003 weights"),
        ("cnn", {**CNN, "filters": [1] * 5}, "too small"),
        ("cnn", {**CNN, "height": 20_000, "width": 20_000, "filters": [1], "hidden": 1}, "weights"),
        ("cnn", {**CNN, "height": 9_000, "width": 9_000, "filters": [1], "hidden": 1}, "activations"),
    ],
)
def test_refuses_in_words_before_anything_is_allocated(name, options, words):
    with pytest.raises(UnsuitableInput, match=words) as refusal:
        build(name, options)
    assert len(str(refusal.value)) < 400


def test_header_round_trip():
    header = {"architecture": "cnn", "options": json.dumps(CNN), "class_names": json.dumps(["cat", "dog"])}
    named = options_from_metadata(header)
    assert named == ("cnn", CNN, ("cat", "dog"))
    assert options_from_metadata({"architecture": "mlp", "options": json.dumps(MLP)}).class_names is None


@pytest.mark.parametrize(
    ("header", "error", "words"),
    [
        ({}, UnsuitableInput, "does not say which network"),
        ({"format": "pt"}, UnsuitableInput, "does not say which network"),
        ({"architecture": "cnn", "options": "{"}, UnreadableArtifact, "not JSON"),
        ({"architecture": "cnn", "options": "[" * 100_000}, UnreadableArtifact, "not JSON"),
        ({"architecture": "cnn", "options": "[1]"}, UnreadableArtifact, "must be a JSON object"),
        ({"architecture": "cnn", "options": "{}", "class_names": "[1]"}, UnreadableArtifact, "list of texts"),
        ({"architecture": "cnn", "options": "{}", "class_names": '["a", "a"]'}, UnreadableArtifact, "different"),
        ({"architecture": "cnn", "options": " " * 2_000_000}, UnreadableArtifact, "longer than"),
    ],
)
def test_header_is_refused_in_words(header, error, words):
    with pytest.raises(error, match=words):
        options_from_metadata(header)


def test_every_listed_network_says_what_it_is_and_what_it_needs():
    for architecture in ARCHITECTURES.values():
        assert architecture.description.endswith((".", "too."))
        assert all(option.name and option.help for option in architecture.options)
