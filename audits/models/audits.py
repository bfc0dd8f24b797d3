"""Audits: one request, one run per method, what each run measured."""

import uuid
from typing import Self

from django.db import models

from audits.methods.catalogue import Entry, find
from audits.models.artifacts import Artifact
from audits.models.teams import Team, User
from audits.models.work import FINAL, Status, Work, WorkQuerySet, work_constraints


class AuditQuerySet(models.QuerySet["Audit"]):
    """Audits, seen from a user."""

    def visible_to(self, user: User) -> Self:
        """Audits of the user's teams."""
        return self.filter(team__memberships__user_id=user.pk)


class Audit(models.Model):
    """One request: which artifacts, which column plays which role, which methods, under which bounds."""

    class Missing(models.TextChoices):
        """What happens to records with a missing value in a sensitive column."""

        GROUP = "group", "a group of their own"
        DROP = "drop", "dropped, with the count shown"
        REFUSE = "refuse", "the audit is refused"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, models.CASCADE, related_name="audits")
    title = models.CharField(max_length=200)
    dataset = models.ForeignKey(Artifact, models.PROTECT, related_name="audits_of_dataset")
    model = models.ForeignKey(Artifact, models.PROTECT, null=True, blank=True, related_name="audits_of_model")
    roles = models.JSONField(default=dict, help_text="Input name to column name, or to a list of names")
    positive_label = models.CharField(max_length=200, blank=True)
    missing = models.CharField(max_length=10, choices=Missing.choices, default=Missing.GROUP)
    policy = models.JSONField(default=dict, help_text="Name, version and bounds, as they stood when it was requested")
    seed = models.BigIntegerField(default=0)
    idempotency_key = models.CharField(max_length=100, null=True, blank=True)  # noqa: DJ001  null keeps the unique constraint quiet
    requested_by = models.ForeignKey(User, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    evaluated_at = models.DateTimeField(
        null=True, blank=True, help_text="When the findings were drawn from the results"
    )

    objects = AuditQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        indexes = (models.Index(fields=("team", "-created_at"), name="audit_list"),)
        constraints = (
            models.UniqueConstraint(fields=("team", "idempotency_key"), name="one_audit_per_idempotency_key"),
            models.CheckConstraint(
                condition=models.Q(missing__in=("group", "drop", "refuse")), name="audit_missing_known"
            ),
        )

    def __str__(self) -> str:
        return self.title

    @property
    def is_final(self) -> bool:
        """Whether every run has ended."""
        return not self.runs.exclude(status__in=FINAL).exists()


class RunQuerySet(WorkQuerySet):
    """Runs, seen from a user."""

    def visible_to(self, user: User) -> Self:
        """Runs of the user's teams."""
        return self.filter(audit__team__memberships__user_id=user.pk)


class Run(Work):
    """One method on one audit's artifacts."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    audit = models.ForeignKey(Audit, models.CASCADE, related_name="runs")
    method = models.CharField(max_length=100)
    method_version = models.CharField(max_length=20)
    settings = models.JSONField(default=dict)
    sandbox = models.JSONField(default=dict, blank=True, help_text="The level the child ran at")
    seconds = models.JSONField(default=dict, blank=True, help_text="Where the time went")
    reference = models.CharField(max_length=12, blank=True, help_text="Finds an errored run's traceback in the log")

    objects = RunQuerySet.as_manager()

    class Meta:
        ordering = ("created_at", "method")
        constraints = (
            *work_constraints("run"),
            models.UniqueConstraint(fields=("audit", "method"), name="one_run_per_method"),
        )
        indexes = (models.Index(fields=("status", "lease_until"), name="run_waiting"),)

    def __str__(self) -> str:
        return f"{self.method} of {self.audit_id}"

    @property
    def entry(self) -> Entry:
        """The method's entry in the catalogue."""
        return find(self.method)

    @property
    def shown_settings(self) -> dict[str, object]:
        """Settings for people: a secret shows as dots."""
        secret = {p.name for p in self.entry.parameters if p.setting.secret}
        return {name: "••••••" if name in secret else value for name, value in self.settings.items()}


class Step(models.Model):
    """A finished part of a run. A run that is taken up again finds its steps and does not repeat them."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="steps")
    name = models.CharField(max_length=100)
    attempt = models.PositiveSmallIntegerField()
    seconds = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("created_at",)
        constraints = (models.UniqueConstraint(fields=("run", "name"), name="one_row_per_step"),)

    def __str__(self) -> str:
        return f"{self.name} of {self.run_id}"


class RunResult(models.Model):
    """What a run measured: written once, in the transaction that completes the run, and never changed."""

    run = models.OneToOneField(Run, models.CASCADE, related_name="result", primary_key=True)
    attempt = models.PositiveSmallIntegerField()
    data = models.JSONField(help_text="Result.to_json()")
    ledger = models.JSONField(default=dict, help_text="Rows in, dropped by reason, used")
    arrays = models.FileField(max_length=200, blank=True)
    sha256 = models.CharField(max_length=64, help_text="Over data, ledger and arrays")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"result of {self.run_id}"


class Preparation(models.Model):
    """Derived inputs (predictions, scores, losses, features) of one model on one data set, computed once."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="+")
    key = models.CharField(max_length=64, help_text="SHA-256 over everything the arrays depend on")
    file = models.FileField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("team", "key"), name="one_preparation_per_key"),)

    def __str__(self) -> str:
        return f"preparation {self.key[:12]}"


__all__ = ["Audit", "Preparation", "Run", "RunResult", "Status", "Step"]
