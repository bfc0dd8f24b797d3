"""Uploaded data sets, opened in the child: a table, arrays, or images in class folders, all seen as columns of records.

The kind of a file is told by its content, never by its name. Whatever is wrong becomes a sentence: what was found, what is
needed, what to do.
"""

import codecs
import csv
import io
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from audits.engine import wire
from audits.engine.pictures import read_pictures
from audits.methods.contract import Array
from audits.methods.errors import RefusedArtifact, UnreadableArtifact, UnsuitableInput

if TYPE_CHECKING:
    import polars as pl

MISSING = ("", "NA", "N/A", "n/a", "?", "null", "NULL", "nan", "NaN", "None")
MAX_COLUMNS = 5_000
MAX_ARRAY_BYTES = 4 << 30
SHOWN = 80  # characters of one example


class Dataset(Protocol):
    """Records in columns, read when asked for."""

    format: str
    rows: int
    names: tuple[str, ...]
    warnings: tuple[str, ...]

    def column(self, name: str) -> Array:
        """Values of a column (n, ...): numbers with NaN, or objects (str, arrays) with None where missing."""

    def kind(self, name: str) -> str:
        """number, boolean, text, date, tokens, vector or image."""

    def frame(self, names: Sequence[str]) -> "pl.DataFrame":
        """Columns as a polars table with their own types, for models that read tables."""


def open_dataset(path: str) -> Dataset:
    """Opens a file by its content. Raises UnreadableArtifact or RefusedArtifact in words."""
    with open(path, "rb") as file:
        head = file.read(4096)
    if not head:
        raise UnreadableArtifact("The file is empty (0 bytes). Choose the file again.")
    if head.startswith(b"PAR1"):
        return _table("Parquet", path)
    if head.startswith(b"ARROW1"):
        return _table("Arrow", path)
    if head.startswith(b"PK\x03\x04"):
        return _from_zip(path)
    if head.startswith(b"\x93NUMPY"):
        return ArrayData("NPY", {"values": _one_array(path)})
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        raise RefusedArtifact(
            "This is a Python pickle; opening one runs code that its author chose. Save the data as CSV, Parquet or NPZ."
        )
    if head.startswith(b"\x89HDF"):
        raise RefusedArtifact("This is an HDF5 file, which is not read. Save the data as CSV, Parquet or NPZ.")
    return _text(path, head)


# --------------------------------------------------------------------------------------------------------------- tables


class TableData:
    """A polars table."""

    def __init__(self, kind: str, table: "pl.DataFrame", warnings: Sequence[str] = ()) -> None:
        if table.width > MAX_COLUMNS:
            raise UnreadableArtifact(f"The file has {table.width:,} columns; at most {MAX_COLUMNS:,} are read.")
        if table.height == 0:
            raise UnreadableArtifact("The file has a header but no rows. Upload a file with at least one record.")
        left_out = [name for name, dtype in table.schema.items() if not _is_readable(dtype)]
        table = table.drop(left_out)
        names = [str(name).strip().lstrip("\ufeff") for name in table.columns]
        self.format = kind
        self.table = (
            table.rename(dict(zip(table.columns, names, strict=True))) if len(set(names)) == len(names) else table
        )
        self.rows = table.height
        self.names = tuple(self.table.columns)
        told = [f"“{wire.printable(n)[:60]}” holds nested or binary values and was left out." for n in left_out]
        self.warnings = (*warnings, *told)

    def kind(self, name: str) -> str:
        """See Dataset."""
        import polars as pl

        dtype = self.table.schema[name]
        if dtype.is_numeric():
            return "number"
        if dtype == pl.Boolean:
            return "boolean"
        if dtype.is_temporal():
            return "date"
        if isinstance(dtype, pl.List | pl.Array):
            inner = dtype.inner
            return "tokens" if inner is not None and inner.is_integer() else "vector"
        return "text"

    def column(self, name: str) -> Array:
        """See Dataset."""
        import polars as pl

        series = self.table[name]
        kind = self.kind(name)
        if kind == "number":
            if series.null_count() or not series.dtype.is_integer():
                return series.cast(pl.Float64).to_numpy()
            return series.cast(pl.Int64).to_numpy()
        if kind in ("tokens", "vector"):
            return _objects([None if v is None else np.asarray(v.to_numpy()) for v in series])
        texts = series.cast(pl.String).to_list()
        return _objects([None if t is None or t.strip() in MISSING else t.strip() for t in texts])

    def frame(self, names: Sequence[str]) -> "pl.DataFrame":
        """See Dataset."""
        return self.table.select(names)


def _is_readable(dtype: Any) -> bool:
    import polars as pl

    if isinstance(dtype, pl.List | pl.Array):
        return dtype.inner is not None and dtype.inner.is_numeric()
    return not (dtype.is_nested() or dtype in (pl.Binary, pl.Object))


def _objects(values: Sequence[Any]) -> Array:
    out = np.empty(len(values), object)
    for i, value in enumerate(values):
        out[i] = value
    return out


@contextmanager
def _reading(kind: str) -> Iterator[None]:
    """Turns what the table library says of a damaged file into a sentence."""
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, OverflowError) as error:
        said = wire.printable(str(error)).strip().splitlines() or [""]
        raise UnreadableArtifact(
            f"The {kind} file is damaged, cut off, or not {kind}: {said[0][:200]}. Export it again and compare its size."
        ) from None


def _table(kind: str, path: str) -> TableData:
    import polars as pl

    with _reading(kind):
        return TableData(kind, pl.read_parquet(path) if kind == "Parquet" else pl.read_ipc(path))


def _text(path: str, head: bytes) -> TableData:
    """CSV with any usual delimiter and encoding, or JSON Lines."""
    import polars as pl

    content, encoding = _decoded(path, head)
    if "\n" not in content:
        content = content.replace("\r", "\n")
    start = content.lstrip()[:200]
    if not start:
        raise UnreadableArtifact("The file holds nothing but blanks. Choose the file again.")
    if start.startswith("<"):
        raise UnreadableArtifact(
            "This is an HTML or XML page, not data. Was the download link of a sign-in page saved instead?"
        )
    if start.startswith("{"):
        with _reading("JSON Lines"):
            return TableData("JSON Lines", pl.read_ndjson(io.BytesIO(content.encode())))
    warnings = [] if encoding in ("utf-8", "utf-8-sig") else [f"The file is not UTF-8; it was read as {encoding}."]
    return _csv(content, warnings)


def _decoded(path: str, head: bytes) -> tuple[str, str]:
    encodings = ["utf-8-sig", "cp1252", "latin-1"]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encodings = ["utf-16"]
    elif b"\x00" in head:
        raise UnreadableArtifact(
            "This file is binary and of no known kind. Data sets are CSV, TSV, Parquet, Arrow, JSON Lines, NPZ or a zip of images."
        )
    with open(path, "rb") as file:
        raw = file.read()
    for encoding in encodings:
        try:
            return raw.decode(encoding), encoding
        except UnicodeDecodeError:
            continue
    raise UnreadableArtifact("The text of this file is in no encoding that is known here. Save it as UTF-8.")


def delimiter_of(sample: str) -> str | None:
    """The separator that splits the first lines most evenly into more than one field; None where none does."""
    lines = [line for line in sample.splitlines()[:50] if line.strip()]
    best, score = None, 0.0
    for candidate in (",", ";", "\t", "|"):
        widths = [len(row) for row in csv.reader(lines, delimiter=candidate)]
        if not widths or widths[0] < 2:
            continue
        even = sum(width == widths[0] for width in widths) / len(widths)
        if even > score or (even == score and best and widths[0] > 2):
            best, score = candidate, even
    return best


def _csv(content: str, warnings: list[str]) -> TableData:
    import polars as pl

    delimiter = delimiter_of(content[:200_000])
    if delimiter is None:
        first = content.strip().splitlines()[0][:60]
        raise UnreadableArtifact(
            f"Only one column was found (“{first}”): none of comma, semicolon, tab and bar separates the fields. "
            "An audit needs a label and a group at least. Check the separator and the header line."
        )
    lines = content.splitlines()
    header = next(csv.reader(lines[:1], delimiter=delimiter))
    if sum(bool(re.fullmatch(r"-?\d+([.,]\d+)?", field.strip())) for field in header) > len(header) / 2:
        warnings.append("The first line looks like data, not like column names; it was taken as the header.")
    if len(set(header)) < len(header):
        warnings.append("Some column names occur twice; the later ones were given a number.")
    with _reading("CSV"):
        table = pl.read_csv(
            io.BytesIO(content.encode()),
            separator=delimiter,
            null_values=list(MISSING),
            infer_schema=False,
        )
        table = table.select(_typed(table[name]) for name in table.columns)
    return TableData("TSV" if delimiter == "\t" else "CSV", table, warnings)


def _typed(texts: "pl.Series") -> "pl.Series":
    """A column of texts as whole numbers, numbers or truth values where every value is one; blanks around them do not count."""
    import polars as pl

    stripped = texts.str.strip_chars()
    stripped = stripped.set(stripped.is_in(MISSING), None)
    for dtype in (pl.Int64, pl.Float64):
        numbers = stripped.cast(dtype, strict=False)
        if numbers.null_count() == stripped.null_count() < len(stripped):
            return numbers
    truths = stripped.str.to_lowercase()
    return (
        truths == "true"
        if truths.drop_nulls().is_in(["true", "false"]).all() and len(truths.drop_nulls())
        else stripped
    )


# --------------------------------------------------------------------------------------------------------------- arrays


class ArrayData:
    """Named arrays with one entry per record along their first axis."""

    def __init__(self, kind: str, arrays: Mapping[str, Array], warnings: Sequence[str] = ()) -> None:
        lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
        if not lengths:
            raise UnreadableArtifact("The file holds no arrays.")
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {n:,}" for name, n in list(lengths.items())[:8])
            raise UnreadableArtifact(
                f"The arrays differ in their number of records ({told}). Give every array one entry per record."
            )
        self.format = kind
        self.arrays = dict(arrays)
        self.rows = next(iter(lengths.values()))
        if self.rows == 0:
            raise UnreadableArtifact("The arrays have no records.")
        self.names = tuple(arrays)
        self.warnings = tuple(warnings)

    def kind(self, name: str) -> str:
        """See Dataset."""
        array = self.arrays[name]
        if array.ndim == 1:
            return "text" if array.dtype.kind in "US" else "boolean" if array.dtype.kind == "b" else "number"
        if array.ndim == 2:
            return "tokens" if array.dtype.kind in "iu" and array.dtype.itemsize > 1 else "vector"
        return "image"

    def column(self, name: str) -> Array:
        """See Dataset."""
        array = self.arrays[name]
        if self.kind(name) in ("text", "boolean"):
            texts = [str(v).lower() if isinstance(v, bool) else str(v).strip() for v in array.tolist()]
            return _objects([None if t in MISSING else t for t in texts])
        if array.ndim == 1:
            return array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
        return array

    def frame(self, names: Sequence[str]) -> "pl.DataFrame":
        """See Dataset."""
        import polars as pl

        if many := [name for name in names if self.arrays[name].ndim > 1]:
            raise UnsuitableInput(
                f"“{many[0]}” holds an array per record; a table of model inputs needs one value per record."
            )
        return pl.DataFrame({name: self.column(name) for name in names})


def _one_array(path: str) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UnreadableArtifact(f"The array cannot be read: {error}.") from None
    return np.asarray(array)


def _from_zip(path: str) -> Dataset:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            names = [member.filename for member in members]
            if names and all(name.endswith(".npy") for name in names):
                return _from_npz(path)
            if "[Content_Types].xml" in names:
                raise UnreadableArtifact("This is an Excel or Office file. Save the sheet as CSV.")
            if any(name.endswith(".pkl") for name in names):
                raise RefusedArtifact(
                    "This archive holds a Python pickle; opening one runs code. Save data as CSV, Parquet or NPZ, "
                    "and upload a network's weights as a model."
                )
            arrays, warnings = read_pictures(archive, members)
            return ArrayData("images", arrays, warnings)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise UnreadableArtifact(f"The zip archive is damaged or cut off: {error}. Make it again.") from None


def _from_npz(path: str) -> ArrayData:
    try:
        arrays = wire.read_arrays(path, MAX_ARRAY_BYTES, kinds=wire.NUMBERS + "U")
    except wire.Malformed as error:
        words = str(error)
        if "type object" in words or "has the type" in words:
            raise RefusedArtifact(
                f"The NPZ file holds an array of Python objects ({words}); those are pickles, which run code when opened. "
                "Save numbers or fixed-width texts."
            ) from None
        raise UnreadableArtifact(f"The NPZ file cannot be read: it {words}.") from None
    return ArrayData("NPZ", arrays)


# ----------------------------------------------------------------------------------------------------------- inspection


def describe(dataset: Dataset) -> dict[str, Any]:
    """What was read, as plain values: format, rows, columns with type, missing, distinct, examples, suggested role."""
    columns = [_describe_column(dataset, name) for name in dataset.names]
    _suggest_roles(columns)
    return {
        "kind": "dataset",
        "format": dataset.format,
        "rows": dataset.rows,
        "columns": columns,
        "warnings": [*dataset.warnings, *_warnings(columns, dataset.rows)],
    }


def _describe_column(dataset: Dataset, name: str) -> dict[str, Any]:
    kind, values = dataset.kind(name), dataset.column(name)
    told: dict[str, Any] = {"name": name, "type": kind, "shape": [], "missing": 0, "distinct": None, "examples": []}
    if kind in ("image", "vector") and values.dtype != object:
        told["shape"] = [int(side) for side in values.shape[1:]]
        return told
    if kind in ("tokens", "vector"):
        told["examples"] = [" ".join(map(str, row[:8]))[:SHOWN] for row in values[:3] if row is not None]
        return told
    if values.dtype == object:
        present = [v for v in values if v is not None]
        distinct = list(dict.fromkeys(present))
    else:
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
        distinct = np.unique(values[~missing]).tolist()
        present = values[~missing].tolist() if missing.any() else values.tolist()
    told |= {
        "missing": len(values) - len(present),
        "distinct": len(distinct),
        "examples": [wire.printable(f"{v:g}" if isinstance(v, float) else str(v))[:SHOWN] for v in distinct[:5]],
    }
    return told


_NAMES: Mapping[str, str] = {
    "y_true": r"y_?true|label|labels|target|outcome|ground_?truth|income|class|y",
    "y_pred": r"y_?pred|pred|prediction|predicted|decision",
    "y_score": r"y_?score|score|prob|probability|proba|p_?hat",
    "sample_weight": r"sample_?weight|weight|fnlwgt",
    "sensitive_features": r"sex|gender|race|ethnicity|age_?group|religion|nationality|disability|marital_?status",
    "is_member": r"is_?member|member|in_?train|included",
    "record_loss": r"record_?loss|member_?loss|loss",
    "canary_score": r"canary_?score",
    "trigger_label": r"trigger_?labels?|secret_?labels?",
    "reference_predictions": r"reference_\w+",
    "token_ids": r"token_?ids|tokens|input_?ids",
    "embeddings": r"embeddings?|features|activations",
    "images": r"images?|x",
}
_FITS: Mapping[str, tuple[str, ...]] = {
    "token_ids": ("tokens", "text"),
    "embeddings": ("vector", "tokens"),
    "images": ("image",),
}


def _suggest_roles(columns: list[dict[str, Any]]) -> None:
    """A role by name and content; each role that takes one column is suggested once."""
    used: set[str] = set()
    for column in columns:
        column["suggested_role"] = ""
        for role, pattern in _NAMES.items():
            fits = _FITS.get(role, ("number", "text", "boolean"))
            if column["type"] not in fits or not re.fullmatch(
                pattern, column["name"].strip().lower().replace(" ", "_").replace("-", "_")
            ):
                continue
            if role in used and role not in ("sensitive_features", "reference_predictions"):
                continue
            used.add(role)
            column["suggested_role"] = role
            break


def _warnings(columns: Sequence[Mapping[str, Any]], rows: int) -> list[str]:
    said = []
    for column in columns:
        name = str(column["name"])[:60]
        if column["distinct"] == 1 and rows > 1:
            said.append(f"“{name}” has the same value in every record.")
        if column["missing"] == rows:
            said.append(f"“{name}” is empty in every record.")
        elif column["missing"]:
            said.append(f"“{name}” is missing in {column['missing']:,} of {rows:,} records.")
    return said[:50]
