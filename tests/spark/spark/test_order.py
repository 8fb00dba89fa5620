"""After an exchange, where a row goes does not depend on the order in which a task gets its rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.query.origins import Source
from anabranch.spark.order import order_may_change, physical_plan
from tests.spark.streams import Feed, in_micros


class Shuffled:
    """Rows in an order that only the seed knows: as a network might deliver them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(list(batches))
        order = np.random.default_rng(self.seed).permutation(rows.num_rows)
        yield from rows.take(pa.array(order)).combine_chunks().to_batches()


def arrived(spark: SparkSession, seed: int) -> DataFrame:
    """The same rows, which one task gets in another order for each seed. Not all of the columns can be sorted by."""
    rows = spark.range(300).coalesce(1).select(
        F.col("id").alias("t"), (F.col("id") % 17).cast("string").alias("k"), F.create_map("id", "id").alias("m")
    )  # fmt: skip
    return rows.mapInArrow(Shuffled(seed), rows.schema).repartition(1, "k").withColumn("odd.name", F.col("t"))


def test_a_task_that_runs_again_places_every_row_as_before(spark: SparkSession) -> None:
    for policy in ("sh", "cam"):
        partitioned = ab.partition_by(
            "k", workers=4, policy=policy, time="t", time_unit="us", window="1 ms", worker="w"
        )
        first, again = (
            {row.t: row.w for row in arrived(spark, seed).transform(partitioned).collect()} for seed in (1, 2)
        )
        assert len(first) == 300 and len(set(first.values())) == 4
        assert first == again


def add(a: int, b: int) -> int:
    return a + b


def test_what_reads_from_an_exchange_is_sorted_first(spark: SparkSession, tmp_path: Path) -> None:
    rows = arrived(spark, 1)
    total = ab.user_aggregate("t", init=int, incr=add, merge=add, final=int, returns="bigint", state="bigint")

    def sorts(frame: DataFrame) -> bool:
        text = in_micros(frame, time="t").window(size="1 ms").by("k", partition="cam", workers=2).agg(n=total).explain()
        return "Sort" in text.split("Spark plan")[1]

    assert sorts(rows)
    rows.select("t", "k").write.parquet(str(tmp_path / "rows"))
    assert not sorts(spark.read.parquet(str(tmp_path / "rows")))
    feed = Feed(tmp_path / "in")
    feed.add([(1, "a", 1)])
    recorded = ab.replay(spark, feed.folder, time="at")
    for stream, changes in ((feed.stream(spark), False), (recorded, False), (recorded.repartition(3, "key"), True)):
        source = ab.stream(stream, time="at", watermark="0 s").branches[0].origin
        assert isinstance(source, Source) and source.order_may_change is changes
    assert not order_may_change(spark.range(3).where("id > 1"))


@pytest.mark.usefixtures("compiled")  # Spark's own list of tables cannot be read without compiled code
def test_the_plan_is_read_without_a_trace(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    observation = Observation()
    bounded = spark.range(10).withColumn("odd.name", F.col("id")).observe(observation, F.count("id").alias("n"))
    stream = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    views = spark.catalog.listTables()
    assert "Range" in physical_plan(bounded) and "CollectMetrics" in physical_plan(bounded)
    assert "EventTimeWatermark" in physical_plan(stream)
    assert "StateStoreSave" in physical_plan(stream.groupBy(F.window("timestamp", "10 seconds")).count())
    assert spark.catalog.listTables() == views
    assert capfd.readouterr().out == ""
    assert bounded.count() == 10 and observation.get == {"n": 10}  # the plan alone counted nothing
