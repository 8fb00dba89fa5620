"""Paper 3, figure 5: throughput by policy and number of workers for TPC-H Q1, which has four groups.

With so few groups there is almost nothing to aggregate, and only an even evaluation matters, which favours SH. Policies
that keep keys whole use at most four workers, however many there are.
"""

from __future__ import annotations

from common import Shape, arguments, report
from partitioning import WHOLE, ByPolicy, by_policy, measure, plot, spread, workers_in

NAME = "paper3_figure5"


def main() -> None:
    options = arguments(__doc__ or "")
    found = measure("tpch-q1", options, scale=0.2, quick_scale=0.05)
    found.table("TPC-H Q1")
    rate = found.rate()
    wall = {which: found.rows / seconds for which, seconds in found.wall().items()}
    panels = {"rows/s, if every worker had a core": rate, "rows/s, wall time on this machine": wall}
    picture = plot(NAME, "Paper 3, figure 5: TPC-H Q1, throughput", panels)
    report(NAME, _shapes(rate), found.numbers(), picture, options.json)


def _shapes(rate: ByPolicy) -> list[Shape]:
    gain = {name: many[-1] / many[0] for name, many in by_policy(rate).items()}
    order = {v: sorted({name for name, _ in rate}, key=lambda name: -rate[name, v]) for v in workers_in(rate)}
    return [
        Shape("SH is the best with any number of workers", all(o[0] == "SH-w" for o in order.values()),
              ", ".join(f"{o[0]} at {v}" for v, o in order.items())),
        Shape("PK-5 is the next best", all(o[1] == "PK-5" for o in order.values()),
              ", ".join(f"{o[1]} at {v}" for v, o in order.items())),
        Shape("SH scales from 8 to 32 workers", gain["SH-w"] > 2, f"{gain['SH-w']:.2f} times"),
        Shape("policies that keep keys whole do not scale", all(gain[name] < 1.3 for name in WHOLE),
              spread([gain[name] for name in WHOLE])),
        Shape("CM and LM with two choices do not scale well", max(gain["CM-2"], gain["LM-2"]) < 1.5,
              spread([gain["CM-2"], gain["LM-2"]])),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
