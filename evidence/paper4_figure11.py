"""Paper 4, figure 11: the total drop rate over the excess rate, for two aggregates that share a stream (figure 9).

Shared_WinDrop drops at the input, for both; Split_WinDrop before each aggregate; Split_RDrop drops results after them.
In the paper the earliest place loses least. MEASURED: a live stream, where the runtime sheds by itself.

One thing differs from the paper: in this runtime each aggregate has its own steps, and a drop before the aggregate
comes before these steps. So the work before the split in figure 9 is done once per query here, and Split_WinDrop saves
that work too. It does not save reading the stream.
"""

from __future__ import annotations

from common import Shape, arguments, report
from shedding import ByPlace, listed

from anabranch.query.settings import DropAt
from benchmarks.shedding_loads import fan_out

NAME = "paper4_figure11"
PLACES: dict[str, DropAt] = {"Split_RDrop": "results", "Split_WinDrop": "operators", "Shared_WinDrop": "source"}


def main() -> None:
    options = arguments(__doc__ or "")
    found = ByPlace.measure(fan_out(), PLACES, options.quick)
    plot = found.plot(NAME, "Paper 4, figure 11: places to drop, two aggregates over one stream")
    report(NAME, _shapes(found), found.numbers(), plot, options.json)


def _shapes(found: ByPlace) -> list[Shape]:
    split, random = (found.more(name, "Shared_WinDrop") for name in ("Split_WinDrop", "Split_RDrop"))
    better = [more > 0 or not held for more, held in zip(random, found.held("Split_RDrop"), strict=True)]
    return [
        Shape("Shared_WinDrop loses no more than Split_WinDrop", min(split) > -0.03, listed(split)),
        Shape("Shared_WinDrop loses less than Split_RDrop, or Split_RDrop is late", all(better), listed(random)),
        Shape("Shared_WinDrop keeps the latency bound at all rates", all(found.held("Shared_WinDrop")),
              listed(found.of_bound("Shared_WinDrop"))),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
