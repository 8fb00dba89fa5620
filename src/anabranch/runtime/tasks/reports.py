"""What the tasks of an operator's job report to the driver: one JSON text per task, in a separate column.

WorkerReport     a worker: what it did with its groups, and the reports of the splitters
WriterReport     a task that wrote results
SideReport       a task that kept rows aside: how many, by reason
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from pyspark.sql import DataFrame

from anabranch.io.parquet import Written
from anabranch.observe.progress import WorkerMeasure
from anabranch.split.report import REPORT_VERSION, SplitterReport, check_report


@dataclass(frozen=True)
class WorkerReport:
    """What a worker did in an epoch."""

    kind: ClassVar[str] = "worker"
    measured: WorkerMeasure
    watermark: int | None
    active: frozenset[int]
    """groups that it ran, and groups that wait for their turn"""
    block_groups: frozenset[int]
    """groups with rows in the log of this epoch"""
    waiting: Mapping[int, int] = field(default_factory=dict)
    """rows of this epoch that wait for their turn, by group"""
    snapshots: Mapping[int, int] = field(default_factory=dict)
    """the epoch of the snapshot, for each group that has a new one"""
    outputs: Mapping[str, Written] = field(default_factory=dict)
    """what it wrote; empty if Spark processes its results further"""
    metrics: Mapping[str, int] = field(default_factory=dict)
    """the operators' own metrics"""
    splitters: tuple[SplitterReport, ...] = ()
    """only from the first worker, since all workers get the same reports"""

    @property
    def worker(self) -> int:
        return self.measured.worker

    def to_json(self) -> dict[str, Any]:
        return {
            "measured": {each.name: getattr(self.measured, each.name) for each in fields(self.measured)},
            "watermark": self.watermark,
            "active": sorted(self.active),
            "block_groups": sorted(self.block_groups),
            "waiting": self.waiting,
            "snapshots": self.snapshots,
            "outputs": {name: asdict(each) for name, each in self.outputs.items()},
            "metrics": self.metrics,
            "splitters": [each.to_json() for each in self.splitters],
        }

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> WorkerReport:
        measured = known["measured"]
        groups = tuple((group, seconds) for group, seconds in measured["group_seconds"])
        return cls(
            WorkerMeasure(**{**measured, "group_seconds": groups}),
            known["watermark"],
            frozenset(known["active"]),
            frozenset(known["block_groups"]),
            {int(group): rows for group, rows in known["waiting"].items()},
            {int(group): epoch for group, epoch in known["snapshots"].items()},
            {name: Written(**each) for name, each in known["outputs"].items()},
            known["metrics"],
            tuple(SplitterReport.from_json(each) for each in known["splitters"]),
        )


@dataclass(frozen=True)
class WriterReport:
    """What a task wrote."""

    kind: ClassVar[str] = "writer"
    written: Written

    def to_json(self) -> dict[str, Any]:
        return {"written": asdict(self.written)}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> WriterReport:
        return cls(Written(**known["written"]))


@dataclass(frozen=True)
class SideReport:
    """How many rows a task kept aside, by reason."""

    kind: ClassVar[str] = "side"
    reasons: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        return {"reasons": dict(self.reasons)}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> SideReport:
        return cls(known["reasons"])


Report = WorkerReport | WriterReport | SideReport
_KINDS: dict[str, type[WorkerReport] | type[WriterReport] | type[SideReport]] = {
    each.kind: each for each in (WorkerReport, WriterReport, SideReport)
}


def to_text(report: Report) -> str:
    """A report as JSON text."""
    return json.dumps({"version": REPORT_VERSION, "kind": report.kind, **report.to_json()})


def from_text(text: str) -> Report:
    known = json.loads(text)
    check_report(known)
    return _KINDS[known["kind"]].from_json(known)


@dataclass(frozen=True)
class JobReports:
    """What all tasks of a job reported."""

    workers: tuple[WorkerReport, ...]
    """by number; if a task ran twice, its last report counts"""
    written: tuple[Written, ...]
    reasons: Mapping[str, int]

    @classmethod
    def of(cls, reports: Iterable[Report]) -> JobReports:
        workers: dict[int, WorkerReport] = {}
        written: list[Written] = []
        reasons: Counter[str] = Counter()
        for report in reports:
            if isinstance(report, WorkerReport):
                workers[report.worker] = report
            elif isinstance(report, WriterReport):
                written.append(report.written)
            else:
                reasons.update(report.reasons)
        return cls(tuple(workers[number] for number in sorted(workers)), tuple(written), reasons)

    @property
    def splitters(self) -> tuple[SplitterReport, ...]:
        return tuple(report for worker in self.workers for report in worker.splitters)


def run_job(result: DataFrame) -> JobReports:
    """Run the job and read the reports of its tasks."""
    return JobReports.of(from_text(row[0]) for row in result.collect())
