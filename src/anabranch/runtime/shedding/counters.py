"""Rows are counted where they are dropped, by Spark while it reads them, together with their latest time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from anabranch.names import GONE


@dataclass(frozen=True)
class Seen:
    """What came to a place where rows are dropped."""

    rows: int = 0
    shed: int = 0
    latest: int | None = None


class Counted:
    """Counts rows where they are dropped."""

    def __init__(self) -> None:
        self._observation = Observation()

    def over(self, rows: DataFrame, t: Column, gone: Column) -> DataFrame:
        """The rows that stay. `t`: their time; `gone`: whether a row is dropped."""
        told = rows.withColumn(GONE, gone)  # computed once, for the count and the filter
        counts = [F.count(F.lit(1)).alias("rows"), F.count_if(GONE).alias("shed"), F.max(t).alias("latest")]
        self._again = told.agg(*counts)
        return told.observe(self._observation, *counts).where(~F.col(GONE)).drop(GONE)

    @cached_property
    def seen(self) -> Seen:
        """After the job."""
        try:
            found = self._observation.get
        except Exception:
            # Spark found out that nothing comes of these rows, or that there are none, and left the counting out, too.
            # It tells so by an error of its own that nobody else has.
            found = {}
        if "rows" not in found:
            found = self._again.collect()[0].asDict()
        return Seen(found["rows"] or 0, found["shed"] or 0, found["latest"])
