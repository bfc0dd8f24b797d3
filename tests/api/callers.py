"""Who calls the API in tests: people with a session, tokens, nobody."""

import json
from dataclasses import dataclass
from typing import Any

from django.test import Client

from audits.models import ApiToken, Team, User

ROOT = "/api/v1"


@dataclass(frozen=True)
class Caller:
    """A client with its way of signing in. Addresses are given below /api/v1."""

    client: Client
    headers: dict[str, str]

    def get(self, address: str, query: Any = None, **headers: str) -> Any:
        """GET."""
        return self.client.get(ROOT + address, query, headers=self.headers | headers)

    def post(self, address: str, body: Any = None, **headers: str) -> Any:
        """POST of JSON; no body at all where it is None."""
        return self.call("POST", address, body, **headers)

    def upload(self, address: str, form: dict[str, Any]) -> Any:
        """POST of a multipart form."""
        return self.client.post(ROOT + address, form, headers=self.headers)

    def call(self, method: str, address: str, body: Any = None, **headers: str) -> Any:
        """Any method, with JSON where there is a body."""
        text = "" if body is None else body if isinstance(body, str) else json.dumps(body)
        return self.client.generic(
            method, ROOT + address, text, content_type="application/json", headers=self.headers | headers
        )


def nobody() -> Caller:
    """Without a session or a token."""
    return Caller(Client(raise_request_exception=False), {})


def person(user: User) -> Caller:
    """Signed in."""
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return Caller(client, {})


def token(user: User, team: Team, *scopes: str) -> Caller:
    """With a token that has these scopes."""
    _, secret = ApiToken.issue(user=user, team=team, name="ci", scopes=list(scopes))
    return bearer(secret)


def bearer(secret: str) -> Caller:
    """With whatever stands after “Bearer”."""
    return Caller(Client(raise_request_exception=False), {"Authorization": f"Bearer {secret}"})


def error(response: Any) -> dict[str, Any]:
    """The error of a response, after checking the shape that all errors have."""
    body = response.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"code", "message", "fields"}
    assert body["error"]["code"]
    assert body["error"]["message"][-1] in ".?!", body["error"]["message"]
    assert all(isinstance(sentences, list) for sentences in body["error"]["fields"].values())
    return body["error"]
