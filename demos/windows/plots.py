"""The picture `demo.png`, with matplotlib: speeds as heat maps, one place in three windows, and the race."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anabranch.linearroad.demo import colours
from anabranch.linearroad.demo.plots import style
from demos.windows import lines
from demos.windows.queries import LENGTHS, SLIDE, SLIDE_S
from demos.windows.result import DemoResult
from demos.windows.tables import short, times
from demos.windows.terminal import clock
from demos.windows.traffic import FREE_SPEED, SEGMENT_KM, SEGMENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

ROAD_KM = SEGMENTS * SEGMENT_KM


def available() -> bool:
    """Whether matplotlib, an optional dependency, is installed."""
    return find_spec("matplotlib") is not None


def write(result: DemoResult, path: Path) -> Path:
    """Draw the picture and save it."""
    # Imported here, so that the demo runs without it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(style()):
        figure = Figure(figsize=(16, 14), dpi=110)
        layout = figure.add_gridspec(
            4, 3, height_ratios=(1, 1, 1, 1.15), width_ratios=(1.5, 1.5, 0.05), left=0.055, right=0.94, top=0.87,
            bottom=0.06, hspace=0.36, wspace=0.3,
        )  # fmt: skip
        _title(figure, result)
        image = None
        for number, length in enumerate(LENGTHS):
            image = _heat_map(figure.add_subplot(layout[number, :2]), result, length)
        assert image is not None
        bar = figure.colorbar(image, cax=figure.add_subplot(layout[:3, 2]))
        bar.set_label("mean speed, km/h")
        bar.outline.set_visible(False)
        _one_place(figure.add_subplot(layout[3, 0]), result)
        _race(figure.add_subplot(layout[3, 1:]), result)
        figure.savefig(path)
    return path


def _title(figure: Figure, result: DemoResult) -> None:
    figure.text(0.055, 0.960, "How fast is the road, over the last 1, 5 and 15 minutes?", fontsize=22, weight="bold")
    figure.text(
        0.055,
        0.948,
        f"{result.rows:,} position reports, {len(result.race.windows):,} windows, a new one every {SLIDE}. "
        "Cars drive upwards; a jam is bright and moves down, against the traffic.\n"
        "Short windows show every stop-and-go wave; long ones show only the jam, even after it is gone.",
        fontsize=13,
        color=colours.FAINT,
        va="top",
        linespacing=1.5,
    )


def _colormap() -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("speed", colours.ANCHORS).with_extremes(bad=colours.MISSING)


def _heat_map(axes: Axes, result: DemoResult, length: str) -> AxesImage:
    minutes = result.traffic.minutes
    image = axes.imshow(
        np.ma.masked_invalid(result.grid(length)), cmap=_colormap(), vmin=0, vmax=FREE_SPEED, aspect="auto",
        origin="lower", interpolation="nearest", extent=(0, minutes, 0, ROAD_KM),
    )  # fmt: skip
    axes.set_title(f"windows of {length}")
    axes.set_ylabel("km along the road")
    _time_axis(axes, minutes)
    for incident in result.traffic.incidents:
        at = (incident.segment + 0.5) * SEGMENT_KM
        begin, end = incident.begin_s / 60, incident.end_s / 60
        axes.plot([begin, end], [at, at], color=colours.INCIDENT, linewidth=2, solid_capstyle="butt")
        axes.plot(begin, at, marker="X", color=colours.INCIDENT, markersize=9, markeredgecolor=colours.BACKGROUND)
        if length == LENGTHS[0]:
            axes.annotate(
                incident.what, (begin, at), (-9, 0), textcoords="offset points", ha="right", va="center",
                color=colours.INCIDENT, fontsize=11,
            )  # fmt: skip
    here = (result.restless + 0.5) * SEGMENT_KM
    at_the_edge = axes.get_yaxis_transform()
    axes.plot(1.004, here, marker="<", color=colours.INK, markersize=7, transform=at_the_edge, clip_on=False)
    return image


def _time_axis(axes: Axes, minutes: int) -> None:
    step = max(1, minutes // 6)
    ticks = list(range(0, minutes + 1, step))
    axes.set_xticks(ticks, [clock(60 * t) for t in ticks])
    axes.set_xlim(0, minutes)


def _one_place(axes: Axes, result: DemoResult) -> None:
    segment = result.restless
    for length, colour in reversed(list(zip(LENGTHS, lines.LENGTH_COLOURS, strict=True))):
        speeds = result.grid(length)[segment]
        minutes = (np.arange(len(speeds)) + 1) * SLIDE_S / 60
        axes.plot(minutes, speeds, color=colour, linewidth=1.2 if length == LENGTHS[0] else 2.2, label=length)
    axes.set_title(f"One place, three windows: km {segment * SEGMENT_KM:.2f} (◂ above)")
    axes.set_ylabel("mean speed, km/h")
    axes.set_ylim(0, FREE_SPEED * 1.05)
    axes.grid(axis="y")
    _time_axis(axes, result.traffic.minutes)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False, loc="lower left", labelcolor=colours.INK)


def _race(axes: Axes, result: DemoResult) -> None:
    lanes = (*result.race.lanes, result.race.together)
    for number, lane in enumerate(lanes):
        for offset, name, timing, colour in (
            (-0.2, "Anabranch", lane.ours, lines.OURS),
            (0.2, "Spark's window()", lane.spark, lines.THEIRS),
        ):
            axes.barh(number + offset, timing.rate, 0.36, color=colour, label=name if number == 0 else None)
            axes.annotate(
                short(timing.rate), (timing.rate, number + offset), (5, 0), textcoords="offset points", va="center"
            )
        axes.annotate(
            times(lane.ratio), (1, number), (-2, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", va="center", ha="right", weight="bold", fontsize=12,
        )  # fmt: skip
    axes.set_xscale("log")
    rates = [timing.rate for lane in lanes for timing in (lane.ours, lane.spark)]
    axes.set_xlim(10 ** np.floor(np.log10(min(rates)) - 0.3), 10 ** (np.log10(max(rates)) + 1.15))
    axes.set_yticks(range(len(lanes)), [lane.label for lane in lanes])
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.set_xlabel("reports per second, logarithmic")
    axes.set_title("Beside Spark's own window()")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.72, 1.0), ncols=2, labelcolor=colours.INK)
