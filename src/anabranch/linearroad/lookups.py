"""Data from before the run: tolls that cars paid (type 3), and speeds and tolls of segments (type 4).

Both tables never change, so they are not part of the state. Every group reads the rows of its own expressways when it
opens, sorted so that a bisection or an index finds them.
"""

from __future__ import annotations

import functools
import operator
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from anabranch.compiled import kernel
from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.schema import DIRECTIONS, HISTORY, SEGMENT_HISTORY, SEGMENTS

Ints = NDArray[np.int64]

# Powers of two above the largest number of each part of a key.
_VIDS, _DAYS = 2**32, 128
_WEEK = 8
_SECONDS_PER_HOUR = 3_600
MOST_EQUALITIES = 256
"""Maximum number of equalities in one filter expression: the expression is as deep as that."""
GROUPS_KEPT = 64
"""How many groups' history a process caches."""


@dataclass(frozen=True)
class File:
    """A history file in its current version: if its content changes, it is another file."""

    path: str
    bytes: int
    changed: int

    @classmethod
    def at(cls, path: str | None) -> File | None:
        if path is None:
            return None
        try:
            found = os.stat(path)
        except OSError as error:
            raise InvalidArgumentError(
                f"there is no history file {path}; queries about the past would get no answer",
                hint="give the path of a Parquet file that every worker can read, or none",
            ) from error
        return cls(path, found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class Expenditures:
    """Tolls by car, day and expressway."""

    keys: Ints
    tolls: Ints

    @classmethod
    @functools.lru_cache(maxsize=GROUPS_KEPT)
    def load(cls, file: File | None, group: int, groups: int) -> Expenditures:
        """Load the rows of a group's expressways; cached per process, since a group may come and go."""
        rows = _rows(file, HISTORY, group, groups)
        keys = _car_key(rows["XWay"], rows["VID"], rows["Day"])
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], rows["Toll"][order])

    def of(self, xways: Ints, vids: Ints, days: Ints) -> tuple[Ints, Ints]:
        """Which of the queries have an answer, and the answers."""
        asked = _car_key(xways, vids, days)
        at = np.searchsorted(self.keys, asked)
        known = np.flatnonzero(at < len(self.keys))
        known = known[self.keys[at[known]] == asked[known]]
        return known, self.tolls[at[known]]


@dataclass(frozen=True)
class TravelTimes:
    """Seconds and tolls of segments by weekday; each row holds from its minute of the day until the next row.

    The rows of segment and weekday k are ``first[k] .. first[k + 1]``, ordered by minute.
    """

    groups: int
    first: Ints
    minutes: NDArray[np.int16]
    seconds: NDArray[np.int16]
    tolls: NDArray[np.int32]

    @classmethod
    @functools.lru_cache(maxsize=GROUPS_KEPT)
    def load(cls, file: File | None, group: int, groups: int) -> TravelTimes:
        """Load the rows of a group's expressways; cached per process, since a group may come and go."""
        rows = _rows(file, SEGMENT_HISTORY, group, groups)
        if len(rows["Speed"]) and rows["Speed"].min() < 1:
            raise InvalidArgumentError(
                f"{file.path if file else None} has a mean speed below 1, so the travel time would be infinite",
                hint="remove such rows; a query over a segment without history gets no answer",
            )
        keys = _segment_key(rows["XWay"] // groups, rows["Dir"], rows["Seg"], rows["DOW"])
        order = np.lexsort((rows["TOD"], keys))
        places = (int(rows["XWay"].max(initial=-1)) // groups + 1) * DIRECTIONS * SEGMENTS * _WEEK
        return cls(
            groups,
            np.searchsorted(keys[order], np.arange(places + 1)),
            rows["TOD"][order].astype(np.int16),
            (_SECONDS_PER_HOUR // rows["Speed"])[order].astype(np.int16),
            rows["Toll"][order].astype(np.int32),
        )

    def of(self, xways: Ints, starts: Ints, ends: Ints, weekdays: Ints, minutes: Ints) -> tuple[Ints, Ints, Ints]:
        """Which of the queries have an answer, and the seconds and tolls of these."""
        seconds, tolls = np.empty(len(xways), np.int64), np.empty(len(xways), np.int64)
        history = (self.first, self.minutes, self.seconds, self.tolls)
        known = _walk(history, xways // self.groups, starts, ends, weekdays, minutes, seconds, tolls)
        found = np.flatnonzero(known)
        return found, seconds[found], tolls[found]


def _car_key(xways: Ints, vids: Ints, days: Ints) -> Ints:
    return (xways * _VIDS + vids) * _DAYS + days


@kernel()
def _segment_key(slot: Any, way: Any, seg: Any, weekday: Any) -> Any:
    return ((slot * DIRECTIONS + way) * SEGMENTS + seg) * _WEEK + weekday


@kernel()
def _walk(
    history: tuple[Any, ...], slots: Ints, starts: Ints, ends: Ints, weekdays: Ints, minutes: Ints, seconds: Ints,
    tolls: Ints,
) -> NDArray[np.bool_]:  # fmt: skip
    """Sum up the segments from each start to its end, which is excluded. A segment without history: no answer."""
    first, since, times, prices = history
    known = np.zeros(len(slots), np.bool_)
    for i in range(len(slots)):
        way = 0 if starts[i] < ends[i] else 1
        step = 1 - 2 * way
        found = min(starts[i], ends[i]) >= 0 and max(starts[i], ends[i]) < SEGMENTS and 0 <= weekdays[i] < _WEEK
        seg, spent, paid = starts[i], 0, 0
        while found and seg != ends[i]:
            key = _segment_key(slots[i], way, seg, weekdays[i])
            found = 0 <= key < len(first) - 1
            if found:
                at = first[key + 1] - 1
                while at >= first[key] and since[at] > minutes[i]:
                    at -= 1
                found = at >= first[key]
                if found:
                    spent += times[at]
                    paid += prices[at]
            seg += step
        known[i], seconds[i], tolls[i] = found, spent, paid
    return known


def _rows(file: File | None, schema: pa.Schema, group: int, groups: int) -> dict[str, Ints]:
    """The rows of a group's expressways, as columns of 64-bit integers."""
    if file is None:
        return {name: np.empty(0, np.int64) for name in schema.names}
    files = ds.dataset(file.path)
    missing = [name for name in schema.names if name not in files.schema.names]
    if missing:
        raise InvalidArgumentError(
            f"the history {file.path} has no column {missing[0]}", hint=f"it needs {', '.join(schema.names)}"
        )
    table = files.to_table(columns=schema.names, filter=_in_group(files, group, groups))
    # A row with a missing value is ignored.
    return {name: table.drop_null().column(name).cast(pa.int64()).to_numpy() for name in schema.names}


def _in_group(files: ds.Dataset, group: int, groups: int) -> ds.Expression:
    """The rows of a group's expressways.

    It uses equalities if there are not too many: with the file's statistics, most of a large file is then skipped.
    """
    found = [part.statistics for fragment in files.get_fragments() for part in fragment.row_groups]
    if found and all(each is not None and "XWay" in each for each in found):
        mine = range(group, max(each["XWay"]["max"] for each in found) + 1, groups)
        if 0 < len(mine) <= MOST_EQUALITIES:
            return functools.reduce(operator.or_, (ds.field("XWay") == xway for xway in mine))
    xway = ds.field("XWay").cast(pa.int64())
    return xway - pc.divide(xway, groups) * groups == group
