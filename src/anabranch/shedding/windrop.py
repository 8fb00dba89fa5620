"""Window drop: keep or drop, unit by unit (paper 4, sections 3.1 and 3.4).

Units (windows, or several of them: `windows.spans`) are cut into batches of B. One coin per batch says whether all of
it shall be dropped, with probability p. But never more than B units in a row are missing:

    coins, B = 3      drop     drop     drop     keep     keep
    units             x x x    . x x    x . x    x x .    . . .       x dropped, . kept
                               ↑          ↑      ↑ ↑
                          open: B were missing   skipped: they pay for the two that opened

A unit that opens although its coin said drop is a debt. A later unit whose coin says keep pays for it and is skipped,
if that leaves no gap above B. So both hold: B always, and p in the long run, as long as p <= B/(B+1); more cannot be
dropped. (When p falls, debts are forgotten: less is to be dropped from then on.) The paper lets the *first* unit of a
second batch open. That is this rule after two coins; after a third, this one opens the next only when B are missing
again, which is what makes p up to B/(B+1) possible (with B = 1 the paper's words would open every window).

**Buckets.** Where a query has keys, these are hashed into buckets, each with its own coins. All coins of a batch come
from one number u: bucket g of G drops iff frac(u + g/G) < p. For each bucket that is a coin like any other; but of all
buckets, as good as exactly the share p drops at any time. With one coin for all keys, load would come and go by whole
batches of windows, and so would latency.

Coins depend on the seed, the batch and p only: a replay throws the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from anabranch.shedding.kernels import coin, may_drop, run_and_debt, says_drop

Ranges = tuple[tuple[int, int], ...]
"""Units that are dropped: (first, last) of each run of them, ascending, with kept units between."""
KEY_BUCKETS = 64
"""The most buckets that keys are hashed into."""


@dataclass(frozen=True)
class Tally:
    """Where a sequence of decisions stands."""

    run: int = 0
    """units dropped in a row"""
    debt: int = 0
    """units that opened although their coin said drop, and were not paid for yet"""

    def after(self, dropped: bool, coin: bool) -> Tally:
        """With one more unit; `coin`: whether its coin said drop."""
        return Tally(*run_and_debt(dropped, coin, self.run, self.debt))

    def decide(self, coin: bool, bound: int, ahead: int = 0) -> bool:
        """Whether the next unit is dropped; `ahead` units right after it are, whatever happens."""
        return may_drop(coin, self.run, self.debt, bound, ahead)


def most(bound: int) -> float:
    """The largest share of units that can be dropped with gaps of up to `bound`."""
    return bound / (bound + 1)


@dataclass(frozen=True)
class DropState:
    """The decisions about the units of one drop, bucket by bucket; the ledger keeps it.

    Units below `unit` are past: nothing about them changes any more. Those from there on are decided, and may be
    decided anew in the next epoch (`decided`).
    """

    unit: int
    tallies: tuple[Tally, ...]
    """one per bucket, before `unit`"""
    dropped: tuple[Ranges, ...]
    """one per bucket: those past, as far as somebody still asks for them, and those to come"""
    p: float = 0.0
    """by which the units from `unit` on were decided"""

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

        Below `opens` nothing changes: results of these units may be out. Rows of the units from there to `unseen` have
        come: what is dropped of them stays dropped, because the rows are gone; what is kept may still be dropped.
        From `unseen` on everything is open. `bound` None: all are dropped, whatever was promised.
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
        # Right after the last dropped one a unit may have opened against its coin. Those behind were kept because of
        # theirs, with nothing owed, or time has jumped over them before anybody decided.
        decided = max(before, default=self.unit - 1) + 2
        for unit in range(self.unit, min(opens, decided)):
            tally = tally.after(unit in before, says(unit, self.p))
        # Rows of seen units are gone, however far is decided.
        beyond = [(unit, unit) for unit in sorted(before) if through < unit < unseen]
        if bound is None:
            return Tally(run=tally.run), _joined([*kept_past, (opens, through), *beyond])
        if p < self.p:
            # What was owed at a higher p is not paid: it would go on dropping at that p though there is less to drop.
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
    """How many units right after this one are gone already."""
    count = 0
    while unit + count + 1 < unseen and unit + count + 1 in dropped:
        count += 1
    return count


def _units(ranges: Ranges, first: int, last: int) -> Iterable[int]:
    for start, end in ranges:
        yield from range(max(start, first), min(end, last) + 1)


def _joined(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Ascending ranges, with those that touch made one."""
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if first > last:
            continue
        if joined and joined[-1][1] + 1 >= first:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)
