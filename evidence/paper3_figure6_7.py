"""Paper 3, figures 6 and 7: throughput, and tuple imbalance over FLD's, for TPC-H Q3, which groups by order.

A group has about three rows, so aggregation matters, and policies that split keys pay for it. Of the policies that keep
keys whole, AM and cAM are more even than FLD. Figure 7 is counted, not timed.
"""

from __future__ import annotations

from common import Shape, arguments, report
from partitioning import DATA, ByPolicy, measure, over, plot, spread, table

from benchmarks.partitioner_runs import AM_2, AM_2_H, AM_5, CAM_2, CAM_5, hashes_of, model
from benchmarks.workloads import workload

NAME = "paper3_figure6_7"
SCALE, QUICK = 2.0, 0.5
BETTER = ("AM-2", "AM-5", "cAM-2", "cAM-5")


def main() -> None:
    options = arguments(__doc__ or "")
    found = measure("tpch-q3", options, scale=SCALE, quick_scale=QUICK, repeats=7)
    found.table("TPC-H Q3")
    rows = workload("tpch-q3", DATA, scale=QUICK if options.quick else SCALE)
    modelled = model("tpch-q3", hashes_of(rows, 1), (AM_2, AM_2_H, AM_5, CAM_2, CAM_5))
    imbalance = {(row.policy, row.workers): row.imbalance_vs_fld for row in modelled}
    table(
        "tuple imbalance / FLD's",
        ("policy", "workers", "tuples", "/ FLD's"),
        ((row.policy, row.workers, row.tuple_imbalance, row.imbalance_vs_fld) for row in modelled),
    )
    wall = {which: found.rows / seconds for which, seconds in found.wall().items()}
    panels = {
        "rows/s, if every worker had a core": found.rate(),
        "rows/s, wall time on this machine": wall,
        "tuple imbalance / FLD's": imbalance,
    }
    picture = plot(NAME, "Paper 3, figures 6 and 7: TPC-H Q3, throughput and imbalance", panels)
    report(NAME, _shapes(found.rate(), imbalance), found.numbers(), picture, options.json)


def _shapes(rate: ByPolicy, imbalance: ByPolicy) -> list[Shape]:
    pk = [over(rate, name, "PK-2") for name in ("AM-5", "cAM-5")]
    worst = [min(over(rate, name, "SH-w")) for name in BETTER]
    fld = [min(over(rate, name, "FLD-1")) for name in BETTER]
    most = max(max(over(rate, name, "FLD-1")) for name in BETTER)
    even = {name: [v for (other, _), v in imbalance.items() if other == name] for name in (*BETTER, "AM-2-H")}
    return [
        Shape("AM and cAM have 2.5 times the throughput of PK-2 or more", min(map(min, pk)) > 2.5,
              "; ".join(map(spread, pk))),
        Shape("AM and cAM have 2.5 times the throughput of SH or more", min(worst) > 2.5, spread(worst)),
        Shape("AM and cAM are not slower than FLD", min(fld) > 0.95, f"{min(fld):.2f} to {most:.2f} times"),
        Shape("AM and cAM are more even than FLD", all(max(even[name]) < 1 for name in BETTER),
              "; ".join(f"{name} {spread(even[name])}" for name in BETTER)),
        Shape("AM-2-H is less even than AM-2", sum(even["AM-2-H"]) > sum(even["AM-2"]), spread(even["AM-2-H"])),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
