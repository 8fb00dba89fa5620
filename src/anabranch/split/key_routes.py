"""Routes by key. With a key partitioner as the route, a tuple's group is its worker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.io.blocks import micros_of
from anabranch.keys.census import KeyCounter
from anabranch.keys.hashing import hash_keys
from anabranch.keys.partitioner import HeavyKeys, Partitioner
from anabranch.keys.policy import Partitioning
from anabranch.split.gates import Census
from anabranch.split.routes import OMIT, Route
from anabranch.windows.ids import Stretch

_MIX = np.int64(0x2545F4914F6CDD1D)  # odd, and without a pattern


@dataclass(frozen=True)
class HashRoute:
    """A route function: a key goes to the group of its hash; without `nulls`, rows with a null key are left out."""

    keys: tuple[str, ...]
    nulls: bool = True

    def __call__(self, block: pa.RecordBatch, groups: int) -> NDArray[np.int64]:
        columns = [block.column(key) for key in self.keys]
        to = hash_keys(columns) % groups
        if not self.nulls:
            for column in columns:
                if column.null_count:
                    to[column.is_null().to_numpy(zero_copy_only=False)] = OMIT
        return to


@dataclass(frozen=True)
class KeyRoute(Route):
    """Sends each tuple to a worker by its key.

    Either `keys` are hashed here, or `hashed` is a column of hashes that Spark computed, which does not travel on. With
    `stretch` and the column `time`, counts are per window; without, everything the splitter reads is one window.
    """

    partitioning: Partitioning
    keys: tuple[str, ...] = ()
    hashed: str | None = None
    time: str | None = None
    stretch: Stretch | None = None
    heavy: HeavyKeys = field(default_factory=HeavyKeys)
    strict: bool = False
    """raise an error rather than split a key that must stay whole in its window"""
    counting: bool = False
    """count which keys go where: needed if no later stage can count them"""
    part: int | None = None
    """the splitter's number; None: not begun"""
    counter: KeyCounter = field(default_factory=KeyCounter, repr=False, compare=False)
    state: dict[int, Partitioner] = field(default_factory=dict, repr=False, compare=False)
    """the partitioner for each number of workers"""

    def begun(self, part: int) -> Route:
        return replace(self, part=part, state={}, counter=KeyCounter())

    def __call__(self, window: pa.RecordBatch, groups: int) -> tuple[NDArray[Any], None, pa.RecordBatch]:
        if groups not in self.state:
            self.state[groups] = Partitioner(
                self.partitioning, groups, first=self.part or 0, heavy=self.heavy, strict=self.strict
            )
        if self.hashed is not None:
            hashes = window.column(self.hashed).to_numpy()
            travelling = window.drop_columns([self.hashed])
        else:
            hashes, travelling = hash_keys([window.column(key) for key in self.keys]), window
        stretches = None
        if self.stretch is not None:
            assert self.time is not None
            times = micros_of(window.column(self.time))
            # A row without a time is counted in any window, and then left out.
            stretches = self.stretch.of(times.fill_null(0).to_numpy(zero_copy_only=False))
        workers = self.state[groups].assign(hashes, stretches)
        if self.counting:
            self._count(stretches, workers, hashes)
        return workers, None, travelling

    def _count(self, stretches: NDArray[np.int64] | None, workers: NDArray[Any], hashes: NDArray[np.int64]) -> None:
        windows = np.zeros(len(hashes), np.int64) if stretches is None else stretches
        places = windows * (1 + int(workers.max(initial=0))) + workers
        # Hash, worker and window in one number, which numpy sorts fastest: a rare collision does little harm.
        mixed = hashes + places * _MIX
        order = np.argsort(mixed)
        begins = np.flatnonzero(np.append(True, np.diff(mixed[order]) != 0))
        tuples = np.diff(np.append(begins, len(order)))
        some = order[begins]
        self.counter.add(windows[some], workers[some].astype(np.int64), hashes[some], tuples)

    def ended(self, census: Census) -> None:
        census.keys.pieces += self.counter.pieces
