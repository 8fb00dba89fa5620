"""What an operator reads in an epoch: the rows of each input, and what is known about its watermark."""

from __future__ import annotations

from pyspark.sql import DataFrame

from anabranch.io.frames import unpacked
from anabranch.query.graph import Step
from anabranch.query.nodes import Input
from anabranch.query.origins import Output, Source
from anabranch.runtime.driver.state import Context, DriverState
from anabranch.runtime.epoch.publisher import Publisher
from anabranch.runtime.epoch.sources import BatchRows
from anabranch.runtime.shedding.columns import time_at
from anabranch.runtime.shedding.counters import DropCounter, DropCounts
from anabranch.runtime.shedding.filters import EpochDrops
from anabranch.runtime.tasks.stages import Feed
from anabranch.runtime.tasks.task import Edge
from anabranch.spark.columns import up_to
from anabranch.store.records import EpochDecision


class EpochInputs:
    """The inputs of all operators in an epoch."""

    def __init__(
        self,
        context: Context,
        state: DriverState,
        decision: EpochDecision,
        rows: BatchRows,
        drops: EpochDrops | None,
        publisher: Publisher,
    ) -> None:
        self.rows = rows
        self._network = context.network
        self._state = state
        self._idle = decision.idle
        self._drops = drops
        self._publisher = publisher
        self._counters: dict[tuple[str, int], DropCounter] = {}
        self._watermarks: dict[int, int | None] = {}

    def delivered(self, step: Step, watermark: int | None) -> None:
        """Record the watermark of an operator that has run, for the operators that read its results."""
        self._watermarks[id(step.node)] = watermark

    def reached(self, origin: Output) -> int | None:
        """The watermark of an output in this epoch."""
        return self._watermarks[id(origin.node)]

    def edge(self, input_: Input, order: str | None) -> Edge:
        """What a worker needs to know about an input; `order`: the column by which its rows are merged."""
        origin = input_.branch.origin
        if isinstance(origin, Output):
            reached = self.reached(origin)
            behind = None if reached is None else reached - origin.delay
            return Edge(input_.port, order, watermark=behind, derived=True)
        i = self._network.index_of(origin)
        return Edge(input_.port, order, self._state.latest[i], origin.delay, idle=i in self._idle)

    def feed(self, step: Step, number: int, *, count: bool = False) -> Feed:
        """The rows of an input, without the dropped ones; `count`: count the dropped ones."""
        input_ = step.node.inputs[number]
        origin, routes, late_before = input_.branch.origin, step.node.routes, self.late_before(step)
        if isinstance(origin, Output):
            rows = self._without_dropped(step, number, self._publisher.frame(origin), count)
            return Feed(input_.branch.apply(rows), None, late_before)
        rows = self.rows.of(origin)
        if routes is not None and routes.reads_blocks(input_.branch):
            return Feed(rows, origin.packed, late_before, self.limit(input_), origin)
        if origin.packed is not None:
            rows = unpacked(rows, origin.packed)
        rows = self._without_dropped(step, number, rows, count)
        return Feed(input_.branch.apply(rows), None, late_before, self.limit(input_), origin)

    def limit(self, input_: Input) -> int | None:
        """The latest time that a row of an input may have; None for an operator's output, which has no limit."""
        origin = input_.branch.origin
        return self.rows.limit_of(origin) if isinstance(origin, Source) else None

    def late_before(self, step: Step) -> int | None:
        """The time up to which windows are over: their rows are late.

        This is the operator's watermark; or, where it does not yet include rows that were shed, the one that does.
        """
        node, reached = step.node, self._state.operators[step.name].watermark
        if reached is None or node.aggregate is None:
            return reached
        known = []
        for input_ in node.inputs:
            origin = input_.branch.origin
            latest = None if isinstance(origin, Output) else self._state.latest[self._network.index_of(origin)]
            if latest is None:
                return reached
            known.append(latest - origin.delay)
        return max(reached, min(known))

    def _without_dropped(self, step: Step, number: int, rows: DataFrame, count: bool) -> DataFrame:
        input_ = step.node.inputs[number]
        gone = None if self._drops is None else self._drops.of_edge(step, input_)
        if gone is None:
            return rows
        if not count:
            return rows.where(~gone)
        counter = self._counters[step.name, number] = DropCounter()
        return counter.over(rows, up_to(time_at(input_), self.limit(input_)), gone)

    def drop_counts(self, step: Step, number: int) -> DropCounts | None:
        """The counts where rows of an input are dropped; None if none are. Known after the operator has run."""
        counter = self._counters.get((step.name, number))
        return None if counter is None else counter.counts

    def all_drop_counts(self, step: Step) -> list[DropCounts]:
        """The counts of all inputs from which rows are dropped."""
        found = (self.drop_counts(step, number) for number in range(len(step.node.inputs)))
        return [counts for counts in found if counts is not None]
