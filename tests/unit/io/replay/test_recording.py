"""Recordings: which rows are due by a time, how they are shared out, and what changes are noticed."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import ReplayError
from anabranch.io.blocks import write_blocks
from anabranch.io.replay.recording import Recording, shares
from tests.oracles.replay import due_by

Blocks = list[list[int | None]]


def record(folder: Path, blocks: Blocks) -> Recording:
    batches = [pa.record_batch({"at": pa.array(block, pa.int64())}) for block in blocks]
    write_blocks(folder / "a.arrow", batches)
    return Recording(folder, "at")


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
