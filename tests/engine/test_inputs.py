"""From columns and a model to the inputs of a method: labels, scores, groups, losses, and the ledger of records left out."""

import inspect
import io
import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from audits.engine import wire
from audits.engine.datasets import open_dataset
from audits.engine.inputs import assemble, derive, label_texts
from audits.methods.contract import INPUTS, no_progress
from audits.methods.errors import UnsuitableInput


@pytest.fixture
def table(tmp_path):
    """A data set from columns, read back from Parquet as an upload would be."""

    def make(**columns):
        path = tmp_path / "upload"
        pl.DataFrame(columns).write_parquet(path)
        return open_dataset(str(path))

    return make


@pytest.fixture
def arrays(tmp_path):
    """A data set from arrays."""

    def make(**columns):
        path = tmp_path / "upload"
        out = io.BytesIO()
        np.savez(out, **columns)
        path.write_bytes(out.getvalue())
        return open_dataset(str(path))

    return make


def entry(*required, optional=()):
    """What the catalogue says of a method with these inputs."""
    needed, more = (tuple(INPUTS[name] for name in names) for names in (required, optional))
    return SimpleNamespace(required=needed, optional=more, inputs=needed + more)


def gather(dataset, names, roles, model=None, optional=(), **job):
    job = {"roles": roles, "prepared": {}, "positive_label": "", "missing": "group", **job}
    return assemble(entry(*names, optional=optional), dataset, model, job)


class Stub:
    """A model of two or more classes whose scores are read off the column `p`, P(last class)."""

    module = None

    def __init__(self, *classes):
        self.classes = classes

    def scores(self, x):
        p = x["p"].to_numpy()
        rest = [(1 - p) / (len(self.classes) - 1)] * (len(self.classes) - 1)
        return np.column_stack([*rest, p])

    def features(self, x):
        return np.column_stack([x["p"].to_numpy(), x["p"].to_numpy() ** 2])


# ------------------------------------------------------------------------------------------------------------------ labels


@pytest.mark.parametrize(
    ("labels", "classes", "indices"),
    [
        ([0, 1, 1], ("0", "1"), [0, 1, 1]),
        ([0.0, 1.0, 1.0], ("0", "1"), [0, 1, 1]),
        ([False, True, True], ("false", "true"), [0, 1, 1]),
        (["no", "yes", "yes"], ("no", "yes"), [0, 1, 1]),
        ([2, 10, 10], ("2", "10"), [0, 1, 1]),
        (["2", "10", "10"], ("2", "10"), [0, 1, 1]),
        ([-1, 1, 1], ("-1", "1"), [0, 1, 1]),
        ([0.5, 1.5, 1.5], ("0.5", "1.5"), [0, 1, 1]),
    ],
)
def test_labels_become_indices_of_the_sorted_names(table, labels, classes, indices):
    made = gather(table(y=labels), ["y_true"], {"y_true": "y"})
    assert made.classes == classes
    assert made.values["y_true"].tolist() == indices


@pytest.mark.parametrize(("positive", "classes"), [("", ("no", "yes")), ("yes", ("no", "yes")), ("no", ("yes", "no"))])
def test_favourable_outcome_is_class_one(table, positive, classes):
    made = gather(table(y=["no", "yes", "no"]), ["y_true"], {"y_true": "y"}, positive_label=positive)
    assert made.classes == classes
    assert made.values["y_true"].tolist() == [int(label == classes[1]) for label in ("no", "yes", "no")]


def test_favourable_outcome_that_is_no_label_is_refused_with_the_labels(table):
    with pytest.raises(UnsuitableInput, match=r"“Yes” is none of the labels “no”, “yes”"):
        gather(table(y=["no", "yes"]), ["y_true"], {"y_true": "y"}, positive_label="Yes")


def test_predictions_share_the_classes_of_the_labels(table):
    made = gather(table(y=["a", "b", "c"], p=["c", "b", "b"]), ["y_true", "y_pred"], {"y_true": "y", "y_pred": "p"})
    assert made.classes == ("a", "b", "c")
    assert made.values["y_pred"].tolist() == [2, 1, 1]


@pytest.mark.parametrize("predicted", [["No", "Yes", "No"], ["0", "1", "0"], ["no ", "yes", "NO"]])
def test_labels_spelled_in_two_ways_are_refused(table, predicted):
    """Otherwise two classes would silently become four, and nothing would ever be predicted right."""
    data = table(y=["no", "yes", "no"], p=predicted)
    with pytest.raises(UnsuitableInput, match="spelling"):
        gather(data, ["y_true", "y_pred"], {"y_true": "y", "y_pred": "p"})


def test_numbers_and_words_in_one_column_are_refused(table):
    with pytest.raises(UnsuitableInput, match=r"mixes numbers.*“0”.*words.*“yes”"):
        gather(table(y=["0", "1", "yes"]), ["y_true"], {"y_true": "y"})


def test_column_of_many_numbers_is_no_class(table):
    with pytest.raises(UnsuitableInput, match="1,500 different values"):
        gather(table(y=list(range(1500))), ["y_true"], {"y_true": "y"})


def test_labels_of_the_model_are_its_own_and_others_are_refused_with_both_sets(table):
    model = Stub("<=50K", ">50K")
    data = table(y=["low", "high"], p=[0.1, 0.9])
    with pytest.raises(UnsuitableInput, match=r"“<=50K”, “>50K”.*“high”, “low”"):
        derive(data, model, {"y_true": "y", "features": ["p"]}, "", ["y_pred"], no_progress)


@pytest.mark.parametrize("values", [[1.0, np.inf, 0.0], [1.0, np.nan, 0.0]])
def test_labels_that_are_not_finite_are_missing(values):
    assert label_texts(np.array(values)).tolist() == ["1", None, "0"]


# ------------------------------------------------------------------------------------------------------------------ ledger


def test_records_without_a_label_are_counted_and_left_out_everywhere(table):
    data = table(y=["a", None, "b", "a"], s=[0.1, 0.2, None, 0.4], g=["f", "m", "f", "m"])
    roles = {"y_true": "y", "y_score": "s", "sensitive_features": ["g"]}
    made = gather(data, ["y_true", "y_score", "sensitive_features"], roles)
    assert made.ledger == {
        "rows": 4,
        "dropped": [{"reason": "True label is missing", "rows": 1}, {"reason": "Score is missing", "rows": 1}],
        "used": 2,
        "notes": [],
    }
    assert made.values["y_true"].tolist() == [0, 0]
    assert made.values["y_score"].tolist() == [0.1, 0.4]
    assert made.values["sensitive_features"]["g"].tolist() == ["f", "m"]


@pytest.mark.parametrize(("missing", "groups", "used"), [("group", ["f", "missing", "m"], 3), ("drop", ["f", "m"], 2)])
def test_missing_group_is_a_group_or_dropped_with_a_count(table, missing, groups, used):
    data = table(g=["f", None, "m"])
    made = gather(data, ["sensitive_features"], {"sensitive_features": ["g"]}, missing=missing)
    assert made.values["sensitive_features"]["g"].tolist() == groups
    assert made.ledger["used"] == used
    assert sum(drop["rows"] for drop in made.ledger["dropped"]) == 3 - used


@pytest.mark.parametrize("roles", [{"sensitive_features": ["g"]}, {"y_true": "y"}])
def test_missing_values_can_be_refused(table, roles):
    data = table(g=["f", None, "m"], y=["a", None, "b"])
    with pytest.raises(UnsuitableInput, match="1 of 3 records"):
        gather(data, list(roles), roles, missing="refuse")


def test_nothing_left_is_refused(table):
    data = table(s=[None, 0.5], y=["a", None])
    with pytest.raises(UnsuitableInput, match="No record is left"):
        gather(data, ["y_true", "y_score"], {"y_true": "y", "y_score": "s"})


def test_infinite_numbers_are_left_out(table):
    made = gather(table(loss=[0.5, np.inf, 1.0]), ["record_loss"], {"record_loss": "loss"})
    assert made.values["record_loss"].tolist() == [0.5, 1.0]
    assert made.ledger["used"] == 2


def test_columns_that_the_method_does_not_read_drop_nothing(table):
    data = table(y=["a", "b"], loss=[None, 1.0])
    made = gather(data, ["y_true"], {"y_true": "y", "record_loss": "loss"})
    assert made.ledger["used"] == 2
    assert set(made.values) == {"y_true"}


# ----------------------------------------------------------------------------------------------------------- other columns


@pytest.mark.parametrize(("scores", "words"), [([0.1, 55.0], "runs from 0.1 to 55"), ([-0.1, 0.5], "runs from -0.1")])
def test_score_outside_of_its_range_is_refused(table, scores, words):
    with pytest.raises(UnsuitableInput, match=words):
        gather(table(s=scores), ["y_score"], {"y_score": "s"})


def test_score_of_texts_is_refused_with_an_example(table):
    with pytest.raises(UnsuitableInput, match="holds “high”"):
        gather(table(s=["high", "low"]), ["y_score"], {"y_score": "s"})


@pytest.mark.parametrize(
    "values", [[1, 0, 1], [1.0, 0.0, 1.0], [True, False, True], ["in", "out", "in"], ["TRUE", "False", "true"]]
)
def test_membership_is_read_in_its_usual_spellings(table, values):
    made = gather(table(m=values), ["is_member"], {"is_member": "m"})
    assert made.values["is_member"].tolist() == [1, 0, 1]


def test_membership_in_other_words_is_refused(table):
    with pytest.raises(UnsuitableInput, match="“perhaps”"):
        gather(table(m=["in", "perhaps"]), ["is_member"], {"is_member": "m"})


@pytest.mark.parametrize("values", [[[1, 2], [3], [4, 5, 6]], ["1 2", "3", "4 5 6"]])
def test_token_ids_are_lists_or_texts_of_numbers(table, values):
    made = gather(table(t=values), ["token_ids"], {"token_ids": "t"})
    assert [ids.tolist() for ids in made.values["token_ids"]] == [[1, 2], [3], [4, 5, 6]]
    assert all(ids.dtype.kind == "i" for ids in made.values["token_ids"])


def test_token_ids_lose_their_padding(arrays):
    made = gather(arrays(t=np.array([[1, 2, -1], [3, -1, -1]])), ["token_ids"], {"token_ids": "t"})
    assert [ids.tolist() for ids in made.values["token_ids"]] == [[1, 2], [3]]


def test_words_are_no_token_ids(table):
    with pytest.raises(UnsuitableInput, match="tokenizer"):
        gather(table(t=["hello world"]), ["token_ids"], {"token_ids": "t"})


def test_embeddings_are_a_real_matrix(table, arrays):
    for data in (table(e=[[1.0, 2.0], [3.0, 4.0]]), arrays(e=np.array([[1.0, 2.0], [3.0, 4.0]]))):
        made = gather(data, ["embeddings"], {"embeddings": "e"})
        assert made.values["embeddings"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(UnsuitableInput, match="differ in length"):
        gather(table(e=[[1.0], [2.0, 3.0]]), ["embeddings"], {"embeddings": "e"})


@pytest.mark.parametrize("shape", [(5, 6, 4), (5, 6, 4, 3), (5, 3, 6, 4), (5, 1, 6, 4)])
def test_images_come_as_channels_first_between_zero_and_one(arrays, shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    made = gather(arrays(x=pixels), ["images"], {"images": "x"}).values["images"]
    assert made.dtype == np.float32
    assert made.shape[0] == 5
    assert made.shape[2:] == (6, 4)
    first = pixels[0, 0, 0] if pixels.ndim == 3 else pixels[0, 0, 0, 0]
    assert made[0, 0, 0, 0] == np.float32(first) / np.float32(255)


@pytest.mark.parametrize("values", [-0.5, 1.5, np.nan])
def test_images_on_another_scale_are_refused(arrays, values):
    with pytest.raises(UnsuitableInput, match="between 0 and 1"):
        gather(arrays(x=np.full((2, 3, 3), values)), ["images"], {"images": "x"})


def test_groups_are_texts(table):
    made = gather(table(g=[1, 2, 1], h=[True, False, True]), ["sensitive_features"], {"sensitive_features": ["g", "h"]})
    groups = made.values["sensitive_features"]
    assert groups["g"].tolist() == ["1", "2", "1"]
    assert groups["h"].tolist() == ["true", "false", "true"]


def test_many_different_numbers_are_cut_into_quarters_and_told(table):
    made = gather(table(age=list(range(1, 101))), ["sensitive_features"], {"sensitive_features": ["age"]})
    groups = made.values["sensitive_features"]["age"]
    names, counts = np.unique(groups.astype(str), return_counts=True)
    assert len(names) == 4
    assert counts.tolist() == [25, 25, 25, 25]
    assert any("age" in note for note in made.ledger["notes"])


def test_identifier_is_no_group(table):
    data = table(g=[f"person {i}" for i in range(500)])
    with pytest.raises(UnsuitableInput, match="500 different"):
        gather(data, ["sensitive_features"], {"sensitive_features": ["g"]})


def test_reference_predictions_are_indices_of_the_same_classes(table):
    data = table(y=["a", "b"], r1=["b", "b"], r2=["a", "b"])
    roles = {"y_true": "y", "reference_predictions": ["r1", "r2"]}
    made = gather(data, ["y_true"], roles, optional=["reference_predictions"])
    assert {name: v.tolist() for name, v in made.values["reference_predictions"].items()} == {
        "r1": [1, 1],
        "r2": [0, 1],
    }


# ------------------------------------------------------------------------------------------------------------- what is lacking


def test_column_that_is_not_there_is_named_with_those_that_are(table):
    with pytest.raises(UnsuitableInput, match=r"“z”.*It has “y”"):
        gather(table(y=["a", "b"]), ["y_true"], {"y_true": "z"})


def test_role_of_several_columns_needs_a_list(table):
    with pytest.raises(UnsuitableInput, match="list of columns"):
        gather(table(g=["a", "b"]), ["sensitive_features"], {"sensitive_features": "g"})


@pytest.mark.parametrize("name", ["y_true", "model", "record_loss"])
def test_required_input_that_is_lacking_is_named(table, name):
    with pytest.raises(UnsuitableInput, match=INPUTS[name].title):
        gather(table(y=["a", "b"]), [name], {})


def test_optional_input_that_is_lacking_is_left_to_the_method(table):
    made = gather(
        table(y=["a", "b"]), ["y_true"], {"y_true": "y"}, optional=["sensitive_features", "reference_predictions"]
    )
    assert set(made.values) == {"y_true"}


# ----------------------------------------------------------------------------------------------------------- derived inputs


def test_derived_inputs_by_hand(table):
    """P(yes) is 0.8, 0.3, 0.9: losses are -ln 0.8, -ln 0.3 (truth yes), -ln 0.1 (truth no)."""
    data = table(y=["yes", "yes", "no"], p=[0.8, 0.3, 0.9])
    roles = {"y_true": "y", "features": ["p"]}
    wanted = ["y_pred", "y_score", "record_loss", "embeddings"]
    classes, made = derive(data, Stub("no", "yes"), roles, "", wanted, no_progress)
    assert classes == ("no", "yes")
    assert made["y_pred"].tolist() == [1, 0, 1]
    assert np.allclose(made["y_score"], [0.8, 0.3, 0.9], atol=1e-12)
    assert np.allclose(made["record_loss"], -np.log([0.8, 0.3, 0.1]), atol=1e-12)
    assert np.allclose(made["embeddings"], [[0.8, 0.64], [0.3, 0.09], [0.9, 0.81]])


def test_favourable_outcome_turns_predictions_and_scores_with_it(table):
    data = table(y=["yes", "no"], p=[0.8, 0.1])
    roles = {"y_true": "y", "features": ["p"]}
    classes, made = derive(data, Stub("no", "yes"), roles, "no", ["y_pred", "y_score", "record_loss"], no_progress)
    assert classes == ("yes", "no")
    assert made["y_pred"].tolist() == [0, 1]
    assert np.allclose(made["y_score"], [0.2, 0.9])
    assert np.allclose(made["record_loss"], -np.log([0.8, 0.9]))


def test_certain_and_wrong_has_a_finite_loss(table):
    data = table(y=["yes", "no"], p=[0.0, 0.0])
    _, made = derive(data, Stub("no", "yes"), {"y_true": "y", "features": ["p"]}, "", ["record_loss"], no_progress)
    assert np.allclose(made["record_loss"], [-np.log(1e-12), 0])


def test_record_without_a_label_is_scored_but_has_no_loss(table):
    data = table(y=["yes", None, "no"], p=[0.8, 0.3, 0.9])
    roles = {"y_true": "y", "features": ["p"]}
    _, made = derive(data, Stub("no", "yes"), roles, "", ["y_pred", "record_loss"], no_progress)
    assert made["y_pred"].tolist() == [1, 0, 1]
    assert np.isnan(made["record_loss"]).tolist() == [False, True, False]


def test_score_of_many_classes_is_refused(table):
    data = table(y=["a", "b", "c"], p=[0.8, 0.3, 0.9])
    with pytest.raises(UnsuitableInput, match="3"):
        derive(data, Stub("a", "b", "c"), {"y_true": "y", "features": ["p"]}, "", ["y_score"], no_progress)


def test_scores_that_are_no_numbers_are_refused(table):
    data = table(p=[0.5, None])
    with pytest.raises(UnsuitableInput, match="not numbers"):
        derive(data, Stub("a", "b"), {"features": ["p"]}, "", ["y_pred"], no_progress)


def test_model_without_its_inputs_is_refused(table):
    with pytest.raises(UnsuitableInput, match="Model inputs"):
        derive(table(p=[0.5]), Stub("a", "b"), {}, "", ["y_pred"], no_progress)


def test_progress_of_predicting_rises(table):
    seen = []
    data = table(p=[0.5] * 100)
    derive(data, Stub("a", "b"), {"features": ["p"]}, "", ["y_pred"], lambda share, words="": seen.append(share))
    assert seen == sorted(seen)
    assert len(seen) > 5


def _stored(tmp_path, classes, **arrays):
    paths = {}
    for name, array in arrays.items():
        paths[name] = str(tmp_path / f"{name}.npz")
        names = np.frombuffer(json.dumps(classes).encode(), np.uint8)
        wire.write_arrays(paths[name], {name: array, "classes": names})
    return paths


def test_prepared_inputs_keep_the_classes_they_were_made_with(table, tmp_path):
    """The data hold two of the model's three classes; the stored predictions still mean the third."""
    prepared = _stored(tmp_path, ["bird", "cat", "dog"], y_pred=np.array([2, 1, 0]))
    made = gather(table(y=["dog", "cat", "cat"]), ["y_true", "y_pred"], {"y_true": "y"}, prepared=prepared)
    assert made.classes == ("bird", "cat", "dog")
    assert made.values["y_true"].tolist() == [2, 1, 1]
    assert made.values["y_pred"].tolist() == [2, 1, 0]


def test_prepared_inputs_are_cut_to_the_records_that_are_left(table, tmp_path):
    prepared = _stored(tmp_path, ["a", "b"], record_loss=np.array([0.1, np.nan, 0.3]))
    data = table(y=["a", None, "b"], m=[1, 0, 1])
    made = gather(data, ["record_loss", "is_member"], {"is_member": "m"}, prepared=prepared)
    assert made.values["record_loss"].tolist() == [0.1, 0.3]
    assert made.values["is_member"].tolist() == [1, 1]


def test_prepared_inputs_of_another_length_are_refused(table, tmp_path):
    prepared = _stored(tmp_path, ["a", "b"], y_pred=np.array([0, 1]))
    with pytest.raises(ValueError, match="2"):
        gather(table(y=["a", "b", "a"]), ["y_true", "y_pred"], {"y_true": "y"}, prepared=prepared)


def test_model_of_a_method_has_its_own_order_of_classes(table):
    made = gather(table(y=["b", "a"]), ["model", "y_true"], {"y_true": "y"}, model=Stub("b", "a"), positive_label="b")
    assert made.classes == ("b", "a")
    assert made.values["y_true"].tolist() == [0, 1]
    assert made.values["model"].classes == ("b", "a")


def test_public_face_is_what_the_child_calls():
    assert list(inspect.signature(derive).parameters) == ["dataset", "model", "roles", "positive", "wanted", "report"]
