"""Reading JSON bodies: bounded in size and depth, and free of what the database cannot hold."""

import json
import math
from collections.abc import Mapping
from typing import Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from audits.api.errors import TooLarge

BODY_LIMIT = 1 << 20  # bytes; files come as multipart


class BoundedJSONParser(JSONParser):
    """JSON of at most 1 MiB."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        """The parsed body. Raises ParseError in words, TooLarge past the limit."""
        raw = stream.read(BODY_LIMIT + 1)
        if len(raw) > BODY_LIMIT:
            raise TooLarge("A JSON body may hold 1 MiB. Send files as multipart/form-data to /api/v1/artifacts/.")
        try:
            return storable(raw.decode("utf-8"))
        except ValueError as error:
            raise ParseError(f"The body is not JSON that can be stored: {error}.") from None


def storable(text: str) -> Any:
    """Parsed JSON that PostgreSQL can hold. Raises ValueError in words."""
    try:
        parsed = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    waiting = [parsed]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str) and ("\0" in item or any("\ud800" <= letter <= "\udfff" for letter in item)):
            raise ValueError("a text holds a NUL or half of a surrogate pair")
        elif isinstance(item, float) and not math.isfinite(item):
            raise ValueError("a number is too large")
    return parsed


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
