"""The epoch store: durable state of an operator's partition-groups, as immutable files named by epoch.

The durable state of a group is a snapshot every few epochs and the input blocks since then. A worker writes one file of
blocks per epoch, with an index by group in its header: each group's part has its own checksum and is read separately. A
second run of an epoch overwrites the first with the same bytes. Files are in `{node}/blocks` and
`{node}/snapshots/{group}`.

Blocks and tables are returned in the types of `spark.arrow`, even if an older release wrote them in other types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from anabranch.io.folder import ALIGNMENT, Folder, Piece
from anabranch.operators.state import Item, State, dtype_of, dtype_text
from anabranch.spark.arrow import common_schema, conformed


@dataclass(frozen=True)
class EpochStore:
    """Blocks and snapshots of one operator; used on the driver and in tasks."""

    folder: Folder
    query: str
    node: str

    def create(self) -> None:
        """Create the folders."""
        self._blocks.create()
        self._snapshots.create()

    def write_blocks(self, epoch: int, worker: int, blocks: Mapping[int, Sequence[tuple[int, pa.RecordBatch]]]) -> int:
        """Write a worker's input of an epoch: group -> [(port, block)]. Returns the number of bytes."""
        index = []
        payload: list[Piece] = []
        at = 0
        for group in sorted(blocks):
            runs = []
            start = at
            crc = 0
            for (port, _), run in groupby(blocks[group], key=lambda pair: (pair[0], _schema_key(pair[1].schema))):
                batches = [block for _, block in run]
                stream = _padded(_ipc(batches[0].schema, batches))
                size = _size(stream)
                runs.append([int(port), at - start, size])
                for piece in stream:
                    crc = crc32(piece, crc)
                payload += stream
                at += size
            index.append([int(group), start, at - start, crc, runs])
        return self._blocks.write(f"{epoch:012d}-{worker:04d}", "blocks", payload, **self._header, index=index)

    def read_blocks(self, epoch: int, worker: int, group: int) -> list[tuple[int, pa.RecordBatch]]:
        """A group's input in that file, in order; only its part is read."""
        opened = self._blocks.open(f"{epoch:012d}-{worker:04d}", "blocks", self.query)
        for each, offset, length, crc, runs in opened.header["index"]:
            if each == group:
                part = opened.part(offset, length, crc)
                return [
                    (port, batch if opened.format > 1 else conformed(batch, common_schema(batch.schema)))
                    for port, start, size in runs
                    for batch in pa.ipc.open_stream(part.slice(start, size))
                ]
        return []

    def has_blocks(self, epoch: int, worker: int) -> bool:
        """Whether the file exists."""
        return self._blocks.exists(f"{epoch:012d}-{worker:04d}")

    def write_snapshot(self, epoch: int, group: int, state: State) -> int:
        """Write a group's state at the end of an epoch. Returns the number of bytes."""
        items = []
        payload: list[Piece] = []
        at = 0
        for name, item in state.items():
            if isinstance(item, pa.Table):
                entry: dict[str, Any] = {"kind": "table"}
                content = _ipc(item.schema, item.to_batches())
            else:
                entry = {"kind": "array", "dtype": dtype_text(item.dtype)}
                content = np.ascontiguousarray(item).view(np.uint8).data  # datetime64 has no buffer interface
            items.append({**entry, "name": name, "offset": at, "length": _size([content])})
            padded = _padded(content)
            payload += padded
            at += _size(padded)
        folder = self._group(group)
        folder.create(parents=False)  # fails if the store has vanished
        return folder.write(f"{epoch:012d}", "snapshot", payload, **self._header, group=group, items=items)

    def snapshot_before(self, group: int, epoch: int) -> int | None:
        """The newest epoch up to `epoch` with a snapshot of that group."""
        return max((at for at in map(int, self._group(group).files()) if at <= epoch), default=None)

    def load_snapshot(self, group: int, epoch: int, state: State) -> None:
        """Load a snapshot into a state, replacing its content."""
        opened = self._group(group).open(f"{epoch:012d}", "snapshot", self.query)
        state.load(_items(opened.header["items"], opened.payload(), opened.format))

    def forget(self, blocks_through: int, snapshots: Mapping[int, int], most: int | None = None) -> int:
        """Delete blocks of epochs up to `blocks_through`, and a group's snapshots older than the given epoch.

        `most` limits the number of files: deleting gigabytes takes seconds, and the next call deletes the rest.
        """
        old = [(self._blocks, name) for name in self._blocks.files() if int(name.split("-")[0]) <= blocks_through]
        for group, oldest in snapshots.items():
            folder = self._group(group)
            old += [(folder, name) for name in folder.files() if int(name) < oldest]
        for folder, name in old[:most]:
            folder.delete(name)
        return len(old[:most])

    def forget_epoch(self, epoch: int) -> None:
        """Delete all blocks and snapshots of an epoch that was not published."""
        old = [(self._blocks, name) for name in self._blocks.files() if int(name.split("-")[0]) == epoch]
        for group in self._snapshots.folders():
            folder = self._snapshots.sub(group)
            old += [(folder, name) for name in folder.files() if int(name) == epoch]
        for folder, name in old:
            folder.delete(name)

    @property
    def nbytes(self) -> int:
        """Total bytes of all files."""
        return self.folder.sub(self.node).nbytes

    @property
    def _header(self) -> dict[str, Any]:
        return {"query": self.query, "node": self.node}

    @property
    def _blocks(self) -> Folder:
        return self.folder.sub(self.node, "blocks")

    @property
    def _snapshots(self) -> Folder:
        return self.folder.sub(self.node, "snapshots")

    def _group(self, group: int) -> Folder:
        return self._snapshots.sub(f"{group:05d}")


def _items(entries: list[dict[str, Any]], payload: pa.Buffer, written_as: int) -> Iterator[tuple[str, Item]]:
    for entry in entries:
        content = payload.slice(entry["offset"], entry["length"])
        if entry["kind"] == "table":
            table = pa.ipc.open_stream(content).read_all()
            # A table that a user's operator wrote with this release is not changed.
            yield entry["name"], table if written_as > 1 else table.cast(common_schema(table.schema))
        else:
            yield entry["name"], np.frombuffer(content, dtype_of(entry["dtype"]))


def _ipc(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def _schema_key(schema: pa.Schema) -> bytes:
    key: bytes = schema.serialize().to_pybytes()  # equal only if the metadata is equal too
    return key


def _padded(content: Piece) -> list[Piece]:
    return [content, b"\0" * (-_size([content]) % ALIGNMENT)]


def _size(pieces: Sequence[Piece]) -> int:
    return sum(memoryview(piece).nbytes for piece in pieces)
