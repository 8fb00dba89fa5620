"""Soak test: run a query at full rate for ten minutes, and check that its memory and files do not grow.

    make soak                                      # ten minutes
    python evidence/soak.py --seconds 60           # the short form, with looser bounds

The query reads a recording as blocks. It has a sliding aggregate with a window of a minute, which is short compared
with the recording, and a split whose operator keeps an array per substream. Results are counted and discarded.

The clock starts when the first epoch has ended. The warm-up is a minute (25 s in the short form), and at least as many
epochs as the store takes to be cleaned once. The time after it is cut into fifths, and the median of the last fifth is
compared with that of the first:

| figure | bound, 10 minutes | bound, short form |
|---|---|---|
| resident memory of the driver's Python | grows by less than 5 % | 25 % |
| resident memory of a Python worker that no file backs, mean | grows by less than 5 % | 25 % |
| live state, bytes | grows by less than 5 % | 25 % |
| epoch store (snapshots and blocks), bytes | grows by less than 50 %, since it varies with the snapshots | 100 % |
| ledger, epochs | at most what the runtime keeps | the same |

A worker maps the recording, and the pages it has read count as resident until the system reclaims them. They grow with
the recording and are not a leak. So only the memory that no file backs (`private`) has a bound; all of it is reported.
The JVM's memory is reported without a bound, because its heap grows to its limit (1 GB here) with any query. Process
memory is read from /proc, so this needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import anabranch as ab
from anabranch.io.blocks import schema_of, write_blocks
from anabranch.io.sinks import Published, Sink
from anabranch.local.session import local_session
from anabranch.runtime.runner import FORGET_EVERY, KEPT_EPOCHS
from anabranch.runtime.start import SNAPSHOT_EVERY
from anabranch.text import size
from anabranch.types import EpochQuery, State

SECONDS = 600
SHORT = 300
"""A soak of fewer seconds is the short form."""
WARM_UP, SHORT_WARM_UP = 60, 25
SAMPLE_EVERY = 2.0
ROWS_PER_EPOCH = 40_000
MOST_ROWS_PER_SECOND = 60_000
"""The recording is long enough for this rate. A faster machine ends the soak early, and the report says so."""
ROWS_PER_EVENT_SECOND = 2_000
BLOCK = 5_000
SUBSTREAMS = 8
CYCLE = SNAPSHOT_EVERY + FORGET_EVERY
"""Epochs until every group has a snapshot and the input before it is removed. Until then the store must grow."""
BOUNDS = {"driver": 0.05, "private": 0.05, "state": 0.05, "store": 0.5}
SHORT_BOUNDS = {"driver": 0.25, "private": 0.25, "state": 0.25, "store": 1.0}
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Discard(Sink):
    """Counts epochs. The runtime removes the staged results."""

    guarantee = "none: the rows are discarded"

    def __init__(self) -> None:
        self.epochs = 0

    def publish(self, result: Published) -> None:
        self.epochs += 1


class Sums(ab.Operator):
    """A running sum per key: state of fixed size, a row per epoch and substream."""

    def open(self, state: State) -> None:
        self.sums = state.array("sums", np.int64, 1_000)

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[pa.RecordBatch]:
        np.add.at(self.sums, block.column("key").to_numpy(), block.column("v").to_numpy())
        yield pa.RecordBatch.from_pydict({"g": [self.group], "total": [int(self.sums.sum())]})


def route(block: pa.RecordBatch, q: int) -> np.ndarray[Any, Any]:
    """The substream of each row, by key."""
    return np.asarray(block.column("key").to_numpy() % q)


def record(path: Path, rows: int) -> None:
    """Write rows (t, key, v) in the order of time, block by block, so that this process needs little memory."""
    rng = np.random.default_rng(1)
    step = 1_000_000 // ROWS_PER_EVENT_SECOND

    def blocks() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, BLOCK):
            count = min(BLOCK, rows - first)
            t = np.arange(first, first + count, dtype=np.int64) * step
            key, v = (rng.integers(0, 1_000, count).astype(np.int32) for _ in range(2))
            yield pa.RecordBatch.from_pydict({"t": t, "key": key, "v": v})

    write_blocks(path, blocks())


@dataclass(frozen=True)
class Sample:
    """Measurements at one moment; memory and files in bytes."""

    seconds: float
    epochs: int
    driver: int
    worker: int
    """Resident memory of a Python worker, the mean."""
    private: int
    """The part of it that no file backs. Mapped blocks of the recording that a worker has read are resident too."""
    workers: int
    jvm: int
    state: int
    store: int
    checkpoint: int
    ledger: int
    """Epochs in the ledger."""


def memory(root: int) -> tuple[int, list[tuple[int, int]], int]:
    """Resident bytes of the driver, (resident, private) of each Python process below the JVM, and those of the JVM."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # the process has ended
                continue
            children.setdefault(parent, []).append(int(entry.name))
    workers, jvm = [], 0
    waiting = list(children.get(root, []))
    while waiting:
        process = waiting.pop()
        waiting += children.get(process, [])
        try:
            name = Path(f"/proc/{process}/comm").read_text().strip()
            resident, private = _resident(process)
        except OSError:
            continue
        if name.startswith("java"):
            jvm += resident
        elif name.startswith("python"):
            workers.append((resident, private))
    return _resident(root)[0], workers, jvm


def _resident(process: int) -> tuple[int, int]:
    """All resident bytes, and those that are not pages of a file."""
    resident, shared = (int(pages) * _PAGE for pages in Path(f"/proc/{process}/statm").read_text().split()[1:3])
    return resident, resident - shared


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder. Files that disappear during the walk do not count."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(where, name)).st_size
            except OSError:
                continue
    return total


def sample(began: float, query: EpochQuery, checkpoint: Path) -> Sample:
    driver, workers, jvm = memory(os.getpid())
    last = query.lastProgress
    return Sample(
        seconds=time.monotonic() - began,
        epochs=0 if last is None else last.epoch + 1,
        driver=driver,
        worker=round(statistics.mean(resident for resident, _ in workers)) if workers else 0,
        private=round(statistics.mean(private for _, private in workers)) if workers else 0,
        workers=len(workers),
        jvm=jvm,
        state=0 if last is None else last.state_bytes,
        store=folder_bytes(checkpoint / "state"),
        checkpoint=folder_bytes(checkpoint),
        ledger=sum(name.endswith(".done") for name in os.listdir(checkpoint / "ledger")),
    )


def soak(seconds: int, folder: Path, console: Console) -> tuple[list[Sample], int]:
    """Run the query for that long. Returns the samples, and the number of rows that the query has read."""
    rows = max(seconds, 60) * MOST_ROWS_PER_SECOND
    console.print(f"recording {rows:,} rows: {rows // ROWS_PER_EVENT_SECOND // 60:,} minutes of event time")
    path = folder / "recording" / "rows.arrow"
    path.parent.mkdir()
    record(path, rows)
    config = {"spark.driver.memory": "1g", "spark.sql.streaming.minBatchesToRetain": "10"}
    spark = local_session(cores=2, shuffle_partitions=2, config=config, app_name="anabranch soak")
    source = ab.replay(spark, path.parent, time="t", rows_per_epoch=ROWS_PER_EPOCH, blocks=True)
    stream = ab.block_stream(source, time="t", time_unit="us", watermark="1 s", schema=schema_of(path))
    windows = stream.window(size="1 min", slide="1 s").by("key").agg(n=ab.count(), total=ab.sum("v"))
    sums = stream.split(SUBSTREAMS, route=route).process(Sums, "g bigint, total bigint")
    checkpoint, samples, taken = folder / "checkpoint", [], 0
    query = ab.start(windows.to(Discard()), sums.to(Discard()), checkpoint=checkpoint, live=folder / "live")
    try:
        while query.isActive and query.lastProgress is None:  # the first epoch starts processes and compiles kernels
            time.sleep(SAMPLE_EVERY)
        began = time.monotonic()
        while time.monotonic() - began < seconds and query.isActive:
            time.sleep(SAMPLE_EVERY)
            samples.append(sample(began, query, checkpoint))
            taken = samples[-1].epochs * ROWS_PER_EPOCH
            if taken >= rows:
                console.print("the recording has ended early: this machine is faster than MOST_ROWS_PER_SECOND")
                break
        failed = query.exception()
        if failed is not None:
            raise failed
    finally:
        query.stop()
    return samples, taken


@dataclass(frozen=True)
class Verdict:
    """One figure: its medians in the first and the last fifth after the warm-up."""

    figure: str
    first: float
    last: float
    bound: float | None
    """The largest value allowed for `last`; None if the figure is only reported."""

    @property
    def fine(self) -> bool:
        return self.bound is None or self.last <= self.bound


def judge(samples: list[Sample], *, warm_up: float, bounds: dict[str, float]) -> list[Verdict]:
    """The verdicts. They need ten samples and a whole cycle of the store after the warm-up."""
    warm = [each for each in samples if each.seconds >= warm_up and each.epochs >= CYCLE]
    passed = warm[-1].epochs - warm[0].epochs if warm else 0
    if len(warm) < 10 or passed < CYCLE:
        raise SystemExit(
            f"only {len(warm)} samples and {passed} epochs after the warm-up: too few to show growth\n"
            f"  hint: soak for longer; the warm-up takes {CYCLE} epochs, and as many must follow"
        )
    fifth = len(warm) // 5
    verdicts = []
    for figure in ("driver", "worker", "private", "jvm", "workers", "state", "store", "checkpoint"):
        first, last = (statistics.median(getattr(s, figure) for s in part) for part in (warm[:fifth], warm[-fifth:]))
        growth = bounds.get(figure)
        verdicts.append(Verdict(figure, first, last, None if growth is None else first * (1 + growth)))
    # The ledger keeps KEPT_EPOCHS and the epochs since the oldest snapshot, and is cleaned every few epochs.
    most = KEPT_EPOCHS + CYCLE
    verdicts.append(Verdict("ledger", warm[0].ledger, max(each.ledger for each in warm), most))
    return verdicts


def show(console: Console, verdicts: list[Verdict]) -> None:
    table = Table("figure", "first fifth", "last fifth", "growth", "at most", "", box=None, header_style="bold")
    for each in verdicts:
        shown = size if each.figure not in ("workers", "ledger") else (lambda number: f"{number:,.0f}")
        growth = f"{each.last / each.first - 1:+.1%}" if each.first else "-"
        bound = "-" if each.bound is None else shown(round(each.bound))
        mark = "" if each.bound is None else "[green]fine[/]" if each.fine else "[red]grows[/]"
        table.add_row(each.figure, shown(round(each.first)), shown(round(each.last)), growth, bound, mark)
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"duration; below {SHORT} the bounds are looser")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object on the last line")
    asked = parser.parse_args()
    if not Path("/proc/self/statm").exists():
        raise SystemExit("this needs Linux: memory is read from /proc")
    console = Console()
    short = asked.seconds < SHORT
    warm_up, bounds = (SHORT_WARM_UP, SHORT_BOUNDS) if short else (WARM_UP, BOUNDS)
    folder = Path(tempfile.mkdtemp(prefix="anabranch-soak-"))
    try:
        samples, rows = soak(asked.seconds, folder, console)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    verdicts = judge(samples, warm_up=warm_up, bounds=bounds)
    kind = "short form, looser bounds" if short else "full form"
    console.print(f"{kind}: {samples[-1].epochs:,} epochs, {rows:,} rows in {samples[-1].seconds:,.0f} s")
    show(console, verdicts)
    fine = all(each.fine for each in verdicts)
    if asked.json:
        found = {each.figure: asdict(each) | {"fine": each.fine} for each in verdicts}
        sampled = [asdict(each) for each in samples]
        print(json.dumps({"fine": fine, "short": short, "rows": rows, "figures": found, "samples": sampled}))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
