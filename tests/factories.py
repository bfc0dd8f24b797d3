"""Rows for tests, made by plain functions. The cast is fixed: alice owns, bob reviews, vera looks on, mallory is outside."""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.utils import timezone

from audits.evaluation import evaluate
from audits.execution import result_digest
from audits.methods.catalogue import catalogue
from audits.methods.contract import Bound, Control, Measurement, Result, Table
from audits.models import Artifact, Audit, Finding, Inspection, Membership, Role, Run, RunResult, Status, Team, User
from audits.policies import house_policy

_numbers = count(1)

PASSWORD = "correct horse battery staple"


@dataclass(frozen=True)
class Cast:
    """The people of every test."""

    team: Team
    alice: User
    bob: User
    vera: User
    mallory: User
    other_team: Team


def make_team(name: str = "Credit risk") -> Team:
    """A team without members."""
    return Team.objects.create(name=name)


def make_user(name: str = "", password: str | None = None) -> User:
    """A person. Without a password only `force_login` signs in, which saves the time of hashing one."""
    return User.objects.create_user(name or f"user{next(_numbers)}", password=password)


def join(user: User, team: Team, role: Role) -> Membership:
    """Gives the user a role in the team."""
    return Membership.objects.create(user=user, team=team, role=role)


def cast() -> Cast:
    """alice (owner), bob (reviewer) and vera (viewer) in one team; mallory owns another."""
    team, other = make_team(), make_team("Somebody else")
    alice, bob, vera, mallory = (make_user(name) for name in ("alice", "bob", "vera", "mallory"))
    for user, role in ((alice, Role.OWNER), (bob, Role.REVIEWER), (vera, Role.VIEWER)):
        join(user, team, role)
    join(mallory, other, Role.OWNER)
    return Cast(team, alice, bob, vera, mallory, other)


# ------------------------------------------------------------------------------------------------------------- artifacts


def column(name: str, role: str = "", **more: Any) -> dict[str, Any]:
    """A column as inspection describes it."""
    return {
        "name": name,
        "type": "text",
        "missing": 0,
        "distinct": 2,
        "examples": ["yes", "no"],
        "suggested_role": role,
    } | more


def make_artifact(
    team: Team,
    user: User,
    *,
    kind: str = Artifact.Kind.DATASET,
    name: str = "",
    report: dict[str, Any] | None = None,
    status: Status = Status.COMPLETED,
    reason: str = "",
    content: bytes = b"",
    filename: str = "",
) -> Artifact:
    """An upload with its inspection in the given state."""
    number = next(_numbers)
    content = content or f"content {number}".encode()
    digest = hashlib.sha256(content).hexdigest()
    stored = f"artifacts/{team.pk}/{digest}"
    if not default_storage.exists(stored):
        default_storage.save(stored, ContentFile(content))
    artifact = Artifact.objects.create(
        team=team,
        kind=kind,
        name=name or f"{kind} {number}",
        filename=filename or f"file{number}.bin",
        file=stored,
        sha256=digest,
        size=len(content),
        uploaded_by=user,
    )
    Inspection.objects.create(
        artifact=artifact,
        status=status,
        report=report if status == Status.COMPLETED else None,
        reason=reason,
        sandbox={"level": "B", "layers": ["landlock", "seccomp"]} if status == Status.COMPLETED else {},
        progress=1.0 if status == Status.COMPLETED else 0.0,
        lease_until=timezone.now() if status == Status.RUNNING else None,
        finished_at=timezone.now() if status == Status.COMPLETED else None,
    )
    return artifact


def make_dataset(
    team: Team,
    user: User,
    *,
    columns: Sequence[str | dict[str, Any]] = ("label", "prediction", "sex"),
    rows: int = 1000,
    name: str = "",
    **more: Any,
) -> Artifact:
    """A data set that was read; columns by name, or as `column(...)` describes them."""
    described = [column(c) if isinstance(c, str) else c for c in columns]
    report = {"format": "csv", "rows": rows, "columns": described, "warnings": []}
    return make_artifact(team, user, kind=Artifact.Kind.DATASET, name=name, report=report, **more)


def make_model(
    team: Team, user: User, *, name: str = "", classes: Sequence[str] = ("no", "yes"), **more: Any
) -> Artifact:
    """A model that was read."""
    report = {"format": "onnx", "inputs": ["age", "hours"], "classes": list(classes), "warnings": []}
    return make_artifact(team, user, kind=Artifact.Kind.MODEL, name=name, report=report, **more)


# ---------------------------------------------------------------------------------------------------------------- audits


def make_audit(
    team: Team,
    user: User,
    *,
    dataset: Artifact | None = None,
    model: Artifact | None = None,
    methods: Sequence[str] = (),
    title: str = "",
    roles: dict[str, Any] | None = None,
    bounds: dict[str, list[dict[str, Any]]] | None = None,
    **more: Any,
) -> Audit:
    """An audit with a queued run per method. `bounds` add to what the methods' own cards suggest."""
    dataset = dataset or make_dataset(team, user)
    known = [key for key in methods if key in catalogue()]
    policy = house_policy(known)
    policy["bounds"] |= bounds or {}
    audit = Audit.objects.create(
        team=team,
        title=title or f"audit {next(_numbers)}",
        dataset=dataset,
        model=model,
        roles=roles if roles is not None else {"y_true": "label"},
        policy=policy,
        requested_by=user,
        **more,
    )
    for key in methods:
        entry = catalogue().get(key)
        Run.objects.create(
            audit=audit,
            method=key,
            method_version=entry.method.version if entry else "1",
            settings=entry.settings({}) if entry else {},
        )
    return audit


def example_result(**more: Any) -> Result:
    """A small result with one measurement of each fate, a control, a table and a note."""
    parts: dict[str, Any] = {
        "measurements": (
            Measurement(
                "selection_rate_difference",
                0.213,
                "sex",
                low=0.181,
                high=0.246,
                level=0.95,
                n=1000,
                worse="higher",
                ideal=0.0,
                p_value=0.0001,
                mde=0.04,
                interval="Newcombe",
            ),
            Measurement("selection_rate_difference", None, "race", undefined="no positives in group B"),
            Measurement("accuracy", 0.91, low=0.89, high=0.93, level=0.95, n=1000, worse="lower"),
        ),
        "controls": (Control("shuffled labels", "negative", "3 of 100 shuffles exceed it.", True, 100, alarms=3),),
        "tables": (Table("Groups", ("Group", "Records"), (("female", 400), ("male", 600))),),
        "notes": ("Group B was too small to test.",),
    }
    return Result(**(parts | more))


def example_bound(**more: Any) -> dict[str, Any]:
    """A bound of `example_result`, as a policy stores it."""
    parts: dict[str, Any] = {
        "measurement": "selection_rate_difference",
        "limit": 0.1,
        "severity": "high",
        "why": "a gap of ten points is visible to those concerned",
        "rule": "interval",
    }
    return vars(Bound(**(parts | more)))


def make_result(run: Run, result: Result | None = None, *, ledger: dict[str, Any] | None = None) -> RunResult:
    """Completes the run with what it measured, as a worker would store it."""
    result = result or example_result()
    ledger = (
        {"rows": 1000, "dropped": [{"reason": "missing label", "rows": 12}], "used": 988} if ledger is None else ledger
    )
    arrays, stored = dict(result.arrays), ""
    if arrays:
        out = io.BytesIO()
        np.savez_compressed(out, **arrays)
        stored = default_storage.save(f"results/{run.audit.team_id}/{run.pk}-1.npz", ContentFile(out.getvalue()))
    now = timezone.now()
    Run.objects.filter(pk=run.pk).update(
        status=Status.COMPLETED,
        attempt=1,
        progress=1.0,
        started_at=now,
        finished_at=now,
        sandbox={"level": "B", "layers": ["landlock", "seccomp"]},
        seconds={"measure": 1.5},
    )
    run.refresh_from_db()
    data = result.to_json()
    return RunResult.objects.create(
        run=run, attempt=1, data=data, ledger=ledger, arrays=stored, sha256=result_digest(data, ledger, arrays)
    )


def make_finding(audit: Audit, result: Result | None = None) -> Finding:
    """Gives every run of the audit without a result one, judges them, and returns the gravest finding."""
    for run in audit.runs.filter(result__isnull=True):
        make_result(run, result)
    findings = evaluate(audit)
    return max(findings, key=lambda one: (one.verdict == "exceeds", one.severity))
