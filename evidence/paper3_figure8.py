"""Paper 3, figure 8: mean and 99th percentile of the latency of a window for DEBS Q1, the most frequent routes.

There are half as many groups as rows, so policies that split keys spend most of their time on aggregation. AM-2-H is
one of them: its estimate may mistake a new key for a known one, so its results may be split and are aggregated.
"""

from __future__ import annotations

from common import Shape, arguments, report
from partitioning import SPLIT, WHOLE, ByPolicy, in_ms, measure, over, plot, spread, workers_in

NAME = "paper3_figure8"


def main() -> None:
    options = arguments(__doc__ or "")
    found = measure("debs-q1", options, scale=25.0, quick_scale=2.0, windows=3, repeats=2)
    found.table("DEBS Q1")
    panels = {
        "mean ms, if every worker had a core": in_ms(found.mean()),
        "99th percentile": in_ms(found.last_percent()),
        "mean ms, wall time on this machine": in_ms(found.wall()),
    }
    picture = plot(NAME, "Paper 3, figure 8: DEBS Q1, latency of a window", panels)
    report(NAME, _shapes(found.mean(), found.share(), found.wall()), found.numbers(), picture, options.json)


def _shapes(path: ByPolicy, share: ByPolicy, wall: ByPolicy) -> list[Shape]:
    workers = workers_in(path)
    best = all(max(path[name, v] for name in WHOLE) < min(path[name, v] for name in SPLIT) for v in workers)
    least = [min(share[name, v] for name in SPLIT) for v in workers]
    hll = over(path, "AM-2-H", "AM-2")
    gains = [x for name in ("AM-2", "cAM-2", "AM-5", "cAM-5") for x in over(path, "PK-2", name)]
    scaled = {name: path[name, workers[0]] / path[name, workers[-1]] for name in ("cAM-2", "PK-2")}
    on_spark = over(wall, "PK-2", "cAM-2")
    return [
        Shape("policies that keep keys whole are faster than all that split them", best,
              f"PK-2 / cAM-2 {spread(over(path, 'PK-2', 'cAM-2'))}"),
        Shape("AM and cAM are 4.5 times faster than PK-2 or more", min(gains) > 4.5,
              f"{min(gains):.1f} to {max(gains):.1f} times"),
        Shape("for policies that split keys, aggregation is more than 70, 84, 88 % of the path",
              all(a > b for a, b in zip(least, (0.70, 0.84, 0.88), strict=True)), f"at least {spread(least)}"),
        Shape("AM-2-H is as fast as AM-2", max(hll) < 1.2, spread(hll)),
        Shape("cAM-2 scales with the workers, PK-2 does not", scaled["cAM-2"] > 1.5 > scaled["PK-2"],
              spread(list(scaled.values()))),
        Shape("on Spark, on this machine, cAM-2 is faster than PK-2 too", min(on_spark) > 1.0, spread(on_spark)),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
