"""The epoch loop: what the driver does with a micro-batch.

    decide ──▶ ledger: plan N ──▶ each operator's job ──▶ publish ──▶ ledger: N is done ──▶ forget what is old

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

from anabranch.errors import CheckpointError
from anabranch.operators.positions import SHED
from anabranch.runtime.allowance import allowance
from anabranch.runtime.controllers import HISTORY, PLACEMENT, KeyPlacement, decide_all
from anabranch.runtime.epoch import Epoch, Outcome
from anabranch.runtime.plan import Network
from anabranch.runtime.progress import EpochProgress
from anabranch.runtime.rebalancing import ROUTING
from anabranch.runtime.recipes import SLOTS, recipe_of
from anabranch.runtime.settings import Settings
from anabranch.runtime.shed_epochs import Shedding, ShedOutcome
from anabranch.runtime.sources import SourceRows
from anabranch.runtime.standing import Checkpoint, Context, Standing
from anabranch.runtime.store import EpochStore

KEPT_EPOCHS = 100
"""Ledger entries that are kept beyond those that a restore needs: a record of what was decided."""
FORGET_EVERY = 5
"""Epochs between two cleanings of the store."""


class EpochRunner:
    """Runs one epoch after the other; given to `foreachBatch`."""

    def __init__(self, network: Network, settings: Settings, checkpoint: Checkpoint, session: SparkSession) -> None:
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
                hint="restore the whole checkpoint folder from one copy, or start with a new one",
            )
        started, clock = time.time(), time.perf_counter()
        # Spark runs a stream in a session of its own, a copy: this does not touch the user's. Planning anew after every
        # exchange takes longer than a small epoch's work, and it would let the number of tasks depend on sizes.
        batch.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
        plan = context.ledger.plan(epoch)
        replayed = plan is not None
        if plan is None:
            plan = self._decide()
            context.ledger.write_plan(epoch, plan)
        drops = self.shedding.drops(plan)
        run = Epoch(context, self.standing, epoch, plan, self._rows.of(batch, context.network, drops), drops)
        try:
            outcomes = [run.operator(step) for step in context.network.steps]
            shed = self.shedding.after(run, outcomes)
            outcomes = run.publish(outcomes)
        finally:
            run.close()
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
            replayed=replayed,
            restored=sum(worker.rebuilt for outcome in outcomes for worker in outcome.progress.workers),
            operators=tuple(outcome.progress for outcome in outcomes),
            drops=shed.drops,
            latency=time.time() - self.history[-1].started if self.history else None,
            arrived=shed.arrived,
            spared=shed.spared,
        )
        self.history = [*self.history, progress][-HISTORY:]
        return progress

    def _decide(self) -> dict[str, Any]:
        settings = self.context.settings
        shedding = self.shedding.plan(self.history)
        operators: dict[str, Any] = {}
        allowances: dict[str, float | None] = {}
        for name, recipe in self.context.recipes.items():
            state = self.standing.operators[name]
            controllers = recipe.controllers(settings, state.remembered(name))
            current = {key: value for key, value in {**recipe.fixed, **state.decisions}.items() if key != SHED}
            if not any(isinstance(each, KeyPlacement) for each in controllers):
                # Of a run that had a policy; this one leaves keys alone.
                current = {key: value for key, value in current.items() if key not in PLACEMENT}
            decisions = decide_all(controllers, self.history, current)
            fixed = [group % settings.workers for group in range(recipe.groups)]
            operators[name] = {
                "routing": decisions.get(ROUTING, fixed),
                "decisions": {**decisions, **recipe.fixed, **self.shedding.decisions(recipe.step, shedding)},
            }
            allowances[name] = allowance(self.history, name, settings.trigger_seconds, recipe.fixed.get(SLOTS, 1))
        return {
            "operators": operators,
            "idle": self.standing.idle(settings.idle),
            "allowances": allowances,
            **shedding,
        }

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
        done = {"latest": standing.latest, "operators": operators, **shed.as_json()}
        self.context.ledger.write_done(epoch, done)
        standing.last = epoch

    def _forget(self, epoch: int) -> None:
        """Remove blocks, snapshots and ledger entries that no restore needs any more."""
        if epoch % FORGET_EVERY != FORGET_EVERY - 1:
            return
        needed = epoch
        for name, state in self.standing.operators.items():
            if state.active:
                logged = self.context.recipes[name].horizon is not None
                through = (state.since or 0) - 1 if logged else min(state.snapshots.get(g, -1) for g in state.active)
                # Twice as many as come in until the next time: what piled up goes bit by bit, and no epoch waits long.
                snapshots = -(-len(state.active) // self.settings.snapshot_every)
                most = 2 * FORGET_EVERY * (self.settings.workers + snapshots)
                self.context.stores[name].forget(through, state.snapshots, most)
                needed = min(needed, through + 1)
        self.context.ledger.forget(min(needed, epoch - KEPT_EPOCHS))

    def _event_latency(self) -> float | None:
        """Seconds behind the clock; None for data that is not from now, such as a replay's."""
        known = [latest for latest in self.standing.latest if latest is not None]
        if not known:
            return None
        behind = time.time() - max(known) / 1e6
        return behind if abs(behind) < 86_400 else None
