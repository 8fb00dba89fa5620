"""The waterfall of speeds in the terminal."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from anabranch.linearroad.demo.colours import palette, to_bytes
from demos.windows.queries import SLIDE_S, Grid
from demos.windows.traffic import BEGIN, FREE_SPEED, SEGMENTS

_PALETTE = palette()
_CLOCK = 6
"""Width of the time at the left of a waterfall, with a blank."""


def clock(seconds: float) -> str:
    """The time of day, that many seconds after the first report."""
    return f"{BEGIN + timedelta(seconds=seconds):%H:%M}"


@dataclass
class Waterfall:
    """The road from left to right, time downwards, a colour per mean speed.

    A character shows two moments: its upper half the earlier, its lower half the later.
    """

    cells: Grid
    reached: int = 0
    """The number of columns of the grid that are known."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = max(4, min(30, options.size.height - 8))
        step = self._step(lines)
        width = max(10, min(SEGMENTS, options.max_width - _CLOCK - 1))
        moments = list(range(step - 1, self.cells.shape[1], step))
        yield self._legend(width)
        for upper, lower in zip(moments[::2], [*moments[1::2], None], strict=False):
            yield self._line(upper, lower, width)

    def _step(self, lines: int) -> int:
        """Slides from one moment to the next: a whole number of minutes, such that all lines fit."""
        minute = 60 // SLIDE_S
        minutes: int = max(1, self.cells.shape[1] // minute)
        return minute * -(-minutes // (2 * lines))

    def _legend(self, width: int) -> Text:
        left = Text(no_wrap=True).append(" " * _CLOCK + "0 ", style="dim")
        for byte in to_bytes(np.linspace(0, FREE_SPEED, 16)).tolist():
            left.append("█", _style(byte))
        left.append(f" {FREE_SPEED:.0f} km/h", style="dim")
        right = "cars drive this way →"
        return left.append(right.rjust(max(1, width + _CLOCK - len(left))), style="dim")

    def _line(self, upper: int, lower: int | None, width: int) -> Text:
        line = Text(no_wrap=True).append(f"{clock((upper + 1) * SLIDE_S)} ", style="dim")
        if upper >= self.reached:
            return line
        top = to_bytes(_binned(self.cells[:, upper], width))
        unknown = lower is None or lower >= self.reached
        bottom = [None] * width if unknown else to_bytes(_binned(self.cells[:, lower], width)).tolist()
        for above, below in zip(top.tolist(), bottom, strict=True):
            line.append("▀", _style(above, below))
        return line


def _binned(speeds: Grid, width: int) -> Grid:
    """Reduce the values to one per character."""
    if width >= SEGMENTS:
        return speeds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a piece of the road without any report stays NaN
        return np.array([np.nanmean(part) for part in np.array_split(speeds, width)])


@cache
def _style(above: int, below: int | None = None) -> Style:
    """The style of half a block, from the bytes of two speeds."""
    return Style(color=_hex(above), bgcolor=None if below is None else _hex(below))


def _hex(byte: int) -> str:
    red, green, blue = _PALETTE[byte]
    return f"#{red:02x}{green:02x}{blue:02x}"
