"""Generated taxi trips in the format of the DEBS 2015 grand challenge: any number of them, from a seed.

The challenge replays a year of New York's taxis, 32 GB of data. These trips have its 17 columns, its order (by
drop-off, because that is when a taxi reports) and the properties that matter to a key partitioner:

- **Places are skewed.** Most trips begin and end at a few places in Manhattan, some at the airports, few elsewhere. The
  grid has 300 × 300 cells of 500 m, but half of the trips begin in about thirty of them.
- **There are many routes.** A route is a pair of cells. Most of the routes in half an hour occur once.
- **Taxis are even.** A taxi drives one trip at a time and waits between two, so no taxi has many trips in a window:

      taxi a   ──[ trip ]·····[  trip  ]···[ trip ]──▶     [ pick-up, ] drop-off, ··· waits
      taxi b   ·[   trip   ]··[ trip ]········[ trip ]▶

They do not model streets and rivers, the hours of the day (the rate is steady), taxis that wait near their last
drop-off, and the broken rows of the real data (places outside the grid, trips of length zero).
"""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.errors import InvalidArgumentError

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

TAXIS = 13_437
"""Medallions (licensed taxis) of New York in 2013."""
RATE = 500_000 / 86_400
"""Trips per second, on average over a day in New York."""
RUSH_RATE = 20_000 / 1_800
"""Trips per second on a busy evening: 20,000 in half an hour, almost twice the mean of a day."""
BEGIN = 1_358_535_600
"""The first drop-off is after this second: Friday, 18 January 2013, 19:00 in New York."""

ORIGIN_LATITUDE, ORIGIN_LONGITUDE = 41.474937, -74.913585
"""The centre of cell 1.1, north-west of the city. x grows to the east, y to the south."""
CELLS = 300
"""Cells of 500 m along each side of the grid."""
_SOUTH, _EAST = 0.004491556, 0.005986
"""Degrees of 500 m to the south and to the east, as the challenge gives them."""


class _Place(NamedTuple):
    """A place around which trips begin and end, with standard deviations in metres along and across the avenues."""

    name: str
    latitude: float
    longitude: float
    along: float
    across: float
    pickups: float
    """Share of the trips that begin here; the shares are scaled to a sum of 1."""
    dropoffs: float


_PLACES = (
    _Place("Penn Station", 40.7506, -73.9935, 150, 120, 6.0, 4.0),
    _Place("Grand Central", 40.7527, -73.9772, 150, 120, 4.5, 3.5),
    _Place("Port Authority", 40.7570, -73.9900, 150, 120, 3.5, 2.5),
    _Place("Times Square", 40.7580, -73.9855, 250, 150, 4.0, 3.5),
    _Place("Rockefeller Center", 40.7587, -73.9787, 250, 200, 3.0, 3.0),
    _Place("Fifth Avenue", 40.7637, -73.9730, 250, 200, 3.0, 3.0),
    _Place("Columbus Circle", 40.7681, -73.9819, 200, 200, 2.5, 2.5),
    _Place("Union Square", 40.7359, -73.9911, 250, 200, 3.5, 3.0),
    _Place("Meatpacking", 40.7410, -74.0060, 250, 200, 3.0, 2.0),
    _Place("East Village", 40.7265, -73.9838, 350, 300, 3.5, 3.0),
    _Place("Museums", 40.7794, -73.9632, 400, 200, 2.0, 2.0),
    _Place("World Trade", 40.7115, -74.0125, 250, 200, 1.5, 2.0),
    _Place("Midtown", 40.7530, -73.9830, 1_600, 700, 22.0, 21.0),
    _Place("Downtown", 40.7250, -73.9990, 1_300, 700, 13.0, 12.0),
    _Place("Uptown", 40.7790, -73.9660, 1_700, 900, 17.0, 17.0),
    _Place("LaGuardia", 40.7740, -73.8726, 150, 250, 2.6, 1.5),
    _Place("Kennedy", 40.6450, -73.7850, 200, 300, 1.8, 1.2),
    _Place("Newark", 40.6895, -74.1745, 200, 200, 0.0, 0.3),
    _Place("Harlem", 40.8120, -73.9480, 1_500, 900, 1.2, 2.5),
    _Place("Brooklyn", 40.6920, -73.9650, 3_000, 3_000, 1.8, 5.0),
    _Place("Queens", 40.7480, -73.9200, 2_500, 3_000, 0.9, 3.2),
    _Place("Bronx", 40.8440, -73.9000, 3_000, 2_500, 0.1, 0.8),
)
_NEAR = 0.45
"""Share of the trips that end near their beginning, wherever that is."""
_NEAR_ALONG, _NEAR_ACROSS = 1_500.0, 700.0
_ANYWHERE = 0.002
"""Share of the ends that are anywhere in the grid, which makes the long tail of cells."""
_AVENUES = math.radians(29)
"""The avenues of Manhattan run this far east of north."""
_EDGE = (CELLS - 1) * 500.0
"""Places stay between the centres of the first and the last cell, which both grids contain."""

_SHORTEST_WAIT_S = 60.0
_WARM_UP_S = 3_600.0
"""Taxis start this long before the first trip that is kept, so that the rate is steady from the beginning."""
_PAYMENTS = ("CRD", "CSH", "NOC", "DIS", "UNK")
_PAYMENT_SHARES = (0.54, 0.455, 0.003, 0.001, 0.001)
_TOLL = 4.80


def trips(n: int, seed: int, *, rate: float = RATE, taxis: int = TAXIS) -> pa.Table:
    """`n` trips with the 17 columns of the challenge, in the order of the drop-off.

    `rate` is trips per second. A higher rate shortens the waits between trips, so it needs enough `taxis`. Times are
    whole seconds, as in the challenge; money is in dollars, distances are in miles.
    """
    if n < 1 or rate <= 0 or taxis < 1:
        raise InvalidArgumentError(
            f"{n} trips at {rate} per second by {taxis} taxis: there is nothing to generate",
            hint="pass numbers greater than zero",
        )
    random = np.random.default_rng(seed)
    # More than n: the taxis are random, and the last trips of the surplus are cut off.
    span = (1.03 * n + 200) / rate
    activity = np.clip(random.normal(1.0, 0.15, taxis), 0.5, 1.3)
    per_taxi = np.ceil(1.1 * (span + _WARM_UP_S) * rate / activity.sum() * activity).astype(np.int64) + 3
    rows = int(per_taxi.sum())

    begin = _places(random, rows, np.array([place.pickups for place in _PLACES]))
    end = _ends(random, begin)
    km = np.abs(end - begin).sum(axis=1) * 1.05 / 1_000
    # Far trips use the fast roads: 15 km/h around the corner, 40 km/h to the airports.
    speed = (15 + 25 * (1 - np.exp(-km / 15))) * np.exp(random.normal(0, 0.2, rows))
    driven = np.rint(90 + km / speed * 3_600)

    taxi = np.repeat(np.arange(taxis), per_taxi)
    cycle = activity.sum() / rate / activity
    wait = cycle - float(driven.mean())
    if wait.min() < _SHORTEST_WAIT_S:
        raise InvalidArgumentError(
            f"{taxis} taxis cannot drive {rate:.4g} trips per second: they would have to be at two places at once",
            hint=f"take taxis={max(200, math.ceil(TAXIS * rate / RUSH_RATE))} or a lower rate",
        )
    dropoff = _dropoffs(random, driven, taxi, per_taxi, wait, cycle)

    kept = np.flatnonzero(dropoff > 0)
    kept = kept[np.argsort(dropoff[kept], kind="stable")][:n]
    assert len(kept) == n, "the surplus of trips is too small"
    return _table(random, taxi[kept], begin[kept], end[kept], km[kept], driven[kept], np.ceil(dropoff[kept]), taxis)


def cells(longitude: Floats, latitude: Floats, *, metres: int = 500) -> tuple[Ints, Ints]:
    """x and y of the cells that hold these places, counted from 1; `metres` is the side of a cell, 500 or 250."""
    part = metres / 500
    x = np.floor((longitude - ORIGIN_LONGITUDE) / (_EAST * part) + 0.5).astype(np.int64) + 1
    y = np.floor((ORIGIN_LATITUDE - latitude) / (_SOUTH * part) + 0.5).astype(np.int64) + 1
    return x, y


def _places(random: np.random.Generator, rows: int, shares: Floats) -> Floats:
    """Metres east and south of the origin, by the shares of the places."""
    place = random.choice(len(_PLACES), rows, p=shares / shares.sum())
    centre = np.array([(p.longitude - ORIGIN_LONGITUDE, ORIGIN_LATITUDE - p.latitude) for p in _PLACES])
    spread = np.array([(p.along, p.across) for p in _PLACES])
    steps = random.standard_normal((rows, 2)) * spread[place]
    result = (centre / (_EAST, _SOUTH) * 500)[place] + _along_avenues(steps)
    lost = random.random(rows) < _ANYWHERE
    result[lost] = random.uniform(0, _EDGE, (int(lost.sum()), 2))
    return _inside(result)


def _ends(random: np.random.Generator, begin: Floats) -> Floats:
    """Where the trips end: near their beginning, or at another place."""
    rows = len(begin)
    far = _places(random, rows, np.array([place.dropoffs for place in _PLACES]))
    near = begin + _along_avenues(random.standard_normal((rows, 2)) * (_NEAR_ALONG, _NEAR_ACROSS))
    return np.where((random.random(rows) < _NEAR)[:, None], _inside(near), far)


def _along_avenues(steps: Floats) -> Floats:
    """(along, across) the avenues as (east, south)."""
    along, across = steps.T
    east = along * math.sin(_AVENUES) + across * math.cos(_AVENUES)
    south = -along * math.cos(_AVENUES) + across * math.sin(_AVENUES)
    return np.column_stack([east, south])


def _inside(places: Floats) -> Floats:
    """Move points outside the grid, which occur around the outermost places, to its edge."""
    result: Floats = np.clip(places, 0.0, _EDGE)
    return result


def _dropoffs(
    random: np.random.Generator, driven: Floats, taxi: Ints, per_taxi: Ints, wait: Floats, cycle: Floats
) -> Floats:
    """Seconds of the drop-offs: each taxi waits and drives in turn, from a random moment before the warm-up ends."""
    waited = np.maximum(_SHORTEST_WAIT_S / 2, random.exponential(1.0, len(taxi)) * wait[taxi])
    clock = np.cumsum(waited + driven)
    last_of_the_taxi_before = np.cumsum(per_taxi)[:-1] - 1
    clock -= np.concatenate([[0.0], clock[last_of_the_taxi_before]])[taxi]
    return clock - _WARM_UP_S - (random.random(len(cycle)) * cycle)[taxi]


def _table(
    random: np.random.Generator,
    taxi: Ints,
    begin: Floats,
    end: Floats,
    km: Floats,
    driven: Floats,
    dropoff: Floats,
    taxis: int,
) -> pa.Table:
    """The columns of the challenge, in its order."""
    rows = len(taxi)
    end_s = BEGIN + dropoff.astype(np.int64)
    begin_s = end_s - driven.astype(np.int64)
    miles = np.round(km / 1.609344, 2)
    hour = begin_s // 3_600 % 24
    # Two drivers share a taxi: one by day, one by night.
    driver = 2 * taxi + ((hour < 5) | (hour >= 17))

    # The meter: $2.50, and 50 cents for each fifth of a mile or each minute that the taxi hardly moves.
    standing = np.maximum(0, driven / 60 - miles * 3)
    fare = 2.5 + 0.5 * np.floor(miles * 5 + 0.7 * standing)
    surcharge = np.where((hour >= 20) | (hour < 6), 0.5, np.where(hour >= 16, 1.0, 0.0))
    payment = random.choice(len(_PAYMENTS), rows, p=_PAYMENT_SHARES)
    # Tips in cash are not in the data.
    share = np.where(payment == 0, random.choice([0.0, 0.1, 0.2, 0.25, 0.3], rows, p=[0.04, 0.1, 0.6, 0.18, 0.08]), 0.0)
    tip = np.round((fare + surcharge) * share, 2)
    tolls = np.where((km > 12) & (random.random(rows) < 0.35), _TOLL, 0.0)
    tax = np.full(rows, 0.5)

    longitude = [np.round(ORIGIN_LONGITUDE + place[:, 0] / 500 * _EAST, 6) for place in (begin, end)]
    latitude = [np.round(ORIGIN_LATITUDE - place[:, 1] / 500 * _SOUTH, 6) for place in (begin, end)]
    return pa.table(
        {
            "medallion": _hashes("taxi", taxis).take(pa.array(taxi)),
            "hack_license": _hashes("driver", 2 * taxis).take(pa.array(driver)),
            "pickup_datetime": pa.array(begin_s, pa.timestamp("s")),
            "dropoff_datetime": pa.array(end_s, pa.timestamp("s")),
            "trip_time_in_secs": driven.astype(np.int32),
            "trip_distance": miles,
            "pickup_longitude": longitude[0],
            "pickup_latitude": latitude[0],
            "dropoff_longitude": longitude[1],
            "dropoff_latitude": latitude[1],
            "payment_type": pa.array(_PAYMENTS).take(pa.array(payment)),
            "fare_amount": fare,
            "surcharge": surcharge,
            "mta_tax": tax,
            "tip_amount": tip,
            "tolls_amount": tolls,
            "total_amount": np.round(fare + surcharge + tax + tip + tolls, 2),
        }
    )


def _hashes(kind: str, count: int) -> pa.Array:
    """Names of 32 hexadecimal characters, like the MD5 hashes in the challenge."""
    return pa.array([hashlib.md5(f"{kind} {i}".encode(), usedforsecurity=False).hexdigest() for i in range(count)])
