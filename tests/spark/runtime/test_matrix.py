"""Every aggregate, nested or not, placed or not, in every strategy and in `start()`, under three session time zones.

All are compared with the oracle in plain Python. The rows lie around the hour that the clocks of a zone show twice, and
have nulls, NaN, equal times, a column that cannot be null, and panes whose rows come in several epochs.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.errors import InvalidArgumentError, StrategyError
from anabranch.types import Aggregate, Aggregation, Stream
from anabranch.windows import Window
from tests.oracles import aggregates as oracle
from tests.oracles.aggregates import Oracle, Result, Row, Rows, evaluate, same

MINUTE = dt.timedelta(minutes=1)
ZONES = {
    # the session's zone: when its clocks went back by an hour
    "UTC": dt.datetime(2025, 1, 1, 6, tzinfo=dt.UTC),
    "America/New_York": dt.datetime(2025, 11, 2, 6, tzinfo=dt.UTC),
    "Europe/Berlin": dt.datetime(2025, 10, 26, 1, tzinfo=dt.UTC),
}
WINDOW, INNER, COUNT = Window(60, 30), Window(30, 30), Window.of_rows(5, 2)
POLICIES = ("fld", "cam", "heavy")
SCHEMA = "at timestamp, g string, id bigint, i bigint, x double, m decimal(10,2), s string, ts timestamp, d date"
DIGITS = {"variance": 9, "stddev": 9}
"""Aggregates whose last digits depend on the order of the rows."""


# --- rows -----------------------------------------------------------------------------------------------------------


def epochs_of(seed: int, zone: str, epochs: int = 2, rows: int = 40) -> list[list[dict[str, Any]]]:
    """`t` is in minutes, from two hours before the clocks go back; all epochs are spread over the same hours."""
    rng, back = random.Random(seed), ZONES[zone]

    def row() -> dict[str, Any]:
        return {
            "t": rng.randrange(0, 240, 10),
            "g": rng.choice(["a", "b", None]),
            "id": rng.randrange(4),
            "i": rng.choice([None, *range(-3, 9)]),
            "x": rng.choice([None, math.nan, -0.0, 0.0, 0.25, -7.5, 3.0]),
            "m": rng.choice([None, Decimal("0.01"), Decimal("-3.25"), Decimal("12.50")]),
            "s": rng.choice([None, "", "ä", "z", "zz"]),
            "ts": rng.choice([None, *(back + k * 15 * MINUTE for k in range(-5, 5))]),
            "d": rng.choice([None, dt.date(1969, 12, 31), dt.date(2025, 11, 2)]),
        }

    return [[row() for _ in range(rows)] for _ in range(epochs)]


def time_of(t: int, zone: str) -> dt.datetime:
    return ZONES[zone] + (t - 120) * MINUTE


def write(folder: Path, epochs: Sequence[Rows], zone: str) -> None:
    """A file per epoch; the last one has a row that lets the watermark pass all windows."""
    folder.mkdir()
    last = {**dict.fromkeys(epochs[0][0]), "t": 100_000, "g": "end", "id": 0}
    types = [
        pa.timestamp("us", "UTC"), pa.string(), pa.int64(), pa.int64(), pa.float64(), pa.decimal128(10, 2), pa.string(),
        pa.timestamp("us", "UTC"), pa.date32(),
    ]  # fmt: skip
    for number, rows in enumerate([*epochs[:-1], [*epochs[-1], last]]):
        columns = {"at": [time_of(row["t"], zone) for row in rows]}
        columns |= {name: [row[name] for row in rows] for name in last if name != "t"}
        arrays = [
            pa.array(values, kind, from_pandas=False) for values, kind in zip(columns.values(), types, strict=True)
        ]
        file = folder / f"{number}.parquet"
        pq.write_table(pa.table(arrays, names=list(columns)), file)
        os.utime(file, (1_000_000_000 + number,) * 2)  # the file source takes files by their time of change


# --- aggregates, each with its oracle -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    ours: Aggregate
    oracle: Oracle


def decimal_avg(column: str) -> Oracle:
    """With four more places than the column, rounded half up."""

    def mean(rows: Rows) -> Decimal | None:
        known = oracle.values(rows, column)
        exact = sum(known, Decimal(0)) / len(known) if known else None
        return None if exact is None else exact.quantize(Decimal("0.000001"), ROUND_HALF_UP)

    return mean


def append(state: list[Any], value: Any) -> list[Any]:
    return [*state, value]


def joined(a: list[Any], b: list[Any]) -> list[Any]:
    return a + b


def later(a: Any, b: Any) -> Any:
    return max((t for t in (a, b) if t is not None), default=None)


def nothing() -> None:
    return None


def itself(state: Any) -> Any:
    return state


def known(state: list[Any]) -> list[Any]:
    return [value for value in state if value is not None]


def in_parts() -> dict[str, Checked]:
    """User aggregates whose state has a type: a timestamp, and a list of them."""
    one = {"init": nothing, "incr": later, "final": itself}
    many = {"init": list, "incr": append, "final": lambda state: sorted(known(state))}
    times = {"returns": "array<timestamp>", "state": "array<timestamp>"}
    return {
        "part": Checked(
            ab.user_aggregate("ts", **one, merge=later, returns="timestamp", state="timestamp"),
            oracle.user(["ts"], "t", **one),
        ),
        "parts": Checked(ab.user_aggregate("ts", **many, merge=joined, **times), oracle.user(["ts"], "t", **many)),
    }


def mergeable() -> dict[str, Checked]:
    found = {
        "count": Checked(ab.count(), oracle.count()),
        "count_i": Checked(ab.count("i"), oracle.count("i")),
        "avg_x": Checked(ab.avg("x"), oracle.avg("x")),
        "avg_m": Checked(ab.avg("m"), decimal_avg("m")),
        "variance": Checked(ab.variance("i"), oracle.variance("i")),
        "stddev": Checked(ab.stddev("i"), oracle.stddev("i")),
        "median": Checked(ab.quantile("i", 0.5), oracle.quantile("i", 0.5)),
        "quartiles": Checked(ab.quantile("i", [0.25, 0.75]), quartiles),
    }
    for c in ("i", "x", "m"):
        found[f"sum_{c}"] = Checked(ab.sum(c), oracle.sum_(c))
        found[f"max_{c}"] = Checked(ab.max(c), oracle.max_(c))
    for c in ("s", "ts", "d"):
        found[f"min_{c}"] = Checked(ab.min(c), oracle.min_(c))
    for c in ("i", "ts"):
        found[f"first_{c}"] = Checked(ab.first(c), oracle.first(c, "t"))
    for c in ("s", "ts", "id"):
        found[f"last_{c}"] = Checked(ab.last(c), oracle.last(c, "t"))
    for c in ("ts", "id"):
        found[f"collect_{c}"] = Checked(ab.collect(c), oracle.collect(c, "t"))
        found[f"top_{c}"] = Checked(ab.top_k(c, 2), oracle.top_k(c, 2))
        found[f"distinct_{c}"] = Checked(ab.count_distinct(c), oracle.count_distinct(c))
        found[f"approx_{c}"] = Checked(ab.count_distinct(c, approx=True), oracle.count_distinct(c))
    listed = {"init": list, "incr": append, "final": known}
    found["user"] = Checked(
        ab.user_aggregate("ts", **listed, merge=joined, returns="array<timestamp>"), oracle.user(["ts"], "t", **listed)
    )
    return {**found, **in_parts()}


def quartiles(rows: Rows) -> list[float] | None:
    found = [oracle.quantile("i", q)(rows) for q in (0.25, 0.75)]
    return None if found[0] is None else found


def without_merge() -> dict[str, Checked]:
    listed = {"init": list, "incr": append, "final": known}
    ours = ab.user_aggregate("i", **listed, returns="array<bigint>")
    return {"bare": Checked(ours, oracle.user(["i"], "t", **listed))}


def of_any_order() -> dict[str, Checked]:
    """Without those of users who see the order of rows at the same time, which panes of count windows may share."""
    return {name: each for name, each in mergeable().items() if name != "user"}


def everything() -> dict[str, Checked]:
    return {**mergeable(), **without_merge()}


def ours(checked: Mapping[str, Checked]) -> dict[str, Aggregate]:
    return {name: each.ours for name, each in checked.items()}


def oracles(checked: Mapping[str, Checked]) -> dict[str, Oracle]:
    return {name: each.oracle for name, each in checked.items()}


# --- queries --------------------------------------------------------------------------------------------------------


def stream_of(source: DataFrame) -> Stream:
    # Spark knows of `id` that it cannot be null. On a stream the last row passes all windows, and completes none.
    rows = source.withColumn("id", F.coalesce("id", F.lit(0)))
    if rows.isStreaming:
        return ab.stream(rows, time="at", watermark="1 day")
    return ab.stream(rows.where("g is null or g <> 'end'"), time="at")


def flat(stream: Stream, checked: Mapping[str, Checked], **policy_settings: Any) -> Aggregation:
    return stream.window(size="1 hour", slide="30 minutes").by("g", **policy_settings).agg(**ours(checked))


def inner(stream: Stream) -> Aggregation:
    """Windows whose columns have the names and types of the rows, so that all aggregates can be taken of them."""
    return stream.window(size="30 minutes").by("g").agg(**ours(inner_aggregates()))


def inner_aggregates() -> dict[str, Checked]:
    return {
        "id": Checked(ab.count(), oracle.count()),
        "i": Checked(ab.sum("i"), oracle.sum_("i")),
        "x": Checked(ab.max("x"), oracle.max_("x")),
        "m": Checked(ab.sum("m"), oracle.sum_("m")),
        "s": Checked(ab.max("s"), oracle.max_("s")),
        "ts": Checked(ab.last("ts"), oracle.last("ts", "t")),
        "d": Checked(ab.min("d"), oracle.min_("d")),
    }


def nested(windows: Aggregation, checked: Mapping[str, Checked], **policy_settings: Any) -> Aggregation:
    return windows.window(size="1 hour", slide="30 minutes").by("g", **policy_settings).agg(**ours(checked))


def count_windows(stream: Stream, checked: Mapping[str, Checked]) -> Aggregation:
    return stream.window(rows=5, slide_rows=2).by("g").agg(**ours(checked))


def expected(rows: Rows, checked: Mapping[str, Checked], window: Window = WINDOW) -> Result:
    return evaluate(rows, [window], oracles(checked), time="t", keys=["g"])


def expected_nested(rows: Rows, checked: Mapping[str, Checked]) -> Result:
    # A window's time is just before its end; a minute before is in the same windows.
    windows = expected(rows, inner_aggregates(), INNER)
    results = [{"g": g, "t": end - 1, **values} for (g, _, end), values in windows.items()]
    return expected(results, checked)


def found(table: Sequence[Row], zone: str | None) -> Result:
    """The results by key and window, with edges as the oracle has them; those of count windows are positions."""
    results: Result = {}
    for row in table:
        values = dict(row)
        edges = [values["window"][name] for name in ("start", "end")]
        if zone is not None:
            edges = [(edge - ZONES[zone]) // MINUTE + 120 for edge in edges]
        place = (values.pop("g"), *edges)
        del values["window"]
        assert place not in results, f"the window {place} came twice"
        results[place] = {name: _tuples(value) if name.startswith("top_") else value for name, value in values.items()}
    return results


def _tuples(top: Sequence[Row]) -> list[tuple[Any, ...]]:
    return [(each["value"], each["count"]) for each in top]


def assert_same(got: Result, wanted: Result, of: str) -> None:
    assert got.keys() == wanted.keys(), of
    for place, values in wanted.items():
        for name, value in values.items():
            assert same(got[place][name], value, DIGITS.get(name)), (of, place, name, got[place][name], value)


@contextmanager
def session(spark: SparkSession, zone: str, *, ansi: bool = True, validated: bool = True) -> Iterator[None]:
    """`validated`: Spark compares what Python returns with what was declared; stock Spark does not."""
    settings = {
        "spark.sql.session.timeZone": zone,
        "spark.sql.ansi.enabled": str(ansi).lower(),
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": str(validated).lower(),
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


# --- the matrix -----------------------------------------------------------------------------------------------------

SLOW = pytest.mark.slow
STARTED = [
    # zone, ANSI mode, validated, policies
    pytest.param("Europe/Berlin", False, False, ["cam"], marks=SLOW),
    *(pytest.param(zone, ansi, True, POLICIES, marks=SLOW) for zone in ZONES for ansi in (True, False)),
]


@pytest.mark.parametrize(("zone", "ansi", "validated", "policies"), STARTED)
def test_start(
    spark: SparkSession, tmp_path: Path, zone: str, ansi: bool, validated: bool, policies: Sequence[str]
) -> None:
    epochs = epochs_of(1, zone)
    write(tmp_path / "in", epochs, zone)
    rows = [row for epoch in epochs for row in epoch]
    everyone, merging, parts, any_order = everything(), mergeable(), in_parts(), of_any_order()
    with session(spark, zone, ansi=ansi, validated=validated):
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        stream = stream_of(source)
        windows = inner(stream)
        queries = {
            "flat": (flat(stream, everyone), expected(rows, everyone)),
            "nested": (nested(windows, everyone), expected_nested(rows, everyone)),
            "counted": (count_windows(stream, any_order), expected(rows, any_order, COUNT)),
        }
        for policy in policies:
            policy_settings = {"partition": policy, "workers": 2}
            with pytest.raises(InvalidArgumentError, match="an aggregate has no merge"):
                flat(stream, everyone, **policy_settings).start(ab.MemorySink(), checkpoint=tmp_path / "refused")
            queries[policy] = flat(stream, merging, **policy_settings), expected(rows, merging)
            queries[f"{policy} in parts"] = flat(stream, parts, **policy_settings), expected(rows, parts)
            queries[f"nested {policy}"] = nested(windows, merging, **policy_settings), expected_nested(rows, merging)
        sinks = {name: ab.MemorySink() for name in queries}
        handle = ab.start(
            *(query.to(sinks[name]) for name, (query, _) in queries.items()),
            checkpoint=tmp_path / "checkpoint",
            live=tmp_path / "live",
            trigger="available-now",
        )
        handle.awaitTermination()
    for name, (_, wanted) in queries.items():
        assert_same(found(sinks[name].rows(), None if name == "counted" else zone), wanted, name)


STRATEGIES = ("window", "batch", "pane")
BOUNDED = [
    pytest.param(zone, strategy, marks=() if i == j else SLOW)
    for i, zone in enumerate(ZONES)
    for j, strategy in enumerate(STRATEGIES)
]


@pytest.mark.parametrize(("zone", "strategy"), BOUNDED)
def test_to_df(spark: SparkSession, tmp_path: Path, zone: str, strategy: str) -> None:
    epochs = epochs_of(2, zone)
    write(tmp_path / "in", epochs, zone)
    rows = [row for epoch in epochs for row in epoch]
    checked, any_order = mergeable() if strategy == "pane" else everything(), of_any_order()
    with session(spark, zone, ansi=strategy != "batch", validated=strategy != "pane"):
        stream = stream_of(spark.read.schema(SCHEMA).parquet(str(tmp_path / "in")))
        queries = {
            "flat": (flat(stream, checked), expected(rows, checked)),
            "nested": (nested(inner(stream), checked), expected_nested(rows, checked)),
            "counted": (count_windows(stream, any_order), expected(rows, any_order, COUNT)),
        }
        if strategy == "pane":
            with pytest.raises(StrategyError, match="bare has no merge"):
                flat(stream, everything()).using("pane").to_df()
        for name, (query, wanted) in queries.items():
            table = query.using(strategy).to_df().toArrow().to_pylist()
            assert_same(found(table, None if name == "counted" else zone), wanted, f"{strategy} {name}")


BY_POLICY = [
    pytest.param(zone, policy, marks=() if i == j else SLOW)
    for i, zone in enumerate(ZONES)
    for j, policy in enumerate(POLICIES)
]


@pytest.mark.parametrize(("zone", "policy"), BY_POLICY)
def test_to_df_with_a_policy(spark: SparkSession, tmp_path: Path, zone: str, policy: str) -> None:
    epochs = epochs_of(3, zone)
    write(tmp_path / "in", epochs, zone)
    rows = [row for epoch in epochs for row in epoch]
    policy_settings = {"partition": policy, "workers": 2}
    with session(spark, zone, ansi=policy != "cam", validated=policy != "heavy"):
        stream = stream_of(spark.read.schema(SCHEMA).parquet(str(tmp_path / "in")))
        with pytest.raises(InvalidArgumentError, match="an aggregate has no merge"):
            flat(stream, everything(), **policy_settings).to_df()
        for label, checked in (("by Spark", mergeable()), ("in parts", in_parts())):
            table = flat(stream, checked, **policy_settings).to_df().toArrow().to_pylist()
            assert_same(found(table, zone), expected(rows, checked), f"{policy} {label}")
