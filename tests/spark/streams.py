"""How the tests run a stream: epochs of rows (`at`, `key`, `value`), and times as microseconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructType, TimestampNTZType, TimestampType

import anabranch as ab
from anabranch.testing import Epoch, EpochRun, StreamFeed
from anabranch.types import Stream
from anabranch.windows import Window, describe
from tests.oracles.epochs import Row

EPOCH = datetime(1970, 1, 1)

TIMES = {"timestamp": TimestampType(), "timestamp_ntz": TimestampNTZType(), "bigint": LongType()}
KEYS = {"string": StringType(), "bigint": LongType()}


@dataclass
class Feed:
    """A `StreamFeed` of the columns `at` (the time), `key` and `value`, which can be written without a session."""

    folder: Path
    time: str = "timestamp"
    key: str = "string"

    @property
    def schema(self) -> str:
        return f"at {self.time}, key {self.key}, value bigint"

    @property
    def epochs(self) -> int:
        return self._feed(None).epochs

    def add(self, *epochs: Iterable[Row]) -> None:
        self._feed(None).add(*epochs)

    def stream(self, spark: SparkSession) -> DataFrame:
        return self._feed(spark).frame()

    def batch(self, spark: SparkSession) -> DataFrame:
        return self._feed(spark).batch()

    def _feed(self, spark: SparkSession | None) -> StreamFeed:
        columns = StructType().add("at", TIMES[self.time]).add("key", KEYS[self.key]).add("value", LongType())
        return StreamFeed(spark, columns, self.folder)  # type: ignore[arg-type]


def in_micros(source: DataFrame, *, time: str, watermark: str | None = None) -> Stream:
    """A stream of this DataFrame; a time that is a bigint counts microseconds."""
    unit: Any = "us" if source.schema[time].dataType.typeName() == "long" else None
    return ab.stream(source, time=time, watermark=watermark, time_unit=unit)


def in_words(window: Window) -> dict[str, str]:
    """The arguments of `Stream.window` for a window in microseconds."""
    return {"size": describe(window.size), "slide": describe(window.slide), "origin": describe(window.origin)}


class Run:
    """What a stream delivered in each micro-batch, and what Spark said about it."""

    def __init__(self, played: Iterable[Epoch]) -> None:
        played = list(played)
        self.epochs = {epoch.number: plain(epoch.results.table()) for epoch in played}
        self.progress = [epoch.progress for epoch in played]
        self.watermarks = [epoch.watermark for epoch in played]
        self.late = [epoch.late for epoch in played]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for epoch in sorted(self.epochs) for row in self.epochs[epoch]]

    def observed(self, name: str, metric: str) -> list[int]:
        """An observed metric, in each micro-batch."""
        return [p.observedMetrics[name][metric] for p in self.progress]


def run(windows: DataFrame, folder: Path) -> Run:
    """Run the stream until all files are read, in append mode."""
    return Run(EpochRun(windows, folder).run_epochs())


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
