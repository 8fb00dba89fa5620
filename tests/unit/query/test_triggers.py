"""Triggers: Spark's own names work, and wrong ones are told the right ones."""

from __future__ import annotations

from datetime import timedelta

import pytest

from anabranch.errors import InvalidArgumentError
from anabranch.query.triggers import AVAILABLE_NOW, trigger_of, trigger_seconds


@pytest.mark.parametrize("given", ["available-now", "availableNow", "available_now", "AVAILABLENOW", "available now"])
def test_available_now_by_any_name(given: str) -> None:
    assert trigger_of(given) == AVAILABLE_NOW
    assert trigger_seconds(AVAILABLE_NOW) is None


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("1 second", 1.0), ("250 ms", 0.25), ("interval 1 minute", 60.0), (timedelta(seconds=1, milliseconds=500), 1.5)],
)
def test_intervals(given: str | timedelta, seconds: float) -> None:
    assert trigger_seconds(trigger_of(given)) == seconds


@pytest.mark.parametrize("given", [None, "0 seconds", timedelta(0)])
def test_epoch_follows_epoch(given: str | timedelta | None) -> None:
    assert trigger_of(given) is None
    assert trigger_seconds(None) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("once", 'Spark has replaced it with "available-now"'),
        ("1 sec ond", "it is not an interval"),
        ("continuous", "it is not an interval"),
        ("", "it is not an interval"),
        ("100 us", "a millisecond"),
        ("-1 second", "a millisecond"),
        (5, "has no unit"),
        (0.5, "has no unit"),
        (True, "is not a trigger"),
        ({"processingTime": "1 second"}, "is not a trigger"),
    ],
)
def test_wrong_triggers_name_the_right_ones(given: object, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as refused:
        trigger_of(given)
    assert repr(given) in refused.value.message
    assert '"1 second"' in refused.value.hint and '"available-now"' in refused.value.hint
