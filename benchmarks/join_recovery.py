"""A worker that becomes slow while a join runs: how long until latency is within its bound again.

There are two workers with a core each: the tasks of worker i are pinned to core i while they join. After some epochs a
busy process starts on the core of the last worker, which then has half of that core. Tuples come in real time, at a
pace that is chosen by a first run. At that pace two healthy workers keep up. A healthy and a slow worker keep up if
they share the work according to their speed, but not if each has half of it.

The probe is nested loops over groups that are not fine-tuned, so that the join is most of the load. With a hashed probe
most of the load would be the machinery around it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.io.sinks.noop import NoopSink
from anabranch.operators.join import JoinOperator
from anabranch.operators.protocol import Emitted
from anabranch.runtime.execution import join as join_execution
from anabranch.runtime.handle import EpochQuery
from anabranch.types import EpochProgress
from benchmarks.join_runs import CHUNK, Recording, Watch, joined
from benchmarks.join_streams import SECOND

WORKERS = 2
EPOCH = 3.0
"""t_d in seconds."""
SPARE = 0.05
"""Share of t_d by which balanced work fits into an epoch. Unbalanced work exceeds the epoch by twice as much."""
EVERY = 5
"""Distribution epochs in a reorganisation epoch."""
BOUND = 2.5
"""The largest latency allowed, in t_d: one to wait, one to be joined, and a reserve."""


class HeldJoin(JoinOperator):
    """A join that is pinned to the core of its worker."""

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
        with _on_core_of_worker():
            yield from super().process(block, port)

    def on_watermark(self, t: int) -> Iterator[Emitted]:
        with _on_core_of_worker():
            yield from super().on_watermark(t)


@contextmanager
def _on_core_of_worker() -> Iterator[None]:
    context = TaskContext.get()
    everywhere = os.sched_getaffinity(0)
    cores = sorted(everywhere)
    if context is not None:
        os.sched_setaffinity(0, {cores[context.partitionId() % len(cores)]})
    try:
        yield
    finally:
        # The next task of this process may belong to another worker.
        os.sched_setaffinity(0, everywhere)


@dataclass
class Delays(Watch):
    """Keeps the latency of each epoch in t_d, and starts the busy process after some epochs."""

    slow_after: int = 0
    busy: subprocess.Popen[bytes] | None = None
    latencies: list[float] = field(default_factory=list)

    def on_progress(self, progress: EpochProgress) -> None:
        # The oldest tuple of an epoch arrived when the epoch before it started.
        cut = self.history[-1].started if self.history else progress.started - EPOCH
        self.latencies.append((progress.started + progress.seconds - cut) / EPOCH)
        super().on_progress(progress)
        if len(self.history) == self.slow_after:
            self.busy = _busy_process()

    def stop(self) -> None:
        if self.busy is not None:
            self.busy.kill()
            self.busy.wait()


def _busy_process() -> subprocess.Popen[bytes]:
    core = sorted(os.sched_getaffinity(0))[WORKERS - 1]
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    return subprocess.Popen([sys.executable, "-c", spin])


@dataclass(frozen=True)
class Recovery:
    """The latency of each epoch in t_d, before and after a worker became slow."""

    pace: float
    rebalanced: bool
    latencies: tuple[float, ...]
    slow_from: int
    moved: tuple[int, ...] = ()
    """Epochs in which groups moved to another worker."""

    @property
    def epochs(self) -> float:
        """Reorganisation epochs from when the worker became slow until latency stays within the bound."""
        outside = [i for i, latency in enumerate(self.latencies) if i >= self.slow_from and latency > BOUND]
        if not outside:
            return 0.0
        if outside[-1] == len(self.latencies) - 1:
            return float("inf")
        return -(-(outside[-1] + 1 - self.slow_from) // EVERY)


def recover(
    spark: SparkSession, recording: Recording, folder: Path, *, rebalance: bool, pace: float | None, epochs: int
) -> Recovery:
    """Run the join in real time with a worker that becomes slow. Without a pace, choose one first."""
    tuning = ab.JoinTuning(
        probe="nested", fine_tuning=False, rebalance=rebalance, decluster=False, reorganise_every=EVERY
    )
    original = vars(join_execution)["JoinOperator"]  # fails if the runtime makes joins elsewhere
    vars(join_execution)["JoinOperator"] = HeldJoin  # the public API has no way to pin workers to cores
    try:
        if pace is None:
            pace = _pace(spark, recording, folder / "calibration", tuning)
        # The first epochs fill the windows as fast as they can, and do not count.
        filling = recording.pieces_before + 1
        watch = Delays(float("inf"), 0, slow_after=filling + EVERY)
        query = _start(spark, recording, folder / str(rebalance), tuning, watch, pace=pace)
        try:
            while len(watch.history) < filling + EVERY + epochs and not watch.enough.wait(0.5):
                pass
            query.stop()
        finally:
            watch.stop()
        error = query.exception()
        if error is not None:
            raise error
    finally:
        vars(join_execution)["JoinOperator"] = original
    tables = [each.operators[0].decisions["routing"] for each in watch.history[filling:]]
    moved = tuple(i for i in range(1, len(tables)) if tables[i] != tables[i - 1])
    return Recovery(pace, rebalance, tuple(watch.latencies[filling:]), EVERY, moved)


def _pace(spark: SparkSession, recording: Recording, folder: Path, tuning: ab.JoinTuning) -> float:
    """Seconds of the recording per second, such that a slow worker matters and rebalancing can help."""
    watch = Watch(2 * recording.rate * (recording.fill + 4 * EPOCH), 1)
    query = _start(spark, recording, folder, tuning, watch, pace=None)
    watch.enough.wait()
    query.stop()
    last = watch.history[-4:]
    intervals = [b.started - a.started for a, b in pairwise(watch.history[-5:])]
    busy = statistics.median(max(worker.seconds for worker in each.operators[0].workers) for each in last)
    other = max(0.0, statistics.median(intervals) - busy)
    # Balanced, the slow worker has a third of the work and takes 4/3 of the time of two healthy ones; else twice that.
    most, least = ((1 - SPARE) * EPOCH - other) * 3 / 4, ((1 + 2 * SPARE) * EPOCH - other) / 2
    return (most + least) / 2 / busy


def _start(
    spark: SparkSession, recording: Recording, folder: Path, tuning: ab.JoinTuning, watch: Watch, *, pace: float | None
) -> EpochQuery:
    clock: dict[str, Any] = {"rows_per_epoch": round(recording.rate * EPOCH)}
    if pace is not None:
        clock = {"pace": pace, "pace_from": recording.fill * SECOND, "rows_per_epoch": round(recording.rate * CHUNK)}
    places: dict[str, Any] = {"checkpoint": folder / "checkpoint", "live": folder / "live", "workers": WORKERS}
    trigger = None if pace is None else f"{EPOCH} s"
    join = joined(spark, recording, tuning, **clock)
    return join.start(NoopSink(), trigger=trigger, listeners=[watch], **places)
