"""Traces of Linear Road on disk: a folder with everything that a run needs.

::

    trace.json               how it was made, and how large it is
    input/input-00000.parquet    the tuples (`schema.INPUT`), ordered by Time within and across files
    blocks/blocks-00000.arrow    the same as blocks (`anabranch.recordings`), each of at most some seconds
    history.parquet              tolls of earlier days (`schema.HISTORY`)
    segment-history.parquet      usual speeds and tolls (`schema.SEGMENT_HISTORY`)

For many expressways, a few are simulated and copied: expressway x of copy c is number ``c * base + x``. Only the last
file may end within a second. A folder gets its name only when it is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.generate.copies import ROWS_PER_BLOCK, Copies, blocks_of_copies
from anabranch.linearroad.generate.past import history_of, segment_history_of, write_copies
from anabranch.linearroad.generate.traffic import Traffic
from anabranch.linearroad.schema import INPUT, Kind
from anabranch.recordings import write_blocks

PARQUET, BLOCKS = "parquet", "blocks"
FORMATS = (PARQUET, BLOCKS)

ROWS_PER_FILE = 8_000_000
"""About 230 MB of blocks; a file is cut at the next second."""
ROWS_PER_GROUP = 262_144
"""Rows in a row group of a Parquet file."""
OFFSET_STEP = 1_000
"""Offsets of VIDs and QIDs are multiples of this, so that a reader sees which copy a car belongs to."""

Progress = Callable[[int, int], None]
"""Called from time to time with the seconds of the trace that are done, and the number of tuples written."""


@dataclass(frozen=True)
class Trace:
    """A trace on disk."""

    folder: Path
    seed: int
    seconds: int
    peak_rate: float
    base: int
    """Number of distinct expressways, which were simulated."""
    copies: int
    vid_offset: int
    qid_offset: int
    tuples: int
    per_minute: tuple[int, ...]
    """Number of tuples in each minute."""

    @classmethod
    def load(cls, folder: str | Path) -> Trace:
        """Load the trace in a folder."""
        path = Path(folder) / "trace.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            values.pop("expressways")
            return cls(**values | {"folder": Path(folder), "per_minute": tuple(values["per_minute"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(
                f"there is no trace in {folder}: {path.name} cannot be read ({error})",
                hint="write one with `write_trace`; an interrupted call leaves none",
            ) from error

    @property
    def expressways(self) -> int:
        """Number of expressways in the trace."""
        return self.base * self.copies

    @property
    def numbering(self) -> Copies:
        """How the numbers of the copies differ."""
        return Copies(self.copies, self.base, self.vid_offset, self.qid_offset)

    @property
    def input_files(self) -> list[Path]:
        """The Parquet files of the tuples, in order of time; none if this format was not written."""
        return sorted((self.folder / "input").glob("input-*.parquet"))

    @property
    def block_files(self) -> list[Path]:
        """The Arrow files of the tuples, in order of time; none if this format was not written."""
        return sorted((self.folder / "blocks").glob("blocks-*.arrow"))

    @property
    def history_file(self) -> Path:
        """The file with the tolls that cars paid on earlier days."""
        return self.folder / "history.parquet"

    @property
    def segment_history_file(self) -> Path:
        """The file with the usual speeds and tolls of segments."""
        return self.folder / "segment-history.parquet"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The tuples in order, as record batches."""
        for path in self.block_files:
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
                for index in range(reader.num_record_batches):
                    yield reader.get_batch(index)
        if not self.block_files:
            for path in self.input_files:
                with pq.ParquetFile(path) as file:
                    yield from file.iter_batches(ROWS_PER_GROUP)

    def _save(self) -> None:
        values = asdict(self) | {"expressways": self.expressways}
        values.pop("folder")
        (self.folder / "trace.json").write_text(json.dumps(values, indent=1), encoding="utf-8")


def write_trace(
    folder: str | Path,
    traffic: Traffic,
    copies: int = 1,
    formats: Sequence[str] = FORMATS,
    progress: Progress | None = None,
    rows_per_block: int = ROWS_PER_BLOCK,
) -> Trace:
    """Simulate the traffic and write copies of it, with its history.

    `formats` says how the tuples are written: "parquet", "blocks" or both. The folder must be new, or empty.
    """
    _check(formats, rows_per_block)
    # The number of cars is known only after the simulation, but the number of expressways can be checked before.
    Copies(copies, traffic.expressways, vid_offset=1, qid_offset=1)
    with _draft_of(Path(folder)) as draft:
        if copies == 1:
            _write_base(draft, traffic, formats, progress, rows_per_block)
        else:
            base = _write_base(draft / "base", traffic, [BLOCKS], None, ROWS_PER_BLOCK)
            _write_copies(base, draft, copies, formats, progress, rows_per_block)
            shutil.rmtree(base.folder)
    return Trace.load(folder)


def combine(
    base: Trace,
    folder: str | Path,
    copies: int,
    formats: Sequence[str] = FORMATS,
    progress: Progress | None = None,
    rows_per_block: int = ROWS_PER_BLOCK,
) -> Trace:
    """Write copies of a trace without simulating it again. The result is the same as that of `write_trace`."""
    _check(formats, rows_per_block)
    if base.copies != 1:
        raise InvalidArgumentError(
            f"{base.folder} already holds copies, with their own numbers of cars and expressways",
            hint="combine copies of the trace that it was made from",
        )
    Copies(copies, base.base, base.vid_offset, base.qid_offset)
    with _draft_of(Path(folder)) as draft:
        _write_copies(base, draft, copies, formats, progress, rows_per_block)
    return Trace.load(folder)


def _check(formats: Sequence[str], rows_per_block: int) -> None:
    if not formats or isinstance(formats, str) or not set(formats) <= set(FORMATS):
        raise InvalidArgumentError(
            f"formats={formats!r} is empty or has an unknown format",
            hint='give a list of "parquet", "blocks" or both',
        )
    if rows_per_block < 1:
        raise InvalidArgumentError(
            f"rows_per_block={rows_per_block} is too small", hint=f"leave it at {ROWS_PER_BLOCK:,}"
        )


@contextmanager
def _draft_of(folder: Path) -> Iterator[Path]:
    """A folder to write to, which gets its final name at the end; if anything fails, it is removed."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidArgumentError(
            f"{folder} is not empty: the trace would be mixed with other files",
            hint="give another folder, or remove this one",
        )
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)  # left by a run that was killed
    draft.mkdir(parents=True)
    try:
        yield draft
        draft.replace(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_base(
    folder: Path, traffic: Traffic, formats: Sequence[str], progress: Progress | None, rows_per_block: int
) -> Trace:
    """Simulate the traffic and write one copy."""
    tally = _Census(traffic.seconds, progress)
    one = Copies(1, traffic.expressways, vid_offset=1, qid_offset=1)
    blocks = (block for chunk in traffic.chunks() for block in blocks_of_copies(chunk, one, rows_per_block))
    _write_tuples(folder, tally.watch(blocks), formats)
    history = history_of(tally.asked(), tally.cars, traffic.expressways, traffic.seed)
    write_copies(folder / "history.parquet", history, [0], {})
    write_copies(folder / "segment-history.parquet", segment_history_of(traffic.expressways, traffic.seed), [0], {})
    trace = Trace(
        folder=folder,
        seed=traffic.seed,
        seconds=traffic.seconds,
        peak_rate=traffic.peak_rate,
        base=traffic.expressways,
        copies=1,
        vid_offset=_offset(tally.cars),
        qid_offset=_offset(tally.queries),
        tuples=tally.tuples,
        per_minute=tally.per_minute,
    )
    trace._save()
    return trace


def _write_copies(
    base: Trace,
    folder: Path,
    count: int,
    formats: Sequence[str],
    progress: Progress | None,
    rows_per_block: int,
) -> None:
    """Write copies of a trace on disk."""
    copies = Copies(count, base.base, base.vid_offset, base.qid_offset)
    tally = _Tally(base.seconds, progress)
    blocks = (block for batch in base.batches() for block in blocks_of_copies(batch, copies, rows_per_block))
    _write_tuples(folder, tally.watch(blocks), formats)
    numbers = range(count)
    for source in (base.history_file, base.segment_history_file):
        table = pq.read_table(source)
        steps = {name: step for name, step in copies.steps.items() if name in table.column_names}
        write_copies(folder / source.name, table, numbers, steps)
    copied = replace(base, folder=folder, copies=count)
    replace(copied, tuples=tally.tuples, per_minute=tally.per_minute)._save()


class _Tally:
    """Counts the tuples that are written."""

    def __init__(self, seconds: int, progress: Progress | None) -> None:
        self._minutes = np.zeros(-(-seconds // 60), np.int64)
        self._progress = progress
        self.tuples = 0

    def watch(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on the blocks and count them."""
        done = 0
        for block in blocks:
            yield block
            self._count(block)
            second = _last_second(block) + 1
            if self._progress is not None and second > done:
                done = second
                self._progress(done, self.tuples)

    def _count(self, block: pa.RecordBatch) -> None:
        self.tuples += block.num_rows
        self._minutes += np.bincount(block.column("Time").to_numpy() // 60, minlength=len(self._minutes))

    @property
    def per_minute(self) -> tuple[int, ...]:
        return tuple(self._minutes.tolist())


class _Census(_Tally):
    """Also counts cars and queries, and collects the queries about the history."""

    def __init__(self, seconds: int, progress: Progress | None) -> None:
        super().__init__(seconds, progress)
        self._asked = [INPUT.empty_table().select(["VID", "Day", "XWay"])]
        self.cars = self.queries = 0

    def _count(self, block: pa.RecordBatch) -> None:
        super()._count(block)
        self.cars = max(self.cars, pc.max(block.column("VID")).as_py() + 1)
        self.queries = max(self.queries, pc.max(block.column("QID")).as_py() + 1)
        asked = block.filter(pc.equal(block.column("Type"), int(Kind.EXPENDITURE)))
        self._asked.append(pa.Table.from_batches([asked.select(["VID", "Day", "XWay"])]))

    def asked(self) -> pa.Table:
        """The requested daily expenditures: VID, Day, XWay."""
        return pa.concat_tables(self._asked)


def _offset(count: int) -> int:
    return -(-max(count, 1) // OFFSET_STEP) * OFFSET_STEP


def _write_tuples(folder: Path, blocks: Iterator[pa.RecordBatch], formats: Sequence[str]) -> None:
    """Write the blocks in the formats, in one pass, as numbered files."""
    for kind, name in ((PARQUET, "input"), (BLOCKS, "blocks")):
        if kind in formats:
            (folder / name).mkdir(parents=True)
    for number, file in enumerate(_files(blocks)):
        rest = file
        if PARQUET in formats:
            rest = _through_parquet(folder / "input" / f"input-{number:05d}.parquet", rest)
        if BLOCKS in formats:
            write_blocks(folder / "blocks" / f"blocks-{number:05d}.arrow", rest)
        for _ in rest:  # without the format "blocks", nothing else consumes them
            pass


def _files(blocks: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """The blocks of one file after the other. Each file must be consumed before the next."""
    following = [block for block in [next(blocks, None)] if block is not None]

    def one() -> Iterator[pa.RecordBatch]:
        rows = 0
        while following:
            block = following.pop()
            following.extend(block for block in [next(blocks, None)] if block is not None)
            rows += block.num_rows
            yield block
            if rows >= ROWS_PER_FILE and following and _last_second(block) < _first_second(following[0]):
                return

    while following:
        yield one()


def _first_second(block: pa.RecordBatch) -> int:
    return int(block.column("Time")[0].as_py())


def _last_second(block: pa.RecordBatch) -> int:
    return int(block.column("Time")[-1].as_py())


def _through_parquet(path: Path, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass on the blocks, and write them to a Parquet file in larger groups."""
    group: list[pa.RecordBatch] = []
    with pq.ParquetWriter(path, INPUT, compression="zstd") as writer:
        for block in blocks:
            group.append(block)
            if sum(held.num_rows for held in group) >= ROWS_PER_GROUP:
                writer.write_table(pa.Table.from_batches(group))
                group.clear()
            yield block
        if group:
            writer.write_table(pa.Table.from_batches(group))
