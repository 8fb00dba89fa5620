"""Blocks: a *physical window* is one Arrow record batch of some thousand tuples that travels as one value.

Moving tuples one by one is slow; a block moves as bytes and is read without copying. It exists in two forms:

- **packed**: an Arrow IPC *stream* of one record batch, uncompressed, for a binary column of a DataFrame;
- **in a file**: record batch `index` of an Arrow IPC *file*, or row group `index` of a Parquet file, named by a
  `BlockRef`. If workers see the same files, only the reference has to be moved.

Times are microseconds since 1970-01-01 UTC, whatever the column's type: a timestamp (finer units are rounded down, one
without a time zone counts as UTC) or an int64 of microseconds. ``min_t`` and ``max_t`` are inclusive and ignore rows
without a time; both are None if no row of the block has a time.

Files are memory-mapped, and each process keeps a few open, identified by path, size and modification time. **A file
must not change while its blocks are in use.**
"""

from __future__ import annotations

import itertools
import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.errors import ColumnTypeError, InvalidArgumentError, column_not_found
from anabranch.windows.durations import MICROS

OPEN_FILES = 8
"""How many files a process keeps open."""

_PER_MICRO = {
    "s": (MICROS, 1),
    "ms": (1_000, 1),
    "us": (1, 1),
    "ns": (1, 1_000),
}  # multiply by the first, divide by the second
_PARQUET_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True)
class Packed:
    """Says that a source delivers blocks and not rows: references to files, or Arrow payloads in a binary column."""

    schema: pa.Schema
    """the columns of the tuples in the blocks"""
    column: str | None = None
    """the binary column with the payload; None: references, as `anabranch.replay(..., blocks=True)` delivers them"""


def pack(batch: pa.RecordBatch | pa.Table) -> pa.Buffer:
    """The rows as one packed block."""
    return pa.py_buffer(b"".join(pack_in_parts(one_batch(batch) if isinstance(batch, pa.Table) else batch)))


def pack_in_parts(batch: pa.RecordBatch) -> list[pa.Buffer]:
    """A packed block as buffers to be written one after the other; faster than a stream writer for small blocks."""
    if not _has_dictionary(batch.schema):
        return [batch.schema.serialize(), batch.serialize(), _END]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return [sink.getvalue()]


def unpack(block: bytes | pa.Buffer) -> pa.RecordBatch:
    """The rows of a packed block; its columns use the memory of `block` and keep it alive."""
    buffer = block if isinstance(block, pa.Buffer) else pa.py_buffer(block)
    head = buffer.slice(0, 8 + int.from_bytes(buffer.slice(4, 4).to_pybytes(), "little"))
    schema = _schema(head.to_pybytes())
    if _has_dictionary(schema):
        with pa.ipc.open_stream(buffer) as reader:
            return reader.read_next_batch()
    return pa.ipc.read_record_batch(buffer.slice(head.size), schema)


_END = pa.py_buffer(b"\xff\xff\xff\xff\x00\x00\x00\x00")
"""The end of an Arrow IPC stream."""


@lru_cache(maxsize=64)
def _schema(head: bytes) -> pa.Schema:
    """The schema at the head of a block: most blocks in a process have the same one."""
    return pa.ipc.read_schema(pa.py_buffer(head))


@lru_cache(maxsize=64)
def _has_dictionary(schema: pa.Schema) -> bool:
    """Whether the stream has more messages than the schema and one record batch."""
    return any("dictionary" in str(kind) for kind in schema.types)


def referenced(references: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The blocks, or parts of them, that rows of (path, block, first, rows) refer to, as from `replay(blocks=True)`."""
    for ref in references.to_pylist():
        yield read_block(ref["path"], ref["block"], first=ref["first"], rows=ref["rows"])


def payloads(column: pa.Array) -> Iterator[pa.RecordBatch]:
    """The packed blocks of a binary column; nulls are skipped."""
    return (unpack(value.as_buffer()) for value in column if value.is_valid)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """The table as a single record batch; copies only columns with several chunks."""
    columns = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def write_blocks(path: str | Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Write an Arrow IPC file whose record batches are the blocks, and return their number; any Arrow tool can read it.

    The file appears under its name only when it is complete.
    """
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        raise InvalidArgumentError(
            "there are no blocks to write, and a file without blocks would have no columns",
            hint="write one block with no rows, which has the schema",
        )
    target = Path(path)
    draft = target.with_name(f".{target.name}.draft")
    count = 0
    with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
        for batch in itertools.chain([first], rest):
            writer.write_batch(batch)
            count += 1
    draft.replace(target)
    return count


def read_block(
    path: str | Path,
    index: int,
    *,
    first: int = 0,
    rows: int | None = None,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """Block `index` of a file, or its rows ``first .. first + rows``; of an uncompressed Arrow file without copying."""
    file = _open(str(path))
    if not 0 <= index < file.count:
        raise InvalidArgumentError(
            f"there is no block {index} in {Path(path).name}, which has {file.count}", hint="blocks count from 0"
        )
    block = file.read(index, None if columns is None else tuple(columns))
    wanted = block.num_rows - first if rows is None else rows
    if first < 0 or wanted < 0 or first + wanted > block.num_rows:
        raise InvalidArgumentError(
            f"block {index} of {Path(path).name} has {block.num_rows} rows, not {wanted} from row {first} on",
            hint="if the file was rewritten after the reference was made, start over",
        )
    return block.slice(first, wanted)


def schema_of(path: str | Path) -> pa.Schema:
    """The columns of an Arrow or Parquet file."""
    return _open(str(path)).schema


@dataclass(frozen=True)
class BlockRef:
    """A block in a file: its place, its size, and the first and last time in it."""

    path: str
    index: int
    rows: int
    min_t: int | None
    max_t: int | None
    bytes: int  # the size of its columns in memory


def blocks_of(path: str | Path, time: str | None = None) -> list[BlockRef]:
    """The blocks of one file, in order. Without a time column the references have no times, and are cheaper to make.

    Parquet statistics usually have the times; otherwise, and for Arrow files, the time column is read once.
    """
    file = _open(str(path))
    if time is not None:
        check_time(file.schema, time)
    references = []
    for index in range(file.count):
        rows, size = file.size(index)
        low, high = (None, None) if time is None or not rows else file.times(index, time)
        references.append(BlockRef(str(path), index, rows, low, high, size))
    return references


def check_time(schema: pa.Schema, time: str) -> None:
    """Check that a time column is a timestamp, an int64 of microseconds, or a smaller integer of seconds."""
    if time not in schema.names:
        raise column_not_found(time, schema.names)
    kind = schema.field(time).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_signed_integer(kind)):
        raise ColumnTypeError(
            f"the time column {time!r} is of type {kind}, whose unit and origin are not known",
            hint="record a timestamp, an int64 of microseconds since 1970, or an int32 of seconds",
        )


def micros_of(times: pa.Array) -> pa.Int64Array:
    """A time column as microseconds since 1970, rounded down; nulls stay. Integers below 64 bits are seconds."""
    if pa.types.is_int64(times.type):
        return times
    if pa.types.is_integer(times.type):
        return pc.multiply(times.cast(pa.int64()), MICROS)
    multiply, divide = _PER_MICRO[times.type.unit]
    counts = times.cast(pa.int64())
    if multiply > 1:
        return pc.multiply_checked(counts, multiply)
    if divide == 1:
        return counts
    # Arrow divides towards zero, which would round times before 1970 up.
    floored = np.floor_divide(counts.fill_null(0).to_numpy(), divide)
    return pa.array(floored, mask=counts.is_null().to_numpy(zero_copy_only=False))


def bounds_of(times: pa.Int64Array) -> tuple[int | None, int | None]:
    """The first and the last time, or None if there is none."""
    found = pc.min_max(times)
    return found["min"].as_py(), found["max"].as_py()


class _File(Protocol):
    """An open file of blocks."""

    schema: pa.Schema
    count: int

    def read(self, index: int, columns: tuple[str, ...] | None) -> pa.RecordBatch: ...

    def size(self, index: int) -> tuple[int, int]:
        """Rows and bytes."""

    def times(self, index: int, column: str) -> tuple[int | None, int | None]: ...


class _ArrowFile:
    """Blocks are record batches. They are memory-mapped; only compressed ones are copied."""

    def __init__(self, path: str) -> None:
        self._reader = pa.ipc.open_file(pa.memory_map(path))
        self.schema: pa.Schema = self._reader.schema
        self.count: int = self._reader.num_record_batches

    def read(self, index: int, columns: tuple[str, ...] | None) -> pa.RecordBatch:
        batch = self._reader.get_batch(index)
        return batch if columns is None else batch.select(list(columns))

    def size(self, index: int) -> tuple[int, int]:
        batch = self._reader.get_batch(index)
        return batch.num_rows, batch.nbytes

    def times(self, index: int, column: str) -> tuple[int | None, int | None]:
        return bounds_of(micros_of(self._reader.get_batch(index).column(column)))


class _ParquetFile:
    """Blocks are row groups. The last decoded one is kept: a slow stream reads a group in many small pieces."""

    def __init__(self, path: str) -> None:
        # INT96, which Spark writes by default, is an instant; nanoseconds would overflow outside 1677..2262.
        self._reader = pq.ParquetFile(path, memory_map=True, coerce_int96_timestamp_unit="us")
        leaves = [self._reader.schema.column(i) for i in range(len(self._reader.schema))]
        instants = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
        self.schema: pa.Schema = pa.schema(
            [
                field.with_type(pa.timestamp("us", tz="UTC")) if field.name in instants else field
                for field in self._reader.schema_arrow
            ]
        )
        self.count: int = self._reader.num_row_groups
        self._leaf = {leaf.path: i for i, leaf in enumerate(leaves)}
        self._lock = Lock()  # a ParquetFile is not thread-safe
        self._kept: tuple[tuple[int, tuple[str, ...] | None], pa.RecordBatch] | None = None

    def read(self, index: int, columns: tuple[str, ...] | None) -> pa.RecordBatch:
        with self._lock:
            if self._kept is None or self._kept[0] != (index, columns):
                self._kept = None  # never two groups in memory at once
                names = None if columns is None else list(columns)
                schema = self.schema if names is None else pa.schema([self.schema.field(name) for name in names])
                table = self._reader.read_row_group(index, columns=names).select(schema.names)
                self._kept = ((index, columns), one_batch(table.cast(schema)))
            return self._kept[1]

    def size(self, index: int) -> tuple[int, int]:
        group = self._reader.metadata.row_group(index)
        return group.num_rows, group.total_byte_size

    def times(self, index: int, column: str) -> tuple[int | None, int | None]:
        chunk = self._reader.metadata.row_group(index).column(self._leaf[column])
        statistics = chunk.statistics
        if statistics is None or not statistics.has_min_max or statistics.physical_type not in ("INT32", "INT64"):
            return bounds_of(micros_of(self.read(index, (column,)).column(0)))
        # The unit in the file may differ from the Arrow type's, so it is read from the file.
        unit = json.loads(statistics.logical_type.to_json()).get("timeUnit")
        kind = self.schema.field(column).type if unit is None else pa.timestamp(_PARQUET_UNITS[unit])
        raw = pa.array([statistics.min_raw, statistics.max_raw], pa.int64())
        return bounds_of(micros_of(raw.cast(kind)))


_files: OrderedDict[tuple[str, int, int], _File] = OrderedDict()
_files_lock = Lock()


def _open(path: str) -> _File:
    try:
        status = os.stat(path)
    except OSError as error:
        raise InvalidArgumentError(
            f"{path} cannot be read here: {error.strerror}",
            hint="make the file available under the same path on every worker",
        ) from error
    key = (path, status.st_size, status.st_mtime_ns)
    with _files_lock:
        if key in _files:
            _files.move_to_end(key)
        else:
            _files[key] = _open_new(path)
            while len(_files) > OPEN_FILES:
                _files.popitem(last=False)
        return _files[key]


def _open_new(path: str) -> _File:
    with open(path, "rb") as file:
        magic = file.read(6)
    try:
        if magic == b"ARROW1":
            return _ArrowFile(path)
        if magic.startswith(b"PAR1"):
            return _ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(
            f"{path} is damaged or incomplete: {error}",
            hint="write it again, and rename it to its final name only when it is complete",
        ) from error
    raise InvalidArgumentError(
        f"{path} is neither an Arrow IPC file nor a Parquet file", hint="write one with write_blocks or pyarrow.parquet"
    )
