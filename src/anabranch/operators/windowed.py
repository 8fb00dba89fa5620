"""Windowed aggregates as an operator: panes come in, runs of windows leave once the watermark has passed them.

The state of a group is the panes that an open window still needs, as Arrow tables (keys, pane id, rows, states), one
table per epoch that brought some, gathered into one now and then; and how far the windows have been evaluated. A pane
that rows of several epochs fell into is there in several pieces; the folds take care of that (`Fold.settle`).

With B > 1 (decision `batch`) complete windows wait until B slides of the furthest-sliding window are complete: fewer
evaluations, each of which touches all panes that a window reaches, against a later answer. That is paper 1's batch, and
its controller sets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anabranch.operators.folds import Fold, Runs, Sum
from anabranch.operators.kernels import Ints, find_runs, sorted_by_group
from anabranch.operators.protocol import Emitted, Operator
from anabranch.operators.sliding import PANE
from anabranch.operators.state import State
from anabranch.windows import PaneWindow
from anabranch.windows.ids import Stretch

KEYS_OF = "keys of window "
"""The metric: different keys of a window of the partitioner, in this epoch."""
MOST_TABLES = 16
"""Gather the panes into one table when there are more."""

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
        yield from windows_of_panes(self._settings, panes, since, complete)
        self._mark(complete)
        self._gather(names, complete - self._reach)

    def _due(self, evaluated: int, complete: int) -> bool:
        step = int(self.decisions.get("batch", 1)) * max(w.slide for w in self._settings.windows)
        # Aligned to multiples of the step, so that where batches end does not depend on where epochs do.
        return complete // step > evaluated // step if step > 1 else complete > evaluated

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


def windows_of_panes(
    settings: WindowSettings, panes: pa.Table, since: int, complete: int, earliest: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The runs of windows that end after pane `since` and not after `complete`, of all keys that have panes here.

    `panes` has the columns keys..., PANE, ROWS, states... A pane may be there in several pieces. No window starts
    before the pane `earliest`.
    """
    groups, keys = groups_of(panes, settings.keys)
    ids = panes.column(PANE).to_numpy()
    order, offsets = sorted_by_group(groups)
    if ids.min() < ids.max():
        order = np.lexsort((ids, groups))
    ids, groups = ids[order], groups[order]
    pieces = _pieces(groups, ids)
    sorted_panes = panes.take(pa.array(order))
    folds: Sequence[Fold] = (Sum(), *settings.folds)
    first_state = len(settings.keys) + 1
    columns = [sorted_panes.column(first_state + i).combine_chunks() for i in range(len(folds))]
    states = [
        fold.settle(_one(column), pieces) if len(pieces.lo) else _one(column)
        for fold, column in zip(folds, columns, strict=True)
    ]
    count = len(offsets) - 1
    for spec, window in enumerate(settings.windows):
        # A window that ends at pane e (exclusive) starts at e - size; e is in (since, complete].
        start = since - window.size + 1
        first = np.full(count, start if earliest is None else max(start, earliest), np.int64)
        last = np.full(count, complete - window.size, np.int64)
        group, begin, end, lo, hi = find_runs(offsets, ids, first, last, window.size, window.slide, window.offset)
        if not len(group):
            continue
        runs = Runs(lo, hi)
        folded = [fold(state, runs) for fold, state in zip(folds, states, strict=True)]
        at = pa.array(groups[offsets[group]])
        arrays = [
            *(key.take(at) for key in keys),
            pa.array(np.full(len(group), spec, np.int32)),
            pa.array(begin),
            pa.array(end),
            *folded,
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=settings.names)


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
