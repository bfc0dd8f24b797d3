"""What a measurement says when it is held against a bound: exceeds, within, or cannot tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from audits.methods.contract import Bound, Control, Measurement

POWER_NEEDED = 0.8  # a test that would miss the effect more than one time in five cannot say "within"


class Verdict(StrEnum):
    """The scale of three, and the three states outside it."""

    EXCEEDS = "exceeds"
    WITHIN = "within"
    CANNOT_TELL = "cannot tell"
    NOT_APPLICABLE = "not applicable"
    FAILED = "failed"
    ERRORED = "errored"


@dataclass(frozen=True)
class Judgement:
    """A verdict and the sentence that explains it."""

    verdict: Verdict
    because: str


def judge(
    measurement: Measurement, bound: Bound, controls: Sequence[Control] = (), p_adjusted: float | None = None
) -> Judgement:
    """Verdict of one measurement under one bound.

    An undefined value is *cannot tell*, and so is everything after alarms where nothing was wrong (a failed negative
    control). A plant that was missed takes away *within*: a method that is blind here has not shown absence. It leaves
    *exceeds*, which rests on the p-value and the negative control, and says so.
    Under an `interval` bound the interval must lie beyond the limit (and the adjusted p-value, where there is one, be at
    most 0.05) to exceed, or inside it to be within. Under a `test` bound the adjusted p-value is held against the
    limit, and *within* needs a power of at least 80 %.
    """
    for control in controls:
        if not control.passed and control.kind == "negative":
            words = f"The control “{control.name}” did not pass: the method raised alarms where nothing was wrong."
            return Judgement(Verdict.CANNOT_TELL, f"{words} {control.says}")
    if measurement.value is None:
        return Judgement(Verdict.CANNOT_TELL, f"Undefined: {measurement.undefined}.")
    by_rule = _by_test if bound.rule == "test" else _by_interval
    judged = by_rule(measurement, bound, p_adjusted)
    missed = next((control for control in controls if not control.passed), None)
    if missed is None or judged.verdict is Verdict.CANNOT_TELL:
        return judged
    words = f"The control “{missed.name}” did not pass: the planted effect was not found. {missed.says}"
    if judged.verdict is Verdict.WITHIN:
        return Judgement(Verdict.CANNOT_TELL, words)
    return Judgement(
        Verdict.EXCEEDS, f"{judged.because} The method is weak on this input, so others may be missed. {words}"
    )


def _by_test(measurement: Measurement, bound: Bound, p_adjusted: float | None) -> Judgement:
    p_value = measurement.p_value if p_adjusted is None else p_adjusted
    if p_value is None:
        return Judgement(Verdict.CANNOT_TELL, "The method gave no p-value for this quantity.")
    if p_value <= bound.limit:
        return Judgement(Verdict.EXCEEDS, f"Adjusted p-value {p_value:.2g} is at most {bound.limit:g}.")
    power = measurement.power
    if power is not None and power >= POWER_NEEDED:
        return Judgement(
            Verdict.WITHIN, f"No evidence by this method; it finds the effect it looks for with power {power:.0%}."
        )
    said = "unknown" if power is None else f"only {power:.0%}"
    return Judgement(
        Verdict.CANNOT_TELL,
        f"Not significant (adjusted p-value {p_value:.2g}), but the power of the test is {said}.{_shown(measurement)}",
    )


def _by_interval(measurement: Measurement, bound: Bound, p_adjusted: float | None) -> Judgement:
    low, high, limit = measurement.low, measurement.high, bound.limit
    if low is None and high is None:
        return Judgement(Verdict.CANNOT_TELL, "The method gave no interval for this quantity.")
    lower_is_worse = measurement.worse == "lower"
    near, far = (high, low) if lower_is_worse else (low, high)
    beyond = near is not None and (near < limit if lower_is_worse else near > limit)
    inside = far is not None and (far >= limit if lower_is_worse else far <= limit)
    if beyond and (p_adjusted is None or p_adjusted <= 0.05):
        return Judgement(
            Verdict.EXCEEDS, f"The whole interval lies {'below' if lower_is_worse else 'above'} {limit:g}."
        )
    if beyond:
        return Judgement(
            Verdict.CANNOT_TELL,
            f"The interval lies beyond {limit:g}, but not after correction for all that was tested (p {p_adjusted:.2g}).",
        )
    if inside:
        return Judgement(
            Verdict.WITHIN, f"No evidence by this method: the whole interval lies on the right side of {limit:g}."
        )
    return Judgement(
        Verdict.CANNOT_TELL, f"The interval contains {limit:g} or is open on that side.{_shown(measurement)}"
    )


def _shown(measurement: Measurement) -> str:
    if measurement.mde is None:
        return ""
    return f" The smallest effect that this sample would have shown is {measurement.mde:.3g}."
