"""From the panes of many keys to runs of windows: the step that time windows, count windows and batches share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anabranch.aggregates.folds import Fold, Runs, Sum
from anabranch.aggregates.kernels import Ints, find_runs, sorted_by_group
from anabranch.names import PANE
from anabranch.windows import PaneWindow
from anabranch.windows.ids import Stretch


@dataclass(frozen=True)
class WindowSettings:
    """What a worker needs to know about a windowed aggregate."""

    windows: tuple[PaneWindow, ...]
    pane_size: int
    origin: int
    folds: tuple[Fold, ...]
    keys: tuple[str, ...]
    names: tuple[str, ...]
    """the columns of the runs that leave: keys, SPEC, FIRST, LAST, ROWS, states"""
    stretch: Stretch | None = None
    """if a partitioner assigned the keys: its windows, in panes, in which distinct keys are counted"""


@dataclass(frozen=True)
class SortedPanes:
    """Panes of many keys end to end, sorted by key and pane, as the kernels need them."""

    codes: Ints
    """the number of each pane's key, in the original order"""
    keys: list[pa.Array]
    """the columns of the keys, by that number"""
    order: Ints
    offsets: Ints
    ids: Ints
    folds: tuple[Fold, ...]
    states: list[pa.Array]
    """the settled states of each fold"""

    @classmethod
    def of(cls, settings: WindowSettings, panes: pa.Table) -> SortedPanes:
        """`panes` has the columns keys..., PANE, ROWS, states... A pane may be in several pieces."""
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
            fold.settle(one_array(column), pieces) if len(pieces.lo) else one_array(column)
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
    """The runs of windows that end after pane `since` and not after `complete`, for all keys that have panes here.

    `panes` has the columns keys..., PANE, ROWS, states... A pane may be in several pieces. No window starts before the
    pane `earliest`.
    """
    by_key = SortedPanes.of(settings, panes)
    count = len(by_key.offsets) - 1
    for spec, window in enumerate(settings.windows):
        # A window that ends at pane e (exclusive) starts at e - size; e is in (since, complete].
        start = since - window.size + 1
        first = np.full(count, start if earliest is None else max(start, earliest), np.int64)
        last = np.full(count, complete - window.size, np.int64)
        found = find_runs(by_key.offsets, by_key.ids, first, last, window.size, window.slide, window.offset)
        if len(found[0]):
            yield by_key.runs(settings, spec, *found)


def groups_of(panes: pa.Table, keys: Sequence[str]) -> tuple[Ints, list[pa.Array]]:
    """The number of each row's key (0, 1, ...), and the columns of the keys by that number. Null is a key too."""
    columns = [one_array(panes.column(key)) for key in keys]
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
            # Renumber without gaps, so that several keys cannot overflow.
            distinct, codes = np.unique(codes * values + numbers, return_inverse=True)
            count = len(distinct)
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # of several writes to one place, the last one stays
    return codes, [column.take(pa.array(first)) for column in columns]


def _pieces(groups: Ints, ids: Ints) -> Runs:
    """The places where a pane of a key is in several pieces."""
    if not len(ids):
        return Runs(np.empty(0, np.int64), np.empty(0, np.int64))
    new = np.concatenate(([True], (np.diff(groups) != 0) | (np.diff(ids) != 0)))
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(ids))
    several = ends - starts > 1
    return Runs(starts[several], ends[several])


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
