"""Copies of simulated expressways: the same tuples, with their own numbers of expressways, cars and queries.

Copy c of a trace has XWay, VID and QID shifted by c times an offset, so that no two copies share any. The tuples of all
copies are ordered by time: second by second, and in each second copy by copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.schema import INPUT

ROWS_PER_BLOCK = 65_536
SECONDS_PER_BLOCK = 5
"""Maximum seconds in a block, however few tuples there are: a replay in real time reads whole blocks."""

_XWAY, _VID, _QID = (INPUT.names.index(name) for name in ("XWay", "VID", "QID"))


@dataclass(frozen=True)
class Copies:
    """How many copies, and by how much XWay, VID and QID grow from one to the next. The first is the base itself."""

    count: int
    expressways: int
    vid_offset: int
    qid_offset: int

    def __post_init__(self) -> None:
        if min(self.count, self.expressways, self.vid_offset, self.qid_offset) < 1:
            raise InvalidArgumentError(
                f"{self}: all numbers must be positive, or the cars of two copies would be mixed up",
                hint="use positive numbers",
            )
        for name, step in self.steps.items():
            most, kind = self.count * step - 1, INPUT.field(name).type
            if most > np.iinfo(kind.to_pandas_dtype()).max:
                raise InvalidArgumentError(
                    f"{self.count} copies need a {name} of {most:,}, which does not fit into {kind}",
                    hint="use fewer copies, or a shorter trace with fewer cars and queries",
                )

    @property
    def steps(self) -> dict[str, int]:
        """By how much each column grows per copy."""
        return {"XWay": self.expressways, "VID": self.vid_offset, "QID": self.qid_offset}


def blocks_of_copies(batch: pa.RecordBatch, copies: Copies, rows: int = ROWS_PER_BLOCK) -> Iterator[pa.RecordBatch]:
    """All copies of some tuples, ordered by time, as blocks of at most `rows` rows.

    A block holds whole seconds of the batch; a second with more rows gets several blocks of its own.
    """
    source = _Source(batch, copies)
    begin = 0  # the first row of the seconds that are waiting to become a block
    for first, end in source.seconds():
        full = (end - begin) * copies.count > rows
        if begin < first and (full or source.time[first] - source.time[begin] >= SECONDS_PER_BLOCK):
            yield source.block(begin, first)
            begin = first
        if (end - first) * copies.count > rows:
            yield from source.split(first, end, rows)
            begin = end
    if begin < len(source.time):
        yield source.block(begin, len(source.time))


class _Source:
    """The columns of some tuples, to be copied from."""

    def __init__(self, batch: pa.RecordBatch, copies: Copies) -> None:
        self._columns = [column.to_numpy() for column in batch.columns]
        self._copies = copies
        self.time: NDArray[np.int64] = batch.column("Time").to_numpy().astype(np.int64)
        # By how much each column of each tuple grows from copy to copy; reports have no QID in any copy.
        is_query = self._columns[_QID] >= 0
        self._step = {
            _XWAY: copies.expressways,
            _VID: copies.vid_offset,
            _QID: (is_query * copies.qid_offset).astype(np.int32),
        }

    def seconds(self, begin: int = 0, end: int | None = None) -> list[tuple[int, int]]:
        """The first row of each second, and the row after its last, among the rows begin .. end-1."""
        times = self.time[begin:end]
        cuts = (begin + np.flatnonzero(np.diff(times, prepend=-1))).tolist()
        return list(itertools.pairwise([*cuts, begin + len(times)]))

    def block(self, begin: int, end: int) -> pa.RecordBatch:
        """One block of whole seconds."""
        # A single copy is already in order.
        pieces = [(begin, end)] if self._copies.count == 1 else self.seconds(begin, end)
        return self._block(pieces, 0, self._copies.count)

    def split(self, begin: int, end: int, rows: int) -> Iterator[pa.RecordBatch]:
        """A second as several blocks: of some copies each, or of parts of a copy if that is too large as well."""
        for first in range(begin, end, rows):
            last = min(first + rows, end)
            some = max(1, rows // (last - first))
            for copy in range(0, self._copies.count, some):
                yield self._block([(first, last)], copy, min(some, self._copies.count - copy))

    def _block(self, pieces: list[tuple[int, int]], copy: int, count: int) -> pa.RecordBatch:
        """The rows of each piece in `count` copies, before those of the next piece."""
        size = count * sum(end - begin for begin, end in pieces)
        number = np.arange(copy, copy + count)[:, None]
        columns = []
        for index, column in enumerate(self._columns):
            target = np.empty(size, column.dtype)
            factor = number.astype(column.dtype)
            row = 0
            for begin, end in pieces:
                space = target[row : row + count * (end - begin)].reshape(count, end - begin)
                self._fill(space, index, begin, end, factor)
                row += space.size
            columns.append(pa.array(target))
        return pa.RecordBatch.from_arrays(columns, schema=INPUT)

    def _fill(self, space: NDArray[np.int64], index: int, begin: int, end: int, factor: NDArray[np.int64]) -> None:
        space[:] = self._columns[index][begin:end]
        if index not in self._step:
            return
        step = self._step[index]
        space += factor * (step if isinstance(step, int) else step[begin:end])
