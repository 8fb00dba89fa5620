"""Key partitioners in the epoch runtime: the same answers by every policy, metrics that add up, a changing policy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import anabranch as ab
from anabranch.errors import InvalidArgumentError
from anabranch.types import EpochQuery
from tests.spark.runtime.test_start import Row, S, complete, random_epochs, sorted_rows
from tests.spark.streams import Feed

POLICIES = [
    ("sh", "exact"),
    ("heavy", "exact"),
    *(pytest.param(*each, marks=pytest.mark.slow) for each in (("fld", "exact"), ("pk", "exact"), ("lm", "hll"))),
]


def values() -> Any:
    """All values, sorted: a state that travels, and that shows every row that is lost or doubled."""
    return ab.user_aggregate(
        "value",
        init=list,
        incr=lambda state, v: [*state, -99 if v is None else v],
        merge=lambda a, b: a + b,
        final=sorted,
        returns="array<bigint>",
        state="array<bigint>",
    )


def run(startable: Any, folder: Path, **settings: Any) -> tuple[ab.MemorySink, EpochQuery]:
    sink = ab.MemorySink()
    query = startable.start(
        sink, checkpoint=folder / "checkpoint", live=folder / "live", trigger="available-now", **settings
    )
    query.awaitTermination()
    return sink, query


def query_over(source: DataFrame, how: str, cardinality: str = "exact", **aggregates: Any) -> Any:
    stream = ab.stream(source, time="at", watermark="15 seconds" if source.isStreaming else None)
    windows = stream.window(size="20 seconds", slide="8 seconds")
    settings: dict[str, Any] = {} if how == "auto" else {"workers": 3}
    settings |= {"cardinality": cardinality} if cardinality == "hll" else {}
    return windows.by("key", partition=how, **settings).agg(**aggregates)


@pytest.mark.parametrize(("policy", "cardinality"), POLICIES)
def test_python_aggregates_as_in_a_batch(spark: SparkSession, tmp_path: Path, policy: str, cardinality: str) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*random_epochs(3, epochs=3))
    sink, query = run(query_over(feed.stream(spark), policy, cardinality, all=values()), tmp_path)
    watermark = query.lastProgress.operators[0].watermark
    expected = complete(query_over(feed.batch(spark), "auto", all=values()).to_df(), watermark)
    assert expected and sorted_rows(sink.rows()) == sorted_rows(expected)


def test_native_aggregates_by_a_policy(spark: SparkSession, tmp_path: Path) -> None:
    aggregates = {
        "n": ab.count(),
        "mean": ab.avg("value"),
        "kinds": ab.count_distinct("value"),
        "end": ab.last("value"),
    }
    feed = Feed(tmp_path / "in")
    feed.add(*random_epochs(4, epochs=2))
    sink, query = run(query_over(feed.stream(spark), "pk", **aggregates), tmp_path)
    watermark = query.lastProgress.operators[0].watermark
    expected = complete(query_over(feed.batch(spark), "auto", **aggregates).to_df(), watermark)
    assert expected and sorted_rows(sink.rows()) == sorted_rows(expected)
    assert "setting     partition = PK-2" in query.explain()


def test_late_and_bad_rows_are_counted_and_kept(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add([(100 * S, "a", 1), (None, "a", 2)], [(1 * S, "a", 3), (101 * S, "b", 4)], [(500 * S, "z", 0)])
    sink, query = run(query_over(feed.stream(spark), "cam", all=values()), tmp_path)
    epochs = query.recentProgress
    assert sum(epoch.bad for epoch in epochs) == 1 and sum(epoch.late for epoch in epochs) == 1
    assert {tuple(row["all"]) for row in sink.rows()} == {(1,), (4,)}
    kept = spark.read.option("recursiveFileLookup", True).parquet(str(tmp_path / "checkpoint" / "side")).collect()
    assert sorted(row["value"] for row in kept) == [2, 3]


def test_metrics_add_up(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(5)
    feed = Feed(tmp_path / "in")
    feed.add([(rng.randrange(20 * S), rng.choice("abcdefgh"), 1) for _ in range(300)])
    tumbling = ab.stream(feed.stream(spark), time="at", watermark="0 seconds").window(size="20 seconds")
    for policy, cost in (("fld", 8), ("sh", 24)):
        partitioned = tumbling.by("key", partition=policy, workers=3).agg(all=values())
        _, query = run(partitioned, tmp_path / policy)
        measured = query.recentProgress[0].operators[0]
        (window,) = measured.partitions
        assert (window.window, window.tuples, window.keys, window.workers) == (0, 300, 8, 3)
        assert window.aggregation_cost == cost and (window.least_cost, window.most_cost) == (8, 24)
        assert window.tuple_imbalance == 0 if policy == "sh" else window.tuple_imbalance > 0
        assert sum(n for _, n in measured.heaviest) == 300
        assert "partial results (at least 8, at most 24)" in query.explain()
        assert query.recentProgress[0].as_json()["operators"][0]["partitions"][0]["aggregation_cost"] == cost


def test_auto_changes_its_mind(spark: SparkSession, tmp_path: Path) -> None:
    """Few keys, many rows: from cAM, the choice while nothing is known, to SH; with many keys to the shared table."""
    rng = random.Random(6)
    few: list[list[Row]] = [[(e * S + rng.randrange(S), rng.choice("ab"), 1) for _ in range(300)] for e in range(2)]
    many: list[list[Row]] = [[(e * S, f"k{i}", 1) for i in range(200)] for e in range(2, 12)]
    feed = Feed(tmp_path / "in")
    feed.add(*few, *many)
    stream = ab.stream(feed.stream(spark), time="at", watermark="0 seconds").window(size="1 second")
    sink, query = run(stream.by("key", workers=2).agg(all=values()), tmp_path)
    chosen = [epoch.operators[0].decisions["partition"] for epoch in query.recentProgress]
    assert chosen[:2] == ["cAM-2", "SH-w"] and chosen[-1] == "heavy"
    assert len(query.recentProgress[-1].operators[0].decisions["heavy_keys"]["keys"]) == 200
    assert "keys in a window" in query.explain() and "heavy keys" in query.explain()
    assert sum(len(row["all"]) for row in sink.rows()) == 600 + 200 * 9  # the last second is not complete


def test_auto_leaves_sparks_own_aggregates_alone(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*random_epochs(1, epochs=1))
    _, query = run(query_over(feed.stream(spark), "auto", n=ab.count()), tmp_path)
    assert "partition" not in query.lastProgress.operators[0].decisions
    assert not query.lastProgress.operators[0].partitions


def test_a_restart_may_take_another_policy(spark: SparkSession, tmp_path: Path) -> None:
    epochs = random_epochs(7, epochs=4)
    feed = Feed(tmp_path / "in")
    feed.add(*epochs[:2])
    first, _ = run(query_over(feed.stream(spark), "pk", all=values()), tmp_path)
    feed.add(*epochs[2:])
    second, query = run(query_over(feed.stream(spark), "cam", all=values()), tmp_path)
    watermark = query.lastProgress.operators[0].watermark
    expected = complete(query_over(feed.batch(spark), "auto", all=values()).to_df(), watermark)
    assert sorted_rows([*first.rows(), *second.rows()]) == sorted_rows(expected)


# --- operators of the user's own ------------------------------------------------------------------------------------


class Partial(ab.Operator):
    """Counts the rows of each key in this epoch: partial answers, if a policy spreads the keys."""

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
        counts = pa.Table.from_batches([block]).group_by("key").aggregate([("key", "count")])
        self.metrics["blocks"] += 1
        n = counts["key_count"].combine_chunks()
        yield pa.RecordBatch.from_arrays([counts["key"].combine_chunks(), n], names=["key", "n"])


@pytest.mark.parametrize("policy", ["pk", "cam", "auto"])
def test_an_operator_over_placed_keys(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    feed = Feed(tmp_path / "in")
    rows: list[Row] = [(i * S, "abc"[i % 7 % 3], 1) for i in range(70)]
    feed.add(rows)
    stream = ab.stream(feed.stream(spark), time="at", watermark="0 seconds")
    partial = stream.process(
        Partial, "key string, n bigint", by="key", groups=4, partition=policy, partition_window="10 seconds"
    )
    sink, query = run(partial.combine(by="key", sums="n"), tmp_path)
    expected = {key: sum(row[1] == key for row in rows) for key in "abc"}
    assert {row["key"]: row["n"] for row in sink.rows()} == expected
    measured = query.recentProgress[0].operators[0]
    assert [part.tuples for part in measured.partitions] == [10] * 7 and measured.partitions[0].keys == 3
    assert measured.metrics["blocks"] >= 1 and "metric      blocks" in query.explain()


def test_an_operator_needs_a_key_to_place(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add([(0, "a", 1)])
    stream = ab.stream(feed.stream(spark), time="at", watermark="0 seconds")
    with pytest.raises(InvalidArgumentError, match="nothing to place"):
        stream.process(Partial, "key string, n bigint", partition="pk")
