"""Readers: they turn the batches of a task into physical windows of about W bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from anabranch.io.blocks import one_batch, payloads, referenced


class Reader(ABC):
    """Turns the batches of a task into physical windows."""

    @abstractmethod
    def __call__(self, batches: Iterator[pa.RecordBatch], window_bytes: int) -> Iterator[pa.RecordBatch]: ...


class RowReader(Reader):
    """Reads rows: gathers batches until they fill a window."""

    def __call__(self, batches: Iterator[pa.RecordBatch], window_bytes: int) -> Iterator[pa.RecordBatch]:
        gathered: list[pa.RecordBatch] = []
        held = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            gathered.append(batch)
            held += batch.nbytes
            if held >= window_bytes:
                yield _joined(gathered)
                gathered, held = [], 0
        if gathered:
            yield _joined(gathered)


@dataclass(frozen=True)
class BlockReader(Reader):
    """Reads packed blocks from a binary column. Each is a window of its own; small ones are joined."""

    column: str

    def __call__(self, batches: Iterator[pa.RecordBatch], window_bytes: int) -> Iterator[pa.RecordBatch]:
        blocks = (block for batch in batches for block in payloads(batch.column(self.column)))
        return RowReader()(blocks, window_bytes)


class ReferenceReader(Reader):
    """Reads the blocks that references name (`anabranch.io.replay.source`), without ever turning them into rows."""

    def __call__(self, batches: Iterator[pa.RecordBatch], window_bytes: int) -> Iterator[pa.RecordBatch]:
        blocks = (block for batch in batches for block in referenced(batch))
        return RowReader()(blocks, window_bytes)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else one_batch(pa.Table.from_batches(batches))
