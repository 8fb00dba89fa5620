"""The epoch loop: what the driver does with a micro-batch.

    decide ──▶ ledger: plan N ──▶ each operator's job ──▶ publish ──▶ ledger: N is done ──▶ forget what is old

Whatever can change a result is decided before the epoch runs and written down. If it runs again after a crash, the plan
is read and not made; state is as it was after N-1; the sinks know what they have. So a second run gives what the first would have.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from anabranch.errors import CheckpointError
from anabranch.io.frames import read_files, unpacked
from anabranch.io.sinks import FileSink, Published
from anabranch.network.columns import floordiv
from anabranch.network.nodes import ONLY, CombineNode, Input, ProcessNode, WindowNode
from anabranch.network.parts import Output, Source
from anabranch.operators.protocol import Operator, OperatorFactory
from anabranch.plan import batch as batch_plan
from anabranch.runtime import jobs
from anabranch.runtime.controllers import BatchSize, Controller, SplitTuning, decide_all
from anabranch.runtime.files import Folder
from anabranch.runtime.ledger import Ledger
from anabranch.runtime.outputs import Target
from anabranch.runtime.plan import Network, Step
from anabranch.runtime.progress import EpochProgress, OperatorProgress, SplitterMeasure, WorkerMeasure
from anabranch.runtime.settings import Settings
from anabranch.runtime.sources import BatchRows, SourceRows
from anabranch.runtime.store import EpochStore
from anabranch.runtime.worker import Edge, EpochTask
from anabranch.windows import Window
from anabranch.windows.ids import pane_of

KEPT_EPOCHS = 100
"""Ledger entries that are kept beyond those that a restore needs: a record of what was decided."""
FORGET_EVERY = 5
"""Epochs between two cleanings of the store."""
HISTORY = 50
"""Epochs that controllers see."""
SMALLEST_WINDOW = 1 << 16
LARGEST_WINDOW = 1 << 25


@dataclass
class OperatorState:
    """What the driver knows of an operator between epochs; the ledger keeps it."""

    watermark: int | None = None
    active: set[int] = field(default_factory=set)
    snapshots: dict[int, int] = field(default_factory=dict)
    decisions: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """Where a query keeps what must survive."""

    folder: Folder
    query: str
    """the unique id of this checkpoint, in all its files"""

    @property
    def flow(self) -> Folder:
        return self.folder.sub("flow")

    @property
    def side(self) -> Folder:
        return self.folder.sub("side")

    @property
    def state(self) -> Folder:
        return self.folder.sub("state")

    def ledger(self) -> Ledger:
        return Ledger(self.folder.sub("ledger"), self.query)


class EpochRunner:
    """Runs one epoch after the other; given to `foreachBatch`."""

    def __init__(self, network: Network, settings: Settings, checkpoint: Checkpoint, session: SparkSession) -> None:
        self.network = network
        self.settings = settings
        self.checkpoint = checkpoint
        self.session = session
        self.ledger = checkpoint.ledger()
        self.history: list[EpochProgress] = []
        self.states = {step.name: OperatorState() for step in network.steps}
        self.latest: list[int | None] = [None] * len(network.sources)
        self.heard = [time.monotonic()] * len(network.sources)
        self.stores = {step.name: EpochStore(checkpoint.state, checkpoint.query, step.name) for step in network.steps}
        self._operators = {step.name: _recipe(step) for step in network.steps}
        self._rows = SourceRows(network.sources)
        self.last: int | None = None
        self.token = uuid.uuid4().hex
        self._restore()

    @property
    def frame(self) -> DataFrame:
        """The stream of all sources."""
        return self._rows.frame

    def _restore(self) -> None:
        for step in self.network.steps:
            self.stores[step.name].create()
            for sink in step.sinks.values():
                sink.open()
        self.checkpoint.flow.create()
        self.checkpoint.side.create()
        found = self.ledger.last_done()
        if found is None:
            return
        self.last, outcome = found
        self.latest = list(outcome["latest"])
        for name, known in outcome["operators"].items():
            state = self.states[name]
            state.watermark, state.active = known["watermark"], set(known["active"])
            state.snapshots = {int(group): epoch for group, epoch in known["snapshots"].items()}
            state.decisions = known["decisions"]

    # --- one epoch --------------------------------------------------------------------------------------------------

    def run(self, batch: DataFrame, epoch: int) -> EpochProgress | None:
        """Run an epoch; None if it was done already, and only Spark does not know."""
        if self.last is not None and epoch == self.last:
            return None
        if epoch != (0 if self.last is None else self.last + 1):
            raise CheckpointError(
                f"Spark begins with epoch {epoch}, but the ledger's last is {self.last}: offsets and state do not belong "
                "together, and rows would be lost or counted twice",
                hint="restore the whole checkpoint folder from one copy, or start with a new one",
            )
        started, clock = time.time(), time.perf_counter()
        plan = self.ledger.plan(epoch)
        replayed = plan is not None
        if plan is None:
            plan = self._decide()
            self.ledger.write_plan(epoch, plan)
        run = _Epoch(self, epoch, plan, self._rows.of(batch, self.network))
        try:
            outcomes = [run.operator(step) for step in self.network.steps]
            run.publish()
        finally:
            run.close()
        self._done(epoch, run, outcomes)
        self._forget(epoch)
        rows = sum(run.source_rows.values())
        progress = EpochProgress(
            query=self.checkpoint.query,
            run="",
            epoch=epoch,
            started=started,
            seconds=time.perf_counter() - clock,
            trigger_seconds=self.settings.trigger_seconds,
            rows=rows,
            event_latency=self._event_latency(),
            replayed=replayed,
            restored=sum(worker.rebuilt for outcome in outcomes for worker in outcome.progress.workers),
            operators=tuple(outcome.progress for outcome in outcomes),
        )
        self.history = [*self.history, progress][-HISTORY:]
        return progress

    def _decide(self) -> dict[str, Any]:
        operators = {}
        for step in self.network.steps:
            state, recipe = self.states[step.name], self._operators[step.name]
            controllers = recipe.controllers(self.settings)
            decisions = decide_all(controllers, self.history, {**recipe.fixed, **state.decisions})
            operators[step.name] = {
                "routing": [group % self.settings.workers for group in range(recipe.groups)],
                "decisions": {**decisions, **recipe.fixed},
            }
        return {"operators": operators, "idle": self._idle()}

    def _idle(self) -> list[int]:
        """Sources that have been silent for too long to hold the watermark back."""
        if self.settings.idle is None:
            return []
        now = time.monotonic()
        return [i for i, heard in enumerate(self.heard) if now - heard > self.settings.idle]

    def _done(self, epoch: int, run: _Epoch, outcomes: Sequence[_Outcome]) -> None:
        for i, latest in run.latest.items():
            known = [t for t in (self.latest[i], latest) if t is not None]
            self.latest[i] = max(known, default=None)
        for i, rows in run.source_rows.items():
            if rows:
                self.heard[i] = time.monotonic()
        operators = {}
        for step, outcome in zip(self.network.steps, outcomes, strict=True):
            state = self.states[step.name]
            state.watermark = outcome.watermark
            state.active |= outcome.active
            state.snapshots |= outcome.snapshots
            state.decisions = run.plan["operators"][step.name]["decisions"]
            operators[step.name] = {
                "watermark": state.watermark,
                "active": sorted(state.active),
                "block_groups": sorted(outcome.block_groups),
                "snapshots": {str(group): at for group, at in sorted(state.snapshots.items())},
                "decisions": state.decisions,
            }
        self.ledger.write_done(epoch, {"latest": self.latest, "operators": operators})
        self.last = epoch

    def _forget(self, epoch: int) -> None:
        """Remove blocks, snapshots and ledger entries that no restore needs any more."""
        if epoch % FORGET_EVERY != FORGET_EVERY - 1:
            return
        needed = epoch
        for step in self.network.steps:
            state = self.states[step.name]
            if not state.active:
                continue
            through = min(state.snapshots.get(group, -1) for group in state.active)
            self.stores[step.name].forget(through, state.snapshots)
            needed = min(needed, through + 1)
        self.ledger.forget(min(needed, epoch - KEPT_EPOCHS))

    def _event_latency(self) -> float | None:
        known = [latest for latest in self.latest if latest is not None]
        if not known:
            return None
        behind = time.time() - max(known) / 1e6
        return behind if abs(behind) < 86_400 else None


@dataclass(frozen=True)
class _Recipe:
    """What of an operator is the same in all epochs."""

    step: Step
    groups: int
    fixed: dict[str, Any]
    factory: OperatorFactory
    schemas: dict[str, Any]
    pane_types: Any = None
    yields: Any = None

    def controllers(self, settings: Settings) -> list[Controller]:
        node, name = self.step.node, self.step.name
        if isinstance(node, WindowNode) and settings.qos.latency_seconds is not None and "batch" not in self.fixed:
            longest = max(node.query.panes.in_panes(), key=lambda w: w.size)
            window = Window(longest.size, longest.slide)
            return [BatchSize(name, window, settings.workers, settings.qos.latency_seconds)]
        if isinstance(node, ProcessNode) and not node.routing.keys:
            tuning = SplitTuning(name, self.groups, smallest_window=SMALLEST_WINDOW, largest_window=LARGEST_WINDOW)
            return [] if {"splitters", "window_bytes"} <= set(self.fixed) else [tuning]
        return []


def _recipe(step: Step) -> _Recipe:
    node = step.node
    if isinstance(node, WindowNode):
        types = jobs.pane_types(node)
        factory, yields = jobs.window_task_settings(node, types)
        result = to_arrow_schema(node.query.result_like(batch_plan.build).schema, timezone="UTC")
        fixed = {} if node.batch is None else {"batch": node.batch}
        return _Recipe(step, node.groups, fixed, factory, {ONLY: result}, types, yields)
    if isinstance(node, CombineNode):
        return _Recipe(step, 1, {}, Operator, {ONLY: to_arrow_schema(node.schema, timezone="UTC")})
    given = {"splitters": node.routing.splitters, "window_bytes": node.routing.window_bytes}
    fixed = {name: value for name, value in given.items() if value is not None}
    schemas = {name: to_arrow_schema(schema, timezone="UTC") for name, schema in node.schemas.items()}
    return _Recipe(step, node.groups, fixed, node.factory, schemas)


@dataclass(frozen=True)
class _Outcome:
    """What an operator's job reported."""

    progress: OperatorProgress
    watermark: int | None
    active: set[int] = field(default_factory=set)
    snapshots: dict[int, int] = field(default_factory=dict)
    block_groups: set[int] = field(default_factory=set)


class _Epoch:
    """One epoch while it runs."""

    def __init__(self, runner: EpochRunner, epoch: int, plan: dict[str, Any], rows: BatchRows) -> None:
        self.runner = runner
        self.epoch = epoch
        self.plan = plan
        self.latest: dict[int, int | None] = {}
        self.source_rows: dict[int, int] = {}
        self._rows = rows
        self._staged: dict[tuple[int, str], Published] = {}
        self._watermarks: dict[int, int | None] = {}
        self._side: list[tuple[FileSink, Published]] = []

    def operator(self, step: Step) -> _Outcome:
        """Run an operator's job."""
        began = time.perf_counter()
        node, recipe = step.node, self.runner._operators[step.name]
        targets = {name: self._target(step, name) for name in node.outputs}
        if isinstance(node, CombineNode):
            outcome = self._combine(step, node, targets)
        else:
            outcome = self._stateful(step, node, recipe, targets)
        self._watermarks[id(node)] = outcome.watermark
        progress = OperatorProgress(**{**vars(outcome.progress), "seconds": time.perf_counter() - began})
        return _Outcome(progress, outcome.watermark, outcome.active, outcome.snapshots, outcome.block_groups)

    def _stateful(
        self, step: Step, node: WindowNode | ProcessNode, recipe: _Recipe, targets: Mapping[str, Target]
    ) -> _Outcome:
        decided = self._decided(step, recipe)
        edges = tuple(self._edge(node, each) for each in node.inputs)
        feeds = [self._feed(node, each, edge) for each, edge in zip(node.inputs, edges, strict=True)]
        task = self._task(step, recipe, edges, targets)
        if isinstance(node, WindowNode):
            packed = [jobs.packed_panes(node, i, feed, decided) for i, feed in enumerate(feeds)]
            disorder = self.runner.settings.qos.disorder
            found = jobs.run_windows(node, jobs.union(packed), task, targets[ONLY], recipe.pane_types, disorder)
        else:
            packed = [jobs.packed_rows(node, i, feed, decided) for i, feed in enumerate(feeds)]
            found = jobs.run_process(jobs.union(packed), task)
        workers, written = jobs.node_reports(found)
        outputs = {ONLY: written} if isinstance(node, WindowNode) else _by_output(workers)
        for name, files in outputs.items():
            self._stage(step, name, targets[name], files)
        marks = workers[0]["marks"]
        self._census(node, marks)
        self._keep_side(step, node, feeds, marks)
        return _outcome(step, workers, marks, outputs, self.plan["operators"][step.name]["decisions"])

    def _combine(self, step: Step, node: CombineNode, targets: Mapping[str, Target]) -> _Outcome:
        origin = node.inputs[0].part.origin
        assert isinstance(origin, Output)
        partial = self._staged_frame(origin)
        _, written = jobs.node_reports(jobs.run_combine(node, partial, targets[ONLY]))
        self._stage(step, ONLY, targets[ONLY], written)
        emitted = sum(each["rows"] for each in written)
        return _Outcome(OperatorProgress(step.name, emitted=emitted), self._watermarks[id(origin.node)])

    # --- inputs -----------------------------------------------------------------------------------------------------

    def _edge(self, node: WindowNode | ProcessNode, each: Input) -> Edge:
        origin = each.part.origin
        time_column = jobs.PART if isinstance(node, WindowNode) else each.time.name
        if isinstance(origin, Output):
            reached = self._watermarks[id(origin.node)]
            behind = None if reached is None else reached - origin.delay
            return Edge(each.port, time_column, watermark=behind, derived=True)
        i = self.runner.network.index_of(origin)
        return Edge(each.port, time_column, self.runner.latest[i], origin.delay, idle=i in self.plan["idle"])

    def _feed(self, node: WindowNode | ProcessNode, each: Input, edge: Edge) -> jobs.Feed:
        origin = each.part.origin
        late_before = self.runner.states[self.runner.network.name_of(node)].watermark
        if isinstance(origin, Output):
            return jobs.Feed(each.part.apply(self._staged_frame(origin)), None, late_before)
        rows = self._rows.of(origin)
        direct = isinstance(node, ProcessNode) and node.routing.by_function and not each.part.steps
        if origin.packed is not None and direct:
            return jobs.Feed(rows, origin.packed, late_before)
        if origin.packed is not None:
            rows = unpacked(rows, origin.packed)
        return jobs.Feed(each.part.apply(rows), None, late_before)

    def _decided(self, step: Step, recipe: _Recipe) -> jobs.Decided:
        plan = self.plan["operators"][step.name]
        decisions = plan["decisions"]
        splitters = decisions.get("splitters")
        if "splitters" not in recipe.fixed and not self._blocks(step):
            # Rows are split where they are read: to move them first would cost more than it gains.
            splitters = None
        return jobs.Decided(tuple(plan["routing"]), max(plan["routing"]) + 1, splitters, decisions.get("window_bytes"))

    def _blocks(self, step: Step) -> bool:
        origins = [each.part.origin for each in step.node.inputs]
        return all(isinstance(origin, Source) and origin.packed is not None for origin in origins)

    def _task(self, step: Step, recipe: _Recipe, edges: tuple[Edge, ...], targets: Mapping[str, Target]) -> EpochTask:
        runner, plan = self.runner, self.plan["operators"][step.name]
        state = runner.states[step.name]
        return EpochTask(
            query=runner.checkpoint.query,
            node=step.name,
            epoch=self.epoch,
            run=runner.token,
            factory=recipe.factory,
            edges=edges,
            routing=tuple(plan["routing"]),
            active=frozenset(state.active),
            watermark=state.watermark,
            decisions=plan["decisions"],
            store=runner.stores[step.name],
            ledger=runner.ledger,
            live=runner.settings.live,
            snapshot_every=runner.settings.snapshot_every,
            outputs=None if isinstance(step.node, WindowNode) else targets,
            yields=recipe.yields,
        )

    def _census(self, node: WindowNode | ProcessNode, marks: Sequence[Mapping[str, Any]]) -> None:
        """What the splitters saw of each source. Operators of the same source see the same, unless a step filters."""
        for number, each in enumerate(node.inputs):
            origin = each.part.origin
            if isinstance(origin, Source):
                i = self.runner.network.index_of(origin)
                mine = [mark for mark in marks if mark["edge"] == number]
                times = [t for t in (self.latest.get(i), *(mark["max_t"] for mark in mine)) if t is not None]
                self.latest[i] = max(times, default=None)
                self.source_rows[i] = max(self.source_rows.get(i, 0), sum(mark["rows"] for mark in mine))

    # --- outputs ----------------------------------------------------------------------------------------------------

    def _target(self, step: Step, name: str) -> Target:
        sink = step.sinks.get(name)
        default = self.runner.checkpoint.flow.sub(f"{step.name}.{name}", f"epoch={self.epoch}")
        folder = default if sink is None else sink.staging(self.epoch, default)
        folder.remove()  # what a crashed attempt left
        folder.create()
        return Target(folder, self.runner._operators[step.name].schemas[name])

    def _stage(self, step: Step, name: str, target: Target, written: Sequence[Mapping[str, Any]]) -> None:
        files = tuple(sorted(file for each in written for file in each["files"]))
        self._staged[id(step.node), name] = Published(
            self.epoch, self.runner.checkpoint.query, target.folder, files, target.schema, self.runner.session
        )

    def _staged_frame(self, origin: Output) -> DataFrame:
        staged = self._staged[id(origin.node), origin.name]
        return read_files(self.runner.session, staged.folder, staged.files, staged.schema)

    def _keep_side(
        self,
        step: Step,
        node: WindowNode | ProcessNode,
        feeds: Sequence[jobs.Feed],
        marks: Sequence[Mapping[str, Any]],
    ) -> None:
        """Keep late and bad rows, with the reason. There are seldom any, so they have a job of their own."""
        for number, (each, feed) in enumerate(zip(node.inputs, feeds, strict=True)):
            if not any(mark["late"] + mark["bad"] for mark in marks if mark["edge"] == number):
                continue
            rows = feed.rows if feed.packed is None else unpacked(feed.rows, feed.packed)
            t = each.time.micros()
            reason = F.when(t.isNull(), F.lit(f"null time in column {each.time.name}"))
            if feed.watermark is not None:
                end = t + 1
                if isinstance(node, WindowNode):
                    panes = node.query.panes
                    end = (pane_of(t, panes.size, panes.origin, floordiv) + 1) * panes.size + panes.origin
                reason = reason.when(end <= feed.watermark, F.lit(f"late: the watermark was at {feed.watermark} us"))
            outside = rows.withColumn("reason", reason).where(F.col("reason").isNotNull())
            sink = FileSink(self.runner.checkpoint.side.sub(f"{step.name}-{number}").path)
            sink.open()
            folder = sink.staging(self.epoch, self.runner.checkpoint.flow)
            folder.remove()
            folder.create()
            target = Target(folder, to_arrow_schema(outside.schema, timezone="UTC"))
            _, written = jobs.node_reports(jobs.run_side(outside, target))
            files = tuple(sorted(file for part in written for file in part["files"]))
            query, session = self.runner.checkpoint.query, self.runner.session
            self._side.append((sink, Published(self.epoch, query, folder, files, target.schema, session)))

    def publish(self) -> None:
        """All operators have run: make the results visible."""
        for sink, kept in self._side:
            sink.publish(kept)
        for step in self.runner.network.steps:
            for name, sink in step.sinks.items():
                sink.publish(self._staged[id(step.node), name])

    def close(self) -> None:
        """Remove what only this epoch needed."""
        self._rows.close()
        for step in self.runner.network.steps:
            for name in step.node.outputs:
                self.runner.checkpoint.flow.sub(f"{step.name}.{name}", f"epoch={self.epoch}").remove()


def _by_output(workers: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    return {name: [worker["outputs"][name] for worker in workers] for name in workers[0]["outputs"]}


def _outcome(
    step: Step,
    workers: Sequence[Mapping[str, Any]],
    marks: Sequence[Mapping[str, Any]],
    outputs: Mapping[str, Sequence[Mapping[str, Any]]],
    decisions: Mapping[str, Any],
) -> _Outcome:
    measures = [{"worker": each["worker"], **each["measured"]} for each in workers]
    splitters = [_taken(SplitterMeasure, mark) for mark in marks]
    progress = OperatorProgress(
        step.name,
        rows=sum(mark["rows"] for mark in marks),
        emitted=sum(each["rows"] for written in outputs.values() for each in written),
        late=sum(mark["late"] for mark in marks),
        bad=sum(mark["bad"] for mark in marks),
        watermark=workers[0]["watermark"],
        state_bytes=sum(each["state_bytes"] for each in measures),
        workers=tuple(_taken(WorkerMeasure, each) for each in measures),
        splitters=tuple(splitters),
        decisions=decisions,
    )
    return _Outcome(
        progress,
        workers[0]["watermark"],
        {group for each in workers for group in each["active"]},
        {int(group): epoch for each in workers for group, epoch in each["snapshots"].items()},
        {group for each in workers for group in each["block_groups"]},
    )


def _taken(cls: type[Any], record: Mapping[str, Any]) -> Any:
    return cls(**{name: record[name] for name in cls.__dataclass_fields__ if name in record})
