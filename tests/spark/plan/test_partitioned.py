"""The result of a query never depends on which worker gets which key: every policy against a slow evaluation."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import anabranch as ab
from anabranch.errors import AnabranchError, InvalidArgumentError
from anabranch.keys.policy import COUNTING_KEYS, POLICIES, WITH_CHOICES
from anabranch.types import Aggregate, Stream, Windowed
from anabranch.windows import Window, describe
from tests.oracles import aggregates as oracle
from tests.oracles.aggregates import Oracle, Result, Row, canonical, evaluate, same
from tests.spark.streams import in_micros, in_words

nan = math.nan
Aggregates = Mapping[str, tuple[Aggregate, Oracle]]
"""name -> the aggregate, and what it should give"""

EVERY = [{"partition": policy} for policy in POLICIES]
EVERY += [{"partition": policy, "cardinality": "hll"} for policy in sorted(COUNTING_KEYS)]
SH, FLD, CAM = {"partition": "sh"}, {"partition": "fld"}, {"partition": "cam", "splitters": 1}
"""One of each kind: keys split, whole by their hash, whole by affinity."""


# --- aggregates, with what they should give ---


def added(state: int, value: int | None) -> int:
    return state + (value or 0)


def merged(a: int, b: int) -> int:
    return a + b


def append(state: list[Any], value: Any) -> list[Any]:
    state.append(value)
    return state


def extend(a: list[Any], b: list[Any]) -> list[Any]:
    """Changes its first argument, and returns its second where the first is empty."""
    if not a:
        return b
    a.extend(b)
    return a


def median(state: list[Any]) -> Any:
    known = sorted(value for value in state if value is not None)
    return known[len(known) // 2] if known else None


def count_and_max(state: list[int | None], value: int | None) -> list[int | None]:
    state[0] += 1  # type: ignore[operator]
    state[1] = max((v for v in (state[1], value) if v is not None), default=None)
    return state


def merge_count_and_max(a: list[int | None], b: list[int | None]) -> list[int | None]:
    a[0] += b[0]  # type: ignore[operator]
    a[1] = max((v for v in (a[1], b[1]) if v is not None), default=None)
    return a


def zero_and_none() -> list[int | None]:
    return [0, None]


def as_it_is(state: Any) -> Any:
    return state


def spelled(state: list[Any]) -> str:
    return " ".join(map(str, state))


def longest(state: dict[str, Any], text: str | None, number: int | None) -> dict[str, Any]:
    size = len(text or "")
    return {"n": state["n"] + 1, "size": max(state["size"], size), "odd": state["odd"] or bool((number or 0) % 2)}


def merge_longest(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {"n": a["n"] + b["n"], "size": max(a["size"], b["size"]), "odd": a["odd"] or b["odd"]}


def nothing_long() -> dict[str, Any]:
    return {"n": 0, "size": 0, "odd": False}


def text_of(state: dict[str, Any]) -> str:
    return f"{state['n']} {state['size']} {state['odd']}"


def user(*columns: str, init: Any, incr: Any, final: Any, returns: str, **more: Any) -> tuple[Aggregate, Oracle]:
    made = ab.user_aggregate(*columns, init=init, incr=incr, final=final, returns=returns, **more)
    return made, oracle.user(columns, "t", init, incr, final)


MEDIAN = {"init": list, "incr": append, "final": median, "returns": "bigint"}
IN_PARTS: Aggregates = {
    "total": user("v", init=int, incr=added, merge=merged, final=as_it_is, returns="bigint", state="bigint"),
    "median": user("v", **MEDIAN, merge=extend, state="array<bigint>"),
    "most": user(
        "v", init=zero_and_none, incr=count_and_max, merge=merge_count_and_max, final=as_it_is,
        returns="array<bigint>", state="array<bigint>",
    ),
    "longest": user(
        "s", "v", init=nothing_long, incr=longest, merge=merge_longest, final=text_of, returns="string",
        state="struct<n: bigint, size: int, odd: boolean>",
    ),
}  # fmt: skip
NATIVE: Aggregates = {
    "rows": (ab.count(), oracle.count()),
    "sum": (ab.sum("v"), oracle.sum_("v")),
    "least": (ab.min("s"), oracle.min_("s")),
    "distinct": (ab.count_distinct("v"), oracle.count_distinct("v")),
    "last": (ab.last("v"), oracle.last("v", "t")),
    "top": (ab.top_k("s", 2), oracle.top_k("s", 2)),
    "quantile": (ab.quantile("v", 0.5), oracle.quantile("v", 0.5)),
    "stddev": (ab.stddev("v"), oracle.stddev("v")),
    "collect": (ab.collect("s"), oracle.collect("s", "t")),
}
# Without a type for its state, rows come in the order of time: it may tell the order.
IN_ORDER: Aggregates = {"spelled": user("v", init=list, incr=append, merge=extend, final=spelled, returns="string")}
# An aggregate of Spark's, and Spark evaluates them all.
MIXED: Aggregates = {**NATIVE, **IN_ORDER, "total": IN_PARTS["total"], "median": IN_PARTS["median"]}
KINDS = {"in parts": IN_PARTS, "Spark's": NATIVE, "mixed": MIXED, "in order": IN_ORDER}
APPROXIMATE = {"stddev"}
"""Its last digits depend on the order of the rows."""


# --- from rows to results ---


def frame_of(spark: SparkSession, rows: Sequence[Row], **types: str) -> DataFrame:
    """The rows with a time `t` in microseconds, in two partitions: two splitters, unless told otherwise."""
    kinds = StructType.fromDDL(", ".join(f"`{name}` {kind}" for name, kind in {"t": "bigint", **types}.items()))
    fields = to_arrow_schema(kinds)
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in fields]
    table, half = pa.table(columns, schema=fields), len(rows) // 2
    return spark.createDataFrame(table[:half], kinds).unionAll(spark.createDataFrame(table[half:], kinds))


def rows_of(n: int, keys: int, span: int, seed: int = 3) -> list[dict[str, Any]]:
    """Rows at times around 0, in no order; one key has a third of them, and each column nulls."""
    rng = random.Random(seed)

    def row() -> dict[str, Any]:
        key = 0 if rng.random() < 0.3 else rng.randrange(keys)
        return {
            "t": None if rng.random() < 0.02 else rng.randrange(-span, span),
            "k": None if key == 1 else f"key {key}",
            "v": None if rng.random() < 0.1 else rng.randrange(-50, 50),
            "s": rng.choice([None, "", "a", "ab", "é", "Z"]),
        }

    return [row() for _ in range(n)]


TYPES = {"k": "string", "v": "bigint", "s": "string"}
Cut = Callable[[Stream], Windowed]


def collected(frames: Mapping[str, DataFrame], keys: Sequence[str]) -> dict[str, Result]:
    """The results of several DataFrames in one Spark job. No window may come twice."""
    parts = [frame.select(F.lit(label).alias("label"), "*") for label, frame in frames.items()]
    kinds = [[(f.name, f.dataType.simpleString()) for f in part.schema] for part in parts]
    assert all(kind == kinds[0] for kind in kinds), "the policies differ in their types"
    results: dict[str, Result] = {label: {} for label in frames}
    for row in reduce(DataFrame.unionAll, parts).collect():
        values = row.asDict()
        label, (start, end) = values.pop("label"), values.pop("window")
        values.pop("window_spec", None)
        place = (*(canonical(values.pop(key)) for key in keys), start, end)
        assert place not in results[label], f"{label} has the window {place} twice"
        results[label][place] = values
    return results


def assert_same(found: Result, expected: Result, of: str) -> None:
    assert sorted(found, key=repr) == sorted(expected, key=repr), of
    for place, values in expected.items():
        for name, value in values.items():
            digits = 9 if name in APPROXIMATE else None
            assert same(found[place][name], value, digits), (of, place, name, found[place][name], value)


def named(policies: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {" ".join(map(str, policy.values())) or "auto": policy for policy in policies}


def with_workers(policy: Mapping[str, Any]) -> Mapping[str, Any]:
    """Two workers, unless said otherwise; "auto" may leave keys to Spark, and then there are none to say it of."""
    return policy if policy.get("partition", "auto") == "auto" else {"workers": 2, **policy}


def check(
    source: DataFrame,
    rows: Sequence[Row],
    cut: Cut,
    aggregates: Aggregates,
    policies: Sequence[Mapping[str, Any]],
    *,
    keys: Sequence[str] = ("k",),
    windows: Sequence[Window],
    per_key: bool = True,
) -> Result:
    """All policies, in one Spark job, against the oracle."""
    windowed = cut(in_micros(source, time="t"))
    ours = {name: each for name, (each, _) in aggregates.items()}
    columns = [F.col(f"`{key}`") for key in keys]
    frames = {
        label: windowed.by(*columns, **with_workers(policy)).agg(**ours).to_df()
        for label, policy in named(policies).items()
    }
    plain = [{**row, **{key: canonical(row[key]) for key in keys}} for row in rows]
    oracles = {name: each for name, (_, each) in aggregates.items()}
    expected = evaluate(plain, windows, oracles, time="t", keys=keys, per_key=per_key)
    for label, found in collected(frames, keys).items():
        assert_same(found, expected, label)
    return expected


def sliding(size: int, slide: int, origin: int = 0) -> tuple[Cut, list[Window]]:
    window = Window(size, slide, origin)
    return lambda s: s.window(**in_words(window)), [window]


def check_sliding(
    source: DataFrame, rows: Sequence[Row], window: tuple[int, int, int], *rest: Any, **more: Any
) -> Result:
    cut, windows = sliding(*window)
    return check(source, rows, cut, *rest, windows=windows, **more)


# --- every policy ---


@pytest.mark.parametrize("kind", ["in parts", pytest.param("mixed", marks=pytest.mark.slow)])
def test_every_policy(spark: SparkSession, kind: str) -> None:
    """A slide that does not divide the size: whole keys are those of a hash."""
    rows = rows_of(250, keys=12, span=120)
    check_sliding(frame_of(spark, rows, **TYPES), rows, (35, 14, 3), KINDS[kind], [SH, FLD, EVERY[-1]])


@pytest.mark.slow
def test_all_policies(spark: SparkSession) -> None:
    rows = rows_of(250, keys=12, span=120)
    check_sliding(frame_of(spark, rows, **TYPES), rows, (35, 14, 3), KINDS["in parts"], EVERY)


@pytest.mark.parametrize("kind", ["in parts", "mixed"])
def test_affinity_keeps_the_keys_of_tumbling_windows_whole(spark: SparkSession, kind: str) -> None:
    """Many windows, in no order: far more than a splitter keeps where keys may be split. Here it keeps all."""
    rows = rows_of(600, keys=20, span=150)
    policies = [CAM, {"partition": "am", "splitters": 1}] if kind == "in parts" else [CAM]
    check_sliding(frame_of(spark, rows, **TYPES), rows, (4, 4, 1), KINDS[kind], policies)


@pytest.mark.usefixtures("compiled")
def test_with_adaptive_execution(spark: SparkSession) -> None:
    """As users run it: Spark may join small partitions, and must not join or split those of workers."""
    rows = rows_of(250, keys=12, span=120)
    source = frame_of(spark, rows, **TYPES)
    check_sliding(source, rows, (35, 14, 0), IN_PARTS, [FLD])
    check_sliding(source, rows, (35, 14, 0), MIXED, [FLD])


@pytest.mark.slow
def test_any_number_of_workers_and_choices(spark: SparkSession) -> None:
    """Also one worker, more workers than keys, and more choices than workers."""
    rows = rows_of(120, keys=4, span=60)
    policies = [
        {"partition": "pk", "workers": 1, "choices": 2},
        {"partition": "lm", "workers": 2, "choices": 5},
        {"partition": "am", "cardinality": "hll", "workers": 9, "choices": 1},
        {"partition": "cam", "splitters": 1, "workers": 9, "choices": 9},
    ]
    check_sliding(frame_of(spark, rows, **TYPES), rows, (30, 30, 0), IN_PARTS, policies)


def test_several_windows(spark: SparkSession) -> None:
    rows = rows_of(150, keys=6, span=80)
    source, pairs = frame_of(spark, rows, **TYPES), [(30, 10), (12, 12), (7, 3)]
    windows = [Window(size, slide, 5) for size, slide in pairs]
    texts = [(describe(size), describe(slide)) for size, slide in pairs]
    for aggregates, policies in ((IN_PARTS, [CAM, FLD]), (MIXED, [FLD])):
        check(source, rows, lambda s: s.windows(*texts, origin="5 us"), aggregates, policies, windows=windows)


@pytest.mark.parametrize("per_key", [True, False], ids=["per key", "over all keys"])
def test_count_windows(spark: SparkSession, per_key: bool) -> None:
    rows = rows_of(100, keys=4, span=20)  # many at the same time
    source = frame_of(spark, rows, **TYPES)
    mixed = {name: MIXED[name] for name in ("rows", "last", "median", "spelled")}
    for size, slide, aggregates, policy in ((4, 4, IN_PARTS, CAM), (5, 2, mixed, FLD if per_key else SH)):

        def cut(stream: Stream, size: int = size, slide: int = slide) -> Windowed:
            return stream.window(rows=size, slide_rows=slide, per_key=per_key)

        check(source, rows, cut, aggregates, [policy], windows=[Window.of_rows(size, slide)], per_key=per_key)


# --- keys ---

DAY = dt.date(1969, 12, 31)
COMPOSITE: dict[str, dict[str, tuple[str, list[Any]]]] = {
    # (null, 'a') is not ('a', null); names need quotes; a decimal of 20 digits is hashed as bytes.
    "usual": {
        "k s": ("string", [None, "", "a", "é"]),
        "a.b": ("int", [None, 0, -1]),
        "d": ("date", [None, DAY, dt.date(2024, 2, 29)]),
        "n": ("decimal(20,2)", [None, Decimal("0.00"), Decimal("-123456789012345678.90")]),
    },
    "others": {
        "b": ("boolean", [None, True, False]),
        "byte": ("tinyint", [None, -128, 127]),
        "bytes": ("binary", [None, b"", b"\x00\xff"]),
        "short": ("decimal(5,1)", [Decimal("-1.5"), Decimal("1.0")]),
        "moment": ("timestamp_ntz", [dt.datetime(1969, 12, 31, 23), dt.datetime(2024, 2, 29)]),
    },
}


@pytest.mark.parametrize("case", COMPOSITE)
def test_composite_keys(spark: SparkSession, case: str) -> None:
    rng, keys = random.Random(5), COMPOSITE[case]
    rows = [
        {"t": rng.randrange(-30, 30), **{k: rng.choice(values) for k, (_, values) in keys.items()}, "v": i, "s": "x"}
        for i in range(150)
    ]
    types = {name: kind for name, (kind, _) in keys.items()}
    source = frame_of(spark, rows, **types, v="bigint", s="string")
    check_sliding(source, rows, (20, 10, 0), IN_PARTS, [FLD], keys=tuple(keys))
    check_sliding(source, rows, (20, 10, 0), {"sum": NATIVE["sum"]}, [{}, SH], keys=tuple(keys))


@pytest.mark.parametrize("kind", ["double", "float"])
def test_zeros_are_one_key_and_so_are_nans(spark: SparkSession, kind: str) -> None:
    keys = [0.0, -0.0, nan, -nan, None, 1.5, math.inf]
    rows = [{"t": i // 7 - 10, "k": keys[i % 7], "v": i, "s": "x"} for i in range(140)]
    source = frame_of(spark, rows, k=kind, v="bigint", s="string")
    for aggregates, policies in ((IN_PARTS, [SH]), ({"sum": NATIVE["sum"]}, [FLD])):
        found = check_sliding(source, rows, (10, 5, 0), aggregates, policies)
        assert {place[0] for place in found} == {0.0, "NaN", None, 1.5, math.inf}


def test_one_key_and_every_key_once(spark: SparkSession) -> None:
    one = [{"t": i, "k": "only", "v": i, "s": "x"} for i in range(-60, 60)]
    once = [{"t": i % 40, "k": f"{i}", "v": i, "s": "x"} for i in range(120)]
    for rows, policy in ((one, SH), (once, CAM)):
        check_sliding(frame_of(spark, rows, **TYPES), rows, (20, 20, 0), IN_PARTS, [policy])


def test_no_rows(spark: SparkSession) -> None:
    """An empty DataFrame, and one whose rows have no time: no windows, and the same columns."""
    timeless = [{"t": None, "k": "a", "v": 1, "s": "x"}] * 3
    assert check_sliding(frame_of(spark, [], **TYPES), [], (20, 20, 0), IN_PARTS, [SH]) == {}
    assert check_sliding(frame_of(spark, timeless, **TYPES), timeless, (20, 20, 0), IN_PARTS, [CAM]) == {}
    assert check_sliding(frame_of(spark, timeless, **TYPES), timeless, (20, 10, 0), MIXED, [SH]) == {}


def test_a_key_that_is_an_expression(spark: SparkSession) -> None:
    rows = rows_of(100, keys=8, span=40)
    source = frame_of(spark, rows, **TYPES)
    key = (F.col("v") % 3).alias("third")
    query = in_micros(source, time="t").window(size="20 us").by(key, partition="sh", workers=2).agg(rows=ab.count())
    rows = [{**row, "third": None if row["v"] is None else int(math.fmod(row["v"], 3))} for row in rows]
    expected = evaluate(rows, [Window(20, 20)], {"rows": oracle.count()}, time="t", keys=["third"])
    assert_same(collected({"sh": query.to_df()}, ["third"])["sh"], expected, "sh")


# --- times ---

TIMES: dict[str, tuple[Callable[[Column], Column], Callable[[Column], Column]]] = {
    "timestamp": (F.timestamp_seconds, F.unix_seconds),
    "timestamp_ntz": (
        lambda t: F.timestamp_seconds(t).cast("timestamp_ntz"),
        lambda edge: F.unix_seconds(edge.cast("timestamp")),
    ),
    "int": (lambda t: t.cast("int"), lambda edge: edge.cast("bigint")),
}


@pytest.mark.parametrize("kind", TIMES)
def test_every_type_of_time(spark: SparkSession, kind: str) -> None:
    """Times before 1970 too; an int is in seconds."""
    made, seconds = TIMES[kind]
    rows = rows_of(100, keys=5, span=30)  # in seconds
    source = frame_of(spark, rows, **TYPES).withColumn("t", made(F.col("t")))
    mixed = {name: MIXED[name] for name in ("rows", "last", "collect", "spelled")}
    aggregates, policy = (mixed, SH) if kind == "timestamp" else (IN_PARTS, CAM)
    ours = {name: aggregate for name, (aggregate, _) in aggregates.items()}
    query = in_micros(source, time="t").window(size="20 s", slide="8 s").by("k", workers=2, **policy).agg(**ours)
    edges = (seconds(F.col("window")[edge]) for edge in ("start", "end"))
    found = collected({kind: query.to_df().withColumn("window", F.struct(*edges))}, ["k"])[kind]
    oracles = {name: slow for name, (_, slow) in aggregates.items()}
    assert_same(found, evaluate(rows, [Window(20, 8)], oracles, time="t", keys=["k"]), kind)


def test_windows_after_windows(spark: SparkSession) -> None:
    """The results of a partitioned aggregate as the stream of another."""
    rows = rows_of(150, keys=8, span=60)
    source, (total, slow_total) = frame_of(spark, rows, **TYPES), IN_PARTS["total"]
    middle, slow_middle = user("total", **MEDIAN, merge=extend, state="array<bigint>")
    first = in_micros(source, time="t").window(size="10 us").by("k", partition="sh", workers=2).agg(total=total)
    second = first.window(size="40 us", slide="20 us").by("k", **FLD, workers=2).agg(middle=middle)
    inner = evaluate(rows, [Window(10, 10)], {"total": slow_total}, time="t", keys=["k"])
    totals = [{"t": end - 1, "k": key, "total": values["total"]} for (key, _, end), values in inner.items()]
    expected = evaluate(totals, [Window(40, 20)], {"middle": slow_middle}, time="t", keys=["k"])
    assert_same(collected({"both": second.to_df()}, ["k"])["both"], expected, "both")


# --- the property ---

moments = st.one_of(st.none(), st.integers(-60, 60), st.integers(-60, 60), st.integers(-3, 3))
drawn_rows = st.fixed_dictionaries(
    {
        "t": moments,
        "k": st.sampled_from([None, "a", "b", "", "c"]),
        "k2": st.sampled_from([None, 1, 2]),
        "v": st.one_of(st.none(), st.integers(-3, 3), st.integers(-(2**40), 2**40)),
        "s": st.sampled_from([None, "", "a", "ab", "é", "Z"]),
    }
)


@st.composite
def drawn_windows(draw: st.DrawFn) -> list[Window]:
    origin = draw(st.sampled_from([0, 0, 7, -13, 1_000]))
    pairs = st.integers(1, 40).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size) | st.just(size)))
    found = draw(st.lists(pairs, min_size=1, max_size=2, unique=True))
    return [Window(size, slide, origin) for size, slide in found]


@st.composite
def drawn_policies(draw: st.DrawFn) -> dict[str, Any]:
    policy = draw(st.sampled_from([*POLICIES, "auto"]))
    if policy == "auto":
        return {"partition": policy}
    drawn = {"partition": policy, "workers": draw(st.integers(1, 5)), "splitters": draw(st.sampled_from([None, 1, 2]))}
    if policy in WITH_CHOICES:
        drawn["choices"] = draw(st.integers(1, 4))
    if policy in COUNTING_KEYS and draw(st.booleans()):
        drawn["cardinality"] = "hll"
    return drawn


@settings(max_examples=8)
@given(
    rows=st.lists(drawn_rows, max_size=40),
    windows=drawn_windows(),
    keys=st.sampled_from([("k",), ("k2", "k")]),
    kind=st.sampled_from(list(KINDS)),
    policy=drawn_policies(),
)
def test_the_policy_never_changes_the_result(
    spark: SparkSession,
    rows: list[Row],
    windows: list[Window],
    keys: tuple[str, ...],
    kind: str,
    policy: dict[str, Any],
) -> None:
    def cut(stream: Stream) -> Windowed:
        sizes = [(describe(w.size), describe(w.slide)) for w in windows]
        return stream.windows(*sizes, origin=describe(windows[0].origin))

    source = frame_of(spark, rows, k="string", k2="int", v="bigint", s="string")
    check(source, rows, cut, KINDS[kind], [policy], keys=keys, windows=windows)


# --- what cannot be placed ---


@pytest.fixture(scope="module")
def cars(spark: SparkSession) -> DataFrame:
    rows = [{"t": i, "k": "ab"[i % 2], "v": i, "s": "x"} for i in range(8)]
    return frame_of(spark, rows, **TYPES)


def windowed(source: DataFrame) -> Windowed:
    return in_micros(source, time="t").window(size="4 us")


def no_merge() -> Aggregate:
    return ab.user_aggregate("v", init=list, incr=append, final=median, returns="bigint")


REFUSED: dict[str, tuple[Callable[[DataFrame], Any], str, str]] = {
    "unknown policy": (lambda df: windowed(df).by("k", partition="best"), "'best' is not a policy", "cam"),
    "no choices": (lambda df: windowed(df).by("k", partition="pk", choices=0), "choices=0", "2, or more"),
    "half a choice": (lambda df: windowed(df).by("k", partition="pk", choices=1.5), "choices=1.5", "2, or more"),
    "no cardinality": (lambda df: windowed(df).by("k", partition="lm", cardinality="x"), "cardinality='x'", "hll"),
    "nothing to estimate": (
        lambda df: windowed(df).by("k", partition="sh", cardinality="hll"), "does not count keys", "leave it out"
    ),
    "no workers": (lambda df: windowed(df).by("k", workers=0), "workers=0", "above zero"),
    "no splitters": (lambda df: windowed(df).by("k", splitters=0), "splitters=0", "above zero"),
    "no key": (lambda df: windowed(df).by(partition="fld"), "partition='fld' needs a key", "by("),
    "no merge": (
        lambda df: windowed(df).by("k", partition="fld").agg(m=no_merge()).to_df(), "has no merge", 'at "auto"'
    ),
    "nested key": (
        lambda df: windowed(df).by(F.struct("k").alias("n"), partition="fld").agg(n_rows=ab.count()).to_df(),
        "is of type struct<k:string>",
        'at "auto"',
    ),
    "interval key": (
        lambda df: windowed(df).by(F.make_dt_interval("v").alias("i"), partition="fld").agg(n=ab.count()).to_df(),
        "is of type interval day to second",
        'at "auto"',
    ),
    "collated key": (
        lambda df: windowed(df).by(F.collate("k", "UTF8_LCASE").alias("c"), partition="sh").agg(n=ab.count()).to_df(),
        "has a collation",
        'at "auto"',
    ),
    "state without merge": (
        lambda df: ab.user_aggregate("v", **MEDIAN, state="array<bigint>"), "no merge", "leave out state"
    ),
    "state of no type": (
        lambda df: windowed(df).by("k").agg(m=ab.user_aggregate("v", **MEDIAN, merge=extend, state="lists")),
        "state='lists' is not a Spark type",
        "array<bigint>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_reason(cars: DataFrame, case: str) -> None:
    make, message, hint = REFUSED[case]
    with pytest.raises(AnabranchError) as raised:
        make(cars)
    assert type(raised.value) is InvalidArgumentError
    assert message in raised.value.message and hint in raised.value.hint


def test_auto_leaves_to_spark_what_cannot_be_placed(spark: SparkSession, cars: DataFrame) -> None:
    total, _ = IN_PARTS["total"]
    nested = windowed(cars).by(F.struct("k").alias("n")).agg(total=total).to_df().collect()
    assert {(row.n.k, row.window.start, row.total) for row in nested} == {
        ("a", 0, 2), ("b", 0, 4), ("a", 4, 10), ("b", 4, 12),
    }  # fmt: skip
    whole = windowed(cars).by("k").agg(m=no_merge()).to_df().collect()
    assert {(row.k, row.window.start, row.m) for row in whole} == {("a", 0, 2), ("b", 0, 3), ("a", 4, 6), ("b", 4, 7)}


@pytest.mark.parametrize(
    "aggregate",
    [
        ab.sum("v"),
        IN_PARTS["total"][0],
    ],
    ids=["Spark's", "in Python"],
)
def test_a_collation_makes_keys_one(spark: SparkSession, cars: DataFrame, aggregate: Aggregate) -> None:
    text = F.when(F.col("v") < 2, F.upper("k")).otherwise(F.col("k"))
    source = cars.withColumn("c", F.collate(text, "UTF8_LCASE"))
    found = windowed(source).by("c").agg(total=aggregate).to_df().collect()
    assert sorted((row.c.lower(), row.window.start, row.total) for row in found) == [
        ("a", 0, 2), ("a", 4, 10), ("b", 0, 4), ("b", 4, 12),
    ]  # fmt: skip


@pytest.mark.parametrize("partition", ["fld", "sh"])
def test_a_state_of_another_type_is_refused(spark: SparkSession, cars: DataFrame, partition: str) -> None:
    wrong = ab.user_aggregate("v", **MEDIAN, merge=extend, state="string")
    sliding = in_micros(cars, time="t").window(size="4 us", slide="2 us")
    query = sliding.by("k", partition=partition, workers=2).agg(m=wrong)
    with pytest.raises(PySparkException) as raised:
        query.to_df().collect()
    assert "OperatorError" in str(raised.value)
    assert "does not fit its declared type string" in str(raised.value)
    assert "declare as `state` the type that init, incr and merge return" in str(raised.value)


def test_where_spark_wants_all_columns_of_a_group_for_its_exchange(spark: SparkSession) -> None:
    """Then the group-by of Spark's aggregates has an exchange of its own, after which keys are not whole."""
    rows = rows_of(100, keys=4, span=60)
    name = "spark.sql.requireAllClusterKeysForDistribution"
    spark.conf.set(name, "true")
    try:
        source = frame_of(spark, rows, **TYPES)
        check_sliding(source, rows, (35, 14, 0), {"sum": NATIVE["sum"]}, [{**FLD, "workers": 3}])
    finally:
        spark.conf.unset(name)
