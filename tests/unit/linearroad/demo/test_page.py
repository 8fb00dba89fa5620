"""The demo of Linear Road without Spark: what answers tell, response times, colours, charts and strips."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from anabranch.linearroad.demo.charts import Axis, Box, Line, heat_map, line_chart, steps, ticks
from anabranch.linearroad.demo.colours import HALVES
from anabranch.linearroad.demo.drive import Driven, DueClock, asked_of, weighted_median
from anabranch.linearroad.demo.result import rates
from anabranch.linearroad.demo.road_map import Accident, Epoch, RoadMap, found, spans
from anabranch.linearroad.demo.shades import TOP_TOLL, speed_bytes, toll_bytes, toll_marks, toll_share
from anabranch.linearroad.demo.tables import count, large
from anabranch.linearroad.demo.view import Roads, RoadView, binned, clock, plain_line
from anabranch.linearroad.generate import Trace, Traffic, write_trace
from anabranch.linearroad.schema import ANSWERS, Kind, answer_schema

NONE = dict.fromkeys(ANSWERS, 0)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return write_trace(tmp_path_factory.mktemp("page") / "trace", Traffic(1, 120, peak_rate=20))


def publish(output: Path, kind: str, epoch: int, rows: list[dict[str, int]]) -> None:
    folder = output / kind
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, answer_schema(kind)), folder / f"epoch-{epoch:06d}-part.parquet")


def epoch(number: int, first: int, last: int, started: float, seconds: float, tuples: int = 10) -> Epoch:
    return Epoch(number, first, last, tuples, NONE, started, seconds)


# What answers tell


def test_a_notification_is_put_where_its_report_was(trace: Trace, tmp_path: Path) -> None:
    tuples = pa.Table.from_batches(trace.batches())
    report = tuples.filter(pc.equal(tuples["Type"], int(Kind.POSITION))).slice(5, 1).to_pylist()[0]
    toll = {"VID": report["VID"], "Time": report["Time"], "LAV": 42, "Toll": 98}
    publish(tmp_path, "toll", 0, [toll])
    road_map = RoadMap(trace)
    done = road_map.read(0, trace.tuples, 100.0, 1.5, tmp_path)
    place = report["XWay"], report["Dir"], report["Seg"], report["Time"] // 60
    assert (road_map.speed[place], road_map.toll[place]) == (42, 98)
    assert np.isfinite(road_map.speed).sum() == np.isfinite(road_map.toll).sum() == 1
    assert (done.tuples, done.answers["toll"], done.published) == (trace.tuples, 1, 101.5)
    assert road_map.count("toll") == road_map.answers["toll"][report["Time"]] == 1
    assert road_map.reached == done.last == tuples["Time"][-1].as_py()


def test_a_toll_is_charged_at_the_next_notification(trace: Trace, tmp_path: Path) -> None:
    tuples = pa.Table.from_batches(trace.batches())
    reports = tuples.filter(pc.equal(tuples["Type"], int(Kind.POSITION)))
    vid = next(v for v, n in zip(*np.unique(reports["VID"], return_counts=True), strict=True) if n >= 3)
    times = sorted(reports.filter(pc.equal(reports["VID"], vid))["Time"].to_pylist())[:3]
    rows = [
        {"VID": int(vid), "Time": time, "LAV": -1, "Toll": toll} for time, toll in zip(times, (10, 20, 40), strict=True)
    ]
    publish(tmp_path, "toll", 0, rows)
    road_map = RoadMap(trace)
    road_map.read(0, trace.tuples, 0.0, 1.0, tmp_path)
    assert (road_map.asked, road_map.charged) == (70, 30)
    assert np.isnan(road_map.speed).all()  # LAV -1: no speed is known


def test_balances_know_their_car_and_the_last_counts(trace: Trace, tmp_path: Path) -> None:
    tuples = pa.Table.from_batches(trace.batches())
    asked = tuples.filter(pc.equal(tuples["Type"], int(Kind.BALANCE))).to_pylist()
    assert asked, "nobody asks for a balance in this trace"
    rows = [
        {"Time": each["Time"], "QID": each["QID"], "ResultTime": each["Time"], "Balance": 7 + i}
        for i, each in enumerate(asked)
    ]
    publish(tmp_path, "balance", 0, rows)
    road_map = RoadMap(trace)
    road_map.read(0, trace.tuples, 0.0, 1.0, tmp_path)
    assert [each.vid for each in road_map.balances] == [each["VID"] for each in asked]
    assert road_map.highest_balances(1)[0].amount == 7 + len(asked) - 1


def test_alerts_of_one_accident_are_joined_over_epochs(trace: Trace, tmp_path: Path) -> None:
    def alert(time: int, segment: int = 40) -> dict[str, int]:
        return {"Time": time, "XWay": 0, "Seg": segment, "Dir": 1, "VID": time}

    publish(tmp_path, "accident", 0, [alert(10), alert(30), alert(20, segment=41)])
    publish(tmp_path, "accident", 1, [alert(90)])
    road_map = RoadMap(trace)
    half = trace.tuples // 2
    road_map.read(0, half, 0.0, 1.0, tmp_path)
    road_map.read(1, trace.tuples - half, 1.0, 1.0, tmp_path)
    assert road_map.accidents == [Accident(0, 1, 40, 10, 90, 3), Accident(0, 1, 41, 20, 20, 1)]


def test_spans() -> None:
    # 10 20 30 . . . . . . . 300 310
    # [------]               [-----]
    assert spans(np.array([310, 10, 30, 20, 300])) == [(10, 30, 3), (300, 310, 2)]
    assert spans(np.array([], np.int64)) == []


def test_found() -> None:
    keys = np.array([50, 10, 30])
    assert keys[found(keys, np.array([30, 50, 30]))].tolist() == [30, 50, 30]


# Response times


def test_the_clock_begins_no_later_than_any_epoch_allows() -> None:
    """Began at 1000 at a pace of 10. Epochs were asked for a little after a second was due; the tightest bound wins."""
    clock = DueClock(10.0)
    for asked, following in ((1000.4, 7), (1002.05, 21), (1004.5, 50)):
        clock.note(asked, following)
    assert 999.9 < clock.began <= 1000.0
    assert clock.due(20) == pytest.approx(clock.began + 2.0)


def test_spark_says_when_it_asked_and_what_it_got() -> None:
    source = {"endOffset": '{"files": "f", "row": 28}'}
    asked, row = asked_of({"timestamp": "1970-01-01T00:01:00.250Z", "sources": [source]})
    assert (asked, row) == (60.25, 28)


def test_response_counts_from_due_to_published(trace: Trace) -> None:
    #  due          0    1    2    3        a second each at pace 1
    #  published              e0       e1
    driven = Driven(
        RoadMap(trace), DueClock(1.0, began=100.0), [epoch(0, 0, 1, 101.5, 0.5), epoch(1, 2, 2, 102.5, 7.5)]
    )
    driven.road_map.answers["toll"][:3] = [3, 1, 1]
    driven.road_map.answers["expenditure"][2] = 1
    assert driven.responses(driven.epochs[0]).tolist() == [2.0, 1.0]
    everything = driven.response(driven.epochs)
    assert everything is not None
    assert (everything.median, everything.worst) == (2.0, 8.0)
    assert everything.late == 1  # 8 s is too long for a toll, not for an expenditure
    assert driven.response(driven.epochs, ["balance"]) is None


def test_without_a_pace_it_is_the_time_of_the_epoch(trace: Trace) -> None:
    driven = Driven(RoadMap(trace), None, [epoch(0, 0, 1, 5.0, 0.5)])
    assert driven.responses(driven.epochs[0]).tolist() == [0.5, 0.5]


def test_weighted_median() -> None:
    assert weighted_median(np.array([3.0, 1.0, 2.0]), np.array([1, 1, 1])) == 2.0
    assert weighted_median(np.array([3.0, 1.0]), np.array([5, 1])) == 3.0


def test_rates_count_the_time_since_the_epoch_before() -> None:
    epochs = [epoch(0, 0, 1, 10.0, 2.0, tuples=100), epoch(1, 2, 3, 15.0, 1.0, tuples=100)]
    assert rates(epochs) == [50.0, 25.0]


# Colours and charts


def test_free_is_dark_slow_glows_and_unknown_is_grey() -> None:
    assert speed_bytes(np.array([0.0, 10.0, 55.0, 80.0, np.nan])).tolist() == [0, 0, 240, 240, HALVES + 1]
    none, little, much, unknown = toll_bytes(np.array([0.0, 2.0, TOP_TOLL, np.nan])).tolist()
    assert (none, much, unknown) == (240, 0, HALVES + 1)
    assert little < none  # the least toll is not taken for none
    assert [share for share, _ in toll_marks()] == sorted(toll_share(np.array([0.0, 1e3, 1e4, 1e5, 1e6])).tolist())


@pytest.mark.parametrize(
    ("highest", "wanted"),
    [(24, [0, 5, 10, 15, 20]), (3, [0, 0.5, 1, 1.5, 2, 2.5, 3]), (1, [0, 0.2, 0.4, 0.6, 0.8, 1.0])],
)
def test_ticks_are_round_numbers(highest: float, wanted: list[float]) -> None:
    assert ticks(highest, 6) == wanted


def test_an_axis_holds_its_values() -> None:
    linear = Axis.over(7.0, log=False)
    assert linear.share(0) == 0 and 0.8 < linear.share(7.0) <= 1
    log = Axis.over(40_000, log=True)
    assert log.ticks == (1, 10, 100, 1_000, 10_000, 100_000)
    assert log.share(1) == log.share(0) == 0 and log.share(1_000) == pytest.approx(0.6)


def test_a_line_holds_its_value_and_is_interrupted_at_zero_of_a_logarithmic_axis() -> None:
    box = Box(0, 0, 100, 100)
    assert steps([1, 2], [0, 10], box, Axis(0, 10, (), False)) == ["0.0,100.0 50.0,100.0 50.0,0.0 100.0,0.0"]
    assert steps([1, 2, 4], [10, 0, 100], box, Axis(1, 100, (), True)) == ["0.0,50.0 25.0,50.0", "50.0,0.0 100.0,0.0"]


def test_a_chart_draws_the_limit_only_where_it_is_near() -> None:
    near = line_chart("Response", "s", [1.0], [Line("median", "#000000", [2.0])], limit=5)
    far = line_chart("Response", "s", [1.0], [Line("median", "#000000", [0.1])], limit=5)
    assert "limit 5 s" in near and "limit 5 s" not in far
    assert "<svg" in line_chart("Nothing", "s", [], [Line("none", "#000000", [])])


def test_a_heat_map_marks_accidents_at_their_segment_and_time() -> None:
    cells = np.zeros((100, 10), np.uint8)
    drawn = "".join(heat_map(cells, Box(0, 0, 1000, 100), 10, [Accident(0, 0, 24, 60, 300, 9)]))
    assert '<line class="wreck" x1="100.0" x2="500.0" y1="75.5" y2="75.5"/>' in drawn
    assert drawn.count("data:image/png;base64,") == 1


def test_words_for_numbers() -> None:
    assert (count(1, "core"), count(2_000, "core")) == ("1 core", "2,000 cores")
    assert (large(52_509_437_954), large(1_250_000), large(1_250)) == ("52.5 billion", "1.25 million", "1,250")
    assert clock(3_661) == "1:01:01"


# The terminal


def test_fewer_characters_than_segments_show_the_worst() -> None:
    speeds = np.array([10.0, 50.0, np.nan, np.nan, 30.0, 20.0])
    assert binned(speeds, 3, np.nanmin).tolist()[::2] == [10.0, 20.0]
    assert np.isnan(binned(speeds, 3, np.nanmin)[1])
    assert binned(speeds, 6, np.nanmin) is speeds


@pytest.mark.parametrize(("width", "height"), [(140, 40), (80, 24), (40, 10)])
def test_the_view_fits_the_screen(trace: Trace, tmp_path: Path, width: int, height: int) -> None:
    driven = Driven(RoadMap(trace), DueClock(40.0, began=0.0))
    driven.epochs.append(driven.road_map.read(0, trace.tuples, 3.0, 1.0, tmp_path))
    driven.road_map.accidents.append(Accident(0, 0, 50, 60, driven.road_map.reached, 4))
    console = Console(force_terminal=True, width=width, height=height, file=io.StringIO(), record=True)
    with (view := RoadView(console, 40.0)).shown():
        view(driven)
    console.export_text(clear=True)  # Live draws over what it drew before; here it is drawn once
    console.print(view)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    shown = "\n".join(lines)
    assert "expressway 0" in shown and "✖" in shown


def test_many_expressways_are_counted_where_they_do_not_fit(tmp_path: Path) -> None:
    many = write_trace(tmp_path / "many", Traffic(9, 60, peak_rate=2))
    console = Console(width=100, height=24, file=io.StringIO(), record=True)
    console.print(Roads(RoadMap(many)))
    assert "and 6 more expressways" in console.export_text()


def test_a_file_gets_a_line_per_epoch(trace: Trace, tmp_path: Path) -> None:
    driven = Driven(RoadMap(trace), None)
    driven.epochs.append(driven.road_map.read(0, trace.tuples, 3.0, 1.0, tmp_path))
    assert re.match(r"0:02:00 of 0:02:00 \| epoch 0 \| tuples \d+ \| seconds 1.00 ", plain_line(driven))
    console = Console(file=io.StringIO(), record=True, width=40)
    with (view := RoadView(console, None)).shown():
        view(driven)
    assert console.export_text().count("\n") == 1
