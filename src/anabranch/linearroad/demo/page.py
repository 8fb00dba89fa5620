"""The page `linear-road.html`: one file that needs no network and no matplotlib.

All figures come from the run: its output, its epochs and the validator's report. The script at the end of the page only
shows the values of the maps under the cursor.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from string import Template

import numpy as np
from numpy.typing import NDArray

from anabranch.linearroad.demo.charts import Box, Line, heat_map, image, line_chart, text
from anabranch.linearroad.demo.colours import INCIDENT
from anabranch.linearroad.demo.result import DemoResult, rates
from anabranch.linearroad.demo.shades import (
    KIND_COLOURS,
    speed_bytes,
    speed_marks,
    speed_scale,
    toll_bytes,
    toll_marks,
    toll_scale,
)
from anabranch.linearroad.demo.tables import DIFFERENCES, HEADINGS, KINDS, WAYS, count, figures, large
from anabranch.linearroad.demo.view import ARROWS, clock
from anabranch.linearroad.schema import DIRECTIONS, LIMITS
from anabranch.text import amount

FILE = "linear-road.html"
BALANCES = 6
"""How many cars the page lists."""
_TEMPLATE = Path(__file__).with_name("page.html")

# The maps, in units of the drawing: speeds at the left, tolls at the right.
_WIDTH, _LEFT, _BETWEEN = 1160, 58, 36
_MAP_WIDTH = (_WIDTH - _LEFT - _BETWEEN) / 2
_MAP_HEIGHT, _MAP_GAP, _MAP_TOP = 168, 30, 52
_PITCH = _MAP_HEIGHT + _MAP_GAP


def write(result: DemoResult, path: Path) -> Path:
    """Write the page."""
    page = Template(_TEMPLATE.read_text(encoding="utf-8"))
    path.write_text(page.substitute(values(result)), encoding="utf-8")
    return path


def values(result: DemoResult) -> dict[str, str]:
    """The values for the template."""
    road_map, response = result.road_map, result.response
    return {
        "mark": INCIDENT,
        "verdict": escape(result.verdict),
        "verdict_class": "right" if result.right else "wrong",
        "verdict_mark": "✓" if result.right else "✗",
        "mode": result.report.mode.value,
        "expressways": count(result.trace.expressways, "expressway"),
        "minutes": count(-(-result.trace.seconds // 60), "minute"),
        "speed": "as fast as possible" if result.pace is None else f"at {result.pace:g} times real time",
        "seconds": f"{result.driven.seconds:.0f}",
        "master": escape(result.master),
        "tuples": f"{road_map.tuples:,}",
        "answers": f"{result.answers:,}",
        "rate": amount(result.peak_rate),
        "epochs": f"{len(result.epochs):,}",
        "response_name": result.response_name,
        "median": f"{response.median:.2f}",
        "worst": f"{response.worst:.2f}",
        "clock_note": clock_note(result),
        "charged": large(road_map.charged),
        "accidents": f"{len(road_map.accidents)}",
        "alerts": f"{road_map.count('accident'):,}",
        "maps": maps(result),
        "sight": sight(result),
        "charts": charts(result),
        "answer_head": "".join(f"<th>{heading}</th>" for heading in HEADINGS),
        "answer_rows": answer_rows(result),
        "accident_rows": accident_rows(result),
        "balance_rows": balance_rows(result),
        "data": json.dumps(readout(result)),
    }


def maps(result: DemoResult) -> str:
    """The maps of all directions of all expressways."""
    road_map, minutes = result.road_map, result.trace.seconds / 60
    roads = [(xway, way) for xway in range(len(road_map.speed)) for way in range(DIRECTIONS)]
    height = _MAP_TOP + len(roads) * _PITCH + 2
    parts = [f'<svg id="maps" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="speeds and tolls of the roads">']
    parts += _scale(0, "speed, miles per hour", speed_scale(180), speed_marks())
    parts += _scale(1, "toll", toll_scale(180), toll_marks())
    for row, (xway, way) in enumerate(roads):
        accidents = [each for each in road_map.accidents if (each.xway, each.way) == (xway, way)]
        speeds, tolls = map_box(row, 0), map_box(row, 1)
        parts += heat_map(speed_bytes(road_map.speed[xway, way]), speeds, minutes, accidents)
        parts += heat_map(toll_bytes(road_map.toll[xway, way]), tolls, minutes, accidents, labels=False)
        middle = speeds.top + speeds.height / 2
        label = f"expressway {xway}, {WAYS[way]} {'↑' if way == 0 else '↓'}"
        parts.append(f'<text class="road" transform="translate(13 {middle:g}) rotate(-90)">{label}</text>')
    parts.append('<g id="cursor" hidden></g></svg>')
    return "\n".join(parts)


def map_box(row: int, column: int) -> Box:
    """The position of a map."""
    return Box(_LEFT + column * (_MAP_WIDTH + _BETWEEN), _MAP_TOP + row * _PITCH, _MAP_WIDTH, _MAP_HEIGHT)


def _scale(column: int, title: str, cells: NDArray[np.uint8], marks: Iterable[tuple[float, str]]) -> Iterator[str]:
    box = map_box(0, column)
    bar = Box(box.right - 200, 10, 180, 9)
    yield text(box.left, 20, title, "title")
    yield image(cells[None, :], bar)
    for share, label in marks:
        yield text(bar.left + share * bar.width, 34, label, "tick", "middle")


def sight(result: DemoResult) -> str:
    """What the maps show, in words."""
    road_map = result.road_map
    parts = [
        "Dark segments are free, glowing ones are slow (left) or expensive (right). Near cities the ramps are busy: "
        "the road fills up, the average speed falls below 40 miles per hour, and a toll is due that rises with the "
        "square of the number of cars. At first every road is slow, since all cars have just come from a ramp."
    ]
    if road_map.accidents:
        longest = max(road_map.accidents, key=lambda each: each.last - each.first)
        parts.append(
            "A blue bar is an accident, from the first to the last car that was warned: for instance on "
            f"expressway {longest.xway}, {WAYS[longest.way]}, segment {longest.segment}, from {clock(longest.first)} "
            f"to {clock(longest.last)}. While it lasts, its segment and the four before it are free of charge, so that "
            "cars may leave early: a dark gap in the tolls."
        )
    highest = float(np.nan_to_num(road_map.toll).max())
    if highest > 0:
        xway, way, segment, minute = np.argwhere(road_map.toll == highest)[0].tolist()
        parts.append(
            f"The highest toll was in segment {segment} of expressway {xway}, {WAYS[way]}, in minute {minute + 1}: "
            f"{highest:,.0f}."
        )
    return " ".join(parts)


def charts(result: DemoResult) -> str:
    """Rates and response times over simulated time, epoch by epoch."""
    epochs, driven = result.epochs, result.driven
    ends = [(epoch.last + 1) / 60 for epoch in epochs]
    answers = [Line(KINDS[kind][0], KIND_COLOURS[kind], rates(epochs, kind)) for kind in KINDS]
    found = [driven.response([epoch]) for epoch in epochs]
    response = [
        Line("median", KIND_COLOURS["balance"], [each.median if each else 0.0 for each in found]),
        Line("longest", KIND_COLOURS["accident"], [each.worst if each else 0.0 for each in found]),
    ]
    name = result.response_name
    return "\n".join(
        f"<figure>{chart}</figure>"
        for chart in (
            line_chart("Input", "tuples/s", ends, [Line("tuples read", KIND_COLOURS["toll"], rates(epochs))]),
            line_chart("Answers, logarithmic", "per second", ends, answers, log=True),
            line_chart(name[0].upper() + name[1:], "seconds", ends, response, limit=min(LIMITS.values())),
        )
    )


def answer_rows(result: DemoResult) -> str:
    """A row for each kind of answer: the validator's counts, and the response times."""
    rows = []
    for kind, (name, meaning) in KINDS.items():
        cells = figures(result, kind)
        cells[DIFFERENCES] = [
            cell if cell == "0" else f'<strong class="wrong">{cell}</strong>' for cell in cells[DIFFERENCES]
        ]
        rows.append(
            f'<tr><th><i style="background:{KIND_COLOURS[kind]}"></i>{name}<small>{meaning}</small></th>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
        )
    return "\n".join(rows)


def accident_rows(result: DemoResult) -> str:
    """The accidents, in the order of their first warning."""
    rows = [
        f"<tr><th>{each.xway} {ARROWS[each.way]} {WAYS[each.way]}</th><td>{each.segment}</td>"
        f"<td>{clock(each.first)}</td><td>{clock(each.last)}</td><td>{each.alerts:,}</td></tr>"
        for each in sorted(result.road_map.accidents, key=lambda each: each.first)
    ]
    return "\n".join(rows) or '<tr><td colspan="5">no accident in these minutes</td></tr>'


def balance_rows(result: DemoResult) -> str:
    """The cars with the highest balances, among those that asked."""
    rows = [
        f"<tr><th>{each.vid:,}</th><td>{clock(each.time)}</td><td>{each.amount:,}</td></tr>"
        for each in result.road_map.highest_balances(BALANCES)
    ]
    return "\n".join(rows) or '<tr><td colspan="3">no car asked</td></tr>'


def clock_note(result: DemoResult) -> str:
    """How the response time was measured."""
    if result.driven.clock is None:
        return (
            "The tuples were replayed as fast as possible, so none was ever due: the time is from reading an epoch to "
            "publishing its answers, in seconds of the wall clock."
        )
    return (
        "The time counts from when the paced recording had a tuple due until its answer could be read in a file, in "
        "seconds of the wall clock. It includes the wait for the current epoch. "
        f"The limits are the benchmark's; they are for a clock that runs {result.pace:g} times slower."
    )


def readout(result: DemoResult) -> dict[str, object]:
    """The values shown under the cursor, and the positions of the maps. -1: no value is known."""
    road_map = result.road_map
    roads = [(xway, way) for xway in range(len(road_map.speed)) for way in range(DIRECTIONS)]
    first, second = map_box(0, 0), map_box(0, 1)
    return {
        "roads": [f"expressway {xway}, {WAYS[way]}" for xway, way in roads],
        "speed": [np.nan_to_num(road_map.speed[road], nan=-1).astype(int).ravel().tolist() for road in roads],
        "toll": [np.nan_to_num(road_map.toll[road], nan=-1).astype(int).ravel().tolist() for road in roads],
        "columns": road_map.speed.shape[-1],
        "minutes": result.trace.seconds / 60,
        "lefts": [first.left, second.left],
        "map": {"width": first.width, "height": first.height, "top": first.top, "pitch": _PITCH},
    }
