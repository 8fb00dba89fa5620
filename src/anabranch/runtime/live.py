"""Live state of one partition-group: memory-mapped files in a local folder, and a stamp that says what they show.

Write to the state only between `begin` and `commit`, and under a `Lease`. `begin` takes the stamp away, `commit` writes
it last: a crash between the two leaves no stamp, and the state is rebuilt. Methods that change files begin by
themselves. The stamp has a random token, so a process that committed sees whether its maps still show what is there.
It also names the boot of the machine: mapped pages survive a process, but not a loss of power.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import mmap
import os
import subprocess
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.errors import StateError
from anabranch.operators.state import (
    Array,
    Item,
    State,
    check_array,
    check_dtype,
    check_length,
    check_name,
    check_same,
    dtype_of,
    dtype_text,
)
from anabranch.runtime.files import FORMAT

_LEAST_BYTES = 4096  # a page: an empty file cannot be mapped


@dataclass
class _Kept:
    file: str
    item: Item
    map: mmap.mmap | None = None  # of arrays


class LiveState(State):
    """State in memory-mapped files; opens what is there if stamped, else empty."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._stamp_path = os.path.join(self._folder, "stamp")
        self._draft_path = os.path.join(self._folder, ".stamp")  # where the stamp is while the state is in work
        self._content: dict[str, _Kept] | None = {}  # None when closed
        self._layout: bytes | None = None  # what the stamp says of the items; None: to be written anew
        self._generation = 0
        self._epoch: int | None = None
        self._stamp: bytes | None = None  # as this object read or wrote it
        with _telling(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._open()

    def stamp(self) -> int | None:
        """The epoch whose end this state shows; None: torn, in work, or empty."""
        return self._epoch

    def current(self) -> bool:
        """Whether this object still shows what is on disk."""
        return self._content is not None and self._read_stamp() == self._stamp

    def refresh(self) -> None:
        """Show what is on disk now, if another process changed it. Files that are the same stay mapped.

        To map them anew would take long: a process that gets a group back would touch all its pages for the first time.
        """
        with _telling(self._folder):
            self._open()

    def begin(self) -> None:
        """Remove the stamp: from here until `commit` a crash leaves a state that will be rebuilt."""
        self._check_current()
        self._unstamp()

    def commit(self, epoch: int) -> None:
        """Write the stamp: the state shows the end of that epoch."""
        self._check_current()
        if self._layout is None:
            self._layout = self._new_layout()
        text = b'{"epoch": %d, "token": "%s", %s' % (epoch, uuid.uuid4().hex.encode(), self._layout)
        stamp = b"%08x%s" % (zlib.crc32(text), text)
        with _telling(self._folder):
            try:
                _write(self._draft_path, stamp)
                os.replace(self._draft_path, self._stamp_path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(self._draft_path)
                raise
        self._stamp, self._epoch = stamp, epoch

    def close(self) -> None:
        """Let go of the maps; views that are still held stay valid. Nothing can be done with a closed state."""
        self._content = self._epoch = None

    def array(self, name: str, dtype: npt.DTypeLike, length: int = 0) -> Array:
        """The array of that name; made of zeros if absent."""
        check_name(name)
        wanted = check_dtype(name, dtype)
        if name not in self._kept:
            check_length(name, length)
            self._change()
            self._kept[name] = self._new_array(wanted, length)
        return check_same(name, self._kept[name].item, wanted)

    def resize(self, name: str, length: int) -> Array:
        """The array with the same content, zeros after it; earlier views are no longer valid."""
        kept = self._kept.get(name)
        old = check_array(name, kept.item if kept else None)
        check_length(name, length)
        assert kept is not None and kept.map is not None
        self._change()
        capacity, needed = len(kept.map), length * old.dtype.itemsize
        if needed > capacity or max(4 * needed, 16 * _LEAST_BYTES) < capacity:
            # A new file, never a shorter one: an old view of a file cut short would kill the process.
            new = self._new_array(old.dtype, length)
            count = min(length, len(old))
            check_array(name, new.item)[:count] = old[:count]
            self._kept[name] = new
            self._unlink(kept.file)
        else:
            kept.item = np.frombuffer(kept.map, old.dtype, length)
            kept.item[len(old) :] = np.zeros((), old.dtype)
        return check_array(name, self._kept[name].item)

    def table(self, name: str) -> pa.Table | None:
        """The table of that name."""
        kept = self._kept.get(name)
        return kept.item if kept and kept.map is None else None

    def put(self, name: str, table: pa.Table) -> None:
        """Keep a table in the place of what had that name, in a new file: maps of the old one stay valid."""
        check_name(name)
        self._change()
        file = self._new_file("table")
        path = str(self._folder / file)
        with _telling(self._folder):
            try:
                with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                    writer.write_table(table)
                kept = _Kept(file, _map_table(path))
            except BaseException:
                self._unlink(file)
                raise
        self.drop(name)
        self._kept[name] = kept

    def drop(self, name: str) -> None:
        """Forget an array or a table, and unlink its file."""
        if name in self._kept:
            self._change()
            self._unlink(self._kept.pop(name).file)

    def clear(self) -> None:
        """Forget everything, and remove the stamp and the files, also those of a crash."""
        self._kept.clear()
        self._layout = None
        self._unstamp()
        with _telling(self._folder):
            for path in self._folder.iterdir():
                if path.name != "lock":
                    path.unlink(missing_ok=True)

    def items(self) -> Iterator[tuple[str, Item]]:
        """All there is, sorted by name."""
        return ((name, self._kept[name].item) for name in sorted(self._kept))

    @property
    def _kept(self) -> dict[str, _Kept]:
        if self._content is None:
            raise StateError(
                f"the live state in {self._folder} was closed: what is asked of it now would be lost",
                hint="open it again",
            )
        return self._content

    def _check_current(self) -> None:
        _ = self._kept  # a closed one says so itself
        if not self.current():
            raise StateError(
                f"the live state in {self._folder} was changed by another process: to go on would mix two states",
                hint="open it again when current() is false, and hold a Lease",
            )

    def _change(self) -> None:
        """Before any change of the items: begin if that was not done, and let `commit` describe them anew."""
        if self._stamp is not None:
            self.begin()
        self._layout = None

    def _unstamp(self) -> None:
        with _telling(self._folder), suppress(FileNotFoundError):
            os.replace(self._stamp_path, self._draft_path)  # not unlinked: a new file per epoch costs more
        self._stamp = self._epoch = None

    def _read_stamp(self) -> bytes | None:
        with _telling(self._folder):
            try:
                with open(self._stamp_path, "rb", buffering=0) as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def _new_layout(self) -> bytes:
        items = {
            name: {"file": kept.file, "length": len(kept.item)}
            | ({} if isinstance(kept.item, pa.Table) else {"dtype": dtype_text(kept.item.dtype)})
            for name, kept in self._kept.items()
        }
        content = {"format": FORMAT, "boot": _boot(), "generation": self._generation, "items": items}
        return json.dumps(content).encode()[1:]  # the rest of an object that `commit` opens

    def _open(self) -> None:
        known = {kept.file: kept for kept in (self._content or {}).values()}
        self._content, self._epoch, self._layout = {}, None, None
        self._stamp = self._read_stamp()
        content = _parse(self._stamp)
        if content is None:
            return
        try:
            kept = {name: self._reopen(known, **entry) for name, entry in content["items"].items()}
        except (OSError, ValueError, pa.ArrowInvalid):
            return  # files and stamp do not fit: rebuild
        self._content, self._epoch, self._generation = kept, content["epoch"], content["generation"]

    def _reopen(self, known: Mapping[str, _Kept], file: str, length: int, dtype: str | None = None) -> _Kept:
        path = self._folder / file
        if file in known:  # names are never used again: it is the same file
            old = known[file]
            if dtype is not None and old.map is not None:
                return _Kept(file, np.frombuffer(old.map, dtype_of(dtype), length), old.map)
            return old
        if dtype is None:
            table = _map_table(str(path))
            if len(table) != length:  # a stream that was cut between two batches reads well
                raise ValueError(f"{path} has {len(table)} rows in the place of {length}")
            return _Kept(file, table)
        mapped = _map_array(path)
        return _Kept(file, np.frombuffer(mapped, dtype_of(dtype), length), mapped)

    def _new_array(self, dtype: np.dtype[Any], length: int) -> _Kept:
        capacity = _capacity(length * dtype.itemsize)
        file = self._new_file("array")
        with _telling(self._folder):
            try:
                mapped = _map_array(self._folder / file, capacity)
            except BaseException:
                self._unlink(file)
                raise
        return _Kept(file, np.frombuffer(mapped, dtype, length), mapped)

    def _new_file(self, suffix: str) -> str:
        self._generation += 1
        # With a random part, so that a new file never is one that a crashed process left.
        return f"{self._generation:08d}-{uuid.uuid4().hex[:8]}.{suffix}"

    def _unlink(self, file: str) -> None:
        with _telling(self._folder):
            (self._folder / file).unlink(missing_ok=True)


class Lease:
    """Exclusive hold of a live folder, by flock: two attempts of one task never touch a group's state at once.

    Waits for the holder. Not re-entrant: a second lease of one folder in the same thread waits for ever.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / "lock"
        self._fd = -1

    def __enter__(self) -> Lease:
        with _telling(self._path):
            while not self._take():
                pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # not by closing alone: a forked child has the descriptor too
        os.close(self._fd)

    def _take(self) -> bool:
        """Lock the file; false if it was replaced while we waited: somebody else may have locked the new one."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                    self._fd = fd
                    return True
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return False


def _parse(stamp: bytes | None) -> dict[str, Any] | None:
    if stamp is None or stamp[:8] != b"%08x" % zlib.crc32(stamp[8:]):
        return None
    content: dict[str, Any] = json.loads(stamp[8:])
    return content if content["format"] == FORMAT and content["boot"] == _boot() else None


def _write(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.write(fd, content) != len(content):  # a disk takes all of it, unless it is full
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        os.ftruncate(fd, len(content))  # the stamp before may have been longer
    finally:
        os.close(fd)


def _capacity(needed: int) -> int:
    """Whole pages; of large arrays up to an eighth more than needed, so that to grow a little is cheap."""
    step = max(_LEAST_BYTES, 1 << needed.bit_length() >> 4)
    return max(1, -(-needed // step)) * step


def _map_array(path: Path, capacity: int = 0) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | (os.O_CREAT if capacity else 0), 0o644)
    try:
        if capacity and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, capacity)  # a full disk is an error here, and a dead process later
        elif capacity:
            os.ftruncate(fd, capacity)
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)


def _map_table(path: str) -> pa.Table:
    with pa.memory_map(path) as file:
        return pa.ipc.open_stream(file).read_all()


@functools.cache
def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        return subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True).stdout.strip()
    return ""


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(
            f"the live state in {path} cannot be used: {error.strerror or error}. Nothing was lost: it is rebuilt "
            "from the epoch store",
            hint="make room on the worker's disk, or restore the right to write there, then start the query again",
        ) from error
