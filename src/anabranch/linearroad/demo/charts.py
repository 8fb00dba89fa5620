"""SVG as text: heat maps of a road, and lines over simulated time.

Each function returns parts of a drawing. Colours that must fit light and dark are classes, which the page's style sets.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from anabranch.linearroad.demo.colours import png
from anabranch.linearroad.demo.road_map import Accident
from anabranch.linearroad.schema import SEGMENTS
from anabranch.text import amount


@dataclass(frozen=True)
class Box:
    """The position of something in units of the drawing."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


@dataclass(frozen=True)
class Line:
    """A line of a chart: a value for each stretch of time, in minutes."""

    name: str
    colour: str
    values: Sequence[float]


def image(cells: NDArray[np.uint8], box: Box) -> str:
    """Bytes of the colour scale as a picture; row 0 is at the top."""
    data = base64.b64encode(png(cells)).decode()
    where = f'x="{box.left:g}" y="{box.top:g}" width="{box.width:g}" height="{box.height:g}"'
    return f'<image class="cells" href="data:image/png;base64,{data}" {where} preserveAspectRatio="none"/>'


def heat_map(
    cells: NDArray[np.uint8], box: Box, minutes: float, accidents: Iterable[Accident], *, labels: bool = True
) -> Iterator[str]:
    """One direction of an expressway: time across, segments upwards, accidents as bars where cars were warned."""
    yield image(np.ascontiguousarray(cells[::-1]), box)
    for segment in range(0, SEGMENTS + 1, 25):
        y = box.bottom - segment / SEGMENTS * box.height
        if labels:
            yield text(box.left - 7, y + 4, str(segment), "tick", "end")
    yield from minute_ticks(box, minutes)
    for accident in accidents:
        y = box.bottom - (accident.segment + 0.5) / SEGMENTS * box.height
        x, until = (box.left + second / 60 / minutes * box.width for second in (accident.first, accident.last))
        yield f'<line class="wreck" x1="{x:.1f}" x2="{max(until, x + 2):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<path class="wreck" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"/>'


def minute_ticks(box: Box, minutes: float) -> Iterator[str]:
    """Minutes of the simulation below a drawing."""
    for minute in ticks(minutes, 6):
        x = box.left + minute / minutes * box.width
        unit = " min" if minute == 0 else ""
        yield text(x, box.bottom + 16, f"{minute:g}{unit}", "tick", "middle" if minute else "start")


def line_chart(
    title: str,
    unit: str,
    ends: Sequence[float],
    lines: Sequence[Line],
    *,
    log: bool = False,
    limit: float | None = None,
) -> str:
    """Lines over time: the value of stretch i holds until minute ``ends[i]``. `limit` is drawn if it is near."""
    width, height = 372, 250
    box = Box(50, 58, width - 62, height - 84)
    minutes = max(ends, default=1.0)
    highest = max((value for line in lines for value in line.values), default=1.0)
    shown = [limit] if limit is not None and limit < 4 * highest else []
    axis = Axis.over(max([highest, *shown]), log=log)
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">']
    parts.append(text(0, 15, title, "title"))
    for value in axis.ticks:
        y = box.bottom - axis.share(value) * box.height
        parts.append(f'<line class="grid" x1="{box.left}" x2="{box.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(box.left - 6, y + 4, number(value), "tick", "end"))
    parts.append(text(box.right, box.top - 6, unit, "tick", "end"))
    parts += minute_ticks(box, minutes)
    for value in shown:
        y = box.bottom - axis.share(value) * box.height
        parts.append(f'<line class="limit" x1="{box.left}" x2="{box.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(box.left + 4, y - 5, f"limit {value:g} s", "tick limit-text"))
    x = box.left
    for line in lines:
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="1.8"/>'
            for points in steps(ends, line.values, box, axis)
        ]
        parts.append(f'<text x="{x:.0f}" y="36" style="fill:{line.colour}">{escape(line.name)}</text>')
        x += 10 + 7.1 * len(line.name)
    return "\n".join([*parts, "</svg>"])


@dataclass(frozen=True)
class Axis:
    """The values of a chart, from the bottom to the top, with the ticks to be drawn."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool

    @classmethod
    def over(cls, highest: float, *, log: bool) -> Axis:
        """From 0, or logarithmic from 1, to a little more than the highest value."""
        if not log:
            marks = ticks(max(highest, 1e-3) * 1.05, 4)
            return cls(0.0, max(highest * 1.05, marks[-1]), tuple(marks), log)
        powers = range(max(1, math.ceil(math.log10(max(highest, 1.0) * 1.05))) + 1)
        return cls(1.0, 10.0 ** powers[-1], tuple(10.0**power for power in powers), log)

    def share(self, value: float) -> float:
        """How far up a value is, from 0 to 1."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        return math.log10(max(value, self.low)) / math.log10(self.high)


def steps(ends: Sequence[float], values: Sequence[float], box: Box, axis: Axis) -> list[str]:
    """The points of a line that holds its value until the end of each stretch.

    A logarithmic axis has no zero: there the line is interrupted, so that it may be several.
    """
    lines: list[list[str]] = [[]]
    begin = 0.0
    for end, value in zip(ends, values, strict=True):
        if axis.log and value <= 0:
            lines.append([])
        else:
            y = box.bottom - axis.share(value) * box.height
            lines[-1] += [f"{box.left + minute / ends[-1] * box.width:.1f},{y:.1f}" for minute in (begin, end)]
        begin = end
    return [" ".join(points) for points in lines if points]


def ticks(highest: float, count: int) -> list[float]:
    """Round numbers from 0 to the highest, 1, 2 or 5 times a power of ten apart; `count` is approximate."""
    rough = highest / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [round(i * step, 9) for i in range(math.floor(highest / step + 1e-9) + 1)]


def text(x: float, y: float, words: str, style: str, anchor: str = "start") -> str:
    """A text element at a position."""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def number(value: float) -> str:
    """The label of an axis."""
    return amount(value) if value >= 10 else f"{value:g}"
