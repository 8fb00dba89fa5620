"""The rows of one stream that are in its window, in order of arrival.

Rows have sequence numbers 0, 1, ... Rows [tail, head) are alive; those before the tail are removed now and then, by
moving the live ones to the front. If times are out of order, a row after the tail may have expired too: it waits. If
most of them have (`stuck`: a row with a time far in the future is at the tail), the owner rebuilds the rows from
`alive`. For a preserved side of an outer join each row has a flag: matched, or reported as unmatched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.compiled import kernel
from anabranch.operators.join.buffers import Buffer
from anabranch.operators.join.vectors import Fixed, Ints, vector
from anabranch.operators.state import State

BASE, TAIL, HEAD = range(3)

MATCHED = 1
"""The flag of a row that is part of a result."""
_DEAD = 8
"""Dead rows are removed when there is one for this many live ones: a balance of memory and time."""
_SPREAD = 8
"""Groups differ by up to this much. They expire in step, and if all moved their rows at once, an epoch would take
seconds."""
_FEW = 256
"""Up to this many rows may be stuck."""


class Rows:
    """The window of one stream."""

    def __init__(
        self, state: State, name: str, types: Mapping[str, pa.DataType], time: str, flagged: bool, turn: int = 0
    ) -> None:
        self._dead = _DEAD + turn % _SPREAD
        self._span = Buffer(state, f"{name}.span", np.int64, 3).array
        # Columns by number: their names may have characters that the name of a state item must not.
        self._columns = {
            column: vector(state, f"{name}.column.{i}", kind) for i, (column, kind) in enumerate(types.items())
        }
        self._flags = Buffer(state, f"{name}.flags", np.uint8) if flagged else None
        shared = self._columns.get(time)
        self._time_column = shared if isinstance(shared, Fixed) and _is_micros(types[time]) else None
        self._times = None if self._time_column else Buffer(state, f"{name}.times", np.int64)

    def append(self, columns: Mapping[str, pa.Array], times: Ints) -> int:
        """Add new rows; returns the sequence number of the first."""
        base, _, head = self._span.tolist()
        count, new = head - base, len(times)
        for name, column in self._columns.items():
            column.append(columns[name], count)
        if self._times is not None:
            self._times.reserve(count + new)
            self._times.array[count : count + new] = times
        if self._flags is not None:
            self._flags.reserve(count + new)
            self._flags.array[count : count + new] = 0
        self._span[HEAD] = head + new
        return int(head)

    def gather(self, names: Sequence[str], numbers: Ints) -> list[pa.Array]:
        """Columns of the rows with the given sequence numbers."""
        places = numbers - self._span[BASE]
        return [self._columns[name].gather(places) for name in names]

    def mark(self, numbers: Ints) -> None:
        """Mark rows as part of a result."""
        if self._flags is not None:
            self._flags.array[numbers - self._span[BASE]] = MATCHED

    def settle(self, before: int) -> Ints:
        """The sequence numbers of the rows earlier than `before` that are in no result; each is reported once."""
        assert self._flags is not None
        base, tail, head = self._span.tolist()
        return _settle(self._all_times(), self._flags.array, tail - base, head - base, before) + base  # type: ignore[no-any-return]

    def expire(self, before: int) -> None:
        """Rows earlier than `before` are no longer needed."""
        base, tail, head = self._span.tolist()
        tail = base + _first_not_before(self._all_times(), tail - base, head - base, before)
        self._span[TAIL] = tail
        if self._dead * (tail - base) > head - tail:
            self._cut(tail - base, head - base)
            self._span[BASE] = tail

    def stuck(self, before: int) -> bool:
        """Whether most rows after the tail have expired too."""
        count = int(self._span[HEAD] - self._span[TAIL])
        return count > _FEW and 2 * len(self.alive(before)) < count

    def alive(self, before: int) -> Ints:
        """The sequence numbers of the rows that are not earlier than `before`."""
        base, tail, head = self._span.tolist()
        numbers: Ints = np.flatnonzero(self._all_times()[tail - base : head - base] >= before) + tail
        return numbers

    def flags(self, numbers: Ints) -> NDArray[np.uint8] | None:
        """The flags of these rows; None if this side has none."""
        return None if self._flags is None else self._flags.array[numbers - self._span[BASE]]

    def flag(self, first: int, flags: NDArray[np.uint8]) -> None:
        """Set the flags of the rows from number `first` on."""
        assert self._flags is not None
        place = first - int(self._span[BASE])
        self._flags.array[place : place + len(flags)] = flags

    def _cut(self, begin: int, count: int) -> None:
        for column in self._columns.values():
            column.cut(begin, count)
        for buffer in (self._times, self._flags):
            if buffer is not None:
                buffer.move_to_front(begin, count)

    def _all_times(self) -> NDArray[np.int64]:
        if self._time_column is not None:
            return self._time_column.values.view(np.int64)
        assert self._times is not None
        return self._times.array


def _is_micros(kind: pa.DataType) -> bool:
    """Whether the column stores the time in microseconds."""
    return bool(pa.types.is_int64(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us"))


@kernel(nogil=True)
def _first_not_before(times: Ints, begin: int, end: int, t: int) -> int:
    """The first row that is not earlier than t."""
    while begin < end and times[begin] < t:
        begin += 1
    return begin


@kernel(nogil=True)
def _settle(times: Ints, flags: NDArray[np.uint8], begin: int, end: int, before: int) -> Ints:
    """The rows earlier than `before` that matched nothing; each is reported once."""
    count = 0
    for i in range(begin, end):
        count += flags[i] == 0 and times[i] < before
    out = np.empty(count, np.int64)
    k = 0
    for i in range(begin, end):
        if flags[i] == 0 and times[i] < before:
            flags[i] = 2
            out[k] = i
            k += 1
    return out
