"""What models ask of a table of records: its columns by name, or a matrix of the right width."""

from collections.abc import Mapping, Sequence
from typing import Any

from audits.engine.wire import printable
from audits.methods.contract import Array
from audits.methods.errors import UnsuitableInput


def as_table(x: Any) -> Any:
    """A dict of columns as a polars table; images and tables as they are."""
    if not isinstance(x, Mapping):
        return x
    import polars as pl

    return pl.DataFrame(dict(x))


def matrix(x: Any) -> Array:
    """The columns of a polars table as a float32 matrix (n, d). Raises UnsuitableInput for a column of texts."""
    for name, dtype in x.schema.items():
        if not (dtype.is_numeric() or str(dtype) == "Boolean"):
            raise UnsuitableInput(
                f"The model reads numbers, but the column “{name}” holds text. Encode it as the model was trained, or choose other columns."
            )
    out: Array = x.cast(dict.fromkeys(x.columns, _float32())).to_numpy()
    return out


def _float32() -> Any:
    import polars as pl

    return pl.Float32


def check_columns(wanted: Sequence[str], given: Sequence[str]) -> None:
    """Raises UnsuitableInput naming the columns that the model reads and the table lacks."""
    lacking = [name for name in wanted if name not in given]
    if lacking:
        raise UnsuitableInput(
            f"The model reads {len(wanted)} inputs ({some(wanted)}); the chosen columns give {len(given)}. Missing: {some(lacking)}. "
            "Choose the model's own input columns under “Model inputs”."
        )


def check_width(wanted: int | None, given: int) -> None:
    """Raises UnsuitableInput where a matrix has another width than the model reads; None is any width."""
    if wanted is not None and wanted != given:
        raise UnsuitableInput(
            f"The model reads {wanted} inputs; the chosen columns give {given}. Choose exactly the model's input columns, in its order."
        )


def some(names: Sequence[str]) -> str:
    """The first dozen names, fit to be shown."""
    return ", ".join(printable(name)[:40] for name in names[:12]) + (", …" if len(names) > 12 else "")
