"""How long a worker may take in an epoch: rows not joined by then count as left in its buffer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from anabranch.observe.progress import EpochProgress

ABOVE_MEDIAN = 0.25
"""how much longer than the median a worker may take where there is no interval to keep"""
LEAST_LEFT = 0.1
"""share of an interval that workers always get, however long everything else takes"""


def share_in_time(began: float, ended: float, allowed: float | None) -> float:
    """The share of its work that a group had done when the worker's time ran out. Times are seconds since its start.

    Rows are assumed to be joined at a constant pace.
    """
    if allowed is None or ended <= allowed:
        return 1.0
    return max(0.0, allowed - began) / (ended - began) if ended > began else 0.0


def allowance(
    history: Sequence[EpochProgress], operator: str, trigger_seconds: float | None, slots: int, turns: int = 1
) -> float | None:
    """Seconds that each worker of an operator has for its part of the next epoch; None before anything was measured.

    It is what the trigger's interval leaves after everything else (reading, splitting, other operators), divided among
    the workers that share the same cores. Where epochs follow each other without an interval, a worker should take
    about as long as the median.

    `slots`: tasks that the cluster runs at once; `turns`: each worker runs in one of this many epochs (n_g). The
    workers' start and end times are not used: they are on several hosts, whose clocks differ.
    """
    last = history[-1] if history else None
    measured = last.operator(operator) if last is not None else None
    if last is None or measured is None:
        return None
    ran = [worker for worker in measured.workers if worker.seconds > 0]
    busy = sum(worker.seconds for worker in ran)
    if not busy:
        return None
    near_median = (1.0 + ABOVE_MEDIAN) * statistics.median_low(worker.seconds for worker in ran)
    if trigger_seconds is None:
        return near_median
    at_once = min(slots, len(ran))
    # The longest worker, or all of them in sequence on the slots; no longer than the operator took.
    span = max(busy / at_once, *(worker.seconds for worker in ran))
    span = min(span, measured.seconds) if measured.seconds > 0 else span
    # A late epoch has more rows, and correspondingly more time for them.
    left = max(LEAST_LEFT * trigger_seconds, last.interval - max(0.0, last.seconds - span))
    in_time = left / max(1.0, len(ran) / turns / at_once)
    # If the epoch was late, the workers that delayed the others must show, even if larger epochs would catch up.
    return min(in_time, near_median) if last.seconds > trigger_seconds else in_time
