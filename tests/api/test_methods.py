"""The catalogue over REST."""

import jsonschema
import pytest

from audits.api.serializers import setting_schema
from audits.methods.catalogue import Parameter, catalogue
from audits.methods.contract import Setting
from tests.api.callers import error, person
from tests.factories import cast, column, make_dataset, make_model

pytestmark = pytest.mark.django_db


def test_every_method_is_listed_with_a_schema_that_its_defaults_fit() -> None:
    body = person(cast().alice).get("/methods/").json()
    assert [card["key"] for card in body["results"]] == list(catalogue())
    for card in body["results"]:
        jsonschema.Draft202012Validator.check_schema(card["settings"])
        defaults = {p.name: p.default for p in catalogue()[card["key"]].parameters if p.default is not None}
        jsonschema.validate(defaults, card["settings"])
        assert card["question"]
        assert card["applicability"] is None


def test_a_card_says_which_inputs_are_needed() -> None:
    card = person(cast().alice).get("/methods/fairness.group_metrics/").json()
    needed = {one["name"]: one["required"] for one in card["inputs"]}
    assert needed["sensitive_features"] is True
    assert "rng" not in needed
    assert all(one["help"] for one in card["inputs"])


def test_a_setting_is_a_json_schema_property() -> None:
    parameter = Parameter("n_rounds", int, 5, Setting("Rounds", 1, 9, unit="epochs"))
    expected = {"type": "integer", "description": "Rounds [epochs]", "minimum": 1, "maximum": 9, "default": 5}
    assert setting_schema(parameter) == expected
    choice = Parameter("kind", str, "a", Setting("Kind", choices=("a", "b")))
    assert setting_schema(choice) == {"type": "string", "description": "Kind", "enum": ["a", "b"], "default": "a"}
    key = Parameter("key", str, "hush", Setting("Key", secret=True))
    assert setting_schema(key) == {"type": "string", "description": "Key", "writeOnly": True}


def test_an_unknown_method_is_a_404_in_words() -> None:
    response = person(cast().alice).get("/methods/fairness.nonsense/")
    assert response.status_code == 404
    assert "fairness.nonsense" in error(response)["message"]


def test_what_a_method_lacks_on_an_artifact_is_named() -> None:
    people = cast()
    plain = make_dataset(people.team, people.alice)
    fitting = make_dataset(
        people.team, people.alice, columns=[column("p", "y_pred"), column("sex", "sensitive_features")]
    )
    alice = person(people.alice)
    address = "/methods/fairness.group_metrics/"
    lacking = alice.get(address, {"dataset": str(plain.pk)}).json()["applicability"]
    assert lacking["can_run"] is False
    assert "sensitive_features" in lacking["missing"]
    assert alice.get(address, {"dataset": str(fitting.pk)}).json()["applicability"] == {"can_run": True, "missing": []}
    model = make_model(people.team, people.alice)
    cards = alice.get("/methods/", {"model": str(model.pk)}).json()["results"]
    assert not any("model" in card["applicability"]["missing"] for card in cards)


def test_another_teams_artifact_is_not_told_about() -> None:
    people = cast()
    dataset = make_dataset(people.team, people.alice)
    response = person(people.mallory).get("/methods/", {"dataset": str(dataset.pk)})
    assert response.status_code == 400
    assert "dataset" in error(response)["fields"]
