"""The reference of Linear Road on tiny inputs, with answers computed by hand; each trap in both modes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.errors import MissingDependencyError
from anabranch.linearroad.check.reference import expected_answers
from anabranch.linearroad.schema import FEET_PER_SEGMENT, HISTORY, INPUT, SEGMENT_HISTORY, Kind, Mode

pytest.importorskip("duckdb")

PAPER, FLAT = Mode.PAPER, Mode.FLAT_LAV
BOTH = pytest.mark.parametrize("mode", list(Mode))
Row = dict[str, int]


def report(time: int, vid: int, seg: int, **more: int) -> Row:
    """A position report; unless told, cars keep to places of their own, so that nobody seems to stand still."""
    place = FEET_PER_SEGMENT * seg + (vid * 31 + time) % FEET_PER_SEGMENT
    return dict(Type=0, Time=time, VID=vid, Spd=20, XWay=0, Lane=1, Dir=0, Seg=seg, Pos=place) | more


def ask(kind: Kind, time: int, vid: int, qid: int, **more: int) -> Row:
    return dict(Type=kind, Time=time, VID=vid, QID=qid) | more


def crowd(seg: int, cars: int, minutes: Iterable[int] = (1, 2, 3), speed: int = 20, **more: int) -> list[Row]:
    """So many cars with numbers of their own, each with one report a minute."""
    first = 100_000 + 1_000 * seg
    return [
        report(60 * (minute - 1) + car % 60, first + car, seg, Spd=speed, **more)
        for minute in minutes
        for car in range(cars)
    ]


def stands(vid: int, times: Iterable[int], seg: int, **more: int) -> list[Row]:
    """Reports from one place in a segment."""
    place = dict(Pos=FEET_PER_SEGMENT * seg + 100, Lane=2, Spd=0)
    return [report(time, vid, seg, **place | more) for time in times]


class Answers:
    """The reference of a few rows, by kind."""

    def __init__(
        self, folder: Path, rows: list[Row], mode: Mode, history: Sequence[Row] = (), segments: Sequence[Row] = ()
    ) -> None:
        expected = expected_answers(
            _written(folder / "input.parquet", rows, INPUT),
            _written(folder / "history.parquet", history, HISTORY),
            _written(folder / "segments.parquet", segments, SEGMENT_HISTORY),
            mode,
            folder / mode.value,
            threads=1,
        )
        self._rows: dict[str, list[dict[str, Any]]] = {
            kind: pq.read_table(expected.path(kind)).to_pylist()
            for kind in ("toll", "accident", "balance", "expenditure", "traveltime")
        }

    def tolls(self, vid: int) -> list[tuple[int, int, int]]:
        """Time, LAV and toll of a car's notifications."""
        return sorted((row["Time"], row["LAV"], row["Toll"]) for row in self._rows["toll"] if row["VID"] == vid)

    def alerts(self, *vids: int) -> dict[int, int]:
        """Which segment these cars were told of, if any."""
        return {row["VID"]: row["Seg"] for row in self._rows["accident"] if row["VID"] in vids}

    def balances(self, qid: int) -> list[tuple[int, int]]:
        """ResultTime and balance of what the validator accepts, the preferred one first."""
        rows = [row for row in self._rows["balance"] if row["QID"] == qid]
        return [(row["ResultTime"], row["Balance"]) for row in sorted(rows, key=lambda row: row["Alternative"])]

    def rows(self, kind: str) -> list[dict[str, Any]]:
        return self._rows[kind]


def _written(path: Path, rows: Sequence[Row], schema: pa.Schema) -> Path:
    unused = dict.fromkeys(schema.names, -1)
    pq.write_table(pa.Table.from_pylist([unused | row for row in rows], schema=schema), path)
    return path


# --- LAV and toll


@pytest.mark.parametrize(("mode", "lav"), [(PAPER, 43), (FLAT, 33)])
def test_lav_of_cars_and_minutes_or_of_reports(tmp_path: Path, mode: Mode, lav: int) -> None:
    # minute 1: car 1 at 10 and 20, car 2 at 40; minute 2: nobody; minute 3: car 3 at 60; minute 6 asks for 1 to 5
    # paper: ((15 + 40) / 2 + 60) / 2 = 43.75, truncated. flat-lav: (10 + 20 + 40 + 60) / 4 = 32.5, half up.
    rows = [report(0, 1, 5, Spd=10), report(30, 1, 5, Spd=20), report(0, 2, 5, Spd=40), report(120, 3, 5, Spd=60)]
    assert Answers(tmp_path, [*rows, report(300, 9, 5)], mode).tolls(9) == [(300, lav, 0)]


@BOTH
def test_the_sixth_minute_back_does_not_count(tmp_path: Path, mode: Mode) -> None:
    rows = [report(0, 1, 5, Spd=10), report(60, 2, 5, Spd=50), report(360, 9, 5, Spd=99)]
    assert Answers(tmp_path, rows, mode).tolls(9) == [(360, 50, 0)]


@pytest.mark.parametrize(("mode", "lav"), [(PAPER, -1), (FLAT, 0)])
def test_lav_without_data(tmp_path: Path, mode: Mode, lav: int) -> None:
    # Data of the same minute, of another direction or of another expressway is no data.
    rows = [report(0, 9, 5), report(0, 1, 6), report(0, 2, 5, Dir=1), report(0, 3, 5, XWay=1), report(61, 8, 5, XWay=2)]
    answers = Answers(tmp_path, rows, mode)
    assert answers.tolls(9) == [(0, lav, 0)]
    assert answers.tolls(8) == [(61, lav, 0)]


@BOTH
@pytest.mark.parametrize(("cars", "toll"), [(50, 0), (51, 2), (52, 8)])
def test_toll_begins_above_50_cars(tmp_path: Path, mode: Mode, cars: int, toll: int) -> None:
    assert Answers(tmp_path, [*crowd(5, cars), report(60, 9, 5)], mode).tolls(9) == [(60, 20, toll)]


@BOTH
def test_cars_count_once_and_in_all_lanes(tmp_path: Path, mode: Mode) -> None:
    twice = [row | {"Time": row["Time"] + 30} for row in crowd(5, 30, minutes=[1])]
    more = [report(0, vid, 5, Lane=4 * (vid % 2)) for vid in range(21)]
    assert Answers(tmp_path, [*crowd(5, 30), *twice, *more, report(60, 99, 5)], mode).tolls(99) == [(60, 20, 2)]


@BOTH
@pytest.mark.parametrize(("speed", "toll"), [(39, 8), (40, 0)])
def test_no_toll_at_40_miles_an_hour(tmp_path: Path, mode: Mode, speed: int, toll: int) -> None:
    assert Answers(tmp_path, [*crowd(5, 52, speed=speed), report(60, 9, 5)], mode).tolls(9) == [(60, speed, toll)]


@pytest.mark.parametrize(("mode", "lav", "toll"), [(PAPER, 39, 8), (FLAT, 40, 0)])
def test_rounding_comes_before_the_comparison(tmp_path: Path, mode: Mode, lav: int, toll: int) -> None:
    rows = [row | {"Spd": 39 + row["VID"] % 2} for row in crowd(5, 52)]  # 39.5
    assert Answers(tmp_path, [*rows, report(60, 9, 5)], mode).tolls(9) == [(60, lav, toll)]


# --- Notify


@BOTH
def test_one_notification_in_a_segment_and_none_in_the_exit_lane(tmp_path: Path, mode: Mode) -> None:
    rows = [report(0, 1, 5, Lane=0), report(30, 1, 5), report(60, 1, 6), report(90, 1, 7, Lane=4)]
    assert [time for time, *_ in Answers(tmp_path, rows, mode).tolls(1)] == [0, 60]


@pytest.mark.parametrize(("mode", "times"), [(PAPER, [0, 30, 300, 330]), (FLAT, [0, 30, 240, 270, 300, 330])])
def test_back_in_a_segment(tmp_path: Path, mode: Mode, times: list[int]) -> None:
    # 5, 6, exit in 7; then 5 and 6 again, 7 for the first time outside the exit lane, and 8
    rows = [report(0, 1, 5), report(30, 1, 6), report(60, 1, 7, Lane=4), report(240, 1, 5, Lane=0), report(270, 1, 6)]
    rows += [report(300, 1, 7), report(330, 1, 8)]
    assert [time for time, *_ in Answers(tmp_path, rows, mode).tolls(1)] == times


@BOTH
def test_the_other_direction_and_another_expressway_are_other_segments(tmp_path: Path, mode: Mode) -> None:
    rows = [report(0, 1, 5), report(100, 1, 5, Dir=1), report(200, 1, 5, XWay=1), report(230, 1, 5, XWay=1)]
    assert [time for time, *_ in Answers(tmp_path, rows, mode).tolls(1)] == [0, 100, 200]


@pytest.mark.parametrize(("mode", "times"), [(PAPER, [0]), (FLAT, [0, 91])])
def test_a_trip_ends_after_more_than_60_seconds(tmp_path: Path, mode: Mode, times: list[int]) -> None:
    rows = [report(0, 1, 5), report(30, 1, 5), report(91, 1, 5, Lane=0), report(151, 1, 5)]
    assert [time for time, *_ in Answers(tmp_path, rows, mode).tolls(1)] == times


# --- Accidents: cars 1 and 2 stand, cars from 10 on pass by. The fourth report of car 2 is at 100, in minute 2.

CRASH = [*stands(1, range(0, 181, 30), 50), *stands(2, range(10, 191, 30), 50), report(210, 1, 50), report(220, 2, 50)]


@pytest.mark.parametrize(("mode", "last"), [(PAPER, 299), (FLAT, 239)])
def test_in_force_from_the_minute_after_detection(tmp_path: Path, mode: Mode, last: int) -> None:
    # Car 1 moves at 210, in minute 4. The last stopped report is at 190, in minute 4, and paper adds a minute.
    times = [119, 120, last, last + 1]
    passers = [report(time, 10 + n, 50) for n, time in enumerate(times)]
    assert Answers(tmp_path, CRASH + passers, mode).alerts(10, 11, 12, 13) == {11: 50, 12: 50}


def test_paper_counts_the_other_car_s_report_up_to_the_clearing(tmp_path: Path) -> None:
    # Car 1 stands last at 210, car 2 at 235, before car 1 moves at 240: minutes 4, so through minute 5.
    # Car 2 stands on until 325, alone.
    rows = [*stands(1, range(0, 211, 30), 50), *stands(2, range(25, 326, 30), 50), report(240, 1, 50)]
    passers = [report(299, 10, 50), report(300, 11, 50)]
    assert Answers(tmp_path, rows + passers, PAPER).alerts(10, 11) == {10: 50}


@pytest.mark.parametrize(("mode", "alerts"), [(PAPER, {}), (FLAT, {10: 50})])
def test_four_reports_or_five(tmp_path: Path, mode: Mode, alerts: dict[int, int]) -> None:
    rows = [
        *stands(1, range(0, 91, 30), 50),
        *stands(2, range(10, 101, 30), 50),
        report(120, 1, 50),
        report(130, 2, 50),
    ]
    assert Answers(tmp_path, [*rows, report(125, 10, 50), report(180, 11, 50)], mode).alerts(10, 11) == alerts


@pytest.mark.parametrize(("mode", "alerts"), [(PAPER, {}), (FLAT, {10: 50})])
def test_speed_of_a_stopped_car(tmp_path: Path, mode: Mode, alerts: dict[int, int]) -> None:
    rows = [row | {"Spd": 3} for row in CRASH]
    assert Answers(tmp_path, [*rows, report(130, 10, 50)], mode).alerts(10) == alerts


def test_flat_lav_forgets_what_is_cleared_before_its_first_minute(tmp_path: Path) -> None:
    # Detected at 120 and cleared at 150, both in minute 3.
    rows = [*stands(1, range(30, 121, 30), 50), *stands(2, range(30, 121, 30), 50), report(150, 1, 50)]
    passers = [report(151, 10, 50), report(180, 11, 50)]
    assert Answers(tmp_path, [*rows, report(150, 2, 50), *passers], FLAT).alerts(10, 11) == {}


@BOTH
def test_one_car_is_no_accident_nor_are_two_in_different_lanes_or_ways(tmp_path: Path, mode: Mode) -> None:
    long = range(0, 601, 30)
    rows = [
        *stands(1, long, 50),
        *stands(2, long, 50, Lane=3),
        *stands(3, long, 50, Dir=1),
        *stands(4, long, 50, XWay=1),
    ]
    assert Answers(tmp_path, [*rows, report(400, 10, 50)], mode).rows("accident") == []


@BOTH
def test_a_lane_change_is_a_move(tmp_path: Path, mode: Mode) -> None:
    rows = [row | {"Lane": 1 + row["Time"] // 30 % 2} for row in CRASH]
    assert Answers(tmp_path, [*rows, report(130, 10, 50)], mode).rows("accident") == []


@pytest.mark.parametrize(("mode", "alerts"), [(PAPER, {10: 50, 11: 50}), (FLAT, {})])
def test_two_accidents_at_one_place(tmp_path: Path, mode: Mode, alerts: dict[int, int]) -> None:
    # The second is detected at 1100, in minute 19. At 600 nobody stands there; only paper, afterwards, says so.
    again = [row | {"Time": row["Time"] + 1000, "VID": row["VID"] + 2} for row in CRASH]
    passers = [report(600, 10, 50), report(1150, 11, 50)]
    assert Answers(tmp_path, [*CRASH, *again, *passers], mode).alerts(10, 11) == alerts


@BOTH
def test_two_accidents_in_one_segment_at_once(tmp_path: Path, mode: Mode) -> None:
    second = [row | {"VID": row["VID"] + 2, "Pos": row["Pos"] + 50} for row in CRASH]
    assert Answers(tmp_path, [*CRASH, *second, report(130, 10, 47)], mode).alerts(10) == {10: 50}


@BOTH
def test_eastbound_cars_hear_of_the_nearest_accident_ahead(tmp_path: Path, mode: Mode) -> None:
    ahead = [*stands(3, range(0, 301, 30), 52), *stands(4, range(0, 301, 30), 52)]
    passers = [report(130, seg, seg) for seg in range(44, 55)]
    alerts = Answers(tmp_path, [*CRASH, *ahead, *passers], mode).alerts(*range(44, 55))
    assert alerts == {46: 50, 47: 50, 48: 50, 49: 50, 50: 50, 51: 52, 52: 52}


@BOTH
def test_westbound_cars_come_from_the_other_side(tmp_path: Path, mode: Mode) -> None:
    rows = [row | {"Dir": 1} for row in CRASH]
    passers = [report(130, seg, seg, Dir=1) for seg in range(47, 57)]
    alerts = Answers(tmp_path, [*rows, *passers, report(130, 99, 50, Dir=0)], mode).alerts(*range(47, 57), 99)
    assert alerts == {50: 50, 51: 50, 52: 50, 53: 50, 54: 50}


@BOTH
def test_accidents_at_the_ends_of_the_road(tmp_path: Path, mode: Mode) -> None:
    east = [*stands(1, range(0, 301, 30), 99), *stands(2, range(0, 301, 30), 99)]
    west = [*stands(3, range(0, 301, 30), 0, Dir=1), *stands(4, range(0, 301, 30), 0, Dir=1)]
    passers = [report(130, 10, 95), report(130, 11, 94), report(130, 12, 4, Dir=1), report(130, 13, 5, Dir=1)]
    assert Answers(tmp_path, [*east, *west, *passers], mode).alerts(10, 11, 12, 13) == {10: 99, 12: 0}


@BOTH
def test_an_accident_makes_the_road_free(tmp_path: Path, mode: Mode) -> None:
    rows = [*CRASH, *crowd(49, 60), report(125, 10, 49), report(119, 11, 49), report(125, 12, 49, Lane=4)]
    answers = Answers(tmp_path, rows, mode)
    assert (answers.tolls(10), answers.tolls(11)) == ([(125, 20, 0)], [(119, 20, 200)])
    assert answers.alerts(10, 11, 12) == {10: 50}


# --- Balances: segments 10, 11 and 12 cost 2, 8 and 18

DEAR = [*crowd(10, 51), *crowd(11, 52), *crowd(12, 53)]
DRIVE = [report(60, 7, 10, Lane=0), report(90, 7, 11), report(120, 7, 12), report(150, 7, 13, Lane=4)]
BACK = report(300, 7, 20, Lane=0)


def asked(*times: int) -> list[Row]:
    return [ask(Kind.BALANCE, time, 7, time) for time in times]


def test_paper_balances_are_those_of_a_notification(tmp_path: Path) -> None:
    answers = Answers(tmp_path, [*DEAR, *DRIVE, BACK, *asked(60, 90, 120, 150, 300, 330, 360)], PAPER)
    assert answers.tolls(7) == [(60, 20, 2), (90, 20, 8), (120, 20, 18), (300, -1, 0)]
    assert answers.balances(60) == [(60, 0)]
    assert answers.balances(90) == [(90, 2), (60, 0)]
    assert answers.balances(120) == [(120, 10), (90, 2)]
    assert answers.balances(150) == [(120, 10)]  # the exit lane does not notify, so segment 12 is not charged ...
    assert answers.balances(300) == [(300, 28), (120, 10)]  # ... until the car comes back; 120 is the one before
    assert answers.balances(330) == [(300, 28)]
    assert answers.balances(360) == [(300, 28)]


def test_flat_lav_balances_are_current_or_without_the_last_charge(tmp_path: Path) -> None:
    answers = Answers(tmp_path, [*DEAR, *DRIVE, BACK, *asked(60, 90, 120, 150, 300)], FLAT)
    assert answers.balances(60) == [(60, 0), (0, 0)]
    assert answers.balances(90) == [(90, 2), (0, 0)]
    assert answers.balances(120) == [(120, 10), (90, 2)]
    assert answers.balances(150) == [(150, 28), (120, 10)]  # crossing into the exit lane of another segment charges
    assert answers.balances(300) == [(300, 28), (270, 10)]


@pytest.mark.parametrize(("mode", "before", "after"), [(PAPER, (60, 0), (200, 2)), (FLAT, (90, 0), (200, 0))])
def test_leaving_by_the_ramp_of_a_segment(
    tmp_path: Path, mode: Mode, before: tuple[int, int], after: tuple[int, int]
) -> None:
    # flat-lav forgets the toll with the trip; paper charges it at the next notification, though the rules do not.
    rows = [report(60, 7, 10), report(90, 7, 10, Lane=4), report(200, 7, 20, Lane=0)]
    answers = Answers(tmp_path, [*DEAR, *rows, *asked(90, 200)], mode)
    assert (answers.balances(90)[0], answers.balances(200)[0]) == (before, after)


@pytest.mark.parametrize(("mode", "result"), [(PAPER, (300, 10 + 32)), (FLAT, (300, 28 + 32))])
def test_balances_are_of_all_expressways(tmp_path: Path, mode: Mode, result: tuple[int, int]) -> None:
    # On expressway 1, segment 40 costs 2 * 4^2. In mode paper the last toll on expressway 0 waits for the car's return.
    there = [*crowd(40, 54, minutes=[4, 5], XWay=1), report(270, 7, 40, XWay=1, Lane=0), report(300, 7, 41, XWay=1)]
    assert Answers(tmp_path, [*DEAR, *DRIVE, *there, *asked(300)], mode).balances(300)[0] == result


@pytest.mark.parametrize(("mode", "result"), [(PAPER, [(-1, 0)]), (FLAT, [(5, 0), (0, 0)])])
def test_balance_of_a_car_that_was_never_seen(tmp_path: Path, mode: Mode, result: list[tuple[int, int]]) -> None:
    assert Answers(tmp_path, [report(0, 1, 5), *asked(5)], mode).balances(5) == result


# --- History


@BOTH
def test_expenditure_is_what_the_history_says_or_no_answer(tmp_path: Path, mode: Mode) -> None:
    history = [
        dict(VID=1, Day=5, XWay=0, Toll=53),
        dict(VID=1, Day=5, XWay=1, Toll=77),
        dict(VID=2, Day=5, XWay=0, Toll=9),
    ]
    rows = [ask(Kind.EXPENDITURE, 10, 1, 100, XWay=0, Day=5), ask(Kind.EXPENDITURE, 11, 1, 101, XWay=1, Day=5)]
    rows += [ask(Kind.EXPENDITURE, 12, 1, 102, XWay=0, Day=6), ask(Kind.EXPENDITURE, 12, 3, 103, XWay=0, Day=5)]
    answers = Answers(tmp_path, rows, mode, history=history).rows("expenditure")
    assert sorted((row["Time"], row["QID"], row["Expenditure"]) for row in answers) == [(10, 100, 53), (11, 101, 77)]


def test_travel_time_walks_the_segments(tmp_path: Path) -> None:
    def usual(seg: int, tod: int, speed: int, toll: int, way: int = 0) -> Row:
        return dict(XWay=0, Dir=way, Seg=seg, DOW=2, TOD=tod, Speed=speed, Toll=toll)

    segments = [usual(10, 1, 50, 5), usual(10, 600, 7, 6), usual(11, 1, 60, 1), usual(11, 700, 1, 99)]
    segments += [usual(12, 1, 30, 3, way=1), usual(11, 1, 40, 4, way=1)]

    def route(qid: int, start: int, end: int, tod: int, **more: int) -> Row:
        return ask(Kind.TRAVEL_TIME, 20, 1, qid, **dict(XWay=0, Dir=0, Sinit=start, Send=end, DOW=2, TOD=tod) | more)

    rows = [
        route(1, 10, 12, 599),  # 3600 // 50 + 3600 // 60
        route(2, 10, 12, 600),  # 3600 // 7 is 514
        route(3, 12, 10, 1439),  # west, whatever Dir says: 3600 // 30 + 3600 // 40
        route(4, 10, 13, 600),  # segment 12 has no history eastwards
        route(5, 10, 12, 600, DOW=3),
        route(6, 10, 12, 600, XWay=1),
        route(7, 10, 10, 600),
    ]
    answers = Answers(tmp_path, rows, PAPER, segments=segments).rows("traveltime")
    assert sorted(tuple(row[name] for name in ("QID", "Time", "TravelTime", "Toll")) for row in answers) == [
        (1, 20, 132, 6),
        (2, 20, 574, 7),
        (3, 20, 210, 7),
        (7, 20, 0, 0),
    ]


def test_nothing_to_look_up(tmp_path: Path) -> None:
    path = _written(tmp_path / "input.parquet", [ask(Kind.EXPENDITURE, 10, 1, 100, XWay=0, Day=5)], INPUT)
    expected = expected_answers(path, None, None, PAPER, tmp_path / "answers")
    assert pq.read_table(expected.path("expenditure")).num_rows == 0


def test_without_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingDependencyError, match=r"anabranch\[linearroad\]"):
        expected_answers(tmp_path / "input.parquet", None, None, PAPER, tmp_path)
