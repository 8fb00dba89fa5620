"""Rows in an order that is the same when a task runs again.

When the output of a task is lost with an executor or a disk, Spark runs that task again, and only that one: tasks that
have already read the first output keep what they read. So a task that sends rows to workers by what it has counted so
far (`keys.partitioner`) must get its rows in the same order both times; otherwise some rows are lost and others come
twice. Files have a fixed order, and so have sources that replay. An exchange has none: blocks arrive as the network
delivers them.

Spark 4.3 compares checksums of both outputs, unless that is switched off or shuffles are pushed. If they differ, it
runs all readers again, or fails the job if results have already left: no row is lost, but the job may be.
"""

from __future__ import annotations

import re

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from anabranch.spark.columns import can_be_sorted, quoted

OPERATOR = re.compile(r"^[\s:+\-*|]*(?:\(\d+\)\s*)?\*?\s*(?:\(\d+\)\s*)?([A-Z]\w+)(.*)$")
"""A line of Spark's physical plan: an operator's name, and the rest."""

_IN_ORDER = {
    "FileScan", "LocalTableScan", "Range", "StreamingRelation", "InMemoryTableScan", "InMemoryRelation",
    "Project", "Filter", "Generate", "Expand", "Union", "Coalesce", "ColumnarToRow", "EventTimeWatermark",
    "CollectMetrics", "BatchEvalPython", "ArrowEvalPython", "AdaptiveSparkPlan",
}  # fmt: skip
"""Operators that read rows in a fixed order or keep the order of their input. Others may not: an exchange, a join, a
database, an RDD."""


def physical_plan(frame: DataFrame) -> str:
    """Spark's physical plan as text."""
    # Not `frame.explain()`, which prints: capturing its text would redirect the output of the whole process.
    relation = "STREAM {frame}" if frame.isStreaming else "{frame}"
    row = frame.sparkSession.sql(f"EXPLAIN SELECT * FROM {relation}", frame=frame).first()
    assert row is not None
    return str(row[0])


def order_may_change(frame: DataFrame) -> bool:
    """Whether a task over this DataFrame may get its rows in another order when it runs again."""
    return not keeps_order(physical_plan(frame))


def keeps_order(plan: str) -> bool:
    """Whether all operators of a physical plan are known to give the same rows in the same order every time."""
    lines = [line for line in plan.splitlines() if line.strip() and "==" not in line]
    found = [OPERATOR.match(line) for line in lines]
    return bool(found) and all(match is not None and match[1] in _IN_ORDER for match in found)


def in_fixed_order(rows: DataFrame, *first: str) -> DataFrame:
    """The rows of each task, sorted by the columns `first`, then by a hash. Only equal rows may swap places."""
    columns = [
        quoted(field.name) if can_be_sorted(field.dataType) else quoted(field.name).cast("string")
        for field in rows.schema
    ]
    return rows.sortWithinPartitions(*map(quoted, first), F.xxhash64(*columns), *columns)
