"""`start()`: the epoch runtime gives what `to_df()` gives over the same rows, and delivers it once."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.errors import AnabranchError, CheckpointError, InvalidArgumentError, OperatorError, StreamingError
from anabranch.types import EpochProgress, State
from tests.spark.streams import Feed, in_micros

S = 1_000_000
Row = tuple[int | None, str | None, int | None]


def random_epochs(seed: int, epochs: int = 4, rows: int = 60, span: int = 40) -> list[list[Row]]:
    """Rows a little out of order, with null keys and values, equal times, and a last row that completes them all."""
    rng = random.Random(seed)
    found: list[list[Row]] = []
    for epoch in range(epochs):
        base = epoch * span * S
        found.append(
            [
                (
                    base + rng.randrange(span * S) // S * S + rng.choice([0, 0, 250_000]),
                    rng.choice(["a", "b", "c", None]),
                    rng.choice([None, *range(-3, 9)]),
                )
                for _ in range(rows)
            ]
        )
    found.append([((epochs + 10) * span * S, "end", 0)])
    return found


def run(startable: Any, folder: Path, **settings: Any) -> ab.MemorySink:
    sink = ab.MemorySink()
    query = startable.start(
        sink, checkpoint=folder / "checkpoint", live=folder / "live", trigger="available-now", **settings
    )
    query.awaitTermination()
    return sink


def sorted_rows(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def complete(windows: DataFrame, watermark: int) -> list[dict[str, Any]]:
    """The windows of a batch query that the watermark has passed."""
    end = F.col("window.end")
    if windows.schema["window"].dataType["end"].dataType.typeName() != "long":
        end = F.unix_micros(end.cast("timestamp"))
    return windows.where(end <= watermark).toArrow().to_pylist()


def spread() -> Any:
    return ab.user_aggregate(
        "value",
        init=list,
        incr=lambda state, v: [*state, v],
        merge=lambda a, b: a + b,
        final=lambda state: len(state),
        returns="bigint",
    )


AGGREGATES: dict[str, Callable[[], Any]] = {
    "n": lambda: ab.count(),
    "known": lambda: ab.count("value"),
    "total": lambda: ab.sum("value"),
    "mean": lambda: ab.avg("value"),
    "low": lambda: ab.min("value"),
    "high": lambda: ab.max("value"),
    "first": lambda: ab.first("value"),
    "last": lambda: ab.last("value"),
    "kinds": lambda: ab.count_distinct("value"),
    "top": lambda: ab.top_k("value", 2),
    "all": lambda: ab.collect("value"),
    "mine": spread,
}


@pytest.mark.parametrize(
    "time", ["timestamp", *(pytest.param(each, marks=pytest.mark.slow) for each in ("bigint", "timestamp_ntz"))]
)
def test_every_aggregate_as_in_a_batch(spark: SparkSession, tmp_path: Path, time: str) -> None:
    feed = Feed(tmp_path / "in", time)
    feed.add(*random_epochs(1))

    def query(source: DataFrame) -> Any:
        stream = in_micros(source, time="at", watermark="15 seconds" if source.isStreaming else None)
        return (
            stream.windows(("20 seconds", "10 seconds"), ("7 seconds", "3 seconds"))
            .by("key")
            .agg(**{name: make() for name, make in AGGREGATES.items()})
        )

    sink = run(query(feed.stream(spark)), tmp_path)
    watermark = 14 * 40 * S - 15 * S
    # Rows come up to 40 s late within an epoch, but no row is behind the watermark of an earlier one by its pane.
    assert sorted_rows(sink.rows()) == sorted_rows(complete(query(feed.batch(spark)).to_df(), watermark))


def test_without_a_key_and_with_floats(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*random_epochs(2))

    def query(source: DataFrame) -> Any:
        stream = in_micros(source, time="at", watermark="10 seconds" if source.isStreaming else None)
        floats = stream.with_columns({"x": F.col("value") / 4}).filter("key is not null")
        return floats.window(size="30 seconds", slide="7 seconds", origin="3 s").agg(
            total=ab.sum("x"), v=ab.variance("x"), n=ab.count()
        )

    got = sorted(run(query(feed.stream(spark)), tmp_path).rows(), key=lambda row: row["window"]["start"])
    wanted = sorted(
        complete(query(feed.batch(spark)).to_df(), 14 * 40 * S - 10 * S), key=lambda row: row["window"]["start"]
    )
    assert len(got) == len(wanted) > 10
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine["window"] == theirs["window"] and mine["n"] == theirs["n"]
        assert mine["total"] == theirs["total"]  # quarters add exactly
        assert mine["v"] == pytest.approx(theirs["v"], rel=1e-12)


@pytest.mark.slow
def test_nested_aggregates_of_any_kind(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*random_epochs(3))

    def query(source: DataFrame) -> Any:
        stream = in_micros(source, time="at", watermark="15 seconds" if source.isStreaming else None)
        inner = stream.window(size="10 seconds", slide="5 seconds").by("key").agg(n=ab.count(), mine=spread())
        return inner.filter("n > 1").window(size="20 seconds", slide="10 seconds").by("key").agg(
            most=ab.max("mine"), total=ab.sum("n")
        )  # fmt: skip

    nested = query(feed.stream(spark))
    with pytest.raises(StreamingError, match="user-defined"):
        nested.to_df()
    rows = run(nested, tmp_path).rows()
    # The inner windows are complete up to the watermark, so the outer ones are too.
    watermark = 14 * 40 * S - 15 * S
    assert sorted_rows(rows) == sorted_rows(complete(query(feed.batch(spark)).to_df(), watermark))


def test_a_restart_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    epochs = random_epochs(4)
    feed = Feed(tmp_path / "in")

    def query() -> Any:
        stream = in_micros(feed.stream(spark), time="at", watermark="15 seconds")
        return stream.window(size="20 seconds", slide="5 seconds").by("key").agg(n=ab.count(), all=ab.collect("value"))

    out = ab.FileSink(tmp_path / "out")
    for part in (epochs[:2], epochs[2:3], epochs[3:]):
        feed.add(*part)
        handle = query().start(
            out, checkpoint=tmp_path / "checkpoint", live=tmp_path / "live", trigger="available-now", snapshot_every=2
        )
        handle.awaitTermination()
        assert handle.lastProgress is not None and handle.exception() is None
    batch = in_micros(feed.batch(spark), time="at").window(size="20 seconds", slide="5 seconds").by("key")
    wanted = complete(batch.agg(n=ab.count(), all=ab.collect("value")).to_df(), 14 * 40 * S - 15 * S)
    got = spark.read.parquet(str(tmp_path / "out")).drop("epoch").toArrow().to_pylist()
    assert sorted_rows(got) == sorted_rows(wanted)
    assert not (tmp_path / "out" / "_staging").exists() or not list((tmp_path / "out" / "_staging").iterdir())


def test_state_is_restored_when_the_live_state_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    epochs = random_epochs(5)
    feed = Feed(tmp_path / "in")
    tables = []
    for number, part in enumerate((epochs[:3], epochs[3:])):
        feed.add(*part)
        stream = in_micros(feed.stream(spark), time="at", watermark="15 seconds")
        query = stream.window(size="60 seconds", slide="5 seconds").by("key").agg(n=ab.count(), v=ab.sum("value"))
        sink = ab.MemorySink()
        handle = query.start(
            sink,
            checkpoint=tmp_path / "checkpoint",
            live=tmp_path / f"live{number}",
            trigger="available-now",
            snapshot_every=2,
        )
        handle.awaitTermination()
        tables += sink.rows()
        restored = [progress.restored for progress in handle.recentProgress]
        assert (restored[0] > 0) == (number == 1) and not any(restored[1:])
    batch = in_micros(feed.batch(spark), time="at").window(size="60 seconds", slide="5 seconds").by("key")
    wanted = complete(batch.agg(n=ab.count(), v=ab.sum("value")).to_df(), 14 * 40 * S - 15 * S)
    assert sorted_rows(tables) == sorted_rows(wanted)


def test_late_and_bad_rows_are_kept_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(
        [(10 * S, "a", 1), (None, "a", 2)],
        [(100 * S, "a", 3)],
        [(95 * S, "a", 4), (20 * S, "late", 5), (200 * S, "a", 6)],
    )
    stream = in_micros(feed.stream(spark), time="at", watermark="10 seconds")
    query = stream.window(size="10 seconds").by("key").agg(n=ab.count())
    sink = ab.MemorySink()
    handle = query.start(sink, checkpoint=tmp_path / "checkpoint", live=tmp_path / "live", trigger="available-now")
    handle.awaitTermination()
    assert [(p.late, p.bad) for p in handle.recentProgress] == [(0, 1), (0, 0), (1, 0)]
    assert sum(row["n"] for row in sink.rows()) == 3  # 10, 95 and 100 s; the window of 200 s is open
    kept = spark.read.parquet(str(tmp_path / "checkpoint/side/window-1-0")).orderBy("epoch").collect()
    assert [(row["value"], row["reason"].split(":")[0].split(" in ")[0]) for row in kept] == [
        (2, "null time"),
        (5, "late"),
    ]


def test_two_sources_in_one_network(spark: SparkSession, tmp_path: Path) -> None:
    one, two = Feed(tmp_path / "one"), Feed(tmp_path / "two", key="bigint")
    one.add([(t * S, "a", t) for t in range(30)], [(t * S, "a", t) for t in range(30, 60)])
    two.add([(t * S, 7, 100) for t in range(0, 60, 2)], [(200 * S, 7, 0)])
    left = in_micros(one.stream(spark), time="at", watermark="0 s").select("at", "value")
    # Other columns, in another order, of another type: the union brings them into line.
    right = in_micros(two.stream(spark), time="at", watermark="0 s").select(F.col("value").cast("int"), "at")
    query = left.union(right).window(size="10 seconds").agg(n=ab.count(), total=ab.sum("value"))
    rows = sorted(run(query, tmp_path).rows(), key=lambda row: row["window"]["start"])
    # The first source has reached 59 s only, and holds the watermark back.
    assert [row["n"] for row in rows] == [15] * 5
    assert [row["total"] for row in rows] == [sum(range(b, b + 10)) + 500 for b in range(0, 50, 10)]


class Running(ab.Operator):
    """Counts rows, and emits a row when the watermark passes a multiple of ten seconds."""

    def open(self, state: State) -> None:
        self.sums = state.array("seen", np.int64, 2)

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[tuple[str, pa.RecordBatch]]:
        times = np.asarray(block.column("t"))
        assert (np.diff(times) >= 0).all(), "not in the order of time"
        asked = np.asarray(block.column("ask"))
        self.sums[0] += len(times) - asked.sum()
        self.sums[1] += np.asarray(block.column("v"))[~asked].sum()
        queries = np.asarray(block.column("v"))[asked]
        if len(queries):
            balance = np.full(len(queries), self.sums[1])
            yield "answer", pa.RecordBatch.from_pydict({"qid": queries, "balance": balance})

    def on_watermark(self, t: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        row = {"lane": [self.group], "at": [t], "n": [int(self.sums[0])]}
        yield "count", pa.RecordBatch.from_pydict(row)


@pytest.fixture
def reports(tmp_path: Path) -> tuple[Path, pa.Table]:
    """Rows of eight lanes, one in fifty a question to all of them."""
    from anabranch.io.blocks import write_blocks

    rng = np.random.default_rng(5)
    n = 3_000
    table = pa.table(
        {
            "t": np.sort(rng.integers(0, 100 * S, n)),
            "lane": rng.integers(-1, 8, n),
            "v": rng.integers(0, 100, n),
            "ask": rng.random(n) < 0.02,
        }
    )
    table = table.set_column(2, "v", pa.array(np.where(table["ask"], np.arange(n), table["v"])))
    folder = tmp_path / "reports"
    folder.mkdir()
    write_blocks(folder / "a.arrow", table.to_batches(max_chunksize=500))
    return folder, table


OUTPUTS = {"count": "lane bigint, at bigint, n bigint", "answer": "qid bigint, balance bigint"}


@pytest.mark.parametrize(
    "form", ["blocks", "function", *(pytest.param(each, marks=pytest.mark.slow) for each in ("column", "routed"))]
)
def test_split_operator_and_aggregation_tree(
    spark: SparkSession, tmp_path: Path, reports: tuple[Path, pa.Table], form: str
) -> None:
    folder, table = reports
    source = ab.replay(spark, folder, time="t", rows_per_epoch=1_000, blocks=True)
    stream = ab.block_stream(source, time="t", time_unit="us", watermark="0 s", schema=table.schema)
    if form == "column":
        split = stream.split(8, route=F.col("lane"), broadcast="ask")
    else:
        rows = stream if form == "blocks" else stream.filter("v is not null")
        split = rows.split(
            8,
            route=lambda block, q: block.column("lane"),
            broadcast=lambda block: block.column("ask"),
            splitters=3 if form == "routed" else None,
            window_bytes=20_000 if form == "routed" else None,
        )
    answers = split.process(Running, outputs=OUTPUTS)
    counts, totals, partial = ab.MemorySink(), ab.MemorySink(), ab.MemorySink()
    query = ab.start(
        answers.to({"count": counts, "answer": partial}),
        answers.combine("answer", by="qid", sums="balance").to(totals),
        checkpoint=tmp_path / "checkpoint",
        live=tmp_path / "live",
        trigger="available-now",
    )
    query.awaitTermination()
    lane, v, ask = (np.asarray(table[name]) for name in ("lane", "v", "ask"))
    last = {row["lane"]: row["n"] for row in counts.rows()}
    assert last == {group: int(((lane == group) & ~ask).sum()) for group in range(8)}
    # A question sees what every lane had at the end of its epoch's block.
    ends = {row["qid"]: row["balance"] for row in totals.rows()}
    assert set(ends) == set(np.flatnonzero(ask).tolist())
    for qid, balance in ends.items():
        before = slice(0, (qid // 1_000 + 1) * 1_000)
        assert balance == v[before][(lane[before] >= 0) & ~ask[before]].sum()
    assert len(partial.rows()) == 8 * int(ask.sum())
    assert query.lastProgress is not None
    measured = query.lastProgress.operators[0]
    assert sum(s.broadcast for s in measured.splitters) == int(ask[-1_000:].sum())
    assert sum(s.omitted for s in measured.splitters) == int(((lane == -1) & ~ask)[-1_000:].sum())
    assert 0 < (measured.efficiency or 0) < 1


def test_an_operator_by_key_feeds_a_window(spark: SparkSession, tmp_path: Path) -> None:
    """Fan-out and operators after operators: a user's operator, a window over what it says, and one over the source."""

    class Doubled(ab.Operator):
        def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
            values = [2 * v for v in block.column("value").to_pylist()]
            yield pa.RecordBatch.from_arrays([block.column("at"), pa.array(values)], names=["at", "twice"])

    feed = Feed(tmp_path / "in")
    feed.add([(t * S, "ab"[t % 2], t) for t in range(0, 40)], [(t * S, "a", t) for t in range(40, 61)])
    stream = in_micros(feed.stream(spark), time="at", watermark="0 s")
    doubled = stream.process(Doubled, "at timestamp, twice bigint", by="key", groups=4).as_stream(time="at")
    windows = doubled.window(size="10 seconds").agg(n=ab.count(), total=ab.sum("twice"))
    plain = stream.window(size="20 seconds").agg(n=ab.count())
    first, second = ab.MemorySink(), ab.MemorySink()
    query = ab.start(
        windows.to(first), plain.to(second), checkpoint=tmp_path / "c", live=tmp_path / "l", trigger="available-now"
    )
    query.awaitTermination()
    rows = sorted(first.rows(), key=lambda row: row["window"]["start"])
    assert [(row["n"], row["total"]) for row in rows] == [(10, 2 * sum(range(b, b + 10))) for b in range(0, 60, 10)]
    assert [row["n"] for row in second.rows()] == [20, 20, 20]
    with pytest.raises(StreamingError, match="keeps state"):
        windows.to_df()


@pytest.mark.parametrize("k", [0, 3])
def test_results_leave_in_order_from_epoch_to_epoch(spark: SparkSession, tmp_path: Path, k: int) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*random_epochs(6, epochs=2))
    stream = in_micros(feed.stream(spark), time="at", watermark="15 seconds")
    windows, sink = stream.window(size="20 seconds", slide="5 seconds").by("key").agg(n=ab.count()), ab.MemorySink()
    qos = ab.QoS(disorder=k, max_latency="1 hour")
    query = windows.start(sink, checkpoint=tmp_path / "c", live=tmp_path / "l", qos=qos)
    query.processAllAvailable()
    query.stop()
    ends = [row["window"]["end"] for row in sink.rows()]
    ranks = {end: rank for rank, end in enumerate(sorted(set(ends)))}
    for i, end in enumerate(ends):
        behind = [j for j in range(i + 1, len(ends)) if ranks[ends[j]] < ranks[end]]
        assert not behind or max(behind) - i <= k
    # Windows that wait for others of their batch could leave after later ones: no controller lets them wait.
    assert query.lastProgress is not None and query.lastProgress.operators[0].decisions["batch"] == 1
    assert "out of order, from epoch to epoch too" in query.explain() or k == 0


def test_every_sink_gets_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*random_epochs(7, epochs=2))
    calls: dict[int, int] = {}
    stream = in_micros(feed.stream(spark), time="at", watermark="15 seconds")
    query = stream.window(size="10 seconds").by("key").agg(n=ab.count())
    sink = ab.CallSink(lambda rows, epoch: calls.__setitem__(epoch, rows.count()))
    query.start(sink, checkpoint=tmp_path / "c", live=tmp_path / "l", trigger="available-now").awaitTermination()
    batch = in_micros(feed.batch(spark), time="at").window(size="10 seconds").by("key").agg(n=ab.count())
    assert sum(calls.values()) == len(complete(batch.to_df(), 12 * 40 * S - 15 * S))


def test_what_cannot_run_says_so(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add([(1 * S, "a", 1)])
    stream = in_micros(feed.stream(spark), time="at", watermark="0 s")
    query = stream.window(size="10 seconds").agg(n=ab.count())
    sink = ab.MemorySink()
    cases: list[tuple[type[AnabranchError], str, Callable[[], object]]] = [
        (InvalidArgumentError, "needs at least one result", lambda: ab.start(checkpoint=tmp_path / "x")),
        (InvalidArgumentError, "is not a Sink", lambda: query.start("out/", checkpoint=tmp_path / "x")),
        (InvalidArgumentError, "sink of two", lambda: ab.start(query.to(sink), query.to(sink), checkpoint="x")),
        (StreamingError, "bounded", lambda: in_micros(feed.batch(spark), time="at").window(size="1 s")
            .agg(n=ab.count()).start(sink, checkpoint=tmp_path / "x")),
        (InvalidArgumentError, "no Delta connector", lambda: query.start(ab.DeltaSink("t"), checkpoint=tmp_path / "x")),
        (InvalidArgumentError, "otherwise no tuple goes anywhere", lambda: stream.split(3)),
        (InvalidArgumentError, r"split\(0\): the number", lambda: stream.split(0, route="value")),
        (InvalidArgumentError, "does not create operators", lambda: stream.process(Running(), "a int")),
        (InvalidArgumentError, "columns that it emits", lambda: stream.process(Running)),
        (InvalidArgumentError, "is not a Spark schema", lambda: stream.process(Running, "a b c")),
        (InvalidArgumentError, "disorder", lambda: ab.QoS(disorder=-1)),
        (InvalidArgumentError, "max_latency", lambda: ab.QoS(max_latency="0 s")),
    ]  # fmt: skip
    for kind, text, action in cases:
        with pytest.raises(kind, match=text):
            action()


def test_a_checkpoint_belongs_to_its_query(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add([(1 * S, "a", 1)], [(100 * S, "a", 1)])
    stream = in_micros(feed.stream(spark), time="at", watermark="0 s")
    run(stream.window(size="10 seconds").agg(n=ab.count()), tmp_path)
    with pytest.raises(CheckpointError, match="another query"):
        run(stream.window(size="20 seconds").agg(n=ab.count()), tmp_path)


def test_an_operator_that_fails_ends_the_query_with_its_words(spark: SparkSession, tmp_path: Path) -> None:
    class Broken(ab.Operator):
        def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
            raise ValueError("no such lane")

    feed = Feed(tmp_path / "in")
    feed.add([(1 * S, "a", 1)])
    stream = in_micros(feed.stream(spark), time="at", watermark="0 s")
    with pytest.raises(OperatorError, match="no such lane"):
        run(stream.process(Broken, "n bigint", by="key"), tmp_path)


def test_the_handle_tells_what_happens(spark: SparkSession, tmp_path: Path) -> None:
    events: list[tuple[str, Any]] = []

    class Ear:
        def on_started(self, query: str, run: str) -> None:
            events.append(("started", run))

        def on_progress(self, progress: EpochProgress) -> None:
            events.append(("progress", progress.epoch))

        def on_terminated(self, query: str, error: str | None) -> None:
            events.append(("terminated", error))

    feed = Feed(tmp_path / "in")
    feed.add([(1 * S, "a", 1)], [(100 * S, "b", 1)])
    stream = in_micros(feed.stream(spark), time="at", watermark="0 s")
    query = stream.window(size="10 seconds").agg(n=ab.count())
    handle = query.start(ab.MemorySink(), checkpoint=tmp_path / "c", live=tmp_path / "l", listeners=[Ear()], name="ear")
    handle.processAllAvailable()
    assert handle.isActive and handle.name == "ear" and handle.status["message"]
    handle.stop()
    assert not handle.isActive and handle.exception() is None
    assert [kind for kind, _ in events] == ["started", "progress", "progress", "terminated"]
    assert events[0][1] == handle.runId and events[-1][1] is None
    progress = handle.lastProgress
    assert progress is not None and progress.rows == 1 and progress.epoch == 1
    assert progress.operators[0].watermark == 100 * S and progress.state_bytes > 0
    assert len(handle.recentProgress) == 2


def test_the_watermark_moves_though_all_rows_are_filtered_out(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add([(1 * S, "a", 1)], [(100 * S, "b", 1)], [(101 * S, "b", 1)])
    stream = in_micros(feed.stream(spark), time="at", watermark="0 s").filter("key = 'a'")
    query = stream.window(size="10 seconds").agg(n=ab.count())
    sink = ab.MemorySink()
    handle = query.start(sink, checkpoint=tmp_path / "c", live=tmp_path / "l", trigger="available-now")
    handle.awaitTermination()
    assert [row["n"] for row in sink.rows()] == [1]
    assert [progress.rows for progress in handle.recentProgress] == [1, 1, 1]


def test_state_on_an_object_store(spark: SparkSession, tmp_path: Path, s3: fs.S3FileSystem) -> None:
    feed = Feed(tmp_path / "in")
    epochs = random_epochs(8, epochs=2)
    epochs[0].append((None, "a", 1))
    rows = []
    for part in (epochs[:1], epochs[1:]):  # a restart, and the live state is lost
        feed.add(*part)
        stream = in_micros(feed.stream(spark), time="at", watermark="15 seconds")
        inner = stream.window(size="10 seconds").by("key").agg(n=ab.count())
        query = inner.window(size="20 seconds").agg(n=ab.sum("n"))
        sink = ab.MemorySink()
        live = tmp_path / f"live{len(rows)}"
        handle = query.start(
            sink,
            checkpoint=tmp_path / "checkpoint",
            store=(s3, "bucket/state"),
            live=live,
            trigger="available-now",
            snapshot_every=1 if not rows else 10,
        )
        handle.awaitTermination()
        rows += sink.rows()
    kept = [
        info.path for info in s3.get_file_info(fs.FileSelector("bucket/state/side", recursive=True)) if info.is_file
    ]
    assert len(kept) == 1 and "window-1-0/epoch=0" in kept[0]
    assert sum(row["n"] for row in rows) == sum(len(each) for each in epochs[:-1]) - 1


def test_an_idle_source_does_not_hold_the_watermark_back(spark: SparkSession, tmp_path: Path) -> None:
    busy, silent = Feed(tmp_path / "busy"), Feed(tmp_path / "silent")
    silent.add([(1 * S, "s", 1)])
    busy.add([(t * S, "b", 1) for t in range(20)])
    one = in_micros(busy.stream(spark), time="at", watermark="0 s")
    two = in_micros(silent.stream(spark), time="at", watermark="0 s")
    query = one.union(two).window(size="10 seconds").agg(n=ab.count())
    rows = []
    for number in range(2):
        busy.add([(t * S, "b", 1) for t in range(20 + number, 40 + number)])
        sink = ab.MemorySink()
        query.start(
            sink,
            checkpoint=tmp_path / "c",
            live=tmp_path / "l",
            trigger="available-now",
            idle="1 microsecond" if number else None,
        ).awaitTermination()
        rows.append(sorted(row["n"] for row in sink.rows()))
    assert rows[0] == []  # held back at 1 s
    assert rows[1][-1] >= 10 and len(rows[1]) >= 3


def test_blocks_as_payloads_of_messages(spark: SparkSession, tmp_path: Path, reports: tuple[Path, pa.Table]) -> None:
    """As from Kafka: Arrow blocks in a binary column, some empty; also as rows for everything that wants rows."""
    from anabranch.io.blocks import pack

    _, table = reports
    folder = tmp_path / "messages"
    folder.mkdir()
    blocks = [pack(batch).to_pybytes() for batch in table.to_batches(max_chunksize=700)]
    for number, part in enumerate((blocks[:2], [*blocks[2:], None])):
        file = folder / f"{number}.parquet"
        pq.write_table(pa.table({"value": pa.array(part, pa.binary())}), file)
        os.utime(file, (1_000_000_000 + number,) * 2)  # the file source takes files by their time of change
    source = spark.readStream.schema("value binary").option("maxFilesPerTrigger", 1).parquet(str(folder))
    stream = ab.block_stream(source, time="t", time_unit="us", watermark="0 s", schema=table.schema, column="value")
    counts, windows = ab.MemorySink(), ab.MemorySink()
    lanes = stream.split(8, route=lambda block, q: block.column("lane")).process(Running, outputs=OUTPUTS)
    ab.start(
        lanes.to({"count": counts}),
        stream.window(size="1000 s").agg(n=ab.count()).to(windows),
        checkpoint=tmp_path / "checkpoint",
        live=tmp_path / "live",
        trigger="available-now",
    ).awaitTermination()
    lane, ask = np.asarray(table["lane"]), np.asarray(table["ask"])
    last = {row["lane"]: row["n"] for row in counts.rows()}
    assert last == {group: int(((lane == group) & ~ask).sum()) for group in range(8)}
    assert windows.rows() == []  # the window is open


def test_windows_that_are_read_do_not_wait_for_their_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Those who read them would take them for late: no controller raises B, and a B of the user's is refused."""
    feed = Feed(tmp_path / "in")
    feed.add(*random_epochs(9, span=7, epochs=2))
    stream = in_micros(feed.stream(spark), time="at", watermark="0 s")
    inner = stream.window(size="2 s").by("key").agg(n=ab.count())
    outer = inner.window(size="6 s", slide="4 s").by("key").agg(n=ab.sum("n"))
    query = outer.start(
        ab.MemorySink(), checkpoint=tmp_path / "c", live=tmp_path / "l", qos=ab.QoS(max_latency="1 hour")
    )
    query.processAllAvailable()
    query.stop()
    progress = query.lastProgress
    assert progress is not None and progress.operators[0].decisions["batch"] == 1
    waiting = inner.using("pane", batch=10).window(size="6 s", slide="4 s").by("key").agg(n=ab.sum("n"))
    with pytest.raises(InvalidArgumentError, match="feeds another operator"):
        run(waiting, tmp_path / "refused")
