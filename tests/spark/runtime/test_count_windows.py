"""Count windows in `start()`: the rows that the watermark has passed give what `to_df()` gives over them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.api.windowed import Windowed
from anabranch.errors import ColumnTypeError, InvalidArgumentError
from anabranch.io.blocks import write_blocks
from anabranch.local.session import local_session
from anabranch.operators.numbering import SHED, WINDOWS_KEPT, WINDOWS_SHED
from anabranch.query.graph import Step
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.execution.base import Execution
from anabranch.runtime.execution.choose import execution_of
from anabranch.types import Stream
from anabranch.windows import Panes, Window
from tests.conftest import ROOT
from tests.spark.runtime.test_start import AGGREGATES, S, random_epochs, run, sorted_rows
from tests.spark.streams import Feed, in_micros

DELAY = 15
SLOW = pytest.mark.slow


def stream_of(source: DataFrame) -> Stream:
    return in_micros(source, time="at", watermark=f"{DELAY} seconds" if source.isStreaming else None)


def several(stream: Stream) -> Windowed:
    """Sizes 6 and 10, which share panes of 2."""
    return Windowed(stream, Panes((Window.of_rows(6, 4), Window.of_rows(10, 10))))


def passed(source: DataFrame) -> DataFrame:
    """Only the rows before the watermark: the last row of `random_epochs` is far behind all others, and is not."""
    return source.where("key is null or key <> 'end'")


def assert_same(got: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    found, expected = Counter(sorted_rows(got)), Counter(sorted_rows(wanted))
    assert (list(found - expected), list(expected - found)) == ([], [])


CASES: dict[str, Callable[[Stream], Windowed]] = {
    "per key": lambda s: s.window(rows=7, slide_rows=3).by("key"),
    "no key": lambda s: s.window(rows=9, slide_rows=2),
    "over all keys": lambda s: s.window(rows=8, slide_rows=3, per_key=False).by("key"),
    "several": lambda s: several(s).by("key"),
}


@pytest.mark.parametrize(
    "case", ["per key", "over all keys", *(pytest.param(c, marks=SLOW) for c in ("no key", "several"))]
)
def test_every_aggregate_as_in_a_batch(spark: SparkSession, tmp_path: Path, case: str) -> None:
    feed = Feed(tmp_path / "in")
    # The third epoch is empty.
    epochs = random_epochs(1)
    feed.add(*epochs[:2], [], *epochs[2:])

    def query(source: DataFrame) -> Any:
        steps = stream_of(source).with_columns({"twice": F.col("value") * 2}).filter("value is null or value < 8")
        return CASES[case](steps).agg(twice=ab.sum("twice"), **{name: make() for name, make in AGGREGATES.items()})

    got = run(query(feed.stream(spark)), tmp_path).rows()
    wanted = query(passed(feed.batch(spark))).using("pane").to_df().toArrow().to_pylist()
    assert len(wanted) > 20
    assert_same(got, wanted)


@pytest.mark.parametrize("way", ["per key", pytest.param("over all keys", marks=SLOW)])
def test_a_restart_finds_the_same_positions(spark: SparkSession, tmp_path: Path, way: str) -> None:
    """Twice: with the live state as it was left, and without it, from snapshots and logged blocks."""
    epochs = random_epochs(4, epochs=5)
    feed = Feed(tmp_path / "in")
    rows: list[dict[str, Any]] = []
    for part, live in ((epochs[:3], "one"), (epochs[3:4], "one"), (epochs[4:], "two")):
        feed.add(*part)
        query = CASES[way](stream_of(feed.stream(spark))).agg(n=ab.count(), all=ab.collect("value"))
        sink = ab.MemorySink()
        handle = query.start(
            sink,
            checkpoint=tmp_path / "checkpoint",
            live=tmp_path / live,
            snapshot_every=2,
        )
        handle.processAllAvailable()
        handle.stop()
        assert (handle.recentProgress[0].restored > 0) == (live == "two")
        rows += sink.rows()
    batch = CASES[way](stream_of(passed(feed.batch(spark)))).agg(n=ab.count(), all=ab.collect("value"))
    assert_same(rows, batch.to_df().toArrow().to_pylist())


def test_rows_that_cannot_be_counted_are_kept_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(
        [(10 * S, "a", 1), (None, "a", 2), (3 * S, None, 7)],
        [(100 * S, "a", 3), (10 * S, "a", 0)],
        [(95 * S, "a", 4), (20 * S, "late", 5), (100 * S, "a", 2), (200 * S, "a", 6)],
    )
    stream = in_micros(feed.stream(spark), time="at", watermark="10 seconds")
    query = stream.window(rows=2).by("key").agg(all=ab.collect("value"))
    sink = ab.MemorySink()
    handle = query.start(sink, checkpoint=tmp_path / "checkpoint", live=tmp_path / "live", trigger="available-now")
    handle.awaitTermination()
    assert [(p.late, p.bad) for p in handle.recentProgress] == [(0, 1), (0, 0), (1, 0)]
    # Of one time, by the other columns: 0 before 1, 2 before 3. And each as soon as its last row was passed.
    assert [(row["key"], row["window"], row["all"]) for row in sink.rows()] == [
        ("a", {"start": 0, "end": 2}, [0, 1]),
        ("a", {"start": 2, "end": 4}, [4, 2]),
    ]
    kept = spark.read.parquet(str(tmp_path / "checkpoint/side/positions-1-0")).orderBy("epoch").collect()
    assert [(row["value"], row["reason"].split(":")[0].split(" in ")[0]) for row in kept] == [
        (2, "null time"),
        (5, "late"),
    ]


@SLOW
def test_other_types_and_odd_names(spark: SparkSession, tmp_path: Path) -> None:
    """Ties are ordered as Spark orders them, and columns may be called anything."""
    feed = Feed(tmp_path / "in", "bigint")
    feed.add(*random_epochs(9, epochs=3))

    def query(source: DataFrame) -> Any:
        value = F.col("value")
        odd = source.select(
            F.when(value == 2, F.lit("NaN").cast("double")).when(value == 3, -0.0).otherwise(value / 4).alias("x.y"),
            "key",
            "at",
            (value % 2 == 0).alias("even"),
            value.cast("decimal(12,3)").alias("d"),
            F.array("value").alias("a list`"),
            F.date_add(F.lit("2020-01-01").cast("date"), F.coalesce(value, F.lit(0)).cast("int")).alias("day"),
        )
        stream = in_micros(odd, time="at", watermark=f"{DELAY} seconds" if source.isStreaming else None)
        windowed = stream.window(rows=5, slide_rows=2).by("key", "even")
        return windowed.agg(n=ab.count("x.y"), all=ab.collect("d"), first=ab.min("day"))

    got = run(query(feed.stream(spark)), tmp_path).rows()
    wanted = query(passed(feed.batch(spark))).using("pane").to_df().toArrow().to_pylist()
    assert len(wanted) > 10
    assert_same(got, wanted)


@SLOW
def test_over_blocks_with_an_aggregate_that_has_a_state(spark: SparkSession, tmp_path: Path) -> None:
    """Blocks reach the numbering without ever having been rows; here with one row per microsecond, in two columns."""
    table = pa.table({"v": [(7 * t) % 50 for t in range(1_000)], "t": range(1_000)})
    write_blocks(tmp_path / "a.arrow", table.to_batches(max_chunksize=90))
    source = ab.replay(spark, tmp_path / "a.arrow", time="t", rows_per_epoch=300, blocks=True)
    stream = ab.block_stream(source, time="t", time_unit="us", watermark="5 us", schema=table.schema)
    summed = ab.user_aggregate(
        "v", init=int, incr=int.__add__, merge=int.__add__, final=int, returns="bigint", state="bigint"
    )
    got = run(stream.window(rows=40, slide_rows=30).agg(total=summed), tmp_path).rows()
    v = table["v"].to_pylist()
    ends = [(j * 30, j * 30 + 40) for j in range(40) if j * 30 + 40 <= 994]  # the watermark ends at 999 - 5
    assert sorted((row["window"]["start"], row["total"]) for row in got) == [(a, sum(v[a:b])) for a, b in ends]


def test_what_cannot_be_counted_says_so(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add([(1 * S, "a", 1)])
    stream = stream_of(feed.stream(spark))
    with pytest.raises(InvalidArgumentError, match="must be in one place"):
        stream.window(rows=3).by("key", partition="pk").agg(n=ab.count()).to(ab.MemorySink())
    collated = stream.with_columns({"key": F.col("key").cast("string collate UTF8_LCASE")})
    with pytest.raises(ColumnTypeError, match="has a collation"):
        collated.window(rows=3).by("key").agg(n=ab.count()).to(ab.MemorySink())


@pytest.mark.parametrize("way", ["per key", pytest.param("over all keys", marks=SLOW)])
def test_a_drop_leaves_windows_out_and_the_others_alone(
    spark: SparkSession, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*random_epochs(6))
    bound = 3

    def shedding(step: Step, settings: Settings) -> Execution:
        execution = execution_of(step, settings)
        if step.node.numbers_rows:
            execution.fixed = {**execution.fixed, SHED: {"p": 0.7, "bound": bound, "seed": 1}}
        return execution

    monkeypatch.setattr("anabranch.runtime.runner.execution_of", shedding)
    query = CASES[way](stream_of(feed.stream(spark))).agg(n=ab.count(), all=ab.collect("value"))
    sink = ab.MemorySink()
    handle = query.start(sink, checkpoint=tmp_path / "checkpoint", live=tmp_path / "live", trigger="available-now")
    handle.awaitTermination()
    batch = CASES[way](stream_of(passed(feed.batch(spark)))).agg(n=ab.count(), all=ab.collect("value"))
    wanted = batch.to_df().toArrow().to_pylist()
    got = sink.rows()
    assert not Counter(sorted_rows(got)) - Counter(sorted_rows(wanted)), "a window that is not exact"
    slide = 3
    of = (lambda row: row["key"]) if way == "per key" else (lambda row: None)
    for key in {of(row) for row in wanted}:
        numbers = [
            sorted({row["window"]["start"] // slide for row in rows if of(row) == key}) for rows in (got, wanted)
        ]
        kept = [-1, *numbers[0], numbers[1][-1] + 1]
        assert max(b - a for a, b in pairwise(kept)) <= bound + 1, "a gap above the bound"
    metrics: Counter[str] = sum(
        (Counter(each.metrics) for p in handle.recentProgress for each in p.operators), Counter()
    )
    assert metrics[WINDOWS_SHED] > metrics[WINDOWS_KEPT] > 0 and metrics[SHED] > 0
    assert len(got) < len(wanted) * 0.6


def count_windows(spark: SparkSession, folder: Path) -> Any:
    """The query of the process that is killed."""
    windowed = stream_of(Feed(folder / "in").stream(spark)).window(rows=7, slide_rows=3).by("key")
    return windowed.agg(n=ab.count(), total=ab.sum("value"), all=ab.collect("value"))


def start_counting(spark: SparkSession, folder: Path) -> None:
    sink, live = ab.FileSink(folder / "out"), folder / "live"
    query = count_windows(spark, folder).start(sink, checkpoint=folder / "c", live=live, trigger="available-now")
    query.awaitTermination()


@SLOW
@pytest.mark.skipif(os.name != "posix", reason="kills a group of processes")
def test_killed_in_the_middle_of_an_epoch(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*random_epochs(8, epochs=6))
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "tests.spark.runtime.test_count_windows", str(tmp_path)]
    victim = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    begun, end = tmp_path / "c/spark/offsets/3", time.monotonic() + 300
    try:
        while not begun.exists():
            assert victim.poll() is None, victim.communicate()[1]
            assert time.monotonic() < end, "the stream did not come as far as the fourth epoch"
            time.sleep(0.01)
        time.sleep(0.5)  # into the epoch: between its two operators, or thereabouts
    finally:
        # No time to tidy up: Python and Java go at once.
        os.killpg(victim.pid, signal.SIGKILL)
        victim.communicate()
    assert not (tmp_path / "c/spark/commits/6").exists(), "the stream was through before the kill"
    start_counting(spark, tmp_path)
    got = spark.read.parquet(str(tmp_path / "out")).drop("epoch").toArrow().to_pylist()
    windowed = stream_of(passed(feed.batch(spark))).window(rows=7, slide_rows=3).by("key")
    wanted = windowed.agg(n=ab.count(), total=ab.sum("value"), all=ab.collect("value")).to_df()
    assert_same(got, wanted.toArrow().to_pylist())


if __name__ == "__main__":
    session = local_session(cores=2, shuffle_partitions=2, app_name="anabranch-counting")
    start_counting(session, Path(sys.argv[1]))
    session.stop()
