"""The clock of a replay: which rows of a recording are due now.

| asked for | due at wall time `now`, counted from the start of this run |
|---|---|
| `rate` | as many rows as `rate` per second gives |
| `pace` | the rows up to which the recording's own clock has come, which runs `pace` times as fast as the wall's |
| neither | all |

With `pace_from`, what was recorded before that time is due at once, and the clock starts when it has been taken: a fast
approach to the part that matters.

The clock starts with the first question, at the position the stream has then. So a stream that was down goes on from
where it was, at the same speed; it does not make up for the time that it missed. Pure: the wall clock is an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Timeline(Protocol):
    """What the pacer asks of a recording."""

    @property
    def rows(self) -> int: ...

    def time_at(self, row: int) -> int | None: ...

    def first_after(self, time: int) -> int: ...


def _wall() -> int:
    """Microseconds of a clock that is never set back."""
    return time.monotonic_ns() // 1_000


@dataclass
class Pacer:
    """Says what is due; `rate` in rows per second, `pace` as a multiple of the recorded time."""

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
        """The same without a position; None while the clock has not started."""
        return None if self._began is None else self._due(*self._began)

    def _due(self, began: int, origin: int, recorded: int | None) -> int:
        elapsed = self.wall() - began
        if self.rate is not None:
            return min(self.timeline.rows, origin + int(self.rate * elapsed / 1_000_000))
        if self.pace is None or recorded is None:
            return self.timeline.rows
        return self.timeline.first_after(recorded + int(self.pace * elapsed))
