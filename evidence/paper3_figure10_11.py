"""Paper 3, figures 10 and 11: Google Q1, CPU by scheduling class, windows of a minute with at most four groups.

Figure 10 shows how many percent lower the latency is than PK-2's, figure 11 the share of aggregation. The paper's
windows have 42 tuples. Those of this part of the trace have about two thousand, so evaluation weighs more here.
"""

from __future__ import annotations

from common import Shape, arguments, report
from partitioning import measure, plot, spread, table, workers_in

from benchmarks.partitioner_runs import AM_2, AM_5, CAM_2, CAM_5, FLD, PK_2, SH

NAME = "paper3_figure10_11"
OURS = ("AM-2", "AM-5", "cAM-2", "cAM-5")


def main() -> None:
    options = arguments(__doc__ or "")
    found = measure("google-q1", options, policies=(SH, FLD, PK_2, AM_2, AM_5, CAM_2, CAM_5), windows=83, repeats=3)
    found.table("Google Q1")
    path, share, workers = found.mean(), found.share(), workers_in(found.times)
    better = {
        (name, v): 100 * (1 - path[name, v] / path["PK-2", v]) for name, v in path if name not in ("PK-2", "FLD-1")
    }
    rows = [(name, v, better[name, v], 100 * share[name, v]) for name, v in better]
    table(
        "% less latency than PK-2 (if every worker had a core), % aggregation",
        ("policy", "workers", "less", "aggregation"),
        rows,
    )
    panels = {"% less latency than PK-2": better, "share of aggregation": share}
    picture = plot(NAME, "Paper 3, figures 10 and 11: Google Q1", panels)
    first, last = workers[0], workers[-1]
    ours = [better[name, v] for name in OURS for v in workers]
    sh = [better["SH-w", v] for v in workers]
    grown = {name: share[name, last] - share[name, first] for name in ("SH-w", "PK-2")}
    shapes = [
        Shape("AM and cAM have less latency than PK-2", min(ours) > 0, f"{min(ours):.0f} to {max(ours):.0f} %"),
        Shape("SH's advantage over PK-2 shrinks as workers grow", sh[-1] < sh[0], f"{spread(sh, 0)} %"),
        Shape(
            "the share of aggregation grows with the workers for SH and PK-2; AM and cAM have none",
            min(grown.values()) > 0 == max(share[name, last] for name in OURS),
            f"by {spread(list(grown.values()))}",
        ),
    ]
    numbers = {**found.numbers(), "less": [better[key] for key in better]}
    report(NAME, shapes, numbers, picture, options.json)


if __name__ == "__main__":
    main()
