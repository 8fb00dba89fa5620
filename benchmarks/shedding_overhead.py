"""The overhead of shedding while nothing is dropped: a native aggregate over files, with and without a window drop."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.io.sinks.noop import NoopSink
from anabranch.local.session import usable_cores
from benchmarks.data import START
from benchmarks.report import Measured

MILLI = 1_000

Epochs = tuple[tuple[int, float], ...]
"""Rows and seconds of each epoch."""


@dataclass(frozen=True)
class Recorded:
    """Rows (t, key, v) in files, one for each epoch: each key has one row in each millisecond."""

    keys: int
    epochs: int
    rows: int
    """Rows in an epoch."""

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for epoch in range(self.epochs):
            number = np.arange(epoch * self.rows, (epoch + 1) * self.rows, dtype=np.int64)
            t = START + number // self.keys * MILLI
            columns = {"t": pa.array(t, pa.timestamp("us", "UTC")), "key": number % self.keys, "v": number * 7919 % 100}
            # Several row groups, so that every core has some of them to read.
            size = -(-self.rows // usable_cores())
            pq.write_table(pa.table(columns), folder / f"{epoch:03d}.parquet", row_group_size=size, compression="lz4")
        return folder


@dataclass(frozen=True)
class Filtered:
    """A filter, and a count over tumbling windows of `size` milliseconds, which is as many tuples of a key."""

    size: int = 1_000
    selectivity: float = 1.0

    def epochs(self, spark: SparkSession, files: Path, folder: Path, share: float | None) -> Epochs:
        """Run over all files, with a window drop that drops `share`, or without one."""
        where = folder / uuid.uuid4().hex
        source = spark.readStream.schema(spark.read.parquet(str(files)).schema)
        rows = source.option("maxFilesPerTrigger", 1).parquet(str(files))
        stream = ab.stream(rows, time="t", watermark="0 seconds")
        if self.selectivity < 1:
            stream = stream.filter(f"v < {100 * self.selectivity}")
        aggregated = stream.window(size=f"{self.size} ms").by("key").agg(n=ab.count(), total=ab.sum("v"))
        qos = None if share is None else ab.QoS(max_gap=10, drop_share=share)
        query = ab.start(
            aggregated.to(NoopSink()),
            checkpoint=where / "checkpoint",
            live=where / "live",
            workers=usable_cores(),
            trigger="available-now",
            qos=qos,
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
            shutil.rmtree(where, ignore_errors=True)
        # The first epoch has no watermark yet, so it cannot drop anything.
        return tuple((epoch.rows, epoch.seconds) for epoch in query.recentProgress if epoch.rows)[1:]


NONE = "no window drop"
CONTESTANTS: dict[str, float | None] = {NONE: None, "p = 0": 0.0, "p = 0.01": 0.01}


@dataclass(frozen=True)
class Compared:
    """Rounds in which each contestant ran once."""

    setting: str
    rounds: tuple[Mapping[str, Epochs], ...]
    """Each round by contestant."""

    def ratio(self, name: str) -> float:
        """Throughput of the median epoch of all rounds, over that without a window drop.

        A single epoch varies by a tenth, the median of a hundred epochs by one in a hundred.
        """
        return self._rate(name) / self._rate(NONE)

    def _rate(self, name: str) -> float:
        return median(rows / seconds for one in self.rounds for rows, seconds in one[name])

    def table(self) -> list[Measured]:
        """The total of a median round, for each contestant."""
        found = []
        for name in sorted(self.rounds[0], key=list(CONTESTANTS).index):
            rows = sum(rows for rows, _ in self.rounds[0][name])
            seconds = median(sum(seconds for _, seconds in one[name]) for one in self.rounds)
            found.append(Measured(name, self.setting, rows, seconds))
        return found


def compared(
    spark: SparkSession,
    files: Path,
    folder: Path,
    query: Filtered,
    rounds: int,
    contestants: Sequence[str] = tuple(CONTESTANTS),
) -> Compared:
    """Run the contestants in turns."""
    query.epochs(spark, files, folder, 0.01)  # compiles
    taken = []
    for turn in range(rounds):
        # The order alternates, so that no contestant always follows the same one.
        order = contestants if turn % 2 == 0 else tuple(reversed(contestants))
        taken.append({name: query.epochs(spark, files, folder, CONTESTANTS[name]) for name in order})
    return Compared(f"windows of {query.size} tuples, selectivity {query.selectivity:g}", tuple(taken))
