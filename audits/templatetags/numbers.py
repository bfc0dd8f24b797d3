"""The one place where numbers become text: values with their interval, units, p-values, sizes, times, and what is undefined."""

import math
from collections.abc import Mapping
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from audits.methods.contract import Bound, Measurement

register = template.Library()

UNDEFINED = "—"
MINUS = "\N{MINUS SIGN}"
THIN = "\N{NARROW NO-BREAK SPACE}"
NBSP = "\N{NO-BREAK SPACE}"
MAX_DECIMALS = 6
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Measured = Measurement | Mapping[str, Any]


# --------------------------------------------------------------------------------------------------------- plain numbers


@register.filter
def number(value: object, unit: str = "") -> str:
    """A number with three significant digits, thousands apart, and its unit; an em dash where there is none."""
    if value is None or value == "":
        return UNDEFINED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    return _with_unit(_whole(value) if isinstance(value, int) else _real(value), unit)


@register.filter
def cell(value: object) -> str:
    """A cell of a result's table: numbers as numbers, words as they are, an em dash for what is undefined."""
    return number(value)


@register.filter
def is_number(value: object) -> bool:
    """Whether the cell is set flush right."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


@register.filter
def p_value(p: float | None) -> str:
    """ "p = 0.034", "p < 0.001", or an em dash where nothing was tested."""
    if p is None:
        return UNDEFINED
    return f"p{NBSP}{p_digits(p)}" if p < 0.001 else f"p{NBSP}={NBSP}{p_digits(p)}"


@register.filter
def p_digits(p: float | None) -> str:
    """A p-value for a column whose head says so: "0.034", "< 0.001"."""
    if p is None:
        return UNDEFINED
    if p < 0.001:
        return f"<{NBSP}0.001"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.3f}"


@register.filter
def percent(share: float | None) -> str:
    """A share in [0, 1] as a percentage: "95 %"."""
    if share is None:
        return UNDEFINED
    return f"{100 * share:.4g}{THIN}%"


@register.filter
def duration(seconds: float | None) -> str:
    """ "0.4 s", "12 s", "3 min 5 s", "2 h 10 min"."""
    if seconds is None:
        return UNDEFINED
    if seconds < 10:
        return f"{seconds:.1f}{NBSP}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}{NBSP}s"
    if whole < 3600:
        return f"{whole // 60}{NBSP}min {whole % 60}{NBSP}s"
    return f"{whole // 3600}{NBSP}h {whole % 3600 // 60}{NBSP}min"


@register.filter
def size(octets: int | None) -> str:
    """ "512 B", "1.4 MB": powers of 1000."""
    if octets is None:
        return UNDEFINED
    amount, unit = float(octets), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.3g}{NBSP}{unit}" if unit != "B" else f"{octets}{NBSP}B"


# ---------------------------------------------------------------------------------------------------------- measurements


@register.filter
def value(measurement: Measured) -> SafeString:
    """The value alone, as precise as its interval warrants; undefined is an em dash with its reason."""
    m = _plain(measurement)
    if m["value"] is None:
        return _undefined(m)
    return format_html('<span class="num">{}</span>', _with_unit(_real(m["value"], _decimals(m)), m["unit"]))


@register.filter
def interval(measurement: Measured) -> str:
    """ "0.181 to 0.246", "at least 0.181", "at most 0.3", or an em dash where there is none."""
    m = _plain(measurement)
    low, high, decimals = m["low"], m["high"], _decimals(m)
    if low is None and high is None:
        return UNDEFINED
    if high is None:
        return f"at least {_real(low, decimals)}"
    if low is None:
        return f"at most {_real(high, decimals)}"
    return f"{_real(low, decimals)} to {_real(high, decimals)}"


@register.filter
def measured(measurement: Measured) -> SafeString:
    """Value and interval in one line: "0.213 (95 % interval 0.181 to 0.246)"."""
    m = _plain(measurement)
    if m["value"] is None:
        return _undefined(m)
    if m["low"] is None and m["high"] is None:
        return value(m)
    level = f"{percent(m['level'])} interval " if m["level"] is not None else "interval "
    return format_html('{} <span class="interval">({}{})</span>', value(m), level, interval(m))


@register.filter
def limit(bound: Bound | Mapping[str, Any], worse: str | None = None) -> str:
    """Where the line is: "at most 0.1", "at least 0.8", "adjusted p above 0.05" for a test; "line at 0.1" where the bad side is unknown."""
    line = dict(bound) if isinstance(bound, Mapping) else vars(bound)
    drawn = _real(line["limit"])
    if line["rule"] == "test":
        return f"adjusted p above {drawn}"
    if worse is None:
        return f"line at {drawn}"
    return f"at least {drawn}" if worse == "lower" else f"at most {drawn}"


def _plain(measurement: Measured) -> dict[str, Any]:
    return dict(measurement) if isinstance(measurement, Mapping) else vars(measurement)


def _undefined(m: Mapping[str, Any]) -> SafeString:
    return format_html('{} <span class="undefined">{}</span>', UNDEFINED, m["undefined"])


def _decimals(m: Mapping[str, Any]) -> int | None:
    """Two significant digits of the interval's width decide how many decimals the value deserves; None: three digits."""
    ends = [m["value"] if end is None else end for end in (m["low"], m["high"])]
    if m["value"] is None or None in ends or ends[0] == ends[1]:
        return None
    width = abs(ends[1] - ends[0])
    decimals = 1 - math.floor(math.log10(width))
    if decimals > MAX_DECIMALS:
        return None
    return max(decimals, 0)


# --------------------------------------------------------------------------------------------------------------- digits


def _with_unit(digits: str, unit: str) -> str:
    if not unit:
        return digits
    return f"{digits}{THIN if unit == '%' else NBSP}{unit}"


def _whole(value: int) -> str:
    return _signed(f"{value:,}".replace(",", THIN) if abs(value) >= 10_000 else str(value))


def _real(value: float, decimals: int | None = None) -> str:
    """Fixed decimals where given, else three significant digits; powers of ten for the very small and very large."""
    magnitude = abs(value)
    if magnitude and (magnitude < 1e-4 or magnitude >= 1e7) and (decimals is None or magnitude >= 1e7):
        return _powers(value)
    if decimals is None:
        decimals = 0 if not magnitude else min(max(2 - math.floor(math.log10(magnitude)), 0), MAX_DECIMALS)
        digits = f"{value:.{decimals}f}"
        digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
    else:
        digits = f"{value:.{decimals}f}"
    whole, dot, rest = digits.partition(".")
    if len(whole.lstrip("-")) > 4:
        whole = f"{int(whole):,}".replace(",", THIN)
    return _signed(whole + dot + rest)


def _powers(value: float) -> str:
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return _signed(f"{mantissa}{NBSP}×{NBSP}10{str(int(exponent)).translate(_SUPERSCRIPT)}")


def _signed(digits: str) -> str:
    """A true minus sign, and no minus before zero."""
    if digits.startswith("-") and not digits.strip("-0."):
        digits = digits[1:]
    return digits.replace("-", MINUS, 1) if digits.startswith("-") else digits
