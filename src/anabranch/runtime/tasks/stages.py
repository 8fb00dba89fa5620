"""The stages of a Spark job that several kinds of operators share.

    rows or blocks ▶ splitter ▶ exchange ▶ worker ▶ writer
    `packed_rows`              `at_workers`        `Writer`

Each operator is one job. Only its last stage writes state and files, so nothing is written twice except after a
failure, and then the result is the same. The job returns reports (`runtime.tasks.reports`); rows stay on the workers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from anabranch.control.key_placement import HEAVY
from anabranch.io.blocks import Packed, pack
from anabranch.io.frames import unpacked
from anabranch.io.parquet import Target, write_rows
from anabranch.keys.partitioner import HeavyKeys
from anabranch.keys.policy import Partitioning
from anabranch.names import ALL, BLOCK, GROUP, REPORT
from anabranch.query.nodes import JoinNode, ProcessNode
from anabranch.query.origins import Source
from anabranch.runtime.tasks.reports import SideReport, WriterReport, to_text
from anabranch.runtime.tasks.task import EpochTask
from anabranch.runtime.tasks.worker import WorkerTask
from anabranch.spark.arrow import map_in_arrow
from anabranch.spark.columns import quoted
from anabranch.spark.order import in_fixed_order
from anabranch.split.gates import RowGate
from anabranch.split.key_routes import KeyRoute
from anabranch.split.readers import BlockReader, Reader, ReferenceReader, RowReader
from anabranch.split.routes import ColumnRoute, FunctionRoute, Route
from anabranch.split.splitter import PACKED_SCHEMA, TO_WORKER, WINDOW_BYTES, Splitter
from anabranch.store.records import OperatorDecision

TREE_ABOVE = 64
"""With more splitters than this, physical windows reach them over two exchanges: a tree of routers."""

_BLOCKS = StructType([StructField(BLOCK, BinaryType())])

REPORTS = StructType([StructField(REPORT, StringType())])
"""What a job returns."""


@dataclass(frozen=True)
class Feed:
    """The rows of an input in this epoch. `packed`: they are still blocks, as the source delivered them."""

    rows: DataFrame
    packed: Packed | None
    watermark: int | None
    """rows before it are late"""
    limit: int | None = None
    """rows after it are too far ahead"""
    source: Source | None = None
    """where the rows come from; None: another operator, which wrote them to files"""

    @property
    def order_may_change(self) -> bool:
        """Whether a retried task may get the rows in another order."""
        return self.source is not None and self.source.order_may_change


@dataclass(frozen=True)
class Decided:
    """What was decided for the operator in this epoch."""

    routing: tuple[int, ...]
    workers: int
    splitters: int | None
    window_bytes: int | None
    partitioning: Partitioning | None = None
    heavy: HeavyKeys = field(default_factory=HeavyKeys)

    @classmethod
    def of(cls, decision: OperatorDecision, *, moves_windows: bool) -> Decided:
        """Read it from the ledger's record. `moves_windows`: physical windows go to separate splitter tasks."""
        settings, label = decision.settings, decision.settings.get("partition")
        return cls(
            tuple(decision.routing),
            max(decision.routing) + 1,
            settings.get("splitters") if moves_windows else None,
            settings.get("window_bytes"),
            None if label is None else Partitioning.of_label(label),
            HeavyKeys.from_json(settings.get(HEAVY) or {}),
        )

    @property
    def bytes(self) -> int:
        return self.window_bytes or WINDOW_BYTES


# --- from rows to packed blocks -------------------------------------------------------------------------------------


def packed_rows(node: ProcessNode | JoinNode, edge: int, feed: Feed, decided: Decided) -> DataFrame:
    """Rows or blocks, split into one block per group."""
    routing, time = node.routing, node.inputs[edge].time.name
    rows, reader = feed.rows, reader_of(feed.packed)
    if feed.packed is not None and not routing.by_function:
        rows, reader = unpacked(rows, feed.packed), RowReader()
    columns = tuple(rows.columns) if isinstance(reader, RowReader) else None
    counts = decided.partitioning is not None and not decided.partitioning.by_key_alone
    packs = decided.splitters is not None and isinstance(reader, RowReader)
    if (counts or packs) and feed.order_may_change:
        rows = in_fixed_order(rows, *([time] if isinstance(reader, RowReader) else []))
    route: Route
    if decided.partitioning is not None:
        stretch = routing.stretch
        route = KeyRoute(
            decided.partitioning, routing.keys, time=time, stretch=stretch, heavy=decided.heavy, counting=True
        )
    elif routing.by_function:
        route = FunctionRoute(routing.route, routing.broadcast)  # type: ignore[arg-type]
    else:
        rows, route = _routed(rows, node, len(decided.routing))
    if decided.splitters is not None:
        rows, reader = _to_splitters(rows, reader, decided)
    splitter = splitter_of(edge, reader, RowGate(time, feed.watermark, feed.limit), route, decided, columns)
    return map_in_arrow(rows, splitter, PACKED_SCHEMA)


def splitter_of(
    edge: int, reader: Reader, gate: RowGate, route: Route, decided: Decided, columns: tuple[str, ...] | None
) -> Splitter:
    return Splitter(edge, reader, gate, route, decided.routing, decided.workers, decided.bytes, columns)


def reader_of(packed: Packed | None) -> Reader:
    if packed is None:
        return RowReader()
    return ReferenceReader() if packed.column is None else BlockReader(packed.column)


def _routed(rows: DataFrame, node: ProcessNode | JoinNode, groups: int) -> tuple[DataFrame, ColumnRoute]:
    """The rows with their group as a column and, if the query broadcasts rows, a column that says which."""
    routing = node.routing
    if routing.keys:
        return rows.withColumn(GROUP, group_of([quoted(k) for k in routing.keys], groups)), ColumnRoute(GROUP)
    assert not callable(routing.route) or isinstance(routing.route, Column)
    to = F.lit(None) if routing.route is None else routing.route
    # A bigint: without ANSI mode, a cast to int would wrap a large number around to another group.
    rows = rows.withColumn(GROUP, to.cast("bigint"))
    if routing.broadcast is None:
        return rows, ColumnRoute(GROUP)
    assert isinstance(routing.broadcast, Column)
    return rows.withColumn(ALL, routing.broadcast.cast("boolean")), ColumnRoute(GROUP, ALL)


def _to_splitters(rows: DataFrame, reader: Reader, decided: Decided) -> tuple[DataFrame, Reader]:
    """Send physical windows to p splitters, uniformly at random (the window router). Rows are packed first."""
    if isinstance(reader, RowReader):
        rows, reader = map_in_arrow(rows, _Pack(decided.bytes), _BLOCKS), BlockReader(BLOCK)
    p = decided.splitters
    assert p is not None
    # A hash instead of a random number: it is the same when the epoch runs again.
    dice = F.xxhash64(*(quoted(name) for name in rows.columns))
    if p > TREE_ABOVE:
        branches = math.isqrt(p - 1) + 1
        rows = rows.repartitionById(branches, F.pmod(dice, F.lit(branches)).cast("int"))
    spread = rows.repartitionById(p, F.pmod(F.shiftrightunsigned(dice, 16), F.lit(p)).cast("int"))
    # An exchange delivers in any order. A splitter numbers its windows, so they must come in a fixed order.
    return spread.sortWithinPartitions(dice), reader


@dataclass(frozen=True)
class _Pack:
    """The window router for rows: gathers them into physical windows."""

    window_bytes: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for window in RowReader()(batches, self.window_bytes):
            yield pa.RecordBatch.from_arrays([pa.array([pack(window).to_pybytes()], pa.binary())], names=[BLOCK])


def group_of(keys: Sequence[Column], groups: int) -> Column:
    """The partition-group of a key. Spark's xxhash64 is the same in all sessions and releases. Null counts as a key."""
    if not keys or groups == 1:
        return F.lit(0)
    return F.pmod(F.xxhash64(*keys), F.lit(groups).cast("bigint")).cast("int")


# --- from packed blocks to results ----------------------------------------------------------------------------------


def at_workers(packed: DataFrame, task: EpochTask, returns: StructType) -> DataFrame:
    """Send packed blocks to the workers of their groups, which run the operator."""
    return map_in_arrow(packed.repartitionById(max(task.routing) + 1, TO_WORKER), WorkerTask(task), returns)


def side_job(rows: DataFrame, reason: str, target: Target) -> DataFrame:
    """Keep rows that the query could not use. The job reports how many, by the column `reason`."""
    return map_in_arrow(rows, _SideWriter(target, reason), REPORTS)


def union(parts: Sequence[DataFrame]) -> DataFrame:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionAll(part)
    return whole


@dataclass(frozen=True)
class _SideWriter:
    """Writes the rows of a task and reports how many there are of each reason."""

    target: Target
    reason: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [batch for batch in batches if batch.num_rows]
        write_rows(self.target, _task_number(), rows)
        reasons = Counter(reason for batch in rows for reason in batch.column(self.reason).to_pylist())
        yield report_rows([to_text(SideReport(reasons))])


@dataclass(frozen=True)
class Writer:
    """Writes the rows of a task, passes on the workers' reports and adds its own."""

    target: Target
    disorder: int | None
    window: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[pa.RecordBatch] = []
        texts: list[str] = []
        for batch in batches:
            report = batch.column(REPORT)
            data = batch.drop_columns([REPORT])
            if report.null_count < len(report):
                texts += report.drop_null().to_pylist()
                data = data.filter(report.is_null())
            rows.append(data)
        if self.disorder is not None and self.window is not None:
            rows = in_order(rows, self.window, self.disorder)
        written = write_rows(self.target, _task_number(), rows)
        yield report_rows([*texts, to_text(WriterReport(written))])


def report_rows(texts: Sequence[str]) -> pa.RecordBatch:
    """Reports as the record batch that a task yields."""
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=[REPORT])


def _task_number() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def in_order(batches: Sequence[pa.RecordBatch], window: str, k: int) -> list[pa.RecordBatch]:
    """The results with disorder at most k: unchanged if they are within the bound, else sorted by window."""
    known = [batch for batch in batches if batch.num_rows]
    if not known:
        return []
    table = pa.Table.from_batches(known)
    ends, starts = (pc.struct_field(table.column(window), name).combine_chunks() for name in ("end", "start"))
    order = np.lexsort((np.asarray(starts.cast(pa.int64())), np.asarray(ends.cast(pa.int64()))))
    if displacement(order) <= k:
        return known
    ordered: list[pa.RecordBatch] = table.take(pa.array(order)).to_batches()
    return ordered


def displacement(order: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """The largest distance between two results that are out of order; 0 for results in order.

    `order[i]` is the position of the result that should come i-th. A result comes too early if one that should come
    before it is behind it.
    """
    if not len(order):
        return 0
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))  # the rank of the result at each position
    # For each position, find the last position behind it with a lower rank, from the running minimum from the end.
    lowest = np.minimum.accumulate(place[::-1])[::-1]
    early = np.flatnonzero(place > lowest)
    if not len(early):
        return 0
    last = np.searchsorted(lowest, place[early], side="left") - 1
    return int((last - early).max())
