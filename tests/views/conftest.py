"""What tests of pages share: the cast, their browsers, and a world with one of each thing."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from django.test import Client

from audits.models import Artifact, Audit, Finding, Run
from tests.factories import (
    Cast,
    cast,
    column,
    example_bound,
    example_result,
    make_audit,
    make_dataset,
    make_finding,
    make_model,
    make_result,
)

METHOD = "fairness.group_metrics"


@pytest.fixture
def people(db: None) -> Cast:
    """alice, bob, vera, mallory and their teams."""
    return cast()


@pytest.fixture
def browser() -> Callable[..., Client]:
    """A signed-in client for a user; one of nobody without."""

    def of(user: object = None) -> Client:
        client = Client()
        if user is not None:
            client.force_login(user)
        return client

    return of


@dataclass
class World:
    """One of each thing, all of alice's team."""

    people: Cast
    dataset: Artifact
    model: Artifact
    running: Audit
    done: Audit
    run: Run
    finding: Finding


@pytest.fixture
def world(people: Cast) -> World:
    """A data set, a model, a running audit, and an evaluated one with its finding."""
    columns = [
        column("income", "y_true", examples=["<=50K", ">50K"]),
        column("predicted", "y_pred"),
        column("score", "y_score"),
        column("sex", "sensitive_features"),
        column("age", "features"),
    ]
    dataset = make_dataset(people.team, people.alice, columns=columns, name="Adult")
    model = make_model(people.team, people.alice, name="Logistic")
    running = make_audit(people.team, people.alice, dataset=dataset, methods=[METHOD], title="Still running")
    bounds = {METHOD: [example_bound()]}
    done = make_audit(
        people.team,
        people.alice,
        dataset=dataset,
        model=model,
        methods=[METHOD],
        title="Second quarter",
        bounds=bounds,
        roles={"y_true": "income", "sensitive_features": ["sex"]},
    )
    run = done.runs.get()
    Run.objects.filter(pk=run.pk).update(method_version="0")  # its example has no arrays, so no figures are drawn
    run.refresh_from_db()
    make_result(run, example_result())
    return World(people, dataset, model, running, done, run, make_finding(done))
