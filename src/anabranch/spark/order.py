"""Rows in an order that a second run of a task finds again.

When the output of a task is lost, with an executor or a disk, Spark runs that task again, and only that one: tasks
that have read the first output keep what they have. So a task that sends rows to workers by what it has counted so far
(`keys.partitioner`) must get its rows in the same order both times; else some rows are lost and others come twice.
Files have such an order, and so have sources that replay. An exchange has none: blocks come as the network delivers
them.

Spark 4.3 compares checksums of both outputs, unless that is switched off or shuffles are pushed. Where they differ it
runs all readers again, or ends the job if results have left already: no row is lost, but the job may be.
"""

from __future__ import annotations

import contextlib
import io
import re

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from anabranch.spark.columns import can_be_sorted, quoted

OPERATOR = re.compile(r"^[\s:+\-*|]*(?:\(\d+\)\s*)?\*?\s*(?:\(\d+\)\s*)?([A-Z]\w+)(.*)$")
"""A line of Spark's physical plan: the name of an operator, and the rest."""

_IN_ORDER = {
    "FileScan", "LocalTableScan", "Range", "StreamingRelation", "InMemoryTableScan", "InMemoryRelation",
    "Project", "Filter", "Generate", "Expand", "Union", "Coalesce", "ColumnarToRow", "EventTimeWatermark",
    "CollectMetrics", "BatchEvalPython", "ArrowEvalPython", "AdaptiveSparkPlan",
}  # fmt: skip
"""Operators that read rows in a fixed order, or leave them in the order in which they come. Others may not: an
exchange, a join, a database, an RDD."""


def physical_plan(frame: DataFrame) -> str:
    """Spark's physical plan as text."""
    text = io.StringIO()
    # `explain` only prints; its text is wanted here.
    with contextlib.redirect_stdout(text):
        frame.explain()
    return text.getvalue()


def order_may_change(frame: DataFrame) -> bool:
    """Whether a task over this DataFrame may get its rows in another order when it runs again."""
    return not keeps_order(physical_plan(frame))


def keeps_order(plan: str) -> bool:
    """Whether all operators of a physical plan are known to give the same rows in the same order again."""
    lines = [line for line in plan.splitlines() if line.strip() and "==" not in line]
    found = [OPERATOR.match(line) for line in lines]
    return bool(found) and all(match is not None and match[1] in _IN_ORDER for match in found)


def in_fixed_order(rows: DataFrame, *first: str) -> DataFrame:
    """The rows of each task, sorted: by the columns `first`, then mixed by a hash. Only equal rows may swap."""
    columns = [
        quoted(field.name) if can_be_sorted(field.dataType) else quoted(field.name).cast("string")
        for field in rows.schema
    ]
    return rows.sortWithinPartitions(*map(quoted, first), F.xxhash64(*columns), *columns)
