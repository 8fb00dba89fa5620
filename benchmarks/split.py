"""`python -m benchmarks split`: splitting over blocks, against a bare exchange and against splitting over rows.

Position reports as in Linear Road: eight integer columns, q substreams, 1 % of the tuples broadcast. The contestants
are three plain Spark batch jobs over the same tuples with the same hops (`mapInArrow`, exchange, `mapInArrow`):

| contestant | first hop | exchange | second hop |
|---|---|---|---|
| bare exchange | passes each block on unopened | one row per block | counts bytes |
| blocks | the runtime's `Splitter` | one row per window and substream | unpacks, merges each substream by time |
| rows | route and broadcast as Columns | one row per tuple | groups by substream, sorts each by time |

The bare exchange is the ceiling: the difference to its rate is the cost of opening, routing and merging. Both ways send
a broadcast tuple once per worker, so that rows are not charged for copies that blocks do not make.

With a route that costs a microsecond per tuple, one splitter is the bottleneck. The tuned number of splitters p follows
from the measured rate of one splitter and the rate of the bare exchange, and is limited by the cores.

Before anything is timed, the counts and checksums of every substream are compared.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from anabranch.compiled import kernel
from anabranch.io.blocks import blocks_of, pack, read_block, unpack, write_blocks
from anabranch.observe.progress import SplitterMeasure
from anabranch.runtime.tasks.worker import merge_by_time
from anabranch.split.cost import SplitCosts, splitters_needed
from anabranch.split.gates import RowGate
from anabranch.split.readers import ReferenceReader
from anabranch.split.report import SplitterReport
from anabranch.split.routes import FunctionRoute
from anabranch.split.splitter import ALL_GROUPS, PACKED_SCHEMA, REPORT_GROUP, Splitter
from benchmarks.data import START
from benchmarks.report import Measured, best_of, print_json, progress, show, show_ratios
from benchmarks.session import bench_session
from benchmarks.windows import ResultsDifferError

Q = 64
BROADCAST = 0.01
BLOCK_ROWS = 16_384
ROUTE_SECONDS = 1e-6
"""What the expensive route costs per tuple."""

GOALS = {"of_bare_exchange": 0.6, "tuned_p_gain": 1.4, "blocks_vs_rows": 2.5}

_BARE, _BLOCKS, _ROWS = "bare exchange", "blocks", "rows"
_CHEAP, _COSTLY = "cheap route", "1 us route"
_SUMS = "grp int, n bigint, checksum bigint, mark string"
_BYTES = "bytes bigint"

_BATCH_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ROWS_PER_BATCH = 65_536
"""For the contestant with rows: Spark's default of 10,000 is a quarter slower."""


@dataclass(frozen=True)
class Scale:
    """How much data, and how often."""

    rows: int
    costly_rows: int
    repeats: int


FULL = Scale(rows=4_000_000, costly_rows=2_000_000, repeats=5)
QUICK = Scale(rows=200_000, costly_rows=100_000, repeats=1)


@dataclass(frozen=True)
class Reports:
    """Position reports: the time in microseconds, the substream in `xway`. Reports of kind 2 go to all substreams."""

    rows: int
    seed: int = 1

    def table(self) -> pa.Table:
        rng = np.random.default_rng(self.seed)
        n = self.rows
        return pa.table(
            {
                "t": START + np.sort(rng.integers(0, 3_600_000_000, n)),
                "kind": np.where(rng.random(n) < BROADCAST, 2, 0).astype(np.int32),
                "vid": rng.integers(0, 1_000_000, n),
                "speed": rng.integers(0, 101, n).astype(np.int32),
                "xway": rng.integers(0, Q, n).astype(np.int32),
                "lane": rng.integers(0, 5, n).astype(np.int32),
                "seg": rng.integers(0, 100, n).astype(np.int32),
                "pos": rng.integers(0, 528_000, n),
            }
        )


def run(*, quick: bool, as_json: bool, console: Console) -> dict[str, float]:
    """Run the benchmark. Prints tables, and with `as_json` one JSON object as the last line."""
    folder = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    spark = bench_session("split")
    try:
        ratios, measured, more = _Bench(spark, QUICK if quick else FULL, folder, console).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show_ratios(console, ratios, {} if quick else GOALS)
    if as_json:
        print_json(ratios, {"split": measured}, quick=quick, **more)
    return ratios


# --- the hops -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bare:
    """Passes blocks on as they are."""

    workers: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for ref in batch.to_pylist():
                block = pack(read_block(ref["path"], ref["block"]))
                sizes = pa.py_buffer(np.array([0, block.size], np.int32))
                binary = pa.Array.from_buffers(pa.binary(), 1, [None, sizes, block])
                worker = pa.array([ref["block"] % self.workers], pa.int32())
                yield pa.RecordBatch.from_arrays([worker, binary], names=["worker", "block"])


def _count_bytes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    total = sum(batch.column("block").nbytes for batch in batches)
    yield pa.RecordBatch.from_arrays([pa.array([total], pa.int64())], names=["bytes"])


@dataclass(frozen=True)
class _MergeBlocks:
    """What a worker does with its blocks before its operators run."""

    groups: tuple[tuple[int, ...], ...]
    """The groups of each worker."""
    checked: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: list[tuple[int, int, int, pa.RecordBatch]] = []
        marks: list[str] = []
        worker = 0
        for batch in batches:
            worker = batch.column("worker")[0].as_py()
            places = [batch.column(name).to_pylist() for name in ("part", "seq", "grp")]
            for (part, seq, group), value in zip(zip(*places, strict=True), batch.column("block"), strict=True):
                if group == REPORT_GROUP:
                    marks.append(value.as_buffer().to_pybytes().decode())
                else:
                    found.append((part, seq, group, unpack(value.as_buffer())))
        found.sort(key=lambda block: block[:3])
        blocks: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        for _, _, group, block in found:
            for each in self.groups[worker] if group == ALL_GROUPS else (group,):
                blocks[each].append(block)
        yield _sums({g: merge_by_time(parts, "t") for g, parts in blocks.items()}, marks, self.checked)


@dataclass(frozen=True)
class _MergeRows:
    """The same for rows: sorted by substream, then by time."""

    groups: tuple[tuple[int, ...], ...]
    checked: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = [batch for batch in batches if batch.num_rows]
        if not known:
            return
        table = pa.Table.from_batches(known).combine_chunks()
        worker = table.column("worker")[0].as_py()
        group = table.column("grp").to_numpy()
        ordered = table.drop_columns(["worker", "grp"]).take(np.argsort(group.astype(np.int16), kind="stable"))
        rows = ordered.combine_chunks().to_batches()[0]
        ends = np.cumsum(np.bincount(group - ALL_GROUPS, minlength=Q - ALL_GROUPS))
        everywhere = rows.slice(0, int(ends[0]))
        merged = {}
        for g in self.groups[worker]:
            begin, end = int(ends[g - ALL_GROUPS - 1]), int(ends[g - ALL_GROUPS])
            merged[g] = merge_by_time([rows.slice(begin, end - begin), everywhere], "t")
        yield _sums(merged, [], self.checked)


def _sums(substreams: dict[int, pa.RecordBatch], marks: list[str], checked: bool) -> pa.RecordBatch:
    """Count and checksum of each substream. The checksum depends on every column and on the order of the times."""
    sums: list[tuple[int | None, int | None, int | None, str | None]] = [(None, None, None, mark) for mark in marks]
    for group, rows in sorted(substreams.items()):
        checksum = 0
        if checked:
            columns = [np.asarray(rows.column(name)).astype(np.int64) for name in sorted(rows.schema.names)]
            times = np.asarray(rows.column("t")) * np.arange(1, rows.num_rows + 1)
            checksum = (int(times.sum()) + sum((i + 1) * int(each.sum()) for i, each in enumerate(columns))) % 2**62
        sums.append((group, rows.num_rows, checksum, None))
    kinds = (pa.int32(), pa.int64(), pa.int64(), pa.string())
    columns = [pa.array(values, kind) for values, kind in zip(zip(*sums, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=["grp", "n", "checksum", "mark"])


# --- routes ---------------------------------------------------------------------------------------------------------


def _expressway(block: pa.RecordBatch, q: int) -> NDArray[Any]:
    return np.asarray(block.column("xway"))


def _for_everyone(block: pa.RecordBatch) -> Any:
    return np.asarray(block.column("kind")) == np.int32(2)


@kernel()
def _work(numbers: NDArray[np.int32], turns: int, q: int) -> NDArray[np.int32]:
    """Return each number unchanged after `turns` steps, which could change it, so no compiler can remove them."""
    out = np.empty_like(numbers)
    for i in range(len(numbers)):
        x = np.int64(numbers[i])
        for _ in range(turns):
            x = x * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407  # wraps
        out[i] = numbers[i] if x != 42 else q
    return out


def _costly(turns: int, block: pa.RecordBatch, q: int) -> NDArray[np.int32]:
    return _work(np.asarray(block.column("xway")), turns, q)


def _turns(seconds: float) -> int:
    """The number of steps per tuple that takes that time."""
    numbers, turns = np.zeros(20_000, np.int32), 1_000
    _work(numbers[:1], 1, Q)
    took = best_of(5, lambda: _work(numbers, turns, Q)) / len(numbers) / turns
    return max(1, round(seconds / took))


# --- the benchmark --------------------------------------------------------------------------------------------------


@dataclass
class _Bench:
    spark: SparkSession
    scale: Scale
    folder: Path
    console: Console

    def __post_init__(self) -> None:
        # Spark cuts a range into as many parts as there can be tasks at a time.
        self.cores = self.spark.range(1_000).select(F.spark_partition_id()).distinct().count()
        self.workers = self.cores
        self.routing = tuple(group % self.workers for group in range(Q))
        self.groups = tuple(tuple(g for g in range(Q) if self.routing[g] == worker) for worker in range(self.workers))

    def run(self) -> tuple[dict[str, float], list[Measured], dict[str, Any]]:
        with progress(self.console) as bar:
            task = bar.add_task("generating position reports", total=4)

            def step(name: str) -> None:
                bar.update(task, advance=1, description=name)

            table = Reports(self.scale.rows).table()
            self._write(table)
            step("comparing results")
            self._check(table)
            step("cheap route: bare exchange, blocks, rows")
            cheap = self._cheap(table.num_rows)
            step("1 us route: one splitter, tuned p")
            costly, p = self._costly(cheap[0].rate)
        show(
            self.console,
            f"Split into {Q} substreams, {BROADCAST:.0%} broadcast, {self.workers} workers",
            [*cheap, *costly],
        )
        ratios = {
            "of_bare_exchange": cheap[1].rate / cheap[0].rate,
            "blocks_vs_rows": cheap[1].rate / cheap[2].rate,
            "tuned_p_gain": costly[1].rate / costly[0].rate,
        }
        return ratios, [*cheap, *costly], {"tuned_p": p, "cores": self.cores}

    def _write(self, table: pa.Table) -> None:
        """Write the same tuples twice: as packed blocks, and as Parquet for the contestant with rows."""
        file = self.folder / "reports.arrow"
        write_blocks(file, table.to_batches(max_chunksize=BLOCK_ROWS))
        self.blocks = blocks_of(file)
        (self.folder / "rows").mkdir()
        size = -(-table.num_rows // self.cores)
        for i in range(self.cores):
            pq.write_table(table.slice(i * size, size), self.folder / "rows" / f"part-{i}.parquet")

    def _check(self, table: pa.Table) -> None:
        """Raise an error unless blocks and rows deliver the same, complete substreams in the order of time."""
        blocks = _substreams(self._split(_expressway, checked=True).collect())
        rows = _substreams(self._over_rows(checked=True))
        kind, xway = table.column("kind").to_numpy(), table.column("xway").to_numpy()
        counts = np.bincount(xway[kind != 2], minlength=Q) + int((kind == 2).sum())
        for g in range(Q):
            if not (blocks[g] == rows[g] and blocks[g][0] == counts[g]):
                raise ResultsDifferError(
                    f"substream {g} has {counts[g]} tuples; blocks gave {blocks[g]}, rows {rows[g]} (count, checksum)",
                    hint="this is a bug: please report it with the versions of pyspark and anabranch",
                )

    def _cheap(self, rows: int) -> list[Measured]:
        contestants: dict[str, Callable[[], object]] = {
            _BARE: lambda: self._bare().collect(),
            _BLOCKS: lambda: self._split(_expressway).collect(),
            _ROWS: self._over_rows,
        }
        return self._race(contestants, rows, _CHEAP)

    def _costly(self, desired: float) -> tuple[list[Measured], int]:
        count = -(-self.scale.costly_rows // BLOCK_ROWS)
        rows = sum(ref.rows for ref in self.blocks[:count])
        route = partial(_costly, _turns(ROUTE_SECONDS))
        self._split(route, blocks=self.cores, splitters=self.cores).collect()  # compiles the route in every worker
        p = self._tuned(self._split(route, blocks=count, splitters=1), desired)
        contestants: dict[str, Callable[[], object]] = {
            "blocks, p = 1": lambda: self._split(route, blocks=count, splitters=1).collect(),
            f"blocks, tuned p = {p}": lambda: self._split(route, blocks=count, splitters=p).collect(),
        }
        return self._race(contestants, rows, _COSTLY), p

    def _tuned(self, single: DataFrame, desired: float) -> int:
        """The tuned number of splitters. A broadcast tuple goes to each worker once, so q is the number of workers."""
        reports = [SplitterReport.unpacked(row.mark.encode()) for row in single.collect() if row.mark is not None]
        full = [SplitterMeasure(each.splitter, each.rows, **vars(each.counters)) for each in reports if each.counters]
        costs = SplitCosts.from_measures(full, [], self.workers)
        if costs is None:
            return 1
        return splitters_needed(desired, 1 / costs.splitter(1), self.workers, b=costs.b, limit=self.cores)

    def _race(self, contestants: dict[str, Callable[[], object]], rows: int, setting: str) -> list[Measured]:
        """The contestants take turns, so that other load on the machine affects all; the best run of each counts."""
        best = dict.fromkeys(contestants, float("inf"))
        for _ in range(self.scale.repeats):
            for name, contestant in contestants.items():
                best[name] = min(best[name], best_of(1, contestant))
        return [Measured(name, setting, rows, seconds) for name, seconds in best.items()]

    def _references(self, blocks: int | None, splitters: int) -> DataFrame:
        """References to the first blocks, in as many partitions as there are splitters."""
        refs = self.blocks[:blocks]
        columns = {
            "path": [ref.path for ref in refs],
            "block": pa.array([ref.index for ref in refs], pa.int32()),
            "first": pa.array([0] * len(refs), pa.int64()),
            "rows": pa.array([ref.rows for ref in refs], pa.int64()),
        }
        return self.spark.createDataFrame(pa.table(columns)).coalesce(splitters)

    def _bare(self) -> DataFrame:
        sent = self._references(None, self.cores).mapInArrow(_Bare(self.workers), "worker int, block binary")
        return sent.repartitionById(self.workers, "worker").mapInArrow(_count_bytes, _BYTES)

    def _split(
        self,
        route: Callable[[pa.RecordBatch, int], Any],
        *,
        blocks: int | None = None,
        splitters: int | None = None,
        checked: bool = False,
    ) -> DataFrame:
        splitter = Splitter(
            0,
            ReferenceReader(),
            RowGate("t", None),
            FunctionRoute(route, _for_everyone),
            self.routing,
            self.workers,
        )
        sent = self._references(blocks, splitters or self.cores).mapInArrow(splitter, PACKED_SCHEMA)
        merge = _MergeBlocks(self.groups, checked)
        return sent.repartitionById(self.workers, "worker").mapInArrow(merge, _SUMS)

    def _over_rows(self, *, checked: bool = False) -> list[Row]:
        rows = self.spark.read.parquet(str(self.folder / "rows"))
        everyone = F.col("kind") == 2
        own = F.pmod("xway", F.lit(self.workers)).cast("int")
        workers = F.when(everyone, F.array(*(F.lit(w) for w in range(self.workers)))).otherwise(F.array(own))
        group = F.when(everyone, F.lit(ALL_GROUPS)).otherwise(F.col("xway"))
        sent = rows.withColumn("grp", group.cast("int")).withColumn("worker", F.explode(workers))
        merged = sent.repartitionById(self.workers, "worker").mapInArrow(_MergeRows(self.groups, checked), _SUMS)
        before = self.spark.conf.get(_BATCH_SETTING)
        self.spark.conf.set(_BATCH_SETTING, str(_ROWS_PER_BATCH))
        try:
            return merged.collect()
        finally:
            self.spark.conf.set(_BATCH_SETTING, before or "10000")


def _substreams(result: list[Row]) -> dict[int, tuple[int, int]]:
    """(count, checksum) by substream."""
    return {row.grp: (row.n, row.checksum) for row in result if row.grp is not None}
