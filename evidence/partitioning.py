"""Shared by the scripts of paper 3 (docs/papers.md): queries, the critical path of a window, and wall times on Spark.

The paper has a core for each of 8 to 32 workers. On a small machine, wall times show the sum of all work more than the
path through it. So the scripts report both:

- **wall time**: the query on Spark, on this machine, from rows in a file to the top ten groups.
- **critical path**: as *if every worker had a core*. The library's own operators run one after the other in this
  process, each on its part of the rows, and the CPU time of each is measured: the slowest worker's evaluation, then the
  aggregation. Nothing is sent over a network in between.

      Splitter ─┬▶ PartialEvaluation of worker 1 ─┬▶ Aggregation        path = max(evaluation) + aggregation
                └▶ PartialEvaluation of worker V ─┘

Where keys are split, *one* worker aggregates, as in the paper's equation (2). (`by_key` is what the plan on Spark does:
states are exchanged by key, and all workers aggregate.) Where keys are whole, workers make the windows themselves
(`WholeEvaluation`). As in the paper, the time to partition is not part of the path. It is reported separately, here and
by `paper3_figure13.py`.
"""

from __future__ import annotations

import gc
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from common import OUT, save_plot
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.aggregates.base import Aggregate
from anabranch.aggregates.partial_state import Evaluate, StateFold
from anabranch.keys.hashing import hash_keys
from anabranch.keys.policy import Partitioning
from anabranch.local.session import local_session
from anabranch.names import FIRST, LAST, PANE, ROWS, SPEC, input_name, key_name, state_name
from anabranch.operators.pane_runs import WindowSettings
from anabranch.operators.partial_windows import Aggregation, PartialEvaluation, WholeEvaluation
from anabranch.split.gates import OpenGate
from anabranch.split.key_routes import KeyRoute
from anabranch.split.readers import RowReader
from anabranch.split.splitter import Splitter
from anabranch.windows import Panes, Window
from anabranch.windows.ids import Stretch
from benchmarks.partitioner_latency import Question, latencies, write_windows
from benchmarks.partitioner_runs import AM_2, AM_2_H, AM_5, CAM_2, CAM_5, CM_2, FLD, LM_2, PK_2, PK_5, SH, WORKERS
from benchmarks.windows import ResultsDifferError
from benchmarks.workloads import Workload, shared_data, workload

DATA = OUT / "paper3"
BATCH_ROWS = 10_000
"""Rows in the batches that Spark passes to Python."""
STATE = pa.list_(pa.int64())


# --- queries --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InPython:
    """An aggregate in Python whose state is a list of whole numbers. `plain` is the same by Spark's functions."""

    columns: tuple[str, ...]
    init: Callable[[], Any]
    incr: Callable[..., Any]
    merge: Callable[[Any, Any], Any]
    final: Callable[[Any], Any]
    plain: Callable[[], Any]

    def aggregate(self) -> Aggregate:
        kind = "array<bigint>"
        return ab.user_aggregate(
            *self.columns, init=self.init, incr=self.incr, merge=self.merge, final=self.final, returns=kind, state=kind
        )


def _added(state: list[int], value: int) -> list[int]:
    state[0] += 1
    state[1] += value
    return state


def count_and_sum(column: str) -> InPython:
    return InPython(
        (column,),
        init=lambda: [0, 0],
        incr=_added,
        merge=lambda a, b: [a[0] + b[0], a[1] + b[1]],
        final=lambda state: state,
        plain=lambda: F.array(F.count(F.lit(1)), F.sum(column)),
    )


def _fares(state: list[int], cell: int, paid: int) -> list[int]:
    state += (cell, paid)
    return state


def fares_by_cell() -> InPython:
    """DEBS Q2, first index: the fares of trips from each cell. The result is their number and their sum."""
    return InPython(
        ("pickup_cell", "paid"),
        init=list,
        incr=_fares,
        merge=lambda a, b: a + b,
        final=lambda state: [len(state) // 2, sum(state[1::2])],
        plain=lambda: F.array(F.count(F.lit(1)), F.sum("paid")),
    )


def last_cell() -> InPython:
    """DEBS Q2, second index: where the taxi was last seen. Of two at the same time, the greater cell."""
    return InPython(
        ("at", "dropoff_cell"),
        init=lambda: [-1, -1],
        incr=lambda state, at, cell: max(state, [at, cell]),
        merge=max,
        final=lambda state: state[1:],
        plain=lambda: F.array(F.max(F.struct("at", F.col("dropoff_cell").cast("bigint").alias("cell")))["cell"]),
    )


@dataclass(frozen=True)
class Task:
    """A workload, and the aggregates of each group."""

    rows: Workload
    aggregates: Mapping[str, InPython]

    def question(self) -> Question:
        asked = {name: each.aggregate() for name, each in self.aggregates.items()}
        plain = {name: each.plain() for name, each in self.aggregates.items()}
        return Question(self.rows.name, self.rows.keys, asked, plain)


def task(name: str, *, scale: float = 1.0) -> Task:
    """The paper's query on this workload."""
    found = workload(name, DATA, scale=scale, shared=shared_data())
    if name != "debs-q2":
        return Task(found, {"total": count_and_sum(found.values[-1])})
    table = found.table.append_column("at", found.table["t"])
    return Task(Workload(**{**vars(found), "table": table}), {"fares": fares_by_cell(), "last": last_cell()})


# --- the critical path ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    """CPU seconds of the stages of one window."""

    partition: float
    evaluate: float
    """Evaluation by the slowest worker."""
    aggregate: float
    """Aggregation by one worker that combines everything; 0 where keys are whole."""
    by_key: float
    """Aggregation by the slowest worker if each has a share of the keys."""

    @property
    def seconds(self) -> float:
        return self.evaluate + self.aggregate

    @property
    def aggregation_share(self) -> float:
        return self.aggregate / self.seconds


class Stages:
    """The operators of a task, for one window of it."""

    def __init__(self, work: Task, rows: pa.Table) -> None:
        t = rows["t"].to_numpy()
        size = int(t[-1] - t[0]) + 1
        self.keys = tuple(key_name(i) for i in range(len(work.rows.keys)))
        every = list(work.aggregates.values())
        inputs = tuple(tuple(input_name(i, j) for j in range(len(a.columns))) for i, a in enumerate(every))
        columns = {plain: rows[key] for plain, key in zip(self.keys, work.rows.keys, strict=True)}
        columns["__t"] = rows["t"]
        for names, each in zip(inputs, every, strict=True):
            columns |= {name: rows[column] for name, column in zip(names, each.columns, strict=True)}
        self.rows = pa.table(columns)
        self.stretch = Stretch(size, int(t[0]))
        states = [(state_name(i), STATE) for i in range(len(every))]
        fields = [(key, self.rows.schema.field(key).type) for key in self.keys]
        schema = pa.schema([*fields, (PANE, pa.int64()), (ROWS, pa.int64()), *states])
        evaluate = tuple(Evaluate(a.init, a.incr, STATE) for a in every)
        self.evaluation = PartialEvaluation(self.keys, "__t", self.stretch, inputs, evaluate, schema)
        panes = Panes((Window(size, size, int(t[0])),))
        names = (*self.keys, SPEC, FIRST, LAST, ROWS, *(name for name, _ in states))
        folds = tuple(StateFold(STATE, a.merge, a.final, STATE) for a in every)
        self.aggregation = Aggregation(WindowSettings(panes.in_panes(), size, int(t[0]), folds, self.keys, names))
        self.whole = WholeEvaluation(self.evaluation, self.aggregation, folds)

    def run(self, how: Partitioning, workers: int) -> tuple[list[NDArray[np.float64]], pa.Table]:
        """One window through all stages: CPU seconds of each worker in each stage, and the result sorted by key."""
        route = KeyRoute(how, self.keys, time="__t", stretch=self.stretch)
        splitter = Splitter(0, RowReader(), OpenGate(), route, tuple(range(workers)), workers)
        batches = self.rows.to_batches(max_chunksize=BATCH_ROWS)
        partition, (packed,) = _timed(lambda read: list(splitter(iter(read))), [batches])
        blocks = pa.Table.from_batches(packed)
        to = blocks["worker"].to_numpy()
        gathered = [blocks.filter(pa.array(to == worker)).combine_chunks().to_batches() for worker in range(workers)]
        if how.keeps_keys_whole(1):
            evaluate, done = _timed(lambda mine: list(self.whole(iter(mine))), gathered)
            return [partition, evaluate, np.zeros(1), np.zeros(1)], self._sorted(done)
        evaluate, states = _timed(lambda mine: list(self.evaluation(iter(mine))), gathered)
        together = [batch for batches in states for batch in batches]
        one, done = self._aggregate([together])
        by_key, _ = self._aggregate(self._exchanged(together, workers))
        return [partition, evaluate, one, by_key], self._sorted(done)

    def _aggregate(self, states: Sequence[list[pa.RecordBatch]]) -> tuple[NDArray[np.float64], list[Any]]:
        return _timed(lambda mine: list(self.aggregation(iter(mine))), states)

    def _exchanged(self, states: list[pa.RecordBatch], workers: int) -> list[list[pa.RecordBatch]]:
        together = pa.Table.from_batches(states)
        to = hash_keys([together[key] for key in self.keys]).view(np.uint64) % np.uint64(workers)
        return [together.filter(pa.array(to == worker)).to_batches() for worker in range(workers)]

    def _sorted(self, done: Sequence[list[pa.RecordBatch]]) -> pa.Table:
        result = pa.Table.from_batches([batch for batches in done for batch in batches])
        return result.sort_by([(key, "ascending") for key in self.keys]).combine_chunks()


def _timed(run: Callable[[Any], Any], each: Sequence[Any]) -> tuple[NDArray[np.float64], list[Any]]:
    """CPU seconds of each, one after the other, and the results."""
    seconds, results = [], []
    for one in each:
        began = time.process_time()
        results.append(run(one))
        seconds.append(time.process_time() - began)
    return np.array(seconds), results


def _best(runs: Sequence[list[NDArray[np.float64]]]) -> Times:
    """Of several runs the best of each worker and stage, because noise only adds time; then the slowest worker."""
    return Times(*(float(np.min(stage, axis=0).max()) for stage in zip(*runs, strict=True)))


def paths(
    work: Task, policies: Sequence[Partitioning], *, workers: Sequence[int] = WORKERS, windows: int, repeats: int
) -> dict[tuple[str, int], list[Times]]:
    """By policy and workers: the critical path of each window, with the best of several repeats of each stage.

    Raises an error unless all policies give the same result.
    """
    gc.collect()
    gc.freeze()
    found: dict[tuple[str, int], list[Times]] = {(how.label, v): [] for v in workers for how in policies}
    for number, rows in enumerate(work.rows.windows(windows)):
        stages = Stages(work, rows)
        right = stages.run(FLD, 1)[1]
        for v in workers:
            for how in policies:
                runs = [stages.run(how, v) for _ in range(repeats)]
                if not all(result.equals(right) for _, result in runs):
                    raise ResultsDifferError(
                        f"{work.rows.name}, window {number}: {how.label} over {v} workers is wrong",
                        hint="this is a bug: please report it",
                    )
                found[how.label, v].append(_best([times for times, _ in runs]))
    return found


# --- wall time ------------------------------------------------------------------------------------------------------


def walls(
    spark: SparkSession,
    work: Task,
    policies: Sequence[Partitioning],
    *,
    workers: Sequence[int] = WORKERS,
    windows: int,
    repeats: int,
) -> dict[tuple[str, int], list[float]]:
    """By policy and workers: seconds of each window on Spark."""
    files = write_windows(work.rows, windows, DATA / "windows")
    found: dict[tuple[str, int], list[float]] = {}
    for v in workers:
        took = latencies(spark, files, work.question(), policies, workers=v, repeats=repeats)
        found |= {(label, v): seconds for label, seconds in took.items()}
    return found


# --- both together --------------------------------------------------------------------------------------------------

POLICIES = (SH, FLD, PK_2, PK_5, CM_2, LM_2, AM_2, AM_2_H, AM_5, CAM_2, CAM_5)
ON_SPARK = (SH, FLD, PK_2, AM_2, CAM_2, CAM_5)
WHOLE = tuple(how.label for how in (FLD, AM_2, AM_5, CAM_2, CAM_5))
"""Policies that keep keys whole: the paper's 1-choice partitioners."""
SPLIT = tuple(how.label for how in (SH, PK_2, PK_5, CM_2, LM_2))
"""Policies that split keys: the paper's M-choice partitioners."""

ByPolicy = dict[tuple[str, int], float]
"""A number by policy and workers."""


@dataclass(frozen=True)
class Results:
    """Critical paths and wall times by policy and workers, for each window."""

    times: dict[tuple[str, int], list[Times]]
    walls: dict[tuple[str, int], list[float]]
    rows: float
    """Rows in a window."""

    def mean(self, name: str = "seconds") -> ByPolicy:
        """The mean over the windows."""
        return {which: _mean([getattr(each, name) for each in many]) for which, many in self.times.items()}

    def last_percent(self) -> ByPolicy:
        return {which: float(np.percentile([t.seconds for t in many], 99)) for which, many in self.times.items()}

    def wall(self) -> ByPolicy:
        return {which: _mean(many) for which, many in self.walls.items()}

    def rate(self) -> ByPolicy:
        """Rows per second, if every worker had a core."""
        return {which: self.rows / seconds for which, seconds in self.mean().items()}

    def share(self) -> ByPolicy:
        """The share of aggregation in the path."""
        return self.mean("aggregation_share")

    def table(self, title: str) -> None:
        path, last, one, all_of = self.mean(), self.last_percent(), self.mean("aggregate"), self.mean("by_key")
        split, evaluate, share, wall = self.mean("partition"), self.mean("evaluate"), self.share(), self.wall()
        columns = (
            "policy", "workers", "evaluate", "aggregate", "(by key)", "path ms", "99 %", "rows/s", "share", "partition",
            "wall ms",
        )  # fmt: skip
        table(
            f"{title}: ms per window of {self.rows:,.0f} rows; path = evaluate + aggregate if every worker had a core; "
            "wall = on Spark, on this machine",
            columns,
            (
                (
                    label, v, *(1e3 * each[label, v] for each in (evaluate, one, all_of, path, last)),
                    self.rows / path[label, v], f"{share[label, v]:.0%}", 1e3 * split[label, v],
                    1e3 * wall[label, v] if (label, v) in wall else "",
                )
                for label, v in self.times
            ),
        )  # fmt: skip

    def numbers(self) -> dict[str, Any]:
        """The figures for the JSON object."""
        names = ("partition", "evaluate", "aggregate", "by_key", "seconds")
        path = {name: by_policy(self.mean(name)) for name in names}
        return {"workers": workers_in(self.times), "rows": self.rows, "path": path, "wall": by_policy(self.wall())}


def measure(
    name: str,
    options: Namespace,
    *,
    policies: Sequence[Partitioning] = POLICIES,
    scale: float = 1.0,
    quick_scale: float = 1.0,
    windows: int = 1,
    repeats: int = 3,
) -> Results:
    """Measure a query of the paper. On Spark only some policies and two windows; less with --quick."""
    work = task(name, scale=quick_scale if options.quick else scale)
    windows, repeats = (min(windows, 3), 2) if options.quick else (windows, repeats)
    spark = local_session(app_name=f"paper 3, {name}")
    times = paths(work, policies, windows=windows, repeats=repeats)
    on_spark = [how for how in policies if how in ON_SPARK]
    workers, times_each = (WORKERS[:1], 1) if options.quick else (WORKERS, 2)
    walled = walls(spark, work, on_spark, workers=workers, windows=min(windows, times_each), repeats=times_each)
    spark.stop()
    cut = work.rows.windows(windows)
    return Results(times, walled, sum(rows.num_rows for rows in cut) / len(cut))


# --- tables and plots -----------------------------------------------------------------------------------------------


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print(title)
    cells = [list(columns), *([_short(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for first, *rest in cells:
        print(" ", first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(rest, widths[1:], strict=True)))
    print(flush=True)


def _short(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def workers_in(values: Mapping[tuple[str, int], Any]) -> list[int]:
    return sorted({v for _, v in values})


def by_policy(values: Mapping[tuple[str, int], Any]) -> dict[str, list[Any]]:
    """A list for each policy, over the numbers of workers."""
    return {name: [value for (other, _), value in values.items() if other == name] for name, _ in values}


def over(a: ByPolicy, top: str, bottom: str) -> list[float]:
    """`top` / `bottom`, over the numbers of workers."""
    return [a[top, v] / a[bottom, v] for v in workers_in(a)]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The values for each number of workers, as text."""
    return " / ".join(f"{value:.{digits}f}" for value in values)


def plot(name: str, title: str, panels: Mapping[str, ByPolicy]) -> Any:
    """Draw a panel for each label: a group of bars for each policy, a bar for each number of workers."""

    def draw(figure: Any) -> None:
        every = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (label, values) in zip(every, panels.items(), strict=True):
            names, workers = list(by_policy(values)), workers_in(values)
            width = 0.8 / len(workers)
            for i, v in enumerate(workers):
                heights = [values[policy, v] for policy in names]
                axes.bar(np.arange(len(names)) + i * width, heights, width, label=f"{v} workers")
            axes.set_xticks(np.arange(len(names)) + 0.4 - width / 2, names, rotation=60)
            axes.set(ylabel=label)
            axes.grid(alpha=0.3, axis="y")
            axes.legend()
        figure.suptitle(title)

    return save_plot(name, draw, (6.0 * len(panels), 5.0))


def in_ms(values: ByPolicy) -> ByPolicy:
    return {which: 1e3 * seconds for which, seconds in values.items()}
