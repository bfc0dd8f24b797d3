"""Uploads: models and data sets, and what the confined child read in them."""

import uuid
from typing import Self

from django.db import models

from audits.models.teams import Team, User
from audits.models.work import Status, Work, work_constraints


class ArtifactQuerySet(models.QuerySet["Artifact"]):
    """Artifacts, seen from a user."""

    def visible_to(self, user: User) -> Self:
        """Artifacts of the user's teams."""
        return self.filter(team__memberships__user_id=user.pk)

    def ready(self) -> Self:
        """Artifacts that were read and can be audited."""
        return self.filter(inspection__status=Status.COMPLETED)


def _address(artifact: "Artifact", filename: str) -> str:
    """Storage name from the content's hash alone; the uploaded name is only data."""
    return f"artifacts/{artifact.team_id}/{artifact.sha256}"


class Artifact(models.Model):
    """One uploaded file. Its bytes are opened only in the confined child."""

    class Kind(models.TextChoices):
        """What the uploader says it is."""

        MODEL = "model"
        DATASET = "dataset", "data set"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, models.CASCADE, related_name="artifacts")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    name = models.CharField(max_length=200)
    filename = models.CharField(max_length=255, help_text="As uploaded; never a path here")
    file = models.FileField(upload_to=_address, max_length=200)
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField(help_text="Bytes")
    options = models.JSONField(
        default=dict, blank=True, help_text="What the file does not say itself, e.g. architecture"
    )
    uploaded_by = models.ForeignKey(User, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = ArtifactQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        indexes = (models.Index(fields=("team", "-created_at"), name="artifact_list"),)
        constraints = (
            models.CheckConstraint(condition=models.Q(kind__in=("model", "dataset")), name="artifact_kind_known"),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def report(self) -> dict[str, object]:
        """What inspection read; empty until it is done."""
        return self.inspection.report or {}

    @property
    def columns(self) -> list[dict[str, object]]:
        """Columns of a data set as inspection read them."""
        columns = self.report.get("columns", [])
        return columns if isinstance(columns, list) else []


class Inspection(Work):
    """Reading an artifact in the confined child: format, columns or shapes, warnings."""

    artifact = models.OneToOneField(Artifact, models.CASCADE, related_name="inspection", primary_key=True)
    report = models.JSONField(null=True, blank=True)
    sandbox = models.JSONField(default=dict, blank=True)

    class Meta:
        constraints = (
            *work_constraints("inspection"),
            models.CheckConstraint(
                condition=~models.Q(status=Status.COMPLETED) | models.Q(report__isnull=False),
                name="inspection_completed_has_report",
            ),
        )
        indexes = (models.Index(fields=("status", "lease_until"), name="inspection_waiting"),)

    def __str__(self) -> str:
        return f"inspection of {self.artifact_id}"
