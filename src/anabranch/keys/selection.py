"""Which policy to take: the selection rule of paper 3, section 7.

| the aggregates | the keys | taken | why |
|---|---|---|---|
| Spark's own | any | none: Spark is left alone | it combines before the exchange: a task sends a row per key and pane |
| in Python, no state that can travel | any | none | workers could only collect rows, and the result needs them all |
| in Python | unknown yet | cAM | never far from the best; SH may be, if keys turn out to be many |
| in Python | few, and about as many in each window | SH | even, and there is little to combine |
| in Python | otherwise, one splitter | cAM | nothing to combine, and more even than hash partitioning |
| in Python | otherwise, several splitters | heavy | as cAM, where splitters that share nothing would split keys |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from anabranch.keys.policy import Partitioning

FEW_KEYS = 0.1
"""Keys are few if there are at most so many per tuple of a worker in a window ("significantly less")."""
STEADY_KEYS = 0.25
"""The number of keys is constant if it varies by at most this share between windows."""
HYSTERESIS = 1.5
"""A choice is changed back only when it is wrong by this factor: so it does not swing."""


@dataclass(frozen=True)
class WindowKeys:
    """What is known of some windows: keys in each, and tuples per worker in each."""

    keys: Sequence[int]
    tuples_per_worker: Sequence[float]


@dataclass(frozen=True)
class Selected:
    """A choice and its reason."""

    partitioning: Partitioning
    why: str


def select(seen: WindowKeys | None, *, splitters: int | None, present: Partitioning | None = None) -> Selected:
    """The policy for an aggregate that Spark cannot combine by itself. `splitters` is None where they are unknown."""
    if seen is None or not seen.keys:
        return Selected(Partitioning("cam"), "nothing measured yet: cAM is never far from the best")
    # An epoch may end within a window: a small part of one says nothing of how many keys there are.
    usual = median(seen.tuples_per_worker)
    parts = [(k, n) for k, n in zip(seen.keys, seen.tuples_per_worker, strict=True) if n >= usual / 2]
    keys, fewest, share = max(k for k, _ in parts), min(k for k, _ in parts), sum(n for _, n in parts) / len(parts)
    few, varies = FEW_KEYS * share, STEADY_KEYS
    if present is not None:
        few, varies = (few * HYSTERESIS, varies * HYSTERESIS) if present.policy == "sh" else (few / HYSTERESIS, varies)
    steady = keys - fewest <= varies * keys + 1
    said = f"{keys:,} keys in a window, {share:,.0f} tuples per worker"
    if keys <= few and steady:
        return Selected(Partitioning("sh"), f"{said}: few keys, so what spreads most evenly is best (SH)")
    how = f"{said}: {'many' if keys > few else 'not a constant number of'} keys, so they should stay whole"
    if splitters == 1:
        return Selected(Partitioning("cam"), f"{how} (cAM)")
    several = "several splitters" if splitters is None else f"{splitters} splitters"
    return Selected(Partitioning("heavy"), f"{how}, for {several} at once (a shared table of heavy keys)")
