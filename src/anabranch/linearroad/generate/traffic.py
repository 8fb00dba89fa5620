"""Traffic for Linear Road: position reports and queries of some expressways, from a seed.

The tuples per second of an expressway rise like those of the official trace, from 14 to 1,700, steeply at first and
less so at the end; a shorter trace has the same rise in less time. A car reports every 30 s, so at 1,700 tuples/s about
51,000 cars are on the expressway: 250 in a segment of one direction, more and slower ones where the ramps are busy.

::

    tuples/s
    1,700 |              ____----     12 million tuples in 3 hours
          |        __--''
          |    _-'
          | _-'
       14 |'_________________________
          0                         3 h

The same settings give the same tuples, on any machine. How a car drives is in `anabranch.linearroad.generate.cars`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.generate.cars import ONE_QUERY_IN, Ints, Rules, Tuples, below, empty_world, simulate
from anabranch.linearroad.schema import DIRECTIONS, INPUT, SECONDS, SEGMENTS

START_SHARE = 14 / 1_700
"""The rate at the start, as a share of the rate at the end."""
RISE = 1.9
"""How steeply the rate rises at first: 1 would be a straight line, 2 is flat at the end."""
CHUNK_SECONDS = 60

MOST_SECONDS = int(np.iinfo(np.int16).max)
"""The largest length that fits the column Time."""
MOST_EXPRESSWAYS = int(np.iinfo(np.int16).max)
"""The largest number that fits the column XWay."""

CROWDED, JAMMED = 420, 350
"""Cars in a segment that halve the free speed, and the thousandths of it that always remain."""
CITIES, CITY_REACH, CITY_RAMPS = 3, 6, 3
"""Per direction of an expressway: the number of cities, how many segments they extend each way, and how much busier the
ramps in their middle are than elsewhere."""
_DRAWS = 1_024
_CITY_SEED = 0x5EED
"""Gives the ramps another sequence of random numbers than the cars."""


@dataclass(frozen=True)
class Traffic:
    """What to simulate.

    `seconds` is the length of the trace, `peak_rate` the tuples per second (reports and queries) of each expressway at
    its end.
    """

    expressways: int = 1
    seconds: int = SECONDS
    seed: int = 1
    peak_rate: float = 1_700.0

    def __post_init__(self) -> None:
        if not 1 <= self.expressways <= MOST_EXPRESSWAYS:
            raise InvalidArgumentError(
                f"{self.expressways} expressways do not fit: the column XWay holds 1 to {MOST_EXPRESSWAYS:,}",
                hint="simulate a few, and combine copies of them",
            )
        if not 1 <= self.seconds <= MOST_SECONDS:
            raise InvalidArgumentError(
                f"a trace of {self.seconds} seconds does not fit: the column Time holds 1 to {MOST_SECONDS:,}",
                hint=f"the benchmark has {SECONDS:,}; a shorter trace has the same rise in less time",
            )
        if not 0 <= self.seed < 2**63:
            raise InvalidArgumentError(
                f"seed={self.seed} is not between 0 and 2**63 - 1",
                hint="use, for example, 1",
            )
        if not 1 <= self.peak_rate <= 1e6:
            raise InvalidArgumentError(
                f"a peak of {self.peak_rate} tuples/s is out of range: it must be from 1 to a million",
                hint="the benchmark has 1,700 at its end",
            )

    def rate(self, second: float) -> float:
        """Tuples per second of one expressway at a time."""
        u = second / self.seconds
        return self.peak_rate * (START_SHARE + (1 - START_SHARE) * u * (RISE - (RISE - 1) * u))

    def chunks(self, seconds: int = CHUNK_SECONDS) -> Iterator[pa.RecordBatch]:
        """The tuples as record batches of `schema.INPUT`, each with this many seconds: ordered by Time, and in each
        second first the reports, then the queries. VIDs and QIDs count from 0."""
        if seconds < 1:
            raise InvalidArgumentError(
                f"chunks of {seconds} seconds would never reach the end of the trace",
                hint=f"leave it at {CHUNK_SECONDS}",
            )
        rules = Rules(_wanted(self), _ramps(self), _slowing())
        most = int(rules.wanted.max())
        world = empty_world(self.expressways, most, self.seed)
        for begin in range(0, self.seconds, seconds):
            end = min(begin + seconds, self.seconds)
            # Each report may carry a query.
            out = _room(2 * (end - begin) * self.expressways * most)
            yield _batch(out, simulate(begin, end, rules, world, out))


def _wanted(traffic: Traffic) -> Ints:
    """Reports of an expressway in each second: the rate without the queries, rounded so that the total is right."""
    tuples = np.array([traffic.rate(second + 0.5) for second in range(traffic.seconds)])
    total = np.floor(np.cumsum(tuples / (1 + 1 / ONE_QUERY_IN))).astype(np.int64)
    wanted: Ints = np.diff(total, prepend=0)
    return wanted


def _ramps(traffic: Traffic) -> Ints:
    """Per expressway and direction, the segments where cars enter, each as often as it is used: more near cities."""
    shape = (traffic.expressways, DIRECTIONS, CITIES)
    random = np.array([traffic.seed ^ _CITY_SEED], np.uint64)
    cities = np.array([below(random, SEGMENTS) for _ in np.ndindex(shape)]).reshape(shape)
    distance = np.abs(np.arange(SEGMENTS) - cities[..., None]).min(axis=2)
    weight = CITY_REACH + (CITY_RAMPS - 1) * np.maximum(CITY_REACH - distance, 0)
    # Rows of equal length, for the kernel: each ramp has its share of the draws.
    upto = np.cumsum(weight, axis=2)
    ticket = np.arange(_DRAWS) * upto[..., -1:] // _DRAWS
    ramps: Ints = (ticket[..., None] >= upto[:, :, None, :]).sum(axis=3)
    return ramps


def _slowing() -> Ints:
    """Thousandths of the free speed that remain with 0, 1, 2, .. cars in a segment."""
    cars = np.arange(16 * CROWDED, dtype=np.int64)
    left: Ints = np.maximum(1_000 * CROWDED**2 // (CROWDED**2 + cars**2), JAMMED)
    return left


def _room(rows: int) -> Tuples:
    return Tuples(*(np.empty(rows, field.type.to_pandas_dtype()) for field in INPUT))


def _batch(columns: Tuples, rows: int) -> pa.RecordBatch:
    # Copied: the arrays have room for the worst case, and a batch would keep all of it alive.
    arrays = [pa.array(column[:rows].copy()) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=INPUT)
