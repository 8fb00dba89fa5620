"""Shedding from epoch to epoch: what the runner asks before an epoch, and what it tells after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from anabranch.io.parquet import Target, write_rows
from anabranch.io.sinks import Published
from anabranch.observe.progress import DropProgress, EpochProgress
from anabranch.operators.numbering import COUNTED, DROPPED, SHED
from anabranch.query.graph import Step
from anabranch.query.nodes import PositionsNode
from anabranch.runtime.driver_state import Context, Standing
from anabranch.runtime.epoch import Epoch, Outcome
from anabranch.runtime.shedding.counters import Seen
from anabranch.runtime.shedding.filters import REPORT_SCHEMA, CountedWindows, EpochDrops
from anabranch.runtime.shedding.planner import Shedder, shedder_of
from anabranch.shedding.points import DropPoint

DROPS = "drops"
"""The folder beside the late and bad rows of operators."""


@dataclass(frozen=True)
class ShedOutcome:
    """What an epoch dropped."""

    drops: tuple[DropProgress, ...] = ()
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """windows and dropped ones of each point, since the query first shed there"""
    arrived: float | None = None
    spared: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {"shed": {name: list(each) for name, each in self.counts.items()}} if self.counts else {}


class Shedding:
    """The shedding of a query: none at all, for most."""

    def __init__(self, context: Context, standing: Standing) -> None:
        self._context = context
        self._standing = standing
        last = standing.last
        plan = None if last is None else context.ledger.plan(last)
        done = None if last is None else context.ledger.done(last)
        # Units beyond a watermark that ran away count as decided: after a repair all are decided anew.
        set_back = last in standing.repaired
        self.before: dict[str, Any] = {} if set_back else (plan or {}).get("shedding", {})
        self._counts: Mapping[str, Sequence[int]] = (done or {}).get("shed", {})
        self.shedder = shedder_of(context.network, context.settings)
        # Where the last run did shed, rows of windows that are still open are gone, and these must not leave now.
        self.shedder_for(plan or {})
        report = context.settings.report
        if report is not None:
            report.open(context.session)

    def plan(self, history: Sequence[EpochProgress]) -> dict[str, Any]:
        """The drop plan of the next epoch, for the ledger."""
        if self.shedder is None:
            return {}
        return {"shedding": self.shedder.plan(self._standing, history, self.before)}

    def decisions(self, step: Step, plan: Mapping[str, Any]) -> dict[str, Any]:
        """What an operator itself must know of a drop plan: one that counts rows for count windows."""
        return {} if self.shedder is None else self.shedder.counted(step, plan["shedding"])

    def shedder_for(self, plan: Mapping[str, Any]) -> Shedder | None:
        """Who can tell what the plan of an epoch leaves out; None if it leaves out nothing."""
        if self.shedder is None and plan.get("shedding", {}).get("points"):
            # Of a run that did shed.
            self.shedder = Shedder(self._context.network, self._context.settings)
        return self.shedder

    def drops(self, plan: Mapping[str, Any]) -> EpochDrops | None:
        """What the plan of an epoch leaves out; None if nothing."""
        self.before = plan.get("shedding", {})
        shedder = self.shedder_for(plan)
        if shedder is None or not self.before.get("points"):
            return None
        return EpochDrops(shedder, self._context.network, self.before)

    def after(self, run: Epoch, outcomes: Sequence[Outcome]) -> ShedOutcome:
        """All operators of an epoch have run: tell what was dropped, and keep the list of it."""
        drops, before = run.drops, self._counts
        if drops is None:
            self._publish(run, REPORT_SCHEMA.empty_table())
            return ShedOutcome(counts=before)
        steps = self._context.network.steps
        marks = {
            step.name: (self._standing.operators[step.name].watermark, outcome.watermark)
            for step, outcome in zip(steps, outcomes, strict=True)
        }
        told_by = {
            step.name: CountedWindows(outcome.progress, run.staged(step, DROPPED).table())
            for step, outcome in zip(steps, outcomes, strict=True)
            if isinstance(step.node, PositionsNode)
        }
        counted = {point.name: [told_by[name] for name in self._counting(point)] for point in drops.points}
        report, counts = drops.report(marks, counted, before, run.epoch)
        self._publish(run, report)
        self._counts = {**before, **counts}
        seen = {
            point.name: _counted(counted[point.name]) if point.counted else run.seen_at(point) for point in drops.points
        }
        arrived = sum(run.arrived.get(i, float(count)) for i, count in run.source_rows.items())
        spares = self.before.get("decisions", {}).get("spare", {})
        spared = 0.0
        for point in drops.points:
            came = seen[point.name]
            if point.kind == "source" or point.counted:
                spared += arrived * came.shed / came.rows if came.rows else 0.0
            else:
                spared += arrived * self.before["points"][point.name]["p"] * spares.get(point.name, 0.0)
        told = drops.progress(seen, counts, before)
        return ShedOutcome(told, self._counts, arrived, min(spared, arrived))

    def _counting(self, point: DropPoint) -> list[str]:
        assert self.shedder is not None
        return self.shedder.counting(point) if point.counted else []

    def _publish(self, run: Epoch, report: pa.Table) -> None:
        context = self._context
        if report.num_rows:
            # Straight to where it stays: an epoch that runs again writes the same file again.
            folder = context.checkpoint.side.sub(DROPS, f"epoch={run.epoch}")
            folder.create()
            write_rows(Target(folder, REPORT_SCHEMA), 0, report.to_batches())
        sink = context.settings.report
        if sink is not None:
            default = context.checkpoint.flow.sub(DROPS, f"epoch={run.epoch}")
            folder = sink.staging(run.epoch, default)
            folder.remove()
            folder.create()
            written = write_rows(Target(folder, REPORT_SCHEMA), 0, report.to_batches())
            sink.publish(
                Published(
                    run.epoch,
                    context.checkpoint.query,
                    folder,
                    tuple(written.files),
                    REPORT_SCHEMA,
                    context.session,
                    written.rows,
                )
            )
            default.remove()


def _counted(told: Sequence[CountedWindows]) -> Seen:
    """What operators that count rows themselves have dropped, of the rows that got a position in this epoch."""
    return Seen(*(sum(each.progress.metrics.get(name, 0) for each in told) for name in (COUNTED, SHED)))
