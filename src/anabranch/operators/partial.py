"""Partial evaluation and aggregation of a keyed aggregate whose tuples were partitioned (paper 3, section 2.2).

    partition ──▶ blocks of a worker ──▶ PartialEvaluation: (key, pane, rows, states) ──▶ Aggregation: windows
                                         some rows of each key                            all states of each key

Where a partitioner keeps keys whole, the second follows the first on the same worker, and nothing travels in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.io.blocks import one_batch, unpack
from anabranch.operators.kernels import Ints
from anabranch.operators.parts import Evaluate
from anabranch.operators.sliding import PANE, ROWS
from anabranch.operators.windowed import WindowSettings, groups_of, windows_of_panes
from anabranch.split.splitter import MARK


@dataclass(frozen=True)
class PartialEvaluation:
    """What `mapInArrow` runs on a worker, over its packed blocks: one row per key and pane that it has.

    Blocks have the columns keys..., PANE (null: not to be evaluated), `time` (microseconds) and the inputs, `inputs[i]`
    for `evaluate[i]`. `schema` is keys..., PANE, ROWS, states... and, where it says so, `timed` and `max_t` (as
    `split.PaneGate` wants them) and `part`, the worker.
    """

    keys: tuple[str, ...]
    time: str
    inputs: tuple[tuple[str, ...], ...]
    evaluate: tuple[Evaluate, ...]
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _gathered(batches)
        if rows is None:
            return
        worker, block = rows
        order, offsets = self._groups(block)
        first = pa.array(order[offsets[:-1]])
        known = block.column(PANE).take(first).is_valid()
        grouped = {name: block.column(name).take(pa.array(order)) for names in self.inputs for name in names}
        made: dict[str, pa.Array] = {name: block.column(name).take(first) for name in (*self.keys, PANE)}
        made[ROWS] = pa.array(np.diff(offsets))
        for i, (names, evaluate) in enumerate(zip(self.inputs, self.evaluate, strict=True)):
            states = evaluate([grouped[name] for name in names], offsets)
            # Rows without a pane are late, or have no time: their state is never asked for.
            made[f"__ab_s{i}"] = pc.if_else(known, states, pa.scalar(None, states.type))
        self._counted(block.column(self.time).take(pa.array(order)), offsets, worker, made)
        columns = [made[field.name].cast(field.type) for field in self.schema]
        yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _groups(self, block: pa.RecordBatch) -> tuple[Ints, Ints]:
        """The order that brings the rows of a key and pane together, and where each such group begins."""
        codes, _ = groups_of(pa.Table.from_batches([block]), (*self.keys, PANE))
        order = np.argsort(codes, kind="stable")
        ends = np.flatnonzero(np.diff(codes[order])) + 1
        return order, np.concatenate(([0], ends, [len(codes)])).astype(np.int64)

    def _counted(self, times: pa.Array, offsets: Ints, worker: int, made: dict[str, pa.Array]) -> None:
        names = self.schema.names[len(self.keys) + 2 + len(self.evaluate) :]
        if not names:
            return
        timed, max_t, part = names
        valid = times.is_valid().to_numpy(zero_copy_only=False)
        counts = np.add.reduceat(valid.astype(np.int64), offsets[:-1])
        least = np.iinfo(np.int64).min
        latest = np.maximum.reduceat(np.where(valid, times.fill_null(0).to_numpy(), least), offsets[:-1])
        made[timed] = pa.array(counts)
        made[max_t] = pa.array(latest, mask=counts == 0)
        made[part] = pa.array(np.full(len(counts), worker, np.int64))


def _gathered(batches: Iterator[pa.RecordBatch]) -> tuple[int, pa.RecordBatch] | None:
    """The worker's number and its blocks as one, in the order in which they were split, whatever came first."""
    found: list[tuple[int, int, int, pa.RecordBatch]] = []
    worker = 0
    for batch in batches:
        places = (batch.column(name).to_pylist() for name in ("worker", "grp", "edge", "part", "seq"))
        for (at, group, *place), value in zip(zip(*places, strict=True), batch.column("block"), strict=True):
            if group != MARK:
                worker = at
                found.append((*place, unpack(value.as_buffer())))
    if not found:
        return None
    found.sort(key=lambda block: block[:3])
    return worker, one_batch(pa.Table.from_batches([block for *_, block in found]))


@dataclass(frozen=True)
class Aggregation:
    """All windows of the keys whose pane states are in this partition; what `mapInArrow` runs. Yields runs.

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


@dataclass(frozen=True)
class WholeEvaluation:
    """Both on one worker, where keys are whole: states need not leave the process."""

    evaluation: PartialEvaluation
    aggregation: Aggregation

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.aggregation(self.evaluation(batches))
