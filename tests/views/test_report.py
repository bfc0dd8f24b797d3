"""The report of a stored result: values, intervals, verdicts, controls, ledger, figures, and what was not tested."""

import numpy as np
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from audits.methods.catalogue import catalogue
from audits.models import Run
from audits.reports import audit_report, gauge, with_tallies
from tests.factories import make_audit, make_finding, make_result
from tests.views.conftest import METHOD, World


def report_of(world: World, browser, audit=None) -> str:
    return browser(world.people.vera).get(reverse("audit", args=[(audit or world.done).pk])).content.decode()


def test_a_report_shows_value_interval_verdict_and_bound(world: World, browser) -> None:
    page = report_of(world, browser)
    assert "0.213" in page
    assert "0.181 to 0.246" in page
    assert "at most 0.1" in page
    assert "The whole interval lies above 0.1." in page
    assert "1 of 2 checks exceeds its bound. 1 cannot tell." in page


def test_a_report_shows_why_something_is_undefined(world: World, browser) -> None:
    assert "no positives in group B" in report_of(world, browser)


def test_a_report_shows_controls_ledger_notes_and_hash(world: World, browser) -> None:
    page = report_of(world, browser)
    assert "3 of 100 shuffles exceed it." in page
    assert "Dropped: missing label" in page
    assert "988" in page
    assert "Group B was too small to test." in page
    assert world.run.result.sha256 in page
    assert world.dataset.sha256 in page


def test_a_report_never_says_safe_or_fair(world: World, browser) -> None:
    page = report_of(world, browser).lower()
    for word in ("is safe", "is fair", "unbiased", "is private"):
        assert word not in page


def test_a_run_that_failed_says_why_and_can_be_repeated_by_those_who_may(world: World, browser) -> None:
    audit = make_audit(world.people.team, world.people.alice, dataset=world.dataset, methods=[METHOD])
    audit.runs.update(status="failed", reason="Group “B” has 0 positives.", finished_at=timezone.now())
    retry = reverse("run-retry", args=[audit.runs.get().pk])
    page = report_of(world, browser, audit)
    assert "Group “B” has 0 positives." in page
    assert "Nothing was judged" in page
    assert retry not in page
    alice = browser(world.people.alice)
    assert retry in alice.get(reverse("audit", args=[audit.pk])).content.decode()
    assert alice.post(retry).status_code == 302
    assert audit.runs.get().status == "queued"


def test_methods_that_could_not_run_are_named_with_what_they_lack(world: World) -> None:
    lacking = {one.entry.key: one.missing for one in audit_report(world.done).not_applicable}
    assert lacking.keys().isdisjoint({METHOD})
    assert all(lacking.values())


def test_a_real_result_comes_with_its_figures(world: World, browser) -> None:
    method = catalogue()[METHOD].method
    result = method.audit(**method.example(np.random.default_rng(1)), rng=np.random.default_rng(2))
    audit = make_audit(world.people.team, world.people.alice, dataset=world.dataset, methods=[METHOD])
    make_finding(audit, result)
    page = report_of(world, browser, audit)
    drawn = method.figures(result)
    assert page.count('class="plot"') == sum(bool(figure.traces) for figure in drawn)
    assert page.count('role="img"') == page.count("data-figure=")
    assert 'id="plotly.js-style-global"' in page
    finding = audit.findings.first()
    assert "data-figure" in browser(world.people.vera).get(reverse("finding", args=[finding.pk])).content.decode()


def test_a_report_without_its_arrays_still_shows_its_numbers(world: World, browser) -> None:
    method = catalogue()[METHOD].method
    result = method.audit(**method.example(np.random.default_rng(1)), rng=np.random.default_rng(2))
    audit = make_audit(world.people.team, world.people.alice, dataset=world.dataset, methods=[METHOD])
    stored = make_result(audit.runs.get(), result)
    default_storage.delete(stored.arrays.name)
    page = report_of(world, browser, audit)
    assert "cannot be read" in page
    assert "Demographic parity difference" in page


def test_arrays_are_never_unpickled(world: World, browser) -> None:
    """An object array in the store is damage or an attack; reading it must not run it."""
    method = catalogue()[METHOD].method
    result = method.audit(**method.example(np.random.default_rng(1)), rng=np.random.default_rng(2))
    audit = make_audit(world.people.team, world.people.alice, dataset=world.dataset, methods=[METHOD])
    stored = make_result(audit.runs.get(), result)
    path = default_storage.path(stored.arrays.name)
    default_storage.delete(stored.arrays.name)
    np.savez(path, **dict.fromkeys(result.arrays, np.array([object()], dtype=object)))
    assert "cannot be read" in report_of(world, browser, audit)


def test_a_running_audit_is_followed_and_then_shown(world: World, browser) -> None:
    client = browser(world.people.vera)
    url = reverse("audit-progress", args=[world.running.pk])
    page = client.get(reverse("audit", args=[world.running.pk])).content.decode()
    assert f'hx-get="{url}"' in page
    assert "Waiting for a worker." in page
    part = client.get(url, headers={"HX-Request": "true"})
    assert "<html" not in part.content.decode()
    assert client.get(url).url == reverse("audit", args=[world.running.pk])
    done = client.get(reverse("audit-progress", args=[world.done.pk]), headers={"HX-Request": "true"})
    assert done.headers["HX-Refresh"] == "true"


def test_cancelling_stops_what_waits(world: World, browser) -> None:
    client = browser(world.people.alice)
    answer = client.post(reverse("run-cancel", args=[world.running.runs.get().pk]))
    assert answer.url == reverse("audit", args=[world.running.pk])
    assert world.running.runs.get().status == "cancelled"


def test_a_report_takes_the_same_number_of_queries_for_many_findings(world: World, browser) -> None:
    client = browser(world.people.vera)
    url = reverse("audit", args=[world.done.pk])
    client.get(url)
    with CaptureQueriesContext(connection) as few:
        client.get(url)
    finding = world.done.findings.first()
    for i in range(30):
        finding.pk, finding.identity = None, f"{i:064d}"
        finding.save(force_insert=True)
    with CaptureQueriesContext(connection) as many:
        client.get(url)
    assert len(many) == len(few) <= 14


def test_lists_count_verdicts_and_runs_once_each(world: World) -> None:
    audit = with_tallies(type(world.done).objects.filter(pk=world.done.pk)).get()
    assert (audit.n_runs, audit.n_ended, audit.n_exceeds, audit.n_cannot_tell) == (1, 1, 1, 1)


def test_the_filter_of_findings_is_in_the_address(world: World, browser) -> None:
    client = browser(world.people.vera)

    def shown(query: str) -> int:
        return client.get(f"{reverse('findings')}?{query}").context["page"].paginator.count

    everything = world.done.findings.count()
    assert shown("") == everything
    assert shown("verdict=exceeds") == 1
    assert shown("family=privacy") == 0
    assert shown(f"audit={world.done.pk}&state=open") == everything
    assert shown("state=accepted") == 0
    assert shown("severity=3") == everything
    assert shown("severity=nonsense&page=99") == everything


def test_a_comment_is_markdown_without_html(world: World, browser) -> None:
    client = browser(world.people.bob)
    url = reverse("finding-comment", args=[world.finding.pk])
    text = "**look** [here](https://example.org) <b>raw</b> [bad](javascript:alert(1)) ![i](https://x.org/i.png)"
    assert client.post(url, {"text": text}).status_code == 302
    page = client.get(reverse("finding", args=[world.finding.pk])).content.decode()
    assert "<strong>look</strong>" in page
    assert '<a href="https://example.org" rel="nofollow noopener noreferrer">here</a>' in page
    assert "&lt;b&gt;raw" in page
    assert 'href="javascript' not in page
    assert "<img" not in page


def test_a_decision_without_its_reason_keeps_what_was_typed(world: World, browser) -> None:
    client = browser(world.people.bob)
    url = reverse("finding-decide", args=[world.finding.pk])
    answer = client.post(url, {"state": "accepted", "reason": "until the new data", "expires_on": "2020-01-01"})
    assert answer.status_code == 422
    page = answer.content.decode()
    assert "needs a date in the future" in page
    assert "until the new data</textarea>" in page
    assert 'value="2020-01-01"' in page
    assert client.post(url, {"state": "false_positive", "reason": "a test record"}).status_code == 302
    world.finding.refresh_from_db()
    assert world.finding.state == "false_positive"
    assert "a test record" in client.get(reverse("finding", args=[world.finding.pk])).content.decode()


def test_a_gauge_places_interval_and_bound_in_order() -> None:
    measurement = {"value": 0.5, "low": 0.4, "high": 0.6, "ideal": 0.0}
    drawn = gauge(measurement, {"limit": 0.1, "rule": "interval"})
    assert drawn.ideal < drawn.limit < drawn.low < drawn.value < drawn.high
    assert gauge(measurement | {"value": None}, {"limit": 0.1, "rule": "interval"}) is None
    opened = gauge(measurement | {"high": None}, {"limit": 0.05, "rule": "test"})
    assert (opened.high, opened.high_open, opened.limit) == (100.0, True, None)


def test_the_page_names_the_style_elements_that_plotly_looks_for() -> None:
    """Else plotly writes style elements of its own, which the Content-Security-Policy refuses."""
    from importlib.util import find_spec
    from pathlib import Path

    from django.template.loader import render_to_string

    script = Path(find_spec("plotly").origin).parent / "package_data" / "plotly.min.js"
    head = render_to_string("_plot_head.html")
    code = script.read_text()
    assert ".no-inline-styles" in code
    for marker in ('id="plotly.js-style-global"', 'class="no-inline-styles"'):
        assert marker in head
    maps = head.split('name="plotly-maps"')[1].split('id="')[1].split('"')[0]
    assert f'getElementById("{maps}")' in code


def test_stored_arrays_that_are_no_archive_are_reported(world: World, browser) -> None:
    method = catalogue()[METHOD].method
    result = method.audit(**method.example(np.random.default_rng(1)), rng=np.random.default_rng(2))
    audit = make_audit(world.people.team, world.people.alice, dataset=world.dataset, methods=[METHOD])
    stored = make_result(audit.runs.get(), result)
    default_storage.delete(stored.arrays.name)
    default_storage.save(stored.arrays.name, ContentFile(b"no archive at all"))
    assert Run.objects.get(pk=stored.pk).result.arrays.name == stored.arrays.name
    assert "cannot be read" in report_of(world, browser, audit)
