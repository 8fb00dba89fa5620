"""Made-up events for `anabranch explain` without a file: a minute of rows (t, key, v) with skewed keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SECONDS, ROWS_PER_SECOND, KEYS = 60, 1_000, 50
START = 1_600_000_000_000_000
"""Time of the first event, in microseconds."""
FILES = 2


def sample_events() -> pa.Table:
    """The rows, in the order of their seconds. They are the same every time; the keys follow Zipf's law."""
    random, rows = np.random.default_rng(1), SECONDS * ROWS_PER_SECOND
    share = 1 / np.arange(1, KEYS + 1)
    key = random.choice(KEYS, rows, p=share / share.sum()).astype(np.int32)
    second = np.repeat(np.arange(SECONDS, dtype=np.int64), ROWS_PER_SECOND)
    t = START + second * 1_000_000 + random.integers(0, 1_000_000, rows)
    v = random.integers(0, 100, rows).astype(np.int32)
    return pa.table({"t": pa.array(t, pa.timestamp("us", tz="UTC")), "key": key, "v": v})


def write_sample_events(folder: Path) -> Path:
    """Write the rows as Parquet files into an existing folder, and return the folder."""
    rows = sample_events()
    size = -(-rows.num_rows // FILES)
    for i in range(FILES):
        pq.write_table(rows.slice(i * size, size), folder / f"part-{i}.parquet")
    return folder
