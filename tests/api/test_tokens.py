"""Tokens over REST."""

from typing import Any

import pytest

from audits.models import ApiToken
from tests.api.callers import bearer, error, person
from tests.factories import cast

pytestmark = pytest.mark.django_db


def test_a_secret_is_shown_once_and_works() -> None:
    people = cast()
    alice = person(people.alice)
    response = alice.post("/tokens/", {"name": "ci", "scopes": ["submit", "read"], "days": 30})
    assert response.status_code == 201
    made = response.json()
    assert made["secret"].startswith("aud_")
    assert made["scopes"] == ["read", "submit"]
    listed = alice.get("/tokens/")
    assert made["secret"] not in listed.content.decode()
    assert listed.json()["results"][0] == {k: v for k, v in made.items() if k != "secret"}
    assert bearer(made["secret"]).get("/artifacts/").status_code == 200
    assert not ApiToken.objects.filter(digest__contains=made["secret"]).exists()


def test_a_revoked_token_is_dead_at_once() -> None:
    people = cast()
    alice = person(people.alice)
    made = alice.post("/tokens/", {"name": "ci", "scopes": ["read"]}).json()
    assert alice.call("DELETE", f"/tokens/{made['id']}/").status_code == 204
    assert bearer(made["secret"]).get("/artifacts/").status_code == 401


def test_a_colleagues_token_is_neither_listed_nor_revocable() -> None:
    people = cast()
    made = person(people.alice).post("/tokens/", {"name": "ci", "scopes": ["read"]}).json()
    bob = person(people.bob)
    assert bob.get("/tokens/").json()["results"] == []
    assert bob.call("DELETE", f"/tokens/{made['id']}/").status_code == 404
    assert ApiToken.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["admin"]}, "scopes.0"),
        ({"scopes": "read"}, "scopes"),
        ({"days": 0}, "days"),
        ({"days": 10**30}, "days"),
        ({"name": ""}, "name"),
    ],
)
def test_a_token_that_does_not_fit_is_refused(change: dict[str, Any], field: str) -> None:
    response = person(cast().alice).post("/tokens/", {"name": "ci", "scopes": ["read"]} | change)
    assert response.status_code == 400
    assert set(error(response)["fields"]) == {field}
