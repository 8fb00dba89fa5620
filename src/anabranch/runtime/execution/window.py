"""The Spark job of a windowed aggregate in an epoch.

    rows ▶ panes (Spark) ▶ splitter ▶ exchange ▶ worker ▶ runs to windows (Spark) ▶ writer

Where a policy places the keys, panes are made in two steps: partition, and partial evaluation on each worker
(`plan.partitioned`). A worker's panes then are pieces, as those of several epochs are, and the operator combines them.

The Columns are made once and used in every epoch: each is a dozen calls into the JVM, and all of them together took a
third of a small epoch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from anabranch.io.frames import unpacked
from anabranch.io.parquet import Target
from anabranch.keys.hashing import key_hash
from anabranch.keys.policy import Partitioning
from anabranch.operators.batch_windows import PANE, ROWS
from anabranch.operators.numbering import POSITION
from anabranch.operators.protocol import OperatorFactory
from anabranch.operators.time_windows import OPEN, CountWindowOperator, WindowOperator
from anabranch.plan import batch as batch_plan
from anabranch.plan.panes import WINDOW, lifts, run_columns, state_names, window_settings
from anabranch.plan.partitioned import PartialPanes
from anabranch.plan.placement import check_placeable, not_placed, stretch_of
from anabranch.query.nodes import WindowNode
from anabranch.runtime.stages import REPORTS, WORKER, Decided, Feed, Writer, group_of, packed_workers, reports
from anabranch.runtime.worker import REPORT, EpochTask
from anabranch.spark.arrow import arrow_schema, map_in_arrow
from anabranch.spark.columns import changing, floordiv, quoted, up_to
from anabranch.split.key_routes import PlacedGate
from anabranch.split.splitter import PACKED_SCHEMA, ColumnRoute, PaneGate, RowReader, Splitter
from anabranch.windows.ids import Stretch, pane_of

PART = "__ab_part"
"""Which task made a pane of its rows. Workers sort by it: then no exchange changes the order of a pane's pieces."""

_T, _GROUP, _TIMED, _MAX_T, _HASH = "__ab_t", "__ab_group", "__ab_timed", "__ab_max_t", "__ab_hash"


class WindowJob:
    """A windowed aggregate, made ready to run epoch after epoch."""

    def __init__(self, node: WindowNode, workers: int) -> None:
        query = node.query
        panes = query.panes
        self.workers = query.partition.workers or workers
        """V, of the partial evaluation"""
        check_placeable(query)
        asked = query.partition.partitioning is not None
        self.placing: PartialPanes | None = None
        """partition and partial evaluation by a policy; None: Spark is left alone"""
        self._counts_rows = query.counts_rows
        # Where rows are counted, each key is in one place already.
        if (asked or not_placed(query) is None) and not query.counts_rows:
            python = query.python_states is not None
            self.placing = PartialPanes(query, _T, self.workers, in_python=python, counted=(_TIMED, _MAX_T, PART))
        self._splitters = query.partition.splitters
        self._keys = tuple(f"__ab_k{i}" for i in range(len(query.keys)))
        keys = [quoted(key).alias(name) for key, name in zip(query.keys, self._keys, strict=True)]
        self._axis = quoted(POSITION) if query.counts_rows else query.time.micros()
        self._part = F.spark_partition_id().cast("bigint").alias(PART)
        self._pane = pane_of(F.col(_T), panes.size, panes.origin, floordiv)
        self._pane_end = (self._pane + 1) * panes.size + panes.origin
        # By part as well: then a pane's state depends on the rows of one task only, in their order, and sums of floats
        # come out the same when an epoch runs again. Without it the exchange would decide in which order Spark adds.
        self._by = [F.col(PART), *keys]
        self._states = [*lifts(query), F.count(_T).alias(_TIMED), F.max(_T).alias(_MAX_T)]
        self._travelling = (*self._keys, PANE, ROWS, *state_names(query), PART)
        if query.counts_rows:
            self._states.append(F.max(OPEN).alias(OPEN))
            self._travelling = (*self._travelling, OPEN)
        group = group_of([F.col(name) for name in self._keys], node.groups).alias(_GROUP)
        self._selected = [*map(F.col, (*self._travelling, _TIMED, _MAX_T)), group]
        if self.placing is not None:
            self._selected.append(key_hash([F.col(name) for name in self._keys]).alias(_HASH))
            types, folds = self.placing.states, self.placing.folds
            stretch = stretch_of(query)
            self._stretch: Stretch | None = Stretch(stretch.size // panes.size)
        else:
            empty = query.source.sparkSession.createDataFrame([], query.source.schema)
            types = empty.groupBy(*keys, F.lit(0).cast("bigint").alias(PANE)).agg(*lifts(query)).schema
            folds = [state.fold for state in query.states]
            self._stretch = None
        settings, runs = window_settings(query, folds, [types[name] for name in self._keys], types)
        settings = replace(settings, stretch=self._stretch)
        self._runs = StructType([*runs.fields, *REPORTS.fields])
        self._names = [*query.keys, *self._runs.names[len(self._keys) :]]
        self._exploded, self._lowered = run_columns(query, also=(REPORT,))
        self.factory: OperatorFactory = partial(WindowOperator, settings)
        if query.counts_rows:
            self.factory = partial(CountWindowOperator, settings, query.rows_per_key)
        self.yields: pa.Schema = arrow_schema(runs)
        """of the runs that workers give to Spark"""
        self.result: pa.Schema = arrow_schema(query.result_like(batch_plan.build).schema)
        """of the windows"""

    def packed(self, edge: int, feed: Feed, decided: Decided) -> DataFrame:
        """Panes, as blocks. Late rows, and those without a time, have no pane id, but are counted."""
        rows = feed.rows if feed.packed is None else unpacked(feed.rows, feed.packed)
        # The numbering has kept late rows out, and positions are no times.
        late = None if self._counts_rows else feed.watermark
        pane = self._pane if late is None else F.when(self._pane_end > changing(late, F.col(_T)), self._pane)
        gate = PaneGate(PANE, ROWS, _TIMED, _MAX_T)
        if self.placing is not None and self._splitters is not None:
            rows = rows.coalesce(self._splitters)
        # What is too far ahead counts as a row without a time.
        rows = rows.select(F.col("*"), up_to(self._axis, feed.limit).alias(_T), self._part)
        if self.placing is None:
            counted = rows.groupBy(*self._by, pane.alias(PANE)).agg(*self._states)
        else:
            assert self._stretch is not None
            # An epoch that was planned before a policy was asked for, and runs again, has none in its plan.
            policy = decided.partitioning or Partitioning("cam")
            gate = PlacedGate(PANE, ROWS, _TIMED, _MAX_T, PART, _HASH, self.workers, self._stretch)
            placed = self.placing.placed(rows, policy, decided.heavy, reorder=feed.order_may_change)
            counted = self.placing.evaluated(placed, feed.watermark)
        splitter = Splitter(
            edge,
            RowReader(),
            gate,
            ColumnRoute(_GROUP),
            decided.routing,
            decided.workers,
            decided.bytes,
            self._travelling,
        )
        return map_in_arrow(counted.select(*self._selected), splitter, PACKED_SCHEMA)

    def run(
        self, packed: DataFrame, task: EpochTask, target: Target, disorder: int | None, left_out: Column | None = None
    ) -> list[dict[str, Any]]:
        """Workers give runs, Spark makes windows of them, a writer writes. Windows that are `left_out` do not leave."""
        exchanged = packed.repartitionById(packed_workers(task), WORKER)
        runs = map_in_arrow(exchanged, task, self._runs).toDF(*self._names)
        windows = runs.select(*self._exploded)
        if left_out is not None:
            windows = windows.where(~left_out)
        windows = windows.select(*self._lowered)
        if disorder is not None:
            windows = windows.repartition(1)
        return reports(map_in_arrow(windows, Writer(target, disorder, WINDOW), REPORTS))
