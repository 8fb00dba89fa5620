"""Which plans give a task its rows in the same order again."""

from __future__ import annotations

import pytest

from anabranch.spark.order import keeps_order

FILES = """== Physical Plan ==
*(1) Filter (isnotnull(t#5L) AND (t#5L > 1))
+- *(1) ColumnarToRow
   +- FileScan parquet [t#5L,k#6] Batched: true, DataFilters: [isnotnull(t#5L), (t#5L > 1)], Format: Parquet

"""
UNION = """== Physical Plan ==
Coalesce 1
+- Union
   :- *(1) Project [1 AS t#0]
   :  +- *(1) Range (0, 5, step=1, splits=2)
   +- LocalTableScan [t#4L]
"""
CACHED = """== Physical Plan ==
InMemoryTableScan [t#5L]
   +- InMemoryRelation [t#5L, k#6], StorageLevel(disk, memory, deserialized, 1 replicas)
         +- *(1) ColumnarToRow
            +- FileScan parquet [t#5L,k#6] Batched: true
"""
STREAM = """== Physical Plan ==
EventTimeWatermark 32681292-cd1d-479e-9732-84bcb792e22f, at#205: timestamp, 1 seconds
+- Project [t#200L, k#201, timestamp_micros(t#200L) AS at#205]
   +- StreamingRelation FileSource[/in], [t#200L, k#201]
"""
EXCHANGE = """== Physical Plan ==
AdaptiveSparkPlan isFinalPlan=false
+- Exchange hashpartitioning(k#201, 3), REPARTITION_BY_NUM, [plan_id=211]
   +- FileScan parquet [t#5L,k#6] Batched: true
"""
CACHED_EXCHANGE = """== Physical Plan ==
AdaptiveSparkPlan isFinalPlan=false
+- InMemoryTableScan [t#5L, k#6]
      +- InMemoryRelation [t#5L, k#6], StorageLevel(disk, memory, deserialized, 1 replicas)
            +- AdaptiveSparkPlan isFinalPlan=true
               +- == Final Plan ==
                  ResultQueryStage 1
                  +- ShuffleQueryStage 0
                     +- Exchange hashpartitioning(k#6, 2), REPARTITION_BY_NUM, [plan_id=100]
                        +- FileScan parquet [t#5L,k#6] Batched: true
"""


@pytest.mark.parametrize("plan", [FILES, UNION, CACHED, STREAM])
def test_plans_that_keep_an_order(plan: str) -> None:
    assert keeps_order(plan)


@pytest.mark.parametrize(
    "plan",
    [
        EXCHANGE,
        CACHED_EXCHANGE,
        FILES.replace("ColumnarToRow", "SortMergeJoin [k#1], [k#2], Inner"),
        FILES.replace("FileScan parquet", "Scan JDBCRelation(t)"),
        FILES.replace("FileScan parquet", "Scan ExistingRDD"),
        FILES + "... 230 more characters",  # cut off by Spark
        "",
    ],
)
def test_plans_that_may_not(plan: str) -> None:
    assert not keeps_order(plan)
