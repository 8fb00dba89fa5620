"""Runs the transcripts in `tests/transcripts`: how streams behave, as data that a user can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

import anabranch as ab
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
        got = sorted(map(in_seconds, played.epochs[number]), key=repr)
        assert got == sorted(epoch["delivered"], key=repr), f"epoch {number}"
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
    sink = ab.MemorySink()
    handle = query.start(sink, checkpoint=tmp_path / "checkpoint", live=tmp_path / "live", trigger="available-now")
    handle.awaitTermination()

    assert len(handle.recentProgress) == len(case["epochs"])
    for number, (epoch, progress) in enumerate(zip(case["epochs"], handle.recentProgress, strict=True)):
        got = plain(sink.epochs[number]) if number in sink.epochs else []
        assert sorted(map(in_seconds, got), key=repr) == sorted(epoch["delivered"], key=repr), f"epoch {number}"
        assert progress.operators[0].watermark == epoch["watermark"] * SECOND
        assert (progress.late, progress.bad) == (epoch.get("late", 0), epoch.get("bad", 0))


def row(cells: dict[str, Any]) -> Row:
    at = cells["at"]
    return Row(None if at is None else at * SECOND, cells["key"], cells["value"])


def in_seconds(window: dict[str, Any]) -> dict[str, Any]:
    """A result as the transcripts write it."""
    bounds = [window["window"][edge] for edge in ("start", "end")]
    assert all(edge % SECOND == 0 for edge in bounds)
    return {**window, "window": [edge // SECOND for edge in bounds]}
