"""The kinds of figure: text that plotly cannot misread, plain values that serialise, and a table of the same numbers."""

import base64
import io
import json

import numpy as np
import pytest

from audits.methods.charts import Figure, Series, bars, histogram, intervals, lines, pictures, plot_labels, plot_text
from audits.methods.contract import Table

HOSTILE = '<a href="javascript:alert(1)">x</a><b>&lt;i&gt;</b>$\\alpha$ %{y}\u202egnp.exe\u2066\u200b\x00\x1b[31m\ud800'


def as_json(figure):
    """The figure as the page's script gets it; NaN and anything that is not plain data are errors."""
    return json.loads(json.dumps(figure.to_json(), allow_nan=False, ensure_ascii=False).encode())


# text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ε ≤ 1 × 2", "plain, ε ≤ 1 × 2"),
        ("<b>bold</b>", "‹b›bold‹/b›"),
        ("a &amp; b", "a ＆amp; b"),
        ("$x^2$", "＄x^2＄"),
        ("%{y} but 5 %", "％{y} but 5 %"),
        ("ab\u202ecd\u2069\u200f\u061c", "abcd"),
        ("zero\u200bwidth\ufeff\u00ad", "zerowidth"),
        ("tag\U000e0041", "tag"),
        ("line\nfeed\u2028\x9b", "linefeed"),
        ("half\ud800", "half"),
        ("e\u0301", "é"),
        (1.5, "1.5"),
        (None, "None"),
        ("", ""),
    ],
)
def test_text_shows_as_it_stands(text, shown):
    assert plot_text(text) == shown


def test_long_text_is_cut_with_an_ellipsis():
    assert plot_text("x" * 60) == "x" * 60
    assert plot_text("x" * 61) == "x" * 59 + "…"
    assert len(plot_text("\u202e<" * 10_000)) == 60
    assert plot_text("abcdef", 4) == "abc…"


def test_labels_that_would_look_the_same_are_told_apart():
    stem = "a" * 70
    assert plot_labels(["x", "x\u200b", "y"]) == ["x", "x (2)", "y"]
    shown = plot_labels([stem + "1", stem + "2", stem + "3"])
    assert len(set(shown)) == 3
    assert max(map(len, shown)) <= 60
    assert len(set(plot_labels(["x", "x (2)", "x", "x"]))) == 4


# every kind


def some_figures(label="group"):
    return {
        "intervals": intervals(
            label,
            [label, "other", "undefined"],
            [np.float32(0.5), 0.25, None],
            [0.4, None, None],
            [0.6, 0.3, None],
            x_title=label,
            alt="alt",
            reference=np.float32(0.5),
            reference_name=label,
            counts=[np.int64(3), 4, 0],
        ),
        "lines": lines(
            label,
            [
                Series(label, np.arange(3), np.array([0.1, np.nan, 0.3]), np.zeros(3), np.ones(3)),
                Series("plain", np.arange(2.0), np.arange(2.0)),
            ],
            x_title=label,
            y_title=label,
            alt="alt",
            diagonal=True,
            log=True,
        ),
        "histogram": histogram(
            label,
            np.arange(10),
            x_title=label,
            alt="alt",
            marker=np.float32(4.0),
            marker_name=label,
            second=np.arange(5.0),
            names=(label, "other"),
        ),
        "bars": bars(
            label,
            [label, "other"],
            [np.float32(1), None],
            y_title=label,
            alt="alt",
            reference=np.float32(0.5),
            reference_name=label,
            highlight=0,
        ),
        "pictures": pictures(
            label, np.full((2, 3, 4, 5), 0.5), [label, "other"], alt="alt", table=Table(label, ("a",), ((1,),))
        ),
    }


@pytest.mark.parametrize("kind", ["intervals", "lines", "histogram", "bars", "pictures"])
def test_figure_is_plain_data_with_a_table_and_an_alternative(kind):
    figure = some_figures()[kind]
    assert isinstance(figure, Figure)
    plain = as_json(figure)
    assert plain["alt"] == "alt"
    assert plain["table"]["rows"]


@pytest.mark.parametrize("kind", ["intervals", "lines", "histogram", "bars"])
def test_no_markup_or_hidden_character_reaches_what_plotly_draws(kind):
    figure = some_figures(HOSTILE)[kind]
    drawn = json.dumps([figure.traces, figure.layout], ensure_ascii=False)
    drawn = drawn.replace("<extra></extra>", "")  # our own, hides the second box of a hover label
    for bad in ("<", ">", "&", "$", "\u202e", "\u2066", "\u200b", "\\u0000", "\\u001b", "\ud800"):
        assert bad not in drawn
    templates = [trace.get("hovertemplate", "") for trace in figure.traces]
    assert not any(template.startswith("‹a") and "%{y}＄" in template for template in templates)
    assert figure.table.title == HOSTILE  # the table keeps the real name; the template escapes it


def test_intervals_by_hand():
    figure = some_figures()["intervals"]
    (trace,) = figure.traces
    assert trace["x"] == [0.5, 0.25, None]
    assert trace["error_x"]["array"] == pytest.approx([0.1, 0.05, None])
    assert trace["error_x"]["arrayminus"] == [pytest.approx(0.1), None, None]
    assert figure.table.columns == ("Group", "Records", "group", "Low", "High")
    assert figure.table.rows[2] == ("undefined", 0, None, None, None)


def test_equal_names_keep_rows_of_their_own():
    figure = intervals("t", ["x" * 80, "x" * 81], [1, 2], [0, 1], [2, 3], x_title="x", alt="a")
    assert len(set(figure.traces[0]["y"])) == 2
    assert len(set(bars("t", ["x", "x"], [1, 2], y_title="y", alt="a").traces[0]["x"])) == 2


def test_lines_draw_band_then_curve_then_diagonal():
    figure = some_figures()["lines"]
    low, high, curve, plain, diagonal = figure.traces
    assert low["y"] == [0, 0, 0]
    assert (high["y"], high["fill"]) == ([1, 1, 1], "tonexty")
    assert curve["y"] == [0.1, None, 0.3]
    assert plain["line"]["dash"] != curve["line"]["dash"]  # colour is never the only sign
    assert diagonal["x"][0] > 0  # a log axis has no 0
    assert figure.layout["xaxis"]["type"] == figure.layout["yaxis"]["type"] == "log"
    assert len(figure.table.rows) == 5


def test_histogram_counts_everything_once():
    values, second = np.array([0.0, 0.1, 0.9, 1.0]), np.array([0.5, 2.0])
    figure = histogram("t", values, x_title="x", alt="a", second=second, names=("a", "b"), marker=3.0, bins=6)
    assert [sum(trace["y"]) for trace in figure.traces] == [4, 2]
    assert figure.traces[0]["width"] == pytest.approx(0.5)
    assert figure.table.rows[0][:2] == (0.0, 0.5)
    assert figure.table.rows[-1][1] == 3.0  # the marker lies inside the axis
    assert [row[2:] for row in figure.table.rows] == [(2, 0), (1, 1), (1, 0), (0, 0), (0, 1), (0, 0)]


@pytest.mark.parametrize("values", [np.array([]), np.ones(5), np.array([1e300, -1e300])])
def test_histogram_of_odd_samples_is_drawn(values):
    figure = histogram("t", values, x_title="x", alt="a")
    as_json(figure)
    assert sum(figure.traces[0]["y"]) == values.size


def test_bars_mark_the_highlight_by_pattern_too():
    (trace,) = some_figures()["bars"].traces
    assert trace["marker"]["pattern"]["shape"] == ["/", ""]
    assert trace["marker"]["color"][0] != trace["marker"]["color"][1]


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_enlarged_png(channels):
    from PIL import Image

    image = np.zeros((1, channels, 2, 3))
    image[0, 0, 0, 0] = 2.0  # above the range: clipped
    figure = pictures("t", image, ["c"], alt="a", table=Table("t", ("a",), ()), scale=4)
    ((caption, address),) = figure.pictures
    assert caption == "c"
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(address.removeprefix("data:image/png;base64,")))))
    assert picture.shape[:2] == (8, 12)
    assert picture.reshape(8, 12, -1)[3, 3, 0] == 255
    assert picture.reshape(8, 12, -1)[4:, 4:].max() == 0
