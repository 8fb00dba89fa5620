"""How large a physical window should be: double W until the rate hardly improves.

The search is a fold over measurements, each a pair (W in bytes, rate). The rate is a *capacity*, tuples per busy
second: the input rate would fall whenever fewer tuples come, which says nothing about W.

    W      4 K   8 K   16 K  32 K
    rate   50    80    95    95.1      less than 0.15 % above 16 K: settled on 16 K

- Noise lowers a rate and hardly ever raises it. So each W is measured `SAMPLES` times, and the best rate counts.
- The search settles on the smaller of the last two sizes: a larger window that gains nothing costs memory and latency.
- Once settled, `SAMPLES` rates in a row below (1 - `REOPEN`) of the settled rate restart the search one size below: the
  data or the machines have changed, and W may have to go either way.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

IMPROVEMENT = 0.0015
"""The search stops at a doubling that gains less than this."""
SAMPLES = 3
"""Measurements of each size, and low rates in a row that restart the search."""
REOPEN = 0.25
"""A fall of the rate at the settled size that restarts the search."""
SEARCH_START = 4_096
"""Default first size, in bytes."""
SEARCH_LIMIT = 4 * 1024 * 1024
"""Default largest size; the runtime allows more (`runtime.execution`)."""


@dataclass(frozen=True)
class WindowSearch:
    """The state of the search. `rates` belong to the current size, `reference` is the best rate of the previous one."""

    size: int = SEARCH_START
    settled: bool = False
    reference: float | None = None
    """while searching, the best rate of half the size; once settled, the settled rate; None at the start"""
    rates: tuple[float, ...] = field(default=())

    def after(self, size: int, rate: float, *, start: int = SEARCH_START, limit: int = SEARCH_LIMIT) -> WindowSearch:
        """The search after one measurement; one of another size, or without a rate, is ignored."""
        if size != self.size or not rate > 0:
            return self
        rates = (*self.rates, rate)[-SAMPLES:]
        if len(rates) < SAMPLES:
            return replace(self, rates=rates)
        best = max(rates)
        if self.settled:
            fell = self.reference is not None and best < (1.0 - REOPEN) * self.reference
            return WindowSearch(max(start, size // 2)) if fell else replace(self, rates=rates)
        if self.reference is not None and best < (1.0 + IMPROVEMENT) * self.reference:
            return WindowSearch(size // 2, settled=True, reference=self.reference)
        if size * 2 > limit:
            return WindowSearch(size, settled=True, reference=best)
        return WindowSearch(size * 2, reference=best)
