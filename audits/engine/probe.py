"""Runs in a sealed child and tries what the seal must forbid; prints the error numbers as JSON, 0 where it succeeded."""

import json
import os
import socket
from collections.abc import Callable


def error_of(attempt: Callable[[], object]) -> int:
    """Number of the error that the system answered, 0 for none."""
    try:
        attempt()
    except OSError as error:
        return error.errno or -1
    return 0


def open_and_close(path: str) -> None:
    """Opens a file for reading."""
    os.close(os.open(path, os.O_RDONLY))


if __name__ == "__main__":
    tried: dict[str, Callable[[], object]] = {
        "socket": socket.socket,  # only the filter of system calls forbids this
        "open /proc/version": lambda: open_and_close("/proc/version"),  # visible everywhere: Landlock alone forbids it
        "stat /etc/passwd": lambda: os.stat("/etc/passwd"),  # absent only in a file system of its own
    }
    print(json.dumps({name: error_of(attempt) for name, attempt in tried.items()}), flush=True)
