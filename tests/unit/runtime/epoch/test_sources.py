"""Rows of several sources in one pass: each source's go to its own splitter, however Spark has mixed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from anabranch.runtime.epoch.sources import BySource


def tagged(tags: list[int]) -> pa.RecordBatch:
    """A batch as a union of three sources has it: a row has the columns of its source, and null for the others."""
    kind = pa.struct([("v", pa.int64())])
    rows = [[{"v": 100 * tag + i} if tag == source else None for i, tag in enumerate(tags)] for source in range(3)]
    columns = [pa.array(tags, pa.int32()), *(pa.array(each, kind) for each in rows)]
    return pa.RecordBatch.from_arrays(columns, names=["__ab_source", "__ab_row0", "__ab_row1", "__ab_row2"])


def collector(
    tag: int, collected: list[tuple[int, int]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            collected.extend((tag, v) for v in batch.column("v").to_pylist())
            yield batch

    return run


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=5))
def test_every_row_comes_to_the_function_of_its_source_once(batches: list[list[int]]) -> None:
    collected: list[tuple[int, int]] = []
    of_two = BySource({0: collector(0, collected), 2: collector(2, collected)})
    given_out = list(of_two(tagged(tags) for tags in batches))
    wanted = [(tag, 100 * tag + i) for tags in batches for i, tag in enumerate(tags) if tag != 1]
    assert sorted(collected) == sorted(wanted)
    assert sum(batch.num_rows for batch in given_out) == len(wanted)
    for tag in (0, 2):  # in the order in which they came
        assert [v for t, v in collected if t == tag] == [v for t, v in wanted if t == tag]
