"""How long the rows of an epoch may have waited.

No source says when a row came. What is known: the epoch before read all that was there when it began, so a row of this
epoch came later than that. Where nothing came for a while, Spark looked again and again and found nothing, and a row
came after the last of these looks:

    epoch before          looks that find nothing          this epoch
    |-----------|          .    .    .    .    .           |----------|
                                              ^ the oldest row came after this

Without looks in between, rows may have come while the epoch before ran, and its start is all that can be said.
"""

from __future__ import annotations

import math


class Arrivals:
    """Remembers when nothing waited, by the wall clock."""

    def __init__(self, trigger: float | None) -> None:
        self._trigger = trigger
        """seconds between two triggers; None: Spark looks every few milliseconds"""
        self._nothing = -math.inf

    def saw_nothing(self, at: float) -> None:
        """At this time Spark's last look had found no row."""
        self._nothing = at

    def oldest(self, before: float, started: float) -> float:
        """The earliest time at which the oldest row of an epoch can have come; `before`: when the one before began."""
        if self._nothing <= before:
            return before
        if self._trigger is None:
            return min(self._nothing, started)
        # Spark looks at multiples of the interval. All looks since the one that found nothing found nothing, or there
        # would have been an epoch: so the last of them was the one before this epoch's own.
        look = started // self._trigger * self._trigger
        return max(before, look - self._trigger)
