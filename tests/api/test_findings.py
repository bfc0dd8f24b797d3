"""Findings over REST: filters, remarks, decisions, export."""

import csv
import io
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from audits.api.findings import COLUMNS, safe
from audits.methods.contract import Measurement, Result
from audits.models import Audit, Comment, Finding
from tests.api.callers import error, person
from tests.factories import Cast, cast, example_bound, make_audit, make_finding

pytestmark = pytest.mark.django_db

METHOD = "fairness.group_metrics"


def audited(people: Cast, method: str = METHOD, result: Result | None = None, **bound: Any) -> Audit:
    audit = make_audit(people.team, people.alice, methods=[method], bounds={method: [example_bound(**bound)]})
    make_finding(audit, result)
    return audit


def exported(people: Cast, **query: str) -> list[dict[str, str]]:
    response = person(people.alice).get("/findings.csv", query)
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/csv")
    text = b"".join(response.streaming_content).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_a_finding_says_what_was_measured_against_which_bound() -> None:
    people = cast()
    audited(people)
    rows = person(people.alice).get("/findings/", {"verdict": "exceeds"}).json()["results"]
    assert len(rows) == 1
    row = person(people.alice).get(f"/findings/{rows[0]['id']}/").json()
    assert (row["family"], row["method"], row["severity"], row["state"]) == ("fairness", METHOD, "high", "open")
    assert (row["measurement"]["value"], row["bound"]["limit"]) == (0.213, 0.1)
    assert row["because"]
    assert (row["comments"], row["decisions"]) == ([], [])


def test_every_filter_narrows_the_list_and_the_export_alike() -> None:
    people = cast()
    one = audited(people)
    audited(people, "privacy.loss_membership", severity="low")
    Finding.objects.filter(audit=one, verdict="exceeds").update(state="confirmed")
    expected = {
        ("audit", str(one.pk)): 2,
        ("family", "privacy"): 2,
        ("verdict", "cannot tell"): 2,
        ("severity", "low"): 2,
        ("state", "confirmed"): 1,
    }
    assert len(person(people.alice).get("/findings/").json()["results"]) == 4
    for (name, value), n in expected.items():
        rows = person(people.alice).get("/findings/", {name: value}).json()["results"]
        assert len(rows) == n, name
        assert {row["id"] for row in rows} == {row["id"] for row in exported(people, **{name: value})}
    both = {"audit": str(one.pk), "severity": "low"}
    assert person(people.alice).get("/findings/", both).json()["results"] == []


def test_another_teams_audit_narrows_to_nothing() -> None:
    people = cast()
    audit = audited(people)
    assert person(people.mallory).get("/findings/", {"audit": str(audit.pk)}).json()["results"] == []


def test_a_remark_and_a_decision_are_shown_with_their_authors() -> None:
    people = cast()
    audit = audited(people)
    address = f"/findings/{audit.findings.get(verdict='exceeds').pk}/"
    bob = person(people.bob)
    assert bob.post(f"{address}comments/", {"text": "Is the sample old?"}).status_code == 201
    until = (timezone.localdate() + timedelta(days=30)).isoformat()
    decided = bob.post(f"{address}decisions/", {"state": "accepted", "reason": "Known.", "expires_on": until})
    assert decided.status_code == 201
    row = bob.get(address).json()
    assert row["state"] == "accepted"
    assert [(c["author"], c["text"]) for c in row["comments"]] == [("bob", "Is the sample old?")]
    assert [(d["state"], d["reason"], d["expires_on"]) for d in row["decisions"]] == [("accepted", "Known.", until)]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"state": "accepted", "reason": "Known."}, "unsuitable_input"),
        ({"state": "false_positive"}, "unsuitable_input"),
        ({"state": "fine"}, "invalid"),
        ({"state": "accepted", "reason": "Known.", "expires_on": "soon"}, "invalid"),
        ({}, "invalid"),
    ],
)
def test_a_decision_that_does_not_fit_changes_nothing(body: dict[str, str], code: str) -> None:
    people = cast()
    finding = audited(people).findings.get(verdict="exceeds")
    response = person(people.bob).post(f"/findings/{finding.pk}/decisions/", body)
    assert response.status_code == 400
    assert error(response)["code"] == code
    finding.refresh_from_db()
    assert finding.state == "open"


@pytest.mark.parametrize("text", ["", "  ", "a" * 10_001, None, {}])
def test_a_remark_that_cannot_be_kept_is_refused(text: Any) -> None:
    people = cast()
    finding = audited(people).findings.get(verdict="exceeds")
    assert person(people.bob).post(f"/findings/{finding.pk}/comments/", {"text": text}).status_code == 400
    assert not Comment.objects.exists()


# ---------------------------------------------------------------------------------------------------------------- export


def test_text_in_the_export_is_no_formula_and_numbers_stay_numbers() -> None:
    people = cast()
    evil = '=HYPERLINK("http://evil.example","a")'
    result = Result(
        measurements=(
            Measurement("gap", -0.25, evil, low=-0.5, high=-0.125, level=0.95, n=10, unit="+cmd", worse="lower"),
            Measurement("gap", None, "@b", undefined="-1+1 is no reason"),
        )
    )
    audit = audited(people, result=result, measurement="gap", limit=-0.1)
    Audit.objects.filter(pk=audit.pk).update(title="\t=1+1")
    rows = {row["subject"]: row for row in exported(people)}
    known, undefined = rows[f"'{evil}"], rows["'@b"]
    assert (float(known["value"]), float(known["low"]), float(known["limit"])) == (-0.25, -0.5, -0.1)
    assert (known["unit"], known["audit_title"]) == ("'+cmd", "'\t=1+1")
    assert (undefined["value"], undefined["undefined"]) == ("", "'-1+1 is no reason")
    assert tuple(known) == COLUMNS


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_every_start_of_a_formula_is_disarmed(start: str) -> None:
    assert safe(f"{start}1") == f"'{start}1"
    assert safe(f"a{start}1") == f"a{start}1"
    assert safe(-1.5) == -1.5
    assert safe(None) is None


def test_a_delimiter_in_a_text_stays_inside_its_quotes() -> None:
    people = cast()
    subject = 'a;=1+1,"b"\n=2'
    audited(people, result=Result((Measurement("gap", 0.5, subject, low=0.4, high=0.6),)), measurement="gap")
    response = person(people.alice).get("/findings.csv")
    text = b"".join(response.streaming_content).decode()
    assert '"a;=1+1,""b""\n=2"' in text
    assert [row["subject"] for row in exported(people)] == [subject]


def test_the_export_comes_as_csv_whatever_is_accepted_and_its_errors_as_json() -> None:
    people = cast()
    alice = person(people.alice)
    assert alice.get("/findings.csv", Accept="text/csv").status_code == 200
    assert alice.get("/findings.csv", Accept="text/html").status_code == 200
    refused = alice.get("/findings.csv", {"verdict": "fine"}, Accept="text/csv")
    assert refused.status_code == 400
    assert error(refused)


def test_the_export_does_not_ask_the_database_per_row(django_assert_max_num_queries: Any) -> None:
    people = cast()
    for _ in range(6):
        audited(people)
    alice = person(people.alice)
    with django_assert_max_num_queries(6):
        assert len(list(alice.get("/findings.csv").streaming_content)) == 13
