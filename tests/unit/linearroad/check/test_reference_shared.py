"""The reference against the answers of the two public validators: 40 minutes of an expressway, every row of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.linearroad.check.reference import Expected, connect, expected_answers, quoted
from anabranch.linearroad.schema import Mode

pytest.importorskip("duckdb")
pytestmark = pytest.mark.shared


@pytest.fixture(scope="module")
def road(shared_data: Path) -> Path:
    folder = shared_data / "linear-road"
    if not folder.is_dir():
        pytest.skip("no sample of Linear Road")
    return folder


@pytest.fixture(scope="module")
def references(road: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Mode, Expected]:
    folder = tmp_path_factory.mktemp("reference")
    inputs = (road / "input.parquet", road / "history.parquet", None)
    return {mode: expected_answers(*inputs, mode, folder / mode.value, threads=1) for mode in Mode}


def compared(a: str, b: str) -> tuple[int, int, int]:
    """Rows in both, in the first only, in the second only; a row that is there twice counts twice."""
    with connect(threads=1) as connection:
        both, first, second = (
            connection.execute(f"SELECT count(*) FROM (({x}) {operation} ALL ({y}))").fetchall()[0][0]
            for operation, x, y in [("INTERSECT", a, b), ("EXCEPT", a, b), ("EXCEPT", b, a)]
        )
    return both, first, second


FLAT = {
    "toll": ("VID, Time, LAV, Toll", 944_411),
    "accident": ("Time, XWay, Seg, Dir, VID", 14_490),
    "balance": ("Time, ResultTime, QID, Balance, Alternative", 25_832),
    "expenditure": ("Time, QID, Expenditure", 2_537),
}


@pytest.mark.parametrize("kind", list(FLAT))
def test_flat_lav(road: Path, references: dict[Mode, Expected], kind: str) -> None:
    columns, rows = FLAT[kind]
    ours, theirs = references[Mode.FLAT_LAV].path(kind), road / "expected-flat-lav" / f"{kind}.parquet"
    assert compared(f"SELECT {columns} FROM {quoted(ours)}", f"SELECT {columns} FROM {quoted(theirs)}") == (rows, 0, 0)


PAPER = {
    "toll": ("VID, Time, LAV, Toll", "SELECT VID, Time, LAV, Toll FROM {}", "toll_and_accident", 944_371),
    "accident": (
        "VID, Time, Dir, Seg",
        "SELECT VID, Time, Dir, AccidentSeg FROM {} WHERE AccidentSeg >= 0",
        "toll_and_accident",
        14_914,
    ),
    "balance": (
        "QID, Time, ResultTime, Balance",
        "SELECT QID, Time, ResultTime, Balance FROM {}",
        "balance",
        16_857,
    ),
}


@pytest.mark.parametrize("kind", list(PAPER))
def test_paper(road: Path, references: dict[Mode, Expected], kind: str) -> None:
    columns, theirs, name, rows = PAPER[kind]
    file = quoted(road / "expected-paper" / f"{name}.parquet")
    ours = f"SELECT {columns} FROM {quoted(references[Mode.PAPER].path(kind))}"
    assert compared(ours, theirs.format(file)) == (rows, 0, 0)


def test_how_much_the_modes_differ(references: dict[Mode, Expected]) -> None:
    """The traps, in rows: what a system pays that takes one mode's rules for the other's."""
    paper, flat = (references[mode] for mode in (Mode.PAPER, Mode.FLAT_LAV))

    def rows(kind: str, columns: str) -> tuple[int, int, int]:
        return compared(*(f"SELECT {columns} FROM {quoted(each.path(kind))}" for each in (paper, flat)))

    assert rows("toll", "VID, Time") == (944_371, 0, 40)  # cars back in a segment
    assert rows("accident", "VID, Time, Seg") == (14_489, 425, 1)  # a minute more at the end of an accident
    assert rows("expenditure", "QID, Expenditure") == (2_537, 0, 0)
    assert rows("traveltime", "QID") == (0, 0, 0)
    with connect(threads=1) as connection:
        lavs, tolls = connection.execute(
            f"""
            SELECT count(*) FILTER (WHERE p.LAV <> f.LAV), count(*) FILTER (WHERE p.Toll <> f.Toll)
            FROM {quoted(paper.path("toll"))} AS p JOIN {quoted(flat.path("toll"))} AS f USING (VID, Time)
            """
        ).fetchall()[0]
    assert (lavs / 944_371, tolls / 944_371) == pytest.approx((0.31, 0.03), abs=0.01)
