"""The rating without a run: which trial holds, what comes next, what is told."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.check.validate import NEVER, KindReport, Report, validate
from anabranch.linearroad.commands.rate import Course, Trial, next_expressways, rating
from anabranch.linearroad.schema import INPUT, Mode, answer_schema
from anabranch.linearroad.watch import LOST, Watch, read_emitted, write_emitted
from anabranch.observe.progress import OperatorProgress
from anabranch.types import EpochProgress

COURSE = Course(seconds=600, paced=120)


def trial(expressways: int, *, sustained: float = 1e6, wrong: int = 0, late: int = 0, worst: float = 2.0) -> Trial:
    report = Report(Mode.PAPER, {"toll": KindReport(wrong=wrong, late=late, worst_response=worst)})
    return Trial(expressways, 1_000, 500, sustained, {"toll": worst}, report, 1.5, 60, 1.0)


def test_a_trial_holds_only_if_all_is_right_and_in_time() -> None:
    assert trial(64).holds
    assert not trial(64, wrong=1).holds
    assert not trial(64, late=1, worst=5.1).holds
    assert not trial(64, worst=5.01).holds


@pytest.mark.parametrize(
    ("done", "wanted"),
    [
        ([trial(128, sustained=1e6)], 500),  # what the rate promises: 0.85 * 1e6 / 1,700
        ([trial(500, sustained=1e6)], None),  # as promised
        ([trial(512, sustained=5e5, worst=9.0)], 250),  # did not hold: what it promises
        ([trial(128), trial(512, worst=9.0)], 320),  # in between
        ([trial(480), trial(500, worst=9.0)], None),  # too near
        ([trial(4, sustained=100.0, worst=9.0)], None),  # nothing holds
    ],
)
def test_the_next_number_of_expressways(done: list[Trial], wanted: int | None) -> None:
    assert next_expressways(done, COURSE) == wanted


def test_the_rating_is_the_largest_that_held_and_hides_nothing() -> None:
    found = rating([trial(128), trial(256, wrong=3), trial(192)], COURSE, cores=2)
    assert (found["L"], found["differences"]) == (192, 0)
    assert [each["wrong"] for each in found["trials"]] == [0, 3, 0]
    assert json.loads(json.dumps(found)) == found
    assert rating([trial(128, late=1, worst=7.0)], COURSE, cores=2)["L"] == 0
    fast = Course(seconds=600, paced=0)
    assert rating([trial(128)], fast, cores=2)["L"] is None


def epoch(number: int, rows: int, started: float, seconds: float, reached: int) -> EpochProgress:
    operator = OperatorProgress("process-1", rows=rows, watermark=reached * 1_000_000)
    return EpochProgress("q", "r", number, started, seconds, rows=rows, operators=(operator,))


def test_responses_are_counted_from_the_end_of_the_warm_up() -> None:
    # warm-up: epochs 0 and 1, until 110 s on the wall; then second 480 is due at once, 481 a second later ...
    watch = Watch(warm=100, tuples=140, begin=480)
    for progress in (epoch(0, 60, 100.0, 5.0, 300), epoch(1, 40, 105.0, 5.0, 479)):
        watch.on_progress(progress)
    assert not watch.hopeless()
    watch.on_progress(epoch(2, 10, 110.5, 1.5, 480))
    watch.on_progress(epoch(3, 0, 112.5, 0.1, 480))  # nothing was due
    watch.on_progress(epoch(4, 30, 113.0, 2.0, 483))
    assert watch.published == {2: 482.0, 4: 485.0}
    assert watch.done() and watch.hopeless()


def test_the_moments_of_a_run_stay_beside_its_answers(tmp_path: Path) -> None:
    assert read_emitted(tmp_path) is None
    write_emitted(tmp_path, {4: 485.0, 2: 482.1234})
    assert read_emitted(tmp_path) == {2: 482.123, 4: 485.0}


def test_a_trial_that_falls_behind_is_given_up() -> None:
    watch = Watch(warm=10, tuples=1_000, begin=480)
    watch.on_progress(epoch(0, 10, 100.0, 1.0, 479))
    watch.on_progress(epoch(1, 10, 101.0, LOST + 5, 480))
    watch.on_progress(epoch(2, 10, 140.0, 0.1, 520))  # a fast epoch afterwards does not change that
    assert watch.hopeless() and not watch.done()


def test_courses_that_are_none() -> None:
    for seconds, paced in ((600, 600), (600, -60), (610, 60)):
        with pytest.raises(InvalidArgumentError):
            Course(seconds=seconds, paced=paced)


def test_published_moments_decide_what_is_late(tmp_path: Path) -> None:
    """Of three epochs the first was before real time, the second left in time, and the third is not known."""
    row = {name: -1 for name in INPUT.names} | {
        "Type": 0,
        "Spd": 30,
        "XWay": 0,
        "Lane": 0,
        "Dir": 0,
        "Seg": 5,
        "Pos": 26_401,
    }
    times = (10, 100, 200)
    pq.write_table(pa.Table.from_pylist([{**row, "Time": t, "VID": t} for t in times], INPUT), tmp_path / "in.parquet")
    (tmp_path / "out" / "toll").mkdir(parents=True)
    for number, time in enumerate(times):
        lav = -1 if time == 10 else 30
        answer = {"VID": time, "Time": time, "LAV": lav, "Toll": 0}
        table = pa.Table.from_pylist([answer], answer_schema("toll"))
        pq.write_table(table, tmp_path / "out" / "toll" / f"epoch-{number:06d}-part.parquet")

    def judged(published: dict[int, float] | None) -> KindReport:
        report = validate(tmp_path / "in.parquet", None, None, tmp_path / "out", Mode.PAPER, published=published)
        assert report.timed == bool(published)
        return report.by_kind["toll"]

    assert judged({1: 104.5, 2: 202.0}).late == 0
    assert judged({1: 104.5, 2: 202.0}).worst_response == 4.5
    assert judged({1: 106.0, 2: 202.0}).late == 1
    lost = judged({1: 104.5})
    assert lost.late == 1 and lost.worst_response == NEVER - 200
    for nothing in (None, {}):
        assert judged(nothing).late is judged(nothing).worst_response is None
        assert judged(nothing).differences == 0
