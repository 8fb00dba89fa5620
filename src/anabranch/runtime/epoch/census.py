"""What the sources delivered in an epoch: how many rows, their latest time, and how many were too far ahead."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import functions as F

from anabranch.io.frames import unpacked
from anabranch.query.graph import Network, Step
from anabranch.query.origins import Source
from anabranch.runtime.driver.ahead import shows_own_clock
from anabranch.runtime.epoch.inputs import EpochInputs
from anabranch.runtime.shedding.columns import source_name
from anabranch.runtime.shedding.counters import DropCounts
from anabranch.shedding.points import DropPoint
from anabranch.spark.columns import up_to
from anabranch.split.report import SplitterReport


class SourceCensus:
    """Counts by source. Operators that read the same source read the same rows, unless a step filters them."""

    def __init__(self, network: Network, inputs: EpochInputs) -> None:
        self.latest: dict[int, int | None] = {}
        """the latest time of a row, by source"""
        self.rows: dict[int, int] = {}
        self.arrived: dict[int, float] = {}
        """rows that would have reached the operators if none had been dropped; for sources whose rows are dropped"""
        self._ahead: dict[int, int] = {}
        """rows too far ahead, for sources that had some"""
        self._network = network
        self._inputs = inputs

    def add(self, step: Step, splitters: Sequence[SplitterReport]) -> None:
        """Add the counts of the splitters of an operator that has run."""
        for number, input_ in enumerate(step.node.inputs):
            origin = input_.branch.origin
            if not isinstance(origin, Source):
                continue
            i = self._network.index_of(origin)
            mine = [splitter for splitter in splitters if splitter.edge == number]
            times = [t for t in (self.latest.get(i), *(splitter.max_t for splitter in mine)) if t is not None]
            rows = sum(splitter.rows for splitter in mine)
            counts = self._drop_counts(step, number, origin)
            if counts is not None:
                times += [] if counts.latest is None else [counts.latest]
                kept = counts.rows - counts.shed
                # The steps let a share of the rows pass. Assume the same share for the dropped rows.
                share = rows / kept if kept else 1.0
                self.arrived[i] = max(self.arrived.get(i, 0.0), rows + counts.shed * share)
                rows = counts.rows
            elif not rows and input_.branch.transforms:
                rows, latest = self._before_steps(origin)
                times += [] if latest is None else [latest]
            self.latest[i] = max(times, default=None)
            self.rows[i] = max(self.rows.get(i, 0), rows)

    def add_ahead(self, source: Source, rows: int) -> None:
        """Record that one reader of a source found this many rows too far ahead."""
        i = self._network.index_of(source)
        self._ahead[i] = max(self._ahead.get(i, 0), rows)

    def own_clock(self, latest: Sequence[int | None]) -> set[int]:
        """Sources whose first rows show that the data has its own clock. `latest`: before this epoch."""
        return {i for i, ahead in self._ahead.items() if latest[i] is None and shows_own_clock(self.rows[i], ahead)}

    def drop_counts_at(self, point: DropPoint) -> DropCounts:
        """The counts at a drop point."""
        network = self._network
        if point.kind == "source":
            found = [self._counts_of(s) for s in network.sources if source_name(network, s) in point.at]
        else:
            steps = [step for step in network.steps if step.name in point.at]
            found = [counts for step in steps for counts in self._inputs.all_drop_counts(step)]
        known = [each for each in found if each is not None]
        return DropCounts(sum(each.rows for each in known), sum(each.shed for each in known))

    def _counts_of(self, source: Source) -> DropCounts | None:
        if source.packed is None:
            return self._inputs.rows.drop_counts(source)
        # All readers of a source of blocks count its rows, and all get the same counts.
        readers = (
            self._inputs.drop_counts(step, number)
            for step in self._network.steps
            for number, input_ in enumerate(step.node.inputs)
            if input_.branch.origin is source
        )
        return next((counts for counts in readers if counts is not None), None)

    def _drop_counts(self, step: Step, number: int, origin: Source) -> DropCounts | None:
        """The counts where rows of a source are dropped for an input; None if none are."""
        at_source, at_input = self._inputs.rows.drop_counts(origin), self._inputs.drop_counts(step, number)
        if at_source is None or at_input is None:
            return at_source or at_input
        return DropCounts(at_source.rows, at_source.shed + at_input.shed, at_source.latest)

    def _before_steps(self, origin: Source) -> tuple[int, int | None]:
        """The number and the latest time of a source's rows, if a filter let none of them through.

        Within the epoch, the watermark follows the rows that pass the steps. If none do, it must still advance: these
        counts advance it from the next epoch on.
        """
        rows = self._inputs.rows.of(origin)
        if origin.packed is not None:
            rows = unpacked(rows, origin.packed)
        within = up_to(origin.time.micros(), self._inputs.rows.limit_of(origin))
        count, latest = rows.agg(F.count(F.lit(1)), F.max(within)).collect()[0]
        return int(count), latest
