"""The root of the aggregation tree against plain sums; `tests/spark/runtime/test_start.py` has the whole tree."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import ArithmeticOverflowError
from anabranch.plan.tree import root

parts = st.lists(
    st.tuples(st.none() | st.integers(0, 3), st.integers(0, 2), st.none() | st.integers(-50, 50), st.integers(-9, 9)),
    min_size=1,
    max_size=40,
)
SCHEMA = pa.schema([("at", pa.int32()), ("query", pa.int32()), ("sum", pa.int32()), ("last", pa.int32())])


@given(parts)
def test_sums_and_maxima_per_query(rows: list[tuple[int | None, ...]]) -> None:
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
    wanted: dict[tuple[int | None, ...], list[tuple[int | None, int]]] = defaultdict(list)
    for at, query, part, last in rows:
        wanted[at, query].append((part, last or 0))
    expected = {}
    for key, found in wanted.items():
        known = [part for part, _ in found if part is not None]
        expected[key] = (sum(known) if known else None, max(last for _, last in found))
    combined = root(table, ("at", "query"), ("sum",), ("last",))
    assert combined.schema == SCHEMA
    assert {(r["at"], r["query"]): (r["sum"], r["last"]) for r in combined.to_pylist()} == expected
    keys = [(row["at"] is None, row["at"] or 0, row["query"]) for row in combined.to_pylist()]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (pa.int32(), [2**31 - 1, 1]),
        (pa.int64(), [2**62, 2**62]),
        (pa.int64(), [-(2**63), -1]),
        (pa.int64(), [2**62] * 4),  # wraps to 0
        (pa.decimal128(38, 2), [Decimal("9" * 36), 1]),
        (pa.decimal128(38, 0), [9 * Decimal(10) ** 37] * 9),  # wraps in Arrow
    ],
)
def test_a_sum_that_does_not_fit_is_an_error(kind: pa.DataType, parts: list[int | Decimal]) -> None:
    table = pa.table({"query": pa.array([1] * len(parts), pa.int32()), "sum": pa.array(parts, kind)})
    with pytest.raises(ArithmeticOverflowError, match="'sum' does not fit their type"):
        root(table, ("query",), ("sum",), ())


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (pa.int64(), [2**62, 2**62 - 1, -5]),
        (pa.int64(), [-(2**63)]),
        (pa.decimal128(38, 2), [Decimal("9" * 36), Decimal("0.99"), None]),
    ],
)
def test_the_largest_sums_that_fit(kind: pa.DataType, parts: list[Any]) -> None:
    table = pa.table({"query": pa.array([1] * len(parts), pa.int32()), "sum": pa.array(parts, kind)})
    (row,) = root(table, ("query",), ("sum",), ()).to_pylist()
    with localcontext(prec=60):
        assert row["sum"] == sum(part for part in parts if part is not None)
