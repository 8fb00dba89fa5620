"""How the aggregation tree runs in an epoch: partial answers of all substreams become one answer per query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from anabranch.io.parquet import Target, write_rows
from anabranch.names import REPORT
from anabranch.observe.progress import OperatorProgress
from anabranch.plan.tree import FEW, aggregation_tree, root
from anabranch.query.graph import Step
from anabranch.query.nodes import ONLY, CombineNode
from anabranch.query.origins import Output
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.epoch.epoch import Epoch, OperatorResult
from anabranch.runtime.execution.base import Execution
from anabranch.runtime.tasks.reports import WriterReport, run_job, to_text
from anabranch.runtime.tasks.stages import REPORTS, Writer, report_rows
from anabranch.spark.arrow import arrow_schema, map_in_arrow
from anabranch.spark.columns import quoted


class CombineExecution(Execution):
    """The aggregation tree. It keeps no state."""

    def __init__(self, step: Step, node: CombineNode, settings: Settings) -> None:
        super().__init__(step, settings, 1, {}, {ONLY: arrow_schema(node.schema)})
        self._node = node

    def run(self, epoch: Epoch) -> OperatorResult:
        origin = self._node.inputs[0].branch.origin
        assert isinstance(origin, Output)
        target = epoch.publisher.targets(self.step, self.schemas)[ONLY]
        answers = epoch.publisher.staged(origin.node, origin.name).rows
        written = run_job(self._job(epoch.publisher.frame(origin), answers, target)).written if answers else ()
        epoch.publisher.stage(self.step, ONLY, target, written)
        emitted = sum(each.rows for each in written)
        return OperatorResult(OperatorProgress(self.step.name, emitted=emitted), epoch.inputs.reached(origin))

    def _job(self, partial: DataFrame, answers: int, target: Target) -> DataFrame:
        """The tree over an epoch's partial answers; `answers`: how many there are."""
        node = self._node
        if answers <= FEW and not any(pa.types.is_nested(target.schema.field(name).type) for name in node.by):
            tree = _Root(node.by, node.sums, node.maxima, target)
            return map_in_arrow(partial.coalesce(1), tree, REPORTS)
        combined = aggregation_tree(partial, node.by, node.sums, node.maxima, node.fan_in)
        combined = combined.withColumn(REPORT, F.lit(None).cast("string"))
        # Ordered by query, in one file: there are few answers, and a rerun must give the same bytes.
        ordered = combined.repartition(1).sortWithinPartitions(*(quoted(name) for name in node.by))
        return map_in_arrow(ordered, Writer(target, None, None), REPORTS)


@dataclass(frozen=True)
class _Root:
    """The whole aggregation tree in one task."""

    by: tuple[str, ...]
    sums: tuple[str, ...]
    maxima: tuple[str, ...]
    target: Target

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = [batch for batch in batches if batch.num_rows]
        answers = root(pa.Table.from_batches(known), self.by, self.sums, self.maxima).to_batches() if known else []
        yield report_rows([to_text(WriterReport(write_rows(self.target, 0, answers)))])
