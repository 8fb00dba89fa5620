"""What a running query does, in words and numbers: `EpochQuery.explain()`.

Three layers, each only as far as it is known: the network as it was written; the settings in force, each with the
reason of its last change; and, once a split has been measured, the cost model of paper 5 with those costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from anabranch.control.base import operator_rate
from anabranch.control.key_placement import HEAVY, PLACING
from anabranch.control.rebalance import MEMORY, ROUTING
from anabranch.control.split_tuning import SEARCH
from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.query.describe import explain_routing
from anabranch.query.graph import Network, Step
from anabranch.query.nodes import CombineNode, JoinNode, ProcessNode
from anabranch.runtime.settings import Settings
from anabranch.runtime.shedding.explain import explain_drops
from anabranch.runtime.shedding.session import Shedding
from anabranch.split.cost import SplitCosts


class Running(Protocol):
    """What is explained; `runtime.runner.EpochRunner` has it."""

    @property
    def network(self) -> Network: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def history(self) -> list[EpochProgress]: ...
    @property
    def shedding(self) -> Shedding: ...


def explain_running(runner: Running, progress: EpochProgress | None) -> str:
    """The text of `EpochQuery.explain()`. `progress` is the last epoch, None before the first."""
    lines = [*_query(runner.settings, progress), "", "network:", *_indented(runner.network.describe())]
    for step in runner.network.steps:
        measured = progress.operator(step.name) if progress is not None else None
        lines += ["", f"{step.name}:", *_indented(_operator(step, runner, measured, progress))]
    shedding = runner.shedding
    if shedding.shedder is not None:
        dropped = explain_drops(shedding.shedder, runner.settings.qos, shedding.before, progress)
        lines += ["", "shedding:", *_indented(dropped)]
    return "\n".join(lines)


def _query(settings: Settings, progress: EpochProgress | None) -> list[str]:
    qos = settings.qos
    bounds = [] if qos.max_latency is None else [f"results within {qos.max_latency}"]
    if qos.disorder is not None:
        order = "in order" if qos.disorder == 0 else f"at most {qos.disorder} out of order"
        bounds.append(f"windows {order}, from epoch to epoch too")
    bound = settings.max_ahead
    idle = "holds the watermark back for ever" if settings.idle is None else f"is left out after {settings.idle:g} s"
    lines = [
        f"trigger     {settings.trigger or 'epoch follows epoch'}",
        f"bounds      {', '.join(bounds) or 'none'}",
        f"state       a snapshot every {settings.snapshot_every} epochs, and the input since",
        f"sources     one that is silent {idle}",
        f"ahead       rows may be {'as far ahead as they like' if bound is None else bound.describe()}",
    ]
    if progress is None:
        return [*lines, "measured    nothing yet: no epoch has ended"]
    rates = f"{progress.rows:,} rows in {progress.seconds:.2f} s, {progress.processed_rate:,.0f} rows/s"
    waits = "" if progress.backlog is None else f", {progress.backlog:,} rows wait"
    return [*lines, f"measured    epoch {progress.epoch}: {rates}{waits}"]


def _operator(
    step: Step, runner: Running, measured: OperatorProgress | None, progress: EpochProgress | None
) -> list[str]:
    node, lines = step.node, []
    if isinstance(node, JoinNode):
        lines += _routing_table(node, measured, runner.settings)
    elif not isinstance(node, CombineNode):
        workers = runner.settings.workers_of(node.groups)
        placed = "group g on worker g modulo the workers"
        lines.append(f"groups      {node.groups} on {workers} workers; {placed}")
    if isinstance(node, (ProcessNode, JoinNode)):
        lines += explain_routing(node.routing, node.inputs)
    if measured is not None:
        lines += [*_settings(step.name, measured.decisions, runner.history), *_figures(measured, progress)]
    for name, sink in step.sinks.items():
        lines.append(f"sink        {name} -> {sink!r}, {sink.guarantee}")
    for name in sorted(step.feeds - set(step.sinks)):
        lines.append(f"sink        {name} -> other operators only")
    if measured is not None and isinstance(node, ProcessNode) and not node.routing.keys:
        lines += _costs(node, measured, runner.history)
    return lines


def _routing_table(node: JoinNode, measured: OperatorProgress | None, settings: Settings) -> list[str]:
    """Which worker has how many groups, how full its buffer was, and what its groups' windows hold."""
    tuning, most = node.tuning, settings.workers_of(node.groups, moving=True)
    moves = f"moved every {tuning.reorganise_every} epochs where a buffer is above {tuning.supplier:.0%}"
    lines = [f"groups      {node.groups} on at most {most} workers; {moves if tuning.rebalance else 'never moved'}"]
    if tuning.slots > 1:
        taken = (
            "each worker's turn comes once in so many epochs" if settings.trigger_seconds else "not without a trigger"
        )
        lines.append(f"slots       n_g = {tuning.slots}: {taken}")
    if measured is None:
        return lines
    for worker in measured.workers:
        lines.append(
            f"worker {worker.worker:<5}{worker.groups} groups, {worker.rows:,} rows in {worker.seconds:.2f} s, buffer "
            f"{worker.occupancy or 0:.0%} full, {worker.state_bytes:,} bytes of windows"
        )
    return lines


def _settings(operator: str, decisions: Mapping[str, Any], history: Sequence[EpochProgress]) -> list[str]:
    lines = []
    for name, value in decisions.items():
        # The memory of controllers is of no use to a reader.
        if name in (SEARCH, HEAVY, PLACING, MEMORY) or name.startswith("why:"):
            continue
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        if name == ROUTING:
            shown = "the worker of each group, as the ledger has it"
        lines.append(f"setting     {name} = {shown}{_why(operator, name, history)}")
    return lines


def _why(operator: str, setting: str, history: Sequence[EpochProgress]) -> str:
    """The reason of the last change; the decisions of an epoch have those of that epoch only."""
    for epoch in reversed(history):
        measured = epoch.operator(operator)
        reason = measured.decisions.get(f"why:{setting}") if measured is not None else None
        if reason is not None:
            return f", since epoch {epoch.epoch}: {reason}"
    return ""


def _figures(measured: OperatorProgress, progress: EpochProgress | None) -> list[str]:
    figures = [f"{measured.rows:,} rows read", f"{measured.emitted:,} emitted"]
    figures += [f"{n:,} {what}" for what, n in (("late", measured.late), ("bad", measured.bad)) if n]
    if measured.workers:
        figures += [f"{measured.state_bytes:,} bytes of state", f"imbalance {measured.imbalance:.2f}"]
    lines = [f"measured    {', '.join(figures)}"]
    if measured.partitions:
        lines.append(f"keys        {measured.partitions[-1].describe()}")
        if table := measured.decisions.get(HEAVY, {}).get("keys"):
            lines.append(f"            a shared table of {len(table):,} heavy keys; the others by hash")
    lines += [f"counted     {name}: {n:,}" for name, n in measured.metrics.items()]
    loads = progress.loads(measured.name) if progress is not None else {}
    if loads:
        lines.append(f"loads       {', '.join(f'{worker}: {load:.0%}' for worker, load in sorted(loads.items()))}")
    return lines


def _costs(node: ProcessNode, measured: OperatorProgress, history: Sequence[EpochProgress]) -> list[str]:
    """Equations (1) to (4) and (7) with the costs of the last epoch, and the p that follows."""
    q, p = node.groups, len(measured.splitters)
    costs = SplitCosts.from_measures(measured.splitters, measured.workers, q)
    if costs is None:
        return []
    lines = ["", "cost of the split, paper 5, measured in this epoch:", *costs.describe(p, q).splitlines()]
    each_takes, rate = costs.splitter(q), operator_rate(history, measured.name)
    if 0 < each_takes < float("inf"):
        needed = costs.splitters(rate, q)
        lines.append(
            f"splitters (3): {rate:,.0f} tuples/s come, one splitter takes {1 / each_takes:,.0f}: p = {needed}, now {p}"
            + ("" if node.routing.moves_windows(each.part for each in node.inputs) else " (the tasks that read)")
        )
    if measured.efficiency is not None:
        lines.append(f"efficiency (7), measured: {measured.efficiency:.0%} of all time that splitting took")
    return lines


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]
