"""Latency of a window on Spark, by policy: for `python -m benchmarks partitioners` and `evidence/paper3_*.py`."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.aggregates import Aggregate
from anabranch.keys.policy import COUNTING_KEYS, WITH_CHOICES, Partitioning
from anabranch.windows import describe
from benchmarks.windows import ResultsDifferError
from benchmarks.workloads import Workload

TOP = 10


@dataclass(frozen=True)
class Question:
    """The top 10 of a window by the first aggregate. `plain` is the same by Spark's own functions, as the reference."""

    name: str
    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    plain: Mapping[str, Column] = field(repr=False)

    def ask(self, window: WindowFile, spark: SparkSession, how: Partitioning | None, workers: int) -> DataFrame:
        """The query under a policy; None leaves the choice to Anabranch."""
        given: dict[str, Any] = {}
        if how is not None or any(aggregate.python for aggregate in self.aggregates.values()):
            given = {"workers": workers, "splitters": 1}
        if how is not None:
            given |= {"partition": how.policy}
            given |= {"choices": how.choices} if how.policy in WITH_CHOICES else {}
            given |= {"cardinality": how.cardinality} if how.policy in COUNTING_KEYS else {}
        stream = ab.stream(window.read(spark), time="t")
        windowed = stream.window(size=describe(window.size), origin=describe(window.start))
        windows = windowed.by(*self.keys, **given).agg(**self.aggregates)
        return self._top(windows.to_df())

    def right(self, window: WindowFile, spark: SparkSession) -> list[Row]:
        plain = [column.alias(name) for name, column in self.plain.items()]
        return self._top(window.read(spark).groupBy(*self.keys).agg(*plain)).collect()

    def _top(self, frame: DataFrame) -> DataFrame:
        first = next(iter(self.aggregates))
        return frame.select(*self.keys, *self.aggregates).orderBy(F.desc(first), *self.keys).limit(TOP)


@dataclass(frozen=True)
class WindowFile:
    """A window as a Parquet file."""

    path: Path
    rows: int
    start: int
    size: int

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows as one partition, because there is one splitter."""
        return spark.read.parquet(str(self.path)).coalesce(1)


def write_windows(workload: Workload, most: int, folder: Path) -> list[WindowFile]:
    """Write up to `most` windows, each as a file, with `t` as a timestamp."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    first = workload.table["t"][0].as_py()
    for i, rows in enumerate(workload.windows(most)):
        begin, end = rows["t"][0].as_py(), rows["t"][-1].as_py()
        start, size = begin, end - begin + 1
        if workload.window is not None:
            start, size = begin - (begin - first) % workload.window, workload.window
        path = folder / f"{workload.name}-{i}.parquet"
        times = rows["t"].cast(pa.timestamp("us", "UTC"))
        pq.write_table(rows.set_column(rows.schema.get_field_index("t"), "t", times), path)
        files.append(WindowFile(path, rows.num_rows, start, size))
    return files


def latencies(
    spark: SparkSession,
    windows: Sequence[WindowFile],
    question: Question,
    contestants: Sequence[Partitioning | None],
    *,
    workers: int,
    repeats: int,
    step: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds per contestant and window: the best of several repeats.

    Every answer is compared with the reference, and once before anything is timed. A query is planned before the clock
    starts, like one that waits for its window. So only its execution is timed, up to the rows of the answer.
    Contestants take turns, each time beginning with another, so that other load on the machine affects all of them.
    """
    right = question.right(windows[0], spark)
    for how in contestants:
        _check(question, right, _planned(question.ask(windows[0], spark, how, workers)), how)
    best: dict[str, list[float]] = {label_of(how): [] for how in contestants}
    for window in windows:
        right = question.right(window, spark)
        seconds: dict[str, list[float]] = {label: [] for label in best}
        for turn in range(repeats):
            for how in _from(contestants, turn):
                # A new DataFrame each time: Spark would reuse the exchanges of one that has run.
                took = _check(question, right, _planned(question.ask(window, spark, how, workers)), how)
                seconds[label_of(how)].append(took)
        for label, each in seconds.items():
            best[label].append(min(each))
        step()
    return best


def label_of(how: Partitioning | None) -> str:
    return "auto" if how is None else how.label


def _check(question: Question, right: list[Row], frame: DataFrame, how: Partitioning | None) -> float:
    """Seconds until the answer has arrived. Raises an error if it is wrong."""
    began = time.perf_counter()
    answer = frame.collect()
    took = time.perf_counter() - began
    if answer != right:
        wrong = next(
            (pair for pair in zip(answer, right, strict=False) if pair[0] != pair[1]), (len(answer), len(right))
        )
        raise ResultsDifferError(
            f"{question.name}: {label_of(how)} gives {wrong[0]}, but Spark's own group by {wrong[1]}",
            hint="this is a bug: please report it with the versions of pyspark and anabranch",
        )
    return took


def _planned(frame: DataFrame) -> DataFrame:
    """Plan a DataFrame and return it: to explain it, Spark makes its physical plan."""
    with redirect_stdout(io.StringIO()):
        frame.explain()
    return frame


def _from(all_of: Sequence[Partitioning | None], first: int) -> Iterator[Partitioning | None]:
    yield from (all_of[(first + i) % len(all_of)] for i in range(len(all_of)))


# --- queries over taxi trips ----------------------------------------------------------------------------------------


def _nothing() -> list[int]:
    return [0, 0]


def _one_more(state: list[int], paid: int) -> list[int]:
    state[0] += 1
    state[1] += paid
    return state


def _both(a: list[int], b: list[int]) -> list[int]:
    return [a[0] + b[0], a[1] + b[1]]


def _same(state: list[int]) -> list[int]:
    return state


def count_and_sum(column: str) -> Aggregate:
    """The number of rows and their sum, as an aggregate in Python, which Spark cannot combine."""
    return ab.user_aggregate(
        column, init=_nothing, incr=_one_more, merge=_both, final=_same, returns="array<bigint>", state="array<bigint>",
        name="count_and_sum",
    )  # fmt: skip


def in_python(keys: Iterable[str], column: str) -> Question:
    """The keys with the most rows, by an aggregate in Python."""
    plain = {"total": F.array(F.count(F.lit(1)), F.sum(column))}
    return Question("aggregate in Python", tuple(keys), {"total": count_and_sum(column)}, plain)


def in_spark(keys: Iterable[str], column: str) -> Question:
    """The same by Spark's own aggregates."""
    plain = {"rows": F.count(F.lit(1)), "total": F.sum(column)}
    return Question("Spark's aggregates", tuple(keys), {"rows": ab.count(), "total": ab.sum(column)}, plain)
