"""What an operator reads in an epoch: the rows of each input, and what is known of its watermark."""

from __future__ import annotations

from pyspark.sql import DataFrame

from anabranch.io.frames import unpacked
from anabranch.query.graph import Step
from anabranch.query.nodes import Input
from anabranch.query.origins import Output, Source
from anabranch.runtime.driver_state import Context, DriverState
from anabranch.runtime.publisher import Publisher
from anabranch.runtime.shedding.columns import time_at
from anabranch.runtime.shedding.counters import Counted, Seen
from anabranch.runtime.shedding.filters import EpochDrops
from anabranch.runtime.sources import BatchRows
from anabranch.runtime.stages import Feed
from anabranch.runtime.worker import Edge
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
        self._counted: dict[tuple[str, int], Counted] = {}
        self._watermarks: dict[int, int | None] = {}

    def delivered(self, step: Step, watermark: int | None) -> None:
        """An operator has run: the watermark of what it has delivered, for those that read it."""
        self._watermarks[id(step.node)] = watermark

    def reached(self, origin: Output) -> int | None:
        """The watermark of an output in this epoch."""
        return self._watermarks[id(origin.node)]

    def edge(self, each: Input, order: str | None) -> Edge:
        """What a worker must know of an input; `order`: the column that its rows are merged by."""
        origin = each.part.origin
        if isinstance(origin, Output):
            reached = self.reached(origin)
            behind = None if reached is None else reached - origin.delay
            return Edge(each.port, order, watermark=behind, derived=True)
        i = self._network.index_of(origin)
        return Edge(each.port, order, self._state.latest[i], origin.delay, idle=i in self._idle)

    def feed(self, step: Step, number: int, *, count: bool = False) -> Feed:
        """The rows of an input, without those that are dropped; `count`: count the dropped ones."""
        each = step.node.inputs[number]
        origin, routes, late_before = each.part.origin, step.node.routes, self.late_before(step)
        if isinstance(origin, Output):
            rows = self._without_dropped(step, number, self._publisher.frame(origin), count)
            return Feed(each.part.apply(rows), None, late_before)
        rows = self.rows.of(origin)
        if routes is not None and routes.reads_blocks(each.part):
            return Feed(rows, origin.packed, late_before, self.limit(each), origin)
        if origin.packed is not None:
            rows = unpacked(rows, origin.packed)
        rows = self._without_dropped(step, number, rows, count)
        return Feed(each.part.apply(rows), None, late_before, self.limit(each), origin)

    def limit(self, each: Input) -> int | None:
        """The latest time that a row of an input may have. What an operator emits does not move a watermark."""
        origin = each.part.origin
        return self.rows.limit_of(origin) if isinstance(origin, Source) else None

    def late_before(self, step: Step) -> int | None:
        """Rows of windows that end by then are late.

        This is the operator's watermark; where that does not know yet of rows that were shed, what it will be.
        """
        node, reached = step.node, self._state.operators[step.name].watermark
        if reached is None or node.aggregate is None:
            return reached
        known = []
        for each in node.inputs:
            origin = each.part.origin
            latest = None if isinstance(origin, Output) else self._state.latest[self._network.index_of(origin)]
            if latest is None:
                return reached
            known.append(latest - origin.delay)
        return max(reached, min(known))

    def _without_dropped(self, step: Step, number: int, rows: DataFrame, count: bool) -> DataFrame:
        each = step.node.inputs[number]
        gone = None if self._drops is None else self._drops.of_edge(step, each)
        if gone is None:
            return rows
        if not count:
            return rows.where(~gone)
        counter = self._counted[step.name, number] = Counted()
        return counter.over(rows, up_to(time_at(each), self.limit(each)), gone)

    def dropped(self, step: Step, number: int) -> Seen | None:
        """What was counted where rows of an input are dropped; None if none are. After the operator has run."""
        counted = self._counted.get((step.name, number))
        return None if counted is None else counted.seen

    def dropped_of(self, step: Step) -> list[Seen]:
        """The same of all inputs that have rows dropped."""
        found = (self.dropped(step, number) for number in range(len(step.node.inputs)))
        return [seen for seen in found if seen is not None]
