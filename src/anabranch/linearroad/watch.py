"""When answers are published: the times of a run in real time, epoch by epoch.

    seconds of the input   0 ───────────────────────────── begin ────────── end
                             as fast as possible             in real time

All answers of an epoch are published together, after their rows were written; and if the epoch ran again, the time
would be another one. So the time cannot be a column of the answers. Instead, the output folder has a file
`emitted.jsonl` with a line for each epoch in real time. A run without real time has no such file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from anabranch.types import EpochProgress

EMITTED = "emitted.jsonl"
"""File in the output folder: for each epoch in real time, the simulated second in which its answers were published."""
LOST = 30.0
"""A run that is this many seconds behind is given up: its answers are too late."""
STUCK = 300.0
"""A run without an epoch for this many seconds is given up, too."""


class Watch:
    """A listener that keeps the progress of each epoch.

    `warm` tuples come before real time, which begins with second `begin`; there are `tuples` in total.
    """

    def __init__(self, warm: int, tuples: int, begin: int) -> None:
        self._warm = warm
        self._tuples = tuples
        self._begin = begin
        self._reached = begin
        """the second up to which tuples have been delivered"""
        self._lost = False
        self._last_epoch_at = time.monotonic()
        self.rows = 0
        self.busy: list[float | None] = []
        """busy seconds of all cores, at the end of the warm-up and at the end of the run"""
        self.warm: list[EpochProgress] = []
        self.paced: list[EpochProgress] = []

    def on_started(self, query: str, run: str) -> None:
        """Nothing to do yet."""

    def on_progress(self, progress: EpochProgress) -> None:
        """Record an epoch."""
        self.rows += progress.rows
        self._last_epoch_at = time.monotonic()
        if self.rows <= self._warm:
            self.warm.append(progress)
        elif progress.rows:
            self.paced.append(progress)
            self._lost |= self._emitted(progress) - self._reached > LOST
            self._reached = (progress.operators[0].watermark or 0) // 1_000_000 + 1
        if progress.rows and self.rows in (self._warm, self._tuples):
            self.busy.append(busy_seconds())

    def on_terminated(self, query: str, error: str | None) -> None:
        """Nothing more to do."""

    def done(self) -> bool:
        """Whether everything is answered."""
        return self.rows >= self._tuples

    def hopeless(self) -> bool:
        """Whether everything is answered, or will not be answered in time."""
        return self.done() or self._lost or time.monotonic() - self._last_epoch_at > STUCK

    @property
    def published(self) -> dict[int, float]:
        """For each epoch in real time, the simulated second in which its answers were published."""
        return {progress.epoch: self._emitted(progress) for progress in self.paced}

    def _emitted(self, progress: EpochProgress) -> float:
        # The clock starts when Spark plans the first epoch after the warm-up: at the earliest, when the last epoch of
        # the warm-up ended. Using that time makes response times longer than they were, never shorter.
        start = self.warm[-1].started + self.warm[-1].seconds
        return self._begin + (progress.started + progress.seconds - start)


def write_emitted(output: Path, published: Mapping[int, float]) -> None:
    """Write the times beside the answers."""
    lines = [json.dumps({"epoch": epoch, "second": round(second, 3)}) for epoch, second in sorted(published.items())]
    (output / EMITTED).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_emitted(output: Path) -> dict[int, float] | None:
    """The times of a run; None if it was not in real time."""
    if not (output / EMITTED).is_file():
        return None
    lines = (output / EMITTED).read_text(encoding="utf-8").splitlines()
    return {int(each["epoch"]): float(each["second"]) for each in map(json.loads, lines)}


def busy_seconds() -> float | None:
    """Busy seconds of all cores of this machine since it started; None if the system does not report them."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    except OSError:
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
