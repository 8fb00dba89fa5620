"""Traffic of Linear Road keeps the rules of the road, and traces of it hold what they say."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.errors import InvalidArgumentError
from anabranch.io.blocks import blocks_of, read_block
from anabranch.linearroad.generate import trace as traces
from anabranch.linearroad.generate.copies import SECONDS_PER_BLOCK
from anabranch.linearroad.generate.trace import Trace, combine, write_trace
from anabranch.linearroad.generate.traffic import Traffic
from anabranch.linearroad.schema import (
    EXIT_LANE,
    FEET_PER_SEGMENT,
    HISTORY,
    INPUT,
    REPORT_EVERY,
    SEGMENT_HISTORY,
    SEGMENTS,
    Kind,
)

HOUR = Traffic(expressways=2, seconds=3_600, seed=7, peak_rate=100)
SHORT = Traffic(expressways=2, seconds=400, seed=5, peak_rate=120)
RUSH = Traffic(seconds=600, seed=1)
PLACE = ["XWay", "Lane", "Dir", "Pos"]

STAYS = (9789, 2534986112, 461831, 1517)
"""Rows, sums of Pos and Spd, and the last VID of a small trace. Who changes the rules changes them; a machine must
not."""


def tuples_of(traffic: Traffic) -> pa.Table:
    return pa.Table.from_batches(traffic.chunks(), INPUT)


@pytest.fixture(scope="module")
def hour() -> pd.DataFrame:
    """All tuples."""
    return tuples_of(HOUR).to_pandas()


@pytest.fixture(scope="module")
def trips(hour: pd.DataFrame) -> pd.DataFrame:
    """The position reports by car and time, with the number of the trip and what changed since the report before."""
    reports = hour[hour.Type == Kind.POSITION].sort_values(["VID", "Time"], kind="stable").reset_index(drop=True)
    reports = reports.astype("int64")
    reports["Trip"] = (reports.Lane == 0).cumsum()
    same = reports.Trip == reports.Trip.shift()
    reports["Waited"] = reports.Time.diff().where(same)
    way = 1 - 2 * reports.Dir
    reports["Moved"] = (way * reports.Pos.diff()).where(same)
    return reports


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return write_trace(tmp_path_factory.mktemp("traces") / "base", SHORT)


def rows(files: list[Path]) -> pa.Table:
    return pa.concat_tables(
        [
            pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            for path in files
        ]
    )


def test_the_same_seed_gives_the_same_bytes() -> None:
    traffic = Traffic(seconds=120, peak_rate=200, seed=3)
    assert tuples_of(traffic).equals(tuples_of(traffic))
    assert not tuples_of(traffic).equals(tuples_of(Traffic(seconds=120, peak_rate=200, seed=4)))


def test_chunks_are_only_a_way_to_deliver() -> None:
    whole = pa.Table.from_batches(SHORT.chunks(seconds=SHORT.seconds))
    assert whole.equals(pa.Table.from_batches(SHORT.chunks(seconds=7)).combine_chunks())


def test_the_trace_of_a_seed_stays_the_same() -> None:
    first = tuples_of(Traffic(seconds=300, peak_rate=50, seed=1)).to_pandas().astype("int64")
    assert (len(first), int(first.Pos.sum()), int(first.Spd.sum()), int(first.VID.max())) == STAYS


def test_tuples_are_ordered_by_time_and_reports_come_before_queries(hour: pd.DataFrame) -> None:
    order = hour.Time.to_numpy("int64") * 2 + (hour.Type != Kind.POSITION).to_numpy("int64")
    assert (np.diff(order) >= 0).all()
    assert hour.Time.between(0, HOUR.seconds - 1).all()


def test_columns_are_in_their_ranges(hour: pd.DataFrame) -> None:
    assert hour.Spd.between(0, 100).all()
    assert hour.Pos.between(0, SEGMENTS * FEET_PER_SEGMENT - 1).all()
    assert (hour.Seg == hour.Pos // FEET_PER_SEGMENT).all()
    assert set(hour.XWay) == {0, 1}
    assert set(hour.Dir) == {0, 1}
    assert set(hour.Lane) == {0, 1, 2, 3, EXIT_LANE}
    assert sorted(hour.VID.unique()) == list(range(hour.VID.max() + 1))


def test_a_car_reports_every_30_seconds_while_it_is_on_the_road(trips: pd.DataFrame) -> None:
    assert (trips.Waited.dropna() == REPORT_EVERY).all()
    ends = trips.groupby("Trip").last()
    on_the_road = ends.Lane != EXIT_LANE
    assert (ends.Time[on_the_road] >= HOUR.seconds - REPORT_EVERY).all()


def test_a_trip_stays_on_its_road_and_never_goes_back(trips: pd.DataFrame) -> None:
    assert (trips.Moved.dropna() >= 0).all()
    assert (trips.groupby("Trip")[["VID", "XWay", "Dir"]].nunique() == 1).all(axis=None)


def test_positions_move_by_the_speed(trips: pd.DataFrame) -> None:
    # 44 feet in 30 s are one mile per hour; who has an accident stops on the way.
    moving = trips[trips.Moved.notna() & (trips.Spd > 0)]
    assert (moving.Moved == 44 * moving.Spd).all()


def test_cars_enter_at_the_beginning_of_a_segment(trips: pd.DataFrame) -> None:
    entries = trips[trips.Lane == 0]
    assert entries.Trip.is_unique
    start = np.where(entries.Dir == 0, entries.Pos, entries.Pos + 1)
    assert (start % FEET_PER_SEGMENT == 0).all()


def test_the_exit_lane_is_the_end_of_a_trip(trips: pd.DataFrame) -> None:
    leaving = trips[trips.Lane == EXIT_LANE]
    assert len(leaving) > 1_000
    assert leaving.Time.equals(trips.groupby("Trip").last().query("Lane == @EXIT_LANE").Time.set_axis(leaving.index))


def test_some_cars_come_back_on_any_expressway(trips: pd.DataFrame) -> None:
    # last report --- more than 60 s --- first report, lane 0
    entries = trips[trips.Lane == 0].set_index("Trip")
    last = trips.groupby("Trip").last().shift()
    back = entries.VID == last.VID
    assert 0.04 < back.mean() < 0.15
    assert (entries.Time - last.Time)[back].min() > 60
    assert (last.Lane[back] == EXIT_LANE).all()
    assert set((entries.XWay != last.XWay)[back]) == {True, False}


def test_accidents_happen_and_are_cleared(trips: pd.DataFrame) -> None:
    stopped = trips[trips.Spd == 0].groupby([*PLACE, "VID"]).Time.agg(["size", "min", "max"]).reset_index()
    sizes = stopped.groupby(PLACE).agg(cars=("VID", "nunique"), least=("size", "min"), end=("max", "max"))
    accidents = sizes[sizes.cars == 2]
    assert 4 <= len(accidents) <= 8  # two expressways, an hour, one in about 20 minutes
    whole = accidents[accidents.end < HOUR.seconds - REPORT_EVERY]
    assert len(whole) >= 2
    assert whole.least.between(20, 42).all()
    assert set(accidents.index.get_level_values("Lane")) <= {1, 2, 3}
    # Those who stood go on.
    after = trips.groupby("Trip").last()
    stood = trips[trips.Spd == 0].Trip.unique()
    assert (after.Spd[stood] > 0).sum() >= 2 * len(whole)


def test_reports_stand_still_only_when_stopped(trips: pd.DataFrame) -> None:
    assert (trips[trips.Moved == 0].Spd == 0).all()


def test_queries(hour: pd.DataFrame) -> None:
    queries = hour[hour.Type != Kind.POSITION]
    assert len(queries) / (len(hour) - len(queries)) == pytest.approx(0.01, rel=0.1)
    shares = queries.Type.value_counts(normalize=True)
    assert shares[Kind.BALANCE] == pytest.approx(0.5, abs=0.03)
    assert shares[Kind.EXPENDITURE] == pytest.approx(0.1, abs=0.03)
    assert shares[Kind.TRAVEL_TIME] == pytest.approx(0.4, abs=0.03)
    assert queries.QID.tolist() == list(range(len(queries)))
    same = ["Time", "VID", "Spd", *PLACE, "Seg"]
    assert len(queries.merge(hour[hour.Type == Kind.POSITION], on=same)) == len(queries)


def test_unused_columns_are_minus_one(hour: pd.DataFrame) -> None:
    asked = ["QID", "Sinit", "Send", "DOW", "TOD", "Day"]
    used = {Kind.POSITION: [], Kind.BALANCE: ["QID"], Kind.EXPENDITURE: ["QID", "Day"]}
    used[Kind.TRAVEL_TIME] = ["QID", "Sinit", "Send", "DOW", "TOD"]
    for kind, columns in used.items():
        some = hour[hour.Type == kind]
        assert (some[columns] >= 0).all(axis=None)
        assert (some[[name for name in asked if name not in columns]] == -1).all(axis=None)
    travels = hour[hour.Type == Kind.TRAVEL_TIME]
    assert travels.Sinit.between(0, SEGMENTS - 1).all()
    assert travels.Send.between(0, SEGMENTS - 1).all()
    assert (travels.Sinit != travels.Send).all()
    assert travels.DOW.between(1, 7).all()
    assert travels.TOD.between(1, 1_440).all()
    assert hour.Day[hour.Type == Kind.EXPENDITURE].between(1, 69).all()


def test_the_rate_rises_as_wanted(hour: pd.DataFrame) -> None:
    # Per expressway: 14/1700 of the peak at the start, the peak at the end, 65 % of it on average.
    per_minute = np.bincount(hour.Time // 60) / 60 / HOUR.expressways
    wanted = [HOUR.rate(60 * minute + 30) for minute in range(60)]
    assert per_minute == pytest.approx(wanted, rel=0.03, abs=0.3)
    assert per_minute.mean() == pytest.approx(65.3, rel=0.02)
    assert Traffic().rate(0) == pytest.approx(14)
    assert Traffic().rate(10_800) == pytest.approx(1_700)


def test_congestion_arises_at_the_full_rate() -> None:
    reports = tuples_of(RUSH).to_pandas().query("Type == 0").assign(Minute=lambda t: t.Time // 60)
    by_car = reports.groupby(["Dir", "Seg", "Minute", "VID"]).Spd.mean()
    minutes = by_car.groupby(["Dir", "Seg", "Minute"]).agg(["size", "mean"]).unstack(["Dir", "Seg"])
    lav = minutes["mean"].rolling(5, min_periods=1).mean()
    tolls = (minutes["size"] > 50) & (lav < 40)
    assert tolls.to_numpy().sum() > 20
    assert set(tolls.iloc[-1]) == {True, False}
    assert reports.Time.value_counts().max() * REPORT_EVERY == pytest.approx(50_500, rel=0.02)


@pytest.mark.parametrize(
    "wrong",
    [{"expressways": 0}, {"expressways": 40_000}, {"seconds": 0}, {"seconds": 40_000}, {"seed": -1}, {"peak_rate": 0}],
)
def test_traffic_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="hint"):
        Traffic(**wrong)
    with pytest.raises(InvalidArgumentError, match="hint"):
        next(Traffic().chunks(seconds=0))


def test_a_trace_says_what_it_holds(base: Trace) -> None:
    assert Trace.load(base.folder) == base
    table = rows(base.input_files)
    assert table.schema.equals(INPUT)
    assert table.equals(tuples_of(SHORT).combine_chunks())
    assert (base.tuples, sum(base.per_minute), len(base.per_minute)) == (table.num_rows, table.num_rows, 7)
    assert (base.expressways, base.base, base.copies) == (2, 2, 1)
    assert base.vid_offset > table["VID"].to_numpy().max()
    assert base.qid_offset > table["QID"].to_numpy().max()
    assert json.loads((base.folder / "trace.json").read_text())["expressways"] == 2


def test_parquet_and_blocks_hold_the_same_rows(base: Trace) -> None:
    assert rows(base.block_files).equals(rows(base.input_files))


@pytest.mark.parametrize("rows_per_block", [150, 2_000, 65_536])
def test_copies_are_shifted_copies(base: Trace, tmp_path: Path, rows_per_block: int) -> None:
    copied = combine(base, tmp_path / "copies", 3, rows_per_block=rows_per_block)
    everything = rows(copied.block_files)
    assert everything.equals(rows(copied.input_files))
    assert (np.diff(everything["Time"].to_numpy()) >= 0).all()
    assert (copied.expressways, copied.tuples) == (6, 3 * base.tuples)
    assert copied.per_minute == tuple(3 * count for count in base.per_minute)
    found, original = everything.to_pandas(), rows(base.input_files).to_pandas()
    for copy in range(3):
        mine = found[found.XWay // base.base == copy].reset_index(drop=True)
        mine["XWay"] -= copy * base.base
        mine["VID"] -= copy * base.vid_offset
        mine.loc[mine.QID >= 0, "QID"] -= copy * base.qid_offset
        pd.testing.assert_frame_equal(mine, original)


def test_copies_need_no_simulation_of_their_own(base: Trace, tmp_path: Path) -> None:
    combined = combine(base, tmp_path / "combined", 2, formats=["blocks"])
    written = write_trace(tmp_path / "written", SHORT, copies=2, formats=["blocks"])
    assert rows(combined.block_files).equals(rows(written.block_files))
    for name in ("history.parquet", "segment-history.parquet", "trace.json"):
        assert (combined.folder / name).read_bytes() == (written.folder / name).read_bytes()
    assert sorted(path.name for path in written.folder.iterdir()) == [
        "blocks",
        "history.parquet",
        "segment-history.parquet",
        "trace.json",
    ]


def test_blocks_are_cut_between_seconds(base: Trace) -> None:
    spans = []
    for path in base.block_files:
        for block in blocks_of(path):
            times = read_block(path, block.index)["Time"].to_numpy()
            spans.append((int(times[0]), int(times[-1])))
    assert all(last - first < SECONDS_PER_BLOCK for first, last in spans)
    assert all(a[1] < b[0] for a, b in pairwise(spans))


def test_files_are_cut_between_seconds(base: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "ROWS_PER_FILE", 20_000)
    copied = combine(base, tmp_path / "files", 3, rows_per_block=100)
    assert len(copied.block_files) == len(copied.input_files) > 3
    spans = [rows([path])["Time"].to_numpy()[[0, -1]].tolist() for path in copied.block_files]
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    assert rows(copied.block_files).equals(rows(copied.input_files))


def test_history_answers_most_expenditures(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace", Traffic(expressways=2, seconds=600, peak_rate=800), formats=["parquet"])
    assert not trace.block_files
    assert pq.read_schema(trace.history_file).equals(HISTORY)
    key = ["VID", "Day", "XWay"]
    history = pq.read_table(trace.history_file).to_pandas()
    asked = rows(trace.input_files).to_pandas().query("Type == 3")[key]
    assert not history.duplicated(key).any()
    assert history.Toll.between(0, 99).all()
    answered = len(asked.merge(history, on=key)) / len(asked)
    assert 0.9 < answered < 1
    assert len(history) > len(asked)  # some that nobody asks for
    copied = combine(trace, tmp_path / "copies", 2, formats=["parquet"])
    both = pq.read_table(copied.history_file).to_pandas()
    second = both[both.XWay >= 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(second, history.add([trace.vid_offset, 0, 2, 0]).astype(second.dtypes))


def test_segment_history_is_a_step_function(base: Trace, tmp_path: Path) -> None:
    copied = combine(base, tmp_path / "copies", 2, formats=["blocks"])
    assert pq.read_schema(copied.segment_history_file).equals(SEGMENT_HISTORY)
    usual = pq.read_table(copied.segment_history_file).to_pandas()
    assert set(usual.XWay) == {0, 1, 2, 3}
    days = usual.groupby(["XWay", "Dir", "Seg", "DOW"]).TOD.agg(list)
    assert len(days) == 4 * 2 * SEGMENTS * 7
    assert (days.map(tuple) == tuple(range(1, 1_440, 60))).all()
    assert usual.Speed.between(1, 100).all()
    assert (usual.Toll >= 0).all()
    assert (usual.Toll > 0).any()
    assert not usual.Toll[usual.Speed >= 40].any()
    workdays = usual[usual.DOW < 6]
    rush, night = workdays[workdays.TOD == 421].Speed.mean(), workdays[workdays.TOD == 121].Speed.mean()
    assert rush < night - 10


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(second: int, tuples: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trace(tmp_path / "trace", SHORT, progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_trace(tmp_path / "trace", SHORT, copies=2, progress=interrupt)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidArgumentError, match="no trace"):
        Trace.load(tmp_path / "trace")


def test_progress_is_reported(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    trace = write_trace(tmp_path / "trace", SHORT, formats=["blocks"], progress=lambda *now: reported.append(now))
    assert reported == sorted(set(reported))
    assert reported[-1] == (SHORT.seconds, trace.tuples)


def test_a_road_may_be_empty(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace", Traffic(seconds=1, peak_rate=1))
    assert trace.tuples == 0
    assert combine(trace, tmp_path / "copies", 2).tuples == 0


def test_what_cannot_be_written_is_refused(base: Trace, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="not empty"):
        write_trace(base.folder, SHORT)
    with pytest.raises(InvalidArgumentError, match="formats"):
        write_trace(tmp_path / "trace", SHORT, formats=["csv"])
    with pytest.raises(InvalidArgumentError, match="rows"):
        write_trace(tmp_path / "trace", SHORT, rows_per_block=0)
    with pytest.raises(InvalidArgumentError, match="must be positive"):
        write_trace(tmp_path / "trace", SHORT, copies=0)
    with pytest.raises(InvalidArgumentError, match="XWay"):
        write_trace(tmp_path / "trace", SHORT, copies=20_000)
    with pytest.raises(InvalidArgumentError, match="VID"):
        combine(replace(base, vid_offset=2**30), tmp_path / "trace", 3)
    copied = combine(base, tmp_path / "copies", 2, formats=["blocks"])
    with pytest.raises(InvalidArgumentError, match="already holds copies"):
        combine(copied, tmp_path / "trace", 2)
    assert not (tmp_path / "trace").exists()
