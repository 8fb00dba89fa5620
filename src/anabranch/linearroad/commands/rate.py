"""`anabranch linearroad rate`: the largest L that this machine can handle.

A trial drives L expressways:

    seconds of the trace   0 ───────────────────────────── from ─────────── end
                             as fast as possible: warm-up    in real time
                             gives the sustained rate        gives the response times

The trace consists of a few distinct expressways and copies of them, each with its own cars. Its rate rises like the
benchmark's, from 14 to 1,700 tuples per second and expressway, but in less time. Its end, where the rate is highest, is
replayed in real time.

A trial *holds* if every answer, including the warm-up's, equals the reference, and every answer to a tuple in real time
was published within its limit. Response time counts from the second in which the tuple was due until the epoch with its
answer was published. If a time is not known exactly, the one that makes the response time longer is used.

The first L is a guess; each next one follows from the measurements. The progress of every epoch of a trial is kept as
JSON lines in `epochs-L.jsonl`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import anabranch as ab
from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.check.reference import Expected, expected_answers
from anabranch.linearroad.check.validate import Report, validate
from anabranch.linearroad.generate import Trace, Traffic, combine, write_trace
from anabranch.linearroad.generate.trace import BLOCKS
from anabranch.linearroad.job import live_folder, wait_for
from anabranch.linearroad.operator import road_of
from anabranch.linearroad.query import linear_road, recorded
from anabranch.linearroad.schema import LIMITS, Mode
from anabranch.linearroad.watch import Watch
from anabranch.local import local_session, usable_cores
from anabranch.types import EpochProgress

SNAPSHOT_EVERY = 120
"""Epochs between two snapshots, about four minutes: the state is gigabytes, and in between its input is logged."""
WARM_ROWS = 4_000_000
"""Maximum number of tuples in an epoch."""
FOLDER = "linear-road-rate"
"""Subfolder of the working folder; it is removed at the end."""
MARGIN = 0.85
"""Share of the sustained rate to aim for with the next L: an epoch has some fixed costs."""
FIRST_PER_CORE = 64
"""Expressways per core in the first trial."""
STEP = 1.08
"""The next L must differ from the last by at least this factor to be worth a trial."""


@dataclass(frozen=True)
class Course:
    """The trace of a trial, and which part of it is replayed in real time."""

    seconds: int = 900
    paced: int = 180
    """seconds at the end that are replayed in real time; 0: none, only the sustained rate is measured"""
    base: int = 2
    """number of distinct expressways; a car may come back on any of them"""
    seed: int = 1
    peak_rate: float = 1_700.0
    mode: Mode = Mode.PAPER

    def __post_init__(self) -> None:
        if not 0 <= self.paced < self.seconds or self.begin % 60:
            raise InvalidArgumentError(
                f"{self.paced} of {self.seconds} seconds cannot be in real time",
                hint="give fewer seconds than the trace has, so that real time begins with a whole minute",
            )

    @property
    def begin(self) -> int:
        """The second at which real time begins."""
        return self.seconds - self.paced


@dataclass(frozen=True)
class Trial:
    """The result of a trial with a number of expressways."""

    expressways: int
    tuples: int
    paced_tuples: int
    sustained: float
    """tuples per second of wall time without a pace, over the second half of the warm-up"""
    worst_response: dict[str, float]
    """seconds, by kind of answer"""
    report: Report
    cpu_microseconds: float | None
    """busy time of all cores per tuple in real time"""
    epochs: int
    """number of epochs in real time"""
    longest_epoch: float
    profile: dict[str, float] = field(default_factory=dict)
    """busy microseconds per tuple in the second half of the warm-up, by kind of work"""

    @property
    def late(self) -> dict[str, float]:
        return {kind: worst for kind, worst in self.worst_response.items() if worst > LIMITS[kind]}

    @property
    def holds(self) -> bool:
        return not self.late and not self.report.differences

    @property
    def wrong(self) -> int:
        """Differences other than late answers."""
        return self.report.differences - sum(each.late or 0 for each in self.report.by_kind.values())

    def to_json(self) -> dict[str, Any]:
        """The main figures, as plain values."""
        worst = {kind: round(seconds, 2) for kind, seconds in self.worst_response.items()}
        late = self.report.differences - self.wrong
        return {"L": self.expressways, "holds": self.holds, "wrong": self.wrong, "late": late, "worst_response": worst}

    def describe(self) -> str:
        """The main figures in one line."""
        worst = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in self.worst_response.items())
        verdict = "holds" if self.holds else "does not hold"
        return (
            f"L = {self.expressways} {verdict}: {self.report.differences:,} differences, slowest {worst}; "
            f"{self.sustained:,.0f} tuples/s sustained"
        )


Say = Callable[[str], None]


class Rater:
    """Runs trials in a folder. The base trace and its right answers are computed once."""

    def __init__(self, spark: SparkSession, course: Course, work: Path, say: Say) -> None:
        self._spark = spark
        self._course = course
        self._work = work = work / FOLDER
        self._say = say
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        say(f"simulating {course.base} expressways, {course.seconds} s, and computing the right answers")
        self._base = write_trace(work / "base", Traffic(course.base, course.seconds, course.seed, course.peak_rate))
        self._expected: Expected = expected_answers(
            self._base.input_files, self._base.history_file, self._base.segment_history_file, course.mode,
            work / "expected",
        )  # fmt: skip

    def search(self, first: int, trials: int) -> list[Trial]:
        """Run trials until the next L would be close to one that was tried."""
        done: list[Trial] = []
        wanted: int | None = first
        while wanted is not None and len(done) < trials:
            trial = self.trial(wanted)
            self._say(trial.describe())
            done.append(trial)
            wanted = next_expressways(done, self._course)
        return done

    def trial(self, expressways: int) -> Trial:
        """Run that many expressways, and check all answers."""
        copies = -(-expressways // self._course.base)
        folder = self._work / f"L{copies * self._course.base}"
        with _removed(folder):
            self._say(f"L = {copies * self._course.base}: writing the trace")
            trace = combine(self._base, folder / "trace", copies, formats=(BLOCKS,))
            return self._drive(trace, folder)

    def _drive(self, trace: Trace, folder: Path) -> Trial:
        course, output = self._course, folder / "output"
        warm = sum(trace.per_minute[: course.begin // 60])
        road = road_of(course.mode, trace.expressways, trace.history_file, trace.segment_history_file)
        pace, start = (1.0, course.begin) if course.paced else (None, None)
        blocks = trace.folder / "blocks"
        stream = recorded(self._spark, blocks, rows_per_epoch=WARM_ROWS, pace=pace, pace_from=start)
        self._say(
            f"L = {trace.expressways}: {warm:,} tuples as fast as possible, then {trace.tuples - warm:,} in real time"
        )
        watch = Watch(warm, trace.tuples, course.begin)
        epochs = self._work.parent / f"epochs-{trace.expressways}.jsonl"
        epochs.unlink(missing_ok=True)
        with live_folder() as live, ab.JsonLines(epochs) as lines:
            query = ab.start(
                *linear_road(stream, road, output),
                checkpoint=folder / "checkpoint",
                snapshot_every=SNAPSHOT_EVERY,
                listeners=[watch, lines],
                live=live,
            )
            wait_for(query, until=watch.hopeless)
        self._say(f"L = {trace.expressways}: comparing all answers with the reference")
        report = validate(
            self._base.input_files, self._base.history_file, self._base.segment_history_file, output, course.mode,
            trace.numbering, expected=self._expected, published=watch.published or None,
        )  # fmt: skip
        return trial_of(watch, trace, report)


def next_expressways(done: list[Trial], course: Course) -> int | None:
    """The next L: what the sustained rate suggests, between those that held and those that did not; None: stop."""
    held = max((each.expressways for each in done if each.holds), default=0)
    failed = min((each.expressways for each in done if not each.holds), default=None)
    promised = int(MARGIN * done[-1].sustained / course.peak_rate)
    if failed is None:
        wanted = promised
    elif held:
        wanted = (held + failed) // 2
    else:
        wanted = min(promised, int(failed / 1.25))
    wanted -= wanted % course.base
    if wanted < course.base or (held and wanted < held * STEP) or (failed and wanted * STEP > failed):
        return None
    return wanted


def trial_of(watch: Watch, trace: Trace, report: Report) -> Trial:
    """The result of a trial."""
    late_half = watch.warm[len(watch.warm) // 2 :]
    paced = sum(each.rows for each in watch.paced)
    rows = sum(each.rows for each in late_half)
    took = late_half[-1].started + late_half[-1].seconds - late_half[0].started
    busy = [each for each in watch.busy if each is not None]
    cpu = (busy[1] - busy[0]) / paced * 1e6 if len(busy) == 2 and paced else None
    worst = {kind: each.worst_response for kind, each in report.by_kind.items() if each.worst_response is not None}
    return Trial(
        expressways=trace.expressways,
        tuples=watch.rows,
        paced_tuples=paced,
        sustained=rows / took,
        worst_response=worst,
        report=report,
        cpu_microseconds=cpu,
        epochs=len(watch.paced),
        longest_epoch=max((each.seconds for each in watch.paced), default=0.0),
        profile=profile_of(late_half),
    )


def profile_of(epochs: list[EpochProgress]) -> dict[str, float]:
    """Where the time goes: busy microseconds per tuple, summed over tasks. Unmeasured work is not included."""
    rows = sum(each.rows for each in epochs) or 1
    splitters = [splitter for each in epochs for operator in each.operators for splitter in operator.splitters]
    workers = [worker for each in epochs for operator in each.operators for worker in operator.workers]
    parts = {
        "read": sum(each.read_seconds for each in splitters),
        "split": sum(each.split_seconds for each in splitters),
        "pack": sum(each.emit_seconds for each in splitters),
        "unpack": sum(each.read_seconds for each in workers),
        "merge": sum(each.merge_seconds for each in workers),
        "kernel": sum(each.query_seconds for each in workers),
        "log and state": sum(each.store_seconds for each in workers),
        "output": sum(each.write_seconds for each in workers),
        "combine": sum(op.seconds for each in epochs for op in each.operators if op.name.startswith("combine")),
    }
    return {name: seconds / rows * 1e6 for name, seconds in parts.items()}


def rate_machine(course: Course, work: Path, *, first: int | None, trials: int, console: Console) -> dict[str, Any]:
    """Run the trials, report on each, and return the figures."""
    spark = local_session(shuffle_partitions=usable_cores(), app_name="anabranch linearroad rate")
    cores = usable_cores()
    with console.status("") as status:

        def say(text: str) -> None:
            console.log(text, highlight=False)
            status.update(text)

        try:
            done = Rater(spark, course, work, say).search(first or FIRST_PER_CORE * cores, trials)
        finally:
            shutil.rmtree(work / FOLDER, ignore_errors=True)
    found = rating(done, course, cores)
    console.print(table_of(found))
    return found


def table_of(found: dict[str, Any]) -> Table:
    """The figures as a table."""
    rated = f"L = {found['L']}" if found["L"] is not None else f"{found['tuples_per_second']:,} tuples/s"
    table = Table(title=f"Linear Road, mode {found['mode']}: {rated} on {found['cores']} cores", box=None)
    table.add_column()
    table.add_column(justify="right")
    for name, value in found.items():
        if isinstance(value, dict):
            for part, figure in value.items():
                table.add_row(f"{name.replace('_', ' ')}: {part}", f"{figure:,}")
        elif not isinstance(value, list):
            table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int | float) else str(value))
    return table


def rating(done: list[Trial], course: Course, cores: int) -> dict[str, Any]:
    """The figures as plain values: of the largest L that held, or of the smallest that did not."""
    held = [each for each in done if each.holds]
    best = max(held, key=lambda each: each.expressways) if held else min(done, key=lambda each: each.expressways)
    rate = best.paced_tuples / course.paced if course.paced else best.sustained
    return {
        "L": (best.expressways if held else 0) if course.paced else None,
        "tuples_per_second": round(rate),
        "worst_response": {kind: round(seconds, 2) for kind, seconds in best.worst_response.items()},
        "differences": best.report.differences,
        "mode": course.mode.value,
        "cores": cores,
        "tuples_per_second_and_core": round(rate / cores),
        "sustained_tuples_per_second": round(best.sustained),
        "cpu_microseconds_per_tuple": None if best.cpu_microseconds is None else round(best.cpu_microseconds, 3),
        "trace": f"{course.base} expressways of seed {course.seed}, {course.seconds} s, and copies",
        "seconds_in_real_time": [course.begin, course.seconds],
        "tuples": best.tuples,
        "tuples_in_real_time": best.paced_tuples,
        "longest_epoch": round(best.longest_epoch, 2),
        "profile_microseconds_per_tuple": {name: round(value, 3) for name, value in best.profile.items()},
        "trials": [each.to_json() for each in done],
    }


@contextmanager
def _removed(folder: Path) -> Iterator[None]:
    """Remove the folder before and after: a trial's files are many gigabytes."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
