"""Whether the decisions for an epoch can be carried out.

Asked twice: before a plan goes into the ledger, so that none is recorded that would fail at every restart; and when a
plan is read there, which another version of the library may have written, or another query with the same operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.control.key_placement import HEAVY, PLACING, seen_keys
from anabranch.control.rebalance import MEMORY, ROUTING, WORKERS, Memory
from anabranch.control.split_tuning import SEARCH, window_search
from anabranch.errors import AnabranchError, CheckpointError, ControllerError
from anabranch.keys.partitioner import HeavyKeys
from anabranch.keys.policy import Partitioning
from anabranch.observe.progress_text import WHY
from anabranch.operators.numbering import SHED
from anabranch.runtime.ahead import Limits
from anabranch.runtime.execution.base import SLOTS, Recipe
from anabranch.runtime.shedding.planner import Shedder


def check_new(epoch: int, fault: str | None) -> None:
    """Refuse decisions that were just made and cannot be carried out: nothing is recorded."""
    if fault is not None:
        raise ControllerError(
            f"what was decided for epoch {epoch} cannot be carried out: {fault}. Nothing was recorded",
            hint="start it with other settings (qos=..., workers=...) from the same checkpoint, and report this error",
        )


def check_recorded(epoch: int, fault: str | None) -> None:
    """Refuse decisions of the ledger that cannot be carried out; the epoch was not completed."""
    if fault is not None:
        raise CheckpointError(
            f"the ledger has a decision for epoch {epoch} that cannot be carried out: {fault}",
            hint="start the query as it was when it was decided, with the same release; or void the decision with "
            "`anabranch repair CHECKPOINT --void-decision`: the epoch is then decided anew",
        )


def fault_of(
    plan: Mapping[str, Any],
    recipes: Mapping[str, Recipe],
    sources: int,
    shedder_for: Callable[[Mapping[str, Any]], Shedder | None],
) -> str | None:
    """What of a plan cannot be carried out, and why; None: all of it can. `shedder_for` makes the shedder of a plan."""
    try:
        unknown = [name for name in plan["operators"] if name not in recipes]
        if unknown or len(plan["operators"]) != len(recipes):
            return f"it is for the operators {', '.join(plan['operators'])}, and the query has {', '.join(recipes)}"
        for name, recipe in recipes.items():
            fault = _operator_fault(recipe, plan["operators"][name])
            if fault is not None:
                return f"{name}: {fault}"
        strangers = [i for i in plan["idle"] if not 0 <= i < sources]
        if strangers:
            return f"source {strangers[0]} is idle, and the query has {sources}"
        if not _limits_fit(Limits.from_json(plan.get("limits"), sources), sources):
            return f"the limits {plan['limits']!r} of times, and the query has {sources} sources"
        for name, seconds in plan["allowances"].items():
            if seconds is not None and not float(seconds) > 0:
                return f"{name}: an allowance of {seconds!r} seconds"
        shedder = shedder_for(plan)
        return None if shedder is None else shedder.fault(plan.get("shedding", {}))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return f"it cannot be read ({type(error).__name__}: {error})"


def usable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a published epoch that controllers can go on with; they decide the others as at the start."""
    return {name: value for name, value in settings.items() if _setting_fault(name, value) is None}


def _operator_fault(recipe: Recipe, entry: Mapping[str, Any]) -> str | None:
    routing: Sequence[Any] = entry["routing"]
    if len(routing) != recipe.groups:
        return f"a routing of {len(routing)} groups, and it has {recipe.groups}"
    if not all(_whole(worker) and worker >= 0 for worker in routing):
        return f"the routing {list(routing)}"
    faults = (_setting_fault(name, value) for name, value in entry["decisions"].items())
    return next((fault for fault in faults if fault is not None), None)


def _setting_fault(name: str, value: Any) -> str | None:
    if name.startswith(WHY):
        return None
    if name not in _CHECKS:
        return f"a setting {name!r}, which this release does not know"
    try:
        return f"{name} = {value!r}" if _CHECKS[name](value) is False else None
    except AnabranchError as error:
        return f"{name} = {value!r}: {error.message}"
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return f"{name} = {value!r} ({type(error).__name__}: {error})"


def _limits_fit(limits: Limits, sources: int) -> bool:
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
