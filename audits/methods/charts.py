"""The kinds of figure that reports draw. Each returns a `Figure`: plotly traces as plain values, a text alternative and
the table of its numbers. Colours come by slot (`SLOT_0`...), so that one result can be drawn in the dark and in the light.
"""

import base64
import io
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from audits.methods.contract import Array, Table

SLOTS = tuple(f"SLOT_{i}" for i in range(6))  # replaced by the page's own colours when it draws
INK = "INK"
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, direction marks and other formats, half characters, separators


def plot_text(text: object, length: int = 60) -> str:
    """Text that plotly shows as it stands: it reads `<b>`, `<a>`, entities, `$` and `%{` in labels, so those are replaced."""
    clean = "".join(c for c in unicodedata.normalize("NFC", str(text)) if unicodedata.category(c) not in _HIDDEN)
    clean = clean.replace("&", "＆").replace("<", "‹").replace(">", "›").replace("$", "＄").replace("%{", "％{")
    return clean if len(clean) <= length else clean[: length - 1] + "…"


def plot_labels(labels: Sequence[object]) -> list[str]:
    """`plot_text` of each label, numbered where two would look the same: plotly draws equal categories on one another."""
    names: dict[str, None] = {}  # in order
    for label in labels:
        name, copy = plot_text(label), 1
        while name in names:
            copy += 1
            name = f"{plot_text(label, 52)} ({copy})"
        names[name] = None
    return list(names)


@dataclass(frozen=True)
class Figure:
    """One figure: `traces` and `layout` are plotly's, `pictures` are (caption, PNG data address) pairs drawn as they are."""

    title: str
    alt: str
    table: Table
    traces: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)
    pictures: list[tuple[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values for the page's script."""
        return asdict(self)


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": plot_text(title)}, **more}


def _numbers(values: Sequence[float | None] | Array) -> list[float | None]:
    return [None if v is None or not np.isfinite(v) else float(v) for v in values]


def intervals(
    title: str,
    labels: Sequence[str],
    values: Sequence[float | None],
    lows: Sequence[float | None],
    highs: Sequence[float | None],
    *,
    x_title: str,
    alt: str,
    reference: float | None = None,
    reference_name: str = "",
    counts: Sequence[int] | None = None,
) -> Figure:
    """A dot with its interval per label, one row each; undefined rows keep their label and say so in the table."""
    x, low, high = _numbers(values), _numbers(lows), _numbers(highs)
    names = plot_labels(labels)
    plus = [None if v is None or h is None else h - v for v, h in zip(x, high, strict=True)]
    minus = [None if v is None or w is None else v - w for v, w in zip(x, low, strict=True)]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": names,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": plus,
            "arrayminus": minus,
            "color": SLOTS[0],
            "thickness": 2,
            "width": 5,
        },
        "marker": {"color": SLOTS[0], "size": 9},
        "hovertemplate": "%{y}: %{x:.4g}<extra></extra>",
        "showlegend": False,
    }
    layout: dict[str, Any] = {
        "xaxis": _axis(x_title),
        "yaxis": {"automargin": True, "autorange": "reversed", "type": "category"},
        "height": max(220, 90 + 30 * len(names)),
    }
    if reference is not None:
        reference = float(reference)
        layout["shapes"] = [
            {
                "type": "line",
                "x0": reference,
                "x1": reference,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": INK, "dash": "dot", "width": 1.5},
            }
        ]
        layout["annotations"] = [
            {
                "x": reference,
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "showarrow": False,
                "text": plot_text(reference_name),
            }
        ]
    columns = ("Group", *(("Records",) if counts is not None else ()), x_title, "Low", "High")
    rows = []
    for i, label in enumerate(labels):
        rows.append((label, *((int(counts[i]),) if counts is not None else ()), x[i], low[i], high[i]))
    return Figure(title, alt, Table(title, columns, tuple(rows)), [trace], layout)


class Series(NamedTuple):
    """One line of a `lines` figure; `low` and `high` draw a band around it."""

    name: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None


def lines(
    title: str,
    series: Sequence[Series],
    *,
    x_title: str,
    y_title: str,
    alt: str,
    diagonal: bool = False,
    log: bool = False,
    markers: bool = False,
) -> Figure:
    """Curves over a common axis, with bands where given; `diagonal` adds the line of the ideal value, `log` uses log axes."""
    traces: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    for slot, one in enumerate(series):
        colour = SLOTS[slot % len(SLOTS)]
        name = plot_text(one.name)
        if one.low is not None and one.high is not None:
            band = {
                "type": "scatter",
                "mode": "lines",
                "x": _numbers(one.x),
                "line": {"width": 0},
                "hoverinfo": "skip",
                "showlegend": False,
                "legendgroup": name,
            }
            traces.append({**band, "y": _numbers(one.low)})
            traces.append({**band, "y": _numbers(one.high), "fill": "tonexty", "fillcolor": colour + "_BAND"})
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if markers else "lines",
                "name": name,
                "legendgroup": name,
                "x": _numbers(one.x),
                "y": _numbers(one.y),
                "line": {"color": colour, "width": 2, "dash": ("solid", "dash", "dot", "dashdot")[slot % 4]},
                "hovertemplate": f"{name}: %{{x:.3g}}, %{{y:.3g}}<extra></extra>",
            }
        )
        low = one.low if one.low is not None else [None] * len(one.x)
        high = one.high if one.high is not None else [None] * len(one.x)
        rows.extend(
            (one.name, *cells)
            for cells in zip(_numbers(one.x), _numbers(one.y), _numbers(low), _numbers(high), strict=True)
        )
    if diagonal:
        start = 1e-4 if log else 0.0
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [start, 1],
                "y": [start, 1],
                "line": {"color": INK, "dash": "dot", "width": 1.5},
                "hoverinfo": "skip",
                "showlegend": False,
            }
        )
    kind = {"type": "log"} if log else {}
    layout = {
        "xaxis": _axis(x_title, **kind),
        "yaxis": _axis(y_title, **kind),
        "height": 380,
        "legend": {"orientation": "h", "y": -0.25},
    }
    return Figure(title, alt, Table(title, ("Series", x_title, y_title, "Low", "High"), tuple(rows)), traces, layout)


def histogram(
    title: str,
    values: Array,
    *,
    x_title: str,
    alt: str,
    marker: float | None = None,
    marker_name: str = "",
    second: Array | None = None,
    names: tuple[str, str] = ("", ""),
    bins: int = 40,
) -> Figure:
    """Counts of `values` (and of a `second` sample) in equal bins, with a line where the observed value stands."""
    everything = np.concatenate(
        [values, *([second] if second is not None else []), *([np.array([marker])] if marker is not None else [])]
    )
    edges = np.histogram_bin_edges(everything, bins=bins)
    centres = (edges[:-1] + edges[1:]) / 2
    traces, columns, counted = [], [x_title + ", from", "to"], []
    for slot, sample in enumerate([values] if second is None else [values, second]):
        counts, _ = np.histogram(sample, edges)
        counted.append(counts)
        columns.append(names[slot] or "Count")
        traces.append(
            {
                "type": "bar",
                "x": centres.tolist(),
                "y": counts.tolist(),
                "width": float(edges[1] - edges[0]),
                "name": plot_text(names[slot] or "Count"),
                "marker": {
                    "color": SLOTS[slot],
                    "opacity": 0.75,
                    "pattern": {"shape": ("", "/")[slot], "fillmode": "overlay"},
                },
                "showlegend": second is not None,
                "hovertemplate": "%{x:.4g}: %{y}<extra></extra>",
            }
        )
    layout: dict[str, Any] = {
        "xaxis": _axis(x_title),
        "yaxis": _axis("Count"),
        "barmode": "overlay",
        "bargap": 0,
        "height": 320,
        "legend": {"orientation": "h", "y": -0.3},
    }
    if marker is not None:
        marker = float(marker)
        layout["shapes"] = [
            {
                "type": "line",
                "x0": marker,
                "x1": marker,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": SLOTS[1], "width": 3},
            }
        ]
        layout["annotations"] = [
            {
                "x": marker,
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "showarrow": False,
                "text": plot_text(marker_name),
            }
        ]
    rows = tuple((float(edges[i]), float(edges[i + 1]), *(int(c[i]) for c in counted)) for i in range(len(centres)))
    return Figure(title, alt, Table(title, tuple(columns), rows), traces, layout)


def bars(
    title: str,
    labels: Sequence[str],
    values: Sequence[float | None],
    *,
    y_title: str,
    alt: str,
    reference: float | None = None,
    reference_name: str = "",
    highlight: int | None = None,
) -> Figure:
    """One bar per label; `highlight` marks the one that stands out by colour and pattern."""
    numbers = _numbers(values)
    trace = {
        "type": "bar",
        "x": plot_labels(labels),
        "y": numbers,
        "marker": {
            "color": [SLOTS[1] if i == highlight else SLOTS[0] for i in range(len(numbers))],
            "pattern": {
                "shape": ["/" if i == highlight else "" for i in range(len(numbers))],
                "fillmode": "overlay",  # the colour stays, the pattern is drawn on it
            },
        },
        "hovertemplate": "%{x}: %{y:.4g}<extra></extra>",
        "showlegend": False,
    }
    layout: dict[str, Any] = {"xaxis": {"type": "category", "automargin": True}, "yaxis": _axis(y_title), "height": 320}
    if reference is not None:
        reference = float(reference)
        layout["shapes"] = [
            {
                "type": "line",
                "x0": 0,
                "x1": 1,
                "xref": "paper",
                "y0": reference,
                "y1": reference,
                "line": {"color": INK, "dash": "dot", "width": 1.5},
            }
        ]
        layout["annotations"] = [
            {
                "x": 1,
                "xref": "paper",
                "y": reference,
                "xanchor": "right",
                "yanchor": "bottom",
                "showarrow": False,
                "text": plot_text(reference_name),
            }
        ]
    return Figure(title, alt, Table(title, ("", y_title), tuple(zip(labels, numbers, strict=True))), [trace], layout)


def pictures(title: str, images: Array, captions: Sequence[str], *, alt: str, table: Table, scale: int = 4) -> Figure:
    """Small pictures in a row, nearest-neighbour enlarged. `images` (m, channels, height, width) in [0, 1], 1 or 3 channels."""
    drawn = [(caption, _png(image, scale)) for caption, image in zip(captions, images, strict=True)]
    return Figure(title, alt, table, pictures=drawn)


def _png(image: Array, scale: int) -> str:
    from PIL import Image

    pixels = np.moveaxis(np.clip(image, 0, 1) * 255, 0, -1).round().astype(np.uint8)
    pixels = pixels.repeat(scale, axis=0).repeat(scale, axis=1)
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3])
    out = io.BytesIO()
    picture.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
