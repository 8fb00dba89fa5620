"""A worker's input: the blocks of all splitters, merged by time."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from anabranch.runtime.tasks.worker import merge_by_time


def block(times: list[int], number: int, kind: pa.DataType) -> pa.RecordBatch:
    tags = pa.array([f"{number}.{i}" for i in range(len(times))], pa.string())
    return pa.RecordBatch.from_arrays([pa.array(times, pa.int64()).cast(kind), tags], names=["t", "tag"])


@given(
    st.lists(st.lists(st.integers(-4, 4), max_size=6), min_size=1, max_size=4),
    st.sampled_from([pa.int64(), pa.timestamp("us", "UTC"), pa.timestamp("us")]),
)
def test_in_the_order_of_time_and_then_of_the_blocks(times: list[list[int]], kind: pa.DataType) -> None:
    merged = merge_by_time([block(each, i, kind) for i, each in enumerate(times)], "t")
    tagged = [(t, i, k) for i, each in enumerate(times) for k, t in enumerate(each)]
    assert merged.column("tag").to_pylist() == [f"{i}.{k}" for _, i, k in sorted(tagged, key=lambda each: each)]


def test_without_a_time_as_the_blocks_come() -> None:
    merged = merge_by_time([block([3, 1], 0, pa.int64()), block([2], 1, pa.int64())], None)
    assert merged.column("tag").to_pylist() == ["0.0", "0.1", "1.0"]
