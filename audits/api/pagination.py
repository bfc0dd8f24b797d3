"""Pages of a list, newest first; a cursor stays right while rows are added."""

from django.utils.dateparse import parse_datetime
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request


class NewestFirst(CursorPagination):
    """`next` and `previous` are addresses; follow them until `next` is null."""

    ordering = ("-created_at", "-pk")
    page_size_query_param = "page_size"
    max_page_size = 200

    def get_page_size(self, request: Request) -> int | None:
        """The size asked for, else the default. A size that cannot be had is refused rather than replaced."""
        asked = request.query_params.get(self.page_size_query_param)
        if asked is None:
            return self.page_size
        if not (asked.isascii() and asked.isdigit() and 1 <= int(asked[:9]) <= self.max_page_size):
            words = f"A page holds between 1 and {self.max_page_size} rows; found “{asked[:60]}”."
            raise ValidationError({self.page_size_query_param: [words]})
        return int(asked)

    def decode_cursor(self, request: Request) -> Cursor | None:
        """Where the page begins. Anything that is not a cursor of ours is refused before the database sees it."""
        try:
            cursor = super().decode_cursor(request)
            if cursor is None or cursor.position is None or parse_datetime(cursor.position):
                return cursor
        except (NotFound, ValueError):
            pass
        words = "It is no cursor; follow the addresses “next” and “previous” as they are."
        raise ValidationError({self.cursor_query_param: [words]})
