"""How long a worker may take: what the interval leaves while epochs are in time; as long as the others once late."""

from __future__ import annotations

import pytest

from anabranch.runtime.allowance import allowance
from anabranch.runtime.progress import EpochProgress, OperatorProgress, WorkerMeasure


def epoch(seconds: float, *busy: float, trigger: float | None = 2.0, one_by_one: bool = False) -> EpochProgress:
    began = [sum(busy[:i]) if one_by_one else 0.0 for i in range(len(busy))]
    workers = tuple(WorkerMeasure(i, 10, each, began=at) for i, (each, at) in enumerate(zip(busy, began, strict=True)))
    return EpochProgress("q", "r", 1, 0.0, seconds, trigger, operators=(OperatorProgress("join", workers=workers),))


def left_over(busy: float, given: float | None) -> float:
    """The share of its rows that a worker has left by then, if it joins them evenly."""
    assert given is not None
    return max(0.0, 1 - given / busy)


def test_nothing_is_known_before_the_first_epoch() -> None:
    assert allowance([], "join", 2.0) is None
    assert allowance([epoch(1.0, 0.5)], "another", 2.0) is None
    assert allowance([epoch(1.0, 0.0, 0.0)], "join", 2.0) is None


def test_in_time_the_interval_counts_without_what_others_take() -> None:
    # 1.5 s an epoch, 0.9 of them the workers': 0.6 s are not theirs, and 1.4 s are left of the two.
    assert allowance([epoch(1.5, 0.9, 0.3)], "join", 2.0) == pytest.approx(1.4)


def test_workers_that_take_turns_share_it() -> None:
    assert allowance([epoch(1.6, 0.5, 0.5, one_by_one=True)], "join", 2.0) == pytest.approx(0.7)


def test_a_worker_at_half_its_speed_shows_once_epochs_are_late() -> None:
    given = allowance([epoch(2.6, 2.0, 1.0)], "join", 2.0)
    assert left_over(2.0, given) > 0.3 and left_over(1.0, given) == 0


def test_without_an_interval_the_others_say_how_long() -> None:
    given = allowance([epoch(2.6, 2.0, 1.0, trigger=None)], "join", None)
    assert left_over(2.0, given) > 0.3 and left_over(1.0, given) == 0


def test_all_are_behind_when_all_are_too_slow() -> None:
    # The next epoch has 3 s of rows, and 2.8 s for them; both need 1.5 times as long as this one.
    given = allowance([epoch(3.0, 2.8, 2.8)], "join", 2.0)
    assert all(left_over(1.5 * 2.8, given) > 0.1 for _ in range(2))
