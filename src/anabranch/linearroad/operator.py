"""The operator: the expressways of one group, block by block.

Everything that must survive is in the arrays of the state, which the kernel changes in place. This module passes whole
columns to the kernel, enlarges arrays that are full, and turns the answers into record batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import anabranch as ab
from anabranch.linearroad import kernel
from anabranch.linearroad.lookups import Expenditures, File, TravelTimes
from anabranch.linearroad.schema import INPUT, Kind, Mode
from anabranch.types import Emitted, State

FIRST_CARS = 4_096
"""Entries of a new table of cars; the table doubles when it is full."""
_DRIVEN = ("Type", "Time", "VID", "Spd", "XWay", "Lane", "Dir", "Seg", "Pos", "QID")
_COUNTERS = 5
"""The kernel's counters: tolls, alerts, balances, waiting queries, rejected tuples."""
GROUPS = 32
"""Maximum number of partition-groups: enough for the workers of one machine, and few enough that a group's block is
worth a call."""

REJECT_REASON = "Reason"
_NO_TYPE = -1
_ANY_NUMBERS = pa.schema([(name, pa.int64()) for name in INPUT.names])
_REJECTED = "not a position report or query of Linear Road: a number is out of range"


@dataclass(frozen=True)
class Road:
    """What every group needs to know. Calling it makes the operator of a group."""

    mode: Mode
    expressways: int
    groups: int
    history: str | None = None
    segment_history: str | None = None

    def __call__(self) -> Expressways:
        return Expressways(self)


def road_of(mode: Mode, expressways: int, history: Path | None, segment_history: Path | None) -> Road:
    """The road, with a useful number of groups. A missing history file is an error now, and not later in a task."""
    for file in (history, segment_history):
        File.at(None if file is None else str(file))
    known = [None if file is None else str(file.absolute()) for file in (history, segment_history)]
    return Road(mode, expressways, min(GROUPS, expressways), *known)


class Expressways(ab.Operator):
    """The operator of group g of q, which has the expressways g, g + q, g + 2q, ..."""

    def __init__(self, road: Road) -> None:
        self.road = road

    def open(self, state: State) -> None:
        road = self.road
        self._state = state
        self._slots = -(-(road.expressways - self.group) // road.groups)
        self._cars = state.array("cars", kernel.CAR, FIRST_CARS)
        self._visits = state.array("visits", kernel.VISIT, 256)
        self._stops = state.array("stops", kernel.STOP, 64)
        self._wrecks = state.array("wrecks", kernel.WRECK, 64)
        self._traffic = state.array("traffic", kernel.TRAFFIC, self._slots * kernel.PLACES * kernel.MINUTES)
        self._board = state.array("board", kernel.BOARD, self._slots * kernel.PLACES)
        self._slots = len(self._board) // kernel.PLACES
        self._clock = state.array("clock", kernel.CLOCK, 1)
        if self._clock["minute"][0] == 0:
            self._clock["time"] = -1
        self._expenditures = Expenditures.load(File.at(road.history), self.group, road.groups)
        self._travel_times = TravelTimes.load(File.at(road.segment_history), self.group, road.groups)

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[Emitted]:
        columns = _numbers(block)
        yield from self._drive(block, columns)
        kinds, timed = columns["Type"], columns["Time"] >= 0
        yield from self._expenditure(columns, np.flatnonzero((kinds == Kind.EXPENDITURE) & timed))
        yield from self._travel_time(columns, np.flatnonzero((kinds == Kind.TRAVEL_TIME) & timed))

    # --- reports and balances ---------------------------------------------------------------------------------------

    def _drive(self, block: pa.RecordBatch, columns: dict[str, NDArray[Any]]) -> Iterator[Emitted]:
        n = block.num_rows
        kinds = columns["Type"]
        asked = np.empty(int((kinds == Kind.BALANCE).sum()), np.int64)
        tolls, alerts = np.empty((4, n), np.int32), np.empty((5, n), np.int32)
        balances = np.empty((4, len(asked)), np.int32)
        rejected, counts, touched = np.empty(n, np.int64), np.zeros(_COUNTERS, np.int64), np.empty(1, np.int64)
        driven = tuple(columns[name] for name in _DRIVEN)
        done = 0
        while done < n:
            done = kernel.drive(
                done, driven, self._slots, self._most_cars, self.road.groups, self.group, self.road.mode is Mode.PAPER,
                self._cars, self._visits, self._traffic, self._board, self._stops, self._wrecks, self._clock,
                tolls, alerts, balances, asked, rejected, counts, touched,
            )  # fmt: skip
            if done < n:
                self._make_room(int(columns["XWay"][done]))
        vid, time, lav, toll = tolls[:, : counts[0]]
        yield from _rows("toll", VID=vid, Time=time, LAV=lav, Toll=toll)
        time, xway, seg, way, vid = alerts[:, : counts[1]]
        yield from _rows("accident", Time=time, XWay=xway, Seg=seg, Dir=way, VID=vid)
        time, qid, result, balance = balances[:, : counts[2]]
        yield from _rows("balance", Time=time, QID=qid, ResultTime=result, Balance=balance)
        if counts[4]:
            bad = block.select(INPUT.names).take(pa.array(rejected[: counts[4]])).cast(_ANY_NUMBERS)
            yield "rejected", bad.append_column(REJECT_REASON, pa.array([_REJECTED] * bad.num_rows))

    @property
    def _most_cars(self) -> int:
        """The table grows above this number of cars: between 50 % and 70 % of its size, depending on the group.

        All groups have about the same number of cars. Moving them to a larger table takes time, so the groups should
        not all do it in the same epoch.
        """
        return int((0.5 + 0.02 * (self.group % 11)) * len(self._cars))

    def _make_room(self, xway: int) -> None:
        """One of the arrays is full: enlarge those that need it."""
        state, clock = self._state, self._clock[0]
        if clock["cars"] >= self._most_cars:
            before = self._cars.view(np.uint8).copy().view(kernel.CAR)  # bytes: numpy copies records field by field
            state.drop("cars")
            self._cars = state.array("cars", kernel.CAR, 2 * len(before))
            kernel.grown(before, self._cars)
        if clock["visits"] >= len(self._visits):
            self._visits = state.resize("visits", 2 * len(self._visits))
        if clock["stops"] >= len(self._stops):
            self._stops = state.resize("stops", 2 * len(self._stops))
        if clock["wrecks"] >= len(self._wrecks):
            self._wrecks = state.resize("wrecks", 2 * len(self._wrecks))
        if xway // self.road.groups >= self._slots:
            self._slots = xway // self.road.groups + 1
            self._traffic = state.resize("traffic", self._slots * kernel.PLACES * kernel.MINUTES)
            known = len(self._board)
            self._board = state.resize("board", self._slots * kernel.PLACES)
            self._board["lav"][known:] = -1 if self.road.mode is Mode.PAPER else 0
            self._board["accident"][known:] = -1

    # --- the past ---------------------------------------------------------------------------------------------------

    def _expenditure(self, columns: dict[str, NDArray[Any]], asked: NDArray[np.int64]) -> Iterator[Emitted]:
        xway, vid, day, time, qid = _chosen(columns, asked, "XWay", "VID", "Day", "Time", "QID")
        known, tolls = self._expenditures.of(xway, vid, day)
        yield from _rows("expenditure", Time=time[known], QID=qid[known], Expenditure=tolls)

    def _travel_time(self, columns: dict[str, NDArray[Any]], asked: NDArray[np.int64]) -> Iterator[Emitted]:
        xway, start, end, weekday, minute, time, qid = _chosen(
            columns, asked, "XWay", "Sinit", "Send", "DOW", "TOD", "Time", "QID"
        )
        known, seconds, tolls = self._travel_times.of(xway, start, end, weekday, minute)
        time, qid = time[known], qid[known]
        yield from _rows("traveltime", Time=time, QID=qid, TravelTime=seconds, Toll=tolls)


def _numbers(block: pa.RecordBatch) -> dict[str, NDArray[Any]]:
    """The columns in the types that the kernel was compiled for. A missing number is -1, as everywhere in Linear Road.

    A tuple with a number that its column cannot hold gets an unknown type, and is rejected.
    """
    columns, unfit = {}, None
    for field in INPUT:
        column = block.column(field.name)
        if column.null_count:
            column = column.fill_null(-1)
        if column.type != field.type:
            wide = column.cast(pa.int64()).to_numpy()
            limits = np.iinfo(field.type.to_pandas_dtype())
            outside = (wide < limits.min) | (wide > limits.max)
            unfit = outside if unfit is None else unfit | outside
            columns[field.name] = wide.astype(limits.dtype)
        else:
            columns[field.name] = np.asarray(column.to_numpy())
    if unfit is not None and unfit.any():
        columns["Type"] = np.where(unfit, np.int8(_NO_TYPE), columns["Type"])
    for array in columns.values():
        array.flags.writeable = False
    return columns


def _chosen(columns: dict[str, NDArray[Any]], rows: NDArray[np.int64], *names: str) -> list[NDArray[np.int64]]:
    return [columns[name][rows].astype(np.int64) for name in names]


def _rows(output: str, **columns: NDArray[Any]) -> Iterator[Emitted]:
    arrays = [pa.array(values.astype(np.int32, copy=False)) for values in columns.values()]
    if len(arrays[0]):
        yield output, pa.RecordBatch.from_arrays(arrays, names=list(columns))
