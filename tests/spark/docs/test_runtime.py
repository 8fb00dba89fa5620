"""What the pages of the runtime show must run, and give what they say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.cli.run import deliveries_of, load_job
from anabranch.recordings import write_blocks
from anabranch.testing import OperatorHarness, assert_survives_restarts

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the examples, with what they read."""
    t = np.arange(200) * 1_000_000
    for name, time, column in (("trips", "at", "cell"), ("reports", "t", "car")):
        (tmp_path / name).mkdir()
        # Three cars that report in turn, for 200 s; car 0 is silent from 60 s to 120 s.
        silent = (t % 3_000_000 == 0) & (t >= 60_000_000) & (t < 120_000_000)
        kept = t[~silent]
        times = kept.astype("datetime64[us]") if name == "trips" else kept
        columns = {time: times, column: kept // 1_000_000 % 3, "segment": kept // 1_000_000, "kind": kept % 2}
        write_blocks(tmp_path / name / "rows.arrow", pa.table(columns).to_batches())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_examples(page: str, names: dict[str, object]) -> dict[str, object]:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


def test_runtime(spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_examples("runtime.md", {"ab": ab, "spark": spark})
    assert "window-1:" in capsys.readouterr().out
    assert (folder / "busy").is_dir()


def test_replay(spark: SparkSession, folder: Path) -> None:
    trips = run_examples("replay.md", {"spark": spark})["trips"]
    assert trips.isStreaming and trips.columns == ["at", "cell", "segment", "kind"]  # type: ignore[attr-defined]


def test_shedding(spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_examples("shedding.md", {"ab": ab, "spark": spark})
    shown = capsys.readouterr().out
    assert "source 0: WinDrop(10 s, 10 s), B = 5" in shown
    assert "before window-2" in shown


def test_operators(spark: SparkSession, folder: Path) -> None:
    names = run_examples("operators.md", {"ab": ab, "spark": spark})
    found = sorted((row["car"], row["first"], row["last"], row["n"]) for row in names["results"].rows())  # type: ignore[attr-defined]
    # Its sessions before and after the silence; the second is still open, as are those of the other cars.
    assert found == [(0, 0, 57_000_000, 20)]
    assert names["ended"] == [{"car": 7, "first": 0, "last": 10_000_000, "n": 2}]
    # A row of a later epoch that is older than the last one closes the gap between two sessions.
    out_of_order = [(0, None), (50_000_000, 20_000_000), (25_000_000, 100_000_000)]
    epochs = [([{"t": t, "car": 1}], watermark) for t, watermark in out_of_order]
    harness = OperatorHarness(names["Sessions"])  # type: ignore[arg-type]
    for rows, _ in epochs:
        harness.process(rows)
    assert harness.watermark(100_000_000).rows() == [{"car": 1, "first": 0, "last": 50_000_000, "n": 3}]
    assert_survives_restarts(names["Sessions"], epochs)  # type: ignore[arg-type]
    # A session is emitted when the watermark is up to this far past its last row: less would make it late.
    gap = names["Sessions"].GAP  # type: ignore[attr-defined]
    assert names["ended_sessions"].branches[0].origin.delay == gap  # type: ignore[attr-defined]


def test_splitting(spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = ab.stream(ab.replay(spark, "reports/", time="t"), time="t", time_unit="us", watermark="0 s")
    names = run_examples("splitting.md", {"ab": ab, "reports": reports})
    shown = capsys.readouterr().out
    assert "q = 8" in shown and "8 query processors" in shown
    assert names["splitters_needed"](500, 123.7, q=512) == 25  # type: ignore[operator]


def test_sinks_page_knows_every_sink(folder: Path) -> None:
    names = run_examples("sinks.md", {"ab": ab})
    text = (ROOT / "docs" / "sinks.md").read_text(encoding="utf-8")
    for sink in (ab.FileSink, ab.DeltaSink, ab.MemorySink, ab.CallSink):
        assert f"`ab.{sink.__name__}(" in text
        assert sink.guarantee.partition(":")[0] in text
    assert names["Counted"]().rows == 0  # type: ignore[operator]


def test_the_example_job_builds(spark: SparkSession, folder: Path) -> None:
    file = ROOT / "examples" / "job.py"
    assert len(deliveries_of(file, load_job(file), spark)) == 2
    assert (folder / "out" / "example" / "reports.arrow").exists()


def test_partitioning(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    trips = spark.range(300).selectExpr("timestamp_seconds(id * 20) dropoff_at", "id % 7 route", "id fare").coalesce(1)
    names = run_examples("partitioning.md", {"ab": ab, "trips": trips})
    shown = capsys.readouterr().out
    assert "cAM-2 over 8 workers, evaluated in Python" in shown and "aggregation_cost" in shown
    rows = names["routes"].to_df().where("route = 0").orderBy("window.start").collect()  # type: ignore[attr-defined]
    # Of the first half hour, rows 0 to 89, route 0 has 0, 7, ..., 84: the middle one of these 13 is 42.
    assert rows[0]["fare"] == 42
