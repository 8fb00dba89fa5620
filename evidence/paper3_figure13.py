"""Paper 3, figure 13: time to partition a window of DEBS Q1: mean, 90th and 99th percentile.

The time includes hashing the routes. It is the CPU time of one splitter, block by block; the best of several runs of
each window counts.
"""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
from common import Shape, arguments, report
from partitioning import DATA, ByPolicy, by_policy, in_ms, plot, spread, table

from anabranch.keys.hashing import hash_keys
from anabranch.keys.partitioner import Partitioner
from anabranch.keys.policy import Partitioning
from benchmarks.partitioner_runs import BLOCK, TABLE_2, WORKERS
from benchmarks.workloads import workload

NAME = "paper3_figure13"


def partitioned(how: Partitioning, workers: int, blocks: list[pa.Array]) -> float:
    """CPU seconds to hash and assign the keys of a window."""
    began = time.process_time()
    partitioner = Partitioner(how, workers)
    for block in blocks:
        partitioner.assign(hash_keys([block]))
    return time.process_time() - began


def main() -> None:
    options = arguments(__doc__ or "")
    repeats = 2 if options.quick else 5
    windows = workload("debs-q1", DATA, scale=2.0 if options.quick else 25.0).windows(6)
    took: dict[tuple[str, int], list[float]] = {(how.label, v): [] for how in TABLE_2 for v in WORKERS}
    for how in TABLE_2:
        partitioned(how, 2, [windows[0]["route"].slice(0, 10).combine_chunks()])  # compiles
    for rows in windows:
        blocks = [rows["route"].slice(at, BLOCK).combine_chunks() for at in range(0, rows.num_rows, BLOCK)]
        best: dict[tuple[str, int], float] = {}
        for _ in range(repeats):
            for how in TABLE_2:
                for v in WORKERS:
                    which = how.label, v
                    best[which] = min(best.get(which, np.inf), partitioned(how, v, blocks))
        for which, seconds in best.items():
            took[which].append(seconds)
    mean, p90, p99 = (
        {which: float(f(many)) for which, many in took.items()}
        for f in (np.mean, lambda x: np.percentile(x, 90), lambda x: np.percentile(x, 99))
    )
    rows_in = sum(rows.num_rows for rows in windows) / len(windows)
    table(
        f"ms to partition a window of {rows_in:,.0f} trips, on one core",
        ("policy", "workers", "mean", "90 %", "99 %", "ns/tuple"),
        ((*which, *(1e3 * each[which] for each in (mean, p90, p99)), 1e9 * mean[which] / rows_in) for which in took),
    )
    panels = {"mean ms": in_ms(mean), "99th percentile ms": in_ms(p99)}
    picture = plot(NAME, "Paper 3, figure 13: time to partition a window of DEBS Q1", panels)
    numbers = {
        "workers": WORKERS,
        "rows": rows_in,
        "mean": by_policy(mean),
        "p90": by_policy(p90),
        "p99": by_policy(p99),
    }
    report(NAME, _shapes(mean, p99, rows_in), numbers, picture, options.json)


def _shapes(mean: ByPolicy, p99: ByPolicy, rows: float) -> list[Shape]:
    growth = {name: many[-1] / many[0] for name, many in by_policy(mean).items()}
    whole = [growth[name] for name in ("AM-2", "cAM-2", "AM-2-H")]
    counting = ("CM-2", "CM-2-H", "LM-2", "LM-2-H")
    least = [p99[name, 32] / p99["AM-2", 32] for name in counting]
    over_pk = [mean["cAM-2", v] / mean["PK-2", v] for v in WORKERS]
    slowest = max(mean.values())
    return [
        Shape("AM and cAM take the same time with any number of workers", max(whole) < 1.3, spread(whole)),
        Shape("at 32 workers CM and LM take more than AM", min(least) > 1, f"{', '.join(counting)}: {spread(least)}"),
        Shape("cAM-2 adds no noticeable latency to PK-2: at most twice", max(over_pk) < 2, spread(over_pk)),
        Shape("no policy needs more than a tenth of a second for 500,000 trips", slowest / rows < 0.1 / 500_000,
              f"{1e9 * slowest / rows:.0f} ns per trip"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
