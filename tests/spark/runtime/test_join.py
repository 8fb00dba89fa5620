"""Joins in the epoch runtime: the pairs of nested loops, whichever worker has a group when it is joined."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.api.joined import Joined
from anabranch.api.stream import Stream
from anabranch.control.rebalance import ROUTING
from anabranch.errors import InvalidArgumentError, StateError
from anabranch.observe.progress import EpochProgress
from anabranch.runtime import runner as epochs_module
from anabranch.runtime.execution import join as join_execution
from tests.spark.streams import Feed
from tests.wandering import Wandering

S = 1_000_000
Row = tuple[int | None, str | None, int | None]


def random_epochs(seed: int, epochs: int = 5, rows: int = 40, span: int = 10) -> list[list[Row]]:
    """Rows a little out of order, with null keys and equal times; the last row lets all windows pass."""
    rng = random.Random(seed)
    keys = ["a", "b", "c", "dd", None]
    found: list[list[Row]] = [
        [((e * span + rng.randrange(span)) * S, rng.choice(keys), e * rows + i) for i in range(rows)]
        for e in range(epochs)
    ]
    found.append([(1_000 * S, "end", -1)])
    return found


def near(left: Row, right: Row, within: tuple[int, int]) -> bool:
    (a, key, _), (b, other, _) = left, right
    return key is not None and key == other and a is not None and b is not None and a - within[1] <= b <= a + within[0]


def expected(left: list[Row], right: list[Row], within: tuple[int, int], how: str) -> list[tuple[Any, Any]]:
    """(value of the left row, value of the right row), by nested loops."""
    pairs = [(a[2], b[2]) for a in left for b in right if near(a, b, within)]
    if how in ("left", "full"):
        pairs += [(a[2], None) for a in left if a[0] is not None and not any(near(a, b, within) for b in right)]
    if how in ("right", "full"):
        pairs += [(None, b[2]) for b in right if b[0] is not None and not any(near(a, b, within) for a in left)]
    return sorted(pairs, key=str)


def found(sink: ab.MemorySink) -> list[tuple[Any, Any]]:
    tables = [table for _, table in sorted(sink.epochs.items())]
    pairs = [pair for t in tables for pair in zip(t["value"].to_pylist(), t["value_right"].to_pylist(), strict=True)]
    return sorted((pair for pair in pairs if -1 not in pair), key=str)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Feed, Feed, list[Row], list[Row]]:
    folder = tmp_path_factory.mktemp("sides")
    rows = random_epochs(1), random_epochs(2)
    rows[0][1].append((None, "a", 7_000))  # without a time
    feeds = Feed(folder / "left"), Feed(folder / "right")
    for feed, epochs in zip(feeds, rows, strict=True):
        feed.add(*epochs)
    left, right = ([row for epoch in each for row in epoch if row[1] != "end"] for each in rows)
    return (*feeds, left, right)


def streams(spark: SparkSession, sides: tuple[Feed, Feed, list[Row], list[Row]]) -> tuple[Stream, Stream]:
    first, second = (ab.stream(feed.stream(spark), time="at", watermark="10 s") for feed in sides[:2])
    return first, second


def run(joined: Joined, folder: Path, **settings: Any) -> tuple[ab.MemorySink, list[EpochProgress]]:
    sink = ab.MemorySink()
    settings = {"trigger": "available-now", "workers": 2, **settings}
    query = joined.start(sink, checkpoint=folder / "checkpoint", live=folder / "live", **settings)
    query.awaitTermination()
    return sink, query.recentProgress


@pytest.fixture
def wandering(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(join_execution, "Rebalance", Wandering)
    yield


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_pairs_are_those_of_nested_loops_while_groups_move(
    spark: SparkSession, sides: Any, tmp_path: Path, how: str, wandering: None
) -> None:
    left, right = streams(spark, sides)
    tuning = ab.JoinTuning(theta=1, block=2)
    joined = left.join(right, on="key", within=("4 s", "7 s"), how=how, groups=5, tuning=tuning)
    sink, epochs = run(joined, tmp_path, workers=3)
    assert found(sink) == expected(sides[2], sides[3], (4 * S, 7 * S), how)
    tables = [epoch.operators[0].decisions[ROUTING] for epoch in epochs]
    assert all(before != after for before, after in pairwise(tables))
    assert sum(epoch.bad for epoch in epochs) == 1
    assert sum(epoch.operators[0].metrics.get("null_keys", 0) for epoch in epochs) == sum(
        row[1] is None for row in (*sides[2], *sides[3])
    )


def test_state_comes_from_the_log_where_there_is_none(
    spark: SparkSession, sides: Any, tmp_path: Path, wandering: None
) -> None:
    left, right = streams(spark, sides)

    joined = left.join(right, on="key", within=("4 s", "7 s"), how="full", groups=3)
    sink, epochs = run(joined, tmp_path, listeners=[Forgetful(tmp_path / "live")])
    assert found(sink) == expected(sides[2], sides[3], (4 * S, 7 * S), "full")
    assert sum(epoch.restored for epoch in epochs) > 3
    snapshots = list((tmp_path / "checkpoint" / "state" / "join-1" / "snapshots").iterdir())
    assert not snapshots, "the log is the state"


@pytest.mark.parametrize("stop_after", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_restart_goes_on_and_old_blocks_are_forgotten(spark: SparkSession, tmp_path: Path, stop_after: int) -> None:
    feeds = Feed(tmp_path / "left"), Feed(tmp_path / "right")
    rows = [random_epochs(seed, epochs=12) for seed in (3, 4)]
    sink, restored = ab.MemorySink(), 0
    for first, last in ((0, stop_after), (stop_after, 13)):
        for feed, epochs in zip(feeds, rows, strict=True):
            feed.add(*epochs[first:last])
        left, right = (ab.stream(feed.stream(spark), time="at", watermark="10 s") for feed in feeds)
        joined = left.join(right, on="key", within=("4 s", "7 s"), how="left", groups=3)
        query = joined.start(
            sink, checkpoint=tmp_path / "c", live=tmp_path / f"live-{first}", trigger="available-now", workers=2
        )
        query.awaitTermination()
        restored += sum(epoch.restored for epoch in query.recentProgress)
    left_rows, right_rows = ([row for epoch in each for row in epoch if row[1] != "end"] for each in rows)
    assert found(sink) == expected(left_rows, right_rows, (4 * S, 7 * S), "left")
    assert restored >= 2
    logged = {int(f.name.split("-")[0]) for f in (tmp_path / "c" / "state" / "join-1" / "blocks").iterdir()}
    assert min(logged) > 0, "blocks that no window holds are gone"


def test_sub_groups_take_turns_and_the_buffer_follows_the_formula(spark: SparkSession, tmp_path: Path) -> None:
    """With n_g = 2 a worker's turn comes in every second epoch; what waits in between is in the log."""
    feeds = Feed(tmp_path / "left", key="bigint"), Feed(tmp_path / "right", key="bigint")
    rows = [[[((e * 2 + i % 2) * S, i, e * 100 + i) for i in range(100)] for e in range(8)] for _ in feeds]
    for feed, epochs in zip(feeds, rows, strict=True):
        feed.add(*epochs)
    left, right = (ab.stream(feed.stream(spark), time="at", watermark="10 s") for feed in feeds)
    tuning = ab.JoinTuning(slots=2, rebalance=False, decluster=False)
    joined = left.join(right, on="key", within=("4 s", "7 s"), tuning=tuning)
    sink = ab.MemorySink()
    query = joined.start(sink, checkpoint=tmp_path / "c", live=tmp_path / "live", trigger="200 milliseconds", workers=2)
    query.processAllAvailable()
    query.stop()
    epochs = query.recentProgress
    came = sum(epoch.rows for epoch in epochs)
    joined_by_now = sum(epoch.operators[0].metrics.get("pairs", 0) for epoch in epochs)
    assert came == 1_600 and joined_by_now > 0
    # The peak is r * t_d / 2 * (1 + 1 / n_g): of 400 rows in two slots, 300.
    buffered = [sum(worker.buffered for worker in epoch.operators[0].workers) for epoch in epochs[1:]]
    assert all(250 <= each <= 350 for each in buffered), buffered
    # Without slots, from the same checkpoint: what waited is joined first.
    for feed in feeds:
        feed.add([(1_000 * S, -1, -1)])
    left, right = (ab.stream(feed.stream(spark), time="at", watermark="10 s") for feed in feeds)
    again = left.join(right, on="key", within=("4 s", "7 s"))
    run_again = again.start(sink, checkpoint=tmp_path / "c", live=tmp_path / "l2", trigger="available-now", workers=2)
    run_again.awaitTermination()
    flat = [[row for epoch in each for row in epoch] for each in rows]
    assert found(sink) == expected(flat[0], flat[1], (4 * S, 7 * S), "inner")


def test_fewer_workers_where_there_is_little_to_do(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The degree of declustering falls while the query runs; groups of the worker that goes are joined elsewhere."""
    monkeypatch.setattr(
        epochs_module, "allowance", lambda *_: 1e9
    )  # no worker is ever behind, however busy the machine
    feeds = Feed(tmp_path / "left", key="bigint"), Feed(tmp_path / "right", key="bigint")
    rows = [[[((e * 2 + i % 2) * S, i, e * 20 + i) for i in range(20)] for e in range(9)] for _ in feeds]
    for feed, epochs in zip(feeds, rows, strict=True):
        feed.add(*epochs)
    left, right = (ab.stream(feed.stream(spark), time="at", watermark="10 s") for feed in feeds)
    tuning = ab.JoinTuning(reorganise_every=1)
    joined = left.join(right, on="key", within=("4 s", "7 s"), groups=6, tuning=tuning)
    sink = ab.MemorySink()
    query = joined.start(sink, checkpoint=tmp_path / "c", live=tmp_path / "live", trigger="100 milliseconds", workers=3)
    query.processAllAvailable()
    query.stop()
    epochs = query.recentProgress
    degrees = [epoch.operators[0].decisions["workers"] for epoch in epochs]
    assert degrees[0] == 3 and degrees[-1] < 3 and degrees == sorted(degrees, reverse=True)
    assert {len(epoch.operators[0].workers) for epoch in epochs} == set(degrees)
    flat = [[row for epoch in each for row in epoch] for each in rows]
    assert found(sink) == expected(flat[0], flat[1], (4 * S, 7 * S), "inner")


class Forgetful:
    """A listener that takes all live state: as if every epoch ran on another machine."""

    def __init__(self, live: Path) -> None:
        self.live = live

    def on_started(self, query: str, run: str) -> None: ...
    def on_terminated(self, query: str, error: str | None) -> None: ...
    def on_progress(self, progress: EpochProgress) -> None:
        for stamp in self.live.rglob("stamp"):
            stamp.unlink()


@pytest.mark.slow
def test_what_waits_for_its_turn_survives_the_loss_of_all_state(spark: SparkSession, tmp_path: Path) -> None:
    """Sub-groups, an outer join, windows over its results, and no live state after any epoch."""
    feeds = Feed(tmp_path / "left"), Feed(tmp_path / "right")
    rows = [random_epochs(seed, epochs=9, span=6) for seed in (5, 6)]
    for feed, epochs in zip(feeds, rows, strict=True):
        feed.add(*epochs)
    counts = []
    for slots in (1, 3):
        folder, sink = tmp_path / str(slots), ab.MemorySink()
        left, right = (ab.stream(feed.stream(spark), time="at", watermark="6 s") for feed in feeds)
        tuning = ab.JoinTuning(slots=slots, rebalance=False)
        joined = left.join(right, on="key", within=("4 s", "7 s"), how="full", groups=5, tuning=tuning)
        windows = joined.window(size="10 s").agg(pairs=ab.count(), least=ab.min("value"))
        listeners = [Forgetful(folder / "live")]
        places: dict[str, Any] = {"checkpoint": folder / "c", "live": folder / "live", "listeners": listeners}
        query = windows.start(sink, trigger="100 milliseconds", workers=3, **places)
        query.processAllAvailable()
        query.stop()
        for feed in feeds:  # what waits is delivered by a run without slots
            feed.add([(2_000 * S + slots, "end", -1)])
        left, right = (ab.stream(feed.stream(spark), time="at", watermark="6 s") for feed in feeds)
        again = left.join(right, on="key", within=("4 s", "7 s"), how="full", groups=5)
        last = again.window(size="10 s").agg(pairs=ab.count(), least=ab.min("value"))
        last.start(sink, trigger="available-now", workers=3, **places).awaitTermination()
        found_rows = [row for _, table in sorted(sink.epochs.items()) for row in table.to_pylist()]
        counts.append(sorted((row["window"]["start"], row["pairs"], row["least"]) for row in found_rows))
        assert sum(epoch.late for epoch in query.recentProgress) == 0
    flat = [[row for epoch in each for row in epoch if row[1] != "end"] for each in rows]
    early = [each for each in counts[0] if each[0].year == 1970 and each[0].timestamp() < 500]
    assert sum(pairs for _, pairs, _ in early) == len(expected(flat[0], flat[1], (4 * S, 7 * S), "full"))
    assert [each for each in counts[1] if each[0].timestamp() < 500] == early


def test_a_join_of_a_join_with_a_third_source(spark: SparkSession, sides: Any, tmp_path: Path) -> None:
    left, right = streams(spark, sides)
    third = Feed(tmp_path / "third")
    third.add(*random_epochs(9))
    news = ab.stream(third.stream(spark), time="at", watermark="10 s").with_columns({"news": F.col("value")})
    pairs = left.join(right, on="key", within=("1 s", "2 s"), groups=3).as_stream()
    wider = pairs.join(news.select("key", "news"), on="key", within=("1 s", "0 s"), suffix="_news", groups=3)
    sink = ab.MemorySink()
    wider.start(
        sink, checkpoint=tmp_path / "c", live=tmp_path / "live", trigger="available-now", workers=2
    ).awaitTermination()
    rows = [row for table in sink.epochs.values() for row in table.to_pylist() if row["value"] != -1]
    got = sorted((row["value"], row["value_right"], row["news"]) for row in rows)
    others = [row for epoch in random_epochs(9) for row in epoch if row[1] != "end"]
    wanted = [
        (a[2], b[2], c[2])
        for a in sides[2]
        for b in sides[3]
        if near(a, b, (1 * S, 2 * S))
        for c in others
        if c[1] == a[1] and max(a[0], b[0]) <= c[0] <= max(a[0], b[0]) + S
    ]
    assert got == sorted(wanted)


def below(rows: Any) -> Any:
    return pc.less(rows["value"], rows["value_right"])


@pytest.mark.parametrize("where", [below, "value < value_right", lambda: F.col("value") < F.col("value_right")])
def test_a_predicate(spark: SparkSession, sides: Any, tmp_path: Path, where: str | Callable[..., Any]) -> None:
    left, right = streams(spark, sides)
    given = where() if callable(where) and where is not below else where
    joined = left.join(right, on="key", within=("4 s", "7 s"), where=given)
    sink, _ = run(joined, tmp_path)
    wanted = [pair for pair in expected(sides[2], sides[3], (4 * S, 7 * S), "inner") if pair[0] < pair[1]]
    assert found(sink) == wanted


def test_a_column_cannot_say_what_an_outer_join_matches(spark: SparkSession, sides: Any, tmp_path: Path) -> None:
    left, right = streams(spark, sides)
    joined = left.join(right, on="key", within=("4 s", "7 s"), how="left", where="value < value_right")
    with pytest.raises(InvalidArgumentError, match="function over record batches"):
        run(joined, tmp_path)


def test_results_feed_windows(spark: SparkSession, sides: Any, tmp_path: Path) -> None:
    left, right = streams(spark, sides)
    joined = left.join(right, on="key", within=("4 s", "7 s"), how="left", groups=3)
    counts = joined.window(size="10 s").agg(pairs=ab.count())
    sink = ab.MemorySink()
    counts.start(
        sink, checkpoint=tmp_path / "c", live=tmp_path / "live", trigger="available-now", workers=2
    ).awaitTermination()
    total = sum(sum(table["pairs"].to_pylist()) for table in sink.epochs.values())
    assert total == len(expected(sides[2], sides[3], (4 * S, 7 * S), "left"))


def test_windows_that_do_not_fit_say_which_knob(spark: SparkSession, sides: Any, tmp_path: Path) -> None:
    left, right = streams(spark, sides)
    joined = left.join(right, on="key", within=("4 s", "7 s"))
    with pytest.raises(StateError, match=r"(?s)memory_limit is 10,000.*within="):
        run(joined, tmp_path, memory_limit=10_000)


def test_three_streams(spark: SparkSession, sides: Any, tmp_path: Path) -> None:
    left, right = streams(spark, sides)
    third = left.with_columns({"value": F.col("value") + 10_000})
    joined = left.join(right, third, on="key", within=("2 s", "2 s", "1 s"), groups=4)
    sink, _ = run(joined, tmp_path)
    rows = [table for _, table in sorted(sink.epochs.items())]
    got = sorted(
        (a, b, c)
        for t in rows
        for a, b, c in zip(
            *(t.column(i).to_pylist() for i, n in enumerate(t.schema.names) if "value" in n), strict=True
        )
        if a != -1
    )
    w = (2 * S, 2 * S, 1 * S)
    ok = [
        (a[2], b[2], c[2] + 10_000)
        for a in sides[2]
        for b in sides[3]
        for c in sides[2]
        if near(a, b, (w[0], w[1])) and near(a, c, (w[0], w[2])) and near(b, c, (w[1], w[2]))
    ]
    assert got == sorted(ok)
