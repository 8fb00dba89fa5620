"""Load shedding in the epoch runtime: what is delivered is exact, what is not is listed, and nothing else is missing."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.errors import InvalidArgumentError
from tests.spark.streams import Feed

S = 1_000_000
Row = tuple[int | None, str | None, int | None]
KEYS = [f"k{i}" for i in range(40)]


def epochs_of(seed: int, epochs: int = 8, rows: int = 300, span: int = 20, start: int = -40) -> list[list[Row]]:
    """Rows in order of epochs, a little out of order within one, from before 1970 on; a last one completes them."""
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


def started(*deliveries: Any, folder: Path, **settings: Any) -> ab.EpochQuery:
    settings = {"trigger": "available-now", **settings}
    query = ab.start(*deliveries, checkpoint=folder / "checkpoint", live=folder / "live", workers=2, **settings)
    query.awaitTermination()
    return query


def all_of(column: str) -> ab.Aggregate:
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
        # A window without rows of the key is neither: nobody can tell whether it was dropped.
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


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("drop_at", ["source", "operators", "results"])
def test_what_is_delivered_is_exact(spark: SparkSession, tmp_path: Path, name: str, drop_at: str) -> None:
    feed = Feed(tmp_path / "in")
    feed.add(*epochs_of(3))
    query = QUERIES[name](ab.stream(feed.stream(spark), time="at", watermark="0 seconds"))
    exact, shed, report = ab.MemorySink(), ab.MemorySink(), ab.MemorySink()
    started(query.to(exact), folder=tmp_path / "exact")
    qos = ab.QoS(max_gap=4, drop_share=0.5, drop_at=drop_at, seed=5)
    run = started(query.to(shed), folder=tmp_path / "shed", qos=qos, report=report)
    whole, part = windows_of(exact.rows()), windows_of(shed.rows())
    assert part.keys() <= whole.keys()
    assert all(whole[window] == row for window, row in part.items())
    assert len(part) < len(whole)
    if "key" in query.query.keys:
        assert 0.25 < len(part) / len(whole) < 0.75
    if name in SLIDES:
        assert 1 < longest_gap(set(whole), set(part), SLIDES[name]) <= 4
    drops = [drop for progress in run.recentProgress for drop in progress.drops]
    assert drops and all(drop.rows == drop.kept + drop.shed for drop in drops)
    if drop_at == "source" and name in ("tumbling", "user", "nested", "after steps"):
        assert sum(drop.shed for drop in drops) > 0
    listed = report.rows()
    assert listed and all(each["p"] == pytest.approx(0.5) for each in listed)
