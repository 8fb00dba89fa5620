"""Which worker got which keys: counts of each task, which the driver combines into the metrics of `keys.metrics`.

They are the tuples and distinct keys per window of the partitioner and per worker, and the keys with the most tuples,
for the table that splitters may share. Keys are identified by their hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_WINDOWS = 16
"""A task reports this many windows, the latest ones: an epoch seldom has more."""
HEAVY_KEYS = 1_000
"""Keys in the shared table. Every other key has fewer tuples than these: at most a thousandth of all."""

Ints = NDArray[np.int64]


@dataclass
class KeyCensus:
    """The counts of one task."""

    pieces: list[tuple[Ints, Ints, Ints, Ints]] = field(default_factory=list)

    def add(self, windows: Ints, workers: Ints, keys: Ints, tuples: Ints) -> None:
        """Add the tuples of some (window, worker, key); each may be added several times."""
        self.pieces.append((windows, workers, keys, tuples))

    def as_json(self) -> dict[str, Any] | None:
        """None if nothing was counted; otherwise lists of

        ``loads``: (window, worker, tuples, keys), ``distinct``: (window, keys), ``heaviest``: (key, tuples); and
        ``since``: the first window reported, if there were more.
        """
        if not self.pieces:
            return None
        windows, workers, keys, tuples = (np.concatenate(column) for column in zip(*self.pieces, strict=True))
        heavy, at = np.unique(keys, return_inverse=True)
        weights = np.bincount(at, weights=tuples).astype(np.int64)
        top = np.lexsort((heavy, -weights))[:HEAVY_KEYS]
        loads: list[list[int]] = []
        for window in np.unique(windows)[-MOST_WINDOWS:].tolist():
            for worker in np.unique(workers[windows == window]).tolist():
                mine = (windows == window) & (workers == worker)
                loads.append([window, worker, int(tuples[mine].sum()), len(np.unique(keys[mine]))])
        heaviest = [[int(heavy[i]), int(weights[i])] for i in top.tolist()]
        latest = [row[0] for row in loads]
        distinct = [[window, len(np.unique(keys[windows == window]))] for window in sorted(set(latest))]
        complete = len(np.unique(windows)) <= MOST_WINDOWS
        return {"loads": loads, "distinct": distinct, "heaviest": heaviest, "since": None if complete else latest[0]}


def loads_by_window(reports: Iterable[Mapping[str, Any]], workers: int) -> dict[int, tuple[list[int], list[int]]]:
    """Per window the tuples of each worker, and the (worker, key) pairs that the tasks reported, by worker.

    Windows that some task did not report are left out.
    """
    reports = list(reports)
    since = max((each["since"] for each in reports if each["since"] is not None), default=None)
    tuples: dict[int, list[int]] = {}
    keys: dict[int, list[int]] = {}
    for each in reports:
        for window, worker, n, k in each["loads"]:
            tuples.setdefault(window, [0] * workers)[worker] += n
            keys.setdefault(window, [0] * workers)[worker] += k
    return {window: (tuples[window], keys[window]) for window in sorted(tuples) if since is None or window >= since}


def heaviest_of(reports: Iterable[Mapping[str, Any]]) -> tuple[tuple[int, int], ...]:
    """The keys with the most tuples over all tasks, with the number of tuples."""
    total: dict[int, int] = {}
    for each in reports:
        for key, tuples in each["heaviest"]:
            total[key] = total.get(key, 0) + tuples
    return tuple(sorted(total.items(), key=lambda item: (-item[1], item[0]))[:HEAVY_KEYS])
