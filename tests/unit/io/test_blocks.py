"""Blocks: packed and in files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import ColumnNotFoundError, ColumnTypeError, InvalidArgumentError
from anabranch.io.blocks import blocks_of, micros_of, pack, read_block, unpack, write_blocks


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | st.text())))
def test_what_is_packed_is_unpacked(rows: list[tuple[int, str | None]]) -> None:
    table = pa.table(
        {"t": pa.array([t for t, _ in rows], pa.int64()), "s": pa.array([s for _, s in rows], pa.string())}
    )
    assert unpack(pack(pa.concat_tables([table, table]))).to_pylist() == table.to_pylist() * 2


def test_unpack_does_not_copy() -> None:
    block = pack(pa.record_batch({"t": pa.array(range(1_000))}))
    column = unpack(block).column(0).buffers()[1]
    assert block.address <= column.address < block.address + block.size


@given(
    st.lists(st.none() | st.integers(-(10**15), 10**15)),
    st.sampled_from([("s", 1), ("ms", 1), ("us", 1), ("ns", 1_000)]),
)
def test_times_are_rounded_down(counts: list[int | None], unit: tuple[str, int]) -> None:
    name, divide = unit
    multiply = {"s": 1_000_000, "ms": 1_000}.get(name, 1)
    bound = 10**12 if multiply > 1 else 10**15
    counts = [None if c is None else c % bound - bound // 2 for c in counts]
    expected = [None if c is None else c * multiply // divide for c in counts]
    assert micros_of(pa.array(counts, pa.timestamp(name))).to_pylist() == expected


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("ms"), pa.timestamp("us", tz="UTC"), pa.timestamp("ns")])
@pytest.mark.parametrize("form", ["arrow", "parquet", "no statistics", "int96"])
def test_references(tmp_path: Path, kind: pa.DataType, form: str) -> None:
    times = [-3_000, 5_000, None, 1_000, None]
    scale = {"ms": 1_000, "ns": 0.001}.get(getattr(kind, "unit", "us"), 1)
    at = pa.array([None if t is None else int(t / scale) for t in times], pa.int64()).cast(kind)
    table = pa.table({"at": at, "n": [0, 1, 2, 3, 4]})
    file = tmp_path / "recorded"
    if form == "arrow":
        assert write_blocks(file, table.to_batches(max_chunksize=2)) == 3
    else:
        pq.write_table(table, file, row_group_size=2, write_statistics=form == "parquet",
                       use_deprecated_int96_timestamps=form == "int96")  # fmt: skip
    found = blocks_of(file, "at")
    assert [(b.index, b.rows, b.min_t, b.max_t) for b in found] == [
        (0, 2, -3_000, 5_000), (1, 2, 1_000, 1_000), (2, 1, None, None)]  # fmt: skip
    assert read_block(file, 1, first=1, rows=1, columns=["n"]).to_pylist() == [{"n": 3}]
    assert [b.min_t for b in blocks_of(file)] == [None] * 3


def test_a_file_written_anew_is_read_anew(tmp_path: Path) -> None:
    for n in (1, 2):
        write_blocks(tmp_path / "a", [pa.record_batch({"n": [n] * n})])
        assert read_block(tmp_path / "a", 0).column(0).to_pylist() == [n] * n


def test_errors(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_blocks(file, [pa.record_batch({"n": pa.array([1.0])})])
    with pytest.raises(ColumnNotFoundError):
        blocks_of(file, "at")
    with pytest.raises(ColumnTypeError):
        blocks_of(file, "n")
    for index, first in ((1, 0), (-1, 0), (0, 2)):
        with pytest.raises(InvalidArgumentError):
            read_block(file, index, first=first)
    (tmp_path / "text").write_text("hello")
    (tmp_path / "cut").write_bytes(file.read_bytes()[:-20])
    for name, why in (("none", "cannot be read"), ("text", "neither"), ("cut", "damaged or incomplete")):
        with pytest.raises(InvalidArgumentError, match=why):
            read_block(tmp_path / name, 0)
    with pytest.raises(InvalidArgumentError, match="no blocks"):
        write_blocks(tmp_path / "b", [])


def test_dictionaries_travel_with_their_values() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    plain = pa.array(["a", None, "b"]).cast(kind)
    nested = pa.array([{"x": "a"}, None, {"x": "c"}], pa.struct([("x", kind)]))
    batch = pa.RecordBatch.from_arrays([plain, nested], names=["plain", "nested"])
    assert unpack(pack(batch)).equals(batch)
    assert unpack(pack(batch.slice(1))).to_pylist() == batch.slice(1).to_pylist()
