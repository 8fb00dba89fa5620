"""The run in a terminal: the roads as strips of 100 segments, and below them the answers so far.

    expressway 0 →  ████████████████✖██████████     speed
                    ▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀     toll

Dark segments are free, slow or expensive ones glow. If the output is not a terminal, a line per epoch has the same in
numbers.
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

from anabranch.linearroad.demo.colours import INCIDENT, palette
from anabranch.linearroad.demo.drive import Driven
from anabranch.linearroad.demo.phases import Phase
from anabranch.linearroad.demo.result import rates
from anabranch.linearroad.demo.road_map import Floats, RoadMap
from anabranch.linearroad.demo.shades import LOW_SPEED, TOP_SPEED, speed_bytes, speed_scale, toll_bytes, toll_scale
from anabranch.linearroad.demo.tables import count, large
from anabranch.linearroad.schema import DIRECTIONS, SEGMENTS
from anabranch.text import amount

ARROWS = ("→", "←")
"""The arrows of the directions: east, where segment numbers grow, and west."""
_LABEL = 16
"""Characters at the left of a strip."""
_OTHER_LINES = 12
"""Lines of the screen that are not strips."""
_FRESH = 90
"""An accident without a warning for this many seconds is no longer shown."""
_PALETTE = palette()


class RoadView:
    """Shows the run: `drive` calls it after each epoch, inside `with view.shown():`."""

    def __init__(self, console: Console, pace: float | None) -> None:
        self._console = console
        self._pace = pace
        self._drawn: RenderableType = Phase("Driving")
        self._live: Live | None = None

    def shown(self) -> AbstractContextManager[object]:
        """Show the roads on the screen; does nothing if the output is not a terminal."""
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
        road_map = driven.road_map
        how = "as fast as possible" if self._pace is None else f"{self._pace:g} × real time"
        head = Text.assemble(
            ("Linear Road  ", "bold"), (f"{count(len(road_map.speed), 'expressway')}, {how}  ", "dim"),
            (clock(road_map.reached + 1), "bold"), (f" of {clock(road_map.seconds)} ", "dim"), _bar(road_map),
            no_wrap=True,
        )  # fmt: skip
        return Group(head, Text(), Roads(road_map), Text(), counters(road_map), Text(), figures(driven))


class Roads:
    """The current strips, for as many expressways as the screen has lines for."""

    def __init__(self, road_map: RoadMap) -> None:
        self._speed = road_map.speed[..., road_map.minute].copy()
        self._toll = road_map.toll[..., road_map.minute].copy()
        self._accidents = {
            (accident.xway, accident.way, accident.segment)
            for accident in road_map.accidents
            if road_map.reached - accident.last <= _FRESH
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
    return line.append(" 1 M   ", "dim").append("✖", Style(color=INCIDENT, bold=True)).append(" accident", "dim")


def counters(road_map: RoadMap) -> Table:
    """The answers so far."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    cells = {
        "tolls": f"{road_map.count('toll'):,}",
        "charged": large(road_map.charged),
        "accidents": f"{len(road_map.accidents)}",
        "warned": f"{road_map.count('accident'):,}",
        "balances": f"{road_map.count('balance'):,}",
        "expenses": f"{road_map.count('expenditure'):,}",
        "travel times": f"{road_map.count('traveltime'):,}",
    }
    for heading in cells:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row(*cells.values(), style="bold")
    return table


def figures(driven: Driven) -> Text:
    """Rate and response time of the last epoch, and the worst response time."""
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
    road_map, last, worst = driven.road_map, driven.epochs[-1], driven.response(driven.epochs)
    parts = [
        f"{clock(road_map.reached + 1)} of {clock(road_map.seconds)}",
        f"epoch {last.number}",
        f"tuples {last.tuples}",
        f"seconds {last.seconds:.2f}",
        f"tuples/s {rate(driven):.0f}",
        f"tolls {road_map.count('toll')}",
        f"charged {road_map.charged}",
        f"accidents {len(road_map.accidents)}",
        f"warned {road_map.count('accident')}",
        f"balances {road_map.count('balance')}",
        f"expenditures {road_map.count('expenditure')}",
        f"travel times {road_map.count('traveltime')}",
    ]
    return " | ".join(parts + ([f"worst response {worst.worst:.2f}"] if worst else []))


def rate(driven: Driven) -> float:
    """Tuples per wall second since the previous epoch."""
    return rates(driven.epochs[-2:])[-1]


def clock(seconds: int) -> str:
    """Time since the beginning of the simulation: 0:04:30."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def binned(values: Floats, width: int, worst: Callable[[Floats], Any]) -> Floats:
    """One value for each of `width` characters: the worst of its segments."""
    if width >= len(values):
        return values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # segments without a value stay NaN
        place = np.arange(len(values)) * width // len(values)  # as for the marks above
        return np.array([worst(values[place == i]) for i in range(width)])


def _bar(road_map: RoadMap, width: int = 14) -> Text:
    done = round(width * (road_map.reached + 1) / road_map.seconds)
    return Text.assemble(("━" * done, "cyan"), ("━" * (width - done), "bright_black"))


@cache
def _ink(byte: int) -> Style:
    return Style(color=_hex(byte))


@cache
def _wreck(speed: int) -> Style:
    return Style(color=INCIDENT, bgcolor=_hex(speed), bold=True)


def _hex(byte: int) -> str:
    red, green, blue = _PALETTE[byte]
    return f"#{red:02x}{green:02x}{blue:02x}"
