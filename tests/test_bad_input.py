"""Bad input gets a sentence, never a stack trace: each case goes through the real child and is read off the page."""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from audits import execution
from audits.models import Artifact, Status
from audits.samples.demo import ADULT_FEATURES, FOLDER
from audits.services.artifacts import receive_artifact
from audits.services.audits import request_audit
from tests.factories import cast

pytestmark = pytest.mark.django_db


def sample(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def upload(people: Any, kind: str, name: str, content: bytes) -> Artifact:
    artifact = receive_artifact(
        actor=people.alice, team=people.team, kind=kind, upload=SimpleUploadedFile(name, content)
    )
    execution.inspect(artifact.pk)
    return Artifact.objects.select_related("inspection").get(pk=artifact.pk)


def page(people: Any, address: str) -> str:
    client = Client()
    client.force_login(people.alice)
    answer = client.get(address)
    assert answer.status_code == 200
    return answer.content.decode()


UNREADABLE: list[tuple[str, str, str, Callable[[], bytes], str]] = [
    ("truncated Parquet", "dataset", "a.parquet", lambda: sample("adult_test.parquet")[:5000], "damaged, cut off"),
    ("CSV with one column", "dataset", "a.csv", lambda: b"label\n1\n0\n", "Only one column was found"),
    ("blank file", "dataset", "a.csv", lambda: b"  \n \n", "nothing but blanks"),
    ("header without rows", "dataset", "a.csv", lambda: b"label,sex\n", "a header but no rows"),
    ("ragged CSV", "dataset", "a.csv", lambda: b"a,b\n1,2\n1,2,3,4\n", "damaged, cut off"),
    ("web page", "dataset", "a.csv", lambda: b"<html><body>Sign in</body></html>", "HTML or XML page"),
    ("pickle as a data set", "dataset", "a.csv", lambda: pickle.dumps({"a": 1}), "Python pickle"),
    ("arrays of different length", "dataset", "a.npz", lambda: npz(a=np.zeros(3), b=np.zeros(4)), "differ in their number"),
    ("pickle as a model", "model", "model.skops", lambda: pickle.dumps({"a": 1}), "Python pickle"),
    ("pickle under another name", "model", "model.onnx", lambda: pickle.dumps({"a": 1}), "skops.io.dump"),
    ("truncated ONNX", "model", "m.onnx", lambda: sample("adult_boosted.onnx")[:5000], "cannot be opened"),
    ("truncated safetensors", "model", "m.safetensors", lambda: sample("digits_clean.safetensors")[:9000], "damaged"),
    ("random bytes", "model", "m.bin", lambda: b"\x01\x02\x03\x04" * 100, "no known model format"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "content", "words"), [case[1:] for case in UNREADABLE], ids=[case[0] for case in UNREADABLE]
)
def test_a_file_that_cannot_be_read_says_why_on_its_page(
    kind: str, name: str, content: Callable[[], bytes], words: str
) -> None:
    people = cast()
    artifact = upload(people, kind, name, content())
    assert artifact.inspection.status == Status.FAILED
    text = page(people, f"/artifacts/{artifact.pk}/")
    assert words in text
    assert "Traceback" not in text


def rows(*lines: str) -> bytes:
    return "\n".join(lines).encode()


def many(header: str, *patterns: str, times: int = 40) -> bytes:
    return rows(header, *[line for _ in range(times) for line in patterns])


GROUPS = {"y_true": "label", "y_pred": "pred", "sensitive_features": ["sex"]}

UNSUITABLE: list[tuple[str, bytes, dict[str, Any], str]] = [
    (
        "mixed labels",
        many("label,pred,sex", "1,1,f", "yes,0,m", "0,1,f", "no,0,m"),
        GROUPS,
        "mixes numbers (“0”, “1”) and words (“no”, “yes”)",
    ),
    (
        "a number as a label",
        rows("label,pred,sex", *[f"{i / 7},1,{'fm'[i % 2]}" for i in range(1500)]),
        GROUPS,
        "is a number and not a class",
    ),
    ("one group only", many("label,pred,sex", "1,1,f", "0,0,f"), GROUPS, "group"),
    (
        "an unknown favourable outcome",
        many("label,pred,sex", "a,a,f", "b,b,m"),
        GROUPS | {"positive": "c"},
        "favourable outcome “c” is none of the labels “a”, “b”",
    ),
    (
        "three classes",
        many("label,pred,sex", "a,a,f", "b,b,m", "c,c,m"),
        GROUPS,
        "two classes",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "roles", "words"), [case[1:] for case in UNSUITABLE], ids=[case[0] for case in UNSUITABLE]
)
def test_a_table_that_does_not_fit_the_method_says_why_in_the_report(
    content: bytes, roles: dict[str, Any], words: str
) -> None:
    people = cast()
    dataset = upload(people, "dataset", "t.csv", content)
    positive = roles.get("positive", "")
    text = report(people, dataset, {k: v for k, v in roles.items() if k != "positive"}, positive=positive)
    assert words in text
    assert "Traceback" not in text


def report(people: Any, dataset: Artifact, roles: Any, *, model: Artifact | None = None, positive: str = "") -> str:
    audit = request_audit(
        actor=people.alice,
        team=people.team,
        dataset=dataset,
        model=model,
        roles=roles,
        positive_label=positive,
        methods={"fairness.group_metrics": {}},
        seed=1,
    )
    for run in audit.runs.all():
        execution.execute(run.pk)
    return page(people, f"/audits/{audit.pk}/")


def test_words_as_labels_are_no_obstacle() -> None:
    people = cast()
    dataset = upload(people, "dataset", "t.csv", many("label,pred,sex", "yes,yes,f", "no,yes,m", "no,no,f", "yes,no,m"))
    text = report(people, dataset, GROUPS, positive="yes")
    assert "emographic parity difference" in text


def test_a_group_with_one_label_only_is_undefined_with_its_reason_and_not_zero() -> None:
    people = cast()
    lines = many("label,pred,sex", "1,1,f", "1,0,f", "1,1,m", "0,0,m", "1,0,m", "0,1,m")
    dataset = upload(people, "dataset", "t.csv", lines)
    text = report(people, dataset, GROUPS)
    assert "no negatives" in text


def test_a_model_whose_inputs_are_not_among_the_columns_names_both() -> None:
    people = cast()
    dataset = upload(people, "dataset", "adult.parquet", sample("adult_test.parquet"))
    model = upload(people, "model", "adult_boosted.onnx", sample("adult_boosted.onnx"))
    roles = {"y_true": "income", "sensitive_features": ["sex"], "features": ADULT_FEATURES[:-1]}
    text = report(people, dataset, roles, model=model, positive=">50K")
    assert "The model reads 11 inputs" in text
    assert "the chosen columns give 10" in text
    assert "Missing: hours_per_week" in text


def test_an_empty_upload_is_refused_on_the_upload_page() -> None:
    people = cast()
    client = Client()
    client.force_login(people.alice)
    answer = client.post("/artifacts/upload/", {"kind": "dataset", "file": SimpleUploadedFile("a.csv", b"")})
    assert "empty" in answer.content.decode()
    assert not Artifact.objects.exists()
