"""From stored results to a report: a view model that pages, prints and exports read. Pure reading; nothing is measured here."""

import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zipfile import BadZipFile

import numpy as np
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from audits.methods.catalogue import FAMILIES, Entry, catalogue
from audits.methods.charts import Figure
from audits.methods.contract import INPUTS, Bound, Control, Kind, Measurement, Method, Result, Table
from audits.methods.verdict import Verdict
from audits.models import Artifact, Audit, Finding, Run, Status
from audits.models.work import FINAL

log = logging.getLogger(__name__)

FOLDED_ROWS = 20  # a table longer than this starts folded


# ------------------------------------------------------------------------------------------------------ parts of a report


@dataclass(frozen=True)
class Gauge:
    """An interval drawn on a line of 0 to 100: where the ends, the value and the bound stand. None: an open end, or none."""

    value: float
    low: float
    high: float
    low_open: bool
    high_open: bool
    limit: float | None
    ideal: float | None

    @property
    def width(self) -> float:
        """Length of the interval."""
        return self.high - self.low


@dataclass(frozen=True)
class Judged:
    """A finding as a report shows it."""

    finding: Finding
    measurement: Mapping[str, Any]
    gauge: Gauge | None
    controls: tuple[Control, ...] = ()

    @property
    def controls_passed(self) -> int:
        """How many of them passed."""
        return sum(control.passed for control in self.controls)

    @property
    def anchor(self) -> str:
        """Its place in the page."""
        return f"finding-{self.finding.pk}"


@dataclass(frozen=True)
class Drawn:
    """A figure with its place in the page; `data` goes to the script."""

    anchor: str
    figure: Figure
    data: dict[str, Any]

    @property
    def data_id(self) -> str:
        """The id of the element that holds its data."""
        return f"data-{self.anchor}"

    @property
    def plotted(self) -> bool:
        """Whether a script draws it; pictures need none."""
        return bool(self.figure.traces)


@dataclass(frozen=True)
class Listed:
    """A table of a result."""

    table: Table

    @property
    def folded(self) -> bool:
        """Whether it starts closed."""
        return len(self.table.rows) > FOLDED_ROWS


@dataclass(frozen=True)
class Dropped:
    """Records left out for one reason."""

    reason: str
    rows: int


@dataclass(frozen=True)
class Ledger:
    """What became of the rows. None: the result does not say."""

    rows: int | None
    dropped: tuple[Dropped, ...]
    used: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """A measurement of a run and the finding it led to, if the policy draws a line for it."""

    measurement: Measurement
    judged: Judged | None


@dataclass(frozen=True)
class RunReport:
    """One method's section."""

    run: Run
    entry: Entry | None
    result: Result | None
    measured: tuple[Measured, ...] = ()
    figures: tuple[Drawn, ...] = ()
    figures_missing: str = ""
    tables: tuple[Listed, ...] = ()
    ledger: Ledger | None = None
    seconds: float | None = None

    @property
    def title(self) -> str:
        """The method's name, or its key where the catalogue no longer has it."""
        return self.entry.method.title if self.entry else self.run.method

    @property
    def settings(self) -> dict[str, object]:
        """Settings for people. Without the method's card nobody can say which are secret, so none are shown."""
        return self.run.shown_settings if self.entry else {}

    @property
    def card(self) -> Method | None:
        """The method's card."""
        return self.entry.method if self.entry else None

    @property
    def family(self) -> str:
        """The family's key."""
        return self.run.method.partition(".")[0]

    @property
    def family_title(self) -> str:
        """The family's name."""
        return FAMILIES.get(self.family, self.family)

    @property
    def folded(self) -> bool:
        """Whether the table of measurements starts closed."""
        return len(self.measured) > FOLDED_ROWS


@dataclass(frozen=True)
class Tally:
    """Verdicts of one family."""

    family: str
    exceeds: int = 0
    cannot_tell: int = 0
    within: int = 0
    unfinished: int = 0

    @property
    def title(self) -> str:
        """The family's name."""
        return FAMILIES.get(self.family, self.family)

    @property
    def checks(self) -> int:
        """How many measurements were held against a bound."""
        return self.exceeds + self.cannot_tell + self.within

    @property
    def verdict(self) -> str:
        """The gravest verdict of the family; empty where nothing was judged."""
        if self.exceeds:
            return Verdict.EXCEEDS.value
        if self.cannot_tell:
            return Verdict.CANNOT_TELL.value
        return Verdict.WITHIN.value if self.within else ""

    @property
    def sentence(self) -> str:
        """What the verdicts say together, without saying more than they do."""
        if not self.checks:
            return "Nothing was judged: no method of this family gave a result that the policy draws a line for."
        if self.exceeds:
            verb = "exceeds its bound" if self.exceeds == 1 else "exceed their bounds"
            said = f"{self.exceeds} of {_checks(self.checks)} {verb}."
        elif self.within:
            said = f"No evidence of a problem by these methods in {self.within} of {_checks(self.checks)}."
        else:
            said = "These methods could not tell on this sample."
        if self.cannot_tell and (self.exceeds or self.within):
            said += f" {self.cannot_tell} cannot tell."
        if self.unfinished:
            said += f" {self.unfinished} method{'s' if self.unfinished > 1 else ''} gave no result."
        return said


def _checks(n: int) -> str:
    return "1 check" if n == 1 else f"{n} checks"


@dataclass(frozen=True)
class NotApplicable:
    """A method that was not part of the audit, and the inputs it would have needed beyond those given."""

    entry: Entry
    missing: tuple[str, ...]


@dataclass(frozen=True)
class PolicyLine:
    """One bound of the audit's policy, with the method it belongs to."""

    method: str
    bound: Bound
    worse: str | None


@dataclass(frozen=True)
class AuditReport:
    """Everything that the page of an audit shows."""

    audit: Audit
    runs: tuple[RunReport, ...]
    tallies: tuple[Tally, ...]
    exceeding: tuple[Judged, ...]
    cannot_tell: tuple[Judged, ...]
    within: tuple[Judged, ...]
    unfinished: tuple[RunReport, ...]
    not_applicable: tuple[NotApplicable, ...]
    left_out: tuple[Entry, ...]
    policy: tuple[PolicyLine, ...]
    sandbox: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measured_runs(self) -> tuple[RunReport, ...]:
        """The runs that have a result."""
        return tuple(run for run in self.runs if run.result is not None)

    @property
    def has_plots(self) -> bool:
        """Whether the page needs the plotting script."""
        return any(figure.plotted for run in self.runs for figure in run.figures)


# -------------------------------------------------------------------------------------------------------------- building


def audit_report(audit: Audit) -> AuditReport:
    """The report of an audit, in a fixed number of queries. `audit` should come with its artifacts selected."""
    findings = list(audit.findings.all())
    rows = list(audit.runs.select_related("result"))
    controls = {run.pk: _controls(run) for run in rows}
    judged = [judge_shown(finding, controls.get(finding.run_id, ())) for finding in findings]
    runs = tuple(run_report(run, judged) for run in rows)
    given = frozenset(audit.roles) | ({"model"} if audit.model_id else frozenset())
    used = {run.run.method for run in runs}
    others = [entry for key, entry in catalogue().items() if key not in used]
    lacking = [NotApplicable(e, tuple(i.title for i in e.missing(given))) for e in others if e.missing(given)]
    return AuditReport(
        audit=audit,
        runs=runs,
        tallies=tuple(_tallies(runs, findings)),
        exceeding=_with_verdict(judged, Verdict.EXCEEDS),
        cannot_tell=_with_verdict(judged, Verdict.CANNOT_TELL),
        within=_with_verdict(judged, Verdict.WITHIN),
        unfinished=tuple(run for run in runs if run.result is None),
        not_applicable=tuple(lacking),
        left_out=tuple(entry for entry in others if not entry.missing(given)),
        policy=tuple(_policy_lines(audit, judged)),
        sandbox=next((run.run.sandbox for run in runs if run.run.sandbox), {}),
    )


def run_report(run: Run, judged: Sequence[Judged] = (), *, draw: bool = True) -> RunReport:
    """One method's section; `judged` may hold findings of other runs too. `draw` reads the arrays and makes the figures."""
    entry = catalogue().get(run.method)
    stored = getattr(run, "result", None)
    seconds = _took(run)
    if stored is None:
        return RunReport(run, entry, None, seconds=seconds)
    result = Result.from_json(stored.data)
    figures, missing = _figures(run, entry) if draw else ((), "")
    own = {(j.measurement["name"], j.measurement["subject"]): j for j in judged if j.finding.run_id == run.pk}
    return RunReport(
        run=run,
        entry=entry,
        result=result,
        measured=tuple(Measured(m, own.get((m.name, m.subject))) for m in result.measurements),
        figures=figures,
        figures_missing=missing,
        tables=tuple(Listed(table) for table in result.tables),
        ledger=read_ledger(stored.ledger),
        seconds=seconds,
    )


def judge_shown(finding: Finding, controls: tuple[Control, ...] = ()) -> Judged:
    """A finding with its gauge and the controls of its run."""
    return Judged(finding, finding.measurement, gauge(finding.measurement, finding.bound), controls)


def _controls(run: Run) -> tuple[Control, ...]:
    stored = getattr(run, "result", None)
    return tuple(Control(**one) for one in stored.data["controls"]) if stored else ()


def load_arrays(stored: Any) -> dict[str, np.ndarray]:
    """The arrays of a stored result, read without pickle. Raises OSError, ValueError or BadZipFile where it is gone or damaged."""
    if not stored.arrays:
        return {}
    with stored.arrays.open("rb") as file, np.load(io.BytesIO(file.read()), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _figures(run: Run, entry: Entry | None) -> tuple[tuple[Drawn, ...], str]:
    """The figures of a result, or the reason why they cannot be drawn; the numbers of the report stand without them."""
    if entry is None:
        return (), "This method is no longer in the catalogue, so its figures cannot be drawn."
    if entry.method.version != run.method_version:
        said = f"The method is now at version {entry.method.version}; figures of version {run.method_version} cannot be redrawn."
        return (), said
    try:
        arrays = load_arrays(run.result)
    except (OSError, ValueError, BadZipFile):
        log.exception("the arrays of run %s cannot be read", run.pk)
        return (), "The stored arrays of this result cannot be read, so it has no figures; its numbers are complete."
    drawn = entry.method.figures(Result.from_json(run.result.data, arrays))
    return tuple(Drawn(f"figure-{run.pk}-{i}", one, one.to_json()) for i, one in enumerate(drawn)), ""


def _with_verdict(judged: Iterable[Judged], verdict: Verdict) -> tuple[Judged, ...]:
    return tuple(one for one in judged if one.finding.verdict == verdict)


def _tallies(runs: Sequence[RunReport], findings: Sequence[Finding]) -> Iterable[Tally]:
    for family in FAMILIES:
        own = [run for run in runs if run.family == family]
        if not own:
            continue
        verdicts = [finding.verdict for finding in findings if finding.family == family]
        yield Tally(
            family,
            exceeds=verdicts.count(Verdict.EXCEEDS),
            cannot_tell=verdicts.count(Verdict.CANNOT_TELL),
            within=verdicts.count(Verdict.WITHIN),
            unfinished=sum(run.result is None for run in own),
        )


def _policy_lines(audit: Audit, judged: Sequence[Judged]) -> Iterable[PolicyLine]:
    worse = {(j.finding.method, j.measurement["name"]): j.measurement["worse"] for j in judged}
    for method, bounds in audit.policy.get("bounds", {}).items():
        for bound in bounds:
            yield PolicyLine(method, Bound(**bound), worse.get((method, bound["measurement"])))


def _took(run: Run) -> float | None:
    if run.started_at is None:
        return None
    return ((run.finished_at or timezone.now()) - run.started_at).total_seconds()


def read_ledger(stored: Mapping[str, Any]) -> Ledger | None:
    """The row ledger as the engine wrote it; None where it wrote none."""
    if not stored:
        return None
    dropped = tuple(Dropped(str(one["reason"]), int(one["rows"])) for one in stored.get("dropped", ()))
    notes = tuple(str(note) for note in stored.get("notes", ()))
    return Ledger(stored.get("rows"), dropped, stored.get("used"), notes)


# ---------------------------------------------------------------------------------------------------------------- gauges


def gauge(measurement: Mapping[str, Any], bound: Mapping[str, Any]) -> Gauge | None:
    """Where value, interval, bound and ideal stand on a line of 0 to 100; None without a value or an interval."""
    value, low, high = measurement["value"], measurement["low"], measurement["high"]
    if value is None or (low is None and high is None):
        return None
    limit = bound["limit"] if bound["rule"] == "interval" else None
    marks = [mark for mark in (value, low, high, limit, measurement["ideal"]) if mark is not None]
    start, span = min(marks), (max(marks) - min(marks)) or abs(value) or 1.0

    def place(mark: float) -> float:
        return round(6 + 88 * (mark - start) / span, 2)

    return Gauge(
        value=place(value),
        low=0.0 if low is None else place(low),
        high=100.0 if high is None else place(high),
        low_open=low is None,
        high_open=high is None,
        limit=None if limit is None else place(limit),
        ideal=None if measurement["ideal"] is None else place(measurement["ideal"]),
    )


# ----------------------------------------------------------------------------------------------------------------- lists


def with_tallies(audits: QuerySet[Audit]) -> QuerySet[Audit]:
    """Audits with `n_runs`, `n_ended` and their verdict counts, for lists, the newest first; one query."""

    def findings(verdict: Verdict) -> Count:
        return Count("findings", filter=Q(findings__verdict=verdict.value), distinct=True)

    return audits.order_by("-created_at").annotate(
        n_runs=Count("runs", distinct=True),
        n_ended=Count("runs", filter=Q(runs__status__in=FINAL), distinct=True),
        n_broken=Count("runs", filter=Q(runs__status__in=(Status.FAILED, Status.ERRORED)), distinct=True),
        n_exceeds=findings(Verdict.EXCEEDS),
        n_cannot_tell=findings(Verdict.CANNOT_TELL),
        n_within=findings(Verdict.WITHIN),
    )


@dataclass(frozen=True)
class OpenRow:
    """Open findings of one family by severity, gravest first."""

    family: str
    title: str
    cells: tuple[tuple[Finding.Severity, int], ...]

    @property
    def total(self) -> int:
        """All of the family."""
        return sum(count for _, count in self.cells)


def open_findings(findings: QuerySet[Finding]) -> list[OpenRow]:
    """Findings that exceed and that nobody has disposed of, by family and severity; one query."""
    counts: dict[tuple[str, int], int] = {}
    grouped = findings.exceeding().undecided().order_by().values("method", "severity").annotate(n=Count("pk"))
    for row in grouped:
        key = (row["method"].partition(".")[0], row["severity"])
        counts[key] = counts.get(key, 0) + row["n"]
    severities = sorted(Finding.Severity, reverse=True)
    return [
        OpenRow(family, title, tuple((severity, counts.get((family, severity), 0)) for severity in severities))
        for family, title in FAMILIES.items()
    ]


@dataclass(frozen=True)
class RoleLine:
    """A role of the audit and the columns that play it."""

    title: str
    columns: tuple[str, ...]


def role_lines(audit: Audit) -> list[RoleLine]:
    """The column roles of an audit, for people."""
    lines = []
    for name, columns in audit.roles.items():
        title = INPUTS[name].title if name in INPUTS else name
        lines.append(RoleLine(title, tuple(columns) if isinstance(columns, list) else (str(columns),)))
    return lines


def input_titles(entry: Entry) -> list[str]:
    """What a method needs of the user, for people."""
    return [i.title for i in entry.required if i.kind is not Kind.RUNTIME]


def model_facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What inspection read in a model, for people; what it did not find is left out."""
    facts = []
    for key, title in (("format", "Format"), ("architecture", "Network"), ("parameters", "Parameters")):
        if report.get(key) not in (None, "", {}):
            found = report[key]
            facts.append((title, f"{found:,}" if isinstance(found, int) else str(found)))
    for key, title in (("inputs", "Inputs"), ("classes", "Classes")):
        if isinstance(report.get(key), list) and report[key]:
            facts.append((title, ", ".join(_fact(one) for one in report[key])))
    return facts


def _fact(one: object) -> str:
    """An input with its type and shape, or a class name."""
    if not isinstance(one, Mapping):
        return str(one)
    shape = " × ".join(str(side) for side in one.get("shape") or ())
    told = " ".join(part for part in (str(one.get("type") or ""), shape) if part)
    return f"{one.get('name')} ({told})" if told else str(one.get("name"))


def artifact_hashes(audit: Audit) -> list[tuple[str, Artifact]]:
    """The audited files with what they were, for the reproducibility block."""
    files = [("Data set", audit.dataset)]
    return files if audit.model is None else [("Model", audit.model), *files]
