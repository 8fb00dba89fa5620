"""Paper 3, figure 9: latency of a window for DEBS Q2: by taxi, the fares of each pickup cell and the current cell.

This is the first stage of the paper's query: two indices per taxi, as two user-defined aggregates. The next stage,
profit by cell, has other keys and does not depend on how taxis are placed.
"""

from __future__ import annotations

from common import Shape, arguments, report
from partitioning import SPLIT, WHOLE, ByPolicy, in_ms, measure, over, plot, spread, workers_in

NAME = "paper3_figure9"
OURS = ("AM-2", "AM-5", "cAM-2", "cAM-5")


def main() -> None:
    options = arguments(__doc__ or "")
    found = measure("debs-q2", options, scale=10.0, quick_scale=1.0, windows=3, repeats=2)
    found.table("DEBS Q2")
    panels = {
        "mean ms, if every worker had a core": in_ms(found.mean()),
        "99th percentile": in_ms(found.last_percent()),
        "mean ms, wall time on this machine": in_ms(found.wall()),
    }
    picture = plot(NAME, "Paper 3, figure 9: DEBS Q2, latency of a window", panels)
    report(NAME, _shapes(found.mean(), found.last_percent()), found.numbers(), picture, options.json)


def _shapes(path: ByPolicy, last: ByPolicy) -> list[Shape]:
    best = all(max(path[n, v] for n in WHOLE) < min(path[n, v] for n in SPLIT) for v in workers_in(path))
    fld, late = ([x for name in OURS for x in over(each, "FLD-1", name)] for each in (path, last))
    pk = [x for name in OURS for x in over(path, "PK-2", name)]
    return [
        Shape("policies that keep keys whole are faster than all that split them", best,
              f"PK-2 / cAM-2 {spread(over(path, 'PK-2', 'cAM-2'))}"),
        Shape("AM and cAM are 1.2 to 1.5 times faster than FLD", sum(fld) / len(fld) > 1.2,
              f"{min(fld):.2f} to {max(fld):.2f} times"),
        Shape("they are 1.3 to 1.9 times faster than FLD at the 99th percentile", sum(late) / len(late) > 1.3,
              f"{min(late):.2f} to {max(late):.2f} times"),
        Shape("they are up to 5.7 times faster than PK", max(pk) > 5.7, f"{min(pk):.1f} to {max(pk):.1f} times"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
