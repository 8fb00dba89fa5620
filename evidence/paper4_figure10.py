"""Paper 4, figure 10: the drop rate over the excess rate, for three places to drop in a nested query (figure 7).

RDrop drops results after both aggregates, Nested1 drops windows before the second aggregate, Nested2 at the input. In
the paper all are alike at low rates; then RDrop must drop far more, and delivers nothing beyond 65 %. Nested2 is the
best at all rates. MEASURED: a live stream, where the runtime sheds by itself, at one place per run.
"""

from __future__ import annotations

from common import Shape, arguments, report
from shedding import ByPlace, listed

from anabranch.query.settings import DropAt
from benchmarks.shedding_loads import nested

NAME = "paper4_figure10"
PLACES: dict[str, DropAt] = {"RDrop": "results", "Nested1": "operators", "Nested2": "source"}


def main() -> None:
    options = arguments(__doc__ or "")
    found = ByPlace.measure(nested(), PLACES, options.quick)
    plot = found.plot(NAME, "Paper 4, figure 10: places to drop, nested aggregates")
    report(NAME, _shapes(found), found.numbers(), plot, options.json)


def _shapes(found: ByPlace) -> list[Shape]:
    later, over = found.more("Nested1", "Nested2"), found.more("RDrop", "Nested1")
    fails = not found.held("RDrop")[-1] or found.missing["RDrop"][-1] > 0.9
    late = f"latency over the bound: {listed(found.of_bound('RDrop'))}"
    return [
        Shape("Nested2 loses no more than Nested1 at any rate", min(later) > -0.03, listed(later)),
        Shape("Nested1 loses less than RDrop at the highest rate, or RDrop fails there", over[-1] > 0 or fails,
              listed(over)),
        Shape("RDrop cannot remove the load at the highest rate (the paper: from 65 % on)", fails, late),
        Shape("Nested2 keeps the latency bound at all rates", all(found.held("Nested2")),
              listed(found.of_bound("Nested2"))),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
