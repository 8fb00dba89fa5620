"""Window drop: keep or drop, unit by unit.

Units (single windows, or several: `windows.spans`) are grouped into batches of B. One coin per batch says whether the
whole batch is to be dropped, with probability p. But never more than B units in a row are missing:

    coins, B = 3      drop     drop     drop     keep     keep
    units             x x x    . x x    x . x    x x .    . . .       x dropped, . kept
                               ↑          ↑      ↑ ↑
                          kept: B were missing   dropped: they pay for the two that were kept

A unit that is kept although its coin said drop is a debt. A later unit whose coin says keep pays for it and is dropped,
if that leaves no gap above B. So both hold: B always, and p in the long run, as long as p <= B/(B+1); more cannot be
dropped. (When p falls, debts are forgotten: from then on less is to be dropped.) The original rule (docs/papers.md)
always keeps the *first* unit of a second batch. After two coins that is the same; after a third, this rule keeps the
next unit only when B are missing again, which makes p up to B/(B+1) possible.

**Buckets.** If a query has keys, they are hashed into buckets, each with its own coins. All coins of a batch come from
one number u: bucket g of G drops iff frac(u + g/G) < p. For each bucket that is a fair coin, but of all buckets almost
exactly the share p drops at any time. With one coin for all keys, load and latency would jump with each batch of
windows.

Coins depend only on the seed, the batch and p, so a replay throws the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from anabranch.shedding.kernels import coin, may_drop, run_and_debt, says_drop

Ranges = tuple[tuple[int, int], ...]
"""Dropped units: (first, last) of each run, ascending, with kept units in between."""
KEY_BUCKETS = 64
"""The most buckets that keys are hashed into."""


@dataclass(frozen=True)
class Tally:
    """The state after a sequence of decisions."""

    run: int = 0
    """units dropped in a row"""
    debt: int = 0
    """kept units that should have been dropped; later drops make up for them"""

    def after(self, dropped: bool, coin: bool) -> Tally:
        """The tally after one more unit; `coin`: whether its coin said drop."""
        return Tally(*run_and_debt(dropped, coin, self.run, self.debt))

    def decide(self, coin: bool, bound: int, ahead: int = 0) -> bool:
        """Whether the next unit is dropped; the `ahead` units right after it are dropped in any case."""
        return may_drop(coin, self.run, self.debt, bound, ahead)


def most(bound: int) -> float:
    """The largest share of units that can be dropped with gaps of up to `bound`."""
    return bound / (bound + 1)


@dataclass(frozen=True)
class DropState:
    """The decisions about the units of one drop point, bucket by bucket; kept in the ledger.

    Decisions about units below `unit` are final. Those from `unit` on may be made again in the next epoch
    (`decided`).
    """

    unit: int
    tallies: tuple[Tally, ...]
    """one per bucket, before `unit`"""
    dropped: tuple[Ranges, ...]
    """one per bucket: past ones while they are still needed, and future ones"""
    p: float = 0.0
    """the share with which the units from `unit` on were decided"""

    @classmethod
    def new(cls, unit: int, buckets: int) -> DropState:
        return cls(unit, (Tally(),) * buckets, ((),) * buckets)

    @property
    def buckets(self) -> int:
        return len(self.tallies)

    @property
    def empty(self) -> bool:
        """Whether nothing is dropped."""
        return not any(self.dropped)

    def decided(
        self, *, opens: int, unseen: int, through: int, p: float, bound: int | None, seed: int, needed: int
    ) -> DropState:
        """Decide the units from `opens` through `through`, and forget those dropped below `needed`.

        Below `opens` nothing changes: results of these units may have left. Rows of the units from there to `unseen`
        have arrived: dropped ones stay dropped, because their rows are gone; kept ones may still be dropped. From
        `unseen` on everything is open. `bound` None drops all units, whatever was promised.
        """
        opens = max(opens, self.unit)
        through = max(through, opens - 1)
        coin_of = cache(partial(coin, seed))  # all buckets share the number of a batch
        decided = [
            self._bucket(g, opens, max(unseen, opens), through, p, bound, coin_of, needed) for g in range(self.buckets)
        ]
        return DropState(opens, tuple(tally for tally, _ in decided), tuple(ranges for _, ranges in decided), p)

    def _bucket(
        self,
        g: int,
        opens: int,
        unseen: int,
        through: int,
        p: float,
        bound: int | None,
        coin_of: Callable[[int], float],
        needed: int,
    ) -> tuple[Tally, Ranges]:
        before = set(_units(self.dropped[g], self.unit, max(through, unseen)))
        past = [(max(first, needed), min(last, opens - 1)) for first, last in self.dropped[g]]
        kept_past = [(first, last) for first, last in past if first <= last]

        def says(unit: int, at: float) -> bool:
            return bound is not None and says_drop(coin_of(unit // max(1, bound)), at, g, self.buckets)

        tally = self.tallies[g]
        # The unit right after the last dropped one may have been kept against its coin. Later ones were kept because of
        # their coins, with no debt, or time jumped over them before they were decided.
        decided = max(before, default=self.unit - 1) + 2
        for unit in range(self.unit, min(opens, decided)):
            tally = tally.after(unit in before, says(unit, self.p))
        # Rows of units that have arrived are gone, however far ahead is decided.
        beyond = [(unit, unit) for unit in sorted(before) if through < unit < unseen]
        if bound is None:
            return Tally(run=tally.run), _joined([*kept_past, (opens, through), *beyond])
        if p < self.p:
            # Debts from a higher p are not paid: that would go on dropping at that p although there is less to drop.
            tally = replace(tally, debt=0)
        settled, dropped = tally, []
        if p > 0 or before:
            for unit in range(opens, through + 1):
                thrown = says(unit, p)
                gone = unit < unseen and unit in before
                gone = gone or tally.decide(thrown, bound, _ahead(before, unit, unseen))
                if gone:
                    dropped.append(unit)
                tally = tally.after(gone, thrown)
        return settled, _joined([*kept_past, *((unit, unit) for unit in dropped), *beyond])


def _ahead(dropped: set[int], unit: int, unseen: int) -> int:
    """How many units right after this one are already dropped."""
    count = 0
    while unit + count + 1 < unseen and unit + count + 1 in dropped:
        count += 1
    return count


def _units(ranges: Ranges, first: int, last: int) -> Iterable[int]:
    for start, end in ranges:
        yield from range(max(start, first), min(end, last) + 1)


def _joined(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Ascending ranges, with adjacent ones merged."""
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if first > last:
            continue
        if joined and joined[-1][1] + 1 >= first:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)
