"""The race: time the same query with Anabranch and with Spark's `window()`, and compare the results.

Spark's `window()` copies a report into every window that contains it: 12, 60 and 180 times here. Over all reports that
would take minutes, so it gets a slice: all reports of some segments, a twentieth of all reports, or more if there is
time. The race compares rates, and both sides also run over the same slice. The slice has whole segments, so each of its
windows must be equal to one that Anabranch found in all reports.

Each side runs once before it is timed, so compiling does not count. For each window length one side is timed right
after the other, because the speed of a machine varies over time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from demos.windows.queries import LENGTHS, flat, read, seconds_of, sliding_speeds, spark_speeds
from demos.windows.traffic import Reports

_LEAST = 0.05
"""The least share of all reports in a slice. With fewer rows, Spark's planning of the copies would dominate."""
_GROWTH = 8
"""How many times larger the slice may become."""

Note = Callable[[str], None]
"""Called with the current step, for the progress line."""


@dataclass(frozen=True)
class Timing:
    """The rows of a run, and its seconds."""

    rows: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


@dataclass(frozen=True)
class Lane:
    """One window length, or all of them together, on both sides."""

    label: str
    windows: int
    ours: Timing
    spark: Timing

    @property
    def ratio(self) -> float:
        return self.ours.rate / self.spark.rate


@dataclass(frozen=True)
class Slice:
    """All reports of some segments, in a folder of their own."""

    segments: tuple[int, ...]
    rows: int
    folder: Path


@dataclass(frozen=True)
class Race:
    """The results of the race."""

    lanes: tuple[Lane, ...]
    """One per window length."""
    together: Lane
    """All window lengths: one query for Anabranch, one query after the other for Spark."""
    slice: Slice
    ours_on_slice: Timing
    """All window lengths as one query. Spark's time for the slice is that of `together`."""
    windows: pa.Table
    """Anabranch's windows of all reports."""
    spark_windows: pa.Table
    """Spark's windows of the slice."""
    null_times: int
    """Reports without a time, as Spark counted them while the query ran."""

    @property
    def agree(self) -> bool:
        """Whether Spark's windows are equal to those of Anabranch, to the last bit."""
        return equal(self.spark_windows, self.windows, self.slice.segments)


def warm_up(reports: DataFrame, written: Reports, work: Path, *, seconds: float, note: Note) -> Slice:
    """Run both sides once, and choose the slice for about that many seconds of Spark's `window()`."""
    note(f"Warming up: Anabranch over all {written.rows:,} reports")
    _run_ours(reports, work / "ours", written.rows)
    piece = cut(reports, written, math.ceil(_LEAST * written.rows), work / "slice")
    began = time.perf_counter()
    for length in LENGTHS:
        note(f"Warming up: Spark's window() over {piece.rows:,} reports, windows of {length}")
        _run_spark(reports.sparkSession.read.parquet(str(piece.folder)), work / "spark", piece.rows, length)
    # This run includes compiling, so the race will be faster.
    growth = min(_GROWTH, seconds / (time.perf_counter() - began))
    return cut(reports, written, math.floor(growth * piece.rows), work / "larger-slice") if growth >= 2 else piece


def race(reports: DataFrame, written: Reports, piece: Slice, work: Path, *, note: Note) -> Race:
    """Time both sides: window length by window length, then all of them at once."""
    sliced = reports.sparkSession.read.parquet(str(piece.folder))
    ours, spark = {}, {}
    for length in LENGTHS:
        note(f"Anabranch over all {written.rows:,} reports, windows of {length}")
        ours[length] = _run_ours(reports, work / "ours", written.rows, (length,))
        note(f"Spark's window() over {piece.rows:,} reports, windows of {length}")
        spark[length] = _run_spark(sliced, work / "spark", piece.rows, length)
    note(f"Anabranch over the same {piece.rows:,} reports, windows of {', '.join(LENGTHS)} at once")
    on_slice = _run_ours(sliced, work / "ours-on-slice", piece.rows)
    note(f"Anabranch over all {written.rows:,} reports, windows of {', '.join(LENGTHS)} at once")
    observation = Observation()
    together = _run_ours(reports, work / "ours", written.rows, observation=observation)
    windows = read(work / "ours")
    all_of_spark = Timing(piece.rows, sum(timing.seconds for timing in spark.values()))
    return Race(
        lanes=tuple(Lane(length, _delivered(windows, length), ours[length], spark[length]) for length in LENGTHS),
        together=Lane("all three", len(windows), together, all_of_spark),
        slice=piece,
        ours_on_slice=on_slice,
        windows=windows,
        spark_windows=read(work / "spark"),
        null_times=int(observation.get["null_time"]),
    )


def cut(reports: DataFrame, written: Reports, rows: int, folder: Path) -> Slice:
    """Write a slice of about that many rows as Parquet files, so that reading it does not read the other rows.

    It takes segments from all parts of the road: every seventh, then their neighbours, as long as they fit.
    """
    order = [segment for first in range(7) for segment in range(first, len(written.per_segment), 7)]
    chosen: list[int] = []
    total = 0
    for segment in order:
        count = int(written.per_segment[segment])
        if count and (not chosen or total + count <= rows):
            chosen.append(segment)
            total += count
    parts = int(reports.sparkSession.conf.get("spark.sql.shuffle.partitions") or 2)
    reports.where(F.col("seg").isin(chosen)).repartition(parts).write.mode("overwrite").parquet(str(folder))
    return Slice(tuple(chosen), total, folder)


def equal(theirs: pa.Table, ours: pa.Table, segments: Sequence[int]) -> bool:
    """Whether both have the same windows with the same values, to the last bit."""
    mine = ours.filter(pc.is_in(ours["seg"], pa.array(segments, pa.int32())))
    return bool(mine.combine_chunks().equals(theirs.combine_chunks()))


def equal_stream(streamed: pa.Table, ours: pa.Table, length: str) -> bool:
    """Whether the stream delivered the same windows as the batch, up to its last complete window."""
    until = pc.max(streamed["end"])
    same = ours.filter(pc.and_(pc.equal(ours["length_s"], seconds_of(length)), pc.less_equal(ours["end"], until)))
    order = [("length_s", "ascending"), ("seg", "ascending"), ("end", "ascending")]
    return bool(same.combine_chunks().equals(streamed.sort_by(order).combine_chunks()))


def _run_ours(
    reports: DataFrame,
    folder: Path,
    rows: int,
    lengths: Sequence[str] = LENGTHS,
    observation: Observation | None = None,
) -> Timing:
    """Time Anabranch: one query for all these window lengths."""
    return _timed(sliding_speeds(reports, lengths).to_df(observation=observation), folder, rows)


def _run_spark(reports: DataFrame, folder: Path, rows: int, length: str) -> Timing:
    """Time Spark's `window()`: one window length."""
    return _timed(spark_speeds(reports, length), folder / str(seconds_of(length)), rows)


def _timed(windows: DataFrame, folder: Path, rows: int) -> Timing:
    """Time how long it takes to write the windows."""
    began = time.perf_counter()
    flat(windows).write.mode("overwrite").parquet(str(folder))
    return Timing(rows, time.perf_counter() - began)


def _delivered(windows: pa.Table, length: str) -> int:
    return int(pc.sum(pc.equal(windows["length_s"], seconds_of(length))).as_py())
