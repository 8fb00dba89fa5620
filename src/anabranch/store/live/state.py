"""Live state of one partition-group: memory-mapped files in a local folder, and a stamp that says what they show.

Write to the state only between `begin` and `commit`, and under a `Lease`. `begin` removes the stamp and `commit` writes
it last, so a crash between the two leaves no stamp, and the state is rebuilt. Methods that change files call `begin`
themselves. The stamp has a random part, so a process that committed can see whether its maps are still current.

State is used only if it is what was committed. A table never changes, so its checksum is computed once, when it is
written. An array may change anywhere, so its checksum is computed at each commit; where the arrays of a group are
larger than `CHECKED_BYTES`, that would take too long. Then the stamp has the inode, size and change time of each file,
which show whether another process wrote to it, and only the run that committed the state uses it. Checksums are
compared whenever a process maps a file and whenever an epoch begins (for large tables: when they are mapped, or their
files have changed). docs/decisions/0009-live-state-is-checked.md has the reasons and the figures.
"""

from __future__ import annotations

import errno
import os
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
from anabranch.store.live import stamp as stamps
from anabranch.store.live.mapped import (
    PAGE,
    MappedItem,
    capacity_for,
    file_identity,
    is_live_file,
    map_array,
    map_table,
)
from anabranch.store.live.own_folder import OpenFolder, OwnFolder, using
from anabranch.store.live.stamp import Arrays, Entry

CHECKED_BYTES = 1 << 20
"""Arrays of a group up to this size have checksums; they, and tables up to this size, are checked whenever an epoch
begins."""
_STAMP, _DRAFT = "stamp", ".stamp"  # the draft is the stamp's file while the state is being changed


@dataclass(frozen=True)
class _Committed:
    epoch: int
    token: str
    arrays: Arrays


class LiveState(State):
    """State in memory-mapped files. Opens what is there if it matches its stamp; otherwise it is empty.

    `run` is the driver's run: state that is too large for checksums is used only by the run that committed it.
    """

    def __init__(self, folder: OwnFolder | str | Path, run: str = "") -> None:
        self._place = OwnFolder.at(folder)
        self._path = self._place.path
        self._folder: OpenFolder | None = None
        self._content: dict[str, MappedItem] | None = {}  # None when closed
        self._layout: bytes | None = None  # the stamp's description of the items; None: to be written again
        self._generation = 0
        self._committed: _Committed | None = None
        self._stamp: bytes | None = None  # as this object read or wrote it
        self.refresh(run)

    def stamp(self) -> int | None:
        """The epoch whose end this state shows; None if it is torn, being changed, or empty."""
        return None if self._committed is None else self._committed.epoch

    def shows(self, epoch: int, token: str) -> bool:
        """Whether this state shows the end of that epoch, run by the decision that has this token."""
        return self._committed is not None and (self._committed.epoch, self._committed.token) == (epoch, token)

    def current(self) -> bool:
        """Whether no other process has changed the state since this object opened or committed it."""
        with using(self._path):
            return self._content is not None and self._at.in_place() and self._read_stamp() == self._stamp

    def exists(self) -> bool:
        """Whether the folder is still there."""
        return self._folder is not None and self._folder.in_place()

    def intact(self) -> bool:
        """Whether the files are those that were committed, with the same content; False without a stamp."""
        with using(self._path):
            return self._committed is not None and self._fits(self._kept, self._committed.arrays)

    def refresh(self, run: str = "") -> None:
        """Show what is on disk now, in case another process changed it. Unchanged files stay mapped.

        Mapping them again would be slow: a process that gets a group back would fault in all its pages.
        """
        with using(self._path):
            if self._folder is None or not self._folder.in_place():
                self._folder = self._place.open()
            self._run = run
            self._open()

    def begin(self) -> None:
        """Remove the stamp: if the process crashes before `commit`, the state will be rebuilt."""
        self._check_current()
        self._unstamp()

    def commit(self, epoch: int, token: str = "") -> None:
        """Write the stamp: the state shows the end of that epoch, run by the decision that has this token."""
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
        """Release the maps; existing views stay valid. A closed state cannot be used."""
        self._content = self._committed = self._folder = None

    def array(self, name: str, dtype: npt.DTypeLike, length: int = 0) -> Array:
        """The array with that name; created with zeros if absent."""
        check_name(name)
        wanted = check_dtype(name, dtype)
        if name not in self._kept:
            check_length(name, length)
            self._change()
            self._kept[name] = self._new_array(wanted, length)
        return check_same(name, self._kept[name].item, wanted)

    def resize(self, name: str, length: int) -> Array:
        """The array with the same content, followed by zeros; earlier views are no longer valid."""
        kept = self._kept.get(name)
        old = check_array(name, kept.item if kept else None)
        check_length(name, length)
        assert kept is not None
        self._change()
        capacity, needed = len(kept.map), length * old.dtype.itemsize
        if needed > capacity or max(4 * needed, 16 * PAGE) < capacity:
            # A new file instead of truncating: reading an old view of a truncated file would kill the process.
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
        """The table with that name."""
        kept = self._kept.get(name)
        return kept.item if kept and kept.is_table else None

    def put(self, name: str, table: pa.Table) -> None:
        """Store a table under that name, in a new file: maps of what it replaces stay valid."""
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
                kept = map_table(self._at, file)
            except BaseException:
                self._unlink(file)
                raise
        self.drop(name)
        self._kept[name] = kept

    def drop(self, name: str) -> None:
        """Remove an array or a table, and its file."""
        if name in self._kept:
            self._change()
            self._unlink(self._kept.pop(name).file)

    def clear(self) -> None:
        """Remove everything: the stamp and all files, also those left by a crash, but no foreign files."""
        self._kept.clear()
        self._layout = None
        self._unstamp()
        with using(self._path):
            for name in filter(is_live_file, self._at.names()):
                self._at.unlink(name)

    def items(self) -> Iterator[tuple[str, Item]]:
        """All items, sorted by name."""
        return ((name, self._kept[name].item) for name in sorted(self._kept))

    @property
    def _kept(self) -> dict[str, MappedItem]:
        if self._content is None:
            raise StateError(
                f"the live state in {self._path} was closed: changes to it would be lost",
                hint="open it again",
            )
        return self._content

    @property
    def _at(self) -> OpenFolder:
        assert self._folder is not None
        return self._folder

    # --- the stamp --------------------------------------------------------------------------------------------------

    def _check_current(self) -> None:
        _ = self._kept  # raises if it is closed
        if not self.current():
            raise self._changed()

    def _changed(self) -> StateError:
        return StateError(
            f"the live state in {self._path} was changed by another process: continuing would mix two states",
            hint="open it again when current() is False, and hold a Lease",
        )

    def _change(self) -> None:
        """Prepare for a change of the items: begin if necessary, and let `commit` describe them again."""
        if self._stamp is not None:
            self.begin()
        self._layout = None

    def _unstamp(self) -> None:
        with using(self._path), suppress(FileNotFoundError):
            self._at.replace(_STAMP, _DRAFT)  # renamed, not removed: a new file per epoch costs more
        self._stamp = self._committed = None

    def _read_stamp(self) -> bytes | None:
        with using(self._path):
            try:
                fd = self._at.open(_STAMP, os.O_RDONLY)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):  # ELOOP: a symbolic link, which we never create
                    return None
                raise
            with open(fd, "rb", buffering=0) as file:
                return file.read()

    def _write_draft(self, stamp: bytes) -> None:
        fd = self._at.open(_DRAFT, os.O_WRONLY | os.O_CREAT)
        try:
            if os.write(fd, stamp) != len(stamp):  # written in full, unless the disk is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            os.ftruncate(fd, len(stamp))  # the previous stamp may have been longer
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
        return Arrays(files={name: file_identity(info) for name, info in files.items()})

    def _fits(self, content: Mapping[str, MappedItem], arrays: Arrays) -> bool:
        """Whether the mapped files are those on disk, and hold what was committed."""
        small = sum(len(kept.map) for kept in content.values() if kept.is_table) <= CHECKED_BYTES
        for name, kept in content.items():
            try:
                info = self._at.stat(kept.file)
            except FileNotFoundError:
                return False
            # Reading the map of a truncated file would kill the process.
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
            elif arrays.files is None or file_identity(info) != arrays.files[name]:
                return False
        return True

    # --- the files --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        mapped = {kept.file: kept for kept in (self._content or {}).values()}
        self._content, self._committed, self._layout = {}, None, None
        self._stamp = self._read_stamp()
        found = stamps.read(self._stamp)
        if found is None or (found.arrays.sums is None and found.run != self._run):
            return
        try:
            kept = {name: self._reopen(mapped, entry) for name, entry in found.items.items()}
            if not self._fits(kept, found.arrays):
                return
        except ValueError:
            return  # the files do not match the stamp: rebuild
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return
            raise
        self._content, self._generation = kept, found.generation
        self._committed = _Committed(found.epoch, found.token, found.arrays)

    def _reopen(self, known: Mapping[str, MappedItem], entry: Entry) -> MappedItem:
        old = known.get(entry.file)
        if old is not None:
            info = self._at.stat(entry.file)
            if (info.st_dev, info.st_ino, entry.crc32 or 0) != (*old.inode, old.crc32) or info.st_size < len(old.map):
                old = None
        if entry.dtype is None:
            return old or map_table(self._at, entry.file, entry.crc32)
        mapped, inode = (old.map, old.inode) if old else map_array(self._at, entry.file)
        return MappedItem(entry.file, np.frombuffer(mapped, dtype_of(entry.dtype), entry.length), mapped, inode)

    def _new_array(self, dtype: np.dtype[Any], length: int) -> MappedItem:
        file = self._new_file("array")
        with using(self._path):
            try:
                mapped, inode = map_array(self._at, file, capacity_for(length * dtype.itemsize))
            except BaseException:
                self._unlink(file)
                raise
        return MappedItem(file, np.frombuffer(mapped, dtype, length), mapped, inode)

    def _new_file(self, suffix: str) -> str:
        self._generation += 1
        # The random part makes the name differ from any file that a crashed process left.
        return f"{self._generation:08d}-{uuid.uuid4().hex[:8]}.{suffix}"

    def _unlink(self, file: str) -> None:
        with using(self._path):
            self._at.unlink(file)
