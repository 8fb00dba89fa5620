"""A sum that does not fit its type is an error, in ANSI mode and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.errors import ArithmeticOverflowError, OperatorError
from anabranch.plan.tree import aggregation_tree
from anabranch.types import Aggregate
from tests.spark.runtime.test_matrix import session
from tests.spark.runtime.test_start import S
from tests.spark.streams import Feed, in_micros

TELLS = r"(?s)ArithmeticOverflowError: .*does not fit.*hint: cast the column"
NINES = "9" * 37


def decimal() -> Column:
    return F.when(F.col("v") > 0, F.lit(NINES).cast("decimal(38,0)"))


AGGREGATES: dict[str, Callable[[], Aggregate]] = {
    "bigint": lambda: ab.sum("v"),
    "decimal": lambda: ab.sum(decimal()),
    "mean of decimals": lambda: ab.avg(decimal()),
}


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["without ANSI mode", "in ANSI mode"])
def mode(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    with session(spark, "UTC", ansi=request.param):
        yield


def of_rows(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(i, v) for i, v in enumerate(values)], "t bigint, v bigint")


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_in_every_strategy(spark: SparkSession, aggregate: str) -> None:
    """Within one pane, where Spark adds: four rows of 2^62 add up to 0."""
    query = in_micros(of_rows(spark, *[2**62] * 200), time="t").window(size="200 us", slide="100 us")
    made = query.agg(v=AGGREGATES[aggregate]())
    for strategy in ("window", "batch", "pane"):
        with pytest.raises(Exception, match=TELLS):
            made.using(strategy).to_df().collect()
            pytest.fail(f"{strategy} gave an answer")


@pytest.mark.usefixtures("mode")
def test_what_fits_is_right(spark: SparkSession) -> None:
    rows = of_rows(spark, 2**62, 2**62 - 1, -(2**62))
    nothing = F.lit(None).cast("bigint")
    query = in_micros(rows, time="t").window(size="3 us").agg(v=ab.sum("v"), d=ab.sum(decimal()), no=ab.sum(nothing))
    (row,) = query.using("window").to_df().collect()
    assert (row.v, row.d, row.no) == (2**62 - 1, 2 * int(NINES), None)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("aggregate", ["bigint", "decimal"])
def test_in_start(spark: SparkSession, tmp_path: Path, aggregate: str) -> None:
    feed = Feed(tmp_path / "in")
    feed.add([(t * 1_000, "a", 2**62) for t in range(200)] + [(99 * S, "a", 0)])
    rows = feed.stream(spark).withColumnRenamed("value", "v")
    query = ab.stream(rows, time="at", watermark="0 s").window(size="1 s").by("key").agg(v=AGGREGATES[aggregate]())
    handle = query.start(ab.MemorySink(), checkpoint=tmp_path / "c", live=tmp_path / "l", trigger="available-now")
    with pytest.raises(ArithmeticOverflowError, match="does not fit its type") as raised:
        handle.awaitTermination()
    assert raised.value.hint == "cast the column to double, or to a decimal with room for the result"


@pytest.mark.usefixtures("mode")
def test_where_spark_merges_panes_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Each pane's sum fits, their sum does not."""
    feed = Feed(tmp_path / "in")
    feed.add([(t * S, "a", 2**62) for t in range(4)], [(99 * S, "a", 0)])
    inner = ab.stream(feed.stream(spark), time="at", watermark="0 s").window(size="4 s", slide="1 s")
    query = inner.agg(value=ab.sum("value")).window(size="8 s").agg(n=ab.max("value"))
    with pytest.raises(Exception, match=TELLS):
        _run(query.to_df(), tmp_path)


def _run(windows: DataFrame, folder: Path) -> None:
    writer = windows.writeStream.outputMode("append").foreachBatch(lambda rows, _: rows.collect())
    writer.option("checkpointLocation", str(folder / "c")).trigger(availableNow=True).start().awaitTermination()


class Passed(ab.Operator):
    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
        yield block


@pytest.mark.slow
def test_a_route_that_does_not_fit_an_integer_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """Without ANSI mode a cast to int would make 2^32 the first group."""
    feed = Feed(tmp_path / "in")
    feed.add([(1 * S, "a", 2**32)])
    with session(spark, "UTC", ansi=False):
        stream = ab.stream(feed.stream(spark), time="at", watermark="0 s")
        passed = stream.split(2, route=F.col("value")).process(Passed, schema=feed.schema)
        handle = passed.start(ab.MemorySink(), checkpoint=tmp_path / "c", live=tmp_path / "l", trigger="available-now")
        with pytest.raises(OperatorError, match="routed to substream 4294967296, but there are only 2"):
            handle.awaitTermination()


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("kind", "part"), [("int", 2**31 - 1), ("bigint", 2**62)])
@pytest.mark.parametrize("fan_in", [None, 2])
def test_in_the_aggregation_tree(spark: SparkSession, kind: str, part: Any, fan_in: int | None) -> None:
    partial = spark.createDataFrame([(1, part)] * 4, f"query int, v {kind}")
    with pytest.raises(Exception, match=TELLS):
        aggregation_tree(partial, ["query"], ["v"], [], fan_in).collect()
