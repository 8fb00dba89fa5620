"""Paper 2, figures 9 and 10: idle time and communication over the rate, without and with fine tuning; 4 workers.

In the paper workers have no idle time at 4,000 tuples/s without fine tuning, and at 6,000 with it. Communication takes
the same time in both cases. SIMULATED, with costs from a short measurement of the real operator on this machine, so the
rates are above the paper's.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from common import Shape, arguments, report, save_plot
from joining import T_D, calibrated, rate_where, simulated

NAME = "paper2_figure9_10"
WORKERS = 4
PLAIN, TUNED = "not tuned", "fine tuned"
NO_TIME = 0.05
"""A worker whose idle share of an epoch is smaller has no idle time."""


def main() -> None:
    options = arguments(__doc__ or "")
    costs = calibrated(options.quick)
    seconds = 120.0 if options.quick else 1_200.0

    def found(rate: float, name: str) -> Any:
        return simulated(costs, rate, WORKERS, fine_tuning=name == TUNED, seconds=seconds)

    def busy(name: str, rate: float) -> bool:
        return bool(found(rate, name).idle < NO_TIME * T_D)

    end = {name: float(rate_where(partial(busy, name))) for name in (PLAIN, TUNED)}
    rates = np.linspace(0.05, 1.1, 4 if options.quick else 12) * max(end.values())
    runs = {name: [found(rate, name) for rate in rates] for name in end}
    idle = {name: [each.idle for each in run] for name, run in runs.items()}
    communication = {name: [each.communication for each in run] for name, run in runs.items()}
    for name in end:
        print(f"{name:11s} no idle time above {end[name]:9,.0f} tuples/s", flush=True)

    def draw(figure: Any) -> None:
        for axes, name in zip(figure.subplots(1, 2, sharey=True), end, strict=True):
            axes.plot(rates, idle[name], marker="o", label="idle")
            axes.plot(rates, communication[name], marker="s", label="communication")
            axes.set(xlabel="tuples/s of each stream", ylabel="s of a worker in an epoch of 2 s", title=name)
            axes.grid(alpha=0.3)
            axes.legend()
        figure.suptitle(f"Paper 2, figures 9 and 10: idle time, {WORKERS} workers (simulated)")

    plot = save_plot(NAME, draw, size=(12, 5))
    numbers = {
        "simulated": True, "rates": rates.tolist(), "idle_seconds": idle, "communication_seconds": communication,
        "no_idle_time_from": end,
    }  # fmt: skip
    report(NAME, _shapes(end, idle, communication), numbers, plot, options.json)


def _shapes(end: dict[str, float], idle: dict[str, list[float]], communication: dict[str, list[float]]) -> list[Shape]:
    ratio = np.array(communication[PLAIN]) / np.array(communication[TUNED])
    falling = all(b <= a + 0.02 for a, b in pairwise(idle[PLAIN]))
    growing = communication[TUNED][-1] / communication[TUNED][0]
    return [
        Shape("without fine tuning idle time falls with the rate, to nothing (simulated)",
              falling and idle[PLAIN][-1] < NO_TIME * T_D, f"{idle[PLAIN][0]:.2f} s to {idle[PLAIN][-1]:.2f} s"),
        Shape("with fine tuning idle time lasts up to a higher rate, in the paper 1.5 times (simulated)",
              end[TUNED] > 1.3 * end[PLAIN], f"{end[TUNED] / end[PLAIN]:.1f} times the rate"),
        Shape("fine tuning costs no communication (simulated)", bool(np.all(np.abs(ratio - 1) < 0.2)),
              f"{ratio.min():.2f} to {ratio.max():.2f} of it"),
        Shape("communication grows with the rate (simulated)", growing > 1.5, f"{growing:.1f} times"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
