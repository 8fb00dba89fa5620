"""A partitioner: one splitter's counts, by which it decides which worker gets which tuple.

    hashes of the keys, windows of the tuples ──▶ Partitioner.assign ──▶ workers
                                                     │ per open window: tuples per worker (L), keys per worker (C)

Tuples may come out of order, so each window has its own counts; those of the newest few windows are kept. If tuples
are in order, this is the same as resetting the counts at the end of each window.

Partitioners of several splitters share nothing. When an epoch runs again they get the same input, and they keep no
state between epochs, so they decide the same again.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import OperatorError
from anabranch.keys import kernels
from anabranch.keys.kernels import REGISTERS, Floats, Hashes, Ints, Workers
from anabranch.keys.policy import COUNTING_KEYS, Partitioning

MOST_OPEN_WINDOWS = 8
"""Windows whose counts are kept: late rows seldom reach further back."""
MOST_BYTES = 1 << 30
"""Memory for the counts of windows if keys must stay whole."""
FIRST_ROOM = 64
"""Entries of a new table of keys."""

_KERNEL = {"cm": kernels.CM, "am": kernels.AM, "cam": kernels.CAM, "lm": kernels.LM}


@dataclass(frozen=True)
class HeavyKeys:
    """The shared table: keys (hashes, sorted) and the worker of each."""

    keys: Hashes = field(default_factory=lambda: np.empty(0, np.uint64))
    workers: Workers = field(default_factory=lambda: np.empty(0, np.int32))

    def to_json(self) -> dict[str, list[int]]:
        """The form kept in the ledger."""
        return {"keys": self.keys.tolist(), "workers": self.workers.tolist()}

    @classmethod
    def from_json(cls, known: Mapping[str, Sequence[int]]) -> HeavyKeys:
        return cls(np.array(known.get("keys", []), np.uint64), np.array(known.get("workers", []), np.int32))


def table_of(heaviest: Sequence[tuple[int, int]], workers: int) -> HeavyKeys:
    """Assign keys, given with their tuples: the heaviest first, each to the worker with the smallest load so far.

    The many light keys are hashed, so they add an even load.
    """
    loads = [(0, worker) for worker in range(workers)]
    worker_of: dict[int, int] = {}
    for key, tuples in sorted(heaviest, key=lambda each: (-each[1], each[0])):
        load, worker = heapq.heappop(loads)
        worker_of[key % 2**64] = worker
        heapq.heappush(loads, (load + tuples, worker))
    keys = np.array(sorted(worker_of), np.uint64)
    return HeavyKeys(keys, np.array([worker_of[int(key)] for key in keys], np.int32))


@dataclass
class _Sets:
    """Which keys each worker has, exactly."""

    table: NDArray[np.uint64]
    counts: Ints
    """C: keys per worker"""
    used: int = 0


@dataclass
class _Sketches:
    """How many keys each worker has, estimated."""

    registers: NDArray[np.uint8]
    sums: Floats
    zeros: Ints
    estimates: Floats
    """C: keys per worker"""


@dataclass
class _Counts:
    """What is known of one window."""

    loads: Ints
    """L: tuples per worker"""
    turn: int
    """SH: the next worker"""
    extremes: Floats
    """LM: min and max of L, min and max of C"""
    cardinality: _Sets | _Sketches | None


def _size(counts: _Counts) -> int:
    """Bytes of the cardinality structure."""
    if counts.cardinality is None:
        return 0
    return (counts.cardinality.table if isinstance(counts.cardinality, _Sets) else counts.cardinality.registers).nbytes


class Partitioner:
    """Assigns tuples to `workers`. `first` differs between splitters, so that their turns (SH) do not coincide.

    With `strict` keys must stay whole: counts of windows are kept while there is memory, and a tuple of a window whose
    counts had to be dropped is an error, since its key might now go elsewhere.
    """

    def __init__(
        self,
        partitioning: Partitioning,
        workers: int,
        *,
        first: int = 0,
        heavy: HeavyKeys | None = None,
        strict: bool = False,
    ) -> None:
        self.partitioning = partitioning
        self.workers = workers
        self.choices = min(partitioning.choices, workers)
        self._first = first
        heavy = heavy or HeavyKeys()
        # An epoch that runs again may have a table for more workers than there are now.
        self._heavy = HeavyKeys(heavy.keys, heavy.workers % np.int32(workers))
        self._strict = strict
        self._open: dict[int, _Counts] = {}
        self._forgotten: int | None = None
        self._bytes = 0

    def assign(self, hashes: NDArray[Any], windows: NDArray[Any] | None = None) -> Workers:
        """The worker of each tuple. Hashes are 64-bit integers; without `windows` all tuples are in one window."""
        keys = np.ascontiguousarray(hashes).view(np.uint64)
        out = np.empty(len(keys), np.int32)
        if not len(keys):
            return out
        if windows is None:
            self._assign(self._counts(0), keys, out)
            return out
        if windows[0] == windows[-1] and (windows == windows[0]).all():
            self._assign(self._counts(int(windows[0])), keys, out)
            return out
        # Windows are independent, so they may be processed one after the other.
        for window in np.unique(windows).tolist():
            mine = np.flatnonzero(windows == window)
            part = np.empty(len(mine), np.int32)
            self._assign(self._counts(window), keys[mine], part)
            out[mine] = part
        return out

    def loads(self, window: int = 0) -> Ints:
        """Tuples per worker in an open window."""
        return self._counts(window).loads

    @property
    def nbytes(self) -> int:
        """Memory of the cardinality structures of all open windows."""
        return self._bytes

    def _counts(self, window: int) -> _Counts:
        found = self._open.get(window)
        if found is None:
            if self._strict and self._forgotten is not None and window <= self._forgotten:
                raise OperatorError(
                    f"rows of window {window} came after those of much later windows, and its counts were dropped to "
                    "save memory: a key could be counted twice",
                    hint='sort the rows by time, or use partition="fld", which needs no counts',
                )
            found = self._open[window] = self._new(window)
            if len(self._open) > 1 and self._full():
                oldest = min(key for key in self._open if key != window)
                self._bytes -= _size(self._open.pop(oldest))
                self._forgotten = oldest if self._forgotten is None else max(oldest, self._forgotten)
        return found

    def _full(self) -> bool:
        return self.nbytes > MOST_BYTES if self._strict else len(self._open) > MOST_OPEN_WINDOWS

    def _new(self, window: int) -> _Counts:
        v = self.workers
        cardinality: _Sets | _Sketches | None = None
        if self.partitioning.policy in COUNTING_KEYS:
            if self.partitioning.cardinality == "exact":
                table = np.zeros((FIRST_ROOM, 1 + -(-self.choices // 64)), np.uint64)
                cardinality = _Sets(table, np.zeros(v, np.int64))
            else:
                registers = np.zeros((v, REGISTERS), np.uint8)
                sums, zeros = np.full(v, float(REGISTERS)), np.full(v, REGISTERS, np.int64)
                cardinality = _Sketches(registers, sums, zeros, np.zeros(v))
        counts = _Counts(np.zeros(v, np.int64), (self._first + window) % v, np.zeros(4), cardinality)
        self._bytes += _size(counts)
        return counts

    def _assign(self, counts: _Counts, keys: Hashes, out: Workers) -> None:
        policy, balance = self.partitioning.policy, self.partitioning.balance
        loads, known = counts.loads, counts.cardinality
        if isinstance(known, _Sets):
            self._by_sets(known, counts, keys, out)
        elif known is not None:
            kernels.assign_hll(
                _KERNEL[policy], keys, out, self.choices, balance, loads, known.registers, known.sums, known.zeros,
                known.estimates, counts.extremes,
            )  # fmt: skip
        elif policy == "sh":
            counts.turn = kernels.in_turn(counts.turn, self.workers, out, loads)
        elif policy == "pk":
            kernels.fewest_tuples(keys, self.choices, out, loads)
        elif policy == "heavy":
            kernels.by_shared_table(keys, self._heavy.keys, self._heavy.workers, self.workers, out, loads)
        else:
            kernels.first_candidates(keys, self.workers, out, loads)

    def _by_sets(self, known: _Sets, counts: _Counts, keys: Hashes, out: Workers) -> None:
        policy, balance, loads, done = self.partitioning.policy, self.partitioning.balance, counts.loads, 0
        while done < len(keys):
            if policy in ("am", "cam"):
                done, known.used, _ = kernels.assign_whole(
                    policy == "am", keys, done, out, self.choices, loads, known.counts, known.table, known.used
                )
            else:
                done, known.used, _ = kernels.assign_spread(
                    policy == "cm", keys, done, out, self.choices, balance, loads, known.counts, known.table,
                    known.used, counts.extremes,
                )  # fmt: skip
            if done < len(keys):
                self._bytes += known.table.nbytes
                known.table = kernels.grown(known.table)
