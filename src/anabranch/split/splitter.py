"""Splitters: from physical windows to one block per partition-group (paper 5, section 2).

A splitter is what a task of the first stage runs. It cuts what it reads into physical windows of about W bytes, asks
the route which group each tuple goes to (one, all, or none), and sends blocks: rows of one binary column, so that
Spark's exchange moves blocks and never tuples.

    tuples ──▶ physical windows ──▶ route, broadcast ──▶ (worker, group, block) ──▶ exchange
    blocks ──▶

At its end it tells every worker the latest time that it saw (a *mark*): the exchange is a barrier, so each worker knows
the watermark of the epoch before it runs its operators, and a window is delivered in the epoch that completes it.

Blocks carry where they come from (part, sequence), so that a worker can put them in the same order whatever order the
exchange delivered them in.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from anabranch._worker_gc import keep_what_is_loaded
from anabranch.errors import OperatorError
from anabranch.io.blocks import micros_of, one_batch, pack_in_parts, payloads, referenced
from anabranch.keys.census import KeyCounter
from anabranch.spark.arrow import arrow_schema
from anabranch.split.report import SplitterReport

PACKED_SCHEMA = StructType(
    [*(StructField(name, IntegerType()) for name in ("worker", "grp", "edge", "part", "seq")),
     StructField("block", BinaryType())]
)  # fmt: skip
_PACKED = arrow_schema(PACKED_SCHEMA)

MARK = -1
"""The group of a mark: not data, but what the splitter saw."""
ALL = -2
"""The group of a block for every group of its worker."""
OMIT = -1
"""The route of a tuple that goes nowhere."""

WINDOW_BYTES = 1 << 22
"""W, unless tuned."""

Ints = NDArray[np.int64]
RouteFunction = Callable[[pa.RecordBatch, int], Any]
BroadcastFunction = Callable[[pa.RecordBatch], Any]


# --- which tuples count ---------------------------------------------------------------------------------------------


@dataclass
class Census:
    """What a splitter saw: all tuples are counted, whatever becomes of them."""

    rows: int = 0
    late: int = 0
    bad: int = 0
    max_t: int | None = None
    keys: KeyCounter = field(default_factory=KeyCounter)

    def see(self, max_t: Any) -> None:
        if max_t is not None:
            self.max_t = int(max_t) if self.max_t is None else max(self.max_t, int(max_t))


class Gate(ABC):
    """Lets the tuples through that the query can take, and counts the others."""

    @abstractmethod
    def __call__(self, window: pa.RecordBatch, census: Census) -> pa.RecordBatch: ...


@dataclass(frozen=True)
class RowGate(Gate):
    """Tuples with a time that the watermark has not passed. `late_before` is the watermark when the epoch began.

    Those with a time after `limit` count as tuples without one: they are too far ahead (`runtime.ahead`).
    """

    time: str
    late_before: int | None
    limit: int | None = None

    def __call__(self, window: pa.RecordBatch, census: Census) -> pa.RecordBatch:
        times = micros_of(window.column(self.time))
        latest = pc.max(times).as_py()
        if self.limit is not None and latest is not None and latest > self.limit:
            times = pc.if_else(pc.less_equal(times, self.limit), times, None)
            latest = pc.max(times).as_py()
        census.rows += window.num_rows
        census.bad += times.null_count
        census.see(latest)
        if self.late_before is None:
            return window.filter(times.is_valid()) if times.null_count else window
        on_time = pc.greater_equal(times, self.late_before)
        passed = pc.sum(on_time).as_py() or 0
        census.late += window.num_rows - times.null_count - passed
        return window if passed == window.num_rows else window.filter(on_time)


class OpenGate(Gate):
    """Lets everything through."""

    def __call__(self, window: pa.RecordBatch, census: Census) -> pa.RecordBatch:
        census.rows += window.num_rows
        return window


@dataclass(frozen=True)
class PaneGate(Gate):
    """Panes that Spark made of the tuples. Those of late tuples, and of tuples without a time, have no pane id.

    The columns `rows`, `timed` (rows with a time) and `max_t` are taken off.
    """

    pane: str
    rows: str
    timed: str
    max_t: str

    def __call__(self, window: pa.RecordBatch, census: Census) -> pa.RecordBatch:
        rows = pc.sum(window.column(self.rows)).as_py() or 0
        census.rows += rows
        census.see(pc.max(window.column(self.max_t)).as_py())
        panes = window.column(self.pane)
        if panes.null_count:
            outside = window.filter(panes.is_null())
            timed = pc.sum(outside.column(self.timed)).as_py() or 0
            census.late += timed
            census.bad += (pc.sum(outside.column(self.rows)).as_py() or 0) - timed
            window = window.filter(panes.is_valid())
        return window.drop_columns([self.timed, self.max_t])


# --- where they go --------------------------------------------------------------------------------------------------


class Route(ABC):
    """Says for every tuple of a window which group it goes to: (groups, broadcast, the window as it travels)."""

    def begun(self, part: int) -> Route:
        """The route of one splitter, which may keep counts of its own; `part` is the splitter's number."""
        return self

    def ended(self, census: Census) -> None:  # noqa: B027  # most routes count nothing
        """The splitter has read everything: the route may tell what it counted."""

    @abstractmethod
    def __call__(
        self, window: pa.RecordBatch, groups: int
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None, pa.RecordBatch]: ...


@dataclass(frozen=True)
class ColumnRoute(Route):
    """The route, and perhaps the broadcast, as columns that Spark computed; they do not travel on."""

    group: str
    broadcast: str | None = None

    def __call__(
        self, window: pa.RecordBatch, groups: int
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None, pa.RecordBatch]:
        to = _numbers(window.column(self.group))
        names = [self.group]
        everywhere = None
        if self.broadcast is not None:
            everywhere = window.column(self.broadcast).fill_null(False).to_numpy(zero_copy_only=False)
            names.append(self.broadcast)
        return to, everywhere, window.drop_columns(names)


@dataclass(frozen=True)
class FunctionRoute(Route):
    """Functions over whole blocks, as a user writes them: numpy or Arrow arrays, one entry per tuple."""

    route: RouteFunction | None
    broadcast: BroadcastFunction | None

    def __call__(
        self, window: pa.RecordBatch, groups: int
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None, pa.RecordBatch]:
        rows = window.num_rows
        to = np.full(rows, OMIT, np.int64) if self.route is None else _answer("route", self.route(window, groups), rows)
        everywhere = None
        if self.broadcast is not None:
            everywhere = _answer("broadcast", self.broadcast(window), rows).astype(bool)
        return to, everywhere, window


def _answer(what: str, value: Any, rows: int) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        array = value
    else:
        array = _numbers(value if isinstance(value, (pa.Array, pa.ChunkedArray)) else pa.array(value))
    if array.shape != (rows,):
        raise OperatorError(
            f"the {what} function gave {array.shape} answers for a block of {rows} tuples; tuples would go astray",
            hint=f"return one entry per tuple: {what} gets a whole record batch and answers with an array",
        )
    return array


def _numbers(array: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Groups as numbers; null means: nowhere."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count:
        array = array.fill_null(OMIT if not pa.types.is_boolean(array.type) else False)
    return np.asarray(array.to_numpy(zero_copy_only=False))


# --- what they read -------------------------------------------------------------------------------------------------


class Reader(ABC):
    """Turns the batches of a task into physical windows."""

    @abstractmethod
    def __call__(self, batches: Iterator[pa.RecordBatch], window_bytes: int) -> Iterator[pa.RecordBatch]: ...


class RowReader(Reader):
    """Rows: batches are gathered until they make a window."""

    def __call__(self, batches: Iterator[pa.RecordBatch], window_bytes: int) -> Iterator[pa.RecordBatch]:
        gathered: list[pa.RecordBatch] = []
        held = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            gathered.append(batch)
            held += batch.nbytes
            if held >= window_bytes:
                yield _joined(gathered)
                gathered, held = [], 0
        if gathered:
            yield _joined(gathered)


@dataclass(frozen=True)
class BlockReader(Reader):
    """Packed blocks, in a binary column. Each is a window of its own; small ones are joined."""

    column: str

    def __call__(self, batches: Iterator[pa.RecordBatch], window_bytes: int) -> Iterator[pa.RecordBatch]:
        blocks = (block for batch in batches for block in payloads(batch.column(self.column)))
        return RowReader()(blocks, window_bytes)


class ReferenceReader(Reader):
    """References to blocks in files (`anabranch.io.replay.source`): read here, so that they never were rows."""

    def __call__(self, batches: Iterator[pa.RecordBatch], window_bytes: int) -> Iterator[pa.RecordBatch]:
        blocks = (block for batch in batches for block in referenced(batch))
        return RowReader()(blocks, window_bytes)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else one_batch(pa.Table.from_batches(batches))


# --- the splitter ---------------------------------------------------------------------------------------------------


@dataclass
class _Measures:
    windows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    routed: int = 0
    broadcast: int = 0
    omitted: int = 0
    read_seconds: float = 0.0
    split_seconds: float = 0.0
    emit_seconds: float = 0.0


@dataclass(frozen=True)
class Splitter:
    """Splits what its task reads; run by `map_in_arrow`. `routing[g]` is the worker of group g."""

    edge: int
    reader: Reader
    gate: Gate
    route: Route
    routing: tuple[int, ...]
    workers: int
    window_bytes: int = WINDOW_BYTES
    columns: tuple[str, ...] | None = field(default=None)
    """what of a window travels on; everything if None"""
    marked: bool = True
    """whether it tells what it saw, to every worker; where nobody asks, its output is the same when it runs again"""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        census, measures, seq = Census(), _Measures(), 0
        route = self.route.begun(part)
        windows = self.reader(batches, self.window_bytes)
        while True:
            began = time.perf_counter()
            window = next(windows, None)
            measures.read_seconds += time.perf_counter() - began
            if window is None:
                break
            measures.windows += 1
            measures.bytes_in += window.nbytes
            began = time.perf_counter()
            pieces = self._split(self.gate(window, census), route, measures)
            split = time.perf_counter()
            measures.split_seconds += split - began
            if pieces:
                blocks = self._emit(pieces, part, seq, measures)
                measures.emit_seconds += time.perf_counter() - split
                yield blocks
            seq += 1
        route.ended(census)
        if self.marked:
            yield self._marks(part, census, measures)
        keep_what_is_loaded()

    def _split(
        self, window: pa.RecordBatch, route: Route, measures: _Measures
    ) -> list[tuple[int, int, pa.RecordBatch]]:
        """(worker, group, block) of a window."""
        if not window.num_rows:
            return []
        groups = len(self.routing)
        to, everywhere, travelling = route(window, groups)
        if self.columns is not None:
            travelling = travelling.select(list(self.columns))
        pieces: list[tuple[int, int, pa.RecordBatch]] = []
        if everywhere is not None and everywhere.any():
            copies = travelling.filter(pa.array(everywhere))
            measures.broadcast += copies.num_rows
            # Once per worker, which hands it to all of its groups.
            pieces += [(worker, ALL, copies) for worker in sorted(set(self.routing))]
            to = np.where(everywhere, OMIT, to)
        if len(to) and (to.min() < OMIT or to.max() >= groups):
            wrong = to[(to < OMIT) | (to >= groups)][0]
            raise OperatorError(
                f"a tuple was routed to substream {wrong} of {groups}; it would be lost",
                hint=f"the route must be 0 to {groups - 1}; -1 or null leaves a tuple out on purpose",
            )
        order, offsets = _by_group(to, groups)
        measures.omitted += int(offsets[0]) - (0 if everywhere is None else int(everywhere.sum()))
        measures.routed += len(to) - int(offsets[0])
        grouped = travelling if order is None else travelling.take(pa.array(order))
        for group in np.flatnonzero(np.diff(offsets)).tolist():
            begin, end = int(offsets[group]), int(offsets[group + 1])
            pieces.append((self.routing[group], group, grouped.slice(begin, end - begin)))
        return pieces

    def _emit(
        self, pieces: list[tuple[int, int, pa.RecordBatch]], part: int, seq: int, measures: _Measures
    ) -> pa.RecordBatch:
        # What is broadcast is in several pieces, and packed once.
        packed = {id(block): pack_in_parts(block) for _, _, block in pieces}
        blocks = [packed[id(block)] for _, _, block in pieces]
        measures.bytes_out += sum(each.size for block in blocks for each in block)
        return _rows([(worker, group) for worker, group, _ in pieces], self.edge, part, seq, blocks)

    def _marks(self, part: int, census: Census, measures: _Measures) -> pa.RecordBatch:
        seen = SplitterReport(part, self.edge, census.rows, census.late, census.bad, census.max_t)
        full, short = replace(seen, keys=census.keys.census(), **vars(measures)).packed(), seen.packed()
        blocks = [[pa.py_buffer(full if worker == 0 else short)] for worker in range(self.workers)]
        return _rows([(worker, MARK) for worker in range(self.workers)], self.edge, part, 0, blocks)


def _by_group(to: NDArray[Any], groups: int) -> tuple[Ints | None, Ints]:
    """The order that brings tuples of a group together, and where each group begins; what goes nowhere comes first."""
    counts = np.bincount(to + 1, minlength=groups + 1)
    offsets = np.cumsum(counts)
    if counts.max(initial=0) == len(to):
        return None, offsets
    # numpy sorts 16-bit integers by radix: linear, and stable.
    small = to.astype(np.int16) if groups < 2**15 else to
    return np.argsort(small, kind="stable"), offsets


def _rows(
    places: Sequence[tuple[int, int]], edge: int, part: int, seq: int, blocks: Sequence[Sequence[pa.Buffer]]
) -> pa.RecordBatch:
    n = len(places)
    workers, groups = (np.array([place[i] for place in places], np.int32) for i in range(2))
    columns = [
        pa.array(workers),
        pa.array(groups),
        *(pa.array(np.full(n, value, np.int32)) for value in (edge, part, seq)),
        _binaries(blocks),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_PACKED)


def _binaries(blocks: Sequence[Sequence[pa.Buffer]]) -> pa.Array:
    """The blocks, each in parts, as one binary array: one copy."""
    offsets = np.cumsum([0, *(sum(part.size for part in block) for block in blocks)])
    if offsets[-1] >= 2**31:
        raise OperatorError(
            f"a physical window of {offsets[-1]:,} bytes does not fit an Arrow column of binaries",
            hint="make the window smaller: window_bytes=...",
        )
    data = b"".join(part for block in blocks for part in block)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(blocks), buffers)
