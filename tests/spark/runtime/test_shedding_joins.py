"""Shedding above joins and user operators: what is not offered, what stays exact, and decisions in the ledger's way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.errors import CheckpointError, InvalidArgumentError
from anabranch.io.folder import Folder
from anabranch.observe.progress import EpochProgress
from anabranch.store.ledger import Ledger
from anabranch.store.records import DropPlan, EpochDecision, PointDrops
from anabranch.store.voiding import void_decision
from anabranch.types import Aggregation, Stream
from tests.spark.runtime.test_shedding import S, epochs_of, longest_gap, source, started, subset, windows_of
from tests.spark.streams import Feed

QOS = ab.QoS(max_latency="1 minute", max_gap=5, drop_share=0.5)


class Passes(ab.Operator):
    """Emits what it gets at once, ahead of the watermark."""

    def process(self, block: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        yield block


def feeds(folder: Path, epochs: int = 4) -> tuple[Feed, Feed]:
    both = Feed(folder / "left"), Feed(folder / "right")
    for seed, feed in enumerate(both, 3):
        feed.add(*epochs_of(seed, epochs=epochs, rows=150, span=10))
    return both


def joined(*streams: Stream) -> Stream:
    return streams[0].join(streams[1], on="key", within=("2 s", "2 s")).as_stream()


def processed(stream: Stream, *_: Stream) -> Stream:
    return stream.process(Passes, "at timestamp, key string, value bigint", by="key").as_stream(time="at")


def aggregated(stream: Stream) -> Aggregation:
    return stream.window(size="4 s", slide="2 s").by("key").agg(n=ab.count(), total=ab.sum("value"))


@pytest.mark.parametrize(("above", "name"), [(joined, "join-1"), (processed, "process-1")])
def test_the_point_right_below_is_not_offered(spark: SparkSession, tmp_path: Path, above: Any, name: str) -> None:
    query = aggregated(above(*(source(spark, feed) for feed in feeds(tmp_path, 1))))
    why = f"before window-2: not here, window-2 reads {name}, and rows cannot be dropped below joins and user operators"
    with pytest.raises(InvalidArgumentError, match="there is no place where windows can be dropped") as refused:
        started(query.to(ab.MemorySink()), folder=tmp_path, qos=QOS)
    assert why in refused.value.message and "drop_at='results'" in refused.value.hint
    nested = query.window(size="8 s").by("key").agg(n=ab.sum("n"))
    for each, qos in ((query, ab.QoS(max_gap=5, drop_share=0.5, drop_at="results")), (nested, QOS)):
        plan = ab.drop_plan(each.to(ab.MemorySink()), qos=qos)
        assert why in plan and "results of window" in plan


@pytest.mark.slow
@pytest.mark.parametrize("above", [joined, processed])
def test_results_and_windows_over_windows_stay_exact(spark: SparkSession, tmp_path: Path, above: Any) -> None:
    both = feeds(tmp_path)

    def queries() -> tuple[Aggregation, Aggregation]:
        short = aggregated(above(*(source(spark, feed) for feed in both)))
        return short, short.window(size="8 s", slide="4 s").by("key").agg(n=ab.sum("n")).using("pane")

    exact = [ab.MemorySink() for _ in range(2)]
    started(*(query.to(sink) for query, sink in zip(queries(), exact, strict=True)), folder=tmp_path / "exact")
    for number, qos, point, slide in (
        (0, ab.QoS(max_gap=5, drop_share=0.5, drop_at="results", seed=2), "results of window-2", 2),
        (1, ab.QoS(max_latency="1 minute", max_gap=5, drop_share=0.5, seed=2), "before window-3", 4),
    ):
        shed = ab.MemorySink()
        run = started(queries()[number].to(shed), folder=tmp_path / point, qos=qos)
        assert {drop.point for progress in run.recentProgress for drop in progress.drops} == {point}
        subset(shed.rows(), exact[number].rows())
        assert 0.2 < len(shed.rows()) / len(exact[number].rows()) < 0.8
        whole, part = windows_of(exact[number].rows()), windows_of(shed.rows())
        assert longest_gap(set(whole), set(part), slide) <= 5


@pytest.mark.slow
def test_count_windows_over_a_join_stay_exact(spark: SparkSession, tmp_path: Path) -> None:
    both = feeds(tmp_path)

    def query() -> Aggregation:
        rows = joined(*(source(spark, feed) for feed in both))
        return rows.window(rows=4).by("key").agg(n=ab.count(), total=ab.sum("value"))

    exact, shed = ab.MemorySink(), ab.MemorySink()
    started(query().to(exact), folder=tmp_path / "exact")
    run = started(query().to(shed), folder=tmp_path / "shed", qos=QOS)
    assert sum(drop.dropped for progress in run.recentProgress for drop in progress.drops) > 20
    subset(shed.rows(), exact.rows())
    assert 0.2 < len(shed.rows()) / len(exact.rows()) < 0.8


# --- decisions that are in the ledger -------------------------------------------------------------------------------


def decided(monkeypatch: pytest.MonkeyPatch, change: Any, start: Any) -> None:
    """Run until an epoch is decided, and no further; the ledger gets what `change` makes of the decision."""
    write_decision = Ledger.write_decision

    def dies(self: Ledger, epoch: int, decision: EpochDecision) -> None:
        write_decision(self, epoch, change(decision))
        raise RuntimeError("as if the driver had died")

    with monkeypatch.context() as patch, pytest.raises(Exception, match="as if the driver had died"):
        patch.setattr(Ledger, "write_decision", dies)
        start()


def test_a_decision_that_cannot_be_carried_out_is_refused_and_can_be_voided(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, rows = Feed(tmp_path / "in"), epochs_of(5, epochs=4, rows=100)
    feed.add(*rows[:2])
    sink = ab.FileSink(tmp_path / "out")

    def start() -> list[EpochProgress]:
        run = started(aggregated(source(spark, feed)).to(sink), folder=tmp_path)
        return run.recentProgress

    start()
    feed.add(*rows[2:])

    def elsewhere(decision: EpochDecision) -> EpochDecision:
        return replace(decision, drops=DropPlan(points={"before join-7": PointDrops(0.5, 5, "", [])}))

    decided(monkeypatch, elsewhere, start)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="a decision for epoch 2 that cannot be carried out") as refused:
            start()
        assert "'before join-7', which is not a drop point of this query" in refused.value.message
        assert "--void-decision" in refused.value.hint
    assert void_decision(Folder.at(tmp_path / "checkpoint"), reason="a test").epoch == 2
    progress = start()
    assert [epoch.epoch for epoch in progress] == [2, 3, 4, 5] and not progress[0].replayed
    with pytest.raises(CheckpointError, match="no decision to void"):
        void_decision(Folder.at(tmp_path / "checkpoint"))
    exact = ab.MemorySink()
    started(aggregated(source(spark, feed)).to(exact), folder=tmp_path / "exact")
    found = spark.read.parquet(str(tmp_path / "out")).drop("epoch").toArrow().to_pylist()
    assert windows_of(found) == windows_of(exact.rows())


@pytest.mark.slow
def test_a_drop_before_an_aggregate_over_a_join_that_an_earlier_release_decided(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decided such drops, and failed to carry them out. Now the windows are left out where their results leave."""
    both = feeds(tmp_path)

    def query() -> Aggregation:
        return aggregated(joined(*(source(spark, feed) for feed in both)))

    shed, exact = ab.MemorySink(), ab.MemorySink()
    point = "before window-2"

    def start() -> list[EpochProgress]:
        return started(query().to(shed), folder=tmp_path / "shed").recentProgress

    def earlier(decision: EpochDecision) -> EpochDecision:
        units = [[], [2 * S, 0, 0, 4 * S], [2 * S, 0, 4 * S - 1, 4 * S]]
        first = 1_700_000_003 // 2
        state = {"unit": first, "tallies": [[0, 0]], "dropped": [[[first, first + 3], [first + 5, first + 9]]]}
        entry = {"p": 0.8, "bound": 5, "cause": "a share of 0.8, as told", "units": units, **state}
        return replace(decision, drops=DropPlan(points={point: PointDrops.from_json(entry)}))

    decided(monkeypatch, earlier, start)
    progress = start()
    assert progress[0].replayed and [drop.point for drop in progress[0].drops] == [point]
    started(query().to(exact), folder=tmp_path / "exact")
    subset(shed.rows(), exact.rows())
    missing = windows_of(exact.rows()).keys() - windows_of(shed.rows()).keys()
    starts = {round(window[2].timestamp()) // 2 - 1_700_000_003 // 2 for window in missing}
    assert starts and starts <= {0, 1, 2, 3, 5, 6, 7, 8, 9}
    assert {window for window in windows_of(exact.rows()) if round(window[2].timestamp()) // 2 in starts} <= missing
