"""From results and policy to findings: every bounded measurement of an audit is judged once, corrected for all that was tested."""

import hashlib
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from django.db import transaction
from django.utils import timezone

from audits.methods.contract import Bound, Control, Measurement, Result
from audits.methods.stats import benjamini_hochberg
from audits.methods.verdict import judge
from audits.models import Audit, Event, Finding, Run
from audits.policies import bounds_of


def identity(method: str, measurement: str, subject: str) -> str:
    """Stable name of a finding across audits."""
    return hashlib.sha256("\n".join((method, measurement, subject)).encode()).hexdigest()


class Candidate(NamedTuple):
    """A measurement that the policy draws a line for."""

    run: Run
    measurement: Measurement
    bound: Bound
    controls: tuple[Control, ...]


def evaluate_when_done(audit_id: Any) -> bool:
    """Draws the findings when every run has ended. Call inside the transaction that ended a run.

    The lock on the audit's row lets two runs that end at once take turns, so that the later one sees both.
    """
    audit = Audit.objects.select_for_update().get(pk=audit_id)
    if not audit.is_final:
        return False
    evaluate(audit)
    return True


@transaction.atomic
def evaluate(audit: Audit) -> list[Finding]:
    """Judges all results of the audit under its policy. Doing it again changes verdicts, never people's decisions."""
    found = list(_candidates(audit))
    adjusted = _adjusted([one.measurement.p_value for one in found])
    findings = []
    for one, p_adjusted in zip(found, adjusted, strict=True):
        judgement = judge(one.measurement, one.bound, one.controls, p_adjusted)
        finding, _ = Finding.objects.update_or_create(
            audit=audit,
            identity=identity(one.run.method, one.measurement.name, one.measurement.subject),
            defaults={
                "team_id": audit.team_id,
                "run": one.run,
                "method": one.run.method,
                "measurement": asdict(one.measurement),
                "bound": asdict(one.bound),
                "verdict": judgement.verdict.value,
                "because": judgement.because,
                "severity": Finding.Severity[one.bound.severity.upper()],
                "p_adjusted": p_adjusted,
            },
        )
        findings.append(finding)
    audit.evaluated_at = timezone.now()
    audit.save(update_fields=["evaluated_at"])
    Event.record("evaluated", audit, team=audit.team, actor=None, findings=len(findings))
    return findings


def _candidates(audit: Audit) -> list[Candidate]:
    found = []
    for run in audit.runs.select_related("result").filter(result__isnull=False):
        result = Result.from_json(run.result.data)
        for bound in bounds_of(audit.policy, run.method):
            found += [Candidate(run, m, bound, result.controls) for m in result.named(bound.measurement)]
    return found


def _adjusted(p_values: list[float | None]) -> list[float | None]:
    """Benjamini-Hochberg over those that have a p-value."""
    given = [i for i, p in enumerate(p_values) if p is not None]
    out: list[float | None] = [None] * len(p_values)
    if given:
        for i, p in zip(given, benjamini_hochberg(np.array([p_values[i] for i in given], float)), strict=True):
            out[i] = float(p)
    return out
