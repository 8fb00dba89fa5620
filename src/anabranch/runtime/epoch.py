"""One epoch while it runs: the job of each operator, one after the other, and then all results are published.

Epoch
  ├ inputs       what each operator reads                (`inputs`)
  ├ executions   how each operator runs                  (`execution`, the same in all epochs)
  ├ census       how many rows the sources delivered     (`census`)
  ├ side         rows that the query could not use       (`side_rows`)
  └ publisher    results, until the sinks have them      (`publisher`)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from anabranch.query.graph import Step
from anabranch.runtime.census import SourceCensus
from anabranch.runtime.driver_state import Context, DriverState
from anabranch.runtime.execution.base import OperatorResult
from anabranch.runtime.inputs import EpochInputs
from anabranch.runtime.publisher import Publisher
from anabranch.runtime.shedding.filters import EpochDrops
from anabranch.runtime.side_rows import SideRows
from anabranch.runtime.sources import BatchRows
from anabranch.store.records import EpochDecision


class Epoch:
    """One epoch while it runs."""

    def __init__(
        self,
        context: Context,
        state: DriverState,
        number: int,
        decision: EpochDecision,
        rows: BatchRows,
        drops: EpochDrops | None = None,
    ) -> None:
        self.context = context
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
        result = self.context.executions[step.name].run(self)
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
