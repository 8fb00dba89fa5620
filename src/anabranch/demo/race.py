"""The same question to Anabranch and to Spark's `window()`: how long each takes, and whether the answers are equal.

Spark's `window()` copies a report into every window that it is in: 12, 60 and 180 times here. Over all reports that
would take minutes, so it gets a slice: all reports of some segments, a twentieth of them all, or more if it can finish
that in the time it is given. Rates are compared, and both also run over the very same slice. Whole segments, because
then each of its windows must be equal to one that Anabranch found among all reports.

Each side has run once before it is timed: compiling is no part of the race, and it takes Spark seconds to plan hundreds
of copies, however few the rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from anabranch.demo.queries import LENGTHS, flat, read, seconds_of, sliding_speeds, spark_speeds
from anabranch.demo.traffic import Ints

_LEAST = 0.05
"""Share of all reports that a slice must have."""
_GROWTH = 8
"""How much larger the next slice may be: a small one tells little of the rate."""
_ENOUGH = 1 / 4
"""Share of the allowed time that a run must have taken to count."""


@dataclass(frozen=True)
class Timing:
    """So many rows in so many seconds."""

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
class Peer:
    """How Spark's `window()` did on the slice: a time per window length, and its answers."""

    slice: Slice
    timings: dict[str, Timing]
    results: pa.Table

    @property
    def total(self) -> Timing:
        return Timing(self.slice.rows, sum(t.seconds for t in self.timings.values()))


def timed(windows: DataFrame, folder: Path, rows: int) -> Timing:
    """Write the windows, and say how long that took."""
    began = time.perf_counter()
    flat(windows).write.mode("overwrite").parquet(str(folder))
    return Timing(rows, time.perf_counter() - began)


def run_ours(
    reports: DataFrame,
    folder: Path,
    rows: int,
    lengths: Sequence[str] = LENGTHS,
    observation: Observation | None = None,
) -> Timing:
    """Anabranch over the reports, all these window lengths in one query."""
    return timed(sliding_speeds(reports, lengths).to_df(observation=observation), folder, rows)


def run_spark(
    reports: DataFrame, per_segment: Ints, work: Path, *, seconds: float, note: Callable[[str], None]
) -> Peer:
    """Spark's `window()` over growing slices, until one took a fair part of the time it is given."""
    spark, everything = reports.sparkSession, int(per_segment.sum())
    target = math.ceil(_LEAST * everything)
    piece = cut(reports, per_segment, target, work / f"slice-{target}")
    _lap(spark, piece, work / f"results-{target}", lambda doing: note(f"{doing}, to warm up"))
    while True:
        peer = _lap(spark, piece, work / f"results-{target}", note)
        if piece.rows == everything or peer.total.seconds >= _ENOUGH * seconds:
            return peer
        # A little less than would fit: the rate may fall with the size.
        target = math.ceil(target * min(_GROWTH, max(2.0, 0.8 * seconds / peer.total.seconds)))
        piece = cut(reports, per_segment, target, work / f"slice-{target}")


def _lap(spark: SparkSession, piece: Slice, folder: Path, note: Callable[[str], None]) -> Peer:
    reports = spark.read.parquet(str(piece.folder))
    timings = {}
    for length in LENGTHS:
        note(f"Spark's window() over {piece.rows:,} reports, windows of {length}")
        timings[length] = timed(spark_speeds(reports, length), folder / str(seconds_of(length)), piece.rows)
    return Peer(piece, timings, read(folder))


def cut(reports: DataFrame, per_segment: Ints, rows: int, folder: Path) -> Slice:
    """A slice of about that many rows, as Parquet of its own, so that reading it costs only what it holds.

    Segments from all along the road: every seventh, then those beside them, as long as they fit.
    """
    order = [segment for first in range(7) for segment in range(first, len(per_segment), 7)]
    chosen: list[int] = []
    total = 0
    for segment in order:
        count = int(per_segment[segment])
        if count and (not chosen or total + count <= rows):
            chosen.append(segment)
            total += count
    parts = int(reports.sparkSession.conf.get("spark.sql.shuffle.partitions") or 2)
    reports.where(F.col("seg").isin(chosen)).repartition(parts).write.mode("overwrite").parquet(str(folder))
    return Slice(tuple(chosen), total, folder)


def equal(theirs: pa.Table, ours: pa.Table, segments: Sequence[int]) -> bool:
    """Whether these are the same windows with the same numbers, to the last bit."""
    mine = ours.filter(pc.is_in(ours["seg"], pa.array(segments, pa.int32())))
    return bool(mine.combine_chunks().equals(theirs.combine_chunks()))


def equal_stream(streamed: pa.Table, ours: pa.Table, length: str) -> bool:
    """Whether the stream delivered what the batch did, up to its last complete window."""
    until = pc.max(streamed["end"])
    same = ours.filter(pc.and_(pc.equal(ours["length_s"], seconds_of(length)), pc.less_equal(ours["end"], until)))
    order = [("length_s", "ascending"), ("seg", "ascending"), ("end", "ascending")]
    return bool(same.combine_chunks().equals(streamed.sort_by(order).combine_chunks()))
