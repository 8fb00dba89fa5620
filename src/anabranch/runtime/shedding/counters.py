"""Counts rows where they are dropped, with their latest time. Spark counts them while it reads them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from anabranch.names import GONE
from anabranch.spark.quirks import observed


@dataclass(frozen=True)
class DropCounts:
    """How many rows came to a place where rows are dropped, how many were dropped, and their latest time."""

    rows: int = 0
    shed: int = 0
    latest: int | None = None


class DropCounter:
    """Counts rows where they are dropped."""

    def __init__(self) -> None:
        self._observation = Observation()

    def over(self, rows: DataFrame, t: Column, gone: Column) -> DataFrame:
        """The rows that stay. `t`: their time; `gone`: whether a row is dropped."""
        marked = rows.withColumn(GONE, gone)  # computed once, for the count and the filter
        counts = [F.count(F.lit(1)).alias("rows"), F.count_if(GONE).alias("shed"), F.max(t).alias("latest")]
        self._count_again = marked.agg(*counts)
        return marked.observe(self._observation, *counts).where(~F.col(GONE)).drop(GONE)

    @cached_property
    def counts(self) -> DropCounts:
        """The counts. Known after the job."""
        found = observed(self._observation)
        if "rows" not in found:
            found = self._count_again.collect()[0].asDict()
        return DropCounts(found["rows"] or 0, found["shed"] or 0, found["latest"])
