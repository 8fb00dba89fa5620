"""What a worker does in an epoch: gather its blocks, run the operators of its groups, keep their state.

    blocks and marks ──▶ watermark ──▶ for each group: merge by time ──▶ process ──▶ on_watermark ──▶ outputs
                                               │ live state, epoch N-1 ──▶ epoch N
                                               └▶ blocks (and now and then a snapshot) into the epoch store

A worker is a partition of the exchange; which groups it has is in the routing table. The live state of a group is on
the local disk, stamped with the epoch whose end it shows. If the stamp is not N-1 (another host had the group, a task
died, an epoch runs again), the state is restored: the last snapshot, and the blocks since folded in again.
"""

from __future__ import annotations

import json
import resource
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from anabranch._process import keep_what_is_loaded
from anabranch.errors import AnabranchError, OperatorError, StateError
from anabranch.io.blocks import micros_of, one_batch, unpack
from anabranch.operators.protocol import Emitted, Operator, OperatorFactory
from anabranch.runtime.ledger import Ledger
from anabranch.runtime.live import Lease, LiveState
from anabranch.runtime.outputs import Target, write_rows
from anabranch.runtime.store import EpochStore
from anabranch.split.splitter import ALL, MARK

REPORT = "__ab_report"
"""The column of a worker's report, among or after its results."""


@dataclass(frozen=True)
class Edge:
    """One input of an operator: which port it feeds, and what is known of its watermark.

    From a source: the latest time seen in earlier epochs and the delay; the marks of this epoch add to it. From another
    operator: the watermark that operator reached in this epoch.
    """

    port: int
    time: str | None
    latest: int | None = None
    delay: int = 0
    watermark: int | None = None
    derived: bool = False
    idle: bool = False

    def watermark_after(self, seen: int | None) -> int | None:
        if self.derived:
            return self.watermark
        known = [t for t in (self.latest, seen) if t is not None]
        return max(known) - self.delay if known else None


@dataclass(frozen=True)
class EpochTask:
    """All that a worker must know to run an operator in an epoch."""

    node: str
    epoch: int
    run: str
    """of the driver: within a run the operator is the same, and an instance of it can be used again"""
    factory: OperatorFactory
    edges: tuple[Edge, ...]
    routing: tuple[int, ...]
    active: frozenset[int]
    """groups that had rows in an earlier epoch: they see the watermark even when no row comes"""
    watermark: int | None
    """of the operator before this epoch"""
    decisions: Mapping[str, Any]
    store: EpochStore
    ledger: Ledger
    live: str
    snapshot_every: int
    outputs: Mapping[str, Target] | None
    """where the outputs go; None: they are yielded, for Spark to go on with"""
    yields: pa.Schema | None = None
    """of the yielded outputs"""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _allow_many_files()
        context = TaskContext.get()
        return _Worker(self, context.partitionId() if context is not None else 0).run(batches)


@dataclass
class _Measured:
    rows: int = 0
    seconds: float = 0.0
    groups: int = 0
    buffered: int = 0
    state_bytes: int = 0
    rebuilt: int = 0
    read_seconds: float = 0.0
    merge_seconds: float = 0.0
    query_seconds: float = 0.0
    store_seconds: float = 0.0
    write_seconds: float = 0.0
    metrics: Counter[str] = field(default_factory=Counter)


_cache: OrderedDict[tuple[str, int], tuple[str, LiveState, Operator]] = OrderedDict()
"""Open states and operators of this process, by live folder and group: the next epoch need not open them again."""

MOST_OPEN = 1_024
"""Groups that a process keeps open: those of ended queries must not pile up in a worker that lives long."""


class _Worker:
    def __init__(self, task: EpochTask, number: int) -> None:
        self.task = task
        self.number = number
        self.measured = _Measured()
        self.snapshots: dict[int, int] = {}
        self._records: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, began = self.task, time.perf_counter()
        blocks, marks = self._gather(batches)
        self.measured.read_seconds = time.perf_counter() - began
        watermark = self._watermark(marks)
        merged = self._merge(blocks)
        self.measured.buffered = self.measured.rows
        if merged:
            stored = time.perf_counter()
            task.store.write_blocks(task.epoch, self.number, merged)
            self.measured.store_seconds += time.perf_counter() - stored
        mine = {g for g in task.active if task.routing[g] == self.number} | set(merged)
        written: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        for group in sorted(mine):
            for emitted in self._run_group(group, merged.get(group, []), watermark):
                if task.outputs is None:
                    yield self._yielded(emitted)
                else:
                    name, batch = self._named(emitted)
                    written[name].append(batch)
        report: dict[str, Any] = {"worker": self.number, "watermark": watermark, "active": sorted(mine)}
        report["block_groups"] = sorted(merged)
        report["snapshots"] = self.snapshots
        if task.outputs is not None:
            writing = time.perf_counter()
            files = {name: write_rows(target, self.number, written[name]) for name, target in task.outputs.items()}
            self.measured.write_seconds = time.perf_counter() - writing
            report["outputs"] = {name: each.as_json() for name, each in files.items()}
        self.measured.seconds = time.perf_counter() - began
        self.measured.groups = len(mine)
        yield self._report({**report, "marks": marks if self.number == 0 else [], "measured": vars(self.measured)})
        keep_what_is_loaded()

    # --- input ------------------------------------------------------------------------------------------------------

    def _gather(
        self, batches: Iterator[pa.RecordBatch]
    ) -> tuple[dict[tuple[int, int], list[tuple[int, int, pa.RecordBatch]]], list[dict[str, Any]]]:
        """The blocks by (group, port) in the order in which they were made, and the marks."""
        found: list[tuple[int, int, int, int, pa.RecordBatch]] = []
        marks: list[dict[str, Any]] = []
        for batch in batches:
            places = [batch.column(name).to_pylist() for name in ("grp", "edge", "part", "seq")]
            for (group, edge, part, seq), value in zip(zip(*places, strict=True), batch.column("block"), strict=True):
                if group == MARK:
                    marks.append(json.loads(value.as_buffer().to_pybytes()))
                else:
                    found.append((edge, part, seq, group, unpack(value.as_buffer())))
        found.sort(key=lambda block: block[:4])
        mine = [g for g, worker in enumerate(self.task.routing) if worker == self.number]
        blocks: dict[tuple[int, int], list[tuple[int, int, pa.RecordBatch]]] = defaultdict(list)
        for edge, _, seq, group, block in found:
            port = self.task.edges[edge].port
            for each in mine if group == ALL else [group]:
                blocks[each, port].append((edge, seq, block))
        marks.sort(key=lambda mark: (mark["edge"], mark["splitter"]))
        return blocks, marks

    def _watermark(self, marks: Sequence[Mapping[str, Any]]) -> int | None:
        """The least over the inputs that are not idle, and never less than before. All workers find the same."""
        reached: list[int | None] = []
        for number, edge in enumerate(self.task.edges):
            seen = [mark["max_t"] for mark in marks if mark["edge"] == number and mark["max_t"] is not None]
            if seen or not edge.idle:
                reached.append(edge.watermark_after(max(seen, default=None)))
        before = self.task.watermark
        if not reached or any(each is None for each in reached):
            return before
        least = min(each for each in reached if each is not None)
        return least if before is None else max(before, least)

    def _merge(
        self, blocks: Mapping[tuple[int, int], list[tuple[int, int, pa.RecordBatch]]]
    ) -> dict[int, list[tuple[int, pa.RecordBatch]]]:
        """One block per group and port, in the order of time; equal times in the order in which they were split."""
        began = time.perf_counter()
        merged: dict[int, list[tuple[int, pa.RecordBatch]]] = defaultdict(list)
        for group, port in sorted(blocks):
            parts = blocks[group, port]
            block = merge_by_time([block for _, _, block in parts], self.task.edges[parts[0][0]].time)
            self.measured.rows += block.num_rows
            merged[group].append((port, block))
        self.measured.merge_seconds = time.perf_counter() - began
        return dict(merged)

    # --- state and operators ----------------------------------------------------------------------------------------

    def _run_group(
        self, group: int, blocks: Sequence[tuple[int, pa.RecordBatch]], watermark: int | None
    ) -> Iterator[Emitted]:
        task = self.task
        folder = Path(task.live, task.node, f"{group:05d}")
        with Lease(folder):
            state, operator = self._open(folder, group)
            state.begin()
            operator.decisions = task.decisions
            operator.metrics = Counter()
            began = time.perf_counter()
            yield from _fold(operator, blocks, watermark)
            ran = time.perf_counter()
            self.measured.query_seconds += ran - began
            self.measured.metrics += operator.metrics
            if (task.epoch + group) % task.snapshot_every == task.snapshot_every - 1:
                task.store.write_snapshot(task.epoch, group, state)
                self.snapshots[group] = task.epoch
            state.commit(task.epoch)
            self.measured.store_seconds += time.perf_counter() - ran
            self.measured.state_bytes += state.nbytes

    def _open(self, folder: Path, group: int) -> tuple[LiveState, Operator]:
        """The group's state at the end of the epoch before this one, and its operator."""
        task = self.task
        key = (f"{task.live}/{task.node}", group)
        cached = _cache.get(key)
        if cached is not None:
            run, state, operator = cached
            if run == task.run and state.stamp() == task.epoch - 1 and state.current():
                _cache.move_to_end(key)
                return state, operator
            state.close()
            del _cache[key]
        state = LiveState(folder)
        if state.stamp() == task.epoch - 1:
            operator = self._instance(group)
            operator.open(state)
        else:
            operator = self._restore(group, state)
        _cache[key] = (task.run, state, operator)
        while len(_cache) > MOST_OPEN:
            _cache.popitem(last=False)[1][1].close()
        return state, operator

    def _restore(self, group: int, state: LiveState) -> Operator:
        """Load the last snapshot and fold in the blocks since."""
        task, operator = self.task, self._instance(group)
        state.clear()
        known = group in task.active
        at = task.store.snapshot_before(group, task.epoch - 1) if known else None
        if at is not None:
            task.store.load_snapshot(group, at, state)
        operator.open(state)
        if known:
            self.measured.rebuilt += 1
            for epoch in range(0 if at is None else at + 1, task.epoch):
                self._fold_again(group, epoch, operator)
        return operator

    def _fold_again(self, group: int, epoch: int, operator: Operator) -> None:
        plan, outcome = self._record(epoch)
        if group not in outcome["active"]:
            return
        worker = plan["routing"][group]
        blocks = self.task.store.read_blocks(epoch, worker, group) if group in outcome["block_groups"] else []
        operator.decisions = plan["decisions"]
        for _ in _fold(operator, blocks, outcome["watermark"]):
            pass

    def _record(self, epoch: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """What was decided for the operator in an earlier epoch, and what came out."""
        if epoch not in self._records:
            plan, outcome = self.task.ledger.plan(epoch), self.task.ledger.done(epoch)
            if plan is None or outcome is None:
                raise StateError(
                    f"the ledger has lost epoch {epoch}, which is needed to restore the state of {self.task.node}",
                    hint="restore the checkpoint folder from a copy, or start with a new one",
                )
            self._records[epoch] = plan["operators"][self.task.node], outcome["operators"][self.task.node]
        return self._records[epoch]

    def _instance(self, group: int) -> Operator:
        made = self.task.factory()
        if not isinstance(made, Operator):
            raise OperatorError(
                f"the factory of {self.task.node} made {type(made).__name__}, which is no Operator",
                hint="derive your class from anabranch.Operator",
            )
        made.group = group
        made.metrics = Counter()
        return made

    # --- output -----------------------------------------------------------------------------------------------------

    def _named(self, emitted: Emitted) -> tuple[str, pa.RecordBatch]:
        outputs = self.task.outputs
        assert outputs is not None
        if isinstance(emitted, pa.RecordBatch):
            if len(outputs) != 1:
                raise OperatorError(
                    f"{self.task.node} has the outputs {', '.join(outputs)}, and gave rows without saying which",
                    hint="yield pairs: (name of the output, record batch)",
                )
            return next(iter(outputs)), emitted
        name, batch = emitted
        if name not in outputs:
            raise OperatorError(
                f"{self.task.node} gave rows for an output {name!r} that it has not declared; they would be lost",
                hint=f"the outputs are {', '.join(outputs)}",
            )
        return name, batch

    def _yielded(self, emitted: Emitted) -> pa.RecordBatch:
        assert isinstance(emitted, pa.RecordBatch)
        nothing = pa.nulls(emitted.num_rows, pa.string())
        return pa.RecordBatch.from_arrays([*emitted.columns, nothing], names=[*emitted.schema.names, REPORT])

    def _report(self, report: Mapping[str, Any]) -> pa.RecordBatch:
        beside = self.task.yields or pa.schema([])
        columns = [*(pa.nulls(1, kind) for kind in beside.types), pa.array([json.dumps(report)])]
        return pa.RecordBatch.from_arrays(columns, names=[*beside.names, REPORT])


def _allow_many_files() -> None:
    """Every mapped array holds a file: as many as the system allows, not the few that are the default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _fold(operator: Operator, blocks: Iterable[tuple[int, pa.RecordBatch]], watermark: int | None) -> Iterator[Emitted]:
    """An epoch of one group. `process` and `on_watermark` may be generators, or return what can be iterated."""
    try:
        for port, block in blocks:
            yield from operator.process(block, port) or ()
        if watermark is not None:
            yield from operator.on_watermark(watermark) or ()
    except (AnabranchError, GeneratorExit, MemoryError):
        raise
    except Exception as error:
        raise OperatorError(
            f"{type(operator).__name__} failed in group {operator.group}: {type(error).__name__}: {error}",
            hint="mend the operator and start again from the same checkpoint: nothing of this epoch was published",
        ) from error


def merge_by_time(blocks: Sequence[pa.RecordBatch], time: str | None) -> pa.RecordBatch:
    """The rows of all blocks in the order of time, equal times in the order of the blocks; with no time as they are."""
    whole = blocks[0] if len(blocks) == 1 else one_batch(pa.Table.from_batches(blocks))
    if time is None or not whole.num_rows:
        return whole
    column = whole.column(time)
    times = np.asarray(column if pa.types.is_integer(column.type) else micros_of(column))
    if (times[1:] >= times[:-1]).all():
        return whole
    # Timsort: it finds the runs that are in order already, and merges them.
    return whole.take(pa.array(np.argsort(times, kind="stable")))
