"""The run in a terminal: the roads as strips of 100 segments, and below them what has been told so far.

    expressway 0 →  ████████████████✖██████████     speed
                    ▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀     toll

Dark is free and free of charge; what is slow or dear glows. Where the output is no terminal, a line per epoch says the
same in numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.style import Style
from rich.table import Table
from rich.text import Text

from anabranch.linearroad.demo.colours import MARK, palette
from anabranch.linearroad.demo.drive import Driven
from anabranch.linearroad.demo.phases import Phase
from anabranch.linearroad.demo.result import rates
from anabranch.linearroad.demo.shades import LOW_SPEED, TOP_SPEED, speed_bytes, speed_scale, toll_bytes, toll_scale
from anabranch.linearroad.demo.tables import count, large
from anabranch.linearroad.demo.told import Floats, Told
from anabranch.linearroad.schema import DIRECTIONS, SEGMENTS
from anabranch.text import amount

ARROWS = ("→", "←")
"""Of the directions: east, where segments grow, and west."""
_LABEL = 16
"""Characters at the left of a strip."""
_OTHER_LINES = 12
"""Lines of the screen that are not strips."""
_FRESH = 90
"""Seconds after which an accident of which nobody was warned any more is no longer shown."""
_PALETTE = palette()


class RoadView:
    """What `drive` shows: call it after each epoch, inside `with view.shown():`."""

    def __init__(self, console: Console, pace: float | None) -> None:
        self._console = console
        self._pace = pace
        self._drawn: RenderableType = Phase("Driving")
        self._live: Live | None = None

    def shown(self) -> AbstractContextManager[object]:
        """While it lasts, the roads are on the screen; nothing to enter where there is none."""
        if not self._console.is_terminal:
            return nullcontext()
        self._live = Live(self, console=self._console, refresh_per_second=4)
        return self._live

    def __call__(self, driven: Driven) -> None:
        self._drawn = self._draw(driven)  # once per epoch, since nothing changes in between
        if self._live is None:
            self._console.print(plain_line(driven), highlight=False, markup=False, soft_wrap=True)

    def __rich__(self) -> RenderableType:
        return self._drawn

    def _draw(self, driven: Driven) -> RenderableType:
        told = driven.told
        how = "as fast as it goes" if self._pace is None else f"{self._pace:g} × real time"
        head = Text.assemble(
            ("Linear Road  ", "bold"), (f"{count(len(told.speed), 'expressway')}, {how}  ", "dim"),
            (clock(told.reached + 1), "bold"), (f" of {clock(told.seconds)} ", "dim"), _bar(told), no_wrap=True,
        )  # fmt: skip
        return Group(head, Text(), Roads(told), Text(), counters(told), Text(), figures(driven))


class Roads:
    """The strips, as they are now: as many expressways as the screen has lines for."""

    def __init__(self, told: Told) -> None:
        self._speed = told.speed[..., told.minute].copy()
        self._toll = told.toll[..., told.minute].copy()
        self._accidents = {
            (accident.xway, accident.way, accident.segment)
            for accident in told.accidents
            if told.reached - accident.last <= _FRESH
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(20, min(SEGMENTS, options.max_width - _LABEL))
        roads = len(self._speed)
        fits = max(1, (options.size.height - _OTHER_LINES) // (2 * DIRECTIONS))
        yield scale(width)
        for xway in range(min(roads, fits)):
            for way in range(DIRECTIONS):
                yield self._speeds(xway, way, width)
                yield self._tolls(xway, way, width)
        if roads > fits:
            yield Text(f"{'':{_LABEL}}and {count(roads - fits, 'more expressway')}", style="dim")
        yield legend(_LABEL if width >= 80 else 0)

    def _speeds(self, xway: int, way: int, width: int) -> Text:
        line = Text(no_wrap=True).append(f"{f'expressway {xway}' if way == 0 else '':13}{ARROWS[way]}  ", "dim")
        wrecks = {segment * width // SEGMENTS for x, w, segment in self._accidents if (x, w) == (xway, way)}
        for i, byte in enumerate(speed_bytes(binned(self._speed[xway, way], width, np.nanmin)).tolist()):
            line.append("✖" if i in wrecks else "█", _wreck(byte) if i in wrecks else _ink(byte))
        return line

    def _tolls(self, xway: int, way: int, width: int) -> Text:
        line = Text(" " * _LABEL, no_wrap=True)
        for byte in toll_bytes(binned(self._toll[xway, way], width, np.nanmax)).tolist():
            line.append("▀", _ink(byte))
        return line


def scale(width: int) -> Text:
    """Numbers of segments above the strips."""
    marks = [" "] * (width + 3)
    for segment in range(0, SEGMENTS, 20):
        at = segment * width // SEGMENTS
        marks[at : at + len(str(segment))] = str(segment)
    return Text(f"{'segment':>{_LABEL - 1}} {''.join(marks)}".rstrip(), style="dim", no_wrap=True)


def legend(indent: int) -> Text:
    """What the colours mean."""
    line = Text(" " * indent, no_wrap=True).append(f"speed {LOW_SPEED} ", "dim")
    for byte in speed_scale(10).tolist():
        line.append("█", _ink(byte))
    line.append(f" {TOP_SPEED} mph   toll 0 ", "dim")
    for byte in toll_scale(10).tolist():
        line.append("▀", _ink(byte))
    return line.append(" 1 M   ", "dim").append("✖", Style(color=MARK, bold=True)).append(" accident", "dim")


def counters(told: Told) -> Table:
    """What has been told so far."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    cells = {
        "tolls told": f"{told.count('toll'):,}",
        "charged": large(told.charged),
        "accidents": f"{len(told.accidents)}",
        "warned": f"{told.count('accident'):,}",
        "balances": f"{told.count('balance'):,}",
        "expenses": f"{told.count('expenditure'):,}",
        "travel times": f"{told.count('traveltime'):,}",
    }
    for heading in cells:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row(*cells.values(), style="bold")
    return table


def figures(driven: Driven) -> Text:
    """Rate and response, of the last epoch and the worst."""
    last, now, worst = driven.epochs[-1], driven.response(driven.epochs[-1:]), driven.response(driven.epochs)
    parts: list[str | tuple[str, str]] = [
        f"{amount(rate(driven))}", (" tuples/s   ", "dim"), f"epoch {last.number}", (" of ", "dim"),
        f"{last.seconds:.2f} s",
    ]  # fmt: skip
    if now is not None and worst is not None:
        what = "   response " if driven.clock is not None else "   read to published "
        parts += [(what, "dim"), f"{now.median:.2f} s", (", at worst ", "dim"), f"{worst.worst:.2f} s"]
    return Text.assemble(*parts, no_wrap=True)


def plain_line(driven: Driven) -> str:
    """The last epoch in one line."""
    told, last, worst = driven.told, driven.epochs[-1], driven.response(driven.epochs)
    parts = [
        f"{clock(told.reached + 1)} of {clock(told.seconds)}",
        f"epoch {last.number}",
        f"tuples {last.tuples}",
        f"seconds {last.seconds:.2f}",
        f"tuples/s {rate(driven):.0f}",
        f"tolls {told.count('toll')}",
        f"charged {told.charged}",
        f"accidents {len(told.accidents)}",
        f"warned {told.count('accident')}",
        f"balances {told.count('balance')}",
        f"expenditures {told.count('expenditure')}",
        f"travel times {told.count('traveltime')}",
    ]
    return " | ".join(parts + ([f"worst response {worst.worst:.2f}"] if worst else []))


def rate(driven: Driven) -> float:
    """Tuples per wall second since the epoch before."""
    return rates(driven.epochs[-2:])[-1]


def clock(seconds: int) -> str:
    """Time since the beginning of the simulation: 0:04:30."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def binned(values: Floats, width: int, worst: Callable[[Floats], Any]) -> Floats:
    """As many values as there are characters: of several segments the worst."""
    if width >= len(values):
        return values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a piece of the road of which nothing was told stays NaN
        place = np.arange(len(values)) * width // len(values)  # as for the marks above
        return np.array([worst(values[place == i]) for i in range(width)])


def _bar(told: Told, width: int = 14) -> Text:
    done = round(width * (told.reached + 1) / told.seconds)
    return Text.assemble(("━" * done, "cyan"), ("━" * (width - done), "bright_black"))


@cache
def _ink(byte: int) -> Style:
    return Style(color=_hex(byte))


@cache
def _wreck(speed: int) -> Style:
    return Style(color=MARK, bgcolor=_hex(speed), bold=True)


def _hex(byte: int) -> str:
    red, green, blue = _PALETTE[byte]
    return f"#{red:02x}{green:02x}{blue:02x}"
