"""Gates: which tuples of a physical window the query accepts. All tuples are counted, accepted or not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.io.blocks import micros_of
from anabranch.keys.census import KeyCounter
from anabranch.windows.ids import FARTHEST, Stretch


@dataclass
class Census:
    """What a splitter read: all tuples, also those that are late or have no time."""

    rows: int = 0
    late: int = 0
    bad: int = 0
    max_t: int | None = None
    keys: KeyCounter = field(default_factory=KeyCounter)

    def saw(self, max_t: Any) -> None:
        if max_t is not None:
            self.max_t = int(max_t) if self.max_t is None else max(self.max_t, int(max_t))


class Gate(ABC):
    """Lets the tuples through that the query accepts, and counts the others."""

    @abstractmethod
    def __call__(self, window: pa.RecordBatch, census: Census) -> pa.RecordBatch: ...


@dataclass(frozen=True)
class RowGate(Gate):
    """Accepts tuples that the watermark has not passed. `late_before` is the watermark when the epoch began.

    A tuple with a time after `limit` counts as one without a time: it is too far ahead (`runtime.driver.ahead`). So
    does one whose time is too far from 1970 for any window.
    """

    time: str
    late_before: int | None
    limit: int | None = None

    def __call__(self, window: pa.RecordBatch, census: Census) -> pa.RecordBatch:
        times = micros_of(window.column(self.time))
        limit = FARTHEST if self.limit is None else min(self.limit, FARTHEST)
        earliest, latest = pc.min_max(times).as_py().values()
        if latest is not None and (latest > limit or earliest < -FARTHEST):
            within = pc.and_(pc.less_equal(times, limit), pc.greater_equal(times, -FARTHEST))
            times = pc.if_else(within, times, None)
            latest = pc.max(times).as_py()
        census.rows += window.num_rows
        census.bad += times.null_count
        census.saw(latest)
        if self.late_before is None:
            return window.filter(times.is_valid()) if times.null_count else window
        on_time = pc.greater_equal(times, self.late_before)
        passed = pc.sum(on_time).as_py() or 0
        census.late += window.num_rows - times.null_count - passed
        return window if passed == window.num_rows else window.filter(on_time)


class OpenGate(Gate):
    """Lets everything through."""

    def __call__(self, window: pa.RecordBatch, census: Census) -> pa.RecordBatch:
        census.rows += window.num_rows
        return window


@dataclass(frozen=True)
class PaneGate(Gate):
    """Accepts panes that Spark made of the tuples. Panes of late tuples, and of those without a time, have no id.

    `timed` (how many rows have a time) and `max_t` are columns that are removed here.
    """

    pane: str
    rows: str
    timed: str
    max_t: str

    def __call__(self, window: pa.RecordBatch, census: Census) -> pa.RecordBatch:
        rows = pc.sum(window.column(self.rows)).as_py() or 0
        census.rows += rows
        census.saw(pc.max(window.column(self.max_t)).as_py())
        panes = window.column(self.pane)
        if panes.null_count:
            outside = window.filter(panes.is_null())
            timed = pc.sum(outside.column(self.timed)).as_py() or 0
            census.late += timed
            census.bad += (pc.sum(outside.column(self.rows)).as_py() or 0) - timed
            window = window.filter(panes.is_valid())
        return window.drop_columns([self.timed, self.max_t])


@dataclass(frozen=True)
class CountingPaneGate(PaneGate):
    """Accepts panes that were evaluated where a partitioner had sent their tuples, and counts which keys are where.

    The column `part` says which worker evaluated a pane, modulo `workers`; `hashed` is the hash of its key, and is
    removed here. `stretch` is in panes.
    """

    part: str
    hashed: str
    workers: int
    stretch: Stretch

    def __call__(self, window: pa.RecordBatch, census: Census) -> pa.RecordBatch:
        window = super().__call__(window, census)
        windows = self.stretch.of(window.column(self.pane).to_numpy())
        workers = window.column(self.part).to_numpy() % self.workers
        census.keys.add(windows, workers, window.column(self.hashed).to_numpy(), window.column(self.rows).to_numpy())
        return window.drop_columns([self.hashed])
