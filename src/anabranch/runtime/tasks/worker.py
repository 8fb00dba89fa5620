"""What a worker does in an epoch: gather its blocks, run the operators of its groups, keep their state.

    blocks and reports ──▶ watermark ──▶ for each group: merge by time ──▶ process ──▶ on_watermark ──▶ outputs
                                                 │ live state, epoch N-1 ──▶ epoch N
                                                 └▶ blocks (and sometimes a snapshot) into the epoch store

A worker is a partition of the exchange. The routing table says which groups it has; `groups` keeps their state.

With sub-groups, a worker runs only in one of `slots` epochs. In the others it writes its blocks to the epoch store,
where they wait: they are the mini-buffers of its groups.
"""

from __future__ import annotations

import resource
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from anabranch._worker_gc import freeze_loaded_objects
from anabranch.control.allowance import share_in_time
from anabranch.errors import OperatorError, StateError
from anabranch.io.blocks import micros_of, one_batch, unpack
from anabranch.io.parquet import RowWriter
from anabranch.names import REPORT
from anabranch.observe.progress import WorkerMeasure
from anabranch.operators.protocol import Emitted
from anabranch.runtime.tasks.groups import Blocks, Groups, fold
from anabranch.runtime.tasks.reports import WorkerReport, to_text
from anabranch.runtime.tasks.task import EpochTask
from anabranch.split.report import SplitterReport
from anabranch.split.splitter import ALL_GROUPS, REPORT_GROUP
from anabranch.store.live.lease import Lease


@dataclass(frozen=True)
class WorkerTask:
    """The function of a worker's task: runs the operator over the blocks and reports that the exchange brings."""

    task: EpochTask

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _allow_many_files()
        context = TaskContext.get()
        return _Worker(self.task, context.partitionId() if context is not None else 0).run(batches)


@dataclass
class _Measured:
    """What a worker measures while it runs; `WorkerMeasure` explains each field."""

    rows: int = 0
    seconds: float = 0.0
    groups: int = 0
    buffered: int = 0
    occupancy: float | None = None
    state_bytes: int = 0
    rebuilt: int = 0
    rebuilt_why: dict[str, int] = field(default_factory=dict)
    open_seconds: float = 0.0
    read_seconds: float = 0.0
    merge_seconds: float = 0.0
    query_seconds: float = 0.0
    store_seconds: float = 0.0
    write_seconds: float = 0.0
    group_seconds: list[tuple[int, float]] = field(default_factory=list)


class _Worker:
    def __init__(self, task: EpochTask, number: int) -> None:
        self.task = task
        self.number = number
        self.measured = _Measured()
        self.metrics: Counter[str] = Counter()
        self.groups = Groups(task)
        self.snapshots: dict[int, int] = {}

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, began = self.task, time.perf_counter()
        blocks, splitters = self._gather(batches)
        self.measured.read_seconds = time.perf_counter() - began
        watermark = self._watermark(splitters)
        merged = self._merge(blocks)
        if merged:
            stored = time.perf_counter()
            task.store.write_blocks(task.epoch, self.number, merged)
            self.measured.store_seconds += time.perf_counter() - stored
        mine = {g for g in task.active if task.routing[g] == self.number} | set(merged)
        came = {group: sum(block.num_rows for _, block in each) for group, each in merged.items()}
        outputs = {name: RowWriter(target, self.number) for name, target in (task.outputs or {}).items()}
        turn, joined_in_time = task.turn(self.number), 0.0
        for group in sorted(mine) if turn else ():
            before, group_began = self.measured.rows, time.perf_counter() - began
            for emitted in self._run_group(group, merged.get(group, ()), watermark):
                if task.outputs is None:
                    yield self._yielded(emitted)
                else:
                    name, batch = self._named(emitted)
                    outputs[name].add(batch)
            rows = came.get(group, 0) + self.measured.rows - before
            joined_in_time += rows * share_in_time(group_began, time.perf_counter() - began, task.allowance)
        measured = self.measured
        writing = time.perf_counter()
        written = {name: writer.close() for name, writer in outputs.items()}
        if outputs:
            in_between = sum(writer.seconds for writer in outputs.values())
            measured.write_seconds = time.perf_counter() - writing + in_between
            measured.query_seconds -= in_between
        measured.buffered = sum(came.values()) + sum(task.behind[g][1] for g in mine if g in task.behind)
        if turn:
            measured.occupancy = 1.0 - joined_in_time / measured.rows if measured.rows else 0.0
        measured.seconds = time.perf_counter() - began
        measured.groups = len(mine)
        measured.rebuilt, measured.rebuilt_why = self.groups.rebuilt.total(), dict(self.groups.rebuilt)
        yield self._row_of(
            WorkerReport(
                WorkerMeasure(self.number, **{**vars(measured), "group_seconds": tuple(measured.group_seconds)}),
                watermark,
                active=frozenset(mine),
                block_groups=frozenset(merged),
                waiting={} if turn else {group: came.get(group, 0) for group in sorted(mine)},
                snapshots=self.snapshots,
                outputs=written,
                metrics=self.metrics,
                splitters=splitters if self.number == 0 else (),
            )
        )
        freeze_loaded_objects()

    # --- input ------------------------------------------------------------------------------------------------------

    def _gather(
        self, batches: Iterator[pa.RecordBatch]
    ) -> tuple[dict[tuple[int, int], list[tuple[int, int, pa.RecordBatch]]], tuple[SplitterReport, ...]]:
        """The blocks by (group, port), in the order in which they were made, and the splitters' reports."""
        found: list[tuple[int, int, int, int, pa.RecordBatch]] = []
        splitters: list[SplitterReport] = []
        for batch in batches:
            places = [batch.column(name).to_pylist() for name in ("grp", "edge", "part", "seq")]
            for (group, edge, part, seq), value in zip(zip(*places, strict=True), batch.column("block"), strict=True):
                if group == REPORT_GROUP:
                    splitters.append(SplitterReport.unpacked(value.as_buffer().to_pybytes()))
                else:
                    found.append((edge, part, seq, group, unpack(value.as_buffer())))
        found.sort(key=lambda block: block[:4])
        mine = [g for g, worker in enumerate(self.task.routing) if worker == self.number]
        blocks: dict[tuple[int, int], list[tuple[int, int, pa.RecordBatch]]] = defaultdict(list)
        for edge, _, seq, group, block in found:
            port = self.task.edges[edge].port
            for target in mine if group == ALL_GROUPS else [group]:
                blocks[target, port].append((edge, seq, block))
        splitters.sort(key=lambda report: (report.edge, report.splitter))
        return blocks, tuple(splitters)

    def _watermark(self, splitters: Sequence[SplitterReport]) -> int | None:
        """The minimum over the inputs that are not idle; it never goes back. All workers compute the same."""
        reached: list[int | None] = []
        for number, edge in enumerate(self.task.edges):
            times = [report.max_t for report in splitters if report.edge == number and report.max_t is not None]
            if times or not edge.idle:
                reached.append(edge.watermark_after(max(times, default=None)))
        before = self.task.watermark
        if not reached or any(watermark is None for watermark in reached):
            return before
        least = min(watermark for watermark in reached if watermark is not None)
        return least if before is None else max(before, least)

    def _merge(
        self, blocks: Mapping[tuple[int, int], list[tuple[int, int, pa.RecordBatch]]]
    ) -> dict[int, list[tuple[int, pa.RecordBatch]]]:
        """One block per group and port, in order of time; rows with equal times stay in the order of the split."""
        began = time.perf_counter()
        merged: dict[int, list[tuple[int, pa.RecordBatch]]] = defaultdict(list)
        for group, port in sorted(blocks):
            parts = blocks[group, port]
            block = merge_by_time([block for _, _, block in parts], self.task.edges[parts[0][0]].time)
            self.measured.rows += block.num_rows
            merged[group].append((port, block))
        self.measured.merge_seconds = time.perf_counter() - began
        return dict(merged)

    # --- operators --------------------------------------------------------------------------------------------------

    def _run_group(self, group: int, blocks: Blocks, watermark: int | None) -> Iterator[Emitted]:
        """Run the group's operator over the blocks that waited for its turn, and over this epoch's blocks."""
        task, groups = self.task, self.groups
        with Lease(groups.folder(group)):
            opening = time.perf_counter()
            state, operator = groups.open(group)
            state.begin()
            operator.decisions = task.settings
            operator.metrics = Counter()
            for repair in groups.repairs(group):
                operator.on_set_back(repair.watermark, repair.starts)
            began = time.perf_counter()
            self.measured.open_seconds += began - opening
            for waited in groups.waiting(group):
                self.measured.rows += sum(block.num_rows for _, block in waited)
                yield from fold(operator, waited, None)
            yield from fold(operator, blocks, watermark)
            ran = time.perf_counter()
            self.measured.query_seconds += ran - began
            self.measured.group_seconds.append((group, ran - began))
            self.metrics += operator.metrics
            if task.since is None and (task.epoch + group) % task.snapshot_every == task.snapshot_every - 1:
                task.store.write_snapshot(task.epoch, group, state)
                self.snapshots[group] = task.epoch
            state.commit(task.epoch, groups.token(group))
            self.measured.store_seconds += time.perf_counter() - ran
            self.measured.state_bytes += state.nbytes
        self._check_memory()

    def _check_memory(self) -> None:
        limit, held = self.task.memory_limit, self.measured.state_bytes
        if limit is not None and held > limit:
            raise StateError(
                f"the groups of worker {self.number} of {self.task.node} hold {held:,} bytes of live state, but "
                f"memory_limit is {limit:,} per worker: the machine could start to swap, or kill the process",
                hint="shorten the windows (within=..., size=...), use more workers (workers=...), or raise "
                "memory_limit=...; then start again from the same checkpoint: nothing is lost",
            )

    # --- output -----------------------------------------------------------------------------------------------------

    def _named(self, emitted: Emitted) -> tuple[str, pa.RecordBatch]:
        outputs = self.task.outputs
        assert outputs is not None
        if isinstance(emitted, pa.RecordBatch):
            if len(outputs) != 1:
                raise OperatorError(
                    f"{self.task.node} has the outputs {', '.join(outputs)}, but yielded rows without naming one",
                    hint="yield pairs: (name of the output, record batch)",
                )
            return next(iter(outputs)), emitted
        name, batch = emitted
        if name not in outputs:
            raise OperatorError(
                f"{self.task.node} yielded rows for an undeclared output {name!r}; they would be lost",
                hint=f"the outputs are {', '.join(outputs)}",
            )
        return name, batch

    def _yielded(self, emitted: Emitted) -> pa.RecordBatch:
        assert isinstance(emitted, pa.RecordBatch)
        nothing = pa.nulls(emitted.num_rows, pa.string())
        return pa.RecordBatch.from_arrays([*emitted.columns, nothing], names=[*emitted.schema.names, REPORT])

    def _row_of(self, report: WorkerReport) -> pa.RecordBatch:
        beside = self.task.yields or pa.schema([])
        columns = [*(pa.nulls(1, kind) for kind in beside.types), pa.array([to_text(report)])]
        return pa.RecordBatch.from_arrays(columns, names=[*beside.names, REPORT])


def _allow_many_files() -> None:
    """Raise the limit of open files to what the system allows: every mapped array keeps a file open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def merge_by_time(blocks: Sequence[pa.RecordBatch], time: str | None) -> pa.RecordBatch:
    """The rows of all blocks in order of time, equal times in the order of the blocks; unchanged if `time` is None."""
    whole = blocks[0] if len(blocks) == 1 else one_batch(pa.Table.from_batches(blocks))
    if time is None or not whole.num_rows:
        return whole
    column = whole.column(time)
    times = np.asarray(column if pa.types.is_integer(column.type) else micros_of(column))
    if (times[1:] >= times[:-1]).all():
        return whole
    # The stable sort is a Timsort: it finds runs that are already in order, and merges them.
    return whole.take(pa.array(np.argsort(times, kind="stable")))
