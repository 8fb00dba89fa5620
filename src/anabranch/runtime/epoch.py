"""One epoch while it runs: each operator's job, one after the other, and then the publishing of all results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from anabranch.control.base import HEAVY
from anabranch.errors import AnabranchError, OperatorError
from anabranch.io.frames import read_files, unpacked
from anabranch.io.parquet import Target
from anabranch.io.sinks import Published, Sink
from anabranch.keys.census import heaviest_of, loads_by_window
from anabranch.keys.metrics import WindowLoads
from anabranch.keys.partitioner import HeavyKeys
from anabranch.keys.policy import Partitioning
from anabranch.names import PART
from anabranch.observe.progress import OperatorProgress, PartitionMeasure, SplitterMeasure, WorkerMeasure
from anabranch.operators.numbering import NUMBERED
from anabranch.operators.time_windows import KEYS_OF
from anabranch.plan.placement import stretch_of
from anabranch.query.graph import Step
from anabranch.query.nodes import ONLY, CombineNode, Input, JoinNode, PositionsNode, ProcessNode, Stateful, WindowNode
from anabranch.query.origins import Output, Source
from anabranch.runtime import stages
from anabranch.runtime.ahead import shows_own_clock
from anabranch.runtime.driver_state import Context, Standing
from anabranch.runtime.execution.base import NULL_KEYS, SLOTS, Recipe
from anabranch.runtime.shedding.columns import source_name, time_at
from anabranch.runtime.shedding.counters import Counted, Seen
from anabranch.runtime.shedding.filters import EpochDrops
from anabranch.runtime.sources import BatchRows, at_once
from anabranch.runtime.worker import Edge, EpochTask
from anabranch.shedding.points import DropPoint
from anabranch.spark.arrow import arrow_schema
from anabranch.spark.columns import floordiv, up_to
from anabranch.text import moment
from anabranch.windows.ids import Stretch, pane_of


@dataclass(frozen=True)
class Outcome:
    """What an operator's job reported."""

    progress: OperatorProgress
    watermark: int | None
    active: set[int] = field(default_factory=set)
    snapshots: dict[int, int] = field(default_factory=dict)
    block_groups: set[int] = field(default_factory=set)
    waiting: dict[int, int] = field(default_factory=dict)
    """rows of this epoch that wait, by group: of workers whose turn it was not"""
    latest: int | None = None
    """the latest time of a row"""


class Epoch:
    """One epoch while it runs."""

    def __init__(
        self,
        context: Context,
        standing: Standing,
        epoch: int,
        plan: Mapping[str, Any],
        rows: BatchRows,
        drops: EpochDrops | None = None,
    ) -> None:
        self.context = context
        self.standing = standing
        self.epoch = epoch
        self.plan = plan
        self.latest: dict[int, int | None] = {}
        self.arrived: dict[int, float] = {}
        """of sources whose rows are dropped: how many would have come to the operators"""
        self.source_rows: dict[int, int] = {}
        self.drops = drops
        self._rows = rows
        self._ahead: dict[int, int] = {}
        """of sources that had rows too far ahead: how many"""
        self._counted: dict[tuple[str, int], Counted] = {}
        self._staged: dict[tuple[int, str], Published] = {}
        self._watermarks: dict[int, int | None] = {}

    def operators(self) -> list[Outcome]:
        """Run the jobs of all operators, each after those that it reads."""
        return [self._operator(step) for step in self.context.network.steps]

    def own_clock(self) -> set[int]:
        """Sources whose first rows show that their times are not by this clock; after all operators have run."""
        return {
            i
            for i, ahead in self._ahead.items()
            if self.standing.latest[i] is None and shows_own_clock(self.source_rows[i], ahead)
        }

    def _operator(self, step: Step) -> Outcome:
        """Run an operator's job."""
        began = time.perf_counter()
        node, recipe = step.node, self.context.recipes[step.name]
        targets = {name: self._target(step, name) for name in node.outputs}
        if isinstance(node, CombineNode):
            outcome = self._combine(step, node, targets)
        else:
            outcome = self._stateful(step, node, recipe, targets)
        self._watermarks[id(node)] = self._delivered(step, outcome)
        return replace(outcome, progress=replace(outcome.progress, seconds=time.perf_counter() - began))

    def _delivered(self, step: Step, outcome: Outcome) -> int | None:
        """The watermark of what an operator has delivered by now, for those that read it."""
        state = self.standing.operators[step.name]
        if not outcome.waiting and not state.waiting:
            return outcome.watermark
        after = replace(state, waiting=dict(state.waiting))
        after.wait(self.epoch, outcome.active - outcome.waiting.keys(), outcome.waiting, outcome.watermark)
        return after.delivered

    def _stateful(self, step: Step, node: Stateful, recipe: Recipe, targets: Mapping[str, Target]) -> Outcome:
        decided = self._decided(step)
        edges = tuple(self._edge(node, each) for each in node.inputs)
        task = self._task(step, recipe, edges, targets)
        if isinstance(node, WindowNode):
            assert recipe.windows is not None
            packed = [
                recipe.windows.packed(i, self._feed(node, each, counted=i), decided)
                for i, each in enumerate(node.inputs)
            ]
            disorder = self.context.settings.qos.disorder
            left_out = None if self.drops is None else self.drops.of_results(step)
            found = recipe.windows.run(stages.union(packed), task, targets[ONLY], disorder, left_out)
        else:
            if isinstance(node, JoinNode) and at_once(node):
                late_before = self.standing.operators[step.name].watermark
                limits = [self._limit(each) for each in node.inputs]
                packed = [stages.packed_at_once(node, self._rows, late_before, limits, decided)]
            else:
                packed = [stages.packed_rows(node, i, self._feed(node, e), decided) for i, e in enumerate(node.inputs)]
            if recipe.where is None:
                found = stages.run_process(stages.union(packed), task)
            else:
                found = stages.run_filtered(stages.union(packed), task, recipe.where, targets[ONLY])
        workers, written = stages.node_reports(found)
        outputs = {ONLY: written} if task.outputs is None else _by_output(workers)
        for name, files in outputs.items():
            self._stage(step, name, targets[name], files)
        marks = workers[0]["marks"]
        self._census(step, node, marks)
        ahead = self._keep_side(step, node, marks)
        outcome = _outcome(step, workers, marks, outputs, self.plan["operators"][step.name]["decisions"], ahead)
        shed = sum(each.seen.shed for (name, _), each in self._counted.items() if name == step.name)
        if shed:
            rows = outcome.progress.rows + shed
            outcome = replace(outcome, progress=replace(outcome.progress, shed=shed, rows=rows))
        if decided.partitioning is None:
            return outcome
        placed = _placed(recipe, decided.partitioning, outcome.progress, marks)
        return replace(outcome, progress=replace(outcome.progress, **placed))

    def _combine(self, step: Step, node: CombineNode, targets: Mapping[str, Target]) -> Outcome:
        origin = node.inputs[0].part.origin
        assert isinstance(origin, Output)
        partial, parts = self._staged_frame(origin), self._staged[id(origin.node), origin.name].rows
        _, written = stages.node_reports(stages.run_combine(node, partial, parts, targets[ONLY]))
        self._stage(step, ONLY, targets[ONLY], written)
        emitted = sum(each["rows"] for each in written)
        return Outcome(OperatorProgress(step.name, emitted=emitted), self._watermarks[id(origin.node)])

    # --- inputs -----------------------------------------------------------------------------------------------------

    def _edge(self, node: Stateful, each: Input) -> Edge:
        origin = each.part.origin
        time_column = PART if isinstance(node, WindowNode) else each.time.name
        if isinstance(origin, Output):
            reached = self._watermarks[id(origin.node)]
            behind = None if reached is None else reached - origin.delay
            return Edge(each.port, time_column, watermark=behind, derived=True)
        i = self.context.network.index_of(origin)
        return Edge(each.port, time_column, self.standing.latest[i], origin.delay, idle=i in self.plan["idle"])

    def _feed(self, node: Stateful, each: Input, counted: int | None = None) -> stages.Feed:
        """The rows of an input, but those that are dropped; `counted`: the number of the input, to count these."""
        origin = each.part.origin
        name = self.context.network.name_of(node)
        late_before = self._late_before(node, name)
        if isinstance(origin, Output):
            rows = self._without_dropped(name, each, self._staged_frame(origin), counted)
            return stages.Feed(each.part.apply(rows), None, late_before)
        rows = self._rows.of(origin)
        if not isinstance(node, WindowNode) and node.routing.reads_blocks(each.part):
            return stages.Feed(rows, origin.packed, late_before, self._limit(each), origin)
        if origin.packed is not None:
            rows = unpacked(rows, origin.packed)
        rows = self._without_dropped(name, each, rows, counted)
        return stages.Feed(each.part.apply(rows), None, late_before, self._limit(each), origin)

    def _limit(self, each: Input) -> int | None:
        """The latest time that a row of an input may have. What an operator emits does not move a watermark."""
        origin = each.part.origin
        return self._rows.limit_of(origin) if isinstance(origin, Source) else None

    def _late_before(self, node: Stateful, name: str) -> int | None:
        """Rows of windows that end by then are late.

        As the operator's watermark says; where it does not know yet of rows that were shed, as it would say.
        """
        reached = self.standing.operators[name].watermark
        if reached is None or not isinstance(node, WindowNode):
            return reached
        known = []
        for each in node.inputs:
            origin = each.part.origin
            latest = None if isinstance(origin, Output) else self.standing.latest[self.context.network.index_of(origin)]
            if latest is None:
                return reached
            known.append(latest - origin.delay)
        return max(reached, min(known))

    def _without_dropped(self, name: str, each: Input, rows: DataFrame, counted: int | None) -> DataFrame:
        step = next(step for step in self.context.network.steps if step.name == name)
        gone = None if self.drops is None else self.drops.of_edge(step, each)
        if gone is None:
            return rows
        if counted is None:
            return rows.where(~gone)
        counter = self._counted[name, counted] = Counted()
        return counter.over(rows, up_to(time_at(each), self._limit(each)), gone)

    def _decided(self, step: Step) -> stages.Decided:
        plan = self.plan["operators"][step.name]
        decisions = plan["decisions"]
        node = step.node
        moved = isinstance(node, ProcessNode) and node.routing.moves_windows(each.part for each in node.inputs)
        splitters = decisions.get("splitters") if moved else None
        label, heavy = decisions.get("partition"), decisions.get(HEAVY)
        return stages.Decided(
            tuple(plan["routing"]),
            max(plan["routing"]) + 1,
            splitters,
            decisions.get("window_bytes"),
            None if label is None else Partitioning.of_label(label),
            HeavyKeys.from_json(heavy or {}),
        )

    def _task(self, step: Step, recipe: Recipe, edges: tuple[Edge, ...], targets: Mapping[str, Target]) -> EpochTask:
        context, plan = self.context, self.plan["operators"][step.name]
        state = self.standing.operators[step.name]
        return EpochTask(
            node=step.name,
            epoch=self.epoch,
            run=context.run,
            factory=recipe.factory,
            edges=edges,
            routing=tuple(plan["routing"]),
            active=frozenset(state.active),
            watermark=state.watermark,
            decisions=plan["decisions"],
            store=context.stores[step.name],
            ledger=context.ledger,
            live=context.settings.live,
            token=self.plan.get("token", ""),
            tokens=self.standing.tokens,
            snapshot_every=context.settings.snapshot_every,
            outputs=targets if recipe.yields is None else None,
            yields=recipe.yields,
            since=None if recipe.horizon is None else state.since or 0,
            slots=plan["decisions"].get(SLOTS, 1),
            behind=state.waiting,
            allowance=self.plan.get("allowances", {}).get(step.name),
            memory_limit=context.settings.memory_limit,
            set_back=self.standing.set_back(context.network, step.name),
        )

    def _census(self, step: Step, node: Stateful, marks: Sequence[Mapping[str, Any]]) -> None:
        """What the splitters saw of each source. Operators of the same source see the same, unless a step filters."""
        for number, each in enumerate(node.inputs):
            origin = each.part.origin
            if isinstance(origin, Source):
                i = self.context.network.index_of(origin)
                mine = [mark for mark in marks if mark["edge"] == number]
                times = [t for t in (self.latest.get(i), *(mark["max_t"] for mark in mine)) if t is not None]
                rows = sum(mark["rows"] for mark in mine)
                seen = self._seen(step, number, origin)
                if seen is not None:
                    times += [] if seen.latest is None else [seen.latest]
                    kept = seen.rows - seen.shed
                    # Steps let some share of the rows pass: of those that were dropped it would have been the same.
                    share = rows / kept if kept else 1.0
                    self.arrived[i] = max(self.arrived.get(i, 0.0), rows + seen.shed * share)
                    rows = seen.rows
                elif not rows and each.part.steps:
                    rows, latest = self._before_steps(origin)
                    times += [] if latest is None else [latest]
                self.latest[i] = max(times, default=None)
                self.source_rows[i] = max(self.source_rows.get(i, 0), rows)

    def _seen(self, step: Step, number: int, origin: Source) -> Seen | None:
        """What was counted where rows of a source are dropped for an input; None if none are."""
        at_source, counted = self._rows.seen(origin), self._counted.get((step.name, number))
        if counted is None:
            return at_source
        seen = counted.seen
        return seen if at_source is None else Seen(at_source.rows, at_source.shed + seen.shed, at_source.latest)

    def _before_steps(self, origin: Source) -> tuple[int, int | None]:
        """How many rows a source had and their latest time, where a filter let none of them through.

        The watermark moves on by what passes the steps, within the epoch. If nothing does, it still must: this counts
        from the next epoch on.
        """
        rows = self._rows.of(origin)
        if origin.packed is not None:
            rows = unpacked(rows, origin.packed)
        within = up_to(origin.time.micros(), self._rows.limit_of(origin))
        count, latest = rows.agg(F.count(F.lit(1)), F.max(within)).collect()[0]
        return int(count), latest

    # --- outputs ----------------------------------------------------------------------------------------------------

    def _target(self, step: Step, name: str) -> Target:
        sink = step.sinks.get(name)
        default = self.context.checkpoint.flow.sub(f"{step.name}.{name}", f"epoch={self.epoch}")
        folder = default if sink is None else sink.staging(self.epoch, default)
        folder.remove()  # what a crashed attempt left
        folder.create()
        kept = sink is None or sink.keeps or name in step.feeds
        return Target(folder, self.context.recipes[step.name].schemas[name], kept)

    def _stage(self, step: Step, name: str, target: Target, written: Sequence[Mapping[str, Any]]) -> None:
        files = tuple(sorted(file for each in written for file in each["files"]))
        rows = sum(each["rows"] for each in written)
        self._staged[id(step.node), name] = Published(
            self.epoch, self.context.checkpoint.query, target.folder, files, target.schema, self.context.session, rows
        )

    def staged(self, step: Step, name: str) -> Published:
        """What an operator wrote of an output in this epoch."""
        return self._staged[id(step.node), name]

    def _staged_frame(self, origin: Output) -> DataFrame:
        staged = self._staged[id(origin.node), origin.name]
        return read_files(self.context.session, staged.folder, staged.files, staged.schema)

    def _keep_side(self, step: Step, node: Stateful, marks: Sequence[Mapping[str, Any]]) -> int:
        """Keep late and bad rows, with the reason; how many were too far ahead.

        There are seldom any, so they have a job of their own.
        """
        too_far = 0
        for number, each in enumerate(node.inputs):
            if not any(mark["late"] + mark["bad"] for mark in marks if mark["edge"] == number):
                continue
            feed = self._feed(node, each)
            rows = feed.rows if feed.packed is None else unpacked(feed.rows, feed.packed)
            t = each.time.micros()
            reason = F.when(t.isNull(), F.lit(f"null time in column {each.time.name}"))
            ahead = None if feed.limit is None else f"ahead: the latest time allowed was {moment(feed.limit)}"
            if feed.limit is not None:
                reason = reason.when(t > feed.limit, F.lit(ahead))
            if feed.watermark is not None:
                end = t + 1
                if isinstance(node, WindowNode):
                    panes = node.query.panes
                    end = (pane_of(t, panes.size, panes.origin, floordiv) + 1) * panes.size + panes.origin
                reason = reason.when(
                    end <= feed.watermark, F.lit(f"late: the watermark was at {moment(feed.watermark)}")
                )
            outside = rows.withColumn("reason", reason).where(F.col("reason").isNotNull())
            # Straight to where they stay: an epoch that runs again writes the same files again.
            folder = self.context.checkpoint.side.sub(f"{step.name}-{number}", f"epoch={self.epoch}")
            folder.create()
            kept = stages.run_side(outside, Target(folder, arrow_schema(outside.schema)))
            if ahead is not None and isinstance(each.part.origin, Source):
                too_far += kept[ahead]
                i = self.context.network.index_of(each.part.origin)
                self._ahead[i] = max(self._ahead.get(i, 0), kept[ahead])
        return too_far

    def publish(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """All operators have run: make the results visible. Their outcomes, with what their sinks took."""
        published = []
        for step, outcome in zip(self.context.network.steps, outcomes, strict=True):
            began = time.perf_counter()
            for name, sink in step.sinks.items():
                self._publish(step, name, sink)
            taken = time.perf_counter() - began
            published.append(replace(outcome, progress=replace(outcome.progress, publish_seconds=taken)))
        return published

    def _publish(self, step: Step, name: str, sink: Sink) -> None:
        try:
            sink.publish(self._staged[id(step.node), name])
        except AnabranchError:
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            raise OperatorError(
                f"the {type(sink).__name__} of {step.name} did not take epoch {self.epoch}: {cause}",
                hint="fix the cause and start the query again from the same checkpoint: it then gets the whole epoch",
            ) from error

    def seen_at(self, point: DropPoint) -> Seen:
        """What came to a drop point."""
        if point.kind == "source":
            network = self.context.network
            found = [self._seen_of(source) for source in network.sources if source_name(network, source) in point.at]
        else:
            found = [counted.seen for (name, _), counted in self._counted.items() if name in point.at]
        known = [each for each in found if each is not None]
        return Seen(sum(each.rows for each in known), sum(each.shed for each in known))

    def _seen_of(self, source: Source) -> Seen | None:
        if source.packed is None:
            return self._rows.seen(source)
        # Counted by all who read it, each the same.
        readers = (
            self._counted.get((step.name, number))
            for step in self.context.network.steps
            for number, each in enumerate(step.node.inputs)
            if each.part.origin is source
        )
        return next((counted.seen for counted in readers if counted is not None), None)

    def remove_side(self) -> None:
        """Remove the late and bad rows of this epoch: it runs anew, and takes some of them."""
        side = self.context.checkpoint.side
        for name in side.folders():
            side.sub(name, f"epoch={self.epoch}").remove()

    def close(self) -> None:
        """Remove what only this epoch needed."""
        self._rows.close()
        for step in self.context.network.steps:
            for name in step.node.outputs:
                self.context.checkpoint.flow.sub(f"{step.name}.{name}", f"epoch={self.epoch}").remove()


def _by_output(workers: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    return {name: [worker["outputs"][name] for worker in workers] for name in workers[0]["outputs"]}


def _outcome(
    step: Step,
    workers: Sequence[Mapping[str, Any]],
    marks: Sequence[Mapping[str, Any]],
    outputs: Mapping[str, Sequence[Mapping[str, Any]]],
    decisions: Mapping[str, Any],
    ahead: int,
) -> Outcome:
    measures = [{"worker": each["worker"], **each["measured"]} for each in workers]
    splitters = [_taken(SplitterMeasure, mark) for mark in marks]
    if isinstance(step.node, PositionsNode):
        outputs = {NUMBERED: outputs[NUMBERED]}  # the list of what was dropped is no result
    progress = OperatorProgress(
        step.name,
        rows=sum(mark["rows"] for mark in marks),
        emitted=sum(each["rows"] for written in outputs.values() for each in written),
        late=sum(mark["late"] for mark in marks),
        bad=sum(mark["bad"] for mark in marks) - ahead,
        ahead=ahead,
        watermark=workers[0]["watermark"],
        state_bytes=sum(each["state_bytes"] for each in measures),
        workers=tuple(_taken(WorkerMeasure, each) for each in measures),
        splitters=tuple(splitters),
        decisions=decisions,
        metrics=sum((Counter(each["metrics"]) for each in measures), Counter()),
    )
    if isinstance(step.node, JoinNode) and (nowhere := sum(splitter.omitted for splitter in splitters)):
        # Their rows were left out by the splitters, and no operator saw them.
        progress = replace(progress, metrics=Counter(progress.metrics) + Counter({NULL_KEYS: nowhere}))
    return Outcome(
        progress,
        workers[0]["watermark"],
        {group for each in workers for group in each["active"]},
        {int(group): epoch for each in workers for group, epoch in each["snapshots"].items()},
        {group for each in workers for group in each["block_groups"]},
        {int(group): rows for each in workers for group, rows in each["waiting"].items()},
        max((mark["max_t"] for mark in marks if mark["max_t"] is not None), default=None),
    )


def _placed(
    recipe: Recipe, partitioning: Partitioning, progress: OperatorProgress, marks: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What the tasks tell of the keys that they placed, put together."""
    told = [mark["placed"] for mark in marks if mark["placed"] is not None]
    node = recipe.step.node
    assert not isinstance(node, CombineNode)
    if isinstance(node, WindowNode):
        assert recipe.windows is not None
        workers = recipe.windows.workers
        stretch: Stretch | None = stretch_of(node.query)
    else:
        workers, stretch = node.groups, node.routing.stretch
    known = {int(name.removeprefix(KEYS_OF)): n for name, n in progress.metrics.items() if name.startswith(KEYS_OF)}
    if len(told) == 1:
        known = dict(told[0]["distinct"])
    elif len(node.inputs) > 1:
        known = {}  # a worker has a task for each input, and nobody counts keys that both have
    measures = []
    for window, (tuples, keys) in loads_by_window(told, workers).items():
        start = None if stretch is None else stretch.origin + window * stretch.size
        if window in known:
            figures = asdict(WindowLoads(tuple(tuples), tuple(keys), known[window]).metrics(partitioning.balance))
        else:
            loads = WindowLoads(tuple(tuples), tuple(keys), 0)
            most = max(dict(each["distinct"]).get(window, 0) for each in told)
            figures = {"workers": workers, "tuples": loads.rows, "keys": most, "tuple_imbalance": loads.tuple_imbalance}
        measures.append(PartitionMeasure(start, partitioning.label, **figures))
    metrics = {name: n for name, n in progress.metrics.items() if not name.startswith(KEYS_OF)}
    return {"partitions": tuple(measures), "heaviest": heaviest_of(told), "metrics": metrics}


def _taken(cls: type[Any], record: Mapping[str, Any]) -> Any:
    return cls(**{name: record[name] for name in cls.__dataclass_fields__ if name in record})
