"""How long a worker may take in an epoch: what it has not joined by then counts as left in its buffer (paper 2)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from anabranch.observe.progress import EpochProgress

ABOVE = 0.25
"""how much longer than most others a worker may take where there is no interval to keep"""
LEAST_LEFT = 0.1
"""share of an interval that is left to the workers whatever else takes time"""


def share_in_time(began: float, ended: float, allowed: float | None) -> float:
    """Which share of its work a group had done when the worker's time was over; seconds since the worker began.

    Its rows are taken to be joined evenly over the time that it took.
    """
    if allowed is None or ended <= allowed:
        return 1.0
    return max(0.0, allowed - began) / (ended - began) if ended > began else 0.0


def allowance(
    history: Sequence[EpochProgress], operator: str, trigger_seconds: float | None, slots: int, turns: int = 1
) -> float | None:
    """Seconds that each worker of an operator has for its part of the next epoch; None before anything was measured.

    What the trigger's interval leaves after all that is not the workers' own (reading, splitting, other operators),
    shared by those that have to take turns on the same cores. Where epoch follows epoch there is no interval to keep,
    and a worker should take about as long as most others do.

    `slots`: tasks that the cluster runs at once; `turns`: the workers' turn comes in one of so many epochs (n_g). When
    workers began and ended is not asked: they are on several hosts, whose clocks differ.
    """
    last = history[-1] if history else None
    measured = last.operator(operator) if last is not None else None
    if last is None or measured is None:
        return None
    ran = [worker for worker in measured.workers if worker.seconds > 0]
    busy = sum(worker.seconds for worker in ran)
    if not busy:
        return None
    as_others = (1.0 + ABOVE) * statistics.median_low(worker.seconds for worker in ran)
    if trigger_seconds is None:
        return as_others
    at_once = min(slots, len(ran))
    # As long as the longest, or all of them one after the other on the slots; no longer than the operator took.
    span = max(busy / at_once, *(worker.seconds for worker in ran))
    span = min(span, measured.seconds) if measured.seconds > 0 else span
    # An epoch that comes late has more rows, and as much more time for them.
    left = max(LEAST_LEFT * trigger_seconds, last.interval - max(0.0, last.seconds - span))
    in_time = left / max(1.0, len(ran) / turns / at_once)
    # If it was late, whoever held the others up must show, even if larger epochs would catch up by and by.
    return min(in_time, as_others) if last.seconds > trigger_seconds else in_time
