"""Recordings and their clock, without Spark and without waiting."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import InvalidArgumentError, ReplayError
from anabranch.io.blocks import write_blocks
from anabranch.io.replay.pacer import Pacer
from anabranch.io.replay.recording import Recording, shares
from anabranch.io.replay.source import ReplayOptions
from tests.oracles.replay import due_by

Blocks = list[list[int | None]]


def record(folder: Path, blocks: Blocks) -> Recording:
    batches = [pa.record_batch({"at": pa.array(block, pa.int64())}) for block in blocks]
    write_blocks(folder / "a.arrow", batches)
    return Recording(folder, "at")


class Wall:
    now = 0

    def __call__(self) -> int:
        return self.now


@given(st.lists(st.lists(st.none() | st.integers(-20, 20), max_size=5), min_size=1, max_size=5), st.integers(-25, 25))
def test_rows_due_by_a_time(blocks: Blocks, time: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        recording = record(Path(folder), blocks)
        assert recording.first_after(time) == due_by([t for block in blocks for t in block], time)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.data())
def test_shares_are_the_rows_once_in_order(sizes: list[int], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        recording = record(Path(folder), [[0] * size for size in sizes])
        first = data.draw(st.integers(0, recording.rows))
        end = data.draw(st.integers(first, recording.rows))
        rows = [(b.index, i) for b in recording.blocks for i in range(b.rows)]
        slices = recording.slices(first, end)
        found = shares(slices, data.draw(st.integers(1, 4)), 2) if slices else []
        assert [(s.block, s.first + i) for share in found for s in share for i in range(s.rows)] == rows[first:end]


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


@given(
    st.lists(st.lists(st.integers(-5, 5), max_size=5), min_size=1, max_size=5), st.integers(1, 8),
)  # fmt: skip
def test_whole_instants_stay_together(blocks: list[list[int]], most: int) -> None:
    times = sorted(t for block in blocks for t in block)
    cut, parts = 0, []
    for block in blocks:
        parts.append(list(times[cut : cut + len(block)]))
        cut += len(block)
    with tempfile.TemporaryDirectory() as folder:
        recording = record(Path(folder), parts)
        position, ends = 0, []
        while position < recording.rows:
            position = recording.whole_instants(position, min(recording.rows, position + most))
            ends.append(position)
    for first, end in pairwise([0, *ends]):
        assert first < end
        assert end == len(times) or times[end - 1] != times[end]
        # Longer than asked for only if a single instant is.
        assert end - first <= most or len(set(times[first:end])) == 1


def test_changed_and_disordered_files(tmp_path: Path) -> None:
    recording = record(tmp_path, [[10, 11], [0, 1]])
    with pytest.raises(ReplayError, match="before block 0"):
        recording.check_order()
    write_blocks(tmp_path / "b.arrow", [pa.record_batch({"at": [1]})])
    with pytest.raises(ReplayError, match="have changed"):
        recording.check_unchanged()
    assert Recording(tmp_path, "at").fingerprint != recording.fingerprint


def test_options() -> None:
    options = ReplayOptions("p", "at", rate=2.5, blocks=True, start=-5)
    assert ReplayOptions.parse(options.strings()) == options
    approach = ReplayOptions("p", "at", pace=2.5, pace_from=7, whole_instants=True)
    assert ReplayOptions.parse(approach.strings()) == approach
    for bad in ({"rate": 1.0, "pace": 1.0}, {"rate": 0.0}, {"pace": float("nan")}, {"partitions": 0}, {"pace_from": 3}):
        with pytest.raises(InvalidArgumentError):
            ReplayOptions("p", "at", **bad)  # type: ignore[arg-type]
