"""Results in the driver's memory."""

from __future__ import annotations

import pyarrow as pa

from anabranch.calls import made_as
from anabranch.io.sinks.base import Published, Sink


@made_as("ab.MemorySink()")
class MemorySink(Sink):
    """Arrow tables in the driver's memory: for notebooks and tests with few results."""

    guarantee = "exactly once while the process lives; empty after a restart"

    def __init__(self) -> None:
        self.epochs: dict[int, pa.Table] = {}

    def publish(self, result: Published) -> None:
        if result.files:
            self.epochs[result.epoch] = result.table()

    def table(self) -> pa.Table | None:
        """All rows so far, in the order of epochs; None before the first rows."""
        tables = [self.epochs[epoch] for epoch in sorted(self.epochs)]
        return pa.concat_tables(tables) if tables else None

    def rows(self) -> list[dict[str, object]]:
        """All rows so far as dictionaries."""
        table = self.table()
        return [] if table is None else table.to_pylist()

    def __repr__(self) -> str:
        return f"MemorySink({sum(table.num_rows for table in self.epochs.values())} rows)"
