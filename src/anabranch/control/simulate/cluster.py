"""A simulated cluster: slots with speeds, and work that says how many busy seconds an epoch's rows cost.

A **slot** runs one task at a time. At speed 1 a task takes as long as the costs say, at speed 0.5 twice as long. Task i
of a stage runs on slot i modulo the number of slots, after the tasks already there. A stage ends with its last slot,
and then the next begins, as at an exchange in Spark.

The work is counted from its definition (each window sees each of its rows), not with the formulas of the controllers:
otherwise both would share a mistake in the formulas, and no simulation could show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from anabranch.errors import InvalidArgumentError
from anabranch.observe.progress import OperatorProgress, SplitterMeasure, WorkerMeasure
from anabranch.split.cost import SplitCosts
from anabranch.windows import Window
from anabranch.windows.ids import replication


@dataclass(frozen=True)
class Cluster:
    """The speeds of the slots, and the noise of measured times (relative standard deviation)."""

    speeds: tuple[float, ...]
    noise: float = 0.0
    overhead: float = 0.1
    """fixed seconds per epoch"""

    def __post_init__(self) -> None:
        if not self.speeds or min(self.speeds) <= 0:
            raise InvalidArgumentError(
                f"speeds {self.speeds!r}: a task on such a cluster would never end",
                hint="give at least one slot, each with a speed above 0",
            )

    @classmethod
    def uniform(cls, slots: int, *, noise: float = 0.0, overhead: float = 0.1) -> Cluster:
        """A cluster whose slots all have speed 1."""
        return cls((1.0,) * slots, noise, overhead)

    def busy(self, task: int, cost: float, rng: np.random.Generator) -> float:
        """Seconds that a task of that cost is busy."""
        noise = float(rng.lognormal(0.0, self.noise)) if self.noise > 0 else 1.0
        return cost * noise / self.speeds[task % len(self.speeds)]

    def stage(self, busy: Sequence[float]) -> float:
        """Seconds until the last slot has finished its tasks."""
        slots = [0.0] * len(self.speeds)
        for task, seconds in enumerate(busy):
            slots[task % len(slots)] += seconds
        return max(slots)


class Work(Protocol):
    """One operator: the work on the rows of an epoch, which cover `span` seconds of the stream."""

    def epoch(
        self, rows: int, span: float, settings: Mapping[str, Any], cluster: Cluster, rng: np.random.Generator
    ) -> OperatorProgress: ...


@dataclass(frozen=True)
class WindowWork:
    """A sliding aggregate with batch partitioning; reads the setting `batch`."""

    window: Window
    """in panes"""
    pane_seconds: float
    workers: int
    update: float
    """seconds to add one row to one window"""
    open_close: float
    """seconds per result"""
    other: float
    """seconds per copy of a row"""
    name: str = "aggregate"

    def epoch(
        self, rows: int, span: float, settings: Mapping[str, Any], cluster: Cluster, rng: np.random.Generator
    ) -> OperatorProgress:
        copies = _shares(round(rows * replication(self.window, int(settings.get("batch", 1)))), self.workers)
        emitted = round(span / (self.window.slide * self.pane_seconds))
        # With any batch size, each row is added once to each of its windows, and each window is delivered once.
        fixed = (rows * self.window.overlap * self.update + emitted * self.open_close) / self.workers
        busy = [cluster.busy(i, fixed + copies[i] * self.other, rng) for i in range(self.workers)]
        measures = tuple(WorkerMeasure(i, copies[i], busy[i], query_seconds=busy[i]) for i in range(self.workers))
        seconds = cluster.stage(busy)
        return OperatorProgress(self.name, rows, emitted, seconds=seconds, workers=measures, decisions=settings)


@dataclass(frozen=True)
class SplitWork:
    """A parallel split and its q query processors; reads the settings `splitters` and `window_bytes`."""

    costs: SplitCosts
    q: int
    row_bytes: int = 64
    per_window: float = 0.0
    """seconds per physical window, in addition to its rows; this makes small ones slow"""
    name: str = "split"

    def epoch(
        self, rows: int, span: float, settings: Mapping[str, Any], cluster: Cluster, rng: np.random.Generator
    ) -> OperatorProgress:
        p, size = int(settings.get("splitters", 1)), int(settings.get("window_bytes", 4096))
        splitters = tuple(self._splitter(i, share, size, cluster, rng) for i, share in enumerate(_shares(rows, p)))
        broadcast = sum(s.broadcast for s in splitters)
        workers = tuple(
            self._worker(j, share + broadcast, p, cluster, rng)
            for j, share in enumerate(_shares(sum(s.routed for s in splitters), self.q))
        )
        seconds = cluster.stage([s.seconds for s in splitters]) + cluster.stage([w.seconds for w in workers])
        return OperatorProgress(
            self.name, rows, seconds=seconds, workers=workers, splitters=splitters, decisions=settings
        )

    def _splitter(self, i: int, rows: int, size: int, cluster: Cluster, rng: np.random.Generator) -> SplitterMeasure:
        broadcast, omitted = round(rows * self.costs.b), round(rows * self.costs.o)
        routed = rows - broadcast - omitted
        copies = routed + broadcast * self.q
        windows = -(-rows * self.row_bytes // size)
        return SplitterMeasure(
            i,
            rows,
            windows,
            rows * self.row_bytes,
            copies * self.row_bytes,
            routed,
            broadcast,
            omitted,
            read_seconds=cluster.busy(i, rows * self.costs.cr_w + windows * self.per_window, rng),
            split_seconds=cluster.busy(i, (omitted + copies) * self.costs.cs, rng),
            emit_seconds=cluster.busy(i, copies * self.costs.ce, rng),
        )

    def _worker(self, j: int, rows: int, p: int, cluster: Cluster, rng: np.random.Generator) -> WorkerMeasure:
        read = cluster.busy(j, rows * self.costs.cr, rng)
        merge = cluster.busy(j, rows * p * (self.costs.cp + self.costs.cm), rng)
        query = cluster.busy(j, rows * self.costs.O, rng)
        return WorkerMeasure(j, rows, read + merge + query, merge_seconds=merge, query_seconds=query, read_seconds=read)


def _shares(total: int, parts: int) -> list[int]:
    """`total` divided into whole parts that differ by at most 1."""
    return [total // parts + (i < total % parts) for i in range(parts)]
