"""Epoch after epoch: rows arrive, the controllers decide, the cluster works, and progress is recorded.

Rows arrive in ticks of `TICK` seconds, in numbers drawn from a Poisson process with the rate of that moment. An epoch
takes all waiting rows (or at most `max_rows`, the oldest first). The next begins with the trigger, or at once if the
epoch took longer. Time begins at 0, and event time is arrival time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from anabranch.control.base import Controller, decide_all
from anabranch.control.simulate.cluster import Cluster, Work
from anabranch.observe.progress import EpochProgress

TICK = 0.05
"""seconds"""

Arrivals = Callable[[float], float]
"""the rate, in rows per second, at a time in seconds"""


def constant(rate: float) -> Arrivals:
    """A constant rate."""
    return lambda _: rate


def step(before: float, after: float, at: float) -> Arrivals:
    """One rate until a time, another from then on."""
    return lambda t: before if t < at else after


@dataclass(frozen=True)
class Simulation:
    """The result: the progress of every epoch, and the settings after the last decision."""

    history: tuple[EpochProgress, ...]
    settings: Mapping[str, Any]

    def values(self, setting: str) -> list[Any]:
        """A setting's value in each epoch."""
        return [epoch.operators[0].decisions.get(setting) for epoch in self.history]

    def changes(self, setting: str) -> int:
        """How often it changed."""
        values = self.values(setting)
        return sum(a != b for a, b in pairwise(values))


def simulate(
    work: Work,
    controllers: Sequence[Controller],
    arrivals: Arrivals,
    cluster: Cluster,
    *,
    epochs: int,
    trigger_seconds: float = 1.0,
    settings: Mapping[str, Any] | None = None,
    max_rows: int | None = None,
    seed: int = 0,
) -> Simulation:
    """Run one operator under its controllers for a number of epochs.

    Give `max_rows` where the cluster may be overloaded: without it each epoch takes all rows that arrived during the
    previous one, and epochs get longer and longer.
    """
    rng = np.random.default_rng(seed)
    queue = _Queue(arrivals, rng)
    now, current = trigger_seconds, dict(settings or {})
    history: list[EpochProgress] = []
    for number in range(epochs):
        current = decide_all(controllers, history, current)
        queue.advance(now)
        rows, oldest, newest = queue.take(max_rows)
        operator = work.epoch(rows, newest - oldest, current, cluster, rng)
        seconds = cluster.overhead + operator.seconds
        queue.advance(now + seconds)
        history.append(
            EpochProgress(
                query="simulated",
                run=f"seed-{seed}",
                epoch=number,
                started=now,
                seconds=seconds,
                trigger_seconds=trigger_seconds,
                rows=rows,
                backlog=queue.waiting,
                event_latency=now + seconds - newest if rows else None,
                operators=(operator,),
            )
        )
        now += max(trigger_seconds, seconds)
    return Simulation(tuple(history), decide_all(controllers, history, current))


class _Queue:
    """Waiting rows, by the tick in which they arrived."""

    def __init__(self, arrivals: Arrivals, rng: np.random.Generator) -> None:
        self._arrivals = arrivals
        # Its own random stream: the duration of the work must not change what arrives.
        self._rng = rng.spawn(1)[0]
        self._ticks = 0
        self._rows: deque[tuple[float, int]] = deque()
        self.waiting = 0

    def advance(self, until: float) -> None:
        while (self._ticks + 1) * TICK <= until + 1e-9:
            arrived = int(self._rng.poisson(self._arrivals(self._ticks * TICK) * TICK))
            self._ticks += 1
            self._rows.append((self._ticks * TICK, arrived))
            self.waiting += arrived

    def take(self, most: int | None) -> tuple[int, float, float]:
        """Take all waiting rows, or the oldest `most`: (rows, start of the first tick, end of the last)."""
        taken, first, last = 0, self._ticks * TICK, self._ticks * TICK
        if self._rows:
            first = self._rows[0][0] - TICK
        while self._rows and (most is None or taken < most):
            last, rows = self._rows.popleft()
            kept = 0 if most is None else max(0, taken + rows - most)
            if kept:
                self._rows.appendleft((last, kept))
            taken += rows - kept
        self.waiting -= taken
        return taken, first, last
