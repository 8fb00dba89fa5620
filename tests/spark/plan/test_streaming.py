"""Streams give the windows that the rules say, when they say, with the values that a batch query gives.

`tests/oracles/epochs.py` has the rules. `tests/transcripts` has single cases to read.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.errors import InvalidArgumentError, InvalidWindowError, StrategyError, StreamingError
from anabranch.types import Aggregate, Aggregation, Stream, Window
from anabranch.windows import describe
from tests.oracles.epochs import Place, Row, Spec, delivered, play
from tests.spark.streams import Feed, in_micros, plain, run

SECOND = 1_000_000

# A stream takes seconds, so few are drawn, and one that fails is shown as it was drawn: shrinking would run hundreds.
FEW = settings(
    max_examples=max(1, settings.default.max_examples // 25), phases=(Phase.explicit, Phase.reuse, Phase.generate)
)


@dataclass(frozen=True)
class Case:
    """A query and the rows it gets."""

    epochs: tuple[tuple[Row, ...], ...]
    specs: tuple[Spec, ...]
    delay: int
    strategy: str
    batch: int
    keyed: bool = True
    time: str = "timestamp"
    key: str = "string"

    def query(self, rows: Stream) -> Aggregation:
        sizes = [(describe(spec.size), describe(spec.slide)) for spec in self.specs]
        windows = rows.windows(*sizes, origin=describe(self.specs[0].origin))
        windows = windows.by("key") if self.keyed else windows
        query = windows.agg(n=ab.count(), total=ab.sum("value"), low=ab.min("value"), all=ab.collect("value"))
        if self.strategy != "pane":
            return query.using(self.strategy, batch=self.batch if self.strategy == "batch" else 1)
        # As long as B - 1 slides take; several windows may need more time for as many, so there B is given.
        delay = (self.batch - 1) * self.specs[0].slide
        return (
            query.using("pane", max_delay=describe(delay))
            if len(self.specs) == 1
            else query.using("pane", batch=self.batch)
        )

    @property
    def unit(self) -> int | None:
        """B, or None where windows leave one by one."""
        if len(self.specs) == 1 and (self.strategy == "window" or self.specs[0].size == self.specs[0].slide):
            return None
        return 1 if self.strategy == "window" else self.batch

    def place(self, row: dict[str, Any]) -> Place:
        labels = {Window(*spec).label: spec.slide for spec in self.specs}
        slide = labels[row["window_spec"]] if len(self.specs) > 1 else self.specs[0].slide
        return Place(row.get("key"), row["window"]["start"], row["window"]["end"], slide)

    def by_place(self, rows: Iterable[dict[str, Any]]) -> dict[Place, dict[str, Any]]:
        """The values by window and key. Fails if one came twice."""
        found: dict[Place, dict[str, Any]] = {}
        for row in rows:
            assert self.place(row) not in found, f"{row} was delivered twice"
            found[self.place(row)] = {name: row[name] for name in ("n", "total", "low", "all")}
        return found


def values(rows: Sequence[Row]) -> dict[str, Any]:
    """What `Case.query` makes of the rows of a window."""
    known = [row.value for row in sorted(rows, key=lambda row: (row.time, row.value or 0)) if row.value is not None]
    return {"n": len(rows), "total": sum(known) if known else None, "low": min(known, default=None), "all": known}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    unit = draw(st.sampled_from([SECOND, 333_333, 1_000]))
    origin = draw(st.integers(-20, 20)) * unit
    specs: dict[tuple[int, int], Spec] = {}
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        slide = draw(st.integers(1, 5))
        size = slide + draw(st.integers(0, 9))
        specs[size, slide] = Spec(size * unit, slide * unit, origin)
    keyed, key = draw(st.booleans()), draw(st.sampled_from(["string", "bigint"]))
    names = {"string": ["a", "b", None], "bigint": [1, -2, None]}[key] if keyed else [None]
    epochs, now = [], draw(st.sampled_from([0, 40]))
    for _ in range(draw(st.integers(2, 3))):
        # Some behind the watermark, some before 1970; times and whole rows repeat.
        times = st.one_of(st.none(), *[st.integers(now - 10, now + 14).map(lambda t: t * unit)] * 9)
        row = st.builds(Row, times, st.sampled_from(names), st.one_of(st.none(), st.integers(0, 9)))
        epochs.append(tuple(draw(st.lists(row, min_size=4, max_size=9))) if draw(st.integers(0, 4)) else ())
        now += draw(st.sampled_from([7, 15, 30]))
    if draw(st.booleans()):
        epochs.append((Row((now + 50) * unit, names[0], 1),))
    return Case(
        tuple(epochs),
        tuple(specs.values()),
        delay=draw(st.integers(0, 8)) * unit,
        strategy=draw(st.sampled_from(["window", "batch", "pane", "pane"])),
        batch=draw(st.integers(2, 4)),
        keyed=keyed,
        time=draw(st.sampled_from(["timestamp", "timestamp", "timestamp_ntz", "bigint"])),
        key=key,
    )


@FEW
@given(case=cases())
def test_streams_deliver_what_the_rules_say(
    case: Case, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("stream")
    feed = Feed(folder / "input", case.time, case.key)
    feed.add(*case.epochs)
    query = case.query(in_micros(feed.stream(spark), time="at", watermark=describe(case.delay)))
    played = run(query.to_df(), folder / "checkpoint")
    expected = play(case.epochs, case.specs, delay=case.delay, batch=case.unit)

    assert played.watermarks == [epoch.watermark for epoch in expected]
    for number, epoch in enumerate(expected):
        right = {place: values(rows) for place, rows in epoch.delivered.items()}
        assert case.by_place(played.epochs[number]) == right, f"epoch {number}"
    assert played.late == [epoch.late_groups for epoch in expected]
    null_times = [sum(row.time is None for row in rows) for rows in case.epochs]
    assert played.observed(query.metrics, "null_time") == null_times + [0] * (len(expected) - len(null_times))

    # And a batch query over the same rows says the same of every window that lost no row by coming late.
    batch = case.by_place(plain(case.query(in_micros(feed.batch(spark), time="at")).to_df().toArrow()))
    taken = delivered(expected)
    whole = [place for place, rows in taken.items() if Counter(rows) == Counter(rows_of(place, case))]
    assert {place: batch[place] for place in whole} == {place: values(taken[place]) for place in whole}
    event(f"strategy {case.strategy}")
    event(f"windows delivered: {min(len(taken), 20) // 5 * 5} or more")


def rows_of(place: Place, case: Case) -> list[Row]:
    rows = (row for epoch in case.epochs for row in epoch if row.time is not None)
    return [row for row in rows if row.key == place.key and place.start <= row.time < place.end]


# What follows compares with batch queries. The last epoch is far away, so that all windows of the others are complete.

FAR = 1_000
SPREAD = tuple(
    tuple(
        Row((20 * epoch + second) * SECOND, "abc"[second % 5 % 3], None if second == 7 else second * epoch % 11)
        for second in (3, 1, 4, 1, 15, 9, 2, 6, 5, 7)
    )
    for epoch in range(2)
)
CLOSING = (Row(FAR * SECOND, "a", 1),)


def settled(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The windows that end long before the last row, in some order."""
    return sorted((row for row in rows if row["window"]["end"] <= FAR // 2 * SECOND), key=repr)


def assert_same_as_batch(
    query: Callable[[Stream], Aggregation],
    spark: SparkSession,
    folder: Path,
    *,
    epochs: Iterable[Iterable[Row]] = (*SPREAD, CLOSING),
    time: str = "timestamp",
) -> list[dict[str, Any]]:
    """Run the query over the stream and over the same rows as a batch; return the windows that both deliver."""
    feed = Feed(folder / "input", time)
    feed.add(*epochs)
    streamed = run(query(in_micros(feed.stream(spark), time="at", watermark="20 s")).to_df(), folder / "checkpoint")
    batch = plain(query(in_micros(feed.batch(spark), time="at")).to_df().toArrow())
    assert settled(streamed.rows) == settled(batch)
    assert settled(batch), "nothing was compared"
    return settled(batch)


def all_aggregates() -> dict[str, Aggregate]:
    return {
        "rows": ab.count(),
        "known": ab.count("value"),
        "total": ab.sum("value"),
        "mean": ab.avg("value"),
        "low": ab.min("value"),
        "high": ab.max("value"),
        "first": ab.first("value"),
        "last": ab.last("value"),
        "spread": ab.stddev("value", population=True),
        "different": ab.count_distinct("value"),
        "about": ab.count_distinct("value", approx=True),
        "median": ab.quantile("value", 0.5),
        "all": ab.collect("value"),
    }


@pytest.mark.parametrize("strategy", ["pane", "window"])
def test_every_aggregate(strategy: str, spark: SparkSession, tmp_path: Path) -> None:
    def query(rows: Stream) -> Aggregation:
        aggregates = all_aggregates()
        if strategy == "pane":  # Spark has no exact top-k of its own.
            aggregates["top"] = ab.top_k("value", 2)
        return rows.window(size="7 s", slide="3 s").by("key").agg(**aggregates).using(strategy)

    assert_same_as_batch(query, spark, tmp_path)


@pytest.mark.parametrize(
    ("strategy", "batch", "merges"),
    [("pane", 1, True), ("batch", 3, False), ("window", None, False), ("auto", None, False)],
)
def test_user_defined_aggregates(
    strategy: str, batch: int | None, merges: bool, spark: SparkSession, tmp_path: Path
) -> None:
    # In the order of time, so it depends on the order of panes; a state that grows in place.
    word = ab.user_aggregate(
        "value",
        "key",
        init=list,
        incr=lambda state, value, key: [*state, f"{key}{value}"],
        merge=(lambda earlier, later: earlier + later) if merges else None,
        final=" ".join,
        returns="string",
    )

    def query(rows: Stream) -> Aggregation:
        return rows.window(size="5 s", slide="2 s").agg(n=ab.count(), word=word).using(strategy, batch=batch)

    found = assert_same_as_batch(query, spark, tmp_path)
    assert max(len(row["word"].split()) for row in found) > 2


@pytest.mark.parametrize("time", ["bigint", "timestamp_ntz"])
def test_other_types_of_time(time: str, spark: SparkSession, tmp_path: Path) -> None:
    def query(rows: Stream) -> Aggregation:
        windows = rows.windows(("7 s 3 us", "2 s 1 us"), ("6 s", "6 s"), origin="-1 us")
        return windows.by("key").agg(n=ab.count(), first=ab.first("value"), when=ab.min("at"))

    assert_same_as_batch(query, spark, tmp_path, time=time)


def test_names_with_dots_and_spaces(spark: SparkSession, tmp_path: Path) -> None:
    def query(rows: Stream) -> Aggregation:
        inner = rows.window(size="4 s", slide="2 s").by(F.col("key").alias("the.key"))
        middle = inner.agg(**{"a.count": ab.count(), "a last": ab.last("value")})
        outer = middle.window(size="6 s", slide="4 s").by("the.key")
        return outer.agg(**{"the.most": ab.max("a.count"), "last of all": ab.last("a last")}).using("window")

    assert_same_as_batch(query, spark, tmp_path)


# The names say what is below and above. Several windows above are not a union of one stream with itself: Spark would
# tell the watermark to the first of them only.
NESTED: dict[str, Callable[[Stream], Aggregation]] = {
    "sliding over tumbling": lambda rows: (
        rows.window(size="2 s").by("key").agg(n=ab.count(), mean=ab.avg("value"))
        .window(size="7 s", slide="3 s").by("key").agg(most=ab.max("n"), mean=ab.avg("mean"), windows=ab.count())
    ),
    "sliding over sliding, with a filter": lambda rows: (
        rows.window(size="5 s", slide="2 s").by("key").agg(n=ab.count(), total=ab.sum("value"), mean=ab.avg("value"))
        .filter(F.col("n") > 1)
        .with_columns({"large": F.col("total") > 9}).select("key", "large", "mean", "n")
        .window(size="6 s", slide="4 s", origin="1 s").by("key", "large").agg(all=ab.collect("n"), high=ab.max("mean"))
    ),
    "several windows over aggregates that Spark cannot merge": lambda rows: (
        rows.window(size="5 s", slide="2 s").agg(last=ab.last("value"), different=ab.count_distinct("value"))
        .windows(("9 s", "3 s"), ("4 s", "2 s")).agg(total=ab.sum("different"), last=ab.last("last"))
    ),
    "three levels": lambda rows: (
        rows.window(size="3 s", slide="1 s").by("key").agg(n=ab.count())
        .window(size="4 s", slide="2 s").by("key").agg(most=ab.max("n"))
        .window(size="10 s").agg(total=ab.sum("most"))
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "time"),
    [(name, "timestamp") for name in NESTED] + [("sliding over sliding, with a filter", "bigint")],
)
def test_nested_windows(name: str, time: str, spark: SparkSession, tmp_path: Path) -> None:
    assert_same_as_batch(NESTED[name], spark, tmp_path, time=time)


def test_order_within_the_watermark_does_not_matter(spark: SparkSession, tmp_path: Path) -> None:
    rows = [row for epoch in SPREAD for row in epoch]
    delays = random.Random(1)
    orders = {
        "sorted": sorted(rows, key=lambda row: row.time),
        # As if each row had travelled for up to 19 seconds: less than the watermark waits.
        "mixed": sorted(rows, key=lambda row: row.time + delays.randrange(19 * SECOND)),
    }
    assert orders["sorted"] != orders["mixed"]

    def query(rows: Stream) -> Aggregation:
        windows = rows.window(size="7 s", slide="3 s").by("key")
        return windows.agg(n=ab.count(), all=ab.collect("value"), last=ab.last("value")).using("pane", max_delay="9 s")

    found = {}
    for name, order in orders.items():
        epochs = (order[:5], order[5:12], order[12:], CLOSING)
        found[name] = assert_same_as_batch(query, spark, tmp_path / name, epochs=epochs)
    assert found["sorted"] == found["mixed"]


def test_fractions_of_a_millisecond_of_delay_count(spark: SparkSession, tmp_path: Path) -> None:
    # Spark counts the delay in milliseconds. 1.5 ms must not become 1: the second row, 1.4 ms behind, is in time.
    feed = Feed(tmp_path / "input")
    feed.add([Row(10_000, "a", 1)], [], [Row(8_600, "a", 2)], [Row(SECOND, "a", 3)])
    query = (
        in_micros(feed.stream(spark), time="at", watermark="1500 us").window(size="200 us").agg(all=ab.collect("value"))
    )
    played = run(query.to_df(), tmp_path / "checkpoint")
    assert played.watermarks == [0, 8_000, 8_000, 8_000, SECOND - 2_000]
    assert sum(played.late) == 0
    assert sorted(row["all"] for row in played.rows) == [[1], [2]]


def test_own_watermark_of_the_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "input")
    feed.add([Row(1 * SECOND, "a", 1), Row(9 * SECOND, "a", 2)])
    source = feed.stream(spark).withWatermark("at", "4 seconds").withColumn("double", F.col("value") * 2)
    query = source.transform(ab.sliding(time="at", size="4 s", slide="2 s", by="key", total=ab.sum("double")))
    played = run(query, tmp_path / "checkpoint")
    assert played.watermarks == [0, 5 * SECOND]
    windows = sorted((row["window"]["start"], row["window"]["end"], row["total"]) for row in played.rows)
    assert windows == [(-2 * SECOND, 2 * SECOND, 2), (0, 4 * SECOND, 2)]


def test_rows_without_a_time_are_counted_and_kept(spark: SparkSession, tmp_path: Path) -> None:
    for time in ("timestamp", "bigint"):
        feed = Feed(tmp_path / time, time)
        feed.add([Row(None, "a", 1), Row(SECOND, "a", 2), Row(None, None, 3)])
        rows = in_micros(feed.stream(spark), time="at", watermark="0 s")
        bad = run(rows.bad_rows(), tmp_path / f"{time}-bad")
        assert sorted(bad.rows, key=repr) == [
            {"at": None, "key": "a", "value": 1, "reason": "null time in column at"},
            {"at": None, "key": None, "value": 3, "reason": "null time in column at"},
        ]
        # Below other windows they are counted where they enter.
        inner = rows.window(size="1 s").agg(n=ab.count())
        outer = inner.window(size="2 s").agg(n=ab.sum("n"))
        played = run(outer.to_df(), tmp_path / f"{time}-checkpoint")
        assert played.observed(inner.metrics, "null_time") == [2, 0]
        assert played.observed(outer.metrics, "null_time") == [0, 0]


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Stream:
    """A stream that is not going to be run."""
    feed = Feed(tmp_path / "input")
    feed.add([])
    return in_micros(feed.stream(spark), time="at", watermark="1 s")


def test_missing_watermark_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for time in ("timestamp", "timestamp_ntz", "bigint"):
        feed = Feed(tmp_path / time, time)
        feed.add([])
        with pytest.raises(StreamingError, match=r"(?s)no watermark on 'at'.*hint: .*watermark=\"10 seconds\""):
            in_micros(feed.stream(spark), time="at")


def test_second_watermark_is_refused(rows: Stream) -> None:
    for time in ("at", "value"):
        with pytest.raises(StreamingError, match=r"(?s)already has a watermark on 'at'.*hint: remove watermark=..."):
            in_micros(rows.source, time=time, watermark="1 s")


def test_negative_watermark_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "input")
    feed.add([])
    with pytest.raises(InvalidArgumentError, match="watermark of -1 s"):
        in_micros(feed.stream(spark), time="at", watermark="-1 s")


def test_count_windows_are_refused(rows: Stream) -> None:
    query = rows.window(rows=10).by("key").agg(n=ab.count())
    for ask in (query.to_df, query.explain):
        with pytest.raises(StreamingError, match=r"(?s)count windows over a stream.*hint: use time windows"):
            ask()
    with pytest.raises(InvalidWindowError, match="positions, not times"):
        query.as_stream()


def test_what_cannot_feed_further_windows_is_refused(rows: Stream) -> None:
    windows = rows.window(size="4 s", slide="2 s")
    first = ab.user_aggregate("value", init=int, incr=lambda s, v: v, final=int, merge=lambda a, b: a, returns="bigint")
    for aggregate in (first, ab.top_k("value", 1)):
        with pytest.raises(StreamingError, match=r"(?s)cannot feed a further aggregate.*hint: make it the last"):
            windows.agg(x=aggregate).window(size="10 s").agg(n=ab.count()).to_df()
    several = rows.windows(("4 s", "2 s"), ("6 s", "2 s")).agg(n=ab.count())
    with pytest.raises(StreamingError, match=r"(?s)several windows at once.*hint: write one query per window length"):
        several.filter("n > 1").to_df()


def test_replacing_the_time_of_a_stream_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    # The watermark would stay with the old times, and windows would be closed too early or never.
    for time in ("timestamp", "bigint"):
        feed = Feed(tmp_path / time, time)
        feed.add([])
        rows = in_micros(feed.stream(spark), time="at", watermark="1 s")
        later = F.expr("at + interval 1 hour" if time == "timestamp" else "at + 1").alias("at")
        asks = [partial(rows.with_columns, {name: later}) for name in ("at", "AT")]
        for ask in (*asks, partial(rows.select, "key", later)):
            with pytest.raises(StreamingError, match=r"(?s)time 'at' of a stream cannot be replaced.*hint: change it"):
                ask()
        assert rows.select("key", "at").time == rows.select(F.col("at"), "value").time == rows.time


def test_what_only_a_batch_can_do_is_refused(rows: Stream) -> None:
    query = rows.window(size="4 s", slide="2 s").agg(n=ab.count())
    with pytest.raises(StreamingError, match="cannot sort a stream"):
        query.order_by_window()
    assert query.order_by_window(None).isStreaming
    with pytest.raises(StreamingError, match="cannot be sampled"):
        query.sample()


def test_max_delay_is_kept_or_refused(rows: Stream) -> None:
    one = rows.window(size="60 s", slide="1 s").agg(n=ab.count())
    assert "waits for at most 6 s" in one.explain()  # A tenth of the window, unless told.
    assert "waits for at most 10 s" in one.using("pane", max_delay="10.9 s").explain()
    assert "waits" not in one.using("pane", max_delay="0 s").explain()
    assert "waits" not in one.using("window").explain()
    assert "waits" not in rows.window(size="60 s").agg(n=ab.count()).using("batch", batch=5).explain()
    with pytest.raises(StrategyError, match="wait for up to 4 s"):
        one.using("batch", batch=5, max_delay="3 s").to_df()

    # Of slides that do not divide each other, some window waits for another.
    several = rows.windows(("60 s", "3 s"), ("20 s", "2 s"))
    for query in (several.agg(n=ab.count()), several.agg(top=ab.top_k("value", 1))):
        for strategy in ("auto", "pane", "window"):
            with pytest.raises(StrategyError, match=r"(?s)wait for up to 2 s.*hint: allow a longer max_delay"):
                query.using(strategy, max_delay="1 s").to_df()
        assert "waits for at most 5 s" in query.using("pane", max_delay="5 s").explain()
    # Those that end together need not wait.
    together = rows.windows(("60 s", "3 s"), ("21 s", "3 s")).agg(n=ab.count())
    assert "waits" not in together.using("auto", max_delay="0 s").explain()
