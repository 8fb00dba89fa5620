"""The cars of Linear Road, second by second: a Numba kernel that `anabranch.linearroad.generate.traffic` drives.

The simulation keeps a car's *progress*, the feet from the end of the road where its direction begins, so that both
directions share the arithmetic. A report turns it into a position. Speeds are whole miles per hour. In the 30 s between
two reports, one mile per hour is 44 feet, a whole number: positions and speeds agree exactly without floats. The module
also has its own random generator (SplitMix64), so a trace is the same on every machine.

Cars that report in the same second modulo 30 form a *cohort*. Only the cohort whose turn it is moves, 30 s at once:

| a car that | does |
|---|---|
| stands in an accident | reports the same place and speed 0, until the accident is cleared |
| would pass the place where one car stands alone | stops there: now it is an accident |
| would reach its destination | reports from the exit lane, inside the segment of its destination, and is gone |
| else | drives on, as fast as its driver likes and the traffic and the engine allow |

If a cohort has fewer cars than the rate asks for, new cars enter, so the reports per second follow the rate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anabranch.compiled import kernel
from anabranch.linearroad.schema import DIRECTIONS, EXIT_LANE, FEET_PER_SEGMENT, REPORT_EVERY, SEGMENTS, Kind

Ints = NDArray[np.int64]
Column = NDArray[Any]

ROAD_FEET = SEGMENTS * FEET_PER_SEGMENT
FEET_PER_REPORT = FEET_PER_SEGMENT * REPORT_EVERY // 3_600
"""How far a car at one mile per hour moves between two reports."""

ENTRY_LANE, FIRST_LANE, TRAVEL_LANES = 0, 1, 3
RAMP_SPEED, CRAWL, TOP_SPEED = 10, 8, 100
"""Miles per hour: on the ramp, in the worst jam, and at most."""
SPEED_UP = 22
"""Miles per hour that a car can gain between two reports."""
SLOWEST_DRIVER, DRIVERS = 50, 13
"""A driver's free speed is the slowest plus two throws of a die with this many sides, counted from 0."""
SWAY = 4
"""Miles per hour by which speeds vary at random."""
BEHIND_ACCIDENT = 18
"""Miles per hour behind an accident, in its segment."""
CHANGES_LANE = 30
"""Percent of the reports before which a car changes to a neighbouring lane."""
SHORTEST_TRIP, TRIPS = 2, 30
"""Segments: a trip is the shortest plus a throw of this die, or goes to the end of the road."""

COMES_BACK = 10
"""Percent of the entering cars that have been here before."""
GONE_CARS = 32_768
"""How many of the cars that left are remembered."""
STAYS_AWAY = 60
"""A car stays away for at least this many seconds, and one more."""

SAFE_FOR, ACCIDENT_FREE = 900, 600
"""Seconds from the beginning of an accident to the next: the first number, plus up to the second."""
FIRST_ACCIDENT = 300
"""Minimum number of seconds before the first accident."""
CLEARED_AFTER, CLEARING = 600, 600
"""Seconds that an accident lasts: the first number, plus up to the second."""
WAITS_FOR = 120
"""Seconds that a car stands alone before it drives on, if no other car runs into it."""

ONE_QUERY_IN = 100
"""Reports per query."""
BALANCES, EXPENDITURES = 50, 10
"""Percent of the queries; the rest are travel times."""
DAYS, WEEKDAYS, MINUTES_OF_DAY = 69, 7, 1_440
NONE = -1
"""The value of a column that does not apply to a tuple."""

# State of an accident on an expressway: how many cars stand, where, and the second in which something happens next: it
# begins (no car stands), is called off (one) or is cleared (two).
STANDING, WAY, PLACE, LANE, BEGAN, NEXT = range(6)

# Counters of the whole simulation.
CARS, QUERIES, GONE = range(3)

# Constants of the kernel must be plain numbers.
_POSITION, _BALANCE, _EXPENDITURE, _TRAVEL_TIME = (int(kind) for kind in Kind)


class World(NamedTuple):
    """The state of the simulation. Cars are arrays of (expressway, cohort, place in the cohort)."""

    vid: Column
    way: Column
    lane: Column
    speed: Column
    progress: Column
    destination: Column
    """The progress at which the car takes the exit."""
    free_speed: Column
    stands: Column
    cohorts: Ints
    """Number of cars in each (expressway, cohort)."""
    crowd: Ints
    """Number of cars in each (expressway, direction, segment of progress), and an empty segment after the last."""
    accidents: Ints
    gone_vid: Ints
    gone_at: Ints
    counters: Ints
    random: NDArray[np.uint64]


class Rules(NamedTuple):
    """The settings of the traffic, as tables of integers."""

    wanted: Ints
    """Reports of an expressway in each second."""
    ramps: Ints
    """Per expressway and direction: the segments in which cars enter, each listed as often as it is used."""
    slowing: Ints
    """Thousandths of the free speed that remain with that many cars in a segment."""


class Tuples(NamedTuple):
    """Columns of `schema.INPUT`, in its order, to be filled."""

    kind: Column
    time: Column
    vid: Column
    speed: Column
    xway: Column
    lane: Column
    way: Column
    segment: Column
    position: Column
    qid: Column
    origin: Column
    destination: Column
    weekday: Column
    minute: Column
    day: Column


def empty_world(expressways: int, most: int, seed: int) -> World:
    """Empty roads, with room for cohorts of `most` cars."""
    cars = (expressways, REPORT_EVERY, most)
    world = World(
        vid=np.zeros(cars, np.int32),
        way=np.zeros(cars, np.int8),
        lane=np.zeros(cars, np.int8),
        speed=np.zeros(cars, np.int16),
        progress=np.zeros(cars, np.int32),
        destination=np.zeros(cars, np.int32),
        free_speed=np.zeros(cars, np.int16),
        stands=np.zeros(cars, np.bool_),
        cohorts=np.zeros((expressways, REPORT_EVERY), np.int64),
        crowd=np.zeros((expressways, DIRECTIONS, SEGMENTS + 1), np.int64),
        accidents=np.zeros((expressways, NEXT + 1), np.int64),
        gone_vid=np.zeros(GONE_CARS, np.int64),
        gone_at=np.zeros(GONE_CARS, np.int64),
        counters=np.zeros(GONE + 1, np.int64),
        random=np.array([seed], np.uint64),
    )
    for x in range(expressways):
        world.accidents[x, NEXT] = FIRST_ACCIDENT + below(world.random, ACCIDENT_FREE)
    return world


@kernel()
def below(random: NDArray[np.uint64], n: int) -> int:
    """A random number 0 .. n-1, n < 2**32: the next of SplitMix64, scaled."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.int64(((z >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))  # type: ignore[return-value]


@kernel()
def simulate(begin: int, end: int, rules: Rules, world: World, out: Tuples) -> int:
    """Simulate the seconds begin .. end-1. Returns the number of tuples in `out`: ordered by time, reports first."""
    row = 0
    for t in range(begin, end):
        first = row
        for x in range(len(world.vid)):
            _time_passes(t, x, world)
            reported = row
            row = _drive_cohort(t, x, rules, world, out, row)
            row = _fill_cohort(t, x, rules.wanted[t] - (row - reported), rules, world, out, row)
        for report in range(first, row):
            if below(world.random, ONE_QUERY_IN) == 0:
                _ask(report, row, world, out)
                row += 1
    return row


@kernel()
def _time_passes(t: int, x: int, world: World) -> None:
    """Clear the accident of expressway x, or call it off, when its time has come."""
    accident = world.accidents[x]
    if accident[STANDING] == 0 or t < accident[NEXT]:
        return
    pause = SAFE_FOR + below(world.random, ACCIDENT_FREE) if accident[STANDING] > 1 else 0
    accident[STANDING] = 0
    # All standing cars must have left before others crash: each leaves at its next report.
    accident[NEXT] = max(accident[BEGAN] + pause, t + 2 * REPORT_EVERY)


@kernel()
def _drive_cohort(t: int, x: int, rules: Rules, world: World, out: Tuples, row: int) -> int:
    """Move the cars of the cohort whose second it is, and let each report; those that leave make room."""
    cohort = t % REPORT_EVERY
    cars = world.cohorts[x, cohort]
    accident = world.accidents[x]
    unlucky = -1  # from this place in the cohort on, the first possible car has an accident
    if accident[STANDING] == 0 and t >= accident[NEXT] and cars > 0:
        unlucky = below(world.random, cars)
    stay = 0
    for i in range(cars):
        begins = unlucky >= 0 and i >= unlucky
        car = (x, cohort, i)
        leaves = False
        if not world.stands[car] or accident[STANDING] == 0:
            leaves = _drive(t, car, begins, rules, world)
            if begins and world.stands[car]:
                unlucky = -1
        _report(t, car, world, out, row)
        row += 1
        if leaves:
            _leave(t, car, world)
        else:
            _move(car, (x, cohort, stay), world)
            stay += 1
    world.cohorts[x, cohort] = stay
    return row


@kernel()
def _drive(t: int, car: tuple[int, int, int], begins: bool, rules: Rules, world: World) -> bool:
    """Move a car by 30 s. Returns whether it reached its destination. With `begins` it stops there, if it may."""
    x, accident = car[0], world.accidents[car[0]]
    world.stands[car] = False
    speed, lane = _speed(car, rules, world), _lane(world.lane[car], world.random)
    before, way, goal = world.progress[car], world.way[car], world.destination[car]
    after = before + speed * FEET_PER_REPORT
    leaves = False
    passes = accident[WAY] == way and before < accident[PLACE] <= after and accident[PLACE] < goal
    if passes and accident[STANDING] == 1:
        _crash(t, car, accident[LANE], accident[PLACE], world)
        after, lane, speed = accident[PLACE], accident[LANE], 0
    elif after >= goal:
        # It brakes to leave in the segment of its destination, which lies far enough from the segment's end.
        end = (goal // FEET_PER_SEGMENT + 1) * FEET_PER_SEGMENT - 1
        speed = min(speed, (end - before) // FEET_PER_REPORT)
        after, lane, leaves = before + speed * FEET_PER_REPORT, EXIT_LANE, True
    elif begins:
        _crash(t, car, lane, after, world)
        speed = 0
    world.crowd[x, way, before // FEET_PER_SEGMENT] -= 1
    world.crowd[x, way, after // FEET_PER_SEGMENT] += 1
    world.progress[car], world.speed[car], world.lane[car] = after, speed, lane
    return leaves


@kernel()
def _speed(car: tuple[int, int, int], rules: Rules, world: World) -> int:
    """As fast as the driver likes, and the traffic here and in the next segment and the engine allow."""
    x, way = car[0], world.way[car]
    segment = world.progress[car] // FEET_PER_SEGMENT
    crowd = max(world.crowd[x, way, segment], world.crowd[x, way, segment + 1])
    speed = world.free_speed[car] * rules.slowing[min(crowd, len(rules.slowing) - 1)] // 1_000
    accident = world.accidents[x]
    behind = accident[PLACE] // FEET_PER_SEGMENT == segment and accident[PLACE] >= world.progress[car]
    if accident[STANDING] > 0 and accident[WAY] == way and behind:
        speed = min(speed, BEHIND_ACCIDENT)
    speed = max(speed + below(world.random, 2 * SWAY + 1) - SWAY, CRAWL)
    return min(speed, world.speed[car] + SPEED_UP, TOP_SPEED)  # type: ignore[no-any-return]


@kernel()
def _lane(lane: int, random: NDArray[np.uint64]) -> int:
    if lane == ENTRY_LANE:
        return FIRST_LANE + below(random, TRAVEL_LANES)
    if below(random, 100) >= CHANGES_LANE:
        return lane
    other = lane + 1 if below(random, 2) else lane - 1
    return min(max(other, FIRST_LANE), FIRST_LANE + TRAVEL_LANES - 1)


@kernel()
def _crash(t: int, car: tuple[int, int, int], lane: int, place: int, world: World) -> None:
    """Stop a car, as the first or the second of an accident."""
    world.stands[car] = True
    accident = world.accidents[car[0]]
    accident[STANDING] += 1
    if accident[STANDING] == 1:
        accident[WAY], accident[PLACE], accident[LANE] = world.way[car], place, lane
        accident[BEGAN], accident[NEXT] = t, t + WAITS_FOR
    else:
        accident[NEXT] = t + CLEARED_AFTER + below(world.random, CLEARING)


@kernel()
def _move(old: tuple[int, int, int], new: tuple[int, int, int], world: World) -> None:
    """Close the gap of a car that left; the order stays."""
    world.vid[new], world.way[new], world.lane[new] = world.vid[old], world.way[old], world.lane[old]
    world.speed[new], world.progress[new] = world.speed[old], world.progress[old]
    world.destination[new], world.free_speed[new] = world.destination[old], world.free_speed[old]
    world.stands[new] = world.stands[old]


@kernel()
def _leave(t: int, car: tuple[int, int, int], world: World) -> None:
    """Remember the car for later; it replaces another if all places are taken."""
    world.crowd[car[0], world.way[car], world.progress[car] // FEET_PER_SEGMENT] -= 1
    place = world.counters[GONE]
    if place < GONE_CARS:
        world.counters[GONE] += 1
    else:
        place = below(world.random, GONE_CARS)
    world.gone_vid[place], world.gone_at[place] = world.vid[car], t


@kernel()
def _fill_cohort(t: int, x: int, room: int, rules: Rules, world: World, out: Tuples, row: int) -> int:
    """Let as many cars enter as the rate asks for; each reports at once."""
    cohort = t % REPORT_EVERY
    for _ in range(room):
        car = (x, cohort, world.cohorts[x, cohort])
        _enter(t, car, rules, world)
        _report(t, car, world, out, row)
        row += 1
        world.cohorts[x, cohort] += 1
    return row


@kernel()
def _enter(t: int, car: tuple[int, int, int], rules: Rules, world: World) -> None:
    """Put a car on the ramp at the beginning of a segment, with a destination in a later one."""
    x, random = car[0], world.random
    way = below(random, DIRECTIONS)
    segment = rules.ramps[x, way, below(random, rules.ramps.shape[2])]
    last = min(segment + SHORTEST_TRIP + below(random, TRIPS), SEGMENTS - 1)
    world.vid[car] = _who(t, world)
    world.way[car], world.lane[car], world.speed[car] = way, ENTRY_LANE, RAMP_SPEED
    world.progress[car] = segment * FEET_PER_SEGMENT
    # Not in the last feet of the segment: a car short of its destination reaches the ramp in the same segment.
    world.destination[car] = last * FEET_PER_SEGMENT + below(random, FEET_PER_SEGMENT - CRAWL * FEET_PER_REPORT)
    world.free_speed[car] = SLOWEST_DRIVER + below(random, DRIVERS) + below(random, DRIVERS)
    world.stands[car] = False
    world.crowd[x, way, segment] += 1


@kernel()
def _who(t: int, world: World) -> int:
    """A car that left long enough ago, or a new one."""
    gone = world.counters[GONE]
    if gone > 0 and below(world.random, 100) < COMES_BACK:
        place = below(world.random, gone)
        if t - world.gone_at[place] > STAYS_AWAY:
            vid = world.gone_vid[place]
            world.gone_vid[place], world.gone_at[place] = world.gone_vid[gone - 1], world.gone_at[gone - 1]
            world.counters[GONE] -= 1
            return vid  # type: ignore[no-any-return]
    world.counters[CARS] += 1
    return world.counters[CARS] - 1  # type: ignore[no-any-return]


@kernel()
def _report(t: int, car: tuple[int, int, int], world: World, out: Tuples, row: int) -> None:
    way, progress = world.way[car], world.progress[car]
    position = progress if way == 0 else ROAD_FEET - 1 - progress
    out.kind[row], out.time[row], out.vid[row] = _POSITION, t, world.vid[car]
    out.speed[row], out.xway[row], out.lane[row] = world.speed[car], car[0], world.lane[car]
    out.way[row], out.segment[row], out.position[row] = way, position // FEET_PER_SEGMENT, position
    out.qid[row], out.origin[row], out.destination[row] = NONE, NONE, NONE
    out.weekday[row], out.minute[row], out.day[row] = NONE, NONE, NONE


@kernel()
def _ask(report: int, row: int, world: World, out: Tuples) -> None:
    """Add a query to a report; it also has the columns of the report."""
    random = world.random
    out.time[row], out.vid[row], out.speed[row] = out.time[report], out.vid[report], out.speed[report]
    out.xway[row], out.lane[row], out.way[row] = out.xway[report], out.lane[report], out.way[report]
    out.segment[row], out.position[row] = out.segment[report], out.position[report]
    out.qid[row], out.origin[row], out.destination[row] = world.counters[QUERIES], NONE, NONE
    out.weekday[row], out.minute[row], out.day[row] = NONE, NONE, NONE
    world.counters[QUERIES] += 1
    which = below(random, 100)
    if which < BALANCES:
        out.kind[row] = _BALANCE
    elif which < BALANCES + EXPENDITURES:
        out.kind[row], out.day[row] = _EXPENDITURE, 1 + below(random, DAYS)
    else:
        out.kind[row] = _TRAVEL_TIME
        origin = below(random, SEGMENTS)
        out.origin[row] = origin
        out.destination[row] = (origin + 1 + below(random, SEGMENTS - 1)) % SEGMENTS
        out.weekday[row], out.minute[row] = 1 + below(random, WEEKDAYS), 1 + below(random, MINUTES_OF_DAY)
