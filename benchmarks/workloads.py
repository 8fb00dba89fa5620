"""The workloads on which key partitioners are measured: those of the paper on partitioning costs (docs/papers.md).

A partitioner sends each row to a worker by its key. Its cost depends on the number of groups, on the rows per group,
and on how unequal the groups are. So the workloads differ in this:

| workload | key | window | groups in a window |
|---|---|---|---|
| `tpch-q1` | return flag, line status | all rows | 4 at any scale |
| `tpch-q3` | order | all rows | thousands, by the scale; about 3 rows each |
| `google-q1` | scheduling class of the task | 60 s / 1 s | 4 |
| `google-q2` | job of the task | 45 min / 1 s | hundreds; 1 % of them have a third of the rows |
| `google-jobs` | name of the job (not in the paper) | one day | some 5,000; 1 % of them have two fifths of the rows |
| `debs-q1` | route, from cell to cell | 30 min | half as many as rows; a few routes are hot |
| `debs-q2` | taxi | 30 min | more than half as many as rows; none is hot |

Values are whole numbers (cents, ten-millionths), so that sums do not depend on how rows are spread over workers.
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
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.errors import InvalidArgumentError, MissingDependencyError
from benchmarks.trips import CELLS, RUSH_RATE, TAXIS, Floats, Ints, cells, trips

SECOND = 1_000_000
"""A second in microseconds."""
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE

SHARED_DATA_VARIABLE = "ANABRANCH_SHARED_DATA"
"""The environment variable that names the folder of real data."""

_SEED = 2015


@dataclass(frozen=True)
class Workload:
    """Rows to partition, their key, and the values that are aggregated for each group in each window."""

    name: str
    title: str
    table: pa.Table
    """`t` (int64, microseconds), the keys and the values, in the order of `t`."""
    keys: tuple[str, ...]
    values: tuple[str, ...]
    """The inputs of the aggregate."""
    window: int | None
    """The size of a window in microseconds. None: all rows are one window."""
    slide: int | None
    real: bool
    """Whether the rows were recorded, and not generated."""
    source: str

    def windows(self, most: int) -> list[pa.Table]:
        """Up to `most` windows that follow one another without overlap, as slices of the table.

            t of the rows    x xx  x x xx    xx x
                             [------)[------)
                             1       2       the rest is not a full window

        The first begins at the first row. A window is full if the table has a row at or after its end. Windows without
        a row are left out.
        """
        if self.table.num_rows == 0:
            return []
        if self.window is None:
            return [self.table][:most]
        t = self.table["t"].to_numpy()
        bounds = np.searchsorted(t, np.arange(t[0], t[-1] + 1, self.window))
        stretches = [(int(a), int(b)) for a, b in pairwise(bounds) if a < b]
        return [self.table.slice(a, b - a) for a, b in stretches[:most]]


def shared_data() -> Path | None:
    """The folder of real data, if there is one: `ANABRANCH_SHARED_DATA`, or `../shared/data` beside the checkout.

    The checkout is the working directory, because benchmarks are started there.
    """
    named = os.environ.get(SHARED_DATA_VARIABLE)
    folder = Path(named) if named else Path.cwd().parent / "shared" / "data"
    return folder if folder.is_dir() else None


def workload(name: str, folder: Path, *, scale: float = 1.0, shared: Path | None = None) -> Workload:
    """The workload of this name.

    `folder` caches data that is slow to make. `shared` is the folder of real data; without it, or without the file in
    it, the rows are generated with the keys and the skew of the real ones, and `real` is False.

    `scale` is 1 for the real size: the scale factor of TPC-H (1 is 6 million line items), the number of taxis and their
    trips per second (1 is 20,000 trips in 30 minutes, a busy evening in New York; 25 is 500,000), the number of
    generated rows of the Google trace. It does not change the number of real rows.
    """
    if name not in _QUERIES:
        raise InvalidArgumentError(f"there is no workload {name!r}", hint=f"the names are {', '.join(NAMES)}")
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidArgumentError(
            f"a workload of scale {scale} has no rows", hint="pass a number greater than zero, 1 for the real size"
        )
    query = _QUERIES[name]
    table, real, source = query.rows(folder, scale, shared)
    return Workload(name, query.title, table, query.keys, query.values, query.window, query.slide, real, source)


_Rows: TypeAlias = tuple[pa.Table, bool, str]
"""The rows of a workload, whether they are real, and where they come from."""


# ---- TPC-H: one window of all rows; time is the number of the row ----


def _tpch_q1(folder: Path, scale: float, shared: Path | None) -> _Rows:
    columns = ["l_returnflag", "l_linestatus", "l_quantity", "l_extendedprice", "l_shipdate"]
    rows = _read(_tpch(folder, scale) / "lineitem.parquet", columns, pc.field("l_shipdate") <= date(1998, 9, 2))
    table = _numbered(
        {
            "l_returnflag": rows["l_returnflag"],
            "l_linestatus": rows["l_linestatus"],
            "l_quantity": rows["l_quantity"].cast(pa.int64()),
            "l_extendedprice": _hundredths(rows["l_extendedprice"]),
        }
    )
    return table, False, f"TPC-H at scale factor {scale:g}, by tpchgen-cli"


def _tpch_q3(folder: Path, scale: float, shared: Path | None) -> _Rows:
    data, day = _tpch(folder, scale), date(1995, 3, 15)
    customers = _read(data / "customer.parquet", ["c_custkey", "c_mktsegment"], pc.field("c_mktsegment") == "BUILDING")
    orders = _read(data / "orders.parquet", ["o_orderkey", "o_custkey", "o_orderdate"], pc.field("o_orderdate") < day)
    orders = orders.filter(pc.is_in(orders["o_custkey"], customers["c_custkey"]))
    columns = ["l_orderkey", "l_extendedprice", "l_discount", "l_shipdate"]
    items = _read(data / "lineitem.parquet", columns, pc.field("l_shipdate") > day)
    # An order has one customer and an item one order, so the joins only select items, and their order stays.
    items = items.filter(pc.is_in(items["l_orderkey"], orders["o_orderkey"]))
    paid = pc.subtract(100, _hundredths(items["l_discount"]))
    table = _numbered(
        {"l_orderkey": items["l_orderkey"], "revenue": pc.multiply(_hundredths(items["l_extendedprice"]), paid)}
    )
    return table, False, f"TPC-H at scale factor {scale:g}, by tpchgen-cli; the items that join"


def _tpch(folder: Path, scale: float) -> Path:
    """The folder with the three tables. They are generated if they are not there."""
    result = folder / f"tpch-{scale:g}"
    if result.is_dir():
        return result
    # The scripts of this Python first: its environment may not be on the path.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    program = shutil.which("tpchgen-cli", path=path)
    if program is None:
        raise MissingDependencyError(
            "the TPC-H workloads need tpchgen-cli, which is not installed",
            hint='pip install "anabranch[bench]"',
        )
    folder.mkdir(parents=True, exist_ok=True)
    # Generate into a temporary folder, so that an interrupted run leaves no incomplete tables.
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{result.name}-") as unfinished:
        made = Path(unfinished) / "tables"
        command = [program, "parquet", "-s", f"{scale:g}", "-T", "customer,orders,lineitem", "-n", "1", "-q"]
        subprocess.run([*command, "--output-dir", str(made)], check=True)
        made.rename(result)
    return result


def _read(file: Path, columns: list[str], where: pc.Expression) -> pa.Table:
    """The rows of a file, in order. Arrow cannot filter the string views of tpchgen-cli, so they become strings."""
    rows = pq.read_table(file, columns=columns)
    plain = [field.with_type(pa.string()) if field.type == pa.string_view() else field for field in rows.schema]
    return rows.cast(pa.schema(plain)).filter(where)


def _numbered(columns: dict[str, pa.ChunkedArray]) -> pa.Table:
    rows = len(next(iter(columns.values())))
    return pa.table({"t": np.arange(rows, dtype=np.int64), **columns})


def _hundredths(decimals: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals with two places as whole numbers of cents, or of percent."""
    return pc.multiply(decimals, pa.scalar(100, pa.decimal128(3, 0))).cast(pa.int64())


# ---- Google's cluster in May 2011 ----

_FIRST = 600 * SECOND
"""The trace begins here. Events from before have time 0, which is not a real time, so they are left out of all
workloads: more than half of the first part of the task events."""


@dataclass(frozen=True)
class _Like:
    """The shape of a real stream after time 0, from which a similar stream is generated."""

    ranks: tuple[tuple[int, int], ...]
    """(rank of a key, its rows) for some keys from the first to the last. Between them the logarithms of both are
    interpolated, as in a power law."""
    span: int
    steady: int
    """A key with this many rows occurs during the whole span, one with a tenth of them during a tenth of it. Chosen so
    that a window has as many groups as a real one."""

    @property
    def keys(self) -> int:
        return self.ranks[-1][0]

    def rows(self, scale: float, random: np.random.Generator) -> tuple[Ints, Ints]:
        """Times and keys, in the order of time. Keys begin at 0, and each key occurs at any scale."""
        rank, rows = np.log(np.array(self.ranks)).T
        count: Floats = np.exp(np.interp(np.log(np.arange(1, self.keys + 1)), rank, rows))
        lasts = np.minimum(1.0, count / self.steady) * self.span
        begins = random.random(self.keys) * (self.span - lasts)
        key = np.repeat(np.arange(self.keys), np.maximum(1, np.rint(count * scale)).astype(np.int64))
        t = _FIRST + (begins[key] + random.random(len(key)) * lasts[key]).astype(np.int64)
        order = np.argsort(t, kind="stable")
        return t[order], key[order]


# fmt: off
_CLASSES = _Like(((1, 145_738), (2, 7_631), (3, 18_687), (4, 769)), span=5_011 * SECOND, steady=1)
_JOBS = _Like(
    ((1, 14_513), (2, 6_918), (6, 6_017), (7, 3_396), (30, 3_150), (35, 2_055), (40, 1_467), (50, 594), (100, 114),
     (200, 18), (300, 3), (1_199, 3)),
    span=5_011 * SECOND, steady=50,
)
_JOB_NAMES = _Like(
    ((1, 93_846), (2, 62_592), (3, 44_154), (5, 44_136), (10, 17_445), (20, 12_525), (50, 3_633), (100, 2_088),
     (200, 1_215), (500, 675), (1_000, 246), (2_000, 96), (5_000, 51), (10_000, 12), (20_000, 3), (37_749, 2)),
    span=29 * DAY, steady=200,
)
# fmt: on
_REQUESTS = ((249_900, 0.66), (156_200, 0.09), (125_000, 0.07), (312_500, 0.06), (625_000, 0.06), (687_300, 0.06))
"""Frequent CPU requests, in ten-millionths of the largest machine, and their shares."""


def _google_q1(folder: Path, scale: float, shared: Path | None) -> _Rows:
    table, real, source = _google_tasks(shared, "sched_class", _CLASSES, scale)
    return table.rename_columns(["t", "scheduling_class", "cpu"]), real, source


def _google_q2(folder: Path, scale: float, shared: Path | None) -> _Rows:
    return _google_tasks(shared, "job_id", _JOBS, scale)


def _google_tasks(shared: Path | None, column: str, like: _Like, scale: float) -> _Rows:
    rows = _google_rows(shared, "task_events_part0", ["time_us", column, "cpu"])
    if rows is not None:
        # Requests have seven places, and only rows at time 0 have none.
        cpu = np.rint(rows["cpu"].to_numpy() * 1e7).astype(np.int64)
        table = pa.table({"t": rows["time_us"], column: rows[column].cast(pa.int64()), "cpu": cpu})
        return table, True, "Google cluster trace 2011 (CC-BY 4.0), first part of the task events, after time 0"
    random = np.random.default_rng(_SEED)
    t, key = like.rows(scale, random)
    request, share = zip(*_REQUESTS, strict=True)
    cpu = random.choice(np.array(request, dtype=np.int64), len(t), p=share)
    return pa.table({"t": t, column: key, "cpu": cpu}), False, "generated like the Google cluster trace 2011 (tasks)"


def _google_jobs(folder: Path, scale: float, shared: Path | None) -> _Rows:
    columns = ["time_us", "logical_job", "sched_class"]
    rows = _google_rows(shared, "job_events", columns)
    if rows is not None:
        t, job, kind = (rows[column].cast(pa.int64()) for column in columns)
        source = "Google cluster trace 2011 (CC-BY 4.0), job events after time 0"
    else:
        random = np.random.default_rng(_SEED)
        t, job = _JOB_NAMES.rows(scale, random)
        # A job keeps its class.
        kind = random.choice(4, _JOB_NAMES.keys, p=[0.36, 0.22, 0.41, 0.01])[job]
        source = "generated like the Google cluster trace 2011 (jobs)"
    return pa.table({"t": t, "logical_job": job, "scheduling_class": kind}), rows is not None, source


def _google_rows(shared: Path | None, name: str, columns: list[str]) -> pa.Table | None:
    file = shared / "google-cluster-2011" / f"{name}.parquet" if shared is not None else None
    if file is None or not file.is_file():
        return None
    return pq.read_table(file, columns=columns, filters=pc.field("time_us") > 0)


# ---- New York's taxis ----

DEBS_WINDOWS = 6
"""Full windows of trips to generate: three hours."""


def _debs_q1(folder: Path, scale: float, shared: Path | None) -> _Rows:
    rides, source = _rides(scale)
    # There are far fewer cells than trips, so each name is made once.
    names = pa.array([f"{x}.{y}" for x in range(1, CELLS + 1) for y in range(1, CELLS + 1)])
    begin, end = (names.take(pa.array(_cell(rides, which, 500))) for which in ("pickup", "dropoff"))
    route = pc.binary_join_element_wise(begin, end, "-")
    return pa.table({"t": _time(rides), "route": route, "paid": _paid(rides)}), False, source


def _debs_q2(folder: Path, scale: float, shared: Path | None) -> _Rows:
    rides, source = _rides(scale)
    table = pa.table(
        {
            "t": _time(rides),
            "medallion": rides["medallion"],
            "pickup_cell": _cell(rides, "pickup", 250),
            "dropoff_cell": _cell(rides, "dropoff", 250),
            "paid": _paid(rides),
        }
    )
    return table, False, source


def _rides(scale: float) -> tuple[pa.Table, str]:
    """The trips. They last a tenth of a window longer than the windows, so that the last window is full."""
    rate = RUSH_RATE * scale
    rows = math.ceil(rate * 30 * 60 * (DEBS_WINDOWS + 0.1))
    source = f"generated in the format of the DEBS 2015 grand challenge, {20_000 * scale:,.0f} trips in 30 minutes"
    return trips(rows, _SEED, rate=rate, taxis=max(200, round(TAXIS * scale))), source


def _time(rides: pa.Table) -> pa.ChunkedArray:
    return rides["dropoff_datetime"].cast(pa.timestamp("us")).cast(pa.int64())


def _paid(rides: pa.Table) -> Ints:
    dollars: Floats = rides["fare_amount"].to_numpy() + rides["tip_amount"].to_numpy()
    return np.rint(dollars * 100).astype(np.int64)


def _cell(rides: pa.Table, end: str, metres: int) -> npt.NDArray[np.int32]:
    """The cell where trips begin or end, as one number from 0 that counts column by column."""
    x, y = cells(rides[f"{end}_longitude"].to_numpy(), rides[f"{end}_latitude"].to_numpy(), metres=metres)
    return ((x - 1) * (CELLS * 500 // metres) + y - 1).astype(np.int32)


# ---- all workloads ----


class _Query(NamedTuple):
    """A workload without its rows."""

    title: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    window: int | None
    slide: int | None
    rows: Callable[[Path, float, Path | None], _Rows]


_QUERIES = {
    "tpch-q1": _Query(
        "TPC-H Q1: quantities and prices (cents) by return flag and line status",
        ("l_returnflag", "l_linestatus"),
        ("l_quantity", "l_extendedprice"),
        None,
        None,
        _tpch_q1,
    ),
    # The query groups by o_orderdate and o_shippriority too, but both are functions of the order.
    "tpch-q3": _Query(
        "TPC-H Q3: revenue (hundredths of a cent) by order", ("l_orderkey",), ("revenue",), None, None, _tpch_q3
    ),
    "google-q1": _Query(
        "Google Q1: CPU requested, by scheduling class", ("scheduling_class",), ("cpu",), MINUTE, SECOND, _google_q1
    ),
    "google-q2": _Query("Google Q2: CPU requested, by job", ("job_id",), ("cpu",), 45 * MINUTE, SECOND, _google_q2),
    "google-jobs": _Query(
        "Google: scheduling class by name of the job", ("logical_job",), ("scheduling_class",), DAY, DAY, _google_jobs
    ),
    # The challenge slides with each trip; its times are whole seconds.
    "debs-q1": _Query("DEBS Q1: fare and tip (cents) by route", ("route",), ("paid",), 30 * MINUTE, SECOND, _debs_q1),
    # 30 minutes for the empty taxis; the challenge takes the fares of the last 15.
    "debs-q2": _Query(
        "DEBS Q2: cells, fare and tip (cents) by taxi",
        ("medallion",),
        ("pickup_cell", "dropoff_cell", "paid"),
        30 * MINUTE,
        SECOND,
        _debs_q2,
    ),
}
NAMES = tuple(_QUERIES)
"""The names of the workloads."""
