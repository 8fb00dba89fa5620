"""What the sources brought in an epoch: how many rows, up to which time, and how many were too far ahead."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import functions as F

from anabranch.io.frames import unpacked
from anabranch.query.graph import Network, Step
from anabranch.query.origins import Source
from anabranch.runtime.ahead import shows_own_clock
from anabranch.runtime.inputs import EpochInputs
from anabranch.runtime.shedding.columns import source_name
from anabranch.runtime.shedding.counters import Seen
from anabranch.shedding.points import DropPoint
from anabranch.spark.columns import up_to
from anabranch.split.report import SplitterReport


class SourceCensus:
    """Counts by source. Operators that read the same source see the same rows, unless a step filters."""

    def __init__(self, network: Network, inputs: EpochInputs) -> None:
        self.latest: dict[int, int | None] = {}
        """the latest time of a row"""
        self.rows: dict[int, int] = {}
        self.arrived: dict[int, float] = {}
        """of sources whose rows are dropped: how many would have come to the operators"""
        self._ahead: dict[int, int] = {}
        """rows too far ahead, of sources that had some"""
        self._network = network
        self._inputs = inputs

    def add(self, step: Step, splitters: Sequence[SplitterReport]) -> None:
        """An operator has run, and its splitters saw this."""
        for number, each in enumerate(step.node.inputs):
            origin = each.part.origin
            if not isinstance(origin, Source):
                continue
            i = self._network.index_of(origin)
            mine = [splitter for splitter in splitters if splitter.edge == number]
            times = [t for t in (self.latest.get(i), *(splitter.max_t for splitter in mine)) if t is not None]
            rows = sum(splitter.rows for splitter in mine)
            seen = self._seen(step, number, origin)
            if seen is not None:
                times += [] if seen.latest is None else [seen.latest]
                kept = seen.rows - seen.shed
                # Steps let some share of the rows pass: of those that were dropped it would have been the same.
                share = rows / kept if kept else 1.0
                self.arrived[i] = max(self.arrived.get(i, 0.0), rows + seen.shed * share)
                rows = seen.rows
            elif not rows and each.part.steps:
                rows, latest = self._before_steps(origin)
                times += [] if latest is None else [latest]
            self.latest[i] = max(times, default=None)
            self.rows[i] = max(self.rows.get(i, 0), rows)

    def add_ahead(self, source: Source, rows: int) -> None:
        """So many rows of a source were too far ahead, as one of its readers found."""
        i = self._network.index_of(source)
        self._ahead[i] = max(self._ahead.get(i, 0), rows)

    def own_clock(self, latest: Sequence[int | None]) -> set[int]:
        """Sources whose first rows show that their times are not by this clock. `latest`: before this epoch."""
        return {i for i, ahead in self._ahead.items() if latest[i] is None and shows_own_clock(self.rows[i], ahead)}

    def seen_at(self, point: DropPoint) -> Seen:
        """What came to a drop point."""
        network = self._network
        if point.kind == "source":
            found = [self._dropped_at(s) for s in network.sources if source_name(network, s) in point.at]
        else:
            steps = [step for step in network.steps if step.name in point.at]
            found = [seen for step in steps for seen in self._inputs.dropped_of(step)]
        known = [each for each in found if each is not None]
        return Seen(sum(each.rows for each in known), sum(each.shed for each in known))

    def _dropped_at(self, source: Source) -> Seen | None:
        if source.packed is None:
            return self._inputs.rows.seen(source)
        # All readers of a source of blocks count its rows, and each counts the same.
        readers = (
            self._inputs.dropped(step, number)
            for step in self._network.steps
            for number, each in enumerate(step.node.inputs)
            if each.part.origin is source
        )
        return next((seen for seen in readers if seen is not None), None)

    def _seen(self, step: Step, number: int, origin: Source) -> Seen | None:
        """What was counted where rows of a source are dropped for an input; None if none are."""
        at_source, seen = self._inputs.rows.seen(origin), self._inputs.dropped(step, number)
        if seen is None:
            return at_source
        return seen if at_source is None else Seen(at_source.rows, at_source.shed + seen.shed, at_source.latest)

    def _before_steps(self, origin: Source) -> tuple[int, int | None]:
        """How many rows a source had and their latest time, where a filter let none of them through.

        Within the epoch the watermark goes by what passes the steps. If nothing does, it must still move on: this
        counts from the next epoch on.
        """
        rows = self._inputs.rows.of(origin)
        if origin.packed is not None:
            rows = unpacked(rows, origin.packed)
        within = up_to(origin.time.micros(), self._inputs.rows.limit_of(origin))
        count, latest = rows.agg(F.count(F.lit(1)), F.max(within)).collect()[0]
        return int(count), latest
