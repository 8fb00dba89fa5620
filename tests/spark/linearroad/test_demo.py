"""The demo of Linear Road: one small run from end to end, and what it leaves behind."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from anabranch.errors import InvalidArgumentError
from anabranch.linearroad import demo
from anabranch.linearroad.check.validate import Report
from anabranch.linearroad.demo import plots
from anabranch.linearroad.generate import Trace
from anabranch.linearroad.schema import ANSWERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("duckdb", reason="the reference needs DuckDB")

MINUTES, PEAK_RATE = 2, 60
CHECK = demo.check


def small(out: Path, pace: float | None) -> tuple[demo.DemoResult, str]:
    """A demo of one expressway, and what it said."""
    console = Console(file=io.StringIO(), width=160)
    result = demo.run(out, 1, MINUTES, pace, console, peak_rate=PEAK_RATE)
    return result, console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_paced_run_is_right_and_leaves_a_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_of: dict[str, int] = {}

    def counting(trace: Trace, output: Path) -> Report:
        for kind in ANSWERS:
            answers_of[kind] = sum(pq.read_metadata(file).num_rows for file in output.glob(f"{kind}/*.parquet"))
        return CHECK(trace, output)

    monkeypatch.setattr(demo, "check", counting)
    result, said = small(tmp_path, 60.0)

    assert result.right
    assert result.road_map.tuples == result.trace.tuples
    assert {kind: result.road_map.count(kind) for kind in ANSWERS} == answers_of
    assert result.answers == sum(answers_of.values()) > 1_000
    assert [each.first for each in result.epochs[1:]] == [each.last + 1 for each in result.epochs[:-1]]
    assert 0 < result.response.median <= result.response.worst < 60
    # No answer came before its tuple was due, and none counts from later than when it was read.
    assert all((result.driven.responses(each) >= each.seconds).all() for each in result.epochs)

    assert f"All {result.answers:,} answers are right" in said
    assert said.count("of 0:02:00 | epoch") == len(result.epochs)

    assert result.page == tmp_path / "linear-road.html"
    page = result.page.read_text(encoding="utf-8")
    assert f"All {result.answers:,} answers are right" in page
    for kind in ANSWERS:
        assert f"<td>{answers_of[kind]:,}</td>" in page
    assert f"<b>{result.trace.tuples:,}</b>" in page
    assert page.count("data:image/png;base64,") == 2 * 2 + 2  # both directions by speed and toll, and two scales
    assert not re.search(r"\b(None|nan|inf)\b", page)
    assert set(re.findall(r"https?://[^\"' )]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "$" not in page
    assert (result.picture is None) == (not plots.available())
    if result.picture is not None:
        assert result.picture.read_bytes().startswith(b"\x89PNG")


def corrupt(change: Callable[[pa.Table], pa.Table]) -> Callable[[Trace, Path], Report]:
    """A check that changes a file of answers first."""

    def check(trace: Trace, output: Path) -> Report:
        file = min(output.glob("toll/*.parquet"))
        table = pq.read_table(file, partitioning=None)
        pq.write_table(change(table), file)
        return CHECK(trace, output)

    return check


@pytest.mark.slow
def test_a_wrong_answer_is_found_and_said(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_toll_more(table: pa.Table) -> pa.Table:
        tolls = pa.array([table["Toll"][0].as_py() + 1, *table["Toll"][1:].to_pylist()], pa.int32())
        return table.set_column(table.schema.get_field_index("Toll"), "Toll", tolls)

    monkeypatch.setattr(demo, "check", corrupt(one_toll_more))
    result, said = small(tmp_path, None)  # and as fast as it goes
    assert not result.right
    assert result.report.differences == 1
    assert f"1 difference in {result.answers:,} answers" in said
    assert "toll wrong" in said
    page = result.page.read_text(encoding="utf-8")
    assert f"1 difference in {result.answers:,} answers" in page
    assert '<strong class="wrong">1</strong>' in page
    assert "time from read to publication" in page
    seconds = [each.seconds for each in result.epochs]
    assert result.response.worst == pytest.approx(max(seconds))
    assert pc.max(pa.array(seconds)).as_py() > 0


@pytest.mark.parametrize(("minutes", "pace"), [(0, 40.0), (1, 0.0), (1, float("nan"))])
def test_a_demo_of_nothing_is_refused(tmp_path: Path, minutes: int, pace: float) -> None:
    with pytest.raises(InvalidArgumentError):
        demo.run(tmp_path, 1, minutes, pace, Console(file=io.StringIO()))
