"""Windowed joins give what nested loops give, as batch and as streams; and refuse what they cannot do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.errors import (
    AnabranchError,
    ColumnNotFoundError,
    ColumnTypeError,
    InvalidArgumentError,
    InvalidWindowError,
    OperatorError,
    StreamingError,
)
from anabranch.query.nodes import JoinNode
from anabranch.query.origins import Output
from anabranch.types import Stream
from anabranch.windows import describe
from tests.oracles import joins
from tests.oracles.epochs import Row
from tests.spark.streams import Feed, in_micros, plain, run

SECOND = 1_000_000
HOWS = ("inner", "left", "right", "full")
UNITS = {"bigint": 1, "int": SECOND, "timestamp": SECOND, "timestamp_ntz": 250_000}
"""Microseconds between two times of the random rows."""

Given = tuple[Any, int | None, int]
"""A row: key, time, id."""


def rows(seed: int, n: int, *, keys: Sequence[Any], times: int = 60, heavy: float = 0.0) -> list[Given]:
    """Rows of random keys and times, around zero; about one in 15 has no time. The first key is `heavy`."""
    draw = np.random.default_rng(seed)
    share = [heavy + (1 - heavy) / len(keys), *[(1 - heavy) / len(keys)] * (len(keys) - 1)]
    chosen = [keys[number] for number in draw.choice(len(keys), n, p=share)]
    at = [int(t) for t in draw.integers(-times // 2, times // 2, n)]
    known = draw.random(n) > 1 / 15
    return [(chosen[i], at[i] if known[i] else None, i) for i in range(n)]


def frame(spark: SparkSession, data: Iterable[Given], *, key: str = "string", time: str = "bigint") -> DataFrame:
    """The rows as (key, at, id). Times are in units of their kind, see UNITS."""
    given = spark.createDataFrame(list(data), f"key {key}, at bigint, id bigint")
    micros = F.col("at") * UNITS[time]
    as_time = {
        "bigint": micros,
        "int": F.col("at").cast("int"),
        "timestamp": F.timestamp_micros(micros),
        "timestamp_ntz": F.timestamp_micros(micros).cast("timestamp_ntz"),
    }
    return given.withColumn("at", as_time[time])


def stream(spark: SparkSession, data: Iterable[Given], **types: str) -> Stream:
    return in_micros(frame(spark, data, **types), time="at")


def ids(result: DataFrame) -> Counter[tuple[Any, ...]]:
    """How often each combination of rows is in the result: (key, id, id, ...)."""
    names = ["key", *(name for name in result.columns if name.startswith("id"))]
    return Counter(tuple(row) for row in result.select(*names).collect())


def wanted(
    streams: Sequence[Sequence[Given]],
    within: Sequence[int],
    how: str = "inner",
    where: Callable[..., bool] = lambda *ids: True,
) -> Counter[tuple[Any, ...]]:
    """What nested loops give: (key, id, id, ...). Rows without a time are in no result."""
    timed = [[((key,), t, (key, number)) for key, t, number in each if t is not None] for each in streams]

    def holds(*rows: tuple[Any, int]) -> bool:
        return where(*(number for _, number in rows))

    found = joins.inner(timed, within, holds) if how == "inner" else joins.outer(timed, within, how, holds)
    keys = [next(row[0] for row in result if row is not None) for result in found]
    return Counter(
        (key, *(None if row is None else row[1] for row in result)) for key, result in zip(keys, found, strict=True)
    )


KEYS = ("a", "b", "c", None)


@pytest.mark.parametrize(
    ("within", "time"),
    [
        # [-- W2 --a-------- W1 --------]
        ((7, 2), "bigint"),
        ((0, 5), "timestamp"),
        ((0, 0), "timestamp_ntz"),
        ((3, 0), "int"),
    ],
)
def test_all_hows_give_what_nested_loops_give(spark: SparkSession, within: tuple[int, int], time: str) -> None:
    left, right = rows(1, 150, keys=KEYS), rows(2, 130, keys=KEYS, heavy=0.5)
    a, b = stream(spark, left, time=time), stream(spark, right, time=time)
    windows = [describe(window * UNITS[time]) for window in within]
    for how in HOWS:
        joined = a.join(b, on="key", within=windows, how=how)
        result = joined.to_df()
        assert ids(result) == wanted((left, right), within, how), how
        assert result.columns == joined.schema.names == ["key", "at", "id", "at_right", "id_right"]
        assert [f.dataType for f in result.schema] == [f.dataType for f in joined.schema]


def test_a_row_is_joined_at_both_ends_of_the_windows(spark: SparkSession) -> None:
    # b:  4 5              8   10 11
    #     . [----- a = 8 -----] .         W2 = 3, W1 = 2
    left = [("k", 8, 0)]
    right = [("k", t, t) for t in (4, 5, 8, 10, 11)]
    result = stream(spark, left).join(stream(spark, right), on="key", within=("2 us", "3 us")).to_df()
    assert ids(result) == Counter([("k", 0, 5), ("k", 0, 8), ("k", 0, 10)])


def test_equal_times_are_one_pair_each(spark: SparkSession) -> None:
    same = [("k", -5, i) for i in range(4)]
    result = stream(spark, same).join(stream(spark, same), on="key", within=("0 us", "0 us")).to_df()
    assert ids(result) == Counter(("k", i, j) for i in range(4) for j in range(4))


def test_a_stream_with_itself(spark: SparkSession) -> None:
    data = rows(3, 60, keys=("a", "b"))
    one = stream(spark, data)
    for how in HOWS:
        found = one.join(one, on="key", within=("4 us", "1 us"), how=how).to_df()
        assert ids(found) == wanted((data, data), (4, 1), how)


def test_two_keys_of_different_integers(spark: SparkSession) -> None:
    left, right = rows(4, 90, keys=(1, 2, None)), rows(5, 90, keys=(1, 2, None))

    def two(data: Sequence[Given], key: str) -> Stream:
        return in_micros(frame(spark, data, key=key).withColumn("odd", F.expr("id % 2 = 1")), time="at")

    joined = two(left, "int").join(two(right, "bigint"), on=("odd", "key"), within=("6 us", "6 us"), how="full")
    # Nulls in one of the keys are enough to have no partner.
    left_odd, right_odd = ({number: number % 2 for _, _, number in data} for data in (left, right))
    found = wanted((left, right), (6, 6), "full", lambda a, b: left_odd[a] == right_odd[b])
    assert ids(joined.to_df()) == found
    assert joined.schema.names[:2] == ["odd", "key"]
    assert joined.schema["key"].dataType.simpleString() == "bigint"


def test_three_streams(spark: SparkSession) -> None:
    data = [rows(seed, 60, keys=("a", "b", None), times=40) for seed in (6, 7, 8)]
    kinds = ("timestamp", "bigint", "int")
    given = [stream(spark, [(k, t and t * (SECOND // UNITS[kind] if kind == "bigint" else 1), i) for k, t, i in each],
                    time=kind) for each, kind in zip(data, kinds, strict=True)]  # fmt: skip
    joined = given[0].join(*given[1:], on="key", within=("5 s", "1 s", "3 s"))
    assert ids(joined.to_df()) == wanted(data, (5, 1, 3))
    assert joined.schema.names == ["key", "at", "id", "at_right", "id_right", "at_right_3", "id_right_3"]


def even(batch: pa.RecordBatch) -> Any:
    return pc.equal(pc.bit_wise_and(pc.add(batch["id"], batch["id_right"]), 1), 0)


def test_where(spark: SparkSession) -> None:
    left, right = rows(9, 100, keys=KEYS), rows(10, 100, keys=KEYS)
    a, b = stream(spark, left), stream(spark, right)

    def even_sum(a: int, b: int) -> bool:
        return (a + b) % 2 == 0

    column = F.pmod(F.col("id") + F.col("id_right"), F.lit(2)) == 0
    text = "(id + id_right) % 2 = 0 and key is not null"
    for how, where in (("inner", text), ("left", column), ("right", text), ("full", column)):
        found = a.join(b, on="key", within=("5 us", "5 us"), how=how, where=where).to_df()
        assert ids(found) == wanted((left, right), (5, 5), how, even_sum), how
    for never_null in (a, in_micros(spark.range(100).selectExpr("'a' key", "id at", "id"), time="at")):
        function = never_null.join(b, on="key", within=("5 us", "5 us"), where=even).to_df()
        given = left if never_null is a else [("a", i, i) for i in range(100)]
        assert ids(function) == wanted((given, right), (5, 5), "inner", even_sum)


def test_a_where_function_must_answer_for_every_row(spark: SparkSession) -> None:
    a = stream(spark, [("k", 0, 0), ("k", 0, 1)])
    for where, said in ((lambda batch: [True], r"returned shape \(1,\)"), (lambda batch: batch["id"], "of type int64")):
        with pytest.raises(Exception, match=said) as raised:
            a.join(a, on="key", within=("1 us", "1 us"), where=where).to_df().collect()
        assert OperatorError.__name__ in str(raised.value)


def test_a_heavy_key_is_not_compared_with_itself(spark: SparkSession) -> None:
    # 40,000 rows of one key on either side: 1.6 * 10^9 pairs by key alone, 3 to a row in time.
    rows_of_one_key = spark.range(40_000).selectExpr("'k' key", "id * 10 at", "id")
    one = in_micros(rows_of_one_key, time="at")
    joined = one.join(one, on="key", within=("10 us", "10 us"))
    assert joined.to_df().count() == 3 * 40_000 - 2
    plan = joined.explain()
    assert "Join" in plan and "NestedLoop" not in plan and "CartesianProduct" not in plan


def test_results_are_a_stream_for_what_follows(spark: SparkSession) -> None:
    left = [("k", 0, 0), ("k", 10, 1), ("m", 3, 2)]
    right = [("k", 4, 0), ("k", 9, 1)]
    joined = stream(spark, left).join(stream(spark, right), on="key", within=("4 us", "1 us"), how="full")
    times = {tuple(r) for r in joined.as_stream().to_df().select("id", "id_right", "join_time").collect()}
    assert times == {(0, 0, 4), (1, 1, 10), (2, None, 3)}
    windows = joined.window(size="5 us").agg(n=ab.count()).to_df()
    assert {(r["window"]["start"], r["n"]) for r in windows.collect()} == {(0, 2), (10, 1)}
    again = joined.filter("id = 0").join(stream(spark, [("k", 5, 7)]), on="key", within=("1 us", "0 s"), suffix="_last")
    assert [row.asDict() for row in again.to_df().collect()] == [
        {"key": "k", "at": 0, "id": 0, "at_right": 4, "id_right": 0, "join_time": 4, "at_last": 5, "id_last": 7}
    ]


def test_rows_without_a_time_are_kept_apart(spark: SparkSession) -> None:
    left, right = stream(spark, [("k", None, 0), ("k", 1, 1)]), stream(spark, [("k", 1, 5)])
    joined = left.join(right, on="key", within=("1 us", "1 us"))
    assert ids(joined.to_df()) == Counter([("k", 1, 5)])
    assert [r["reason"] for r in joined.bad_rows(0).collect()] == ["null time in column at"]
    assert joined.bad_rows(1).count() == 0


# --- streams --------------------------------------------------------------------------------------------------------


def feeds(folder: Path, count: int, time: str) -> list[Feed]:
    """Streams that go forward by 10 s an epoch, and end with a row long after all others."""
    found = []
    for number in range(count):
        draw = np.random.default_rng(number)
        feed = Feed(folder / f"input{number}", time)
        for epoch in range(4):
            at = (100 + 10 * epoch + draw.integers(0, 10, 7)) * SECOND
            values = draw.integers(0, 100, 7).tolist()
            feed.add([Row(int(t), str(draw.choice(["a", "b"])), v) for t, v in zip(at, values, strict=True)])
        feed.add([Row(None, "a", 1), Row(900 * SECOND, "end", 1)], [Row(901 * SECOND, "end", 2)])
        found.append(feed)
    return found


@pytest.mark.parametrize(
    ("how", "count", "time"),
    [
        ("inner", 2, "timestamp"),
        pytest.param("left", 2, "timestamp_ntz", marks=pytest.mark.slow),
        pytest.param("right", 2, "timestamp", marks=pytest.mark.slow),
        ("full", 2, "bigint"),
        ("inner", 3, "timestamp"),
        pytest.param("inner", 3, "bigint", marks=pytest.mark.slow),
    ],
)
def test_a_stream_gives_what_a_batch_gives(
    how: str, count: int, time: str, spark: SparkSession, tmp_path: Path
) -> None:
    given = feeds(tmp_path, count, time)
    streams = [in_micros(feed.stream(spark), time="at", watermark="0 s") for feed in given]
    tables = [in_micros(feed.batch(spark), time="at") for feed in given]
    settings: dict[str, Any] = {
        "on": "key", "within": ("12 s", "7 s", "4 s")[:count], "how": how, "where": "value + value_right > 20"
    }  # fmt: skip
    streamed = streams[0].join(*streams[1:], **settings)
    delivered = run(streamed.to_df(), tmp_path / "checkpoint").rows
    batch = plain(tables[0].join(*tables[1:], **settings).to_df().toArrow())
    assert len(batch) > 30

    # The very last rows of an outer join still wait for a partner.
    def known(found: Iterable[dict[str, Any]]) -> list[str]:
        return sorted(repr(row) for row in found if row["key"] != "end")

    assert known(delivered) == known(batch)
    assert "stream-stream join" in streamed.explain()


def test_a_join_of_streams_as_a_node(spark: SparkSession, tmp_path: Path) -> None:
    one, other = (in_micros(feed.stream(spark), time="at", watermark="1 s") for feed in feeds(tmp_path, 2, "timestamp"))
    joined = one.join(other.union(other), on="key", within=("3 s", "2 s"), how="left", where=even, groups=7)
    node = joined.node
    assert isinstance(node, JoinNode) and joined.node is node
    assert [each.port for each in node.inputs] == [0, 1, 1]
    assert node.preserved == (0,) and node.outputs == ("rows",) and node.schemas["rows"] == joined.schema
    text = "\n".join(node.describe())
    for said in ("left join on key, in 7 groups", "within 3 s, 2 s", "where tests.spark.api.test_join.even",
                 "stream 1: at as at_right", "hashed probe, blocks of 64 tuples, theta 384 blocks"):  # fmt: skip
        assert said in text
    assert joined._emissions() == ((node, "rows"),)
    after = joined.as_stream()
    origin = after.branches[0].origin
    assert isinstance(origin, Output) and origin.node is node and origin.delay == 3 * SECOND
    assert after.branches[0].apply(spark.createDataFrame([], joined.schema)).columns[-1] == "join_time"
    with pytest.raises(StreamingError, match="results of a stream-stream join have no watermark"):
        after.to_df()
    # What only the runtime can run can be joined on, and is refused by to_df() only.
    again = after.join(other, on="key", within=("1 s", "1 s"), suffix="_last")
    assert len(again.node.inputs) == 2
    with pytest.raises(StreamingError, match="start"):
        again.to_df()


# --- real data ------------------------------------------------------------------------------------------------------


def test_trades_and_quotes(spark: SparkSession, shared_data: Path) -> None:
    minutes = "ts >= timestamp_ntz'2013-10-07 10:00:00' and ts < timestamp_ntz'2013-10-07 10:05:00'"
    files = {name: shared_data / "ticks-2013" / f"{name}.parquet" for name in ("trades", "quotes")}
    trades, quotes = (in_micros(spark.read.parquet(str(file)).where(minutes), time="ts") for file in files.values())
    start = pc.strptime("2013-10-07 10:00:00", "%Y-%m-%d %H:%M:%S", "us").as_py()
    columns = {}
    for name, file in files.items():
        table = pq.read_table(file, columns=["symbol", "ts"])
        t = table["ts"].cast(pa.int64()).to_numpy() - int(np.datetime64(start, "us").astype(np.int64))
        kept = (t >= 0) & (t < 300 * SECOND)
        columns[name] = table["symbol"].to_numpy()[kept], t[kept]
    before, after, pairs = 100_000, 20_000, 0
    for symbol in set(columns["trades"][0]):
        bought, quoted = (np.sort(t[symbols == symbol]) for symbols, t in columns.values())
        first = np.searchsorted(quoted, bought - before, "left")
        pairs += int((np.searchsorted(quoted, bought + after, "right") - first).sum())
    joined = trades.join(quotes, on="symbol", within=(describe(after), describe(before)))
    assert pairs > 10_000
    assert joined.to_df().count() == pairs


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cars(spark: SparkSession) -> Stream:
    schema = "cell string, at timestamp, speed int, lane map<int, int>, name string collate UTF8_LCASE"
    return in_micros(spark.createDataFrame([], schema), time="at")


Make = Callable[[Stream], Any]
W = ("1 s", "1 s")

REFUSED: dict[str, tuple[Make, type[AnabranchError], str, str]] = {
    "no other": (lambda s: s.join(on="cell", within=("1 s",)), InvalidArgumentError, "two streams", "left.join(right"),
    "a DataFrame": (
        lambda s: s.join(s.source, on="cell", within=W), InvalidArgumentError, "DataFrame is not one", "ab.stream(df"
    ),
    "an aggregate": (
        lambda s: s.join(s.window(size="1 s").agg(n=ab.count()), on="cell", within=W),
        InvalidArgumentError, "Aggregation is not one", ".as_stream()",
    ),
    "one window": (
        lambda s: s.join(s, on="cell", within=("1 s",)), InvalidArgumentError, "each of the 2 streams",
        'within=("10 minutes", "5 minutes")',
    ),
    "a window for all": (
        lambda s: s.join(s, on="cell", within="1 s"), InvalidArgumentError, "needs its own window", "give 2 durations"
    ),
    "negative window": (
        lambda s: s.join(s, on="cell", within=("1 s", "-1 s")), InvalidArgumentError, "window of -1 s", "zero or more"
    ),
    "no duration": (
        lambda s: s.join(s, on="cell", within=("1 s", "soon")), InvalidWindowError, "'soon' is not a duration", "30 min"
    ),
    "no key": (lambda s: s.join(s, on=(), within=W), InvalidArgumentError, "key columns", "F.lit(0)"),
    "key twice": (
        lambda s: s.join(s, on=("cell", "cell"), within=W), InvalidArgumentError, "same key twice", "name it once"
    ),
    "unknown key": (lambda s: s.join(s, on="cel", within=W), ColumnNotFoundError, "no column 'cel'", "'cell'"),
    "the time as key": (
        lambda s: s.join(s, on="at", within=W), InvalidArgumentError, "time 'at' cannot be a key", 'within=("0 s"'
    ),
    "keys of different types": (
        lambda s: s.join(s.with_columns({"cell": F.lit(1)}), on="cell", within=W),
        ColumnTypeError, "string in one stream and int in another", "cast",
    ),
    "a map as key": (
        lambda s: s.join(s, on="lane", within=W), ColumnTypeError, "cannot be hashed", "cast it"
    ),
    "a collation": (lambda s: s.join(s, on="name", within=W), ColumnTypeError, "collation", "cast it"),
    "unknown how": (
        lambda s: s.join(s, on="cell", within=W, how="semi"), InvalidArgumentError, "how='semi'", '"left"'
    ),
    "three outer": (
        lambda s: s.join(s, s, on="cell", within=("1 us", "1 us", "1 us"), how="left"), InvalidArgumentError,
        "outer joins support two streams, not 3", "as_stream()",
    ),
    "suffix taken": (
        lambda s: s.with_columns({"speed_right": F.lit(1)}).join(s, on="cell", within=W), InvalidArgumentError,
        "'speed' of stream 1 would be called 'speed_right'", "suffix",
    ),
    "no suffix": (lambda s: s.join(s, on="cell", within=W, suffix=""), InvalidArgumentError, "not ''", "_quote"),
    "unknown column in where": (
        lambda s: s.join(s, on="cell", within=W, where="sped > 1"), ColumnNotFoundError, "where cannot be resolved",
        "speed_right",
    ),
    "where without a meaning": (
        lambda s: s.join(s, on="cell", within=W, where=5), InvalidArgumentError, "where=5", "function over record"
    ),
    "an outer join with a function": (
        lambda s: s.join(s, on="cell", within=W, how="left", where=even).to_df(), StreamingError,
        "function as `where` of a left", "as a Column",
    ),
    "no groups": (
        lambda s: s.join(s, on="cell", within=W, groups=0), InvalidArgumentError, "groups=0 is not a positive",
        "1 or more",
    ),
    "start of a batch": (
        lambda s: s.join(s, on="cell", within=W)._emissions(), StreamingError, "bounded DataFrames", "to_df()"
    ),
    "a stream that is not there": (
        lambda s: s.join(s, on="cell", within=W).bad_rows(2), InvalidArgumentError, "no stream 2", "0 to 1"
    ),
    "a time that is taken": (
        lambda s: s.join(s, on="cell", within=W).as_stream(time="at"), InvalidArgumentError, "has a column 'at'",
        "as_stream(time=",
    ),
    "no blocks": (lambda s: ab.JoinTuning(theta=0), InvalidArgumentError, "a whole number above zero", "384"),
    "no probe": (lambda s: ab.JoinTuning(probe="tree"), InvalidArgumentError, "'tree'", '"nested"'),
    "thresholds crossed": (
        lambda s: ab.JoinTuning(supplier=0.1, consumer=0.2), InvalidArgumentError, "back and forth", "consumer < supp"
    ),
    "beta": (lambda s: ab.JoinTuning(beta=1.0), InvalidArgumentError, "beta must be between 0 and 1", "0.5"),
    "no tuning": (
        lambda s: s.join(s, on="cell", within=W, tuning={"theta": 1}), InvalidArgumentError, "not a JoinTuning",
        "JoinTuning(",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, cars: Stream) -> None:
    make, kind, message, hint = REFUSED[case]
    with pytest.raises(AnabranchError) as raised:
        make(cars)
    assert type(raised.value) is kind
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_stream_and_a_table(spark: SparkSession, tmp_path: Path) -> None:
    feed = feeds(tmp_path, 1, "timestamp")[0]
    moving = in_micros(feed.stream(spark), time="at", watermark="1 s")
    with pytest.raises(StreamingError, match="cannot be joined with a bounded DataFrame"):
        moving.join(in_micros(feed.batch(spark), time="at"), on="key", within=W)


def _run_started(spark: SparkSession, blocks: list[str], names: dict[str, Any]) -> None:
    """The examples that start a query, over streams of the same rows."""
    streams = []
    for name in ("trades", "quotes"):
        names[name].to_df().coalesce(1).write.parquet(str(Path.cwd() / name))
        streams.append(in_micros(ab.replay(spark, Path.cwd() / name, time="at"), time="at", watermark="0 s"))
    wanted = sorted(map(tuple, names["pairs"].to_df().collect()))
    pairs = streams[0].join(streams[1], on="symbol", within=("0 s", "100 ms"))
    for block in blocks:
        exec(compile(block, "joins.md", "exec"), {"ab": ab, "pairs": pairs})
    assert sorted(map(tuple, spark.read.parquet(str(Path.cwd() / "pairs")).drop("epoch").collect())) == wanted


@pytest.mark.slow
def test_the_page_on_joins(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trades = in_micros(spark.range(50).selectExpr("'x' symbol", "timestamp_millis(id * 200) at", "id price"), time="at")
    quotes = in_micros(spark.range(99).selectExpr("'x' symbol", "timestamp_millis(id * 90) at", "id bid"), time="at")
    news = in_micros(spark.range(2).selectExpr("'x' symbol", "timestamp_seconds(id) at", "'!' text"), time="at")
    page = (Path(__file__).resolve().parents[3] / "docs" / "joins.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"ab": ab, "trades": trades, "quotes": quotes, "news": news}
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    for block in (each for each in blocks if ".start(" not in each):  # these are bounded: nothing to start
        exec(compile(block, "joins.md", "exec"), names)
    _run_started(spark, [each for each in blocks if ".start(" in each], names)
    assert "['symbol', 'at', 'price', 'at_right', 'bid']" in capsys.readouterr().out
    assert names["unquoted"].to_df().count() == 5  # the quotes end at 8.82 s, the trades at 9.8 s
    assert names["spread"].to_df().count() == 1 and names["wider"].to_df().columns[-1] == "text"
