"""Paper 4, table 4: throughput with a window drop that drops nothing over throughput without one.

By the size of tumbling windows (tuples of a key) and the selectivity of a filter before the aggregate (figure 14). In
the paper the ratio is 0.96 to 1. It is lower for small windows, and for a selectivity of 0.5, where the filter must let
marked tuples pass. Here no tuple carries a mark: operators look decisions up in a table, and at p = 0 there is nothing
to look up. So besides the paper's p = 0 there is p = 0.01, where each row is looked up. MEASURED over files.
"""

from __future__ import annotations

from typing import Any

from common import Shape, arguments, report, save_plot
from shedding import listed, runner, say

from benchmarks.shedding_overhead import Filtered, Recorded, compared

NAME = "paper4_table4"
SIZES = (25, 50, 75, 100)
SELECTIVITIES = (1.0, 0.5)
PAPER = {1.0: (0.99, 0.99, 1.0, 1.0), 0.5: (0.96, 0.98, 0.98, 1.0)}
DROPS = ("p = 0", "p = 0.01")


def main() -> None:
    options = arguments(__doc__ or "")
    sizes = SIZES[:1] if options.quick else SIZES
    rounds = 1 if options.quick else 7
    rows = Recorded(keys=200, epochs=3, rows=200_000) if options.quick else Recorded(keys=200, epochs=6, rows=3_000_000)
    found: dict[str, dict[float, list[float]]] = {name: {s: [] for s in SELECTIVITIES} for name in DROPS}
    with runner(options.quick) as (run, _):
        files = rows.write(run.folder / "rows")
        for selectivity in SELECTIVITIES:
            for size in sizes:
                comparison = compared(run.spark, files, run.folder, Filtered(size, selectivity), rounds)
                for name, many in found.items():
                    many[selectivity].append(comparison.ratio(name))
                ratios = ", ".join(f"{name}: {many[selectivity][-1]:.3f}" for name, many in found.items())
                say(f"windows of {size}, selectivity {selectivity:g}: {ratios}")

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for selectivity in SELECTIVITIES:
            for name, style in zip(DROPS, ("-o", "--s"), strict=True):
                axes.plot(sizes, found[name][selectivity], style, label=f"{name}, selectivity {selectivity:g}")
            axes.plot(sizes, PAPER[selectivity][: len(sizes)], ":", color="grey", label=f"paper, {selectivity:g}")
        axes.set(xlabel="tuples in a window", ylabel="throughput with a window drop / without", ylim=(0.5, 1.2))
        figure.suptitle("Paper 4, table 4: what a window drop costs")
        axes.grid(alpha=0.3)
        axes.legend()

    plot = save_plot(NAME, draw)
    nothing = [ratio for many in found["p = 0"].values() for ratio in many]
    looked = [ratio for many in found["p = 0.01"].values() for ratio in many]
    halves = [a - b for a, b in zip(*(found["p = 0.01"][s] for s in SELECTIVITIES), strict=True)]
    shapes = [
        Shape("a window drop that drops nothing costs at most 4 %", min(nothing) >= 0.96, listed(nothing)),
        Shape("(not in the paper) one that looks up every row costs at most 10 %", min(looked) >= 0.9, listed(looked)),
        Shape("a filter before the aggregate makes little difference, because no tuple is marked",
              max(map(abs, halves)) < 0.1, f"p = 0.01, selectivity 1 less 0.5: {listed(halves)}"),
    ]  # fmt: skip
    numbers = {"sizes": sizes, "ratios": {n: {f"{s:g}": m for s, m in many.items()} for n, many in found.items()}}
    report(NAME, shapes, numbers, plot, options.json)


if __name__ == "__main__":
    main()
