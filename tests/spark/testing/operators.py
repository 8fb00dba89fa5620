"""Operators of the tests, in a module that workers can import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

import anabranch as ab
from anabranch.types import Emitted, State


class Recorder(ab.Operator):
    """Emits what it sees: keys, and watermarks."""

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[Emitted]:
        yield pa.RecordBatch.from_pydict({"what": block.column("key"), "t": [0] * block.num_rows})

    def on_watermark(self, t: int) -> Iterable[Emitted]:
        return [pa.RecordBatch.from_pydict({"what": ["watermark"], "t": [t]})]


class Total(ab.Operator):
    """The running total of the values, in two outputs: a list for one, and the state for what must survive."""

    def open(self, state: State) -> None:
        self.total = state.array("total", np.float64, 1)

    def process(self, block: pa.RecordBatch, port: int = 0) -> list[Emitted]:
        values = block.column("value").to_pylist()
        if -1.0 in values:
            raise ValueError("a value of -1")
        self.total[0] += sum(value or 0.0 for value in values)
        return [
            ("total", pa.RecordBatch.from_pydict({"total": [float(self.total[0])]})),
            ("rows", pa.RecordBatch.from_pydict({"value": values})),
        ]
