"""Key partitioners as routes of a splitter: the worker of a tuple is the group that it is sent to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.io.blocks import micros_of
from anabranch.split.hashing import hash_keys
from anabranch.split.partitioner import HeavyKeys, Partitioner
from anabranch.split.partitioning import Partitioning
from anabranch.split.splitter import Route
from anabranch.windows.ids import pane_of


@dataclass(frozen=True)
class Stretch:
    """For how long a partitioner counts: windows of `size` from `origin`, in microseconds (or rows)."""

    size: int
    origin: int = 0

    def of(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the window that each time is in."""
        numbers: NDArray[np.int64] = pane_of(times, self.size, self.origin, np.floor_divide)
        return numbers


@dataclass(frozen=True)
class KeyRoute(Route):
    """Sends each tuple to a worker by its key.

    `keys` are hashed here; or `hashed`, a column of hashes that Spark computed, which does not travel on. With
    `stretch` and the column `time`, counts are per window; without, one window is all that the splitter reads.
    """

    partitioning: Partitioning
    keys: tuple[str, ...] = ()
    hashed: str | None = None
    time: str | None = None
    stretch: Stretch | None = None
    heavy: HeavyKeys = field(default_factory=HeavyKeys)
    strict: bool = False
    """an error rather than a key that is split although its window should have it whole"""
    part: int | None = None
    """the splitter; None: not begun"""
    state: dict[int, Partitioner] = field(default_factory=dict, repr=False, compare=False)
    """the partitioner, by the number of workers"""

    def begun(self, part: int) -> Route:
        return replace(self, part=part, state={})

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
            # A row without a time is counted somewhere, and then left out: any window will do.
            stretches = self.stretch.of(times.fill_null(0).to_numpy(zero_copy_only=False))
        return self.state[groups].assign(hashes, stretches), None, travelling
