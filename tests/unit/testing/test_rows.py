"""Rows are compared as sets that count, with nulls, NaN and times as people mean them; differences can be read."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from anabranch.errors import InvalidArgumentError
from anabranch.testing import assert_rows_equal
from anabranch.testing.rows import SHOWN, schema_of, table_of

NAN = float("nan")


def failure(*args: Any, **settings: Any) -> str:
    with pytest.raises(AssertionError) as error:
        assert_rows_equal(*args, **settings)
    return str(error.value)


EQUAL = [
    ([], []),
    ([{"a": 1}, {"a": 2}], [{"a": 2}, {"a": 1}]),
    ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}]),
    ([{"a": NAN}], [{"a": math.nan}]),
    ([{"a": None}], [{"a": None}]),
    ([{"a": np.float64(1.5), "b": np.int32(2)}], [{"a": 1.5, "b": 2}]),
    ([{"a": [1, NAN, None]}], [{"a": (1, NAN, None)}]),
    ([{"w": {"start": 0, "end": NAN}}], [{"w": {"end": NAN, "start": 0}}]),
    ([{"t": datetime(2024, 1, 1, tzinfo=UTC)}], [{"t": datetime(2024, 1, 1)}]),
    ([{"t": datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))}], [{"t": datetime(2024, 1, 1)}]),
    ([{"a": 1, "b": "x"}], [(1, "x")]),
    (pa.table({"a": [1, 2]}), [{"a": 2}, {"a": 1}]),
    (pa.RecordBatch.from_pydict({"a": [1]}), pa.table({"a": [1]})),
]


@pytest.mark.parametrize(("actual", "expected"), EQUAL, ids=range(len(EQUAL)))
def test_equal(actual: Any, expected: Any) -> None:
    assert_rows_equal(actual, expected)


DIFFERENT = [
    ([{"a": 1}], []),
    ([], [{"a": 1}]),
    ([{"a": 1}, {"a": 1}], [{"a": 1}]),
    ([{"a": 1}], [{"a": 1}, {"a": 1}]),
    ([{"a": None}], [{"a": NAN}]),
    ([{"a": None}], [{"a": 0}]),
    ([{"a": 1}], [{"b": 1}]),
    ([{"a": 1}], [{"a": 1, "b": None}]),
    ([{"a": [1, 2]}], [{"a": [2, 1]}]),
    ([{"t": datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2)))}], [{"t": datetime(2024, 1, 1)}]),
]


@pytest.mark.parametrize(("actual", "expected"), DIFFERENT, ids=range(len(DIFFERENT)))
def test_different(actual: Any, expected: Any) -> None:
    failure(actual, expected)
    failure(actual, expected, ordered=True)
    failure(actual, expected, tolerance=1e-6)


VALUES = st.one_of(st.none(), st.integers(0, 2), st.sampled_from([0.5, NAN]), st.text("ab", max_size=1))
ROWS = st.lists(st.fixed_dictionaries({"a": VALUES, "b": st.lists(VALUES, max_size=2)}), max_size=6)


@given(ROWS, st.randoms())
def test_the_order_does_not_matter_and_the_count_does(rows: list[dict[str, Any]], random: Any) -> None:
    other = list(rows)
    random.shuffle(other)
    assert_rows_equal(other, rows)
    assert_rows_equal(other, rows, tolerance=1e-9)
    for row in rows[:1]:
        failure([*other, row], rows)


def test_columns_restrict_the_comparison() -> None:
    assert_rows_equal([{"a": 1, "b": 2, "c": 3}], [(3, 1)], columns=["c", "a"])
    assert "no column 'z'" in failure([{"a": 1}], [{"a": 1}], columns=["z"])


def test_tolerance_is_for_floats() -> None:
    came, wanted = [{"k": 1, "x": 1.0}, {"k": 1, "x": 2.0 + 1e-12}], [{"k": 1, "x": 2.0}, {"k": 1, "x": 1.0 - 1e-12}]
    failure(came, wanted)
    assert_rows_equal(came, wanted, tolerance=1e-9)
    assert_rows_equal([{"x": [NAN, 1.0]}], [{"x": [NAN, 1.0 + 1e-12]}], tolerance=1e-9)
    assert "k" in failure([{"k": 1, "x": 1.0}], [{"k": 2, "x": 1.0}], tolerance=0.5)


def test_in_order() -> None:
    assert_rows_equal([{"a": 1}, {"a": 2}], [(1,), (2,)], ordered=True)
    assert failure([{"a": 2}, {"a": 1}], [{"a": 1}, {"a": 2}], ordered=True) == "row 0 differs: a: expected 1, got 2"
    assert "unexpected from row 1 on" in failure([{"a": 1}, {"a": 2}], [{"a": 1}], ordered=True)
    assert "missing from row 1 on" in failure([{"a": 1}], [{"a": 1}, {"a": 2}], ordered=True)


def test_the_message_puts_rows_together_that_are_alike() -> None:
    came = [{"cell": "a", "n": 3, "x": None}, {"cell": "z", "n": 0, "x": 1.0}]
    wanted = [{"cell": "a", "n": 2, "x": None}, {"cell": "b", "n": 7, "x": NAN}]
    assert failure(came, wanted).splitlines() == [
        "rows differ: 2 of 2 missing, 2 of 2 unexpected",
        "  differs: (cell='a', x=None) n: expected 2, got 3",
        "  missing:",
        "    {cell='b', n=7, x=nan}",
        "  unexpected:",
        "    {cell='z', n=0, x=1.0}",
    ]


def test_the_message_stays_short_and_counts_the_rest() -> None:
    shown = failure([], [{"a": i} for i in range(SHOWN + 5)])
    assert "... and 5 more" in shown and len(shown.splitlines()) == SHOWN + 3


def test_a_message_names_columns_that_only_one_side_has() -> None:
    text = failure([{"a": 1, "b": 2}], [{"a": 1, "c": 2}])
    assert "column 'c' is missing" in text and "column 'b' is unexpected" in text


def test_tuples_have_the_names_of_the_other_side() -> None:
    assert "{a=2}" in failure(pa.table({"a": pa.array([], pa.int64())}), [(2,)])
    assert "{_1=2, _2='x'}" in failure([], [(2, "x")])
    assert "a: expected 2, got 1" in failure([(1,)], [(2,)], columns=["a"], ordered=True)
    assert_rows_equal([(1, 2)], [(1, 2)])
    assert_rows_equal([Row(a=1, b=Row(c=NAN))], [{"a": 1, "b": {"c": NAN}}])
    with pytest.raises(InvalidArgumentError, match="2 values for 1 columns"):
        assert_rows_equal([{"a": 1}], [(1, 2)])


@pytest.mark.parametrize("row", [{"k": "a"}, Row(k="a"), "a"])
def test_a_row_that_is_not_in_a_list_is_refused(row: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="not a list of rows"):
        table_of(row, SCHEMA)


def test_a_table_of_tuples_needs_a_schema() -> None:
    with pytest.raises(InvalidArgumentError, match="no names"):
        table_of([(1,)], None)


SCHEMA = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.string())])


def test_rows_become_a_table_of_the_schema() -> None:
    rows = [{"t": datetime(2024, 1, 1)}, {"k": "a", "t": 5}, {}]
    table = table_of(rows, SCHEMA)
    assert table.schema == SCHEMA
    assert_rows_equal(table, [(datetime(2024, 1, 1), None), (datetime(1970, 1, 1, 0, 0, 0, 5), "a"), (None, None)])
    assert table.column("k").to_pylist() == [None, "a", None]
    assert table_of(iter([(None, "a")]), SCHEMA).to_pylist() == [{"t": None, "k": "a"}]
    assert table_of([], SCHEMA).num_rows == 0
    assert table_of(pa.table({"k": ["a"], "t": pa.array([5], pa.timestamp("us", "UTC"))}), SCHEMA).schema == SCHEMA


@pytest.mark.parametrize("row", [{"k": "a", "tt": 3}, ("a",), (1, 2, 3)])
def test_values_that_have_no_column_are_refused(row: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        table_of([row], SCHEMA)


def test_a_schema_as_text_needs_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.testing.rows.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(InvalidArgumentError, match=r"pa\.schema"):
        schema_of("a bigint")
