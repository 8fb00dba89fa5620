"""Controllers: pure functions from measured history to the settings of the next epoch.

A controller owns some settings of one operator. Before each epoch, `decide` gets the epochs so far and the settings in
force, and returns the settings for the next epoch. It uses no clock, no randomness and no Spark, so a replay decides
the same, and the simulator runs the same code.

| controller | settings | raised | lowered |
|---|---|---|---|
| batch-size | batch | at once, when B breaks the latency bound | when a smaller B would do at a rate `SLACK` higher |
| split-tuning | splitters | at once, when p is too small | when fewer would do at a rate `SLACK` higher |
| split-tuning | window_bytes | by doubling, see `split.window_size` | when the rate falls by `REOPEN` |
| key-placement | partition | to SH, when keys are few | away from SH, when there are too many, see `keys.selection` |
| key-placement | heavy_keys | a new table after every epoch | |
| rebalance | routing | one group per overloaded worker, see `rebalance` | |
| rebalance | workers | with more than `beta` suppliers per consumer | when none is left and the load allows it |

The gap between raising and lowering is the hysteresis: a rate that varies by less than `SLACK` changes nothing.

Load shedding is decided for the whole query rather than for one operator: see `shed`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np

from anabranch.errors import ControllerError
from anabranch.observe.progress import EpochProgress
from anabranch.observe.progress_text import WHY

SLACK = 0.25
"""hysteresis: a setting is lowered only to what a rate higher by this share would need"""
HISTORY = 50
"""epochs that controllers see"""
RECENT_EPOCHS = 8
"""epochs from which costs and rates are measured"""


@runtime_checkable
class Controller(Protocol):
    """Decides some settings of one operator. Any class with these four members is a controller.

        class Halve:
            name = "halve"
            operator = "window-1"
            settings = ("batch",)

            def decide(self, history, current):
                batch = current.get("batch", 1)
                if not history or history[-1].seconds < 5:
                    return {"batch": batch}
                return {"batch": max(1, batch // 2), "why:batch": "the last epoch took 5 s or more"}

    A controller must be a pure function of `history` and `current`. `history` is cut to the last epochs and is empty
    after a restart, so what a controller must remember it returns as a setting of its own, and finds in `current`.
    """

    @property
    def name(self) -> str:
        """The controller's name, for error messages."""
        ...

    @property
    def operator(self) -> str:
        """The name of the operator that it decides about."""
        ...

    @property
    def settings(self) -> Collection[str]:
        """The settings that it owns, what it remembers included. No other controller of the operator may own one."""
        ...

    def decide(self, history: Sequence[EpochProgress], current: Mapping[str, Any]) -> Mapping[str, Any]:
        """The new values of its settings, and `why:<setting>` with a reason for each that changed.

        `history`: the epochs so far, oldest first. `current`: all settings of the operator in force. A setting that is
        left out does not change. Values must be plain JSON, since the checkpoint records them.
        """
        ...


def controllers_for(operator: str, built_in: Iterable[Controller], given: Iterable[Controller]) -> list[Controller]:
    """The controllers of one operator: the user's, and the built-in ones that own none of the user's settings."""
    own = [controller for controller in given if controller.operator == operator]
    taken = {setting for controller in own for setting in controller.settings}
    return [*(each for each in built_in if taken.isdisjoint(each.settings)), *own]


def decide_all(
    controllers: Iterable[Controller], history: Sequence[EpochProgress], current: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of one operator after all its controllers have decided, each from the same `current`.

    Old reasons are removed first: `why:` keys explain this decision only.
    """
    decided = {key: value for key, value in current.items() if not key.startswith(WHY)}
    owner: dict[str, str] = {}
    for controller in controllers:
        for setting in controller.settings:
            if setting in owner:
                raise ControllerError(
                    f"{owner[setting]!r} and {controller.name!r} both own the setting {setting!r}: the one that runs "
                    "last would win",
                    hint="give the operator only one of them",
                )
            owner[setting] = controller.name
        for key, value in controller.decide(history, current).items():
            if key.removeprefix(WHY) not in controller.settings:
                raise ControllerError(
                    f"{controller.name!r} decided {key!r}, a setting that it does not own: another controller could "
                    "overwrite it",
                    hint=f"add it to the controller's `settings`, which are {', '.join(controller.settings)}",
                )
            decided[key] = value
    return decided


def arrival_rate(history: Sequence[EpochProgress]) -> float:
    """Rows per second arriving at the sources: the rate of the last epoch or of the recent ones, whichever is higher.

    Arrivals are the rows read plus the growth of the backlog. Where a source does not know its backlog, an epoch is
    assumed to have read everything that arrived since the previous epoch began.
    """
    recent = history[-RECENT_EPOCHS - 1 :]
    return max(mean_arrival_rate(recent[-2:]), mean_arrival_rate(recent))


def mean_arrival_rate(history: Sequence[EpochProgress]) -> float:
    """Rows per second that arrived at the sources after the first of these epochs."""
    pairs = list(pairwise(history))
    if not pairs:
        return history[-1].input_rate if history else 0.0
    rows, seconds = zip(*(_arrivals(before, now) for before, now in pairs), strict=True)
    return max(0.0, sum(rows) / sum(seconds)) if sum(seconds) > 0 else 0.0


def _arrivals(before: EpochProgress, now: EpochProgress) -> tuple[float, float]:
    """Rows that arrived between two epochs, and in how many seconds."""
    if before.backlog is not None and now.backlog is not None:
        return now.rows + now.backlog - before.backlog, now.interval
    between = now.started - before.started
    return now.rows, between if between > 0 else now.interval


def operator_rate(history: Sequence[EpochProgress], operator: str) -> float:
    """Rows per second arriving at an operator, measured as in `arrival_rate`: its share of what the sources send.

    An operator may read only some of the sources, or only what filters let pass.
    """
    recent, rates = history[-RECENT_EPOCHS - 1 :], []
    for epochs in (recent[-2:], recent):
        later = epochs[1:] or epochs  # a rate over several epochs covers what arrived after the first
        sent = sum(epoch.rows for epoch in later)
        read = sum(measured.rows for epoch in later if (measured := epoch.operator(operator)) is not None)
        rates.append(mean_arrival_rate(epochs) * read / sent if sent else 0.0)
    return max(rates)


def excess_backlog(epoch: EpochProgress, rate: float) -> float:
    """Rows waiting beyond those that one interval brings anyway."""
    return max(0.0, (epoch.backlog or 0) - rate * epoch.interval)


def fit_nonnegative(features: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Least squares without negative coefficients. There are three, so all seven subsets can be tried."""
    best, least = np.zeros(3), np.inf
    for size in (3, 2, 1):
        for columns in combinations(range(3), size):
            found = np.linalg.lstsq(features[:, columns], target, rcond=1e-6)[0]
            residual = float(np.sum((features[:, columns] @ found - target) ** 2))
            if (found >= 0).all() and residual < least * (1 - 1e-9) - 1e-24:
                best, least = np.zeros(3), residual
                best[list(columns)] = found
    return float(best[0]), float(best[1]), float(best[2])
