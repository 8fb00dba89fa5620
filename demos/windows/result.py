"""The result of a run: everything that the tables, the page and the picture show."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from demos.windows.live import Replay
from demos.windows.queries import LENGTHS, SLIDE_S, Grid, grid, seconds_of
from demos.windows.race import Race
from demos.windows.traffic import BEGIN, SEGMENT_KM, Reports, Traffic


@dataclass(frozen=True)
class SlowSegment:
    """A segment, with its mean speed over each window length at the end."""

    segment: int
    speeds: tuple[float, ...]
    reports: int

    @property
    def km(self) -> float:
        return self.segment * SEGMENT_KM


@dataclass(frozen=True)
class DemoResult:
    """The numbers of one run.

    `agree` is true if all windows are equal: those of Spark's `window()` on its slice, and those of the stream.
    """

    traffic: Traffic = field(repr=False)
    reports: Reports = field(repr=False)
    stream: Replay = field(repr=False)
    race: Race = field(repr=False)
    slice_agrees: bool
    stream_agrees: bool
    explanation: str = field(repr=False)
    seconds: float
    """Duration of the run, up to the last result."""
    page: Path
    picture: Path | None
    """None without matplotlib."""

    _grids: dict[str, Grid] = field(default_factory=dict, repr=False, compare=False)

    @property
    def agree(self) -> bool:
        return self.slice_agrees and self.stream_agrees

    @property
    def rows(self) -> int:
        return self.reports.rows

    def grid(self, length: str) -> Grid:
        """Mean speeds by segment and time, for the pictures."""
        if length not in self._grids:
            self._grids[length] = grid(self.race.windows, length, self.traffic.minutes)
        return self._grids[length]

    @property
    def restless(self) -> int:
        """The segment whose speed changes most from minute to minute, where the window length matters most."""
        speeds = self.grid(LENGTHS[0])
        known = np.isfinite(speeds).mean(axis=1) > 0.9
        spread = np.nanstd(np.nan_to_num(np.diff(speeds[:, :: 60 // SLIDE_S], axis=1)), axis=1)
        return int(np.argmax(np.where(known, spread, -1.0)))

    def slowest(self, count: int = 6) -> list[SlowSegment]:
        """The slowest segments at the end, by the shortest window."""
        end = (int(BEGIN.timestamp()) + self.traffic.minutes * 60) * 1_000_000
        last = self.race.windows.filter(pc.equal(self.race.windows["end"], end)).to_pylist()
        found = {(row["seg"], row["length_s"]): row for row in last}
        lengths = [seconds_of(length) for length in LENGTHS]
        here = [row for row in last if row["length_s"] == lengths[0]]
        here.sort(key=lambda row: (row["speed"], row["seg"]))
        return [
            SlowSegment(row["seg"], tuple(found[row["seg"], length]["speed"] for length in lengths), row["reports"])
            for row in here[:count]
        ]
