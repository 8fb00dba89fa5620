"""Rows are counted where they are dropped, by Spark while it reads them, together with their latest time."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F


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
        counts = [F.count(F.lit(1)).alias("rows"), F.count_if(gone).alias("shed"), F.max(t).alias("latest")]
        return rows.observe(self._observation, *counts).where(~gone)

    @property
    def seen(self) -> Seen:
        """After the job."""
        found = self._observation.get
        return Seen(found["rows"] or 0, found["shed"] or 0, found["latest"])
