"""People, their teams, what they may do there, and the tokens that act for them."""

import hashlib
import secrets
import uuid
from datetime import timedelta
from typing import Self

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils import timezone


class User(AbstractUser):
    """A person who can sign in."""

    @property
    def name(self) -> str:
        """Full name where given, else the sign-in name."""
        return self.get_full_name() or self.username


class Role(models.TextChoices):
    """What a member may do, from least to most."""

    VIEWER = "viewer"
    REVIEWER = "reviewer"
    AUDITOR = "auditor"
    OWNER = "owner"

    @property
    def rank(self) -> int:
        """Position in the order of rights."""
        return list(Role).index(self)


class TeamQuerySet(models.QuerySet["Team"]):
    """Teams, seen from a user."""

    def visible_to(self, user: User) -> Self:
        """Teams the user belongs to."""
        return self.filter(memberships__user_id=user.pk)


class Team(models.Model):
    """The people who share artifacts, audits and findings. Everything hangs off a team."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)
    members = models.ManyToManyField(User, through="Membership", related_name="teams")

    objects = TeamQuerySet.as_manager()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def role_of(self, user: User) -> Role | None:
        """The user's role in this team; None for an outsider."""
        membership = self.memberships.filter(user_id=user.pk).first()
        return Role(membership.role) if membership else None

    def allows(self, user: User, role: Role) -> bool:
        """Whether the user has at least that role here."""
        own = self.role_of(user)
        return own is not None and own.rank >= role.rank


class Membership(models.Model):
    """A user's place in a team."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.VIEWER)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("team", "user"), name="one_membership_per_team"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role_known"),
        )

    def __str__(self) -> str:
        return f"{self.user} in {self.team} as {self.role}"


TOKEN_PREFIX = "aud_"  # noqa: S105  a recognisable beginning, so that leaked tokens can be found
TOKEN_DAYS = 90


class ApiTokenQuerySet(models.QuerySet["ApiToken"]):
    """Tokens, seen from a user or from the secret."""

    def visible_to(self, user: User) -> Self:
        """The user's own tokens in teams the user still belongs to."""
        return self.filter(user_id=user.pk, team__memberships__user_id=user.pk)

    def for_secret(self, secret: str) -> "ApiToken | None":
        """The valid token with that secret whose owner is active and still a member of its team."""
        return (
            self.filter(digest=_digest(secret), expires_at__gt=timezone.now(), user__is_active=True)
            .filter(team__memberships__user=models.F("user"))
            .select_related("user", "team")
            .first()
        )


class ApiToken(models.Model):
    """A secret that acts for one user in one team. Only its SHA-256 is stored; it is shown once."""

    class Scope(models.TextChoices):
        """What the token may do, within what its owner may do."""

        READ = "read"
        SUBMIT = "submit"
        REVIEW = "review"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, models.CASCADE, related_name="api_tokens")
    team = models.ForeignKey(Team, models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    ending = models.CharField(max_length=4, editable=False)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects = ApiTokenQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.name} (…{self.ending})"

    @classmethod
    def issue(
        cls, *, user: User, team: Team, name: str, scopes: list[str], days: int = TOKEN_DAYS
    ) -> "tuple[ApiToken, str]":
        """A new token and its secret, which cannot be read again."""
        secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
        token = cls.objects.create(
            user=user,
            team=team,
            name=name,
            digest=_digest(secret),
            ending=secret[-4:],
            scopes=sorted(set(scopes)),
            expires_at=timezone.now() + timedelta(days=days),
        )
        return token, secret


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
