"""A map of the roads, read from the published answers, epoch by epoch.

A toll notification tells one car the speed and the toll of its segment. All cars that enter a segment in the same
minute get the same, so the notifications together are a map: a speed (LAV, miles per hour) and a toll per expressway,
direction, segment and minute. The answer does not say where the car is; the report that it answers does, and is found
by car and second.

    answer    VID 17, Time 61, LAV 42, Toll 98
    report    VID 17, Time 61, XWay 0, Dir 1, Seg 23   ──▶   speed[0, 1, 23, minute 1] = 42,  toll[...] = 98

From the generator, this uses only the input that every system gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from anabranch.linearroad.generate import Trace
from anabranch.linearroad.query import answer_files
from anabranch.linearroad.schema import ANSWERS, DIRECTIONS, SEGMENTS, Kind, answer_schema

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SAME_ACCIDENT = 120
"""After this many seconds without an alert, the next one is for another accident: for a minute, no car may come."""
_COLUMNS = ["Type", "Time", "VID", "XWay", "Dir", "Seg", "QID"]


@dataclass(frozen=True)
class Accident:
    """An accident as the alerts show it: where, from when to when cars were warned, and how many."""

    xway: int
    way: int
    segment: int
    first: int
    last: int
    alerts: int


@dataclass(frozen=True)
class Balance:
    """An answer to a balance query, with the car that asked."""

    vid: int
    time: int
    amount: int


@dataclass(frozen=True)
class Epoch:
    """One epoch: its seconds of the simulation, its answers, and its times by the wall clock."""

    number: int
    first: int
    """Its first second of the simulation."""
    last: int
    """Its last second; an epoch has whole seconds."""
    tuples: int
    answers: Mapping[str, int]
    started: float
    """Seconds since 1970, like all times by the wall clock."""
    seconds: float
    """Seconds from reading to publishing."""

    @property
    def published(self) -> float:
        """When its answers were published."""
        return self.started + self.seconds


class RoadMap:
    """Maps and counters; `read` adds an epoch. Arrays are by (expressway, direction, segment, minute) or by second."""

    def __init__(self, trace: Trace) -> None:
        places = (trace.expressways, DIRECTIONS, SEGMENTS, -(-trace.seconds // 60))
        self.seconds = trace.seconds
        self.speed: Floats = np.full(places, np.nan)
        self.toll: Floats = np.full(places, np.nan)
        self.answers: dict[str, Ints] = {kind: np.zeros(trace.seconds, np.int64) for kind in ANSWERS}
        self.accidents: list[Accident] = []
        self.balances: list[Balance] = []
        self.reached = -1
        """The last second that has been answered."""
        self.tuples = 0
        self.asked = 0
        """The sum of the tolls in all notifications."""
        self._input = pa.Table.from_batches([batch.select(_COLUMNS) for batch in trace.batches()])
        self._last_toll: Ints = np.zeros((trace.expressways, trace.vid_offset), np.int64)

    @property
    def charged(self) -> int:
        """The sum of all tolls charged: a car pays for a segment at its next notification on that expressway."""
        return self.asked - int(self._last_toll.sum())

    @property
    def minute(self) -> int:
        """The minute that has been reached, counted from 0."""
        return max(0, self.reached) // 60

    def count(self, kind: str) -> int:
        """Answers of a kind so far."""
        return int(self.answers[kind].sum())

    def second_of(self, row: int) -> int | None:
        """The second of a tuple, by its position in the input; None after the last."""
        return int(self._input["Time"][row].as_py()) if row < self._input.num_rows else None

    def read(self, number: int, rows: int, started: float, seconds: float, output: Path) -> Epoch:
        """Add the next epoch, which read `rows` tuples; its answers are in the output folder."""
        block = {name: self._input[name].slice(self.tuples, rows).to_numpy() for name in _COLUMNS}
        answers = {kind: published(output, kind, number) for kind in ANSWERS}
        for kind, table in answers.items():
            self.answers[kind] += np.bincount(table["Time"].to_numpy(), minlength=self.seconds)
        self._note_tolls(block, answers["toll"])
        self._note_alerts(answers["accident"])
        self._note_balances(block, answers["balance"])
        self.tuples += rows
        first, self.reached = int(block["Time"][0]), int(block["Time"][-1])
        counts = {kind: table.num_rows for kind, table in answers.items()}
        return Epoch(number, first, self.reached, rows, counts, started, seconds)

    def _note_tolls(self, block: Mapping[str, Ints], answers: pa.Table) -> None:
        if not answers.num_rows:
            return
        vid, time, lav, toll = (answers[name].to_numpy().astype(np.int64) for name in ("VID", "Time", "LAV", "Toll"))
        reports = np.flatnonzero(block["Type"] == Kind.POSITION)
        at = reports[found(_key(block["Time"][reports], block["VID"][reports]), _key(time, vid))]
        place = block["XWay"][at], block["Dir"][at], block["Seg"][at], time // 60
        self.speed[place] = np.where(lav < 0, np.nan, lav)
        self.toll[place] = toll
        self.asked += int(toll.sum())
        # The last one wins, since a later assignment overwrites an earlier one.
        by_time = np.argsort(time, kind="stable")
        self._last_toll[block["XWay"][at][by_time], vid[by_time]] = toll[by_time]

    def _note_alerts(self, answers: pa.Table) -> None:
        places = np.stack([answers[name].to_numpy() for name in ("XWay", "Dir", "Seg")], axis=1)
        times = answers["Time"].to_numpy()
        for place in np.unique(places, axis=0):
            xway, way, segment = place.tolist()
            for first, last, alerts in spans(times[(places == place).all(axis=1)]):
                self._extend(Accident(xway, way, segment, first, last, alerts))

    def _extend(self, new: Accident) -> None:
        """Add the alerts to their accident if it is known; else add the accident."""
        for i, old in enumerate(self.accidents):
            same_place = (old.xway, old.way, old.segment) == (new.xway, new.way, new.segment)
            if same_place and new.first - old.last <= SAME_ACCIDENT:
                self.accidents[i] = replace(old, last=new.last, alerts=old.alerts + new.alerts)
                return
        self.accidents.append(new)

    def _note_balances(self, block: Mapping[str, Ints], answers: pa.Table) -> None:
        if not answers.num_rows:
            return
        asked = np.flatnonzero(block["Type"] == Kind.BALANCE)
        vid = block["VID"][asked[found(block["QID"][asked].astype(np.int64), answers["QID"].to_numpy())]]
        rows = zip(vid.tolist(), answers["Time"].to_pylist(), answers["Balance"].to_pylist(), strict=True)
        self.balances += [Balance(*row) for row in rows]

    def highest_balances(self, count: int) -> list[Balance]:
        """The highest balances, each car with its last answer."""
        latest = {balance.vid: balance for balance in sorted(self.balances, key=lambda balance: balance.time)}
        return sorted(latest.values(), key=lambda balance: -balance.amount)[:count]


def published(output: Path, kind: str, epoch: int) -> pa.Table:
    """The answers of a kind that an epoch has published; an empty table if there are none."""
    columns = answer_schema(kind)
    tables = [pq.read_table(file).select(columns.names) for file in answer_files(output, kind, epoch)]
    return pa.concat_tables(tables) if tables else columns.empty_table()


def found(keys: Ints, wanted: Ints) -> Ints:
    """For each wanted key, its position among the keys; all of them must exist."""
    order = np.argsort(keys, kind="stable")
    return order[np.searchsorted(keys, wanted, sorter=order)]


def spans(times: Ints, gap: int = SAME_ACCIDENT) -> list[tuple[int, int, int]]:
    """Times as stretches without a longer gap: first, last, count.

    ::

        10 20 30 . . . . . . . 300 310     gap 120
        [------]               [-----]
    """
    times = np.sort(times)
    cuts = np.flatnonzero(np.diff(times) > gap) + 1
    return [(int(part[0]), int(part[-1]), len(part)) for part in np.split(times, cuts) if len(part)]


def _key(time: Ints, vid: Ints) -> Ints:
    """Car and second in one number."""
    return time.astype(np.int64) << 32 | vid.astype(np.int64)
