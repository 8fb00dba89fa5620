"""A recording: files of blocks in the order of their names, read as one numbered sequence of rows.

A **position** is a row number: 0 is the first row of the first file. Rows keep the order that they have in the files.

A recording's clock is the **running maximum** of its times: the latest time so far. So a row that is late or has no
time belongs to the moment of the rows before it, as it did when it was recorded. A whole block that is earlier than the
one before it means that the files are in the wrong order; `check_order` refuses it.

The **fingerprint** is computed from each file's name, size and last bytes (where both formats keep their table of
contents). A recording may be moved to another folder, but not changed: a position must always mean the same row.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.errors import ColumnTypeError, InvalidArgumentError, ReplayError
from anabranch.io.blocks import BlockRef, blocks_of, check_time, micros_of, read_block, schema_of
from anabranch.text import moment

_TAIL = 4_096  # bytes at the end of a file that go into the fingerprint
_BEFORE_ALL_TIMES = np.iinfo(np.int64).min  # the running maximum before the first time

Listing = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Slice:
    """Rows ``first .. first + rows`` of a block. Times are known only if the slice is the whole block."""

    path: str
    block: int
    first: int
    rows: int
    whole: bool
    min_t: int | None
    max_t: int | None
    file_bytes: int


class Recording:
    """The blocks of a file or folder. `times=False` skips the times if only row numbers matter."""

    def __init__(self, path: str | Path, time: str, *, times: bool = True) -> None:
        self._path = Path(path)
        self._time = time
        self._listing = listing(self._path)
        self._file_bytes = {name: size for name, size, _ in self._listing}
        files = [name for name, _, _ in self._listing]
        self.schema = schema_of(files[0])
        check_time(self.schema, time)
        _check_same_columns(files)
        self.blocks: tuple[BlockRef, ...] = tuple(
            block for file in files for block in blocks_of(file, time if times else None) if block.rows
        )
        self._starts = [0, *accumulate(block.rows for block in self.blocks)]
        latest = (_BEFORE_ALL_TIMES if block.max_t is None else block.max_t for block in self.blocks)
        self._latest = list(accumulate(latest, max))  # the running maximum at the end of each block
        self._clock_of: tuple[int, npt.NDArray[np.int64]] | None = None
        self.fingerprint = _fingerprint(files)

    @property
    def rows(self) -> int:
        return self._starts[-1]

    def slices(self, first: int, end: int) -> list[Slice]:
        """The rows ``first .. end``, block by block."""
        found = []
        index = bisect_right(self._starts, first) - 1
        while first < end:
            block, start = self.blocks[index], self._starts[index]
            rows = min(end, start + block.rows) - first
            whole = rows == block.rows
            low, high = (block.min_t, block.max_t) if whole else (None, None)
            size = self._file_bytes[block.path]
            found.append(Slice(block.path, block.index, first - start, rows, whole, low, high, size))
            first += rows
            index += 1
        return found

    def time_at(self, row: int) -> int | None:
        """The recording's clock at that row; before the first time, the earliest time of the first block with times."""
        index = bisect_right(self._starts, row) - 1
        now = int(self._clock(index)[row - self._starts[index]])
        if now > _BEFORE_ALL_TIMES:
            return now
        return next((block.min_t for block in self.blocks if block.min_t is not None), None)

    def first_after(self, time: int) -> int:
        """The first row at which the clock is past that time, or the number of rows: all rows before it are due."""
        index = bisect_right(self._latest, time)
        if index == len(self.blocks):
            return self.rows
        return self._starts[index] + int(np.searchsorted(self._clock(index), time, side="right"))

    def whole_instants(self, position: int, due: int) -> int:
        """Where to end instead of at `due`, so that rows of one time stay together: before them, or else after."""
        if not position < due < self.rows:
            return due
        last = self.time_at(due - 1)
        if last is None or last != self.time_at(due):
            return due
        before = self.first_after(last - 1)
        return before if before > position else self.first_after(last)

    def check_order(self) -> None:
        """Refuse blocks that end before the previous block begins."""
        timed = [block for block in self.blocks if block.min_t is not None]
        for before, after in pairwise(timed):
            if after.max_t < before.min_t:  # type: ignore[operator]  # a block with one bound has the other
                raise ReplayError(
                    f"block {after.index} of {Path(after.path).name} ends at {moment(after.max_t)}, before block "
                    f"{before.index} of {Path(before.path).name} begins ({moment(before.min_t)}): on the clock of the "
                    "recording, all of it would arrive late and at once",
                    hint="sort the recording by time, and name its files so that their names sort in that order; "
                    "with rate=... any order is fine",
                )

    def check_unchanged(self) -> None:
        """Refuse to continue if the files have changed: positions would mean other rows."""
        if listing(self._path) != self._listing:
            raise changed(self._path.name)

    def _clock(self, index: int) -> npt.NDArray[np.int64]:
        """The running maximum within a block. The last one is cached: the stream's clock needs it many times."""
        if self._clock_of is None or self._clock_of[0] != index:
            block = self.blocks[index]
            times = micros_of(read_block(block.path, block.index, columns=[self._time]).column(0))
            filled = times.fill_null(_BEFORE_ALL_TIMES).to_numpy()
            before = self._latest[index - 1] if index else _BEFORE_ALL_TIMES
            self._clock_of = (index, np.maximum(np.maximum.accumulate(filled), before))
        return self._clock_of[1]


def shares(slices: Sequence[Slice], parts: int, smallest: int) -> list[list[Slice]]:
    """Cut the rows into at most `parts` contiguous shares of equal size, none below `smallest` if possible."""
    rows = sum(piece.rows for piece in slices)
    parts = max(1, min(parts, rows // smallest))
    found: list[list[Slice]] = [[] for _ in range(parts)]
    done = 0
    for piece in slices:
        taken = 0
        while taken < piece.rows:
            part = done * parts // rows
            until = -(-(part + 1) * rows // parts)  # the first row of the next share
            take = min(piece.rows - taken, until - done)
            found[part].append(_cut(piece, taken, take))
            taken += take
            done += take
    return [share for share in found if share]


def _cut(piece: Slice, skip: int, rows: int) -> Slice:
    if rows == piece.rows:
        return piece
    return Slice(piece.path, piece.block, piece.first + skip, rows, False, None, None, piece.file_bytes)


def listing(path: Path) -> Listing:
    """The files of a recording, sorted by name: path, size and modification time of each."""
    if path.is_dir():
        entries = sorted(p for p in path.iterdir() if not p.name.startswith((".", "_")))
        folders = [p.name for p in entries if p.is_dir()]
        if folders:
            raise InvalidArgumentError(
                f"{path} contains folders ({folders[0]}), whose files would be ignored",
                hint="put all files of a recording into one folder",
            )
    else:
        entries = [path]
    if not entries or not path.exists():
        raise InvalidArgumentError(
            f"there is no recording at {path}", hint="name an Arrow or Parquet file, or a folder of them"
        )
    return tuple((str(p), s.st_size, s.st_mtime_ns) for p, s in ((p, os.stat(p)) for p in entries))


def columns_of(path: str | Path) -> pa.Schema:
    """The columns of a recording."""
    return schema_of(listing(Path(path))[0][0])


def changed(name: str) -> ReplayError:
    """The error for files that have changed since the stream began."""
    return ReplayError(
        f"the files of {name} have changed since the stream began: its positions would mean other rows, so some "
        "rows would be lost and others would come twice",
        hint="restore the recorded files, or start again with another checkpoint folder",
    )


def _check_same_columns(files: Sequence[str]) -> None:
    def columns(file: str) -> list[tuple[str, object]]:
        return [(field.name, field.type) for field in schema_of(file)]

    first = columns(files[0])
    for file in files[1:]:
        if columns(file) != first:
            raise ColumnTypeError(
                f"{Path(file).name} has other columns than {Path(files[0]).name}, but a stream has only one schema",
                hint="write all files of a recording with the same columns, in the same order",
            )


def _fingerprint(files: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in files:
        with open(name, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            digest.update(f"{Path(name).name}\0{size}\0".encode())
            digest.update(file.read())
    return digest.hexdigest()[:16]
