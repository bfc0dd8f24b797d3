"""Every error has one shape: {"error": {"code", "message", "fields"}}. The message is a sentence for people."""

import logging
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.views import exception_handler, set_rollback

from audits.methods.errors import AuditError

log = logging.getLogger(__name__)

NOWHERE = "There is nothing at this address that you may see. Addresses end with a slash; /api/v1/docs/ lists them."


class Conflict(exceptions.APIException):
    """The request fits, but not to the state that the thing is in."""

    status_code = status.HTTP_409_CONFLICT
    default_code = "conflict"


class TooLarge(exceptions.APIException):
    """More bytes than are taken."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"


def shaped(code: str, message: str, fields: Mapping[str, list[str]] | None = None) -> dict[str, Any]:
    """The body of every error."""
    return {"error": {"code": code, "message": message, "fields": dict(fields or {})}}


def one_shape(error: Exception, context: Mapping[str, Any]) -> Response:
    """The answer to whatever was raised. What is our fault goes to the log under a reference and says nothing else."""
    answer = _answer(_translated(error))
    answer.exception = True
    return answer


def _translated(error: Exception) -> Exception:
    """Errors of Django and of the rings inside as the framework's own."""
    if isinstance(error, AuditError):
        return exceptions.ValidationError(str(error), code="unsuitable_input")
    if isinstance(error, Http404):
        return exceptions.NotFound(NOWHERE)
    if isinstance(error, PermissionDenied):
        return exceptions.PermissionDenied(str(error) or None)
    if isinstance(error, RequestDataTooBig):
        return TooLarge("The fields beside the file are larger than is taken.")
    if isinstance(error, SuspiciousOperation):
        return exceptions.ParseError("The request is malformed.")
    return error


def _answer(error: Exception) -> Response:
    set_rollback()
    if isinstance(error, OperationalError | InterfaceError):
        log.warning("the database did not answer: %s", error)
        body = shaped("unavailable", "The database did not answer in time. Try again in a few seconds.")
        return Response(body, status=status.HTTP_503_SERVICE_UNAVAILABLE, headers={"Retry-After": "5"})
    if not isinstance(error, exceptions.APIException):
        return _our_fault(error)
    answer: Response = exception_handler(error, {})
    answer.data = _body(error)
    return answer


def _our_fault(error: Exception) -> Response:
    reference = secrets.token_hex(4)
    log.error("request errored, reference %s", reference, exc_info=error)
    words = f"Something went wrong on our side. Reference for the operator's log: {reference}."
    return Response(shaped("internal", words), status=status.HTTP_500_INTERNAL_SERVER_ERROR)


def _body(error: exceptions.APIException) -> dict[str, Any]:
    if not isinstance(error, exceptions.ValidationError):
        return shaped(error.get_codes(), str(error.detail))
    fields: dict[str, list[str]] = {}
    loose = []
    for name, sentence in _sentences(error.detail):
        if name:
            fields.setdefault(name, []).append(sentence)
        else:
            loose.append(sentence)
    named = [f"{name}: {' '.join(sentences)}" for name, sentences in fields.items()]
    return shaped(_first_code(error), " ".join(loose + named), fields)


def _first_code(error: exceptions.ValidationError) -> str:
    codes = error.get_codes()
    return codes[0] if isinstance(codes, list) and codes == ["unsuitable_input"] else "invalid"


def _sentences(detail: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every sentence with the dotted name of its field, empty where it is about the whole."""
    if isinstance(detail, Mapping):
        for key, value in detail.items():
            own = "" if key == "non_field_errors" else str(key)
            yield from _sentences(value, ".".join(part for part in (name, own) if part))
    elif isinstance(detail, list | tuple):
        for value in detail:
            yield from _sentences(value, name)
    else:
        yield name, str(detail)
