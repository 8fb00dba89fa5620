"""Live state of one partition-group: memory-mapped files in a local folder, and a stamp that says what they show.

Write to the state only between `begin` and `commit`, and under a `Lease`. `begin` takes the stamp away, `commit` writes
it last: a crash between the two leaves no stamp, and the state is rebuilt. Methods that change files begin by
themselves. The stamp has a random part, so a process that committed sees whether its maps still show what is there.

Nothing is used that is not what was committed. A table never changes, so it is summed once, when it is written. An
array may have changed anywhere, so it is summed as a whole at each commit; where the arrays of a group are larger than
`CHECKED_BYTES`, that would take too long. Then the stamp has the inode, size and change time of each file, which tell
whether anybody else wrote to it, and only the run that committed the state uses it. Checksums are compared whenever a
process maps a file and whenever an epoch begins (of large tables: when they are mapped, or their files have changed).
docs/decisions/0009-live-state-is-checked.md has the reasons and the figures.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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
from anabranch.store import stamp as stamps
from anabranch.store.own_folder import OpenFolder, OwnFolder, using
from anabranch.store.stamp import Arrays, Entry

CHECKED_BYTES = 1 << 20
"""Arrays of a group up to so many bytes are summed at each commit; they, and tables up to so many bytes, are checked
whenever an epoch begins."""
_LEAST_BYTES = 4096  # a page: an empty file cannot be mapped
_STAMP, _DRAFT = "stamp", ".stamp"  # the draft is where the stamp is while the state is in work
_OWN_NAMES = re.compile(r"\d{8,}-[0-9a-f]{8}\.(array|table)|\.?stamp")


def is_live_file(name: str) -> bool:
    """Whether it is a name that live state gives to its files: no others are ever deleted."""
    return _OWN_NAMES.fullmatch(name) is not None


@dataclass
class _Kept:
    file: str
    item: Item
    map: mmap.mmap
    inode: tuple[int, int]
    """device and inode of what is mapped: the name may have come to another file"""
    crc32: int = 0
    """of a table"""
    checked: int | None = None
    """of a table: the change time of its file when its content was last compared"""

    @property
    def is_table(self) -> bool:
        return isinstance(self.item, pa.Table)

    @property
    def content(self) -> memoryview:
        """The bytes of the item: of an array, without the room to grow."""
        return memoryview(self.map)[: len(self.map) if self.is_table else self.item.nbytes]


@dataclass(frozen=True)
class _Committed:
    epoch: int
    token: str
    arrays: Arrays


class LiveState(State):
    """State in memory-mapped files; opens what is there if it is what its stamp says, else empty.

    `run` names the driver's run: state that is too large for checksums is used only by the run that committed it.
    """

    def __init__(self, folder: OwnFolder | str | Path, run: str = "") -> None:
        self._place = OwnFolder.at(folder)
        self._path = self._place.path
        self._folder: OpenFolder | None = None
        self._content: dict[str, _Kept] | None = {}  # None when closed
        self._layout: bytes | None = None  # what the stamp says of the items; None: to be written anew
        self._generation = 0
        self._committed: _Committed | None = None
        self._stamp: bytes | None = None  # as this object read or wrote it
        self.refresh(run)

    def stamp(self) -> int | None:
        """The epoch whose end this state shows; None: torn, in work, or empty."""
        return None if self._committed is None else self._committed.epoch

    def shows(self, epoch: int, token: str) -> bool:
        """Whether this state shows the end of that epoch, run by the plan with that token."""
        return self._committed is not None and (self._committed.epoch, self._committed.token) == (epoch, token)

    def current(self) -> bool:
        """Whether no other process has changed the state since this object opened or committed it."""
        with using(self._path):
            return self._content is not None and self._at.in_place() and self._read_stamp() == self._stamp

    def exists(self) -> bool:
        """Whether the folder is still there."""
        return self._folder is not None and self._folder.in_place()

    def intact(self) -> bool:
        """Whether the files are those that were committed, with the same content; of a state that has a stamp."""
        with using(self._path):
            return self._committed is not None and self._fits(self._kept, self._committed.arrays)

    def refresh(self, run: str = "") -> None:
        """Show what is on disk now, if another process changed it. Files that are the same stay mapped.

        To map them anew would take long: a process that gets a group back would touch all its pages for the first time.
        """
        with using(self._path):
            if self._folder is None or not self._folder.in_place():
                self._folder = self._place.open()
            self._run = run
            self._open()

    def begin(self) -> None:
        """Remove the stamp: from here until `commit` a crash leaves a state that will be rebuilt."""
        self._check_current()
        self._unstamp()

    def commit(self, epoch: int, token: str = "") -> None:
        """Write the stamp: the state shows the end of that epoch, run by the plan with that token."""
        self._check_current()
        with using(self._path):
            arrays = self._arrays()
            if self._layout is None:
                self._layout = stamps.layout(self._generation, self._entries())
            stamp = stamps.write(epoch, token, self._run, arrays, self._layout)
            try:
                self._write_draft(stamp)
                self._at.replace(_DRAFT, _STAMP)
            except BaseException:
                with suppress(OSError):
                    self._at.unlink(_DRAFT)
                raise
        self._stamp, self._committed = stamp, _Committed(epoch, token, arrays)

    def close(self) -> None:
        """Let go of the maps; views that are still held stay valid. Nothing can be done with a closed state."""
        self._content = self._committed = self._folder = None

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
        assert kept is not None
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
        return kept.item if kept and kept.is_table else None

    def put(self, name: str, table: pa.Table) -> None:
        """Keep a table in the place of what had that name, in a new file: maps of the old one stay valid."""
        check_name(name)
        self._change()
        file = self._new_file("table")
        with using(self._path):
            try:
                with (
                    open(self._at.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as sink,
                    pa.ipc.new_stream(sink, table.schema) as writer,
                ):
                    writer.write_table(table)
                kept = self._map_table(file)
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
        """Forget everything, and remove the stamp and the files, also those of a crash; but no file of others."""
        self._kept.clear()
        self._layout = None
        self._unstamp()
        with using(self._path):
            for name in filter(is_live_file, self._at.names()):
                self._at.unlink(name)

    def items(self) -> Iterator[tuple[str, Item]]:
        """All there is, sorted by name."""
        return ((name, self._kept[name].item) for name in sorted(self._kept))

    @property
    def _kept(self) -> dict[str, _Kept]:
        if self._content is None:
            raise StateError(
                f"the live state in {self._path} was closed: what is asked of it now would be lost",
                hint="open it again",
            )
        return self._content

    @property
    def _at(self) -> OpenFolder:
        assert self._folder is not None
        return self._folder

    # --- the stamp --------------------------------------------------------------------------------------------------

    def _check_current(self) -> None:
        _ = self._kept  # a closed one says so itself
        if not self.current():
            raise self._changed()

    def _changed(self) -> StateError:
        return StateError(
            f"the live state in {self._path} was changed by another process: to go on would mix two states",
            hint="open it again when current() is false, and hold a Lease",
        )

    def _change(self) -> None:
        """Before any change of the items: begin if that was not done, and let `commit` describe them anew."""
        if self._stamp is not None:
            self.begin()
        self._layout = None

    def _unstamp(self) -> None:
        with using(self._path), suppress(FileNotFoundError):
            self._at.replace(_STAMP, _DRAFT)  # not unlinked: a new file per epoch costs more
        self._stamp = self._committed = None

    def _read_stamp(self) -> bytes | None:
        with using(self._path):
            try:
                fd = self._at.open(_STAMP, os.O_RDONLY)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):  # ELOOP: a symbolic link, which is not ours
                    return None
                raise
            with open(fd, "rb", buffering=0) as file:
                return file.read()

    def _write_draft(self, stamp: bytes) -> None:
        fd = self._at.open(_DRAFT, os.O_WRONLY | os.O_CREAT)
        try:
            if os.write(fd, stamp) != len(stamp):  # a disk takes all of it, unless it is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            os.ftruncate(fd, len(stamp))  # the stamp before may have been longer
        finally:
            os.close(fd)

    def _entries(self) -> dict[str, Entry]:
        return {
            name: Entry(kept.file, len(kept.item), crc32=kept.crc32)
            if isinstance(kept.item, pa.Table)
            else Entry(kept.file, len(kept.item), dtype_text(kept.item.dtype))
            for name, kept in self._kept.items()
        }

    def _arrays(self) -> Arrays:
        arrays = {name: kept for name, kept in self._kept.items() if not kept.is_table}
        if sum(kept.item.nbytes for kept in arrays.values()) <= CHECKED_BYTES:
            return Arrays(sums={name: zlib.crc32(kept.content) for name, kept in arrays.items()})
        files = {name: self._at.stat(kept.file) for name, kept in arrays.items()}
        if any((info.st_dev, info.st_ino) != arrays[name].inode for name, info in files.items()):
            raise self._changed()
        return Arrays(files={name: _file_of(info) for name, info in files.items()})

    def _fits(self, content: Mapping[str, _Kept], arrays: Arrays) -> bool:
        """Whether the mapped files are those on disk, and hold what was committed."""
        small = sum(len(kept.map) for kept in content.values() if kept.is_table) <= CHECKED_BYTES
        for name, kept in content.items():
            try:
                info = self._at.stat(kept.file)
            except FileNotFoundError:
                return False
            # A map of a file that was cut short must not be read: that would kill the process.
            if (info.st_dev, info.st_ino) != kept.inode or info.st_size < len(kept.map):
                return False
            if kept.is_table:
                if small or kept.checked != info.st_ctime_ns:
                    if zlib.crc32(kept.content) != kept.crc32:
                        return False
                    kept.checked = info.st_ctime_ns
            elif arrays.sums is not None:
                if zlib.crc32(kept.content) != arrays.sums[name]:
                    return False
            elif arrays.files is None or _file_of(info) != arrays.files[name]:
                return False
        return True

    # --- the files --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        known = {kept.file: kept for kept in (self._content or {}).values()}
        self._content, self._committed, self._layout = {}, None, None
        self._stamp = self._read_stamp()
        found = stamps.read(self._stamp)
        if found is None or (found.arrays.sums is None and found.run != self._run):
            return
        try:
            kept = {name: self._reopen(known, entry) for name, entry in found.items.items()}
            if not self._fits(kept, found.arrays):
                return
        except ValueError:
            return  # files and stamp do not fit: rebuild
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return
            raise
        self._content, self._generation = kept, found.generation
        self._committed = _Committed(found.epoch, found.token, found.arrays)

    def _reopen(self, known: Mapping[str, _Kept], entry: Entry) -> _Kept:
        old = known.get(entry.file)
        if old is not None:
            info = self._at.stat(entry.file)
            if (info.st_dev, info.st_ino, entry.crc32 or 0) != (*old.inode, old.crc32) or info.st_size < len(old.map):
                old = None
        if entry.dtype is None:
            return old or self._map_table(entry.file, entry.crc32)
        mapped, inode = (old.map, old.inode) if old else self._map_array(entry.file)
        return _Kept(entry.file, np.frombuffer(mapped, dtype_of(entry.dtype), entry.length), mapped, inode)

    def _new_array(self, dtype: np.dtype[Any], length: int) -> _Kept:
        file = self._new_file("array")
        with using(self._path):
            try:
                mapped, inode = self._map_array(file, _capacity(length * dtype.itemsize))
            except BaseException:
                self._unlink(file)
                raise
        return _Kept(file, np.frombuffer(mapped, dtype, length), mapped, inode)

    def _map_array(self, file: str, capacity: int = 0) -> tuple[mmap.mmap, tuple[int, int]]:
        fd = self._at.open(file, os.O_RDWR | (os.O_CREAT | os.O_EXCL if capacity else 0))
        try:
            if capacity and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, capacity)  # a full disk is an error here, and a dead process later
            elif capacity:
                os.ftruncate(fd, capacity)
            info = os.fstat(fd)
            return mmap.mmap(fd, 0), (info.st_dev, info.st_ino)
        finally:
            os.close(fd)

    def _map_table(self, file: str, crc32: int | None = None) -> _Kept:
        fd = self._at.open(file, os.O_RDONLY)
        try:
            info = os.fstat(fd)
            mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        found = zlib.crc32(mapped)
        if crc32 not in (None, found):  # before Arrow looks at it
            raise ValueError(f"{file} does not fit its checksum")
        table = pa.ipc.open_stream(pa.py_buffer(mapped)).read_all()
        return _Kept(file, table, mapped, (info.st_dev, info.st_ino), found, info.st_ctime_ns)

    def _new_file(self, suffix: str) -> str:
        self._generation += 1
        # With a random part, so that a new file never is one that a crashed process left.
        return f"{self._generation:08d}-{uuid.uuid4().hex[:8]}.{suffix}"

    def _unlink(self, file: str) -> None:
        with using(self._path):
            self._at.unlink(file)


def _file_of(info: os.stat_result) -> list[int]:
    """What changes when somebody writes to a file, or puts another one in its place."""
    return [info.st_dev, info.st_ino, info.st_size, info.st_ctime_ns]


def _capacity(needed: int) -> int:
    """Whole pages; of large arrays up to an eighth more than needed, so that to grow a little is cheap."""
    step = max(_LEAST_BYTES, 1 << needed.bit_length() >> 4)
    return max(1, -(-needed // step)) * step
