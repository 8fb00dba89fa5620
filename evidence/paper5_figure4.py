"""Paper 5, figure 4: throughput of a window router, by the size W of a physical window and the number p of splitters.

The router sends whole windows to p processes that only read them. The paper's network is limited to 980 Mbit/s. Here
the windows go through sockets of one machine, so the curve can rise beyond the paper's 16 kB.
"""

from __future__ import annotations

from typing import Any

from common import Shape, arguments, report, save_plot
from parasplit import single_router

SIZES = (72, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)
SPLITTERS = (1, 4, 16, 64)


def main() -> None:
    options = arguments(__doc__ or "")
    seconds = 0.05 if options.quick else 0.5
    splitters = SPLITTERS[:2] if options.quick else SPLITTERS
    rates: dict[int, list[float]] = {p: [] for p in splitters}
    for p in splitters:
        for size in SIZES:
            best = max(single_router(p, size, seconds) for _ in range(1 if options.quick else 3))
            rates[p].append(best * 8 / 1e6)
            print(f"p {p:4d}  W {size:9,d} B  {rates[p][-1]:10,.0f} Mbit/s", flush=True)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for p, rate in rates.items():
            axes.plot(SIZES, rate, marker="o", label=f"p = {p}")
        axes.axvline(16_384, color="grey", linestyle=":", label="the paper's largest W")
        axes.set(xscale="log", yscale="log", xlabel="W, bytes", ylabel="Mbit/s through the router")
        axes.set_title("Paper 5, figure 4: the window router")
        axes.grid(alpha=0.3)
        axes.legend()

    plot = save_plot("paper5_figure4", draw)
    report("paper5_figure4", _shapes(rates), {"window_bytes": SIZES, "mbit_per_second": rates}, plot, options.json)


def _shapes(rates: dict[int, list[float]]) -> list[Shape]:
    gains = {p: rate[SIZES.index(16_384)] / rate[0] for p, rate in rates.items()}
    least = min(gains.values())
    most = {p: max(rate) for p, rate in rates.items()}
    few, many = min(most), max(most)
    flat = {p: rate[-1] / rate[SIZES.index(1_048_576)] for p, rate in rates.items()}
    return [
        Shape("windows of 16 kB go through far faster than single tuples of 72 B", least > 10, f"{least:.0f} times"),
        Shape(
            "above some W a larger window gains little",
            max(flat.values()) < 1.3,
            f"4 MB over 1 MB: {max(flat.values()):.2f}",
        ),
        Shape(
            f"{many} splitters reach nearly the best rate of {few}",
            most[many] > 0.8 * most[few],
            f"{most[many] / most[few]:.2f} of it",
        ),
    ]


if __name__ == "__main__":
    main()
