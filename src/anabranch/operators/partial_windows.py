"""Partial evaluation and aggregation of a keyed aggregate whose tuples were partitioned.

    partition ──▶ blocks of a worker ──▶ PartialEvaluation: (key, pane, rows, states) ──▶ Aggregation: windows
                                         some rows of each key                            all states of each key

If the partitioner keeps keys whole, the second step follows the first on the same worker, and nothing travels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch._worker_gc import freeze_loaded_objects
from anabranch.aggregates.kernels import Ints, sorted_by_group
from anabranch.aggregates.partial_state import Evaluate, StateFold, untyped
from anabranch.io.blocks import one_batch, unpack
from anabranch.names import PANE, ROWS, state_name
from anabranch.operators.pane_runs import WindowSettings, groups_of, windows_of_panes
from anabranch.split.splitter import REPORT_GROUP
from anabranch.windows import PaneWindow
from anabranch.windows.ids import Stretch


@dataclass(frozen=True)
class Grouped:
    """Rows sorted by group; those of group g begin at offsets[g]. `columns` have one entry per group."""

    worker: int
    block: pa.RecordBatch
    order: Ints
    offsets: Ints
    columns: dict[str, pa.Array]


@dataclass(frozen=True)
class PartialEvaluation:
    """Evaluates the packed blocks of a worker, one row per key and pane; run by `map_in_arrow`.

    Blocks have the columns keys..., `time` (a place on the axis of the windows) and the inputs, `inputs[i]` for
    `evaluate[i]`. Rows without a time, or in a pane that the watermark has passed, have no pane: they are counted, but
    have no state. `schema` is keys..., PANE, ROWS, states... and optionally `timed` and `max_t` (for
    `split.gates.PaneGate`) and `part`, the worker.
    """

    keys: tuple[str, ...]
    time: str
    panes: Stretch
    inputs: tuple[tuple[str, ...], ...]
    evaluate: tuple[Evaluate, ...]
    schema: pa.Schema
    watermark: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = self.grouped(batches)
        if found is None:
            return
        made = found.columns
        known = made[PANE].is_valid()
        for i, (states, evaluate) in enumerate(zip(self.states(found), self.evaluate, strict=True)):
            # Rows without a pane are late or have no time: their state is never used.
            typed = evaluate.typed(states)
            made[state_name(i)] = pc.if_else(known, typed, pa.scalar(None, typed.type))
        self._add_counts(found, made)
        columns = [made[field.name].cast(field.type) for field in self.schema]
        yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
        freeze_loaded_objects()

    def grouped(self, batches: Iterator[pa.RecordBatch]) -> Grouped | None:
        """The rows of a worker, brought together by key and pane."""
        rows = _gathered(batches)
        if rows is None:
            return None
        worker, block = rows
        names = (*self.keys, PANE)
        table = pa.Table.from_batches([block]).append_column(PANE, self._pane(block.column(self.time)))
        codes, columns = groups_of(table, names)
        order, offsets = sorted_by_group(codes)
        made = {**dict(zip(names, columns, strict=True)), ROWS: pa.array(np.diff(offsets))}
        return Grouped(worker, block, order, offsets, made)

    def _pane(self, times: pa.Array) -> pa.Array:
        known = times.is_valid().to_numpy(zero_copy_only=False)
        panes = self.panes.of(times.fill_null(0).to_numpy() if times.null_count else times.to_numpy())
        if self.watermark is not None:
            known &= (panes + 1) * self.panes.size + self.panes.origin > self.watermark
        return pa.array(panes, mask=None if known.all() else ~known)

    def states(self, found: Grouped) -> Iterator[list[Any]]:
        """The states of all groups, for each aggregate."""
        order = pa.array(found.order)
        for names, evaluate in zip(self.inputs, self.evaluate, strict=True):
            yield evaluate.states([found.block.column(name).take(order) for name in names], found.offsets)

    def _add_counts(self, found: Grouped, made: dict[str, pa.Array]) -> None:
        names = self.schema.names[len(self.keys) + 2 + len(self.evaluate) :]
        if not names:
            return
        timed, max_t, part = names
        times, offsets = found.block.column(self.time).take(pa.array(found.order)), found.offsets
        valid = times.is_valid().to_numpy(zero_copy_only=False)
        counts = np.add.reduceat(valid.astype(np.int64), offsets[:-1])
        least = np.iinfo(np.int64).min
        latest = np.maximum.reduceat(np.where(valid, times.fill_null(0).to_numpy(), least), offsets[:-1])
        made[timed] = pa.array(counts)
        made[max_t] = pa.array(latest, mask=counts == 0)
        made[part] = pa.array(np.full(len(counts), found.worker, np.int64))


def _gathered(batches: Iterator[pa.RecordBatch]) -> tuple[int, pa.RecordBatch] | None:
    """The worker's number, and its blocks as one in the order of the splitters, whatever order they arrived in."""
    found: list[tuple[int, int, int, pa.RecordBatch]] = []
    worker = 0
    for batch in batches:
        places = (batch.column(name).to_pylist() for name in ("worker", "grp", "edge", "part", "seq"))
        for (at, group, *place), value in zip(zip(*places, strict=True), batch.column("block"), strict=True):
            if group != REPORT_GROUP:
                worker = at
                found.append((*place, unpack(value.as_buffer())))
    if not found:
        return None
    found.sort(key=lambda block: block[:3])
    return worker, one_batch(pa.Table.from_batches([block for *_, block in found]))


@dataclass(frozen=True)
class Aggregation:
    """Yields the runs of all windows of the keys whose pane states are in this partition; run by `map_in_arrow`.

    No window starts before the pane `earliest` (count windows start with the first row).
    """

    settings: WindowSettings
    earliest: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = [batch for batch in batches if batch.num_rows]
        if not known:
            return
        panes = pa.Table.from_batches(known).combine_chunks()
        ids = panes.column(PANE).to_numpy()
        reach = max(window.size for window in self.settings.windows)
        # Windows that end before the first pane, or begin after the last, have no rows.
        yield from windows_of_panes(self.settings, panes, int(ids.min()), int(ids.max()) + reach, self.earliest)
        freeze_loaded_objects()


@dataclass(frozen=True)
class WholeEvaluation:
    """Both steps on one worker, for keys that are whole: states need not leave the process."""

    evaluation: PartialEvaluation
    aggregation: Aggregation
    folds: tuple[StateFold, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settings = self.aggregation.settings
        if settings.windows != (PaneWindow(1, 1, 0),) or self.aggregation.earliest is not None:
            yield from self.aggregation(self.evaluation(batches))
            return
        # A pane is a window: nothing to merge, nothing to sort.
        found = self.evaluation.grouped(batches)
        if found is None:
            return
        made, panes = found.columns, found.columns[PANE]
        # Typed as if they had travelled: `final` must get the same under every policy.
        made_of = zip(self.folds, self.evaluation.evaluate, self.evaluation.states(found), strict=True)
        lowered = [fold.lowered(untyped(evaluate.typed(states))) for fold, evaluate, states in made_of]
        spec = pa.array(np.zeros(len(panes), np.int32))
        keys = [made[key] for key in settings.keys]
        yield pa.RecordBatch.from_arrays([*keys, spec, panes, panes, made[ROWS], *lowered], names=settings.names)
        freeze_loaded_objects()
