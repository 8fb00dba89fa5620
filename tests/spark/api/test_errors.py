"""What is refused, and how: every error is an `AnabranchError` that says what is wrong and, in its hint, what to do.

Also what is not refused: rows without a time are counted and kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.errors import (
    AnabranchError,
    ColumnNotFoundError,
    ColumnTypeError,
    InvalidArgumentError,
    InvalidWindowError,
    StrategyError,
)
from anabranch.types import Aggregate, Aggregation, Stream, Windowed
from tests.spark.streams import in_micros

SCHEMA = "at timestamp, n bigint, speed double, cell string, day date, tags array<string>, extra map<string, int>"


@pytest.fixture(scope="module")
def cars(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], SCHEMA)


def stream(cars: DataFrame) -> Stream:
    return ab.stream(cars, time="at")


def windowed(cars: DataFrame) -> Windowed:
    return stream(cars).window(size="5 min", slide="10 s")


def aggregated(cars: DataFrame) -> Aggregation:
    return windowed(cars).by("cell").agg(cars=ab.count())


def streaming(cars: DataFrame) -> DataFrame:
    return cars.sparkSession.readStream.format("rate").load().withColumnRenamed("timestamp", "at")


def no_merge() -> Aggregate:
    return ab.user_aggregate("speed", init=list, incr=lambda s, v: [*s, v], final=len, returns="bigint")


def refused(
    make: Callable[[DataFrame], Any], cars: DataFrame, kind: type[AnabranchError], message: str, hint: str
) -> None:
    with pytest.raises(AnabranchError) as raised:
        make(cars)
    assert type(raised.value) is kind
    assert message in raised.value.message
    assert hint in raised.value.hint
    # What is printed has both.
    assert raised.value.message in str(raised.value) and raised.value.hint in str(raised.value)


Make = Callable[[DataFrame], Any]

WINDOWS: dict[str, tuple[Make, str, str]] = {
    "size below slide": (
        lambda df: stream(df).window(size="10 s", slide="11 s"),
        "window size 10 s is below its slide 11 s: rows between two windows would be lost",
        "at least the slide",
    ),
    "zero size": (lambda df: stream(df).window(size="0 s"), "size 0 s is not positive", "above zero"),
    "negative size": (lambda df: stream(df).window(size="-1 min"), "-1 min is not positive", "above zero"),
    "zero slide": (lambda df: stream(df).window(size="1 s", slide="0 us"), "slide 0 s", "above zero"),
    "negative slide": (lambda df: stream(df).window(size="1 s", slide="-1 s"), "slide -1 s", "above zero"),
    "no duration": (lambda df: stream(df).window(size="soon"), "'soon' is not a duration", "30 minutes"),
    "months": (lambda df: stream(df).window(size="1 month"), "unknown unit 'month'", "30 minutes"),
    "a float": (lambda df: stream(df).window(size=1.5), "1.5 has no unit", '"1.5 seconds"'),
    "an int": (lambda df: stream(df).window(size=60), "60 has no unit", '"60 seconds"'),
    "no size": (lambda df: stream(df).window(), "needs one size", "rows=100"),
    "two sizes": (lambda df: stream(df).window(size="1 s", rows=5), "needs one size", "rows=100"),
    "rows with a time slide": (
        lambda df: stream(df).window(rows=5, slide="1 s"), "are for windows over time", "slide_rows"
    ),
    "size with a row slide": (
        lambda df: stream(df).window(size="5 s", slide_rows=1), "is for windows over rows", "slide="
    ),
    "no rows": (lambda df: stream(df).window(rows=0), "size 0 rows is not positive", "above zero"),
    "rows below their slide": (
        lambda df: stream(df).window(rows=5, slide_rows=6), "5 rows is below its slide 6 rows", "at least"
    ),
    "half a row": (lambda df: stream(df).window(rows=2.5), "2.5 is not a whole number", "whole numbers"),
    "rows as text": (lambda df: stream(df).window(rows="5"), "'5' is not a whole number", "whole numbers"),
    "several, none": (lambda df: stream(df).windows(), "has no window", ".window("),
    "several, not a pair": (lambda df: stream(df).windows("5 min"), "not a pair", '("5 min", "10 s")'),
    "several, one bad": (
        lambda df: stream(df).windows(("5 min", "1 s"), ("1 s", "5 s")), "is below its slide", "at least"
    ),
    "the same twice": (
        lambda df: stream(df).windows(("1 min", "1 s"), ("60 s", "1000 ms")), "same window", "leave one out"
    ),
    "seconds cannot tell": (
        lambda df: ab.stream(df.withColumn("s", F.lit(1)), time="s").window(size="1500 ms", slide="1 s"),
        "an integer of seconds, and the size of the window",
        "whole seconds",
    ),
    "windows over count windows": (
        lambda df: stream(df).window(rows=5).agg(n=ab.count()).window(size="1 s"),
        "positions, not times",
        'at=ab.max("time")',
    ),
    "sliding": (
        lambda df: df.transform(ab.sliding(time="at", size="1 s", slide="2 s", n=ab.count())), "below its", "at least"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WINDOWS)
def test_windows_that_cannot_exist(cars: DataFrame, case: str) -> None:
    make, message, hint = WINDOWS[case]
    refused(make, cars, InvalidWindowError, message, hint)


@pytest.mark.parametrize(
    ("column", "kind", "hint"),
    [
        ("cell", "string", 'F.to_timestamp("cell")'),
        ("day", "date", '.cast("timestamp")'),
        ("speed", "double", 'F.timestamp_seconds("speed")'),
        ("tags", "array<string>", "name a timestamp or bigint column"),
    ],
)
def test_time_columns_of_the_wrong_type(cars: DataFrame, column: str, kind: str, hint: str) -> None:
    message = f"the time column {column!r} is of type {kind}; windows need a timestamp, or a bigint"
    refused(lambda df: ab.stream(df, time=column), cars, ColumnTypeError, message, hint)


def test_a_time_column_that_becomes_one_of_the_wrong_type(cars: DataFrame) -> None:
    text = {"at": F.col("at").cast("string")}
    refused(lambda df: stream(df).with_columns(text), cars, ColumnTypeError, "type string", "to_timestamp")
    shown = F.lit("now").alias("at")
    refused(lambda df: stream(df).select("n", shown), cars, ColumnTypeError, "type string", "to_timestamp")
    # Of a bigint nothing says what it counts; one of another right type is right.
    count = {"at": F.col("n")}
    refused(lambda df: stream(df).with_columns(count), cars, ColumnTypeError, "of an unknown unit", 'time_unit="s"')
    whole = {"at": F.col("n").cast("int")}
    assert stream(cars).with_columns(whole).window(size="5 s").agg(n=ab.count()).to_df()


UNKNOWN: dict[str, tuple[Make, str, str]] = {
    "time": (lambda df: ab.stream(df, time="att"), "no column 'att'", "did you mean 'at'?"),
    "key": (lambda df: windowed(df).by("cel"), "no column 'cel'", "did you mean 'cell'?"),
    "nothing like it": (lambda df: windowed(df).by("xyz"), "no column 'xyz'", "the columns are at, n, speed, cell"),
    "key as a Column": (lambda df: windowed(df).by(F.col("cel")), "`cel` cannot be resolved", "cell"),
    "aggregate": (lambda df: windowed(df).agg(v=ab.avg("sped")), "no column 'sped'", "did you mean 'speed'?"),
    "aggregate over a Column": (
        lambda df: windowed(df).agg(v=ab.avg(F.col("sped") * 2)), "`sped` cannot be resolved", "speed"
    ),
    "user-defined aggregate": (
        lambda df: windowed(df).agg(v=ab.user_aggregate("cels", init=list, incr=list, final=len, returns="int")),
        "no column 'cels'",
        "did you mean 'cell'",
    ),
    "selection": (lambda df: stream(df).select("cell", "sped"), "no column 'sped'", "'speed'"),
    "selection of a Column": (lambda df: stream(df).select(F.col("sped")), "`sped` cannot be", "speed"),
    "filter": (lambda df: stream(df).filter("sped > 3"), "`sped` cannot be resolved", "speed"),
    "new column": (
        lambda df: stream(df).with_columns({"v": F.col("sped")}), "`sped` cannot be resolved", "speed"
    ),
    "a result that is not there": (lambda df: aggregated(df).filter("trips > 3"), "`trips` cannot be", "window, cars"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_columns(cars: DataFrame, case: str) -> None:
    make, message, hint = UNKNOWN[case]
    refused(make, cars, ColumnNotFoundError, message, hint)


TYPES: dict[str, tuple[Make, str, str]] = {
    "sum": (lambda df: windowed(df).agg(v=ab.sum("cell")), "sum needs a number", "cast the column"),
    "avg": (lambda df: windowed(df).agg(v=ab.avg("at")), "avg needs a number, but its column is of type timestamp", ""),
    "variance": (lambda df: windowed(df).agg(v=ab.variance("day")), "variance needs a number", "cast"),
    "quantile": (lambda df: windowed(df).agg(v=ab.quantile("cell", 0.5)), "quantile needs a number", "cast"),
    "max": (lambda df: windowed(df).agg(v=ab.max("tags")), "max needs a number, string", "use another one"),
    "first": (lambda df: windowed(df).agg(v=ab.first("extra")), "first needs", "cast"),
    "top_k": (lambda df: windowed(df).agg(v=ab.top_k("tags", 3)), "top_k needs", "cast"),
    "count_distinct": (lambda df: windowed(df).agg(v=ab.count_distinct("extra")), "count_distinct needs", "cast"),
    "collect": (lambda df: windowed(df).agg(v=ab.collect("extra")), "collect needs", "cast"),
    "user-defined": (
        lambda df: windowed(df).agg(v=ab.user_aggregate("extra", init=list, incr=list, final=len, returns="int")),
        "user_aggregate cannot use a column of type map<string,int>",
        "to_json",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TYPES)
def test_columns_that_an_aggregate_cannot_take(cars: DataFrame, case: str) -> None:
    make, message, hint = TYPES[case]
    refused(make, cars, ColumnTypeError, message, hint)


ARGUMENTS: dict[str, tuple[Make, str, str]] = {
    "no DataFrame": (lambda df: ab.stream([1, 2], time="at"), "list is not a DataFrame", "Spark DataFrame"),
    "time as a Column": (lambda df: ab.stream(df, time=F.col("at")), "is not the name of a column", 'time="at"'),
    "time as a number": (lambda df: ab.stream(df, time=3), "time=3", 'time="at"'),
    "a number as column": (lambda df: windowed(df).agg(v=ab.sum(5)), "5 is not a column", "the name of a column"),
    "a number as key": (lambda df: windowed(df).by(5), "5 is not a column", "the name of a column"),
    "the same key twice": (lambda df: windowed(df).by("cell", "cell"), "same key twice", "name it once"),
    "a key that hides a column": (
        lambda df: windowed(df).by(F.upper("cell").alias("speed")), "the key 'speed' has the name of another", "alias"
    ),
    "a key that hides the time": (
        lambda df: windowed(df).by(F.date_trunc("hour", "at").alias("at")), "the key 'at' has the name", "alias"
    ),
    "a key called window": (
        lambda df: aggregated(df).as_stream().window(size="1 h").by("window"), "'window'", "rename"
    ),
    "no aggregate": (lambda df: windowed(df).agg(), "agg() needs at least one aggregate", "ab.count()"),
    "window, sizes by position": (
        lambda df: stream(df).window("1 h", "10 min"), "window() does not accept this call: too many", 'size="1 h"'
    ),
    "window, a misspelt word": (
        lambda df: stream(df).window(size="1 h", slid="10 min"), "did you mean 'slide'?", 'slide="10 min"'
    ),
    "stream, time by position": (lambda df: ab.stream(df, "at"), "too many positional", 'time="at"'),
    "stream without a time": (lambda df: ab.stream(df), "missing a required argument: 'time'", 'time="at"'),
    "an aggregate without a name": (lambda df: windowed(df).agg(ab.count()), "too many positional", "trips=ab.count()"),
    "start with nothing": (lambda df: aggregated(df).start(), "missing a required", 'checkpoint="checkpoint/"'),
    "start without a checkpoint": (
        lambda df: aggregated(df).start(ab.MemorySink()), "missing a required argument: 'checkpoint'", "checkpoint="
    ),
    "start with a checkpoint of None": (
        lambda df: ab.start(ab.stream(streaming(df), time="at", watermark="0 s").window(size="1 s")
            .agg(n=ab.count()).to(ab.MemorySink()), checkpoint=None),
        "checkpoint=None of start() must be of type str | Path", 'checkpoint="checkpoint/"',
    ),
    "join without a key": (
        lambda df: stream(df).join(stream(df), within=("1 s", "1 s")), "missing a required argument: 'on'", "on="
    ),
    "join without a window": (lambda df: stream(df).join(stream(df), on="cell"), "'within'", "within=("),
    "keys as a list": (lambda df: windowed(df).by(["cell", "n"]), "is not a column", "one by one"),
    "a union with a DataFrame": (lambda df: stream(df).union(df), "must be of type Stream", ".union(other)"),
    "a filter by a number": (lambda df: stream(df).filter(5), "condition=5 of filter()", "speed > 3"),
    "columns that are none": (lambda df: stream(df).with_columns("v"), "columns='v' of with_columns()", "F.col("),
    "an aggregate of Spark": (
        lambda df: windowed(df).agg(v=F.avg("speed")), "is not an aggregate of Anabranch", 'ab.avg("fare")'
    ),
    "called as a key": (lambda df: windowed(df).by("cell").agg(cell=ab.count()), "called 'cell'", "another name"),
    "called as a key, other case": (lambda df: windowed(df).by("cell").agg(CELL=ab.count()), "'CELL'", "another name"),
    "called window": (lambda df: windowed(df).agg(window=ab.count()), "called 'window'", "another name"),
    "called the same in another case": (lambda df: windowed(df).agg(a=ab.count(), A=ab.count()), "'A'", "another name"),
    "no such strategy": (lambda df: aggregated(df).using("panes"), "no strategy 'panes'", '"pane"'),
    "a batch of none": (lambda df: aggregated(df).using("batch", batch=0), "batch=0: a batch needs", "batch=10"),
    "half a batch": (lambda df: aggregated(df).using("batch", batch=1.5), "batch=1.5: a batch needs", "batch=10"),
    "a ring of none": (lambda df: aggregated(df).using("pane", nodes=0), "nodes=0: a ring needs", "nodes=4"),
    "negative delay": (lambda df: aggregated(df).using("pane", max_delay="-1 s"), "-1 s is negative", "zero or more"),
    "no sample": (lambda df: aggregated(df).sample(0.0), "sample=0.0 is not a share", "above 0"),
    "too large a sample": (lambda df: aggregated(df).sample(1.5), "sample=1.5 is not a share", "up to 1"),
    "a sample in words": (lambda df: aggregated(df).sample("all"), "sample='all' is not a share", "up to 1"),
    "no density": (lambda df: aggregated(df).assume(rows_per_pane=0), "must be above zero, not 0", "rows_per_pane=50"),
    "negative disorder": (lambda df: aggregated(df).order_by_window(-1), "k=-1 is not a bound", "0 or more"),
    "a rank above 1": (lambda df: ab.quantile("speed", 95), "95 is not between 0 and 1", "0.95"),
    "ranks, one bad": (lambda df: ab.quantile("speed", [0.5, -0.1]), "not between 0 and 1", "0.95"),
    "no ranks": (lambda df: ab.quantile("speed", []), "[] is not between", "0.95"),
    "a rank in words": (lambda df: ab.quantile("speed", "0.5"), "'0.5' is not between", "0.95"),
    "too small a sketch": (lambda df: ab.quantile("speed", 0.5, k=1), "k=1 is not between 8 and 65535", "200"),
    "too large a sketch": (
        lambda df: ab.count_distinct("cell", approx=True, lg_k=30),
        "lg_k=30 is not between 4 and 21",
        "12",
    ),
    "a sketch where there is none": (lambda df: ab.count_distinct("cell", lg_k=12), "lg_k=12 without approx", "approx"),
    "top none": (lambda df: ab.top_k("cell", 0), "k=0 of top_k", "at least 1"),
    "top one and a half": (lambda df: ab.top_k("cell", 1.5), "k=1.5 of top_k", "whole number"),
    "no function": (
        lambda df: ab.user_aggregate("speed", init=0, incr=max, final=int, returns="int"), "init of user", "function"
    ),
    "no type": (
        lambda df: windowed(df).agg(v=ab.user_aggregate("speed", init=list, incr=max, final=len, returns="number")),
        "'number' is not a Spark type",
        '"double"',
    ),
    "a filter that is no condition": (lambda df: stream(df).filter("speed +"), "the filter cannot", "speed"),
    "a union of seconds and microseconds": (
        lambda df: ab.stream(df.select(F.lit(1).alias("t")), time="t").union(
            ab.stream(df.select(F.lit(1).cast("bigint").alias("t")), time="t", time_unit="us")
        ),
        "'t' is int in one stream of the union and bigint in the other",
        "cast",
    ),
    "a filter of the wrong type": (lambda df: stream(df).filter("speed"), "the filter cannot", "speed"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_that_no_query_could_use(cars: DataFrame, case: str) -> None:
    make, message, hint = ARGUMENTS[case]
    refused(make, cars, InvalidArgumentError, message, hint)


def test_an_aggregate_that_cannot_run_in_the_strategy(cars: DataFrame) -> None:
    query = windowed(cars).by("cell").agg(n=ab.count(), spread=no_merge())
    for ask in (lambda df: query.using("pane").to_df(), lambda df: query.using("pane").explain()):
        refused(ask, cars, StrategyError, "spread has no merge, so panes cannot become windows", "merge function")
    # Every other way can run it.
    for strategy in ("auto", "batch", "window"):
        assert query.using(strategy).to_df().columns == ["cell", "window", "n", "spread"]


def test_errors_are_what_python_would_call_them() -> None:
    """So that code which knows nothing of Anabranch can catch them."""
    assert issubclass(InvalidWindowError, ValueError)
    assert issubclass(ColumnNotFoundError, LookupError)
    assert issubclass(ColumnTypeError, TypeError)


def test_the_same_column_as_a_string_and_as_a_column_are_one_key(cars: DataFrame) -> None:
    for key in ("cell", F.col("cell"), cars["cell"], cars.cell, F.col("cell").alias("cell")):
        assert windowed(cars).by(key).keys == ("cell",)


def test_an_overflow_on_a_worker_is_raised_with_its_hint(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(t, 2**62) for t in range(3)], "t bigint, v bigint")
    query = ab.stream(rows, time="t", time_unit="us").window(size="2 us", slide="1 us").agg(v=ab.sum("v")).using("pane")
    with pytest.raises(Exception, match=r"(?s)does not fit a 64-bit integer.*cast the column to double or decimal"):
        query.to_df().collect()


# --- rows without a time ---

ROWS = [(1, "a"), (None, "a"), (3, "b"), (None, None), (2, "a"), (None, "c")]

QUERIES: dict[str, Callable[[Stream], Aggregation]] = {
    "window": lambda s: s.window(size="4 us", slide="2 us").by("k").agg(n=ab.count()).using("window"),
    "batch": lambda s: s.window(size="4 us", slide="2 us").by("k").agg(n=ab.count()).using("batch", batch=2),
    "pane": lambda s: s.window(size="4 us", slide="2 us").by("k").agg(n=ab.count()).using("pane"),
    "pane without a key": lambda s: s.window(size="4 us", slide="2 us").agg(n=ab.count()).using("pane"),
    "several windows, one by one": lambda s: (
        s.windows(("4 us", "2 us"), ("6 us", "3 us")).agg(n=ab.count()).using("window")
    ),
    "several windows": lambda s: s.windows(("4 us", "2 us"), ("6 us", "3 us")).agg(n=ab.count()).using("pane"),
    "count windows": lambda s: s.window(rows=2, slide_rows=1).agg(n=ab.count()).using("pane"),
    "count windows per key": lambda s: s.window(rows=2).by("k").agg(n=ab.count()),
    "count windows over all keys": lambda s: s.window(rows=2, per_key=False).by("k").agg(n=ab.count()),
}


@pytest.mark.parametrize("case", QUERIES)
def test_rows_without_a_time_are_counted(spark: SparkSession, case: str) -> None:
    source = spark.createDataFrame(ROWS, "t bigint, k string").repartition(3)
    query = QUERIES[case](in_micros(source, time="t"))
    observation = Observation()
    result = query.to_df(observation=observation)
    assert "c" not in {row["k"] for row in result.collect() if "k" in row}
    assert observation.get == {"rows": 6, "null_time": 3}


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_that_fit_no_window_are_counted_and_kept(spark: SparkSession, unit: Any) -> None:
    rows = spark.createDataFrame([(-(2**63), "a"), (5, "b"), (2**63 - 1, "c")], "t bigint, k string")
    stream = ab.stream(rows, time="t", time_unit=unit)
    for windows in (stream.window(size="1 hour", slide="25 min"), stream.window(rows=1, per_key=False)):
        observation = Observation()
        result = windows.agg(n=ab.count()).to_df(observation=observation).collect()
        assert {row.n for row in result} == {1}
        assert observation.get == {"rows": 3, "null_time": 2}
    assert sorted(row.k for row in stream.bad_rows().collect()) == ["a", "c"]


@pytest.mark.parametrize("kind", ["bigint", "timestamp", "timestamp_ntz"])
def test_rows_without_a_time_are_kept_with_the_reason(spark: SparkSession, kind: str) -> None:
    rows = spark.createDataFrame(ROWS, "t bigint, k string")
    source = rows.select(F.timestamp_micros("t").cast(kind).alias("t") if kind != "bigint" else F.col("t"), "k")
    bad = in_micros(source, time="t").bad_rows()
    assert bad.columns == ["t", "k", "reason"]
    kept = sorted(bad.collect(), key=lambda row: str(row.k))
    assert [(row.t, row.k, row.reason) for row in kept] == [
        (None, None, "null time in column t"),
        (None, "a", "null time in column t"),
        (None, "c", "null time in column t"),
    ]


def test_nothing_is_lost(spark: SparkSession) -> None:
    """Rows in the windows and bad rows together are the input."""
    source = spark.createDataFrame(ROWS, "t bigint, k string")
    stream = in_micros(source, time="t")
    tumbling = stream.window(size="2 us").agg(n=ab.count()).to_df()
    assert sum(row.n for row in tumbling.collect()) + stream.bad_rows().count() == len(ROWS)
    assert in_micros(source.na.fill({"t": 0}), time="t").bad_rows().collect() == []
