"""Numbers as people read them."""

import pytest

from audits.methods.contract import Bound, Measurement
from audits.templatetags import numbers as n

NBSP, THIN = "\N{NO-BREAK SPACE}", "\N{NARROW NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "—"),
        (0, "0"),
        (0.0, "0"),
        (0.21345, "0.213"),
        (12.0, "12"),
        (1234.5678, "1235"),
        (24421, f"24{THIN}421"),
        (1234567.0, f"1{THIN}234{THIN}567"),
        (-0.5, "−0.5"),
        (0.00001234, f"1.23{NBSP}×{NBSP}10⁻⁵"),
        (3.2e9, f"3.2{NBSP}×{NBSP}10⁹"),
        (True, "yes"),
        ("text", "text"),
    ],
)
def test_numbers(value: object, shown: str) -> None:
    assert n.number(value) == shown


def test_units_stand_after_the_number() -> None:
    assert n.number(2.5, "nats") == f"2.5{NBSP}nats"
    assert n.number(12, "%") == f"12{THIN}%"


@pytest.mark.parametrize(
    ("p", "shown"), [(None, "—"), (0.0, "p < 0.001"), (0.00099, "p < 0.001"), (0.0342, "p = 0.034"), (0.5, "p = 0.50")]
)
def test_p_values(p: float | None, shown: str) -> None:
    assert n.p_value(p).replace(NBSP, " ") == shown


def measurement(**more: object) -> Measurement:
    parts = {"name": "gap", "value": 0.2134, "low": 0.1809, "high": 0.2461, "level": 0.95}
    return Measurement(**(parts | more))


def test_the_interval_decides_how_precise_a_value_is() -> None:
    assert ">0.213<" in n.value(measurement())
    assert n.interval(measurement()) == "0.181 to 0.246"
    assert ">0.2<" in n.value(measurement(low=-1.0, high=1.5))
    assert n.interval(measurement(value=52.34, low=31.2, high=77.9)) == "31 to 78"


def test_value_and_interval_in_one_line() -> None:
    assert "(95\N{NARROW NO-BREAK SPACE}% interval 0.181 to 0.246)" in n.measured(measurement())
    assert "nats" in n.measured(measurement(unit="nats"))


def test_open_intervals_are_said_in_words() -> None:
    assert n.interval(measurement(high=None)) == "at least 0.181"
    assert n.interval(measurement(low=None)) == "at most 0.246"
    assert n.interval(measurement(low=None, high=None)) == "—"


def test_undefined_is_a_dash_with_its_reason_and_never_zero() -> None:
    shown = n.measured(Measurement("gap", None, undefined="no positives in <B>"))
    assert shown == '— <span class="undefined">no positives in &lt;B&gt;</span>'


def test_stored_measurements_read_like_fresh_ones() -> None:
    assert n.measured(vars(measurement())) == n.measured(measurement())


@pytest.mark.parametrize(
    ("rule", "worse", "shown"),
    [
        ("interval", "higher", "at most 0.8"),
        ("interval", "", "at most 0.8"),
        ("interval", "lower", "at least 0.8"),
        ("interval", None, "line at 0.8"),
        ("test", "higher", "adjusted p above 0.8"),
    ],
)
def test_bounds(rule: str, worse: str | None, shown: str) -> None:
    assert n.limit(Bound("gap", 0.8, "high", "why", rule), worse) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, "—"), (0.44, "0.4 s"), (12.2, "12 s"), (185, "3 min 5 s"), (7800, "2 h 10 min")]
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert n.duration(seconds).replace(NBSP, " ") == shown


@pytest.mark.parametrize(("octets", "shown"), [(512, "512 B"), (1_400_000, "1.4 MB"), (2_000, "2 kB")])
def test_sizes(octets: int, shown: str) -> None:
    assert n.size(octets).replace(NBSP, " ") == shown
