"""Which partitioning policy to use.

| the aggregates | the keys | policy | why |
|---|---|---|---|
| Spark's own | any | none: left to Spark | it combines before the exchange: a task sends a row per key and pane |
| in Python, without a typed state | any | none | workers could only collect rows, and the result needs them all |
| in Python | not yet known | cAM | never far from the best; SH may be, if there turn out to be many keys |
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
"""Keys are few if there are at most this many per tuple of a worker in a window."""
STEADY_KEYS = 0.25
"""The number of keys is steady if it varies by at most this share between windows."""
HYSTERESIS = 1.5
"""A choice is reversed only when it is wrong by this factor, so that it does not oscillate."""


@dataclass(frozen=True)
class WindowKeys:
    """What is known about some windows: the keys in each, and the tuples per worker in each."""

    keys: Sequence[int]
    tuples_per_worker: Sequence[float]


@dataclass(frozen=True)
class Selected:
    """A choice and its reason."""

    partitioning: Partitioning
    why: str


def select(measured: WindowKeys | None, *, splitters: int | None, present: Partitioning | None = None) -> Selected:
    """The policy for an aggregate that Spark cannot combine itself. `splitters` is None if not known."""
    if measured is None or not measured.keys:
        return Selected(Partitioning("cam"), "nothing measured yet; cAM is never far from the best")
    # An epoch may end within a window: a small part of a window does not show how many keys there are.
    usual = median(measured.tuples_per_worker)
    parts = [(k, n) for k, n in zip(measured.keys, measured.tuples_per_worker, strict=True) if n >= usual / 2]
    keys, fewest, share = max(k for k, _ in parts), min(k for k, _ in parts), sum(n for _, n in parts) / len(parts)
    few, varies = FEW_KEYS * share, STEADY_KEYS
    if present is not None:
        few, varies = (few * HYSTERESIS, varies * HYSTERESIS) if present.policy == "sh" else (few / HYSTERESIS, varies)
    steady = keys - fewest <= varies * keys + 1
    said = f"{keys:,} keys in a window, {share:,.0f} tuples per worker"
    if keys <= few and steady:
        return Selected(Partitioning("sh"), f"{said}: few keys, so an even spread is best (SH)")
    how = f"{said}: {'many' if keys > few else 'not a constant number of'} keys, so they should stay whole"
    if splitters == 1:
        return Selected(Partitioning("cam"), f"{how} (cAM)")
    several = "several splitters" if splitters is None else f"{splitters} splitters"
    return Selected(Partitioning("heavy"), f"{how}, for {several} at once (a shared table of heavy keys)")
