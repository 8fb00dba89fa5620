"""`python -m benchmarks first`: seconds from the start of a process to its first result, against plain Spark.

Each trial is a new process, timed from its start to the result: imports, the start of Spark, planning, the start of
Python workers, and kernels. *Cold*: numba's cache is empty, so kernels are compiled. *Warm*: they are loaded. Both
contestants run in a plain `local[2]` session.

| what | Anabranch | Spark |
|---|---|---|
| batch | a sliding query, to the end of `show(5)` | the same with `window()`; and one tumbling window, the floor |
| stream | the first epoch of `start()` | the first micro-batch of a streaming `window()` |
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from anabranch.errors import JobError
from anabranch.local.java import ensure_java
from benchmarks.report import print_json, progress, show_ratios

REPEATS = 5
SELDOM = {"batch, Spark's window()": 2}
"""Fewer runs of the script that takes minutes."""
LIMITS = {"batch_warm_vs_floor": 2.0, "stream_warm_vs_spark": 2.0}
"""A first result may take at most twice as long as plain Spark's."""

_SESSION = """
from pyspark.sql import SparkSession, functions as F
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
         .config("spark.sql.shuffle.partitions", "4").getOrCreate())
"""
_TRIPS = """
trips = spark.range(20_000).select(
    F.timestamp_seconds(F.col("id") / 10).alias("pickup_at"),
    F.pmod(F.hash("id"), F.lit(50)).alias("cell"),
    (F.pmod(F.hash("id", F.lit(1)), F.lit(4_000)) / 100).alias("fare"),
)
"""
_OURS = (
    "import anabranch as ab"
    + _SESSION
    + _TRIPS
    + """
busy = (ab.stream(trips, time="pickup_at").window(size="30 minutes", slide="1 second").by("cell")
        .agg(trips=ab.count(), fare=ab.avg("fare"), p95=ab.quantile("fare", 0.95)))
busy.to_df().show(5)
"""
)
_SPARKS = (
    _SESSION
    + _TRIPS
    + """
aggregates = F.count("*").alias("trips"), F.avg("fare").alias("fare"), F.percentile_approx("fare", 0.95).alias("p95")
trips.groupBy("cell", F.window("pickup_at", {window})).agg(*aggregates).show(5)
"""
)
_SOURCE = """
rows = (spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10_000).load()
        .withColumn("cell", F.pmod("value", F.lit(50))))
"""
_OUR_STREAM = (
    "import anabranch as ab"
    + _SESSION
    + _SOURCE
    + """
windows = (ab.stream(rows, time="timestamp", watermark="1 second").window(size="10 seconds", slide="1 second")
           .by("cell").agg(n=ab.count(), most=ab.max("value")))
query = windows.start(ab.FileSink("results"), checkpoint="checkpoint", trigger="100 ms")
import time
while query.lastProgress is None and query.isActive:
    time.sleep(0.01)
assert query.lastProgress is not None
"""
)
_SPARK_STREAM = (
    _SESSION
    + _SOURCE
    + """
windows = (rows.withWatermark("timestamp", "1 second").groupBy("cell", F.window("timestamp", "10 seconds", "1 second"))
           .agg(F.count("*").alias("n"), F.max("value").alias("most")))
query = (windows.writeStream.format("parquet").option("path", "results").option("checkpointLocation", "checkpoint")
         .trigger(processingTime="100 milliseconds").start())
import time
while query.lastProgress is None and query.isActive:
    time.sleep(0.01)
assert query.lastProgress is not None
"""
)
SCRIPTS = {
    "batch, Anabranch": _OURS,
    "batch, Spark's window()": _SPARKS.replace("{window}", '"30 minutes", "1 second"'),
    "batch, one tumbling window": _SPARKS.replace("{window}", '"30 minutes"'),
    "stream, Anabranch": _OUR_STREAM,
    "stream, Spark's window()": _SPARK_STREAM,
}
_OUR_SCRIPTS = ("batch, Anabranch", "stream, Anabranch")


@dataclass(frozen=True)
class Trial:
    """One script with one state of the cache: the seconds of each run."""

    name: str
    cache: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def run(*, quick: bool, as_json: bool, console: Console) -> None:
    """Run the benchmark. Prints tables, and with `as_json` one JSON object as the last line."""
    ensure_java()
    repeats = 1 if quick else REPEATS
    settings = [(name, "warm") for name in SCRIPTS] + [(name, "cold") for name in _OUR_SCRIPTS]
    taken: dict[tuple[str, str], list[float]] = {setting: [] for setting in settings}
    with tempfile.TemporaryDirectory(prefix="anabranch-first-") as folder, progress(console) as bar:
        rounds = {name: min(repeats, SELDOM.get(name, repeats)) for name, _ in settings}
        task = bar.add_task("first results", total=len(_OUR_SCRIPTS) + sum(rounds[name] for name, _ in settings))
        warm = Path(folder, "warm")
        for name in _OUR_SCRIPTS:  # fills the cache
            _seconds(SCRIPTS[name], Path(folder), warm)
            bar.advance(task)
        # The scripts take turns, so that other load on the machine affects all of them.
        for number in range(repeats):
            for name, cache in settings:
                if number >= rounds[name]:
                    continue
                where = warm if cache == "warm" else Path(folder, f"cold-{number}-{name[:5]}")
                taken[name, cache].append(_seconds(SCRIPTS[name], Path(folder), where))
                bar.advance(task)
    trials = [Trial(name, cache, tuple(seconds)) for (name, cache), seconds in taken.items()]
    _show(console, trials)
    figures = _figures(trials)
    show_ratios(console, figures, {}, LIMITS)
    if as_json:
        spread = {f"{t.name}, {t.cache}": [round(s, 2) for s in t.seconds] for t in trials}
        print_json(figures, {}, quick=quick, seconds=spread)


def _figures(trials: list[Trial]) -> dict[str, float]:
    of = {(trial.name, trial.cache): trial.median for trial in trials}
    batch, stream = of["batch, Anabranch", "warm"], of["stream, Anabranch", "warm"]
    return {
        "batch_warm_vs_spark": batch / of["batch, Spark's window()", "warm"],
        "batch_warm_vs_floor": batch / of["batch, one tumbling window", "warm"],
        "stream_warm_vs_spark": stream / of["stream, Spark's window()", "warm"],
        "batch_cold_vs_warm": of["batch, Anabranch", "cold"] / batch,
        "stream_cold_vs_warm": of["stream, Anabranch", "cold"] / stream,
    }


def _show(console: Console, trials: list[Trial]) -> None:
    table = Table(title="Seconds from the start of a process to its first result", title_justify="left")
    table.add_column("what")
    table.add_column("numba's cache")
    for column in ("median", "least", "most"):
        table.add_column(column, justify="right")
    for trial in sorted(trials, key=lambda each: each.name):
        cache = trial.cache if trial.name in _OUR_SCRIPTS else "not used"
        table.add_row(trial.name, cache, *(f"{s:.2f}" for s in (trial.median, min(trial.seconds), max(trial.seconds))))
    console.print(table)


def _seconds(script: str, folder: Path, cache: Path) -> float:
    """Run a script in a new process and a new folder. It ends as soon as it has the result."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        cache.mkdir(exist_ok=True)
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYSPARK_PYTHON": sys.executable}
        # The time to shut Spark down is not measured.
        ended = "\nimport time, os\nopen('ended', 'w').write(str(time.time()))\nos._exit(0)\n"
        began = time.time()
        done = subprocess.run(
            [sys.executable, "-c", script + ended],
            cwd=own,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise JobError(f"a script failed: {done.stderr[-2000:]}", hint="run it alone to see why")
        return float(Path(own, "ended").read_text()) - began
