"""The batch size: how many successive windows of a key one worker evaluates together.

A larger B makes fewer copies of each row, and delays the first window of a batch until the last is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from anabranch.control.base import RECENT_EPOCHS, SLACK, arrival_rate, excess_backlog, fit_nonnegative
from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.plan.prices import HEADROOM, LARGEST_BATCH, batch_cost, batch_rate, choose_batch
from anabranch.windows import Window
from anabranch.windows.ids import replication


@dataclass(frozen=True)
class BatchCosts:
    """Measured costs, in seconds. A row is what workers receive: a row, or the pane of a key."""

    update: float
    """one row into one window"""
    open_close: float
    """one result"""
    other: float
    """one copy of a row"""


def measured_costs(
    history: Sequence[EpochProgress], operator: str, window: Window
) -> tuple[BatchCosts, OperatorProgress] | None:
    """The costs that best explain the workers' busy seconds, none negative; and the last epoch they were taken from.

    Busy seconds = updates * update + results * open_close + copies * other: least squares over the recent epochs, each
    per copy of a row. Until B has changed, updates cannot be distinguished from copies; the least-norm solution then
    splits the time between them, and the first change of B corrects it.
    """
    features: list[list[float]] = []
    seconds: list[float] = []
    last: OperatorProgress | None = None
    for epoch in history[-RECENT_EPOCHS:]:
        measured = epoch.operator(operator)
        copies = sum(worker.rows for worker in measured.workers) if measured else 0
        if measured is None or copies <= 0 or epoch.replayed:
            continue
        batch = max(1, int(measured.decisions.get("batch", 1)))
        features.append([batch_cost(batch, window, 1.0, 0.0, 0.0), measured.emitted / copies, 1.0])
        busy = sum(max(w.seconds, w.read_seconds + w.merge_seconds + w.query_seconds) for w in measured.workers)
        seconds.append(busy / copies)
        last = measured
    if last is None or max(seconds) <= 0:
        return None
    return BatchCosts(*fit_nonnegative(np.array(features), np.array(seconds))), last


@dataclass(frozen=True)
class BatchSize:
    """Setting `batch`: the smallest B that keeps the latency bound, see `plan.prices.choose_batch`.

    `window` is in panes. Where no B keeps the bound, the closest one is taken, and kept until another is better by
    `SLACK`.
    """

    operator: str
    window: Window
    workers: int
    max_latency: float
    """seconds"""
    period: float = 1.0
    """seconds between two decisions"""
    largest: int = LARGEST_BATCH
    """see `largest_batch`"""
    name: ClassVar[str] = "batch-size"
    settings: ClassVar[tuple[str, ...]] = ("batch",)

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        batch = min(max(1, int(current.get("batch", 1))), self.largest)
        found = measured_costs(history, self.operator, self.window)
        if found is None:
            return {"batch": batch}
        costs, measured = found
        rate = self._rate(history)
        # The fit has the cost of one result; the model needs it per window and row of a window.
        copies = sum(worker.rows for worker in measured.workers)
        in_force = max(1, int(measured.decisions.get("batch", 1)))
        per_row = batch_cost(in_force, self.window, 0.0, 1.0, 0.0)
        unit = (costs.update, costs.open_close * measured.emitted / copies / per_row, costs.other)
        chosen = self._after_hysteresis(batch, rate, unit)
        if chosen == batch:
            return {"batch": batch}
        load = f"{rate:,.0f} rows or panes/s on {self.workers} workers"
        return {"batch": chosen, "why:batch": f"{load}, {sum(unit[::2]) * 1e6:.2f} us each: B {batch} -> {chosen}"}

    def _rate(self, history: Sequence[EpochProgress]) -> float:
        """Rows per second for the workers, before copies, or panes per second where they receive panes.

        It includes working off the backlog at the sources beyond one interval.
        """
        arriving = arrival_rate(history)
        drain = excess_backlog(history[-1], arriving) / max(self.max_latency, self.period)
        for epoch in reversed(history):
            measured = epoch.operator(self.operator)
            if measured is not None and epoch.rows and not epoch.replayed:
                in_force = max(1, int(measured.decisions.get("batch", 1)))
                received = sum(worker.rows for worker in measured.workers) / replication(self.window, in_force)
                return (arriving + drain) * received / epoch.rows
        return 0.0

    def _after_hysteresis(self, batch: int, rate: float, unit: tuple[float, float, float]) -> int:
        wanted = self._choose(rate, unit)
        if self._excess(wanted, rate, unit) * self.period >= self.max_latency:  # no B keeps the bound
            gain = self._excess(batch, rate, unit) - self._excess(wanted, rate, unit)
            return wanted if gain > SLACK * self._excess(batch, rate, unit) else batch
        if wanted >= batch:
            return wanted
        return min(batch, self._choose(rate * (1.0 + SLACK), unit))

    def _choose(self, rate: float, unit: tuple[float, float, float]) -> int:
        update, open_close, other = unit
        return choose_batch(
            self.window,
            rate=rate,
            workers=self.workers,
            update=update,
            open_close=open_close,
            other=other,
            max_latency=self.max_latency,
            period=self.period,
            headroom=HEADROOM,
            largest=self.largest,
        )

    def _excess(self, batch: int, rate: float, unit: tuple[float, float, float]) -> float:
        return batch_rate(batch, self.window, rate, self.workers) - (1.0 - HEADROOM) / batch_cost(
            batch, self.window, *unit
        )


def largest_batch(slide: float, max_latency: float, largest: int = LARGEST_BATCH) -> int:
    """The largest B whose first window waits for the last one at most half the latency bound (seconds).

    The other half is left for the work.
    """
    return min(largest, 1 + int(max_latency / 2 / slide))
