"""Whether the decision for an epoch can be carried out.

Asked twice: before a decision goes into the ledger, so that none is recorded that would fail at every restart; and when
one is read there, which another version of the library may have written, or another query with the same operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from anabranch.control.key_placement import HEAVY, PLACING, seen_keys
from anabranch.control.rebalance import MEMORY, ROUTING, WORKERS, Memory
from anabranch.control.split_tuning import SEARCH, window_search
from anabranch.errors import AnabranchError, ControllerError
from anabranch.keys.partitioner import HeavyKeys
from anabranch.keys.policy import Partitioning
from anabranch.observe.progress_text import WHY
from anabranch.operators.numbering import SHED
from anabranch.runtime.execution.base import Execution
from anabranch.runtime.execution.stateful import SLOTS
from anabranch.runtime.shedding.planner import DropPlanner
from anabranch.store.ledger import unusable
from anabranch.store.records import DropPlan, EpochDecision, OperatorDecision, TimeLimits


def check_new(epoch: int, fault: str | None) -> None:
    """Refuse decisions that were just made and cannot be carried out: nothing is recorded."""
    if fault is not None:
        raise ControllerError(
            f"what was decided for epoch {epoch} cannot be carried out: {fault}. Nothing was recorded",
            hint="start it with other settings (qos=..., workers=...) from the same checkpoint, and report this error",
        )


def check_recorded(epoch: int, fault: str | None) -> None:
    """Refuse a decision of the ledger that cannot be carried out; the epoch was not completed."""
    if fault is not None:
        raise unusable(epoch, fault)


def fault_of(
    decision: EpochDecision,
    executions: Mapping[str, Execution],
    sources: int,
    planner_for: Callable[[DropPlan | None], DropPlanner | None],
    own: Collection[str] = (),
) -> str | None:
    """What of a decision cannot be carried out, and why; None: all of it can.

    `planner_for` gives the planner of its drops; `own`: settings that the user's controllers own.
    """
    try:
        unknown = [name for name in decision.operators if name not in executions]
        if unknown or len(decision.operators) != len(executions):
            names = ", ".join(decision.operators)
            return f"it is for the operators {names}, and the query has {', '.join(executions)}"
        for name, execution in executions.items():
            fault = _operator_fault(execution, decision.operators[name], own)
            if fault is not None:
                return f"{name}: {fault}"
        strangers = [i for i in decision.idle if not 0 <= i < sources]
        if strangers:
            return f"source {strangers[0]} is idle, and the query has {sources}"
        if decision.limits is not None and not _limits_fit(decision.limits, sources):
            return f"the limits {decision.limits.to_json()!r} of times, and the query has {sources} sources"
        for name, seconds in decision.allowances.items():
            if seconds is not None and not float(seconds) > 0:
                return f"{name}: an allowance of {seconds!r} seconds"
        planner = planner_for(decision.drops)
        return None if planner is None or decision.drops is None else planner.fault(decision.drops)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return f"it cannot be read ({type(error).__name__}: {error})"


def usable(settings: Mapping[str, Any], own: Collection[str] = ()) -> dict[str, Any]:
    """The settings of a published epoch that controllers can go on with; they decide the others as at the start."""
    return {name: value for name, value in settings.items() if _setting_fault(name, value, own) is None}


def _operator_fault(execution: Execution, decision: OperatorDecision, own: Collection[str]) -> str | None:
    routing = decision.routing
    if len(routing) != execution.groups:
        return f"a routing of {len(routing)} groups, and it has {execution.groups}"
    if not all(_whole(worker) and worker >= 0 for worker in routing):
        return f"the routing {list(routing)}"
    faults = (_setting_fault(name, value, own) for name, value in decision.settings.items())
    return next((fault for fault in faults if fault is not None), None)


def _setting_fault(name: str, value: Any, own: Collection[str]) -> str | None:
    if name.startswith(WHY) or (name in own and name not in _CHECKS):
        return None
    if name not in _CHECKS:
        return f"a setting {name!r}, which this release does not know"
    try:
        return f"{name} = {value!r}" if _CHECKS[name](value) is False else None
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


def _shed(value: Any) -> bool:
    """What an operator that counts rows is told."""
    return 0 <= value["p"] <= 1 and (value["bound"] is None or value["bound"] >= 0) and _whole(value["seed"])


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "batch": _count,
    "splitters": _count,
    "window_bytes": _count,
    SEARCH: window_search,
    "partition": Partitioning.of_label,
    HEAVY: lambda value: HeavyKeys.from_json(value or {}),
    PLACING: seen_keys,
    ROUTING: lambda value: all(_whole(worker) and worker >= 0 for worker in value),
    WORKERS: _count,
    MEMORY: Memory.of,
    SLOTS: _count,
    SHED: _shed,
}
"""By setting: a function that raises or returns False where a value cannot be used."""
