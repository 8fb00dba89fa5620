"""The vocabulary of Linear Road: the world, the columns of input and answers, the two modes.

Times are whole seconds since the beginning of the simulation; positions are feet from the western end. Minute 1 begins
at second 0.
"""

from __future__ import annotations

from enum import Enum, IntEnum

import pyarrow as pa

SEGMENTS = 100
DIRECTIONS = 2
FEET_PER_SEGMENT = 5_280
EXIT_LANE = 4
REPORT_EVERY = 30
"""Seconds between two reports of a car."""
HOURS = 3
SECONDS = HOURS * 3_600


class Kind(IntEnum):
    """What a tuple is: the column Type."""

    POSITION = 0
    BALANCE = 2
    EXPENDITURE = 3
    TRAVEL_TIME = 4


class Mode(Enum):
    """Which rules: there are two public validators, and they disagree. See `docs/linear-road.md`."""

    PAPER = "paper"
    FLAT_LAV = "flat-lav"


INPUT = pa.schema(
    [
        ("Type", pa.int8()),
        ("Time", pa.int16()),
        ("VID", pa.int32()),
        ("Spd", pa.int8()),
        ("XWay", pa.int16()),
        ("Lane", pa.int8()),
        ("Dir", pa.int8()),
        ("Seg", pa.int8()),
        ("Pos", pa.int32()),
        ("QID", pa.int32()),
        ("Sinit", pa.int16()),
        ("Send", pa.int16()),
        ("DOW", pa.int8()),
        ("TOD", pa.int16()),
        ("Day", pa.int8()),
    ]
)
"""Position reports and queries. A column that does not apply to a tuple is -1."""

HISTORY = pa.schema([("VID", pa.int32()), ("Day", pa.int8()), ("XWay", pa.int16()), ("Toll", pa.int16())])
"""What a car paid on an expressway on one of the last 69 days."""

SEGMENT_HISTORY = pa.schema(
    [
        ("XWay", pa.int16()),
        ("Dir", pa.int8()),
        ("Seg", pa.int8()),
        ("DOW", pa.int8()),
        ("TOD", pa.int16()),
        ("Speed", pa.int16()),
        ("Toll", pa.int16()),
    ]
)
"""Mean speed (miles per hour, at least 1) and mean toll of a segment on a weekday, from minute TOD of the day until the
next row of that segment and weekday; the first row of a day has TOD 1."""

ANSWERS = {
    "toll": "VID int, Time int, LAV int, Toll int",
    "accident": "Time int, XWay int, Seg int, Dir int, VID int",
    "balance": "Time int, QID int, ResultTime int, Balance int",
    "expenditure": "Time int, QID int, Expenditure int",
    "traveltime": "Time int, QID int, TravelTime int, Toll int",
}
"""The kinds of answers, in the order of their types 0 to 4, and their columns. Time is the tuple's.

When an answer is published (the benchmark's Emit) is not known when it is written: see `watch`."""

LIMITS = {"toll": 5, "accident": 5, "balance": 5, "expenditure": 10, "traveltime": 30}
"""Maximum seconds from the delivery of a tuple to its answer."""


def answer_schema(kind: str) -> pa.Schema:
    """The columns of a kind of answer."""
    return pa.schema([(column.split()[0], pa.int32()) for column in ANSWERS[kind].split(", ")])
