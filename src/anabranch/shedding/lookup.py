"""What is dropped, as a table of bytes that Spark looks up: one byte per bucket of keys and pane (or window).

    column of a row's time ──▶ pane ──▶ byte [bucket, pane - first]: 1 means dropped

Comparing with every gap would cost more the more gaps there are; the lookup always costs the same, and Spark compiles
it. If a gap does not begin or end with a pane, its edge is kept: dropping less is never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from pyspark.sql import Column
from pyspark.sql import functions as F

from anabranch.shedding.windrop import DropState
from anabranch.spark.columns import changing, floordiv
from anabranch.windows import Window
from anabranch.windows.ids import pane_of
from anabranch.windows.spans import Span

MOST_TABLE_BYTES = 1 << 22
"""The largest table for tuples: beyond it they are kept. Results whose tuples are gone are never kept."""
INT64 = np.iinfo(np.int64)
FINEST = 256
"""The most panes that a unit is cut into."""


@dataclass(frozen=True)
class Lookup:
    """Which places are dropped. Place i of bucket g is byte g * stride + 1 + i - first.

    A bucket's first and last byte stand for all places before and after: zeros, as nothing is dropped there.
    """

    first: int
    stride: int
    """a power of two: it seldom changes between epochs, so Spark need not compile again"""
    table: bytes

    @classmethod
    def of(cls, places: Iterable[Iterable[tuple[int, int]]], *, most: int | None = None) -> Lookup | None:
        """From ranges of places (first, last), bucket by bucket; None if there are none. `most` limits the bytes."""
        ranges = [[(lo, hi) for lo, hi in bucket if lo <= hi] for bucket in places]
        if not any(ranges):
            return None
        first = min(lo for bucket in ranges for lo, _ in bucket)
        count = max(hi for bucket in ranges for _, hi in bucket) + 1 - first
        if most is not None:
            count = min(count, (1 << (most // len(ranges)).bit_length() - 1) - 2)
        stride = 1 << (count + 1).bit_length()
        table = np.zeros((len(ranges), stride), np.uint8)
        for g, bucket in enumerate(ranges):
            for lo, hi in bucket:
                table[g, 1 + lo - first : 1 + min(hi + 1 - first, count)] = 1
        return cls(first, stride, table.tobytes())

    def left_out(self, at: Column, bucket: Column | None, pane: int = 1, origin: int = 0) -> Column:
        """Whether a row is dropped; never null. `at` is its place, or its time if places are panes from `origin` on."""
        base = origin + (self.first - 1) * pane
        if not INT64.min <= base <= INT64.max:
            return F.lit(False)  # no row is there
        # Also null if the difference does not fit 64 bits.
        since = F.try_subtract(at, changing(base, at))
        place = since if pane == 1 else pane_of(since, pane, floordiv=floordiv)
        # least() ignores nulls, so a row without a place finds the last byte.
        inside = F.greatest(F.lit(0), F.least(place, F.lit(self.stride - 1)))
        position = inside if bucket is None else inside + bucket * self.stride
        return F.substr(F.lit(self.table), (position + 1).cast("int"), F.lit(1)) == F.lit(b"\x01")


@dataclass(frozen=True)
class TupleFilter:
    """The early drop: tuples that no kept unit needs, by their time."""

    lookup: Lookup
    pane: int
    origin: int

    @classmethod
    def of(cls, state: DropState, span: Span) -> TupleFilter | None:
        pane = np.gcd(span.slide, span.size).item()
        if span.slide // pane > FINEST:
            pane = max(1, span.slide // FINEST)
        origin = span.origin + span.lo
        gaps = [[_inside(gap, pane, origin) for gap in _gaps(state, g, span)] for g in range(state.buckets)]
        lookup = Lookup.of(gaps, most=MOST_TABLE_BYTES)
        return None if lookup is None else cls(lookup, pane, origin)

    def left_out(self, t: Column, bucket: Column | None) -> Column:
        """Whether a tuple is dropped; `t` in microseconds."""
        return self.lookup.left_out(t, bucket, self.pane, self.origin)


def dropped_windows(state: DropState, span: Span, window: Window) -> list[list[tuple[int, int]]]:
    """The windows that are dropped, (first, last) by window id, bucket by bucket; `span` belongs to their results."""
    # The result of window j has the time origin + j*slide + size - 1.
    base = window.origin + window.size - 1
    found = []
    for g in range(state.buckets):
        ids = [(-((base - lo) // window.slide), (hi - 1 - base) // window.slide) for lo, hi in _gaps(state, g, span)]
        found.append([(first, last) for first, last in ids if first <= last])
    return found


def _gaps(state: DropState, bucket: int, span: Span) -> list[tuple[int, int]]:
    gaps = (span.gap(first, last) for first, last in state.dropped[bucket])
    return [gap for gap in gaps if gap is not None]


def _inside(gap: tuple[int, int], pane: int, origin: int) -> tuple[int, int]:
    """The first and last pane that are all within the gap."""
    return -((origin - gap[0]) // pane), (gap[1] - origin) // pane - 1
