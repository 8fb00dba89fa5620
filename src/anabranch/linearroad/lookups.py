"""What was before the run: tolls that cars paid (type 3), and speeds and tolls of segments (type 4).

Both are tables that never change, so they are no state: every group reads the rows of its own expressways when it
opens, sorted by a key of one integer, and looks them up by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.schema import HISTORY, SEGMENT_HISTORY, SEGMENTS

Ints = NDArray[np.int64]

# Powers of two above the largest number of each part of a key.
_VIDS, _DAYS = 2**32, 128
_WEEK, _MINUTES = 8, 2_048
_SECONDS_PER_HOUR = 3_600


@dataclass(frozen=True)
class Expenditures:
    """Tolls by car, day and expressway."""

    keys: Ints
    tolls: Ints

    @classmethod
    def load(cls, path: str | None, group: int, groups: int) -> Expenditures:
        """Of the expressways of a group."""
        rows = _rows(path, HISTORY, group, groups)
        keys = _car_key(rows["XWay"], rows["VID"], rows["Day"])
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], rows["Toll"][order])

    def of(self, xways: Ints, vids: Ints, days: Ints) -> tuple[Ints, Ints]:
        """Which of the queries have an answer, and their answers."""
        asked = _car_key(xways, vids, days)
        at = np.searchsorted(self.keys, asked)
        known = np.flatnonzero(at < len(self.keys))
        known = known[self.keys[at[known]] == asked[known]]
        return known, self.tolls[at[known]]


@dataclass(frozen=True)
class TravelTimes:
    """Seconds and tolls of segments by weekday, from a minute of the day until the next that has a row."""

    keys: Ints
    seconds: Ints
    tolls: Ints

    @classmethod
    def load(cls, path: str | None, group: int, groups: int) -> TravelTimes:
        """Of the expressways of a group."""
        rows = _rows(path, SEGMENT_HISTORY, group, groups)
        if len(rows["Speed"]) and rows["Speed"].min() < 1:
            raise InvalidArgumentError(
                f"{path} has a mean speed below 1: a walk over that segment would never end",
                hint="leave such rows out; a query over a segment without history gets no answer",
            )
        keys = _segment_key(rows["XWay"], rows["Dir"], rows["Seg"], rows["DOW"]) * _MINUTES + rows["TOD"]
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], (_SECONDS_PER_HOUR // rows["Speed"])[order], rows["Toll"][order])

    def of(self, xways: Ints, starts: Ints, ends: Ints, weekdays: Ints, minutes: Ints) -> tuple[Ints, Ints, Ints]:
        """Which of the queries have an answer; their seconds and tolls from segment to segment."""
        seconds, tolls = np.empty(len(xways), np.int64), np.empty(len(xways), np.int64)
        known = _walk(self.keys, self.seconds, self.tolls, xways, starts, ends, weekdays, minutes, seconds, tolls)
        found = np.flatnonzero(known)
        return found, seconds[found], tolls[found]


def _car_key(xways: Ints, vids: Ints, days: Ints) -> Ints:
    return (xways * _VIDS + vids) * _DAYS + days


@numba.njit(cache=True)
def _segment_key(xway: Any, way: Any, seg: Any, weekday: Any) -> Any:
    return ((xway * 2 + way) * SEGMENTS + seg) * _WEEK + weekday


@numba.njit(cache=True)
def _walk(
    keys: Ints, times: Ints, prices: Ints, xways: Ints, starts: Ints, ends: Ints, weekdays: Ints, minutes: Ints,
    seconds: Ints, tolls: Ints,
) -> NDArray[np.bool_]:  # fmt: skip
    """Walk from each start to each end, which is not walked itself. A segment without history: no answer."""
    known = np.zeros(len(xways), np.bool_)
    for i in range(len(xways)):
        way = 0 if starts[i] < ends[i] else 1
        step = 1 - 2 * way
        found = min(starts[i], ends[i], weekdays[i], minutes[i]) >= 0
        seg, spent, paid = starts[i], 0, 0
        while found and seg != ends[i]:
            segment = _segment_key(xways[i], way, seg, weekdays[i])
            at = np.searchsorted(keys, segment * _MINUTES + minutes[i], side="right") - 1
            found = at >= 0 and keys[at] // _MINUTES == segment
            if found:
                spent += times[at]
                paid += prices[at]
            seg += step
        known[i], seconds[i], tolls[i] = found, spent, paid
    return known


def _rows(path: str | None, schema: pa.Schema, group: int, groups: int) -> dict[str, Ints]:
    """The rows of a group's expressways, as columns of 64-bit integers."""
    if path is None:
        return {name: np.empty(0, np.int64) for name in schema.names}
    if not Path(path).exists():
        raise InvalidArgumentError(
            f"there is no history at {path}; queries of the past would stay without an answer",
            hint="give the path of a Parquet file that every worker sees, or none",
        )
    files = ds.dataset(path)
    missing = [name for name in schema.names if name not in files.schema.names]
    if missing:
        raise InvalidArgumentError(
            f"the history {path} has no column {missing[0]}", hint=f"it needs {', '.join(schema.names)}"
        )
    xway = ds.field("XWay").cast(pa.int64())
    table = files.to_table(columns=schema.names, filter=xway - pc.divide(xway, groups) * groups == group)
    return {name: table.column(name).cast(pa.int64()).to_numpy() for name in schema.names}
