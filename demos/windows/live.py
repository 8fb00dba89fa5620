"""The live part: the reports as a stream of files, and the one-minute windows drawn as they are delivered."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from anabranch.linearroad.demo.phases import Phase, finish
from demos.windows.queries import LENGTHS, SCHEMA, SLIDE_S, columns, fill, flat, read, sliding_speeds
from demos.windows.terminal import Waterfall, clock
from demos.windows.traffic import BEGIN, SEGMENTS

LENGTH = LENGTHS[0]
"""The window of the live part: the shortest shows the most detail, and is complete first."""

_POLL_S = 0.1
_BAR = 10


@dataclass(frozen=True)
class Replay:
    """What the stream did."""

    rows: int
    null_times: int
    epochs: int
    seconds: float
    windows: pa.Table

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


@dataclass
class _Screen:
    """The content of the screen. The sink's thread and the main thread write to different fields of it."""

    phase: Phase
    waterfall: Waterfall
    expected: int
    rows: int = 0
    null_times: int = 0
    epochs: int = 0
    rate: float = 0.0
    windows: list[pa.Table] = field(default_factory=list)
    failure: Exception | None = None

    @property
    def delivered(self) -> int:
        return sum(len(table) for table in self.windows)

    def deliver(self, table: pa.Table) -> None:
        """Add the windows of an epoch. The sink calls this once per epoch."""
        self.windows.append(table)
        fill(self.waterfall.cells, table, LENGTH)
        if len(table):
            last = max(table["end"].to_pylist()) / 1e6 - BEGIN.timestamp()
            self.waterfall.reached = min(int(last // SLIDE_S), self.waterfall.cells.shape[1])

    def note(self, progress: Iterable[StreamingQueryProgress]) -> None:
        """Update the counts from Spark's progress reports."""
        epochs = [p for p in progress if p.numInputRows]
        self.epochs = len(epochs)
        self.rows = sum(p.numInputRows for p in epochs)
        self.null_times = sum(metrics["null_time"] for p in epochs for metrics in p.observedMetrics.values())
        if epochs:
            self.rate = epochs[-1].processedRowsPerSecond

    def line(self) -> Text:
        """The progress line."""
        share = self.rows / self.expected
        bar = "━" * min(_BAR, round(_BAR * share))
        return Text.assemble(
            self.phase.__rich__(), "  ", (bar, "cyan"), ("━" * (_BAR - len(bar)), "bright_black"),
            f"  {clock(self.waterfall.reached * SLIDE_S)}", f"  {self.rows:,}", (" reports  ", "dim"),
            f"{self.delivered:,}", (" windows  ", "dim"), f"{self.rate:,.0f}", ("/s", "dim"), no_wrap=True,
        )  # fmt: skip

    def __rich__(self) -> Group:
        return Group(self.waterfall, self.line())


def replay(
    spark: SparkSession, reports: Path, work: Path, *, rows: int, minutes: int, files_per_epoch: int, console: Console
) -> Replay:
    """Read the files as a stream, a few per epoch, until there are no more, and show the results.

    A stream delivers a window when it is complete, which means that the watermark has passed its end. Windows that are
    still open when the files end are not delivered.
    """
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_epoch).parquet(str(reports))
    # The reports come in the order of time, so the watermark needs no delay.
    speeds = flat(sliding_speeds(files, (LENGTH,), watermark="0 seconds").to_df())
    step = Phase("Streaming")
    screen = _Screen(step, Waterfall(np.full((SEGMENTS, columns(minutes)), np.nan)), rows)

    def sink(windows: DataFrame, epoch: int) -> None:
        folder = work / f"epoch-{epoch:05d}"
        try:
            windows.write.mode("overwrite").parquet(str(folder))
            screen.deliver(read(folder))
        except Exception as error:
            # A long message overflows the stack of a regular expression in Spark, so raise a short one.
            screen.failure = error
            raise RuntimeError("the sink failed") from None

    query = (
        speeds.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        _watch(query, screen, console)
    except StreamingQueryException as error:
        raise screen.failure or error from error
    finally:
        query.stop()
    step.done = (
        f"Stream: {screen.rows:,} reports in {screen.epochs} epochs, {screen.delivered:,} windows of {LENGTH} "
        f"delivered as they became complete; "
        f"{screen.null_times:,} reports without a time counted and skipped"
    )
    finish(console, step)
    return Replay(screen.rows, screen.null_times, screen.epochs, step.seconds, pa.concat_tables(screen.windows))


def _watch(query: StreamingQuery, screen: _Screen, console: Console) -> None:
    """Update the screen until the stream ends. Without a terminal, print nothing before the end."""
    shown = -1
    with Live(screen if console.is_terminal else Text(), console=console, refresh_per_second=8):
        while query.isActive:
            last = query.lastProgress
            if last is not None and last.batchId != shown:
                shown = last.batchId
                screen.note(query.recentProgress)
            time.sleep(_POLL_S)
        query.awaitTermination()  # raises the error of a failed stream
        screen.note(query.recentProgress)
