"""What a running query says of itself: idle, how long rows waited, its log, and that it failed, without being asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import anabranch as ab
from tests.spark.streams import Feed

S = 1_000_000


class Picky(ab.Operator):
    """Counts rows, and fails at a value of 13."""

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
        if 13 in block.column("value").to_pylist():
            raise ValueError("unlucky")
        yield pa.RecordBatch.from_pydict({"n": [block.num_rows]})


def test_a_query_tells_idle_time_and_its_own_failure(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="anabranch")
    feed = Feed(tmp_path / "in")
    feed.add([(S, "a", 1)])
    processed = ab.stream(feed.stream(spark), time="at", watermark="0 s").process(Picky, "n bigint")
    with ab.Prometheus() as metrics:
        query = processed.start(
            ab.MemorySink(), checkpoint=tmp_path / "ck", live=tmp_path / "live", listeners=[metrics], name="picky"
        )
        until(lambda: query.lastProgress is not None and query.health.state == "idle")
        assert "picky" in repr(query) and "idle, epoch 0, 1 rows" in repr(query)
        time.sleep(5)  # nothing comes
        feed.add([(2 * S, "a", 2)])
        until(lambda: len(query.recentProgress) == 2)
        first, second = query.recentProgress
        assert second.latency is not None and first.latency is None
        since_the_first = second.started + second.seconds - first.started
        assert second.seconds <= second.latency < since_the_first - 3  # most of the five seconds

        feed.add([(3 * S, "a", 13)])
        labels = f'{{query="{query.id}",query_name="picky"}}'
        until(lambda: f"anabranch_query_running{labels} 0" in metrics.text())  # without a call of awaitTermination
        assert f"anabranch_query_failures_total{labels} 1" in metrics.text()
        assert query.health.state == "failed" and "unlucky" in query.health.why
        assert metrics.health()[0] == 503
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert logged[0][1].startswith(f"query picky ({query.id}) starts with epoch 0: checkpoint {tmp_path / 'ck'}")
    assert logged[-1][0] == "ERROR" and "failed after epoch 1: " in logged[-1][1] and "unlucky" in logged[-1][1]
    assert not any("\n" in message for _, message in logged)


def until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.05)
