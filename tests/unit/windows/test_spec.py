"""Durations and window specifications: what can be written, what is refused, and how it is said."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import InvalidWindowError
from anabranch.windows import Axis, Panes, Window, describe, micros

SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000


# --- durations ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 us", 1),
        ("7 µs", 7),
        ("250ms", 250_000),
        ("1 second", SECOND),
        ("1.5 s", 1_500_000),
        ("0.000001 s", 1),
        ("30 minutes", 30 * MINUTE),
        ("5m", 5 * MINUTE),
        ("1 h 30 min", 90 * MINUTE),
        ("1h30min", 90 * MINUTE),
        ("1 hour, 30 minutes", 90 * MINUTE),
        ("  2   days ", 2 * DAY),
        ("1 week", 7 * DAY),
        ("INTERVAL 10 SECONDS", 10 * SECOND),
        ("-90 s", -90 * SECOND),
        ("+90 s", 90 * SECOND),
        ("1 min -30 s", 30 * SECOND),
        ("0 s", 0),
        # A double would make 100000000000000.1 s of it, or lose the last digit.
        ("100000000000.000001 s", 100_000_000_000_000_001),
    ],
)
def test_durations_as_text(text: str, expected: int) -> None:
    assert micros(text) == expected


def test_durations_of_other_types() -> None:
    assert micros(0) == 0  # the only number that needs no unit
    assert micros(timedelta(days=-1, microseconds=1)) == -DAY + 1
    # timedelta.total_seconds() is a double: it would lose the microsecond.
    assert micros(timedelta(days=200_000, microseconds=1)) == 200_000 * DAY + 1


@pytest.mark.parametrize(
    "text",
    ["", " ", "5", "min", "5 minuten", "five minutes", "5 min x", "5 5 min", "- 5 min", "1 month", "2 years", "1e3 s",
     "5 min;", "interval"],
)  # fmt: skip
def test_text_that_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidWindowError, match=r"window size .* is not a duration") as raised:
        micros(text, "window size")
    assert '"30 minutes"' in raised.value.hint
    assert repr(text) in str(raised.value)


def test_months_say_that_the_unit_is_unknown() -> None:
    with pytest.raises(InvalidWindowError, match="unknown unit 'month'"):
        micros("1 month")


@pytest.mark.parametrize("value", [None, True, [1], b"1 s", object()])
def test_values_that_are_no_duration(value: Any) -> None:
    with pytest.raises(InvalidWindowError, match="is not a duration") as raised:
        micros(value)
    assert raised.value.hint


@pytest.mark.parametrize("value", [60, -1, 1.5])
def test_a_number_without_a_unit_is_refused(value: Any) -> None:
    with pytest.raises(InvalidWindowError, match="has no unit: it could be seconds") as raised:
        micros(value, "window size")
    assert f'"{value} seconds"' in raised.value.hint


def test_less_than_a_microsecond_is_refused_and_not_rounded() -> None:
    with pytest.raises(InvalidWindowError, match="whole number of microseconds"):
        micros("0.0000005 s")
    assert micros("0.5 us 0.5 us") == 1  # whole in the end


@given(st.integers(-(10**18), 10**18))
def test_describe_and_parse_are_inverse(duration: int) -> None:
    assert micros(describe(duration)) == duration


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0, "0 s"),
        (1, "1 us"),
        (90 * SECOND, "1 min 30 s"),
        (-90 * SECOND, "-1 min -30 s"),
        (DAY + HOUR + 1_001, "1 d 1 h 1 ms 1 us"),
    ],
)
def test_describe(duration: int, text: str) -> None:
    assert describe(duration) == text


@given(st.timedeltas())
def test_timedeltas_are_exact(duration: timedelta) -> None:
    assert timedelta(microseconds=micros(duration)) == duration


# --- windows ---


def test_a_window_without_a_slide_tumbles() -> None:
    assert Window.of_time("5 min") == Window(5 * MINUTE, 5 * MINUTE)
    assert Window.of_time("5 min").tumbling
    assert Window.of_rows(7) == Window(7, 7, 0, Axis.ROWS)
    assert not Window.of_time("5 min", "10 s").tumbling


def test_overlap_and_label() -> None:
    window = Window.of_time("5 min", "90 s", origin="-1 h")
    assert window.overlap == 300 / 90
    assert window.label == "5 min / 1 min 30 s"
    assert window.origin == -HOUR
    assert Window.of_rows(100, 10).label == "100 rows / 10 rows"


@pytest.mark.parametrize(
    ("size", "slide", "said"),
    [
        ("0 s", None, "window size 0 s is not positive"),
        ("-5 min", None, "window size -5 min is not positive"),
        ("5 min", "0 s", "window slide 0 s is not positive"),
        ("5 min", "-1 s", "window slide -1 s is not positive"),
        ("5 min", "6 min", "window size 5 min is below its slide 6 min: rows between two windows would be lost"),
        ("5 min", "300.000001 s", "is below its slide 5 min 1 us"),
        ("5 min", 1.5, "window slide 1.5 has no unit"),
        ("300000 days", f"{2**70} us", "is below its slide"),
        (f"{2**70} us", "1 us", "do not fit 64 bits"),
    ],
)
def test_time_windows_that_cannot_exist(size: Any, slide: Any, said: str) -> None:
    with pytest.raises(InvalidWindowError) as raised:
        Window.of_time(size, slide)
    assert said in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(
    ("rows", "slide_rows"),
    [(0, None), (-1, None), (5, 0), (5, -1), (5, 6), (2.5, None), (5, 2.5), ("5", None), (True, None), (2**63, 1)],
)
def test_count_windows_that_cannot_exist(rows: Any, slide_rows: Any) -> None:
    with pytest.raises(InvalidWindowError) as raised:
        Window.of_rows(rows, slide_rows)
    assert raised.value.hint


def test_an_origin_beyond_all_time_is_refused() -> None:
    with pytest.raises(InvalidWindowError, match="do not fit 64 bits"):
        Window.of_time("5 min", origin=f"{-(2**62)} us")


def test_panes_need_windows_of_one_axis() -> None:
    with pytest.raises(InvalidWindowError, match="has no window"):
        Panes(())
    with pytest.raises(InvalidWindowError, match="different axes") as raised:
        Panes((Window(6, 2), Window.of_rows(6, 2)))
    assert "two queries" in raised.value.hint


def test_errors_travel_between_processes() -> None:
    """Spark brings a worker's exception to the driver; the hint must come along."""
    with pytest.raises(InvalidWindowError) as raised:
        Window(3, 5)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert type(copy) is InvalidWindowError
    assert (copy.message, copy.hint, str(copy)) == (raised.value.message, raised.value.hint, str(raised.value))
    assert isinstance(copy, ValueError)  # for callers who know nothing of Anabranch
