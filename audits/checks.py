"""System checks: an unsafe or missing setting is named with an id and a hint before anything runs."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register


@register()
def secret_key_is_strong(**_: Any) -> list[CheckMessage]:
    """The secret key signs sessions; a short one can be guessed."""
    if len(settings.SECRET_KEY) >= 32 and len(set(settings.SECRET_KEY)) > 8:
        return []
    hint = "Set SECRET_KEY to 50 random characters, for example: python -c 'import secrets; print(secrets.token_urlsafe(50))'"
    return [Error("SECRET_KEY is missing, short or repetitive.", hint=hint, id="audits.E001")]


@register(deploy=True)
def site_is_secure(**_: Any) -> list[CheckMessage]:
    """Over plain http a session can be read on the way."""
    if settings.SECURE:
        return []
    hint = "Serve the site over https behind a proxy and set SECURE=1."
    return [Warning("The site is not marked as served over https.", hint=hint, id="audits.W001")]


@register()
def sandbox_level_is_known(**_: Any) -> list[CheckMessage]:
    """The level decides what may be opened."""
    if settings.SANDBOX_REQUIRED in ("A", "B", "C", "D"):
        return []
    return [Error("SANDBOX_REQUIRED must be A, B, C or D.", hint="B is the default.", id="audits.E002")]
