"""Paper 4, figure 13: the drop rate needed over the slide of a window of 100, (a) measured and (b) by section 3.6.

In the paper the drop rate first rises with the slide, because dropping saves fewer results. It falls once
floor(size / slide) is at most B, because then tuples are dropped early. Both effects grow with the load. A slide of 1
drops no tuple early. MEASURED at several loads above the capacity, each with fixed shares.
"""

from __future__ import annotations

from typing import Any

from common import Shape, arguments, report, save_plot
from shedding import Overloaded, listed, needed_by_formula, runner

from benchmarks.shedding_loads import sliding

NAME = "paper4_figure13"
SIZE = 100
SLIDES = (1, 10, 50, 100)
EXCESS = (0.25, 0.5)


def main() -> None:
    options = arguments(__doc__ or "")
    slides, rates = ((50, 100), EXCESS[:1]) if options.quick else (SLIDES, EXCESS)
    measured: dict[float, list[float]] = {excess: [] for excess in rates}
    with runner(options.quick) as (run, scale):
        for slide in slides:
            query = Overloaded(run, scale, sliding(SIZE, slide))
            for excess in rates:
                measured[excess].append(query.needed(excess, (0.1, 0.6)))
    estimated = {excess: [needed_by_formula(excess, SIZE, slide) for slide in slides] for excess in rates}

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, found, title in ((left, measured, "measured"), (right, estimated, "section 3.6")):
            for excess in rates:
                # Above 1 no drop is enough: drawn at the top.
                axes.plot(range(len(slides)), [min(p, 1.0) for p in found[excess]], marker="o", label=f"+{excess:.0%}")
            axes.set(xlabel="window slide", title=title, ylim=(0, 1.05))
            axes.set_xticks(range(len(slides)), [str(slide) for slide in slides])
            axes.grid(alpha=0.3)
        left.set(ylabel="drop rate needed")
        left.legend()
        figure.suptitle(f"Paper 4, figure 13: the slide of a window of {SIZE}")

    plot = save_plot(NAME, draw, size=(11, 5))
    numbers = {
        "slides": slides,
        "measured": {f"{excess:g}": many for excess, many in measured.items()},
        "estimated": {f"{excess:g}": many for excess, many in estimated.items()},
    }
    report(NAME, _shapes(slides, measured, estimated), numbers, plot, options.json)


def _shapes(
    slides: tuple[int, ...], measured: dict[float, list[float]], estimated: dict[float, list[float]]
) -> list[Shape]:
    shown = "; ".join(f"+{excess:.0%}: {listed(many)}" for excess, many in measured.items())
    falls = all(many[-1] < many[-2] for many in measured.values())
    off = max(abs(min(a, 1.0) - min(b, 1.0)) for x in measured for a, b in zip(measured[x], estimated[x], strict=True))
    shapes = [
        Shape("tumbling windows need to drop less than those that slide by half their size", falls, shown),
        Shape("section 3.6 has the general behaviour: no point is off by more than 0.2", off < 0.2,
              f"at most {off:.2f}; estimated " + "; ".join(f"+{x:.0%}: {listed(m)}" for x, m in estimated.items())),
    ]  # fmt: skip
    if len(slides) > 2:
        rises = all(many[1] > many[0] for many in measured.values())
        shapes.insert(0, Shape("the drop rate first rises with the slide", rises, shown))
    return shapes


if __name__ == "__main__":
    main()
