"""What `anabranch bench partitioners` measures, one function per part. The experiments of paper 3 use the same parts.

| part | runs | gives |
|---|---|---|
| `model` | partitioners alone, over the keys of whole windows | imbalances and aggregation cost (`Modelled`) |
| `several_splitters` | the same, by splitters that share nothing, and by a table of heavy keys | `Modelled` |
| `costs`, `memory` | a partitioner, block by block | nanoseconds per tuple, bytes (`Cost`) |
| `latencies` | a query on Spark, window by window | seconds per policy and window |
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.aggregates import Aggregate
from anabranch.bench.windows import ResultsDifferError
from anabranch.bench.workloads import Workload
from anabranch.errors import AnabranchError
from anabranch.split.hashing import hash_keys
from anabranch.split.imbalance import WindowLoads, loads_of
from anabranch.split.partitioner import HeavyKeys, Partitioner, table_of
from anabranch.split.partitioning import Partitioning
from anabranch.split.selection import Seen

SH, FLD = Partitioning("sh"), Partitioning("fld")
PK_2, PK_5 = Partitioning("pk", 2), Partitioning("pk", 5)
AM_2, AM_5 = Partitioning("am", 2), Partitioning("am", 5)
CAM_2, CAM_5 = Partitioning("cam", 2), Partitioning("cam", 5)
CM_2, LM_2 = Partitioning("cm", 2), Partitioning("lm", 2)
CM_2_H, AM_2_H, LM_2_H = (Partitioning(policy, 2, "hll") for policy in ("cm", "am", "lm"))
HEAVY = Partitioning("heavy")

TABLE_2 = (SH, FLD, PK_2, PK_5, CM_2, AM_2, AM_5, CAM_2, CAM_5, LM_2, CM_2_H, AM_2_H, LM_2_H)
"""The policies of the paper's table 2."""
WHOLE = (AM_2, AM_5, CAM_2, CAM_5)
"""Those that one splitter keeps keys whole with, as FLD does."""
TABLE_4 = {"CM-2": (243, 243, 243), "AM-2": (122, 122, 122), "LM-2": (243, 243, 243)} | dict.fromkeys(
    ("CM-2-H", "AM-2-H", "LM-2-H"), (0.02, 0.04, 0.08)
)
"""The paper's table 4: megabytes for 8, 16 and 32 workers and 8.1 million keys."""

WORKERS = (8, 16, 32)
BLOCK = 65_536
"""Tuples that a partitioner gets at a time."""
DEALT = 4_096
"""Tuples that a splitter gets at a time, in turn with the others."""
HEAVIEST = 1_000
"""Keys in the shared table."""
TOP = 10

Hashes = NDArray[np.int64]


class PropositionError(AnabranchError):
    """An aggregation cost is outside the bounds of proposition 1: something is counted wrong."""


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Modelled:
    """What a policy does to a workload: means over its windows."""

    workload: str
    policy: str
    workers: int
    splitters: int
    windows: int
    tuples: float
    keys: float
    longest: float
    """tuples of the worker that has the most"""
    tuple_imbalance: float
    cardinality_imbalance: float
    hybrid_imbalance: float
    aggregation_cost: float
    imbalance_vs_fld: float
    """mean over the windows of tuple imbalance / that of FLD"""
    cost_vs_fld: float
    """aggregation cost / that of FLD, in the window where it is furthest from 1"""

    @property
    def path(self) -> float:
        """Evaluation, then aggregation: tuples of the slowest worker and partial results of all, at one price."""
        return self.longest + self.aggregation_cost

    def as_json(self) -> dict[str, Any]:
        exact = {"cost_vs_fld": self.cost_vs_fld}
        rounded = {name: round(v, 3) if isinstance(v, float) else v for name, v in asdict(self).items()}
        return rounded | exact


def hashes_of(workload: Workload, most: int) -> list[Hashes]:
    """The hashes of the keys of up to `most` windows."""
    return [hash_keys([rows.column(key) for key in workload.keys]) for rows in workload.windows(most)]


def assigned(
    partitioning: Partitioning, workers: int, hashes: Hashes, *, splitters: int = 1, heavy: HeavyKeys | None = None
) -> NDArray[np.int32]:
    """The worker of each tuple of a window; tuples are dealt to the splitters in blocks, round robin."""
    to = np.empty(len(hashes), np.int32)
    dealt = np.arange(len(hashes)) // DEALT % splitters
    for i in range(splitters):
        mine = dealt == i
        to[mine] = Partitioner(partitioning, workers, first=i, heavy=heavy).assign(hashes[mine])
    return to


def model(
    name: str,
    windows: Sequence[Hashes],
    policies: Sequence[Partitioning] = TABLE_2,
    workers: Sequence[int] = WORKERS,
) -> list[Modelled]:
    """Every policy with one splitter."""
    found = []
    for v in workers:
        field_loads = [_loads(FLD, v, window) for window in windows]
        for policy in policies:
            loads = field_loads if policy == FLD else [_loads(policy, v, window) for window in windows]
            found.append(_means(name, policy.label, v, 1, loads, field_loads))
    return found


def several_splitters(name: str, windows: Sequence[Hashes], splitters: Sequence[int], workers: int) -> list[Modelled]:
    """FLD and PK-2, which do not mind; cAM-2 with more and more splitters; `heavy`, with the table of the window
    before. The first window has none before it, and is left out for all."""
    later = windows[1:]
    field_loads = [_loads(FLD, workers, window) for window in later]
    found = [_means(name, FLD.label, workers, 1, field_loads, field_loads)]
    for policy, counts in ((PK_2, splitters[-1:]), (CAM_2, splitters)):
        for p in counts:
            loads = [_loads(policy, workers, window, splitters=p) for window in later]
            found.append(_means(name, policy.label, workers, p, loads, field_loads))
    tables = [table_of(heaviest(before), workers) for before in windows[:-1]]
    for p in splitters[-1:]:
        pairs = zip(later, tables, strict=True)
        loads = [_loads(HEAVY, workers, window, splitters=p, heavy=table) for window, table in pairs]
        found.append(_means(name, HEAVY.label, workers, p, loads, field_loads))
    return found


def heaviest(hashes: Hashes, most: int = HEAVIEST) -> list[tuple[int, int]]:
    """The keys of a window that have the most tuples, with how many."""
    keys, counts = np.unique(hashes, return_counts=True)
    top = np.argsort(-counts, kind="stable")[:most]
    return list(zip(keys[top].tolist(), counts[top].tolist(), strict=True))


def seen(windows: Sequence[Hashes], workers: int) -> Seen:
    """What `selection.select` wants to know of the windows."""
    return Seen([len(np.unique(window)) for window in windows], [len(window) / workers for window in windows])


def best(rows: Sequence[Modelled]) -> Modelled:
    """The policy with the shortest path.

    Equation (3) of the paper, taken at its word, would allow more aggregation to a policy that is less even (no more
    than the longest evaluation), and so prefer it.
    """
    return min(rows, key=lambda row: row.path)


def _loads(partitioning: Partitioning, workers: int, hashes: Hashes, **how: Any) -> WindowLoads:
    loads = loads_of(assigned(partitioning, workers, hashes, **how), hashes, workers)
    low, high = loads.bounds
    if not low <= loads.aggregation_cost <= high:
        raise PropositionError(
            f"{partitioning.label} over {workers} workers makes {loads.aggregation_cost} partial results of {low} keys",
            hint="this is a bug: please report it",
        )
    return loads


def _means(
    name: str, policy: str, workers: int, splitters: int, loads: Sequence[WindowLoads], fld: Sequence[WindowLoads]
) -> Modelled:
    def mean(value: Callable[[WindowLoads], float]) -> float:
        return float(np.mean([value(each) for each in loads]))

    costs = [a.aggregation_cost / b.aggregation_cost for a, b in zip(loads, fld, strict=True)]
    imbalances = [_ratio(a.tuple_imbalance, b.tuple_imbalance) for a, b in zip(loads, fld, strict=True)]
    return Modelled(
        name, policy, workers, splitters, len(loads),
        tuples=mean(lambda each: each.rows),
        keys=mean(lambda each: each.distinct),
        longest=mean(lambda each: max(each.tuples)),
        tuple_imbalance=mean(lambda each: each.tuple_imbalance),
        cardinality_imbalance=mean(lambda each: each.cardinality_imbalance),
        hybrid_imbalance=mean(lambda each: each.hybrid_imbalance()),
        aggregation_cost=mean(lambda each: each.aggregation_cost),
        imbalance_vs_fld=float(np.mean(imbalances)),
        cost_vs_fld=max(costs, key=lambda cost: abs(cost - 1.0)),
    )  # fmt: skip


def _ratio(a: float, b: float) -> float:
    return 1.0 if a == b else a / b if b else float("inf")


# --- what partitioning costs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Of one tuple on one splitter core, in nanoseconds: to assign it, and to hash its key before; and memory."""

    policy: str
    workers: int
    assign: float
    hash: float
    bytes: int
    paper_bytes: float | None

    def as_json(self) -> dict[str, Any]:
        return {name: round(v, 2) if isinstance(v, float) else v for name, v in asdict(self).items()}


def costs(
    keys: pa.ChunkedArray,
    *,
    policies: Sequence[Partitioning] = TABLE_2,
    workers: Sequence[int] = WORKERS,
    repeats: int = 3,
    most_keys: int = 0,
) -> list[Cost]:
    """The keys of one window, block by block, by a partitioner that knows nothing of it yet: its tables grow meanwhile.

    Contestants take turns, and the best round of each counts. `most_keys` is for `memory`.
    """
    blocks = [keys.slice(at, BLOCK).combine_chunks() for at in range(0, len(keys), BLOCK)]
    hashes = [hash_keys([block]) for block in blocks]

    def hash_all() -> None:
        for block in blocks:
            hash_keys([block])

    contestants = {(policy, v): _assigning(policy, v, hashes) for policy in policies for v in workers}
    times = _rounds(repeats + 1, {None: hash_all, **contestants})  # the first round compiles
    per_tuple = {which: min(seconds) / len(keys) * 1e9 for which, seconds in times.items()}
    found = []
    for policy, v in contestants:
        in_paper = TABLE_4.get(policy.label)
        paper = in_paper[WORKERS.index(v)] * 1e6 if in_paper is not None and v in WORKERS else None
        size = memory(policy, v, most_keys) if paper is not None else 0
        found.append(Cost(policy.label, v, per_tuple[policy, v], per_tuple[None], size, paper))
    return found


def memory(policy: Partitioning, workers: int, keys: int) -> int:
    """Bytes of the cardinality structures when so many keys came twice in one window."""
    partitioner = Partitioner(policy, workers)
    for _ in range(2):
        for at in range(0, keys, BLOCK):
            partitioner.assign(hash_keys([pa.array(np.arange(at, min(at + BLOCK, keys)))]))
    return partitioner.nbytes


def _assigning(policy: Partitioning, workers: int, blocks: Sequence[Hashes]) -> Callable[[], None]:
    def run() -> None:
        partitioner = Partitioner(policy, workers)
        for block in blocks:
            partitioner.assign(block)

    return run


def _rounds(rounds: int, contestants: Mapping[Any, Callable[[], object]]) -> dict[Any, list[float]]:
    """Seconds of each contestant in each round."""
    times: dict[Any, list[float]] = {which: [] for which in contestants}
    for _ in range(rounds):
        for which, run in contestants.items():
            began = time.perf_counter()
            run()
            times[which].append(time.perf_counter() - began)
    return times


# --- latency on Spark -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """The top 10 of a window by the first aggregate. `plain` is the same in Spark's own words: what is right."""

    name: str
    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    plain: Mapping[str, Column] = field(repr=False)

    def ask(self, window: WindowFile, spark: SparkSession, how: Partitioning | None, workers: int) -> DataFrame:
        """None leaves the choice to Anabranch."""
        given: dict[str, Any] = {}
        if how is not None:
            given = {"partition": how.policy, "choices": how.choices, "cardinality": how.cardinality}
        stream = ab.stream(window.read(spark), time="t").window(size=window.size, origin=window.start)
        windows = stream.by(*self.keys, workers=workers, splitters=1, **given).agg(**self.aggregates)
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
        """As one partition: there is one splitter."""
        return spark.read.parquet(str(self.path)).coalesce(1)


def write_windows(workload: Workload, most: int, folder: Path) -> list[WindowFile]:
    """Up to `most` windows, `t` as a timestamp."""
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

    Before anything is timed, all contestants answer for the first window, and later each time again, and must be right.
    A query is planned before the clock starts, as one that waits for its window would be: what is timed is its
    execution, up to the rows of the answer. Contestants take turns, each time beginning with another, so that a change
    of the machine's load meets all of them.
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
                # A new DataFrame each time: Spark would find the exchanges of one that has run, and not run them again.
                took = _check(question, right, _planned(question.ask(window, spark, how, workers)), how)
                seconds[label_of(how)].append(took)
        for label, each in seconds.items():
            best[label].append(min(each))
        step()
    return best


def label_of(how: Partitioning | None) -> str:
    return "auto" if how is None else how.label


def _check(question: Question, right: list[Row], frame: DataFrame, how: Partitioning | None) -> float:
    """Seconds until the answer is here; it must be right."""
    began = time.perf_counter()
    answer = frame.collect()
    took = time.perf_counter() - began
    if answer != right:
        wrong = next(
            (pair for pair in zip(answer, right, strict=False) if pair[0] != pair[1]), (len(answer), len(right))
        )
        raise ResultsDifferError(
            f"{question.name}: {label_of(how)} gives {wrong[0]}, and Spark's own group by {wrong[1]}",
            hint="this is a bug: please report it with the versions of pyspark and anabranch",
        )
    return took


def _planned(frame: DataFrame) -> DataFrame:
    """The same DataFrame, whose physical plan has been made: to explain it, Spark must."""
    with redirect_stdout(io.StringIO()):
        frame.explain()
    return frame


def _from(all_of: Sequence[Partitioning | None], first: int) -> Iterator[Partitioning | None]:
    yield from (all_of[(first + i) % len(all_of)] for i in range(len(all_of)))


# --- what is asked of taxis -----------------------------------------------------------------------------------------


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
    """Rows and their sum, counted in Python: an aggregate that Spark knows nothing about."""
    return ab.user_aggregate(
        column, init=_nothing, incr=_one_more, merge=_both, final=_same, returns="array<bigint>", state="array<bigint>",
        name="count_and_sum",
    )  # fmt: skip


def in_python(keys: Iterable[str], column: str) -> Question:
    """The keys with the most rows, by an aggregate in Python."""
    plain = {"total": F.array(F.count(F.lit(1)), F.sum(column))}
    return Question("aggregate in Python", tuple(keys), {"total": count_and_sum(column)}, plain)


def in_spark(keys: Iterable[str], column: str) -> Question:
    """The same by aggregates that Spark has itself."""
    plain = {"rows": F.count(F.lit(1)), "total": F.sum(column)}
    return Question("Spark's aggregates", tuple(keys), {"rows": ab.count(), "total": ab.sum(column)}, plain)
