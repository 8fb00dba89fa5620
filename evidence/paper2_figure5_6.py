"""Paper 2, figures 5 and 6: average delay over the arrival rate, with 1 to 8 workers.

In the paper the delay hardly changes up to some rate, and then rises sharply because the cluster is overloaded. Every
additional worker moves that point to a higher rate. SIMULATED, with costs from a short measurement of the real operator
on this machine, so the rates are far above the paper's (1,500 to 8,000 tuples/s).

Beyond that point the delay may fall again for a while: equal groups are split at the same rate, and then a tuple is
compared with half as many others. The paper has too few rates to show that.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

from common import Shape, arguments, report, save_plot
from joining import T_D, calibrated, rate_where, simulated

NAME = "paper2_figure5_6"
WORKERS = (1, 2, 3, 4, 6, 8)
LOADS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
"""Rates as shares of the workers' capacity."""
OVERLOADED = 2 * T_D
"""Seconds of delay."""


def main() -> None:
    options = arguments(__doc__ or "")
    workers, loads = (WORKERS[:2], LOADS[::3]) if options.quick else (WORKERS, LOADS)
    costs = calibrated(options.quick)
    seconds = 120.0 if options.quick else 1_200.0

    def delay(rate: float, count: int) -> float:
        return simulated(costs, rate, count, seconds=seconds).delay

    def overloaded(count: int, rate: float) -> bool:
        return delay(rate, count) > OVERLOADED

    saturation = {n: float(rate_where(partial(overloaded, n))) for n in workers}
    rates = {n: [share * saturation[n] for share in loads] for n in workers}
    delays: dict[int, list[float]] = {}
    for n in workers:
        delays[n] = [delay(rate, n) for rate in rates[n]]
        shown = " ".join(f"{each:.1f}" for each in delays[n])
        print(f"{n} workers  overloaded above {saturation[n]:9,.0f} tuples/s  delay {shown} s", flush=True)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for n in workers:
            axes.plot(rates[n], delays[n], marker="o", label=f"{n} workers")
        axes.set(xlabel="tuples/s of each stream", ylabel="average delay, s", xscale="log", yscale="log")
        axes.set_title("Paper 2, figures 5 and 6: delay over the rate (simulated)")
        axes.grid(alpha=0.3)
        axes.legend()

    plot = save_plot(NAME, draw)
    numbers = {"simulated": True, "loads": loads, "saturation": saturation, "delay_seconds": delays}
    report(NAME, _shapes(saturation, delays, loads), numbers, plot, options.json)


def _shapes(saturation: dict[int, float], delays: dict[int, list[float]], loads: tuple[float, ...]) -> list[Shape]:
    below = [i for i, share in enumerate(loads) if share <= 0.75]
    flat = max(max(delay[i] for i in below) / min(delay[i] for i in below) for delay in delays.values())
    jump = min(delay[-1] / delay[below[-1]] for delay in delays.values())
    rising = list(saturation.values())
    few, many = min(saturation), max(saturation)
    gain = saturation[many] / saturation[few] / (many / few)
    return [
        Shape("up to three quarters of the capacity the delay varies little (simulated)", flat < 2,
              f"{flat:.2f} times"),
        Shape("beyond the capacity it rises sharply (simulated)", jump > 5, f"{jump:.0f} times at {loads[-1]} of it"),
        Shape("every worker moves the point of overload to a higher rate (simulated)",
              all(a < b for a, b in pairwise(rising)),
              ", ".join(f"{n}: {rate:,.0f}" for n, rate in saturation.items())),
        Shape("(not in the paper) the gain is less than linear: tuples find more pairs at high rates (simulated)",
              gain < 1,
              f"{many} workers: {gain:.2f} of {many // few} times {few}"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
