"""The run: the recorded trace as a paced stream through the query network, followed epoch by epoch.

**Response times** must count from when a tuple was *due*, not from when it was read: a system that falls behind reads
late. With a pace, the replay's clock starts when Spark first asks what is due, and a tuple of second t is due
t / pace seconds later:

    began            asked what is due      started             published
    |────────────────|──────────────────────|───────────────────|───▶ wall
    clock at 0       seconds before t are    the epoch runs      its answers can be read

The clock is in one of Spark's processes, so `began` is not known. But Spark reports when it asked for each epoch; at
that time the clock was before t, the second of the first tuple that the epoch did not get. So `began` is later than
asked - t / pace. The latest of these bounds is used. It is a few milliseconds too early, so response times are that
much too long, never too short.

Without a pace no tuple is ever due, and only the time from reading to publishing is known.
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
from anabranch.linearroad.demo.road_map import Epoch, Floats, Ints, RoadMap
from anabranch.linearroad.generate import Trace
from anabranch.linearroad.job import live_folder
from anabranch.linearroad.operator import road_of
from anabranch.linearroad.query import linear_road, recorded
from anabranch.linearroad.schema import LIMITS, Mode
from anabranch.types import EpochProgress, EpochQuery

EPOCHS = 48
"""Maximum number of epochs without a pace; with one, there are as many as the machine can run."""
SMALLEST_EPOCH = 10_000
"""Minimum number of tuples in an epoch: smaller epochs are mostly overhead."""
ANSWERS_FOLDER = "answers"
_POLL_SECONDS = 0.5
"""Seconds between two checks whether the query is still active."""


@dataclass
class DueClock:
    """The wall time at which each second of the simulation was due; see the module's docstring."""

    pace: float
    began: float = -math.inf

    def note(self, asked: float, following: int) -> None:
        """At wall time `asked`, Spark asked what is due, and tuples of the second `following` were not yet due."""
        self.began = max(self.began, asked - following / self.pace)

    def due(self, second: int | Ints) -> Any:
        """The wall time at which a second is due, in seconds since 1970."""
        return self.began + second / self.pace


@dataclass(frozen=True)
class Response:
    """Response times of many answers, in wall seconds."""

    median: float
    worst: float
    late: int = 0
    """Number of answers after the limit of their kind."""


@dataclass
class Driven:
    """A run: the map of the roads, the epochs, and the clock if there was a pace."""

    road_map: RoadMap
    clock: DueClock | None
    epochs: list[Epoch] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Wall seconds from the first epoch's start to the last one's end."""
        return self.epochs[-1].published - self.epochs[0].started if self.epochs else 0.0

    @property
    def rate(self) -> float:
        """Tuples per wall second over the whole run."""
        return self.road_map.tuples / self.seconds if self.seconds else 0.0

    def responses(self, epoch: Epoch) -> Floats:
        """The response time of each second of an epoch: all its answers are published at once."""
        seconds = np.arange(epoch.first, epoch.last + 1)
        if self.clock is None or not math.isfinite(self.clock.began):
            return np.full(len(seconds), epoch.seconds)
        times: Floats = epoch.published - self.clock.due(seconds)
        return times

    def response(self, epochs: Sequence[Epoch], kinds: Sequence[str] = tuple(LIMITS)) -> Response | None:
        """The response times of all answers of these kinds in these epochs; None if there are none."""
        if not epochs:
            return None
        times = np.concatenate([self.responses(epoch) for epoch in epochs])
        seconds = np.concatenate([np.arange(epoch.first, epoch.last + 1) for epoch in epochs])
        answers = {kind: self.road_map.answers[kind][seconds] for kind in kinds}
        counts = sum(answers.values(), np.zeros(len(seconds), np.int64))
        if not counts.any():
            return None
        late = sum(int(answers[kind][times > LIMITS[kind]].sum()) for kind in kinds)
        return Response(weighted_median(times, counts), float(times[counts > 0].max()), late)


def weighted_median(values: Floats, counts: Ints) -> float:
    """The median of the values, each taken `counts` times."""
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
    """Answer the whole trace; the answers go to ``work/answers``. `shown` is called after each epoch."""
    output = work / ANSWERS_FOLDER
    road = road_of(Mode.PAPER, trace.expressways, trace.history_file, trace.segment_history_file)
    rows_per_epoch = None if pace is not None else max(SMALLEST_EPOCH, -(-trace.tuples // EPOCHS))
    reports = recorded(spark, trace.folder / "blocks", pace=pace, rows_per_epoch=rows_per_epoch)
    driven = Driven(RoadMap(trace), None if pace is None else DueClock(pace))
    epochs = _EpochQueue()
    with live_folder() as live:
        query = ab.start(
            *linear_road(reports, road, output),
            checkpoint=work / "checkpoint",
            live=live,
            trigger="available-now" if pace is None else None,
            listeners=[epochs],
        )
        # For Spark, a recording with a pace has no end: the run is over when all tuples have been answered.
        with _stopped(query):
            while driven.road_map.tuples < trace.tuples:
                progress = epochs.next(query)
                epoch = driven.road_map.read(progress.epoch, progress.rows, progress.started, progress.seconds, output)
                driven.epochs.append(epoch)
                _set_clock(driven, query.spark_query.lastProgress)
                shown(driven)
    for recent in query.spark_query.recentProgress:
        _set_clock(driven, recent)
    return driven


class _EpochQueue:
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
        """The next epoch. Raises an error if the query has ended."""
        while True:
            active = query.isActive
            try:
                return self._epochs.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if not active:
                    raise _ended(query) from None


def _ended(query: EpochQuery) -> JobError:
    query.stop()
    cause = "the query was stopped" if query.health.ok else query.health.why
    return JobError(f"the run ended before its last tuple: {cause}", hint="fix the cause and run the demo again")


@contextmanager
def _stopped(query: EpochQuery) -> Iterator[None]:
    """Stop the query in any case."""
    try:
        yield
    finally:
        query.stop()


def _set_clock(driven: Driven, progress: StreamingQueryProgress | None) -> None:
    """Set the clock from Spark's progress of an epoch; an epoch without rows says nothing about it."""
    if driven.clock is None or progress is None or not progress["numInputRows"]:
        return
    asked, row = asked_of(progress)
    following = driven.road_map.second_of(row)
    if following is not None:
        driven.clock.note(asked, following)


def asked_of(progress: StreamingQueryProgress | Mapping[str, Any]) -> tuple[float, int]:
    """When Spark asked the source for an epoch, and the row up to which it got tuples."""
    offset = progress["sources"][0]["endOffset"]
    asked = datetime.fromisoformat(progress["timestamp"]).timestamp()
    return asked, int((json.loads(offset) if isinstance(offset, str) else offset)["row"])
