"""How a windowed join runs in an epoch: rows are split by the hash of their key, and each worker joins its groups.

The log of the input is the state: a new entry in the routing table moves a group, which is then rebuilt from its log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from anabranch.control.base import Controller
from anabranch.control.rebalance import Rebalance
from anabranch.errors import InvalidArgumentError
from anabranch.io.parquet import Target, Written
from anabranch.names import EVENT, REPORT
from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.operators.join import JoinOperator, JoinSettings
from anabranch.query.describe import explain_routing
from anabranch.query.graph import Step
from anabranch.query.nodes import ONLY, JoinNode
from anabranch.query.origins import Source
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.epoch.epoch import Epoch
from anabranch.runtime.epoch.sources import BySource
from anabranch.runtime.execution.stateful import SLOTS, StatefulExecution
from anabranch.runtime.tasks.reports import JobReports
from anabranch.runtime.tasks.stages import REPORTS, Decided, Writer, at_workers, packed_rows, reader_of, splitter_of
from anabranch.runtime.tasks.task import EpochTask
from anabranch.spark.arrow import arrow_schema, map_in_arrow
from anabranch.split.gates import RowGate
from anabranch.split.routes import FunctionRoute
from anabranch.split.splitter import PACKED_SCHEMA

NULL_KEYS = "null_keys"
"""A join's metric: rows with a null key."""


class JoinExecution(StatefulExecution):
    """A windowed join."""

    def __init__(self, step: Step, node: JoinNode, settings: Settings) -> None:
        join, tuning = node.join, node.tuning
        if join.condition is not None and join.preserved:
            raise InvalidArgumentError(
                f"a {join.how} join cannot have a Column as its condition: Python decides whether a row has a partner, "
                "and Spark would evaluate the condition too late",
                hint="give where=... as a function over record batches: "
                "where=lambda rows: pc.less(rows['a'], rows['b'])",
            )
        schema = arrow_schema(join.schema)
        operator = partial(
            JoinOperator,
            JoinSettings(
                within=join.within,
                keys=join.on,
                times=tuple(time.name for time in join.times),
                inputs=tuple(arrow_schema(source.drop(EVENT).schema) for source in join.sources),
                columns=join.columns,
                schema=schema,
                how=join.how,
                where=join.predicate,
                theta=tuning.theta,
                block=tuning.block,
                fine_tuning=tuning.fine_tuning,
                probe=tuning.probe,
            ),
        )
        super().__init__(step, node, settings, operator, {SLOTS: tuning.slots}, {ONLY: schema})
        self._node = node
        self._horizon = operator().horizon
        self._where = join.condition
        """the condition that Spark applies to the results before they are written"""
        self.yields = None if join.condition is None else schema

    @property
    def logged(self) -> bool:
        return True

    def horizon(self, watermark: int) -> int:
        return self._horizon(watermark)

    def controllers(self, before: EpochProgress | None = None) -> list[Controller]:
        tuning = self._node.tuning
        # Without a trigger, every worker makes the epochs shorter, so none is too many.
        decluster = tuning.decluster and self.settings.trigger_seconds is not None
        return [
            Rebalance(
                self.step.name,
                self.groups,
                self.settings.workers_of(self.groups, moving=True),
                supplier=tuning.supplier,
                consumer=tuning.consumer,
                beta=tuning.beta,
                reorganise_every=tuning.reorganise_every,
                moves=tuning.moves,
                rebalance=tuning.rebalance,
                decluster=decluster,
                slots=self.fixed[SLOTS],
            )
        ]

    def packed(self, epoch: Epoch, decided: Decided) -> list[DataFrame]:
        if self._node.read_in_one_pass:
            return [self._in_one_pass(epoch, decided)]
        feeds = (epoch.inputs.feed(self.step, number) for number in range(len(self._inputs)))
        return [packed_rows(self._node, edge, feed, decided) for edge, feed in enumerate(feeds)]

    def _in_one_pass(self, epoch: Epoch, decided: Decided) -> DataFrame:
        """Split all inputs in one pass over the micro-batch."""
        rows, splitters = epoch.inputs.rows, {}
        late_before = epoch.inputs.late_before(self.step)
        for edge, input_ in enumerate(self._inputs):
            source = input_.branch.origin
            assert isinstance(source, Source)
            columns = tuple(source.frame.columns) if source.packed is None else None
            gate = RowGate(input_.time.name, late_before, epoch.inputs.limit(input_))
            route = FunctionRoute(self._node.routing.route, None)  # type: ignore[arg-type]
            reader = reader_of(source.packed)
            splitters[rows.number_of(source)] = splitter_of(edge, reader, gate, route, decided, columns)
        return map_in_arrow(rows.tagged, BySource(splitters), PACKED_SCHEMA)

    def job(self, packed: DataFrame, task: EpochTask, targets: Mapping[str, Target], epoch: Epoch) -> DataFrame:
        if self._where is None:
            return at_workers(packed, task, REPORTS)
        assert self.yields is not None
        rows = at_workers(packed, task, StructType([*from_arrow_schema(self.yields).fields, *REPORTS.fields]))
        passed = rows.where(F.col(REPORT).isNotNull() | self._where)
        return map_in_arrow(passed, Writer(targets[ONLY], None, None), REPORTS)

    def progress(
        self, reports: JobReports, outputs: Mapping[str, Sequence[Written]], epoch: Epoch, *, ahead: int, shed: int
    ) -> OperatorProgress:
        progress = super().progress(reports, outputs, epoch, ahead=ahead, shed=shed)
        # The splitters left out rows with a null key, so the operator did not count them.
        null_keys = Counter({NULL_KEYS: sum(splitter.omitted for splitter in progress.splitters)})
        return replace(progress, metrics=Counter(progress.metrics) + null_keys)

    def explain(self, measured: OperatorProgress | None) -> list[str]:
        """How many groups each worker has, how full its buffer was, and how large its windows are."""
        tuning, most = self._node.tuning, self.settings.workers_of(self.groups, moving=True)
        moves = f"moved every {tuning.reorganise_every} epochs if a buffer is above {tuning.supplier:.0%}"
        lines = [f"groups      {self.groups} on at most {most} workers; {moves if tuning.rebalance else 'never moved'}"]
        if tuning.slots > 1:
            turns = f"each worker runs every {tuning.slots} epochs"
            used = turns if self.settings.trigger_seconds else "not used without a trigger"
            lines.append(f"slots       {tuning.slots}: {used}")
        for worker in () if measured is None else measured.workers:
            lines.append(
                f"worker {worker.worker:<5}{worker.groups} groups, {worker.rows:,} rows in {worker.seconds:.2f} s, "
                f"buffer {worker.occupancy or 0:.0%} full, {worker.state_bytes:,} bytes of windows"
            )
        return [*lines, *explain_routing(self._node.routing, self._inputs)]
