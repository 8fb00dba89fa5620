"""The streams on which key partitioners are measured: those of the paper on partitioning costs (its section 5.2).

A partitioner sends each row to a worker by its key. What it costs depends on how many groups there are, how many rows
a group has, and how unequal the groups are; so the paper takes queries that differ in this:

| workload | key | window | groups in a window |
|---|---|---|---|
| `tpch-q1` | return flag, line status | all of it | 4, whatever the scale |
| `tpch-q3` | order | all of it | thousands, as many as the scale asks for; about 3 rows each |
| `google-q1` | scheduling class of the task | 60 s / 1 s | 4 |
| `google-q2` | job of the task | 45 min / 1 s | hundreds, and one has a tenth of the rows |
| `google-jobs` | name of the job (not in the paper) | one day | some 5,000, heavily skewed |
| `debs-q1` | route, from cell to cell | 30 min | half as many as rows; a few routes are hot |
| `debs-q2` | taxi | 30 min | more than half as many as rows, none is hot |

Values are whole numbers (cents, ten-millionths), so that sums are exact however the rows are spread over workers.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.bench.trips import CELLS, RUSH_RATE, TAXIS, Floats, Ints, cells, trips
from anabranch.errors import InvalidArgumentError, MissingDependencyError

SECOND = 1_000_000
"""Microseconds."""
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE

SHARED_DATA_VARIABLE = "ANABRANCH_SHARED_DATA"
"""The environment variable that names the folder of real data."""

DEBS_WINDOWS = 6
"""Full windows of taxi trips: three hours."""
_SEED = 2015


@dataclass(frozen=True)
class Workload:
    """Rows to partition, by which key, and what is computed of each group in each window."""

    name: str
    title: str
    table: pa.Table
    """`t` (int64, microseconds), the keys and the values; in the order of `t`."""
    keys: tuple[str, ...]
    values: tuple[str, ...]
    """What the aggregate takes."""
    window: int | None
    """Its size in microseconds. None: all rows are one window."""
    slide: int | None
    real: bool
    """Whether the rows were recorded somewhere, or generated."""
    source: str

    def windows(self, most: int) -> list[pa.Table]:
        """Up to `most` windows that follow one another without overlap, as slices of the table.

            t of the rows    x xx  x x xx    xx x
                             [------)[------)
                             1       2       the rest is no full window

        The first begins at the first row. One is full if the table has a row at or after its end: then the stream has
        passed it. Those without a row are left out. If all rows are one window, it is that one.
        """
        if self.window is None:
            return [self.table][:most]
        t = self.table["t"].to_numpy()
        if len(t) == 0:
            return []
        bounds = np.searchsorted(t, np.arange(t[0], t[-1] + 1, self.window))
        stretches = [(int(a), int(b)) for a, b in zip(bounds[:-1], bounds[1:], strict=True) if a < b]
        return [self.table.slice(a, b - a) for a, b in stretches[:most]]


def shared_data() -> Path | None:
    """The folder of real data, if there is one: `ANABRANCH_SHARED_DATA`, or `../shared/data` beside the checkout.

    The checkout is the working directory, since that is where benchmarks are started.
    """
    named = os.environ.get(SHARED_DATA_VARIABLE)
    folder = Path(named) if named else Path.cwd().parent / "shared" / "data"
    return folder if folder.is_dir() else None


def workload(name: str, folder: Path, *, scale: float = 1.0, shared: Path | None = None) -> Workload:
    """The workload of this name.

    `folder` keeps what is slow to make, for the next time. `shared` is the folder of real data; without it, or if it
    does not have the file, the rows are generated with the keys and the skew of the real ones, and `real` is False.

    `scale` is 1 for the size of the real thing: the scale factor of TPC-H (1 is 6 million line items), the number of
    taxis and their trips per second (1 is 20,000 trips in 30 minutes, a busy evening of New York; 25 is 500,000), the
    number of generated rows of the Google trace. Real rows are as many as there are, whatever the scale.
    """
    if name not in _MAKERS:
        raise InvalidArgumentError(f"there is no workload {name!r}", hint=f"the names are {', '.join(NAMES)}")
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidArgumentError(
            f"a workload of scale {scale} has no rows", hint="take a number greater than zero, 1 for the real size"
        )
    return _MAKERS[name](folder, scale, shared)


# ---- TPC-H: one window of all rows; time is the number of the row ----


def _tpch_q1(folder: Path, scale: float, shared: Path | None) -> Workload:
    columns = ["l_returnflag", "l_linestatus", "l_quantity", "l_extendedprice"]
    rows = pq.read_table(
        _tpch(folder, scale) / "lineitem.parquet", columns=columns, filters=pc.field("l_shipdate") <= date(1998, 9, 2)
    )
    table = _numbered(
        {
            "l_returnflag": rows["l_returnflag"].cast(pa.string()),
            "l_linestatus": rows["l_linestatus"].cast(pa.string()),
            "l_quantity": rows["l_quantity"].cast(pa.int64()),
            "l_extendedprice": _hundredths(rows["l_extendedprice"]),
        }
    )
    return Workload(
        "tpch-q1",
        "TPC-H Q1: pricing summary by return flag and line status (prices in cents)",
        table,
        ("l_returnflag", "l_linestatus"),
        ("l_quantity", "l_extendedprice"),
        window=None,
        slide=None,
        real=False,
        source=f"TPC-H at scale factor {scale:g}, by tpchgen-cli",
    )


def _tpch_q3(folder: Path, scale: float, shared: Path | None) -> Workload:
    # o_orderdate and o_shippriority, which the query groups by too, are functions of the order.
    data, day = _tpch(folder, scale), date(1995, 3, 15)
    customers = pq.read_table(
        data / "customer.parquet", columns=["c_custkey"], filters=pc.field("c_mktsegment") == "BUILDING"
    )
    orders = pq.read_table(
        data / "orders.parquet", columns=["o_orderkey", "o_custkey"], filters=pc.field("o_orderdate") < day
    )
    orders = orders.filter(pc.is_in(orders["o_custkey"], customers["c_custkey"]))
    items = pq.read_table(
        data / "lineitem.parquet",
        columns=["l_orderkey", "l_extendedprice", "l_discount"],
        filters=pc.field("l_shipdate") > day,
    )
    # An order has one customer and an item one order, so the joins only select items, and their order stays.
    items = items.filter(pc.is_in(items["l_orderkey"], orders["o_orderkey"]))
    paid = pc.subtract(100, _hundredths(items["l_discount"]))
    table = _numbered(
        {"l_orderkey": items["l_orderkey"], "revenue": pc.multiply(_hundredths(items["l_extendedprice"]), paid)}
    )
    return Workload(
        "tpch-q3",
        "TPC-H Q3: revenue by order that has not been shipped (in hundredths of a cent)",
        table,
        ("l_orderkey",),
        ("revenue",),
        window=None,
        slide=None,
        real=False,
        source=f"TPC-H at scale factor {scale:g}, by tpchgen-cli; the items that join",
    )


def _tpch(folder: Path, scale: float) -> Path:
    """The folder with the three tables, made if it is not there."""
    result = folder / f"tpch-{scale:g}"
    if result.is_dir():
        return result
    # The scripts of this Python first: its environment need not be on the path.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    program = shutil.which("tpchgen-cli", path=path)
    if program is None:
        raise MissingDependencyError(
            "the workloads of TPC-H need tpchgen-cli, which is not installed; without it there is no data",
            hint='pip install "anabranch[bench]"',
        )
    folder.mkdir(parents=True, exist_ok=True)
    # In a folder of its own until all is there: who stops in the middle leaves no torn tables for the next time.
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{result.name}-") as unfinished:
        made = Path(unfinished) / "tables"
        command = [program, "parquet", "-s", f"{scale:g}", "-T", "customer,orders,lineitem", "-n", "1", "-q"]
        subprocess.run([*command, "--output-dir", str(made)], check=True)
        made.rename(result)
    return result


def _numbered(columns: dict[str, pa.ChunkedArray]) -> pa.Table:
    rows = len(next(iter(columns.values())))
    return pa.table({"t": np.arange(rows, dtype=np.int64), **columns})


def _hundredths(decimals: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals with two places as whole numbers of cents, or of percent."""
    return pc.multiply(decimals, pa.scalar(100, pa.decimal128(3, 0))).cast(pa.int64())


# ---- Google's cluster in May 2011 ----

_GOOGLE = "Google cluster trace 2011 (CC-BY 4.0), {}; without the rows at time 0"
_LIKE_GOOGLE = "generated after the Google cluster trace 2011, {}: its number of keys, skew and groups per window"
_FIRST = 600 * SECOND
"""The trace begins here. Whatever was running before has time 0: not a moment, so it is left out of all workloads. Of
the first part of the tasks this is more than half of the rows."""


@dataclass(frozen=True)
class _Like:
    """A shape of a stream, as measured: what is needed to generate one like it."""

    ranks: tuple[tuple[int, float], ...]
    """(rank, rows) of some keys, by falling number of rows; between them both are interpolated by their logarithms."""
    span: int
    steady: int
    """A key of this many rows occurs all the time, one of a tenth of it only in a tenth of the time."""

    def rows(self, scale: float, random: np.random.Generator) -> tuple[Ints, Ints]:
        """Times and ranks of the keys from 0, in the order of time."""
        rank, rows = (np.log(column) for column in np.array(self.ranks, dtype=np.float64).T)
        keys = int(self.ranks[-1][0])
        count: Floats = np.exp(np.interp(np.log(np.arange(1, keys + 1)), rank, rows))
        lasts = np.minimum(1.0, count / self.steady) * self.span
        begins = random.random(keys) * (self.span - lasts)
        key = np.repeat(np.arange(keys), np.maximum(1, np.rint(count * scale)).astype(np.int64))
        t = _FIRST + (begins[key] + random.random(len(key)) * lasts[key]).astype(np.int64)
        order = np.argsort(t, kind="stable")
        return t[order], key[order]


_CLASSES = _Like(((1, 145_738), (2, 18_687), (3, 7_631), (4, 769)), span=5_011 * SECOND, steady=1)
_CLASS_OF_RANK = np.array([0, 2, 1, 3])
_JOBS = _Like(
    ((1, 14_513), (2, 6_918), (5, 6_330), (10, 3_195), (20, 3_154), (50, 594), (100, 114), (200, 18), (500, 3))
    + ((1_199, 3),),
    span=5_011 * SECOND,
    steady=1_000,
)
_NAMES = _Like(
    ((1, 93_846), (2, 62_592), (3, 44_154), (5, 44_136), (10, 17_445), (20, 12_525), (50, 3_633), (100, 2_088))
    + ((200, 1_215), (500, 675), (1_000, 246), (2_000, 96), (5_000, 51), (10_000, 12), (20_000, 3), (39_730, 2)),
    span=29 * DAY,
    steady=500,
)
_REQUESTS = ((249_900, 0.66), (156_200, 0.09), (125_000, 0.07), (312_500, 0.06), (625_000, 0.06), (687_300, 0.06))
"""Frequent requests for CPU, in ten-millionths of the largest machine, and their shares."""


def _google_tasks(shared: Path | None, column: str, like: _Like, scale: float) -> tuple[pa.Table, bool, str]:
    """(t, the key, cpu) of task events; whether they are real, and where from."""
    what = "first part of the task events"
    file = _google_file(shared, "task_events_part0")
    if file is not None:
        rows = pq.read_table(file, columns=["time_us", column, "cpu"], filters=pc.field("time_us") > 0)
        # Requests are given with seven places.
        cpu = np.rint(rows["cpu"].to_numpy() * 1e7).astype(np.int64)
        key = rows[column].cast(pa.int64())
        return pa.table({"t": rows["time_us"], column: key, "cpu": cpu}), True, _GOOGLE.format(what)
    random = np.random.default_rng(_SEED)
    t, rank = like.rows(scale, random)
    request, share = zip(*_REQUESTS, strict=True)
    cpu = random.choice(np.array(request, dtype=np.int64), len(t), p=share)
    return pa.table({"t": t, column: rank, "cpu": cpu}), False, _LIKE_GOOGLE.format(what)


def _google_q1(folder: Path, scale: float, shared: Path | None) -> Workload:
    table, real, source = _google_tasks(shared, "sched_class", _CLASSES, scale)
    if not real:
        table = table.set_column(1, "sched_class", pa.array(_CLASS_OF_RANK[table["sched_class"].to_numpy()]))
    return Workload(
        "google-q1",
        "Google Q1: CPU requested by scheduling class (in ten-millionths of the largest machine)",
        table.rename_columns(["t", "scheduling_class", "cpu"]),
        ("scheduling_class",),
        ("cpu",),
        window=MINUTE,
        slide=SECOND,
        real=real,
        source=source,
    )


def _google_q2(folder: Path, scale: float, shared: Path | None) -> Workload:
    table, real, source = _google_tasks(shared, "job_id", _JOBS, scale)
    return Workload(
        "google-q2",
        "Google Q2: mean CPU requested by job (in ten-millionths of the largest machine)",
        table,
        ("job_id",),
        ("cpu",),
        window=45 * MINUTE,
        slide=SECOND,
        real=real,
        source=source,
    )


def _google_jobs(folder: Path, scale: float, shared: Path | None) -> Workload:
    what = "job events"
    file = _google_file(shared, "job_events")
    if file is not None:
        columns = ["time_us", "logical_job", "sched_class"]
        rows = pq.read_table(file, columns=columns, filters=pc.field("time_us") > 0)
        t, job, kind = (rows[column].cast(pa.int64()) for column in columns)
    else:
        random = np.random.default_rng(_SEED)
        t, job = _NAMES.rows(scale, random)
        # A job keeps its class.
        kind = random.choice(4, len(_NAMES.ranks) and int(_NAMES.ranks[-1][0]), p=[0.34, 0.44, 0.18, 0.04])[job]
    return Workload(
        "google-jobs",
        "Google jobs: mean scheduling class by the name of the job, each day",
        pa.table({"t": t, "logical_job": job, "scheduling_class": kind}),
        ("logical_job",),
        ("scheduling_class",),
        window=DAY,
        slide=DAY,
        real=file is not None,
        source=(_GOOGLE if file is not None else _LIKE_GOOGLE).format(what),
    )


def _google_file(shared: Path | None, name: str) -> Path | None:
    file = shared / "google-cluster-2011" / f"{name}.parquet" if shared is not None else None
    return file if file is not None and file.is_file() else None
