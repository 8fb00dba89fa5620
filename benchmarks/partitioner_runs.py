"""The parts of `python -m benchmarks partitioners` that need no Spark. `evidence/paper3_*.py` use them too.

| function | runs | returns |
|---|---|---|
| `model` | partitioners alone, over the keys of whole windows | imbalances and aggregation cost (`Modelled`) |
| `several_splitters` | the same, by splitters that share nothing, and by a table of heavy keys | `Modelled` |
| `costs`, `memory` | a partitioner, block by block | nanoseconds per tuple, bytes (`Cost`) |

Windows on Spark are in `partitioner_latency`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.errors import AnabranchError
from anabranch.keys.census import KeyCounter, heaviest_of
from anabranch.keys.hashing import hash_keys
from anabranch.keys.metrics import WindowLoads
from anabranch.keys.partitioner import HeavyKeys, Partitioner, table_of
from anabranch.keys.policy import Partitioning
from anabranch.keys.selection import WindowKeys
from benchmarks.workloads import Workload

SH, FLD = Partitioning("sh"), Partitioning("fld")
PK_2, PK_5 = Partitioning("pk", 2), Partitioning("pk", 5)
AM_2, AM_5 = Partitioning("am", 2), Partitioning("am", 5)
CAM_2, CAM_5 = Partitioning("cam", 2), Partitioning("cam", 5)
CM_2, LM_2 = Partitioning("cm", 2), Partitioning("lm", 2)
CM_2_H, AM_2_H, LM_2_H = (Partitioning(policy, 2, "hll") for policy in ("cm", "am", "lm"))
HEAVY = Partitioning("heavy")

TABLE_2 = (SH, FLD, PK_2, PK_5, CM_2, AM_2, AM_5, CAM_2, CAM_5, LM_2, CM_2_H, AM_2_H, LM_2_H)
"""The policies that are compared: table 2 of the paper on partitioning costs (docs/papers.md)."""
WHOLE = (AM_2, AM_5, CAM_2, CAM_5)
"""The policies that keep keys whole with one splitter, as FLD does."""
TABLE_4 = {"CM-2": (243, 243, 243), "AM-2": (122, 122, 122), "LM-2": (243, 243, 243)} | dict.fromkeys(
    ("CM-2-H", "AM-2-H", "LM-2-H"), (0.02, 0.04, 0.08)
)
"""Table 4 of the paper: megabytes for 8, 16 and 32 workers and 8.1 million keys."""

WORKERS = (8, 16, 32)
BLOCK = 65_536
"""Tuples in a block that a partitioner gets."""
DEALT = 4_096
"""Tuples in a block when several splitters get blocks in turn."""

Hashes = NDArray[np.int64]


class PropositionError(AnabranchError):
    """An aggregation cost is outside the bounds of proposition 1, so the counts are wrong."""


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Modelled:
    """How a policy distributes a workload: means over its windows."""

    workload: str
    policy: str
    workers: int
    splitters: int
    windows: int
    tuples: float
    keys: float
    longest: float
    """Tuples of the worker that has the most."""
    tuple_imbalance: float
    cardinality_imbalance: float
    hybrid_imbalance: float
    aggregation_cost: float
    imbalance_vs_fld: float
    """Tuple imbalance over that of FLD, the mean over the windows."""
    cost_vs_fld: float
    """Aggregation cost over that of FLD, in the window where it is furthest from 1."""

    @property
    def path(self) -> float:
        """Evaluation plus aggregation: tuples of the slowest worker plus partial results of all, at the same price."""
        return self.longest + self.aggregation_cost

    def to_json(self) -> dict[str, Any]:
        exact = {"cost_vs_fld": self.cost_vs_fld}
        rounded = {name: round(v, 3) if isinstance(v, float) else v for name, v in asdict(self).items()}
        return rounded | exact


def hashes_of(workload: Workload, most: int) -> list[Hashes]:
    """The hashes of the keys of up to `most` windows."""
    return [hash_keys([rows.column(key) for key in workload.keys]) for rows in workload.windows(most)]


def assigned(
    partitioning: Partitioning, workers: int, hashes: Hashes, *, splitters: int = 1, heavy: HeavyKeys | None = None
) -> NDArray[np.int32]:
    """The worker of each tuple of a window. The splitters get the tuples in blocks, round robin."""
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
    """Run every policy with one splitter."""
    found = []
    for v in workers:
        field_loads = [_loads(FLD, v, window) for window in windows]
        for policy in policies:
            loads = field_loads if policy == FLD else [_loads(policy, v, window) for window in windows]
            found.append(_means(name, policy.label, v, 1, loads, field_loads))
    return found


def several_splitters(name: str, windows: Sequence[Hashes], splitters: Sequence[int], workers: int) -> list[Modelled]:
    """Run policies with several splitters: FLD and PK-2, which do not depend on their number; cAM-2; and `heavy`, with
    the table of the window before. The first window has no window before it, and is left out for all policies."""
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


def heaviest(hashes: Hashes) -> tuple[tuple[int, int], ...]:
    """The keys of a window with the most tuples, and their counts, as a task of a running query reports them."""
    counter, nothing = KeyCounter(), np.zeros(len(hashes), np.int64)
    counter.add(nothing, nothing, hashes, np.ones(len(hashes), np.int64))
    counts = counter.census()
    return () if counts is None else heaviest_of([counts])


def window_keys(windows: Sequence[Hashes], workers: int) -> WindowKeys:
    """The input of `selection.select` for these windows."""
    return WindowKeys([len(np.unique(window)) for window in windows], [len(window) / workers for window in windows])


def best(rows: Sequence[Modelled]) -> Modelled:
    """The policy with the shortest path.

    Equation (3) of the paper, taken literally, would allow a less even policy more aggregation (up to its longest
    evaluation), and so prefer it.
    """
    return min(rows, key=lambda row: row.path)


def loads_of(workers: NDArray[Any], keys: NDArray[Any], count: int) -> WindowLoads:
    """The loads of a window, from the worker and the key of each tuple; `count` is the number of workers."""
    codes = np.unique(keys, return_inverse=True)[1]
    distinct = int(codes.max(initial=-1)) + 1
    pairs = np.unique(workers.astype(np.int64) * max(distinct, 1) + codes)
    per_worker = np.bincount(pairs // max(distinct, 1), minlength=count)
    tuples = np.bincount(workers, minlength=count)
    return WindowLoads(tuple(tuples.tolist()), tuple(per_worker.tolist()), distinct)


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
    """Nanoseconds per tuple on one splitter core, to assign it and to hash its key; and bytes of memory."""

    policy: str
    workers: int
    assign: float
    hash: float
    bytes: int
    paper_bytes: float | None

    def to_json(self) -> dict[str, Any]:
        return {name: round(v, 2) if isinstance(v, float) else v for name, v in asdict(self).items()}


def costs(
    keys: pa.ChunkedArray,
    *,
    policies: Sequence[Partitioning] = TABLE_2,
    workers: Sequence[int] = WORKERS,
    repeats: int = 3,
    most_keys: int = 0,
) -> list[Cost]:
    """Partition the keys of one window, block by block, with a new partitioner, so that growing its tables counts.

    Contestants take turns, and the best round of each counts. `most_keys` is the number of keys for `memory`.
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
    """Bytes of the cardinality structures after each of `keys` keys came twice in one window."""
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
