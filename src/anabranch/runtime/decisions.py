"""Whether the decision for an epoch can be carried out.

This is checked twice: before a decision goes into the ledger, since a bad one would fail at every restart; and when one
is read from it, since another release, or another query with the same operators, may have written it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from anabranch.control.key_placement import HEAVY, PLACING, remembered_windows
from anabranch.control.rebalance import MEMORY, ROUTING, WORKERS, Memory
from anabranch.control.split_tuning import SEARCH, window_search
from anabranch.errors import AnabranchError, ControllerError
from anabranch.keys.partitioner import HeavyKeys
from anabranch.keys.policy import Partitioning
from anabranch.observe.progress_text import WHY
from anabranch.operators.numbering import SHED, WindowDrops
from anabranch.runtime.execution.base import Execution
from anabranch.runtime.execution.stateful import SLOTS
from anabranch.runtime.shedding.planner import DropPlanner
from anabranch.store.ledger import unusable
from anabranch.store.records import DropPlan, EpochDecision, OperatorDecision, TimeLimits


def check_new(epoch: int, fault: str | None) -> None:
    """Refuse a new decision that cannot be carried out. Nothing is recorded."""
    if fault is not None:
        raise ControllerError(
            f"the decision for epoch {epoch} cannot be carried out: {fault}. Nothing was recorded",
            hint="start again from the same checkpoint with other settings (qos=..., workers=...); if none of the "
            "controllers are yours, report this error",
        )


def check_recorded(epoch: int, fault: str | None) -> None:
    """Refuse a decision from the ledger that cannot be carried out. The epoch was not completed."""
    if fault is not None:
        raise unusable(epoch, fault)


def fault_of(
    decision: EpochDecision,
    executions: Mapping[str, Execution],
    sources: int,
    planner_for: Callable[[DropPlan | None], DropPlanner | None],
    own: Collection[str] = (),
) -> str | None:
    """Which part of a decision cannot be carried out, and why; None: all of it can.

    `planner_for` returns the planner for its drops; `own`: settings that the user's controllers own.
    """
    try:
        unknown = [name for name in decision.operators if name not in executions]
        if unknown or len(decision.operators) != len(executions):
            names = ", ".join(decision.operators)
            return f"it is for the operators {names}, but the query has {', '.join(executions)}"
        for name, execution in executions.items():
            fault = _operator_fault(execution, decision.operators[name], own)
            if fault is not None:
                return f"{name}: {fault}"
        unknown_sources = [i for i in decision.idle if not 0 <= i < sources]
        if unknown_sources:
            return f"it has source {unknown_sources[0]} as idle, but the query has {sources} sources"
        if decision.limits is not None and not _limits_fit(decision.limits, sources):
            return f"its time limits {decision.limits.to_json()!r} do not fit the {sources} sources of the query"
        for name, seconds in decision.allowances.items():
            if seconds is not None and not float(seconds) > 0:
                return f"{name}: an allowance of {seconds!r} seconds is not above 0"
        planner = planner_for(decision.drops)
        return None if planner is None or decision.drops is None else planner.fault(decision.drops)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return f"it cannot be read ({type(error).__name__}: {error})"


def usable(settings: Mapping[str, Any], own: Collection[str] = ()) -> dict[str, Any]:
    """The settings of a published epoch that controllers can continue from; they decide the others as at the start."""
    return {name: value for name, value in settings.items() if _setting_fault(name, value, own) is None}


def _operator_fault(execution: Execution, decision: OperatorDecision, own: Collection[str]) -> str | None:
    routing = decision.routing
    if len(routing) != execution.groups:
        return f"its routing has {len(routing)} groups, but the operator has {execution.groups}"
    if not all(_whole(worker) and worker >= 0 for worker in routing):
        return f"the routing {list(routing)} has entries that are not worker numbers"
    faults = (_setting_fault(name, value, own) for name, value in decision.settings.items())
    return next((fault for fault in faults if fault is not None), None)


def _setting_fault(name: str, value: Any, own: Collection[str]) -> str | None:
    if name.startswith(WHY) or (name in own and name not in _CHECKS):
        return None
    if name not in _CHECKS:
        return f"it has a setting {name!r}, which this release does not know"
    try:
        return f"{name} = {value!r} cannot be used" if _CHECKS[name](value) is False else None
    except AnabranchError as error:
        return f"{name} = {value!r}: {error.message}"
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return f"{name} = {value!r} ({type(error).__name__}: {error})"


def _limits_fit(limits: TimeLimits, sources: int) -> bool:
    times = [each is None or _whole(each) for each in limits.latest]
    return len(times) == sources and all(times) and isinstance(limits.auto, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return _whole(value) and value >= 1


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "batch": _count,
    "splitters": _count,
    "window_bytes": _count,
    SEARCH: window_search,
    "partition": Partitioning.of_label,
    HEAVY: lambda value: HeavyKeys.from_json(value or {}),
    PLACING: remembered_windows,
    ROUTING: lambda value: all(_whole(worker) and worker >= 0 for worker in value),
    WORKERS: _count,
    MEMORY: Memory.of,
    SLOTS: _count,
    SHED: WindowDrops.from_json,
}
"""For each setting, a function that raises or returns False if a value cannot be used."""
