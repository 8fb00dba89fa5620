"""The queries that `python -m benchmarks shedding` and `evidence/paper4_*.py` overload."""

from __future__ import annotations

from collections.abc import Sequence

import anabranch as ab
from anabranch.api.stream import Stream
from anabranch.io.sinks.noop import NoopSink
from anabranch.local.session import usable_cores
from anabranch.query.deliveries import Delivery
from benchmarks.shedding_runs import SECOND, Load, Output, delay, working_sink

DELAY = 60.0
"""Microseconds of work per row, which allows some tens of thousands of rows per second on two cores."""
FAN_IN = 10
"""Inputs of a window of nested aggregates: 10 for each, so 100 rows for both."""


def _guess(micros: float) -> float:
    """Rows per second that the work alone allows, halved to leave room for everything else."""
    return 0.5 * usable_cores() * 1e6 / micros


def tumbling(micros: float = DELAY) -> Load:
    """A delay before an aggregate over windows of a second with 100 rows; without a delay, windows with 1,000 rows."""

    def build(stream: Stream) -> Sequence[Delivery]:
        if micros:
            stream = stream.with_columns({"work": delay(micros)("value")})
        per_key = stream.window(size="1 s").by("key").agg(n=ab.count(), top=ab.max("work" if micros else "value"))
        return [per_key.to(NoopSink())]

    outputs = (Output("window-1", SECOND),)
    if micros:
        return Load(f"delay of {micros:g} us", build, outputs, 100, _guess(micros))
    return Load("no delay", build, outputs, 1_000, 300_000)


def nested(micros: float = DELAY / 3, size: float = 0.2) -> Load:
    """Nested aggregates: delay, count per 10, delay, count per 100, delay. The three delays are equal work."""

    def build(stream: Stream) -> Sequence[Delivery]:
        first = stream.with_columns({"work": delay(micros)("value")})
        per_key = first.window(size=f"{size} s").by("key").agg(n=ab.count(), top=ab.max("work"))
        second = per_key.as_stream().with_columns({"more": delay(FAN_IN * micros)("n")})
        total = second.window(size=f"{FAN_IN * size} s").by("key").agg(n=ab.sum("n"), top=ab.max("more"))
        return [total.to(working_sink(FAN_IN**2 * micros))]

    return Load(
        "nested",
        build,
        (Output("window-2", round(FAN_IN * size * SECOND)),),
        FAN_IN / size,
        _guess(3 * micros),
    )


def fan_out(micros: float = DELAY / 3, size: float = 0.5) -> Load:
    """Two aggregates over one stream, with a delay before each and one after each."""

    def build(stream: Stream) -> Sequence[Delivery]:
        deliveries = []
        for windows in (1, 2):
            worked = stream.with_columns({"work": delay(micros)("value")})
            per_key = worked.window(size=f"{windows * size} s").by("key").agg(n=ab.count(), top=ab.max("work"))
            deliveries.append(per_key.to(working_sink(windows * FAN_IN * micros / 2)))
        return deliveries

    outputs = tuple(Output(f"window-{i}", round(i * size * SECOND)) for i in (1, 2))
    return Load("fan-out", build, outputs, FAN_IN / size, _guess(3 * micros))


def sliding(size: int, slide: int, *, unit: float = 0.1, micros: float = DELAY / 2) -> Load:
    """A delay, a count over windows of `size` time values, and the same delay for each result.

    There is one tuple per key and time value.
    """

    def build(stream: Stream) -> Sequence[Delivery]:
        worked = stream.with_columns({"work": delay(micros)("value")})
        windows = worked.window(size=f"{round(size * unit * 1000)} ms", slide=f"{round(slide * unit * 1000)} ms")
        return [windows.by("key").agg(n=ab.count(), top=ab.max("work")).to(working_sink(micros))]

    outputs = (Output("window-1", round(slide * unit * SECOND)),)
    return Load(f"size {size}, slide {slide}", build, outputs, 1 / unit, _guess(micros * (1 + 1 / slide)))


def early_kept(p: float, bound: int, size: int, slide: int) -> float:
    """The share of tuples that pass a window drop WinDrop(size, slide, p, B), as published (docs/papers.md)."""
    if bound < size // slide:
        return 1.0
    return 1.0 - p * ((bound + 1) * slide - size) / ((bound - 1) * slide + size)
