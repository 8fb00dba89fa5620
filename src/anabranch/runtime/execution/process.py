"""How a user's operator over split streams runs in an epoch: rows or blocks are split, exchanged and processed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from anabranch.control.base import Controller, operator_rate
from anabranch.control.key_placement import KeyPlacement
from anabranch.control.split_tuning import SplitTuning
from anabranch.io.parquet import Target, Written
from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.operators.numbering import NUMBERED
from anabranch.query.describe import explain_routing
from anabranch.query.graph import Step
from anabranch.query.nodes import ProcessNode
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.epoch.epoch import Epoch
from anabranch.runtime.execution.base import policy_setting
from anabranch.runtime.execution.stateful import StatefulExecution
from anabranch.runtime.execution.window import fixed_routing
from anabranch.runtime.tasks.reports import JobReports
from anabranch.runtime.tasks.stages import REPORTS, Decided, at_workers, packed_rows
from anabranch.runtime.tasks.task import EpochTask
from anabranch.spark.arrow import arrow_schema
from anabranch.split.cost import SplitCosts
from anabranch.windows.ids import Stretch


class ProcessExecution(StatefulExecution):
    """A user's operator."""

    def __init__(self, step: Step, node: ProcessNode, settings: Settings) -> None:
        routing = node.routing
        given = {"splitters": routing.splitters, "window_bytes": routing.window_bytes}
        fixed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if routing.partition is not None:
            fixed |= policy_setting(routing.partition)
        schemas = {name: arrow_schema(schema) for name, schema in node.schemas.items()}
        super().__init__(step, node, settings, node.factory, fixed, schemas)
        self._node = node

    def controllers(self, before: EpochProgress | None = None) -> list[Controller]:
        routing, name = self._node.routing, self.step.name
        found: list[Controller] = []
        if routing.partition is not None:
            splitters, fixed = routing.partition.splitters, self.fixed.get("partition")
            found.append(KeyPlacement(name, self.groups, splitters, fixed, before))
        if not routing.keys and not {"splitters", "window_bytes"} <= set(self.fixed):
            found.append(SplitTuning(name, self.groups, most_splitters=self.settings.slots))
        return found

    @property
    def moves_windows(self) -> bool:
        return self._node.routing.moves_windows(input_.branch for input_ in self._inputs)

    @property
    def placement(self) -> tuple[int, Stretch | None]:
        return self.groups, self._node.routing.stretch

    def packed(self, epoch: Epoch, decided: Decided) -> list[DataFrame]:
        feeds = (epoch.inputs.feed(self.step, number) for number in range(len(self._inputs)))
        return [packed_rows(self._node, edge, feed, decided) for edge, feed in enumerate(feeds)]

    def job(self, packed: DataFrame, task: EpochTask, targets: Mapping[str, Target], epoch: Epoch) -> DataFrame:
        return at_workers(packed, task, REPORTS)

    def explain(self, measured: OperatorProgress | None) -> list[str]:
        return [fixed_routing(self.groups, self.settings), *explain_routing(self._node.routing, self._inputs)]

    def explain_costs(self, measured: OperatorProgress, history: Sequence[EpochProgress]) -> list[str]:
        """The cost model of splitting with the last epoch's costs, and the number of splitters that it asks for."""
        if self._node.routing.keys:
            return []
        groups, splitters = self.groups, len(measured.splitters)
        costs = SplitCosts.from_measures(measured.splitters, measured.workers, groups)
        if costs is None:
            return []
        lines = ["", "cost of the split, measured in this epoch:", *costs.describe(splitters, groups).splitlines()]
        per_tuple, rate = costs.splitter(groups), operator_rate(history, measured.name)
        if 0 < per_tuple < float("inf"):
            needed = costs.splitters(rate, groups)
            who = "" if self.moves_windows else " (the tasks that read)"
            lines.append(
                f"splitters: {rate:,.0f} tuples/s arrive, one splitter handles {1 / per_tuple:,.0f}: "
                f"p = {needed}, now {splitters}{who}"
            )
        if measured.efficiency is not None:
            lines.append(f"efficiency, measured: {measured.efficiency:.0%} of all time that splitting took")
        return lines


class NumberingExecution(ProcessExecution):
    """Numbers rows for count windows. Its list of dropped windows does not count as a result."""

    def progress(
        self, reports: JobReports, outputs: Mapping[str, Sequence[Written]], epoch: Epoch, *, ahead: int, shed: int
    ) -> OperatorProgress:
        return super().progress(reports, {NUMBERED: outputs[NUMBERED]}, epoch, ahead=ahead, shed=shed)
