"""The run itself: the recorded trace as a paced stream through the query network, watched epoch by epoch.

**Response times** are honest only if they count from when a tuple was *due*, not from when it was read: a system that
falls behind reads late. With a pace the replay's clock starts at its first question, and a tuple of second t is due
t / pace seconds later:

    began            asked what is due      started             published
    |────────────────|──────────────────────|───────────────────|───▶ wall
    clock at 0       seconds before t are    the epoch runs      its answers can be read

The clock is in a process of Spark's, so that `began` is not known. But of each epoch Spark tells when it was asked for;
the clock was then before t, the second of the first tuple that the epoch did not get. So `began` is later than
asked - t / pace. The latest of these bounds is taken, which is some milliseconds too early: response times are too long
by as much, never too short.

Without a pace nothing is ever due, and the time from reading to publishing is all that can be said.
"""

from __future__ import annotations

import json
import math
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

import anabranch as ab
from anabranch.errors import JobError
from anabranch.linearroad.demo.told import Epoch, Floats, Ints, Told
from anabranch.linearroad.generate import Trace
from anabranch.linearroad.job import live_folder
from anabranch.linearroad.operator import road_of
from anabranch.linearroad.query import linear_road, recorded
from anabranch.linearroad.schema import LIMITS, Mode
from anabranch.types import EpochProgress, EpochQuery

EPOCHS = 48
"""At most so many without a pace; with one, there are as many as the machine can do."""
SMALLEST_EPOCH = 10_000
"""Tuples; with fewer, an epoch is nothing but its own beginning and end."""
ANSWERS_FOLDER = "answers"
_LOOK = 0.5
"""Seconds between two looks whether the query still lives."""


@dataclass
class DueClock:
    """The wall time at which each second of the simulation was due; see the module."""

    pace: float
    began: float = -math.inf

    def note(self, asked: float, following: int) -> None:
        """At that wall time somebody asked what is due, and tuples of the following second were not yet."""
        self.began = max(self.began, asked - following / self.pace)

    def due(self, second: int | Ints) -> Any:
        """Wall time, seconds since 1970."""
        return self.began + second / self.pace


@dataclass(frozen=True)
class Response:
    """Response times of many answers, in wall seconds."""

    median: float
    worst: float
    late: int = 0
    """Answers after the limit of their kind."""


@dataclass
class Driven:
    """A run: what was told, the epochs, and the clock if there was one."""

    told: Told
    clock: DueClock | None
    epochs: list[Epoch] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Wall seconds from the first epoch's start to the last one's end."""
        return self.epochs[-1].published - self.epochs[0].started if self.epochs else 0.0

    @property
    def rate(self) -> float:
        """Tuples per wall second, over the run."""
        return self.told.tuples / self.seconds if self.seconds else 0.0

    def responses(self, epoch: Epoch) -> Floats:
        """The response time of each second of an epoch: all its answers are published at once."""
        seconds = np.arange(epoch.first, epoch.last + 1)
        if self.clock is None or not math.isfinite(self.clock.began):
            return np.full(len(seconds), epoch.seconds)
        times: Floats = epoch.published - self.clock.due(seconds)
        return times

    def response(self, epochs: Sequence[Epoch], kinds: Sequence[str] = tuple(LIMITS)) -> Response | None:
        """Over all answers of these kinds in these epochs; None if there are none."""
        if not epochs:
            return None
        times = np.concatenate([self.responses(epoch) for epoch in epochs])
        seconds = np.concatenate([np.arange(epoch.first, epoch.last + 1) for epoch in epochs])
        answers = {kind: self.told.answers[kind][seconds] for kind in kinds}
        counts = sum(answers.values(), np.zeros(len(seconds), np.int64))
        if not counts.any():
            return None
        late = sum(int(answers[kind][times > LIMITS[kind]].sum()) for kind in kinds)
        return Response(weighted_median(times, counts), float(times[counts > 0].max()), late)


def weighted_median(values: Floats, counts: Ints) -> float:
    """The median of the values, each taken so many times."""
    order = np.argsort(values)
    upto = np.cumsum(counts[order])
    return float(values[order[np.searchsorted(upto, (upto[-1] + 1) // 2)]])


def drive(
    spark: SparkSession,
    trace: Trace,
    work: Path,
    *,
    pace: float | None,
    shown: Callable[[Driven], None] = lambda driven: None,
) -> Driven:
    """Answer the whole trace, into ``work/answers``; `shown` is called after each epoch."""
    output = work / ANSWERS_FOLDER
    road = road_of(Mode.PAPER, trace.expressways, trace.history_file, trace.segment_history_file)
    rows_per_epoch = None if pace is not None else max(SMALLEST_EPOCH, -(-trace.tuples // EPOCHS))
    reports = recorded(spark, trace.folder / "blocks", pace=pace, rows_per_epoch=rows_per_epoch)
    driven = Driven(Told(trace), None if pace is None else DueClock(pace))
    heard = _Heard()
    with live_folder() as live:
        query = ab.start(
            *linear_road(reports, road, output),
            checkpoint=work / "checkpoint",
            live=live,
            trigger="available-now" if pace is None else None,
            listeners=[heard],
        )
        # A recording with a pace has no end that Spark would know of: it is over when all tuples have been answered.
        with _stopped(query):
            while driven.told.tuples < trace.tuples:
                progress = heard.next(query)
                epoch = driven.told.read(progress.epoch, progress.rows, progress.started, progress.seconds, output)
                driven.epochs.append(epoch)
                _set(driven, query.spark_query.lastProgress)
                shown(driven)
    for told in query.spark_query.recentProgress:
        _set(driven, told)
    return driven


class _Heard:
    """A listener that hands epochs to the main thread, so that reading the answers does not hold up the next epoch."""

    def __init__(self) -> None:
        self._epochs: queue.Queue[EpochProgress] = queue.Queue()

    def on_started(self, query: str, run: str) -> None:
        pass

    def on_progress(self, progress: EpochProgress) -> None:
        if progress.rows:
            self._epochs.put(progress)

    def on_terminated(self, query: str, error: str | None) -> None:
        pass

    def next(self, query: EpochQuery) -> EpochProgress:
        """The next epoch; an error if there will be none."""
        while True:
            lives = query.isActive
            try:
                return self._epochs.get(timeout=_LOOK)
            except queue.Empty:
                if not lives:
                    raise _ended(query) from None


def _ended(query: EpochQuery) -> JobError:
    query.stop()
    cause = "the query was stopped" if query.health.ok else query.health.why
    return JobError(f"the run ended before its last tuple: {cause}", hint="mend the cause and run the demo again")


@contextmanager
def _stopped(query: EpochQuery) -> Iterator[None]:
    """Whatever happens, no query is left running."""
    try:
        yield
    finally:
        query.stop()


def _set(driven: Driven, progress: StreamingQueryProgress | None) -> None:
    """Let the clock hear what Spark says of an epoch; one without rows says nothing of the clock."""
    if driven.clock is None or progress is None or not progress["numInputRows"]:
        return
    asked, row = asked_of(progress)
    following = driven.told.second_of(row)
    if following is not None:
        driven.clock.note(asked, following)


def asked_of(progress: StreamingQueryProgress | Mapping[str, Any]) -> tuple[float, int]:
    """When Spark asked the source for an epoch, and the row up to which it was given."""
    offset = progress["sources"][0]["endOffset"]
    asked = datetime.fromisoformat(progress["timestamp"]).timestamp()
    return asked, int((json.loads(offset) if isinstance(offset, str) else offset)["row"])
