"""Paper 2, figures 11 and 12: communication over the number of workers, and over the rate.

In the paper each worker communicates less the more workers there are, but all of them together communicate more,
linearly. Choosing the number of workers by the load costs far less than using all of them (figure 11, 1,500 tuples/s).
Workers are served one after the other, so their times differ, and more so at higher rates (figure 12, 4 workers). The
time of a worker includes its wait for those before it, as in the paper. SIMULATED, with costs from a short measurement
of the real operator on this machine, and an assumed network (`joining`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from common import Shape, arguments, report, save_plot
from joining import T_D, Found, calibrated, simulated

NAME = "paper2_figure11_12"
RATE = 1_500
WORKERS = (1, 2, 4, 6, 8, 12, 16)
RATES = (500, 1_000, 2_000, 4_000, 6_000, 8_000)


def main() -> None:
    options = arguments(__doc__ or "")
    workers, rates = (WORKERS[:3], RATES[:3]) if options.quick else (WORKERS, RATES)
    costs = calibrated(options.quick)
    seconds = 120.0 if options.quick else 1_200.0
    fixed = [simulated(costs, RATE, n, seconds=seconds) for n in workers]
    adaptive = [simulated(costs, RATE, n, adaptive=True, seconds=seconds) for n in workers]
    by_rate = [simulated(costs, rate, 4, seconds=seconds) for rate in rates]
    # The paper serves workers in the order of their numbers; with a sub-group each, they do not wait.
    apart = [simulated(costs, rate, 4, subgroups=4, seconds=seconds) for rate in rates]
    for n, own, chosen in zip(workers, fixed, adaptive, strict=True):
        print(
            f"{n:3d} workers  each {own.communication * 1e3:7.2f} ms, all {own.aggregate * 1e3:8.2f} ms an epoch; "
            f"adaptive {chosen.workers:4.1f} workers, all {chosen.aggregate * 1e3:8.2f} ms",
            flush=True,
        )
    for rate, run in zip(rates, by_rate, strict=True):
        print(f"{rate:7,d} tuples/s  {run.least * 1e3:7.2f} .. {run.most * 1e3:7.2f} ms an epoch", flush=True)

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        left.plot(workers, [run.communication * 1e3 for run in fixed], marker="o", label="a worker")
        left.plot(workers, [run.aggregate * 1e3 for run in fixed], marker="o", label="all workers")
        left.plot(workers, [run.aggregate * 1e3 for run in adaptive], marker="x", label="all, as many as needed")
        left.set(xlabel="workers", ylabel=f"communication, ms an epoch of {T_D} s", title=f"{RATE:,} tuples/s")
        for name in ("least", "communication", "most"):
            label = "mean" if name == "communication" else name
            right.plot(rates, [getattr(run, name) * 1e3 for run in by_rate], marker="o", label=label)
        right.plot(rates, [run.most * 1e3 for run in apart], linestyle="--", label="most, 4 sub-groups")
        right.set(xlabel="tuples/s of each stream", ylabel="communication, ms an epoch", title="4 workers")
        figure.suptitle("Paper 2, figures 11 and 12: communication (simulated)")
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.legend()

    plot = save_plot(NAME, draw, size=(12, 5))
    numbers = {
        "simulated": True, "workers": workers, "each_seconds": [run.communication for run in fixed],
        "all_seconds": [run.aggregate for run in fixed], "adaptive_seconds": [run.aggregate for run in adaptive],
        "adaptive_workers": [run.workers for run in adaptive], "rates": rates,
        "least_seconds": [run.least for run in by_rate], "most_seconds": [run.most for run in by_rate],
        "most_seconds_sub_groups": [run.most for run in apart],
    }  # fmt: skip
    report(NAME, _shapes(workers, fixed, adaptive, by_rate, apart), numbers, plot, options.json)


def _shapes(
    workers: tuple[int, ...], fixed: list[Found], adaptive: list[Found], by_rate: list[Found], apart: list[Found]
) -> list[Shape]:
    each, together = [run.communication for run in fixed], [run.aggregate for run in fixed]
    straight = float(np.corrcoef(workers, together)[0, 1])
    saved = adaptive[-1].aggregate / together[-1]
    spread = [run.most - run.least for run in by_rate]
    evened = (apart[-1].most - apart[-1].least) / spread[-1]
    return [
        Shape("a worker communicates less the more workers there are (simulated)",
              all(b < a for a, b in pairwise(each)),
              f"{each[0] * 1e3:.2f} ms to {each[-1] * 1e3:.2f} ms, least {min(each) * 1e3:.2f} ms"),
        Shape("all together communicate more, linearly (simulated)", straight > 0.98, f"correlation {straight:.3f}"),
        Shape("choosing the number of workers by the load costs far less (simulated)", saved < 0.5,
              f"{saved:.2f} of {workers[-1]} workers"),
        Shape("workers differ, and more so at higher rates (simulated)",
              all(a < b for a, b in pairwise(spread)),
              f"{spread[0] * 1e3:.2f} ms to {spread[-1] * 1e3:.2f} ms"),
        Shape("sub-groups even that out (simulated)", evened < 0.2, f"{evened:.2f} of the difference"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
