"""One contestant of `python -m benchmarks join` at one rate: fill the windows, then time distribution epochs.

A rate is *sustained* if latency stays below `LATENCY` with full windows. A tuple waits at most one distribution epoch
t_d until it is read, and then as long as the epoch takes. So epochs of exactly t_d of data run one after the other,
without a pause. If they take no longer than t_d on average, no backlog grows, and the latency is t_d plus the time of
the slowest epoch. No pacing is needed, and both contestants get the same task.

Both read the same tuples: Anabranch as blocks (`anabranch.replay`), or as rows from the files that Spark reads; Spark
as Parquet files, the format that its file source reads fastest.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.api.stream import Stream
from anabranch.io.blocks import schema_of, write_blocks
from anabranch.io.sinks.noop import NoopSink
from anabranch.observe.progress import EpochProgress
from anabranch.types import Joined
from benchmarks.join_streams import SECOND, JoinStream, matches

EPOCH = 2
"""t_d in seconds."""
LATENCY = 5.0
"""Seconds that a result may take."""
CHUNK = 30
"""Seconds of data in an epoch while the windows fill."""
WARM_UP = 2
"""Epochs after the windows are full that are not counted."""
MEMORY, LEAST_MEMORY = "/dev/shm", 16 << 30
"""The folder for live state, if at least this many bytes are free there."""
SIDES = ("left", "right")
STORES = {
    "HDFS": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "RocksDB": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
_STORE = "spark.sql.streaming.stateStore.providerClass"


@dataclass(frozen=True)
class Workload:
    """The distribution of keys, and the length of the windows in seconds."""

    name: str
    b: float | None
    window: int = 600

    def pairs(self, rate: float) -> float:
        """Pairs per second at that rate, on average: every tuple of both streams meets the other's window."""
        return 2 * rate * matches(rate, self.window, self.b)


@dataclass(frozen=True)
class Trial:
    """What was measured of a contestant at a rate."""

    contestant: str
    workload: str
    rate: float
    """Tuples per second of each stream."""
    intervals: tuple[float, ...]
    """Seconds from the start of one epoch to the start of the next. Each epoch has t_d of data."""
    pairs: float
    """Pairs per second of the stream."""
    state_bytes: int = 0
    window_bytes: int = 0
    """Size of the tuples of both windows as Arrow columns."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.intervals)

    @property
    def latency(self) -> float:
        """An upper bound for the seconds that the slowest result took."""
        return EPOCH + max(self.intervals)

    @property
    def sustained(self) -> bool:
        return self.mean <= EPOCH and self.latency <= LATENCY

    def as_json(self) -> dict[str, Any]:
        more = {"memory": round(self.state_bytes / self.window_bytes, 2)} if self.state_bytes else {}
        return {
            "data": self.workload,
            "name": self.contestant,
            "rate": round(self.rate),
            "epoch_seconds": round(self.mean, 3),
            "latency": round(self.latency, 2),
            "pairs_per_second": round(self.pairs),
            "sustained": self.sustained,
            **more,
        }


@dataclass(frozen=True)
class Recording:
    """Both streams at one rate, in files: large pieces that fill the windows, then a piece per epoch."""

    folder: Path
    workload: Workload
    rate: float
    epochs: int

    @property
    def fill(self) -> int:
        """Seconds until the windows are full."""
        return -(-self.workload.window // CHUNK) * CHUNK

    def pieces(self) -> Iterator[tuple[int, int]]:
        """(first second, seconds) of each."""
        yield from ((first, CHUNK) for first in range(0, self.fill, CHUNK))
        yield from ((self.fill + i * EPOCH, EPOCH) for i in range(self.epochs + WARM_UP))

    @property
    def pieces_before(self) -> int:
        return self.fill // CHUNK

    def _tables(self, side: int) -> Iterator[pa.Table]:
        stream = JoinStream(self.rate, side, self.workload.b)
        kind = pa.timestamp("us", "UTC")
        for first, seconds in self.pieces():
            table = stream.seconds(first, seconds)
            yield table.set_column(1, "t", table.column("t").cast(kind))

    def blocks(self, side: int) -> Path:
        """The stream as blocks, in one file. Made when first needed."""
        path = self.folder / "blocks" / SIDES[side]
        if not path.exists():
            path.mkdir(parents=True)
            size = max(1_000, int(self.rate * EPOCH) // 2)
            batches = (b for table in self._tables(side) for b in table.combine_chunks().to_batches(max_chunksize=size))
            write_blocks(path / "blocks.arrow", batches)
        return path

    def files(self, side: int) -> Path:
        """The stream as Parquet files, one for each micro-batch. Made when first needed."""
        path = self.folder / "files" / SIDES[side]
        if not path.exists():
            path.mkdir(parents=True)
            for i, table in enumerate(self._tables(side)):
                file = path / f"{i:05d}.parquet"
                pq.write_table(table, file, compression="lz4", use_dictionary=False)
                # The file source takes files in the order of their age.
                os.utime(file, (1_700_000_000 + i, 1_700_000_000 + i))
        return path


@contextmanager
def recorded(folder: Path, workload: Workload, rate: float, epochs: int) -> Iterator[Recording]:
    """A recording that is deleted afterwards, because recordings are large."""
    where = folder / f"{workload.name}-{rate:.0f}".replace(" ", "-")
    try:
        yield Recording(where, workload, rate, epochs)
    finally:
        shutil.rmtree(where, ignore_errors=True)


# --- Anabranch ------------------------------------------------------------------------------------------------------


@dataclass
class Watch:
    """A listener that keeps all epochs and sets `enough` when it has seen enough of them."""

    rows: float
    epochs: int
    seen: list[EpochProgress] = field(default_factory=list)
    enough: threading.Event = field(default_factory=threading.Event)

    def on_started(self, query: str, run: str) -> None:
        pass

    def on_terminated(self, query: str, error: str | None) -> None:
        self.enough.set()

    def on_progress(self, progress: EpochProgress) -> None:
        self.seen.append(progress)
        if sum(each.rows for each in self.seen) >= self.rows and len(self.seen) >= self.epochs:
            self.enough.set()


def joined(spark: SparkSession, recording: Recording, tuning: ab.JoinTuning | None = None, **clock: Any) -> Joined:
    """Our join over the blocks of a recording. `clock` has the options of `anabranch.replay` that pace it."""
    streams = []
    for side in range(2):
        path = recording.blocks(side)
        source = ab.replay(spark, path, time="t", blocks=True, **clock)
        streams.append(ab.block_stream(source, time="t", watermark="0 s", schema=schema_of(path / "blocks.arrow")))
    return _join(recording, streams, tuning)


def joined_rows(spark: SparkSession, recording: Recording) -> Joined:
    """Our join over the files that Spark reads, one file of each stream per epoch."""
    streams = [ab.stream(_file_by_file(spark, recording.files(side)), time="t", watermark="0 s") for side in range(2)]
    return _join(recording, streams, None)


def _join(recording: Recording, streams: Sequence[Stream], tuning: ab.JoinTuning | None) -> Joined:
    window = f"{recording.workload.window} s"
    return streams[0].join(streams[1], on="key", within=(window, window), tuning=tuning)


def _file_by_file(spark: SparkSession, folder: Path) -> DataFrame:
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def ours(spark: SparkSession, recording: Recording, folder: Path, *, rows: bool = False) -> Trial:
    """Our runtime at the recording's rate."""
    live = _in_memory() or folder / "live"
    places: dict[str, Any] = {"checkpoint": folder / "checkpoint", "live": live, "workers": 2}
    full = 2 * recording.rate * recording.fill

    def run(join: Joined, watch: Watch) -> list[EpochProgress]:
        query = join.start(NoopSink(), listeners=[watch], **places)
        watch.enough.wait()
        query.stop()
        error = query.exception()
        if error is not None:
            raise error
        return watch.seen

    def blocks_of(seconds: int) -> Joined:
        return joined(spark, recording, rows_per_epoch=max(1, round(recording.rate * seconds)))

    try:
        counted = recording.epochs + WARM_UP
        if rows:
            filled = recording.pieces_before
            seen = run(joined_rows(spark, recording), Watch(0, filled + counted))[filled:]
        else:
            # Large epochs fill the windows; then the query starts again, with epochs of t_d.
            run(blocks_of(CHUNK), Watch(0.995 * full, 1))
            seen = run(blocks_of(EPOCH), Watch(0, counted))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(live, ignore_errors=True)
    starts = [each.started for each in seen[WARM_UP:counted]] + [seen[counted - 1].started + seen[counted - 1].seconds]
    emitted = sum(each.operators[0].emitted for each in seen[WARM_UP:counted])
    return Trial(
        "ours, rows" if rows else "ours",
        recording.workload.name,
        recording.rate,
        tuple(b - a for a, b in pairwise(starts)),
        emitted / (EPOCH * recording.epochs),
        seen[counted - 1].state_bytes,
        round(2 * recording.rate * recording.workload.window * 64),
    )


def _in_memory() -> Path | None:
    """A folder in memory, if there is room for the windows, so that their pages are not written to a disk."""
    if not os.path.isdir(MEMORY) or shutil.disk_usage(MEMORY).free < LEAST_MEMORY:
        return None
    return Path(tempfile.mkdtemp(prefix="anabranch-bench-", dir=MEMORY))


# --- Spark ----------------------------------------------------------------------------------------------------------


def sparks(spark: SparkSession, recording: Recording, folder: Path, store: str) -> Trial:
    """Spark's stream-stream join with the same watermark and range condition."""
    # A new folder each time: Spark may write into the folder of a query for a while after it was stopped.
    folder = folder / uuid.uuid4().hex
    spark.conf.set(_STORE, STORES[store])
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    query = _native(spark, recording).writeStream.format("noop").option("checkpointLocation", str(folder)).start()
    wanted = recording.pieces_before + recording.epochs + WARM_UP
    try:
        batches: dict[int, dict[str, Any]] = {}
        while len(batches) < wanted and query.isActive:
            time.sleep(0.2)
            batches |= {int(each["batchId"]): dict(each) for each in query.recentProgress if each["numInputRows"]}
        error = query.exception()
        if error is not None:
            raise error
    finally:
        query.stop()
        spark.conf.unset(_STORE)
        shutil.rmtree(folder, ignore_errors=True)
    counted = [batches[number] for number in sorted(batches)][wanted - recording.epochs : wanted]
    seconds = tuple(each["durationMs"]["triggerExecution"] / 1_000 for each in counted)
    pairs = recording.workload.pairs(recording.rate)
    return Trial(f"Spark, {store}", recording.workload.name, recording.rate, seconds, pairs)


def _native(spark: SparkSession, recording: Recording) -> DataFrame:
    sides = []
    for side in range(2):
        source = _file_by_file(spark, recording.files(side))
        renamed = source.select(*(F.col(name).alias(f"{name}{side}") for name in source.columns))
        sides.append(renamed.withWatermark(f"t{side}", "0 seconds"))
    window = f"INTERVAL {recording.workload.window} SECONDS"
    near = F.expr(f"key0 = key1 AND t1 >= t0 - {window} AND t1 <= t0 + {window}")
    return sides[0].join(sides[1], near)


def bounded(spark: SparkSession, recording: Recording) -> DataFrame:
    """The pairs of a whole recording, by Spark's join of bounded DataFrames: the columns that identify a pair."""
    left, right = (spark.read.parquet(str(recording.files(side))) for side in range(2))
    right = right.select(*(F.col(name).alias(f"{name}_right") for name in right.columns))
    apart = F.abs(F.unix_micros("t") - F.unix_micros("t_right")) <= recording.workload.window * SECOND
    return left.join(right, (F.col("key") == F.col("key_right")) & apart).select(
        "key", "t", "t_right", "p2", "p2_right"
    )
