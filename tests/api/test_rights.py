"""Every route times everybody: owner, reviewer, viewer, outsider, nobody, and tokens with one scope each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from audits.api.urls import urlpatterns
from audits.models import ApiToken, Artifact, Audit, Finding, Membership, Role, Run, Status
from tests.api.callers import ROOT, Caller, bearer, error, nobody, person, token
from tests.factories import (
    Cast,
    cast,
    example_bound,
    join,
    make_artifact,
    make_audit,
    make_dataset,
    make_finding,
    make_user,
)

pytestmark = pytest.mark.django_db

METHOD = "fairness.group_metrics"
ROLES = {"y_pred": "prediction", "sensitive_features": ["sex"]}


@dataclass(frozen=True)
class World:
    """Rows of alice's team that every route can be called on."""

    people: Cast
    artifact: Artifact
    unread: Artifact
    audit: Audit
    measured: Run
    waiting: Run
    failed: Run
    finding: Finding
    token: ApiToken


def world() -> World:
    people = cast()
    team, alice = people.team, people.alice
    artifact = make_dataset(team, alice)
    unread = make_artifact(team, alice, status=Status.FAILED, reason="It is no CSV.")
    audit = make_audit(team, alice, dataset=artifact, methods=[METHOD], roles=ROLES, bounds={METHOD: [example_bound()]})
    finding = make_finding(audit)
    waiting = make_audit(team, alice, dataset=artifact, methods=[METHOD]).runs.get()
    failed = make_audit(team, alice, dataset=artifact, methods=[METHOD]).runs.get()
    Run.objects.filter(pk=failed.pk).update(status=Status.FAILED, reason="Too few records.")
    own, _ = ApiToken.issue(user=alice, team=team, name="ci", scopes=["read"])
    return World(people, artifact, unread, audit, finding.run, waiting, failed, finding, own)


def callers(people: Cast) -> dict[str, Caller]:
    alice, team = people.alice, people.team
    return {
        "owner": person(alice),
        "reviewer": person(people.bob),
        "viewer": person(people.vera),
        "outsider": person(people.mallory),
        "nobody": nobody(),
        "read token": token(alice, team, "read"),
        "submit token": token(alice, team, "submit"),
        "review token": token(alice, team, "review"),
        "viewer's full token": token(people.vera, team, "read", "submit", "review"),
        "outsider's full token": token(people.mallory, people.other_team, "read", "submit", "review"),
    }


Expected = dict[str, int]


def reads(outsider: int) -> Expected:
    """Everybody in the team; a token needs the scope read."""
    people = {"owner": 200, "reviewer": 200, "viewer": 200, "outsider": outsider, "nobody": 401}
    tokens = {"read token": 200, "submit token": 403, "review token": 403}
    return people | tokens | {"viewer's full token": 200, "outsider's full token": outsider}


def submits(done: int, outsider: int) -> Expected:
    """Auditors and owners; a token needs the scope submit, and its owner the role."""
    people = {"owner": done, "reviewer": 403, "viewer": 403, "outsider": outsider, "nobody": 401}
    tokens = {"read token": 403, "submit token": done, "review token": 403}
    return people | tokens | {"viewer's full token": 403, "outsider's full token": outsider}


def reviews(done: int) -> Expected:
    """Reviewers and above; a token needs the scope review, and its owner the role."""
    people = {"owner": done, "reviewer": done, "viewer": 403, "outsider": 404, "nobody": 401}
    tokens = {"read token": 403, "submit token": 403, "review token": done}
    return people | tokens | {"viewer's full token": 403, "outsider's full token": 404}


def in_person(owner: int, others: int) -> Expected:
    """No token at all."""
    people = {"owner": owner, "reviewer": others, "viewer": others, "outsider": others, "nobody": 401}
    tokens = dict.fromkeys(("read token", "submit token", "review token"), 403)
    return people | tokens | {"viewer's full token": 403, "outsider's full token": 403}


def anyone(signed_in: int, nobody: int) -> Expected:
    """Who is signed in, whatever the rights."""
    return dict.fromkeys(reads(0), signed_in) | {"nobody": nobody}


def docs() -> Expected:
    """A page for people: a browser without a session is sent to the sign-in page, whatever token it has."""
    return dict.fromkeys(reads(0), 302) | dict.fromkeys(("owner", "reviewer", "viewer", "outsider"), 200)


@dataclass(frozen=True)
class Route:
    """One method of one address, what to send, and what everybody gets."""

    name: str
    method: str
    expected: Expected
    row: str = ""
    body: Callable[[World], Any] = lambda world: None
    form: bool = False

    def address(self, world: World) -> str:
        if self.name == "api-method":
            return f"/methods/{METHOD}/"
        if self.name == "api-nowhere":
            return "/nothing/here/"
        kwargs = {"id": getattr(world, self.row).pk} if self.row else {}
        return reverse(self.name, kwargs=kwargs).removeprefix(ROOT)

    def send(self, caller: Caller, world: World) -> Any:
        if self.form:
            return caller.upload(self.address(world), self.body(world))
        return caller.call(self.method, self.address(world), self.body(world))


def upload(world: World) -> dict[str, Any]:
    return {"kind": "dataset", "file": SimpleUploadedFile("a.csv", b"a,b\n1,2\n")}


def request(world: World) -> dict[str, Any]:
    return {"dataset": str(world.artifact.pk), "roles": ROLES, "methods": [METHOD]}


ROUTES = (
    Route("api-artifacts", "GET", reads(outsider=200)),
    Route("api-artifacts", "POST", submits(201, outsider=201), body=upload, form=True),
    Route("api-artifact", "GET", reads(outsider=404), row="artifact"),
    Route("api-artifact-read-again", "POST", submits(202, outsider=404), row="unread", body=lambda w: {}),
    Route("api-audits", "GET", reads(outsider=200)),
    Route("api-audits", "POST", submits(202, outsider=400), body=request),
    Route("api-audit", "GET", reads(outsider=404), row="audit"),
    Route("api-audit-cancel", "POST", submits(202, outsider=404), row="audit"),
    Route("api-run", "GET", reads(outsider=404), row="waiting"),
    Route("api-run-result", "GET", reads(outsider=404), row="measured"),
    Route("api-run-cancel", "POST", submits(202, outsider=404), row="waiting"),
    Route("api-run-retry", "POST", submits(202, outsider=404), row="failed"),
    Route("api-findings", "GET", reads(outsider=200)),
    Route("api-findings-csv", "GET", reads(outsider=200)),
    Route("api-finding", "GET", reads(outsider=404), row="finding"),
    Route("api-finding-comments", "POST", reviews(201), row="finding", body=lambda w: {"text": "Why?"}),
    Route("api-finding-decisions", "POST", reviews(201), row="finding", body=lambda w: {"state": "confirmed"}),
    Route("api-methods", "GET", reads(outsider=200)),
    Route("api-method", "GET", reads(outsider=200)),
    Route("api-tokens", "GET", reads(outsider=200)),
    Route("api-tokens", "POST", in_person(201, others=201), body=lambda w: {"name": "ci", "scopes": ["read"]}),
    Route("api-token", "DELETE", in_person(204, others=404), row="token"),
    Route("api-schema", "GET", anyone(200, nobody=401)),
    Route("api-docs", "GET", docs()),
    Route("api-nowhere", "GET", anyone(404, nobody=404)),
)


@contextmanager
def undone() -> Iterator[None]:
    """What a call changes is taken back, so that the next caller finds the same world."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.name}")
def test_everybody_gets_what_they_may(route: Route) -> None:
    here = world()
    got = {}
    for name, caller in callers(here.people).items():
        with undone():
            response = route.send(caller, here)
            got[name] = response.status_code
            if response.status_code >= 400:
                assert error(response)
    assert got == route.expected


def test_every_route_is_in_the_table() -> None:
    assert {pattern.name for pattern in urlpatterns} == {route.name for route in ROUTES}


@pytest.mark.parametrize("name", sorted({route.name for route in ROUTES} - {"api-nowhere"}))
def test_every_method_that_is_not_in_the_table_is_refused(name: str) -> None:
    here = world()
    alice = person(here.people.alice)
    listed = [route for route in ROUTES if route.name == name]
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - {route.method for route in listed}:
        response = alice.call(method, listed[0].address(here), {})
        assert response.status_code == 405, method
        if name != "api-docs":
            assert error(response)["code"] == "method_not_allowed"


def test_lists_hold_the_rows_of_the_callers_team_alone() -> None:
    here = world()
    for address in ("/artifacts/", "/audits/", "/findings/", "/tokens/"):
        assert person(here.people.alice).get(address).json()["results"], address
        assert person(here.people.mallory).get(address).json()["results"] == [], address
    assert len(list(person(here.people.alice).get("/findings.csv").streaming_content)) > 1
    assert len(list(person(here.people.mallory).get("/findings.csv").streaming_content)) == 1


def test_a_token_sees_its_own_team_only_even_where_its_owner_is_in_two() -> None:
    here = world()
    people = here.people
    join(people.alice, people.other_team, Role.OWNER)
    elsewhere = token(people.alice, people.other_team, "read", "submit")
    assert elsewhere.get(f"/artifacts/{here.artifact.pk}/").status_code == 404
    assert elsewhere.get(f"/runs/{here.waiting.pk}/").status_code == 404
    assert elsewhere.get("/artifacts/").json()["results"] == []
    assert elsewhere.get("/artifacts/", {"team": str(people.team.pk)}).status_code == 404
    assert elsewhere.post("/audits/", request(here)).status_code == 400
    assert person(people.alice).get(f"/artifacts/{here.artifact.pk}/").status_code == 200


def test_a_person_chooses_the_team_of_a_list() -> None:
    here = world()
    people = here.people
    join(people.alice, people.other_team, Role.OWNER)
    alice = person(people.alice)
    assert alice.get("/artifacts/", {"team": str(people.team.pk)}).json()["results"]
    assert alice.get("/artifacts/", {"team": str(people.other_team.pk)}).json()["results"] == []
    session = alice.client.session
    session["team"] = str(people.other_team.pk)
    session.save()
    assert alice.get("/artifacts/").json()["results"] == []
    session["team"] = str(people.team.pk)
    session.save()
    assert alice.get("/artifacts/").json()["results"]


def test_the_role_in_the_rows_team_decides_not_the_one_in_the_chosen_team() -> None:
    here = world()
    people = here.people
    join(people.vera, people.other_team, Role.OWNER)
    vera = person(people.vera)
    address = f"/audits/{here.audit.pk}/cancel/?team={people.other_team.pk}"
    assert vera.post(address).status_code == 403


def test_a_user_without_a_team_is_told_so() -> None:
    response = person(make_user()).get("/artifacts/")
    assert response.status_code == 403
    assert "no team" in error(response)["message"]


def _expired(row: ApiToken) -> None:
    ApiToken.objects.filter(pk=row.pk).update(expires_at=timezone.now() - timedelta(seconds=1))


def _revoked(row: ApiToken) -> None:
    row.delete()


def _left(row: ApiToken) -> None:
    Membership.objects.filter(user=row.user).delete()


def _disabled(row: ApiToken) -> None:
    row.user.is_active = False
    row.user.save(update_fields=["is_active"])


@pytest.mark.parametrize("ends", [_expired, _revoked, _left, _disabled])
def test_a_token_dies(ends: Callable[[ApiToken], None]) -> None:
    people = cast()
    row, secret = ApiToken.issue(user=people.alice, team=people.team, name="ci", scopes=["read"])
    assert bearer(secret).get("/artifacts/").status_code == 200
    ends(row)
    response = bearer(secret).get("/artifacts/")
    assert response.status_code == 401
    assert error(response)["code"] == "authentication_failed"
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("secret", ["", "aud_wrong", "two words", "aud_ü", "a" * 5000])
def test_what_is_no_token_is_a_401(secret: str) -> None:
    response = bearer(secret.encode().decode("latin-1")).get("/artifacts/")
    assert response.status_code == 401
    assert error(response)


def test_a_token_in_the_address_is_not_taken() -> None:
    people = cast()
    _, secret = ApiToken.issue(user=people.alice, team=people.team, name="ci", scopes=["read"])
    assert nobody().get("/artifacts/", {"token": secret}).status_code == 401


def test_a_demoted_owners_token_can_no_longer_submit() -> None:
    here = world()
    people = here.people
    caller = token(people.alice, people.team, "submit")
    Membership.objects.filter(user=people.alice).update(role=Role.VIEWER)
    assert caller.post("/audits/", request(here)).status_code == 403


def test_a_session_needs_the_csrf_token_to_change_something() -> None:
    here = world()
    alice = person(here.people.alice)
    alice.client.handler.enforce_csrf_checks = True
    response = alice.post(f"/runs/{here.waiting.pk}/cancel/")
    assert response.status_code == 403
    assert "CSRF" in error(response)["message"]
    here.waiting.refresh_from_db()
    assert here.waiting.status == Status.QUEUED


def test_the_use_of_a_token_is_noted_once_a_minute() -> None:
    people = cast()
    row, secret = ApiToken.issue(user=people.alice, team=people.team, name="ci", scopes=["read"])
    bearer(secret).get("/artifacts/")
    row.refresh_from_db()
    first = row.last_used_at
    assert first is not None
    bearer(secret).get("/artifacts/")
    row.refresh_from_db()
    assert row.last_used_at == first
    ApiToken.objects.filter(pk=row.pk).update(last_used_at=first - timedelta(minutes=2))
    bearer(secret).get("/artifacts/")
    row.refresh_from_db()
    assert row.last_used_at >= first


def test_who_may_not_upload_is_refused_before_the_body_is_read(settings: Any) -> None:
    settings.UPLOAD_LIMIT_MB = 0
    here = world()
    people = here.people
    refused = token(people.vera, people.team, "submit").upload("/artifacts/", upload(here))
    read = token(people.alice, people.team, "submit").upload("/artifacts/", upload(here))
    assert (refused.status_code, read.status_code) == (403, 413)


def test_who_may_not_change_a_row_is_not_told_how_it_stands() -> None:
    here = world()
    vera = person(here.people.vera)
    assert vera.post(f"/artifacts/{here.artifact.pk}/read-again/", {}).status_code == 403
    assert person(here.people.alice).post(f"/artifacts/{here.artifact.pk}/read-again/", {}).status_code == 409
