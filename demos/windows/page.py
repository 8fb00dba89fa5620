"""The page `demo.html`: one file that needs no network and no matplotlib.

Heat maps are PNG images inside SVG drawings. The script at the end of the page adds a cursor that shows their values.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template

import numpy as np
import numpy.typing as npt

from anabranch.linearroad.demo import colours
from demos.windows import lines
from demos.windows.queries import LENGTHS, SLIDE, SLIDE_S, columns, source
from demos.windows.result import DemoResult
from demos.windows.tables import short, times
from demos.windows.terminal import clock
from demos.windows.traffic import BEGIN, FREE_SPEED, SEGMENT_KM, SEGMENTS

_TEMPLATE = Path(__file__).with_name("page.html")

# The heat maps, in units of the drawing.
_WIDTH, _LEFT, _RIGHT = 1120, 46, 84
_MAP_WIDTH = _WIDTH - _LEFT - _RIGHT
_MAP_HEIGHT, _MAP_GAP, _MAP_TOP = 190, 52, 26


def write(result: DemoResult, path: Path) -> Path:
    """Write the page."""
    page = Template(_TEMPLATE.read_text(encoding="utf-8"))
    path.write_text(page.substitute(_values(result)), encoding="utf-8")
    return path


def _values(result: DemoResult) -> dict[str, str]:
    """The values for the template."""
    piece = result.race.slice
    minutes = result.traffic.minutes
    return {
        "background": colours.BACKGROUND,
        "ink": colours.INK,
        "faint": colours.FAINT,
        "line": colours.LINE,
        "mark": colours.INCIDENT,
        "ours": lines.OURS,
        "theirs": lines.THEIRS,
        "rows": f"{result.rows:,}",
        "windows": f"{len(result.race.windows):,}",
        "begin": clock(0),
        "end": clock(minutes * 60),
        "slide": SLIDE,
        "segments": str(SEGMENTS),
        "segment_m": f"{SEGMENT_KM * 1000:.0f}",
        "skew": f"{result.reports.skew:.0f}",
        "null_times": f"{result.race.null_times:,}",
        "ratio": times(result.race.together.ratio),
        "our_seconds": f"{result.race.together.ours.seconds:.1f}",
        "our_rate": short(result.race.together.ours.rate),
        "slice_rows": f"{piece.rows:,}",
        "slice_segments": str(len(piece.segments)),
        "slice_ours": f"{result.race.ours_on_slice.seconds:.1f}",
        "slice_spark": f"{result.race.together.spark.seconds:.1f}",
        "compared": f"{len(result.race.spark_windows):,}",
        "slice_verdict": _verdict(result.slice_agrees),
        "stream_seconds": f"{result.stream.seconds:.0f}",
        "stream_epochs": str(result.stream.epochs),
        "stream_windows": f"{len(result.stream.windows):,}",
        "stream_length": LENGTHS[0],
        "stream_verdict": _verdict(result.stream_agrees),
        "sight": _sight(result),
        "maps": _maps(result),
        "place": _place(result),
        "race": _race(result),
        "race_rows": _race_rows(result),
        "slow_head": "".join(f"<th>{escape(length)}</th>" for length in LENGTHS),
        "slow_rows": _slow_rows(result),
        "query": escape(source()),
        "explain": escape(result.explanation),
        "data": json.dumps(_cursor(result)),
    }


def _verdict(agrees: bool) -> str:
    return "equal to the last bit" if agrees else "<strong>different</strong>"


def _sight(result: DemoResult) -> str:
    """The text that explains the maps, with the numbers of this run."""
    half = columns(result.traffic.minutes) // 2
    places = [result.grid(length)[result.restless, half:] for length in LENGTHS]
    short_swing, long_swing = (f"{np.nanmin(p):.0f} and {np.nanmax(p):.0f} km/h" for p in (places[0], places[-1]))
    incidents = " and ".join(
        f"{clock(i.begin_s)} at km {i.segment * SEGMENT_KM:.1f} ({escape(i.what)})" for i in result.traffic.incidents
    )
    return (
        "Dark means free traffic, bright means a jam. Near the end of the road two streams of cars merge, and from "
        f"there stop-and-go waves run upstream, against the traffic. Two accidents, {incidents}, each send a jam "
        f"upstream that outlasts its cause. Windows of {LENGTHS[0]} show every wave, {LENGTHS[1]} blur them into one "
        f"jam, and {LENGTHS[2]} still show a jam that is long gone. At km {result.restless * SEGMENT_KM:.2f} (◂), in "
        f"the second half, the mean over {LENGTHS[0]} varies between {short_swing}, and the mean over {LENGTHS[2]} "
        f"between {long_swing}."
    )


def _image(cells: npt.NDArray[np.uint8]) -> str:
    return "data:image/png;base64," + base64.b64encode(colours.png(cells)).decode()


def _maps(result: DemoResult) -> str:
    """The three heat maps, with axes, incidents and a colour scale."""
    height = _MAP_TOP + len(LENGTHS) * (_MAP_HEIGHT + _MAP_GAP)
    parts = [f'<svg id="maps" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="mean speed by time and place">']
    for number, length in enumerate(LENGTHS):
        top = _MAP_TOP + number * (_MAP_HEIGHT + _MAP_GAP)
        parts += _map(result, length, top)
    parts += _scale(_MAP_TOP, height - _MAP_TOP - _MAP_GAP)
    parts.append('<g id="cursor" hidden></g></svg>')
    return "\n".join(parts)


def _map(result: DemoResult, length: str, top: float) -> Iterable[str]:
    minutes = result.traffic.minutes
    bottom = top + _MAP_HEIGHT
    # Row 0 of an image is at the top, segment 0 at the bottom.
    image = _image(colours.to_bytes(result.grid(length)[::-1]))
    yield f'<text class="title" x="{_LEFT}" y="{top - 8}">windows of {escape(length)}</text>'
    yield (
        f'<image href="{image}" x="{_LEFT}" y="{top}" width="{_MAP_WIDTH}" height="{_MAP_HEIGHT}" '
        'preserveAspectRatio="none"/>'
    )
    road = SEGMENTS * SEGMENT_KM
    for km in range(0, int(road) + 1, 5):
        y = bottom - km / road * _MAP_HEIGHT
        unit = " km" if km == road else ""
        yield f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{km}{unit}</text>'
    yield from _time_ticks(minutes, bottom, _LEFT, _MAP_WIDTH)
    for incident in result.traffic.incidents:
        y = bottom - (incident.segment + 0.5) / SEGMENTS * _MAP_HEIGHT
        x, until = (_LEFT + s / 60 / minutes * _MAP_WIDTH for s in (incident.begin_s, incident.end_s))
        yield f'<line class="mark" x1="{x:.1f}" x2="{until:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<path class="mark" d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"/>'
        if length == LENGTHS[0]:
            what = escape(incident.what)
            yield f'<text class="what" x="{x - 11:.1f}" y="{y + 4:.1f}" text-anchor="end">{what}</text>'
    here = bottom - (result.restless + 0.5) / SEGMENTS * _MAP_HEIGHT
    yield f'<path class="here" d="M{_LEFT + _MAP_WIDTH + 2} {here:.1f}l9 -5v10z"/>'


def _time_ticks(minutes: int, y: float, left: float, width: float) -> Iterable[str]:
    step = max(1, minutes // 6)
    for minute in range(0, minutes + 1, step):
        x = left + minute / minutes * width
        yield f'<text class="tick" x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{clock(minute * 60)}</text>'


def _scale(top: float, height: float) -> Iterable[str]:
    """The colour scale, from free at the top to standing at the bottom."""
    x = _WIDTH - 58
    image = _image(colours.to_bytes(np.linspace(FREE_SPEED, 0, 241)[:, None]))
    yield f'<image href="{image}" x="{x}" y="{top}" width="12" height="{height}" preserveAspectRatio="none"/>'
    for speed in range(0, int(FREE_SPEED) + 1, 20):
        y = top + (1 - speed / FREE_SPEED) * height
        yield f'<text class="tick" x="{x + 18}" y="{y + 4:.1f}">{speed}</text>'
    yield f'<text class="tick" x="{x - 6}" y="{top - 10}">km/h</text>'


def _place(result: DemoResult) -> str:
    """One place in three windows, as lines over time."""
    width, height, left, top = 540, 250, 40, 40
    right, bottom = width - 10, height - 26
    segment = result.restless
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="speed at one place over time">']
    title = f"One place, three windows: km {segment * SEGMENT_KM:.2f} (◂ above)"
    parts.append(f'<text class="title" x="0" y="16">{title}</text>')
    for speed in range(0, int(FREE_SPEED) + 1, 40):
        y = bottom - speed / FREE_SPEED * (bottom - top)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{speed}</text>')
    parts += _time_ticks(result.traffic.minutes, bottom, left, right - left)
    for number, (length, colour) in enumerate(zip(LENGTHS, lines.LENGTH_COLOURS, strict=True)):
        speeds = result.grid(length)[segment]
        x = left + (np.arange(len(speeds)) + 1) / len(speeds) * (right - left)
        y = bottom - speeds / FREE_SPEED * (bottom - top)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if math.isfinite(b))
        thick = 1.2 if number == 0 else 2.2
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{thick}"/>')
        parts.append(f'<text x="{left + 6 + number * 90}" y="{top - 6}" style="fill:{colour}">{escape(length)}</text>')
    return "\n".join([*parts, "</svg>"])


def _race(result: DemoResult) -> str:
    """Rates of both sides as bars on a logarithmic scale."""
    lanes = (*result.race.lanes, result.race.together)
    width, height, left, top = 540, 250, 82, 40
    right, bottom = width - 78, height - 26
    rates = [timing.rate for lane in lanes for timing in (lane.ours, lane.spark)]
    low, high = math.floor(math.log10(min(rates)) - 0.3), math.log10(max(rates)) + 0.35
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="reports per second of both sides">']
    parts.append('<text class="title" x="0" y="16">Reports per second, logarithmic</text>')

    def x_of(rate: float) -> float:
        return left + (math.log10(rate) - low) / (high - low) * (right - left)

    for power in range(low, math.floor(high) + 1):
        x = x_of(10.0**power)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{_power(power)}</text>')
    pitch = (bottom - top) / len(lanes)
    for number, lane in enumerate(lanes):
        y = top + number * pitch + 6
        bar = (pitch - 12) / 2
        for row, (timing, colour) in enumerate(((lane.ours, lines.OURS), (lane.spark, lines.THEIRS))):
            at, until = y + row * bar, x_of(timing.rate)
            size = f'width="{until - left:.1f}" height="{bar - 1.5:.1f}"'
            parts.append(f'<rect x="{left}" y="{at:.1f}" {size} rx="2" fill="{colour}"/>')
            parts.append(f'<text class="tick" x="{until + 5:.1f}" y="{at + bar - 4:.1f}">{short(timing.rate)}</text>')
        middle = y + bar + 4
        parts.append(f'<text x="{left - 8}" y="{middle:.1f}" text-anchor="end">{escape(lane.label)}</text>')
        parts.append(f'<text class="ratio" x="{width}" y="{middle:.1f}" text-anchor="end">{times(lane.ratio)}</text>')
    parts.append(f'<text x="{left}" y="{top - 6}" style="fill:{lines.OURS}">Anabranch</text>')
    parts.append(f'<text x="{left + 84}" y="{top - 6}" style="fill:{lines.THEIRS}">Spark\'s window()</text>')
    return "\n".join([*parts, "</svg>"])


def _power(power: int) -> str:
    """A power of ten as the label of an axis."""
    return f"{10 ** (power % 3)}{('', ' k', ' M', ' G')[power // 3]}" if 0 <= power < 12 else f"1e{power}"


def _race_rows(result: DemoResult) -> str:
    return "\n".join(
        f"<tr><th>{escape(lane.label)}</th><td>{lane.windows:,}</td><td>{lane.ours.seconds:.1f} s</td>"
        f"<td>{short(lane.ours.rate)}</td><td>{lane.spark.seconds:.1f} s</td><td>{short(lane.spark.rate)}</td>"
        f"<td><strong>{times(lane.ratio)}</strong></td></tr>"
        for lane in (*result.race.lanes, result.race.together)
    )


def _slow_rows(result: DemoResult) -> str:
    return "\n".join(
        f"<tr><th>{slow.segment}</th><td>{slow.km:.2f}</td>"
        + "".join(f"<td>{speed:.0f}</td>" for speed in slow.speeds)
        + f"<td>{slow.reports:,}</td></tr>"
        for slow in result.slowest()
    )


def _cursor(result: DemoResult) -> dict[str, object]:
    """The data for the cursor: the speeds, and the positions of the maps."""
    return {
        "lengths": LENGTHS,
        "cells": [base64.b64encode(colours.to_bytes(result.grid(length)).tobytes()).decode() for length in LENGTHS],
        "columns": columns(result.traffic.minutes),
        "segments": SEGMENTS,
        "segmentKm": SEGMENT_KM,
        "slideS": SLIDE_S,
        "beginS": BEGIN.hour * 3600 + BEGIN.minute * 60,
        "missing": colours.HALVES + 1,
        "map": {"left": _LEFT, "top": _MAP_TOP, "width": _MAP_WIDTH, "height": _MAP_HEIGHT, "gap": _MAP_GAP},
    }
