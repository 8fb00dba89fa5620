"""Latency counts no time in which no row waited."""

from __future__ import annotations

import pytest

from anabranch.runtime.arrivals import Arrivals

# Times in seconds:   epoch before 100 .. 101        this epoch from 118.2


def test_without_idle_time_rows_may_have_come_since_the_epoch_before_began() -> None:
    assert Arrivals(None).oldest(100.0, 101.1) == 100.0
    earlier = Arrivals(None)
    earlier.no_rows(99.0)  # of an idle time before the epoch before
    assert earlier.oldest(100.0, 101.1) == 100.0


def test_after_idle_time_rows_came_after_the_last_look_that_found_nothing() -> None:
    arrivals = Arrivals(None)
    for at in (101.2, 110.0, 118.0):
        arrivals.no_rows(at)
    assert arrivals.oldest(100.0, 118.2) == 118.0


@pytest.mark.parametrize(("no_rows_at", "oldest"), [(117.0, 110.0), (111.0, 110.0), (99.0, 100.0)])
def test_with_a_trigger_rows_waited_at_most_its_interval(no_rows_at: float, oldest: float) -> None:
    #  100       110        120.3: the epoch of the trigger at 120
    #  |---------|..........|
    arrivals = Arrivals(10.0)
    arrivals.no_rows(no_rows_at)
    assert arrivals.oldest(100.0, 120.3) == oldest
