"""Paper 5, figure 5: one window router against a tree of routers, by the number of splitters; W = 16 kB.

In the paper each router has its own machine and network. Here they share cores, so a window that passes two routers
costs twice as much. The script only shows whether the rate falls as p grows.
"""

from __future__ import annotations

from typing import Any

from common import Shape, arguments, report, save_plot
from parasplit import router_tree, single_router

SIZE = 16_384
SPLITTERS = (4, 16, 64, 144, 256)
KINDS = {"single router": single_router, "tree of routers": router_tree}


def main() -> None:
    options = arguments(__doc__ or "")
    seconds = 0.05 if options.quick else 1.0
    splitters = SPLITTERS[:2] if options.quick else SPLITTERS
    rates: dict[str, list[float]] = {name: [] for name in KINDS}
    for p in splitters:
        for name, kind in KINDS.items():
            best = max(kind(p, SIZE, seconds) for _ in range(1 if options.quick else 3))
            rates[name].append(best * 8 / 1e6)
            print(f"p {p:4d}  {name:16s} {rates[name][-1]:10,.0f} Mbit/s", flush=True)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name, rate in rates.items():
            axes.plot(splitters, rate, marker="o", label=name)
        axes.set(xscale="log", ylim=(0, None), xlabel="splitters p", ylabel="Mbit/s through the router")
        axes.set_title("Paper 5, figure 5: single router and tree, W = 16 kB")
        axes.grid(alpha=0.3)
        axes.legend()

    plot = save_plot("paper5_figure5", draw)
    report("paper5_figure5", _shapes(rates), {"splitters": splitters, "mbit_per_second": rates}, plot, options.json)


def _shapes(rates: dict[str, list[float]]) -> list[Shape]:
    single, tree = rates["single router"], rates["tree of routers"]
    falls = {name: rate[-1] / rate[0] for name, rate in rates.items()}
    return [
        Shape("a tree does not degrade as p grows", falls["tree of routers"] > 0.8, f"{falls['tree of routers']:.2f}"),
        Shape(
            "a single router degrades", falls["single router"] < 0.95, f"{falls['single router']:.2f} of its first rate"
        ),
        Shape("for many splitters the tree is faster", tree[-1] > single[-1], f"{tree[-1] / single[-1]:.2f} times"),
    ]


if __name__ == "__main__":
    main()
