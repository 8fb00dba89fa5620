"""A worker that becomes slow while a join runs: how long until latency is within its bound again.

Two workers, a core each: the tasks of worker i are held on core i while they join. After some epochs a busy process is
started on the core of the last worker, which then has half of it. Tuples come in real time, at a pace for which a first
run measures what an epoch costs: two healthy workers keep up, and so do a healthy one and a slow one that share the
work as they can, but not with half of it each.

The probe is the paper's, nested loops over groups that are not fine-tuned: it is the join that has to be the load, and
with a hashed probe the machinery around it would be.
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
from anabranch.bench.join_runs import CHUNK, Recording, Watch, joined
from anabranch.bench.join_streams import SECOND
from anabranch.operators.join import JoinOperator
from anabranch.operators.protocol import Emitted
from anabranch.runtime.execution import base
from anabranch.sinks import NoopSink
from anabranch.types import EpochProgress, EpochQuery

WORKERS = 2
EPOCH = 3.0
"""t_d, in seconds"""
SPARE = 0.05
"""of t_d: by how much balanced work is to fit, and by twice as much unbalanced work is not"""
EVERY = 5
"""distribution epochs of a reorganisation epoch"""
BOUND = 2.5
"""latency at most, in t_d: one to wait, one to be joined, and some"""


class HeldJoin(JoinOperator):
    """Joins on the core of its worker."""

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
        # The next task of this process may be any other's.
        os.sched_setaffinity(0, everywhere)


@dataclass
class Delays(Watch):
    """The latency of each epoch, in t_d; starts the busy process after some of them."""

    slow_after: int = 0
    busy: subprocess.Popen[bytes] | None = None
    latencies: list[float] = field(default_factory=list)

    def on_progress(self, progress: EpochProgress) -> None:
        # The oldest tuple of an epoch came when the one before it had been cut off.
        cut = self.seen[-1].started if self.seen else progress.started - EPOCH
        self.latencies.append((progress.started + progress.seconds - cut) / EPOCH)
        super().on_progress(progress)
        if len(self.seen) == self.slow_after:
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
    """What became of the latency, in t_d, epoch by epoch, once a worker was slow."""

    pace: float
    rebalanced: bool
    latencies: tuple[float, ...]
    slow_from: int
    moved: tuple[int, ...] = ()
    """epochs in which groups went elsewhere"""

    @property
    def epochs(self) -> float:
        """Reorganisation epochs from when the worker became slow until the bound is kept for good."""
        outside = [i for i, latency in enumerate(self.latencies) if i >= self.slow_from and latency > BOUND]
        if not outside:
            return 0.0
        if outside[-1] == len(self.latencies) - 1:
            return float("inf")
        return -(-(outside[-1] + 1 - self.slow_from) // EVERY)


def recover(
    spark: SparkSession, recording: Recording, folder: Path, *, rebalance: bool, pace: float | None, epochs: int
) -> Recovery:
    """Run the join in real time, with a worker that becomes slow. Without a pace, first find out what it must be."""
    tuning = ab.JoinTuning(
        probe="nested", fine_tuning=False, rebalance=rebalance, decluster=False, reorganise_every=EVERY
    )
    vars(base)["JoinOperator"] = HeldJoin  # no query of a user has workers that are held on a core
    try:
        if pace is None:
            pace = _pace(spark, recording, folder / "calibration", tuning)
        # The first epochs fill the windows as fast as they can, and say nothing.
        filling = recording.pieces_before + 1
        watch = Delays(float("inf"), 0, slow_after=filling + EVERY)
        query = _start(spark, recording, folder / str(rebalance), tuning, watch, pace=pace)
        try:
            while len(watch.seen) < filling + EVERY + epochs and not watch.enough.wait(0.5):
                pass
            query.stop()
        finally:
            watch.stop()
        error = query.exception()
        if error is not None:
            raise error
    finally:
        vars(base)["JoinOperator"] = JoinOperator
    tables = [each.operators[0].decisions["routing"] for each in watch.seen[filling:]]
    moved = tuple(i for i in range(1, len(tables)) if tables[i] != tables[i - 1])
    return Recovery(pace, rebalance, tuple(watch.latencies[filling:]), EVERY, moved)


def _pace(spark: SparkSession, recording: Recording, folder: Path, tuning: ab.JoinTuning) -> float:
    """How many seconds of the recording must come in a second, so that a slow worker matters and can be helped."""
    watch = Watch(2 * recording.rate * (recording.fill + 4 * EPOCH), 1)
    query = _start(spark, recording, folder, tuning, watch, pace=None)
    watch.enough.wait()
    query.stop()
    last = watch.seen[-4:]
    intervals = [b.started - a.started for a, b in pairwise(watch.seen[-5:])]
    busy = statistics.median(max(worker.seconds for worker in each.operators[0].workers) for each in last)
    other = max(0.0, statistics.median(intervals) - busy)
    # Balanced, the slow worker has a third of the work, and takes 4/3 of what each takes if both are well; else twice.
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
