"""`anabranch linearroad run`: all answers to a recorded input, written as Parquet."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import anabranch as ab
from anabranch.errors import InvalidArgumentError, JobError
from anabranch.linearroad.operator import road_of
from anabranch.linearroad.query import REJECTED, answer_files, check_columns, linear_road, recorded
from anabranch.linearroad.schema import ANSWERS, Mode, answer_schema
from anabranch.linearroad.watch import Watch, write_emitted
from anabranch.local import asked_to_stop, spark_session
from anabranch.recordings import Recording, read_block
from anabranch.types import EpochProgress, EpochQuery

ROWS_PER_EPOCH = 2_000_000
_POLL_SECONDS = 0.5
"""Seconds between two checks whether a query must stop."""
_MEMORY = Path("/dev/shm")
_FREE_BYTES = 4 << 30
"""Bytes that must be free there; in a container it is often tiny."""
CHECKPOINT = "_checkpoint"
"""Subfolder of the output folder, from which an interrupted run continues."""


@dataclass(frozen=True)
class Done:
    """The result of a run."""

    tuples: int
    """tuples of this run; fewer than the input if it continued another run"""
    left: int
    """tuples of the input that were not read, because the run was stopped"""
    late: int
    bad: int
    """late: tuples out of order; bad: tuples without a time. They are kept, but not answered"""
    answers: dict[str, int]
    """answers of all runs into the output folder, by kind"""
    rejected: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tuples per second."""
        return self.tuples / self.seconds if self.seconds > 0 else 0.0


def run(
    *,
    input: Path,
    history: Path | None,
    segment_history: Path | None,
    output: Path,
    mode: Mode,
    master: str | None = None,
    rows_per_epoch: int = ROWS_PER_EPOCH,
    paced_from: int | None = None,
    console: Console,
) -> Done:
    """Answer everything in the input; see `anabranch linearroad run --help`.

    `paced_from`: replay in real time from this second on, and record when answers are published.
    """
    expressways, tuples = extent_of(input)
    watch = None if paced_from is None else _watched(input, output, paced_from, tuples)
    road = road_of(mode, expressways, history, segment_history)
    spark = spark_session(master, app_name="anabranch linearroad")
    pace = None if paced_from is None else 1.0
    reports = recorded(spark, input, rows_per_epoch=rows_per_epoch, pace=pace, pace_from=paced_from)
    began = time.perf_counter()
    with progress_bar(console, "tuples") as progress, live_folder(master) as live:
        counts = _ProgressListener(progress, tuples)
        query = ab.start(
            *linear_road(reports, road, output),
            checkpoint=output / CHECKPOINT,
            # For Spark, a recording with a pace has no end.
            trigger="available-now" if watch is None else None,
            listeners=[counts] if watch is None else [counts, watch],
            live=live,
        )
        finished = wait_for(query) if watch is None else wait_for(query, until=watch.done)
    if watch is not None:
        write_emitted(output, watch.published)
    answers, rejected = complete(output)
    left = 0 if finished else tuples - counts.rows
    return Done(counts.rows, left, counts.late, counts.bad, answers, rejected, time.perf_counter() - began)


def _watched(input: Path, output: Path, paced_from: int, tuples: int) -> Watch:
    """The listener that records when answers are published."""
    if (output / CHECKPOINT).exists():
        raise InvalidArgumentError(
            f"{output} has the answers of another run: a run in real time cannot continue it, because the time between "
            "the two would be missing from the response times",
            hint="give a new folder, or leave out --paced-from to continue without response times",
        )
    warm = Recording(input, "Time").first_after(paced_from * 1_000_000 - 1)
    if not 0 < warm < tuples:
        raise InvalidArgumentError(
            f"{warm:,} of {tuples:,} tuples are before second {paced_from}: real time must begin within the input",
            hint="give a second with some tuples before it and some after",
        )
    return Watch(warm, tuples, paced_from)


def wait_for(query: EpochQuery, until: Callable[[], bool] = lambda: False) -> bool:
    """Wait until the query ends (True) or must stop (False). If it fails, raise a readable error.

    Ctrl-C and SIGTERM stop it after the current epoch.
    """
    try:
        with asked_to_stop() as asked:
            while not query.awaitTermination(_POLL_SECONDS):
                if until() or asked():
                    return False
        return True
    except StreamingQueryException as error:
        raise JobError(
            f"the run failed: {query.health.why}",
            hint="fix the cause and run the same command again: it continues where it stopped",
        ) from error
    finally:
        query.stop()


@contextmanager
def live_folder(master: str | None = None) -> Iterator[Path | None]:
    """A folder in memory for live state, removed afterwards; None on a cluster, or if the machine has none.

    On a disk, the system would keep writing the state out. Everything that must survive is in the epoch store.
    """
    if not (master or "local").startswith("local") or not _MEMORY.is_dir() or disk_usage(_MEMORY).free < _FREE_BYTES:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="anabranch-live-", dir=_MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def extent_of(path: Path) -> tuple[int, int]:
    """The number of expressways in a recording (the largest number plus one), and of its tuples."""
    check_columns(path)
    recording = Recording(path, "Time", times=False)
    numbers = (read_block(block.path, block.index, columns=["XWay"]).column(0) for block in recording.blocks)
    return max((pc.max(each).as_py() or 0 for each in numbers), default=0) + 1, recording.rows


def complete(output: Path) -> tuple[dict[str, int], int]:
    """Count the answers and the rejected tuples.

    A kind without answers gets an empty file, so that it can be read like the others.
    """
    counts = {kind: sum(pq.read_metadata(file).num_rows for file in answer_files(output, kind)) for kind in ANSWERS}
    for kind, count in counts.items():
        if not count:
            Path(output, kind).mkdir(parents=True, exist_ok=True)
            pq.write_table(answer_schema(kind).empty_table(), Path(output, kind, "none.parquet"))
    return counts, sum(pq.read_metadata(file).num_rows for file in answer_files(output, REJECTED))


class _ProgressListener:
    """A listener that counts tuples and advances a progress bar."""

    def __init__(self, progress: Progress, tuples: int) -> None:
        self._progress = progress
        self._task = progress.add_task("Driving", total=tuples)
        self.rows = self.late = self.bad = 0

    def on_started(self, query: str, run: str) -> None:
        """Nothing to do yet."""

    def on_progress(self, progress: EpochProgress) -> None:
        """Count an epoch."""
        self.rows += progress.rows
        self.late += progress.late
        self.bad += progress.bad
        self._progress.advance(self._task, progress.rows)

    def on_terminated(self, query: str, error: str | None) -> None:
        """Nothing more to do."""


def progress_bar(console: Console, unit: str) -> Progress:
    """A progress bar that counts in the given unit."""
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=console,
    )
