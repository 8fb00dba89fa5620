"""When answers leave: the moments of a run in real time, epoch by epoch.

    seconds of the input   0 ───────────────────────────── begin ────────── end
                             as fast as it goes              in real time

All answers of an epoch leave together, when it is published. That is after their rows were written, and it would be
another moment if the epoch ran again, so it cannot be a column of theirs: the output folder has a file `emitted.jsonl`
instead, with a line for each epoch in real time. A run without real time has no such file, and no response times.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from anabranch.types import EpochProgress

EMITTED = "emitted.jsonl"
"""In the output folder: for each epoch in real time, the second of the simulation in which its answers left."""
LOST = 30.0
"""Seconds behind at which there is no hope that answers will be in time."""
STUCK = 300.0
"""Seconds without an epoch at which there is none either."""


class Watch:
    """A listener that keeps what is asked later of each epoch.

    `warm` tuples come before real time, which begins with second `begin`; there are `tuples` in all.
    """

    def __init__(self, warm: int, tuples: int, begin: int) -> None:
        self._warm = warm
        self._tuples = tuples
        self._begin = begin
        self._reached = begin
        """seconds that were delivered"""
        self._lost = False
        self._heard = time.monotonic()
        self.rows = 0
        self.busy: list[float | None] = []
        """of all cores of the machine, when the warm-up and when everything was over"""
        self.warm: list[EpochProgress] = []
        self.paced: list[EpochProgress] = []

    def on_started(self, query: str, run: str) -> None:
        """Nothing to do yet."""

    def on_progress(self, progress: EpochProgress) -> None:
        """Another epoch."""
        self.rows += progress.rows
        self._heard = time.monotonic()
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
        """Everything is answered."""
        return self.rows >= self._tuples

    def hopeless(self) -> bool:
        """Everything is answered, or it will not be in time."""
        return self.done() or self._lost or time.monotonic() - self._heard > STUCK

    @property
    def published(self) -> dict[int, float]:
        """For each epoch in real time, the second of the simulation in which its answers left."""
        return {progress.epoch: self._emitted(progress) for progress in self.paced}

    def _emitted(self, progress: EpochProgress) -> float:
        # The clock starts when the first epoch after the warm-up is put together, at the earliest when the last one of
        # the warm-up ended: taking that makes responses longer than they were, never shorter.
        start = self.warm[-1].started + self.warm[-1].seconds
        return self._begin + (progress.started + progress.seconds - start)


def write_emitted(output: Path, published: Mapping[int, float]) -> None:
    """Keep the moments beside the answers."""
    lines = [json.dumps({"epoch": epoch, "second": round(second, 3)}) for epoch, second in sorted(published.items())]
    (output / EMITTED).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_emitted(output: Path) -> dict[int, float] | None:
    """The moments of a run; None if it was not in real time."""
    if not (output / EMITTED).is_file():
        return None
    lines = (output / EMITTED).read_text(encoding="utf-8").splitlines()
    return {int(each["epoch"]): float(each["second"]) for each in map(json.loads, lines)}


def busy_seconds() -> float | None:
    """What all cores of this machine have worked since it started, whoever made them; None where nobody says."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    except OSError:
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
