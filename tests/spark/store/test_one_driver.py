"""A checkpoint has one driver: a second query is refused, and the end of the first frees it, however it ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.errors import CheckpointError, InvalidArgumentError
from anabranch.types import EpochQuery
from tests.spark.runtime.test_start import S
from tests.spark.streams import Feed

EPOCHS = [[(10 * i * S, "a", i), ((10 * i + 5) * S, "b", i)] for i in range(4)]


def start(spark: SparkSession, folder: Path, sink: Any = None, **settings: Any) -> EpochQuery:
    stream = ab.stream(Feed(folder / "in").stream(spark), time="at", watermark="0 s")
    counts = stream.window(size="10 seconds").by("key").agg(n=ab.count())
    places = {"checkpoint": folder / "checkpoint", "live": folder / "live"}
    return counts.start(sink or ab.FileSink(folder / "out"), **places, **settings)


def delivered(spark: SparkSession, folder: Path) -> int:
    return spark.read.parquet(str(folder / "out")).count()


def test_a_second_query_is_refused_and_the_first_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*EPOCHS[:2])
    first = start(spark, tmp_path, name="first")
    first.processAllAvailable()
    with pytest.raises(CheckpointError, match="in use by the query 'first' in process"):
        start(spark, tmp_path, name="second")
    assert first.isActive
    feed.add(EPOCHS[2])
    first.processAllAvailable()
    assert delivered(spark, tmp_path) == 4
    first.stop()
    assert [path.name for path in (tmp_path / "live").iterdir()] == [first.id]  # it may be started again
    feed.add(EPOCHS[3])
    second = start(spark, tmp_path, name="second", trigger="available-now")
    second.awaitTermination()
    assert sum(epoch.restored for epoch in second.recentProgress) == 0
    assert delivered(spark, tmp_path) == 6
    assert list((tmp_path / "live").iterdir()) == [] and not (tmp_path / "checkpoint" / ".lock").exists()


def test_a_query_that_failed_does_not_block_the_next(spark: SparkSession, tmp_path: Path) -> None:
    """Neither one whose start failed, nor one that ended while nobody waited for it."""

    def fails(table: pa.Table, epoch: int) -> None:
        raise RuntimeError("no")

    Feed(tmp_path / "in").add(*EPOCHS)
    with pytest.raises(InvalidArgumentError, match="workers=0"):
        start(spark, tmp_path, workers=0)
    failed = start(spark, tmp_path, ab.CallSink(fails))
    end = time.monotonic() + 120
    while failed.isActive:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert "the CallSink of window-1 failed to publish epoch" in str(failed.exception())
    start(spark, tmp_path, trigger="available-now").awaitTermination()
    assert delivered(spark, tmp_path) == 6
