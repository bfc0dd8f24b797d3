"""Every branch of the judgement of a measurement, and the parsing of settings that people and programs send."""

from dataclasses import replace

import pytest

from audits.methods.catalogue import Parameter
from audits.methods.contract import Bound, Control, Measurement, Setting
from audits.methods.errors import AuditError
from audits.methods.verdict import Verdict, judge

HIGHER = Measurement("gap", 0.2, low=0.15, high=0.25, level=0.95, worse="higher", mde=0.05)
LOWER = Measurement("ratio", 0.7, low=0.65, high=0.75, level=0.95, worse="lower")
TEST = Measurement("trigger", 3.0, p_value=0.03, power=0.9)
PASSED = Control("shuffled labels", "negative", "Nothing found.", passed=True, trials=200, alarms=9)


def interval_bound(limit):
    return Bound("gap", limit, "medium", "why")


TEST_BOUND = Bound("trigger", 0.05, "high", "why", rule="test")


# interval bounds


@pytest.mark.parametrize(
    ("measurement", "limit", "verdict", "words"),
    [
        (HIGHER, 0.1, Verdict.EXCEEDS, "whole interval lies above 0.1"),
        (HIGHER, 0.3, Verdict.WITHIN, "right side of 0.3"),
        (HIGHER, 0.2, Verdict.CANNOT_TELL, "contains 0.2"),
        (HIGHER, 0.15, Verdict.CANNOT_TELL, "contains 0.15"),  # touching is not beyond
        (HIGHER, 0.25, Verdict.WITHIN, "right side"),  # the limit itself is allowed
        (LOWER, 0.8, Verdict.EXCEEDS, "whole interval lies below 0.8"),
        (LOWER, 0.6, Verdict.WITHIN, "right side of 0.6"),
        (LOWER, 0.7, Verdict.CANNOT_TELL, "contains 0.7"),
        (LOWER, 0.75, Verdict.CANNOT_TELL, "contains 0.75"),
        (LOWER, 0.65, Verdict.WITHIN, "right side"),
        (replace(HIGHER, high=None), 0.1, Verdict.EXCEEDS, "above"),
        (replace(HIGHER, high=None), 0.3, Verdict.CANNOT_TELL, "open on that side"),
        (replace(HIGHER, low=None), 0.1, Verdict.CANNOT_TELL, "open on that side"),
        (replace(HIGHER, low=None), 0.3, Verdict.WITHIN, "right side"),
        (replace(LOWER, low=None), 0.6, Verdict.CANNOT_TELL, "open on that side"),
        (replace(LOWER, low=None), 0.8, Verdict.EXCEEDS, "below"),
        (replace(LOWER, high=None), 0.6, Verdict.WITHIN, "right side"),
        (replace(HIGHER, worse=""), 0.1, Verdict.EXCEEDS, "above"),
        (replace(HIGHER, low=None, high=None), 0.1, Verdict.CANNOT_TELL, "no interval"),
    ],
)
def test_interval_is_held_against_the_limit(measurement, limit, verdict, words):
    judgement = judge(measurement, interval_bound(limit))
    assert judgement.verdict == verdict
    assert words in judgement.because


def test_exceeding_must_survive_correction():
    assert judge(HIGHER, interval_bound(0.1), p_adjusted=0.05).verdict == Verdict.EXCEEDS
    judgement = judge(HIGHER, interval_bound(0.1), p_adjusted=0.06)
    assert judgement.verdict == Verdict.CANNOT_TELL
    assert "not after correction" in judgement.because
    assert "p 0.06" in judgement.because


def test_within_does_not_depend_on_the_p_value():
    assert judge(HIGHER, interval_bound(0.3), p_adjusted=0.001).verdict == Verdict.WITHIN


def test_cannot_tell_says_what_the_sample_could_have_shown():
    assert "smallest effect that this sample would have shown is 0.05" in judge(HIGHER, interval_bound(0.2)).because
    assert "smallest effect" not in judge(LOWER, interval_bound(0.7)).because


# test bounds


@pytest.mark.parametrize(
    ("measurement", "p_adjusted", "verdict", "words"),
    [
        (TEST, None, Verdict.EXCEEDS, "0.03 is at most 0.05"),
        (TEST, 0.05, Verdict.EXCEEDS, "at most 0.05"),
        (TEST, 0.051, Verdict.WITHIN, "power 90%"),
        (replace(TEST, power=0.8), 0.2, Verdict.WITHIN, "power 80%"),
        (replace(TEST, power=0.79), 0.2, Verdict.CANNOT_TELL, "only 79%"),
        (replace(TEST, power=None), 0.2, Verdict.CANNOT_TELL, "unknown"),
        (replace(TEST, power=None, mde=1.5), 0.2, Verdict.CANNOT_TELL, "would have shown is 1.5"),
        (replace(TEST, p_value=None), None, Verdict.CANNOT_TELL, "no p-value"),
        (replace(TEST, p_value=None), 0.01, Verdict.EXCEEDS, "at most"),
    ],
)
def test_adjusted_p_value_is_held_against_the_limit(measurement, p_adjusted, verdict, words):
    judgement = judge(measurement, TEST_BOUND, p_adjusted=p_adjusted)
    assert judgement.verdict == verdict
    assert words in judgement.because


# what stands before both


def test_undefined_is_never_a_pass():
    undefined = Measurement("gap", None, undefined="no positives in group B")
    for bound in (interval_bound(0.3), TEST_BOUND):
        judgement = judge(undefined, bound, [PASSED])
        assert judgement.verdict == Verdict.CANNOT_TELL
        assert judgement.because == "Undefined: no positives in group B."


def failed_control(kind):
    return Control("twin", kind, "Seen in 60 of 100.", passed=False, trials=100)


@pytest.mark.parametrize("limit", [0.1, 0.3])
def test_alarms_where_nothing_is_wrong_take_every_verdict_away(limit):
    judgement = judge(HIGHER, interval_bound(limit), [PASSED, failed_control("negative")])
    assert judgement.verdict == Verdict.CANNOT_TELL
    assert "“twin” did not pass: the method raised alarms where nothing was wrong" in judgement.because
    assert "Seen in 60 of 100." in judgement.because


@pytest.mark.parametrize(("limit", "verdict"), [(0.1, Verdict.EXCEEDS), (0.3, Verdict.CANNOT_TELL)])
def test_a_missed_plant_takes_away_within_and_leaves_a_finding(limit, verdict):
    judgement = judge(HIGHER, interval_bound(limit), [PASSED, failed_control("positive")])
    assert judgement.verdict == verdict
    assert "“twin” did not pass: the planted effect was not found" in judgement.because


def test_passed_controls_leave_the_verdict_alone():
    assert judge(HIGHER, interval_bound(0.1), [PASSED]).verdict == Verdict.EXCEEDS
    assert judge(TEST, TEST_BOUND, [PASSED]).verdict == Verdict.EXCEEDS


def test_no_verdict_claims_safety():
    said = " ".join(
        judge(measurement, bound, p_adjusted=p).because
        for measurement, bound, p in [(HIGHER, interval_bound(0.3), None), (TEST, TEST_BOUND, 0.5)]
    ).lower()
    assert "no evidence by this method" in said
    for word in ("safe", "fair", "unbiased", "private", "verified"):
        assert word not in said


# settings


def parameter(kind, **bounds):
    return Parameter("group_count", kind, None, Setting("help", **bounds))


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (int, "7", 7),
        (int, 7, 7),
        (int, 7.0, 7),
        (int, " 7 ", 7),
        (int, "12345678901234567891", 12345678901234567891),
        (float, "0.5", 0.5),
        (float, 1, 1.0),
        (float, "1e-5", 1e-5),
        (bool, True, True),
        (bool, "on", True),
        (bool, "True", True),
        (bool, 1, True),
        (bool, "false", False),
        (bool, 0, False),
        (bool, "", False),
        (str, "text", "text"),
    ],
)
def test_setting_is_read_as_the_method_takes_it(kind, raw, value):
    parsed = parameter(kind).parse(raw)
    assert parsed == value
    assert type(parsed) is kind


@pytest.mark.parametrize(
    ("kind", "raw", "words"),
    [
        (int, "seven", "“group count” needs a whole number; found 'seven'"),
        (int, "3.7", "a whole number"),
        (int, 3.7, "a whole number; found '3.7'"),
        (int, True, "a whole number"),
        (int, None, "a whole number"),
        (int, float("inf"), "a whole number"),
        (int, float("nan"), "a whole number"),
        (int, [1], "a whole number"),
        (float, "much", "a number"),
        (float, "nan", "a number"),
        (float, "inf", "a number"),
        (float, False, "a number"),
        (float, 10**400, "a number"),
        (float, {}, "a number"),
        (bool, "banana", "yes or no; found 'banana'"),
        (bool, 2, "yes or no"),
    ],
)
def test_unfit_setting_is_refused_in_words(kind, raw, words):
    with pytest.raises(AuditError, match=words):
        parameter(kind).parse(raw)


@pytest.mark.parametrize(
    ("bounds", "raw", "words"),
    [
        ({"low": 1, "high": 9}, 0, "must be between 1 and 9; found 0"),
        ({"low": 1, "high": 9}, 10, "between 1 and 9"),
        ({"low": 1}, 0, "must be at least 1; found 0"),
        ({"high": 9}, 10, "must be at most 9; found 10"),
        ({"low": 0.0, "high": 1.0}, 1.5, "between 0 and 1"),
    ],
)
def test_setting_outside_its_range_is_refused(bounds, raw, words):
    kind = type(raw)
    with pytest.raises(AuditError, match=words):
        parameter(kind, **bounds).parse(raw)


def test_ends_of_the_range_are_allowed():
    within = parameter(int, low=1, high=9)
    assert (within.parse(1), within.parse(9)) == (1, 9)
    assert parameter(int, low=0).parse(0) == 0


def test_choices_are_the_only_words_allowed():
    choice = parameter(str, choices=("both", "in only"))
    assert choice.parse("both") == "both"
    with pytest.raises(AuditError, match="must be one of both, in only; found 'neither'"):
        choice.parse("neither")


def test_long_input_is_not_echoed_in_full():
    with pytest.raises(AuditError) as refusal:
        parameter(int).parse("9x" * 10_000)
    assert len(str(refusal.value)) < 200
