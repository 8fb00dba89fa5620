"""Runs the transcripts in `tests/transcripts`: how streams behave, as data that a user can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.testing import EpochRun, assert_rows_equal
from tests.oracles.epochs import Row
from tests.spark.streams import Feed, plain, run

TRANSCRIPTS = sorted((Path(__file__).parents[2] / "transcripts").glob("*.yaml"))
RUNTIME = sorted((Path(__file__).parents[2] / "transcripts" / "runtime").glob("*.yaml"))
SECOND = 1_000_000


@pytest.mark.parametrize("file", TRANSCRIPTS, ids=lambda file: file.stem)
def test_transcript(file: Path, spark: SparkSession, tmp_path: Path) -> None:
    case = yaml.safe_load(file.read_text(encoding="utf-8"))
    feed = Feed(tmp_path / "input")
    feed.add(*(map(row, epoch["rows"]) for epoch in case["epochs"]))
    query = eval(f"({case['query']})", {"ab": ab, "rows": feed.stream(spark)})
    played = run(query.to_df(), tmp_path / "checkpoint")

    expected = [*case["epochs"], *([] if case["end"] == "none" else [case["end"]])]
    assert len(played.progress) == len(expected)
    assert played.watermarks == [epoch["watermark"] * SECOND for epoch in expected]
    for number, epoch in enumerate(expected):
        assert_rows_equal(map(in_seconds, played.epochs[number]), epoch["delivered"])
    assert played.late == [epoch.get("late", 0) for epoch in expected]
    # A query over the results of another has no times of its own to miss; the rows are counted where they enter.
    if "filter" not in case["query"]:
        assert played.observed(query.metrics, "null_time") == [epoch.get("null_time", 0) for epoch in expected]
        assert played.observed(query.metrics, "rows") == [len(epoch.get("rows", [])) for epoch in expected]


@pytest.mark.parametrize("file", RUNTIME, ids=lambda file: file.stem)
def test_runtime_transcript(file: Path, spark: SparkSession, tmp_path: Path) -> None:
    case = yaml.safe_load(file.read_text(encoding="utf-8"))
    feed = Feed(tmp_path / "input")
    feed.add(*(map(row, epoch["rows"]) for epoch in case["epochs"]))
    query = eval(f"({case['query']})", {"ab": ab, "rows": feed.stream(spark)})
    played = EpochRun(query, tmp_path / "run").run_epochs()

    for number, (epoch, ran) in enumerate(zip(case["epochs"], played, strict=True)):
        assert ran.number == number
        assert_rows_equal(map(in_seconds, plain(ran.results.table())), epoch["delivered"])
        assert ran.progress.operators[0].watermark == epoch["watermark"] * SECOND
        assert (ran.late, ran.progress.bad) == (epoch.get("late", 0), epoch.get("bad", 0))


def row(cells: dict[str, Any]) -> Row:
    at = cells["at"]
    return Row(None if at is None else at * SECOND, cells["key"], cells["value"])


def in_seconds(window: dict[str, Any]) -> dict[str, Any]:
    """A result as the transcripts write it."""
    bounds = [window["window"][edge] for edge in ("start", "end")]
    assert all(edge % SECOND == 0 for edge in bounds)
    return {**window, "window": [edge // SECOND for edge in bounds]}
