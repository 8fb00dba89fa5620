"""Columns are named as in Spark: case does not matter unless the session says so, backquotes around dots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.errors import ColumnNotFoundError, InvalidArgumentError
from tests.spark.streams import Feed

S = 1_000_000


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    made = [(1 * S, "a", 3, (7, 1), 10), (2 * S, "b", 4, (8, 2), 20)]
    schema = "At bigint, Key string, Value int, s struct<x: int, at: bigint>, `a.b` int"
    return spark.createDataFrame(made, schema).withColumn("At", F.timestamp_micros("At"))


@pytest.fixture
def by_case(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


def test_case_does_not_matter(rows: DataFrame) -> None:
    stream = ab.stream(rows, time="at")
    assert stream.time.name == "At"
    query = stream.window(size="10 s").by("KEY").agg(v=ab.sum("VALUE"))
    assert query.to_df().columns == ["Key", "window", "v"]
    assert sorted((row.Key, row.v) for row in query.to_df().collect()) == [("a", 3), ("b", 4)]
    # A Column, too, names the column that is there.
    assert stream.window(size="10 s").by(F.col("key")).agg(v=ab.sum("value")).query.keys == ("Key",)
    assert stream.select("key", F.col("AT")).to_df().columns == ["Key", "At"]
    assert stream.with_columns({"AT": F.col("at") + F.expr("INTERVAL 1 SECOND")}).time.name == "AT"
    joined = stream.join(ab.stream(rows.withColumnRenamed("Key", "kEY"), time="AT"), on="key", within=("1 s", "1 s"))
    assert joined.to_df().columns[0] == "Key" and joined.to_df().count() == 2
    assert rows.transform(ab.partition_by("key", workers=2, time="at", window="1 s")).count() == 2


def test_dots_and_backquotes(rows: DataFrame) -> None:
    windows = ab.stream(rows, time="`At`").window(size="10 s")
    found = windows.agg(field=ab.sum("s.x"), dotted=ab.sum("`a.b`"), plain=ab.sum("a.b")).to_df().first()
    assert found is not None and (found["field"], found["dotted"], found["plain"]) == (15, 30, 30)
    # As in Spark, the field of a struct comes before a column with such a name.
    both = rows.withColumn("s.x", F.lit(0))
    first = ab.stream(both, time="at").window(size="10 s").agg(v=ab.sum("s.x"), w=ab.sum("`s.x`")).to_df().first()
    assert first is not None and (first["v"], first["w"]) == (15, 0)
    assert windows.by("S.X").agg(n=ab.count()).query.keys == ("X",)


REFUSED: dict[str, tuple[Callable[[DataFrame], Any], type[Exception], str]] = {
    "a field as the time": (lambda df: ab.stream(df, time="s.at"), InvalidArgumentError, "a field of the column 's'"),
    "two that differ by case": (
        lambda df: ab.stream(df.toDF("At", "at", "v", "s", "d"), time="At"), InvalidArgumentError, "could be any of",
    ),
    "no such column": (lambda df: ab.stream(df, time="`at.b`"), ColumnNotFoundError, "no column '`at.b`'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_names_that_mean_nothing_here(rows: DataFrame, case: str) -> None:
    make, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        make(rows)


def test_a_session_that_tells_case(rows: DataFrame, by_case: None) -> None:
    with pytest.raises(ColumnNotFoundError, match="no column 'at'"):
        ab.stream(rows, time="at")
    two = rows.withColumn("key", F.lit("z"))
    assert ab.stream(two, time="At").window(size="10 s").by("key").agg(n=ab.count()).query.keys == ("key",)


def test_names_of_a_running_query(spark: SparkSession, tmp_path: Path) -> None:
    class Totals(ab.Operator):
        def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
            yield block.select(["key", "value"])

    feed = Feed(tmp_path / "in")
    feed.add([(1 * S, "a", 1), (2 * S, "a", 2), (3 * S, "b", 4)])
    stream = ab.stream(feed.stream(spark), time="AT", watermark="0 s")
    answers = stream.process(Totals, "key string, value bigint", by="KEY", groups=2).combine(by="Key", sums="VALUE")
    other = ab.stream(feed.stream(spark).withColumnRenamed("key", "Key"), time="At", watermark="0 s")
    pairs = stream.join(other, on="KEY", within=("0 s", "0 s"))
    totals, joined = ab.MemorySink(), ab.MemorySink()
    ab.start(
        answers.to(totals), pairs.to(joined),
        checkpoint=tmp_path / "c", live=tmp_path / "l", trigger="available-now",
    ).awaitTermination()  # fmt: skip
    assert sorted((row["key"], row["value"]) for row in totals.rows()) == [("a", 3), ("b", 4)]
    assert sorted((row["key"], row["value_right"]) for row in joined.rows()) == [("a", 1), ("a", 2), ("b", 4)]


def test_names_with_dots_in_a_running_query(spark: SparkSession, tmp_path: Path) -> None:
    class Passing(ab.Operator):
        def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
            yield block.select(["the.key", "value"])

    feed = Feed(tmp_path / "in")
    feed.add([(1 * S, "a", 1), (2 * S, "a", 2), (15 * S, "b", 4)])
    rows = feed.stream(spark).withColumnsRenamed({"key": "the.key", "at": "the.time"})
    stream = ab.stream(rows, time="the.time", watermark="0 s")
    passed = stream.process(Passing, "`the.key` string, value bigint", by="`the.key`", groups=2)
    totals = passed.combine(by="the.key", sums="value")
    windows = stream.window(size="10 s").by("`the.key`").agg(**{"a.sum": ab.sum("value")})
    other = ab.stream(rows, time="`the.time`", watermark="0 s")
    pairs = stream.join(other, on="the.key", within=("0 s", "0 s"), where=lambda found: found["value"].is_valid())
    sinks = [ab.MemorySink() for _ in range(3)]
    ab.start(
        *(query.to(sink) for query, sink in zip((totals, windows, pairs), sinks, strict=True)),
        checkpoint=tmp_path / "c", live=tmp_path / "l", trigger="available-now",
    ).awaitTermination()  # fmt: skip
    assert sorted((row["the.key"], row["value"]) for row in sinks[0].rows()) == [("a", 3), ("b", 4)]
    assert [(row["the.key"], row["a.sum"]) for row in sinks[1].rows()] == [("a", 3)]
    assert sorted((row["the.key"], row["value_right"]) for row in sinks[2].rows()) == [("a", 1), ("a", 2), ("b", 4)]


def test_a_time_with_a_dot_in_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Spark itself can have no watermark on such a column."""
    feed = Feed(tmp_path / "in")
    feed.add([(1 * S, "a", 1), (2 * S, "a", 2)], [(35 * S, "b", 4)], [(50 * S, "b", 4)])
    bare = feed.stream(spark)
    for source, watermark in (
        (bare.withColumnRenamed("at", "the.time"), "0 s"),
        (bare.withWatermark("at", "0 seconds").withColumnRenamed("at", "the.time"), None),
    ):
        once = ab.stream(source, time="`the.time`", watermark=watermark).window(size="10 s").by("key").agg(n=ab.count())
        for name, query in (("once", once), ("twice", once.window(size="20 s").by("key").agg(n=ab.sum("n")))):
            found: list[str] = []
            writer = query.to_df().writeStream.option("checkpointLocation", str(tmp_path / f"{name}-{watermark}"))
            writer.trigger(availableNow=True).foreachBatch(
                lambda rows, _, found=found: found.extend(f"{row.key}{row.n}" for row in rows.collect())
            ).start().awaitTermination()
            assert sorted(found) == ["a2", "b1"]
