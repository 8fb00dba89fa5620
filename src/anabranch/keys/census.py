"""What became of the keys: counts of a task, which the driver puts together into the metrics of paper 3.

Tuples, and different keys, per window of the partitioner and per worker; and the keys with the most tuples, for the
table that splitters may share. Keys are known by their hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_WINDOWS = 16
"""Of so many windows, the latest, a task tells its counts: an epoch seldom has more."""
HEAVY_KEYS = 1_000
"""Keys of the shared table. Any other key has less than each of them: at most a thousandth of the tuples."""

Ints = NDArray[np.int64]


@dataclass
class KeyCensus:
    """The counts of one task."""

    pieces: list[tuple[Ints, Ints, Ints, Ints]] = field(default_factory=list)

    def add(self, windows: Ints, workers: Ints, keys: Ints, tuples: Ints) -> None:
        """Some (window, worker, key) with their tuples; the same may come again."""
        self.pieces.append((windows, workers, keys, tuples))

    def as_json(self) -> dict[str, Any] | None:
        """None where nothing was placed; else lists of

        ``loads``: (window, worker, tuples, keys), ``distinct``: (window, keys), ``heaviest``: (key, tuples); and
        ``since``: the first window reports of, if there were more.
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
    """Per window the tuples of each worker, and the (worker, key) pairs that the tasks reports of, by worker.

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
    """The keys with the most tuples over all tasks, with their tuples."""
    total: dict[int, int] = {}
    for each in reports:
        for key, tuples in each["heaviest"]:
            total[key] = total.get(key, 0) + tuples
    return tuple(sorted(total.items(), key=lambda item: (-item[1], item[0]))[:HEAVY_KEYS])
