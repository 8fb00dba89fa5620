"""Count windows over a stream, row by row: rows wait for the watermark, are counted, and each window is tried in turn.

With a window drop (paper 4) each key decides unit by unit, with the plain `Tally` of `shedding.windrop`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anabranch.aggregates.arrays import spark_order
from anabranch.shedding.kernels import coin, says_drop
from anabranch.shedding.windrop import Tally
from anabranch.windows import Window


class Row(NamedTuple):
    """A row of the tests. All columns but the time order the rows of one time, null first and NaN last."""

    time: int
    key: str | None
    x: float | None
    y: int | None


class Drop(NamedTuple):
    """The decision of an epoch."""

    p: float
    bound: int | None
    seed: int


@dataclass
class KeyCount:
    """One count: that of a key, or of all rows."""

    number: int
    rows: list[Row] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    """of each unit that has begun"""
    tally: Tally = field(default_factory=Tally)


@dataclass
class Counting:
    """All counts of a group, as they stand."""

    windows: Sequence[Window]
    per_key: bool
    buckets: int
    waiting: list[Row] = field(default_factory=list)
    counts: dict[str | None, KeyCount] = field(default_factory=dict)
    p: float = 0.0
    dropped_rows: int = 0

    @property
    def slide(self) -> int:
        return math.lcm(*(w.slide for w in self.windows))

    def unit_bound(self, bound: int) -> int:
        """So many units in a row have at most `bound` windows of each specification."""
        return max(n for n in range(bound + 1) if all(n * (self.slide // w.slide) <= bound for w in self.windows))

    def epoch(self, rows: Sequence[Row], watermark: int, drop: Drop | None = None) -> None:
        """Rows come, then the watermark."""
        self.waiting += rows
        due = [row for row in self.waiting if row.time < watermark]
        self.waiting = [row for row in self.waiting if row.time >= watermark]
        p = 0.0 if drop is None else drop.p
        if p < self.p:
            for count in self.counts.values():
                count.tally = Tally(count.tally.run)
        self.p = p
        for row in due:
            self.counts.setdefault(row.key if self.per_key else None, KeyCount(len(self.counts)))
        for row in sorted(due, key=lambda row: (row.time, *map(spark_order, row[1:]))):
            self._count(self.counts[row.key if self.per_key else None], row, drop)

    def _count(self, count: KeyCount, row: Row, drop: Drop | None) -> None:
        at = len(count.rows)
        if at % self.slide == 0:
            bound = 0 if drop is None else self.unit_bound(drop.bound)
            thrown = drop is not None and says_drop(
                coin(drop.seed, at // self.slide // max(1, bound)), drop.p, count.number % self.buckets, self.buckets
            )
            gone = count.tally.decide(thrown, bound)
            count.tally = count.tally.after(gone, thrown)
            count.kept.append(not gone)
        count.rows.append(row)
        if not any(self._needs(unit, at) for unit, kept in enumerate(count.kept) if kept):
            self.dropped_rows += 1

    def _needs(self, unit: int, at: int) -> bool:
        """Whether a window that begins in the unit holds the row."""
        return any(
            start <= at < start + w.size
            for w in self.windows
            for start in range(unit * self.slide, (unit + 1) * self.slide, w.slide)
        )

    def windows_begun(self, count: KeyCount, spec: int) -> list[bool]:
        """Of each window whose first row has come, whether it is kept."""
        starts = range(0, len(count.rows), self.windows[spec].slide)
        return [count.kept[start // self.slide] for start in starts]

    def delivered(self, value: Callable[[Row], Any]) -> dict[tuple[int, str | None, int], list[Any]]:
        """(specification, key, window) of all full windows that are kept -> the values of its rows, in order."""
        found: dict[tuple[int, str | None, int], list[Any]] = {}
        for key, count in self.counts.items():
            for spec, window in enumerate(self.windows):
                for j, kept in enumerate(self.windows_begun(count, spec)):
                    rows = count.rows[j * window.slide : j * window.slide + window.size]
                    if kept and len(rows) == window.size:
                        for row in rows:
                            of = key if self.per_key else row.key
                            found.setdefault((spec, of, j), []).append(value(row))
        return found
