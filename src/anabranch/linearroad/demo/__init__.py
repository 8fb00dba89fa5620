"""The demo: Linear Road at speed, on a Spark inside this process, watched live and checked.

    from anabranch.linearroad.demo import run

    result = run(Path("out"))          # writes out/linear-road.html and, with matplotlib, out/linear-road.png
    result.right                       # what the validator says

1. A trace of some minutes is made up by the benchmark's rules, rising to the rate of the official one at its end.
2. It is replayed many times as fast as it happened, through the query network of `anabranch.linearroad.query`
   (`drive`), and shown while it runs (`view`), as the published answers tell it (`told`).
3. All answers are compared with the reference.
4. A page (`page`) and a picture (`plots`) say what came out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession
from rich.console import Console

from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.check.reference import connect
from anabranch.linearroad.check.validate import Report, validate
from anabranch.linearroad.demo import page, plots
from anabranch.linearroad.demo.drive import ANSWERS_FOLDER, Driven, drive
from anabranch.linearroad.demo.phases import phase
from anabranch.linearroad.demo.result import DemoResult
from anabranch.linearroad.demo.tables import count, verdict_table
from anabranch.linearroad.demo.view import RoadView
from anabranch.linearroad.generate import Trace, Traffic, write_trace
from anabranch.linearroad.schema import Mode
from anabranch.local import local_session

__all__ = ["DemoResult", "run"]

PACE = 40.0
"""24 minutes in 36 seconds."""
PEAK_RATE = 1_700.0
"""Tuples per second and expressway at the end: as in the official trace."""
SEED = 120
"""With this one, three accidents happen in the 24 minutes, two of them where tolls are due, and those are cleared."""
EXAMPLES = 5
"""Differences that are shown, if there are any."""
_WARM_UP = Traffic(expressways=2, seconds=60, peak_rate=200)
"""Two epochs."""


def run(
    out: Path = Path("out"),
    expressways: int = 2,
    minutes: int = 24,
    pace: float | None = PACE,
    console: Console | None = None,
    *,
    peak_rate: float = PEAK_RATE,
    seed: int = SEED,
) -> DemoResult:
    """Run the demo.

    Args:
        out: where the page and the picture go; made if absent.
        expressways: the benchmark's L, each with traffic of its own.
        minutes: simulated time; the rate rises over all of it.
        pace: how many times as fast as it happened; None for as fast as it goes.
        console: where to show it.
        peak_rate: tuples per simulated second and expressway at the end.
        seed: the same seed makes the same traffic.

    Whatever it writes elsewhere is temporary, and gone when it ends, on Ctrl-C too. `DemoResult.right` is False if any
    answer differs from the reference; a command should then fail.
    """
    if minutes < 1 or (pace is not None and not pace > 0):
        raise InvalidArgumentError(
            f"a demo of {minutes} minutes at a pace of {pace}", hint="both must be more than zero"
        )
    connect().close()  # without DuckDB nothing could be checked: better said now than after the run
    console = console or Console()
    with TemporaryDirectory(prefix="anabranch-linear-road-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        trace = _make_traffic(work / "trace", Traffic(expressways, minutes * 60, seed, peak_rate), console)
        with _session(console) as spark:
            _warm_up(spark, work / "warm-up", console)
            driven = _drive(spark, trace, work, pace, console)
            master = str(spark.conf.get("spark.master"))
        with phase(console, "Checking every answer") as step:
            report = check(trace, work / ANSWERS_FOLDER)
            step.done = "Checked: every answer compared with the reference"
        return _show(DemoResult(trace, driven, report, pace, master), out, console)


def check(trace: Trace, output: Path) -> Report:
    """Compare the answers with the reference."""
    return validate(trace.folder / "input", trace.history_file, trace.segment_history_file, output, Mode.PAPER)


def _make_traffic(folder: Path, traffic: Traffic, console: Console) -> Trace:
    with phase(console, "Making up traffic") as step:

        def note(done: int, tuples: int) -> None:
            step.note(f"Making up traffic: {done // 60} of {traffic.seconds // 60} minutes, {tuples:,} tuples")

        trace = write_trace(folder, traffic, progress=note)
        step.done = (
            f"Traffic: {trace.tuples:,} tuples of {count(trace.expressways, 'expressway')} in "
            f"{count(traffic.seconds // 60, 'minute')}, by the rules of the benchmark"
        )
    return trace


@contextmanager
def _session(console: Console) -> Iterator[SparkSession]:
    """The Spark that runs already, or one for the demo alone."""
    running = SparkSession.getActiveSession()
    with phase(console, "Starting Spark") as step:
        # No log: what goes wrong is raised, and a job that Ctrl-C ends is no error to be told of.
        spark = local_session(app_name="anabranch-linear-road", config={"spark.log.level": "OFF"})
        step.done = f"Spark {spark.version}, on this machine only"
    if running is not None:
        yield spark
        return
    logging.disable(logging.ERROR)  # py4j logs an interrupted call
    try:
        yield spark
    finally:
        spark.stop()
        logging.disable(logging.NOTSET)


def _warm_up(spark: SparkSession, work: Path, console: Console) -> None:
    """Start Spark's workers and let them compile: a paced stream would have to make up for it."""
    with phase(console, "Warming up") as step:
        drive(spark, write_trace(work / "trace", _WARM_UP), work, pace=None)
        step.done = "Warmed up: the workers run, the kernels are compiled"


def _drive(spark: SparkSession, trace: Trace, work: Path, pace: float | None, console: Console) -> Driven:
    view = RoadView(console, pace)
    with view.shown():
        driven = drive(spark, trace, work, pace=pace, shown=view)
    console.print(
        f"[green]✓[/] Driven: {driven.told.tuples:,} tuples in {len(driven.epochs)} epochs, "
        f"{driven.rate:,.0f} a second  [dim]{driven.seconds:.1f} s[/]",
        highlight=False,
    )
    return driven


def _show(result: DemoResult, out: Path, console: Console) -> DemoResult:
    """The verdict, the page and the picture; the result knows afterwards where they are."""
    out.mkdir(parents=True, exist_ok=True)
    console.print(verdict_table(result))
    for example in result.report.examples()[:EXAMPLES]:
        console.print(example, markup=False, highlight=False)
    console.print(f"[bold {'green' if result.right else 'red'}]{result.verdict}[/]", highlight=False)
    with phase(console, "Drawing") as step:
        picture = plots.write(result, out / plots.FILE) if plots.available() else None
        result = replace(result, page=page.write(result, out / page.FILE), picture=picture)
        step.done = "Look at [bold]" + " and ".join(str(file) for file in (result.page, picture) if file) + "[/]"
    if result.picture is None:
        console.print(
            f'[yellow]{plots.FILE} needs matplotlib: pip install "anabranch\\[plots]"[/] (the page does not).',
            highlight=False,
        )
    return result
