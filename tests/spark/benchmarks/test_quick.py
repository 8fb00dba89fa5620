"""The benchmarks of splitting, epochs and shedding run, compare results, and say what they must; never how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

import anabranch as ab
from anabranch.errors import AnabranchError
from benchmarks import epochs, shedding, shedding_loads, shedding_runs, split

pytestmark = pytest.mark.slow


def test_split(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    # Raises if blocks and rows deliver different substreams.
    split.run(quick=True, as_json=True, console=Console(width=120))
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"of_bare_exchange", "blocks_vs_rows", "tuned_p_gain", "tuned_p", "table"} <= set(found)
    assert found["quick"] is True and len(found["table"]) == 5


def test_epochs(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    # Raises if the runtime and Spark deliver different windows.
    epochs.run(quick=True, as_json=True, console=Console(width=120))
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"epoch_overhead", "window_epoch_overhead", "aggregates_vs_spark", "table"} <= set(found)
    assert [row["data"] for row in found["table"]] == ["epochs"] * 3 + ["aggregates"] * 2
    assert not spark.streams.active


def test_shedding_when_nothing_is_dropped(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    shedding.run(quick=True, as_json=True, console=Console(width=120), parts=["overhead"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"overhead_p0", "overhead_p001", "table"} <= set(found)
    assert [row["name"] for row in found["table"]] == ["no window drop", "p = 0", "p = 0.01"]
    assert not spark.streams.active


def test_shedding_of_a_live_stream(spark: SparkSession, tmp_path: Path) -> None:
    load = shedding_loads.tumbling(20.0)
    runner = shedding_runs.Runner(spark, tmp_path, 6.0)
    ran = runner.live(load, 2_000, seconds=8, qos=ab.QoS(max_gap=10, drop_share=0.5), trigger=1.0)
    results = sum(operator.emitted for epoch in ran.epochs for operator in epoch.operators)
    drops = [drop for epoch in ran.epochs for drop in epoch.drops]
    assert results and drops and sum(drop.shed for drop in drops) > 0
    assert not list(tmp_path.iterdir()) and not spark.streams.active


def test_a_contestant_that_fails_ends_the_turns() -> None:
    baton = epochs.Baton(("a",))
    with pytest.raises(AnabranchError, match="a contestant failed"):
        baton.lap(lambda: ValueError("no source"))
