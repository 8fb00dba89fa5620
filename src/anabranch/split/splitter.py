"""Splitters: from physical windows to one block per partition-group.

Each task of the first stage runs a splitter. It cuts its input into physical windows of about W bytes, asks the route
which group each tuple goes to (one, all, or none), and sends blocks: rows with one binary column, so that Spark's
exchange moves blocks and never tuples.

    tuples ──▶ physical windows ──▶ route, broadcast ──▶ (worker, group, block) ──▶ exchange
    blocks ──▶

At its end it reports the latest time that it saw to every worker: the exchange is a barrier, so each worker knows
the watermark of the epoch before it runs its operators, and a window is delivered in the epoch that completes it.

Blocks carry their origin (part, sequence), so that a worker can put them in the same order, whatever order the exchange
delivered them in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from anabranch._worker_gc import freeze_loaded_objects
from anabranch.errors import OperatorError
from anabranch.io.blocks import pack_in_parts
from anabranch.spark.arrow import arrow_schema
from anabranch.split.gates import Census, Gate
from anabranch.split.readers import Reader
from anabranch.split.report import SplitterCounters, SplitterReport
from anabranch.split.routes import OMIT, Route

TO_WORKER = "worker"
"""The column of packed blocks that says to which worker a block goes."""
PACKED_SCHEMA = StructType(
    [*(StructField(name, IntegerType()) for name in (TO_WORKER, "grp", "edge", "part", "seq")),
     StructField("block", BinaryType())]
)  # fmt: skip
_PACKED = arrow_schema(PACKED_SCHEMA)

REPORT_GROUP = -1
"""The group of a splitter's report, which is not data."""
ALL_GROUPS = -2
"""The group of a block that is for every group of its worker."""

WINDOW_BYTES = 1 << 22
"""W, unless it is tuned."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Splitter:
    """Splits the input of its task; run by `map_in_arrow`. `routing[g]` is the worker of group g."""

    edge: int
    reader: Reader
    gate: Gate
    route: Route
    routing: tuple[int, ...]
    workers: int
    window_bytes: int = WINDOW_BYTES
    columns: tuple[str, ...] | None = field(default=None)
    """the columns that travel on; None: all"""
    marked: bool = True
    """whether it sends marks; without them its output is the same whenever it runs again"""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        census, counters, seq = Census(), SplitterCounters(), 0
        route = self.route.begun(part)
        windows = self.reader(batches, self.window_bytes)
        while True:
            began = time.perf_counter()
            window = next(windows, None)
            counters.read_seconds += time.perf_counter() - began
            if window is None:
                break
            counters.windows += 1
            counters.bytes_in += window.nbytes
            began = time.perf_counter()
            pieces = self._split(self.gate(window, census), route, counters)
            split = time.perf_counter()
            counters.split_seconds += split - began
            if pieces:
                blocks = self._emit(pieces, part, seq, counters)
                counters.emit_seconds += time.perf_counter() - split
                yield blocks
            seq += 1
        route.ended(census)
        if self.marked:
            yield self._marks(part, census, counters)
        freeze_loaded_objects()

    def _split(
        self, window: pa.RecordBatch, route: Route, counters: SplitterCounters
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
            counters.broadcast += copies.num_rows
            # Once per worker, which passes it to all of its groups.
            pieces += [(worker, ALL_GROUPS, copies) for worker in sorted(set(self.routing))]
            to = np.where(everywhere, OMIT, to)
        if len(to) and (to.min() < OMIT or to.max() >= groups):
            wrong = to[(to < OMIT) | (to >= groups)][0]
            raise OperatorError(
                f"a tuple was routed to substream {wrong}, but there are only {groups}: it would be lost",
                hint=f"return 0 to {groups - 1}, or -1 or null to leave a tuple out on purpose",
            )
        order, offsets = _by_group(to, groups)
        counters.omitted += int(offsets[0]) - (0 if everywhere is None else int(everywhere.sum()))
        counters.routed += len(to) - int(offsets[0])
        grouped = travelling if order is None else travelling.take(pa.array(order))
        for group in np.flatnonzero(np.diff(offsets)).tolist():
            begin, end = int(offsets[group]), int(offsets[group + 1])
            pieces.append((self.routing[group], group, grouped.slice(begin, end - begin)))
        return pieces

    def _emit(
        self, pieces: list[tuple[int, int, pa.RecordBatch]], part: int, seq: int, counters: SplitterCounters
    ) -> pa.RecordBatch:
        # A broadcast block is in several pieces, but is packed once.
        packed = {id(block): pack_in_parts(block) for _, _, block in pieces}
        blocks = [packed[id(block)] for _, _, block in pieces]
        counters.bytes_out += sum(each.size for block in blocks for each in block)
        return _rows([(worker, group) for worker, group, _ in pieces], self.edge, part, seq, blocks)

    def _marks(self, part: int, census: Census, counters: SplitterCounters) -> pa.RecordBatch:
        report = SplitterReport(part, self.edge, census.rows, census.late, census.bad, census.max_t)
        full, short = replace(report, counters=counters, keys=census.keys.census()).packed(), report.packed()
        blocks = [[pa.py_buffer(full if worker == 0 else short)] for worker in range(self.workers)]
        return _rows([(worker, REPORT_GROUP) for worker in range(self.workers)], self.edge, part, 0, blocks)


def _by_group(to: NDArray[Any], groups: int) -> tuple[Ints | None, Ints]:
    """The order that brings tuples of a group together, and where each group begins; omitted tuples come first."""
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
    """The blocks, each a list of buffers, as one binary array, with a single copy."""
    offsets = np.cumsum([0, *(sum(part.size for part in block) for block in blocks)])
    if offsets[-1] >= 2**31:
        raise OperatorError(
            f"a physical window of {offsets[-1]:,} bytes is too large for an Arrow binary column",
            hint="set a smaller window_bytes=...",
        )
    data = b"".join(part for block in blocks for part in block)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(blocks), buffers)
