"""Paper 5, figure 7: the efficiency of a split, equation (7), by the number of query processors; p as in figure 6.

Efficiency is the splitters' share of all CPU time. The rest, routing and merging, is the price of splitting in
parallel. It can be measured on any machine, because CPU time does not depend on the number of cores. Beyond 64
processors the cost model computes it: *simulated*, dashed.
"""

from __future__ import annotations

from typing import Any

from common import Shape, arguments, report, save_plot
from paper5_figure6 import AS_Q, BY_6, BY_MODEL, MEASURED, ONE, SIMULATED, WINDOW_ROWS, choices
from parasplit import profiled, split, windows


def main() -> None:
    options = arguments(__doc__ or "")
    measured = MEASURED[:3] if options.quick else MEASURED
    count, rows = (8, 2_048) if options.quick else (64, WINDOW_ROWS)
    costs = profiled(count, rows)
    single = 1 / costs.splitter(1)
    shares: dict[str, list[float]] = {name: [] for name in choices(single, costs)}
    for q in measured:
        stream = windows(count, rows, q)
        for name, choose in choices(single, costs).items():
            p = min(choose(q), count)
            shares[name].append(split(stream, p, q).efficiency)
            print(f"q {q:4d}  {name:13s} p {p:4d}  efficiency {shares[name][-1]:.2f}", flush=True)
    last = split(stream, min(choices(single, costs)[BY_6](measured[-1]), count), measured[-1]).costs()
    simulated = {
        name: [last.efficiency(choose(q), q) for q in SIMULATED] for name, choose in choices(single, last).items()
    }

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name, share in shares.items():
            (line,) = axes.plot(measured, share, marker="o", label=name)
            axes.plot(SIMULATED, simulated[name], linestyle="--", marker="x", color=line.get_color())
        axes.set(xscale="log", ylim=(0, 1), xlabel="query processors q (dashed: simulated)")
        axes.set(ylabel="efficiency, equation (7)")
        axes.set_title("Paper 5, figure 7: efficiency of the split")
        axes.grid(alpha=0.3)
        axes.legend()

    plot = save_plot("paper5_figure7", draw)
    numbers = {"q": measured, "efficiency": shares, "simulated_q": SIMULATED, "simulated_efficiency": simulated}
    report("paper5_figure7", _shapes(shares, simulated), numbers, plot, options.json)


def _shapes(shares: dict[str, list[float]], simulated: dict[str, list[float]]) -> list[Shape]:
    heuristic, model, as_q = (shares[name][-1] for name in (BY_6, BY_MODEL, AS_Q))
    far = {name: share[-1] for name, share in simulated.items()}
    return [
        Shape(
            "equation (6) is about as efficient as the cost model",
            abs(heuristic - model) < 0.05,
            f"{heuristic:.2f} and {model:.2f}",
        ),
        Shape("p = q is less efficient", as_q < heuristic - 0.02, f"{as_q:.2f} against {heuristic:.2f}"),
        Shape(
            "p = q is particularly bad at 512 processors (simulated)",
            far[AS_Q] < 0.5 * far[BY_6],
            f"{far[AS_Q]:.2f} against {far[BY_6]:.2f}; p = 1 {far[ONE]:.2f}",
        ),
    ]


if __name__ == "__main__":
    main()
