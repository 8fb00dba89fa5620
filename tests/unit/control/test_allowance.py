"""How long a worker may take: what the interval leaves while epochs are in time; as long as the others once late."""

from __future__ import annotations

import pytest

from anabranch.control.allowance import allowance, share_in_time
from anabranch.observe.progress import EpochProgress, OperatorProgress, WorkerMeasure


def epoch(seconds: float, *busy: float, trigger: float | None = 2.0, took: float = 0.0) -> EpochProgress:
    workers = tuple(WorkerMeasure(i, 10, each) for i, each in enumerate(busy))
    operator = OperatorProgress("join", workers=workers, seconds=took)
    return EpochProgress("q", "r", 1, 0.0, seconds, trigger, operators=(operator,))


def left_over(busy: float, given: float | None) -> float:
    """The share of its rows that a worker has left by then, if it joins them evenly."""
    assert given is not None
    return max(0.0, 1 - given / busy)


def test_nothing_is_known_before_the_first_epoch() -> None:
    assert allowance([], "join", 2.0, 2) is None
    assert allowance([epoch(1.0, 0.5)], "another", 2.0, 2) is None
    assert allowance([epoch(1.0, 0.0, 0.0)], "join", 2.0, 2) is None


def test_in_time_the_interval_counts_without_what_others_take() -> None:
    # 1.5 s an epoch, 0.9 of them the workers': 0.6 s are not theirs, and 1.4 s are left of the two.
    assert allowance([epoch(1.5, 0.9, 0.3)], "join", 2.0, 2) == pytest.approx(1.4)
    # The operator took 0.8 s in all, by the driver's clock: its workers cannot have taken longer.
    assert allowance([epoch(1.5, 0.9, 0.3, took=0.8)], "join", 2.0, 2) == pytest.approx(1.3)


def test_workers_that_take_turns_share_it() -> None:
    assert allowance([epoch(1.6, 0.5, 0.5)], "join", 2.0, 1) == pytest.approx(0.7)
    assert allowance([epoch(1.6, 0.5, 0.5)], "join", 2.0, 1, turns=2) == pytest.approx(1.4)


def test_no_clock_of_a_worker_is_asked() -> None:
    """Workers on two hosts, whose clocks may be an hour apart, tell how long they took, and nothing else."""
    assert {name for name in vars(WorkerMeasure(0, 1, 1.0)) if "began" in name or "ended" in name} == set()
    two_hosts = epoch(1.5, 0.9, 0.9)
    assert allowance([two_hosts], "join", 2.0, slots=2) == pytest.approx(1.4)


def test_a_worker_at_half_its_speed_shows_once_epochs_are_late() -> None:
    given = allowance([epoch(2.6, 2.0, 1.0)], "join", 2.0, 2)
    assert left_over(2.0, given) > 0.3 and left_over(1.0, given) == 0


def test_without_an_interval_the_others_say_how_long() -> None:
    given = allowance([epoch(2.6, 2.0, 1.0, trigger=None)], "join", None, 2)
    assert left_over(2.0, given) > 0.3 and left_over(1.0, given) == 0


def test_all_are_behind_when_all_are_too_slow() -> None:
    # The next epoch has 3 s of rows, and 2.8 s for them; both need 1.5 times as long as this one.
    given = allowance([epoch(3.0, 2.8, 2.8)], "join", 2.0, 2)
    assert all(left_over(1.5 * 2.8, given) > 0.1 for _ in range(2))


def test_a_group_that_ends_late_counts_for_what_it_had_done() -> None:
    #   began 1 s ───────── allowed 2 s ─ ended: the share before counts, not all or nothing
    assert share_in_time(1.0, 2.0, None) == share_in_time(1.0, 2.0, 2.0) == 1.0
    assert share_in_time(1.0, 2.01, 2.0) == pytest.approx(0.99, abs=0.001)
    assert share_in_time(1.0, 3.0, 2.0) == pytest.approx(0.5)
    assert share_in_time(2.5, 3.0, 2.0) == 0.0
    assert share_in_time(3.0, 3.0, 2.0) == 0.0
