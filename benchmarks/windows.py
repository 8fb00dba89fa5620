"""`python -m benchmarks windows`: sliding windows against Spark's own `window()`.

Slide 1 s; size 1, 10, 100 and 1,000 s; count, min, max and avg. Contestants that copy rows (Spark's `window()`, the
window and batch strategies) run on a slice of the data that they can copy in reasonable time, and are compared by
throughput. Panes and the floor run on all rows. The floor is a plain tumbling group-by at the slide, written in the
fastest way that plain Spark has: integer division, because `window()` is slower even where nothing overlaps.

Before anything is timed, the results are compared row by row: every strategy with Spark's `window()` up to an overlap
of 100, and the strategies with each other at 1,000.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

import anabranch as ab
from anabranch.errors import AnabranchError
from anabranch.types import Aggregation
from benchmarks.data import Events, write_parts
from benchmarks.report import Measured, best_of, drain, print_json, progress, show, show_ratios
from benchmarks.session import bench_session

SIZES = (1, 10, 100, 1000)
BATCHES = (2, 10, 50)
SPARK_OVERLAP = 100
"""The largest overlap at which Spark's `window()` takes part."""

GOALS = {
    "speedup_vs_spark_100": 20.0,
    "flatness_1000_vs_1": 0.8,
    "of_tumbling_floor": 0.6,
    "sparse_speedup_vs_spark_100": 10.0,
    "streaming_speedup_100": 7.0,
}

_SPARK, _PANE, _FLOOR = "Spark window()", "pane", "tumbling floor"


@dataclass(frozen=True)
class Scale:
    """How much data. `copies` limits the rows that a contestant makes by copying."""

    dense: Events
    sparse: Events
    copies: int
    repeats: int
    checked: int
    files: int = 20


FULL = Scale(
    dense=Events(seconds=500, rate=20_000, keys=200, every_key=True),
    sparse=Events(seconds=2_000, rate=1_000, keys=1_000, every_key=False),
    copies=60_000_000,
    repeats=3,
    checked=100_000,
)
QUICK = Scale(
    dense=Events(seconds=50, rate=20_000, keys=200, every_key=True),
    sparse=Events(seconds=200, rate=1_000, keys=1_000, every_key=False),
    copies=5_000_000,
    repeats=1,
    checked=20_000,
    files=4,
)


class ResultsDifferError(AnabranchError):
    """Two contestants gave different results, so a comparison of their speed would mean nothing."""


def run(*, quick: bool, as_json: bool, console: Console) -> dict[str, float]:
    """Run the benchmark. Prints tables, and with `as_json` one JSON object as the last line."""
    scale = QUICK if quick else FULL
    folder = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    spark = bench_session("windows")
    try:
        bench = _Bench(spark, scale, folder, console)
        ratios, measured = bench.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show_ratios(console, ratios, {} if quick else GOALS)
    if as_json:
        print_json(ratios, measured, quick=quick)
    return ratios


@dataclass
class _Bench:
    spark: SparkSession
    scale: Scale
    folder: Path
    console: Console

    def run(self) -> tuple[dict[str, float], dict[str, list[Measured]]]:
        with progress(self.console) as bar:
            total = len(SIZES) * 7 + 3 + 2 + 3
            task = bar.add_task("generating events", total=total)

            def step(name: str) -> None:
                bar.update(task, advance=1, description=name)

            dense_rows, sparse_rows = self.scale.dense.table(), self.scale.sparse.table()
            dense = write_parts(dense_rows, self.folder / "dense", self.scale.files)
            sparse = write_parts(sparse_rows, self.folder / "sparse", self.scale.files)
            self._check(dense_rows, step)
            batch = self._sizes("dense", dense, dense_rows, SIZES, step)
            thin = self._sizes("sparse", sparse, sparse_rows, (100,), step, only=(_SPARK, _PANE))
            streams = self._streams(dense, dense_rows, step)
        show(self.console, f"Dense: {self.scale.dense.rows:,} rows, slide 1 s", batch)
        show(self.console, f"Sparse: {self.scale.sparse.rows:,} rows, slide 1 s", thin)
        show(self.console, "Streaming over the dense files (available now)", streams)

        def rate(measured: list[Measured], name: str, size: int) -> float:
            return next(m.rate for m in measured if m.name == name and m.setting == f"size {size:,} s")

        ratios = {
            "speedup_vs_spark_100": rate(batch, _PANE, 100) / rate(batch, _SPARK, 100),
            "flatness_1000_vs_1": rate(batch, _PANE, 1000) / rate(batch, _PANE, 1),
            "of_tumbling_floor": rate(batch, _PANE, 1000) / rate(batch, _FLOOR, 1),
            "sparse_speedup_vs_spark_100": rate(thin, _PANE, 100) / rate(thin, _SPARK, 100),
            "streaming_speedup_100": rate(streams, _PANE, 100) / rate(streams, _SPARK, 100),
        }
        return ratios, {"dense": batch, "sparse": thin, "streaming": streams}

    def _check(self, rows: pa.Table, step: Callable[[str], None]) -> None:
        """Raise an error unless every contestant gives the same rows."""
        part = write_parts(rows.slice(0, self.scale.checked), self.folder / "checked", 2)
        frame = self.spark.read.parquet(str(part))
        small = write_parts(rows.slice(0, self.scale.checked // 10), self.folder / "checked-small", 2)
        for size in (10, 100, 1000):
            step(f"comparing results at size {size:,} s")
            source = frame if size <= SPARK_OVERLAP else self.spark.read.parquet(str(small))
            contestants = {name: make(source) for name, make in _contestants(size).items() if name != _FLOOR}
            name, reference = next(iter(contestants.items()))
            reference = reference.cache()
            for other, result in contestants.items():
                _same(name, reference, other, result, size)
            reference.unpersist()

    def _sizes(
        self,
        label: str,
        folder: Path,
        rows: pa.Table,
        sizes: tuple[int, ...],
        step: Callable[[str], None],
        only: tuple[str, ...] | None = None,
    ) -> list[Measured]:
        measured = []
        for size in sizes:
            for name, make in _contestants(size).items():
                if only is not None and name not in only:
                    continue
                step(f"{label}, size {size:,} s: {name}")
                source, n = self._input(label, folder, rows, name, size)
                frame = make(source)
                repeats = self.scale.repeats if name in (_PANE, _FLOOR) else max(1, self.scale.repeats - 1)
                seconds = best_of(repeats, lambda frame=frame: drain(frame))  # type: ignore[misc]
                delivered = frame.count() if name in (_PANE, _SPARK) else None
                measured.append(Measured(name, f"size {size:,} s", n, seconds, delivered))
        return measured

    def _input(self, label: str, folder: Path, rows: pa.Table, name: str, size: int) -> tuple[DataFrame, int]:
        """All rows, or the slice whose copies stay within the limit."""
        if name in (_PANE, _FLOOR) or size * rows.num_rows <= self.scale.copies:
            return self.spark.read.parquet(str(folder)), rows.num_rows
        n = max(self.scale.copies // size, 2)
        part = self.folder / f"{label}-{n}"
        if not part.exists():
            write_parts(rows.slice(0, n), part, 4)
        return self.spark.read.parquet(str(part)), n

    def _streams(self, folder: Path, rows: pa.Table, step: Callable[[str], None]) -> list[Measured]:
        size = 100
        n = min(rows.num_rows, max(self.scale.copies // size, 2))
        part = write_parts(rows.slice(0, n), self.folder / "stream-slice", 4)
        step("streaming: warm-up")
        self._stream(_PANE, part, size)
        measured = []
        for name, source, count in ((_SPARK, part, n), (_PANE, folder, rows.num_rows)):
            step(f"streaming, size {size} s: {name}")
            runs = 1 if name == _SPARK else self.scale.repeats
            seconds = best_of(runs, lambda name=name, source=source: self._stream(name, source, size))  # type: ignore[misc]
            measured.append(Measured(name, f"size {size:,} s", count, seconds))
        return measured

    def _stream(self, name: str, folder: Path, size: int) -> None:
        """One run over all files, half of them per micro-batch, so that the first windows close during the run."""
        files = len(list(folder.iterdir()))
        source = (
            self.spark.readStream.schema("t timestamp, key int, v int")
            .option("maxFilesPerTrigger", max(1, files // 2))
            .parquet(str(folder))
            .withWatermark("t", "2 seconds")
        )
        frame = _contestants(size)[name](source)
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        sink = frame.writeStream.format("noop").outputMode("append").option("checkpointLocation", checkpoint)
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()


def _contestants(size: int) -> dict[str, Callable[[DataFrame], DataFrame]]:
    """By name, the query of each contestant at that window size."""
    contestants: dict[str, Callable[[DataFrame], DataFrame]] = {}
    if size <= SPARK_OVERLAP:
        contestants[_SPARK] = lambda rows: _spark(rows, F.window("t", f"{size} seconds", "1 second").alias("window"))
    contestants["window"] = lambda rows: _query(rows, size).using("window").to_df()
    for batch in BATCHES:
        contestants[f"batch, B = {batch}"] = lambda rows, b=batch: _query(rows, size).using("batch", batch=b).to_df()  # type: ignore[misc]
    contestants[_PANE] = lambda rows: _query(rows, size).using("pane").to_df()
    if size == 1:
        contestants[_FLOOR] = lambda rows: _spark(rows, F.expr("unix_micros(t) div 1000000"))
    return contestants


def _spark(rows: DataFrame, window: Column) -> DataFrame:
    n, low, high = F.count(F.lit(1)).alias("n"), F.min("v").alias("low"), F.max("v").alias("high")
    return rows.groupBy("key", window).agg(n, low, high, F.avg("v").alias("mean"))


def _query(rows: DataFrame, size: int) -> Aggregation:
    windows = ab.stream(rows, time="t").window(size=f"{size} s", slide="1 s").by("key")
    return windows.agg(n=ab.count(), low=ab.min("v"), high=ab.max("v"), mean=ab.avg("v"))


def _same(name: str, reference: DataFrame, other: str, result: DataFrame, size: int) -> None:
    left, right = (
        f.select("key", "window.start", "window.end", "n", "low", "high", "mean") for f in (reference, result)
    )
    extra, missing = right.exceptAll(left).count(), left.exceptAll(right).count()
    if extra or missing:
        raise ResultsDifferError(
            f"at size {size} s, {other} has {extra} rows that {name} does not have, and lacks {missing} that it has",
            hint="this is a bug: please report it with the versions of pyspark and anabranch",
        )
