"""Epochs run one by one, each call as after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.errors import InvalidArgumentError, OperatorError
from anabranch.testing import EpochRun, StreamFeed, assert_rows_equal
from anabranch.types import Aggregation, EpochProgress, Processed, Stream
from tests.spark.testing.operators import Total

SCHEMA = "at timestamp, key string, value double"
OUTPUTS = {"total": "total double", "rows": "value double"}
S = 1_000_000


def counts(stream: Stream) -> Aggregation:
    return stream.window(size="10 s").by("key").agg(n=ab.count())


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> StreamFeed:
    return StreamFeed(spark, SCHEMA, tmp_path / "in")


def totals(feed: StreamFeed) -> Processed:
    return feed.stream(time="at").process(Total, outputs=OUTPUTS)


def test_epoch_by_epoch(feed: StreamFeed, tmp_path: Path) -> None:
    run = EpochRun(counts(feed.stream(time="at", watermark="5 s")), tmp_path / "run")
    assert run.run_epochs() == [] and run.rows() == []
    feed.add([(1 * S, "a", 1.0)], [(9 * S, "a", 1.0), (16 * S, "b", 1.0)])
    first, second = run.run_epochs()
    assert (first.number, first.rows(), first.watermark, first.late) == (0, [], -4 * S, 0)
    assert (second.number, second.watermark, second.progress.rows) == (1, 11 * S, 2)
    assert_rows_equal(second.rows(), [("a", 2)], columns=["key", "n"])
    feed.add([])
    feed.add([(2 * S, "c", 1.0), (12 * S, "b", 1.0)])  # one is late, one is not
    empty, late = run.run_epochs()
    assert (empty.number, empty.rows(), empty.late, empty.watermark) == (2, [], 0, 11 * S)
    assert (late.number, late.rows(), late.late) == (3, [], 1)
    assert [epoch.number for epoch in run.epochs] == [0, 1, 2, 3]
    assert len(run.rows()) == 1


def test_state_is_rebuilt_from_call_to_call(feed: StreamFeed, tmp_path: Path) -> None:
    run = EpochRun(totals(feed), tmp_path / "run", snapshot_every=2)
    for number in range(1, 4):
        feed.add([(number * S, "a", float(number))])
        [epoch] = run.run_epochs()
    assert run.rows("total") == [{"total": 1.0}, {"total": 3.0}, {"total": 6.0}]
    assert epoch.rows("rows") == [{"value": 3.0}]
    assert sum(worker.rebuilt for worker in epoch.progress.operators[0].workers) == 1


def test_several_queries_by_name(feed: StreamFeed, tmp_path: Path) -> None:
    stream = feed.stream(time="at")
    run = EpochRun({"counts": counts(stream), "total": totals(feed).output("total")}, tmp_path / "run")
    feed.add([(1 * S, "a", 2.0)], [(10 * S, "a", None)])
    run.run_epochs()
    assert_rows_equal(run.rows("counts"), [("a", 1)], columns=["key", "n"])
    assert_rows_equal(run.rows("total"), [(2.0,), (2.0,)])
    with pytest.raises(InvalidArgumentError, match="several outputs: counts, total"):
        run.rows()


def test_deliveries_have_their_own_sinks(feed: StreamFeed, tmp_path: Path) -> None:
    sink = ab.MemorySink()
    run = EpochRun([counts(feed.stream(time="at")).to(sink)], tmp_path / "run")
    feed.add([(1 * S, "a", 2.0)])
    feed.advance_watermark(10 * S)
    assert [epoch.number for epoch in run.run_epochs()] == [0, 1, 2]
    assert run.rows() == [] and len(sink.rows()) == 1


def test_an_error_is_raised_and_the_epochs_before_it_count(feed: StreamFeed, tmp_path: Path) -> None:
    run = EpochRun(totals(feed), tmp_path / "run")
    feed.add([(1 * S, "a", 1.0)], [(2 * S, "a", -1.0)], [(3 * S, "a", 1.0)])
    with pytest.raises(OperatorError, match="a value of -1"):
        run.run_epochs()
    assert [epoch.number for epoch in run.epochs] == [0]
    assert run.rows("total") == [{"total": 1.0}]


def test_settings_are_those_of_start(feed: StreamFeed, tmp_path: Path) -> None:
    class Heard:
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def on_started(self, query: str, run: str) -> None: ...

        def on_progress(self, progress: EpochProgress) -> None:
            self.epochs.append(progress.epoch)

        def on_terminated(self, query: str, error: str | None) -> None: ...

    heard = Heard()
    run = EpochRun(counts(feed.stream(time="at")), tmp_path / "run", listeners=[heard], workers=1)
    feed.add([(1 * S, "a", 1.0)])
    run.run_epochs()
    assert heard.epochs == [0]
    with pytest.raises(InvalidArgumentError, match="unexpected keyword argument 'trigger'"):
        EpochRun(counts(feed.stream(time="at")), tmp_path / "other", trigger="1 second")  # type: ignore[call-arg]


def test_a_data_frame_runs_as_spark_runs_it(feed: StreamFeed, tmp_path: Path) -> None:
    run = EpochRun(counts(feed.stream(time="at")).to_df(), tmp_path / "run")
    feed.add([(1 * S, "a", 1.0)], [(20 * S, "a", 1.0), (2 * S, "b", 1.0)])
    assert [(epoch.number, epoch.watermark, len(epoch.rows())) for epoch in run.run_epochs()] == [
        (0, 0, 0),
        (1, 1 * S, 0),
        (2, 20 * S, 2),
    ]
    feed.add([(3 * S, "late", 1.0)])
    [late] = run.run_epochs()
    assert late.late == 1 and late.rows() == []
    with pytest.raises(InvalidArgumentError, match="workers is a setting of start"):
        EpochRun(counts(feed.stream(time="at")).to_df(), tmp_path / "other", workers=1)


def test_what_has_no_results_is_refused(feed: StreamFeed, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a query"):
        EpochRun(feed.stream(time="at"), tmp_path / "run")  # type: ignore[arg-type]
