"""Delivery with bounded disorder: what leaves is what came, within k, and untouched where it was within k already."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from anabranch.runtime.tasks.stages import displacement, in_order
from tests.oracles.k_order import disorder


def windows(ends: list[int]) -> list[pa.RecordBatch]:
    """Results in that order, in two batches, each with a number of its own."""
    edges = pa.StructArray.from_arrays([pa.array([e - 5 for e in ends], pa.int64()), pa.array(ends, pa.int64())],
                                       names=["start", "end"])  # fmt: skip
    whole = pa.RecordBatch.from_arrays([edges, pa.array(range(len(ends)), pa.int64())], names=["window", "n"])
    return [whole.slice(0, len(ends) // 2), whole.slice(len(ends) // 2)]


@given(st.lists(st.integers(-5, 8), max_size=12))
def test_displacement_is_the_disorder_of_all_pairs(ends: list[int]) -> None:
    assert displacement(np.argsort(np.array(ends, np.int64), kind="stable")) == disorder(ends)


@given(st.lists(st.integers(-5, 8), max_size=12), st.integers(0, 4))
def test_what_leaves_is_within_k(ends: list[int], k: int) -> None:
    left = [row for batch in in_order(windows(ends), "window", k) for row in batch.to_pylist()]
    assert sorted(row["n"] for row in left) == list(range(len(ends)))
    assert disorder([row["window"]["end"] for row in left]) <= k
    if disorder(ends) <= k:
        assert [row["n"] for row in left] == list(range(len(ends)))
