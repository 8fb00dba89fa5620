"""What operators with partition-groups have in common: the job of an epoch, and how its reports are used.

inputs ▶ `packed`: blocks per group ▶ `job`: exchange, workers, perhaps a writer ▶ reports
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from anabranch.io.parquet import Target, Written
from anabranch.keys.census import heaviest_of, loads_by_window
from anabranch.keys.metrics import WindowLoads
from anabranch.keys.policy import Partitioning
from anabranch.observe.progress import OperatorProgress, PartitionMeasure, SplitterMeasure
from anabranch.operators.protocol import OperatorFactory
from anabranch.operators.time_windows import KEYS_OF
from anabranch.query.graph import Step
from anabranch.query.nodes import ONLY, Input, Stateful
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.epoch.epoch import Epoch, OperatorResult
from anabranch.runtime.execution.base import Execution
from anabranch.runtime.tasks.reports import JobReports, run_job
from anabranch.runtime.tasks.stages import Decided, union
from anabranch.runtime.tasks.task import EpochTask
from anabranch.split.report import SplitterCounters, SplitterReport
from anabranch.windows.ids import Stretch

SLOTS = "slots"
"""A join's setting: the number of sub-groups of workers that take turns."""


class StatefulExecution(Execution):
    """An operator with partition-groups."""

    yields: pa.Schema | None = None
    """the schema of what workers yield to Spark; None: they write the results themselves"""

    def __init__(
        self,
        step: Step,
        node: Stateful,
        settings: Settings,
        factory: OperatorFactory,
        fixed: Mapping[str, Any],
        schemas: Mapping[str, pa.Schema],
    ) -> None:
        super().__init__(step, settings, node.groups, fixed, schemas)
        self._inputs = node.inputs
        self._factory = factory

    # --- what differs between the kinds -----------------------------------------------------------------------------

    @abstractmethod
    def packed(self, epoch: Epoch, decided: Decided) -> list[DataFrame]:
        """Its inputs as packed blocks."""

    @abstractmethod
    def job(self, packed: DataFrame, task: EpochTask, targets: Mapping[str, Target], epoch: Epoch) -> DataFrame:
        """The operator's job, which returns reports."""

    def order_of(self, input_: Input) -> str:
        """The column by which a worker merges the blocks of an input."""
        return input_.time.name

    @property
    def moves_windows(self) -> bool:
        """Whether physical windows go to separate splitter tasks."""
        return False

    @property
    def placement(self) -> tuple[int, Stretch | None]:
        """How many workers a key policy places keys on, and how long it keeps its counts; None: for one epoch."""
        return self.groups, None

    # --- an epoch ---------------------------------------------------------------------------------------------------

    def run(self, epoch: Epoch) -> OperatorResult:
        step = self.step
        decided = Decided.of(epoch.decision.operators[step.name], moves_windows=self.moves_windows)
        targets = epoch.publisher.targets(step, self.schemas)
        packed = union(self.packed(epoch, decided))
        reports = run_job(self.job(packed, self._task(epoch, targets), targets, epoch))
        outputs = self._outputs(reports)
        for name, written in outputs.items():
            epoch.publisher.stage(step, name, targets[name], written)
        splitters = reports.splitters
        epoch.census.add(step, splitters)
        ahead = epoch.side.keep(step, splitters)
        shed = sum(counts.shed for counts in epoch.inputs.all_drop_counts(step))
        progress = self.progress(reports, outputs, epoch, ahead=ahead, shed=shed)
        if decided.partitioning is not None:
            progress = self._with_placed_keys(decided.partitioning, progress, splitters)
        return OperatorResult(
            progress,
            progress.watermark,
            {group for worker in reports.workers for group in worker.active},
            {group: at for worker in reports.workers for group, at in worker.snapshots.items()},
            {group for worker in reports.workers for group in worker.block_groups},
            {group: rows for worker in reports.workers for group, rows in worker.waiting.items()},
            max((splitter.max_t for splitter in splitters if splitter.max_t is not None), default=None),
        )

    def _task(self, epoch: Epoch, targets: Mapping[str, Target]) -> EpochTask:
        step, context = self.step, epoch.context
        decision, state = epoch.decision.operators[step.name], epoch.state.operators[step.name]
        return EpochTask(
            node=step.name,
            epoch=epoch.number,
            run=context.run,
            factory=self._factory,
            edges=tuple(epoch.inputs.edge(input_, self.order_of(input_)) for input_ in self._inputs),
            routing=tuple(decision.routing),
            active=frozenset(state.active),
            watermark=state.watermark,
            settings=decision.settings,
            store=context.stores[step.name],
            ledger=context.ledger,
            live=self.settings.live,
            token=epoch.decision.token,
            tokens=epoch.state.tokens,
            snapshot_every=self.settings.snapshot_every,
            outputs=targets if self.yields is None else None,
            yields=self.yields,
            since=(state.since or 0) if self.logged else None,
            slots=decision.settings.get(SLOTS, 1),
            behind=state.waiting,
            allowance=epoch.decision.allowances.get(step.name),
            memory_limit=self.settings.memory_limit,
            set_back=epoch.state.set_back(context.network, step.name),
        )

    def _outputs(self, reports: JobReports) -> dict[str, list[Written]]:
        if self.yields is not None:
            return {ONLY: list(reports.written)}
        return {name: [worker.outputs[name] for worker in reports.workers] for name in self.schemas}

    def progress(
        self, reports: JobReports, outputs: Mapping[str, Sequence[Written]], epoch: Epoch, *, ahead: int, shed: int
    ) -> OperatorProgress:
        """The measurements. `ahead`: rows too far ahead; `shed`: rows dropped before the operator."""
        workers, splitters = reports.workers, reports.splitters
        measures = tuple(worker.measured for worker in workers)
        return OperatorProgress(
            self.step.name,
            rows=sum(splitter.rows for splitter in splitters) + shed,
            emitted=sum(each.rows for written in outputs.values() for each in written),
            late=sum(splitter.late for splitter in splitters),
            bad=sum(splitter.bad for splitter in splitters) - ahead,
            ahead=ahead,
            shed=shed,
            watermark=workers[0].watermark,
            state_bytes=sum(measure.state_bytes for measure in measures),
            workers=measures,
            splitters=tuple(map(_measure_of, splitters)),
            decisions=epoch.decision.operators[self.step.name].settings,
            metrics=sum((Counter(worker.metrics) for worker in workers), Counter()),
        )

    def _with_placed_keys(
        self, partitioning: Partitioning, progress: OperatorProgress, splitters: Sequence[SplitterReport]
    ) -> OperatorProgress:
        """The progress with the tasks' counts of placed keys."""
        counts = [splitter.keys for splitter in splitters if splitter.keys is not None]
        workers, stretch = self.placement
        known = {int(name.removeprefix(KEYS_OF)): n for name, n in progress.metrics.items() if name.startswith(KEYS_OF)}
        if len(counts) == 1:
            known = dict(counts[0].distinct)
        elif len(self._inputs) > 1:
            known = {}  # a worker has a task for each input, and neither knows which keys both have
        measures = []
        for window, (tuples, keys) in loads_by_window(counts, workers).items():
            start = None if stretch is None else stretch.origin + window * stretch.size
            if window in known:
                figures = asdict(WindowLoads(tuple(tuples), tuple(keys), known[window]).metrics(partitioning.balance))
            else:
                loads = WindowLoads(tuple(tuples), tuple(keys), 0)
                most = max(dict(each.distinct).get(window, 0) for each in counts)
                imbalance = loads.tuple_imbalance
                figures = {"workers": workers, "tuples": loads.rows, "keys": most, "tuple_imbalance": imbalance}
            measures.append(PartitionMeasure(start, partitioning.label, **figures))
        metrics = {name: n for name, n in progress.metrics.items() if not name.startswith(KEYS_OF)}
        return replace(progress, partitions=tuple(measures), heaviest=heaviest_of(counts), metrics=metrics)


def _measure_of(report: SplitterReport) -> SplitterMeasure:
    return SplitterMeasure(report.splitter, report.rows, **vars(report.counters or SplitterCounters()))
