"""One epoch while it runs: the job of each operator, one after the other, and then all results are published.

Epoch
  ├ inputs       what each operator reads                (`inputs`)
  ├ executions   how each operator runs                  (`runtime.execution`, the same in all epochs)
  ├ census       how many rows the sources delivered     (`census`)
  ├ side         rows that the query could not use       (`side_rows`)
  └ publisher    results, until the sinks have them      (`publisher`)
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from anabranch.observe.progress import OperatorProgress
from anabranch.query.graph import Step
from anabranch.runtime.driver.state import Context, DriverState
from anabranch.runtime.epoch.census import SourceCensus
from anabranch.runtime.epoch.inputs import EpochInputs
from anabranch.runtime.epoch.publisher import Publisher
from anabranch.runtime.epoch.side_rows import SideRows
from anabranch.runtime.epoch.sources import BatchRows
from anabranch.runtime.shedding.filters import EpochDrops
from anabranch.store.records import EpochDecision


@dataclass(frozen=True)
class OperatorResult:
    """What an operator did in an epoch."""

    progress: OperatorProgress
    watermark: int | None
    active: Collection[int] = frozenset()
    """groups that have rows"""
    snapshots: Mapping[int, int] = field(default_factory=dict)
    block_groups: Collection[int] = frozenset()
    """groups with rows in the log of this epoch"""
    waiting: Mapping[int, int] = field(default_factory=dict)
    """rows of this epoch that wait for their worker's turn, by group"""
    latest: int | None = None
    """the latest time of a row"""


class Runnable(Protocol):
    """What an epoch knows of an operator's execution (`runtime.execution`)."""

    def run(self, epoch: Epoch) -> OperatorResult:
        """Run the operator's job in an epoch."""
        ...


class Epoch:
    """One epoch while it runs."""

    def __init__(
        self,
        context: Context,
        executions: Mapping[str, Runnable],
        state: DriverState,
        number: int,
        decision: EpochDecision,
        rows: BatchRows,
        drops: EpochDrops | None = None,
    ) -> None:
        self.context = context
        self._executions = executions
        self.state = state
        self.number = number
        self.decision = decision
        self.drops = drops
        self.publisher = Publisher(number, context.checkpoint, context.session)
        self.inputs = EpochInputs(context, state, decision, rows, drops, self.publisher)
        self.census = SourceCensus(context.network, self.inputs)
        self.side = SideRows(number, context.checkpoint.side, self.inputs, self.census)

    def run(self) -> list[OperatorResult]:
        """Run the jobs of all operators, each after the operators that it reads."""
        return [self._run(step) for step in self.context.network.steps]

    def own_clock(self) -> set[int]:
        """Sources whose first rows show that the data has its own clock. Known after all operators have run."""
        return self.census.own_clock(self.state.latest)

    def publish(self, results: Sequence[OperatorResult]) -> list[OperatorResult]:
        """Publish the results of all operators. Returns the results with the seconds that the sinks took."""
        return [
            replace(result, progress=replace(result.progress, publish_seconds=self.publisher.publish(step)))
            for step, result in zip(self.context.network.steps, results, strict=True)
        ]

    def close(self) -> None:
        """Remove files and caches that only this epoch needed."""
        self.inputs.rows.close()
        self.publisher.close(self.context.network.steps)

    def _run(self, step: Step) -> OperatorResult:
        began = time.perf_counter()
        result = self._executions[step.name].run(self)
        self.inputs.delivered(step, self._delivered(step, result))
        return replace(result, progress=replace(result.progress, seconds=time.perf_counter() - began))

    def _delivered(self, step: Step, result: OperatorResult) -> int | None:
        """The watermark up to which an operator has delivered everything."""
        state = self.state.operators[step.name]
        if not result.waiting and not state.waiting:
            return result.watermark
        after = replace(state, waiting=dict(state.waiting))
        after.wait(self.number, result.active - result.waiting.keys(), result.waiting, result.watermark)
        return after.delivered
