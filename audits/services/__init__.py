"""What a user does that crosses rows or starts work. Pages and REST call the same functions."""
