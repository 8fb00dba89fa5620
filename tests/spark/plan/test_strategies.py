"""Every strategy gives the same windows: those of a slow evaluation in Python, and those of Spark's own `window()`."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType, TimestampType

import anabranch as ab
from anabranch.spark.columns import quoted
from anabranch.types import Aggregate, Aggregation, Windowed
from anabranch.windows import Window, describe
from tests.oracles import aggregates as oracle
from tests.oracles.aggregates import Oracle, Result, Row, evaluate, same
from tests.spark.streams import in_micros, in_words

nan, inf = math.nan, math.inf
APPROXIMATE = {"variance", "stddev", "variance_pop", "stddev_pop"}
"""Aggregates whose last digits depend on the order of the rows."""


# --- from DataFrames to results and back ---

ARROW_TIMES = {"bigint": pa.int64(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}


def frame_of(spark: SparkSession, rows: Sequence[Row], time: str = "bigint", **types: str) -> DataFrame:
    """The rows with a time column `t` of that type; in the rows it is always in microseconds."""
    names = {"t": time, **types}
    columns = {name: [row[name] for row in rows] for name in names}
    table = pa.table({"t": pa.array(columns.pop("t"), pa.int64()).cast(ARROW_TIMES[time])})
    known = spark.createDataFrame([], ", ".join(f"`{n}` {kind}" for n, kind in types.items())).toArrow().schema
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values, known.field(name).type, from_pandas=False))
    return spark.createDataFrame(table, ", ".join(f"`{n}` {kind}" for n, kind in names.items()))


def micros(column: Column, kind: object) -> Column:
    if isinstance(kind, TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, TimestampNTZType):  # as if it were UTC
        return F.unix_micros(F.concat(column.cast("string"), F.lit("Z")).cast("timestamp"))
    return column


def flat(windows: DataFrame, label: str = "") -> DataFrame:
    """With start and end of the window in microseconds, for one comparison of all types of time, and a label."""
    edges = windows.schema["window"].dataType
    start, end = (micros(F.col("window")[edge], edges[edge].dataType) for edge in ("start", "end"))
    others = [quoted(c) for c in windows.columns if c != "window"]
    return windows.select(F.lit(label).alias("label"), start.alias("start"), end.alias("end"), *others)


def collected(frames: Mapping[str, DataFrame], keys: Sequence[str] = ()) -> dict[str, Result]:
    """The results of several DataFrames in one Spark job. No window may come twice."""
    parts = [flat(frame, label) for label, frame in frames.items()]
    kinds = [[(f.name, f.dataType.simpleString()) for f in part.schema] for part in parts]
    assert all(kind == kinds[0] for kind in kinds), "the strategies differ in their types"
    results: dict[str, Result] = {label: {} for label in frames}
    for row in reduce(DataFrame.unionAll, parts).collect():
        values = row.asDict()
        label, start, end = (values.pop(c) for c in ("label", "start", "end"))
        place = (*(values.pop(k) for k in keys), start, end)
        if "window_spec" in values:
            place = (*place, values.pop("window_spec"))
        assert place not in results[label], f"{label} has the window {place} twice"
        results[label][place] = values
    return results


def assert_same(found: Result, expected: Result, of: str) -> None:
    assert found.keys() == expected.keys(), of
    for place, values in expected.items():
        for name, value in values.items():
            digits = 9 if name in APPROXIMATE else None
            assert same(found[place][name], value, digits), (of, place, name, found[place][name], value)


def strategies_of(query: Aggregation, batch: int = 3, nodes: int | None = None) -> dict[str, DataFrame]:
    return {
        "window": query.using("window").to_df(),
        "batch": query.using("batch", batch=batch).to_df(),
        # Keys are spread without a ring.
        "pane": query.using("pane", nodes=None if query.query.keys else nodes).to_df(),
    }


def spark_window(t: Column, window: Window) -> Column:
    """Spark's own `window()`; it wants its start within one slide."""
    size, slide, start = (f"{n} microseconds" for n in (window.size, window.slide, window.origin % window.slide))
    return F.window(t, size, slide, start)


@dataclass(frozen=True)
class Checked:
    """An aggregate with its oracle and, where Spark has it, Spark's own."""

    ours: Aggregate
    oracle: Oracle
    spark: Column | None = None


def ordered_values(column: str) -> Column:
    """Spark's values in the order of time."""
    rows = F.sort_array(F.collect_list(F.when(F.col(column).isNotNull(), F.struct("t", column))))
    return F.transform(rows, lambda row: row[column])


def numeric(column: str) -> dict[str, Checked]:
    return {
        "sum": Checked(ab.sum(column), oracle.sum_(column), F.sum(column)),
        "avg": Checked(ab.avg(column), oracle.avg(column), F.avg(column)),
        "variance": Checked(ab.variance(column), oracle.variance(column), F.var_samp(column)),
        "variance_pop": Checked(
            ab.variance(column, population=True), oracle.variance(column, population=True), F.var_pop(column)
        ),
        "stddev": Checked(ab.stddev(column), oracle.stddev(column), F.stddev_samp(column)),
        "stddev_pop": Checked(
            ab.stddev(column, population=True), oracle.stddev(column, population=True), F.stddev_pop(column)
        ),
    }


def ordered(column: str) -> dict[str, Checked]:
    row = F.struct("t", column)
    return {
        "rows": Checked(ab.count(), oracle.count(), F.count(F.lit(1))),
        "count": Checked(ab.count(column), oracle.count(column), F.count(column)),
        "min": Checked(ab.min(column), oracle.min_(column), F.min(column)),
        "max": Checked(ab.max(column), oracle.max_(column), F.max(column)),
        # min_by(x, t) takes any of several rows at the same time; the struct takes a definite one.
        "first": Checked(ab.first(column), oracle.first(column, "t"), F.min(row)[column]),
        "last": Checked(ab.last(column), oracle.last(column, "t"), F.max(row)[column]),
        "distinct": Checked(ab.count_distinct(column), oracle.count_distinct(column), F.count_distinct(column)),
        "collect": Checked(ab.collect(column), oracle.collect(column, "t"), ordered_values(column)),
    }


def append(state: list[Any], *values: Any) -> list[Any]:
    state.append(values[0])
    return state


def extend(a: list[Any], b: list[Any]) -> list[Any]:
    """Changes its first argument, and returns its second where the first is empty."""
    if not a:
        return b
    a.extend(b)
    return a


def spelled(state: list[Any]) -> str:
    return " ".join(map(str, state))


def kernel_only(column: str) -> dict[str, Checked]:
    """Aggregates that Spark has not: all strategies run them in the kernel."""
    user = {"init": list, "incr": append, "final": spelled}
    return {
        "top": Checked(ab.top_k(column, 2), oracle.top_k(column, 2)),
        "user": Checked(
            ab.user_aggregate(column, **user, merge=extend, returns="string"), oracle.user([column], "t", **user)
        ),
    }


def check(
    source: DataFrame,
    rows: Sequence[Row],
    window: Window,
    aggregates: Mapping[str, Checked],
    *,
    keys: Sequence[str] = (),
    batch: int = 3,
    nodes: int | None = None,
    strategies: Sequence[str] = ("window", "batch", "pane"),
    against_oracle: bool = True,
) -> None:
    """The strategies against the oracle, and against Spark where it has all the aggregates; one Spark job."""
    windowed = in_micros(source, time="t").window(**in_words(window))
    query = windowed.by(*keys).agg(**{name: a.ours for name, a in aggregates.items()})
    frames = {label: frame for label, frame in strategies_of(query, batch, nodes).items() if label in strategies}
    columns = [a.spark.alias(name) for name, a in aggregates.items() if a.spark is not None]
    if len(columns) == len(aggregates):
        timed = source.where(F.col("t").isNotNull())
        at = F.timestamp_micros("t") if source.schema["t"].dataType.simpleString() == "bigint" else F.col("t")
        spark = timed.groupBy(*map(quoted, keys), spark_window(at, window).alias("window")).agg(*columns)
        if source.schema["t"].dataType.simpleString() == "bigint":
            edges = [F.unix_micros(F.col("window")[e]).alias(e) for e in ("start", "end")]
            spark = spark.withColumn("window", F.struct(*edges))
        frames["Spark"] = spark
    results = collected(frames, keys)
    if not against_oracle:
        reference = results["Spark"]
    else:
        reference = evaluate(rows, [window], {n: a.oracle for n, a in aggregates.items()}, time="t", keys=keys)
    for label, found in results.items():
        assert_same(found, reference, label)


# --- the property ---

KEYS = {"k1": "string", "k2": "int", "k3": "bigint"}
VALUES = {"v": "bigint", "x": "double", "s": "string"}

# Batches of panes begin at multiples of 256 panes, so many times lie about there; and many are equal.
moments = st.builds(
    lambda base, step: base + step, st.sampled_from([-1024, -512, -256, 0, 256, 768]), st.integers(-30, 30)
)
drawn_rows = st.fixed_dictionaries(
    {
        "t": st.one_of(st.none(), moments, moments, st.integers(-5, 5)),
        "k1": st.sampled_from([None, "a", "b", ""]),
        "k2": st.sampled_from([None, 1, 2]),
        "k3": st.sampled_from([None, -1]),
        "v": st.one_of(st.none(), st.integers(-3, 3), st.integers(-(2**50), 2**50)),
        # Halves, so that sums are exact in any order; and what a fold must not keep when it leaves the window.
        "x": st.one_of(st.none(), st.integers(-50, 50).map(lambda n: n / 2), st.sampled_from([nan, inf, -0.0])),
        "s": st.sampled_from([None, "", "a", "ab", "é", "Z"]),
    }
).map(lambda row: {name: row[name] for name in ("t", *KEYS, *VALUES)})  # the columns' order, by which equal times go


@st.composite
def windows(draw: st.DrawFn, largest: int = 40) -> Window:
    size = draw(st.integers(1, largest))
    slide = draw(st.one_of(st.integers(1, size), st.just(size)))
    return Window(size, slide, draw(st.sampled_from([0, 0, 7, -13, 1000])))


@settings(max_examples=4)  # the fuzzer draws many more, and longer
@given(
    rows=st.lists(drawn_rows, max_size=25),
    window=windows(),
    keys=st.sampled_from([(), ("k1",), ("k2", "k1"), ("k1", "k2", "k3")]),
    time=st.sampled_from(["bigint", "timestamp", "timestamp_ntz"]),
    batch=st.integers(1, 8),
    nodes=st.integers(1, 5),
)
def test_all_strategies_equal_the_oracle_and_spark(
    spark: SparkSession,
    rows: list[Row],
    window: Window,
    keys: tuple[str, ...],
    time: str,
    batch: int,
    nodes: int,
) -> None:
    source = frame_of(spark, rows, time, **KEYS, **VALUES)
    native = {
        "rows": ordered("v")["rows"],
        "sum": numeric("v")["sum"],
        "avg": numeric("x")["avg"],
        "variance": numeric("v")["variance"],
        "max": ordered("x")["max"],
        "first": ordered("v")["first"],
        "last": ordered("s")["last"],
        "distinct": ordered("x")["distinct"],
        "collect": ordered("s")["collect"],
    }
    check(source, rows, window, native, keys=keys, batch=batch, nodes=nodes)
    check(source, rows, window, kernel_only("s"), keys=keys, batch=batch, nodes=nodes, strategies=("batch", "pane"))


# --- every type ---

START, MICRO = dt.datetime(2024, 3, 1), dt.timedelta(microseconds=1)
TYPED: dict[str, tuple[str, list[Any]]] = {
    "int": ("int", [7, -(2**31), 2**31 - 1, None, 7]),
    "bigint": ("bigint", [2**62, -(2**62), 3, None, 3]),
    "double": ("double", [1.5, nan, -0.0, None, 0.0]),
    "float": ("float", [1.5, -0.25, nan, None, 1.5]),
    "decimal": ("decimal(12,3)", [Decimal("1.005"), Decimal("-999999999.999"), Decimal("0.001"), None, Decimal("1")]),
    # As long as an average, with four more digits, can be.
    "long decimal": ("decimal(38,0)", [Decimal(10**33 + 1), Decimal(-(10**33)), Decimal(7), None, Decimal(7)]),
    "string": ("string", ["b", "", "é", None, "b"]),
    "date": ("date", [dt.date(2024, 2, 29), dt.date(1582, 1, 1), dt.date(9999, 12, 31), None, dt.date(2024, 2, 29)]),
    "timestamp": ("timestamp", [START, START - MICRO, dt.datetime(1950, 1, 1), None, START]),
    "boolean": ("boolean", [True, False, False, None, True]),
    "binary": ("binary", [b"\xff", b"", b"\x00\x01", None, b"\xff"]),
    "interval": ("interval day to second", [MICRO, -MICRO, dt.timedelta(9), None, MICRO]),
}  # fmt: skip
NUMERIC = {"int", "bigint", "double", "float", "decimal", "long decimal"}


@pytest.mark.parametrize("name", TYPED)
def test_every_aggregate_of_every_type(spark: SparkSession, name: str) -> None:
    kind, values = TYPED[name]
    #  time       -7 -6 ... 0 ...  7          a value at every second time, each kind of value in many windows
    rows = [{"t": 2 * i - 7, "v": values[3 * i % 5]} for i in range(9)]
    # A null on its own is a window with rows and without values.
    rows += [{"t": 40, "v": None}, {"t": 40, "v": None}]
    source = frame_of(spark, rows, v=kind)
    native = {**ordered("v"), **(numeric("v") if name in NUMERIC else {})}
    # Python's arithmetic is not Spark's for decimals; timestamps come back in the time zone of the process.
    exact = name not in ("decimal", "long decimal", "timestamp")
    check(source, rows, Window(5, 2), native, against_oracle=exact)
    if name != "timestamp":
        check(source, rows, Window(5, 2), {"top": kernel_only("v")["top"]}, strategies=["pane"])


def test_sketches(spark: SparkSession) -> None:
    """With few values a sketch still holds them all: the answers are exact."""
    rows = [{"t": i, "v": (i * 7) % 11, "x": float(i % 5) if i % 4 else None} for i in range(-20, 20)]
    rows += [{"t": 100, "v": None, "x": None}]
    aggregates = {
        "ints": Checked(ab.count_distinct("v", approx=True), oracle.count_distinct("v")),
        "floats": Checked(ab.count_distinct("x", approx=True), oracle.count_distinct("x")),
        "median": Checked(ab.quantile("x", 0.5), oracle.quantile("x", 0.5)),
        "ends": Checked(
            ab.quantile("v", [0.0, 1]),
            lambda rows: (lambda v: [float(min(v)), float(max(v))] if v else None)(oracle.values(rows, "v")),
        ),
    }
    source = frame_of(spark, rows, v="int", x="double")
    check(source, rows, Window(9, 4, 1), aggregates)


def test_minus_zero_and_nan_are_one_value_each(spark: SparkSession) -> None:
    #   time    0     1     2     3       one pane each
    #   value   0.0  -0.0   NaN   NaN
    rows = [{"t": t, "v": v} for t, v in enumerate([0.0, -0.0, nan, -nan])]
    source = frame_of(spark, rows, v="double")
    approximate = Checked(ab.count_distinct("v", approx=True), oracle.count_distinct("v"))
    check(source, rows, Window(4, 1), {"distinct": ordered("v")["distinct"], "approximate": approximate})
    check(source, rows, Window(4, 1), {"top": kernel_only("v")["top"]}, strategies=["pane"])


# --- count windows ---


def count_query(source: DataFrame, keys: Sequence[str], window: Window, per_key: bool) -> Windowed:
    return in_micros(source, time="t").window(rows=window.size, slide_rows=window.slide, per_key=per_key).by(*keys)


@pytest.mark.parametrize("way", ["no key", "per key", "over all keys"])
def test_count_windows(spark: SparkSession, way: str) -> None:
    keys = () if way == "no key" else ("k1",)
    aggregates = {
        "rows": (ab.count(), oracle.count()),
        "sum": (ab.sum("v"), oracle.sum_("v")),
        "values": (ab.collect("v"), oracle.collect("v", "t")),
    }
    ours, oracles = ({n: pair[i] for n, pair in aggregates.items()} for i in (0, 1))

    @settings(max_examples=3)
    @given(st.lists(drawn_rows, min_size=5, max_size=30), windows(largest=7), st.integers(1, 4))
    def hold(rows: list[Row], window: Window, batch: int) -> None:
        window = Window.of_rows(window.size, window.slide)
        source = frame_of(spark, rows, **KEYS, **VALUES)
        query = count_query(source, keys, window, per_key=way != "over all keys")
        expected = evaluate(rows, [window], oracles, time="t", keys=keys, per_key=way != "over all keys")
        results = collected(strategies_of(query.agg(**ours), batch), keys)
        for label, found in results.items():
            assert_same(found, expected, label)

    hold()


def test_count_windows_close_with_their_last_row(spark: SparkSession) -> None:
    #   rows     0   1   2   3   4   5   6        seven rows
    #            [-----------)                    windows of 3, every 2
    #                    [-----------)
    #                            [-----------)
    #                                    [---     never full: no answer
    rows = [{"t": 10 * i, "v": i} for i in range(7)]
    source = frame_of(spark, rows, v="int")
    query = count_query(source, (), Window(3, 2), True).agg(values=ab.collect("v"))
    expected = {(0, 3): {"values": [0, 1, 2]}, (2, 5): {"values": [2, 3, 4]}, (4, 7): {"values": [4, 5, 6]}}
    for label, found in collected(strategies_of(query)).items():
        assert found == expected, label


def test_positions_of_many_rows_over_a_long_time(spark: SparkSession) -> None:
    """Rows are numbered in parts of the time line; numbers must go on from part to part."""
    # Thousands of years, in which nearly all rows are on one day.
    times = F.when(F.col("id") % 50 == 0, (F.col("id") - 2500) * 10**13).otherwise(F.col("id") * 1000).alias("t")
    source = spark.range(5000).select(times, "id")
    query = (
        in_micros(source, time="t")
        .window(rows=100, slide_rows=100)
        .agg(n=ab.count(), low=ab.min("t"), high=ab.max("t"))
    )
    result = query.using("window").order_by_window().collect()
    assert [row.window.start for row in result] == list(range(0, 5000, 100))
    assert all(row.n == 100 for row in result)
    # Sorted by position is sorted by time: no window reaches back over the one before.
    assert all(a.high <= b.low for a, b in pairwise(result))


# --- several windows, nested windows ---


def test_several_windows_share_one_query(spark: SparkSession) -> None:
    rows = [{"t": t, "k1": "ab"[t % 2], "v": t * t % 17} for t in range(-40, 40, 3)]
    source = frame_of(spark, rows, k1="string", v="bigint")
    # Different slides, one of them tumbling, one that divides nothing; 0 is an edge of all.
    sizes = [(6, 4), (15, 15), (35, 7)]
    query = (
        in_micros(source, time="t")
        .windows(*((describe(size), describe(slide)) for size, slide in sizes), origin="5 us")
        .by("k1")
    )
    native = query.agg(n=ab.count(), top=ab.max("v"), total=ab.sum("v"))
    kernel = query.agg(n=ab.count(), top=ab.max("v"), total=ab.sum("v"), k=ab.top_k("v", 1))
    oracles = {"n": oracle.count(), "top": oracle.max_("v"), "total": oracle.sum_("v")}
    expected: Result = {}
    for size, slide in sizes:
        window = Window(size, slide, 5)
        found = evaluate(rows, [window], oracles, time="t", keys=["k1"])
        expected |= {(*place, window.label): values for place, values in found.items()}
    frames = {**strategies_of(native), **{f"kernel, {n}": f.drop("k") for n, f in strategies_of(kernel).items()}}
    for label, result in collected(frames, ["k1"]).items():
        assert_same(result, expected, label)


@pytest.mark.parametrize("kind", ["int", "smallint", "tinyint"])
def test_integers_of_seconds(spark: SparkSession, kind: str) -> None:
    """A time of fewer than 64 bits counts seconds; so do the bounds of its windows."""
    rows = [{"t": t, "v": t % 7} for t in (*range(-40, 40, 3), 5, 5)] + [{"t": None, "v": 1}]
    source = spark.createDataFrame([(row["t"], row["v"]) for row in rows], f"t {kind}, v bigint")
    inner = in_micros(source, time="t").window(size="9 s", slide="4 s", origin="1 s").agg(n=ab.count(), v=ab.sum("v"))
    outer = inner.window(size="20 s", slide="5 s").agg(most=ab.max("v"), n=ab.sum("n"))
    assert inner.to_df().schema["window"].dataType.simpleString() == "struct<start:int,end:int>"
    first = evaluate(rows, [Window(9, 4, 1)], {"n": oracle.count(), "v": oracle.sum_("v")}, time="t")
    results = [{"t": end - 1, **values} for (_, end), values in first.items()]
    second = evaluate(results, [Window(20, 5)], {"most": oracle.max_("v"), "n": oracle.sum_("n")}, time="t")
    for label, result in collected(strategies_of(inner)).items():
        assert_same(result, first, label)
    assert_same(collected({"nested": outer.to_df()})["nested"], second, "nested")


@pytest.mark.parametrize("time", ["bigint", "timestamp", "timestamp_ntz"])
def test_windows_over_the_results_of_windows(spark: SparkSession, time: str) -> None:
    rows = [{"t": t, "k1": "abc"[t % 3], "v": t % 5} for t in (*range(-30, 30, 2), *range(0, 9))]
    rows.append({"t": None, "k1": "a", "v": 1})
    source = frame_of(spark, rows, time, k1="string", v="bigint")
    inner = in_micros(source, time="t").window(size="8 us", slide="3 us").by("k1").agg(n=ab.count(), v=ab.sum("v"))
    outer = (
        inner.filter("n > 1")
        .window(size="11 us", slide="5 us", origin="1 us")
        .agg(most=ab.max("v"), n=ab.sum("n"), of=ab.count())
    )
    again = (
        inner.using("pane")
        .filter("n > 1")
        .window(size="11 us", slide="5 us", origin="1 us")
        .agg(**outer.query.aggregates)
    )
    found = collected(
        {"panes over windows": outer.using("pane").to_df(), "windows over panes": again.using("window").to_df()}
    )

    first = evaluate(rows, [Window(8, 3)], {"n": oracle.count(), "v": oracle.sum_("v")}, time="t", keys=["k1"])
    # The time of a result is the last instant of its window.
    results = [{"t": end - 1, **values} for (_, _, end), values in first.items() if values["n"] > 1]
    oracles = {"most": oracle.max_("v"), "n": oracle.sum_("n"), "of": oracle.count()}
    expected = evaluate(results, [Window(11, 5, 1)], oracles, time="t")
    for label, result in found.items():
        assert_same(result, expected, label)


# --- user-defined aggregates ---


USER: dict[str, dict[str, Any]] = {
    "pure": {"init": tuple, "incr": lambda s, v: (*s, v), "merge": lambda a, b: a + b, "final": spelled},
    "changes its first argument": {"init": list, "incr": append, "merge": extend, "final": spelled},
    "without merge": {"init": list, "incr": append, "final": spelled},
    "a final that returns nothing": {"init": list, "incr": append, "merge": extend, "final": lambda s: None},
}


@pytest.mark.parametrize("how", USER)
def test_user_defined_aggregates(spark: SparkSession, how: str) -> None:
    rows = [{"t": t, "k1": "ab"[t % 2], "v": None if t % 5 == 0 else (t * 7) % 10} for t in range(-25, 25)]
    rows += [{"t": 3, "k1": "a", "v": v} for v in (9, 1, None)]  # at the same time: ordered by value
    source = frame_of(spark, rows, k1="string", v="bigint")
    functions = USER[how]
    aggregate = ab.user_aggregate("v", **functions, returns="string")
    query = in_micros(source, time="t").window(size="9 us", slide="2 us").by("k1").agg(u=aggregate, n=ab.count())
    frames = {
        "batch": query.using("batch", batch=4).to_df(),
        "auto": query.to_df(),
        "window": query.using("window").to_df(),
    }
    if "merge" in functions:
        frames["pane"] = query.using("pane").to_df()
    parts = {name: functions[name] for name in ("init", "incr", "final")}
    expected = evaluate(
        rows, [Window(9, 2)], {"u": oracle.user(["v"], "t", **parts), "n": oracle.count()}, time="t", keys=["k1"]
    )
    for label, found in collected(frames, ["k1"]).items():
        assert_same(found, expected, label)


def test_user_defined_aggregates_of_several_columns_and_of_none(spark: SparkSession) -> None:
    rows = [{"t": t, "v": t % 3, "s": str(t % 2)} for t in range(10)]
    source = frame_of(spark, rows, v="int", s="string")
    pairs = ab.user_aggregate(
        "s", F.col("v") * 2, init=list, incr=lambda s, a, b: [*s, (a, b)], merge=lambda a, b: a + b,
        final=lambda s: {"n": len(s), "pairs": [f"{a}{b}" for a, b in s]},
        returns="struct<n: bigint, pairs: array<string>>",
    )  # fmt: skip
    row_count = ab.user_aggregate(init=int, incr=lambda n: n + 1, merge=lambda a, b: a + b, final=int, returns="bigint")
    query = in_micros(source, time="t").window(size="4 us", slide="3 us").agg(pairs=pairs, n=row_count)
    expected = {row.window.start: (row.n, row.pairs) for row in query.using("window").to_df().collect()}
    assert expected[0] == (4, (4, ["00", "12", "04", "10"]))
    assert {row.window.start: (row.n, row.pairs) for row in query.using("pane").to_df().collect()} == expected


# --- edges of the input ---


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"t": -1, "k1": None, "v": None}],
        [{"t": None, "k1": "a", "v": 1}, {"t": None, "k1": "b", "v": 2}],
        [{"t": 5, "k1": "a", "v": i} for i in range(20)],
    ],
    ids=["no rows", "one row of nulls", "no row with a time", "one key and one time"],
)
@pytest.mark.parametrize("keys", [(), ("k1",)], ids=["no key", "key"])
def test_small_inputs(spark: SparkSession, rows: list[Row], keys: tuple[str, ...]) -> None:
    source = frame_of(spark, rows, k1="string", v="bigint")
    known = {**ordered("v"), **numeric("v")}
    check(source, rows, Window(7, 3), {name: known[name] for name in ("rows", "sum", "min", "collect")}, keys=keys)
    check(source, rows, Window(7, 3), kernel_only("v"), keys=keys, strategies=["pane"])


@pytest.mark.parametrize("rows", [[], [{"t": None, "v": 1}], [{"t": 5, "v": 1}]], ids=["no rows", "no time", "one row"])
def test_count_windows_of_small_inputs(spark: SparkSession, rows: list[Row]) -> None:
    query = count_query(frame_of(spark, rows, v="bigint"), (), Window(2, 1), per_key=True).agg(n=ab.count())
    assert collected(strategies_of(query)) == {"window": {}, "batch": {}, "pane": {}}


def test_rows_at_the_edges(spark: SparkSession) -> None:
    #  slide 5, size 10, origin -2        -12  -7  -2   3   8  13
    #                                      [-------)
    #                                          [-------)
    #                                              [-------)
    #                                                  [-------)
    rows = [{"t": t, "v": t} for t in (-8, -7, -3, -2, 2, 3, 7, 8)]
    source = frame_of(spark, rows, v="bigint")
    query = in_micros(source, time="t").window(size="10 us", slide="5 us", origin="-2 us").agg(v=ab.collect("v"))
    expected = {
        (-17, -7): [-8],
        (-12, -2): [-8, -7, -3],
        (-7, 3): [-7, -3, -2, 2],
        (-2, 8): [-2, 2, 3, 7],
        (3, 13): [3, 7, 8],
        (8, 18): [8],
    }
    for label, found in collected(strategies_of(query)).items():
        assert {place: values["v"] for place, values in found.items()} == expected, label


def test_times_at_the_ends_of_sparks_time(spark: SparkSession) -> None:
    first, last = -62_135_596_800_000_000, 253_402_300_799_999_999
    rows = [{"t": t, "v": 1} for t in (first + 10**9, last - 10**9, 0)]
    source = frame_of(spark, rows, "timestamp", v="bigint")
    check(source, rows, Window(1000, 300), {"rows": ordered("v")["rows"]}, against_oracle=False)


def test_longs_that_are_no_timestamps(spark: SparkSession) -> None:
    """A bigint time may be anything that counts up, far beyond Spark's timestamps."""
    rows = [{"t": t, "v": 1} for t in (-(2**61), 2**61, 2**61 + 4)]
    query = in_micros(frame_of(spark, rows, v="bigint"), time="t").window(size="10 us", slide="5 us").agg(n=ab.count())
    low, high = -(2**61), 2**61  # 2^61 is 2 more than a multiple of 5
    expected = {
        (low - 8, low + 2): 1,
        (low - 3, low + 7): 1,
        (high - 7, high + 3): 1,
        (high - 2, high + 8): 2,
        (high + 3, high + 13): 1,
    }
    for label, found in collected(strategies_of(query)).items():
        assert {place: values["n"] for place, values in found.items()} == expected, label


def test_sums_that_do_not_fit_are_errors_in_every_strategy(spark: SparkSession) -> None:
    rows = [{"t": t, "v": 2**62} for t in range(3)]
    query = in_micros(frame_of(spark, rows, v="bigint"), time="t").window(size="2 us", slide="1 us").agg(v=ab.sum("v"))
    for label, frame in strategies_of(query).items():
        with pytest.raises(Exception, match=r"(?i)overflow|does not fit"):
            frame.collect()
            pytest.fail(f"{label} gave an answer")


# --- names, keys, ways to write it ---


def test_columns_with_odd_names(spark: SparkSession) -> None:
    rows = [{"t": t, "k": "ab"[t % 2], "v": t} for t in range(9)] + [{"t": None, "k": "a", "v": 1}]
    odd = {"t": "at.time", "k": "a key`", "v": "`v.x` y"}
    source = frame_of(spark, rows, k="string", v="bigint").toDF(*odd.values())
    stream = in_micros(source, time=odd["t"])
    oracles = {"s.um": oracle.sum_("v"), "t`op": oracle.max_("v"), "l ist": oracle.collect("v", "t")}
    value = odd["v"]
    ours = {"s.um": ab.sum(value), "t`op": ab.max(value), "l ist": ab.collect(value)}
    expected = evaluate(rows, [Window(5, 2)], oracles, time="t", keys=["k"])
    query = stream.window(size="5 us", slide="2 us").by(odd["k"]).agg(**ours)
    for label, found in collected(strategies_of(query), [odd["k"]]).items():
        assert_same(found, expected, label)
    # The other ways that column names go: positions over all keys, order, bad rows, samples, nested windows.
    over_all = stream.window(rows=3, per_key=False).by(odd["k"]).agg(**ours)
    expected = evaluate(rows, [Window.of_rows(3)], oracles, time="t", keys=["k"], per_key=False)
    (found,) = collected({"": over_all.to_df()}, [odd["k"]]).values()
    assert_same(found, expected, "count windows over all keys")
    assert query.order_by_window().columns == [odd["k"], "window", *ours]
    assert [row[value] for row in stream.bad_rows().collect()] == [1]
    assert query.sample(1.0).statistics.rows_per_pane == 1.0
    nested = query.window(size="5 us").by(odd["k"]).agg(n=ab.sum("s.um"))
    assert nested.to_df().columns == [odd["k"], "window", "n"]
    selected = stream.select(value).window(size="100 us").agg(n=ab.count(value))
    assert [row.n for row in selected.to_df().collect()] == [9]


def test_a_time_column_called_value(spark: SparkSession) -> None:
    source = frame_of(spark, [{"t": 1, "v": 5}, {"t": 2, "v": 4}], v="int").withColumnRenamed("t", "value")
    query = in_micros(source, time="value").window(size="4 us").agg(
        all=ab.collect("v"), first=ab.first("v"), at=ab.last("value"), top=ab.top_k("value", 1)
    )  # fmt: skip
    (row,) = query.to_df().collect()
    assert (row["all"], row["first"], row["at"], row["top"]) == ([5, 4], 5, 2, [(1, 1)])


def test_keys_by_expression(spark: SparkSession) -> None:
    rows = [{"t": t, "k1": "abc"[t % 3], "v": t} for t in range(12)]
    source = frame_of(spark, rows, k1="string", v="bigint").withColumn("p", F.struct(F.col("v").alias("deep")))
    keys = [F.upper("k1").alias("K"), F.col("v") % 2, "p.deep", F.col("k1"), (F.col("v") / 0.5).cast("int").alias("w")]
    query = in_micros(source, time="t").window(size="4 us", slide="2 us").by(*keys).agg(n=ab.count(), v=ab.max("v"))
    names = ["K", "(v % 2)", "deep", "k1", "w"]
    with_keys = [
        {**row, "K": row["k1"].upper(), "(v % 2)": row["v"] % 2, "deep": row["v"], "w": 2 * row["v"]} for row in rows
    ]
    oracles = {"n": oracle.count(), "v": oracle.max_("v")}
    expected = evaluate(with_keys, [Window(4, 2)], oracles, time="t", keys=names)
    for label, found in collected(strategies_of(query), names).items():
        assert_same(found, expected, label)


KEY_TYPES: dict[str, Any] = {
    "double": nan,
    "decimal(5,2)": Decimal("-1.50"),
    "date": dt.date(2024, 1, 1),
    "boolean": False,
    "binary": b"\x00",
    "timestamp_ntz": START,
    "array<int>": [1, 2],
    "struct<a: int, b: string>": {"a": 1, "b": None},
}


def test_keys_of_every_type(spark: SparkSession) -> None:
    types = {f"k{i}": kind for i, kind in enumerate(KEY_TYPES)}
    values = {f"k{i}": value for i, value in enumerate(KEY_TYPES.values())}
    rows = [{"t": t, **(values if t % 2 else dict.fromkeys(types))} for t in range(8)]
    source = frame_of(spark, rows, **types)
    query = in_micros(source, time="t").window(size="4 us", slide="2 us").by(*types).agg(n=ab.count())
    frames = {
        label: frame.select("window", "n", F.to_json(F.struct(*types)).alias("key"))
        for label, frame in strategies_of(query).items()
    }
    results = collected(frames, ["key"])
    assert len(results["window"]) == 2 * 5  # both keys, in the windows that start at -2, 0, 2, 4 and 6
    for label, found in results.items():
        assert found == results["window"], label


def test_results_can_be_used_twice(spark: SparkSession) -> None:
    rows = [{"t": t, "v": t} for t in range(10)]
    query = in_micros(frame_of(spark, rows, v="bigint"), time="t").window(size="4 us", slide="2 us").agg(v=ab.sum("v"))
    windows = query.using("pane").to_df()
    later = windows.select((F.col("window.start") - 2).alias("at"), F.col("v").alias("next"))
    joined = windows.join(later, F.col("window.start") == F.col("at")).select("v", "next").collect()
    assert sorted((r.v, r.next) for r in joined) == [(1, 6), (6, 14), (14, 22), (22, 30), (30, 17)]


def test_sliding_in_transform(spark: SparkSession) -> None:
    rows = [{"t": t, "k1": "ab"[t % 2], "k2": t % 3, "v": t} for t in range(12)]
    source = frame_of(spark, rows, k1="string", k2="int", v="bigint")
    oracles = {"n": oracle.count(), "v": oracle.avg("v")}
    for by in ((), ["k1", "k2"]):
        expected = evaluate(rows, [Window(5, 2, 1)], oracles, time="t", keys=by)
        frames = {
            strategy: source.transform(
                ab.sliding(
                    time="t", time_unit="us", size="5 us", slide="2 us", origin="1 us", by=by, strategy=strategy,
                    n=ab.count(), v=ab.avg("v"),
                )
            )
            for strategy in ("auto", "pane")
        }  # fmt: skip
        for label, found in collected(frames, by).items():
            assert_same(found, expected, label)
    single = source.transform(ab.sliding(time="t", time_unit="us", size="5 us", by="k1", n=ab.count()))
    assert single.columns == ["k1", "window", "n"]


@pytest.mark.parametrize("strategy", ["window", "pane"])
def test_order_by_window(spark: SparkSession, strategy: str) -> None:
    rows = [{"t": t % 40, "k1": "abc"[t % 3]} for t in range(0, 200, 7)]
    query = (
        in_micros(frame_of(spark, rows, k1="string"), time="t")
        .window(size="9 us", slide="2 us")
        .by("k1")
        .agg(n=ab.count())
    )
    for k in (0, 3):
        found = query.using(strategy).order_by_window(k).collect()
        assert [(r.window.start, r.k1) for r in found] == sorted((r.window.start, r.k1) for r in found)
    assert query.order_by_window(None).count() == len(found)


@pytest.mark.parametrize("nodes", [1, 3, 16])
def test_the_ring_gives_each_window_once(spark: SparkSession, nodes: int) -> None:
    # 3,000 panes: a dozen of the ring's sets, so every node has its turn.
    source = spark.range(0, 3000, 1).select((F.col("id") - 1500).alias("t"))
    query = in_micros(source, time="t").window(size="100 us", slide="7 us").agg(n=ab.count(), low=ab.min("t"))
    found = {r.window.start: (r.n, r.low) for r in query.using("pane", nodes=nodes).to_df().collect()}
    starts = [start for start in range(-1599, 1500) if start % 7 == 0]
    assert found == {s: (min(s + 100, 1500) - max(s, -1500), max(s, -1500)) for s in starts}


@pytest.mark.slow
def test_a_million_keys(spark: SparkSession) -> None:
    # Each key has one row: the worst case for panes, and as many groups as rows.
    source = spark.range(1_000_000).select(F.col("id").alias("key"), (F.col("id") * 37 % 1000).alias("t"))
    window = Window(50, 20, -7)
    ours = (
        in_micros(source, time="t").window(**in_words(window)).by("key")
        .agg(n=ab.count(), t=ab.max("t")).using("pane").to_df()
    )  # fmt: skip
    edges = F.struct(*(F.unix_micros(F.col("w")[edge]).alias(edge) for edge in ("start", "end")))
    grouped = source.groupBy("key", spark_window(F.timestamp_micros("t"), window).alias("w"))
    theirs = grouped.agg(F.count(F.lit(1)).alias("n"), F.max("t").alias("t")).withColumn("window", edges)

    def digest(frame: DataFrame) -> Row:
        # A sum of hashes does not depend on the order of the rows, and an error in any of them shows.
        rows = F.xxhash64("key", "window.start", "window.end", "n", "t") % 10**9
        return frame.agg(F.count(F.lit(1)).alias("windows"), F.sum("n").alias("n"), F.sum(rows).alias("hash")).first()

    found = digest(ours)
    assert found["windows"] == 2_500_000  # an overlap of 2.5
    assert found == digest(theirs)
