"""Paper 2, figures 13 and 14: average delay and communication over the length of the distribution epoch.

In the paper a shorter epoch means a shorter delay, because tuples wait less at the master, and more communication,
until workers do nothing else. SIMULATED at 1,500 tuples/s with 4 workers, with costs from a short measurement of the
real operator on this machine, and an assumed network (`joining`). The paper's formula for the master's buffer is shown
too.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from common import Shape, arguments, report, save_plot
from joining import calibrated, simulated

from anabranch.control.simulate import master_buffer_peak

NAME = "paper2_figure13_14"
EPOCHS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0)
"""t_d in seconds."""
RATE, WORKERS = 1_500, 4
SUBGROUPS = (1, 2, 4)


def main() -> None:
    options = arguments(__doc__ or "")
    lengths = EPOCHS[3:6] if options.quick else EPOCHS
    costs = calibrated(options.quick)
    seconds = 120.0 if options.quick else 1_200.0
    runs = [simulated(costs, RATE, WORKERS, t_d=t_d, seconds=seconds) for t_d in lengths]
    delay = [run.delay for run in runs]
    share = [run.per_second(t_d) for run, t_d in zip(runs, lengths, strict=True)]
    for t_d, each, spent in zip(lengths, delay, share, strict=True):
        print(f"t_d {t_d:5.2f} s  delay {each:5.2f} s  communication {1e3 * spent:7.3f} ms a second", flush=True)
    peaks = {n: [master_buffer_peak(RATE, t_d, n) for t_d in lengths] for n in SUBGROUPS}

    def draw(figure: Any) -> None:
        left, right, buffers = figure.subplots(1, 3)
        left.plot(lengths, delay, marker="o")
        left.set(ylabel="average delay, s")
        right.plot(lengths, [each * 1e3 for each in share], marker="o")
        right.set(ylabel="communication of a worker, ms a second", yscale="log")
        for n in SUBGROUPS:
            buffers.plot(lengths, peaks[n], marker="o", label=f"{n} sub-groups")
        buffers.set(ylabel="tuples of a stream at the master, at most")
        buffers.legend()
        for axes in (left, right, buffers):
            axes.set(xlabel="distribution epoch, s")
            axes.grid(alpha=0.3)
        figure.suptitle(f"Paper 2, figures 13 and 14: {RATE:,} tuples/s, {WORKERS} workers (simulated)")

    plot = save_plot(NAME, draw, size=(14, 4.5))
    numbers = {"simulated": True, "t_d": lengths, "delay_seconds": delay, "communication_share": share, "peaks": peaks}
    report(NAME, _shapes(lengths, delay, share, peaks), numbers, plot, options.json)


def _shapes(
    lengths: tuple[float, ...], delay: list[float], share: list[float], peaks: dict[int, list[float]]
) -> list[Shape]:
    straight = float(np.corrcoef(lengths, delay)[0, 1])
    halved = peaks[SUBGROUPS[-1]][-1] / peaks[1][-1]
    return [
        Shape("a shorter epoch makes the delay shorter (simulated)",
              all(a < b for a, b in pairwise(delay)),
              f"{delay[0]:.2f} s at {lengths[0]} s, {delay[-1]:.2f} s at {lengths[-1]} s"),
        Shape("the delay is linear in the epoch, because tuples wait at the master (simulated)", straight > 0.99,
              f"correlation {straight:.3f}"),
        Shape("a shorter epoch means more communication (simulated)", all(a > b for a, b in pairwise(share)),
              f"{1e3 * share[0]:.2f} ms a second, and {1e3 * share[-1]:.2f} ms"),
        Shape("sub-groups need up to half the buffer (simulated)", halved < 0.7,
              f"{halved:.2f} of it with {SUBGROUPS[-1]}"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
