"""Paper 2, figures 7 and 8: CPU time and average delay over the arrival rate, with and without fine tuning; 4 workers.

In the paper CPU time without fine tuning grows sharply with the rate, because a tuple is compared with the whole window
of its group. The delay is 48 s at 4,000 tuples/s, and 2 s with fine tuning. MEASURED with the real operator: CPU
seconds of a distribution epoch of 2 s with full windows of 10 minutes. The rates go beyond the paper's, up to where
this machine would be overloaded. The delay is computed from the measured time, for a worker with its own core. Besides
the paper's nested loop, the operator's default is shown, a hashed probe, which needs no fine tuning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from common import Shape, arguments, report, save_plot
from joining import GROUPS, cpu_seconds, delay_of, rows_of_groups

NAME = "paper2_figure7_8"
RATES = (1_000, 2_000, 4_000, 8_000, 16_000, 24_000)
WORKERS = 4
PLAIN, TUNED, HASHED = "nested loop, not tuned", "nested loop, fine tuned", "hashed"
KINDS: dict[str, dict[str, Any]] = {
    PLAIN: {"probe": "nested", "fine_tuning": False},
    TUNED: {"probe": "nested", "fine_tuning": True},
    HASHED: {"probe": "hashed", "fine_tuning": True},
}


def main() -> None:
    options = arguments(__doc__ or "")
    rates = RATES[:3] if options.quick else RATES
    window = 60 if options.quick else 600
    groups = (0,) if options.quick else (0, 23, 41)
    busy: dict[str, list[float]] = {name: [] for name in KINDS}
    for rate in rates:
        rows = rows_of_groups(rate, groups, epochs=4, window=window)
        for name, how in KINDS.items():
            busy[name].append(cpu_seconds(rows, window=window, **how) / WORKERS)
            print(f"{rate:7,d} tuples/s  {name:24s} {busy[name][-1]:8.3f} s of CPU per worker and epoch", flush=True)
    delay = {name: [delay_of(each) for each in spent] for name, spent in busy.items()}

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for name in KINDS:
            left.plot(rates, busy[name], marker="o", label=name)
            right.plot(rates, delay[name], marker="o", label=name)
        left.set(xlabel="tuples/s of each stream", ylabel="CPU seconds of a worker in an epoch of 2 s", yscale="log")
        right.set(xlabel="tuples/s of each stream", ylabel="average delay, s", yscale="log")
        figure.suptitle(f"Paper 2, figures 7 and 8: fine tuning, {WORKERS} workers ({len(groups)} of {GROUPS} groups)")
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.legend()

    plot = save_plot(NAME, draw, size=(12, 5))
    numbers = {"rates": rates, "cpu_seconds": busy, "delay_seconds": delay}
    report(NAME, _shapes(rates, busy, delay), numbers, plot, options.json)


def _slope(rates: tuple[int, ...], busy: list[float]) -> float:
    """The power of the rate with which the time grows, in the upper half of the rates."""
    from_ = len(rates) // 2
    return float(np.polyfit(np.log(rates[from_:]), np.log(busy[from_:]), 1)[0])


def _shapes(rates: tuple[int, ...], busy: dict[str, list[float]], delay: dict[str, list[float]]) -> list[Shape]:
    plain, tuned, hashed = (_slope(rates, busy[name]) for name in KINDS)
    gain = busy[PLAIN][-1] / busy[TUNED][-1]
    waits = delay[PLAIN][-1] / delay[TUNED][-1]
    flat = max(delay[TUNED]) / min(delay[TUNED])
    return [
        Shape("without fine tuning CPU time grows faster than the rate", plain > 1.5, f"like rate ** {plain:.2f}"),
        Shape("with fine tuning it grows like the rate", tuned < 1.5, f"like rate ** {tuned:.2f}"),
        Shape("at the highest rate fine tuning saves most of the CPU time", gain > 2, f"{gain:.1f} times less"),
        Shape("at that rate the delay is many times longer without fine tuning", waits > 5,
              f"{delay[PLAIN][-1]:.1f} s and {delay[TUNED][-1]:.1f} s"),
        Shape("with fine tuning the delay hardly changes with the rate", flat < 1.5, f"{flat:.2f} times"),
        Shape("(not in the paper) with a hashed probe a tuple costs the same at any rate", abs(hashed - 1) < 0.3,
              f"like rate ** {hashed:.2f}"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
