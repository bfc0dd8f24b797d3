"""One shape for every error, whoever's fault it is."""

import logging
from base64 import b64encode
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from rest_framework.exceptions import Throttled, ValidationError

from audits.api import artifacts as endpoints
from audits.api.errors import one_shape
from audits.models import ApiToken, Artifact
from tests.api.callers import error, person
from tests.factories import Cast, cast, example_bound, make_audit, make_dataset, make_finding

pytestmark = pytest.mark.django_db

METHOD = "fairness.group_metrics"


def test_what_is_our_fault_says_a_reference_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: Any) -> None:
        raise ValueError("password=hunter2")

    monkeypatch.setattr(endpoints.artifacts, "receive_artifact", broken)
    alice = person(cast().alice)
    with caplog.at_level(logging.ERROR):
        response = alice.upload("/artifacts/", {"kind": "dataset", "file": SimpleUploadedFile("a.csv", b"1")})
    assert response.status_code == 500
    found = error(response)
    assert found["code"] == "internal"
    assert "hunter2" not in response.content.decode()
    reference = found["message"].rstrip(".").split()[-1]
    assert reference in caplog.text
    assert "hunter2" in caplog.text


def test_a_database_that_does_not_answer_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(**_: Any) -> None:
        raise OperationalError("server closed the connection at 10.0.0.7")

    monkeypatch.setattr(endpoints.artifacts, "receive_artifact", away)
    alice = person(cast().alice)
    response = alice.upload("/artifacts/", {"kind": "dataset", "file": SimpleUploadedFile("a.csv", b"1")})
    assert response.status_code == 503
    assert "10.0.0.7" not in error(response)["message"]
    assert response.headers["Retry-After"]


def test_a_throttled_caller_is_told_when_to_come_back() -> None:
    response = one_shape(Throttled(wait=30), {})
    assert response.status_code == 429
    assert response.data["error"]["code"] == "throttled"
    assert response.headers["Retry-After"] == "30"


def test_sentences_keep_the_dotted_name_of_their_field() -> None:
    response = one_shape(ValidationError({"a": {"b": ["No."]}, "non_field_errors": ["Neither."]}), {})
    assert response.data["error"]["fields"] == {"a.b": ["No."]}
    assert response.data["error"]["message"] == "Neither. a.b: No."


def test_an_unsuitable_input_says_what_the_service_says() -> None:
    people = cast()
    body = {"dataset": str(make_dataset(people.team, people.alice).pk), "roles": {}, "methods": {}}
    found = error(person(people.alice).post("/audits/", body))
    assert found == {"code": "unsuitable_input", "message": "Choose at least one audit method.", "fields": {}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", "not JSON"),
        ('{"title": NaN}', "NaN"),
        ('{"seed": 1e400}', "too large"),
        (r'{"title": "\u0000"}', "NUL"),
        (r'{"title": "\ud800"}', "surrogate"),
        (r'{"roles": {"\u0000": "a"}}', "NUL"),
        ("[" * 200_000, "nested"),
        ('"' + "a" * (1 << 20) + '"', "1 MiB"),
        ("[]", "JSON object"),
        ("null", "JSON object"),
        ('{"seed": ' + "9" * 5000 + "}", "not JSON"),
    ],
)
def test_a_body_that_cannot_be_taken_is_refused_in_words(body: str, words: str) -> None:
    response = person(cast().alice).post("/audits/", body)
    assert response.status_code in (400, 413)
    message = error(response)["message"]
    assert words in message, message


def test_a_body_in_another_encoding_is_refused() -> None:
    alice = person(cast().alice)
    response = alice.client.generic("POST", "/api/v1/audits/", "{}".encode("utf-16"), content_type="application/json")
    assert response.status_code == 400
    assert error(response)


def test_a_form_where_json_is_needed_is_refused() -> None:
    response = person(cast().alice).upload("/audits/", {"title": "a"})
    assert response.status_code == 415
    assert error(response)["code"] == "unsupported_media_type"


def test_a_misspelt_field_is_not_dropped_in_silence() -> None:
    people = cast()
    body = {
        "dataset": str(make_dataset(people.team, people.alice).pk),
        "roles": {},
        "methods": [],
        "postive_label": "1",
    }
    found = error(person(people.alice).post("/audits/", body))
    assert "positive_label" in found["fields"]["postive_label"][0]


@pytest.mark.parametrize("address", ["/findings/", "/findings.csv", "/artifacts/", "/audits/", "/methods/", "/tokens/"])
@pytest.mark.parametrize("query", [{"verdcit": "exceeds"}, {"team__name": "x"}, {"team": "no-uuid"}])
def test_an_unknown_parameter_or_value_is_refused_in_words(address: str, query: dict[str, str]) -> None:
    response = person(cast().alice).get(address, query)
    assert response.status_code == 400
    assert set(error(response)["fields"]) == set(query)


@pytest.mark.parametrize(
    "query",
    [
        {"verdict": "fine"},
        {"severity": "5"},
        {"family": "fairness.group"},
        {"audit": "\0"},
        {"state": "OPEN"},
        {"page_size": "201"},
        {"page_size": "0"},
        {"page_size": "ten"},
        {"page_size": "²"},
        {"verdict": ["exceeds", "within"]},
    ],
)
def test_a_filter_takes_named_values_only(query: dict[str, Any]) -> None:
    response = person(cast().alice).get("/findings/", query)
    assert response.status_code == 400
    assert set(error(response)["fields"]) == set(query)


@pytest.mark.parametrize("cursor", ["nonsense", "b64", "cD14", b64encode(b"p=2026-13-45 10:00").decode(), "o=1"])
def test_a_cursor_that_is_none_is_refused(cursor: str) -> None:
    people = cast()
    make_dataset(people.team, people.alice)
    response = person(people.alice).get("/artifacts/", {"cursor": cursor})
    assert response.status_code == 400
    assert set(error(response)["fields"]) == {"cursor"}


def test_an_upload_past_the_limit_is_a_413_and_is_not_kept(settings: Any) -> None:
    settings.UPLOAD_LIMIT_MB = 1
    alice = person(cast().alice)
    for size, status in ((1 << 20, 201), ((1 << 20) + 1, 413)):
        form = {"kind": "dataset", "file": SimpleUploadedFile("a.csv", b"a" * size)}
        response = alice.upload("/artifacts/", form)
        assert response.status_code == status
    assert error(response)["code"] == "too_large"
    assert "1 MiB" in error(response)["message"]
    assert Artifact.objects.count() == 1


def test_too_many_bytes_beside_the_file_are_a_413() -> None:
    form = {"kind": "dataset", "name": "a" * (3 << 20), "file": SimpleUploadedFile("a.csv", b"1")}
    response = person(cast().alice).upload("/artifacts/", form)
    assert response.status_code == 413
    assert error(response)["code"] == "too_large"


def test_pages_of_a_list_hold_every_row_once_newest_first() -> None:
    people = cast()
    made = [str(make_dataset(people.team, people.alice).pk) for _ in range(5)]
    alice = person(people.alice)
    page = alice.get("/artifacts/", {"page_size": "2"}).json()
    late = make_dataset(people.team, people.alice)  # a row that comes while the pages are read moves nothing
    found = [row["id"] for row in page["results"]]
    while page["next"]:
        page = alice.client.get(page["next"]).json()
        found += [row["id"] for row in page["results"]]
        assert len(page["results"]) <= 2
    assert found == made[::-1]
    assert str(late.pk) not in found


def _queries(people: Cast, address: str) -> int:
    caller = person(people.alice)
    with CaptureQueriesContext(connection) as queries:
        assert caller.get(address).status_code == 200
    return len(queries)


@pytest.mark.parametrize("address", ["/artifacts/", "/audits/", "/findings/", "/tokens/", "/methods/"])
def test_a_longer_list_does_not_take_more_queries(address: str) -> None:
    people = cast()

    def add() -> None:
        bounds = {METHOD: [example_bound()]}
        make_finding(make_audit(people.team, people.alice, methods=[METHOD], bounds=bounds))
        ApiToken.issue(user=people.alice, team=people.team, name="ci", scopes=["read"])

    add()
    few = _queries(people, address)
    for _ in range(5):
        add()
    assert _queries(people, address) == few <= 9
