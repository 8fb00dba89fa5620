"""The drop plan in words: where windows can be dropped, how, what that spares, and what is done now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.control.shed import LEAST_HEADROOM
from anabranch.observe.progress import EpochProgress
from anabranch.query.settings import QoS
from anabranch.runtime.shedding.planner import DropPlanner
from anabranch.shedding.points import DropPoint
from anabranch.shedding.windrop import most
from anabranch.store.records import DropPlan
from anabranch.windows import describe


def explain_drops(
    planner: DropPlanner | None, qos: QoS, plan: DropPlan | None = None, progress: EpochProgress | None = None
) -> list[str]:
    """The lines; `plan` is the drop plan of the last epoch, None before the first."""
    if planner is None:
        return ["nothing is ever dropped: no QoS(max_gap=...) above 0"]
    if planner.halts:
        return [f"nothing is dropped; the query stops with an error when results take longer than {qos.max_latency}"]
    decisions = {} if plan is None else plan.decisions
    lines = [_when(qos), *_now(decisions, progress), "points      earliest first:"]
    lines += [f"  {line}" for point in planner.points for line in _point(planner, point, decisions)]
    ways = [" and ".join(point.name for point in cut) for cut in planner.cuts]
    lines.append(f"ways        {'; or '.join(ways)}: the one that delivers most by the measured costs")
    return lines


def _when(qos: QoS) -> str:
    if qos.drop_share is not None:
        return f"when        always, a share of {qos.drop_share:g}"
    kept = f"then they are kept {LEAST_HEADROOM:.0%} below that"
    return f"when        results would take longer than {qos.max_latency}; {kept}"


def _now(decisions: Mapping[str, Any], progress: EpochProgress | None) -> list[str]:
    load = decisions.get("load")
    lines = []
    if load is not None:
        lines.append(f"load        {load['rate']:,.0f} rows/s come; {load['capacity']:,.0f} could be processed in time")
    if not any(decisions.get("p", {}).values()):
        return [*lines, "now         nothing is dropped"]
    lines.append(f"now         {decisions['cause']}")
    if decisions.get("shut"):
        lines.append(f"shut        {', '.join(decisions['shut'])}: all windows are dropped, whatever their max_gap")
    for drop in progress.drops if progress is not None else ():
        lines.append(f"            {drop.describe()}")
    return lines


def _point(planner: DropPlanner, point: DropPoint, decisions: Mapping[str, Any]) -> list[str]:
    if point.refused is not None:
        return [f"{point.name}: not here, {point.refused}"]
    in_force = "  <- in use" if decisions.get("p", {}).get(point.name) else ""
    size = f"WinDrop({_units(point, point.span.size)}, {_units(point, point.span.slide)})"
    lines = [f"{point.name}: {size}, B = {point.bound}, p up to {most(point.bound):.2f}{in_force}"]
    if point.paper.size > point.span.size:
        lines.append(f"  by the paper's rule, which does not use the slides, {_units(point, point.paper.size)}")
    lines.append(f"  {_spares(point)}")
    spared = decisions.get("spare", {}).get(point.name)
    if spared is not None:
        lines.append(f"  measured: dropping all of it would spare {spared:.0%} of the work with rows")
    keys = planner.keys.get(point.name, ())
    if point.counted:
        lines.append("  rows are counted first; each key has its own coins")
    elif planner.buckets(point) > 1:
        lines.append(f"  coins for {planner.buckets(point)} buckets of {', '.join(keys)}: load stays even")
    else:
        lines.append("  one coin for all rows: load comes and goes by batches")
    return lines


def _spares(point: DropPoint) -> str:
    if point.kind == "results":
        return "spares only what comes after the aggregate"
    share = point.span.spared(point.bound)
    if share <= 0:
        return "windows overlap by more than B: no tuple can be dropped early, only results are spared"
    return f"early drop: {share:.0%} of the tuples per share of windows dropped"


def _units(point: DropPoint, value: int) -> str:
    return f"{value} rows" if point.counted else describe(value)
