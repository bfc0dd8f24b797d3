"""What crosses between parent and child: JSON and arrays without pickle, read as if an attacker had written them.

Every reader states its bounds and raises `Malformed` for what lies beyond them, before memory is spent on it.
"""

import io
import json
import math
import os
import re
import stat
import zipfile
import zlib
from ast import literal_eval
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from audits.methods.contract import Array

MAX_JSON_BYTES = 16 << 20
MAX_DEPTH = 32
MAX_VALUES = 400_000
MAX_TEXT = 20_000  # characters of one text
MAX_INTEGER = 2**63 - 1  # what PostgreSQL's bigint holds
NUMBERS = "biuf"  # dtype kinds: boolean, signed, unsigned, float


class Malformed(ValueError):
    """Not what was agreed: too large, too deep, of another type, or not finite."""


# ----------------------------------------------------------------------------------------------------------------- JSON


def write_json(path: str, value: Any) -> None:
    """Writes whole or not at all. Raises ValueError for NaN and infinities."""
    partial = f"{path}.partial"
    with open(partial, "w", encoding="ascii") as file:
        json.dump(value, file, allow_nan=False)
    os.replace(partial, path)


def read_json(path: str, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Plain values with finite numbers and storable texts; raises Malformed for anything else."""
    try:
        return checked_value(json.loads(_read_regular(path, max_bytes), **_STRICT))
    except (RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Malformed(f"not JSON: {type(error).__name__}") from None


def _read_regular(path: str, max_bytes: int) -> bytes:
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise Malformed(f"longer than {max_bytes:,} bytes")
    return content


def open_regular(path: str) -> IO[bytes]:
    """Opens a regular file. A link or a pipe under that name is refused and never waited for."""
    place = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(place, "rb")
    if stat.S_ISREG(os.fstat(place).st_mode):
        return file
    file.close()
    raise Malformed("not a regular file")


def _refuse_constant(name: str) -> Any:
    raise Malformed(f"holds {name}")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Malformed("holds the same key twice")
    return found


_STRICT: Mapping[str, Any] = {"parse_constant": _refuse_constant, "object_pairs_hook": _without_doubles}


def checked_value(value: Any) -> Any:
    """The same plain value with texts made storable. Raises Malformed beyond the bounds on depth, count and size."""
    return _Checker().check(value, 0)


class _Checker:
    def __init__(self) -> None:
        self.values = 0

    def check(self, value: Any, depth: int) -> Any:
        self.values += 1
        if depth > MAX_DEPTH:
            raise Malformed(f"nested deeper than {MAX_DEPTH}")
        if self.values > MAX_VALUES:
            raise Malformed(f"more than {MAX_VALUES:,} values")
        if isinstance(value, str):
            return storable(value)
        if isinstance(value, list | tuple):
            return [self.check(entry, depth + 1) for entry in value]
        if isinstance(value, dict):
            return {storable(key): self.check(entry, depth + 1) for key, entry in value.items()}
        return _plain_number(value)


def _plain_number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise Malformed("holds a number that is not finite")
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise Malformed("holds an integer beyond 64 bits")
    if value is None or isinstance(value, bool | int | float):
        return value
    raise Malformed(f"holds a {type(value).__name__}")


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """NUL and lone surrogates, which PostgreSQL refuses, become U+FFFD. Raises Malformed for a text that is too long."""
    if not isinstance(text, str):
        raise Malformed(f"a key is a {type(text).__name__}")
    if len(text) > MAX_TEXT:
        raise Malformed(f"a text is longer than {MAX_TEXT:,} characters")
    return _UNSTORABLE.sub("\ufffd", text)


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Without terminal escapes, controls and marks that turn the writing direction: fit for a log or a page."""
    return _CONTROLS.sub("\ufffd", _ESCAPES.sub("", text))


# --------------------------------------------------------------------------------------------------------------- arrays


@dataclass(frozen=True)
class ArrayHeader:
    """What an `.npy` member says of itself, and where its numbers start."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int


_MEMBER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,99}\.npy")
_MAX_HEADER = 10_000
_MAX_DIMENSIONS = 8


def write_arrays(path: str, arrays: Mapping[str, Array]) -> None:
    """Writes whole or not at all; object arrays are refused with ValueError."""
    partial = f"{path}.partial"
    with open(partial, "wb") as file:
        np.savez(file, allow_pickle=False, **{name: np.asarray(array) for name, array in arrays.items()})
    os.replace(partial, path)


def read_arrays(path: str, max_bytes: int, max_members: int = 512, kinds: str = NUMBERS) -> dict[str, Array]:
    """All arrays of an `.npz` file by name. Raises Malformed where its directory or a header exceeds the bounds or lies."""
    with open_arrays(path, max_bytes, max_members) as archive:
        headers = {name: read_header(archive, name, kinds) for name in archive.namelist()}
        return {name.removesuffix(".npy"): read_array(archive, name, header) for name, header in headers.items()}


@contextmanager
def open_arrays(path: str, max_bytes: int, max_members: int = 512) -> Iterator[zipfile.ZipFile]:
    """The archive, after its directory was checked: names, number, and the sum of the sizes it declares."""
    with open_regular(path) as file:
        try:
            archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
            raise Malformed(f"not an archive of arrays: {error}") from None
        with archive:
            _check_directory(archive.infolist(), max_bytes, max_members)
            yield archive


def _check_directory(members: list[zipfile.ZipInfo], max_bytes: int, max_members: int) -> None:
    if len(members) > max_members:
        raise Malformed(f"holds {len(members):,} members; at most {max_members:,} are read")
    names = {member.filename for member in members}
    if len(names) != len(members):
        raise Malformed("holds two members of one name")
    for member in members:
        if not _MEMBER.fullmatch(member.filename):
            raise Malformed(f"holds {printable(member.filename)[:60]!r}, which is not the name of an array")
        if member.flag_bits & 0x1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Malformed("is encrypted or packed in an unusual way")
    total = sum(member.file_size for member in members)
    if total > max_bytes:
        raise Malformed(f"unpacks to {total:,} bytes; at most {max_bytes:,} are read")


def read_header(archive: zipfile.ZipFile, name: str, kinds: str = NUMBERS) -> ArrayHeader:
    """Type and shape of one array. Raises Malformed unless they account for every byte that the directory declares."""
    size = archive.getinfo(name).file_size
    with _member(archive, name) as member:
        header = _parse_header(_exactly(member, min(size, _MAX_HEADER + 12)), name)
    plain = header.dtype.kind in kinds and not header.dtype.hasobject and header.dtype.itemsize > 0
    if not plain:
        raise Malformed(f"array {name!r} has the type {header.dtype}, which is not read")
    if header.offset + math.prod(header.shape) * header.dtype.itemsize != size:
        raise Malformed(f"array {name!r} says it has shape {header.shape}, but its bytes do not fit that")
    return header


def _parse_header(start: bytes, name: str) -> ArrayHeader:
    if start[:6] != b"\x93NUMPY" or start[6:7] not in (b"\x01", b"\x02", b"\x03"):
        raise Malformed(f"array {name!r} does not begin as an array")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(start[8 : 8 + width], "little")
    offset = 8 + width + length
    if length > _MAX_HEADER or offset > len(start):
        raise Malformed(f"array {name!r} has a header that is cut off or too long")
    try:
        said = literal_eval(start[8 + width : offset].decode("utf-8"))
        shape, fortran, dtype = said["shape"], said["fortran_order"], np.dtype(said["descr"])
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise Malformed(f"array {name!r} has a header that cannot be read") from None
    if not isinstance(shape, tuple) or len(shape) > _MAX_DIMENSIONS or not isinstance(fortran, bool):
        raise Malformed(f"array {name!r} has a header that cannot be read")
    if not all(type(length) is int and 0 <= length < 2**48 for length in shape):
        raise Malformed(f"array {name!r} has a shape that cannot be")
    return ArrayHeader(dtype, shape, fortran, offset)


def read_array(archive: zipfile.ZipFile, name: str, header: ArrayHeader) -> Array:
    """The numbers of one array whose header was read."""
    with _member(archive, name) as member:
        _exactly(member, header.offset)
        content = _exactly(member, math.prod(header.shape) * header.dtype.itemsize)
    array = np.frombuffer(content, dtype=header.dtype)
    return array.reshape(header.shape, order="F" if header.fortran else "C").astype(
        header.dtype.newbyteorder("="), copy=True
    )


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    try:
        return archive.open(name)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
        raise Malformed(f"array {name!r} cannot be opened: {error}") from None


def _exactly(member: IO[bytes], size: int) -> bytes:
    out = io.BytesIO()
    while (lacking := size - out.tell()) > 0:
        try:
            chunk = member.read(min(lacking, 1 << 20))
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise Malformed(f"the archive is damaged: {error}") from None
        if not chunk:
            raise Malformed("the archive ends too early")
        out.write(chunk)
    return out.getvalue()
