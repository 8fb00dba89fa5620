"""The query of the demo, once with Anabranch and once with Spark's own `window()`.

Every five seconds: how fast is each segment, over the last minute, the last five and the last fifteen minutes?
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.types import Aggregation
from anabranch.windows import micros
from demos.windows.traffic import BEGIN, SEGMENTS

Grid: TypeAlias = npt.NDArray[np.float64]
"""Mean speeds, a row per segment, a column per slide; NaN where no car reported."""

LENGTHS = ("1 minute", "5 minutes", "15 minutes")
SLIDE = "5 seconds"
SLIDE_S = micros(SLIDE) // 1_000_000

SCHEMA = "time TIMESTAMP, car INT, seg INT, speed INT"
"""The schema of the reports, which a stream of files needs."""

RESULT = pa.schema(
    [
        ("seg", pa.int32()),
        ("length_s", pa.int64()),
        ("end", pa.int64()),
        ("reports", pa.int64()),
        ("speed", pa.float64()),
        ("slowest", pa.int32()),
        ("fastest", pa.int32()),
    ]
)
"""The schema of the results of both sides. Times are in microseconds, so that they compare exactly."""


def sliding_speeds(
    reports: DataFrame, lengths: Sequence[str] = LENGTHS, *, watermark: str | None = None
) -> Aggregation:
    """The query with Anabranch. All lengths share one set of panes."""
    return (
        ab.stream(reports, time="time", watermark=watermark)
        .windows(*((length, SLIDE) for length in lengths))
        .by("seg")
        .agg(reports=ab.count(), speed=ab.avg("speed"), slowest=ab.min("speed"), fastest=ab.max("speed"))
    )


def spark_speeds(reports: DataFrame, length: str) -> DataFrame:
    """The query with Spark's `window()`, which copies each report into every window that contains it."""
    return reports.groupBy("seg", F.window("time", length, SLIDE)).agg(
        F.count(F.lit(1)).alias("reports"),
        F.avg("speed").alias("speed"),
        F.min("speed").alias("slowest"),
        F.max("speed").alias("fastest"),
    )


def source() -> str:
    """The source of the query, for the page."""
    return f"LENGTHS = {LENGTHS}\nSLIDE = {SLIDE!r}\n\n\n{inspect.getsource(sliding_speeds)}"


def flat(windows: DataFrame) -> DataFrame:
    """The windows in the shape of `RESULT`."""
    start, end = F.unix_micros("window.start"), F.unix_micros("window.end")
    length = F.call_function("div", end - start, F.lit(1_000_000)).alias("length_s")
    return windows.select("seg", length, end.alias("end"), "reports", "speed", "slowest", "fastest")


def read(folder: Path) -> pa.Table:
    """Read results that Spark wrote, sorted. Their number depends on the query, not on the reports."""
    table = ds.dataset(folder, schema=RESULT, format="parquet").to_table()
    return table.sort_by([("length_s", "ascending"), ("seg", "ascending"), ("end", "ascending")])


def seconds_of(length: str) -> int:
    """A window length in seconds, as in `length_s`."""
    return micros(length) // 1_000_000


def columns(minutes: int) -> int:
    """The number of slides in that time, which is the number of columns of a grid."""
    return minutes * 60 // SLIDE_S


def grid(results: pa.Table, length: str, minutes: int) -> Grid:
    """The mean speeds of one window length. Column i is the window that ends i + 1 slides after the beginning."""
    cells = np.full((SEGMENTS, columns(minutes)), np.nan)
    fill(cells, results, length)
    return cells


def fill(cells: Grid, results: pa.Table, length: str) -> None:
    """Write more results of one window length into a grid."""
    chosen = results.filter(ds.field("length_s") == seconds_of(length))
    begin = int(BEGIN.timestamp()) * 1_000_000
    column = (chosen["end"].to_numpy() - begin) // (SLIDE_S * 1_000_000) - 1
    # A window may end after the last report and be incomplete; the picture ends with the reports.
    inside = (column >= 0) & (column < cells.shape[1])
    cells[chosen["seg"].to_numpy()[inside], column[inside]] = chosen["speed"].to_numpy()[inside]
