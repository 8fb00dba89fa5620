"""A job for `anabranch run examples/job.py --checkpoint checkpoint/`: speeds on an expressway, and stopped cars.

The first run writes a recording (out/example/reports.arrow): ten minutes of position reports from 2,000 cars. Results
are Parquet files in out/example/speeds and out/example/stopped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.recordings import write_blocks
from anabranch.types import Delivery, State

FOLDER = Path("out/example")
CARS, SECONDS, EVERY = 2_000, 600, 10


def record(path: Path) -> Path:
    """Every car reports its speed every 10 seconds; one in fifty stops for a while."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    phase = rng.integers(0, EVERY * 1_000_000, CARS)
    batches = []
    for second in range(0, SECONDS, EVERY):
        order = np.argsort(phase, kind="stable")
        car = np.arange(CARS)[order]
        stopped = (car % 50 == 0) & (200 <= second < 400)
        speed = np.where(stopped, 0, rng.integers(60, 120, CARS)).astype(np.int32)
        columns = {"t": second * 1_000_000 + phase[order], "car": car, "segment": car % 100, "speed": speed}
        batches.append(pa.RecordBatch.from_pydict(columns))
    write_blocks(path, batches)
    return path


class Stopped(ab.Operator):
    """Emits a row when a car has reported speed 0 four times in a row."""

    def open(self, state: State) -> None:
        self.zeros = state.array("zeros", np.int16, CARS)

    def process(self, block: pa.RecordBatch, port: int = 0) -> list[pa.RecordBatch]:
        found: list[tuple[int, int]] = []
        columns = (block.column(name).to_numpy() for name in ("t", "car", "speed"))
        for t, car, speed in zip(*columns, strict=True):
            self.zeros[car] = 0 if speed else self.zeros[car] + 1
            if self.zeros[car] == 4:
                found.append((int(t), int(car)))
        if not found:
            return []
        return [pa.RecordBatch.from_pydict({"t": [t for t, _ in found], "car": [car for _, car in found]})]


def build(spark: SparkSession) -> list[Delivery]:
    """Two results from one stream."""
    recorded = ab.replay(spark, record(FOLDER / "reports.arrow"), time="t", rows_per_epoch=30_000)
    reports = ab.stream(recorded, time="t", time_unit="us", watermark="10 s")
    speeds = reports.window(size="5 min", slide="10 s").by("segment").agg(speed=ab.avg("speed"), reports=ab.count())
    stopped = reports.process(Stopped, "t bigint, car bigint", by="segment", groups=8)
    return [speeds.to(ab.FileSink(FOLDER / "speeds")), stopped.to(ab.FileSink(FOLDER / "stopped"))]
