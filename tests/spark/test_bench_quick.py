"""The benchmarks of splitting and epochs run, compare their results, and say what they must; never how fast."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from anabranch.bench import epochs, split
from anabranch.errors import AnabranchError

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


def test_a_contestant_that_fails_ends_the_turns() -> None:
    baton = epochs.Baton(("a",))
    with pytest.raises(AnabranchError, match="a contestant failed"):
        baton.lap(lambda: ValueError("no source"))
