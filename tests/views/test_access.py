"""Who may see and do what: every page meets all of the cast, and nobody."""

import pytest
from django.test import Client
from django.urls import reverse

from audits.models import ApiToken, Audit, Comment, Decision, Role, Run
from audits.services.teams import issue_token
from tests.factories import PASSWORD, join, make_finding, make_team
from tests.views.conftest import METHOD, World

LISTS = ("dashboard", "artifacts", "audits", "findings", "methods", "tokens", "events")


def things(world: World) -> dict[str, str]:
    """Addresses of alice's things by the name of their page."""
    return {
        "artifact": reverse("artifact", args=[world.dataset.pk]),
        "audit": reverse("audit", args=[world.done.pk]),
        "running audit": reverse("audit", args=[world.running.pk]),
        "finding": reverse("finding", args=[world.finding.pk]),
    }


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("who", ["alice", "bob", "vera", "mallory"])
def test_every_member_sees_every_list(world: World, browser, name: str, who: str) -> None:
    answer = browser(getattr(world.people, who)).get(reverse(name))
    assert answer.status_code == 200
    assert answer.content.count(b"<h1") == 1


@pytest.mark.parametrize("name", ["dashboard", "artifacts", "audits", "findings", "events"])
def test_mallory_sees_nothing_of_alices_in_the_lists(world: World, browser, name: str) -> None:
    page = browser(world.people.mallory).get(reverse(name)).content.decode()
    for title in ("Adult", "Logistic", "Second quarter", "Still running"):
        assert title not in page


@pytest.mark.parametrize("who", ["alice", "bob", "vera"])
def test_members_see_the_teams_things(world: World, browser, who: str) -> None:
    client = browser(getattr(world.people, who))
    assert {name: client.get(url).status_code for name, url in things(world).items()} == dict.fromkeys(
        things(world), 200
    )


def test_foreign_things_do_not_exist_for_mallory(world: World, browser) -> None:
    client = browser(world.people.mallory)
    for url in things(world).values():
        assert client.get(url).status_code == 404
    posts = [
        reverse("audit-cancel", args=[world.running.pk]),
        reverse("run-cancel", args=[world.running.runs.get().pk]),
        reverse("run-retry", args=[world.run.pk]),
        reverse("finding-comment", args=[world.finding.pk]),
        reverse("finding-decide", args=[world.finding.pk]),
        reverse("artifact-read-again", args=[world.dataset.pk]),
    ]
    for url in posts:
        assert client.post(url, {"text": "x", "state": "confirmed"}).status_code == 404
    assert not Comment.objects.exists()


def test_unknown_things_do_not_exist(world: World, browser) -> None:
    client = browser(world.people.alice)
    nobody = "00000000-0000-4000-8000-000000000000"
    for name in ("artifact", "audit", "finding", "artifact-status", "audit-progress"):
        assert client.get(reverse(name, args=[nobody])).status_code == 404
    assert client.get(reverse("method", args=["fairness.nothing"])).status_code == 404


@pytest.mark.parametrize("name", [*LISTS, "artifact-upload", "audit-new"])
def test_nobody_is_sent_to_sign_in(db: None, name: str) -> None:
    answer = Client().get(reverse(name))
    assert answer.status_code == 302
    assert answer.url.startswith(reverse("sign-in"))


def test_health_needs_no_account(db: None) -> None:
    answer = Client().get(reverse("health"))
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_signing_in_with_a_wrong_password_keeps_the_name(world: World) -> None:
    world.people.alice.set_password(PASSWORD)
    world.people.alice.save()
    answer = Client().post(reverse("sign-in"), {"username": "alice", "password": "wrong"})
    assert 'value="alice"' in answer.content.decode()
    answer = Client().post(reverse("sign-in"), {"username": "alice", "password": PASSWORD})
    assert answer.url == reverse("dashboard")


def test_a_viewer_sees_no_forms_and_may_not_post(world: World, browser) -> None:
    client = browser(world.people.vera)
    page = client.get(reverse("finding", args=[world.finding.pk])).content.decode()
    assert reverse("finding-decide", args=[world.finding.pk]) not in page
    assert reverse("finding-comment", args=[world.finding.pk]) not in page
    assert reverse("audit-new") not in client.get(reverse("dashboard")).content.decode()
    answer = client.post(reverse("finding-decide", args=[world.finding.pk]), {"state": "confirmed"})
    assert answer.status_code == 403
    assert "needs the role reviewer" in answer.content.decode()
    for name in ("artifact-upload", "audit-new"):
        assert client.get(reverse(name)).status_code == 403
    assert client.post(reverse("audit-cancel", args=[world.running.pk])).status_code == 403
    assert not Decision.objects.exists()


def test_a_reviewer_may_review_and_not_start_audits(world: World, browser) -> None:
    client = browser(world.people.bob)
    page = client.get(reverse("finding", args=[world.finding.pk])).content.decode()
    assert reverse("finding-decide", args=[world.finding.pk]) in page
    assert client.get(reverse("audit-new")).status_code == 403


def test_reading_changes_nothing(world: World, browser) -> None:
    client = browser(world.people.alice)
    for name, thing in (
        ("audit-cancel", world.running),
        ("run-cancel", world.running.runs.get()),
        ("run-retry", world.run),
        ("finding-decide", world.finding),
        ("finding-comment", world.finding),
        ("artifact-read-again", world.dataset),
    ):
        assert client.get(reverse(name, args=[thing.pk])).status_code == 405
    assert client.get(reverse("team-switch")).status_code == 405
    assert Run.objects.get(pk=world.running.runs.get().pk).status == "queued"


def test_the_rights_on_a_page_are_those_in_its_team(world: World, browser) -> None:
    """mallory owns another team and only looks on in alice's."""
    join(world.people.mallory, world.people.team, Role.VIEWER)
    client = browser(world.people.mallory)
    client.post(reverse("team-switch"), {"team": world.people.other_team.pk})
    page = client.get(reverse("finding", args=[world.finding.pk])).content.decode()
    assert reverse("finding-decide", args=[world.finding.pk]) not in page


def test_switching_the_team_changes_what_lists_show(world: World, browser) -> None:
    join(world.people.mallory, world.people.team, Role.VIEWER)
    client = browser(world.people.mallory)
    client.post(reverse("team-switch"), {"team": world.people.team.pk})
    assert "Second quarter" in client.get(reverse("audits")).content.decode()
    client.post(reverse("team-switch"), {"team": world.people.other_team.pk})
    assert "Second quarter" not in client.get(reverse("audits")).content.decode()
    assert client.post(reverse("team-switch"), {"team": make_team("Strangers").pk}).status_code == 404
    assert client.post(reverse("team-switch"), {"team": "nonsense"}).status_code == 404


def test_a_token_is_shown_once_and_can_be_revoked_by_its_owner_alone(world: World, browser) -> None:
    alice = browser(world.people.alice)
    answer = alice.post(reverse("tokens"), {"name": "pipeline", "scopes": ["read"], "days": 30})
    token = ApiToken.objects.get()
    secret = answer.context["secret"]
    assert secret in answer.content.decode()
    assert "no-store" in answer.headers["Cache-Control"]
    assert ApiToken.objects.for_secret(secret) == token
    assert secret not in alice.get(reverse("tokens")).content.decode()
    assert browser(world.people.bob).post(reverse("token-revoke", args=[token.pk])).status_code == 404
    assert alice.post(reverse("token-revoke", args=[token.pk])).status_code == 302
    assert not ApiToken.objects.exists()


def test_a_token_form_with_errors_keeps_what_was_typed(world: World, browser) -> None:
    answer = browser(world.people.alice).post(reverse("tokens"), {"name": "pipeline", "days": 9999})
    assert answer.status_code == 422
    page = answer.content.decode()
    assert 'value="pipeline"' in page
    assert 'value="9999"' in page
    assert "Choose at least one." in page
    assert not ApiToken.objects.exists()


def test_names_are_never_markup(world: World, browser) -> None:
    """Whatever a person can name, on every page that shows it."""
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    people = world.people
    for thing in (world.dataset, world.model):
        thing.name = thing.filename = hostile
        thing.inspection.report["warnings"] = [hostile]
        thing.inspection.report["columns"] = [{"name": hostile, "type": hostile, "examples": [hostile]}]
        thing.inspection.save()
        thing.save()
    people.team.name = hostile[:100]
    people.team.save()
    people.alice.first_name = hostile
    people.alice.save()
    Audit.objects.update(title=hostile, positive_label=hostile)
    Run.objects.filter(audit=world.running).update(progress_words=hostile, reason=hostile)
    for finding in world.done.findings.all():
        finding.measurement["subject"] = hostile
        finding.because = hostile
        finding.save()
    issue_token(actor=people.alice, team=people.team, name=hostile, scopes=["read"])
    client = browser(people.alice)
    client.post(reverse("finding-comment", args=[world.finding.pk]), {"text": hostile})
    client.post(reverse("finding-decide", args=[world.finding.pk]), {"state": "confirmed", "reason": hostile})
    urls = [reverse(name) for name in (*LISTS, "artifact-upload", "audit-new")] + list(things(world).values())
    urls += [f"{reverse('audit-new')}?dataset={world.dataset.pk}", f"{reverse('findings')}?family={hostile}"]
    for url in urls:
        page = client.get(url).content.decode()
        assert "<script>alert" not in page, url
        assert "<img src=x" not in page, url
        assert " style=" not in page, url
        assert "<style" not in page, url


def test_a_method_that_left_the_catalogue_does_not_break_its_reports(world: World, browser) -> None:
    for rows in (world.done.findings, world.done.runs):
        rows.update(method="fairness.forgotten")
    client = browser(world.people.alice)
    for url in things(world).values():
        assert client.get(url).status_code == 200
    assert "fairness.forgotten" in client.get(reverse("findings")).content.decode()


def test_every_method_has_its_page(world: World, browser) -> None:
    page = browser(world.people.vera).get(reverse("method", args=[METHOD])).content.decode()
    assert "Source" in page
    assert "Bounds of the house policy" in page


def test_a_new_finding_is_on_the_dashboard(world: World, browser) -> None:
    make_finding(world.done)
    page = browser(world.people.vera).get(reverse("dashboard")).content.decode()
    assert 'aria-label="1 high in Fairness"' in page
