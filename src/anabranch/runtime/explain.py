"""What a running query does, in words and numbers: `EpochQuery.explain()`.

It has three parts, each as far as it is known: the network as it was written; the current settings, each with the
reason for its last change; and, once a split has been measured, the cost model of splitting with the measured costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from anabranch.control.key_placement import HEAVY, PLACING
from anabranch.control.rebalance import MEMORY, ROUTING
from anabranch.control.split_tuning import SEARCH
from anabranch.observe.progress import EpochProgress, OperatorProgress
from anabranch.query.graph import Network, Step
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.execution.base import Execution
from anabranch.runtime.shedding.explain import explain_drops
from anabranch.runtime.shedding_session import SheddingSession


class Running(Protocol):
    """The parts of an `EpochRunner` that are explained."""

    @property
    def executions(self) -> Mapping[str, Execution]: ...
    @property
    def network(self) -> Network: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def history(self) -> list[EpochProgress]: ...
    @property
    def shedding(self) -> SheddingSession: ...


def explain_running(runner: Running, progress: EpochProgress | None) -> str:
    """The text of `EpochQuery.explain()`. `progress` is the last epoch, None before the first."""
    lines = [*_query(runner.settings, progress), "", "network:", *_indented(runner.network.describe())]
    for step in runner.network.steps:
        measured = progress.operator(step.name) if progress is not None else None
        lines += ["", f"{step.name}:", *_indented(_operator(step, runner, measured, progress))]
    shedding = runner.shedding
    if shedding.planner is not None:
        dropped = explain_drops(shedding.planner, runner.settings.qos, shedding.before, progress)
        lines += ["", "shedding:", *_indented(dropped)]
    return "\n".join(lines)


def _query(settings: Settings, progress: EpochProgress | None) -> list[str]:
    qos = settings.qos
    bounds = [] if qos.max_latency is None else [f"results within {qos.max_latency}"]
    if qos.disorder is not None:
        order = "in order" if qos.disorder == 0 else f"at most {qos.disorder} out of order"
        bounds.append(f"windows {order}, from epoch to epoch too")
    bound = settings.max_ahead
    idle = (
        "holds the watermark back indefinitely"
        if settings.idle is None
        else f"stops holding the watermark back after {settings.idle:g} s"
    )
    lines = [
        f"trigger     {settings.trigger or 'none: each epoch starts when the last one ends'}",
        f"bounds      {', '.join(bounds) or 'none'}",
        f"state       a snapshot every {settings.snapshot_every} epochs, plus the input since then",
        f"sources     an idle source {idle}",
        f"ahead       rows may be {'any time ahead of the clock' if bound is None else bound.describe()}",
    ]
    if progress is None:
        return [*lines, "measured    nothing yet: no epoch has ended"]
    rates = f"{progress.rows:,} rows in {progress.seconds:.2f} s, {progress.processed_rate:,.0f} rows/s"
    waits = "" if progress.backlog is None else f", {progress.backlog:,} rows wait"
    return [*lines, f"measured    epoch {progress.epoch}: {rates}{waits}"]


def _operator(
    step: Step, runner: Running, measured: OperatorProgress | None, progress: EpochProgress | None
) -> list[str]:
    execution = runner.executions[step.name]
    lines = execution.explain(measured)
    if measured is not None:
        lines += [*_settings(step.name, measured.decisions, runner.history), *_figures(measured, progress)]
    for name, sink in step.sinks.items():
        lines.append(f"sink        {name} -> {sink!r}, {sink.guarantee}")
    for name in sorted(step.feeds - set(step.sinks)):
        lines.append(f"sink        {name} -> other operators only")
    if measured is not None:
        lines += execution.explain_costs(measured, runner.history)
    return lines


def _settings(operator: str, decisions: Mapping[str, Any], history: Sequence[EpochProgress]) -> list[str]:
    lines = []
    for name, value in decisions.items():
        # What controllers remember is of no use to a reader.
        if name in (SEARCH, HEAVY, PLACING, MEMORY) or name.startswith("why:"):
            continue
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        if name == ROUTING:
            shown = "the worker of each group, recorded in the ledger"
        lines.append(f"setting     {name} = {shown}{_why(operator, name, history)}")
    return lines


def _why(operator: str, setting: str, history: Sequence[EpochProgress]) -> str:
    """The reason for the last change, from the epoch in which it was made."""
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
    lines += [f"metric      {name}: {n:,}" for name, n in measured.metrics.items()]
    loads = progress.loads(measured.name) if progress is not None else {}
    if loads:
        lines.append(f"loads       {', '.join(f'{worker}: {load:.0%}' for worker, load in sorted(loads.items()))}")
    return lines


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]
