"""A start that fails leaves nothing behind: neither a checkpoint nor a folder of results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.errors import InvalidArgumentError, WorkerPythonError
from anabranch.sinks import NoopSink
from anabranch.spark import worker_python
from tests.spark.streams import Feed

S = 1_000_000


def windows(spark: SparkSession, folder: Path) -> Any:
    feed = Feed(folder / "in")
    feed.add([(S, "a", 1), (5 * S, "a", 2)])
    return ab.stream(feed.stream(spark), time="at", watermark="0 s").window(size="2 s").agg(n=ab.count())


class Broken(NoopSink):
    """Cannot be opened, as a table whose catalog is away."""

    def open(self, session: SparkSession) -> None:
        raise InvalidArgumentError("the table is away", hint="bring it back")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: {"trigger": "once"}, "available-now"),
        (lambda: {"workers": 0}, "workers=0"),
        (lambda: {"memory_limit": "much"}, "memory_limit"),
        (lambda: {"idle": "soon"}, "idle"),
        (lambda: {"report": Broken()}, "the table is away"),  # after folders were made
        (lambda: {"name": "taken"}, "taken"),  # refused by Spark, at the very end
    ],
)
def test_no_folders_stay(
    spark: SparkSession, tmp_path: Path, settings: Callable[[], dict[str, Any]], message: str
) -> None:
    query = windows(spark, tmp_path)
    other = spark.readStream.format("rate").load().writeStream.format("noop").queryName("taken").start()
    try:
        with pytest.raises(Exception, match=message):
            query.start(
                ab.FileSink(tmp_path / "new" / "results"), checkpoint=tmp_path / "new" / "checkpoint", **settings()
            )
    finally:
        other.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_start_after_one_that_failed_and_sparks_name_of_a_trigger(spark: SparkSession, tmp_path: Path) -> None:
    query, results = windows(spark, tmp_path), tmp_path / "results"
    with pytest.raises(InvalidArgumentError):
        query.start(ab.FileSink(results), checkpoint=tmp_path / "checkpoint", report=Broken())
    running = query.start(
        ab.FileSink(results), checkpoint=tmp_path / "checkpoint", live=tmp_path / "live", trigger="availableNow"
    )
    assert running.awaitTermination()
    assert [row.n for row in spark.read.parquet(str(results)).collect()] == [1]


def test_a_python_without_the_packages_is_refused_by_start_and_to_df(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    query = windows(spark, tmp_path)
    batch = ab.stream(Feed(tmp_path / "in").batch(spark), time="at").window(size="2 s", slide="1 s").agg(n=ab.count())
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    worker_python._wrong_with.cache_clear()
    with pytest.raises(WorkerPythonError, match="lacks the package anabranch"):
        query.start(ab.FileSink(tmp_path / "results"), checkpoint=tmp_path / "checkpoint")
    with pytest.raises(WorkerPythonError, match="lacks the package anabranch"):
        batch.using("pane").to_df()
    assert batch.using("window").to_df().count() > 0  # needs no Python on the workers
    assert not (tmp_path / "checkpoint").exists() and not (tmp_path / "results").exists()
