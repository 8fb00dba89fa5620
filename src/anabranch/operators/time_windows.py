"""Windowed aggregates as an operator: panes come in, runs of windows leave once the watermark has passed them.

The state of a group is the panes that open windows still need, as Arrow tables (keys, pane id, rows, states), one table
per epoch that brought some, merged into one now and then; and the pane up to which windows have been evaluated. A pane
with rows from several epochs is in several pieces; the folds handle that (`Fold.settle`).

With B > 1 (decision `batch`) complete windows wait until B of one specification are complete. Each evaluation touches
all panes that a window covers, so fewer evaluations cost less, but results come later. A controller sets B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from anabranch.names import PANE
from anabranch.operators.epoch_tables import MOST_TABLES, EpochTables
from anabranch.operators.pane_runs import WindowSettings, groups_of, windows_of_panes
from anabranch.operators.protocol import Emitted, Operator
from anabranch.operators.state import State
from anabranch.windows import PaneWindow
from anabranch.windows.ids import Stretch

KEYS_OF = "keys of window "
"""Metric prefix: distinct keys of a window of the partitioner, in this epoch."""

_EARLIEST = "earliest"  # [known?, pane before which no window may start, after a repair]
_EVALUATED = "evaluated"  # [known?, pane up to which (exclusive) all windows that end there have left]


class WindowOperator(Operator):
    """Evaluates the windows of one partition-group. Blocks have the columns keys..., PANE, ROWS, states... first."""

    def __init__(self, settings: WindowSettings) -> None:
        self._settings = settings
        self._reach = max(w.size for w in settings.windows)

    def open(self, state: State) -> None:
        self._state = state
        self._tables = EpochTables(state, "panes")

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[Emitted]:
        names = self._tables.names()
        columns = block.schema.names[: len(self._settings.keys) + 2 + len(self._settings.folds)]
        panes = pa.Table.from_batches([block.select(columns)])
        self._tables.append(panes)
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
        names = self._tables.names()
        if not names:
            self._mark(complete)
            return
        evaluated = self._evaluated()
        if evaluated is not None and not self._due(evaluated, complete):
            return
        panes = pa.concat_tables([self._tables[name] for name in names]).combine_chunks()
        ids = panes.column(PANE).to_numpy()
        # Windows that end at or before the very first pane have no rows.
        since = int(ids.min()) if evaluated is None else evaluated
        if complete <= since:
            return
        yield from windows_of_panes(self._settings, panes, since, complete, self._earliest())
        self._mark(complete)
        self._gather(names, complete - self._reach)

    def on_set_back(self, t: int, starts: int) -> None:
        """Windows that end after t leave again, except those that have lost rows."""
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
        """Whether a batch of windows has been completed: the B windows kB to kB + B - 1 of one specification.

        So the ends of batches do not depend on the ends of epochs. With B = 1 no complete window waits: other operators
        may read it, and rely on the watermark.
        """
        batch = int(self.decisions.get("batch", 1))

        def batches(window: PaneWindow, panes: int) -> int:
            return ((panes - window.offset - window.size) // window.slide + 1) // batch

        return any(batches(w, complete) > batches(w, evaluated) for w in self._settings.windows)

    def _gather(self, names: Sequence[str], needed: int | None) -> None:
        """Merge many tables into one, without the panes up to `needed`, which no open window covers."""
        tables = [self._tables[name] for name in names]
        if needed is not None:
            ages = [table.column(PANE).to_numpy() for table in tables]
            if len(tables) < MOST_TABLES and all(not len(age) or age.min() > needed for age in ages):
                return
            tables = [t.filter(pa.array(age > needed)) for t, age in zip(tables, ages, strict=True)]
        kept = [table for table in tables if table.num_rows]
        for name in names[: len(names) - 1]:
            self._tables.drop(name)
        if kept:
            self._tables.put(names[-1], pa.concat_tables(kept).combine_chunks())
        else:
            self._tables.drop(names[-1])

    def _evaluated(self) -> int | None:
        known, through = self._state.array(_EVALUATED, np.int64, 2)
        return int(through) if known else None

    def _mark(self, complete: int) -> None:
        mark = self._state.array(_EVALUATED, np.int64, 2)
        mark[:] = (1, complete if not mark[0] else max(complete, int(mark[1])))
