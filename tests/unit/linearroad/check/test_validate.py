"""Validation of a run's output: what is right passes, and whatever is wrong is found, counted and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.check.reference import Expected, expected_answers
from anabranch.linearroad.check.validate import KEYS, KindReport, Report, validate
from anabranch.linearroad.generate.copies import Copies
from anabranch.linearroad.schema import (
    ANSWERS,
    FEET_PER_SEGMENT,
    HISTORY,
    INPUT,
    LIMITS,
    SEGMENT_HISTORY,
    Mode,
    answer_schema,
)

pytest.importorskip("duckdb")

Row = dict[str, Any]
Output = dict[str, list[Row]]
COPIES = Copies(count=6, expressways=2, vid_offset=1_000, qid_offset=100)


def _input() -> list[Row]:
    """Two expressways: slow cars that follow slow cars, an accident ahead of them, and queries of all types."""
    rows = []
    for xway in range(2):
        first = 500 * xway
        for car in range(104):
            ahead, place = divmod(car, 52)
            rows += [
                dict(Time=60 * m + place, VID=first + car, Spd=20, Lane=1, Pos=FEET_PER_SEGMENT * seg + 10 * place)
                | dict(Type=0, XWay=xway, Dir=0, Seg=seg)
                for m, seg in enumerate(range(10 + ahead, 14 + ahead))
            ]
        rows += [
            dict(Time=time, VID=first + car, Spd=0, Lane=2, Pos=FEET_PER_SEGMENT * 13 + 9)
            | dict(Type=0, XWay=xway, Dir=0, Seg=13)
            for time in range(60, 301, 30)
            for car in (200, 201)
        ]
        for n in range(5):
            who = dict(VID=first + n, Time=180 + n, XWay=xway)
            rows.append(dict(Type=2, QID=50 * xway + n) | who)
            rows.append(dict(Type=3, QID=50 * xway + 10 + n, Day=n + 1) | who)
            rows.append(dict(Type=4, QID=50 * xway + 20 + n, Sinit=10 + n, Send=20, DOW=1, TOD=600) | who)
    return rows


@dataclass(frozen=True)
class Base:
    """A base trace on disk, its right answers, and what a faultless run would write."""

    folder: Path
    expected: Expected

    @property
    def inputs(self) -> tuple[Path, Path, Path]:
        return self.folder / "input.parquet", self.folder / "history.parquet", self.folder / "segments.parquet"

    def answers(self) -> Output:
        """The preferred right answers."""
        output = {}
        for kind in ANSWERS:
            rows = pq.read_table(self.expected.path(kind)).to_pylist()
            right = [row for row in rows if not row.get("Alternative")]
            output[kind] = [{name: row[name] for name in answer_schema(kind).names} for row in right]
        return output

    def copies(self) -> Output:
        """The same of all copies."""
        return {
            kind: [
                {name: value + copy * COPIES.steps.get(name, 0) for name, value in row.items()}
                for copy in range(COPIES.count)
                for row in rows
            ]
            for kind, rows in self.answers().items()
        }

    def validated(
        self, output: Output, folder: Path, copies: Copies | None = None, after: float | None = None
    ) -> Report:
        """`after`: a run in real time, an epoch per second, published so many seconds after it."""
        published = {} if after is None else {t: t + after for t in range(1_000)}
        for kind, rows in output.items():
            (folder / kind).mkdir(parents=True)
            for epoch in {row["Time"] for row in rows} if published else {3}:
                mine = [row for row in rows if not published or row["Time"] == epoch]
                path = folder / kind / f"epoch-{epoch:06d}-part-0.parquet"
                pq.write_table(pa.Table.from_pylist(mine, schema=answer_schema(kind)), path)
        known = {"expected": self.expected, "threads": 1, "published": published or None}
        return validate(*self.inputs, folder, self.expected.mode, copies, **known)


def _write(path: Path, rows: list[Row], schema: pa.Schema) -> None:
    unused = dict.fromkeys(schema.names, -1)
    pq.write_table(pa.Table.from_pylist([unused | row for row in rows], schema=schema), path)


@pytest.fixture(scope="module", params=list(Mode))
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("base")
    history = [dict(VID=500 * x + n, Day=n + 1, XWay=x, Toll=7 * n) for x in range(2) for n in range(5)]
    usual = [dict(XWay=x, Dir=0, Seg=s, DOW=1, TOD=1, Speed=30 + s, Toll=s) for x in range(2) for s in range(10, 20)]
    _write(folder / "input.parquet", _input(), INPUT)
    _write(folder / "history.parquet", history, HISTORY)
    _write(folder / "segments.parquet", usual, SEGMENT_HISTORY)
    inputs = (folder / "input.parquet", folder / "history.parquet", folder / "segments.parquet")
    return Base(folder, expected_answers(*inputs, request.param, folder / "expected", threads=1))


def test_right_answers_pass(base: Base, tmp_path: Path) -> None:
    output = base.answers()
    assert all(len(rows) >= 10 for rows in output.values())  # or the tests below would test nothing
    assert any(row["Toll"] > 0 for row in output["toll"]) and any(row["Balance"] > 0 for row in output["balance"])
    report = base.validated(output, tmp_path)
    assert report.differences == 0
    for kind, rows in output.items():
        n = len(rows)
        assert report.by_kind[kind] == KindReport(expected=n, given=n, equal=n)
    assert not report.timed
    assert (report.table().title or "").endswith("all answers are right; response times were not measured")


def test_right_answers_in_time_pass(base: Base, tmp_path: Path) -> None:
    output = base.answers()
    report = base.validated(output, tmp_path, after=1)
    for kind, rows in output.items():
        n = len(rows)
        assert report.by_kind[kind] == KindReport(expected=n, given=n, equal=n, late=0, early=0, worst_response=1)
    assert report.timed and (report.table().title or "").endswith("all answers are right and in time")


def test_without_expected_answers_at_hand_they_are_computed(base: Base, tmp_path: Path) -> None:
    base.validated(base.answers(), tmp_path)
    assert validate(*base.inputs, tmp_path, base.expected.mode, threads=1).differences == 0


def _lose(rows: list[Row]) -> None:
    del rows[2:5]


def _invent(rows: list[Row]) -> None:
    number = "QID" if "QID" in rows[0] else "VID"
    rows += [row | {number: row[number] + 300 if number == "VID" else row[number] + 30} for row in rows[:3]]


def _repeat(rows: list[Row]) -> None:
    rows += [*rows[:2], rows[0]]


def _spoil(rows: list[Row]) -> None:
    column = next(name for name in ("LAV", "Seg", "Balance", "Expenditure", "TravelTime") if name in rows[0])
    for row in rows[:3]:
        row[column] += 1


CORRUPTIONS = {"missing": _lose, "unexpected": _invent, "duplicates": _repeat, "wrong": _spoil}


@pytest.mark.parametrize("difference", list(CORRUPTIONS))
def test_each_corruption_is_found_and_shown(base: Base, tmp_path: Path, difference: str) -> None:
    output = base.answers()
    for rows in output.values():
        CORRUPTIONS[difference](rows)
    report = base.validated(output, tmp_path)
    for kind, found in report.by_kind.items():
        assert (found.differences, getattr(found, difference)) == (3, 3), kind
        lost = 3 if difference in ("missing", "wrong") else 0
        assert (found.equal, found.given) == (found.expected - lost, len(output[kind]))
        assert {example.difference for example in found.examples} == {difference}
        assert all(example.reason for example in found.examples)


def test_an_answer_is_late_one_second_after_the_limit(base: Base, tmp_path: Path) -> None:
    for after in (5, 6, 10, 11, 30, 31):
        report = base.validated(base.answers(), tmp_path / str(after), after=after)
        for kind, found in report.by_kind.items():
            late = found.given if after > LIMITS[kind] else 0
            assert (found.late, found.differences, found.worst_response) == (late, late, after)
            assert all(example.difference == "late" and example.answer["Emit"] for example in found.examples)


def test_an_answer_before_its_question_is_early(base: Base, tmp_path: Path) -> None:
    report = base.validated(base.answers(), tmp_path, after=-1)
    for found in report.by_kind.values():
        assert (found.early, found.differences) == (found.given, found.given)
        assert {example.reason for example in found.examples} == {"emitted before its question"}


def test_a_duplicate_may_be_the_right_one(base: Base, tmp_path: Path) -> None:
    output = base.answers()
    output["toll"].insert(0, output["toll"][0] | {"Toll": 1})
    found = base.validated(output, tmp_path).by_kind["toll"]
    assert (found.duplicates, found.wrong, found.differences) == (1, 0, 1)


def test_nothing_answered(base: Base, tmp_path: Path) -> None:
    report = validate(*base.inputs, tmp_path, base.expected.mode, expected=base.expected)
    assert report.differences == sum(len(rows) for rows in base.answers().values())
    assert all(kind.missing == kind.expected and len(kind.examples) == 5 for kind in report.by_kind.values())


def test_what_spark_hides_is_not_read(base: Base, tmp_path: Path) -> None:
    output = base.answers()
    base.validated(output, tmp_path)
    (tmp_path / "toll" / "_temporary").mkdir()
    pq.write_table(pa.table({"rubbish": [1]}), tmp_path / "toll" / "_temporary" / "part-1.parquet")
    assert validate(*base.inputs, tmp_path, base.expected.mode, expected=base.expected).differences == 0


def test_alternative_balances_are_right_only_at_their_time(base: Base, tmp_path: Path) -> None:
    rows = pq.read_table(base.expected.path("balance")).to_pylist()
    output = base.answers()
    other = next(row for row in rows if row["Alternative"] and row["Balance"] > 0)
    given = next(row for row in output["balance"] if row["QID"] == other["QID"])
    given |= {"ResultTime": other["ResultTime"], "Balance": other["Balance"]}
    assert base.validated(output, tmp_path / "a").differences == 0
    given["ResultTime"] = other["Earliest"] - 1
    assert base.validated(output, tmp_path / "b").by_kind["balance"].wrong == 1


def test_a_balance_says_what_would_be_right(base: Base, tmp_path: Path) -> None:
    output = base.answers()
    right = output["balance"][0]["Balance"]
    output["balance"][0]["Balance"] = -5
    (example,) = base.validated(output, tmp_path).by_kind["balance"].examples
    assert example.answer["Balance"] == -5 and f"Balance {right}" in example.reason


# --- Copies


def test_copies_are_compared_with_their_base(base: Base, tmp_path: Path) -> None:
    output = base.copies()
    report = base.validated(output, tmp_path, COPIES)
    assert report.differences == 0
    assert {kind: found.equal for kind, found in report.by_kind.items()} == {k: len(r) for k, r in output.items()}


@pytest.mark.parametrize("difference", list(CORRUPTIONS))
def test_a_corrupt_copy_is_found(base: Base, tmp_path: Path, difference: str) -> None:
    output = base.copies()
    for rows in output.values():
        size = len(rows) // COPIES.count
        fourth = rows[4 * size : 5 * size]
        CORRUPTIONS[difference](fourth)
        rows[4 * size : 5 * size] = fourth
    report = base.validated(output, tmp_path, COPIES)
    for kind, found in report.by_kind.items():
        assert (found.differences, getattr(found, difference), found.copies_estimated) == (3, 3, 0), kind
        number = KEYS[kind][0]
        own = {(example.answer[number] or 0) // COPIES.steps[number] for example in found.examples}
        assert own == {4}


def test_of_many_corrupt_copies_some_are_estimated_and_never_too_low(base: Base, tmp_path: Path) -> None:
    output = base.copies()
    size = len(output["toll"]) // COPIES.count
    for copy in range(1, 6):
        output["toll"][copy * size]["Toll"] += 1
    found = base.validated(output, tmp_path, COPIES).by_kind["toll"]
    assert (found.wrong, found.copies_estimated, found.equal) == (3, 2, 4 * size - 3)
    assert found.missing == found.unexpected == 2 * size


def test_a_copy_that_was_not_driven(base: Base, tmp_path: Path) -> None:
    report = base.validated(base.copies(), tmp_path, replace(COPIES, count=5))
    for kind, found in report.by_kind.items():
        assert found.unexpected == found.differences == found.expected // 5, kind
        assert all("copy 5" in example.reason for example in found.examples)


# --- The report


def test_a_report_can_be_read(base: Base, tmp_path: Path) -> None:
    output = base.answers()
    _spoil(output["toll"])
    report = base.validated(output, tmp_path)
    values = json.loads(json.dumps(report.to_json()))
    assert (values["mode"], values["differences"]) == (base.expected.mode.value, 3)
    assert values["by_kind"]["toll"]["wrong"] == values["by_kind"]["toll"]["differences"] == 3
    console = Console(width=200, record=True)
    console.print(report.table())
    assert "3 differences" in console.export_text()


def test_what_cannot_be_compared(base: Base, tmp_path: Path) -> None:
    other = Mode.PAPER if base.expected.mode is Mode.FLAT_LAV else Mode.FLAT_LAV
    calls: list[Callable[[], object]] = [
        lambda: validate(*base.inputs, tmp_path, other, expected=base.expected),
        lambda: validate(*base.inputs, tmp_path / "nowhere", base.expected.mode, expected=base.expected),
        lambda: Copies(2, 1, 0, 5),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="hint"):
            call()
