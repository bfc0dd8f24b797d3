"""Data sets of every accepted kind, and files that are damaged, mistaken or made to attack: each ends in a sentence."""

import io
import json
import pickle
import struct
import zipfile
import zlib

import numpy as np
import polars as pl
import pytest
from PIL import Image

from audits.engine.datasets import delimiter_of, describe, open_dataset
from audits.methods.errors import AuditError, RefusedArtifact, UnreadableArtifact, UnsuitableInput

TABLE = "label,score,sex\n1,0.9,f\n0,0.25,m\n1,0.5,f\n"


@pytest.fixture
def saved(tmp_path):
    """Writes content under a name that tells nothing and returns the path."""

    def save(content):
        path = tmp_path / "upload"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return save


def columns(path):
    return {column["name"]: column for column in describe(open_dataset(path))["columns"]}


# ------------------------------------------------------------------------------------------------------------------ tables


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_table_is_read_with_any_usual_separator_and_encoding(saved, separator, encoding):
    text = TABLE.replace("sex", "sexé").replace(",", separator)
    data = open_dataset(saved(text.encode(encoding)))
    assert data.names == ("label", "score", "sexé")
    assert data.column("label").tolist() == [1, 0, 1]
    assert data.column("score").tolist() == [0.9, 0.25, 0.5]
    assert data.column("sexé").tolist() == ["f", "m", "f"]
    assert any("UTF-8" in warning for warning in data.warnings) == (encoding in ("latin-1", "utf-16"))


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_any_line_end_is_read(saved, newline):
    data = open_dataset(saved(TABLE.replace("\n", newline)))
    assert data.rows == 3
    assert data.column("sex").tolist() == ["f", "m", "f"]


def test_quoted_separators_and_line_ends_stay_in_their_cell(saved):
    data = open_dataset(saved('name,label\n"Smith, ""Jo""\nJr",1\nplain,0\n'))
    assert data.column("name").tolist() == ['Smith, "Jo"\nJr', "plain"]


@pytest.mark.parametrize("marker", ["", "NA", "?", "null", "nan"])
def test_missing_markers_are_missing_in_numbers_and_texts(saved, marker):
    data = open_dataset(saved(f"a,b\n1,x\n{marker},{marker}\n3,y\n"))
    assert np.array_equal(data.column("a"), [1, np.nan, 3], equal_nan=True)
    assert data.column("b").tolist() == ["x", None, "y"]


def test_blanks_around_values_do_not_make_a_class_of_their_own(saved):
    data = open_dataset(saved("label, sex\nyes, f\n yes, m\nno, ?\n"))
    assert data.column("label").tolist() == ["yes", "yes", "no"]
    assert data.column("sex").tolist() == ["f", "m", None]


def test_blanks_around_numbers_leave_them_numbers(saved):
    data = open_dataset(saved("age, hours\n39, 40\n50, 13\n"))
    assert data.names == ("age", "hours")
    assert data.kind("hours") == "number"
    assert data.column("hours").tolist() == [40, 13]


def test_json_lines_are_read(saved):
    lines = [{"label": 1, "sex": "f"}, {"label": 0, "sex": None}]
    data = open_dataset(saved("\n".join(map(json.dumps, lines))))
    assert data.column("label").tolist() == [1, 0]
    assert data.column("sex").tolist() == ["f", None]


def test_parquet_keeps_its_types(tmp_path):
    path = tmp_path / "upload"
    table = pl.DataFrame(
        {
            "n": [1, 2, None],
            "x": [0.5, 1.5, 2.5],
            "t": ["a", None, "b"],
            "b": [True, False, True],
            "ids": [[1, 2], [3], [4, 5, 6]],
            "v": [[0.5, 1.0], [1.0, 2.0], [2.0, 3.0]],
            "day": pl.Series(["2020-01-01", "2020-01-02", None]).str.to_date(),
            "level": pl.Series(["lo", "hi", "lo"], dtype=pl.Categorical),
        }
    )
    table.write_parquet(path)
    data = open_dataset(str(path))
    kinds = {name: data.kind(name) for name in data.names}
    assert kinds == {
        "n": "number",
        "x": "number",
        "t": "text",
        "b": "boolean",
        "ids": "tokens",
        "v": "vector",
        "day": "date",
        "level": "text",
    }
    assert np.array_equal(data.column("n"), [1, 2, np.nan], equal_nan=True)
    assert [row.tolist() for row in data.column("ids")] == [[1, 2], [3], [4, 5, 6]]
    assert data.column("b").tolist() == ["true", "false", "true"]
    assert data.column("level").tolist() == ["lo", "hi", "lo"]
    assert describe(data)["rows"] == 3


def test_column_of_nested_records_is_told_and_left_out(tmp_path):
    path = tmp_path / "upload"
    pl.DataFrame({"label": [0, 1], "nested": [{"a": 1}, {"a": 2}], "raw": [b"x", b"y"]}).write_parquet(path)
    report = describe(open_dataset(str(path)))
    assert [column["name"] for column in report["columns"]] == ["label"]
    assert any("nested" in warning for warning in report["warnings"])


# ------------------------------------------------------------------------------------------------------------ arrays, images


def _npz(**arrays):
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def test_arrays_become_columns_by_their_shape(saved):
    data = open_dataset(
        saved(
            _npz(
                images=np.zeros((4, 5, 6), np.uint8),
                labels=np.arange(4),
                names=np.array(["a", "b", "?", "d"]),
                tokens=np.array([[1, 2, -1]] * 4),
                embeddings=np.ones((4, 3)),
            )
        )
    )
    kinds = {name: data.kind(name) for name in data.names}
    expected = {"images": "image", "labels": "number", "names": "text", "tokens": "tokens", "embeddings": "vector"}
    assert kinds == expected
    assert data.column("names").tolist() == ["a", "b", None, "d"]
    assert data.column("labels").tolist() == [0, 1, 2, 3]


def test_truth_values_are_spelled_alike_in_arrays_and_tables(saved):
    assert open_dataset(saved(_npz(flag=np.array([True, False])))).column("flag").tolist() == ["true", "false"]


def test_arrays_of_different_length_are_refused_by_name(saved):
    with pytest.raises(UnreadableArtifact, match=r"images 4, labels 3"):
        open_dataset(saved(_npz(images=np.zeros((4, 2, 2)), labels=np.zeros(3))))


def _picture(size=(6, 4), mode="RGB", colour=0):
    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, "PNG")
    return out.getvalue()


def _zip(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return out.getvalue()


def test_zip_of_class_folders_is_a_data_set_of_images(saved):
    white = _picture(colour=(255, 255, 255))
    data = open_dataset(
        saved(_zip([("top/cat/1.png", white), ("top/dog/2.png", _picture()), ("top/readme.txt", b"x")]))
    )
    assert data.column("label").tolist() == ["cat", "dog"]
    assert data.column("image").shape == (2, 3, 4, 6)
    assert data.column("image")[0].min() == 255
    assert any("not images" in warning for warning in data.warnings)


def _noise():
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40), np.uint8)).save(out, "PNG")
    return out.getvalue()


NOISE = _noise()

BAD_ZIPS = {
    "different sizes": ([("a/1.png", _picture((6, 4))), ("b/2.png", _picture((8, 4)))], "6×4"),
    "no folder": ([("1.png", _picture())], "folder"),
    "no images": ([("notes/readme.txt", b"x")], "no images"),
    "climbing": ([("a/../../etc/1.png", _picture())], "outside"),
    "absolute": ([("/etc/1.png", _picture())], "outside"),
    "drive": ([("C:/a/1.png", _picture())], "outside"),
    "no picture inside": ([("a/1.png", b"<html>")], "cannot be read"),
    "half a picture": ([("a/1.png", NOISE[: len(NOISE) // 2])], "cannot be read"),
    "bomb": ([("a/1.png", bytes(8 << 20))], "bomb"),
    "pickle inside": ([("a/data.pkl", b"x"), ("a/1.png", _picture())], "pickle"),
}


@pytest.mark.parametrize("name", BAD_ZIPS)
def test_bad_zip_is_refused_in_words(name, saved):
    members, words = BAD_ZIPS[name]
    with pytest.raises(AuditError, match=words):
        open_dataset(saved(_zip(members)))


def test_zip_with_a_link_is_refused(saved):
    link = zipfile.ZipInfo("a/1.png")
    link.external_attr = 0o120777 << 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(RefusedArtifact, match="link"):
        open_dataset(saved(out.getvalue()))


def test_picture_of_too_many_pixels_is_refused_before_it_is_unpacked(saved):
    picture = bytearray(_picture((10, 10), "L"))
    at = picture.index(b"IHDR") + 4
    picture[at : at + 8] = struct.pack(">II", 60_000, 60_000)
    picture[at + 13 : at + 17] = struct.pack(">I", zlib.crc32(bytes(picture[at - 4 : at + 13])))
    with pytest.raises(UnreadableArtifact, match=r"pixels|cannot be read"):
        open_dataset(saved(_zip([("a/1.png", bytes(picture))])))


def test_size_hidden_from_the_directory_is_not_unpacked(saved):
    """The directory says 100 bytes; what inflates beyond that is cut off and fails its checksum."""
    content = bytearray(_zip([("a/1.png", bytes(8 << 20))]))
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (100).to_bytes(4, "little")
    with pytest.raises(UnreadableArtifact):
        open_dataset(saved(bytes(content)))


# ---------------------------------------------------------------------------------------------------------------- bad files

PARQUET = io.BytesIO()
pl.DataFrame({"a": list(range(1000)), "b": ["x"] * 1000}).write_parquet(PARQUET)
PARQUET = PARQUET.getvalue()


class _Evil:
    def __reduce__(self):
        return print, ("this must never run",)


BAD_FILES = {
    "empty": (b"", "empty"),
    "blanks": (b" \n\n ", "blanks"),
    "header only": (b"a,b\n", "no rows"),
    "one column": (b"label\n1\n0\n", "one column"),
    "page": (b"<!DOCTYPE html><html><body>Sign in</body></html>", "HTML"),
    "ragged": (b"a,b\n1,2\n3,4,5\n", "CSV"),
    "binary": (bytes(range(256)), "binary"),
    "pickle": (pickle.dumps({"a": [1]}), "pickle"),
    "evil pickle": (pickle.dumps(_Evil()), "pickle"),
    "old pickle": (pickle.dumps([1, 2], protocol=0), "pickle|one column"),
    "parquet magic": (b"PAR1", "Parquet"),
    "parquet cut": (PARQUET[:400], "Parquet"),
    "parquet footer": (PARQUET[:-8] + b"\xff\xff\xff\x7fPAR1", "Parquet"),
    "zip cut": (_zip([("a/1.png", _picture())])[:80], "damaged"),
    "workbook": (_zip([("[Content_Types].xml", "x"), ("xl/workbook.xml", "x")]), "Excel"),
    "hdf": (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5"),
    "json lines cut": (b'{"a": 1}\n{"a": ', "JSON"),
    "gzip": (b"\x1f\x8b\x08" + bytes(20), "binary"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file_is_refused_in_words(name, saved, capsys):
    content, words = BAD_FILES[name]
    with pytest.raises((UnreadableArtifact, RefusedArtifact), match=words) as caught:
        open_dataset(saved(content))
    assert "must never run" not in capsys.readouterr().out
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_array_of_objects_is_refused_as_a_pickle(tmp_path):
    path = tmp_path / "upload"
    with path.open("wb") as file:
        np.savez(file, a=np.array([{}, {}], object), allow_pickle=True)
    with pytest.raises(RefusedArtifact, match="objects"):
        open_dataset(str(path))


def test_single_array_of_objects_is_refused(tmp_path):
    path = tmp_path / "upload"
    with path.open("wb") as file:
        np.save(file, np.array([{}, {}], object), allow_pickle=True)
    with pytest.raises(AuditError):
        open_dataset(str(path))


def test_flipped_bytes_anywhere_in_a_parquet_file_end_in_words_or_in_a_table(saved):
    rng = np.random.default_rng(0)
    for _ in range(60):
        content = bytearray(PARQUET)
        for place in rng.integers(0, len(content), 8):
            content[place] ^= 1 << int(rng.integers(8))
        try:
            describe(open_dataset(saved(bytes(content))))
        except AuditError:
            continue


def test_two_columns_of_one_name_are_told(saved):
    report = describe(open_dataset(saved("a,a,b\n1,2,3\n4,5,6\n")))
    assert any("twice" in warning for warning in report["warnings"])
    assert len({column["name"] for column in report["columns"]}) == 3


def test_missing_header_is_told(saved):
    report = describe(open_dataset(saved("1,0.5\n0,0.25\n1,0.75\n")))
    assert any("looks like data" in warning for warning in report["warnings"])


def test_too_many_columns_are_refused(saved):
    header = ",".join(f"c{i}" for i in range(6_000))
    with pytest.raises(UnreadableArtifact, match="columns"):
        open_dataset(saved(f"{header}\n{','.join('1' * 6_000)}\n"))


def test_table_for_a_model_needs_single_values(saved):
    data = open_dataset(saved(_npz(images=np.zeros((3, 2, 2)), label=np.zeros(3))))
    with pytest.raises(UnsuitableInput, match="images"):
        data.frame(["images", "label"])


# ---------------------------------------------------------------------------------------------------------------- inspection


def test_report_counts_what_is_there(saved):
    found = columns(saved("label,score,sex,id\n1,0.9,f,7\n0,,m,8\n1,0.5,,9\n0,0.5,f,10\n"))
    assert found["label"]["distinct"] == 2
    assert found["score"]["missing"] == 1
    assert found["score"]["distinct"] == 2
    assert (found["sex"]["missing"], found["sex"]["distinct"], found["sex"]["type"]) == (1, 2, "text")
    assert found["id"]["examples"] == ["7", "8", "9", "10"]


def test_report_is_plain_json_with_bounded_examples(saved):
    long, markup = "x" * 500, "<img src=x onerror=alert(1)>\x1b[31m\u202e"
    report = describe(open_dataset(saved(f"label,text\n1,{long}\n0,{markup}\n")))
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    examples = report["columns"][1]["examples"]
    assert all(len(example) <= 80 for example in examples)
    assert all("\x1b" not in example and "\u202e" not in example for example in examples)
    assert examples[1].startswith("<img")


def test_infinite_numbers_do_not_break_the_report(saved):
    report = describe(open_dataset(saved("a,b\n1e400,1\n-inf,2\n0.5,3\n")))
    json.dumps(report, allow_nan=False)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("y_true", "y_true"),
        ("Label", "y_true"),
        ("prediction", "y_pred"),
        ("score", "y_score"),
        ("sex", "sensitive_features"),
        ("Race", "sensitive_features"),
        ("is_member", "is_member"),
        ("loss", "record_loss"),
        ("canary_score", "canary_score"),
        ("reference_3", "reference_predictions"),
        ("shoe_size", ""),
    ],
)
def test_role_is_suggested_by_name(saved, name, role):
    assert columns(saved(f"{name},other\n1,0\n0,1\n"))[name]["suggested_role"] == role


def test_role_is_suggested_by_content(saved):
    found = columns(saved(_npz(images=np.zeros((4, 5, 5), np.uint8), embeddings=np.ones((4, 3)), labels=np.arange(4))))
    roles = {name: column["suggested_role"] for name, column in found.items()}
    assert roles == {"images": "images", "embeddings": "embeddings", "labels": "y_true"}


def test_constant_and_empty_columns_are_told(saved):
    warnings = describe(open_dataset(saved("a,b,c\n1,,x\n1,,y\n")))["warnings"]
    assert any("“a” has the same value" in warning for warning in warnings)
    assert any("“b” is empty" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("sample", "expected"), [("a,b\n1,2", ","), ("a;b\n1,5;2,5", ";"), ("a\tb, c\n1\t2", "\t"), ("a\n1", None)]
)
def test_separator_is_the_one_that_splits_evenly(sample, expected):
    assert delimiter_of(sample) == expected


def test_one_reader_for_all_kinds_has_no_side_effect_on_the_file(saved):
    path = saved(TABLE)
    describe(open_dataset(path))
    with open(path) as file:
        assert file.read() == TABLE
