"""`anabranch linearroad run`: all answers to a recorded input, written as Parquet."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import anabranch as ab
from anabranch.embedded import session
from anabranch.errors import InvalidArgumentError, JobError
from anabranch.linearroad.operator import Road
from anabranch.linearroad.query import linear_road, recorded
from anabranch.linearroad.schema import ANSWERS, Mode, answer_schema
from anabranch.running import cause_of

GROUPS = 60
"""Partition-groups, unless there are fewer expressways: far more than workers, so that they can be moved."""
ROWS_PER_EPOCH = 2_000_000
_LOOK = 0.5
"""Seconds between two looks whether a query is to be stopped."""
_MEMORY = Path("/dev/shm")
CHECKPOINT = "_checkpoint"
"""In the output folder: a run that was cut short goes on when it is started again."""


@dataclass(frozen=True)
class Done:
    """What a run has done."""

    tuples: int
    answers: dict[str, int]
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
    console: Console,
) -> Done:
    """Answer everything in the input, at once; see `anabranch linearroad run --help`."""
    expressways, tuples = extent_of(input)
    road = Road(mode, expressways, min(GROUPS, expressways), _known(history), _known(segment_history))
    spark = session(master, app_name="anabranch linearroad")
    reports = recorded(spark, input, rows_per_epoch=rows_per_epoch)
    began = time.perf_counter()
    with progress_bar(console, "tuples") as progress, live_folder(master) as live:
        query = ab.start(
            *linear_road(reports, road, output),
            checkpoint=output / CHECKPOINT,
            trigger="available-now",
            listeners=[_Bar(progress, tuples)],
            live=live,
        )
        wait_for(query)
    return Done(tuples, complete(output), time.perf_counter() - began)


def wait_for(query: ab.EpochQuery, until: Callable[[], bool] = lambda: False) -> None:
    """Until the query ends, or is to be stopped; and its failure as an error for people."""
    try:
        while not query.awaitTermination(_LOOK):
            if until():
                query.stop()
                return
    except StreamingQueryException as error:
        raise JobError(
            f"the run failed: {cause_of(error)}",
            hint="mend the cause and run the same command again: it goes on where it was",
        ) from error


@contextmanager
def live_folder(master: str | None = None) -> Iterator[Path | None]:
    """A folder in memory for the live state, removed afterwards; None on a cluster, and where the machine has none.

    On a disk the system would write the state out all the time. What must survive is in the epoch store.
    """
    if not _MEMORY.is_dir() or not (master or "local").startswith("local"):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="anabranch-live-", dir=_MEMORY) as folder:
        yield Path(folder)


def extent_of(path: Path) -> tuple[int, int]:
    """How many expressways a recording has (the largest number plus one), and how many tuples."""
    if not path.exists():
        raise InvalidArgumentError(f"there is no input at {path}", hint="name a Parquet or Arrow file, or a folder")
    kind = "parquet" if _is_parquet(path) else "arrow"
    files = ds.dataset(path, format=kind)
    if "XWay" not in files.schema.names:
        raise InvalidArgumentError(f"{path} has no column XWay, so it is no input of Linear Road", hint="see --help")
    largest, tuples = -1, 0
    for batch in files.to_batches(columns=["XWay"]):
        tuples += batch.num_rows
        largest = max(largest, pc.max(batch.column(0)).as_py() or 0)
    return max(1, largest + 1), tuples


def complete(output: Path) -> dict[str, int]:
    """Count the answers; a kind without any gets an empty file, so that it can be read like the others."""
    counted = {}
    for name in ANSWERS:
        files = sorted(Path(output, name).glob("epoch=*/*.parquet"))
        if not files:
            empty = Path(output, name, "epoch=0", "none.parquet")
            empty.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(answer_schema(name).empty_table(), empty)
        counted[name] = sum(pq.read_metadata(file).num_rows for file in files)
    return counted


class _Bar:
    """A listener that moves a progress bar."""

    def __init__(self, progress: Progress, tuples: int) -> None:
        self._progress = progress
        self._task = progress.add_task("Driving", total=tuples)

    def on_started(self, query: str, run: str) -> None:
        pass

    def on_progress(self, progress: ab.EpochProgress) -> None:
        self._progress.advance(self._task, progress.rows)

    def on_terminated(self, query: str, error: str | None) -> None:
        pass


def progress_bar(console: Console, unit: str) -> Progress:
    """A bar that counts in that unit."""
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=console,
    )


def _is_parquet(path: Path) -> bool:
    first = path if path.is_file() else min(p for p in path.iterdir() if not p.name.startswith((".", "_")))
    with first.open("rb") as file:
        return file.read(4) == b"PAR1"


def _known(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
