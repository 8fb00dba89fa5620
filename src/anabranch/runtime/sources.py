"""Several sources in one Spark query: a union in which every row says where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from anabranch.errors import OperatorError
from anabranch.network.nodes import JoinNode, Node
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
        passes = 0
        for step in network.steps:
            reads = [each for each in step.node.inputs if isinstance(each.part.origin, Source)]
            passes += 1 if at_once(step.node) else len(reads)
        return BatchRows(self.sources, batch, keep=passes > 1)


def at_once(node: Node) -> bool:
    """Whether one pass over a micro-batch gives all inputs of an operator: Spark has nothing else to do with them."""
    origins = [each.part.origin for each in node.inputs]
    return (
        isinstance(node, JoinNode)
        and all(
            isinstance(origin, Source) and not each.part.steps
            for origin, each in zip(origins, node.inputs, strict=True)
        )
        and len({id(origin) for origin in origins}) == len(origins)
    )


class BatchRows:
    """The rows of a micro-batch, by source. Kept in memory if there is more than one pass over them."""

    def __init__(self, sources: tuple[Source, ...], batch: DataFrame, *, keep: bool) -> None:
        self._sources = sources
        self._kept = keep
        self._batch = batch.persist() if keep else batch

    def of(self, source: Source) -> DataFrame:
        if len(self._sources) == 1:
            return self._batch
        i = self.number_of(source)
        return self._batch.where(F.col(_TAG) == i).select(f"{_ROW}{i}.*")

    @property
    def tagged(self) -> DataFrame:
        """The rows of all sources, of which there are several."""
        return self._batch

    def number_of(self, source: Source) -> int:
        return next(i for i, each in enumerate(self._sources) if each is source)

    def close(self) -> None:
        if self._kept:
            self._batch.unpersist()


@dataclass(frozen=True)
class BySource:
    """A task over tagged rows: those of each source go to the function for it.

    A union has the tasks of one input after those of the other, so a task has the rows of one source only.
    """

    functions: Mapping[int, Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done: set[int] = set()
        filled = (batch for batch in batches if batch.num_rows)
        for tag, of_one in groupby(filled, key=lambda batch: int(batch.column(_TAG)[0].as_py())):
            if tag in done:
                raise OperatorError(
                    f"rows of source {tag} come after those of another: a splitter would count its blocks twice",
                    hint="this is a bug: please report it",
                )
            done.add(tag)
            yield from self.functions[tag](_untagged(batch, tag) for batch in of_one)


def _untagged(batch: pa.RecordBatch, tag: int) -> pa.RecordBatch:
    rows = batch.column(f"{_ROW}{tag}")
    return pa.RecordBatch.from_arrays(rows.flatten(), names=[field.name for field in rows.type])
