"""What the drop plan of one epoch leaves out: rows before anything is done to them, and results that are not whole.

Rows are counted where they are dropped (`counters`), with their latest time: the watermark moves on even if all rows of
an epoch are shed, from the next epoch on.
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
from anabranch.observe.progress import DropProgress, OperatorProgress
from anabranch.operators.batch_windows import FIRST, SPEC
from anabranch.operators.numbering import WINDOWS_KEPT, WINDOWS_SHED
from anabranch.query.graph import Network, Step
from anabranch.query.nodes import Input, WindowNode
from anabranch.query.origins import Source
from anabranch.runtime.shedding.columns import drops_rows, source_name, time_at
from anabranch.runtime.shedding.counters import Seen
from anabranch.runtime.shedding.planner import Shedder, state_of
from anabranch.shedding.lookup import Lookup, TupleFilter, dropped_windows
from anabranch.shedding.points import DropPoint
from anabranch.spark.columns import quoted
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
"""A row of the report: so many windows of an output, one after the other, are missing.

Of time windows for the keys in a bucket, with the starts of the first and the last. Count windows are dropped for each
key of its own: with the key, and the positions of the rows at which the first and the last begin.
"""


@dataclass(frozen=True)
class CountedWindows:
    """What an operator that counts rows for count windows tells of an epoch."""

    progress: OperatorProgress
    dropped: pa.Table


class EpochDrops:
    """The drop plan of one epoch, at work."""

    def __init__(self, shedder: Shedder, network: Network, plan: Mapping[str, Any]) -> None:
        self._network = network
        self._plan = plan["points"]
        self._keys = shedder.keys
        self._points = [shedder.named[name] for name in self._plan]
        self._timed = [point for point in self._points if not point.counted]
        self._states = {point.name: state_of(self._plan[point.name]) for point in self._timed}

    def of_source(self, source: Source) -> Column | None:
        """Which rows of a source are dropped for all that read it."""
        name = source_name(self._network, source)
        return self._rows([p for p in self._timed if p.kind == "source" and name in p.at], source.time.micros())

    def of_edge(self, step: Step, each: Input) -> Column | None:
        """Which rows are dropped for one operator, before the steps to it."""
        points = [point for point in self._timed if drops_rows(self._network, point, step.name, each)]
        return self._rows(points, time_at(each))

    def _rows(self, points: Sequence[DropPoint], t: Column) -> Column | None:
        found = []
        for point in points:
            lookup = TupleFilter.of(self._states[point.name], point.span)
            if lookup is not None:
                found.append(lookup.left_out(t, self._bucket(point)))
        return reduce(or_, found) if found else None

    def of_results(self, step: Step) -> Column | None:
        """Which windows do not leave an operator; over the columns SPEC and FIRST (the window id), and the keys."""
        node, found = step.node, []
        if not isinstance(node, WindowNode):
            return None
        for point in self._timed:
            for spec, window in enumerate(node.query.panes.windows if step.name in point.domain else ()):
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
        marks: Mapping[str, tuple[int | None, int | None]],
        counted: Mapping[str, Sequence[CountedWindows]],
        before: Mapping[str, Sequence[int]],
        epoch: int,
    ) -> tuple[pa.Table, dict[str, list[int]]]:
        """The windows whose time was over in this epoch and that were dropped; and how many of each point so far.

        `marks`: the watermark of each operator before and after; `counted`: for points of count windows, what the
        operators say that count; `before`: windows and dropped ones of each point, up to here.
        """
        counts: dict[str, list[int]] = {}
        tables = [REPORT_SCHEMA.empty_table()]
        for point in self._points:
            found = self._counted(point, counted[point.name]) if point.counted else self._over(point, marks)
            windows, missing = found
            before_windows, before_dropped = before.get(point.name, (0, 0))
            dropped = before_dropped + (pc.sum(missing["windows"]).as_py() or 0)
            counts[point.name] = [max(before_windows + windows, dropped), dropped]
            share = 1.0 - dropped / counts[point.name][0] if dropped else 1.0
            entry = self._plan[point.name]
            told = {"point": point.name, "p": entry["p"], "cause": entry["cause"], "at_epoch": epoch}
            tables.append(_filled(missing, {**told, "delivered_share": share}))
        return pa.concat_tables(tables), counts

    def _over(self, point: DropPoint, marks: Mapping[str, tuple[int | None, int | None]]) -> tuple[int, pa.Table]:
        """How many windows of a point were over in this epoch, and the ranges of those that were dropped."""
        state, windows, missing = self._states[point.name], 0, []
        for output in point.outputs:
            node = next(step.node for step in self._network.steps if step.name == output)
            reached, now = marks[output]
            if now is None:
                continue  # a watermark that is not known yet has passed nothing
            assert isinstance(node, WindowNode)
            for window, span in zip(node.query.panes.windows, point.emits[output], strict=True):
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

    def _counted(self, point: DropPoint, told: Sequence[CountedWindows]) -> tuple[int, pa.Table]:
        """The same of count windows: in the epoch in which their first rows get a position."""
        missing = [_filled(one.dropped, {"output": point.at[0]}) for one in told]
        windows = sum(one.progress.metrics.get(name, 0) for one in told for name in (WINDOWS_KEPT, WINDOWS_SHED))
        return windows, pa.concat_tables([REPORT_SCHEMA.empty_table(), *missing])

    def progress(
        self, seen: Mapping[str, Seen], counts: Mapping[str, Sequence[int]], before: Mapping[str, Sequence[int]]
    ) -> tuple[DropProgress, ...]:
        """What each point did; `seen` by point, `counts` and `before` as in `report`."""
        told = []
        for point in self._points:
            entry, came = self._plan[point.name], seen.get(point.name, Seen())
            windows, dropped = counts.get(point.name, (0, 0))
            windows_before, dropped_before = before.get(point.name, (0, 0))
            told.append(
                DropProgress(
                    point.name,
                    entry["p"],
                    entry["bound"],
                    entry["cause"],
                    came.rows,
                    came.shed,
                    windows - windows_before,
                    dropped - dropped_before,
                    1.0 - dropped / windows if windows else 1.0,
                )
            )
        return tuple(told)

    @property
    def points(self) -> Sequence[DropPoint]:
        return self._points


def _filled(rows: pa.Table, same: Mapping[str, Any]) -> pa.Table:
    """The rows as rows of the report, with values that are the same in all of them."""
    columns = []
    for each in REPORT_SCHEMA:
        if each.name in same:
            columns.append(pa.repeat(pa.scalar(same[each.name], each.type), rows.num_rows))
        else:
            known = each.name in rows.column_names
            columns.append(rows[each.name] if known else pa.nulls(rows.num_rows, each.type))
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
