"""Results: rows by output."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.errors import InvalidArgumentError
from anabranch.testing import Results

ONE, TWO = pa.table({"a": [1]}), pa.table({"a": [2]})


def test_parts_are_put_together_in_their_order() -> None:
    results = Results.of([("rows", ONE), ("rows", TWO), ("rows", ONE.slice(1))])
    assert results.rows() == results.rows("rows") == [{"a": 1}, {"a": 2}]
    assert results.table().num_rows == 2


def test_a_part_with_nulls_only_takes_the_type_of_the_others() -> None:
    parts = [("rows", pa.table({"a": [None]})), ("rows", ONE)]
    assert Results.of(parts).rows() == [{"a": None}, {"a": 1}]


def test_an_output_without_rows_is_empty() -> None:
    results = Results.of([("toll", ONE)], ["toll", "alert"])
    assert results.rows("alert") == [] and results.table("alert").num_rows == 0
    assert Results.of([]).rows() == []
    assert Results.of([], ["only"]).rows() == []


def test_several_outputs_must_be_named() -> None:
    with pytest.raises(InvalidArgumentError, match="toll, alert"):
        Results.of([], ["toll", "alert"]).rows()
    with pytest.raises(InvalidArgumentError, match="no output 'tolls'"):
        Results.of([], ["toll", "alert"]).rows("tolls")
