"""Requesting audits, cancelling and repeating their runs."""

import secrets
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction

from audits.evaluation import evaluate_when_done
from audits.methods.catalogue import Entry, catalogue, find
from audits.methods.contract import INPUTS, Input, Kind
from audits.methods.errors import AuditError
from audits.models import Artifact, Audit, Event, Role, Run, Status, Team, User
from audits.models.work import ClockTimestamp
from audits.policies import house_policy
from audits.services.access import require
from audits.tasks import ring_run


class Applicability(NamedTuple):
    """Whether a method can run on what is given, and which inputs it lacks."""

    entry: Entry
    missing: tuple[Input, ...]


def applicability(*, roles: Mapping[str, Any], has_model: bool) -> list[Applicability]:
    """Every method with the inputs it lacks; none lacking means that it can run."""
    available = frozenset(name for name, column in roles.items() if column) | ({"model"} if has_model else frozenset())
    return [Applicability(entry, entry.missing(available)) for entry in catalogue().values()]


def request_audit(
    *,
    actor: User,
    team: Team,
    dataset: Artifact,
    model: Artifact | None = None,
    roles: Mapping[str, Any],
    methods: Mapping[str, Mapping[str, Any]],
    title: str = "",
    positive_label: str = "",
    missing: str = Audit.Missing.GROUP,
    seed: int | None = None,
    idempotency_key: str | None = None,
) -> Audit:
    """Queues one run per method. `methods` maps keys to settings; the same idempotency key gives the same audit again."""
    require(actor, team, Role.AUDITOR)
    if idempotency_key and (earlier := Audit.objects.filter(team=team, idempotency_key=idempotency_key).first()):
        return earlier
    chosen = _checked_roles(team, dataset, model, roles)
    if missing not in Audit.Missing.values:
        raise AuditError(f"Missing values are treated as one of {', '.join(Audit.Missing.values)}; found {missing!r}.")
    settings = _checked_methods(methods, chosen, has_model=model is not None)
    try:
        with transaction.atomic():
            audit = Audit.objects.create(
                team=team,
                title=(title.strip() or f"{(model or dataset).name}")[:200],
                dataset=dataset,
                model=model,
                roles=chosen,
                positive_label=positive_label.strip(),
                missing=missing,
                policy=house_policy(settings),
                seed=secrets.randbelow(2**31) if seed is None else seed,
                idempotency_key=idempotency_key or None,
                requested_by=actor,
            )
            for key, given in settings.items():
                version = find(key).method.version
                ring_run(Run.objects.create(audit=audit, method=key, method_version=version, settings=given))
            Event.record("requested", audit, team=team, actor=actor, methods=list(settings))
    except IntegrityError:
        if idempotency_key and (twin := Audit.objects.filter(team=team, idempotency_key=idempotency_key).first()):
            return twin  # the same request came twice at once
        raise
    return audit


def _checked_roles(
    team: Team, dataset: Artifact, model: Artifact | None, roles: Mapping[str, Any]
) -> dict[str, str | list[str]]:
    for artifact, kind in ((dataset, Artifact.Kind.DATASET), (model, Artifact.Kind.MODEL)):
        if artifact is None:
            continue
        if artifact.kind != kind:
            raise AuditError(
                f"“{artifact.name}” is a {artifact.get_kind_display().lower()}, where a {kind.label.lower()} is needed."
            )
        if artifact.team_id != team.pk:
            raise AuditError("The model and the data set must belong to the team that asks for the audit.")
        if artifact.inspection.status != Status.COMPLETED:
            raise AuditError(f"“{artifact.name}” was not read yet or could not be read; see its page.")
    columns = {str(column["name"]) for column in dataset.columns}
    chosen: dict[str, str | list[str]] = {}
    for name, column in roles.items():
        if not column:
            continue
        if name not in INPUTS or INPUTS[name].kind in (Kind.MODEL, Kind.RUNTIME):
            raise AuditError(f"There is no column role {str(name)[:60]!r}.")
        several = INPUTS[name].kind is Kind.COLUMNS
        names = [str(c) for c in column] if isinstance(column, list | tuple) else [str(column)]
        if not several and len(names) > 1:
            raise AuditError(f"The role “{INPUTS[name].title}” takes one column; found {len(names)}.")
        if unknown := [c for c in names if c not in columns]:
            raise AuditError(
                f"“{dataset.name}” has no column {unknown[0][:60]!r}; it has {', '.join(sorted(columns))[:500]}."
            )
        chosen[name] = names if several else names[0]
    return chosen


def _checked_methods(
    methods: Mapping[str, Mapping[str, Any]], roles: Mapping[str, Any], *, has_model: bool
) -> dict[str, dict[str, Any]]:
    if not methods:
        raise AuditError("Choose at least one audit method.")
    lacking = {a.entry.key: a.missing for a in applicability(roles=roles, has_model=has_model)}
    checked = {}
    for key, given in methods.items():
        entry = find(key)
        if lacking[key]:
            titles = ", ".join(f"“{i.title}”" for i in lacking[key])
            raise AuditError(
                f"“{entry.method.title}” cannot run: it needs {titles}. Give the column its role, or leave it out."
            )
        checked[key] = entry.settings(given)
    return checked


@transaction.atomic
def cancel_runs(*, actor: User, audit: Audit, runs: Iterable[Run] | None = None) -> int:
    """Stops runs of an audit that have not ended (all of them, unless some are named). Returns how many."""
    require(actor, audit.team, Role.AUDITOR)
    open_runs = audit.runs.filter(status__in=(Status.QUEUED, Status.RUNNING))
    if runs is not None:
        open_runs = open_runs.filter(pk__in=[run.pk for run in runs])
    keys = list(open_runs.values_list("pk", flat=True))
    Run.objects.filter(pk__in=keys, status=Status.RUNNING).update(cancel_requested=True)
    waiting = Run.objects.filter(pk__in=keys, status=Status.QUEUED)
    waiting.update(status=Status.CANCELLED, cancel_requested=True, finished_at=ClockTimestamp())
    if keys:
        Event.record("cancelled runs of", audit, team=audit.team, actor=actor, runs=[str(k) for k in keys])
        evaluate_when_done(audit.pk)
    return len(keys)


@transaction.atomic
def retry_run(*, actor: User, run: Run) -> bool:
    """Queues a run again that failed, errored or was cancelled. False where it did not end that way."""
    require(actor, run.audit.team, Role.AUDITOR)
    if not Run.objects.requeue(run.pk):
        return False
    Event.record("retried", run, team=run.audit.team, actor=actor)
    ring_run(run)
    return True
