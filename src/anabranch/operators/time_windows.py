"""Windowed aggregates as an operator: panes come in, runs of windows leave once the watermark has passed them.

The state of a group is the panes that an open window still needs, as Arrow tables (keys, pane id, rows, states), one
table per epoch that brought some, gathered into one now and then; and how far the windows have been evaluated. A pane
that rows of several epochs fell into is there in several pieces; the folds take care of that (`Fold.settle`).

With B > 1 (decision `batch`) complete windows wait until B of one specification are complete: fewer evaluations, each
of which touches all panes that a window reaches, against a later answer. That is paper 1's batch, and its controller
sets it.

**Count windows** (`CountWindowOperator`) have positions for an axis and need no watermark: a window leaves in the epoch
that brings its last row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.aggregates.folds import Fold, Runs, Sum
from anabranch.aggregates.kernels import Ints, find_runs, sorted_by_group
from anabranch.names import OPEN, PANE, ROWS
from anabranch.operators.protocol import Emitted, Operator
from anabranch.operators.state import State
from anabranch.windows import PaneWindow
from anabranch.windows.ids import Stretch

KEYS_OF = "keys of window "
"""The metric: different keys of a window of the partitioner, in this epoch."""
MOST_TABLES = 16
"""Gather the panes into one table when there are more."""


_EARLIEST = "earliest"  # [known?, pane before which no window starts any more: after a repair]
_EVALUATED = "evaluated"  # [known?, pane up to which (exclusive) every window that ends there has left]


@dataclass(frozen=True)
class WindowSettings:
    """What a windowed aggregate needs to know, on every worker."""

    windows: tuple[PaneWindow, ...]
    pane_size: int
    origin: int
    folds: tuple[Fold, ...]
    keys: tuple[str, ...]
    names: tuple[str, ...]
    """of the columns of the runs that leave: keys, SPEC, FIRST, LAST, ROWS, states"""
    stretch: Stretch | None = None
    """where a partitioner placed the keys: its windows, in panes, whose different keys are counted"""


class WindowOperator(Operator):
    """Evaluates the windows of one partition-group. Blocks have the columns keys..., PANE, ROWS, states... first."""

    def __init__(self, settings: WindowSettings) -> None:
        self._settings = settings
        self._reach = max(w.size for w in settings.windows)

    def open(self, state: State) -> None:
        self._state = state

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[Emitted]:
        names = self._tables()
        number = int(names[-1].split(".")[1]) + 1 if names else 0
        columns = block.schema.names[: len(self._settings.keys) + 2 + len(self._settings.folds)]
        panes = pa.Table.from_batches([block.select(columns)])
        self._state.put(f"panes.{number:012d}", panes)
        if self._settings.stretch is not None:
            self._count_keys(panes, self._settings.stretch)
        if len(names) >= MOST_TABLES:
            self._gather(names, None)
        yield from ()

    def _count_keys(self, panes: pa.Table, stretch: Stretch) -> None:
        codes, _ = groups_of(panes, self._settings.keys)
        windows = stretch.of(panes.column(PANE).to_numpy())
        for window in np.unique(windows).tolist():
            self.metrics[f"{KEYS_OF}{window}"] += len(np.unique(codes[windows == window]))

    def on_watermark(self, t: int) -> Iterator[Emitted]:
        complete = (t - self._settings.origin) // self._settings.pane_size
        names = self._tables()
        if not names:
            self._mark(complete)
            return
        evaluated = self._evaluated()
        if evaluated is not None and not self._due(evaluated, complete):
            return
        panes = pa.concat_tables([self._table(name) for name in names]).combine_chunks()
        ids = panes.column(PANE).to_numpy()
        # Windows that end at or before the first pane of all have no rows.
        since = int(ids.min()) if evaluated is None else evaluated
        if complete <= since:
            return
        yield from windows_of_panes(self._settings, panes, since, complete, self._earliest())
        self._mark(complete)
        self._gather(names, complete - self._reach)

    def on_set_back(self, t: int, starts: int) -> None:
        """Windows that end after t leave again, but none of those that have lost rows."""
        origin, size = self._settings.origin, self._settings.pane_size
        mark = self._state.array(_EVALUATED, np.int64, 2)
        mark[1] = min(int(mark[1]), (t - origin) // size)
        self._state.array(_EARLIEST, np.int64, 2)[:] = (1, -((origin - starts) // size))

    def _earliest(self) -> int | None:
        if _EARLIEST not in self._state:
            return None
        known, pane = self._state.array(_EARLIEST, np.int64, 2)
        return int(pane) if known else None

    def _due(self, evaluated: int, complete: int) -> bool:
        """Whether a batch of windows was completed since: B windows of one specification, those kB to kB + B - 1.

        So where batches end does not depend on where epochs do. With B = 1 no window waits that is complete: others may
        read it, and go by the watermark.
        """
        batch = int(self.decisions.get("batch", 1))

        def batches(window: PaneWindow, panes: int) -> int:
            return ((panes - window.offset - window.size) // window.slide + 1) // batch

        return any(batches(w, complete) > batches(w, evaluated) for w in self._settings.windows)

    def _tables(self) -> list[str]:
        return [name for name in self._state.names() if name.startswith("panes.")]

    def _table(self, name: str) -> pa.Table:
        table = self._state.table(name)
        assert table is not None
        return table

    def _gather(self, names: Sequence[str], needed: int | None) -> None:
        """One table instead of many, without the panes up to `needed`, which no open window reaches."""
        tables = [self._table(name) for name in names]
        if needed is not None:
            ages = [table.column(PANE).to_numpy() for table in tables]
            if len(tables) < MOST_TABLES and all(not len(age) or age.min() > needed for age in ages):
                return
            tables = [t.filter(pa.array(age > needed)) for t, age in zip(tables, ages, strict=True)]
        kept = [table for table in tables if table.num_rows]
        for name in names[: len(names) - 1]:
            self._state.drop(name)
        if kept:
            self._state.put(names[-1], pa.concat_tables(kept).combine_chunks())
        else:
            self._state.drop(names[-1])

    def _evaluated(self) -> int | None:
        known, through = self._state.array(_EVALUATED, np.int64, 2)
        return int(through) if known else None

    def _mark(self, complete: int) -> None:
        mark = self._state.array(_EVALUATED, np.int64, 2)
        mark[:] = (1, complete if not mark[0] else max(complete, int(mark[1])))


class CountWindowOperator(WindowOperator):
    """Evaluates the count windows of one partition-group. Blocks have the column OPEN after the states.

    Positions come in order, and a pane leaves the numbering whole or not at all. So of each count (a key's, or, if not
    `per_key`, the one count of all rows, which then are in one group):

        panes so far     .....|.....|...            pieces that come     ..|.....|.
                                       ↑ the first of them lies in a pane that was not full before: no window that
                                         ends with it, or later, has left; and all that end before it have

    and what is full now is known from the last pane alone. Nothing else must be remembered.
    """

    def __init__(self, settings: WindowSettings, per_key: bool) -> None:
        super().__init__(settings)
        self._alone = per_key or not settings.keys
        """whether a count has one key"""

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[Emitted]:
        names = self._tables()
        columns = [*block.schema.names[: len(self._settings.keys) + 2 + len(self._settings.folds)], OPEN]
        new = pa.Table.from_batches([block.select(columns)])
        panes = pa.concat_tables([*(self._table(name) for name in names), new]).combine_chunks()
        laid = _Laid.of(self._settings, panes)
        count = laid.codes if self._alone else np.zeros(len(laid.codes), np.int64)
        ids, rows = panes.column(PANE).to_numpy(), panes.column(ROWS).to_numpy()
        full = self._full(count, ids, rows)
        since = full.copy()  # where nothing has come, nothing leaves
        since[count[-new.num_rows :]] = np.iinfo(np.int64).max
        np.minimum.at(since, count[-new.num_rows :], ids[-new.num_rows :])
        yield from self._windows(laid, panes.column(OPEN).to_numpy(), since, full)
        self._keep(names, new, panes, ids >= self._needed(full)[count])

    def on_watermark(self, t: int) -> Iterator[Emitted]:
        yield from ()

    def on_set_back(self, t: int, starts: int) -> None:
        """Positions know nothing of time."""

    def _full(self, count: Ints, ids: Ints, rows: Ints) -> Ints:
        """Of each count, up to which pane (exclusive) they are full."""
        last = np.full(count.max() + 1, -1, np.int64)
        np.maximum.at(last, count, ids)
        held = np.zeros(len(last), np.int64)
        at_end = ids == last[count]
        np.add.at(held, count[at_end], rows[at_end])
        full: Ints = last + (held == self._settings.pane_size)
        return full

    def _needed(self, full: Ints) -> Ints:
        """The first pane that an open window needs: the least start of a window that ends after `full`."""
        starts = [w.offset + ((full - w.size - w.offset) // w.slide + 1) * w.slide for w in self._settings.windows]
        least: Ints = np.min(starts, axis=0)
        return least

    def _windows(self, laid: _Laid, opens: NDArray[np.bool_], since: Ints, full: Ints) -> Iterator[pa.RecordBatch]:
        keys = len(laid.offsets) - 1
        opens = opens[laid.order]
        if not self._alone:
            since, full = np.full(keys, since[0]), np.full(keys, full[0])
        for spec, window in enumerate(self._settings.windows):
            first = since - window.size + 1
            found = find_runs(
                laid.offsets, laid.ids, first, full - window.size, window.size, window.slide, window.offset
            )
            chosen = self._wanted(window, laid, opens, *found)
            if len(chosen[0]):
                yield laid.runs(self._settings, spec, *chosen)

    def _wanted(
        self,
        window: PaneWindow,
        laid: _Laid,
        opens: NDArray[np.bool_],
        group: Ints,
        begin: Ints,
        end: Ints,
        lo: Ints,
        hi: Ints,
    ) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """The runs without the windows that were dropped: those that do not begin with a pane that is OPEN."""
        if self._alone:
            # Of windows with the same panes, the last one begins with the first of these.
            kept = (laid.ids[lo] == window.offset + end * window.slide) & opens[lo]
            return group[kept], end[kept], end[kept], lo[kept], hi[kept]
        # The first pane may be another key's.
        opened = np.unique(laid.ids[opens])
        n = end - begin + 1
        each = np.repeat(np.arange(len(n)), n)
        number = np.arange(len(each)) - np.repeat(np.cumsum(n) - n, n) + begin[each]
        kept = np.isin(window.offset + number * window.slide, opened)
        if kept.all():
            return group, begin, end, lo, hi
        each, number = each[kept], number[kept]
        return group[each], number, number, lo[each], hi[each]

    def _keep(self, names: Sequence[str], new: pa.Table, panes: pa.Table, needed: NDArray[np.bool_]) -> None:
        """Keep what is needed; the rest may stay until it is the larger part, so that little is written twice."""
        number = int(names[-1].split(".")[1]) + 1 if names else 0
        if len(names) < MOST_TABLES and 2 * np.count_nonzero(needed) >= len(needed):
            self._state.put(f"panes.{number:012d}", new)
            return
        for name in names:
            self._state.drop(name)
        if needed.any():
            self._state.put(f"panes.{number:012d}", panes.filter(pa.array(needed)).combine_chunks())


@dataclass(frozen=True)
class _Laid:
    """Panes of many keys laid end to end, sorted by key and pane: as the kernels want them."""

    codes: Ints
    """the number of each pane's key, as the panes came"""
    keys: list[pa.Array]
    """for each such number the key's columns"""
    order: Ints
    offsets: Ints
    ids: Ints
    folds: tuple[Fold, ...]
    states: list[pa.Array]
    """of each fold, settled"""

    @classmethod
    def of(cls, settings: WindowSettings, panes: pa.Table) -> _Laid:
        """`panes` has the columns keys..., PANE, ROWS, states... A pane may be there in several pieces."""
        codes, keys = groups_of(panes, settings.keys)
        ids = panes.column(PANE).to_numpy()
        order, offsets = sorted_by_group(codes)
        if ids.min() < ids.max():
            order = np.lexsort((ids, codes))
        ids, groups = ids[order], codes[order]
        pieces = _pieces(groups, ids)
        sorted_panes = panes.take(pa.array(order))
        folds = (Sum(), *settings.folds)
        first_state = len(settings.keys) + 1
        columns = [sorted_panes.column(first_state + i).combine_chunks() for i in range(len(folds))]
        states = [
            fold.settle(_one(column), pieces) if len(pieces.lo) else _one(column)
            for fold, column in zip(folds, columns, strict=True)
        ]
        return cls(codes, keys, order, offsets, ids, folds, states)

    def runs(
        self, settings: WindowSettings, spec: int, group: Ints, begin: Ints, end: Ints, lo: Ints, hi: Ints
    ) -> pa.RecordBatch:
        """The runs that `find_runs` found, with their folded states."""
        runs, at = Runs(lo, hi), pa.array(group)
        arrays = [
            *(key.take(at) for key in self.keys),
            pa.array(np.full(len(group), spec, np.int32)),
            pa.array(begin),
            pa.array(end),
            *(fold(state, runs) for fold, state in zip(self.folds, self.states, strict=True)),
        ]
        return pa.RecordBatch.from_arrays(arrays, names=settings.names)


def windows_of_panes(
    settings: WindowSettings, panes: pa.Table, since: int, complete: int, earliest: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The runs of windows that end after pane `since` and not after `complete`, of all keys that have panes here.

    `panes` has the columns keys..., PANE, ROWS, states... A pane may be there in several pieces. No window starts
    before the pane `earliest`.
    """
    laid = _Laid.of(settings, panes)
    count = len(laid.offsets) - 1
    for spec, window in enumerate(settings.windows):
        # A window that ends at pane e (exclusive) starts at e - size; e is in (since, complete].
        start = since - window.size + 1
        first = np.full(count, start if earliest is None else max(start, earliest), np.int64)
        last = np.full(count, complete - window.size, np.int64)
        found = find_runs(laid.offsets, laid.ids, first, last, window.size, window.slide, window.offset)
        if len(found[0]):
            yield laid.runs(settings, spec, *found)


def groups_of(panes: pa.Table, keys: Sequence[str]) -> tuple[Ints, list[pa.Array]]:
    """A number for each key, 0, 1, ..., and for each such number the key's columns: a null is a key like another."""
    columns = [_one(panes.column(key)) for key in keys]
    codes, count = np.zeros(panes.num_rows, np.int64), min(1, panes.num_rows)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        values = len(encoded.dictionary)
        if values <= 1:
            continue
        numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if count <= 1:
            codes, count = numbers, values
        else:
            # Dense again, so that several keys cannot overflow.
            distinct, codes = np.unique(codes * values + numbers, return_inverse=True)
            count = len(distinct)
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # of several that are written, the last one stays
    return codes, [column.take(pa.array(first)) for column in columns]


def _pieces(groups: Ints, ids: Ints) -> Runs:
    """Where one pane of one key is there more than once."""
    if not len(ids):
        return Runs(np.empty(0, np.int64), np.empty(0, np.int64))
    new = np.concatenate(([True], (np.diff(groups) != 0) | (np.diff(ids) != 0)))
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(ids))
    several = ends - starts > 1
    return Runs(starts[several], ends[several])


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
