"""The picture `linear-road.png`, with matplotlib: the roads by speed and by toll, the rates and the response times."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anabranch.linearroad.demo import colours
from anabranch.linearroad.demo.result import DemoResult, rates
from anabranch.linearroad.demo.road_map import Accident
from anabranch.linearroad.demo.shades import (
    KIND_COLOURS,
    speed_bytes,
    speed_marks,
    speed_scale,
    toll_bytes,
    toll_marks,
    toll_scale,
)
from anabranch.linearroad.demo.tables import KINDS, WAYS
from anabranch.linearroad.schema import DIRECTIONS, LIMITS, SEGMENTS
from anabranch.text import amount

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE = "linear-road.png"
ROWS = 4
"""Maximum number of directions of expressways in the picture; the page has all."""


def available() -> bool:
    """Whether matplotlib, an optional dependency, is installed."""
    return find_spec("matplotlib") is not None


def write(result: DemoResult, path: Path) -> Path:
    """Draw the picture and save it."""
    # Imported here, so that the demo runs without matplotlib.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    roads = [(xway, way) for xway in range(len(result.road_map.speed)) for way in range(DIRECTIONS)][:ROWS]
    with rc_context(style(12.5)):
        figure = Figure(figsize=(16, 4.85 + 2.1 * len(roads)), dpi=110)
        inch = 1 / figure.get_figheight()
        sides = {"left": 0.052, "right": 0.985}
        layout = figure.add_gridspec(
            len(roads), 2, **sides, top=1 - 1.75 * inch, bottom=3.1 * inch, hspace=0.34, wspace=0.1
        )
        below = figure.add_gridspec(1, 3, **sides, top=2.3 * inch, bottom=0.55 * inch, wspace=0.22)
        _title(figure, result)
        for row, road in enumerate(roads):
            for half in range(2):
                axes = figure.add_subplot(layout[row, half])
                _heat_map(axes, result, road, tolls=half == 1)
                if row == 0:
                    _scale(axes, tolls=half == 1)
        _charts([figure.add_subplot(below[0, i]) for i in range(3)], result)
        figure.savefig(path)
    return path


def style(size: float = 13) -> dict[Any, Any]:
    """Matplotlib's settings for the pictures of all demos. `size` is the font size of titles."""
    return {
        "font.family": "sans-serif",
        "font.size": 11,
        "figure.facecolor": colours.BACKGROUND,
        "axes.facecolor": colours.BACKGROUND,
        "axes.edgecolor": colours.LINE,
        "axes.labelcolor": colours.FAINT,
        "axes.titlecolor": colours.INK,
        "axes.titlelocation": "left",
        "axes.titlesize": size,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.color": colours.INK,
        "xtick.color": colours.FAINT,
        "ytick.color": colours.FAINT,
        "grid.color": colours.LINE,
    }


def _title(figure: Figure, result: DemoResult) -> None:
    inch = 1 / figure.get_figheight()
    figure.text(
        0.052,
        1 - 0.5 * inch,
        f"Linear Road: {result.verdict[0].lower()}{result.verdict[1:]}",
        fontsize=22,
        weight="bold",
    )
    how = "as fast as possible" if result.pace is None else f"at {result.pace:g} times real time"
    figure.text(
        0.052,
        1 - 0.83 * inch,
        f"{result.road_map.tuples:,} tuples of {len(result.road_map.speed)} expressways in "
        f"{result.driven.seconds:.0f} s, {how}, on Spark {result.master}; "
        f"{result.response_name} {result.response.median:.1f} s in the median, "
        f"{result.response.worst:.1f} s at worst",
        fontsize=13,
        color=colours.FAINT,
    )


def _heat_map(axes: Axes, result: DemoResult, road: tuple[int, int], *, tolls: bool) -> None:
    road_map, minutes = result.road_map, result.trace.seconds / 60
    cells = toll_bytes(road_map.toll[road]) if tolls else speed_bytes(road_map.speed[road])
    axes.imshow(
        _rgb(cells), aspect="auto", origin="lower", interpolation="nearest", extent=(0, minutes, 0, SEGMENTS)
    )  # fmt: skip
    for accident in road_map.accidents:
        if (accident.xway, accident.way) == road:
            _mark(axes, accident)
    axes.set_yticks(range(0, SEGMENTS + 1, 25))
    if not tolls:
        axes.set_ylabel(f"expressway {road[0]}\n{WAYS[road[1]]} {'↑' if road[1] == 0 else '↓'}")


def _mark(axes: Axes, accident: Accident) -> None:
    at, begin, end = accident.segment + 0.5, accident.first / 60, accident.last / 60
    axes.plot([begin, end], [at, at], color=colours.INCIDENT, linewidth=2, solid_capstyle="butt")
    axes.plot(begin, at, marker="x", color=colours.INCIDENT, markersize=7, markeredgewidth=2.2)


def _scale(axes: Axes, *, tolls: bool) -> None:
    """Draw the colour scale above the first map."""
    axes.text(0, 1.1, "toll" if tolls else "speed, miles per hour", transform=axes.transAxes, fontsize=12.5)
    bar = axes.inset_axes((0.62, 1.115, 0.34, 0.05))
    cells = toll_scale(180) if tolls else speed_scale(180)
    bar.imshow(_rgb(cells[None, :]), aspect="auto", extent=(0, 1, 0, 1))
    marks = toll_marks() if tolls else speed_marks()
    bar.set_xticks([share for share, _ in marks], [label for _, label in marks], fontsize=9)
    bar.xaxis.set_ticks_position("top")
    bar.set_yticks([])
    bar.tick_params(length=0, pad=1)
    for spine in bar.spines.values():
        spine.set_visible(False)


def _rgb(cells: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return colours.palette()[cells]


def _charts(axes: Sequence[Axes], result: DemoResult) -> None:
    from matplotlib.ticker import FuncFormatter

    epochs, driven = result.epochs, result.driven
    ends = [(epoch.last + 1) / 60 for epoch in epochs]
    found = [driven.response([epoch]) for epoch in epochs]
    _steps(axes[0], ends, rates(epochs), KIND_COLOURS["toll"], "read")
    axes[0].set_title("tuples per second")
    for kind, (name, _) in KINDS.items():
        # A logarithmic axis has no 0: the line is interrupted.
        _steps(axes[1], ends, [each or np.nan for each in rates(epochs, kind)], KIND_COLOURS[kind], name)
    axes[1].set_title("answers per second, logarithmic")
    axes[1].set_yscale("log")
    axes[1].set_ylim(bottom=0.2)
    axes[1].legend(frameon=False, labelcolor="linecolor", fontsize=9.5, ncols=3, loc="lower right", handlelength=0)
    _steps(axes[2], ends, [each.median if each else 0.0 for each in found], KIND_COLOURS["balance"], "median")
    _steps(axes[2], ends, [each.worst if each else 0.0 for each in found], KIND_COLOURS["accident"], "longest")
    limit = min(LIMITS.values())
    axes[2].axhline(limit, color="#ff7b72", linestyle=(0, (5, 4)), linewidth=1)
    axes[2].annotate(
        f"limit {limit} s", (0, limit), (4, -13), textcoords="offset points", color="#ff7b72", fontsize=9.5
    )
    axes[2].set_title(f"{result.response_name}, seconds")
    axes[2].set_ylim(bottom=0)
    axes[2].legend(frameon=False, labelcolor="linecolor", fontsize=9.5, ncols=2, loc="lower right", handlelength=0)
    for each in axes:
        each.grid(axis="y")
        each.set_xlim(0, max(ends, default=1.0))
        each.set_xlabel("minutes of the simulation")
    axes[0].set_ylim(bottom=0)
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))


def _steps(axes: Axes, ends: Sequence[float], values: Sequence[float], colour: str, label: str) -> None:
    """Draw a line of steps: each value holds until its end."""
    if ends:
        axes.step([0.0, *ends], [values[0], *values], where="pre", color=colour, linewidth=1.8, label=label)
