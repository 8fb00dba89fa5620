"""How long the rows of an epoch may have waited.

Sources do not say when a row arrived. But the previous epoch read everything that was there when it began, so a row of
this epoch arrived after that. While nothing arrives, Spark polls the sources, and a row arrived after the last poll
that found nothing:

    previous epoch        polls that find nothing          this epoch
    |-----------|          .    .    .    .    .           |----------|
                                              ^ the oldest row arrived after this

Without polls in between, rows may have arrived while the previous epoch ran: its start is the best bound.
"""

from __future__ import annotations

import math


class Arrivals:
    """Remembers when no row waited, by the wall clock."""

    def __init__(self, trigger: float | None) -> None:
        self._trigger = trigger
        """seconds between two triggers; None: Spark polls every few milliseconds"""
        self._no_rows_at = -math.inf

    def no_rows(self, at: float) -> None:
        """At this time, Spark's last poll had found no row."""
        self._no_rows_at = at

    def oldest(self, before: float, started: float) -> float:
        """The earliest time at which the oldest row of an epoch can have arrived.

        `before`: when the previous epoch began; `started`: when this one did.
        """
        if self._no_rows_at <= before:
            return before
        if self._trigger is None:
            return min(self._no_rows_at, started)
        # Spark polls at multiples of the interval. After the poll that found nothing, all others found nothing too, or
        # there would have been an epoch. So the last of them was one interval before this epoch's own poll.
        poll = started // self._trigger * self._trigger
        return max(before, poll - self._trigger)
