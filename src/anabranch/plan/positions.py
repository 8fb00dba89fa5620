"""Positions of rows in time order: the axis of count windows.

Rows with the same time are ordered by their other columns, so that a second run numbers them in the same way.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType

from anabranch.names import BEFORE, BUCKET, EVENT, HIGH, LOW, RANK
from anabranch.query.windowed import Query
from anabranch.spark.columns import quoted

TIME_BUCKETS = 1024
"""parts of the time line that are counted separately when rows are numbered over all keys"""


def with_positions(query: Query, source: DataFrame, name: str) -> DataFrame:
    """The source with each row's position, from 0: within its key, or over all rows."""
    if query.rows_per_key and query.keys:
        over = Over.partitionBy(*(quoted(k) for k in query.keys)).orderBy(*_order(query, source))
        return source.withColumn(name, (F.row_number().over(over) - 1).cast("bigint"))
    return _global_positions(query, source, name)


def _order(query: Query, source: DataFrame) -> list[Column]:
    return [query.time.column, *(quoted(c) for c in tie_breaks(query, source))]


def tie_breaks(query: Query, source: DataFrame) -> list[str]:
    """The columns by which rows with the same time are ordered, on a stream too (`operators.numbering`)."""
    apart = (query.time.name, EVENT)
    return [f.name for f in source.schema if f.name not in apart and not _unordered(f.dataType)]


def _unordered(kind: object) -> bool:
    return isinstance(kind, MapType | StructType | ArrayType)


def _global_positions(query: Query, source: DataFrame, name: str) -> DataFrame:
    """Number all rows without bringing them into one task.

    The time line is divided into buckets. Rows are numbered within their bucket, in parallel, and the number of rows in
    earlier buckets is added.
    """
    micros = query.time.micros()
    columns = [quoted(c) for c in source.columns]
    span = source.agg(F.min(micros).alias(LOW), F.max(micros).alias(HIGH))
    width = (F.col(HIGH) - F.col(LOW)) / TIME_BUCKETS + 1
    bucket = F.floor((micros - F.col(LOW)) / width).alias(BUCKET)
    bucketed = source.crossJoin(F.broadcast(span)).select(*columns, bucket)
    counts = bucketed.groupBy(BUCKET).count()
    # One task, but at most TIME_BUCKETS rows.
    before = F.sum("count").over(Over.orderBy(BUCKET)) - F.col("count")
    offsets = counts.select(BUCKET, before.alias(BEFORE))
    within = Over.partitionBy(BUCKET).orderBy(*_order(query, source))
    ranked = bucketed.withColumn(RANK, F.row_number().over(within) - 1).join(F.broadcast(offsets), BUCKET)
    return ranked.select(*columns, (F.col(BEFORE) + F.col(RANK)).cast("bigint").alias(name))
