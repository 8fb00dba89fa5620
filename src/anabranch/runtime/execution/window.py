"""How a windowed aggregate runs in an epoch.

    rows ▶ panes (Spark) ▶ splitter ▶ exchange ▶ worker ▶ runs to windows (Spark) ▶ writer

If a policy places the keys, panes are made in two steps: partitioning, and partial evaluation on each worker
(`plan.partitioned`). A worker's panes are then partial, like panes of several epochs, and the operator combines them.

The Columns are built once and reused in every epoch: each takes a dozen calls into the JVM, and to build them all took
a third of a small epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from anabranch.control.base import Controller
from anabranch.control.batch_size import BatchSize, largest_batch
from anabranch.control.key_placement import KeyPlacement
from anabranch.io.frames import unpacked
from anabranch.io.parquet import Target
from anabranch.keys.hashing import key_hash
from anabranch.keys.policy import Partitioning
from anabranch.names import AXIS, GROUP, HASH, MAX_T, OPEN, PANE, PART, POSITION, REPORT, ROWS, TIMED, key_name
from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.operators.count_windows import CountWindowOperator
from anabranch.operators.protocol import OperatorFactory
from anabranch.operators.time_windows import WindowOperator
from anabranch.plan import batch as batch_plan
from anabranch.plan.panes import WINDOW, lifts, run_columns, state_names, window_settings
from anabranch.plan.partitioned import PartialPanes
from anabranch.plan.placement import check_placeable, not_placed, stretch_of
from anabranch.query.graph import Step
from anabranch.query.nodes import ONLY, Input, WindowNode
from anabranch.query.options import holds_no_window_back
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.epoch.epoch import Epoch
from anabranch.runtime.execution.base import policy_setting
from anabranch.runtime.execution.stateful import StatefulExecution
from anabranch.runtime.tasks.stages import REPORTS, Decided, Feed, Writer, at_workers, group_of
from anabranch.runtime.tasks.task import EpochTask
from anabranch.spark.arrow import arrow_schema, map_in_arrow
from anabranch.spark.columns import changing, floordiv, quoted, up_to
from anabranch.split.gates import CountingPaneGate, PaneGate
from anabranch.split.readers import RowReader
from anabranch.split.routes import ColumnRoute
from anabranch.split.splitter import PACKED_SCHEMA, Splitter
from anabranch.windows import Window
from anabranch.windows.durations import MICROS
from anabranch.windows.ids import Stretch, pane_of


class WindowExecution(StatefulExecution):
    """A windowed aggregate."""

    def __init__(self, step: Step, node: WindowNode, settings: Settings) -> None:
        query = node.query
        panes = query.panes
        self._query = query
        self._workers = query.partition.workers or settings.most_workers
        """how many workers the partial evaluation has"""
        check_placeable(query)
        asked = query.partition.partitioning is not None
        self._placing: PartialPanes | None = None
        """partitioning and partial evaluation by a policy; None: Spark places the keys"""
        self._counts_rows = query.counts_rows
        # For count windows, each key is already in one place.
        if (asked or not_placed(query) is None) and not query.counts_rows:
            python = query.python_states is not None
            self._placing = PartialPanes(query, AXIS, self._workers, in_python=python, counts=(TIMED, MAX_T, PART))
        self._splitters = query.partition.splitters
        self._keys = tuple(key_name(i) for i in range(len(query.keys)))
        keys = [quoted(key).alias(name) for key, name in zip(query.keys, self._keys, strict=True)]
        self._axis = quoted(POSITION) if query.counts_rows else query.time.micros()
        self._part = F.spark_partition_id().cast("bigint").alias(PART)
        self._pane = pane_of(F.col(AXIS), panes.size, panes.origin, floordiv)
        self._pane_end = (self._pane + 1) * panes.size + panes.origin
        # Also by task: then a pane's state depends only on the rows of one task, in their order, and sums of floats are
        # the same when an epoch runs again. Otherwise the order of Spark's additions would depend on the exchange.
        self._by = [F.col(PART), *keys]
        self._states = [*lifts(query), F.count(AXIS).alias(TIMED), F.max(AXIS).alias(MAX_T)]
        self._travelling = (*self._keys, PANE, ROWS, *state_names(query), PART)
        if query.counts_rows:
            self._states.append(F.max(OPEN).alias(OPEN))
            self._travelling = (*self._travelling, OPEN)
        group = group_of([F.col(name) for name in self._keys], node.groups).alias(GROUP)
        self._selected = [*map(F.col, (*self._travelling, TIMED, MAX_T)), group]
        if self._placing is not None:
            self._selected.append(key_hash([F.col(name) for name in self._keys]).alias(HASH))
            types, folds = self._placing.states, self._placing.folds
            stretch = stretch_of(query)
            self._stretch: Stretch | None = Stretch(stretch.size // panes.size)
        else:
            empty = query.source.sparkSession.createDataFrame([], query.source.schema)
            types = empty.groupBy(*keys, F.lit(0).cast("bigint").alias(PANE)).agg(*lifts(query)).schema
            folds = [state.fold for state in query.states]
            self._stretch = None
        window, runs = window_settings(query, folds, [types[name] for name in self._keys], types)
        window = replace(window, stretch=self._stretch)
        self._runs = StructType([*runs.fields, *REPORTS.fields])
        self._names = [*query.keys, *self._runs.names[len(self._keys) :]]
        self._exploded, self._lowered = run_columns(query, also=(REPORT,))
        factory: OperatorFactory = partial(WindowOperator, window)
        if query.counts_rows:
            factory = partial(CountWindowOperator, window, query.rows_per_key)
        # If every window must be delivered in the epoch that completes it, none may wait for others of its batch.
        batch = 1 if holds_no_window_back(step, settings.qos, settings.trigger) else node.batch
        fixed = {**({} if batch is None else {"batch": batch}), **policy_setting(query.partition)}
        result = arrow_schema(query.result_like(batch_plan.build).schema)
        super().__init__(step, node, settings, factory, fixed, {ONLY: result})
        self.yields = arrow_schema(runs)

    def controllers(self, before: EpochProgress | None = None) -> list[Controller]:
        found: list[Controller] = []
        if self._placing is not None:
            splitters = self._splitters if len(self._inputs) == 1 else None
            fixed = self.fixed.get("partition")
            found.append(KeyPlacement(self.step.name, self._workers, splitters, fixed, before))
        bound = self.settings.qos.latency_seconds
        # A count window is delivered with its last row and waits for no other.
        if bound is not None and "batch" not in self.fixed and not self._query.counts_rows:
            panes = self._query.panes
            longest = max(panes.in_panes(), key=lambda w: w.size)
            slowest = max(window.slide for window in panes.windows)
            largest = largest_batch(slowest / MICROS, bound)
            at_once = min(self.settings.workers_of(self.groups), self.settings.slots)
            window = Window(longest.size, longest.slide)
            found.append(BatchSize(self.step.name, window, at_once, bound, largest=largest))
        return found

    def explain(self, measured: OperatorProgress | None) -> list[str]:
        return [fixed_routing(self.groups, self.settings)]

    def order_of(self, input_: Input) -> str:
        return PART

    @property
    def placement(self) -> tuple[int, Stretch | None]:
        return self._workers, stretch_of(self._query)

    def packed(self, epoch: Epoch, decided: Decided) -> list[DataFrame]:
        feeds = (epoch.inputs.feed(self.step, number, count=True) for number in range(len(self._inputs)))
        return [self._panes(edge, feed, decided) for edge, feed in enumerate(feeds)]

    def _panes(self, edge: int, feed: Feed, decided: Decided) -> DataFrame:
        """Panes as blocks. Late rows and rows without a time have no pane id, but are counted."""
        rows = feed.rows if feed.packed is None else unpacked(feed.rows, feed.packed)
        # The numbering operator has removed late rows, and positions are not times.
        late = None if self._counts_rows else feed.watermark
        pane = self._pane if late is None else F.when(self._pane_end > changing(late, F.col(AXIS)), self._pane)
        gate = PaneGate(PANE, ROWS, TIMED, MAX_T)
        if self._placing is not None and self._splitters is not None:
            rows = rows.coalesce(self._splitters)
        # A row that is too far ahead counts as a row without a time.
        rows = rows.select(F.col("*"), up_to(self._axis, feed.limit).alias(AXIS), self._part)
        if self._placing is None:
            panes = rows.groupBy(*self._by, pane.alias(PANE)).agg(*self._states)
        else:
            assert self._stretch is not None
            # An epoch that was decided before the query had a policy, and runs again, has none in its decision.
            policy = decided.partitioning or Partitioning("cam")
            gate = CountingPaneGate(PANE, ROWS, TIMED, MAX_T, PART, HASH, self._workers, self._stretch)
            on_workers = self._placing.on_workers(rows, policy, decided.heavy, reorder=feed.order_may_change)
            panes = self._placing.evaluated(on_workers, feed.watermark)
        splitter = Splitter(
            edge,
            RowReader(),
            gate,
            ColumnRoute(GROUP),
            decided.routing,
            decided.workers,
            decided.bytes,
            self._travelling,
        )
        return map_in_arrow(panes.select(*self._selected), splitter, PACKED_SCHEMA)

    def job(self, packed: DataFrame, task: EpochTask, targets: Mapping[str, Target], epoch: Epoch) -> DataFrame:
        """Workers yield runs, Spark turns them into windows, and a writer writes them."""
        windows = at_workers(packed, task, self._runs).toDF(*self._names).select(*self._exploded)
        left_out = None if epoch.drops is None else epoch.drops.of_results(self.step)
        if left_out is not None:
            windows = windows.where(~left_out)
        windows = windows.select(*self._lowered)
        disorder = self.settings.qos.disorder
        if disorder is not None:
            windows = windows.repartition(1)
        return map_in_arrow(windows, Writer(targets[ONLY], disorder, WINDOW), REPORTS)


def fixed_routing(groups: int, settings: Settings) -> str:
    """The line of `explain()` for groups that do not move."""
    workers = settings.workers_of(groups)
    return f"groups      {groups} on {workers} workers; group g is on worker g modulo {workers}"
