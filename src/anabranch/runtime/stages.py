"""The Spark job of an operator in an epoch.

    windows    rows ▶ panes (Spark) ▶ splitter ▶ exchange ▶ worker ▶ runs to windows (Spark) ▶ writer
    process    rows or blocks       ▶ splitter ▶ exchange ▶ worker, which writes
    combine    partial answers      ▶ aggregation tree (Spark)                              ▶ writer

One job per operator: its last stage has the effects (state, files), so no effect runs twice but after a failure, when
it gives the same again. What the job returns is reports, one JSON text per task; the rows themselves stay on the
workers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from anabranch.io.blocks import Packed, pack
from anabranch.io.frames import unpacked
from anabranch.io.parquet import Target, write_rows
from anabranch.keys.partitioner import HeavyKeys
from anabranch.keys.policy import Partitioning
from anabranch.plan.tree import FEW, aggregation_tree, root
from anabranch.query.nodes import CombineNode, JoinNode, ProcessNode
from anabranch.query.origins import Source
from anabranch.runtime.sources import BatchRows, BySource
from anabranch.runtime.worker import REPORT, EpochTask
from anabranch.spark.arrow import map_in_arrow
from anabranch.spark.columns import quoted
from anabranch.spark.order import in_fixed_order
from anabranch.split.key_routes import KeyRoute
from anabranch.split.splitter import (
    PACKED_SCHEMA,
    WINDOW_BYTES,
    BlockReader,
    ColumnRoute,
    FunctionRoute,
    Reader,
    ReferenceReader,
    Route,
    RowGate,
    RowReader,
    Splitter,
)

TREE_ABOVE = 64
"""Splitters above which physical windows reach them over two exchanges: a tree of routers (paper 5, section 4.1)."""

WORKER = "worker"

_GROUP, _ALL, _BLOCK = "__ab_group", "__ab_all", "__ab_block"
_BLOCKS = StructType([StructField(_BLOCK, BinaryType())])

REPORTS = StructType([StructField(REPORT, StringType())])
"""What a job returns."""


@dataclass(frozen=True)
class Feed:
    """The rows of an input in this epoch. `packed`: they are blocks, and nothing has been done to them yet."""

    rows: DataFrame
    packed: Packed | None
    watermark: int | None
    """rows behind it are late"""
    limit: int | None = None
    """rows after it are too far ahead"""
    source: Source | None = None
    """where they come from; None: from another operator, which wrote them to files"""

    @property
    def order_may_change(self) -> bool:
        """Whether a task that runs again may get the rows in another order."""
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

    @property
    def bytes(self) -> int:
        return self.window_bytes or WINDOW_BYTES


# --- from rows to packed blocks -------------------------------------------------------------------------------------


def packed_rows(node: ProcessNode | JoinNode, edge: int, feed: Feed, decided: Decided) -> DataFrame:
    """Rows or blocks, split into a block per group."""
    routing, time = node.routing, node.inputs[edge].time.name
    rows, reader = feed.rows, _reader(feed.packed)
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
    splitter = _splitter(edge, reader, RowGate(time, feed.watermark, feed.limit), route, decided, columns)
    return map_in_arrow(rows, splitter, PACKED_SCHEMA)


def packed_at_once(
    node: JoinNode, rows: BatchRows, watermark: int | None, limits: Sequence[int | None], decided: Decided
) -> DataFrame:
    """All inputs of a join, split in one pass over the micro-batch. `limits`: of each input."""
    splitters = {}
    for edge, each in enumerate(node.inputs):
        source = each.part.origin
        assert isinstance(source, Source)
        columns = tuple(source.frame.columns) if source.packed is None else None
        gate = RowGate(each.time.name, watermark, limits[edge])
        route = FunctionRoute(node.routing.route, None)  # type: ignore[arg-type]
        splitters[rows.number_of(source)] = _splitter(edge, _reader(source.packed), gate, route, decided, columns)
    return map_in_arrow(rows.tagged, BySource(splitters), PACKED_SCHEMA)


def _splitter(
    edge: int, reader: Reader, gate: RowGate, route: Route, decided: Decided, columns: tuple[str, ...] | None
) -> Splitter:
    return Splitter(edge, reader, gate, route, decided.routing, decided.workers, decided.bytes, columns)


def _reader(packed: Packed | None) -> Reader:
    if packed is None:
        return RowReader()
    return ReferenceReader() if packed.column is None else BlockReader(packed.column)


def _routed(rows: DataFrame, node: ProcessNode | JoinNode, groups: int) -> tuple[DataFrame, ColumnRoute]:
    """The rows with their group, and perhaps whether they go to all, as columns."""
    routing = node.routing
    if routing.keys:
        return rows.withColumn(_GROUP, group_of([quoted(k) for k in routing.keys], groups)), ColumnRoute(_GROUP)
    assert not callable(routing.route) or isinstance(routing.route, Column)
    to = F.lit(None) if routing.route is None else routing.route
    # As a bigint: without ANSI mode a cast to int would wrap a number that is too large to some other group.
    rows = rows.withColumn(_GROUP, to.cast("bigint"))
    if routing.broadcast is None:
        return rows, ColumnRoute(_GROUP)
    assert isinstance(routing.broadcast, Column)
    return rows.withColumn(_ALL, routing.broadcast.cast("boolean")), ColumnRoute(_GROUP, _ALL)


def _to_splitters(rows: DataFrame, reader: Reader, decided: Decided) -> tuple[DataFrame, Reader]:
    """Physical windows to p splitters, uniformly at random (the window router). Rows are packed first."""
    if isinstance(reader, RowReader):
        rows, reader = map_in_arrow(rows, _Pack(decided.bytes), _BLOCKS), BlockReader(_BLOCK)
    p = decided.splitters
    assert p is not None
    # A hash for the dice: random with respect to the data, and the same when the epoch runs again.
    dice = F.xxhash64(*(quoted(name) for name in rows.columns))
    if p > TREE_ABOVE:
        branches = math.isqrt(p - 1) + 1
        rows = rows.repartitionById(branches, F.pmod(dice, F.lit(branches)).cast("int"))
    spread = rows.repartitionById(p, F.pmod(F.shiftrightunsigned(dice, 16), F.lit(p)).cast("int"))
    # An exchange over machines delivers in any order; a splitter numbers its windows, so that must be the same again.
    return spread.sortWithinPartitions(dice), reader


@dataclass(frozen=True)
class _Pack:
    """The window router for rows: gathers them into physical windows."""

    window_bytes: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for window in RowReader()(batches, self.window_bytes):
            yield pa.RecordBatch.from_arrays([pa.array([pack(window).to_pybytes()], pa.binary())], names=[_BLOCK])


def group_of(keys: Sequence[Column], groups: int) -> Column:
    """The partition-group of a key. Spark's xxhash64 is the same in all sessions and releases; null is a key too."""
    if not keys or groups == 1:
        return F.lit(0)
    return F.pmod(F.xxhash64(*keys), F.lit(groups).cast("bigint")).cast("int")


# --- from packed blocks to results ----------------------------------------------------------------------------------


def run_process(packed: DataFrame, task: EpochTask) -> list[dict[str, Any]]:
    """An operator's epoch: the workers write, and report."""
    return reports(map_in_arrow(packed.repartitionById(packed_workers(task), WORKER), task, REPORTS))


def run_filtered(packed: DataFrame, task: EpochTask, where: Column, target: Target) -> list[dict[str, Any]]:
    """An operator's epoch whose results must pass a Column, which only Spark can compute."""
    assert task.yields is not None
    schema = StructType([*from_arrow_schema(task.yields).fields, *REPORTS.fields])
    rows = map_in_arrow(packed.repartitionById(packed_workers(task), WORKER), task, schema)
    passed = rows.where(F.col(REPORT).isNotNull() | where)
    return reports(map_in_arrow(passed, Writer(target, None, None), REPORTS))


def run_combine(node: CombineNode, partial: DataFrame, parts: int, target: Target) -> list[dict[str, Any]]:
    """The aggregation tree over an epoch's partial answers, of which there are `parts`."""
    if not parts:
        return []
    if parts <= FEW and not any(pa.types.is_nested(target.schema.field(name).type) for name in node.by):
        tree = _Root(node.by, node.sums, node.maxima, target)
        return reports(map_in_arrow(partial.coalesce(1), tree, REPORTS))
    combined = aggregation_tree(partial, node.by, node.sums, node.maxima, node.fan_in)
    combined = combined.withColumn(REPORT, F.lit(None).cast("string"))
    # In the order of the query, in one file: there are few, and a rerun must give the same bytes.
    ordered = combined.repartition(1).sortWithinPartitions(*(quoted(name) for name in node.by))
    return reports(map_in_arrow(ordered, Writer(target, None, None), REPORTS))


@dataclass(frozen=True)
class _Root:
    """All of the aggregation tree, in one task."""

    by: tuple[str, ...]
    sums: tuple[str, ...]
    maxima: tuple[str, ...]
    target: Target

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = [batch for batch in batches if batch.num_rows]
        answers = root(pa.Table.from_batches(known), self.by, self.sums, self.maxima).to_batches() if known else []
        written = write_rows(self.target, 0, answers)
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps({"written": written.as_json()})])], names=[REPORT])


def run_side(rows: DataFrame, target: Target) -> Counter[str]:
    """Keep the rows that the query could not take; how many there are, by their column `reason`."""
    found = reports(map_in_arrow(rows, _SideWriter(target), REPORTS))
    return sum((Counter(each["reasons"]) for each in found), Counter())


def packed_workers(task: EpochTask) -> int:
    return max(task.routing) + 1


def union(parts: Sequence[DataFrame]) -> DataFrame:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionAll(part)
    return whole


def reports(result: DataFrame) -> list[dict[str, Any]]:
    """Run the job, and read what its tasks say."""
    return [json.loads(row[0]) for row in result.collect()]


@dataclass(frozen=True)
class _SideWriter:
    """Writes the rows of a task, and says how many have which reason."""

    target: Target

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        rows = [batch for batch in batches if batch.num_rows]
        write_rows(self.target, context.partitionId() if context is not None else 0, rows)
        reasons = Counter(reason for batch in rows for reason in batch.column("reason").to_pylist())
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps({"reasons": reasons})])], names=[REPORT])


@dataclass(frozen=True)
class Writer:
    """Writes the rows of a task, passes reports on, and adds its own."""

    target: Target
    disorder: int | None
    window: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
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
        written = write_rows(self.target, part, rows)
        texts.append(json.dumps({"written": written.as_json()}))
        yield pa.RecordBatch.from_arrays([pa.array(texts)], names=[REPORT])


def in_order(batches: Sequence[pa.RecordBatch], window: str, k: int) -> list[pa.RecordBatch]:
    """The results with disorder at most k: as they came if that is within the bound, else sorted by window."""
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
    """How far apart two results leave that leave out of order, at most: 0 for results in order.

    `order[i]` is the place of the result that should leave as the i-th. A result leaves too early if one that
    should leave before it stands behind it.
    """
    if not len(order):
        return 0
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))  # the rank of the result at each place
    # For each place the last place behind it with a lower rank: the lowest rank seen from the end tells.
    lowest = np.minimum.accumulate(place[::-1])[::-1]
    early = np.flatnonzero(place > lowest)
    if not len(early):
        return 0
    last = np.searchsorted(lowest, place[early], side="left") - 1
    return int((last - early).max())


def node_reports(found: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The workers' reports and the writers', apart; of a task that ran twice the last counts."""
    workers = {report["worker"]: report for report in found if "worker" in report}
    return [workers[w] for w in sorted(workers)], [report["written"] for report in found if "written" in report]
