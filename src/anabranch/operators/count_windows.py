"""Count windows as an operator. Their axis is the position of rows, so they need no watermark.

A window is delivered in the epoch that brings its last row. `numbering` gives rows their positions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.aggregates.kernels import Ints, find_runs
from anabranch.names import OPEN, PANE, ROWS
from anabranch.operators.epoch_tables import MOST_TABLES, EpochTables
from anabranch.operators.pane_runs import SortedPanes, WindowSettings
from anabranch.operators.protocol import Emitted, Operator
from anabranch.operators.state import State
from anabranch.windows import PaneWindow


class CountWindowOperator(Operator):
    """Evaluates the count windows of one partition-group. Blocks have the column OPEN after the states.

    Positions arrive in order, and all rows of a pane are either kept or dropped. So for each count (one per key, or, if
    not `per_key`, one for all rows, which are then in one group):

        panes so far     .....|.....|...            new pieces           ..|.....|.
                                       ↑ the first new piece belongs to a pane that was not full before: no window
                                         that ends with it, or later, has left; all that end before it have

    The last pane alone tells which panes are full now, so nothing else needs to be remembered.
    """

    def __init__(self, settings: WindowSettings, per_key: bool) -> None:
        self._settings = settings
        self._alone = per_key or not settings.keys
        """whether each count belongs to one key"""

    def open(self, state: State) -> None:
        self._tables = EpochTables(state, "panes")

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[Emitted]:
        names = self._tables.names()
        columns = [*block.schema.names[: len(self._settings.keys) + 2 + len(self._settings.folds)], OPEN]
        new = pa.Table.from_batches([block.select(columns)])
        panes = pa.concat_tables([*(self._tables[name] for name in names), new]).combine_chunks()
        by_key = SortedPanes.of(self._settings, panes)
        count = by_key.codes if self._alone else np.zeros(len(by_key.codes), np.int64)
        ids, rows = panes.column(PANE).to_numpy(), panes.column(ROWS).to_numpy()
        full = self._full(count, ids, rows)
        since = full.copy()  # a count without new rows has no new windows
        since[count[-new.num_rows :]] = np.iinfo(np.int64).max
        np.minimum.at(since, count[-new.num_rows :], ids[-new.num_rows :])
        yield from self._windows(by_key, panes.column(OPEN).to_numpy(), since, full)
        self._keep(names, new, panes, ids >= self._needed(full)[count])

    def on_watermark(self, t: int) -> Iterator[Emitted]:
        yield from ()

    def on_set_back(self, t: int, starts: int) -> None:
        """Positions do not depend on time."""

    def _full(self, count: Ints, ids: Ints, rows: Ints) -> Ints:
        """For each count, the pane up to which (exclusive) panes are full."""
        last = np.full(count.max() + 1, -1, np.int64)
        np.maximum.at(last, count, ids)
        held = np.zeros(len(last), np.int64)
        at_end = ids == last[count]
        np.add.at(held, count[at_end], rows[at_end])
        full: Ints = last + (held == self._settings.pane_size)
        return full

    def _needed(self, full: Ints) -> Ints:
        """The first pane that an open window needs: the smallest start of a window that ends after `full`."""
        starts = [w.offset + ((full - w.size - w.offset) // w.slide + 1) * w.slide for w in self._settings.windows]
        least: Ints = np.min(starts, axis=0)
        return least

    def _windows(
        self, by_key: SortedPanes, opens: NDArray[np.bool_], since: Ints, full: Ints
    ) -> Iterator[pa.RecordBatch]:
        keys = len(by_key.offsets) - 1
        opens = opens[by_key.order]
        if not self._alone:
            since, full = np.full(keys, since[0]), np.full(keys, full[0])
        for spec, window in enumerate(self._settings.windows):
            first = since - window.size + 1
            last = full - window.size
            found = find_runs(by_key.offsets, by_key.ids, first, last, window.size, window.slide, window.offset)
            chosen = self._wanted(window, by_key, opens, *found)
            if len(chosen[0]):
                yield by_key.runs(self._settings, spec, *chosen)

    def _wanted(
        self,
        window: PaneWindow,
        by_key: SortedPanes,
        opens: NDArray[np.bool_],
        group: Ints,
        begin: Ints,
        end: Ints,
        lo: Ints,
        hi: Ints,
    ) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """The runs without the dropped windows: those whose first pane is not OPEN."""
        if self._alone:
            # Of the windows with the same panes, the last one begins with the first of these panes.
            kept = (by_key.ids[lo] == window.offset + end * window.slide) & opens[lo]
            return group[kept], end[kept], end[kept], lo[kept], hi[kept]
        # The first pane of a window may belong to another key.
        opened = np.unique(by_key.ids[opens])
        n = end - begin + 1
        each = np.repeat(np.arange(len(n)), n)
        number = np.arange(len(each)) - np.repeat(np.cumsum(n) - n, n) + begin[each]
        kept = np.isin(window.offset + number * window.slide, opened)
        if kept.all():
            return group, begin, end, lo, hi
        each, number = each[kept], number[kept]
        return group[each], number, number, lo[each], hi[each]

    def _keep(self, names: list[str], new: pa.Table, panes: pa.Table, needed: NDArray[np.bool_]) -> None:
        """Keep the needed panes. Others may stay until they are the majority, so that little is written twice."""
        name = self._tables.next_name(names)
        if len(names) < MOST_TABLES and 2 * np.count_nonzero(needed) >= len(needed):
            self._tables.put(name, new)
            return
        for old in names:
            self._tables.drop(old)
        if needed.any():
            self._tables.put(name, panes.filter(pa.array(needed)).combine_chunks())
