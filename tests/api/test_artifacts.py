"""Uploading over REST."""

import hashlib

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from audits.models import Artifact, Inspection, Status
from tests.api.callers import error, person
from tests.factories import cast, make_artifact, make_dataset, make_model

pytestmark = pytest.mark.django_db


def test_an_upload_is_stored_and_waits_to_be_read() -> None:
    content = b"a,b\n1,2\n"
    form = {
        "kind": "dataset",
        "name": "Applicants",
        "options": '{"separator": ","}',
        "file": SimpleUploadedFile("../a.csv", content),
    }
    response = person(cast().alice).upload("/artifacts/", form)
    assert response.status_code == 201
    body = response.json()
    assert (body["status"], body["report"]) == ("queued", None)
    assert (body["name"], body["filename"]) == ("Applicants", "a.csv")
    assert body["sha256"] == hashlib.sha256(content).hexdigest()
    assert body["options"] == {"separator": ","}
    assert response.headers["Location"] == f"/api/v1/artifacts/{body['id']}/"
    assert response.headers["Cache-Control"] == "no-store"


def test_the_name_of_the_file_serves_where_no_name_is_given() -> None:
    form = {"kind": "model", "file": SimpleUploadedFile("credit.onnx", b"1")}
    assert person(cast().alice).upload("/artifacts/", form).json()["name"] == "credit"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "picture"}, "kind"),
        ({"file": "text"}, "file"),
        ({"options": "{"}, "options"),
        ({"options": "[]"}, "options"),
        ({"options": '{"a": 1e999}'}, "options"),
        ({"options": '{"a": "\\u0000"}'}, "options"),
        ({"name": "a\0b"}, "name"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_form_that_does_not_fit_is_refused_at_its_field(change: dict[str, str], field: str) -> None:
    form = {"kind": "dataset", "file": SimpleUploadedFile("a.csv", b"1")} | change
    response = person(cast().alice).upload("/artifacts/", form)
    assert response.status_code == 400
    assert set(error(response)["fields"]) == {field}
    assert not Artifact.objects.exists()


def test_an_empty_file_is_refused_in_words() -> None:
    response = person(cast().alice).upload("/artifacts/", {"kind": "dataset", "file": SimpleUploadedFile("a.csv", b"")})
    assert response.status_code == 400
    assert "empty" in error(response)["message"]


def test_what_was_read_is_shown_and_the_list_leaves_it_out() -> None:
    people = cast()
    artifact = make_dataset(people.team, people.alice, columns=["age", "sex"])
    body = person(people.alice).get(f"/artifacts/{artifact.pk}/").json()
    assert [column["name"] for column in body["report"]["columns"]] == ["age", "sex"]
    assert body["sandbox"]["level"] == "B"
    assert body["progress"] == 1.0
    assert "report" not in person(people.alice).get("/artifacts/").json()["results"][0]


def test_a_list_is_narrowed_to_a_kind() -> None:
    people = cast()
    make_dataset(people.team, people.alice)
    model = make_model(people.team, people.alice)
    rows = person(people.alice).get("/artifacts/", {"kind": "model"}).json()["results"]
    assert [row["id"] for row in rows] == [str(model.pk)]


def test_a_file_that_could_not_be_read_is_read_again_with_new_options() -> None:
    people = cast()
    artifact = make_artifact(people.team, people.alice, kind="model", status=Status.FAILED, reason="Name it.")
    response = person(people.alice).post(
        f"/artifacts/{artifact.pk}/read-again/", {"options": {"architecture": "small_cnn"}}
    )
    assert response.status_code == 202
    assert response.json()["status"] == "queued"
    assert response.json()["options"] == {"architecture": "small_cnn"}
    assert Inspection.objects.get(pk=artifact.pk).status == Status.QUEUED


def test_a_file_that_was_read_keeps_its_options() -> None:
    people = cast()
    artifact = make_dataset(people.team, people.alice)
    response = person(people.alice).post(f"/artifacts/{artifact.pk}/read-again/", {"options": {"separator": ";"}})
    assert response.status_code == 409
    assert "completed" in error(response)["message"]
    artifact.refresh_from_db()
    assert artifact.options == {}
