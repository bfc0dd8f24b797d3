"""From results and policy to findings."""

import pytest

from audits.evaluation import evaluate, identity
from audits.methods.contract import Control, Measurement, Result
from audits.models import Audit, Finding
from audits.services import reviews
from tests.factories import cast, make_audit, make_dataset, make_result

pytestmark = pytest.mark.django_db

GAP = "demographic_parity_difference"


def gap(subject: str, low: float, high: float, p_value: float) -> Measurement:
    return Measurement(GAP, (low + high) / 2, subject, low=low, high=high, level=0.95, worse="higher", p_value=p_value)


def audit_with(*measurements: Measurement, controls: tuple[Control, ...] = ()) -> Audit:
    people = cast()
    dataset = make_dataset(people.team, people.alice, columns=["label", "sex"])
    audit = make_audit(people.team, people.alice, dataset=dataset, methods=["fairness.group_metrics"])
    audit.policy = {"bounds": {"fairness.group_metrics": [bound()]}}
    audit.save()
    make_result(audit.runs.get(), Result(measurements, controls))
    return audit


def bound() -> dict[str, object]:
    return {"measurement": GAP, "limit": 0.1, "severity": "high", "why": "house", "rule": "interval"}


def verdicts(audit: Audit) -> dict[str, str]:
    return {f.measurement["subject"]: f.verdict for f in Finding.objects.filter(audit=audit)}


def test_beyond_inside_and_astride_the_bound() -> None:
    audit = audit_with(gap("a", 0.2, 0.3, 0.001), gap("b", 0.0, 0.05, 0.5), gap("c", 0.05, 0.2, 0.01))
    evaluate(audit)
    assert verdicts(audit) == {"a": "exceeds", "b": "within", "c": "cannot tell"}


def test_p_values_are_corrected_for_all_that_the_audit_tested() -> None:
    # Twenty tests, one with p = 0.04: adjusted 20 x 0.04 / 1 = 0.8 > 0.05, although the interval lies beyond the bound.
    others = [gap(str(i), 0.0, 0.05, 0.9) for i in range(19)]
    audit = audit_with(gap("x", 0.2, 0.3, 0.04), *others)
    evaluate(audit)
    assert verdicts(audit)["x"] == "cannot tell"
    assert Finding.objects.get(audit=audit, measurement__subject="x").p_adjusted == pytest.approx(0.8)


def test_alarms_where_nothing_is_wrong_take_the_verdict_away() -> None:
    alarms = Control("shuffled groups", "negative", "Groups were shuffled.", False, 100, 40)
    audit = audit_with(gap("a", 0.2, 0.3, 0.001), controls=(alarms,))
    evaluate(audit)
    assert verdicts(audit) == {"a": "cannot tell"}


def test_a_missed_plant_takes_away_within_but_not_a_finding() -> None:
    missed = Control("planted gap", "positive", "A gap of 0.2 was planted.", False, 1)
    audit = audit_with(gap("a", 0.2, 0.3, 0.001), gap("b", 0.0, 0.05, 0.5), controls=(missed,))
    evaluate(audit)
    assert verdicts(audit) == {"a": "exceeds", "b": "cannot tell"}


def test_judging_again_keeps_peoples_decisions() -> None:
    audit = audit_with(gap("a", 0.2, 0.3, 0.001))
    evaluate(audit)
    finding = Finding.objects.get(audit=audit)
    reviews.decide(actor=audit.requested_by, finding=finding, state="confirmed")
    audit.policy["bounds"]["fairness.group_metrics"][0]["limit"] = 0.5
    evaluate(audit)
    finding.refresh_from_db()
    assert (finding.verdict, finding.state) == ("within", "confirmed")


def test_identity_is_of_method_measurement_and_subject() -> None:
    names = {identity("m", "a", "b"), identity("m", "a", "c"), identity("m", "b", "b"), identity("n", "a", "b")}
    assert len(names) == 4
    assert identity("m", "a", "b") == identity("m", "a", "b")
