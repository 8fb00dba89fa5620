"""Generated events, from a seed: two runs see the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.cli.sample_events import START

__all__ = ["START", "Events", "write_parts"]


@dataclass(frozen=True)
class Events:
    """Events with a skewed key: `rate` per second for `seconds`. The keys follow Zipf's law.

    With `every_key`, each key occurs in every second, however small its share is.
    """

    seconds: int
    rate: int
    keys: int
    every_key: bool
    seed: int = 1

    @property
    def rows(self) -> int:
        return self.seconds * self.rate

    def table(self) -> pa.Table:
        """The rows (t, key, v), in the order of seconds."""
        rng = np.random.default_rng(self.seed)
        share = 1 / np.arange(1, self.keys + 1)
        key = rng.choice(self.keys, self.rows, p=share / share.sum()).astype(np.int32)
        if self.every_key:
            key.reshape(self.seconds, self.rate)[:, : self.keys] = np.arange(self.keys)
        second = np.repeat(np.arange(self.seconds, dtype=np.int64), self.rate)
        t = START + second * 1_000_000 + rng.integers(0, 1_000_000, self.rows)
        v = rng.integers(0, 100, self.rows).astype(np.int32)
        return pa.table({"t": pa.array(t, pa.timestamp("us", tz="UTC")), "key": key, "v": v})


def write_parts(table: pa.Table, folder: Path, parts: int) -> Path:
    """Write the rows as Parquet files, in order: several of them, so that every core has one to read."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-table.num_rows // parts)
    for i in range(parts):
        pq.write_table(table.slice(i * size, size), folder / f"part-{i:03d}.parquet")
    return folder
