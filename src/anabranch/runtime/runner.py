"""The epoch loop: what the driver does with a micro-batch.

    decide ──▶ ledger: plan N ──▶ each operator's job ──▶ ledger: N is published now ──▶ publish
                                                     forget what is old ◀── ledger: N is done ◀──┘

Whatever can change a result is decided before the epoch runs and written down. If it runs again after a crash, the plan
is read and not made; state is as it was after N-1; the sinks know what they have. So a second run gives what the first
would have.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from anabranch.control.allowance import allowance
from anabranch.control.base import HISTORY, decide_all
from anabranch.control.key_placement import PLACEMENT, KeyPlacement
from anabranch.control.rebalance import ROUTING
from anabranch.errors import CheckpointError
from anabranch.observe.progress import EpochProgress
from anabranch.operators.numbering import SHED
from anabranch.query.graph import Network
from anabranch.query.triggers import AVAILABLE_NOW
from anabranch.runtime.ahead import Limits
from anabranch.runtime.arrivals import Arrivals
from anabranch.runtime.decisions import check_new, check_recorded, fault_of, usable
from anabranch.runtime.driver_state import Context, Standing
from anabranch.runtime.epoch import Epoch, Outcome
from anabranch.runtime.execution.base import SLOTS, recipe_of
from anabranch.runtime.settings import Settings
from anabranch.runtime.shedding.filters import EpochDrops
from anabranch.runtime.shedding.session import Shedding, ShedOutcome
from anabranch.runtime.sources import SourceRows
from anabranch.store.checkpoint import Checkpoint
from anabranch.store.checkpoint_lock import CheckpointLock
from anabranch.store.epoch_store import EpochStore
from anabranch.store.ledger import MARKED
from anabranch.store.live import cleanup

KEPT_EPOCHS = 100
"""Ledger entries that are kept beyond those that a restore needs: a record of what was decided."""
FORGET_EVERY = 5
"""Epochs between two cleanings of the store."""


class EpochRunner:
    """Runs one epoch after the other; given to `foreachBatch`."""

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
        recipes = {step.name: recipe_of(step, settings) for step in network.steps}
        run = uuid.uuid4().hex
        self.context = Context(network, settings, checkpoint, session, checkpoint.ledger(), stores, recipes, run)
        self._rows = SourceRows(network.sources)
        for step in network.steps:
            stores[step.name].create()
            for sink in step.sinks.values():
                sink.open(session)
        checkpoint.flow.create()
        checkpoint.side.create()
        self.standing = Standing.of(network, self.context.ledger)
        self.history: list[EpochProgress] = []
        self._unneeded: dict[str, tuple[int, dict[int, int]]] = {}
        """of each operator, as of the last cleaning: blocks and snapshots that no restore needed"""
        self.arrivals = Arrivals(settings.trigger_seconds)
        self.shedding = Shedding(self.context, self.standing)

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
        """Run an epoch; None if it was done already, and only Spark does not know."""
        context, last = self.context, self.standing.last
        if last is not None and epoch == last:
            return None
        if epoch != (0 if last is None else last + 1):
            raise CheckpointError(
                f"Spark begins with epoch {epoch}, but the ledger's last is {last}: offsets and state do not "
                "belong together, and rows would be lost or counted twice",
                hint="look at it with `anabranch repair CHECKPOINT`, which can go back to the last complete epoch; or "
                "restore the whole folder from one copy",
            )
        started, clock = time.time(), time.perf_counter()
        # Spark runs a stream in a session of its own, a copy: this does not touch the user's. Planning anew after every
        # exchange takes longer than a small epoch's work, and it would let the number of tasks depend on sizes.
        batch.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
        # A task whose output was lost runs again, and gives each worker the same rows (`spark.order`). But what it
        # tells of its own seconds differs, and Spark would end the job: by its checksums the output is another one.
        batch.sparkSession.conf.set("spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch", "false")
        recorded = context.ledger.plan(epoch)
        # A plan is made once: whoever finds its token in a live state knows by which plan the epoch was run.
        plan = {**self._decide(), "token": uuid.uuid4().hex} if recorded is None else recorded
        fault = fault_of(plan, context.recipes, len(context.network.sources), self.shedding.shedder_for)
        if recorded is None:
            check_new(epoch, fault)
            context.ledger.write_plan(epoch, plan)
        else:
            check_recorded(epoch, fault)
        drops = self.shedding.drops(plan)
        limits = Limits.from_json(plan.get("limits"), len(context.network.sources))
        run = self._epoch(batch, epoch, plan, limits, drops)
        try:
            outcomes = run.operators()
            if limits.auto and (own_clock := run.own_clock()):
                # Nothing was published yet, and an epoch may always run again.
                run.close()
                run.remove_side()
                self.standing.own_clock |= own_clock
                run = self._epoch(batch, epoch, plan, limits.without(own_clock), drops)
                outcomes = run.operators()
            self._lock.check()
            context.ledger.write_publishing(epoch)
            shed = self.shedding.after(run, outcomes)
            outcomes = run.publish(outcomes)
        finally:
            run.close()
        self._lock.check()
        self._done(epoch, run, outcomes, shed)
        self._forget(epoch)
        progress = EpochProgress(
            query=context.checkpoint.query,
            run=context.run,
            epoch=epoch,
            started=started,
            seconds=time.perf_counter() - clock,
            trigger_seconds=context.settings.trigger_seconds,
            rows=sum(run.source_rows.values()),
            event_latency=self._event_latency(),
            replayed=recorded is not None,
            restored=sum(worker.rebuilt for outcome in outcomes for worker in outcome.progress.workers),
            operators=tuple(outcome.progress for outcome in outcomes),
            drops=shed.drops,
            latency=self._latency(started),
            arrived=shed.arrived,
            spared=shed.spared,
        )
        self.history = [*self.history, progress][-HISTORY:]
        return progress

    def _epoch(
        self, batch: DataFrame, epoch: int, plan: dict[str, Any], limits: Limits, drops: EpochDrops | None
    ) -> Epoch:
        network = self.context.network
        rows = self._rows.of(batch, network, limits.over(network), drops)
        return Epoch(self.context, self.standing, epoch, plan, rows, drops)

    def close(self, *, finished: bool) -> None:
        """The query has ended. `finished`: by itself, with nothing left to do, so nobody needs its live state."""
        if finished and self.settings.trigger == AVAILABLE_NOW:
            cleanup.remove(self.settings.live)
        self._lock.release()

    def _decide(self) -> dict[str, Any]:
        settings = self.context.settings
        shedding = self.shedding.plan(self.history)
        operators: dict[str, Any] = {}
        allowances: dict[str, float | None] = {}
        for name, recipe in self.context.recipes.items():
            state = self.standing.operators[name]
            controllers = recipe.controllers(settings, state.remembered(name))
            before = usable(state.decisions)
            current = {key: value for key, value in {**recipe.fixed, **before}.items() if key != SHED}
            if not any(isinstance(each, KeyPlacement) for each in controllers):
                # Of a run that had a policy; this one leaves keys alone.
                current = {key: value for key, value in current.items() if key not in PLACEMENT}
            decisions = decide_all(controllers, self.history, current)
            fixed = [group % settings.workers_of(recipe.groups) for group in range(recipe.groups)]
            operators[name] = {
                "routing": decisions.get(ROUTING, fixed),
                "decisions": {**decisions, **recipe.fixed, **self.shedding.decisions(recipe.step, shedding)},
            }
            turns = recipe.fixed.get(SLOTS, 1)
            allowances[name] = allowance(self.history, name, settings.trigger_seconds, settings.slots, turns)
        return {
            "operators": operators,
            "idle": self.standing.idle(settings.idle),
            "limits": self._limits().as_json(),
            "sinks": self._places(),
            "allowances": allowances,
            MARKED: True,
            **shedding,
        }

    def _places(self) -> dict[str, Any]:
        """Who may have results of an epoch that has a plan."""
        return {f"{step.name}.{name}": sink.place for step in self.network.steps for name, sink in step.sinks.items()}

    def _limits(self) -> Limits:
        standing, now = self.standing, round(time.time() * 1e6)
        return Limits.decided(self.settings.max_ahead, now, standing.latest, standing.own_clock)

    def _done(self, epoch: int, run: Epoch, outcomes: Sequence[Outcome], shed: ShedOutcome) -> None:
        standing = self.standing
        for i, latest in run.latest.items():
            known = [t for t in (standing.latest[i], latest) if t is not None]
            standing.latest[i] = max(known, default=None)
        for i, rows in run.source_rows.items():
            if rows:
                standing.heard[i] = time.monotonic()
        operators: dict[str, Any] = {}
        for step, outcome in zip(self.context.network.steps, outcomes, strict=True):
            state = standing.operators[step.name]
            state.watermark = outcome.watermark
            state.active |= outcome.active
            state.snapshots |= outcome.snapshots
            state.wait(epoch, outcome.active - outcome.waiting.keys(), outcome.waiting, outcome.watermark)
            horizon = self.context.recipes[step.name].horizon
            if horizon is not None:
                # Groups that wait have not joined their rows yet: these may need partners that are past by now.
                reached = None if state.delivered is None else horizon(state.delivered)
                state.forget_log(epoch, outcome.latest, reached)
            state.decisions = run.plan["operators"][step.name]["decisions"]
            state.remember(epoch, outcome.progress)
            operators[step.name] = {**state.as_json(), "block_groups": sorted(outcome.block_groups)}
        clocks = {"own_clock": sorted(standing.own_clock)} if standing.own_clock else {}
        done = {"latest": standing.latest, "operators": operators, **clocks, **shed.as_json()}
        self.context.ledger.write_done(epoch, done)
        standing.last = epoch
        standing.tokens[epoch] = run.plan.get("token", "")
        standing.forget_tokens()

    def _forget(self, epoch: int) -> None:
        """Remove blocks, snapshots and ledger entries that no restore needed at the last cleaning.

        Not those that none needs now: after a repair the query may begin again a few epochs earlier.
        """
        if epoch % FORGET_EVERY != FORGET_EVERY - 1:
            return
        needed = epoch
        for name, state in self.standing.operators.items():
            if not state.active:
                continue
            through, snapshots = self._unneeded.get(name, (-1, {}))
            logged = self.context.recipes[name].horizon is not None
            unneeded = (state.since or 0) - 1 if logged else min(state.snapshots.get(g, -1) for g in state.active)
            self._unneeded[name] = unneeded, dict(state.snapshots)
            # Twice as many as come in until the next time: what piled up goes bit by bit, and no epoch waits long.
            some = -(-len(state.active) // self.settings.snapshot_every)
            most = 2 * FORGET_EVERY * (self.settings.most_workers + some)
            self.context.stores[name].forget(through, snapshots, most)
            needed = min(needed, through + 1)
        self.context.ledger.forget(min(needed, epoch - KEPT_EPOCHS))

    def _latency(self, started: float) -> float | None:
        """Seconds that the oldest row of an epoch which ends now has taken; None where it may have come before."""
        if not self.history:
            return None
        return time.time() - self.arrivals.oldest(self.history[-1].started, started)

    def _event_latency(self) -> float | None:
        """Seconds behind the clock; None for data that is not from now, such as a replay's."""
        known = [latest for latest in self.standing.latest if latest is not None]
        if not known:
            return None
        behind = time.time() - max(known) / 1e6
        return behind if abs(behind) < 86_400 else None
