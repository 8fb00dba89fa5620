"""One row from the year 2200 closes no window: `start()` keeps it apart, and goes on as if it had not come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import anabranch as ab
from anabranch.types import EpochQuery
from tests.spark.streams import Feed, plain

S = 1_000_000
YEAR_2200 = 7_258_118_400 * S
Row = tuple[int | None, str, int]
SLOW = pytest.mark.slow


def minutes(first: int, last: int) -> list[Row]:
    """A row every ten seconds of these minutes."""
    return [(t * S, "ab"[t // 10 % 2], t) for t in range(first * 60, last * 60, 10)]


def windows(source: DataFrame, **settings: Any) -> Any:
    stream = ab.stream(source, time="at", watermark="10 seconds", **settings)
    return stream.window(size="1 minute", slide="30 seconds").by("key").agg(n=ab.count(), total=ab.sum("value"))


def totals(source: DataFrame, **settings: Any) -> Any:
    stream = ab.stream(source, time="at", watermark="10 seconds", **settings)
    return stream.window(rows=2).by("key").agg(n=ab.count(), total=ab.sum("value"))


def spread(source: DataFrame, **settings: Any) -> Any:
    """An aggregate in Python whose keys a policy places."""
    stream = ab.stream(source, time="at", watermark="10 seconds", **settings)
    total = ab.user_aggregate(
        "value", init=int, incr=int.__add__, merge=int.__add__, final=int, returns="bigint", state="bigint"
    )
    return stream.window(size="1 minute").by("key", partition="cam").agg(total=total)


def joined(source: DataFrame, **settings: Any) -> Any:
    one = ab.stream(source, time="at", watermark="10 seconds", **settings)
    return one.join(one.filter("value % 20 = 0"), on="key", within=("30 s", "30 s"))


def run(query: Any, folder: Path, **settings: Any) -> tuple[list[dict[str, Any]], EpochQuery]:
    sink = ab.MemorySink()
    handle = query.start(sink, checkpoint=folder / "c", live=folder / "live", trigger="available-now", **settings)
    handle.awaitTermination()
    return plain(sink.table()) if sink.epochs else [], handle


def by_content(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


def side_rows(folder: Path) -> list[dict[str, Any]]:
    """Without their times, which Python's datetime may not have."""
    files = sorted((folder / "c" / "side").rglob("*.parquet"))
    return [row for file in files for row in pq.read_table(file, columns=["value", "reason"]).to_pylist()]


@pytest.mark.parametrize("query", [windows, joined, *(pytest.param(each, marks=SLOW) for each in (totals, spread))])
@pytest.mark.parametrize(("kind", "unit"), [("bigint", "us"), ("timestamp", None)])
def test_times_at_the_ends_of_64_bits_change_no_result(
    spark: SparkSession, tmp_path: Path, query: Any, kind: str, unit: str | None
) -> None:
    good: Sequence[list[Row]] = [minutes(0, 3), minutes(3, 6)]
    clean, dirty = Feed(tmp_path / "clean", kind), Feed(tmp_path / "dirty", kind)
    clean.add(*good)
    dirty.add([(-(2**63), "a", 40), *good[0]], [*good[1], (2**63 - 1, "b", -1)])
    expected, _ = run(query(clean.stream(spark), time_unit=unit), tmp_path / "1")
    found, handle = run(query(dirty.stream(spark), time_unit=unit), tmp_path / "2")
    assert by_content(found) == by_content(expected)
    assert expected
    inputs = 2 if query is joined else 1  # the first of them is in both streams of the join
    assert [epoch.bad for epoch in handle.recentProgress] == [inputs, 1]
    assert {row["value"] for row in side_rows(tmp_path / "2")} == {40, -1}


@pytest.mark.parametrize("query", [windows, totals, spread, joined])
def test_a_row_from_2200_changes_no_result(spark: SparkSession, tmp_path: Path, query: Any) -> None:
    good: Sequence[list[Row]] = [minutes(0, 3), minutes(3, 6), minutes(6, 9)]
    clean, dirty = Feed(tmp_path / "clean"), Feed(tmp_path / "dirty")
    clean.add(*good)
    dirty.add(good[0], [*good[1], (YEAR_2200, "a", -1)], good[2])
    expected, _ = run(query(clean.stream(spark)), tmp_path / "1")
    found, handle = run(query(dirty.stream(spark)), tmp_path / "2")
    assert by_content(found) == by_content(expected)
    assert expected
    ends = [epoch.operators[0] for epoch in handle.recentProgress]
    assert [(each.ahead, each.late, each.bad) for each in ends] == [(0, 0, 0), (1, 0, 0), (0, 0, 0)]
    kept = side_rows(tmp_path / "2")
    assert [row["value"] for row in kept] == [-1]
    assert kept[0]["reason"].startswith("ahead: the latest time allowed was 20")


def test_a_row_from_2200_that_comes_alone_moves_no_watermark(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add([(YEAR_2200, "a", -1)], minutes(0, 3), [(YEAR_2200, "a", -2)], minutes(3, 6))
    found, handle = run(windows(feed.stream(spark)), tmp_path)
    assert sum(epoch.late for epoch in handle.recentProgress) == 0
    assert {row["window"]["end"] for row in found} == {t * 30 * S for t in range(1, 12)}


def test_data_with_a_clock_of_its_own_is_taken_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """All times lie in the future: simulated, not wrong."""
    far = [[(t + YEAR_2200, key, v) for t, key, v in minutes(at, at + 3)] for at in (0, 3, 6)]
    feed = Feed(tmp_path / "in")
    feed.add(*far)
    found, handle = run(windows(feed.stream(spark)), tmp_path)
    assert [epoch.ahead for epoch in handle.recentProgress] == [0, 0, 0]
    assert max(row["window"]["end"] for row in found) == YEAR_2200 + 9 * 60 * S - 30 * S
    assert not side_rows(tmp_path)
    feed.add([(t + YEAR_2200, key, v) for t, key, v in minutes(9, 12)])  # a restart knows it
    more, handle = run(windows(feed.stream(spark)), tmp_path)
    assert handle.recentProgress[-1].ahead == 0
    assert more


def test_a_bound_that_was_asked_for_holds_even_then(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add([(t + YEAR_2200, key, v) for t, key, v in minutes(0, 3)])
    found, handle = run(windows(feed.stream(spark)), tmp_path, max_ahead="1 day")
    assert not found
    assert handle.recentProgress[-1].ahead == 18


def test_without_a_bound_the_row_counts(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(minutes(0, 3), [(YEAR_2200, "a", -1)], minutes(3, 6))
    _, handle = run(windows(feed.stream(spark)), tmp_path, max_ahead=None)
    assert handle.recentProgress[-1].late == 18


def test_a_bound_is_counted_from_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    now = round(time.time()) * S
    feed = Feed(tmp_path / "in")
    feed.add([(now, "a", 0), (now + 600 * S, "a", 1), (now + 7_200 * S, "a", 2)])
    _, handle = run(windows(feed.stream(spark)), tmp_path, max_ahead="1 hour")
    assert handle.recentProgress[-1].ahead == 1


def test_ints_of_seconds_whose_windows_end_after_2038_are_kept_apart(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = pa.table({"at": pa.array([100, 200, 2**31 - 5], pa.int32()), "key": ["a"] * 3, "value": [1, 2, 3]})
    pq.write_table(rows, tmp_path / "in" / "0.parquet")
    source = spark.readStream.schema("at int, key string, value bigint").parquet(str(tmp_path / "in"))
    found, handle = run(windows(source), tmp_path, max_ahead=None)
    assert handle.recentProgress[-1].ahead == 1
    assert {row["window"]["end"] for row in found} == {120, 150}
