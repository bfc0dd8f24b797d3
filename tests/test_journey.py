"""The whole journey in a real browser, on real servers: sign in, upload, new audit, watch, report, comment, decide, REST."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from audits.samples.demo import FOLDER
from tests.factories import PASSWORD, cast
from tests.live import site, worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.browser]

CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture
def people(transactional_db: None) -> Any:
    people = cast()
    for user in (people.alice, people.vera):
        user.set_password(PASSWORD)
        user.save()
    return people


@pytest.fixture
def address(people: Any, static_files: None, tmp_path: Path) -> Iterator[str]:
    with site(tmp_path) as running, worker(tmp_path, "worker"):
        yield running


@pytest.fixture
def page(chromium: str, address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Playwright keeps an event loop in this thread
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        opened = browser.new_context(base_url=address, viewport={"width": 1440, "height": 900}).new_page()
        opened.set_default_timeout(20_000)
        yield opened
        browser.close()


def sign_in(page: Page, name: str) -> None:
    page.goto("/sign-in/")
    page.get_by_label("Name").or_(page.get_by_label("Username")).first.fill(name)
    page.get_by_label("Password").first.fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_from_sign_in_to_the_findings_over_rest(page: Page, address: str, people: Any) -> None:
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    sign_in(page, "alice")

    for kind, name in (("Data set", "adult_test.parquet"), ("Model", "adult_boosted.onnx")):
        page.goto("/artifacts/upload/")
        page.get_by_label(kind, exact=True).check()
        page.get_by_label("File", exact=True).set_input_files(FOLDER / name)
        page.get_by_role("button", name="Upload").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(name.split(".")[0])
        expect(page.locator("body")).to_contain_text("workclass", timeout=60_000)

    page.goto("/audits/new/")
    page.get_by_label("Data set", exact=True).select_option(label="adult_test")
    expect(page.locator("#methods")).to_be_visible()
    page.get_by_label("Model (optional)").select_option(label="adult_boosted")
    ticked = page.get_by_role("group", name="Model inputs").get_by_role("checkbox", checked=True)
    expect(ticked).to_have_count(11)  # the model's own input columns are found by their names
    page.get_by_label("Favourable outcome").fill(">50K")
    expect(page.get_by_role("group", name="Sensitive columns").get_by_label("sex (text)")).to_be_checked()
    expect(page.get_by_role("checkbox", name="Group metrics")).to_be_checked()
    expect(page.get_by_role("checkbox", name="Green-list text watermark")).to_be_disabled()
    page.get_by_role("button", name="Start the audit").click()

    expect(page.locator("body")).to_contain_text("Demographic parity difference: sex", timeout=90_000)
    page.locator("[data-figure]").first.scroll_into_view_if_needed()  # figures are drawn as they come into sight
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    page.get_by_text("Numbers of this figure").first.click()
    expect(page.locator("figure table").first).to_be_visible()

    page.get_by_role("link", name="Demographic parity difference: sex").first.click()
    finding = page.url.rstrip("/").rsplit("/", 1)[-1]
    page.get_by_role("textbox", name="Comment").fill("Known since **spring**. <script>alert(1)</script>")
    page.get_by_role("button", name="Comment").click()
    expect(page.locator("article strong", has_text="spring")).to_be_visible()
    page.get_by_label("Decision", exact=True).select_option("confirmed")
    page.get_by_role("button", name="Record the decision").click()
    expect(page.locator(".chips")).to_contain_text("Confirmed")

    page.goto("/tokens/")
    page.get_by_label("Name").fill("pipeline")
    page.get_by_role("button", name="Issue the token").click()
    secret = page.locator(".secret").inner_text()
    request = urllib.request.Request(
        f"{address}/api/v1/findings/{finding}/", headers={"Authorization": f"Bearer {secret.strip()}"}
    )
    with urllib.request.urlopen(request) as answer:
        told = json.load(answer)
    assert told["state"] == "confirmed"
    assert complaints == []


def test_a_viewer_reads_and_cannot_submit(page: Page) -> None:
    sign_in(page, "vera")
    page.goto("/artifacts/")
    expect(page.get_by_role("link", name="Upload")).to_have_count(0)
