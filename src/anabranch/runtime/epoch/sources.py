"""Several sources in one Spark query: a union in which every row has the number of its source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from anabranch.names import SOURCE as _TAG
from anabranch.names import source_row_name
from anabranch.query.graph import Network
from anabranch.query.origins import Source
from anabranch.runtime.shedding.counters import DropCounter, DropCounts
from anabranch.runtime.shedding.filters import EpochDrops
from anabranch.spark.columns import up_to


class SourceRows:
    """The stream of all sources, and the rows of each source in a micro-batch."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)

    @property
    def frame(self) -> DataFrame:
        if len(self.sources) == 1:
            return self.sources[0].frame
        tagged = [self._tagged(i) for i in range(len(self.sources))]
        whole = tagged[0]
        for rows in tagged[1:]:
            whole = whole.unionAll(rows)
        return whole

    def _tagged(self, number: int) -> DataFrame:
        """The rows of a source, in a column of its own; the columns of the others are null."""
        columns = [
            (F.struct("*") if i == number else F.lit(None).cast(source.frame.schema)).alias(source_row_name(i))
            for i, source in enumerate(self.sources)
        ]
        return self.sources[number].frame.select(F.lit(number).alias(_TAG), *columns)

    def of(
        self, batch: DataFrame, network: Network, limits: Sequence[int | None], drops: EpochDrops | None = None
    ) -> BatchRows:
        """The rows of a micro-batch, without those that are dropped for all readers.

        `limits`: for each source, the latest time that a row may have.
        """
        passes = 0
        for step in network.steps:
            reads = [input_ for input_ in step.node.inputs if isinstance(input_.branch.origin, Source)]
            passes += 1 if step.node.read_in_one_pass else len(reads)
        return BatchRows(self.sources, batch, limits, keep=passes > 1, drops=drops)


class BatchRows:
    """The rows of a micro-batch, by source. They are cached if there is more than one pass over them."""

    def __init__(
        self,
        sources: tuple[Source, ...],
        batch: DataFrame,
        limits: Sequence[int | None],
        *,
        keep: bool,
        drops: EpochDrops | None = None,
    ) -> None:
        self.limits = limits
        self._sources = sources
        self._kept = keep
        self._drops = drops
        self._counters: dict[int, DropCounter] = {}
        self._frames: dict[int, DataFrame] = {}
        if len(sources) == 1:
            batch = self._without_dropped(0, batch)
        self._batch = batch.persist() if keep else batch

    def of(self, source: Source) -> DataFrame:
        if len(self._sources) == 1:
            return self._batch
        i = self.number_of(source)
        if i not in self._frames:
            self._frames[i] = self._without_dropped(
                i, self._batch.where(F.col(_TAG) == i).select(f"{source_row_name(i)}.*")
            )
        return self._frames[i]

    def drop_counts(self, source: Source) -> DropCounts | None:
        """The counts where rows of a source are dropped; None if none are. Known after a job has read them."""
        counter = self._counters.get(self.number_of(source))
        return None if counter is None else counter.counts

    def _without_dropped(self, i: int, rows: DataFrame) -> DataFrame:
        source = self._sources[i]
        gone = None if self._drops is None or source.packed is not None else self._drops.of_source(source)
        if gone is None:
            return rows
        self._counters[i] = DropCounter()
        return self._counters[i].over(rows, up_to(source.time.micros(), self.limits[i]), gone)

    def limit_of(self, source: Source) -> int | None:
        """The latest time that a row of the source may have."""
        return self.limits[self.number_of(source)]

    @property
    def tagged(self) -> DataFrame:
        """The rows of all sources, with their tags. Only for a query with several sources."""
        return self._batch

    def number_of(self, source: Source) -> int:
        return next(i for i, known in enumerate(self._sources) if known is source)

    def close(self) -> None:
        if self._kept:
            self._batch.unpersist()


@dataclass(frozen=True)
class BySource:
    """A task over tagged rows: passes the rows of each source to its function; this operator reads no other sources.

    A task nearly always has rows of one source only, since the tasks of a union's inputs are separate. Spark may still
    put several sources into one task if all rows are in one partition. Then rows of the later sources wait.
    """

    functions: Mapping[int, Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = ((tag, rows) for batch in batches for tag, rows in _by_tag(batch) if tag in self.functions)
        first = next(found, None)
        if first is None:
            return
        others: dict[int, list[pa.RecordBatch]] = defaultdict(list)

        def of_first() -> Iterator[pa.RecordBatch]:
            for tag, rows in chain([first], found):
                if tag == first[0]:
                    yield rows
                else:
                    others[tag].append(rows)

        yield from self.functions[first[0]](of_first())
        for tag, rows in sorted(others.items()):
            yield from self.functions[tag](iter(rows))


def _by_tag(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    tags = batch.column(_TAG)
    for tag in pc.unique(tags).to_pylist():
        rows = batch.column(source_row_name(tag))
        if pc.any(pc.not_equal(tags, tag)).as_py():
            rows = rows.filter(pc.equal(tags, tag))
        yield tag, pa.RecordBatch.from_arrays(rows.flatten(), names=[field.name for field in rows.type])
