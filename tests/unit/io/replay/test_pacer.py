"""The clock of a recording, without Spark and without waiting."""

from __future__ import annotations

from pathlib import Path

from anabranch.io.replay.pacer import Pacer
from tests.unit.io.replay.test_recording import record


class Wall:
    now = 0

    def __call__(self) -> int:
        return self.now


def test_rate_and_restart(tmp_path: Path) -> None:
    recording, wall = record(tmp_path, [[0] * 100]), Wall()
    pacer = Pacer(recording, rate=10, wall=wall)
    assert pacer.due_now() is None
    assert pacer.due(0) == 0
    wall.now = 2_550_000
    assert pacer.due(0) == 25
    wall.now = 3_600_000_000  # down for an hour: a new run has a new clock
    again = Pacer(recording, rate=10, wall=wall)
    assert again.due(25) == 25
    wall.now += 1_000_000
    assert again.due(25) == again.due_now() == 35
    wall.now += 1_000_000_000
    assert again.due(35) == 100


def test_pace_follows_the_recorded_time(tmp_path: Path) -> None:
    second = 1_000_000
    recording, wall = record(tmp_path, [[-2 * second, -2 * second, None], [0, 2 * second]]), Wall()
    pacer = Pacer(recording, pace=2.0, wall=wall)
    assert pacer.due(0) == 3
    wall.now = second - 1
    assert pacer.due(3) == 3
    wall.now = second
    assert pacer.due(3) == 4
    wall.now = 2 * second
    assert pacer.due(4) == 5


def test_an_approach_comes_before_the_clock(tmp_path: Path) -> None:
    # 0  1  1  2 | 3  3  4  5     what was recorded before 3 is due at once; the clock starts at 3
    second = 1_000_000
    recording, wall = (
        record(tmp_path, [[0, second, second], [2 * second, 3 * second], [3 * second, 4 * second]]),
        Wall(),
    )
    pacer = Pacer(recording, pace=1.0, pace_from=3 * second, wall=wall)
    assert pacer.due(0) == 4
    wall.now = 60 * second  # however long the approach takes
    assert pacer.due(2) == 4
    assert pacer.due_now() is None
    assert pacer.due(4) == 6
    wall.now += second - 1
    assert pacer.due(6) == 6
    wall.now += 1
    assert pacer.due(6) == 7
