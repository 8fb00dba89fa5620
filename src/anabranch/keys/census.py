"""Which worker got which keys: counts of each task, which the driver combines into the metrics of `keys.metrics`.

They are the tuples and distinct keys per window of the partitioner and per worker, and the keys with the most tuples,
for the table that splitters may share. Keys are identified by their hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_WINDOWS = 16
"""A task reports this many windows, the latest ones: an epoch seldom has more."""
HEAVY_KEYS = 1_000
"""Keys in the shared table. Every other key has fewer tuples than these: at most a thousandth of all."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class KeyCensus:
    """The counts of the keys that one task placed, for the latest windows."""

    loads: tuple[tuple[int, int, int, int], ...]
    """(window, worker, tuples, keys)"""
    distinct: tuple[tuple[int, int], ...]
    """(window, distinct keys)"""
    heaviest: tuple[tuple[int, int], ...]
    """(key, tuples) of the keys with the most tuples"""
    since: int | None
    """the first window counted here, if earlier ones were left out; else None"""

    def to_json(self) -> dict[str, Any]:
        return {"loads": self.loads, "distinct": self.distinct, "heaviest": self.heaviest, "since": self.since}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> KeyCensus:
        loads, distinct, heaviest = (
            tuple(tuple(row) for row in known[name]) for name in ("loads", "distinct", "heaviest")
        )
        return cls(loads, distinct, heaviest, known["since"])


@dataclass
class KeyCounter:
    """Counts the keys that one task places."""

    pieces: list[tuple[Ints, Ints, Ints, Ints]] = field(default_factory=list)

    def add(self, windows: Ints, workers: Ints, keys: Ints, tuples: Ints) -> None:
        """Add the tuples of some (window, worker, key); each may be added several times."""
        self.pieces.append((windows, workers, keys, tuples))

    def census(self) -> KeyCensus | None:
        """The counts; None if nothing was placed."""
        if not self.pieces:
            return None
        windows, workers, keys, tuples = (np.concatenate(column) for column in zip(*self.pieces, strict=True))
        heavy, at = np.unique(keys, return_inverse=True)
        weights = np.bincount(at, weights=tuples).astype(np.int64)
        top = np.lexsort((heavy, -weights))[:HEAVY_KEYS]
        loads: list[tuple[int, int, int, int]] = []
        for window in np.unique(windows)[-MOST_WINDOWS:].tolist():
            for worker in np.unique(workers[windows == window]).tolist():
                mine = (windows == window) & (workers == worker)
                loads.append((window, worker, int(tuples[mine].sum()), len(np.unique(keys[mine]))))
        latest = [row[0] for row in loads]
        return KeyCensus(
            tuple(loads),
            tuple((window, len(np.unique(keys[windows == window]))) for window in sorted(set(latest))),
            tuple((int(heavy[i]), int(weights[i])) for i in top.tolist()),
            None if len(np.unique(windows)) <= MOST_WINDOWS else latest[0],
        )


def loads_by_window(counts: Sequence[KeyCensus], workers: int) -> dict[int, tuple[list[int], list[int]]]:
    """Per window, the tuples of each worker, and the (worker, key) pairs that the tasks counted, by worker.

    Windows that not all tasks counted are left out.
    """
    since = max((census.since for census in counts if census.since is not None), default=None)
    tuples: dict[int, list[int]] = {}
    keys: dict[int, list[int]] = {}
    for census in counts:
        for window, worker, n, k in census.loads:
            tuples.setdefault(window, [0] * workers)[worker] += n
            keys.setdefault(window, [0] * workers)[worker] += k
    return {window: (tuples[window], keys[window]) for window in sorted(tuples) if since is None or window >= since}


def heaviest_of(counts: Iterable[KeyCensus]) -> tuple[tuple[int, int], ...]:
    """The keys with the most tuples over all tasks, with their tuples."""
    total: dict[int, int] = {}
    for census in counts:
        for key, tuples in census.heaviest:
            total[key] = total.get(key, 0) + tuples
    return tuple(sorted(total.items(), key=lambda item: (-item[1], item[0]))[:HEAVY_KEYS])
