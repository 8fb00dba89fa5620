"""The epoch loop: what the driver does with a micro-batch.

    decide ──▶ ledger: decision N ──▶ each operator's job ──▶ ledger: N is published now ──▶ publish
                                                           remove old files ◀── ledger: N is done ◀──┘

Everything that can change a result is decided and written down before the epoch runs. If it runs again after a crash,
the decision is read and not made again, the state is as it was after epoch N-1, and the sinks know what they already
have. So a second run gives the same results.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from anabranch.control.allowance import allowance
from anabranch.control.base import HISTORY, controllers_for, decide_all
from anabranch.control.key_placement import PLACEMENT
from anabranch.control.rebalance import ROUTING
from anabranch.errors import CheckpointError, InvalidArgumentError
from anabranch.io.sinks.base import SinkPlace
from anabranch.observe.progress import EpochProgress
from anabranch.operators.numbering import SHED
from anabranch.query.graph import Network
from anabranch.query.triggers import AVAILABLE_NOW
from anabranch.runtime.arrivals import Arrivals
from anabranch.runtime.decisions import check_new, check_recorded, fault_of, usable
from anabranch.runtime.driver.ahead import decided_limits, within_types
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.driver.state import Context, DriverState
from anabranch.runtime.epoch.epoch import Epoch, OperatorResult
from anabranch.runtime.epoch.sources import SourceRows
from anabranch.runtime.execution.base import Execution
from anabranch.runtime.execution.choose import execution_of
from anabranch.runtime.execution.stateful import SLOTS
from anabranch.runtime.shedding.filters import EpochDrops
from anabranch.runtime.shedding_session import SheddingSession, ShedOutcome
from anabranch.store.checkpoint import Checkpoint
from anabranch.store.checkpoint_lock import CheckpointLock
from anabranch.store.epoch_store import EpochStore
from anabranch.store.live import cleanup
from anabranch.store.records import EpochDecision, EpochOutcome, OperatorDecision, OperatorOutcome, TimeLimits

KEPT_EPOCHS = 100
"""How many ledger entries are kept even if no restore needs them, as a record of the decisions."""
FORGET_EVERY = 5
"""How many epochs lie between two cleanups of the store."""


class EpochRunner:
    """Runs one epoch after the other, for `foreachBatch`."""

    def __init__(
        self,
        network: Network,
        settings: Settings,
        checkpoint: Checkpoint,
        session: SparkSession,
        lock: CheckpointLock,
    ) -> None:
        self._lock = lock
        stores = {step.name: EpochStore(checkpoint.state, checkpoint.query, step.name) for step in network.steps}
        self.executions: Mapping[str, Execution] = {step.name: execution_of(step, settings) for step in network.steps}
        _check_controllers(settings, self.executions)
        run = uuid.uuid4().hex
        self.context = Context(network, settings, checkpoint, session, checkpoint.ledger(), stores, run)
        self._rows = SourceRows(network.sources)
        for step in network.steps:
            stores[step.name].create()
            for sink in step.sinks.values():
                sink.open(session)
        checkpoint.flow.create()
        checkpoint.side.create()
        self.state = DriverState.of(network, self.context.ledger)
        self.history: list[EpochProgress] = []
        self._unneeded: dict[str, tuple[int, dict[int, int]]] = {}
        """for each operator, the blocks and snapshots that no restore needed at the last cleanup"""
        self.arrivals = Arrivals(settings.trigger_seconds)
        self.shedding = SheddingSession(self.context, self.state)
        self.backlog: Callable[[], int | None] = lambda: None
        """rows waiting at the sources that report them"""

    @property
    def network(self) -> Network:
        return self.context.network

    @property
    def settings(self) -> Settings:
        return self.context.settings

    @property
    def frame(self) -> DataFrame:
        """The stream of all sources."""
        return self._rows.frame

    def run(self, batch: DataFrame, epoch: int) -> EpochProgress | None:
        """Run an epoch. Returns None if it was already done, but Spark had not recorded that."""
        context, last = self.context, self.state.last
        if last is not None and epoch == last:
            return None
        if epoch != (0 if last is None else last + 1):
            raise CheckpointError(
                f"Spark starts with epoch {epoch}, but the last epoch in the ledger is {last}: offsets and state do "
                "not belong together, and rows would be lost or counted twice",
                hint="run `anabranch repair CHECKPOINT`, which can go back to the last complete epoch; or restore the "
                "whole folder from one copy",
            )
        started, clock = time.time(), time.perf_counter()
        # Spark runs a stream in a copy of the session, so this does not touch the user's. Adaptive planning after every
        # exchange takes longer than the work of a small epoch, and makes the number of tasks depend on sizes.
        batch.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
        # A task whose output was lost runs again and gives each worker the same rows (`spark.order`). But the seconds
        # in its report differ, so Spark's checksums differ too, and Spark would end the job.
        batch.sparkSession.conf.set("spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch", "false")
        recorded = context.ledger.decision(epoch)
        decision = self._decide() if recorded is None else recorded
        sources = len(context.network.sources)
        own = context.settings.own_settings
        fault = fault_of(decision, self.executions, sources, self.shedding.planner_for, own)
        if recorded is None:
            check_new(epoch, fault)
            context.ledger.write_decision(epoch, decision)
        else:
            check_recorded(epoch, fault)
        drops = self.shedding.drops(decision.drops)
        limits = decision.limits or TimeLimits((None,) * sources)
        run = self._epoch(batch, epoch, decision, limits, drops)
        try:
            results = run.run()
            if limits.auto and (own_clock := run.own_clock()):
                # Nothing has been published yet, so the epoch can run again.
                run.close()
                run.side.remove()
                self.state.own_clock |= own_clock
                run = self._epoch(batch, epoch, decision, limits.without(own_clock), drops)
                results = run.run()
            self._lock.check()
            context.ledger.write_publishing(epoch)
            shed = self.shedding.after(run, results)
            results = run.publish(results)
        finally:
            run.close()
        self._lock.check()
        self._done(run, results, shed)
        self._forget(epoch)
        progress = EpochProgress(
            query=context.checkpoint.query,
            run=context.run,
            epoch=epoch,
            started=started,
            seconds=time.perf_counter() - clock,
            trigger_seconds=context.settings.trigger_seconds,
            rows=sum(run.census.rows.values()),
            event_latency=self._event_latency(),
            replayed=recorded is not None,
            restored=sum(worker.rebuilt for result in results for worker in result.progress.workers),
            operators=tuple(result.progress for result in results),
            drops=shed.drops,
            latency=self._latency(started),
            arrived=shed.arrived,
            spared=shed.spared,
            backlog=self.backlog(),
        )
        self.history = [*self.history, progress][-HISTORY:]
        return progress

    def _epoch(
        self, batch: DataFrame, epoch: int, decision: EpochDecision, limits: TimeLimits, drops: EpochDrops | None
    ) -> Epoch:
        network = self.context.network
        rows = self._rows.of(batch, network, within_types(limits, network), drops)
        return Epoch(self.context, self.executions, self.state, epoch, decision, rows, drops)

    def close(self, *, finished: bool) -> None:
        """Clean up after the query has ended. `finished`: it has processed everything, so live state is not needed."""
        if finished and self.settings.trigger == AVAILABLE_NOW:
            cleanup.remove(self.settings.live)
        self._lock.release()

    def _decide(self) -> EpochDecision:
        """Make the decision for the next epoch."""
        settings, state = self.context.settings, self.state
        drops = self.shedding.plan(self.history)
        operators: dict[str, OperatorDecision] = {}
        allowances: dict[str, float | None] = {}
        for name, execution in self.executions.items():
            decided = self._settings_of(execution)
            fixed = [group % settings.workers_of(execution.groups) for group in range(execution.groups)]
            of_drops = self.shedding.settings(execution.step, drops)
            operators[name] = OperatorDecision(
                tuple(decided.get(ROUTING, fixed)), {**decided, **execution.fixed, **of_drops}
            )
            turns = execution.fixed.get(SLOTS, 1)
            allowances[name] = allowance(self.history, name, settings.trigger_seconds, settings.slots, turns)
        now = round(time.time() * 1e6)
        return EpochDecision(
            operators,
            token=uuid.uuid4().hex,
            idle=tuple(state.idle(settings.idle)),
            limits=decided_limits(settings.max_ahead, now, state.latest, state.own_clock),
            sinks=self._places(),
            allowances=allowances,
            drops=drops,
        )

    def _settings_of(self, execution: Execution) -> dict[str, Any]:
        """What an operator's controllers decide."""
        name, state = execution.step.name, self.state.operators[execution.step.name]
        controllers = controllers_for(
            name, execution.controllers(state.last_key_counts(name)), self.settings.controllers
        )
        before = usable(state.settings, self.settings.own_settings)
        current = {key: value for key, value in {**execution.fixed, **before}.items() if key != SHED}
        # An earlier run may have had a key policy. If no controller owns its settings, this run has none.
        owned = {setting for controller in controllers for setting in controller.settings}
        current = {key: value for key, value in current.items() if key not in PLACEMENT or key in owned}
        return decide_all(controllers, self.history, current)

    def _places(self) -> dict[str, SinkPlace]:
        """Where the sinks are that may have results of the epoch."""
        return {f"{step.name}.{name}": sink.place for step in self.network.steps for name, sink in step.sinks.items()}

    def _done(self, run: Epoch, results: Sequence[OperatorResult], shed: ShedOutcome) -> None:
        """After an epoch was published: update the driver's state and write it to the ledger."""
        state, epoch = self.state, run.number
        for i, latest in run.census.latest.items():
            known = [t for t in (state.latest[i], latest) if t is not None]
            state.latest[i] = max(known, default=None)
        for i, rows in run.census.rows.items():
            if rows:
                state.last_row_at[i] = time.monotonic()
        operators: dict[str, OperatorOutcome] = {}
        for step, result in zip(self.context.network.steps, results, strict=True):
            execution, operator = self.executions[step.name], state.operators[step.name]
            operator.watermark = result.watermark
            operator.active |= set(result.active)
            operator.snapshots |= result.snapshots
            ran = set(result.active) - result.waiting.keys()
            operator.wait(epoch, ran, result.waiting, result.watermark)
            if execution.logged:
                # Groups that wait have not joined their rows yet, so they may still need older partners.
                delivered = operator.delivered
                operator.forget_log(epoch, result.latest, None if delivered is None else execution.horizon(delivered))
            operator.settings = run.decision.operators[step.name].settings
            operator.remember_key_counts(epoch, result.progress)
            operators[step.name] = operator.record(result.block_groups)
        outcome = EpochOutcome(tuple(state.latest), operators, frozenset(state.own_clock), shed.counts)
        self.context.ledger.write_outcome(epoch, outcome)
        state.last = epoch
        state.tokens[epoch] = run.decision.token
        state.forget_tokens()

    def _forget(self, epoch: int) -> None:
        """Remove blocks, snapshots and ledger entries that no restore needed at the last cleanup.

        Those that became unneeded since then stay: after a repair, the query may start again a few epochs earlier.
        """
        if epoch % FORGET_EVERY != FORGET_EVERY - 1:
            return
        needed = epoch
        for name, state in self.state.operators.items():
            if not state.active:
                continue
            through, snapshots = self._unneeded.get(name, (-1, {}))
            logged = self.executions[name].logged
            unneeded = (state.since or 0) - 1 if logged else min(state.snapshots.get(g, -1) for g in state.active)
            self._unneeded[name] = unneeded, dict(state.snapshots)
            # Remove up to twice as many files as come in between cleanups, so that no epoch waits long for a backlog.
            some = -(-len(state.active) // self.settings.snapshot_every)
            most = 2 * FORGET_EVERY * (self.settings.most_workers + some)
            self.context.stores[name].forget(through, snapshots, most)
            needed = min(needed, through + 1)
        self.context.ledger.forget(min(needed, epoch - KEPT_EPOCHS))

    def _latency(self, started: float) -> float | None:
        """Seconds since the oldest row of the epoch arrived; None in the first epoch, where that is unknown."""
        if not self.history:
            return None
        return time.time() - self.arrivals.oldest(self.history[-1].started, started)

    def _event_latency(self) -> float | None:
        """Seconds that event time is behind the clock; None for data from another time, such as a replay's."""
        known = [latest for latest in self.state.latest if latest is not None]
        if not known:
            return None
        behind = time.time() - max(known) / 1e6
        return behind if abs(behind) < 86_400 else None


def _check_controllers(settings: Settings, executions: Mapping[str, Execution]) -> None:
    """Refuse a user's controller for a setting that the query fixes: its decisions would be ignored."""
    for controller in settings.controllers:
        fixed = sorted(set(controller.settings) & set(executions[controller.operator].fixed))
        if fixed:
            raise InvalidArgumentError(
                f"the controller {controller.name!r} owns {', '.join(fixed)} of {controller.operator}, which the query "
                "fixes: its decisions would be ignored",
                hint="remove the setting from the query (using(..., batch=...), splitters=...), or the controller",
            )
