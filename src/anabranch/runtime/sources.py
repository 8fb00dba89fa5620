"""Several sources in one Spark query: a union in which every row says where it comes from."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from anabranch.network.parts import Source
from anabranch.runtime.plan import Network

_TAG, _ROW = "__ab_source", "__ab_row"


class SourceRows:
    """The stream of all sources, and the rows of each in a micro-batch of it."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)

    @property
    def frame(self) -> DataFrame:
        if len(self.sources) == 1:
            return self.sources[0].frame
        tagged = [self._tagged(i) for i in range(len(self.sources))]
        whole = tagged[0]
        for each in tagged[1:]:
            whole = whole.unionAll(each)
        return whole

    def _tagged(self, number: int) -> DataFrame:
        """The rows of a source, in a column of its own; the columns of the others are null."""
        columns = [
            (F.struct("*") if i == number else F.lit(None).cast(each.frame.schema)).alias(f"{_ROW}{i}")
            for i, each in enumerate(self.sources)
        ]
        return self.sources[number].frame.select(F.lit(number).alias(_TAG), *columns)

    def of(self, batch: DataFrame, network: Network) -> BatchRows:
        """The rows of a micro-batch."""
        readers = sum(isinstance(each.part.origin, Source) for step in network.steps for each in step.node.inputs)
        return BatchRows(self.sources, batch, keep=readers > 1)


class BatchRows:
    """The rows of a micro-batch, by source. Kept in memory if more than one operator reads them."""

    def __init__(self, sources: tuple[Source, ...], batch: DataFrame, *, keep: bool) -> None:
        self._sources = sources
        self._kept = keep
        self._batch = batch.persist() if keep else batch

    def of(self, source: Source) -> DataFrame:
        if len(self._sources) == 1:
            return self._batch
        i = next(i for i, each in enumerate(self._sources) if each is source)
        return self._batch.where(F.col(_TAG) == i).select(f"{_ROW}{i}.*")

    def close(self) -> None:
        if self._kept:
            self._batch.unpersist()
