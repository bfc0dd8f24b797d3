"""Who did what to which thing: only ever added."""

from typing import Any, Self

from django.db import models

from audits.models.teams import Team, User


class EventQuerySet(models.QuerySet["Event"]):
    """Events, seen from a user."""

    def visible_to(self, user: User) -> Self:
        """Events of the user's teams."""
        return self.filter(team__memberships__user_id=user.pk)


class Event(models.Model):
    """One line of a team's history."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="events")
    actor = models.ForeignKey(
        User, models.PROTECT, null=True, blank=True, related_name="+", help_text="None: the system"
    )
    verb = models.CharField(max_length=50)
    noun = models.CharField(max_length=50)
    object_id = models.CharField(max_length=40)
    label = models.CharField(max_length=250)
    detail = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = EventQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.verb} {self.noun} {self.label}"

    @classmethod
    def record(cls, verb: str, thing: Any, *, team: Team, actor: User | None, **detail: Any) -> "Event":
        """Adds a line about `thing`, any row with a primary key."""
        noun = thing._meta.verbose_name
        return cls.objects.create(
            team=team, actor=actor, verb=verb, noun=noun, object_id=str(thing.pk), label=str(thing)[:250], detail=detail
        )
