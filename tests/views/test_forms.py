"""Forms keep what was typed, put the error beside its field, and offer what can run."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from audits.forms import column_roles
from audits.models import Artifact, Audit, Status
from tests.factories import column, make_artifact, make_dataset
from tests.views.conftest import METHOD, World

NEW = "/audits/new/"


@pytest.fixture
def alice(world: World, browser) -> Client:
    return browser(world.people.alice)


def sent(world: World, **more: object) -> dict[str, object]:
    """The form as alice's browser sends it."""
    return {
        "title": "Third quarter",
        "dataset": str(world.dataset.pk),
        "roles_of": str(world.dataset.pk),
        "role-y_pred": "predicted",
        "role-y_true": "income",
        "role-sensitive_features": ["sex"],
        "positive_label": ">50K",
        "missing": "drop",
        "offered": [METHOD],
        "methods": [METHOD],
        f"set-{METHOD}-max_depth": "2",
        f"set-{METHOD}-replicates": "400",
        f"set-{METHOD}-permutations": "300",
        f"set-{METHOD}-level": "0.9",
        f"set-{METHOD}-smallest_group": "30",
    } | more


def test_roles_start_as_inspection_suggests(alice: Client, world: World) -> None:
    form = alice.get(f"{NEW}?dataset={world.dataset.pk}").context["form"]
    assert form.roles() == {
        "y_true": "income",
        "y_pred": "predicted",
        "y_score": "score",
        "sensitive_features": ["sex"],
        "features": ["age"],
    }
    assert form.outcomes() == ["<=50K", ">50K"]


def test_methods_that_can_run_are_ticked_and_others_say_what_they_lack(alice: Client, world: World) -> None:
    page = alice.get(f"{NEW}?dataset={world.dataset.pk}")
    choices = {one.entry.key: one for family in page.context["families"] for one in family.choices}
    assert choices[METHOD].ticked
    assert not choices[METHOD].missing
    lacking = [one for one in choices.values() if one.missing]
    assert lacking
    assert not any(one.ticked for one in lacking)
    for one in lacking:
        for wanted, how in one.missing:
            assert f"Lacks <strong>{wanted.title}</strong>: {how}." in page.content.decode().replace("&quot;", '"')


def test_every_role_of_the_vocabulary_has_a_field(alice: Client, world: World) -> None:
    page = alice.get(f"{NEW}?dataset={world.dataset.pk}")
    shown = {field.name for group in page.context["form"].role_groups() for field in group.fields}
    assert shown == {f"role-{role.name}" for role in column_roles()}


def test_a_good_form_starts_the_audit(alice: Client, world: World) -> None:
    answer = alice.post(NEW, sent(world))
    audit = Audit.objects.get(title="Third quarter")
    assert answer.url == reverse("audit", args=[audit.pk])
    assert audit.roles == {"y_pred": "predicted", "y_true": "income", "sensitive_features": ["sex"]}
    assert (audit.missing, audit.positive_label) == ("drop", ">50K")
    run = audit.runs.get()
    assert (run.method, run.settings["level"], run.settings["replicates"]) == (METHOD, 0.9, 400)


def test_an_error_stands_beside_its_field_and_nothing_is_lost(alice: Client, world: World) -> None:
    before = Audit.objects.count()
    answer = alice.post(NEW, sent(world, **{f"set-{METHOD}-level": "7", f"set-{METHOD}-replicates": "many"}))
    assert answer.status_code == 422
    form, page = answer.context["form"], answer.content.decode()
    assert form.errors[f"set-{METHOD}-level"] == ["“level” must be between 0.5 and 0.999; found 7.0."]
    assert "needs a whole number" in form.errors[f"set-{METHOD}-replicates"][0]
    for typed in ('value="7"', 'value="many"', 'value="Third quarter"', 'value="&gt;50K"'):
        assert typed in page
    assert 'aria-invalid="true"' in page
    assert Audit.objects.count() == before


def test_refreshing_keeps_choices_and_starts_nothing(alice: Client, world: World) -> None:
    before = Audit.objects.count()
    data = sent(world, step="refresh", methods=[], **{"role-y_score": "score"})
    answer = alice.post(NEW, data)
    choices = {one.entry.key: one for family in answer.context["families"] for one in family.choices}
    assert answer.status_code == 200
    assert not choices[METHOD].ticked  # it was offered and left unticked
    newly = [key for key, one in choices.items() if not one.missing and key != METHOD]
    assert all(choices[key].ticked for key in newly)
    assert 'value="0.9"' in answer.content.decode()
    assert Audit.objects.count() == before


def test_another_data_set_brings_its_own_suggestions(alice: Client, world: World) -> None:
    other = make_dataset(world.people.team, world.people.alice, columns=["a", "b"])
    answer = alice.post(NEW, sent(world, dataset=str(other.pk), step="refresh"))
    assert answer.context["form"].roles() == {}
    assert 'value="0.9"' in answer.content.decode()


def test_choosing_a_model_brings_the_columns_that_it_reads(alice: Client, world: World) -> None:
    report = world.model.inspection.report | {"inputs": [{"name": "age", "type": "number"}, {"name": "score"}]}
    type(world.model.inspection).objects.filter(pk=world.model.pk).update(report=report)
    columns = [column("age"), column("score"), column("income", "y_true")]
    plain = make_dataset(world.people.team, world.people.alice, columns=columns)
    data = {"dataset": str(plain.pk), "roles_of": str(plain.pk), "step": "refresh", "model": str(world.model.pk)}
    assert alice.post(NEW, data | {"inputs_of": ""}).context["form"].roles()["features"] == ["age", "score"]
    kept = data | {"inputs_of": "", "role-features": ["income"]}
    assert alice.post(NEW, kept).context["form"].roles()["features"] == ["income"]
    emptied = data | {"inputs_of": str(world.model.pk)}
    assert "features" not in alice.post(NEW, emptied).context["form"].roles()


def test_no_method_chosen_is_said(alice: Client, world: World) -> None:
    answer = alice.post(NEW, sent(world, methods=[]))
    assert answer.status_code == 422
    assert "Choose at least one audit method." in answer.content.decode()


def test_foreign_data_cannot_be_chosen(alice: Client, world: World) -> None:
    foreign = make_dataset(world.people.other_team, world.people.mallory, name="Secret list")
    page = alice.get(f"{NEW}?dataset={foreign.pk}")
    assert page.status_code == 200
    assert "Secret list" not in page.content.decode()
    assert alice.post(NEW, sent(world, dataset=str(foreign.pk))).status_code == 422


def test_without_data_the_page_says_what_comes_first(browser, people) -> None:
    page = browser(people.alice).get(NEW).content.decode()
    assert "There is no data set to audit." in page
    assert reverse("artifact-upload") in page


def test_an_upload_is_received_and_shown(alice: Client) -> None:
    file = SimpleUploadedFile("people.csv", b"sex,label\nf,1\n")
    answer = alice.post(reverse("artifact-upload"), {"kind": "dataset", "name": "People", "file": file})
    artifact = Artifact.objects.get(name="People")
    assert answer.url == reverse("artifact", args=[artifact.pk])
    page = alice.get(answer.url).content.decode()
    assert "Waiting for a worker to read the file" in page
    assert artifact.sha256 in page


def test_a_model_of_bare_weights_takes_its_network(alice: Client) -> None:
    data = {"kind": "model", "name": "Net", "architecture": "mlp", "class_names": "no, yes"}
    options = {"mlp-inputs": "4", "mlp-hidden": "8, 8", "mlp-classes": "2"}

    def post(**more: str) -> object:
        file = SimpleUploadedFile("net.safetensors", b"weights")
        return alice.post(reverse("artifact-upload"), data | options | {"file": file} | more)

    answer = post(**{"mlp-hidden": "eight"})
    assert answer.status_code == 422
    assert "Whole numbers only" in answer.content.decode()
    assert 'value="eight"' in answer.content.decode()
    assert post().status_code == 302
    artifact = Artifact.objects.get(name="Net")
    assert artifact.options == {
        "architecture": "mlp",
        "options": {"inputs": 4, "hidden": [8, 8], "classes": 2},
        "class_names": ["no", "yes"],
    }


@pytest.mark.parametrize(("content", "said"), [(b"", "is empty (0 bytes)"), (None, "Choose a file.")])
def test_an_upload_without_bytes_is_refused_in_words(alice: Client, content: bytes | None, said: str) -> None:
    data: dict[str, object] = {"kind": "dataset", "name": "Kept name"}
    if content is not None:
        data["file"] = SimpleUploadedFile("a.csv", content)
    answer = alice.post(reverse("artifact-upload"), data)
    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert 'value="Kept name"' in answer.content.decode()


def test_an_upload_that_is_too_large_gets_a_sentence(alice: Client, settings) -> None:
    settings.UPLOAD_LIMIT_MB = 1
    before = Artifact.objects.count()
    file = SimpleUploadedFile("big.csv", b"x" * (3 << 20))
    answer = alice.post(reverse("artifact-upload"), {"kind": "dataset", "file": file})
    assert answer.status_code == 413
    assert "larger than 1 MB" in answer.content.decode()
    assert Artifact.objects.count() == before


def test_a_file_that_could_not_be_read_says_why_and_can_be_read_again(alice: Client, world: World, browser) -> None:
    people = world.people
    broken = make_artifact(people.team, people.alice, status=Status.FAILED, reason="The file ends in line 3.")
    url, again = reverse("artifact", args=[broken.pk]), reverse("artifact-read-again", args=[broken.pk])
    assert "The file ends in line 3." in alice.get(url).content.decode()
    assert again not in browser(people.vera).get(url).content.decode()
    assert alice.post(again).url == url
    broken.inspection.refresh_from_db()
    assert broken.inspection.status == Status.QUEUED


def test_reading_is_followed_until_it_ends(alice: Client, world: World) -> None:
    people = world.people
    waiting = make_artifact(people.team, people.alice, status=Status.QUEUED)
    url = reverse("artifact-status", args=[waiting.pk])
    assert "hx-get" in alice.get(url, headers={"HX-Request": "true"}).content.decode()
    done = reverse("artifact-status", args=[world.dataset.pk])
    assert alice.get(done, headers={"HX-Request": "true"}).headers["HX-Refresh"] == "true"
    assert alice.get(done).status_code == 302
