"""The OpenAPI document and its page."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command

from audits.api.urls import urlpatterns
from tests.api.callers import person, token
from tests.factories import cast

pytestmark = pytest.mark.django_db

UNLISTED = {"api-schema", "api-docs", "api-nowhere"}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document as generated; a warning or an invalid document raises."""
    path: Path = tmp_path_factory.mktemp("schema") / "schema.yml"
    call_command("spectacular", file=str(path), validate=True, fail_on_warn=True)
    return yaml.safe_load(path.read_text())


def test_the_document_is_valid_and_names_every_route(document: dict[str, Any]) -> None:
    assert len(document["paths"]) == len({pattern.name for pattern in urlpatterns} - UNLISTED)


def test_every_operation_names_the_shape_of_errors_and_how_to_sign_in(document: dict[str, Any]) -> None:
    operations = [one for path in document["paths"].values() for one in path.values()]
    for operation in operations:
        error = operation["responses"]["default"]["content"]["application/json"]["schema"]
        assert error == {"$ref": "#/components/schemas/Error"}
        assert {"token": []} in operation["security"]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)


def test_an_upload_is_documented_as_a_form_with_a_file(document: dict[str, Any]) -> None:
    content = document["paths"]["/api/v1/artifacts/"]["post"]["requestBody"]["content"]
    assert list(content) == ["multipart/form-data"]
    assert document["components"]["schemas"]["Upload"]["properties"]["file"]["format"] == "binary"


def test_the_document_is_served_as_json_and_yaml() -> None:
    people = cast()
    caller = token(people.alice, people.team, "read")
    assert caller.get("/schema/").json()["openapi"].startswith("3.")
    assert caller.get("/schema/", {"format": "yaml"}).content.startswith(b"openapi:")


def test_the_page_holds_no_script_or_style_of_its_own() -> None:
    alice = person(cast().alice)
    response = alice.get("/docs/")
    page = response.content.decode()
    assert "swagger-ui-bundle" in page
    assert "<style" not in page
    assert "<script>" not in page
    assert "unsafe" not in response.headers["Content-Security-Policy"]
    script = alice.get("/docs/", {"script": ""})
    assert script.headers["Content-Type"].startswith("application/javascript")
    assert "schema/" in script.content.decode()
