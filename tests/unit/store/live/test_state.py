"""Live state: the same as plain dictionaries, kept between processes, and never shown half done."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anabranch.errors import InvalidArgumentError, StateError
from anabranch.operators.state import MemoryState, State
from anabranch.store.live import state as live
from anabranch.store.live.lease import Lease
from anabranch.store.live.state import LiveState


def content(state: State) -> dict[str, Any]:
    """What a state holds, as plain values."""
    return {
        name: ("table", str(item.schema), item.to_pylist())
        if isinstance(item, pa.Table)
        else ("array", str(item.dtype), item.tolist())
        for name, item in state.items()
    }


def data_files(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name not in ("stamp", ".stamp", "lock"))


# ---- any state


@pytest.fixture(params=["memory", "live"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> State:
    return MemoryState() if request.param == "memory" else LiveState(tmp_path)


def test_arrays(state: State) -> None:
    assert state.array("a", "i8", 3).tolist() == [0, 0, 0]
    state.array("a", "i8")[:] = 7
    assert state.array("a", np.int64, 99).tolist() == [7, 7, 7]
    assert state.resize("a", 5).tolist() == [7, 7, 7, 0, 0]
    assert state.resize("a", 1).tolist() == [7]
    assert state.resize("a", 3).tolist() == [7, 0, 0]
    assert state.resize("a", 0).tolist() == []
    assert state.resize("a", 2).tolist() == [0, 0]
    assert "a" in state and "b" not in state and state.nbytes == 16


def test_large_arrays_keep_their_content(state: State) -> None:
    state.array("a", "i8", 10)[:] = range(10)
    for length in (1_000, 100_000, 20, 200_000, 5, 7):
        array = state.resize("a", length)
        assert len(array) == length and array[:5].tolist() == [0, 1, 2, 3, 4]
    assert array[5:].tolist() == [0, 0]


def test_tables(state: State) -> None:
    assert state.table("t") is None
    table = pa.table({"x": [1, None], "s": ["a", "b"]})
    state.put("t", table)
    assert state.table("t") == table
    state.put("t", table.slice(1))
    assert state.table("t") == table.slice(1)
    state.array("a", "i8")
    assert state.table("a") is None and state.names() == ["a", "t"]


def test_an_item_can_change_its_kind(state: State) -> None:
    state.array("a", "i8", 2)
    state.put("a", pa.table({"x": [1]}))
    assert state.names() == ["a"] and state.table("a") is not None
    state.drop("a")
    state.drop("a")
    assert state.array("a", "f4", 1).dtype == np.float32


def test_loads_its_own_items(state: State) -> None:
    state.array("a", "i8", 3)[:] = 5
    state.put("t", pa.table({"x": [1]}))
    before = content(state)
    state.load(state.items())
    assert content(state) == before
    state.clear()
    assert state.names() == [] and state.nbytes == 0


@pytest.mark.parametrize(
    "act",
    [
        lambda state: state.array("a", "i4"),
        lambda state: state.array("t", "i8"),
        lambda state: state.resize("t", 1),
        lambda state: state.resize("absent", 1),
        lambda state: state.resize("a", -1),
        lambda state: state.array("new", "i8", -1),
        lambda state: state.array("new", object),
        lambda state: state.array("new", "S0"),
        lambda state: state.array("new", "(2,)i8"),
        lambda state: state.array("new", np.dtypes.StringDType()),
        lambda state: state.array("a/b", "i8"),
        lambda state: state.array("", "i8"),
        lambda state: state.put("new\n", pa.table({})),
    ],
)
def test_refused(state: State, act: Callable[[State], Any]) -> None:
    state.array("a", "i8", 1)
    state.put("t", pa.table({"x": [1]}))
    with pytest.raises(InvalidArgumentError):
        act(state)
    assert state.names() == ["a", "t"]


# ---- live state is what plain dictionaries are, whatever happens in which order

NAMES = st.sampled_from("abc")
LENGTHS = st.integers(0, 20) | st.sampled_from([511, 512, 513, 9_000, 100_000])
TABLES = st.lists(st.integers(0, 9), max_size=3).map(lambda values: pa.table({"x": pa.array(values, pa.int64())}))


class LiveIsMemory(RuleBasedStateMachine):
    """Operations on both; a crash brings back nothing, a reopening after a commit everything."""

    @initialize()
    def start(self) -> None:
        import tempfile

        self.scratch = tempfile.TemporaryDirectory()
        self.folder = Path(self.scratch.name)
        self.live, self.memory, self.epoch, self.committed = LiveState(self.folder), MemoryState(), 0, False

    def teardown(self) -> None:
        if hasattr(self, "scratch"):
            self.scratch.cleanup()

    def both(self, act: Callable[[State], Any]) -> None:
        answers = []
        for state in (self.live, self.memory):
            try:
                act(state)
                answers.append(None)
            except InvalidArgumentError as error:
                answers.append(str(error))
        assert answers[0] == answers[1]
        self.committed = self.live.stamp() is not None

    @rule(name=NAMES, dtype=st.sampled_from(["i8", "f4", "u1"]), length=LENGTHS, value=st.integers(0, 9))
    def fill(self, name: str, dtype: str, length: int, value: int) -> None:
        self.begin()

        def act(state: State) -> None:
            state.array(name, dtype, length)[::2] = value

        self.both(act)

    @rule(name=NAMES, length=LENGTHS)
    def resize(self, name: str, length: int) -> None:
        self.both(lambda state: state.resize(name, length))

    @rule(name=NAMES, table=TABLES)
    def put(self, name: str, table: pa.Table) -> None:
        self.both(lambda state: state.put(name, table))

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        self.both(lambda state: state.drop(name))

    @rule()
    def clear(self) -> None:
        self.both(lambda state: state.clear())
        assert data_files(self.folder) == []

    @rule()
    def begin(self) -> None:
        self.live.begin()
        self.committed = False

    @rule()
    def commit(self) -> None:
        self.epoch += 1
        self.live.commit(self.epoch)
        self.committed = True

    @rule()
    def crash(self) -> None:
        self.live.close()
        self.live = LiveState(self.folder)
        if not self.committed:
            assert self.live.names() == []
            self.live.clear()
            self.memory.clear()

    @precondition(lambda self: self.committed)
    @rule()
    def other_process(self) -> None:
        other = LiveState(self.folder)
        assert other.stamp() == self.epoch
        other.begin()
        assert not self.live.current()
        other.commit(self.epoch)
        assert not self.live.current()
        with pytest.raises(StateError, match="another process"):
            self.live.begin()
        self.live = other

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "live"):
            return
        assert content(self.live) == content(self.memory)
        assert self.live.nbytes == self.memory.nbytes
        assert self.live.stamp() == (self.epoch if self.committed else None)
        assert self.live.current()
        assert len(data_files(self.folder)) == len(self.live.names())


TestLiveIsMemory = LiveIsMemory.TestCase
TestLiveIsMemory.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


# ---- stamps


def committed(folder: Path, epoch: int = 3) -> LiveState:
    state = LiveState(folder)
    state.begin()
    state.array("a", "i8", 4)[:] = epoch
    state.put("t", pa.table({"x": [epoch]}))
    state.commit(epoch)
    return state


def test_an_empty_folder_has_no_stamp(tmp_path: Path) -> None:
    state = LiveState(tmp_path / "deep" / "down")
    assert state.stamp() is None and state.current() and state.names() == []
    state.begin()
    state.commit(0)
    assert LiveState(tmp_path / "deep" / "down").stamp() == 0


def test_a_change_takes_the_stamp_away(tmp_path: Path) -> None:
    for change in (
        lambda state: state.begin(),
        lambda state: state.array("new", "i8"),
        lambda state: state.resize("a", 9),
        lambda state: state.put("t", pa.table({})),
        lambda state: state.drop("a"),
        lambda state: state.clear(),
    ):
        state = committed(tmp_path)
        change(state)
        assert state.stamp() is None and not (tmp_path / "stamp").exists()
        assert LiveState(tmp_path).stamp() is None and LiveState(tmp_path).names() == []
        state.clear()


def test_a_shorter_stamp_after_a_longer_one(tmp_path: Path) -> None:
    state = committed(tmp_path)
    state.array("a_long_name" * 20, "i8")
    state.commit(4)
    state.drop("a_long_name" * 20)
    state.commit(5)
    assert LiveState(tmp_path).stamp() == 5 and LiveState(tmp_path).names() == ["a", "t"]


def test_reading_leaves_the_stamp(tmp_path: Path) -> None:
    state = committed(tmp_path)
    state.array("a", "i8")
    state.table("t")
    state.drop("absent")
    assert state.stamp() == 3 and state.current()


def stamped(folder: Path, **changes: Any) -> None:
    """Change what the stamp says, with a checksum that fits."""
    text = json.dumps(json.loads((folder / "stamp").read_bytes()[8:]) | changes).encode()
    (folder / "stamp").write_bytes(b"%08x" % zlib.crc32(text) + text)


@pytest.mark.parametrize("changes", [{"format": 99}, {"boot": "another"}])
def test_a_stamp_that_does_not_count(tmp_path: Path, changes: dict[str, Any]) -> None:
    committed(tmp_path)
    stamped(tmp_path)
    assert LiveState(tmp_path).stamp() == 3
    stamped(tmp_path, **changes)
    state = LiveState(tmp_path)
    assert state.stamp() is None and state.names() == []
    state.clear()
    assert os.listdir(tmp_path) == []


def test_a_torn_stamp_is_none(tmp_path: Path) -> None:
    committed(tmp_path)
    whole = (tmp_path / "stamp").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "stamp").write_bytes(whole[:length])
        assert LiveState(tmp_path).stamp() is None


def test_files_that_do_not_fit_the_stamp(tmp_path: Path) -> None:
    state = committed(tmp_path)
    state.put("t", pa.concat_tables([pa.table({"x": [1] * 100})] * 3))
    state.commit(4)
    for name in data_files(tmp_path):
        whole = (tmp_path / name).read_bytes()
        for length in range(0, len(whole), 8):
            if name.endswith(".array") and length >= 4 * 8:
                continue  # the items are there, only the room to grow is not
            (tmp_path / name).write_bytes(whole[:length])
            assert LiveState(tmp_path).stamp() is None
        (tmp_path / name).unlink()
        assert LiveState(tmp_path).stamp() is None
        (tmp_path / name).write_bytes(whole)
        assert LiveState(tmp_path).stamp() == 4


def test_old_views_stay_valid(tmp_path: Path) -> None:
    state = committed(tmp_path)
    array, table = state.array("a", "i8"), state.table("t")
    state.resize("a", 100_000)
    state.resize("a", 1)
    state.put("t", pa.table({"x": [99]}))
    state.clear()
    state.close()
    assert array.tolist() == [3, 3, 3, 3] and table.to_pylist() == [{"x": 3}]


# ---- wrong use


@pytest.mark.parametrize(
    "act",
    [
        lambda state: state.begin(),
        lambda state: state.commit(4),
        lambda state: state.array("a", "i8"),
        lambda state: state.resize("a", 1),
        lambda state: state.table("t"),
        lambda state: state.put("t", pa.table({})),
        lambda state: state.drop("a"),
        lambda state: state.clear(),
        lambda state: list(state.items()),
    ],
)
def test_nothing_can_be_done_when_closed(tmp_path: Path, act: Callable[[LiveState], Any]) -> None:
    state = committed(tmp_path)
    state.close()
    state.close()
    assert not state.current() and state.stamp() is None
    with pytest.raises(StateError, match="was closed"):
        act(state)
    assert content(LiveState(tmp_path))["a"][2] == [3, 3, 3, 3]


def test_of_two_that_began_one_commits(tmp_path: Path) -> None:
    one, two = LiveState(tmp_path), LiveState(tmp_path)
    one.begin()
    two.begin()
    one.commit(1)
    with pytest.raises(StateError, match="another process"):
        two.commit(1)
    assert one.current() and not two.current()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    state = committed(tmp_path)
    before = data_files(tmp_path)
    for target, name, act in (
        (os, "posix_fallocate", lambda: state.array("new", "i8", 10)),
        (os, "posix_fallocate", lambda: state.resize("a", 100_000)),
        (pa.ipc, "new_stream", lambda: state.put("t", pa.table({}))),
        (os, "replace", lambda: state.commit(4)),
        (os, "write", lambda: state.commit(4)),
        (os, "unlink", lambda: state.drop("a")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, full)
            with pytest.raises(StateError, match=r"No space left on device\. Nothing was lost"):
                act()
        assert data_files(tmp_path) == before
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: 3)  # room for three bytes
        with pytest.raises(StateError, match="No space left on device"):
            state.commit(4)
    assert state.stamp() is None and LiveState(tmp_path).stamp() is None


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for act in (lambda: LiveState(tmp_path / "file"), lambda: Lease(tmp_path / "file").__enter__()):
        with pytest.raises(StateError, match="cannot be used"):
            act()


def test_commit_describes_the_items_only_when_they_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = committed(tmp_path)
    monkeypatch.setattr(live, "dtype_text", None)
    state.begin()
    state.array("a", "i8")[:] = 4
    state.commit(4)
    monkeypatch.undo()
    assert LiveState(tmp_path).array("a", "i8").tolist() == [4, 4, 4, 4]
    state.resize("a", 2)
    state.commit(5)
    assert LiveState(tmp_path).array("a", "i8").tolist() == [4, 4]


# ---- processes

WORKER = """
import sys
import pyarrow as pa
from anabranch.store.live.lease import Lease
from anabranch.store.live.state import LiveState

state, opened = None, 0
for line in sys.stdin:  # an epoch per line; "crash" dies in the middle of one
    with Lease(sys.argv[1]):
        if state is None or not state.current():
            state, opened = LiveState(sys.argv[1]), opened + 1
        state.begin()
        if line.strip() == "crash":
            state.array("count", "i8", 1)[:] = -1
            import os; os._exit(9)
        epoch = int(line)
        count = state.array("count", "i8", 1)
        count += 1
        seen = state.resize("seen", epoch) if "seen" in state else state.array("seen", "i8", epoch)
        seen[epoch - 1] = epoch
        old = state.table("log")
        new = pa.table({"epoch": [epoch]})
        state.put("log", pa.concat_tables([old, new]) if old is not None else new)
        state.commit(epoch)
    print(opened, flush=True)
"""


class Process:
    def __init__(self, folder: Path) -> None:
        self.running = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, line: object) -> str:
        assert self.running.stdin and self.running.stdout
        self.running.stdin.write(f"{line}\n")
        self.running.stdin.flush()
        return self.running.stdout.readline().strip()

    def end(self) -> int:
        assert self.running.stdin and self.running.stdout
        self.running.stdin.close()
        self.running.stdout.close()
        return self.running.wait()


def test_two_processes_alternate(tmp_path: Path) -> None:
    one, two = Process(tmp_path), Process(tmp_path)
    opened = [process.run(epoch) for epoch, process in enumerate([one, one, two, one, two, two, two, one], start=1)]
    # who committed last need not open again
    assert opened == ["1", "1", "1", "2", "2", "2", "2", "3"]
    assert two.end() == 0
    state = LiveState(tmp_path)
    assert state.stamp() == 8 and state.array("count", "i8").tolist() == [8]
    assert state.array("seen", "i8").tolist() == list(range(1, 9))
    assert [row["epoch"] for row in state.table("log").to_pylist()] == list(range(1, 9))
    one.run("crash")
    assert one.end() == 9
    assert LiveState(tmp_path).stamp() is None and not state.current()
    with Lease(tmp_path):  # the dead hold nothing
        pass


# ---- leases


def waiting(folder: Path) -> tuple[threading.Thread, threading.Event]:
    """A thread that wants the lease, and whether it has got it."""
    got = threading.Event()

    def take() -> None:
        with Lease(folder):
            got.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return thread, got


def test_a_lease_waits(tmp_path: Path) -> None:
    with Lease(tmp_path / "new"):
        thread, got = waiting(tmp_path / "new")
        assert not got.wait(0.1)
        LiveState(tmp_path / "new").clear()  # keeps the lock
        assert not got.wait(0.05)
    assert got.wait(10)
    thread.join()


def test_a_lock_that_was_replaced_is_taken_anew(tmp_path: Path) -> None:
    """Somebody removed the folder while one waited: the lock that comes free is nobody's any more."""
    with Lease(tmp_path):
        first, got_first = waiting(tmp_path)
        time.sleep(0.1)  # it waits at the old file
        (tmp_path / "lock").unlink()
        second = Lease(tmp_path)
        second.__enter__()
    assert not got_first.wait(0.1)
    second.__exit__(None, None, None)
    assert got_first.wait(10)
    first.join()


def test_a_lease_leaks_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", interrupted)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                Lease(tmp_path).__enter__()
    with Lease(tmp_path):
        pass
    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)
