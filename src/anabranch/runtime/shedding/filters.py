"""What the drop plan of one epoch removes: rows before they are processed, and results of incomplete windows.

Rows are counted where they are dropped (`runtime.shedding.counters`), with their latest time. So the watermark advances
from the next epoch on, even if all rows of an epoch are shed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from anabranch.keys.hashing import key_hash
from anabranch.names import FIRST, SPEC
from anabranch.observe.progress import DropProgress, OperatorProgress
from anabranch.operators.numbering import WINDOWS_KEPT, WINDOWS_SHED
from anabranch.query.graph import Network, Step
from anabranch.query.nodes import Input
from anabranch.query.origins import Source
from anabranch.runtime.shedding.columns import drops_rows, source_name, time_at
from anabranch.runtime.shedding.counters import DropCounts
from anabranch.runtime.shedding.planner import DropPlanner
from anabranch.shedding.lookup import Lookup, TupleFilter, dropped_windows
from anabranch.shedding.points import DropPoint
from anabranch.spark.columns import quoted
from anabranch.store.records import DropPlan
from anabranch.windows import Window

REPORT_SCHEMA = pa.schema(
    [
        ("output", pa.string()),
        ("window_spec", pa.string()),
        ("bucket", pa.int32()),
        ("buckets", pa.int32()),
        ("first_start", pa.timestamp("us", "UTC")),
        ("last_start", pa.timestamp("us", "UTC")),
        ("windows", pa.int64()),
        ("point", pa.string()),
        ("p", pa.float64()),
        ("cause", pa.string()),
        ("delivered_share", pa.float64()),
        ("at_epoch", pa.int64()),
        ("key", pa.string()),
        ("first_row", pa.int64()),
        ("last_row", pa.int64()),
    ]
)
"""The schema of the list of dropped windows. Each row is a run of consecutive windows of an output.

Time windows are dropped for the keys of a bucket: the row has the starts of the first and the last window. Count
windows are dropped key by key: the row has the key, and the positions of the first rows of the first and last window.
"""


@dataclass(frozen=True)
class CountWindowDrops:
    """What an operator that numbers rows for count windows dropped in an epoch."""

    progress: OperatorProgress
    dropped: pa.Table


class EpochDrops:
    """Applies the drop plan of one epoch."""

    def __init__(self, planner: DropPlanner, network: Network, plan: DropPlan) -> None:
        self._network = network
        self._plan = plan.points
        self._keys = planner.keys
        self._points = [planner.named[name] for name in self._plan]
        self._timed = [point for point in self._points if not point.counts_rows]
        states = {point.name: self._plan[point.name].state for point in self._timed}
        self._states = {name: state for name, state in states.items() if state is not None}

    def of_source(self, source: Source) -> Column | None:
        """Which rows of a source are dropped for all its readers."""
        name = source_name(self._network, source)
        return self._rows([p for p in self._timed if p.kind == "source" and name in p.at], source.time.micros())

    def of_edge(self, step: Step, input_: Input) -> Column | None:
        """Which rows are dropped for one operator, before the steps that lead to it."""
        points = [point for point in self._timed if drops_rows(self._network, point, step.name, input_)]
        return self._rows(points, time_at(input_))

    def _rows(self, points: Sequence[DropPoint], t: Column) -> Column | None:
        found = []
        for point in points:
            lookup = TupleFilter.of(self._states[point.name], point.span)
            if lookup is not None:
                found.append(lookup.left_out(t, self._bucket(point)))
        return reduce(or_, found) if found else None

    def of_results(self, step: Step) -> Column | None:
        """Which windows of an operator are not delivered, by the columns SPEC, FIRST (the window id) and the keys."""
        query, found = step.node.aggregate, []
        if query is None:
            return None
        for point in self._timed:
            for spec, window in enumerate(query.panes.windows if step.name in point.domain else ()):
                ranges = dropped_windows(self._states[point.name], point.emits[step.name][spec], window)
                lookup = Lookup.of(ranges)
                if lookup is not None:
                    mine = F.col(SPEC) == spec
                    found.append(F.coalesce(mine, F.lit(False)) & lookup.left_out(F.col(FIRST), self._bucket(point)))
        return reduce(or_, found) if found else None

    def _bucket(self, point: DropPoint) -> Column | None:
        buckets = self._states[point.name].buckets
        if buckets == 1:
            return None
        return F.pmod(key_hash([quoted(key) for key in self._keys[point.name]]), F.lit(buckets))

    def report(
        self,
        watermarks: Mapping[str, tuple[int | None, int | None]],
        count_windows: Mapping[str, Sequence[CountWindowDrops]],
        before: Mapping[str, Sequence[int]],
        epoch: int,
    ) -> tuple[pa.Table, dict[str, tuple[int, int]]]:
        """The dropped windows that ended in this epoch; and for each point, the number of windows and drops so far.

        `watermarks`: the watermark of each operator before and after the epoch; `count_windows`: for each point of
        count windows, what the operators that number its rows dropped; `before`: the numbers before this epoch.
        """
        counts: dict[str, tuple[int, int]] = {}
        tables = [REPORT_SCHEMA.empty_table()]
        for point in self._points:
            windows, missing = (
                self._count_windows(point, count_windows[point.name])
                if point.counts_rows
                else self._time_windows(point, watermarks)
            )
            before_windows, before_dropped = before.get(point.name, (0, 0))
            dropped = before_dropped + (pc.sum(missing["windows"]).as_py() or 0)
            counts[point.name] = max(before_windows + windows, dropped), dropped
            share = 1.0 - dropped / counts[point.name][0] if dropped else 1.0
            entry = self._plan[point.name]
            same = {"point": point.name, "p": entry.p, "cause": entry.cause, "at_epoch": epoch}
            tables.append(_filled(missing, {**same, "delivered_share": share}))
        return pa.concat_tables(tables), counts

    def _time_windows(
        self, point: DropPoint, watermarks: Mapping[str, tuple[int | None, int | None]]
    ) -> tuple[int, pa.Table]:
        """How many windows of a point ended in this epoch, and the ranges of those that were dropped."""
        state, windows, missing = self._states[point.name], 0, []
        for output in point.outputs:
            query = next(step.node.aggregate for step in self._network.steps if step.name == output)
            reached, now = watermarks[output]
            if now is None:
                continue  # without a watermark no window has ended
            assert query is not None
            for window, span in zip(query.panes.windows, point.emits[output], strict=True):
                # Window j is over when the watermark is at its end.
                last = (now - window.size - window.origin) // window.slide
                first = None if reached is None else (reached - window.size - window.origin) // window.slide + 1
                windows += 0 if first is None else (last - first + 1) * state.buckets
                for g, ranges in enumerate(dropped_windows(state, span, window)):
                    for lo, hi in ranges:
                        lo, hi = lo if first is None else max(lo, first), min(hi, last)
                        if lo <= hi:
                            missing.append(_missing(output, window, g, state.buckets, lo, hi))
        return windows, pa.Table.from_pylist(missing, REPORT_SCHEMA)

    def _count_windows(self, point: DropPoint, drops: Sequence[CountWindowDrops]) -> tuple[int, pa.Table]:
        """The same for count windows, in the epoch in which their first rows get a position."""
        missing = [_filled(one.dropped, {"output": point.at[0]}) for one in drops]
        windows = sum(one.progress.metrics.get(name, 0) for one in drops for name in (WINDOWS_KEPT, WINDOWS_SHED))
        return windows, pa.concat_tables([REPORT_SCHEMA.empty_table(), *missing])

    def progress(
        self, rows: Mapping[str, DropCounts], counts: Mapping[str, Sequence[int]], before: Mapping[str, Sequence[int]]
    ) -> tuple[DropProgress, ...]:
        """What each point dropped. `rows`: the counts of rows by point; `counts` and `before`: as in `report`."""
        found = []
        for point in self._points:
            entry, came = self._plan[point.name], rows.get(point.name, DropCounts())
            windows, dropped = counts.get(point.name, (0, 0))
            windows_before, dropped_before = before.get(point.name, (0, 0))
            found.append(
                DropProgress(
                    point.name,
                    entry.p,
                    entry.bound,
                    entry.cause,
                    came.rows,
                    came.shed,
                    windows - windows_before,
                    dropped - dropped_before,
                    1.0 - dropped / windows if windows else 1.0,
                )
            )
        return tuple(found)

    @property
    def points(self) -> Sequence[DropPoint]:
        return self._points


def _filled(rows: pa.Table, same: Mapping[str, Any]) -> pa.Table:
    """The rows in the schema of the report, with the values in `same` in all of them."""
    columns = []
    for field in REPORT_SCHEMA:
        if field.name in same:
            columns.append(pa.repeat(pa.scalar(same[field.name], field.type), rows.num_rows))
        else:
            known = field.name in rows.column_names
            columns.append(rows[field.name] if known else pa.nulls(rows.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=REPORT_SCHEMA)


def _missing(output: str, window: Window, bucket: int, buckets: int, first: int, last: int) -> dict[str, Any]:
    return {
        "output": output,
        "window_spec": window.label,
        "bucket": bucket,
        "buckets": buckets,
        "first_start": window.origin + first * window.slide,
        "last_start": window.origin + last * window.slide,
        "windows": last - first + 1,
    }
