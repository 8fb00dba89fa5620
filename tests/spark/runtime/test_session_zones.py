"""The session's time zone changes nothing: not the files of a query, nor what a restart under another zone makes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from tests.spark.runtime.test_matrix import session
from tests.spark.runtime.test_start import S, random_epochs
from tests.spark.streams import Feed


def run(spark: SparkSession, folder: Path, *zones: str) -> dict[str, bytes]:
    """Three epochs under each zone in turn, without live state; all files of results and of late rows."""
    feed, epochs = Feed(folder / "in"), random_epochs(11, epochs=3)
    epochs[1].append((1 * S, "late", 1))
    for number, zone in enumerate(zones):
        parts = len(epochs) // len(zones)
        feed.add(*epochs[number * parts : (number + 1) * parts])
        with session(spark, zone):
            rows = feed.stream(spark).withColumn("then", F.col("at") - F.expr("interval 1 hour"))
            stream = ab.stream(rows, time="at", watermark="5 seconds")
            aggregates = {"end": ab.last("then"), "all": ab.collect("then"), "kinds": ab.count_distinct("then")}
            ab.start(
                stream.window(size="20 seconds", slide="10 seconds").by("key").agg(**aggregates).to(sink(folder, "w")),
                stream.window(rows=5, slide_rows=2).by("key").agg(**aggregates).to(sink(folder, "n")),
                checkpoint=folder / "checkpoint",
                live=folder / f"live{number}",
                trigger="available-now",
            ).awaitTermination()
    written = [*(folder / "results").rglob("*.parquet"), *(folder / "checkpoint" / "side").rglob("*.parquet")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in written}


def sink(folder: Path, name: str) -> ab.FileSink:
    return ab.FileSink(folder / "results" / name)


@pytest.mark.slow
def test_state_of_one_zone_is_good_in_another_and_files_are_the_same(spark: SparkSession, tmp_path: Path) -> None:
    here = run(spark, tmp_path / "here", "UTC", "UTC")
    there = run(spark, tmp_path / "there", "America/New_York", "Europe/Berlin")
    assert any("side" in name for name in here) and any("results/n" in name for name in here)
    assert here == there
    times = spark.read.parquet(str(tmp_path / "there" / "results" / "w")).schema
    assert times["end"].dataType.typeName() == "timestamp"  # an instant, and no local time


@pytest.mark.parametrize(
    "value",
    [
        "interval '1:30' hour to minute",
        "'a' collate unicode_ci",
        "parse_json('[1]')",
        "named_struct('t', timestamp'2025-11-02 01:30:00 EST', 'n', 1)",
        "array(timestamp'2025-11-02 01:30:00 EST')",
        "time'10:00:00'",
    ],
)
def test_columns_of_any_type_pass_through_python(spark: SparkSession, value: str) -> None:
    """With their types: Arrow knows of no collation, and of one interval only."""
    with session(spark, "America/New_York"):
        rows = spark.range(5).select("id", F.expr(value).alias("a.b"))
        partitioned = rows.transform(ab.partition_by("id", workers=2))
        assert partitioned.schema["a.b"].dataType.simpleString() == rows.schema["a.b"].dataType.simpleString()
        assert partitioned.exceptAll(rows).isEmpty() if "json" not in value else partitioned.count() == 5


def test_users_see_times_in_utc(spark: SparkSession, tmp_path: Path) -> None:
    """Python compares times of one zone by its clocks, which show some hours twice."""
    hours = [dt.datetime(2025, 11, 2, hour, tzinfo=dt.UTC) for hour in (5, 6)]

    def zones(state: list[str], time: dt.datetime) -> list[str]:
        return [*state, str(time.tzinfo)]

    zones_of = ab.user_aggregate("t", init=list, incr=zones, final=lambda state: state, returns="array<string>")
    with session(spark, "America/New_York"):
        rows = spark.createDataFrame([(hour,) for hour in hours], "t timestamp")
        (row,) = ab.stream(rows, time="t").window(size="1 day").agg(zones=zones_of).to_df().collect()
    assert row.zones == ["UTC", "UTC"]
