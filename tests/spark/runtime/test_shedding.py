"""Load shedding in the epoch runtime: what is delivered is exact, what is not is listed, nothing else is missing."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.control.shed import ShedController
from anabranch.errors import CheckpointError, InvalidArgumentError, OverloadError
from anabranch.keys.hashing import key_hash
from anabranch.observe.progress import EpochProgress
from anabranch.runtime.shedding import planner
from anabranch.types import Aggregate, Aggregation, EpochQuery, Stream
from tests.spark.streams import Feed
from tests.wandering import WanderingShed

S = 1_000_000
Row = tuple[int | None, str | None, int | None]
KEYS = [f"k{i}" for i in range(40)]


def epochs_of(
    seed: int, epochs: int = 8, rows: int = 300, span: int = 20, start: int = 1_700_000_003
) -> list[list[Row]]:
    """Rows in order of epochs, out of order within one; a last one completes their windows."""
    rng = random.Random(seed)
    found: list[list[Row]] = [
        [((start + e * span) * S + rng.randrange(span * S), rng.choice(KEYS), rng.randrange(100)) for _ in range(rows)]
        for e in range(epochs)
    ]
    return [*found, [((start + (epochs + 30) * span) * S, "end", 0)], [((start + (epochs + 31) * span) * S, "end", 0)]]


def windows_of(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = (row.get("key"), row.get("window_spec"), row["window"]["start"], row["window"]["end"])
        assert key not in found, "a window was delivered twice"
        found[key] = row
    return found


def started(*deliveries: Any, folder: Path, **settings: Any) -> EpochQuery:
    settings = {"trigger": "available-now", **settings}
    query = ab.start(*deliveries, checkpoint=folder / "checkpoint", live=folder / "live", workers=2, **settings)
    query.awaitTermination()
    return query


def answer(spark: SparkSession, query: Callable[..., Aggregation], *feeds: Feed) -> list[dict[str, Any]]:
    """What a query says of all rows: as a batch, which knows nothing of epochs and shedding."""
    streams = [ab.stream(feed.batch(spark), time="at") for feed in feeds]
    rows: list[dict[str, Any]] = query(*streams).to_df().toArrow().to_pylist()
    return rows


def all_of(column: str) -> Aggregate:
    """A user's aggregate: all values, as text, in the order they come."""
    return ab.user_aggregate(
        column,
        init=lambda: [],
        incr=lambda state, value: [*state, value],
        final=lambda state: ",".join(map(str, sorted(state))),
        merge=lambda a, b: a + b,
        returns="string",
    )


def longest_gap(whole: set[tuple[Any, ...]], delivered: set[tuple[Any, ...]], slide: int) -> int:
    """The longest run of windows of one key of which none was delivered, though the exact answer has some of them."""
    by_key: dict[Any, dict[int, bool]] = defaultdict(dict)
    for window in whole:
        by_key[window[:2]][round(window[2].timestamp()) // slide] = window in delivered
    longest = 0
    for windows in by_key.values():
        # A window without rows of the key is neither: whether it was dropped cannot be known.
        run = 0
        for number in range(min(windows), max(windows) + 1):
            run = run + 1 if not windows.get(number, True) else 0
            longest = max(longest, run)
    return longest


SLIDES = {"tumbling": 4, "sliding": 4, "no key": 2, "after steps": 4, "user": 4, "nested": 4}
QUERIES = {
    "tumbling": lambda s: s.window(size="4 s").by("key").agg(n=ab.count(), total=ab.sum("value")),
    "sliding": lambda s: s.window(size="6 s", slide="4 s").by("key").agg(n=ab.count(), total=ab.sum("value")),
    "no key": lambda s: s.window(size="5 s", slide="2 s").agg(n=ab.count(), top=ab.max("value")),
    "after steps": lambda s: (
        s.filter("value > 20")
        .with_columns({"more": F.col("value") * 2})
        .window(size="4 s")
        .by("key")
        .agg(n=ab.count(), total=ab.sum("more"))
    ),
    "several": lambda s: s.windows(("4 s", "2 s"), ("6 s", "3 s")).by("key").agg(n=ab.count()),
    "user": lambda s: s.window(size="4 s").by("key").agg(all=all_of("value")),
    "nested": lambda s: (
        s.window(size="2 s")
        .by("key")
        .agg(n=ab.count())
        .filter("n > 0")
        .window(size="6 s", slide="4 s")
        .by("key")
        .agg(all=ab.sum("n"))
    ),
}


QUICK = {("sliding", "source"), ("user", "results")}


@pytest.mark.parametrize(
    ("name", "drop_at"),
    [
        pytest.param(name, drop_at, marks=[] if (name, drop_at) in QUICK else [pytest.mark.slow])
        for name in QUERIES
        for drop_at in ("source", "operators", "results")
    ],
)
def test_what_is_delivered_is_exact(spark: SparkSession, tmp_path: Path, name: str, drop_at: str) -> None:
    feed = Feed(tmp_path / "in")
    # Some from before 1970 on.
    feed.add(*epochs_of(3, start=-40 if name in ("sliding", "nested") else 1_700_000_003))
    query = QUERIES[name](source(spark, feed))
    shed, report = ab.MemorySink(), ab.MemorySink()
    qos = ab.QoS(max_gap=4, drop_share=0.5, drop_at=drop_at, seed=5)
    run = started(query.to(shed), folder=tmp_path / "shed", qos=qos, report=report)
    whole, part = windows_of(answer(spark, QUERIES[name], feed)), windows_of(shed.rows())
    assert part.keys() <= whole.keys()
    assert all(whole[window] == row for window, row in part.items())
    assert len(part) < len(whole)
    if "key" in query.query.keys:
        assert 0.25 < len(part) / len(whole) < 0.75
    if name in SLIDES:
        assert 1 < longest_gap(set(whole), set(part), SLIDES[name]) <= 4
    drops = [drop for progress in run.recentProgress for drop in progress.drops]
    last = "window-2" if name == "nested" else "window-1"
    place = {"source": "source 0", "operators": f"before {last}", "results": f"results of {last}"}[drop_at]
    # The only aggregate over a source is where the source is.
    assert {drop.point for drop in drops} == {"source 0" if drop_at == "operators" and name != "nested" else place}
    if drop_at == "source" and name != "after steps":
        # What passed is what the operator's splitters saw.
        for progress in run.recentProgress:
            assert [drop.kept for drop in progress.drops if drop.shed] in ([], [progress.operators[0].rows])
            assert progress.rows == 300 or progress.epoch >= 8
    if drop_at == "source" and name in ("tumbling", "user", "nested", "after steps"):
        assert sum(drop.shed for drop in drops) > 0
    listed = report.rows()
    assert listed and all(each["p"] == pytest.approx(0.5) for each in listed)


def source(spark: SparkSession, feed: Feed) -> Stream:
    feed.folder.mkdir(parents=True, exist_ok=True)
    return ab.stream(feed.stream(spark), time="at", watermark="0 seconds")


def two(stream: Stream) -> tuple[Aggregation, Aggregation]:
    """Windows, and windows over them: both are delivered, each when it is complete."""
    short = stream.window(size="2 s").by("key").agg(n=ab.count(), total=ab.sum("value"))
    return short, short.window(size="8 s", slide="4 s").by("key").agg(n=ab.sum("n")).using("pane", batch=1)


def subset(part: list[dict[str, Any]], whole: list[dict[str, Any]]) -> None:
    exact, found = windows_of(whole), windows_of(part)
    assert found.keys() <= exact.keys()
    assert all(exact[window] == row for window, row in found.items())


def check_report(
    spark: SparkSession, report: ab.MemorySink, sinks: Mapping[str, tuple[ab.MemorySink, list[dict[str, Any]]]]
) -> None:
    """What is missing is listed, once, with the bucket of its key; and what is listed was not delivered."""
    slides = {"window-1": 2, "window-2": 4}
    keys = spark.createDataFrame([(key,) for key in (*KEYS, "end")], "key string")
    bucket = F.pmod(key_hash([F.col("key")]), F.lit(64))
    buckets = {row[0]: row[1] for row in keys.select("key", bucket).collect()}
    listed: Counter[tuple[str, int | None, int]] = Counter()
    for each in report.rows():
        first = round(each["first_start"].timestamp())
        of = each["bucket"] if each["buckets"] > 1 else None
        listed.update((each["output"], of, first + k * slides[each["output"]]) for k in range(each["windows"]))
    assert set(listed.values()) == {1}
    for name, (shed, exact) in sinks.items():

        def reported(window: tuple[Any, ...], output: str = name) -> bool:
            start = round(window[2].timestamp())
            return (output, buckets[window[0]], start) in listed or (output, None, start) in listed

        delivered = set(windows_of(shed.rows()))
        missing = {window for window in windows_of(exact) if window[0] != "end"} - delivered
        assert missing and all(reported(window) for window in missing)
        assert not any(reported(window) for window in delivered)


def wander(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "ShedController", WanderingShed)


@pytest.mark.slow
def test_shares_and_places_that_change_all_the_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*epochs_of(4, epochs=10))
    short, long = two(source(spark, feed))
    exact = [answer(spark, lambda s, i=i: two(s)[i], feed) for i in (0, 1)]
    shed, report = (ab.MemorySink(), ab.MemorySink()), ab.MemorySink()
    wander(monkeypatch)
    deliveries = short.to(shed[0], max_gap=10), long.to(shed[1])
    qos = ab.QoS(max_gap=4, max_latency="1 minute")
    run = started(*deliveries, folder=tmp_path / "shed", qos=qos, report=report)
    for part, whole in zip(shed, exact, strict=True):
        subset(part.rows(), whole)
        assert 0.1 < len(part.rows()) / len(whole) < 0.95
    check_report(spark, report, dict(zip(("window-1", "window-2"), zip(shed, exact, strict=True), strict=True)))
    assert any("shut" in drop.describe() for progress in run.recentProgress for drop in progress.drops)
    text = run.explain()
    assert "shedding:" in text and "source 0: WinDrop" in text and "before window-2" in text


class NeverShut(WanderingShed):
    """As the other, but shuts no query."""

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        decided = dict(super().decide(history, current))
        most = {point.name: point.bound / (point.bound + 1) for cut in self.cuts for point in cut}
        return {**decided, "shut": [], "p": {name: min(p, most[name]) for name, p in decided["p"].items()}}


@pytest.mark.slow
def test_gaps_do_not_join_where_places_change(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(tmp_path / "in")
    # Rows of every key in every window: nothing hides a gap.
    feed.add(
        *(
            [(t * S + i, key, 1) for t in range(e * 10, e * 10 + 10) for i, key in enumerate(KEYS[:8])]
            for e in range(14)
        )
    )
    short, long = two(source(spark, feed))
    sinks = ab.MemorySink(), ab.MemorySink()
    monkeypatch.setattr(planner, "ShedController", NeverShut)
    qos = ab.QoS(max_gap=3, max_latency="1 minute")
    started(short.to(sinks[0], max_gap=6), long.to(sinks[1]), folder=tmp_path, qos=qos)
    for sink, slide, bound in ((sinks[0], 2, 6), (sinks[1], 4, 3)):
        by_key = defaultdict(list)
        for key, _, start, _ in windows_of(sink.rows()):
            by_key[key].append(round(start.timestamp()) // slide)
        gaps = [b - a - 1 for ids in by_key.values() for a, b in itertools.pairwise(sorted(ids))]
        assert 1 < max(gaps) <= bound
        assert len(by_key) == 8


@pytest.mark.slow
def test_a_restart_drops_the_same(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wander(monkeypatch)
    rows = epochs_of(5, epochs=7)
    found = []
    for name, breaks in (("once", [len(rows)]), ("often", [2, 3, 6, len(rows)])):
        feed = Feed(tmp_path / name / "in")
        sinks = [ab.FileSink(tmp_path / name / each) for each in ("short", "long", "report")]
        for until in breaks:
            feed.add(*rows[feed.epochs : until])
            short, long = two(source(spark, feed))
            qos = ab.QoS(max_gap=4, max_latency="1 minute")
            started(short.to(sinks[0]), long.to(sinks[1]), folder=tmp_path / name, qos=qos, report=sinks[2])
        frames = [spark.read.parquet(str(tmp_path / name / each)) for each in ("short", "long", "report")]
        found.append([sorted(map(str, frame.collect())) for frame in frames])
    assert found[0] == found[1]
    assert all(found[0])


class FailsOnce(ab.MemorySink):
    """Fails when it has the rows of an epoch: they were computed, and are computed again."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at: int | None = at

    def publish(self, result: Any) -> None:
        if result.epoch == self.at:
            self.at = None
            raise RuntimeError("as if the driver had died")
        super().publish(result)


@pytest.mark.slow
def test_an_epoch_that_runs_again_drops_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wander(monkeypatch)
    feed = Feed(tmp_path / "in")
    feed.add(*epochs_of(6))
    query = QUERIES["sliding"](source(spark, feed))
    qos = ab.QoS(max_gap=4, max_latency="1 minute")
    once, again = ab.MemorySink(), FailsOnce(4)
    started(query.to(once), folder=tmp_path / "once", qos=qos)
    with pytest.raises(Exception, match="as if the driver had died"):
        started(query.to(again), folder=tmp_path / "again", qos=qos)
    run = started(query.to(again), folder=tmp_path / "again", qos=qos)
    assert run.recentProgress[0].replayed
    assert sorted(map(repr, once.rows())) == sorted(map(repr, again.rows()))


AFTERWARDS = {
    "none": None,
    "halt": ab.QoS(max_latency="1 hour", overflow="halt"),
    "never": ab.QoS(max_latency="1 hour", max_gap=0),
    "less": ab.QoS(max_latency="1 hour", max_gap=2),
    "elsewhere": ab.QoS(max_gap=9, drop_share=0.5, drop_at="results", seed=9),
}


@pytest.mark.parametrize(
    "afterwards", [pytest.param(name, marks=[] if name == "halt" else [pytest.mark.slow]) for name in AFTERWARDS]
)
def test_after_a_restart_with_other_bounds_no_broken_window_leaves(
    spark: SparkSession, tmp_path: Path, afterwards: str
) -> None:
    rows = epochs_of(7, epochs=8)
    feed = Feed(tmp_path / "in")
    feed.add(*rows[:4])

    def count_windows(stream: Stream) -> Aggregation:
        return stream.window(size="60 s", slide="20 s").by("key").agg(n=ab.count())

    query, shed = count_windows(source(spark, feed)), ab.MemorySink()
    started(query.to(shed), folder=tmp_path / "shed", qos=ab.QoS(max_gap=9, drop_share=0.9))
    feed.add(*rows[4:])
    run = started(query.to(shed), folder=tmp_path / "shed", qos=AFTERWARDS[afterwards])
    assert any(progress.drops for progress in run.recentProgress)
    if afterwards != "elsewhere":
        assert run.recentProgress[-1].drops == ()
    exact = answer(spark, count_windows, feed)
    subset(shed.rows(), exact)
    assert 0 < len(shed.rows()) < len(exact)


def test_other_outputs_while_windows_are_dropped_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*epochs_of(7)[:4])
    short = source(spark, feed).window(size="3 s").by("key").agg(n=ab.count())
    long = short.window(size="40 s", slide="20 s").by("key").agg(n=ab.sum("n"))
    qos = ab.QoS(max_gap=30, drop_share=0.7)
    started(long.to(ab.MemorySink()), folder=tmp_path, qos=qos)
    feed.add(*epochs_of(7)[4:])
    with pytest.raises(CheckpointError, match="for a query with other outputs"):
        started(long.to(ab.MemorySink()), short.to(ab.MemorySink()), folder=tmp_path, qos=qos)


def test_other_keys_while_windows_are_dropped_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A bucket would have the rows of other keys, and windows that have lost some of theirs would leave."""
    feed = Feed(tmp_path / "in")
    feed.add(*epochs_of(7)[:4])

    def started_after(step: Callable[[Stream], Stream]) -> None:
        query = step(source(spark, feed)).window(size="3 s").by("key").agg(n=ab.count())
        started(query.to(ab.MemorySink()), folder=tmp_path, qos=ab.QoS(max_gap=30, drop_share=0.7))

    started_after(lambda rows: rows.filter("value >= 0"))
    feed.add(*epochs_of(7)[4:])
    with pytest.raises(CheckpointError, match="or other keys"):
        started_after(lambda rows: rows.with_columns({"key": F.upper("key")}))


@pytest.mark.slow
def test_late_rows_are_late_whatever_was_shed(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = epochs_of(11, epochs=10, span=8)
    for e, epoch in enumerate(rows[1:10], 1):
        epoch += [((1_700_000_003 + e * 8) * S - rng.randrange(8 * S), rng.choice(KEYS), 7) for _ in range(20)]
    feed = Feed(tmp_path / "in")
    feed.add(*rows)
    query = source(spark, feed).window(size="2 s").agg(n=ab.count(), total=ab.sum("value"))
    exact = ab.MemorySink()
    whole = started(query.to(exact), folder=tmp_path / "exact")
    assert sum(progress.late for progress in whole.recentProgress) > 50
    for seed in range(2):
        shed = ab.MemorySink()
        started(query.to(shed), folder=tmp_path / f"shed{seed}", qos=ab.QoS(max_gap=2, drop_share=0.5, seed=seed))
        subset(shed.rows(), exact.rows())
        assert len(shed.rows()) < len(exact.rows())


def test_rows_that_spark_knows_to_be_none_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Spark leaves out what comes to nothing, and the counting with it."""
    feeds = [Feed(tmp_path / kind) for kind in "ab"]
    for seed, feed in enumerate(feeds, 3):
        feed.add(*epochs_of(seed, epochs=3))
    streams = [source(spark, feed).with_columns({"kind": F.lit(feed.folder.name)}) for feed in feeds]
    query = streams[0].union(streams[1]).filter("kind = 'a'").window(size="4 s").by("key").agg(n=ab.count())
    shed = ab.MemorySink()
    qos = ab.QoS(max_gap=4, drop_share=0.5, drop_at="source", seed=5)
    run = started(query.to(shed), folder=tmp_path / "shed", qos=qos)
    subset(shed.rows(), answer(spark, lambda a: a.window(size="4 s").by("key").agg(n=ab.count()), feeds[0]))
    assert sum(progress.shed for progress in run.recentProgress) > 0


def test_the_watermark_moves_when_everything_is_shed(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*epochs_of(8, epochs=7))
    query = source(spark, feed).window(size="1 s").agg(n=ab.count())
    shed, report = ab.MemorySink(), ab.MemorySink()
    # Units of a second in batches of 1,000: one coin for hours.
    qos = ab.QoS(max_gap=1000, drop_share=0.999, seed=1)
    run = started(query.to(shed), folder=tmp_path / "shed", qos=qos, report=report)
    all_shed = [p for p in run.recentProgress if p.drops and p.drops[0].shed == p.rows > 1]
    assert all_shed
    marks = [progress.operators[0].watermark for progress in all_shed]
    assert marks == sorted(set(marks)), "an epoch of which nothing was kept still moves the watermark of the next"
    assert sum(each["windows"] for each in report.rows()) > 100


@pytest.mark.parametrize(
    "rows",
    [
        dict(rows=6, slide_rows=4),
        *(pytest.param(each, marks=pytest.mark.slow) for each in (dict(rows=6), dict(rows=3, slide_rows=2))),
    ],
)
def test_count_windows(spark: SparkSession, tmp_path: Path, rows: dict[str, int]) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*epochs_of(9, epochs=4, rows=600))

    def listed(stream: Stream) -> Aggregation:
        return stream.window(**rows).by("key").agg(n=ab.count(), all=all_of("value"))

    query, exact = listed(source(spark, feed)), answer(spark, listed, feed)
    shed, report = ab.MemorySink(), ab.MemorySink()
    qos = ab.QoS(max_gap=3, drop_share=0.5, seed=2)
    run = started(query.to(shed), folder=tmp_path / "shed", qos=qos, report=report)
    subset(shed.rows(), exact)
    assert 0.3 < len(shed.rows()) / len(exact) < 0.7
    slide = rows.get("slide_rows", rows["rows"])
    by_key: dict[Any, list[int]] = defaultdict(list)
    for key, _, start, _ in windows_of(shed.rows()):
        by_key[key].append(start // slide)
    longest = max(b - a - 1 for ids in by_key.values() for a, b in zip(sorted(ids), sorted(ids)[1:], strict=False))
    assert 1 < longest <= 3
    drops = [drop for progress in run.recentProgress for drop in progress.drops]
    assert sum(drop.dropped for drop in drops) == sum(each["windows"] for each in report.rows()) > 0
    reported = {
        (json.loads(each["key"])["key"], each["first_row"] // slide + i)
        for each in report.rows()
        for i in range(each["windows"])
    }
    wanted = {(key, start // slide) for key, _, start, _ in windows_of(exact)}
    assert wanted - reported == {(key, j) for key, ids in by_key.items() for j in ids}, "missing, and not in the report"
    assert sum(drop.shed for drop in drops) > 0
    # Rows wait for the watermark, and count when they get their position.
    assert all(0 <= drop.shed <= drop.rows and drop.kept >= 0 for drop in drops)


@pytest.mark.slow
def test_two_sources_are_dropped_alike(spark: SparkSession, tmp_path: Path) -> None:
    feeds = [Feed(tmp_path / name) for name in ("a", "b")]
    for seed, feed in enumerate(feeds):
        feed.add(*epochs_of(20 + seed))

    def united(a: Stream, b: Stream) -> Aggregation:
        return a.union(b).window(size="4 s", slide="2 s").by("key").agg(n=ab.count(), t=ab.sum("value"))

    query, shed = united(*(source(spark, feed) for feed in feeds)), ab.MemorySink()
    run = started(query.to(shed), folder=tmp_path / "shed", qos=ab.QoS(max_gap=5, drop_share=0.5))
    exact = answer(spark, united, *feeds)
    subset(shed.rows(), exact)
    assert 0.2 < len(shed.rows()) / len(exact) < 0.8
    assert sum(progress.shed for progress in run.recentProgress) > 0


@pytest.mark.slow
@pytest.mark.parametrize("wandering", [False, True])
def test_a_row_far_ahead_in_one_of_two_sources(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wandering: bool
) -> None:
    """The other source holds the watermark back: a thousand million windows are open, and no step may visit each."""
    feeds = [Feed(tmp_path / name) for name in ("a", "b")]
    for seed, feed in enumerate(feeds):
        first, *more = epochs_of(20 + seed, epochs=4)
        feed.add([*first, (3_000_000_000 * S, "a", 1)] if seed == 0 else first, *more)

    def united(a: Stream, b: Stream) -> Aggregation:
        return a.union(b).window(size="2 s", slide="1 s").by("key").agg(n=ab.count(), t=ab.sum("value"))

    if wandering:  # shuts the query, too
        monkeypatch.setattr(planner, "ShedController", WanderingShed)
    qos = ab.QoS(max_gap=10, max_latency="8 s") if wandering else ab.QoS(max_gap=10, drop_share=0.5)
    query, exact, shed = united(*(source(spark, feed) for feed in feeds)), ab.MemorySink(), ab.MemorySink()
    started(query.to(exact), folder=tmp_path / "exact")
    run = started(query.to(shed), folder=tmp_path / "shed", qos=qos)
    subset(shed.rows(), exact.rows())
    assert sum(progress.shed for progress in run.recentProgress) > 0
    assert len(shed.rows()) < len(exact.rows())


class Overloaded(ShedController):
    """Says that it is."""

    def overloaded(self, history: Sequence[EpochProgress]) -> str | None:
        return "too much" if len(history) > 1 else None

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        raise AssertionError("a query that must not shed must not ask how much")


def test_halt_instead(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "ShedController", Overloaded)
    feed = Feed(tmp_path / "in")
    feed.add(*epochs_of(10))
    query = source(spark, feed).window(size="4 s").agg(n=ab.count())
    with pytest.raises(OverloadError, match="too much, 3 epochs in a row"):
        started(query.to(ab.MemorySink()), folder=tmp_path, qos=ab.QoS(max_latency="1 s", max_gap=3, overflow="halt"))


@pytest.mark.parametrize(
    ("qos", "message"),
    [
        (dict(max_gap=3), "max_gap needs max_latency"),
        (dict(max_gap=-1), "max_gap=-1"),
        (dict(max_gap=True), "max_gap=True"),
        (dict(max_gap=3, overflow="drop"), "overflow='drop'"),
        (dict(overflow="halt"), "needs max_latency"),
        (dict(max_gap=3, drop_at="sink"), "drop_at='sink'"),
        (dict(max_gap=3, drop_share=1.5), "drop_share=1.5"),
        (dict(drop_share=0.5), "without max_gap, .* have no effect: drop_share"),
        (dict(max_gap=3, max_latency="1 s", trigger="2 s"), "rows would wait "),
    ],
)
def test_what_cannot_be_meant(spark: SparkSession, tmp_path: Path, qos: dict[str, Any], message: str) -> None:
    query = source(spark, Feed(tmp_path / "in")).window(size="4 s").agg(n=ab.count())
    trigger = qos.pop("trigger", None)
    with pytest.raises(InvalidArgumentError, match=message):
        ab.drop_plan(query.to(ab.MemorySink()), qos=ab.QoS(**qos), trigger=trigger)


def test_max_gap_0_is_never_shed(spark: SparkSession, tmp_path: Path) -> None:
    short, long = two(source(spark, Feed(tmp_path / "in")))
    plan = ab.drop_plan(short.to(ab.MemorySink()), qos=ab.QoS(max_gap=0, max_latency="5 s"))
    assert "nothing is ever dropped" in plan
    # One of two: nothing is dropped above it, and of the other only.
    plan = ab.drop_plan(
        short.to(ab.MemorySink(), max_gap=0), long.to(ab.MemorySink()), qos=ab.QoS(max_gap=3, max_latency="5 s")
    )
    assert "source 0: not here, max_gap of window-1 is 0" in plan
    assert "before window-2: WinDrop(8 s, 4 s), B = 3" in plan


def test_an_operator_of_the_user_stops_it(spark: SparkSession, tmp_path: Path) -> None:
    query = source(spark, Feed(tmp_path / "in")).process(ab.Operator, "key string", by="key")
    with pytest.raises(InvalidArgumentError, match="it is not known which rows process-1 needs for an exact answer"):
        ab.drop_plan(query.to(ab.MemorySink()), qos=ab.QoS(max_gap=3, max_latency="5 s"))
