"""Positions of a stream's rows in the order of time: the axis of count windows.

A row gets its position (0, 1, 2, ... within its key, or among all rows) once the watermark has passed it: then no
earlier row can come, so the position is final. Rows with the same time are ordered by their other columns, as in a
batch (`plan.positions`), and not by arrival. So positions depend on the rows alone, not on how they were split into
epochs and files, and after a crash every row gets the same one again.

    epoch 1    rows at 4 2 7     watermark 5    2 4 leave as 0 1     7 waits
    epoch 2    rows at 6 9       watermark 8    6 7 leave as 2 3     9 waits

The state of a group is the waiting rows, one table per epoch that brought some, and four numbers per key for as long as
the query runs: how many of its rows were numbered, and the state of its window drop.

**Window drop** (decision `shed`). A *unit* is the windows that begin in a stretch as long as the least common multiple
of the slides; with a single window specification it is one window. It is kept or dropped when its first row gets a
position, by the rule of `shedding.windrop`, separately for each key: no key has gaps above the bound. A row that only
dropped windows need is dropped. For the other rows the column OPEN says whether the windows that begin there are kept,
because kept windows may need all the rows of a dropped one. Dropped windows are reported in a separate output,
DROPPED.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.aggregates.kernels import Ints
from anabranch.io.blocks import micros_of, one_batch
from anabranch.names import OPEN, POSITION
from anabranch.operators.epoch_tables import MOST_TABLES, EpochTables
from anabranch.operators.pane_runs import groups_of
from anabranch.operators.protocol import Emitted, Operator
from anabranch.operators.state import State
from anabranch.shedding.kernels import coins, latest_kept, says_drop
from anabranch.shedding.windrop import KEY_BUCKETS
from anabranch.windows import Window
from anabranch.windows.spans import Span, fan_out, scaled
from anabranch.windows.spec import LONGEST

SHED = "shed"
"""The setting with the `WindowDrops`, and the metric: rows dropped."""
ROWS_NUMBERED = "counted"
"""Metric: rows that got a position, dropped or not."""
WINDOWS_SHED, WINDOWS_KEPT = "windows_shed", "windows_kept"
"""Metrics: windows whose first row came while windows were being dropped."""
NUMBERED, DROPPED = "numbered", "dropped"
"""Outputs: rows with their positions, and the windows that were dropped."""
DROPPED_SCHEMA = pa.schema(
    [
        ("window_spec", pa.string()),
        ("key", pa.string()),
        ("first_row", pa.int64()),
        ("last_row", pa.int64()),
        ("windows", pa.int64()),
    ]
)
"""Each row is a run of `windows` windows of a key, which begin at rows `first_row` to `last_row`. Keys are JSON."""

_KEY_COUNTS = np.dtype([("rows", np.int64), ("run", np.int64), ("debt", np.int64), ("last", np.int64)])
"""Per key: rows numbered; units dropped in a row, and units owed; the last unit kept, or -1."""
_PASSED, _KEYS, _COUNTS, _SHARE = "passed", "keys", "counts", "share"


@dataclass(frozen=True)
class WindowDrops:
    """What was decided about dropping windows of rows, as a setting of the operator."""

    p: float
    """the share of windows to drop"""
    bound: int | None
    """how many windows in a row may be dropped; None drops all"""
    seed: int
    """of the coins"""

    def to_json(self) -> dict[str, Any]:
        return {"p": self.p, "bound": self.bound, "seed": self.seed}

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> WindowDrops:
        drops = cls(float(known["p"]), known["bound"], known["seed"])
        numbers = [drops.seed, *([] if drops.bound is None else [drops.bound])]
        if not 0 <= drops.p <= 1 or any(type(n) is not int for n in numbers) or (drops.bound or 0) < 0:
            raise ValueError("p is a share, seed and bound are whole numbers, and a bound is not negative")
        return drops


@dataclass(frozen=True)
class Numbering:
    """Settings of the numbering, and the factory of its operator."""

    keys: tuple[str, ...]
    """rows are numbered within each key; without keys, over all rows"""
    time: str
    ties: tuple[str, ...]
    """columns that order rows with the same time"""
    windows: tuple[Window, ...]
    labels: tuple[str, ...]
    """the users' names of the keys"""

    @property
    def units(self) -> Span:
        """The rows that the windows of a unit cover."""
        return fan_out([Span(w.slide, w.origin, 0, w.size) for w in self.windows])

    def bound(self, drops: WindowDrops | None) -> int:
        """How many units in a row may be missing, so that no window specification misses more than B windows."""
        if drops is None or drops.bound is None:
            return 0 if drops is None else LONGEST
        return min(scaled(drops.bound, w.slide, self.units.slide) for w in self.windows)

    def __call__(self) -> PositionsOperator:
        return PositionsOperator(self)


class PositionsOperator(Operator):
    """Numbers the rows of one partition-group.

    Its output NUMBERED has the columns of its blocks, POSITION and OPEN; DROPPED those of DROPPED_SCHEMA.
    """

    def __init__(self, settings: Numbering) -> None:
        self._settings = settings
        self._units = settings.units

    def open(self, state: State) -> None:
        self._state = state
        self._tables = EpochTables(state, "rows")

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[Emitted]:
        self._tables.append(pa.Table.from_batches([block]))
        yield from ()

    def on_watermark(self, t: int) -> Iterator[Emitted]:
        due = self._due(t)
        drops = self._drops()
        if due is not None:
            yield from self._numbered(due, drops)

    def on_set_back(self, t: int, starts: int) -> None:
        mark = self._state.array(_PASSED, np.int64, 2)
        if not mark[0] or t >= mark[1]:
            return
        # Rows that have a position may still share a table with waiting ones, and must not get a second position.
        for name in self._tables.names():
            table = self._tables[name]
            times = np.asarray(micros_of(table.column(self._settings.time).combine_chunks()))
            waiting = table.filter(pa.array(times >= mark[1]))
            if not waiting.num_rows:
                self._tables.drop(name)
            elif waiting.num_rows < table.num_rows:
                self._tables.put(name, waiting.combine_chunks())
        mark[1] = t

    # --- rows that wait ---------------------------------------------------------------------------------------------

    def _due(self, t: int) -> pa.RecordBatch | None:
        """The rows that the watermark passes now. A table is not rewritten while some of its rows still wait."""
        mark = self._state.array(_PASSED, np.int64, 2)
        before = int(mark[1]) if mark[0] else None
        if before is not None and t <= before:
            return None
        mark[:] = (1, t)
        names = self._tables.names()
        found, waiting = [], []
        for name in names:
            table = self._tables[name]
            times = np.asarray(micros_of(table.column(self._settings.time).combine_chunks()))
            due = times < t if before is None else (times < t) & (times >= before)
            if due.any():
                found.append(table.filter(pa.array(due)))
            if times.max() < t:
                self._tables.drop(name)
            else:
                waiting.append((name, table.filter(pa.array(times >= t)) if len(names) >= MOST_TABLES else table))
        if len(waiting) > 1 and len(names) >= MOST_TABLES:
            for name, _ in waiting[:-1]:
                self._tables.drop(name)
            self._tables.put(waiting[-1][0], pa.concat_tables([rows for _, rows in waiting]).combine_chunks())
        return one_batch(pa.concat_tables(found)) if found else None

    # --- positions --------------------------------------------------------------------------------------------------

    def _numbered(self, due: pa.RecordBatch, drops: WindowDrops | None) -> Iterator[Emitted]:
        key, counts = self._keys(due)
        order = self._order(due, key)
        key = key[order]
        begins = np.flatnonzero(np.diff(key, prepend=-1))  # where each key's rows begin: they are adjacent
        ends = np.append(begins[1:], len(key))
        present = key[begins]
        before = counts["rows"][present]
        after = before + ends - begins
        positions = np.arange(len(key)) + np.repeat(before - begins, ends - begins)
        counts["rows"][present] = after
        latest = self._latest_kept(present, before, after, positions, counts, drops)
        slide, size = self._units.slide, self._units.size
        # The first unit whose windows reach the row. There are no units before the first row.
        wanted = latest >= np.maximum((positions - size) // slide + 1, 0)
        opened = latest == positions // slide
        self.metrics[ROWS_NUMBERED] += len(key)
        if not wanted.all():
            self.metrics[SHED] += int(np.count_nonzero(~wanted))
        if drops is not None or not opened.all():  # a unit may be dropped before its later windows begin
            for window in self._settings.windows:
                first_of = positions % window.slide == 0  # a window begins here
                yield DROPPED, self._dropped(window, key[first_of], positions[first_of], ~opened[first_of])
        rows = due.take(pa.array(order[wanted]))
        if rows.num_rows:
            numbered = rows.append_column(POSITION, pa.array(positions[wanted]))
            yield NUMBERED, numbered.append_column(OPEN, pa.array(opened[wanted]))

    def _dropped(self, window: Window, key: Ints, begin: Ints, gone: NDArray[np.bool_]) -> pa.RecordBatch:
        """The runs of dropped windows among those that begin at rows `begin`, key by key; also counts them."""
        self.metrics[WINDOWS_KEPT] += int(np.count_nonzero(~gone))
        self.metrics[WINDOWS_SHED] += int(np.count_nonzero(gone))
        joined = (key[1:] == key[:-1]) & gone[1:] & gone[:-1]
        first = np.flatnonzero(gone & np.insert(~joined, 0, True))
        last = np.flatnonzero(gone & np.append(~joined, True))
        columns = (
            pa.repeat(pa.scalar(window.label), len(first)),
            self._labels(key[first]),
            pa.array(begin[first]),
            pa.array(begin[last]),
            pa.array((begin[last] - begin[first]) // window.slide + 1),
        )
        return pa.RecordBatch.from_arrays(list(columns), schema=DROPPED_SCHEMA)

    def _labels(self, numbers: Ints) -> pa.Array:
        """Readable keys."""
        known = self._state.table(_KEYS)
        if known is None:
            return pa.nulls(len(numbers), pa.string())
        each, at = np.unique(numbers, return_inverse=True)
        columns = [_readable(column.take(pa.array(each))) for column in known.columns]
        # Under the users' names: columns travel under others.
        rows = [dict(zip(self._settings.labels, values, strict=True)) for values in zip(*columns, strict=True)]
        labels = pa.array([json.dumps(row, ensure_ascii=False) for row in rows], pa.string())
        return labels.take(pa.array(at))

    def _keys(self, due: pa.RecordBatch) -> tuple[Ints, NDArray[Any]]:
        """The number of each row's key, and the state of all keys; new keys are added."""
        names = self._settings.keys
        if not names:
            return np.zeros(due.num_rows, np.int64), self._counts(1)
        came = pa.table([_same_zero(due.column(name)) for name in names], names=[f"k{i}" for i in range(len(names))])
        known = self._state.table(_KEYS)
        before = 0 if known is None else known.num_rows
        both = came if known is None else pa.concat_tables([known, came])
        codes, columns = groups_of(both, both.column_names)
        number = np.full(len(columns[0]), -1, np.int64)
        number[codes[:before]] = np.arange(before)
        new = np.flatnonzero(number < 0)
        number[new] = before + np.arange(len(new))
        if len(new):
            added = pa.table([column.take(pa.array(new)) for column in columns], names=both.column_names)
            self._state.put(_KEYS, added if known is None else pa.concat_tables([known, added]).combine_chunks())
        return number[codes[before:]], self._counts(before + len(new))

    def _counts(self, keys: int) -> NDArray[Any]:
        counts = self._state.array(_COUNTS, _KEY_COUNTS)
        if len(counts) < keys:
            length = len(counts)
            counts = self._state.resize(_COUNTS, max(keys, 2 * length))
            counts["last"][length:] = -1
        return counts

    def _order(self, due: pa.RecordBatch, key: Ints) -> Ints:
        """The order by key, time, and the other columns."""
        times = np.asarray(micros_of(due.column(self._settings.time)))
        order = np.lexsort((times, key))
        same = (np.diff(key[order]) == 0) & (np.diff(times[order]) == 0)
        if not same.any():
            return order
        # Only rows that share a time need a closer look; as a group they keep their places.
        tied = np.append(same, False) | np.insert(same, 0, False)
        rows = order[tied]
        among = due.take(pa.array(rows))
        finer = [part for name in reversed(self._settings.ties) for part in _spark_order(among.column(name))]
        order[tied] = rows[np.lexsort((*finer, times[rows], key[rows]))]
        return order

    # --- window drop ------------------------------------------------------------------------------------------------

    def _drops(self) -> WindowDrops | None:
        """The decision. Debts from a higher share are forgotten once there is less to drop."""
        known = self.decisions.get(SHED)
        drops = None if known is None else WindowDrops.from_json(known)
        p = 0.0 if drops is None else drops.p
        share = self._state.array(_SHARE, np.float64, 1)
        all_dropped = drops is not None and drops.bound is None
        if p < share[0] or all_dropped:
            debt = self._state.array(_COUNTS, _KEY_COUNTS)["debt"]
            debt[:] = 0
        share[0] = p
        return drops

    def _latest_kept(
        self,
        present: Ints,
        before: Ints,
        after: Ints,
        positions: Ints,
        counts: NDArray[Any],
        drops: WindowDrops | None,
    ) -> Ints:
        """Decide the units that begin with these rows, and return the last unit kept as of each row."""
        slide = self._units.slide
        first = -(-before // slide)
        many = (after - 1) // slide - first + 1
        offsets = np.concatenate(([0], np.cumsum(many)))
        units = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], many)
        bound = self._settings.bound(drops)
        thrown = np.full(len(units), drops is not None and drops.bound is None)
        if drops is not None and drops.bound is not None and drops.p > 0:
            u = coins(drops.seed + self.group, units // max(1, bound))
            thrown = says_drop(u, drops.p, np.repeat(present % KEY_BUCKETS, many), KEY_BUCKETS)
        run, debt, last = (np.ascontiguousarray(counts[name][present]) for name in ("run", "debt", "last"))
        known = last.copy()
        latest = np.append(known, latest_kept(offsets, units, thrown, bound, run, debt, last))
        for name, value in (("run", run), ("debt", debt), ("last", last)):
            counts[name][present] = value
        # A row's unit is among those decided now, or, if it began in an earlier epoch, already known.
        at = np.repeat(np.arange(len(present)), after - before)
        now = positions // slide - first[at]
        found: Ints = latest[np.where(now < 0, at, len(present) + offsets[at] + now)]
        return found


def _spark_order(column: pa.Array) -> Sequence[NDArray[Any]]:
    """Keys for `numpy.lexsort` that order as Spark does: null first, NaN last."""
    if pa.types.is_null(column.type):
        return ()
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(column.type):
        ranks = np.unique(column.fill_null(0.0).to_numpy(zero_copy_only=False), return_inverse=True)[1]
    else:
        ranks = pc.rank(column, tiebreaker="dense").to_numpy()
    # Nulls have arbitrary ranks; give them all the same one, or they would count as different.
    return np.where(valid, ranks, 0), valid


def _readable(column: pa.ChunkedArray) -> list[bool | int | float | str | None]:
    """Values as JSON can hold them; other types, and numbers that JSON lacks, as Arrow writes them.

    Dates may be outside Python's range, and strings need not be valid UTF-8.
    """
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        found: list[bool | int | float | str | None] = column.to_pylist()
    elif pa.types.is_floating(kind):
        found = [value if value is None or np.isfinite(value) else str(value) for value in column.to_pylist()]
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        raw = column.cast(pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()).to_pylist()
        found = [None if value is None else value.decode(errors="replace") for value in raw]
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        found = [None if value is None else value.hex() for value in column.to_pylist()]
    else:
        found = column.cast(pa.string()).to_pylist()
    return found


def _same_zero(column: pa.Array) -> pa.Array:
    """-0.0 is the key 0.0, as in Spark."""
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column
