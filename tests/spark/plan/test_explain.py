"""What explain() says: the strategy, its price and those of the others, and Spark's plan in short."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.plan.batch import layout
from anabranch.types import Aggregation
from tests.spark.streams import in_micros


@pytest.fixture(scope="module")
def trips(spark: SparkSession) -> DataFrame:
    """Ten rows per second, for 100 seconds, of two cells; and one row without a time."""
    at = F.when(F.col("id") < 1000, F.col("id") * 100_000)
    return spark.range(1001).select(
        at.alias("at"), (F.col("id") % 2).cast("string").alias("cell"), F.col("id").alias("fare")
    )


def query(trips: DataFrame, size: str, slide: str | None = None) -> Aggregation:
    windowed = in_micros(trips, time="at").window(size=size, slide=slide).by("cell")
    return windowed.agg(trips=ab.count(), fare=ab.avg("fare"))


def test_a_batch_that_is_asked_for_is_used_a_single_window_too(trips: DataFrame) -> None:
    asked = query(trips, "10 s", "2 s")
    slides = {batch: layout(asked.query, asked.using("pane", batch=batch).strategy).slide for batch in (1, 3, None)}
    assert slides[1] == 1 and slides[3] == 3 and slides[None] > 3  # in panes of two seconds


def line(text: str, label: str) -> str:
    """What stands behind a label."""
    return next(found[len(label) :].strip() for found in text.splitlines() if found.startswith(label))


def prices(text: str) -> dict[str, tuple[str, str]]:
    """strategy -> (price, copies of a row or the reason), in the order shown; the taken one has an arrow."""
    table = text.split("one aggregation):\n")[1].split("\n\n")[0].splitlines()[1:]
    cells = [re.match(r"\s*(->)?\s*(pane|window|batch, B = \d+)\s+(\S+)\s+(.*)", row) for row in table]
    assert all(cells)
    return {(c[1] or "") + c[2]: (c[3], c[4]) for c in cells if c}


def plan(text: str) -> list[str]:
    return [step.strip() for step in text.split("from the source to the result:\n")[1].splitlines()]


def taken(text: str) -> str:
    return re.split(r", (?!B)", line(text, "strategy"))[0]


def test_all_of_it(trips: DataFrame) -> None:
    text = query(trips, "1 min", "1 s").explain()
    assert line(text, "windows") == "1 min / 1 s"
    assert line(text, "panes") == "of 1 s; 60 to a window"
    assert line(text, "aggregates") == "trips = count() (invertible), fare = avg(fare) (invertible)"
    assert line(text, "keys") == "cell"
    assert line(text, "density") == "1.0 rows per key and pane (assumed: nothing is known of the data)"
    found = prices(text)
    # The taken one, and every one that was not, each with its price and how often it copies a row.
    assert {"->pane", "window", "batch, B = 2", "batch, B = 10", "batch, B = 50"} <= found.keys()
    assert found["window"][1] == "60.00"
    assert found["batch, B = 10"][1] == "6.90"  # (60 + 9) / 10
    assert found["->pane"][1] == "1.00"
    costs = [float(price.replace(",", "")) for price, _ in found.values()]
    assert costs == sorted(costs)  # the cheapest first
    ratio = costs[1] / costs[0]
    assert line(text, "strategy") == f"pane, the cheapest: {ratio:,.1f} times cheaper than the next"
    steps = plan(text)
    assert [s for s in steps if s.startswith("Exchange")] and "MapInArrow" in steps
    assert steps.index("MapInArrow") > next(i for i, s in enumerate(steps) if s.startswith("HashAggregate"))
    # Spark's own ids and our internal names are of no use to a reader.
    assert "#" not in text and "__ab_" not in text


@pytest.mark.parametrize(
    ("size", "slide", "strategy"),
    [
        ("1 min", None, "window"),  # nothing overlaps
        ("1 min", "40 s", "window"),  # little does
        ("1 min", "1 s", "pane"),
        ("30 min", "1 s", "pane"),
    ],
)
def test_auto_takes_panes_where_windows_overlap_much(
    trips: DataFrame, size: str, slide: str | None, strategy: str
) -> None:
    assert taken(query(trips, size, slide).explain()) == strategy


def test_a_strategy_that_was_asked_for(trips: DataFrame) -> None:
    asked = query(trips, "1 min", "1 s")
    text = asked.using("batch", batch=7).explain()
    assert line(text, "strategy") == "batch, B = 7, as requested"
    assert "->batch, B = 7" in prices(text) and "pane" in prices(text)
    assert line(asked.using("window").explain(), "strategy") == "window, as requested"
    assert taken(asked.using("window").using().explain()) == "pane"  # and back to auto
    assert "MapInArrow" not in plan(text)


def test_what_cannot_run_says_why(trips: DataFrame) -> None:
    middle = ab.user_aggregate("fare", init=list, incr=lambda s, v: [*s, v], final=len, returns="bigint", name="middle")
    windowed = in_micros(trips, time="at").window(size="1 min", slide="1 s")
    text = windowed.agg(m=middle, n=ab.count()).explain()
    assert "m = middle(fare) (whole windows only)" in line(text, "aggregates")
    assert prices(text)["pane"] == ("-", "m has no merge, so panes cannot become windows")
    assert taken(text).startswith("batch")
    assert list(prices(text))[-1] == "pane"  # behind those that can


def test_without_a_key(trips: DataFrame) -> None:
    windowed = in_micros(trips, time="at").window(size="1 min", slide="1 s").agg(n=ab.max("fare"))
    assert line(windowed.explain(), "keys") == "none: batches of panes go round a ring"
    assert line(windowed.explain(), "aggregates") == "n = max(fare) (mergeable)"
    assert line(windowed.using("window").explain(), "keys") == "none"
    tumbling = in_micros(trips, time="at").window(size="1 min").agg(n=ab.count())
    assert line(tumbling.using("pane").explain(), "keys") == "none"  # a pane is a window: one group-by


def test_several_windows_and_count_windows(trips: DataFrame) -> None:
    stream = in_micros(trips, time="at")
    text = stream.windows(("1 min", "10 s"), ("90 s", "15 s")).agg(n=ab.count()).explain()
    assert line(text, "windows") == "1 min / 10 s, 1 min 30 s / 15 s"
    assert line(text, "panes") == "of 5 s; 12, 18 to a window"
    assert prices(text)["window"][1] == "12.00"  # six windows of each kind
    text = stream.window(rows=100, slide_rows=15).by("cell").agg(n=ab.count()).explain()
    assert line(text, "panes") == "of 5 rows; 20 to a window"


# --- density ---


def test_a_sample_changes_the_density(trips: DataFrame) -> None:
    dense = query(trips, "1 min", "1 s")
    sampled = dense.sample(1.0)
    # Ten rows in each second, in two cells; the row without a time is in no pane.
    assert sampled.statistics.rows_per_pane == 5.0
    assert (
        line(sampled.explain(), "density") == "5.0 rows per key and pane (a sample of 100.00% of the panes, 1,000 rows)"
    )
    assert float(prices(sampled.explain())["->pane"][0]) < float(prices(dense.explain())["->pane"][0])
    # Whole panes are taken, so a smaller sample sees the same density in fewer rows.
    part = dense.sample(0.25).statistics
    assert part.rows_per_pane == 5.0
    rows = int(re.search(r"([\d,]+) rows", part.source)[1].replace(",", ""))  # type: ignore[index]
    assert 100 <= rows <= 400 and rows % 10 == 0


def test_a_dense_sample_can_change_the_choice(trips: DataFrame) -> None:
    # At an overlap of 3, panes are worth their way only where they hold many rows.
    sparse = query(trips, "30 s", "10 s")
    assert taken(sparse.explain()) == "window"
    assert taken(sparse.sample(1.0).explain()) == "pane"
    assumed = sparse.assume(rows_per_pane=50)
    assert taken(assumed.explain()) == "pane"
    assert line(assumed.explain(), "density") == "50.0 rows per key and pane (given by assume())"


def test_a_sample_of_nothing(spark: SparkSession) -> None:
    empty = spark.createDataFrame([], "at bigint, cell string, fare bigint")
    found = query(empty, "1 min", "1 s").sample(0.5)
    assert found.statistics.rows_per_pane == 1.0
    assert "had no rows" in line(found.explain(), "density")


def test_count_windows_need_no_sample(trips: DataFrame) -> None:
    count_windows = in_micros(trips, time="at").window(rows=100, slide_rows=15).by("cell").agg(n=ab.count()).sample()
    assert line(count_windows.explain(), "density") == "5.0 rows per key and pane (panes of a fixed number of rows)"


def test_explaining_runs_nothing_and_prints_nothing(
    spark: SparkSession, trips: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = trips.withColumn("fare", F.raise_error(F.lit("this ran")).cast("bigint"))
    assert query(broken, "1 min", "1 s").explain()
    assert capsys.readouterr().out == ""
