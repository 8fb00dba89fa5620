"""The demo: an hour of traffic, its speeds in sliding windows, live and at once, beside Spark's own `window()`.

    from anabranch.demo import run

    result = run(out=Path("out"))      # writes out/demo.html and, with matplotlib, out/demo.png

It needs nothing but Python: the traffic is made up (`traffic`), the Spark is local (`anabranch.embedded`). The parts:

1. two million position reports are written as Parquet files;
2. they are read as a stream, and the one-minute windows are drawn while they are delivered (`live`);
3. they are read at once: windows of 1, 5 and 15 minutes, which share one set of panes;
4. Spark's `window()` answers the same question for a slice, and the answers are compared (`race`);
5. tables (`tables`), a page (`page`) and a picture (`plots`) say what came out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Observation, SparkSession
from rich.console import Console

from anabranch.demo import page, plots
from anabranch.demo.live import LENGTH, Replay, replay
from anabranch.demo.queries import LENGTHS, read, seconds_of, sliding_speeds
from anabranch.demo.race import Lane, Peer, Timing, equal, equal_stream, run_ours, run_spark
from anabranch.demo.result import DemoResult
from anabranch.demo.tables import race_table, slowest_table
from anabranch.demo.terminal import clock, phase
from anabranch.demo.traffic import SEGMENTS, Reports, Traffic, simulate, write_reports
from anabranch.embedded import local_session

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
    ours = _run_ours(reports, written, work, console)
    peer, on_slice = _run_peer(reports, written, work, seconds, console)
    with phase(console, "Comparing the results") as step:
        slice_agrees = equal(peer.results, ours.windows, peer.slice.segments)
        stream_agrees = equal_stream(stream.windows, ours.windows, LENGTH)
        explanation = sliding_speeds(reports).sample(0.02).explain()
        step.done = _verdict(slice_agrees, stream_agrees, peer, stream)
    return DemoResult(
        traffic=traffic,
        reports=written,
        null_times=ours.null_times,
        stream=stream,
        stream_agrees=stream_agrees,
        lanes=tuple(
            Lane(length, _delivered(ours.windows, length), timing, peer.timings[length])
            for length, timing in ours.alone.items()
        ),
        together=Lane("all three", len(ours.windows), ours.together, peer.total),
        peer=peer,
        ours_on_slice=on_slice,
        slice_agrees=slice_agrees,
        windows=ours.windows,
        explanation=explanation,
        seconds=0.0,
        page=Path(),
        picture=None,
    )


@dataclass(frozen=True)
class _Ours:
    windows: pa.Table
    together: Timing
    alone: dict[str, Timing]
    null_times: int


def _run_ours(reports: DataFrame, written: Reports, work: Path, console: Console) -> _Ours:
    with phase(console, f"Anabranch over all {written.rows:,} reports, to warm up") as step:
        run_ours(reports, work / "ours", written.rows)
        alone = {}
        for length in LENGTHS:
            step.doing = f"Anabranch over all {written.rows:,} reports, windows of {length}"
            alone[length] = run_ours(reports, work / f"ours-{seconds_of(length)}", written.rows, (length,))
        step.doing = f"Anabranch over all {written.rows:,} reports, windows of {', '.join(LENGTHS)} at once"
        counted = Observation()
        together = run_ours(reports, work / "ours", written.rows, observation=counted)
        windows = read(work / "ours")
        null_times = int(counted.get["null_time"])
        step.done = (
            f"Anabranch: {len(windows):,} windows of {', '.join(LENGTHS)} by one query in {together.seconds:.1f} s; "
            f"{null_times:,} reports without a time were counted and set apart"
        )
    return _Ours(windows, together, alone, null_times)


def _run_peer(
    reports: DataFrame, written: Reports, work: Path, seconds: float, console: Console
) -> tuple[Peer, Timing]:
    with phase(console, "Spark's window()") as step:

        def note(doing: str) -> None:
            step.doing = doing

        peer = run_spark(reports, written.per_segment, work / "peer", seconds=seconds, note=note)
        note(f"Anabranch over the same {peer.slice.rows:,} reports")
        piece = reports.sparkSession.read.parquet(str(peer.slice.folder))
        on_slice = run_ours(piece, work / "ours-slice", peer.slice.rows)
        step.done = (
            f"Spark's window(): {peer.total.seconds:.1f} s for a slice of {peer.slice.rows:,} reports, "
            f"where Anabranch takes {on_slice.seconds:.1f} s"
        )
    return peer, on_slice


def _delivered(windows: pa.Table, length: str) -> int:
    return int(pc.sum(pc.equal(windows["length_s"], seconds_of(length))).as_py())


def _verdict(slice_agrees: bool, stream_agrees: bool, peer: Peer, stream: Replay) -> str:
    def word(agrees: bool) -> str:
        return "equal to the last bit" if agrees else "[bold red]DIFFERENT[/]"

    return (
        f"Compared: {len(peer.results):,} windows of Spark's window() {word(slice_agrees)}, "
        f"{len(stream.windows):,} of the stream {word(stream_agrees)}"
    )


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
