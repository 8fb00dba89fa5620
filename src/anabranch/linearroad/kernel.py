"""The road: what one tuple changes, and how it is answered. Compiled by numba.

A group has some expressways; each has a *slot* in its arrays. A *place* is a segment of a direction of a slot:
``slot * 200 + way * 100 + seg``; way is the direction. All arrays are items of the operator's state, so they survive a
crash.

    cars       a hash table by VID: where a car was last, its last notification, what it has paid
    visits     segments that a car was notified of on earlier trips (mode paper), chained from its entry
    traffic    per place and minute, for the last eight minutes: cars and speeds
    board      per place, for the current minute: LAV, toll, nearest accident. Rebuilt when a minute begins, because all
               three hold for whole minutes; so a report costs two look-ups
    stops      cars that stand, in the order in which they stopped; searched only when a car stops, or drives on
    wrecks     accidents: where, and from which minute to which they are in force

Time never goes back. The two modes (`schema.Mode`) differ where a function takes `paper`, and nowhere else.

All of it is one long file for a reason: numba caches compiled code until the file of the outermost function changes, so
a change to a rule in another module would have no effect.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.compiled import kernel
from anabranch.linearroad.schema import DIRECTIONS, EXIT_LANE, REPORT_EVERY, SEGMENTS, Kind

PLACES = DIRECTIONS * SEGMENTS
"""Places of one expressway."""
MINUTES = 8
"""Minutes of traffic that are kept: the current one, five before it and two spare ones, to make a power of two."""
MEMORY = 5
"""Minutes that the LAV looks back."""
STOPPED = 4
"""A car with this many identical reports counts as stopped."""
GONE = 60
"""Seconds without a report after which a car has left; if it reports again, it has come back."""
AHEAD = 4
"""Segments downstream in which an accident counts, beside a car's own."""
BUSY = 50
"""Cars in a segment above which there is a toll."""
SLOW = 40
"""Miles per hour below which there is a toll."""
FETCHED = 32
"""Cars whose entries are fetched from memory at a time."""
LARGEST_VID = 2**31 - 1
"""Larger than any VID, since entries hold the VID plus one."""
OPEN = 2**31 - 1
"""The last minute of an accident that no car has left."""
POSITION, BALANCE, EXPENDITURE, TRAVEL_TIME = (int(kind) for kind in Kind)
_HASH = np.uint64(0x9E3779B97F4A7C15)

CAR = np.dtype(
    [
        ("low", "u8"),  # segments 0-63 that it was notified of on this expressway and direction, a bit each
        ("high", "u8"),  # segments 64-99
        ("vid", "i4"),  # plus one: 0 is a free entry
        ("balance", "i4"),
        ("toll", "i4"),  # of the last notification, not yet charged
        ("told", "i4"),  # the time of the last notification, plus one; 0: never
        ("time", "i4"),  # of the last report
        ("pos", "i4"),
        ("minute", "i4"),  # of the last report; the speeds that it reported in this segment and minute are summed:
        ("speeds", "i4"),
        ("visits", "i4"),  # the last of its visits, plus one; 0: none
        ("reports", "i2"),
        ("slot", "i2"),
        ("seg", "i1"),
        ("way", "i1"),
        ("lane", "i1"),
        ("same", "i1"),  # identical reports in a row, at most one more than STOPPED
    ],
    align=True,
)
VISIT = np.dtype(
    [("low", "u8"), ("high", "u8"), ("slot", "i2"), ("way", "i2"), ("before", "i4"), ("toll", "i4")], align=True
)
TRAFFIC = np.dtype([("means", "f8"), ("speeds", "i4"), ("reports", "i4"), ("cars", "i4")], align=True)
BOARD = np.dtype([("lav", "i4"), ("toll", "i4"), ("accident", "i4")], align=True)
STOP = np.dtype(
    [("vid", "i4"), ("pos", "i4"), ("slot", "i2"), ("lane", "i1"), ("way", "i1"),
     ("wreck", "i4"),  # the accident that it is in, or -1
     ("ended", "i4"), ("closed", "i4")]  # the accident that it was the last in, and when that ended
)  # fmt: skip
WRECK = np.dtype([("place", "i4"), ("since", "i4"), ("until", "i4"), ("made", "i4")])
CLOCK = np.dtype(
    [("time", "i4"), ("minute", "i4"), ("cars", "i4"), ("visits", "i4"), ("stops", "i4"), ("wrecks", "i4")]
)
"""The current second and minute, and how many entries of each array are in use."""

Records = NDArray[Any]

_compiled = kernel(nogil=True)


# --- cars -----------------------------------------------------------------------------------------------------------


@_compiled
def _home(vid: Any, mask: Any) -> Any:
    """Where the search for a car begins. The table's length is a power of two; the mask is one less."""
    return np.int64((np.uint64(vid) * _HASH) >> np.uint64(32)) & mask


@_compiled
def _fetch(cars: Records, vids: Any, begin: int, end: int) -> Any:
    """Touch the entries of the cars that come next.

    The table is larger than any cache and a car reports every 30 s, so each look-up waits for memory. These look-ups do
    not depend on each other, so they wait at the same time. The sum is not used, but without it the compiler would
    remove all of this.
    """
    mask, touched = len(cars) - 1, 0
    for i in range(begin, end):
        touched += cars[_home(vids[i], mask)].vid
    return touched


@_compiled
def find(cars: Records, vid: Any) -> Any:
    """The entry of a car, or the free entry where it would be."""
    mask = len(cars) - 1
    at = _home(vid, mask)
    while cars[at].vid != 0 and cars[at].vid != vid + 1:
        at = (at + 1) & mask
    return at


@_compiled
def grown(cars: Records, larger: Records) -> None:
    """Copy all cars to a larger, empty table."""
    for i in range(len(cars)):
        if cars[i].vid != 0:
            larger[find(larger, cars[i].vid - 1)] = cars[i]


@_compiled
def _visit(car: Any, visits: Records, slot: int, way: int) -> Any:
    """The car's earlier visit to that expressway and direction, or -1."""
    at = car.visits - 1
    while at >= 0 and not (visits[at].slot == slot and visits[at].way == way):
        at = visits[at].before - 1
    return at


@_compiled
def _leave(car: Any, visits: Records, clock: Any) -> None:
    """Remember the segments the car was notified of, and its uncharged toll, where it was: expressway and direction."""
    at = _visit(car, visits, car.slot, car.way)
    if at < 0:
        at = clock.visits
        clock.visits += 1
        visits[at].slot, visits[at].way, visits[at].before = car.slot, car.way, car.visits
        car.visits = at + 1
    visits[at].low, visits[at].high, visits[at].toll = car.low, car.high, car.toll


@_compiled
def _arrive(car: Any, visits: Records, slot: int, way: int) -> None:
    """Recall the segments the car was notified of on an earlier visit, and its unpaid toll on that expressway."""
    car.toll = 0
    for direction in range(DIRECTIONS):
        at = _visit(car, visits, slot, direction)
        if at >= 0:
            car.toll += visits[at].toll
            visits[at].toll = 0
    at = _visit(car, visits, slot, way)
    if at >= 0:
        car.low, car.high = visits[at].low, visits[at].high
    else:
        car.low, car.high = np.uint64(0), np.uint64(0)


# --- accidents ------------------------------------------------------------------------------------------------------


@_compiled
def _together(stop: Any, car: Any) -> bool:
    """Whether a car stands at the same place as another."""
    return bool(stop.pos == car.pos and stop.lane == car.lane and stop.way == car.way and stop.slot == car.slot)


@_compiled
def _stands(car: Any, stops: Records, wrecks: Records, clock: Any, paper: bool) -> None:
    """A car has stopped. If another stands at the same place, that is an accident, in force from the next minute.

    paper: further cars join it. flat-lav: they do not, and a segment has one accident in the whole run.
    """
    others, partner = 0, -1
    for i in range(clock.stops - 1, -1, -1):
        if _together(stops[i], car):
            others, partner = others + 1, i
    stop = stops[clock.stops]
    clock.stops += 1
    stop.vid, stop.pos, stop.lane, stop.way, stop.slot = car.vid, car.pos, car.lane, car.way, car.slot
    stop.wreck, stop.ended, stop.closed = -1, -1, -1
    if others == 0 or (others > 1 and not paper):
        return
    if stops[partner].wreck >= 0:
        stop.wreck = stops[partner].wreck
        return
    place = car.slot * PLACES + car.way * SEGMENTS + car.seg
    if not paper:
        for i in range(clock.wrecks):
            if wrecks[i].place == place:
                return
    wreck = wrecks[clock.wrecks]
    wreck.place, wreck.since, wreck.until, wreck.made = place, clock.minute + 1, OPEN, clock.time
    stop.wreck = stops[partner].wreck = clock.wrecks
    clock.wrecks += 1


@_compiled
def _goes_on(car: Any, cars: Records, stops: Records, wrecks: Records, clock: Any, paper: bool) -> None:
    """A standing car reports from elsewhere, which ends its accident.

    paper: unless two others still stand there; and it is in force through the minute after the last report of two cars
    that stood. A car with no fifth report, or none since the other one stopped, was never in an accident.
    """
    at = 0
    while stops[at].vid != car.vid:
        at += 1
    wreck = stops[at].wreck
    clock.stops -= 1
    for i in range(at, clock.stops):  # in the order in which they stopped
        stops[i] = stops[i + 1]
    if wreck < 0:
        return
    left, other = 0, -1
    for i in range(clock.stops):
        if stops[i].wreck == wreck:
            left, other = left + 1, i
    if not paper or (left == 1 and (car.same == STOPPED or car.time < wrecks[wreck].made)):
        wrecks[wreck].until = clock.minute
    elif left == 1:
        wrecks[wreck].until = max(car.minute, cars[find(cars, stops[other].vid - 1)].minute) + 1
        stops[other].ended, stops[other].closed = wreck, clock.time
    if not paper and wrecks[wreck].made == clock.time:
        wrecks[wreck].place = -1  # it drove on in the second in which the other stopped: they never stood together
    if not paper or left == 1:
        _part(stops, clock, wreck)


@_compiled
def _part(stops: Records, clock: Any, wreck: Any) -> None:
    """End the accident for all cars that still stand."""
    for i in range(clock.stops):
        if stops[i].wreck == wreck:
            stops[i].wreck = -1


@_compiled
def _miss(cars: Records, stops: Records, wrecks: Records, clock: Any, minute: int) -> None:
    """paper: an accident also ends if a standing car stops reporting; the last report of two cars counts.

    `minute` is about to begin.
    """
    for wreck in range(clock.wrecks):
        if wrecks[wreck].until != OPEN:
            continue
        last, other = -1, -1
        for i in range(clock.stops):
            if stops[i].wreck == wreck:
                time = cars[find(cars, stops[i].vid - 1)].time
                last, other = max(last, time), max(min(last, time), other)
        while last > other + REPORT_EVERY:
            last -= REPORT_EVERY
        if last // 60 + 2 < minute:
            wrecks[wreck].until = last // 60 + 2
            _part(stops, clock, wreck)


@_compiled
def _still_stands(car: Any, stops: Records, wrecks: Records, clock: Any) -> None:
    """paper: a report of the same second as the one that ended the accident still counts for it."""
    for i in range(clock.stops):
        if stops[i].vid == car.vid and stops[i].closed == clock.time:
            wrecks[stops[i].ended].until = clock.minute + 1


# --- minutes --------------------------------------------------------------------------------------------------------


@_compiled
def _speed(traffic: Records, place: int, minute: int, paper: bool) -> Any:
    """LAV: latest average velocity, over the five minutes before. Without data -1 (paper) or 0."""
    total, count = 0.0, 0
    for before in range(max(1, minute - MEMORY), minute):
        entry = traffic[place * MINUTES + before % MINUTES]
        if paper and entry.cars > 0:
            total += entry.means / entry.cars
            count += 1
        elif not paper:
            total += entry.speeds
            count += entry.reports
    if count == 0:
        return -1.0 if paper else 0.0
    # Whole miles per hour, as in the answers. flat-lav rounds half up. paper rounds down; the small addend keeps a mean
    # that is a whole number independent of the order of the sum.
    return np.floor(total / count + 1e-9) if paper else np.floor((2.0 * total + count) / (2.0 * count))


@_compiled
def _begin_minute(traffic: Records, board: Records, wrecks: Records, clock: Any, minute: int, paper: bool) -> None:
    """Build the board for a minute: its content is known when the minute begins."""
    places = len(board)
    for missed in range(max(clock.minute + 1, minute - MINUTES + 1), minute + 1):
        for place in range(places):
            entry = traffic[place * MINUTES + missed % MINUTES]
            entry.means, entry.speeds, entry.reports, entry.cars = 0.0, 0, 0, 0
    clock.minute = minute
    for place in range(places):
        lav = _speed(traffic, place, minute, paper)
        cars = traffic[place * MINUTES + (minute - 1) % MINUTES].cars if minute > 1 else 0
        sign = board[place]
        sign.lav, sign.accident, sign.toll = int(lav), -1, 0
        if lav < SLOW and cars > BUSY:
            sign.toll = 2 * (cars - BUSY) ** 2
    for i in range(clock.wrecks):
        if wrecks[i].place >= 0 and wrecks[i].since <= minute <= wrecks[i].until:
            _warn(board, wrecks[i].place)


@_compiled
def _warn(board: Records, place: int) -> None:
    """Show an accident in its segment and the four before it, unless a nearer one is shown. No toll is due there."""
    seg, way = place % SEGMENTS, place // SEGMENTS % DIRECTIONS
    upstream = 1 if way == 1 else -1
    for distance in range(AHEAD + 1):
        at = seg + upstream * distance
        if 0 <= at < SEGMENTS:
            sign = board[place - seg + at]
            sign.toll = 0
            if sign.accident < 0 or abs(sign.accident - at) > distance:
                sign.accident = seg


# --- reports --------------------------------------------------------------------------------------------------------


@_compiled
def _count(car: Any, traffic: Records, place: int, minute: int, speed: int, fresh: bool) -> None:
    """Add a report to the traffic of its segment and minute. `fresh`: the car's first one there."""
    entry = traffic[place * MINUTES + minute % MINUTES]
    entry.speeds += speed
    entry.reports += 1
    if fresh:
        entry.cars += 1
        car.speeds, car.reports = 0, 0
    else:
        entry.means -= car.speeds / car.reports
    car.speeds += speed
    car.reports += 1
    entry.means += car.speeds / car.reports


@_compiled
def _notified_before(car: Any, seg: int) -> Any:
    """Whether the car was notified of the segment before. From now on it counts as notified."""
    bit = np.uint64(1) << np.uint64(seg % 64)
    if seg < 64:
        before = car.low & bit
        car.low |= bit
    else:
        before = car.high & bit
        car.high |= bit
    return before != np.uint64(0)


@_compiled
def report(
    car: Any, cars: Records, visits: Records, traffic: Records, board: Records, stops: Records, wrecks: Records,
    clock: Any, slot: int, way: int, seg: int, lane: int, pos: int, speed: int, paper: bool,
) -> bool:  # fmt: skip
    """Process a car's position report. True: the car must be notified of what the board shows for its segment."""
    time, minute = clock.time, clock.minute
    trip = car.time < 0 or time - car.time > GONE or car.slot != slot
    moved = trip or car.way != way
    entered = moved or car.seg != seg
    place = slot * PLACES + way * SEGMENTS + seg

    still = not paper or speed == 0
    stands = still and not moved and car.pos == pos and car.lane == lane
    if car.same >= STOPPED and not stands:
        _goes_on(car, cars, stops, wrecks, clock, paper)
    if paper and moved:
        if car.time >= 0:
            _leave(car, visits, clock)
        _arrive(car, visits, slot, way)
    if entered and not paper:  # charged by the next segment; dropped by a car that has left
        if not trip:
            car.balance += car.toll
        car.toll = 0
    fresh = entered or car.minute != minute
    car.same = min(car.same + 1, STOPPED + 1) if stands else int(still)
    car.time, car.minute, car.slot, car.seg, car.way, car.lane, car.pos = time, minute, slot, seg, way, lane, pos
    if car.same == STOPPED:
        _stands(car, stops, wrecks, clock, paper)
    elif car.same > STOPPED and paper:
        _still_stands(car, stops, wrecks, clock)
    _count(car, traffic, place, minute, speed, fresh)
    if not entered or lane == EXIT_LANE or (paper and _notified_before(car, seg)):
        return False
    if paper:  # charged at the car's next notification, on this trip or a later one
        car.balance += car.toll
    car.toll, car.told = board[place].toll, time + 1
    return True


# --- a block --------------------------------------------------------------------------------------------------------


@_compiled
def drive(
    first: int, block: tuple[Any, ...], slots: int, most_cars: int, groups: int, group: int, paper: bool,
    cars: Records, visits: Records, traffic: Records, board: Records, stops: Records, wrecks: Records, clocks: Records,
    tolls: Any, alerts: Any, balances: Any, asked: Any, rejected: Any, counts: Any, touched: Any,
) -> int:  # fmt: skip
    """Process the tuples of a block from `first` on. Returns how many are done: not all if an array is full.

    `counts` has the number of rows of each output, in the order of the arguments, and the number of balance queries of
    the current second that wait: they are answered when the second is over, after all its reports. A car reports at
    most twice a minute; `_count` relies on that.
    """
    kinds, times, vids, speeds, xways, lanes, ways, segs, positions, qids = block
    clock = clocks[0]
    n = len(kinds)
    for i in range(first, n):
        if (i - first) % FETCHED == 0:
            touched[0] = _fetch(cars, vids, i, min(i + FETCHED, n))
        time = times[i]
        if time < 0:
            # Every group gets a balance query; only one of them rejects it.
            if kinds[i] != BALANCE or qids[i] % groups == group:
                rejected[counts[4]] = i
                counts[4] += 1
            continue
        if time > clock.time:
            _answer(clock.time, vids, qids, cars, groups, group, paper, balances, asked, counts)
            clock.time = time
            if time // 60 + 1 > clock.minute:
                if paper:
                    _miss(cars, stops, wrecks, clock, time // 60 + 1)
                _begin_minute(traffic, board, wrecks, clock, time // 60 + 1, paper)
        kind = kinds[i]
        if kind == POSITION:
            slot, way, seg, lane = xways[i] // groups, ways[i], segs[i], lanes[i]
            right = 0 <= way < DIRECTIONS and 0 <= seg < SEGMENTS and 0 <= lane <= EXIT_LANE and xways[i] >= 0
            right = right and 0 <= vids[i] < LARGEST_VID
            if not right:
                rejected[counts[4]] = i
                counts[4] += 1
                continue
            full = clock.cars >= most_cars or clock.visits >= len(visits)
            if full or clock.stops >= len(stops) or clock.wrecks >= len(wrecks) or slot >= slots:
                return i
            car = cars[find(cars, vids[i])]
            if car.vid == 0:
                car.vid, car.time = vids[i] + 1, -1
                clock.cars += 1
            if report(car, cars, visits, traffic, board, stops, wrecks, clock,
                      slot, way, seg, lane, positions[i], speeds[i], paper):  # fmt: skip
                sign = board[slot * PLACES + way * SEGMENTS + seg]
                at = counts[0]
                tolls[0, at], tolls[1, at], tolls[2, at], tolls[3, at] = vids[i], time, sign.lav, sign.toll
                counts[0] += 1
                if sign.accident >= 0:
                    at = counts[1]
                    alerts[0, at], alerts[1, at], alerts[2, at] = time, xways[i], sign.accident
                    alerts[3, at], alerts[4, at] = way, vids[i]
                    counts[1] += 1
        elif kind == BALANCE:
            asked[counts[3]] = i
            counts[3] += 1
        elif kind != EXPENDITURE and kind != TRAVEL_TIME:
            rejected[counts[4]] = i
            counts[4] += 1
    _answer(clock.time, vids, qids, cars, groups, group, paper, balances, asked, counts)
    return n


@_compiled
def _answer(
    time: int, vids: Any, qids: Any, cars: Records, groups: int, group: int, paper: bool,
    balances: Any, asked: Any, counts: Any,
) -> None:  # fmt: skip
    """Answer the balance queries of a second that is over, with this group's part.

    A group that does not know the car has nothing to add to the sum and gives no answer. But one group, chosen by the
    query's number, always answers, so that every query has an answer.
    """
    for k in range(counts[3]):
        i = asked[k]
        car = cars[find(cars, vids[i])]
        if car.vid == 0 and qids[i] % groups != group:
            continue
        at = counts[2]
        known = car.vid != 0
        balances[0, at], balances[1, at] = time, qids[i]
        balances[2, at] = car.told - 1 if paper and known and car.told > 0 else (-1 if paper else time)
        balances[3, at] = car.balance if known else 0
        counts[2] += 1
    counts[3] = 0
