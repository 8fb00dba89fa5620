"""The demo: an hour of traffic, its speeds in sliding windows, live and at once, beside Spark's own `window()`.

    from anabranch.demo import run

    result = run(out=Path("out"))      # writes out/demo.html and, with matplotlib, out/demo.png

It needs nothing but Python: the traffic is made up (`traffic`), the Spark is local (`anabranch.local`). The parts:

1. two million position reports are written as Parquet files;
2. they are read as a stream, and the one-minute windows are drawn while they are delivered (`live`);
3. they are read at once, windows of 1, 5 and 15 minutes sharing one set of panes; Spark's `window()` answers the same
   question for a slice (`race`);
4. the answers of the stream, the batch and Spark's `window()` are compared;
5. tables (`tables`), a page (`page`) and a picture (`plots`) say what came out.
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

from anabranch.demo import page, plots
from anabranch.demo.live import LENGTH, replay
from anabranch.demo.queries import sliding_speeds
from anabranch.demo.race import equal_stream, race, warm_up
from anabranch.demo.result import DemoResult
from anabranch.demo.tables import race_table, slowest_table
from anabranch.demo.terminal import clock, phase
from anabranch.demo.traffic import SEGMENTS, Reports, Traffic, simulate, write_reports
from anabranch.errors import InvalidArgumentError
from anabranch.local.session import local_session

__all__ = ["DemoResult", "run"]

EPOCHS = 15
"""How often the live part shows something new."""
_FILES_PER_EPOCH = 4
"""So that reading an epoch is work for several cores."""


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
        rows: how many position reports to make up.
        seconds: about how long Spark's `window()` may take in the comparison: its slice is as large as that allows, but
            at least a twentieth of the reports.
        minutes: how much time the reports span.
        seed: the same seed makes the same traffic.
        out: where the page and the picture go; made if absent.
        console: where to show it.

    Whatever it writes elsewhere is temporary, and gone when it ends, on Ctrl-C too.
    """
    if rows < 1 or minutes < 1 or seconds <= 0:
        raise InvalidArgumentError(
            f"a demo of {rows} rows in {minutes} minutes, with {seconds} seconds for the comparison",
            hint="each must be more than zero",
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
    with phase(console, "Making up traffic") as step:
        traffic = simulate(minutes, seed)
        reports = write_reports(traffic, folder, rows=rows, files=EPOCHS * _FILES_PER_EPOCH, seed=seed)
        step.done = (
            f"Traffic: {reports.rows:,} position reports from {SEGMENTS} segments of an expressway, {clock(0)} to "
            f"{clock(minutes * 60)}; the busiest segment sends {reports.skew:.0f} times as many as the median one"
        )
    return traffic, reports


@contextmanager
def _session(console: Console) -> Iterator[SparkSession]:
    """The Spark that runs already, or one for the demo alone."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    with phase(console, "Starting Spark") as step:
        # Few parts: the exchanges are small, and an epoch of a stream pays for each part of its state.
        # No log: what goes wrong is raised, and a job that Ctrl-C ends is no error to be told of.
        spark = local_session(app_name="anabranch-demo", shuffle_partitions=4, config={"spark.log.level": "OFF"})
        step.done = f"Spark {spark.version}, on this machine only"
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
        step.done = f"Warmed up: both sides have run once; Spark's window() gets a slice of {piece.rows:,} reports"
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
    """Tables, page and picture; the result knows afterwards where they are."""
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
