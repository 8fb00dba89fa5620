"""Load shedding from epoch to epoch: the drop plan before an epoch, and what was dropped after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from anabranch.io.parquet import Target, write_rows
from anabranch.io.sinks import Published
from anabranch.observe.progress import DropProgress, EpochProgress
from anabranch.operators.numbering import DROPPED, ROWS_NUMBERED, SHED
from anabranch.query.graph import Step
from anabranch.runtime.driver.state import Context, DriverState
from anabranch.runtime.epoch.epoch import Epoch, OperatorResult
from anabranch.runtime.shedding.counters import DropCounts
from anabranch.runtime.shedding.filters import REPORT_SCHEMA, CountWindowDrops, EpochDrops
from anabranch.runtime.shedding.planner import DropPlanner, planner_of
from anabranch.shedding.points import DropPoint
from anabranch.store.records import DropPlan

DROPS = "drops"
"""The folder of the list of dropped windows, beside the late and bad rows of operators."""


@dataclass(frozen=True)
class ShedOutcome:
    """What an epoch dropped."""

    drops: tuple[DropProgress, ...] = ()
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """for each point, the number of windows and of dropped windows since the query first shed there"""
    arrived: float | None = None
    spared: float = 0.0


class SheddingSession:
    """The load shedding of a running query; most queries shed nothing."""

    def __init__(self, context: Context, state: DriverState) -> None:
        self._context = context
        self._state = state
        last = state.last
        decision = None if last is None else context.ledger.decision(last)
        outcome = None if last is None else context.ledger.outcome(last)
        drops = None if decision is None else decision.drops
        # If the watermark had run ahead, units up to it count as decided. After a repair all are decided again.
        self.before = DropPlan() if drops is None or last in state.repaired else drops
        self._counts: Mapping[str, tuple[int, int]] = {} if outcome is None else outcome.shed
        self.planner = planner_of(context.network, context.settings)
        # If the last run shed load, open windows may have lost rows. Those windows must not be delivered now.
        self.planner_for(drops)
        report = context.settings.report
        if report is not None:
            report.open(context.session)

    def plan(self, history: Sequence[EpochProgress]) -> DropPlan | None:
        """The drop plan of the next epoch; None where nothing may be dropped."""
        return None if self.planner is None else self.planner.plan(self._state, history, self.before)

    def settings(self, step: Step, plan: DropPlan | None) -> dict[str, Any]:
        """The drop setting of an operator that numbers rows for count windows; other operators need none."""
        return {} if self.planner is None or plan is None else self.planner.drop_setting(step, plan)

    def planner_for(self, plan: DropPlan | None) -> DropPlanner | None:
        """The planner that knows the points of a drop plan; None if the plan drops nothing."""
        if self.planner is None and plan is not None and plan.points:
            # The plan comes from a run that could shed; this one cannot.
            self.planner = DropPlanner(self._context.network, self._context.settings)
        return self.planner

    def drops(self, plan: DropPlan | None) -> EpochDrops | None:
        """What the plan of an epoch drops; None if nothing."""
        self.before = DropPlan() if plan is None else plan
        planner = self.planner_for(plan)
        if planner is None or not self.before.points:
            return None
        return EpochDrops(planner, self._context.network, self.before)

    def after(self, run: Epoch, results: Sequence[OperatorResult]) -> ShedOutcome:
        """After all operators of an epoch have run: return what was dropped, and publish the list."""
        drops, before = run.drops, self._counts
        if drops is None:
            self._publish(run, REPORT_SCHEMA.empty_table())
            return ShedOutcome(counts=before)
        steps = self._context.network.steps
        watermarks = {
            step.name: (self._state.operators[step.name].watermark, result.watermark)
            for step, result in zip(steps, results, strict=True)
        }
        by_operator = {
            step.name: CountWindowDrops(result.progress, run.publisher.staged(step.node, DROPPED).table())
            for step, result in zip(steps, results, strict=True)
            if step.node.numbers_rows
        }
        count_windows = {
            point.name: [by_operator[name] for name in self._numbering_operators(point)] for point in drops.points
        }
        report, counts = drops.report(watermarks, count_windows, before, run.number)
        self._publish(run, report)
        self._counts = {**before, **counts}
        rows = {
            point.name: _row_counts(count_windows[point.name])
            if point.counts_rows
            else run.census.drop_counts_at(point)
            for point in drops.points
        }
        arrived = sum(run.census.arrived.get(i, float(count)) for i, count in run.census.rows.items())
        spares = self.before.decisions.get("spare", {})
        spared = 0.0
        for point in drops.points:
            came = rows[point.name]
            if point.kind == "source" or point.counts_rows:
                spared += arrived * came.shed / came.rows if came.rows else 0.0
            else:
                spared += arrived * self.before.points[point.name].p * spares.get(point.name, 0.0)
        return ShedOutcome(drops.progress(rows, counts, before), self._counts, arrived, min(spared, arrived))

    def _numbering_operators(self, point: DropPoint) -> list[str]:
        assert self.planner is not None
        return self.planner.numbering_operators(point) if point.counts_rows else []

    def _publish(self, run: Epoch, report: pa.Table) -> None:
        context = self._context
        if report.num_rows:
            # Written straight to the final folder: an epoch that runs again writes the same file again.
            folder = context.checkpoint.side.sub(DROPS, f"epoch={run.number}")
            folder.create()
            write_rows(Target(folder, REPORT_SCHEMA), 0, report.to_batches())
        sink = context.settings.report
        if sink is not None:
            default = context.checkpoint.flow.sub(DROPS, f"epoch={run.number}")
            folder = sink.staging(run.number, default)
            folder.remove()
            folder.create()
            written = write_rows(Target(folder, REPORT_SCHEMA), 0, report.to_batches())
            sink.publish(
                Published(
                    run.number,
                    context.checkpoint.query,
                    folder,
                    tuple(written.files),
                    REPORT_SCHEMA,
                    context.session,
                    written.rows,
                )
            )
            default.remove()


def _row_counts(drops: Sequence[CountWindowDrops]) -> DropCounts:
    """How many rows the operators numbered in this epoch, and how many of them they dropped."""
    return DropCounts(*(sum(one.progress.metrics.get(name, 0) for one in drops) for name in (ROWS_NUMBERED, SHED)))
