"""Who calls: a person with a session, or a token that acts for one person in one team."""

import logging
from datetime import timedelta

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from audits.models import ApiToken, User

log = logging.getLogger(__name__)

SCHEME = "Bearer"
USE_NOTED_EVERY = timedelta(minutes=1)  # a busy pipeline does not write a row per request


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer aud_…`. `request.auth` is then the token; its team is the only one that the request sees."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """The token's owner and the token; None where the header names no token. Raises AuthenticationFailed."""
        words = get_authorization_header(request).split()
        if not words or words[0].lower() != SCHEME.lower().encode():
            return None
        if len(words) != 2:
            raise AuthenticationFailed("The header must read “Authorization: Bearer aud_…”, with one space in it.")
        token = ApiToken.objects.for_secret(words[1].decode("latin-1"))
        if token is None:
            raise AuthenticationFailed("This token is unknown, revoked or expired, or its owner has left the team.")
        _note_use(token)
        log.info("token %s of user %s: %s %s", token.pk, token.user_id, request.method, request.path)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """Makes an unknown caller's answer a 401."""
        return f'{SCHEME} realm="api"'


def _note_use(token: ApiToken) -> None:
    now = timezone.now()
    if token.last_used_at is None or now - token.last_used_at > USE_NOTED_EVERY:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
