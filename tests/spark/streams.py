"""How the tests run a stream: epochs of rows become files, one each, and what every micro-batch delivers is kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import anabranch as ab
from anabranch.types import Stream
from anabranch.windows import Window, describe
from tests.oracles.epochs import Row

EPOCH = datetime(1970, 1, 1)

TIMES = {
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "bigint": pa.int64(),
}
KEYS = {"string": pa.string(), "bigint": pa.int64()}


@dataclass
class Feed:
    """A folder that a file source reads, one file per epoch in the order they were added.

    Columns: `at` (the time), `key`, `value`.
    """

    folder: Path
    time: str = "timestamp"
    key: str = "string"
    epochs: int = 0

    @property
    def schema(self) -> str:
        return f"at {self.time}, key {self.key}, value bigint"

    def add(self, *epochs: Iterable[Row]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for rows in epochs:
            write(self.folder / f"{self.epochs:04}.parquet", list(rows), self.time, self.key, self.epochs)
            self.epochs += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        source = spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return source.parquet(str(self.folder))

    def batch(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema(self.schema).parquet(str(self.folder))


def write(file: Path, rows: Sequence[Row], time: str, key: str, number: int) -> None:
    """One epoch. The file source takes files by their time of change, so that says the order."""
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    types = (TIMES[time], KEYS[key], pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    draft = file.with_name(f".{file.name}")  # Hidden from the source until it is whole.
    pq.write_table(pa.table(arrays, names=["at", "key", "value"]), draft)
    os.utime(draft, (1_000_000_000 + number,) * 2)
    draft.rename(file)


def in_micros(source: DataFrame, *, time: str, watermark: str | None = None) -> Stream:
    """A stream of this DataFrame; a time that is a bigint counts microseconds."""
    unit: Any = "us" if source.schema[time].dataType.typeName() == "long" else None
    return ab.stream(source, time=time, watermark=watermark, time_unit=unit)


def in_words(window: Window) -> dict[str, str]:
    """The arguments of `Stream.window` for a window in microseconds."""
    return {"size": describe(window.size), "slide": describe(window.slide), "origin": describe(window.origin)}


@dataclass
class Run:
    """What a stream delivered in each micro-batch, and what Spark said about it."""

    epochs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    progress: list[Any] = field(default_factory=list)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for epoch in sorted(self.epochs) for row in self.epochs[epoch]]

    @property
    def watermarks(self) -> list[int]:
        """The watermark of each micro-batch, in microseconds."""
        return [micros(datetime.fromisoformat(p.eventTime["watermark"])) for p in self.progress]

    @property
    def late(self) -> list[int]:
        """The late groups that Spark counted, in each micro-batch."""
        return [sum(o.numRowsDroppedByWatermark for o in p.stateOperators) for p in self.progress]

    def observed(self, name: str, metric: str) -> list[int]:
        """An observed metric, in each micro-batch."""
        return [p.observedMetrics[name][metric] for p in self.progress]


def run(windows: DataFrame, checkpoint: Path) -> Run:
    """Run the stream until all files are read, in append mode."""
    result = Run()

    def take(rows: DataFrame, epoch: int) -> None:
        result.epochs[epoch] = plain(rows.toArrow())

    writer = windows.writeStream.outputMode("append").foreachBatch(take)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    result.progress = list(query.recentProgress)
    return result


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as dictionaries, with times as microseconds."""
    return [_plain(row) for row in table.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return micros(value) if isinstance(value, datetime) else value


def micros(time: datetime) -> int:
    """Microseconds since 1970; a time without a time zone counts as UTC."""
    naive = time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)
    return (naive - EPOCH) // timedelta(microseconds=1)
