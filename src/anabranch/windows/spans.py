"""Which part of a stream windows over windows need, and how many of them may be missing.

A query network delivers windows of windows of rows. To drop some results and keep every other one exact, we must know
which stretch of the input each result needs. A `Span` says so: unit u needs the times

    [origin + u*slide + lo, origin + u*slide + hi)

A *unit* is what is kept or dropped as a whole. Two rules move a span towards the sources:

    pipeline   what a windowed aggregate must read, so that its results in a span are there and exact
    fan-out    one span for several consumers, in units of the lcm of their slides

A result has the last instant of its window as its time, as in Spark (`window_time`), so spans grow at the beginning.

    A1(3,2) ▶ A2(3,3):    size 3+3-1 = 5, slide 3           A1(3,2) and A2(3,3) of one stream:   size 7, slide 6

These sizes are bounds that hold for any slides. Since a window begins only at multiples of its slide, less may be
needed; that is the `tight` form, and the default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.windows.spec import Window


@dataclass(frozen=True)
class Span:
    """The stretch of a stream that a unit needs; see the module."""

    slide: int
    origin: int
    lo: int
    hi: int

    @property
    def size(self) -> int:
        """`size` of WinDrop(size, slide)."""
        return self.hi - self.lo

    def start(self, unit: int) -> int:
        """The first time that a unit needs."""
        return self.origin + unit * self.slide + self.lo

    def end(self, unit: int) -> int:
        """The time up to which (exclusive) a unit needs the stream."""
        return self.origin + unit * self.slide + self.hi

    def first_after(self, t: int) -> int:
        """The first unit that needs nothing at or before t."""
        return (t - self.origin - self.lo) // self.slide + 1

    def over(self, slide: int, origin: int) -> Span:
        """The same in larger units: `slide` is a multiple of this slide, and a unit has slide / self.slide of these."""
        ahead = (self.origin - origin) % self.slide
        return Span(slide, origin, ahead + self.lo, ahead + slide - self.slide + self.hi)

    def gap(self, first: int, last: int) -> tuple[int, int] | None:
        """The times that no kept unit needs if the units first..last are dropped, but not their neighbours."""
        start, end = self.end(first - 1), self.start(last + 1)
        return (start, end) if start < end else None

    def spared(self, bound: int) -> float:
        """Share of the stream that need not be read per share of units dropped, if they are dropped `bound` at a time.

        In a gap of B units, (B+1)s - w of the stream is needed by no one: everything for tumbling windows, nothing for
        windows that overlap B times or more.
        """
        spare = max(0, (bound + 1) * self.slide - self.size) / (bound * self.slide) if bound > 0 else 0.0
        return min(1.0, spare)


def results_of(window: Window) -> Span:
    """A window's results themselves by their time, one unit each."""
    return Span(window.slide, window.origin, window.size - 1, window.size)


def pipeline(window: Window, results: Span, *, tight: bool = True) -> Span:
    """What a windowed aggregate must read, so that its results in this span are exact.

    A result of time r needs (r - size, r]. `tight` leaves out what no window with that slide can need.
    """
    lo, hi = results.lo - (window.size - 1), results.hi
    if tight:
        step = math.gcd(window.slide, results.slide)
        lo += (window.origin - results.origin - lo) % step
        hi -= (results.origin + hi - window.size - window.origin) % step
    return Span(results.slide, results.origin, lo, hi)


def fan_out(spans: Sequence[Span], origin: int | None = None) -> Span:
    """One span for several consumers of a stream: units of the lcm of their slides, long enough for each of them."""
    slide, origin = math.lcm(*(span.slide for span in spans)), spans[0].origin if origin is None else origin
    wide = [span.over(slide, origin) for span in spans]
    return Span(slide, origin, min(span.lo for span in wide), max(span.hi for span in wide))


def scaled(bound: int, slide: int, to: int) -> int:
    """How many units of slide `to` may be missing in a row if `bound` units of `slide` may; 0 means none."""
    return bound * slide // to
