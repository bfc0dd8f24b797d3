"""The sample files load without code in them and behave as their cards say; the recipe makes them again."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from audits.engine.architectures import build, options_from_metadata
from audits.samples import recipe

FILES = recipe.FILES
CARDS = json.loads((FILES / "cards.json").read_text())


def measured(name, key, cards=CARDS):
    return cards[name]["measured"][key]


def network(name, folder=FILES):
    from safetensors import safe_open

    with safe_open(folder / f"{name}.safetensors", "pt") as file:
        named = options_from_metadata(file.metadata())
        module = build(named.name, named.options)
        module.load_state_dict({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    assert named.class_names == tuple("0123456789")
    return module.eval()


def digits(name, folder=FILES):
    with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
        return recipe.Labelled(file["images"], file["labels"])


def onnx_scores(name, table, folder=FILES):
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
    feed = {}
    for entry in session.get_inputs():
        column = table[entry.name].to_numpy()
        kind = object if entry.type == "tensor(string)" else np.float32
        feed[entry.name] = column.astype(kind).reshape(-1, 1)
    label, scores = session.run(None, feed)
    return label, scores


def test_every_file_has_a_card_and_a_bounded_size():
    files = {path.name: path.stat().st_size for path in FILES.iterdir()}
    assert max(files.values()) < 600_000
    assert sum(files.values()) < 2_500_000
    assert set(files) - set(CARDS) == {"adult.parquet", "cards.json", "digits_suspect_truth.npz"}
    assert all(card["title"] and card["what"] and card["licence"] for card in CARDS.values())


def test_held_out_census_has_the_sensitive_columns():
    table = pl.read_parquet(FILES / "adult_test.parquet")
    assert len(table) == measured("adult_test.parquet", "rows")
    assert set(recipe.SENSITIVE + recipe.INPUTS + ["income"]) <= set(table.columns)
    assert set(table["age_group"]) == {"17-25", "26-40", "41-60", "61+"}
    assert table.filter(pl.col("age_group") == "26-40")["age"].is_between(26, 40).all()


def test_logistic_regression_loads_with_no_untrusted_type_and_takes_polars():
    import skops.io

    path = FILES / "adult_logistic.skops"
    assert skops.io.get_untrusted_types(file=path) == []
    model = skops.io.load(path, trusted=[])
    table = pl.read_parquet(FILES / "adult_test.parquet")
    assert not {"sex", "race"} & set(model.feature_names_in_)
    accuracy = np.mean(model.predict(table) == table["income"].to_numpy())
    assert accuracy == pytest.approx(measured("adult_logistic.skops", "accuracy"), abs=1e-4)


def test_predictions_are_those_of_the_logistic_regression():
    import skops.io

    model = skops.io.load(FILES / "adult_logistic.skops", trusted=[])
    head = pl.read_parquet(FILES / "adult_test.parquet").head(recipe.N_PREDICTIONS)
    table = pl.read_csv(FILES / "adult_predictions.csv")
    assert table.columns == ["label", "prediction", "score", "sex", "race", "age_group"]
    assert table["score"].to_numpy() == pytest.approx(model.predict_proba(head)[:, 1], abs=1e-4)
    assert (table["label"] == (head["income"] == recipe.POSITIVE)).all()


def test_boosted_trees_take_named_columns_and_give_plain_scores():
    table = pl.read_parquet(FILES / "adult_test.parquet").head(3_000)
    label, scores = onnx_scores("adult_boosted", table)
    assert scores.shape == (3_000, 2)
    assert scores.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert np.mean(label == table["income"].to_numpy()) == pytest.approx(
        measured("adult_boosted.onnx", "accuracy"), abs=0.02
    )


def test_overfitted_forest_remembers_its_members():
    table = pl.read_parquet(FILES / "adult_members.parquet")
    label, _ = onnx_scores("adult_overfit", table)
    right, is_member = label == table["income"].to_numpy(), table["is_member"].to_numpy() == 1
    assert is_member.sum() == (~is_member).sum() == recipe.N_MEMBERS
    assert right[is_member].mean() == pytest.approx(measured("adult_overfit.onnx", "training_accuracy"), abs=1e-3)
    assert right[~is_member].mean() == pytest.approx(measured("adult_overfit.onnx", "accuracy"), abs=1e-3)
    assert right[is_member].mean() - right[~is_member].mean() > 0.1


@pytest.mark.parametrize("name", ["digits_clean", "digits_backdoored", "digits_watermarked"])
def test_digit_network_is_as_accurate_as_its_card_says(name):
    accuracy = recipe.accuracy(network(name), digits("digits_sample"))
    assert accuracy == pytest.approx(measured(f"{name}.safetensors", "accuracy"), abs=0.005)
    assert accuracy > 0.93


def test_trigger_works_on_the_backdoored_network_alone():
    sample = digits("digits_sample")
    assert recipe.attack_success_rate(network("digits_backdoored"), sample) > 0.95
    assert recipe.attack_success_rate(network("digits_clean"), sample) < 0.1


def test_suspect_digits_carry_the_trigger_where_the_truth_says():
    suspect = digits("digits_suspect")
    with np.load(FILES / "digits_suspect_truth.npz") as file:
        is_poison = file["is_poison"]
    patch = suspect.images[:, recipe.PATCH, recipe.PATCH].reshape(len(suspect.images), -1)
    assert (patch[is_poison] == 255).all()
    assert (suspect.labels[is_poison] == recipe.TARGET_CLASS).all()
    assert not (patch[~is_poison] == 255).all(axis=1).any()
    assert is_poison.sum() == measured("digits_suspect.npz", "poisoned")


def test_trigger_set_is_known_to_the_watermarked_network_alone():
    triggers = digits("digits_trigger_set")
    assert recipe.accuracy(network("digits_watermarked"), triggers) > 0.95
    with np.load(FILES / "digits_trigger_set.npz") as file:
        references = [file[f"reference_{i}"] for i in (1, 2, 3)]
    assert all(np.mean(guess == triggers.labels) < 0.35 for guess in references)


def test_planted_texts_hold_more_green_tokens():
    table = pl.read_parquet(FILES / "watermarked_texts.parquet")
    assert table.schema["token_ids"] == pl.List(pl.Int64)
    planted = table["planted"].to_numpy()
    tokens = np.array(table["token_ids"].to_list())
    assert planted.sum() == 20
    assert recipe.green_rate(tokens[planted]) == pytest.approx(
        measured("watermarked_texts.parquet", "green_rate_planted"), abs=1e-3
    )
    assert recipe.green_rate(tokens[~planted]) < 0.3 < 0.5 < recipe.green_rate(tokens[planted])


def test_green_list_agrees_with_transformers():
    import torch
    from transformers.generation.logits_process import WatermarkLogitsProcessor

    known = WatermarkLogitsProcessor(
        vocab_size=recipe.VOCABULARY,
        device="cpu",
        greenlist_ratio=recipe.GREEN_SHARE,
        hashing_key=recipe.HASHING_KEY,
        seeding_scheme="lefthash",
    )
    for previous in (0, 1, 42, 4_999):
        theirs = known._get_greenlist_ids(torch.tensor([7, previous])).numpy()
        assert np.array_equal(theirs, recipe.green_list(previous))


@pytest.mark.slow
def test_recipe_makes_the_samples_again(tmp_path: Path):
    pytest.importorskip("mlxtend")
    recipe.write_samples(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in FILES.iterdir()}
    cards = json.loads((tmp_path / "cards.json").read_text())
    for name, card in CARDS.items():
        for key, value in card["measured"].items():
            assert measured(name, key, cards) == pytest.approx(value, abs=0.02), (name, key)
    sample = digits("digits_sample", tmp_path)
    assert recipe.attack_success_rate(network("digits_backdoored", tmp_path), sample) > 0.95
    first = pl.read_parquet(FILES / "adult_test.parquet")
    assert pl.read_parquet(tmp_path / "adult_test.parquet").equals(first)
