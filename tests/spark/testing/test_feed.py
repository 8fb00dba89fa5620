"""A stream that is fed by hand: rows, empty epochs, and a watermark that moves without a row that a query could see."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import anabranch as ab
from anabranch.errors import ColumnNotFoundError, InvalidArgumentError
from anabranch.testing import EpochRun, StreamFeed, assert_rows_equal
from anabranch.types import Aggregation, Stream

SCHEMA = "at timestamp, key string, value double"
S = 1_000_000


def counts(stream: Stream) -> Aggregation:
    return stream.window(size="10 s").by("key").agg(n=ab.count(), total=ab.sum("value"))


def test_rows_in_every_form(spark: SparkSession, tmp_path: Path) -> None:
    feed = StreamFeed(spark, SCHEMA, tmp_path / "in")
    feed.add(
        [{"at": datetime(2024, 1, 1), "key": "a"}, (datetime(2024, 1, 2), None, float("nan"))],
        [],
        spark.createDataFrame([Row(key="c", value=2.0, at=None)], "key string, value double, at timestamp").toArrow(),
        iter([Row(key="d", value=1.0)]),
    )
    assert feed.epochs == 4
    wanted = [
        (datetime(2024, 1, 1), "a", None),
        (datetime(2024, 1, 2), None, float("nan")),
        (None, "c", 2.0),
        (None, "d", 1.0),
    ]
    assert_rows_equal(feed.batch(), wanted)
    run = EpochRun(feed.frame(), tmp_path / "run")
    epochs = run.run_epochs()
    assert [len(epoch.rows()) for epoch in epochs] == [2, 0, 1, 1]
    assert_rows_equal(run.rows(), wanted)


def test_rows_that_do_not_fit_add_no_epoch(spark: SparkSession, tmp_path: Path) -> None:
    feed = StreamFeed(spark, SCHEMA, tmp_path / "in")
    with pytest.raises(InvalidArgumentError, match="'keys', which is not in the schema"):
        feed.add([{"key": "a"}], [{"keys": "a"}])
    assert feed.epochs == 0 and not list(feed.folder.iterdir())
    with pytest.raises(ColumnNotFoundError):
        feed.stream(time="when")


def test_a_feed_on_the_same_folder_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    StreamFeed(spark, SCHEMA, tmp_path / "in").add([{"key": "a"}])
    again = StreamFeed(spark, SCHEMA, tmp_path / "in")
    again.add([{"key": "b"}])
    assert again.epochs == 2
    assert_rows_equal(again.batch(), [("a",), ("b",)], columns=["key"])


KINDS: list[tuple[str, str | None]] = [
    ("timestamp", None),
    ("timestamp_ntz", None),
    ("bigint", "us"),
    ("bigint", "ms"),
    ("int", None),
]
QUICK = {("timestamp", False), ("timestamp", True), ("bigint", True)}
"""The others are slow tests, which add the types that only change how a time is read."""


@pytest.mark.parametrize(
    ("kind", "unit", "planned"),
    [
        pytest.param(
            kind,
            unit,
            planned,
            id=f"{kind}-{unit}-{'to_df' if planned else 'start'}",
            marks=() if (kind, planned) in QUICK and unit != "ms" else pytest.mark.slow,
        )
        for kind, unit in KINDS
        for planned in (False, True)
    ],
)
def test_the_watermark_moves_and_no_row_is_seen(
    spark: SparkSession, tmp_path: Path, kind: str, unit: Any, planned: bool
) -> None:
    per_second = {"us": S, "ms": 1_000, None: S if kind.startswith("timestamp") else 1}[unit]
    feed = StreamFeed(spark, f"at {kind}, key string, value double", tmp_path / "in")
    query = counts(feed.stream(time="at", watermark="2500 ms", time_unit=unit))
    run = EpochRun(query.to_df() if planned else query, tmp_path / "run")
    feed.add([(1 * per_second, "a", 1.0), (2 * per_second, None, None), (12 * per_second, "b", float("nan"))])
    feed.advance_watermark(10 * per_second)
    run.run_epochs()
    columns = ["key", "n", "total"]
    first = [("a", 1, 1.0), (None, 1, None)]
    assert_rows_equal(run.rows(), first, columns=columns)
    reached = run.epochs[-1].watermark
    assert reached is not None and 10 * S <= reached < 11 * S
    feed.advance_watermark(20 * per_second)
    run.run_epochs()
    assert_rows_equal(run.rows(), [*first, ("b", 1, float("nan"))], columns=columns)


def test_a_datetime_moves_the_watermark_to_the_microsecond(spark: SparkSession, tmp_path: Path) -> None:
    feed = StreamFeed(spark, SCHEMA, tmp_path / "in")
    run = EpochRun(counts(feed.stream(time="at", watermark="3 s")), tmp_path / "run")
    feed.add([(datetime(2024, 1, 1), "a", 1.0)])
    feed.advance_watermark(datetime(2024, 1, 1, 0, 0, 9, 999_999))
    assert [epoch.rows() for epoch in run.run_epochs()] == [[], [], []]
    feed.advance_watermark(datetime(2024, 1, 1, 0, 0, 10))
    run.run_epochs()
    assert len(run.rows()) == 1


def test_operators_do_not_see_the_ticks_but_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    from tests.spark.testing.operators import Recorder

    feed = StreamFeed(spark, SCHEMA, tmp_path / "in")
    processed = feed.stream(time="at", watermark="1 s").process(Recorder, "what string, t bigint", by="key", groups=1)
    run = EpochRun(processed, tmp_path / "run")
    feed.add([(5 * S, "a", 1.0)])
    feed.advance_watermark(20 * S)
    run.run_epochs()
    assert_rows_equal(run.rows(), [("a", 0), ("watermark", 4 * S), ("watermark", 4 * S), ("watermark", 20 * S)])


def test_two_feeds_of_a_join(spark: SparkSession, tmp_path: Path) -> None:
    feeds = [StreamFeed(spark, f"at timestamp, key string, {side} bigint", tmp_path / side) for side in ("l", "r")]
    left, right = (feed.stream(time="at", watermark="0 s") for feed in feeds)
    joined = left.join(right, on="key", within=("5 s", "5 s"), how="left")
    run = EpochRun(joined, tmp_path / "run")
    feeds[0].add([(1 * S, "a", 1), (2 * S, "b", 2)])
    feeds[1].add([(3 * S, "a", 3)])
    for feed in feeds:
        feed.advance_watermark(30 * S)
    assert [epoch.number for epoch in run.run_epochs()] == [0, 1, 2]
    assert_rows_equal(run.rows(), [("a", 1, 3), ("b", 2, None)], columns=["key", "l", "r"])


def test_the_watermark_of_a_frame_belongs_to_the_query(spark: SparkSession, tmp_path: Path) -> None:
    feed = StreamFeed(spark, SCHEMA, tmp_path / "in")
    with pytest.raises(InvalidArgumentError, match=r"stream\(\)"):
        feed.advance_watermark(0)
    feed.stream(time="at")
    feed.advance_watermark(0)
    feed.frame()
    with pytest.raises(InvalidArgumentError, match=r"stream\(\)"):
        feed.advance_watermark(1)
