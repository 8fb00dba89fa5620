"""What tasks write: the rows of an epoch as Parquet files in a folder that nobody sees yet.

A file has its name from the output, the epoch's folder and the worker, so a second attempt replaces the first with the
same bytes. It is written under a name of its own and then moved, so that of two attempts at once none can tear the
other's file.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.errors import OperatorError
from anabranch.runtime.files import Folder, cannot_write


@dataclass(frozen=True)
class Target:
    """Where an output of an epoch goes: a folder, and the columns that a row must have."""

    folder: Folder
    schema: pa.Schema


@dataclass
class Written:
    """What a task wrote of one output."""

    rows: int = 0
    bytes: int = 0
    files: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return vars(self)


def write_rows(target: Target, part: int, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write the rows of a task as one file; none if there are no rows."""
    rows = [batch for batch in batches if batch.num_rows]
    if not rows:
        return Written()
    name = f"part-{part:05d}.parquet"
    path = f"{target.folder.path}/{name}"
    moves = not target.folder.is_object_store
    draft = f"{target.folder.path}/.{name}.{uuid.uuid4().hex}" if moves else path
    filesystem = target.folder.filesystem
    # In memory first: rows that do not fit fail before there is a file, and an object store gets it in one put.
    content = pa.BufferOutputStream()
    # Dictionaries of numbers take as long to make as all the rest of the file, and gain little on them.
    worded = not all(pa.types.is_primitive(field.type) for field in target.schema)
    with pq.ParquetWriter(content, target.schema, compression="zstd", use_dictionary=worded) as writer:
        for batch in rows:
            writer.write_batch(fitted(batch, target.schema))
    whole = content.getvalue()
    try:
        with filesystem.open_output_stream(draft) as sink:
            sink.write(whole)
        if moves:
            filesystem.move(draft, path)
    except OSError as error:
        if moves:
            discard(filesystem, draft)
        raise cannot_write(path, error) from error
    return Written(sum(batch.num_rows for batch in rows), whole.size, [name])


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly these columns and types."""
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names:
        raise OperatorError(
            f"an output has the columns {', '.join(batch.schema.names)}, but {', '.join(schema.names)} were declared; "
            "values would end up under the wrong name",
            hint="yield record batches with the declared columns, in that order",
        )
    try:
        columns = [column.cast(want.type) for column, want in zip(batch.columns, schema, strict=True)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise OperatorError(
            f"an output does not fit its declared columns: {error}", hint=f"the declared schema is {schema}"
        ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def discard(filesystem: pa.fs.FileSystem, path: str) -> None:
    """Delete a file if it is there."""
    try:
        filesystem.delete_file(path)
    except OSError:
        return
