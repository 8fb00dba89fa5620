"""What a query would not use is refused with the reason, not ignored. None of these runs a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import anabranch as ab
from anabranch.errors import InvalidArgumentError, InvalidWindowError, StreamingError
from anabranch.query.nodes import WindowNode
from anabranch.types import Aggregate, Aggregation, Stream

W = ("1 s", "1 s")


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], "at timestamp, key string, value bigint")


@pytest.fixture(scope="module")
def live(spark: SparkSession) -> Stream:
    rows = spark.readStream.format("rate").load().selectExpr("timestamp as at", "'a' as key", "value")
    return ab.stream(rows, time="at", watermark="0 s")


def in_parts() -> Aggregate:
    return ab.user_aggregate("value", init=int, incr=max, merge=max, final=int, returns="bigint", state="bigint")


def aggregated(stream: Stream) -> Aggregation:
    return stream.window(size="10 s", slide="5 s").by("key").agg(n=ab.count())


Make = Callable[[Stream], Any]

BOUNDED: dict[str, tuple[Make, str]] = {
    "choices with auto": (
        lambda s: s.window(size="1 s").by("key", choices=3),
        'choices=3 does not apply to partition="auto"',
    ),
    "choices with fld": (lambda s: s.window(size="1 s").by("key", partition="fld", choices=3), "which has none"),
    "choices with heavy": (lambda s: s.window(size="1 s").by("key", partition="heavy", choices=2), "which has none"),
    "cardinality with auto": (
        lambda s: s.window(size="1 s").by("key", cardinality="hll"),
        'does not apply to partition="auto"',
    ),
    "cardinality with pk": (
        lambda s: s.window(size="1 s").by("key", partition="pk", cardinality="exact"),
        "does not count keys",
    ),
    "workers for Spark's aggregates": (
        lambda s: s.window(size="1 s").by("key", workers=8).agg(n=ab.count()),
        "no policy places the keys",
    ),
    "splitters without a key": (
        lambda s: s.window(size="1 s").by(splitters=1).agg(n=in_parts()),
        "no key to partition by",
    ),
    "a batch of auto": (lambda s: aggregated(s).using(batch=3), 'batch=3 has no effect with the strategy "auto"'),
    "a batch of window": (lambda s: aggregated(s).using("window", batch=3), "evaluates one window at a time"),
    "nodes of batch": (lambda s: aggregated(s).using("batch", batch=2, nodes=3), "only panes use a ring"),
    "nodes with keys": (lambda s: aggregated(s).using("pane", nodes=3), "which needs no ring"),
    "a strategy and a policy": (
        lambda s: s.window(size="1 s").by("key", partition="fld").agg(n=ab.count()).using("window").to_df(),
        "strategy 'window' cannot be combined with partition='fld'",
    ),
    "groups of a join": (lambda s: s.join(s, on="key", within=W, groups=3).to_df(), "groups=... of a join"),
    "tuning of a join": (
        lambda s: s.join(s, on="key", within=W, tuning=ab.JoinTuning(theta=9)).window(size="1 s"),
        "tuning=... of a join",
    ),
    "choices of a report": (
        lambda s: ab.partition_report(s.source, "key", workers=2, policies=("fld",), choices=3),
        "has no effect",
    ),
    "choices of partition_by": (lambda s: ab.partition_by("key", workers=2, policy="sh", choices=3), "which has none"),
}


@pytest.mark.parametrize("case", BOUNDED)
def test_bounded(table: DataFrame, case: str) -> None:
    make, message = BOUNDED[case]
    with pytest.raises(InvalidArgumentError, match=message):
        make(ab.stream(table, time="at"))


def test_counts_over_all_keys_are_for_rows(table: DataFrame) -> None:
    with pytest.raises(InvalidWindowError, match="per_key=False is for windows over rows"):
        ab.stream(table, time="at").window(size="1 s", per_key=False)


def test_a_strategy_that_was_asked_for_comes_before_a_policy_that_was_not(table: DataFrame) -> None:
    query = ab.stream(table, time="at").window(size="2 s", slide="1 s").by("key").agg(n=in_parts())
    assert "cAM-2" in query.explain()
    asked = query.using("batch", batch=2).explain()
    assert "left to Spark: the requested strategy does not place keys" in asked


PLANNED: dict[str, tuple[Make, str]] = {
    "a policy": (
        lambda s: s.window(size="1 s").by("key", partition="fld").agg(n=ab.count()).to_df(),
        "cannot place keys",
    ),
    "a policy, inside": (
        lambda s: (
            s.window(size="1 s")
            .by("key", partition="fld")
            .agg(n=ab.count())
            .window(size="2 s")
            .agg(n=ab.sum("n"))
            .to_df()
        ),
        "cannot place keys",
    ),
    "workers": (lambda s: s.window(size="1 s").by("key", workers=3).agg(n=in_parts()).explain(), "cannot place keys"),
    "a strategy, inside": (
        lambda s: aggregated(s).using("batch", batch=2).window(size="20 s").agg(n=ab.sum("n")).to_df(),
        "merges their panes",
    ),
}


@pytest.mark.parametrize("case", PLANNED)
def test_a_streaming_plan(live: Stream, case: str) -> None:
    make, message = PLANNED[case]
    with pytest.raises(StreamingError, match=message):
        make(live)


def start(query: Any, folder: Path, **settings: Any) -> None:
    query.start(ab.MemorySink(), checkpoint=folder / "checkpoint", **settings)


def delivered(query: Any, folder: Path, settings: dict[str, Any], **of_delivery: Any) -> None:
    ab.start(query.to(ab.MemorySink(), **of_delivery), checkpoint=folder / "checkpoint", **settings)


NOW = "available-now"
STARTED: dict[str, tuple[Callable[[Stream, Path], Any], str]] = {
    "a strategy by window": (
        lambda s, f: start(aggregated(s).using("window"), f),
        "does not support the strategy 'window'",
    ),
    "a strategy by batch": (
        lambda s, f: start(aggregated(s).using("batch", batch=4), f),
        "does not support the strategy 'batch'",
    ),
    "a strategy, inside": (
        lambda s, f: start(aggregated(s).using("window").window(size="20 s").agg(n=ab.sum("n")), f),
        "does not support the strategy",
    ),
    "a delay": (lambda s, f: start(aggregated(s).using("pane", max_delay="1 s"), f), "does not support max_delay=1 s"),
    "a density": (lambda s, f: start(aggregated(s).assume(rows_per_pane=3), f), r"does not support assume\(...\)"),
    "a batch in order": (
        lambda s, f: start(aggregated(s).using("pane", batch=4), f, qos=ab.QoS(disorder=0)),
        "would be delivered out of order",
    ),
    "a batch when the input ends": (
        lambda s, f: start(aggregated(s).using("pane", batch=4), f, trigger=NOW),
        "would not be delivered",
    ),
    "a batch of count windows": (
        lambda s, f: start(s.window(rows=5).by("key").agg(n=ab.count()).using("pane", batch=4), f),
        "waits for no other",
    ),
    "workers of count windows": (
        lambda s, f: start(s.window(rows=5).by("key", workers=3).agg(n=in_parts()), f),
        "must be in one place",
    ),
    "order of a join": (
        lambda s, f: start(s.join(s, on="key", within=W), f, qos=ab.QoS(disorder=0)),
        "not possible for join-1",
    ),
    "order of an operator": (
        lambda s, f: start(s.process(ab.Operator, "n int", by="key"), f, qos=ab.QoS(disorder=3)),
        "not possible for process-1",
    ),
    "order of answers": (
        lambda s, f: start(
            s.process(ab.Operator, "k int, n int", by="key").combine(by="k", sums="n"), f, qos=ab.QoS(disorder=0)
        ),
        "is not a windowed aggregate",
    ),
    "order of positions of keys": (
        lambda s, f: start(s.window(rows=5).by("key").agg(n=ab.count()), f, qos=ab.QoS(disorder=0)),
        "counts its own rows",
    ),
    "turns without an interval": (
        lambda s, f: start(s.join(s, on="key", within=W, tuning=ab.JoinTuning(slots=3)), f, trigger=NOW),
        "slots=3",
    ),
    "coins without a gap": (
        lambda s, f: start(aggregated(s), f, qos=ab.QoS(seed=3)),
        "without max_gap, .* have no effect: seed",
    ),
    "a place without a gap": (
        lambda s, f: start(aggregated(s), f, qos=ab.QoS(drop_at="source")),
        "without max_gap, .* have no effect: drop_at",
    ),
    "a weight without a gap": (
        lambda s, f: delivered(aggregated(s), f, {}, weight=2.0),
        "without max_gap, .* have no effect: weight",
    ),
    "a gap of an operator": (
        lambda s, f: delivered(s.process(ab.Operator, "n int", by="key"), f, {}, max_gap=3),
        "only windows can be dropped",
    ),
    "groups without a key": (
        lambda s, f: s.process(ab.Operator, "n int", groups=3),
        "groups=3 has no effect without a key",
    ),
    "choices without a policy": (
        lambda s, f: s.process(ab.Operator, "n int", by="key", choices=3, splitters=1),
        "without a policy, .* have no effect: choices, splitters",
    ),
    "nodes of a stream": (
        lambda s, f: s.window(size="1 s").agg(n=ab.count()).using("pane", nodes=3),
        "which has no ring",
    ),
    "coins of a halt": (
        lambda s, f: ab.QoS(max_latency="1 s", overflow="halt", seed=3),
        "have no effect with it: seed",
    ),
}


@pytest.mark.parametrize("case", STARTED)
def test_the_epoch_runtime(live: Stream, tmp_path: Path, case: str) -> None:
    make, message = STARTED[case]
    with pytest.raises(InvalidArgumentError, match=message):
        make(live, tmp_path)
    assert not list(tmp_path.iterdir())  # refused before anything was written


def test_what_the_runtime_uses_is_not_refused(live: Stream) -> None:
    batched = aggregated(live).using("pane", batch=4)
    assert isinstance(batched.node, WindowNode) and batched.node.batch == 4 and batched.node.refusal is None
    assert aggregated(live).using("pane").node.batch is None  # left to the controller
