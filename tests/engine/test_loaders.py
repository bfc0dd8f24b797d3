"""Models of every accepted kind, what each answers, and files that are code, damaged or misleading."""

import gzip
import io
import json
import pickle
import struct
import zipfile

import numpy as np
import polars as pl
import pytest

from audits.engine.loaders import inspect_model, open_model
from audits.methods.errors import AuditError, RefusedArtifact, UnreadableArtifact, UnsuitableInput

MLP = {"architecture": "mlp", "options": {"inputs": 3, "hidden": [4], "classes": 2}, "class_names": ["no", "yes"]}


@pytest.fixture
def saved(tmp_path):
    """Writes content under a name that tells nothing and returns the path."""

    def save(content):
        path = tmp_path / "upload"
        path.write_bytes(content)
        return str(path)

    return save


# -------------------------------------------------------------------------------------------------------------------- ONNX


def _onnx(nodes, inputs, outputs, initializers=(), **metadata):
    import onnx
    from onnx import helper

    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)])
    model.ir_version = 8
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _linear(weights, bias=None, softmax=True, **metadata):
    """Softmax of x W + b as ONNX, weights (d, k)."""
    from onnx import TensorProto, helper, numpy_helper

    d, k = weights.shape
    bias = np.zeros(k, np.float32) if bias is None else bias
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["z"])]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["z"], ["p"], axis=1))
    return _onnx(
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", d])],
        [helper.make_tensor_value_info("p" if softmax else "z", TensorProto.FLOAT, ["n", k])],
        [
            numpy_helper.from_array(weights.astype(np.float32), "w"),
            numpy_helper.from_array(bias.astype(np.float32), "b"),
        ],
        **metadata,
    )


WEIGHTS = np.array([[1.0, -1.0], [0.5, 0.0], [0.0, 2.0]])
ROWS = pl.DataFrame({"a": [1.0, 0.0], "b": [0.0, 2.0], "c": [1, 0]})


def _softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


EXPECTED = _softmax(ROWS.to_numpy() @ WEIGHTS)


@pytest.mark.parametrize("softmax", [True, False])
def test_onnx_matrix_model_gives_probabilities(saved, softmax):
    """Logits become the same probabilities that the graph with its own softmax gives."""
    model = open_model(saved(_linear(WEIGHTS, softmax=softmax)))
    assert np.allclose(model.scores(ROWS), EXPECTED, atol=1e-6)
    assert model.module is None
    assert model.classes == ("0", "1")


def test_onnx_class_names_come_from_its_metadata(saved):
    model = open_model(saved(_linear(WEIGHTS, class_names='["bad", "good"]')))
    assert model.classes == ("bad", "good")


@pytest.mark.parametrize("names", ["[", '["one"]', "{}", '"ab"', "null"])
def test_onnx_nonsense_class_names_are_passed_over(saved, names):
    assert open_model(saved(_linear(WEIGHTS, class_names=names))).classes == ("0", "1")


def test_onnx_of_other_width_names_both(saved):
    model = open_model(saved(_linear(WEIGHTS)))
    with pytest.raises(UnsuitableInput, match=r"reads 3 inputs.*give 2"):
        model.scores(ROWS.select("a", "b"))


def test_onnx_column_of_text_is_named(saved):
    model = open_model(saved(_linear(WEIGHTS)))
    with pytest.raises(UnsuitableInput, match="“b” holds text"):
        model.scores(ROWS.with_columns(b=pl.Series(["x", "y"])))


def _by_column():
    from onnx import TensorProto, helper, numpy_helper

    columns = {"age": TensorProto.FLOAT, "job": TensorProto.STRING}
    nodes = [
        helper.make_node(
            "LabelEncoder", ["job"], ["j"], domain="ai.onnx.ml", keys_strings=["x", "y"], values_floats=[0.0, 3.0]
        ),
        helper.make_node("Concat", ["age", "j"], ["m"], axis=1),
        helper.make_node("MatMul", ["m", "w"], ["z"]),
        helper.make_node("Softmax", ["z"], ["p"], axis=1),
    ]
    return _onnx(
        nodes,
        [helper.make_tensor_value_info(name, kind, ["n", 1]) for name, kind in columns.items()],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), "w")],
    )


def test_onnx_with_an_input_per_column_finds_them_by_name(saved):
    model = open_model(saved(_by_column()))
    table = pl.DataFrame({"job": ["y", "x"], "other": [7, 7], "age": [1, 2]})
    assert np.allclose(model.scores(table), _softmax(np.array([[1.0, 3.0], [2.0, 0.0]])), atol=1e-6)


def test_onnx_missing_columns_are_named_with_what_was_given(saved):
    model = open_model(saved(_by_column()))
    with pytest.raises(UnsuitableInput, match=r"reads 2 inputs \(age, job\).*give 1.*Missing: job"):
        model.scores(pl.DataFrame({"age": [1.0]}))


def _image_model():
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["z"]),
        helper.make_node("Softmax", ["z"], ["p"], axis=1),
    ]
    return _onnx(
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 4, 4])],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(np.ones((16, 3), np.float32), "w")],
    )


def test_onnx_image_model_reads_images_of_its_size_alone(saved):
    model = open_model(saved(_image_model()))
    assert np.allclose(model.scores(np.ones((5, 1, 4, 4), np.float32)), 1 / 3)
    with pytest.raises(UnsuitableInput, match=r"\[1, 4, 4\].*\[1, 8, 8\]"):
        model.scores(np.ones((5, 1, 8, 8), np.float32))
    with pytest.raises(UnsuitableInput, match="images"):
        model.scores(ROWS)


def test_onnx_has_no_layer_before_last_and_says_so(saved):
    with pytest.raises(UnsuitableInput, match="layer before last"):
        open_model(saved(_linear(WEIGHTS))).features(ROWS)


def test_onnx_scores_do_not_depend_on_the_batch(saved, monkeypatch):
    model = open_model(saved(_linear(WEIGHTS)))
    table = pl.DataFrame(np.random.default_rng(0).normal(size=(50, 3)), schema=["a", "b", "c"])
    whole = model.scores(table)
    monkeypatch.setattr("audits.engine.loaders.BATCH", 7)
    assert np.allclose(model.scores(table), whole, atol=1e-7)


def test_onnx_without_scores_is_refused_in_words(saved):
    from onnx import TensorProto, helper

    content = _onnx(
        [helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["n"])],
    )
    with pytest.raises(UnsuitableInput, match="no output of scores"):
        open_model(saved(content))


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "beside.bin"])
def test_onnx_with_data_in_other_files_is_refused(saved, tmp_path, location):
    from onnx import TensorProto, helper

    (tmp_path / "beside.bin").write_bytes(bytes(64))
    outside = helper.make_tensor("w", TensorProto.FLOAT, [3, 2], bytes(24), raw=True)
    outside.ClearField("raw_data")
    outside.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "24"}.items():
        outside.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 2])],
        [outside],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    with pytest.raises((RefusedArtifact, UnreadableArtifact)):
        open_model(saved(model.SerializeToString()))


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.95])
def test_onnx_cut_off_is_refused_in_words(saved, keep):
    content = _linear(WEIGHTS)
    with pytest.raises(UnreadableArtifact, match="ONNX"):
        open_model(saved(content[: int(len(content) * keep)]))


# ------------------------------------------------------------------------------------------------------------- safetensors


def _weights(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"body.1.weight": (4, 3), "body.1.bias": (4,), "head.weight": (2, 4), "head.bias": (2,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def _safetensors(weights, metadata=None):
    """The format by hand: eight bytes of length, a JSON header, the numbers."""
    header, content = ({"__metadata__": metadata} if metadata is not None else {}), b""
    for name, array in weights.items():
        start = len(content)
        content += array.tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [start, len(content)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content


METADATA = {
    "architecture": "mlp",
    "options": json.dumps(MLP["options"]),
    "class_names": json.dumps(MLP["class_names"]),
}


def _by_hand(weights, x):
    hidden = np.maximum(x @ weights["body.1.weight"].T + weights["body.1.bias"], 0)
    return hidden, _softmax(hidden @ weights["head.weight"].T + weights["head.bias"])


@pytest.mark.parametrize("declared", ["in the header", "on the page"])
def test_weights_and_architecture_make_a_network(saved, declared):
    weights = _weights()
    if declared == "in the header":
        model = open_model(saved(_safetensors(weights, METADATA)))
    else:
        model = open_model(saved(_safetensors(weights)), MLP)
    hidden, scores = _by_hand(weights, ROWS.to_numpy())
    assert np.allclose(model.scores(ROWS), scores, atol=1e-6)
    assert np.allclose(model.features(ROWS), hidden, atol=1e-6)
    assert model.classes == ("no", "yes")
    assert model.module is not None
    assert not model.module.training


def test_network_refuses_records_of_another_shape(saved):
    model = open_model(saved(_safetensors(_weights(), METADATA)))
    with pytest.raises(UnsuitableInput, match="shape"):
        model.scores(np.zeros((4, 1, 5, 5), np.float32))


def test_weights_without_architecture_ask_for_one(saved):
    with pytest.raises(UnsuitableInput, match="architecture"):
        open_model(saved(_safetensors(_weights())))


def test_weights_that_do_not_fit_are_named(saved):
    weights = _weights()
    weights["head.weight"] = np.zeros((5, 4), np.float32)
    with pytest.raises(UnsuitableInput, match=r"head\.weight"):
        open_model(saved(_safetensors(weights, METADATA)))


def test_class_names_of_another_number_are_refused(saved):
    metadata = {**METADATA, "class_names": '["a", "b", "c"]'}
    with pytest.raises(UnsuitableInput, match="3 classes"):
        open_model(saved(_safetensors(_weights(), metadata)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_told(saved, value):
    weights = _weights()
    weights["head.bias"][0] = value
    report = inspect_model(open_model(saved(_safetensors(weights, METADATA))))
    assert any("not finite" in warning for warning in report["warnings"])
    assert any("trial" in warning for warning in report["warnings"])


def _raw(header, content=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + content


TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
BAD_HEADERS = {
    "longer than allowed": _raw(b"{}", length=2**62),
    "longer than the file": _raw(b'{"a": 1', length=5_000),
    "same key twice": _raw(b'{"a": %b, "a": %b}' % ((json.dumps(TENSOR).encode(),) * 2), bytes(4)),
    "deep nesting": _raw(b'{"a":' * 100_000, length=500_000),
    "not JSON": _raw(b"{hello}"),
    "too many tensors": _raw({f"t{i}": TENSOR for i in range(30_000)}, bytes(4)),
    "overlapping": _raw({"a": TENSOR, "b": TENSOR, "__metadata__": METADATA}, bytes(4)),
    "shape beyond bytes": _raw({"a": {**TENSOR, "shape": [2**40]}, "__metadata__": METADATA}, bytes(4)),
    "unknown type": _raw({"a": {**TENSOR, "dtype": "X9"}, "__metadata__": METADATA}, bytes(4)),
    "zip appended": _safetensors(_weights(), METADATA) + b"PK\x05\x06" + bytes(18),
    "cut off": _safetensors(_weights(), METADATA)[:-10],
    "metadata is a list": _raw({"__metadata__": ["mlp"]}),
    "metadata holds numbers": _raw({"__metadata__": {"architecture": 5, "options": 7}}),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_bad_safetensors_are_refused_in_words(name, saved):
    with pytest.raises((UnreadableArtifact, UnsuitableInput)) as caught:
        open_model(saved(BAD_HEADERS[name]))
    assert len(str(caught.value)) < 700


def test_architecture_that_asks_for_all_memory_is_refused(saved):
    options = {"inputs": 1_000_000, "hidden": [1_000_000], "classes": 2}
    with pytest.raises(UnsuitableInput, match="weights"):
        open_model(saved(_safetensors(_weights())), {"architecture": "mlp", "options": options})


# ------------------------------------------------------------------------------------------------------------- state dicts


def _torch_file(value):
    import torch

    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def _tensors():
    import torch

    return {name: torch.from_numpy(array) for name, array in _weights().items()}


def test_state_dict_and_architecture_make_a_network(saved):
    model = open_model(saved(_torch_file(_tensors())), MLP)
    assert np.allclose(model.scores(ROWS), _by_hand(_weights(), ROWS.to_numpy())[1], atol=1e-6)


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict"])
def test_state_dict_inside_a_checkpoint_is_found(saved, key):
    model = open_model(saved(_torch_file({key: _tensors(), "epoch": 3})), MLP)
    assert model.classes == ("no", "yes")


def test_state_dict_is_refused_at_level_d(saved):
    with pytest.raises(RefusedArtifact, match="safetensors"):
        open_model(saved(_torch_file(_tensors())), MLP, level="D")


def test_safetensors_are_read_at_level_d(saved):
    assert open_model(saved(_safetensors(_weights(), METADATA)), level="D").classes == ("no", "yes")


def test_whole_module_is_refused_as_code(saved):
    import torch

    with pytest.raises(RefusedArtifact, match="code"):
        open_model(saved(_torch_file(torch.nn.Linear(3, 2))), MLP)


class _Evil:
    def __reduce__(self):
        return print, ("this must never run",)


def test_code_in_a_state_dict_never_runs(saved, capsys):
    with pytest.raises(RefusedArtifact):
        open_model(saved(_torch_file({"w": _Evil()})), MLP)
    assert "never run" not in capsys.readouterr().out


def test_tensor_that_claims_more_than_it_holds_is_refused(saved):
    """A view with stride zero: terabytes by its shape, four bytes in the file."""
    import torch

    tensors = _tensors()
    tensors["head.weight"] = torch.zeros(1).as_strided((1 << 20, 1 << 20), (0, 0))
    with pytest.raises(UnsuitableInput, match=r"head\.weight"):
        open_model(saved(_torch_file(tensors)), MLP)


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, {1: 2}])
def test_file_without_tensors_is_refused_in_words(saved, value):
    with pytest.raises(UnsuitableInput, match="state dict"):
        open_model(saved(_torch_file(value)), MLP)


def test_state_dict_cut_off_is_refused_in_words(saved):
    content = _torch_file(_tensors())
    with pytest.raises(UnreadableArtifact):
        open_model(saved(content[: len(content) // 2]), MLP)


# ------------------------------------------------------------------------------------------------------------------- code


def _zip(*names):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return out.getvalue()


CODE = {
    "pickle": (pickle.dumps(_Evil()), "pickle"),
    "pickle of protocol 2": (pickle.dumps({"a": 1}, protocol=2), "pickle"),
    "pickle of protocol 0": (pickle.dumps(_Evil(), protocol=0), "pickle"),
    "joblib, zlib": (b"\x78\x9c" + bytes(20), "joblib"),
    "joblib, gzip": (gzip.compress(pickle.dumps([1])), "joblib"),
    "TorchScript": (_zip("m/data.pkl", "m/constants.pkl", "m/code/__torch__.py"), "TorchScript"),
    "torch.export": (_zip("m/archive_format", "m/models/model.json"), "torch.export"),
    "Keras": (_zip("metadata.json", "config.json", "model.weights.h5"), "Keras"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(50), "Keras"),
}


@pytest.mark.parametrize("name", CODE)
def test_code_is_refused_with_what_it_is_and_a_way_out(name, saved, capsys):
    content, words = CODE[name]
    with pytest.raises(RefusedArtifact, match=words) as caught:
        open_model(saved(content))
    assert "ONNX" in str(caught.value)
    assert "never run" not in capsys.readouterr().out


OTHERS = {
    "empty": b"",
    "html": b"<html></html>",
    "csv": b"a,b\n1,2\n",
    "parquet": b"PAR1" + bytes(40),
    "gguf": b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0),
    "npz": _zip("a.npy"),
    "other zip": _zip("readme.txt"),
    "zip cut off": _zip("a.npy")[:30],
    "random": bytes(range(255, 0, -1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_model_is_told(name, saved):
    with pytest.raises((UnreadableArtifact, UnsuitableInput)):
        open_model(saved(OTHERS[name]))


def test_flipped_bytes_in_a_network_end_in_words_or_in_a_model(saved):
    rng = np.random.default_rng(1)
    content = _safetensors(_weights(), METADATA)
    for _ in range(80):
        changed = bytearray(content)
        for place in rng.integers(0, 500, 3):
            changed[place] ^= 1 << int(rng.integers(8))
        try:
            inspect_model(open_model(saved(bytes(changed))))
        except AuditError:
            continue


# -------------------------------------------------------------------------------------------------------------------- skops


@pytest.fixture(scope="module")
def sklearn_models():
    """A pipeline on named columns and a model on a bare matrix, as skops files."""
    import skops.io
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

    table = pl.DataFrame({"age": [20, 30, 40, 50] * 5, "job": ["x", "y", "x", "z"] * 5})
    labels = np.array(["no", "yes", "yes", "no"] * 5)
    columns = ColumnTransformer(
        [("job", OneHotEncoder(handle_unknown="ignore"), ["job"]), ("n", "passthrough", ["age"])]
    )
    pipeline = make_pipeline(columns, LogisticRegression()).fit(table, labels)
    matrix = LogisticRegression().fit(table.select("age").to_numpy(), [0.0, 1.0, 1.0, 0.0] * 5)
    custom = make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()).fit(np.ones((20, 1)), labels)
    custom.steps[0][1].func = _Evil
    regression = LinearRegression().fit(table.select("age").to_numpy(), np.arange(20))
    models = {"pipeline": pipeline, "matrix": matrix, "custom": custom, "regression": regression}
    return {name: skops.io.dumps(model) for name, model in models.items()}, pipeline


@pytest.mark.slow
def test_skops_pipeline_reads_its_columns_by_name(saved, sklearn_models):
    files, pipeline = sklearn_models
    model = open_model(saved(files["pipeline"]))
    table = pl.DataFrame({"other": [1, 2], "job": ["y", "z"], "age": [33, 44]})
    assert np.allclose(model.scores(table), pipeline.predict_proba(table.select("age", "job")))
    assert model.classes == ("no", "yes")
    assert inspect_model(model)["feature_names"] == ["age", "job"]
    with pytest.raises(UnsuitableInput, match=r"Missing: job"):
        model.scores(table.select("age"))


@pytest.mark.slow
def test_skops_model_of_a_matrix_takes_the_columns_in_their_order(saved, sklearn_models):
    model = open_model(saved(sklearn_models[0]["matrix"]))
    assert model.classes == ("0", "1")  # 1.0 and 1 are one label
    assert model.scores(pl.DataFrame({"x": [20.0, 30.0]})).shape == (2, 2)
    with pytest.raises(UnsuitableInput, match=r"reads 1 inputs.*give 2"):
        model.scores(pl.DataFrame({"x": [20.0], "y": [1.0]}))
    with pytest.raises(UnsuitableInput, match="NaN"):
        model.scores(pl.DataFrame({"x": [20.0, None]}))


@pytest.mark.slow
def test_skops_with_types_of_its_own_is_refused_by_their_names(saved, sklearn_models):
    with pytest.raises(RefusedArtifact, match="_Evil"):
        open_model(saved(sklearn_models[0]["custom"]))


@pytest.mark.slow
def test_skops_without_probabilities_is_refused_in_words(saved, sklearn_models):
    with pytest.raises(UnsuitableInput, match="LinearRegression"):
        open_model(saved(sklearn_models[0]["regression"]))


@pytest.mark.slow
def test_skops_cut_off_or_pickle_inside_is_refused_in_words(saved, sklearn_models):
    content = sklearn_models[0]["pipeline"]
    with pytest.raises(UnreadableArtifact):
        open_model(saved(content[: len(content) // 2]))
    with pytest.raises(UnreadableArtifact):
        open_model(saved(_zip("schema.json")))


# --------------------------------------------------------------------------------------------------------------- inspection


def test_report_of_a_network_says_what_it_reads(saved):
    report = inspect_model(open_model(saved(_safetensors(_weights(), METADATA))))
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["kind"] == "model"
    assert report["format"] == "safetensors"
    assert report["parameters"] == 4 * 3 + 4 + 2 * 4 + 2
    assert report["classes"] == ["no", "yes"]
    assert report["architecture"] == "mlp"
    assert report["inputs"][0]["shape"] == ["n", "3"]
    assert report["warnings"] == []


def test_model_takes_the_columns_of_a_method_as_a_dict(saved):
    """Methods hold `features` as a dict of arrays and hand it to the model as it is."""
    columns = {name: ROWS[name].to_numpy() for name in ROWS.columns}
    assert np.allclose(open_model(saved(_linear(WEIGHTS))).scores(columns), EXPECTED, atol=1e-6)
    network = open_model(saved(_safetensors(_weights(), METADATA)))
    assert np.allclose(network.scores(columns), network.scores(ROWS))


def test_report_of_an_onnx_model_names_its_columns(saved):
    report = inspect_model(open_model(saved(_by_column())))
    assert report["feature_names"] == ["age", "job"]
    assert [entry["name"] for entry in report["inputs"]] == ["age", "job"]
    assert report["warnings"] == []
    assert json.loads(json.dumps(report, allow_nan=False)) == report
