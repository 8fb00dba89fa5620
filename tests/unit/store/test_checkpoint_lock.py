"""One driver per checkpoint, on disks and where there are no locks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pyarrow import fs

from anabranch.errors import CheckpointError
from anabranch.io.folder import Folder
from anabranch.store import checkpoint_lock
from anabranch.store.checkpoint_lock import LOCK, LOCK_VERSION, CheckpointLock, Holder
from anabranch.store.ledger import open_checkpoint

HOLDER = """
import sys, time
from pyarrow import fs
from anabranch.store import checkpoint_lock
from anabranch.io.folder import Folder
checkpoint_lock.BEAT = float(sys.argv[3])
tree = fs.SubTreeFileSystem(sys.argv[1], fs.LocalFileSystem())
folder = Folder.at(sys.argv[1] if sys.argv[2] == "disk" else (tree, "c"))
with checkpoint_lock.CheckpointLock("the first", folder):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["disk", "no locks"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """On a disk, and on a file system of which nothing is known."""
    monkeypatch.setattr(checkpoint_lock, "BEAT", 0.05)
    monkeypatch.setattr(checkpoint_lock, "DEAD_AFTER", 3.0)
    if request.param == "disk":
        return Folder.at(tmp_path)
    return Folder.at((fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "c"))


def holder(folder: Folder, tmp_path: Path, beat: float = 0.05) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    kind = "disk" if folder.is_local else "no locks"
    command = [sys.executable, "-c", HOLDER, str(tmp_path), kind, str(beat)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None and running.stdout.readline() == "held\n"
    return running


def take(folder: Folder, name: str | None = "mine") -> CheckpointLock:
    return CheckpointLock(name, folder).__enter__()


def test_another_process_is_named_and_its_death_frees_the_lock(folder: Folder, tmp_path: Path) -> None:
    other = holder(folder, tmp_path)
    try:
        with pytest.raises(CheckpointError) as raised:
            take(folder)
        message = raised.value.message
        assert "in use by the query 'the first'" in message and f"process {other.pid} of user" in message
        assert re.search(r"on \S+, since \d{4}-\d\d-\d\d ", message)
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    began = time.monotonic()
    take(folder).release()  # at once
    assert time.monotonic() - began < checkpoint_lock.DEAD_AFTER / 2


def test_a_second_query_of_the_same_process_is_refused_until_the_first_ends(folder: Folder) -> None:
    first = take(folder, None)
    with pytest.raises(CheckpointError, match=f"a query without a name in process {os.getpid()}"):
        take(folder)
    first.check()
    first.release()
    first.release()
    second = take(folder)
    second.check()
    with pytest.raises(CheckpointError, match="no longer locked"):
        first.check()
    first.release()  # does nothing to the second
    second.check()
    second.release()


def test_a_query_that_ended_without_being_asked_does_not_block_the_next(folder: Folder) -> None:
    locks = []
    for is_active in (lambda: False, lambda: False, lambda: True):
        locks.append(take(folder))
        locks[-1].belongs_to(is_active)
    with pytest.raises(CheckpointError, match="in use"):
        take(folder)
    with pytest.raises(CheckpointError, match="no longer locked"):
        locks[0].check()
    locks[-1].release()


def test_a_start_that_fails_releases_the_lock_and_leaves_nothing(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), CheckpointLock("q", folder):
        raise ZeroDivisionError
    assert not list(tmp_path.rglob(LOCK))
    take(folder).release()


def test_whoever_removes_or_replaces_the_lock_is_noticed(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_lock, "BEAT", 60.0)
    for replaced in (False, True):
        lock = take(folder)
        (path,) = tmp_path.rglob(LOCK)
        path.rename(path.with_name("away"))
        if replaced:
            path.write_bytes(b"{}")
        with pytest.raises(CheckpointError, match="another driver may have taken it over"):
            lock.check()
        lock.release()


GARBAGE = [b"", b"{", b"null", b"5", b'"text"', b"[]", b"{}", b'{"holder": 5, "pid": "x"}', b'{"holder": {"pid": "1"}}']


@pytest.mark.parametrize("content", GARBAGE)
def test_garbage_in_a_lock_file_names_nobody_and_blocks_nobody(tmp_path: Path, content: bytes) -> None:
    folder = Folder.at(tmp_path)
    (tmp_path / LOCK).write_bytes(content)
    lock = take(folder)
    (tmp_path / LOCK).write_bytes(content)
    checkpoint_lock._taken.clear()  # as for another process
    with pytest.raises(CheckpointError, match="is in use by another query"):
        take(folder)
    checkpoint_lock._taken[str(tmp_path)] = lock
    lock.release()


@pytest.mark.parametrize("content", GARBAGE)
def test_garbage_counts_as_a_holder_without_a_sign_of_life_where_there_are_no_locks(
    remote: Folder, content: bytes
) -> None:
    remote.create()
    remote.write(LOCK, "lock", content)
    lock = take(remote)
    lock.check()
    lock.release()


@pytest.mark.parametrize("version", [None, LOCK_VERSION, LOCK_VERSION + 1])
def test_only_a_holder_of_a_later_release_is_not_named(version: int | None) -> None:
    holder = Holder.me("q")
    written = json.loads(json.dumps(holder.to_json()))
    assert written["version"] == LOCK_VERSION
    del written["version"]
    known = written if version is None else {**written, "version": version}
    assert Holder.from_json(known) == (None if version == LOCK_VERSION + 1 else holder)


def test_a_living_holder_of_a_later_release_keeps_its_lock(remote: Folder) -> None:
    remote.create()
    remote.write(LOCK, "lock", b'{"holder": {"version": 99}, "beats": 1}')
    ended = threading.Event()

    def beat() -> None:
        beats = 1
        while not ended.wait(0.02):
            beats += 1
            remote.write(LOCK, "lock", f'{{"holder": {{"version": 99}}, "beats": {beats}}}'.encode())

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(CheckpointError, match="is in use by another query"):
            take(remote)
    finally:
        ended.set()
        thread.join()


def test_the_lock_counts_as_nothing_in_a_new_checkpoint(folder: Folder) -> None:
    with CheckpointLock("q", folder) as lock:
        first = open_checkpoint(folder, "q", ["a"])
        lock.release()
    with CheckpointLock("q", folder) as lock:
        assert open_checkpoint(folder, "q", ["a"]) == first
        lock.release()


def test_of_two_folders_both_are_locked_or_none(tmp_path: Path) -> None:
    one, two = Folder.at(tmp_path / "one"), Folder.at(tmp_path / "two")
    lock = take(two)
    with pytest.raises(CheckpointError, match="two is in use"):
        CheckpointLock("q", one, two).__enter__()
    take(one).release()
    lock.release()
    with CheckpointLock("q", one, two) as both:
        for each in (one, two):
            with pytest.raises(CheckpointError, match="is in use"):
                take(each)
        both.release()
    assert list(tmp_path.rglob(LOCK)) == []


def test_a_link_to_the_folder_is_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    lock = take(Folder.at(tmp_path / "real"))
    with pytest.raises(CheckpointError, match="is in use"):
        take(Folder.at(tmp_path / "link"))
    lock.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_does_not_hold_the_lock_after_its_parent(tmp_path: Path) -> None:
    # The parent waits until its child runs: only then has that let go of the lock.
    forks = """    import os
    ready, runs = os.pipe()
    if os.fork() == 0:
        os.write(runs, b"!")
        time.sleep(600)
    os.read(ready, 1)
    os._exit(0)"""
    code = HOLDER.replace("    time.sleep(600)", forks)
    command = [sys.executable, "-c", code, str(tmp_path), "disk", "1"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert running.stdout is not None and running.stdout.readline() == "held\n"
        assert running.wait(60) == 0
        take(Folder.at(tmp_path)).release()
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.stdout.close() if running.stdout else None


# ---- where there are no locks


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(checkpoint_lock, "BEAT", 0.05)
    monkeypatch.setattr(checkpoint_lock, "DEAD_AFTER", 0.5)
    return Folder.at((fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "c"))


def of_another_host(folder: Folder) -> None:
    """A lock that some machine left when it lost power."""
    _, payload = folder.read(LOCK, "lock")
    content = json.loads(payload.to_pybytes())
    content["holder"] |= {"host": "far away", "processes": "another", "owner": "x", "pid": 1}
    folder.write(LOCK, "lock", json.dumps(content).encode())


def test_a_holder_that_gives_no_sign_of_life_is_dead(remote: Folder) -> None:
    lock = take(remote)
    of_another_host(remote)
    with pytest.raises(CheckpointError, match="no longer locked"):
        lock.check()
    lock.release()
    assert remote.exists(LOCK)  # it is not ours to remove
    began = time.monotonic()
    second = take(remote)
    assert time.monotonic() - began >= checkpoint_lock.DEAD_AFTER
    second.check()
    second.release()
    assert not remote.exists(LOCK)


def test_a_holder_beats_and_ends_with_its_lock(remote: Folder) -> None:
    lock = take(remote)
    _, first = remote.read(LOCK, "lock")
    end = time.monotonic() + 30
    while json.loads(remote.read(LOCK, "lock")[1].to_pybytes())["beats"] < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    lock.release()
    while any(thread.name == "anabranch-checkpoint-lock" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert not remote.exists(LOCK) and first is not None


def test_on_an_object_store(s3: fs.S3FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_lock, "DEAD_AFTER", 1.0)
    folder = Folder.at((s3, "bucket/locked"))
    lock = take(folder)
    with pytest.raises(CheckpointError, match="in use by the query 'mine'"):
        take(folder)
    lock.check()
    of_another_host(folder)
    with pytest.raises(CheckpointError, match="no longer locked"):
        lock.check()
    lock.release()
    take(folder).release()
    assert not folder.exists(LOCK)
