"""Queries whose checkpoints are kept, one per release that wrote another format: later releases resume them.

They use only what every such release has, so that this module runs under all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.types import Aggregate, State, Stream

EPOCHS = 10
"""of a whole run; the checkpoint is written after the first half"""
SCHEMA = "at timestamp, k string, v bigint, w double, s string, n int"


def rows_of(epoch: int) -> Iterator[dict[str, Any]]:
    """Rows of one epoch: a minute, with nulls and, behind the watermark's delay, some disorder."""
    for second in range(epoch * 60, (epoch + 1) * 60, 3):
        for number, key in enumerate("abc"):
            at = datetime(2026, 1, 1) + timedelta(seconds=second - 7 * (second % 2))
            value = (second * 7 + number) % 11
            some = None if second % 4 == 0 else second
            yield {"at": f"{at.isoformat()}Z", "k": key, "v": value, "w": value / 3, "s": f"x{second % 5}", "n": some}


def add_epochs(base: Path, first: int, last: int) -> None:
    """Write the input of epochs first..last-1, a file each."""
    (base / "in").mkdir(parents=True, exist_ok=True)
    for epoch in range(first, last):
        text = "\n".join(json.dumps(row) for row in rows_of(epoch))
        file = base / "in" / f"{epoch:04}.json"
        file.write_text(text)
        os.utime(file, (1_770_000_000 + epoch,) * 2)  # Spark reads files in the order of their times


def _stream(spark: SparkSession, base: Path) -> Stream:
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(base / "in"))
    return ab.stream(frame, time="at", watermark="10 s")


def _aggregates() -> dict[str, Aggregate]:
    return {
        "n": ab.count(),
        "total": ab.sum("v"),
        "mean": ab.avg("w"),
        "least": ab.min("s"),
        "most": ab.max("n"),
        "spread": ab.variance("w"),
        "deviation": ab.stddev("n"),
        "begin": ab.first("s"),
        "end": ab.last("at"),
        "all": ab.collect("n"),
        "often": ab.top_k("s", 2),
        "different": ab.count_distinct("s"),
        "about": ab.count_distinct("v", approx=True),
        "middle": ab.quantile("w", 0.5),
    }


def _windows(stream: Stream) -> Any:
    return stream.window(size="100 s", slide="20 s").by("k").agg(**_aggregates())


def _count_windows(stream: Stream) -> Any:
    return stream.window(rows=30, slide_rows=10).by("k").agg(**_aggregates())


def _nested(stream: Stream) -> Any:
    counts = stream.window(size="1 min").by("k").agg(n=ab.count(), total=ab.sum("v"))
    return counts.window(size="3 min", slide="1 min").agg(n=ab.sum("n"), spread=ab.max("total"))


class Running(ab.Operator):
    """A user's operator: sums per key, in an array and a table of its own."""

    def open(self, state: State) -> None:
        self._state = state
        self._sums = state.array("sums", np.int64, 3)

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
        known = self._state.table("seen")
        seen = set() if known is None else set(known.column("s").to_pylist())
        seen |= set(block.column("s").to_pylist())
        self._state.put("seen", pa.table({"s": pa.array(sorted(seen))}))
        for key, value in zip(block.column("k").to_pylist(), block.column("v").to_pylist(), strict=True):
            self._sums["abc".index(key)] += value
        names = block.column("k")
        sums = [int(self._sums["abc".index(key)]) for key in names.to_pylist()]
        yield pa.record_batch({"k": names, "sum": pa.array(sums), "seen": pa.array([len(seen)] * len(sums))})


def _operator(stream: Stream) -> Any:
    return stream.process(Running, by="k", schema="k string, sum bigint, seen bigint")


def _joined(stream: Stream) -> Any:
    small = stream.filter("v < 3").select("at", "k", "v")
    large = stream.filter("v > 8").select("at", "k", "n")
    return small.join(large, on="k", within=("20 s", "20 s"))


QUERIES: dict[str, Callable[[Stream], Any]] = {
    "windows": _windows,
    "count-windows": _count_windows,
    "nested": _nested,
    "operator": _operator,
    "joined": _joined,
}


def run(spark: SparkSession, name: str, base: Path, live: str) -> None:
    """Run a query until its input ends. Results are in `out`, the checkpoint in `checkpoint`."""
    query = QUERIES[name](_stream(spark, base))
    running = query.start(
        ab.FileSink(str(base / "out")),
        checkpoint=str(base / "checkpoint"),
        trigger="available-now",
        live=str(base / live),
        snapshot_every=3,
        workers=2,
    )
    running.awaitTermination()
