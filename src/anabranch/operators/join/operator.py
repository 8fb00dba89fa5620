"""The windowed join as an operator: one instance keeps the windows of all streams for one partition-group.

In each epoch the streams' blocks arrive one after another, and then the watermark. The rows of a block first search the
windows of all other streams and then enter their own: so the later of two rows finds the earlier one, and no composite
is found twice. On a watermark, rows whose window has passed leave the state; unmatched rows of a preserved side are
delivered as results.

Composites leave in the order of the probing rows, and those of one row by their partners, newest first. This order, and
where batches end, depends only on the blocks: not on the layout of the index, nor on when rows expire.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.io.blocks import micros_of
from anabranch.keys.hashing import LONG_DIGITS, hash_keys
from anabranch.operators.join.index import CHUNK, Index
from anabranch.operators.join.layout import Ints, mixed
from anabranch.operators.join.predicate import mask_of
from anabranch.operators.join.probing import Probing
from anabranch.operators.join.rows import Rows
from anabranch.operators.join.settings import JoinSettings
from anabranch.operators.join.vectors import plain, plain_type
from anabranch.operators.protocol import Operator
from anabranch.operators.state import State

LOOK_EVERY = 32
"""Watermarks between two checks for stuck rows."""
_LONG_AGO = -(1 << 62)
"""A watermark before all others, from which a window can still be subtracted."""


class JoinOperator(Operator):
    """Joins n streams by key and time; blocks of stream i arrive at port i."""

    def __init__(self, settings: JoinSettings) -> None:
        self._settings = settings
        self._within = np.array(settings.within, np.int64)
        self._exact = _hash_tells(settings)
        self._sources = [[source for source, _ in columns] for columns in settings.columns]
        self._types = [
            {name: plain_type(schema.field(name).type) for name in dict.fromkeys((*settings.keys, *sources))}
            for schema, sources in zip(settings.inputs, self._sources, strict=True)
        ]

    def open(self, state: State) -> None:
        """Load the windows and the index."""
        self._state, settings = state, self._settings
        self._rows = [
            Rows(state, f"rows.{port}", types, settings.times[port], port in settings.preserved, self.group + 4 * port)
            for port, types in enumerate(self._types)
        ]
        self._index = Index(state, len(self._rows), settings.theta, settings.block, settings.fine_tuning)
        self._clock = state.array("clock", np.int64, 2)  # [watermarks so far, the last one]

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
        """The composites of these rows with earlier ones."""
        probing, first = self._enter(block, port)
        watermark = int(self._clock[1]) if self._clock[0] else _LONG_AGO
        nested = self._settings.probe == "nested"
        for rows, found in self._index.probe(port, probing, self._within, watermark, nested, self.metrics):
            numbers = [*found[:port], rows + first, *found[port:]]
            batch, numbers = self._checked(numbers, port)
            self.metrics["pairs"] += len(numbers[0])
            for side in self._settings.preserved:
                self._rows[side].mark(numbers[side])
            if len(numbers[0]):
                yield self._composites(numbers) if batch is None else batch
        self._index.insert(port, probing, first, self.metrics)

    def absorb(self, block: pa.RecordBatch, port: int = 0) -> None:
        """As `process`, without the output; only an outer join must find out which rows matched."""
        if self._settings.preserved:
            for _ in self.process(block, port):
                pass
        else:
            probing, first = self._enter(block, port)
            self._index.insert(port, probing, first, self.metrics)

    def on_watermark(self, t: int) -> Iterator[pa.RecordBatch]:
        """Deliver unmatched rows of preserved sides whose window has passed, and remove all rows whose window has."""
        t = max(t, int(self._clock[1])) if self._clock[0] else t
        ends = [max(t, _LONG_AGO) - within for within in self._settings.within]
        for port in self._settings.preserved:
            numbers = self._rows[port].settle(ends[port])
            for begin in range(0, len(numbers), CHUNK):
                yield self._alone(port, numbers[begin : begin + CHUNK])
        for port, end in enumerate(ends):
            self._rows[port].expire(end)
            self._index.expire(port, end, self.metrics)
        self._index.merge_small(self.metrics)
        self._clock[:] = (self._clock[0] + 1, t)
        if self._clock[0] % LOOK_EVERY == 0 and any(map(Rows.stuck, self._rows, ends)):
            self._begin_anew(ends)

    def on_set_back(self, t: int, starts: int) -> None:
        """Expired rows are gone; rows that come from now on are joined again."""
        if self._clock[0]:
            self._clock[1] = min(int(self._clock[1]), t)

    def horizon(self, watermark: int) -> int:
        """Rows before this time are not needed to rebuild the state.

        In an outer join, a row that is still in its window also needs those that it may have matched.
        """
        within = self._settings.within
        return watermark - (sum(within) if self._settings.preserved else max(within))

    def _begin_anew(self, ends: Sequence[int]) -> None:
        """Rebuild the state without expired rows that are stuck behind a row with a time far in the future.

        The others keep their order, so the output does not change.
        """
        live = []
        for rows, end, types in zip(self._rows, ends, self._types, strict=True):
            numbers = rows.alive(end)
            block = pa.RecordBatch.from_arrays(rows.gather(list(types), numbers), names=list(types))
            live.append((block, rows.flags(numbers)))
        clock, metrics = self._clock.copy(), self.metrics
        self.metrics = Counter()  # these rows have already been counted
        self._state.clear()
        self.open(self._state)
        for port, (block, flags) in enumerate(live):
            probing, first = self._enter(block, port)
            self._index.insert(port, probing, first, self.metrics)
            if flags is not None:
                self._rows[port].flag(first, flags)
        self._clock[:], self.metrics = clock, metrics

    # --- rows in ----------------------------------------------------------------------------------------------------

    def _enter(self, block: pa.RecordBatch, port: int) -> tuple[Probing, int]:
        """Store the rows; returns (their hashes and times, the sequence number of the first)."""
        settings = self._settings
        keyed = np.ones(block.num_rows, np.bool_)
        for key in settings.keys:
            column = block.column(key)
            if column.null_count or pa.types.is_dictionary(column.type):
                keyed &= plain(column, self._types[port][key]).is_valid().to_numpy(zero_copy_only=False)
        if not keyed.all():
            self.metrics["null_keys"] += int(len(keyed) - keyed.sum())
            if port not in settings.preserved:
                block, keyed = block.filter(pa.array(keyed)), np.ones(int(keyed.sum()), np.bool_)
        columns = {name: plain(block.column(name), kind) for name, kind in self._types[port].items()}
        times = micros_of(block.column(settings.times[port])).to_numpy()
        first = self._rows[port].append(columns, times)
        hashes = mixed(hash_keys([columns[key] for key in settings.keys]))
        return Probing(hashes, times, keyed), first

    # --- results out ------------------------------------------------------------------------------------------------

    def _checked(self, numbers: list[Ints], port: int) -> tuple[pa.RecordBatch | None, list[Ints]]:
        """The candidates whose keys are equal and that `where` accepts, and the batch if it had to be built."""
        if not self._exact:
            numbers = _kept(numbers, self._same_keys(numbers, port))
        if self._settings.where is None or not len(numbers[0]):
            return None, numbers
        batch = self._composites(numbers)
        accepted = mask_of(self._settings.where(batch), batch.num_rows)
        if accepted.all():
            return batch, numbers
        return batch.filter(pa.array(accepted)), _kept(numbers, accepted)

    def _same_keys(self, numbers: Sequence[Ints], port: int) -> NDArray[np.bool_]:
        """Whether the keys themselves are equal, not only their hashes."""
        keys = self._settings.keys
        same = np.ones(len(numbers[0]), np.bool_)
        own = self._rows[port].gather(keys, numbers[port])
        for other in range(len(numbers)):
            if other != port:
                for a, b in zip(own, self._rows[other].gather(keys, numbers[other]), strict=True):
                    same &= _equal(a, b)
        return same

    def _composites(self, numbers: Sequence[Ints]) -> pa.RecordBatch:
        """The rows with these sequence numbers, side by side. Keys are those of stream 0 (0.0 equals -0.0)."""
        arrays = self._rows[0].gather(self._settings.keys, numbers[0])
        for rows, sources, chosen in zip(self._rows, self._sources, numbers, strict=True):
            arrays += rows.gather(sources, chosen)
        return self._batch(arrays)

    def _alone(self, port: int, numbers: Ints) -> pa.RecordBatch:
        """Rows of one stream, with nulls for the other."""
        arrays = self._rows[port].gather(self._settings.keys, numbers)
        for side, (rows, sources) in enumerate(zip(self._rows, self._sources, strict=True)):
            if side == port:
                arrays += rows.gather(sources, numbers)
            else:
                arrays += [pa.nulls(len(numbers), self._types[side][source]) for source in sources]
        return self._batch(arrays)

    def _batch(self, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
        schema = self._settings.schema
        cast = [
            array if array.type == kind else array.cast(kind) for array, kind in zip(arrays, schema.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(cast, schema=schema)


def _hash_tells(settings: JoinSettings) -> bool:
    """Whether equal hashes mean equal keys: xxhash64 of one value of up to 64 bits is a bijection (with one zero and
    one NaN)."""
    if len(settings.keys) > 1:
        return False
    kind = plain_type(settings.inputs[0].field(settings.keys[0]).type)
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= LONG_DIGITS)
    return not (pa.types.is_large_string(kind) or pa.types.is_string(kind) or _is_binary(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _equal(a: pa.Array, b: pa.Array) -> NDArray[np.bool_]:
    """Spark's equality of keys that are not null: NaN is equal to itself."""
    same = pc.equal(a, b)
    if pa.types.is_floating(a.type):
        same = pc.or_(same, pc.and_(pc.is_nan(a), pc.is_nan(b)))
    return same.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _kept(numbers: Sequence[Ints], mask: NDArray[np.bool_]) -> list[Ints]:
    return [each[mask] for each in numbers]
