"""Shared by the scripts of paper 2 (docs/papers.md): its streams through the real operator, and simulated clusters.

**Measured** (figures 7 and 8): the real operator, one partition-group at a time. Its windows are filled first, then
some distribution epochs are timed, in CPU seconds. All 60 groups do the same work, so a few are measured and their time
is multiplied.

**Simulated** (all others): `JoinWork` of `anabranch.control.simulate` with the costs of `calibrated`, which times the
real operator for about a second. The network is assumed: 1 Gbit/s as in the paper, and `ROUND_TRIP` for a message. This
machine is far faster than the Pentium III of the paper, so it is overloaded at far higher rates. The rates of a figure
follow from its capacity, and only the shape of a curve can be compared with the paper.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.control.rebalance import Rebalance
from anabranch.control.simulate import Cluster, JoinCosts, JoinWork, constant, simulate
from anabranch.io.blocks import pack, unpack
from anabranch.keys.hashing import hash_keys
from anabranch.operators.join import JoinOperator, JoinSettings
from anabranch.operators.state import MemoryState
from benchmarks.join_streams import DOMAIN, SCHEMA, SECOND, TUPLE_BYTES, JoinStream, matches

GROUPS = 60
WINDOW = 600
"""Length of the windows in seconds."""
T_D = 2
"""Length of a distribution epoch in seconds."""
THETA, BLOCK = 384, 64
"""1.5 MB in blocks of 4 kB, which are 64 tuples."""
GIGABIT = 8e-9
"""Seconds per byte."""
ROUND_TRIP = 1e-4
"""Seconds for a message."""
SKEW = 0.7


def operator(*, probe: str = "nested", fine_tuning: bool = True, window: int = WINDOW) -> JoinOperator:
    """A partition-group of the paper's join, with empty windows."""
    columns = tuple(tuple((name, f"{side}_{name}") for name in SCHEMA.names[1:]) for side in "ab")
    result = pa.schema([("key", pa.int64()), *((name, pa.int64()) for side in columns for _, name in side)])
    within = (window * SECOND, window * SECOND)
    join = JoinOperator(
        JoinSettings(
            within, ("key",), ("t", "t"), (SCHEMA, SCHEMA), columns, result,
            theta=THETA, block=BLOCK, fine_tuning=fine_tuning, probe=probe,
        )
    )  # fmt: skip
    join.metrics = Counter()
    join.open(MemoryState())
    return join


def batch(table: pa.Table) -> pa.RecordBatch:
    """One record batch."""
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)


# --- measured ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupRows:
    """The tuples of some partition-groups: those that fill the windows, then those of some distribution epochs."""

    filled: list[list[pa.RecordBatch]]
    epochs: list[list[list[pa.RecordBatch]]]
    """Indexed by epoch, group and stream."""


def rows_of_groups(rate: float, groups: Sequence[int], *, epochs: int, window: int = WINDOW) -> GroupRows:
    """The part of the paper's streams that goes to these groups."""
    streams = [JoinStream(rate, stream, SKEW) for stream in (0, 1)]

    def parts(stream: JoinStream, first: int, count: int) -> list[pa.Table]:
        table = stream.seconds(first, count)
        group = hash_keys([table["key"]]) % GROUPS
        return [table.filter(pa.array(group == wanted)) for wanted in groups]

    minutes: list[list[list[pa.Table]]] = [
        [parts(stream, first, min(60, window - first)) for first in range(0, window, 60)] for stream in streams
    ]
    filled = [[batch(pa.concat_tables([minute[g] for minute in each])) for each in minutes] for g in range(len(groups))]
    later = [[parts(stream, window + T_D * n, T_D) for stream in streams] for n in range(epochs)]
    return GroupRows(filled, [[[batch(side[g]) for side in sides] for g in range(len(groups))] for sides in later])


def cpu_seconds(rows: GroupRows, *, probe: str, fine_tuning: bool, window: int = WINDOW) -> float:
    """CPU seconds of a distribution epoch for all groups together: the median of the epochs."""
    joins = []
    for sides in rows.filled:
        join = operator(probe=probe, fine_tuning=fine_tuning, window=window)
        for port, side in enumerate(sides):
            join.absorb(side, port)
        joins.append(join)
    spent = []
    for number, groups in enumerate(rows.epochs):
        began = time.process_time()
        for join, sides in zip(joins, groups, strict=True):
            for port, side in enumerate(sides):
                for _ in join.process(side, port):
                    pass
            for _ in join.on_watermark((window + T_D * (number + 1)) * SECOND):
                pass
        spent.append(time.process_time() - began)
    # The first epoch compiles kernels and has cold caches.
    return float(np.median(spent[1:] or spent)) * GROUPS / len(joins)


def delay_of(busy: float, *, t_d: float = T_D, seconds: float = WINDOW) -> float:
    """Mean production delay over `seconds` when a worker needs `busy` seconds for an epoch's tuples.

    Tuples wait for the end of their epoch, on average half of it, and then for the half of the epoch before them. If a
    worker falls behind, its delay accumulates.
    """
    late = max(0.0, busy - t_d)
    return t_d / 2 + busy / 2 + late * (seconds / max(busy, t_d)) / 2


# --- calibrated costs -------------------------------------------------------------------------------------------------


def calibrated(quick: bool = False) -> JoinCosts:
    """The costs of the real operator on this machine, best of three. Of the network, only packing is measured."""
    rows = 5_000 if quick else 50_000
    # Keys that never match, and keys that match ten tuples of the other stream each.
    apart = [_stream(rows, partial(_keys_of_one_side, rows, side)) for side in (0, 1)]
    meeting = [_stream(rows, lambda rng: rng.integers(0, rows // 10, rows)) for _ in (0, 1)]
    few = [side.slice(0, rows // 10) for side in apart]
    insert = _best(lambda join: join.absorb(apart[1], 1), apart[0]) / rows
    probe = _best(lambda join: _process(join, apart[1]), apart[0], probe="hashed") / rows - insert
    scan, looked = _scanning(few[1], apart[0], insert)
    found: list[int] = []
    with_pairs = _best(lambda join: found.append(_process(join, meeting[1])), meeting[0], probe="hashed")
    pair = (with_pairs - rows * (insert + max(probe, 0.0))) / found[-1]
    packing = min(_timed(lambda: unpack(pack(apart[0]))) for _ in range(3)) / (rows * TUPLE_BYTES)
    costs = JoinCosts(
        insert, scan, max(probe, 0.0), max(pair, 0.0), message=ROUND_TRIP, byte=GIGABIT + packing
    )  # fmt: skip
    print(
        f"calibrated: insert {insert * 1e9:.0f} ns, scan {scan * 1e9:.2f} ns ({looked:,} comparisons), "
        f"probe {costs.probe * 1e9:.0f} ns, pair {costs.pair * 1e9:.0f} ns, byte {costs.byte * 1e9:.1f} ns",
        flush=True,
    )
    return costs


def _scanning(few: pa.RecordBatch, window: pa.RecordBatch, insert: float) -> tuple[float, int]:
    """Seconds of one comparison in a nested loop, and the number of comparisons timed."""
    looked = 0
    best = float("inf")
    for _ in range(3):
        join = operator(fine_tuning=False)
        join.absorb(window, 0)
        join.metrics = Counter()
        best = min(best, _timed(partial(_process, join, few)))
        looked = join.metrics["probed"]
    return max(best - few.num_rows * insert, 0.0) / looked, looked


def _best(step: Callable[[JoinOperator], Any], window: pa.RecordBatch, *, probe: str = "nested") -> float:
    times = []
    for _ in range(3):
        join = operator(probe=probe)
        join.absorb(window, 0)
        times.append(_timed(partial(step, join)))
    return min(times)


def _process(join: JoinOperator, rows: pa.RecordBatch) -> int:
    return sum(found.num_rows for found in join.process(rows, 1))


def _timed(step: Callable[[], Any]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def _keys_of_one_side(rows: int, side: int, rng: np.random.Generator) -> Any:
    """Even keys for one stream, odd keys for the other."""
    return 2 * rng.integers(0, DOMAIN, rows) + side


def _stream(rows: int, keys: Callable[[np.random.Generator], Any]) -> pa.RecordBatch:
    rng = np.random.default_rng(1)
    times = np.sort(rng.integers(0, WINDOW * SECOND, rows))
    return pa.record_batch([keys(rng), times, *np.zeros((6, rows), dtype=np.int64)], schema=SCHEMA)


# --- simulated --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """Means over the second half of a simulated run, per distribution epoch."""

    delay: float
    """Average delay in seconds."""
    idle: float
    """Idle seconds of a worker."""
    communication: float
    """Seconds that a worker communicates, including the wait for workers before it."""
    least: float
    most: float
    """The least and the most communication of a worker."""
    aggregate: float
    """Communication of all workers together."""
    workers: float

    def per_second(self, t_d: float) -> float:
        """Share of a worker's time that communication takes."""
        return self.communication / t_d


@cache
def shares() -> tuple[float, ...]:
    """Share of the paper's stream for each partition-group. They differ by a few percent, because keys are skewed."""
    keys = JoinStream(100_000, b=SKEW).seconds(0, 5)["key"]
    count = np.bincount(hash_keys([keys]) % GROUPS, minlength=GROUPS)
    return tuple((count / count.sum()).tolist())


def simulated(
    costs: JoinCosts,
    rate: float,
    workers: int,
    *,
    t_d: float = T_D,
    fine_tuning: bool = True,
    adaptive: bool = False,
    subgroups: int = 1,
    seconds: float = 2.0 * WINDOW,
) -> Found:
    """Simulate 20 minutes at that rate of each stream. The second half counts, as in the paper."""
    work = JoinWork(
        costs, groups=GROUPS, weights=shares(), window=seconds / 2, t_d=t_d, fine_tuning=fine_tuning,
        theta=THETA * BLOCK * TUPLE_BYTES, tuple_bytes=TUPLE_BYTES, selectivity=matches(1, 1, SKEW),
        subgroups=subgroups,
    )  # fmt: skip
    every = max(1, round(20 / t_d))  # t_r is 20 s
    controller = Rebalance("join", GROUPS, workers, reorganise_every=every, decluster=adaptive)
    cluster = Cluster.uniform(workers, noise=0.05, overhead=0.0)
    epochs = round(seconds / t_d)
    run = simulate(work, [controller], constant(2 * rate), cluster, epochs=epochs, trigger_seconds=t_d, seed=1)
    operators = [epoch.operators[0] for epoch in run.history[epochs // 2 :]]

    def mean(metric: str, *, each: bool = False) -> float:
        return float(np.mean([op.metrics[f"{metric}_us"] / 1e6 / (len(op.workers) if each else 1) for op in operators]))

    return Found(
        mean("delay"), mean("idle", each=True), mean("communication", each=True), mean("communication_least"),
        mean("communication_most"), mean("communication"), float(np.mean([len(op.workers) for op in operators])),
    )  # fmt: skip


def rate_where(busy: Callable[[float], bool], *, first: float = 1_000.0, last: float = 500_000.0) -> float:
    """The lowest rate, to within 5 %, at which `busy` is true.

    It may be false again at a higher rate: where all groups are about to be split, a higher rate makes a tuple cheaper.
    So bisection finds one such rate, and then the rates from half of it upwards are tried.
    """
    while last / first > 1.1:
        middle = (first * last) ** 0.5
        first, last = (first, middle) if busy(middle) else (middle, last)
    return next((rate for rate in last / 2 * 1.05 ** np.arange(14) if busy(rate)), last)
