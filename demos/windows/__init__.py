"""The window race: mean speeds of an hour of traffic in sliding windows, raced against Spark's own `window()`.

    from demos.windows import run      # or: python -m demos.windows

    result = run(out=Path("out"))      # writes out/demo.html and, with matplotlib, out/demo.png

The traffic is generated (`traffic`), and Spark runs locally. The steps:

1. Write two million position reports as Parquet files.
2. Read them as a stream, and draw the one-minute windows as they are delivered (`live`).
3. Read them as a batch, with windows of 1, 5 and 15 minutes that share one set of panes. Spark's `window()` runs the
   same query on a slice (`race`).
4. Compare the results of the stream, the batch and Spark's `window()`.
5. Show tables (`tables`), and write a page (`page`) and a picture (`plots`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession
from rich.console import Console

from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.demo.phases import phase
from anabranch.local.session import local_session
from demos.windows import page, plots
from demos.windows.live import LENGTH, replay
from demos.windows.queries import sliding_speeds
from demos.windows.race import equal_stream, race, warm_up
from demos.windows.result import DemoResult
from demos.windows.tables import race_table, slowest_table
from demos.windows.terminal import clock
from demos.windows.traffic import SEGMENTS, Reports, Traffic, simulate, write_reports

__all__ = ["DemoResult", "run"]

EPOCHS = 15
"""Epochs of the live part."""
_FILES_PER_EPOCH = 4
"""Several, so that several cores can read an epoch."""


def run(
    *,
    rows: int = 2_000_000,
    seconds: float = 10.0,
    minutes: int = 60,
    seed: int = 7,
    out: Path = Path("out"),
    console: Console | None = None,
) -> DemoResult:
    """Run the demo.

    Args:
        rows: the number of position reports to generate.
        seconds: roughly how long Spark's `window()` may take in the race. Its slice is as large as that allows, but at
            least a twentieth of the reports.
        minutes: the time that the reports span.
        seed: the same seed makes the same traffic.
        out: the folder for the page and the picture. Created if it does not exist.
        console: where to print.

    All other files are temporary and are deleted at the end, also after Ctrl-C.
    """
    if rows < 1 or minutes < 1 or seconds <= 0:
        raise InvalidArgumentError(
            f"a demo of {rows} rows in {minutes} minutes, with {seconds} seconds for the race, has nothing to show",
            hint="pass numbers greater than zero",
        )
    console = console or Console()
    began = time.perf_counter()
    with TemporaryDirectory(prefix="anabranch-demo-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        traffic, reports = _make_traffic(work / "reports", rows, minutes, seed, console)
        with _session(console) as spark:
            found = _ask(spark, traffic, reports, work, seconds, console)
    result = replace(found, seconds=time.perf_counter() - began)
    return _show(result, out, console)


def _make_traffic(folder: Path, rows: int, minutes: int, seed: int, console: Console) -> tuple[Traffic, Reports]:
    with phase(console, "Generating traffic") as step:
        traffic = simulate(minutes, seed)
        reports = write_reports(traffic, folder, rows=rows, files=EPOCHS * _FILES_PER_EPOCH, seed=seed)
        step.done = (
            f"Traffic: {reports.rows:,} position reports from {SEGMENTS} segments of an expressway, {clock(0)} to "
            f"{clock(minutes * 60)}; the busiest segment sends {reports.skew:.0f} times as many as the median one"
        )
    return traffic, reports


@contextmanager
def _session(console: Console) -> Iterator[SparkSession]:
    """The Spark that is already running, or a new one that stops with the demo."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    with phase(console, "Starting Spark") as step:
        # Few partitions: the exchanges are small, and an epoch of a stream pays for each partition of its state.
        # No log: errors are raised, and a job that Ctrl-C cancels should not be reported as an error.
        spark = local_session(app_name="anabranch-demo", shuffle_partitions=4, config={"spark.log.level": "OFF"})
        step.done = f"Spark {spark.version}, local"
    logging.disable(logging.ERROR)  # py4j logs an interrupted call
    try:
        yield spark
    finally:
        spark.stop()
        logging.disable(logging.NOTSET)


def _ask(
    spark: SparkSession, traffic: Traffic, written: Reports, work: Path, seconds: float, console: Console
) -> DemoResult:
    folder = work / "reports"
    stream = replay(
        spark,
        folder,
        work / "stream",
        rows=written.rows,
        minutes=traffic.minutes,
        files_per_epoch=_FILES_PER_EPOCH,
        console=console,
    )
    reports = spark.read.parquet(str(folder))
    with phase(console, "Warming up") as step:
        piece = warm_up(reports, written, work, seconds=seconds, note=step.note)
        step.done = f"Warm-up: both sides have run once; Spark's window() gets a slice of {piece.rows:,} reports"
    with phase(console, "Racing") as step:
        found = race(reports, written, piece, work, note=step.note)
        step.done = (
            f"Timed: Anabranch {found.together.ours.seconds:.1f} s for all {written.rows:,} reports and three window "
            f"lengths, Spark's window() {found.together.spark.seconds:.1f} s for its slice"
        )
    with phase(console, "Comparing the results") as step:
        slice_agrees, stream_agrees = found.agree, equal_stream(stream.windows, found.windows, LENGTH)
        explanation = sliding_speeds(reports).sample(0.02).explain()
        step.done = (
            f"Compared: {len(found.spark_windows):,} windows of Spark's window() {_verdict(slice_agrees)}, "
            f"{len(stream.windows):,} of the stream {_verdict(stream_agrees)}"
        )
    return DemoResult(
        traffic=traffic,
        reports=written,
        stream=stream,
        race=found,
        slice_agrees=slice_agrees,
        stream_agrees=stream_agrees,
        explanation=explanation,
        seconds=0.0,
        page=Path(),
        picture=None,
    )


def _verdict(agrees: bool) -> str:
    return "equal to the last bit" if agrees else "[bold red]DIFFERENT[/]"


def _show(result: DemoResult, out: Path, console: Console) -> DemoResult:
    """Print the tables, write the page and the picture, and return the result with their paths."""
    out.mkdir(parents=True, exist_ok=True)
    console.print()
    console.print(race_table(result))
    console.print(slowest_table(result))
    with phase(console, "Drawing") as step:
        picture = plots.write(result, out / "demo.png") if plots.available() else None
        result = replace(result, page=page.write(result, out / "demo.html"), picture=picture)
        step.done = "Look at [bold]" + " and ".join(str(file) for file in (result.page, picture) if file) + "[/]"
    if result.picture is None:
        console.print(
            '[yellow]The picture demo.png needs matplotlib: pip install "anabranch\\[plots]"[/] (the page does not).',
            highlight=False,
        )
    return result
