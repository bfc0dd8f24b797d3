"""A job from the outside: honest outcomes, every way a child can die, and children that lie."""

import io
import json
import math
import os
import signal
import zipfile

import numpy as np
import pytest

from audits.engine import job as jobs
from audits.engine import wire
from audits.engine.job import File, Job, Limits, conforms, run_job
from audits.methods.contract import Control, Measurement, Result, Table

CSV = "label,prediction,score,sex\n" + "".join(
    f"{i % 2},{(i // 3) % 2},{i % 10 / 10},{'f' if i % 4 else 'm'}\n" for i in range(120)
)


@pytest.fixture
def predictions(tmp_path):
    path = tmp_path / "upload"  # uploads have no telling name
    path.write_text(CSV)
    return File(str(path))


MEASURE = {
    "task": "measure",
    "method": "fairness.group_metrics",
    "roles": {"y_true": "label", "y_pred": "prediction", "sensitive_features": ["sex"]},
}


# ----------------------------------------------------------------------------------------------------------------- honest


def test_inspection_of_a_table_reaches_the_parent(predictions):
    outcome = run_job(Job("inspect_dataset", dataset=predictions))
    assert outcome.status == "completed", outcome
    assert outcome.data["kind"] == "dataset"
    assert outcome.data["rows"] == 120
    assert [column["name"] for column in outcome.data["columns"]] == ["label", "prediction", "score", "sex"]
    assert outcome.sandbox["level"] in "ABCD"
    assert {"start", "reading", "total"} <= set(outcome.seconds)
    assert outcome.seconds["total"] >= outcome.seconds["reading"]


def test_measuring_gives_a_result_with_its_ledger(predictions):
    outcome = run_job(Job(dataset=predictions, **MEASURE))
    assert outcome.status == "completed", outcome
    assert Result.from_json(outcome.data["result"], outcome.arrays).measurements
    assert outcome.data["ledger"]["used"] == 120
    assert outcome.data["classes"] == ["0", "1"]
    json.dumps(outcome.data, allow_nan=False)


def test_same_job_gives_the_same_result(predictions):
    first, second = (run_job(Job(dataset=predictions, seed=7, **MEASURE)) for _ in range(2))
    assert first.data == second.data


def test_fault_of_the_input_is_failed_in_words(predictions):
    roles = {**MEASURE["roles"], "y_true": "no_such_column"}
    outcome = run_job(Job(dataset=predictions, **{**MEASURE, "roles": roles}))
    assert outcome.status == "failed"
    assert "no_such_column" in outcome.reason


def test_file_that_is_not_there_is_our_fault(tmp_path):
    outcome = run_job(Job("inspect_dataset", dataset=File(str(tmp_path / "gone"))))
    assert outcome.status == "errored"
    assert outcome.reason


def test_progress_is_passed_on_and_false_cancels(tmp_path, monkeypatch):
    _stand_in(
        monkeypatch,
        tmp_path,
        "open('progress.new', 'w').write('0.25\\nhalf\\x1b[1mway')\nos.rename('progress.new', 'progress')\nimport time; time.sleep(30)",
    )
    seen = []

    def beat(share, words):
        seen.append((share, words))
        return len(seen) < 3

    outcome = run_job(Job("inspect_dataset"), beat=beat)
    assert outcome.status == "cancelled"
    assert seen[-1] == (0.25, "halfway")


@pytest.mark.parametrize("said", ["nan\nx", "inf\nx", "-3\nx", "1e9\nx", "no number", "", "\xff" * 5000])
def test_nonsense_progress_is_bounded(said, tmp_path):
    (tmp_path / "progress").write_text(said, encoding="latin-1")
    share, words = jobs._progress(tmp_path)
    assert 0 <= share <= 1
    assert len(words) <= 200


def test_progress_through_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "progress")
    assert jobs._progress(tmp_path) == (0.0, "")


# ----------------------------------------------------------------------------------------------------------------- deaths


def _stand_in(monkeypatch, tmp_path, code):
    """Another program in the place of the child; `leave(outcome)` writes what it wants believed."""
    program = tmp_path / "child.py"
    program.write_text(
        "import json, os, sys\nprint('the canary sang', flush=True)\n"
        "def leave(told): open('outcome.json', 'w').write(told if isinstance(told, str) else json.dumps(told))\n" + code
    )
    monkeypatch.setattr(jobs, "CHILD", program)


DEATHS = {
    "crash": ("import ctypes; ctypes.string_at(0)", "failed", "SIGSEGV"),
    "abort": ("os.abort()", "failed", "SIGABRT"),
    "bad_alloc": ("print('std::bad_alloc', flush=True); os.abort()", "failed", "memory"),
    "memory": ("x = bytearray(900 << 20)", "failed", "memory"),
    "spin": ("while True: pass", "failed", "processor time"),
    "sleep": ("import time; time.sleep(60)", "failed", "longer than 4 seconds"),
    "print": ("while True: print('x' * 9999)", "failed", "printed without end"),
    "write": ("import time\nfor i in range(9999): open(str(i), 'w').close()\ntime.sleep(9)", "failed", "scratch"),
    "exit": ("os._exit(3)", "errored", "code 3"),
    "silence": ("", "errored", "not a result"),
    "exception": ("raise RuntimeError('oops')", "errored", "code 1"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_death_of_the_child_becomes_a_sentence(death, tmp_path, monkeypatch):
    code, status, words = DEATHS[death]
    _stand_in(monkeypatch, tmp_path, code)
    limits = Limits(memory_bytes=512 << 20, cpu_seconds=1, wall_seconds=4, files=200)
    outcome = run_job(Job("inspect_dataset"), limits=limits)
    assert outcome.status == status, outcome
    assert words in outcome.reason
    assert "the canary sang" in outcome.detail or death == "print"


def test_kill_from_outside_is_our_fault():
    ended = jobs.Ended("exited", -signal.SIGKILL, "", 1.0, False)
    status, reason = jobs._death(ended, Limits())
    assert status == "errored"
    assert "memory" in reason


# ------------------------------------------------------------------------------------------------------------------- lies

GOOD = Result((Measurement("m", 1.0, low=0.5, high=2.0),)).to_json()
MEASURED = {"status": "completed", "data": {"result": GOOD, "ledger": {}, "classes": []}, "seconds": {}}


def _measured(**changes):
    return {**MEASURED, "data": {**MEASURED["data"], "result": {**GOOD, **changes}}}


LIES = {
    "a hundred megabytes": "open('outcome.json', 'w').write('\"' + 'x' * (100 << 20) + '\"')",
    "deep nesting": "leave('[' * 100_000)",
    "deep enough to parse": "leave({'status': 'completed', 'data': json.loads('[' * 200 + ']' * 200)})",
    "NaN": 'leave(\'{"status": "completed", "data": NaN}\')',
    "a number beyond all bounds": 'leave(\'{"status": "completed", "data": 1e999}\')',
    "an integer beyond all bounds": "leave('{\"status\": \"completed\", \"data\": ' + '9' * 4000 + '}')",
    "the same key twice": 'leave(\'{"status": "failed", "status": "completed"}\')',
    "not JSON": "leave('hello')",
    "not text": "open('outcome.json', 'wb').write(bytes(range(256)))",
    "a list": "leave([])",
    "an unknown status": "leave({'status': 'approved', 'reason': 'x'})",
    "a failure without a reason": "leave({'status': 'failed'})",
    "a reason that is a list": "leave({'status': 'failed', 'reason': ['x']})",
    "no result": "leave({'status': 'completed', 'data': {}})",
    "a million findings": (
        "m = {'name': 'm', 'value': 1.0}\n"
        "leave({'status': 'completed', 'data': {'result': {'measurements': [m] * 1_000_000, 'controls': [], 'tables': [], 'notes': []}}})"
    ),
    "an upside-down interval": f"leave({_measured(measurements=[{'name': 'm', 'value': 1.0, 'low': 2.0, 'high': 1.0}])!r})",
    "an unknown field": f"leave({_measured(measurements=[{'name': 'm', 'value': 1.0, 'is_safe': True}])!r})",
    "a name that is a list": f"leave({_measured(measurements=[{'name': ['m'], 'value': 1.0}])!r})",
    "a value that is a text": f"leave({_measured(measurements=[{'name': 'm', 'value': '1.0'}])!r})",
    "a direction that is none": f"leave({_measured(measurements=[{'name': 'm', 'value': 1.0, 'worse': 'sideways'}])!r})",
    "a cell that is a table": f"leave({_measured(tables=[{'title': 't', 'columns': ['a'], 'rows': [[{'b': 1}]]}])!r})",
    "a row of another width": f"leave({_measured(tables=[{'title': 't', 'columns': ['a'], 'rows': [[1, 2]]}])!r})",
    "time that did not pass": f"leave({ {**MEASURED, 'seconds': {'computing': 1e6}}!r})",
    "arrays that are none": f"open('arrays.npz', 'w').write('x')\nleave({MEASURED!r})",
    "an outcome that is a folder": "os.mkdir('outcome.json')",
}


@pytest.mark.parametrize("lie", LIES)
def test_lie_is_not_believed(lie, tmp_path, monkeypatch):
    _stand_in(monkeypatch, tmp_path, LIES[lie])
    outcome = run_job(Job("measure", method="fairness.group_metrics"), limits=Limits(wall_seconds=60))
    assert outcome.status == "errored", outcome
    assert "the canary sang" in outcome.detail
    assert (outcome.data, outcome.arrays) == ({}, {})
    assert len(outcome.detail) < 20_000


def test_the_honest_twin_of_the_lies_is_believed(tmp_path, monkeypatch):
    _stand_in(monkeypatch, tmp_path, f"leave({MEASURED!r})")
    outcome = run_job(Job("measure", method="fairness.group_metrics"))
    assert outcome.status == "completed", outcome
    assert outcome.data["result"] == json.loads(json.dumps(GOOD))


def test_markup_and_unstorable_characters_arrive_as_harmless_text(tmp_path, monkeypatch):
    told = _measured(measurements=[{"name": "<script>alert(1)</script>\0\ud800", "value": 1.0}])
    _stand_in(monkeypatch, tmp_path, f"leave({told!r})")
    outcome = run_job(Job("measure", method="fairness.group_metrics"))
    name = outcome.data["result"]["measurements"][0]["name"]
    assert name == "<script>alert(1)</script>\ufffd\ufffd"
    name.encode("utf-8")


def test_reason_is_cleaned_for_the_page(tmp_path, monkeypatch):
    _stand_in(monkeypatch, tmp_path, "leave({'status': 'failed', 'reason': '\\x1b[2Jbad\\u202e' + 'x' * 9000})")
    outcome = run_job(Job("inspect_dataset"))
    assert outcome.status == "failed"
    assert outcome.reason.startswith("bad")
    assert "\x1b" not in outcome.reason
    assert len(outcome.reason) <= 2_000


def test_inspection_cannot_pass_for_another_kind(tmp_path, monkeypatch):
    _stand_in(monkeypatch, tmp_path, "leave({'status': 'completed', 'data': {'kind': 'model'}})")
    assert run_job(Job("inspect_dataset")).status == "errored"


def test_preparation_cannot_store_what_nobody_wanted(tmp_path, monkeypatch):
    code = (
        "sys.path.insert(0, sys.path[0])\nimport numpy as np\nnp.savez('arrays.npz', y_pred=np.zeros(3), y_score=np.zeros(3))\n"
        "leave({'status': 'completed', 'data': {'prepared': ['y_pred', 'y_score'], 'classes': []}})"
    )
    _stand_in(monkeypatch, tmp_path, code)
    assert run_job(Job("prepare", wanted=("y_pred",))).status == "errored"
    assert run_job(Job("prepare", wanted=("y_pred", "y_score"))).status == "completed"


def test_types_of_a_result_are_checked_to_the_leaf():
    assert conforms(1.0, float | None)
    assert conforms(None, float | None)
    assert not conforms(True, float | None)
    assert not conforms("1", int)
    assert not conforms(True, int)
    assert conforms(((1, "a"), (None, 2.5)), tuple[tuple[str | int | float | bool | None, ...], ...])
    assert not conforms(((1, ()),), tuple[tuple[str | int | float | bool | None, ...], ...])


def test_every_kind_of_part_passes_the_check():
    result = Result(
        (Measurement("m", None, undefined="nothing to count"), Measurement("k", 1, level=1, n=3, worse="higher")),
        (Control("c", "negative", "says", True, 10, 0),),
        (Table("t", ("a", "b"), ((1, None), ("x", 0.5))),),
        {"a": np.arange(3)},
        ("a note",),
    )
    checked = jobs._checked_result(json.loads(json.dumps(result.to_json())), result.arrays)
    assert Result.from_json(checked, result.arrays).to_json() == result.to_json()


# ----------------------------------------------------------------------------------------------------------------- arrays


def _npz(path, members, declared=None):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return str(path)


def _npy(header, content=b""):
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


HONEST = _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", bytes(16))
ARRAY_LIES = {
    "a shape without bytes": _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"),
    "a shape below zero": _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", bytes(16)),
    "a shape of truths": _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (True,), }", bytes(8)),
    "bytes behind the end": _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", bytes(16)),
    "objects": _npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", bytes(8)),
    "a record type": _npy("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }", bytes(8)),
    "texts": _npy("{'descr': '<U2', 'fortran_order': False, 'shape': (1,), }", bytes(8)),
    "a call in the header": _npy("__import__('os').system('true')", bytes(8)),
    "a header without end": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{",
    "no array": b"hello",
    "nothing": b"",
}


def test_honest_arrays_are_read(tmp_path):
    path = _npz(tmp_path / "a.npz", [("x.npy", HONEST)])
    assert wire.read_arrays(path, 1000)["x"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("lie", ARRAY_LIES)
def test_array_that_lies_about_itself_is_refused(lie, tmp_path):
    path = _npz(tmp_path / "a.npz", [("x.npy", ARRAY_LIES[lie])])
    with pytest.raises(wire.Malformed):
        wire.read_arrays(path, 1 << 20)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("x.npy", bytes(5000))], "unpacks"),
        ([(f"{i}.npy", b"") for i in range(20)], "members"),
        ([("../x.npy", HONEST)], "name"),
        ([("x.pkl", HONEST)], "name"),
    ],
)
def test_directory_is_checked_before_anything_is_read(members, words, tmp_path):
    with pytest.raises(wire.Malformed, match=words):
        wire.read_arrays(_npz(tmp_path / "a.npz", members), 1000, max_members=10)


def test_two_members_of_one_name_are_refused(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate"):
        path = _npz(tmp_path / "a.npz", [("x.npy", HONEST), ("x.npy", HONEST)])
    with pytest.raises(wire.Malformed, match="one name"):
        wire.read_arrays(path, 1000)


def test_size_in_the_directory_that_hides_a_bomb_is_refused(tmp_path):
    """The directory says 80 bytes, the member inflates to 64 MB: no more than the 80 are read, and the checksum tells."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", HONEST + bytes(64 << 20))
    content = bytearray(out.getvalue())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = len(HONEST).to_bytes(4, "little")
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(wire.Malformed):
        wire.read_arrays(str(path), 1000)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(3, dtype=">i4"),
        np.array([True, False]),
        np.zeros((0, 4), np.float32),
        np.float32(1.5),
    ],
)
def test_arrays_come_back_as_they_went(array, tmp_path):
    path = str(tmp_path / "a.npz")
    wire.write_arrays(path, {"x": array})
    back = wire.read_arrays(path, 1 << 20)["x"]
    assert np.array_equal(back, array)
    assert back.shape == np.shape(array)
    assert back.flags.writeable


def test_objects_are_never_written(tmp_path):
    with pytest.raises(ValueError, match="pickle"):
        wire.write_arrays(str(tmp_path / "a.npz"), {"x": np.array([{}], object)})


def test_outcome_through_a_link_is_refused(tmp_path):
    (tmp_path / "real.json").write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    assert wire.read_json(str(tmp_path / "real.json")) == {}
    with pytest.raises(OSError, match="symbolic"):
        wire.read_json(str(tmp_path / "link.json"))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_never_written(value, tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        wire.write_json(str(tmp_path / "x.json"), {"a": value})
    assert not (tmp_path / "x.json").exists()
