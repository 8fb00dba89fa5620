"""The demo: reproducible traffic, one small run from end to end, and what it leaves behind."""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from anabranch.errors import InvalidArgumentError
from anabranch.linearroad.demo.colours import HALVES, png, to_bytes
from demos import windows as demo
from demos.windows import plots
from demos.windows.queries import LENGTHS, SLIDE, flat, grid, read, seconds_of, spark_speeds
from demos.windows.race import equal
from demos.windows.terminal import Waterfall
from demos.windows.traffic import FREE_SPEED, SEGMENTS, simulate, write_reports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, MINUTES, EPOCHS = 20_000, 6, 3


# Traffic


def test_same_seed_makes_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_reports(simulate(MINUTES, seed=3), tmp_path / name, rows=5_000, files=4, seed=3)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(files) == 4
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_another_seed_makes_other_traffic() -> None:
    assert not np.array_equal(simulate(MINUTES, seed=3).density, simulate(MINUTES, seed=4).density)


def test_reports_are_as_many_as_asked_and_in_the_order_of_time(tmp_path: Path) -> None:
    reports = write_reports(simulate(MINUTES, seed=3), tmp_path, rows=50_000, files=5, seed=3)
    by_modification = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime)
    tables = [pq.read_table(path) for path in by_modification]
    assert reports.rows == sum(map(len, tables)) == reports.per_segment.sum() == 50_000
    assert reports.null_times == sum(table["time"].null_count for table in tables)
    times = np.concatenate([table["time"].drop_null().cast("int64").to_numpy() for table in tables])
    assert (np.diff(times) >= 0).all()
    assert reports.skew > 3


def test_a_jam_wanders_upstream() -> None:
    """Behind an accident the road is slow; in front of it, it is free; later the jam is further upstream."""
    traffic = simulate(60, seed=7)
    accident = traffic.incidents[0]
    end = int(accident.end_s / 2.5)
    assert traffic.speed[end - 1, accident.segment - 1] < FREE_SPEED / 4 < traffic.speed[end - 1, accident.segment + 5]
    jam = [np.flatnonzero(traffic.speed[step, : accident.segment + 1] < FREE_SPEED / 4) for step in (end, end + 120)]
    assert jam[1].max() < jam[0].max()


# Pictures


def test_png_holds_the_bytes(tmp_path: Path) -> None:
    cells = np.arange(12, dtype=np.uint8).reshape(3, 4)
    data = png(cells)
    assert struct.unpack(">II", data[16:24]) == (4, 3)
    at = data.index(b"IDAT")
    size = struct.unpack(">I", data[at - 4 : at])[0]
    lines = np.frombuffer(zlib.decompress(data[at + 4 : at + 4 + size]), np.uint8).reshape(3, 5)
    assert np.array_equal(lines[:, 1:], cells)


def test_speeds_as_bytes() -> None:
    assert to_bytes(np.array([0.0, 0.5, 60.0, 500.0, np.nan])).tolist() == [0, 1, 120, HALVES, HALVES + 1]


@pytest.mark.parametrize(("width", "height"), [(120, 50), (60, 20)])
def test_waterfall_fits_the_screen(width: int, height: int) -> None:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system="truecolor")
    cells = np.full((SEGMENTS, 720), 80.0)
    cells[:50, 3] = np.nan
    lines = console.render_lines(Waterfall(cells, reached=500))
    assert len(lines) <= height
    assert all(sum(segment.cell_length for segment in line) <= width for line in lines)


# The whole


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[demo.DemoResult, str]:
    """One small run, and what it said."""
    said = io.StringIO()
    out, scratch = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(scratch))
        patch.setattr(demo, "EPOCHS", EPOCHS)
        result = demo.run(rows=ROWS, seconds=0.1, minutes=MINUTES, out=out, console=Console(file=said, width=200))
    assert not list(scratch.iterdir()), "what was temporary is gone"
    return result, said.getvalue()


@pytest.mark.slow
def test_numbers_agree_with_spark(spark: SparkSession, run: tuple[demo.DemoResult, str], tmp_path: Path) -> None:
    """The comparison that the demo makes of itself, made again from the same seed, by other means."""
    result, _ = run
    assert result.agree
    piece = result.race.slice
    assert ROWS * 0.01 <= piece.rows < ROWS
    reports = write_reports(simulate(MINUTES, seed=7), tmp_path / "reports", rows=ROWS, files=4 * EPOCHS, seed=7)
    assert result.race.null_times == reports.null_times == result.stream.null_times
    assert piece.rows == reports.per_segment[list(piece.segments)].sum()
    sample = spark.read.parquet(str(tmp_path / "reports")).where(f"seg = {piece.segments[0]}")
    for length in LENGTHS:
        flat(spark_speeds(sample, length)).write.parquet(str(tmp_path / "windows" / str(seconds_of(length))))
    theirs = read(tmp_path / "windows")
    assert len(theirs) > 100
    assert equal(theirs, result.race.windows, piece.segments[:1])


@pytest.mark.slow
def test_a_wrong_number_is_noticed(run: tuple[demo.DemoResult, str]) -> None:
    result, _ = run
    wrong = result.race.spark_windows.to_pandas()
    wrong.loc[len(wrong) // 2, "speed"] += 1e-9
    assert not equal(type(result.race.windows).from_pandas(wrong), result.race.windows, result.race.slice.segments)
    assert not equal(result.race.spark_windows.slice(1), result.race.windows, result.race.slice.segments)


@pytest.mark.slow
def test_everything_is_counted(run: tuple[demo.DemoResult, str]) -> None:
    result, _ = run
    assert result.rows == result.stream.rows == ROWS
    assert result.stream.epochs == EPOCHS
    assert [lane.label for lane in result.race.lanes] == list(LENGTHS)
    assert sum(lane.windows for lane in result.race.lanes) == len(result.race.windows) == result.race.together.windows
    # The stream keeps back what is not complete: less than the batch has, more than nothing.
    assert 0 < len(result.stream.windows) < result.race.lanes[0].windows


@pytest.mark.slow
def test_slowest_segments_are_the_slowest(run: tuple[demo.DemoResult, str]) -> None:
    result, _ = run
    last = grid(result.race.windows, LENGTHS[0], MINUTES)[:, -1]
    slowest = result.slowest(3)
    assert [slow.segment for slow in slowest] == np.argsort(last, kind="stable")[:3].tolist()
    assert [slow.speeds[0] for slow in slowest] == np.sort(last)[:3].tolist()


@pytest.mark.slow
def test_page_stands_alone(run: tuple[demo.DemoResult, str]) -> None:
    result, _ = run
    text = result.page.read_text(encoding="utf-8")
    assert result.page.name == "demo.html"
    assert not re.search(r'(?:src|href)="(?!data:)', text), "the page needs nothing but itself"
    assert "$" not in re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL), "the template is filled in"
    assert text.count("data:image/png;base64,") == len(LENGTHS) + 1
    assert f"every {SLIDE}" in text and "strategy    pane" in text and f"{len(result.race.windows):,}" in text


@pytest.mark.slow
def test_picture_is_a_png(run: tuple[demo.DemoResult, str]) -> None:
    pytest.importorskip("matplotlib")
    result, _ = run
    assert result.picture is not None and result.picture.name == "demo.png"
    assert result.picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_it_says_what_it_found(run: tuple[demo.DemoResult, str]) -> None:
    result, said = run
    assert f"{ROWS:,} position reports" in said
    assert said.count("equal to the last bit") == 2
    assert "Slowest segments" in said and str(result.page) in said and str(result.picture) in said


@pytest.mark.slow
def test_without_matplotlib_it_says_what_to_install(
    run: tuple[demo.DemoResult, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "available", lambda: False)
    said = io.StringIO()
    result = demo._show(run[0], tmp_path, Console(file=said, width=200))
    assert result.picture is None
    assert not (tmp_path / "demo.png").exists() and (tmp_path / "demo.html").exists()
    assert 'pip install "anabranch[plots]"' in said.getvalue()


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"minutes": 0}, {"seconds": 0.0}])
def test_nothing_to_show_is_an_error(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError):
        demo.run(**wrong)  # type: ignore[arg-type]


def test_importing_it_needs_no_matplotlib() -> None:
    code = "import sys; sys.modules['matplotlib'] = None; import demos.windows"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[3])
