"""What a stream delivers, epoch by epoch: brute force, straight from the rules of `anabranch.plan.streaming`.

One epoch is one micro-batch. Its watermark is the latest time of all epochs *before* it, less the delay, in whole
milliseconds and never backwards; it starts at 1970. After the last row Spark runs one more epoch without rows, if that
moves the watermark.

- A *unit* is what leaves at once. With the strategy `window`, and for one tumbling window, it is a window. Otherwise it
  is a batch: the windows that end in one stretch of B slides (of the window that slides furthest). One of the stretches
  ends where the longest window number -1 ends, and with it the last window of its batch.
- A unit leaves in the first epoch whose watermark has reached its end, and only if a row is in it.
- A row is late for a pane (or, where windows leave one by one, for a window) that ended by the watermark of the epoch
  *before* its own. Spark counts late rows after it has grouped them: one for each key and pane (or window) in an epoch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A row of the tests: a time in microseconds, a key, a value."""

    time: int | None
    key: Any
    value: int | None


class Spec(NamedTuple):
    """A window over time, in microseconds."""

    size: int
    slide: int
    origin: int = 0

    def starts(self, t: int) -> list[int]:
        """Where the windows begin that hold t."""
        last = (t - self.origin) // self.slide * self.slide + self.origin
        return [s for s in range(last, last - self.size - 1, -self.slide) if s <= t < s + self.size]


class Place(NamedTuple):
    """A window of a key. `slide` tells windows of the same length apart."""

    key: Any
    start: int
    end: int
    slide: int


@dataclass
class Epoch:
    """What one epoch did: its watermark, the windows that left with their rows, and the groups that came late."""

    watermark: int
    delivered: dict[Place, list[Row]] = field(default_factory=dict)
    late_groups: int = 0


def play(
    epochs: Iterable[Iterable[Row]], specs: Sequence[Spec], *, delay: int, batch: int | None, at_end: bool = True
) -> list[Epoch]:
    """The epochs of a stream that gets these rows. `batch` is B, or None where windows leave one by one.

    `at_end`: whether the stream is run until nothing is left to do, so that the epoch without rows follows.
    """
    pane = math.gcd(*(n for spec in specs for n in (spec.size, spec.slide)))
    inputs = specs if batch is None else [Spec(pane, pane, specs[0].origin)]
    waiting: dict[Place, list[Row]] = defaultdict(list)
    played: list[Epoch] = []
    latest = watermark = before = 0
    todo = [list(rows) for rows in epochs]
    while todo or (at_end and _watermark(latest, delay) > watermark):
        rows = todo.pop(0) if todo else []
        before, watermark = watermark, max(watermark, _watermark(latest, delay))
        epoch = Epoch(watermark)
        late = set()
        for row in rows:
            if row.time is None:
                continue
            latest = max(latest, row.time)
            for spec in inputs:
                for begin in spec.starts(row.time):
                    if begin + spec.size <= before:
                        late.add((row.key, spec, begin))
                    elif batch is None:
                        waiting[Place(row.key, begin, begin + spec.size, spec.slide)].append(row)
                    else:
                        for place in _windows(row, specs):
                            waiting[place].append(row)
        epoch.late_groups = len(late)
        for place in [p for p in waiting if _leaves(p, specs, batch) <= watermark]:
            epoch.delivered[place] = waiting.pop(place)
        played.append(epoch)
    return played


def delivered(played: Iterable[Epoch]) -> dict[Place, list[Row]]:
    """All windows that left."""
    return {place: rows for epoch in played for place, rows in epoch.delivered.items()}


def _watermark(latest: int, delay: int) -> int:
    millis = latest // 1000 - -(-delay // 1000)
    return max(0, millis * 1000)


def _windows(row: Row, specs: Sequence[Spec]) -> list[Place]:
    assert row.time is not None
    return [Place(row.key, s, s + spec.size, spec.slide) for spec in specs for s in spec.starts(row.time)]


def _leaves(place: Place, specs: Sequence[Spec], batch: int | None) -> int:
    """The end of the unit that holds the window."""
    if batch is None:
        return place.end
    longest = max(specs, key=lambda spec: spec.size)
    stretch = batch * max(spec.slide for spec in specs)
    boundary = longest.origin + longest.size - longest.slide
    return boundary + -(-(place.end - boundary) // stretch) * stretch
