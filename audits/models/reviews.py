"""Findings, and what people say and decide about them."""

import uuid
from typing import Self

from django.db import models

from audits.methods.catalogue import find
from audits.methods.verdict import Verdict
from audits.models.audits import Audit, Run
from audits.models.teams import Team, User

VERDICTS = [(v.value, v.value) for v in (Verdict.EXCEEDS, Verdict.WITHIN, Verdict.CANNOT_TELL)]


class FindingQuerySet(models.QuerySet["Finding"]):
    """Findings, seen from a user."""

    def visible_to(self, user: User) -> Self:
        """Findings of the user's teams."""
        return self.filter(team__memberships__user_id=user.pk)

    def exceeding(self) -> Self:
        """Findings that are evidence of a problem."""
        return self.filter(verdict=Verdict.EXCEEDS)

    def undecided(self) -> Self:
        """Findings that nobody has disposed of."""
        return self.filter(state=Finding.State.OPEN)


class Finding(models.Model):
    """One judged measurement: evidence of a problem, a check that passed, or one that cannot tell."""

    class State(models.TextChoices):
        """What the team made of it."""

        OPEN = "open"
        CONFIRMED = "confirmed"
        ACCEPTED = "accepted", "accepted risk"
        FALSE_POSITIVE = "false_positive", "false positive"

    class Severity(models.IntegerChoices):
        """How bad it is where the bound is exceeded."""

        LOW = 1
        MEDIUM = 2
        HIGH = 3
        CRITICAL = 4

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, models.CASCADE, related_name="findings")
    audit = models.ForeignKey(Audit, models.CASCADE, related_name="findings")
    run = models.ForeignKey(Run, models.CASCADE, related_name="findings")
    identity = models.CharField(
        max_length=64, help_text="SHA-256 of method, measurement and subject: stable across audits"
    )
    method = models.CharField(max_length=100)
    measurement = models.JSONField(help_text="The measurement as judged")
    bound = models.JSONField(help_text="The bound it was held against")
    verdict = models.CharField(max_length=20, choices=VERDICTS)
    because = models.TextField()
    severity = models.PositiveSmallIntegerField(choices=Severity.choices)
    p_adjusted = models.FloatField(null=True, blank=True)
    state = models.CharField(max_length=20, choices=State.choices, default=State.OPEN)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = FindingQuerySet.as_manager()

    class Meta:
        ordering = ("-severity", "method", "id")
        constraints = (
            models.UniqueConstraint(fields=("audit", "identity"), name="one_finding_per_identity"),
            models.CheckConstraint(
                condition=models.Q(verdict__in=[v for v, _ in VERDICTS]), name="finding_verdict_known"
            ),
        )
        indexes = (models.Index(fields=("team", "verdict", "-created_at"), name="finding_list"),)

    def __str__(self) -> str:
        return self.title

    @property
    def family(self) -> str:
        """The family of its method, e.g. "fairness"."""
        return self.method.partition(".")[0]

    @property
    def method_title(self) -> str:
        """The method's name for people."""
        return find(self.method).method.title

    @property
    def title(self) -> str:
        """The measurement and its subject, in words."""
        name = str(self.measurement["name"]).replace("_", " ")
        subject = self.measurement["subject"]
        return f"{name[:1].upper()}{name[1:]}" + (f": {subject}" if subject else "")


class Comment(models.Model):
    """A remark on a finding, in Markdown."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    finding = models.ForeignKey(Finding, models.CASCADE, related_name="comments")
    author = models.ForeignKey(User, models.PROTECT, related_name="+")
    text = models.TextField(max_length=10_000)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("created_at",)

    def __str__(self) -> str:
        return f"comment by {self.author}"


class Decision(models.Model):
    """A change of a finding's state with its reason; only ever added, the newest one holds."""

    finding = models.ForeignKey(Finding, models.CASCADE, related_name="decisions")
    author = models.ForeignKey(User, models.PROTECT, related_name="+")
    state = models.CharField(max_length=20, choices=Finding.State.choices)
    reason = models.TextField(max_length=10_000, blank=True)
    expires_on = models.DateField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.state} by {self.author}"
