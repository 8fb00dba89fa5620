"""`python -m benchmarks epochs`: what the epoch runtime costs, and what it gains.

**`epoch_overhead`**: wall time of an epoch over that of a bare micro-batch. Each has 1,000 tuples, so few that only the
fixed cost matters. The bare one is a `foreachBatch` that sends the tuples through one exchange and one `mapInArrow`; it
keeps no state and writes nothing. The epoch splits, keeps operator state, logs its input, makes decisions, writes a
ledger and publishes files exactly once. All queries run in one session and take turns: they pass a *baton*, and only
the query that has it moves. A whole cycle is timed, from leaving `foreachBatch` to leaving it again: the commit of the
last batch, the offsets and the plan of the next one, and all of its work.

    bare    ──▶ commit N ─ offsets N+1 ─ run N+1 ──▶ waits
    epoch                                            ──▶ commit N ─ offsets N+1 ─ run N+1 ──▶ waits

**`aggregates_vs_spark`**: a sliding aggregate at an overlap of 100 in the epoch runtime against Spark's streaming
`window()`. Both read files in several epochs and write Parquet files. Spark gets a slice that it can finish. The
results over the slice are compared row by row first.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

import anabranch as ab
from anabranch.api.stream import Stream
from anabranch.errors import AnabranchError
from anabranch.observe.progress import EpochProgress
from anabranch.runtime.handle import EpochQuery
from anabranch.types import State
from benchmarks.data import Events, write_parts
from benchmarks.report import Measured, best_of, print_json, progress, show, show_ratios
from benchmarks.session import bench_session
from benchmarks.windows import ResultsDifferError

OVERLAP = 100
SUBSTREAMS = 16

GOALS = {"aggregates_vs_spark": 10.0}
LIMITS = {"epoch_overhead": 1.4}

_BARE, _PROCESS, _WINDOW = "bare micro-batch", "split + operator with state", "windowed aggregate"
_SPARK, _OURS = "Spark window()", "epoch runtime"


@dataclass(frozen=True)
class Scale:
    """The number and size of epochs, and the data for the aggregates, of which Spark gets a slice."""

    tuples: int
    warm_up: int
    epochs: int
    events: Events
    slice: int
    repeats: int
    files: int = 20
    slice_files: int = 4


FULL = Scale(
    tuples=1_000,
    warm_up=10,
    epochs=40,
    events=Events(seconds=500, rate=10_000, keys=1_000, every_key=False),
    slice=600_000,
    repeats=2,
)
QUICK = Scale(
    tuples=1_000,
    warm_up=1,
    epochs=2,
    events=Events(seconds=110, rate=200, keys=20, every_key=False),
    slice=22_000,
    repeats=1,
    files=2,
    slice_files=2,
)


class QueryFailedError(AnabranchError):
    """A contestant ended before the others, so there is nothing to compare."""


def run(*, quick: bool, as_json: bool, console: Console) -> dict[str, float]:
    """Run the benchmark. Prints tables, and with `as_json` one JSON object as the last line."""
    folder = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    spark = bench_session("epochs")
    try:
        ratios, measured = _Bench(spark, QUICK if quick else FULL, folder, console).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show_ratios(console, ratios, {} if quick else GOALS, {} if quick else LIMITS)
    if as_json:
        print_json(ratios, measured, quick=quick)
    return ratios


# --- taking turns ---------------------------------------------------------------------------------------------------


@dataclass
class Baton:
    """Lets one query move at a time, in the order of `names`, and times each cycle."""

    names: tuple[str, ...]
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seconds = {name: [] for name in self.names}
        self._turn = threading.Condition()
        self._waiting: dict[str, bool] = dict.fromkeys(self.names, False)
        self._may_go: str | None = None
        self._free: set[str] = set()

    def wait(self, name: str) -> None:
        """Called by a query at the end of its epoch: wait for the next turn."""
        with self._turn:
            self._waiting[name] = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: name in self._free or self._may_go == name)
            self._may_go, self._waiting[name] = None, False

    def lap(self, failed: Callable[[], BaseException | None]) -> None:
        """Each query moves once."""
        for name in self.names:
            self._until(lambda name=name: self._waiting[name], failed)  # type: ignore[misc]
            began = time.perf_counter()
            with self._turn:
                self._may_go = name
                self._turn.notify_all()
            self._until(lambda name=name: self._may_go is None and self._waiting[name], failed)  # type: ignore[misc]
            self.seconds[name].append(time.perf_counter() - began)

    def release(self, name: str) -> None:
        """Let this query run on without waiting, so that it can end."""
        with self._turn:
            self._free.add(name)
            self._turn.notify_all()

    def _until(self, arrived: Callable[[], bool], failed: Callable[[], BaseException | None]) -> None:
        with self._turn:
            while not self._turn.wait_for(arrived, timeout=1.0):
                error = failed()
                if error is not None:
                    raise QueryFailedError(
                        f"a contestant failed: {error}", hint="this is a bug: please report it"
                    ) from error


@dataclass
class _Turns:
    """A listener that waits for its turn at the end of each epoch."""

    baton: Baton
    name: str

    def on_started(self, query: str, run: str) -> None:
        pass

    def on_terminated(self, query: str, error: str | None) -> None:
        pass

    def on_progress(self, progress: EpochProgress) -> None:
        self.baton.wait(self.name)


# --- what runs ------------------------------------------------------------------------------------------------------


class Totals(ab.Operator):
    """An operator with state: the number of tuples and the sum of their values."""

    def open(self, state: State) -> None:
        self.totals = state.array("totals", np.int64, 2)

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
        self.totals += (block.num_rows, int(np.asarray(block.column("value")).sum()))
        last = int(np.asarray(block.column("timestamp").cast(pa.int64()))[-1])
        values = (self.group, last, *self.totals.tolist())
        names = ("substream", "t", "n", "total")
        yield pa.RecordBatch.from_pydict(
            {name: pa.array([v], pa.int64()) for name, v in zip(names, values, strict=True)}
        )


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_arrays([pa.array([sum(batch.num_rows for batch in batches)], pa.int64())], names=["n"])


@dataclass
class _Bench:
    spark: SparkSession
    scale: Scale
    folder: Path
    console: Console

    def run(self) -> tuple[dict[str, float], dict[str, list[Measured]]]:
        with progress(self.console) as bar:
            task = bar.add_task("epochs, in turns", total=4)

            def step(name: str) -> None:
                bar.update(task, advance=1, description=name)

            epochs = self._epochs()
            step("comparing aggregates")
            whole, part = self._files()
            self._check(part)
            step(f"aggregates: {_SPARK}")
            spark = self._aggregate(_SPARK, part, self.scale.slice, 1)
            step(f"aggregates: {_OURS}")
            ours = self._aggregate(_OURS, whole, self.scale.events.rows, self.scale.repeats)
        show(self.console, f"One epoch of {self.scale.tuples:,} tuples, median of {self.scale.epochs}", epochs)
        show(self.console, f"Streaming aggregates, overlap {OVERLAP}, {self.scale.events.keys:,} keys", [spark, ours])
        ratios = {
            "epoch_overhead": epochs[1].seconds / epochs[0].seconds,
            "window_epoch_overhead": epochs[2].seconds / epochs[0].seconds,
            "aggregates_vs_spark": ours.rate / spark.rate,
        }
        return ratios, {"epochs": epochs, "aggregates": [spark, ours]}

    # --- overhead ---------------------------------------------------------------------------------------------------

    def _epochs(self) -> list[Measured]:
        baton = Baton((_BARE, _PROCESS, _WINDOW))
        parts = int(self.spark.conf.get("spark.sql.shuffle.partitions") or 2)

        def bare(batch: DataFrame, epoch: int) -> None:
            to = F.pmod("value", F.lit(parts)).cast("int")
            batch.repartitionById(parts, to).mapInArrow(_pass_on, "n bigint").collect()
            baton.wait(_BARE)

        split = self._ticks().split(SUBSTREAMS, route=f"cast(value % {SUBSTREAMS} as int)", broadcast="value % 100 = 0")
        totals = split.process(Totals, "substream bigint, t bigint, n bigint, total bigint")
        windows = self._ticks().with_columns({"key": F.col("value") % 100}).window(size="100 s", slide="1 s").by("key")
        started: list[StreamingQuery | EpochQuery] = [
            self._source().writeStream.foreachBatch(bare).option("checkpointLocation", self._new("bare")).start(),
            totals.start(
                ab.FileSink(self._new("totals")),
                checkpoint=self._new("process"),
                listeners=[_Turns(baton, _PROCESS)],
            ),
            windows.agg(n=ab.count(), mean=ab.avg("value")).start(
                ab.FileSink(self._new("windows")),
                checkpoint=self._new("window"),
                listeners=[_Turns(baton, _WINDOW)],
            ),
        ]
        try:
            for _ in range(self.scale.warm_up + self.scale.epochs):
                baton.lap(lambda: next((e for e in (query.exception() for query in started) if e is not None), None))
        finally:
            for name, query in zip(baton.names, started, strict=True):
                baton.release(name)
                # Spark's own stop does not wait for the epoch that has begun, whose result is not needed.
                (query if isinstance(query, StreamingQuery) else query.spark_query).stop()
        medians = {name: statistics.median(times[self.scale.warm_up :]) for name, times in baton.seconds.items()}
        setting = f"{self.scale.tuples:,} tuples"
        return [Measured(name, setting, self.scale.tuples, seconds) for name, seconds in medians.items()]

    def _source(self) -> DataFrame:
        source = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self.scale.tuples)
        return source.option("numPartitions", 1).option("advanceMillisPerBatch", 1_000).load()

    def _ticks(self) -> Stream:
        return ab.stream(self._source(), time="timestamp", watermark="0 s")

    # --- aggregates -------------------------------------------------------------------------------------------------

    def _files(self) -> tuple[Path, Path]:
        table = self.scale.events.table()
        whole = write_parts(table, self.folder / "all", self.scale.files)
        return whole, write_parts(table.slice(0, self.scale.slice), self.folder / "slice", self.scale.slice_files)

    def _check(self, part: Path) -> None:
        """Raise an error unless both deliver the same windows. This also warms up."""
        found = [self.spark.read.parquet(self._windows(name, part)) for name in (_SPARK, _OURS)]
        spark, ours = (f.select("key", "window.start", "window.end", "n", "low", "high", "mean") for f in found)
        missing, extra = spark.exceptAll(ours).count(), ours.exceptAll(spark).count()
        if missing or extra or not spark.count():
            raise ResultsDifferError(
                f"{_OURS} lacks {missing} of the {spark.count()} windows of {_SPARK}, and has {extra} others",
                hint="this is a bug: please report it with the versions of pyspark and anabranch",
            )

    def _aggregate(self, name: str, folder: Path, rows: int, repeats: int) -> Measured:
        seconds = best_of(repeats, lambda: self._windows(name, folder))
        return Measured(name, f"size {OVERLAP} s, slide 1 s", rows, seconds)

    def _windows(self, name: str, folder: Path) -> str:
        """Read all files in a few epochs, and return the folder of the results."""
        files = len(list(folder.iterdir()))
        rows = (
            self.spark.readStream.schema("t timestamp, key int, v int")
            .option("maxFilesPerTrigger", max(1, files // 4))
            .parquet(str(folder))
        )
        size, out, checkpoint = f"{OVERLAP} seconds", self._new("out"), self._new("checkpoint")
        if name == _OURS:
            windows = ab.stream(rows, time="t", watermark="2 s").window(size=size, slide="1 s").by("key")
            aggregated = windows.agg(n=ab.count(), low=ab.min("v"), high=ab.max("v"), mean=ab.avg("v"))
            query = aggregated.start(ab.FileSink(out), checkpoint=checkpoint, trigger="available-now")
            query.awaitTermination()
            return out
        n, low, high = F.count(F.lit(1)).alias("n"), F.min("v").alias("low"), F.max("v").alias("high")
        window = F.window("t", size, "1 second").alias("window")
        spark = rows.withWatermark("t", "2 seconds").groupBy("key", window).agg(n, low, high, F.avg("v").alias("mean"))
        sink = spark.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
        sink.trigger(availableNow=True).start().awaitTermination()
        return out

    def _new(self, name: str) -> str:
        return tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder)
