"""How far ahead a row may be: one row from the year 2200 must not close every window.

The watermark follows the latest time of a row. So a single row with a wrong clock would complete all open windows early
and make every later row late. Rows beyond a *limit* are kept aside (in `side/`) and do not move the watermark:

    limit = the later of the driver's clock and the latest row so far, plus `max_ahead`

The clock is read once per epoch, and the limit is in the ledger: an epoch that runs again has the same limit.

**Data with its own clock.** Times may be simulated, so that all rows lie in the future. With `max_ahead="auto"`, the
first epoch with rows from a source decides: if most of them are beyond the limit, the source has its own clock, and no
limit from then on. That depends only on the limit and the rows, so a replay decides the same.

**An int of seconds** ends in 2038. Rows whose windows would end after that are beyond the limit, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from anabranch.errors import InvalidArgumentError
from anabranch.query.graph import Network
from anabranch.spark.columns import LAST_SECOND, TimeKind
from anabranch.store.records import TimeLimits
from anabranch.windows import Duration, describe, micros
from anabranch.windows.durations import MICROS

AUTO = "auto"
AUTO_BOUND = 86_400 * MICROS
"""One day: a timestamp without a time zone may be up to 14 hours ahead of UTC."""
FEWEST_ROWS = 10
"""Fewest rows that can show that a source has its own clock: one or two rows could simply be wrong."""


@dataclass(frozen=True)
class MaxAhead:
    """The bound on how far ahead of the clock a row may be."""

    micros: int
    asked: bool
    """whether the user gave it: then it also holds for data with its own clock"""

    @classmethod
    def of(cls, value: Duration | None) -> MaxAhead | None:
        """From what the user wrote; None: no bound."""
        if value is None:
            return None
        if value == AUTO:
            return cls(AUTO_BOUND, asked=False)
        bound = micros(value, "max_ahead")
        if bound < 0:
            raise InvalidArgumentError(
                f"max_ahead is {describe(bound)}: it would refuse rows with the current time", hint="give zero or more"
            )
        return cls(bound, asked=True)

    def describe(self) -> str:
        """For explain()."""
        unless = "" if self.asked else ", unless the data has its own clock"
        return f"at most {describe(self.micros)} ahead of the clock{unless}"


def decided_limits(
    bound: MaxAhead | None, now: int, latest: Sequence[int | None], own_clock: Collection[int]
) -> TimeLimits:
    """The limits of the next epoch.

    `latest`: the latest time of each source so far; `own_clock`: sources that have their own clock.
    """
    if bound is None:
        return TimeLimits((None,) * len(latest))
    found = [
        max(now, now if reached is None else reached) + bound.micros if bound.asked or i not in own_clock else None
        for i, reached in enumerate(latest)
    ]
    return TimeLimits(tuple(found), auto=not bound.asked)


def within_types(limits: TimeLimits, network: Network) -> list[int | None]:
    """The limits, lowered to what the type of each source's time can hold."""
    reach = sum(step.node.reach for step in network.steps)
    fits = [LAST_SECOND * MICROS - reach if s.time.kind is TimeKind.SECONDS else None for s in network.sources]
    both = zip(limits.latest, fits, strict=True)
    return [min((t for t in each if t is not None), default=None) for each in both]


def shows_own_clock(rows: int, ahead: int) -> bool:
    """Whether the first rows of a source show that it has its own clock."""
    return rows >= FEWEST_ROWS and 2 * ahead > rows
