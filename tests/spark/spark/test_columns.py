"""The closed forms as Spark Columns, and times as microseconds, against numpy. Each example is one Spark job."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from anabranch.spark.columns import TimeColumn, TimeKind, changing, floordiv
from anabranch.windows import Ring, Window
from anabranch.windows.ids import (
    batch_window,
    first_window,
    last_window,
    pane_of,
    python_floordiv,
    window_start,
)
from tests.oracles.windows import count_first, count_last, node_of_pane, node_of_window

# Spark's timestamps: the years 1 to 9999.
FIRST_MICRO, LAST_MICRO = -62_135_596_800_000_000, 253_402_300_799_999_999


@st.composite
def specs(draw: st.DrawFn) -> Window:
    size = draw(st.one_of(st.integers(1, 100), st.integers(1, 10**12)))
    slide = draw(st.one_of(st.integers(1, size), st.just(size)))
    return Window(size, slide, draw(st.integers(-(10**13), 10**13)))


def times_around(window: Window) -> np.ndarray:
    """Both sides of edges of windows, zero, times of all signs and magnitudes, and very large ones."""
    edges = np.array([window.origin + j * window.slide + end for j in (-7, -1, 0, 1, 8) for end in (0, window.size)])
    powers = np.array([sign * (1 << bits) for bits in range(61) for sign in (-1, 1)])
    near = [base + step for base in (edges, powers, np.zeros(1, np.int64)) for step in (-1, 0, 1)]
    return np.unique(np.concatenate(near).astype(np.int64))


def evaluated(spark: SparkSession, times: np.ndarray, forms: dict[str, Column]) -> dict[str, list[int]]:
    frame = spark.createDataFrame(pa.table({"t": times})).select("t", *(c.alias(name) for name, c in forms.items()))
    table = frame.toArrow().sort_by("t")
    assert all(table.schema.field(name).type == pa.int64() for name in forms)
    return {name: table[name].to_pylist() for name in forms}


@settings(max_examples=12)
@given(specs(), st.integers(1, 50), st.integers(1, 16))
@example(Window(7, 3, -2), 4, 5)
@example(Window(1, 1, 0), 1, 1)
@example(Window(1_800_000_000, 1_000_000, 0), 300, 16)
def test_columns_equal_numpy(spark: SparkSession, window: Window, batch: int, nodes: int) -> None:
    times, t = times_around(window), F.col("t")
    outer, ring = batch_window(window, batch), Ring(window.size, window.slide, nodes)

    def forms(t: Column | np.ndarray, divide: object) -> dict[str, Column]:
        return {
            "first": first_window(t, window, divide),
            "last": last_window(t, window, divide),
            "start": window_start(last_window(t, window, divide), window),
            "first batch": first_window(t, outer, divide),
            "last batch": last_window(t, outer, divide),
            "pane": pane_of(t, window.slide, window.origin, divide),
            "first of row": count_first(t, window.size, window.slide, divide),
            "last of row": count_last(t, window.size, window.slide, divide),
            "node of window": node_of_window(ring, t, divide),
            "node of pane": node_of_pane(ring, t, divide),
        }

    found = evaluated(spark, times, forms(t, floordiv))
    for name, expected in forms(times, python_floordiv).items():
        assert found[name] == expected.tolist(), name


def test_division_rounds_down_and_is_exact(spark: SparkSession) -> None:
    #   Spark's own    div truncates: -1 div 3 is 0        / is a double: 2^53 + 1 is lost
    times = np.array([-4, -3, -1, 0, 1, 3, 2**53 + 1, -(2**53) - 1, 2**62], np.int64)
    found = evaluated(spark, np.sort(times), {"by 3": floordiv(F.col("t"), 3), "by 1": floordiv(F.col("t"), 1)})
    assert found["by 3"] == (np.sort(times) // 3).tolist()
    assert found["by 1"] == np.sort(times).tolist()


def test_null_times_have_no_id(spark: SparkSession) -> None:
    ids = [first_window(F.col("t"), Window(3, 2), floordiv), last_window(F.col("t"), Window(3, 2), floordiv)]
    assert spark.createDataFrame([(None,)], "t bigint").select(*ids).first() == (None, None)


# --- times ---


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """The session's time zone: with summer time, with half an hour, and none."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


def hard_times() -> np.ndarray:
    """Every hour around both changes of New York's clocks, the ends of Spark's time, and both sides of 1970."""
    hour = 3_600_000_000
    changes = [np.datetime64(day, "us").astype(np.int64) for day in ("2024-03-10", "2024-11-03")]
    hours = [change + h * hour + 1 for change in changes for h in range(-6, 18)]
    ends = [FIRST_MICRO, FIRST_MICRO + 1, LAST_MICRO - 1, LAST_MICRO, -1, 0, 1, -hour - 1]
    return np.unique(np.array([*hours, *ends], np.int64))


@pytest.mark.parametrize("kind", list(TimeKind), ids=lambda kind: kind.value)
def test_micros_and_back_in_every_time_zone(spark: SparkSession, zone: str, kind: TimeKind) -> None:
    times = hard_times()
    if kind is TimeKind.SECONDS:  # which an int can tell: 68 years to either side of 1970
        times = np.unique(np.clip(times // 1_000_000, -(2**31), 2**31 - 1)) * 1_000_000
    micros = pa.array(times)
    arrow = {
        TimeKind.LONG: pa.int64(),
        TimeKind.TIMESTAMP: pa.timestamp("us", "UTC"),
        TimeKind.TIMESTAMP_NTZ: pa.timestamp("us"),
        TimeKind.SECONDS: pa.int32(),
    }[kind]
    written = pa.array(times // 1_000_000) if kind is TimeKind.SECONDS else micros
    source = spark.createDataFrame(pa.table({"m": micros, "at": written.cast(arrow)}), f"m bigint, at {kind.value}")
    time = TimeColumn("at", kind)
    # Compared inside Spark: on the way to Python, timestamps would pass through the time zone of the process.
    wrong = source.where((time.micros() != F.col("m")) | (time.from_micros(F.col("m")) != F.col("at")))
    assert wrong.collect() == []
    window = source.select(time.window(F.col("m"), 5).alias("w")).schema["w"].dataType
    assert {f.name: f.dataType.simpleString() for f in window} == {"start": kind.value, "end": kind.value}


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("nullable", [True, False])
def test_a_changing_number_is_not_in_the_code_that_spark_compiles(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], nullable: bool
) -> None:
    number, times = 1_234_567_891_234, [-(2**63), -7, 0, 5, 2**63 - 1]
    rows = spark.range(1).select(F.explode(F.array(*map(F.lit, times))).alias("t"))
    if nullable:
        rows = rows.unionAll(spark.createDataFrame([(None,)], "t bigint"))
    numbered = rows.select("t", changing(number, F.col("t")).alias("number"))
    assert {row.t: row.number for row in numbered.collect()} == {
        **dict.fromkeys(times, number),
        **({None: None} if nullable else {}),
    }
    numbered.where("t < number").explain("codegen")
    code = capsys.readouterr().out
    assert "Generated code" in code
    assert f"{number}L" not in code
