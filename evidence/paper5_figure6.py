"""Paper 5, figure 6: the rate of a split as the query processors q grow, with p splitters chosen in four ways.

p by equation (6), p by the cost model (equations 2 and 3), p = 1 (one process splits: the paper's baseline), and p = q.
The desired stream has eight times the rate of one splitter, as in the paper (1,000 against 123.7 Mbit/s), and the
network carries no more than that. Up to 64 processors every process does its real work, one after the other (see
`parasplit`). Beyond that, the cost model continues the curves: *simulated*, dashed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common import Shape, arguments, report, save_plot
from parasplit import BROADCAST, profiled, split, windows

from anabranch.split.cost import SplitCosts, splitters_needed

MEASURED = (1, 2, 4, 8, 16, 32, 64)
SIMULATED = (64, 128, 256, 512)
WANTED = 8
"""The desired rate, as a multiple of the rate of one splitter."""
WINDOW_ROWS = 16_384

BY_6, BY_MODEL, ONE, AS_Q = "equation (6)", "cost model", "p = 1", "p = q"


def choices(single: float, costs: SplitCosts) -> dict[str, Callable[[int], int]]:
    """The four ways to choose p."""
    wanted = WANTED * single
    return {
        BY_6: lambda q: splitters_needed(wanted, single, q, b=BROADCAST),
        BY_MODEL: lambda q: costs.splitters(wanted, q),
        ONE: lambda q: 1,
        AS_Q: lambda q: q,
    }


def main() -> None:
    options = arguments(__doc__ or "")
    measured = MEASURED[:3] if options.quick else MEASURED
    count, rows = (8, 2_048) if options.quick else (64, WINDOW_ROWS)
    costs = profiled(count, rows)
    single = 1 / costs.splitter(1)
    rates: dict[str, list[float]] = {name: [] for name in choices(single, costs)}
    chosen: dict[str, list[int]] = {name: [] for name in rates}
    for q in measured:
        stream = windows(count, rows, q)
        for name, choose in choices(single, costs).items():
            p = min(choose(q), count)
            busy = split(stream, p, q)
            rates[name].append(min(busy.rate, WANTED * single) / single)
            chosen[name].append(p)
            print(f"q {q:4d}  {name:13s} p {p:4d}  {rates[name][-1]:6.2f} times one splitter", flush=True)
    last = split(stream, chosen[BY_6][-1], measured[-1]).costs()
    simulated = {
        name: [min(last.stream_rate(choose(q), q), WANTED * single) / single for q in SIMULATED]
        for name, choose in choices(single, last).items()
    }

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name, rate in rates.items():
            (line,) = axes.plot(measured, rate, marker="o", label=name)
            axes.plot(SIMULATED, simulated[name], linestyle="--", marker="x", color=line.get_color())
        axes.axhline(WANTED, color="grey", linestyle=":", label="what the network carries")
        axes.set(xscale="log", ylim=(0, None), xlabel="query processors q (dashed: simulated)")
        axes.set(ylabel="rate / rate of one splitter")
        axes.set_title("Paper 5, figure 6: scale-up of the split")
        axes.grid(alpha=0.3)
        axes.legend()

    plot = save_plot("paper5_figure6", draw)
    numbers = {"q": measured, "rate": rates, "p": chosen, "simulated_q": SIMULATED, "simulated_rate": simulated}
    report("paper5_figure6", _shapes(rates, simulated), numbers, plot, options.json)


def _shapes(rates: dict[str, list[float]], simulated: dict[str, list[float]]) -> list[Shape]:
    heuristic, model, one, as_q = (rates[name][-1] for name in (BY_6, BY_MODEL, ONE, AS_Q))
    far = {name: rate[-1] for name, rate in simulated.items()}
    return [
        Shape("p = 1 does not scale with q", one < 1.2, f"{one:.2f} times one splitter"),
        Shape("p by equation (6) scales with q", heuristic > 3 * one, f"{heuristic / one:.1f} times p = 1"),
        Shape(
            "equation (6) does as well as the cost model",
            0.8 < heuristic / model < 1.25,
            f"{heuristic / model:.2f} of it",
        ),
        Shape("p = q does not scale either", as_q < 0.8 * heuristic, f"{as_q / heuristic:.2f} of equation (6)"),
        Shape(
            "p = q does not scale at 512 processors either (simulated)",
            far[AS_Q] < 0.8 * far[BY_6],
            f"{far[AS_Q] / far[BY_6]:.2f} of equation (6)",
        ),
    ]


if __name__ == "__main__":
    main()
