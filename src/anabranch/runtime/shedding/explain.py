"""The drop plan in words: where windows can be dropped, how, what that saves, and what is dropped now."""

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
        return ["nothing is ever dropped: QoS(max_gap=...) is not set, or 0"]
    if planner.halts:
        return [f"nothing is dropped; the query stops with an error when results take longer than {qos.max_latency}"]
    decisions = {} if plan is None else plan.decisions
    lines = [_when(qos), *_now(decisions, progress), "points      earliest first:"]
    lines += [f"  {line}" for point in planner.points for line in _point(planner, point, decisions)]
    ways = [" and ".join(point.name for point in cut) for cut in planner.cuts]
    lines.append(f"ways        {'; or '.join(ways)}: whichever delivers most by the measured costs")
    return lines


def _when(qos: QoS) -> str:
    if qos.drop_share is not None:
        return f"when        always, a share of {qos.drop_share:g}"
    return f"when        results would take longer than {qos.max_latency}; the aim is then {LEAST_HEADROOM:.0%} less"


def _now(decisions: Mapping[str, Any], progress: EpochProgress | None) -> list[str]:
    load = decisions.get("load")
    lines = []
    if load is not None:
        lines.append(f"load        {load['rate']:,.0f} rows/s arrive; {load['capacity']:,.0f} can be processed in time")
    if not any(decisions.get("p", {}).values()):
        return [*lines, "now         nothing is dropped"]
    lines.append(f"now         {decisions['cause']}")
    if decisions.get("shut"):
        lines.append(f"shut        {', '.join(decisions['shut'])}: all windows are dropped, regardless of max_gap")
    for drop in progress.drops if progress is not None else ():
        lines.append(f"            {drop.describe()}")
    return lines


def _point(planner: DropPlanner, point: DropPoint, decisions: Mapping[str, Any]) -> list[str]:
    if point.refused is not None:
        return [f"{point.name}: not here, {point.refused}"]
    in_force = "  <- in use" if decisions.get("p", {}).get(point.name) else ""
    size = f"WinDrop({_units(point, point.span.size)}, {_units(point, point.span.slide)})"
    lines = [f"{point.name}: {size}, B = {point.bound}, p up to {most(point.bound):.2f}{in_force}"]
    if point.span_without_slides.size > point.span.size:
        lines.append(f"  without using the slides, the size would be {_units(point, point.span_without_slides.size)}")
    lines.append(f"  {_spares(point)}")
    spared = decisions.get("spare", {}).get(point.name)
    if spared is not None:
        lines.append(f"  measured: dropping everything here would save {spared:.0%} of the work with rows")
    keys = planner.keys.get(point.name, ())
    if point.counts_rows:
        lines.append("  rows are counted first; each key is decided separately")
    elif planner.buckets(point) > 1:
        lines.append(
            f"  decided for each of {planner.buckets(point)} buckets of {', '.join(keys)}: the load stays even"
        )
    else:
        lines.append("  decided for all rows at once: load rises and falls with whole batches")
    return lines


def _spares(point: DropPoint) -> str:
    if point.kind == "results":
        return "saves only the work after the aggregate"
    share = point.span.spared(point.bound)
    if share <= 0:
        return "windows overlap by more than B: no tuple can be dropped early, only results are saved"
    return f"early drop: dropping a share of the windows drops {share:.0%} of that share of the tuples"


def _units(point: DropPoint, value: int) -> str:
    return f"{value} rows" if point.counts_rows else describe(value)
