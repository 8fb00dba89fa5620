"""Live state that is not what was committed is never used: changed, replaced, put back, or of another history."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anabranch.errors import StateError
from anabranch.store.live import state as live
from anabranch.store.live.state import LiveState

LENGTH = 40


def committed(folder: Path, epoch: int = 3, token: str = "t", run: str = "r") -> LiveState:
    """A state of two arrays and two tables at the end of an epoch."""
    state = LiveState(folder, run)
    advance(state, epoch, token)
    return state


def advance(state: LiveState, epoch: int, token: str = "t") -> None:
    state.begin()
    state.array("a", "i8", LENGTH)[:] = epoch
    state.array("b", "u1", 5)[:] = epoch
    state.put("t", pa.table({"x": [epoch] * 30}))
    if "u" not in state:
        state.put("u", pa.table({"s": ["never put again"]}))
    state.commit(epoch, token)


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small states have checksums everywhere; of large ones the arrays have none."""
    if request.param == "large":
        monkeypatch.setattr(live, "CHECKED_BYTES", 0)
    return str(request.param)


def files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"*.{kind}"))


def flip(path: Path, at: int, bit: int = 0) -> None:
    """As a bad disk or another program would."""
    with path.open("r+b", buffering=0) as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def flip_in_a_map(path: Path, at: int) -> None:
    """By another process that has the file mapped: no time of the file may tell."""
    code = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); m[int(sys.argv[2])] ^= 1"
    subprocess.run([sys.executable, "-c", code, str(path), str(at)], check=True)


# ---- a flipped bit


def test_each_flipped_bit_of_an_array_is_seen_by_a_new_process_and_by_one_that_has_it_mapped(tmp_path: Path) -> None:
    state = committed(tmp_path)
    (array,) = (path for path in files(tmp_path, "array") if path.name == state._kept["a"].file)
    for at in range(0, LENGTH * 8, 7):
        for bit in range(8):
            assert state.intact()
            flip(array, at, bit)
            assert not state.intact()
            assert LiveState(tmp_path).stamp() is None and LiveState(tmp_path).names() == []
            flip(array, at, bit)
    assert LiveState(tmp_path).stamp() == 3


def test_a_flipped_bit_of_a_table_is_seen(tmp_path: Path, size: str) -> None:
    state = committed(tmp_path)
    for table in files(tmp_path, "table"):
        for at in range(0, table.stat().st_size, 13):
            flip(table, at)
            assert not state.intact()
            assert LiveState(tmp_path, "r").stamp() is None
            flip(table, at)
    assert (LiveState(tmp_path, "r").stamp() == 3) and state.intact()


def test_a_bit_flipped_through_a_map_is_seen(tmp_path: Path) -> None:
    state = committed(tmp_path)
    for path in files(tmp_path, "array") + files(tmp_path, "table"):
        flip_in_a_map(path, 0)
        assert not state.intact() and LiveState(tmp_path).stamp() is None
        flip_in_a_map(path, 0)
    assert state.intact()


def test_a_flipped_bit_behind_the_items_does_not_count(tmp_path: Path) -> None:
    state = committed(tmp_path)
    for path in files(tmp_path, "array"):
        flip(path, 4095)
    assert state.intact() and LiveState(tmp_path).stamp() == 3
    assert LiveState(tmp_path).array("a", "i8").tolist() == [3] * LENGTH


# ---- arrays too large to be summed


def test_whoever_writes_to_a_large_array_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CHECKED_BYTES", 0)
    for number, path in enumerate(("a", "b")):
        state = committed(tmp_path, 3 + number)
        assert state.intact() and LiveState(tmp_path, "r").stamp() == 3 + number
        flip(tmp_path / state._kept[path].file, 1)
        assert not state.intact() and LiveState(tmp_path, "r").stamp() is None


def test_a_large_state_is_for_the_run_that_made_it(tmp_path: Path, size: str) -> None:
    state = committed(tmp_path)
    assert LiveState(tmp_path, "r").stamp() == 3
    assert LiveState(tmp_path, "another").stamp() == (3 if size == "small" else None)
    state.refresh("another")
    assert state.stamp() == (3 if size == "small" else None)


def test_large_states_are_not_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summed = 0
    crc32 = live.zlib.crc32

    def counting_crc32(data: bytes) -> int:
        nonlocal summed
        summed += len(data)
        return crc32(data)

    state = LiveState(tmp_path, "r")
    state.array("large", "u1", live.CHECKED_BYTES)
    state.array("small", "u1", 1)
    state.put("table", pa.table({"x": np.zeros(live.CHECKED_BYTES // 8)}))
    state.commit(1)
    monkeypatch.setattr(live.zlib, "crc32", counting_crc32)
    for epoch in (2, 3):
        assert state.current() and state.intact()
        state.begin()
        state.commit(epoch)
    state.refresh("r")
    assert state.stamp() == 3 and summed < 10_000  # the stamps


# ---- other files in the place of ours


def test_an_older_copy_put_back_is_shown_as_it_is_and_not_through_old_maps(tmp_path: Path, size: str) -> None:
    """Of two processes one had the state in hand when the copy was made, and the other went on."""
    folder, copy = tmp_path / "live", tmp_path / "copy"
    one = committed(folder)
    shutil.copytree(folder, copy)
    two = LiveState(folder, "r")
    one.refresh("r")
    advance(one, 4)
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    for state in (one, two):
        assert not state.current()
        state.refresh("r")
        if size == "small":
            assert state.stamp() == 3 and state.array("a", "i8").tolist() == [3] * LENGTH
            assert state.table("t").column("x").to_pylist() == [3] * 30
        else:  # nobody can tell whether a copy is whole
            assert state.stamp() is None


def test_files_put_back_under_the_same_stamp(tmp_path: Path, size: str) -> None:
    """The stamp is ours, a file is not: an older one that was copied, or moved, over it."""
    old = tmp_path / "old"
    state = committed(tmp_path / "live")
    shutil.copytree(tmp_path / "live", old)
    state.begin()
    state.array("a", "i8")[:] = 4
    state.commit(4)
    name = state._kept["a"].file
    shutil.copy(old / name, old / "more")
    os.replace(old / "more", tmp_path / "live" / name)
    assert state.current() and not state.intact()
    assert LiveState(tmp_path / "live", "r").stamp() is None


def test_a_file_replaced_before_the_commit_is_not_committed(tmp_path: Path, size: str) -> None:
    state = committed(tmp_path / "live")
    state.begin()
    path = tmp_path / "live" / state._kept["a"].file
    shutil.copy(path, tmp_path / "copy")
    state.array("a", "i8")[:] = 4
    os.replace(tmp_path / "copy", path)
    if size == "large":
        with pytest.raises(StateError, match="was changed by another process"):
            state.commit(4)
    else:
        state.commit(4)
        assert not state.intact()
    assert LiveState(tmp_path / "live", "r").stamp() is None


def test_a_file_with_the_same_content_is_mapped_anew(tmp_path: Path) -> None:
    """Else this process would write to a file that no other one sees."""
    state = committed(tmp_path / "live")
    name = state._kept["a"].file
    shutil.copy(tmp_path / "live" / name, tmp_path / "copy")
    os.replace(tmp_path / "copy", tmp_path / "live" / name)
    assert not state.intact()
    state.refresh()
    assert state.stamp() == 3
    advance(state, 4)
    assert LiveState(tmp_path / "live").array("a", "i8").tolist() == [4] * LENGTH


def test_a_folder_that_was_moved_away_is_not_written_to(tmp_path: Path) -> None:
    state = committed(tmp_path / "live")
    (tmp_path / "live").rename(tmp_path / "away")
    assert not state.current()
    state.refresh()
    assert state.stamp() is None and state.names() == []
    assert LiveState(tmp_path / "away").stamp() == 3


@pytest.mark.parametrize("kind", ["array", "table"])
def test_a_file_cut_short_under_its_map(tmp_path: Path, kind: str, size: str) -> None:
    """To read the map of it would kill the process."""
    state = committed(tmp_path)
    for path in files(tmp_path, kind):
        os.truncate(path, 0)
    assert not state.intact()
    state.refresh("r")
    assert state.stamp() is None
    state.clear()
    advance(state, 5)
    assert LiveState(tmp_path, "r").stamp() == 5


# ---- another history


def test_an_epoch_of_another_history_is_not_taken_for_ours(tmp_path: Path) -> None:
    committed(tmp_path, 3, token="first")
    state = LiveState(tmp_path)
    assert state.shows(3, "first")
    assert not state.shows(3, "second") and not state.shows(2, "first")


def test_a_state_of_another_format_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(live.stamps, "LIVE_FORMAT", 1)
        committed(tmp_path)
        assert LiveState(tmp_path).stamp() == 3
    state = LiveState(tmp_path)
    assert state.stamp() is None
    state.clear()
    assert list(tmp_path.iterdir()) == []


# ---- two processes

OTHER = """
import sys
from anabranch.store.live.state import LiveState

state = LiveState(sys.argv[1], "r")
assert state.stamp() == 3, state.stamp()
state.begin()
state.array("a", "i8")[:] = 4
state.commit(4, "t")
"""


def test_what_another_process_committed_is_checked_too(tmp_path: Path, size: str) -> None:
    limit = f"from anabranch.store.live import state; state.CHECKED_BYTES = {live.CHECKED_BYTES}\n"
    state = committed(tmp_path)
    subprocess.run([sys.executable, "-c", limit + OTHER, str(tmp_path)], check=True, env={**os.environ})
    assert not state.current()
    state.refresh("r")
    assert state.stamp() == 4 and state.array("a", "i8").tolist() == [4] * LENGTH
    flip(tmp_path / state._kept["a"].file, 9)
    state.refresh("r")
    assert state.stamp() is None


def test_maps_are_kept_where_nothing_was_replaced(tmp_path: Path, size: str) -> None:
    state = committed(tmp_path)
    maps: Callable[[], dict[str, mmap.mmap]] = lambda: {name: kept.map for name, kept in state._kept.items()}  # noqa: E731
    before = maps()
    state.refresh("r")
    assert state.stamp() == 3 and all(maps()[name] is each for name, each in before.items())
