"""How tasks write the rows of an epoch: as Parquet files in a folder that is not yet visible.

The name of a file follows from the output, the epoch's folder and the worker, so a second attempt replaces the first
with the same bytes. A file is written under a temporary name and then moved, so that two attempts at the same time
cannot damage each other's file.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.errors import OperatorError, cannot_write
from anabranch.io.folder import Folder
from anabranch.spark.arrow import conformed

ROW_GROUP = 1 << 16
"""The fewest rows of a row group, except the last."""


@dataclass(frozen=True)
class Target:
    """Where an output of an epoch goes: a folder, and the columns that a row must have."""

    folder: Folder
    schema: pa.Schema
    kept: bool = True
    """false: rows are only counted, not written"""


@dataclass
class Written:
    """What a task wrote of one output."""

    rows: int = 0
    bytes: int = 0
    files: list[str] = field(default_factory=list)


def write_rows(target: Target, part: int, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write the rows of a task as one file; no file if there are no rows."""
    writer = RowWriter(target, part)
    for batch in batches:
        writer.add(batch)
    return writer.close()


class RowWriter:
    """Writes the rows of a task as one file, batch by batch; no file if there are no rows.

    The file is first encoded in memory: rows that do not fit the schema fail before there is a file, and an object
    store gets it in one put.
    """

    def __init__(self, target: Target, part: int) -> None:
        self.target = target
        self.seconds = 0.0
        """time spent in `add`"""
        self._name = f"part-{part:05d}.parquet"
        self._rows = 0
        self._held: list[pa.RecordBatch] = []
        self._content = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Take more rows."""
        if not batch.num_rows:
            return
        began = time.perf_counter()
        self._rows += batch.num_rows
        fitting = fitted(batch, self.target.schema)
        if self.target.kept:
            self._held.append(fitting)
            if sum(each.num_rows for each in self._held) >= ROW_GROUP:
                self._encode()
        self.seconds += time.perf_counter() - began

    def _encode(self) -> None:
        """Write the held rows as a row group. Each has a fixed cost, so they must not be small."""
        if self._writer is None:
            # Dictionaries of numbers take as long as the rest of the file, and save little.
            worded = not all(pa.types.is_primitive(field.type) for field in self.target.schema)
            self._writer = pq.ParquetWriter(
                self._content, self.target.schema, compression="zstd", use_dictionary=worded
            )
        self._writer.write_table(pa.Table.from_batches(self._held))
        self._held = []

    def close(self) -> Written:
        """All rows have been added: write the file."""
        if self._held:
            self._encode()
        if self._writer is None:
            return Written(self._rows)
        self._writer.close()
        whole = self._content.getvalue()
        folder = self.target.folder
        path = f"{folder.path}/{self._name}"
        moves = not folder.is_object_store
        draft = f"{folder.path}/.{self._name}.{uuid.uuid4().hex}" if moves else path
        try:
            with folder.filesystem.open_output_stream(draft) as sink:
                sink.write(whole)
            if moves:
                folder.filesystem.move(draft, path)
        except OSError as error:
            if moves:
                discard(folder.filesystem, draft)
            raise cannot_write(path, error) from error
        return Written(self._rows, whole.size, [self._name])


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly these columns and types."""
    if batch.schema.names != schema.names:
        raise OperatorError(
            f"an output has the columns {', '.join(batch.schema.names)}, but {', '.join(schema.names)} were declared: "
            "values would end up under the wrong name",
            hint="yield record batches with the declared columns, in that order",
        )
    try:
        return conformed(batch, schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise OperatorError(
            f"an output does not match its declared columns: {error}", hint=f"the declared schema is {schema}"
        ) from error


def discard(filesystem: pa.fs.FileSystem, path: str) -> None:
    """Delete a file if it exists."""
    try:
        filesystem.delete_file(path)
    except OSError:
        return
