"""The clock of a replay: which rows of a recording are due now.

| asked for | due at wall time `now`, counted from the start of this run |
|---|---|
| `rate` | `rate` rows per second |
| `pace` | the rows up to the recording's own clock, which runs `pace` times as fast as the wall clock |
| neither | all |

With `pace_from`, everything recorded before that time is due at once, and the clock starts when it has been read: a
fast way to the part that matters.

The clock starts with the first call, at the stream's position at that moment. So a stream that was down continues from
where it was, at the same speed; it does not catch up on the time that it missed. The wall clock is an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Timeline(Protocol):
    """What the pacer needs from a recording."""

    @property
    def rows(self) -> int: ...

    def time_at(self, row: int) -> int | None: ...

    def first_after(self, time: int) -> int: ...


def _wall() -> int:
    """Microseconds of a clock that never goes backwards."""
    return time.monotonic_ns() // 1_000


@dataclass
class Pacer:
    """Computes which rows are due; `rate` in rows per second, `pace` as a multiple of the recorded time."""

    timeline: Timeline
    rate: float | None = None
    pace: float | None = None
    pace_from: int | None = None
    wall: Callable[[], int] = _wall
    _began: tuple[int, int, int | None] | None = field(default=None, init=False)  # wall time, position, recorded time

    def due(self, position: int) -> int:
        """The position up to which rows are due, at least `position`; the first call starts the clock there."""
        if self._began is None:
            approach = 0 if self.pace_from is None else self.timeline.first_after(self.pace_from - 1)
            if position < approach:
                return approach
            timed = self.pace is not None and position < self.timeline.rows
            self._began = (self.wall(), position, self.timeline.time_at(position) if timed else None)
        return max(position, self._due(*self._began))

    def due_now(self) -> int | None:
        """The position up to which rows are due now; None before the clock has started."""
        return None if self._began is None else self._due(*self._began)

    def _due(self, began: int, origin: int, recorded: int | None) -> int:
        elapsed = self.wall() - began
        if self.rate is not None:
            return min(self.timeline.rows, origin + int(self.rate * elapsed / 1_000_000))
        if self.pace is None or recorded is None:
            return self.timeline.rows
        return self.timeline.first_after(recorded + int(self.pace * elapsed))
