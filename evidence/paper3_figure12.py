"""Paper 3, figure 12: Google Q2, CPU by job over 45 minutes. How many percent lower the latency is than PK-2's.

The paper's windows have 181 tuples, and hardly any key occurs twice. This part of the trace begins with a busy hour,
and its one full window has 113,467 tuples of 757 jobs.
"""

from __future__ import annotations

from common import Shape, arguments, report
from partitioning import measure, over, plot, spread, table, workers_in

from benchmarks.partitioner_runs import AM_2, AM_5, CAM_2, CAM_5, FLD, PK_2, SH

NAME = "paper3_figure12"
OURS = ("AM-2", "AM-5", "cAM-2", "cAM-5")


def main() -> None:
    options = arguments(__doc__ or "")
    found = measure("google-q2", options, policies=(SH, FLD, PK_2, AM_2, AM_5, CAM_2, CAM_5), windows=1, repeats=7)
    found.table("Google Q2")
    path, workers = found.mean(), workers_in(found.times)
    better = {(name, v): 100 * (1 - path[name, v] / path["PK-2", v]) for name, v in path if name != "PK-2"}
    table(
        "% less latency than PK-2 (if every worker had a core)",
        ("policy", "workers", "less"),
        [(*k, x) for k, x in better.items()],
    )
    picture = plot(NAME, "Paper 3, figure 12: Google Q2", {"% less latency than PK-2": better})
    gains = [x for name in OURS for x in over(path, "PK-2", name)]
    first, last = workers[0], workers[-1]
    sh, ours = (path[name, first] / path[name, last] for name in ("SH-w", "cAM-2"))
    shapes = [
        Shape(
            "AM and cAM have 1.4 times better latency than PK-2",
            min(gains) > 1.4,
            f"{min(gains):.2f} to {max(gains):.2f}",
        ),
        Shape("SH does not scale from 8 to 32 workers", sh < 1.2, f"{sh:.2f} times faster"),
        Shape("cAM-2 does", ours > 1.2, f"{ours:.2f} times faster"),
        Shape(
            "cAM-2 is not slower than FLD",
            min(over(path, "FLD-1", "cAM-2")) > 0.95,
            spread(over(path, "FLD-1", "cAM-2")),
        ),
    ]
    report(NAME, shapes, found.numbers(), picture, options.json)


if __name__ == "__main__":
    main()
