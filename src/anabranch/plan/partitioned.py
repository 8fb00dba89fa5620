"""Keyed aggregates in three stages: partition, partial evaluation, aggregation.

    Python aggregates   rows ▶ splitter ▶ blocks ▶ exchange ▶ evaluate in Python ─┬▶ exchange by key ▶┬▶ windows
    Spark's aggregates  rows ▶ worker of each ▶ exchange of rows ▶ group by      ─┘   (if keys are    └ (kernel)
                                                                                       not whole)

Both produce one row per worker, key and pane. Where every key of a window is on one worker, its windows are made there.
Otherwise the states are exchanged again, by key: this is the aggregation that a partitioner should keep small.

The epoch runtime uses the first two stages (`PartialPanes`); its window operator is the third.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, IntegerType, LongType, StructField, StructType

from anabranch._worker_gc import freeze_loaded_objects
from anabranch.aggregates import Inputs
from anabranch.keys.partitioner import HeavyKeys
from anabranch.keys.policy import Partitioning
from anabranch.names import PANE, ROWS, SPLITTER, TIME, WORKER, input_name, key_name
from anabranch.operators.partial_windows import Aggregation, PartialEvaluation, WholeEvaluation
from anabranch.plan.panes import state_names, window_settings, windows_of_runs
from anabranch.plan.placement import Placement, stretch_of
from anabranch.query.windowed import Query, inputs_of
from anabranch.spark.arrow import arrow_schema, map_in_arrow
from anabranch.spark.columns import changing, floordiv, quoted
from anabranch.spark.order import in_fixed_order, order_may_change
from anabranch.spark.worker_python import check_local_python
from anabranch.split.gates import OpenGate
from anabranch.split.key_routes import KeyRoute
from anabranch.split.readers import RowReader
from anabranch.split.splitter import PACKED_SCHEMA, TO_WORKER, Splitter
from anabranch.windows.ids import Stretch, pane_of


def build(query: Query, source: DataFrame, axis: str, placement: Placement) -> DataFrame:
    """The windows of a bounded DataFrame; `axis` is the column with a row's position on the axis of the windows."""
    check_local_python(source.sparkSession)
    panes = PartialPanes(query, axis, placement.workers, in_python=placement.in_python)
    if placement.splitters is not None:
        source = source.coalesce(placement.splitters)
    # Policies that keep keys whole without counts (fld, heavy) have nothing to forget.
    strict = placement.whole(query) and placement.partitioning.policy in ("am", "cam")
    reorder = order_may_change(source)
    on_workers = panes.on_workers(source, placement.partitioning, placement.heavy, strict=strict, reorder=reorder)
    settings, runs = window_settings(query, panes.folds, panes.key_fields, panes.states)
    aggregation = Aggregation(settings, 0 if query.counts_rows else None)
    if not placement.whole(query):
        evaluated = panes.evaluated(on_workers).repartition(*(F.col(name) for name in panes.keys))
        found = map_in_arrow(evaluated, aggregation, runs)
    elif panes.evaluation is not None:
        folds = tuple(part.fold for part in query.python_states or ())
        found = map_in_arrow(on_workers, WholeEvaluation(panes.evaluation, aggregation, folds), runs)
    else:
        found = map_in_arrow(panes.evaluated(on_workers), aggregation, runs)
    return windows_of_runs(found.toDF(*query.keys, *runs.names[len(panes.keys) :]), query)


class PartialPanes:
    """Partition and partial evaluation: rows become one row per worker, key and pane (keys, PANE, ROWS, states...).

    `counts` are the names of three more columns, for the epoch runtime: rows with a time, the latest time, and a
    number that is the worker modulo the number of workers. The Columns are created once, here: each is a call into the
    JVM.
    """

    def __init__(
        self, query: Query, axis: str, workers: int, *, in_python: bool, counts: tuple[str, str, str] | None = None
    ) -> None:
        self.keys = tuple(key_name(i) for i in range(len(query.keys)))
        self._workers, self._axis, self._counts = workers, axis, counts
        self._stretch = stretch_of(query)
        inputs = [inputs_of(query.source, aggregate, query.time) for aggregate in query.aggregates.values()]
        self._inputs = tuple(tuple(input_name(i, j) for j in range(len(each.columns))) for i, each in enumerate(inputs))
        keys = [_as_grouped(query, key).alias(name) for key, name in zip(query.keys, self.keys, strict=True)]
        self._projected = [*keys, F.col(axis)]
        for names, each in zip(self._inputs, inputs, strict=True):
            self._projected += [column.alias(name) for name, column in zip(names, each.columns, strict=True)]
        parts = query.python_states if in_python else None
        if parts is None:
            self._projected.append(query.time.column.alias(TIME))
            # Grouped by splitter too: then a state depends only on the rows of one task, in their order, and sums of
            # floats are the same when an epoch runs again. In Python, blocks are sorted instead.
            self._projected += [] if counts is None else [F.spark_partition_id().alias(SPLITTER)]
        # Only its columns are used: no row of it is ever read.
        projected = query.source.withColumn(axis, F.lit(0).cast("bigint")).select(*self._projected)
        fields = {each.name: StructField(each.name, each.dataType) for each in projected.schema}
        self.key_fields = [fields[name] for name in self.keys]
        self._pane = pane_of(F.col(axis), query.panes.size, query.panes.origin, floordiv)
        self._pane_end = (self._pane + 1) * query.panes.size + query.panes.origin
        if parts is None:
            self.evaluation: PartialEvaluation | None = None
            """what workers run over blocks; None if Spark evaluates"""
            self.folds = [state.fold for state in query.states]
            self._assigned = StructType([*fields.values(), StructField(WORKER, IntegerType())])
            self._lifts = self._lifted(query, inputs)
            self.states = self.evaluated(projected.withColumn(WORKER, F.lit(0))).schema
            return
        self.folds = [part.fold for part in parts]
        states = [StructField(name, part.type) for name, part in zip(state_names(query), parts, strict=True)]
        self.states = StructType([*self.key_fields, _long(PANE), _long(ROWS), *states, *map(_long, counts or ())])
        """columns of the evaluated rows"""
        evaluate = tuple(part.evaluate for part in parts)
        arrow = arrow_schema(self.states)
        panes = Stretch(query.panes.size, query.panes.origin)
        self.evaluation = PartialEvaluation(self.keys, axis, panes, self._inputs, evaluate, arrow)

    def _lifted(self, query: Query, inputs: Sequence[Inputs]) -> list[Column]:
        """Spark's aggregates over the renamed columns."""
        bound = [
            aggregate.bind(Inputs(tuple(F.col(name) for name in names), each.types, F.col(TIME)))
            for aggregate, names, each in zip(query.aggregates.values(), self._inputs, inputs, strict=True)
        ]
        states = [state.lift for each in bound for state in each.states]
        named = [lift.alias(name) for lift, name in zip(states, state_names(query), strict=True)]
        return [F.count(F.lit(1)).alias(ROWS), *named]

    def on_workers(
        self, rows: DataFrame, partitioning: Partitioning, heavy: HeavyKeys, *, strict: bool = False, reorder: bool
    ) -> DataFrame:
        """The rows (or blocks of them) on their workers. `strict`: splitting a key is an error.

        `reorder`: a splitter that runs again might get its rows in another order, and then place them elsewhere or, if
        the key alone decides the place, pack them into other blocks. So they are sorted first.
        """
        route = KeyRoute(partitioning, self.keys, time=self._axis, stretch=self._stretch, heavy=heavy, strict=strict)
        projected = rows.select(*self._projected)
        if reorder and (self.evaluation is not None or not partitioning.by_key_alone):
            projected = in_fixed_order(projected, self._axis)
        if self.evaluation is None:
            assign = Assign(route, self._workers, tuple(self._assigned.names))
            return map_in_arrow(projected, assign, self._assigned).repartitionById(self._workers, WORKER)
        workers = tuple(range(self._workers))
        splitter = Splitter(0, RowReader(), OpenGate(), route, workers, self._workers, marked=False)
        return map_in_arrow(projected, splitter, PACKED_SCHEMA).repartitionById(self._workers, TO_WORKER)

    def evaluated(self, rows: DataFrame, watermark: int | None = None) -> DataFrame:
        """Evaluate rows on their workers. Late rows and rows without a time have no pane, but are counted."""
        if self.evaluation is not None:
            return map_in_arrow(rows, replace(self.evaluation, watermark=watermark), self.states)
        pane = self._pane
        if watermark is not None:
            pane = F.when(self._pane_end > changing(watermark, F.col(self._axis)), self._pane)
        by = [F.col(WORKER), *(F.col(name) for name in self.keys), pane.alias(PANE)]
        if self._counts is None:
            return rows.groupBy(*by).agg(*self._lifts).drop(WORKER)
        timed, max_t, worker = self._counts
        counts = [F.count(self._axis).alias(timed), F.max(self._axis).alias(max_t)]
        evaluated = rows.groupBy(SPLITTER, *by).agg(*self._lifts, *counts)
        part = F.col(SPLITTER).cast("bigint") * self._workers + F.col(WORKER)
        return evaluated.withColumn(worker, part).drop(WORKER, SPLITTER)


def _long(name: str) -> StructField:
    return StructField(name, LongType())


def _as_grouped(query: Query, key: str) -> Column:
    """A key as Spark groups it: 0.0 equals -0.0, and all NaN are equal."""
    if isinstance(query.source.schema[key].dataType, (DoubleType, FloatType)):
        value = quoted(key)
        return (
            F.when(F.isnan(value), F.lit(float("nan")))
            .otherwise(value + F.lit(0.0))
            .cast(query.source.schema[key].dataType)
        )
    return quoted(key)


@dataclass(frozen=True)
class Assign:
    """Adds each row's worker as the last column; run by `map_in_arrow` in a splitter."""

    route: KeyRoute
    workers: int
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        route = self.route.begun(context.partitionId() if context is not None else 0)
        for batch in batches:
            if batch.num_rows:
                workers, _, travelling = route(batch, self.workers)
                columns = [*travelling.select(list(self.names[:-1])).columns, pa.array(workers.astype(np.int32))]
                yield pa.RecordBatch.from_arrays(columns, names=list(self.names))
        freeze_loaded_objects()
