"""Data from before a run: the tolls that cars paid on earlier days, and the usual speeds and tolls of segments.

Both come from the seed of the trace. Minutes of a day count from 1, weekdays from 1 (Monday) to 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from anabranch.linearroad.generate.cars import DAYS, MINUTES_OF_DAY, WEEKDAYS
from anabranch.linearroad.schema import DIRECTIONS, HISTORY, SEGMENT_HISTORY, SEGMENTS

KNOWN = 0.95
"""Share of the requested daily expenditures that are known; the others have no answer."""
UNASKED = 0.2
"""Known expenditures that no query asks for, as a share of those that are asked for."""
TOLLS = 100
"""Upper bound of past tolls."""

STEPS = 24
"""Rows of a segment per weekday, an hour each."""
FREE_SPEED, SLOWEST = 60, 12
"""Miles per hour: at night, and at the worst hour of the busiest segment."""
MORNING, EVENING, RUSH_HOURS = 7.5, 17.0, 1.8
"""Hours of the day, and how wide a rush is."""
WEEKEND, WEEKEND_RUSH = 6, 0.35
"""The first day of the weekend, and how strong its rush is."""
TOLL_BELOW, FREE_CARS = 40, 50
"""By the rules of Linear Road, a toll is due below this speed, and counts the cars above this number."""
MOST_CARS = 170
"""Cars in the busiest segment at its worst hour, on average."""


def history_of(asked: pa.Table, cars: int, expressways: int, seed: int) -> pa.Table:
    """Rows of `schema.HISTORY` for most of the requested expenditures (VID, Day, XWay), and for some others."""
    random = np.random.default_rng([seed, 2])
    vid, day, xway = (asked[name].to_numpy().astype(np.int64) for name in ("VID", "Day", "XWay"))
    keys = np.unique((vid * DAYS + day - 1) * expressways + xway)
    known = keys[random.random(len(keys)) < KNOWN]
    others = random.integers(0, max(cars, 1) * DAYS * expressways, 1 + int(UNASKED * len(keys)))
    rows = np.union1d(known, np.setdiff1d(others, keys))
    columns = {
        "VID": rows // (DAYS * expressways),
        "Day": rows // expressways % DAYS + 1,
        "XWay": rows % expressways,
        "Toll": random.integers(0, TOLLS, len(rows)),
    }
    return pa.table(columns).cast(HISTORY)


def segment_history_of(expressways: int, seed: int) -> pa.Table:
    """Rows of `schema.SEGMENT_HISTORY`: 24 per segment and weekday, slower in rush hours and in busy segments."""
    random = np.random.default_rng([seed, 3])
    shape = (expressways, DIRECTIONS, SEGMENTS, WEEKDAYS, STEPS)
    # Squared: few segments are busy.
    busy = random.random(shape[:3])[..., None, None] ** 2
    load = busy * _rush() * random.uniform(0.8, 1.0, shape)
    speed = np.rint(FREE_SPEED - (FREE_SPEED - SLOWEST) * load)
    toll = np.where(speed < TOLL_BELOW, 2 * np.maximum(np.rint(MOST_CARS * load) - FREE_CARS, 0) ** 2, 0)
    xway, way, segment, weekday, step = np.indices(shape)
    columns = {
        "XWay": xway.ravel(),
        "Dir": way.ravel(),
        "Seg": segment.ravel(),
        "DOW": weekday.ravel() + 1,
        "TOD": step.ravel() * (MINUTES_OF_DAY // STEPS) + 1,
        "Speed": speed.ravel(),
        "Toll": toll.ravel(),
    }
    return pa.table(columns).cast(SEGMENT_HISTORY)


def write_copies(path: Path, table: pa.Table, copies: Iterable[int], shift: Mapping[str, int]) -> None:
    """Write copies of a table, one row group each; in copy c, the columns in `shift` grow by c times their number."""
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for copy in copies:
            writer.write_table(_shifted(table, {name: copy * step for name, step in shift.items()}))


def _rush() -> NDArray[np.float64]:
    """How full the roads are, 0 to 1, by weekday and step."""
    hour = (np.arange(STEPS) + 0.5) * (24 / STEPS)
    peaks = [np.exp(-(((hour - peak) / RUSH_HOURS) ** 2)) for peak in (MORNING, EVENING)]
    strength = np.where(np.arange(WEEKDAYS) + 1 < WEEKEND, 1.0, WEEKEND_RUSH)
    rush: NDArray[np.float64] = strength[:, None] * np.maximum(*peaks)
    return rush


def _shifted(table: pa.Table, by: Mapping[str, int]) -> pa.Table:
    columns: list[Any] = []
    for name in table.column_names:
        values = table[name].to_numpy()
        columns.append(values + values.dtype.type(by[name]) if name in by else values)
    return pa.table(columns, schema=table.schema)
