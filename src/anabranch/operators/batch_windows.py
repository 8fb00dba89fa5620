"""The window-level query: from batches of panes to runs of windows, on a worker.

One input row is one batch of one key: the list of its panes, each with its states. One output row is one run: a stretch
of consecutive windows with the same result. Spark then repeats a run once per window, in compiled code, so at most two
rows per pane pass between Python and the JVM, however many windows there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anabranch._worker_gc import freeze_loaded_objects
from anabranch.aggregates.folds import Fold, Runs, Sum
from anabranch.aggregates.kernels import find_runs
from anabranch.names import BATCH, PANES
from anabranch.windows import Batches, PaneWindow


@dataclass(frozen=True)
class SlidingOperator:
    """Evaluates the windows of each batch; run by `map_in_arrow`.

    Input columns: the keys, BATCH, PANES (a list of structs: pane id, rows, states...). Output columns: the keys, SPEC
    (which window specification), FIRST and LAST (window ids), ROWS, one folded value per state.
    """

    windows: tuple[PaneWindow, ...]
    batches: Batches
    folds: tuple[Fold, ...]
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield from self._evaluate(batch)
        freeze_loaded_objects()

    def _evaluate(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys = batch.columns[:-2]
        numbers = batch.column(BATCH).to_numpy()
        offsets, panes = _sorted_panes(batch.column(PANES))
        ids = panes.field(0).to_numpy()
        for spec, window in enumerate(self.windows):
            start = self.batches.first_start(numbers, window)
            stop = start + self.batches.slide - 1
            group, first, last, lo, hi = find_runs(offsets, ids, start, stop, window.size, window.slide, window.offset)
            runs = Runs(lo, hi)
            states: Sequence[Fold] = (Sum(), *self.folds)
            folded = [fold(panes.field(i + 1), runs) for i, fold in enumerate(states)]
            at = pa.array(group)
            columns = [
                *(key.take(at) for key in keys),
                pa.array(np.full(len(group), spec, np.int32)),
                pa.array(first),
                pa.array(last),
                *folded,
            ]
            yield pa.RecordBatch.from_arrays(columns, names=self.names)


def _sorted_panes(lists: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """The panes of all rows end to end, sorted by time within each row; Spark collects them in any order."""
    lengths = lists.value_lengths().to_numpy().astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    panes = lists.flatten()
    ids = panes.field(0).to_numpy()
    order = np.lexsort((ids, np.repeat(np.arange(len(lengths)), lengths)))
    return offsets, panes.take(pa.array(order))
