"""The interactive page in a real browser, under the site's own Content-Security-Policy."""

from pathlib import Path

import pytest
from django.conf import settings
from playwright.sync_api import sync_playwright

from tests.api.callers import person
from tests.factories import cast
from tests.live import site

AUDITS_LIST = "#operations-audits-audits_list"


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_swagger_lists_and_calls_operations_and_the_policy_refuses_nothing(
    chromium: str, static_files: None, tmp_path: Path
) -> None:
    session = person(cast().alice).client.cookies[settings.SESSION_COOKIE_NAME].value
    complaints: list[str] = []
    with site(tmp_path) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context()
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": address}])
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{address}/api/v1/docs/")
        page.wait_for_selector(".opblock")
        operations = page.locator(".opblock").count()
        page.locator(f"{AUDITS_LIST} .opblock-summary-control").click()
        page.locator(f"{AUDITS_LIST} .try-out__btn").click()
        page.locator(f"{AUDITS_LIST} .execute").click()
        status = page.locator(f"{AUDITS_LIST} .live-responses-table .response .response-col_status").inner_text()
        browser.close()
    assert operations > 20
    assert status.split()[0] == "200"
    assert complaints == []
