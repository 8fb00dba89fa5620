"""The benchmark of partitioners runs, compares its answers, and says what it must; never how fast."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from benchmarks import partitioner_latency as on_spark
from benchmarks import partitioner_runs as runs
from benchmarks import partitioners
from benchmarks.windows import ResultsDifferError
from benchmarks.workloads import Workload


@pytest.mark.slow
def test_partitioners(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    # Raises if a policy gives another answer than Spark's own group by, or proposition 1 does not hold.
    partitioners.run(quick=True, as_json=True, console=Console(width=120))
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {*partitioners.GOALS, *partitioners.LIMITS} <= set(found)
    assert found["am_cost_vs_fld"] == 1.0
    assert found["quick"] is True and found["proposition_1"] is True
    sizes = {name: sum(row["data"] == name for row in found["table"]) for name in ("model", "cost", "latency")}
    assert sizes == {"model": 7 * 13 * 3, "cost": 13 * 3, "latency": 11}
    chosen = {
        row["chosen"] for row in found["table"] if row.get("workload") == "tpch-q1" and row["data"] == "selection"
    }
    assert chosen == {"SH-w"}


def test_the_model_counts_tuples_and_keys() -> None:
    window = np.repeat(np.arange(100, dtype=np.int64) * 7_919 + 1, 10)
    by_policy = {row.policy: row for row in runs.model("made up", [window], workers=(4,))}
    assert by_policy["SH-w"].tuple_imbalance == 0 and by_policy["SH-w"].aggregation_cost == 400
    for policy in (runs.FLD, *runs.WHOLE):
        assert by_policy[policy.label].aggregation_cost == 100
        assert by_policy[policy.label].cost_vs_fld == 1.0
    assert runs.best(list(by_policy.values())).aggregation_cost < 400


def test_splitters_that_share_nothing_split_keys_and_a_shared_table_does_not() -> None:
    random = np.random.default_rng(3)
    windows = [random.zipf(1.3, 40_000).astype(np.int64) * 0x9E3779B1 for _ in range(2)]
    rows = runs.several_splitters("made up", windows, (1, 8), 8)
    cost = {(row.policy, row.splitters): row.aggregation_cost / row.keys for row in rows}
    assert cost["cAM-2", 1] == cost["heavy", 8] == cost["FLD-1", 1] == 1.0
    assert cost["cAM-2", 8] > 1.0


@pytest.mark.slow
def test_latencies_are_of_right_answers_only(spark: SparkSession, tmp_path: Path) -> None:
    # t  0 1 2 3 4 5 6 7 8 9 10
    #    [-------)[-------)        size 4; the rest is no full window
    rows = pa.table({"t": np.arange(11), "key": ["a", "b"] * 5 + ["a"], "v": np.arange(11)})
    made_up = Workload("made up", "", rows, ("key",), ("v",), 4, 4, real=False, source="")
    files = on_spark.write_windows(made_up, 2, tmp_path)
    assert [(file.start, file.size, file.rows) for file in files] == [(0, 4, 4), (4, 4, 4)]
    question = on_spark.in_spark(("key",), "v")
    found = on_spark.latencies(spark, files, question, (None, runs.CAM_2), workers=2, repeats=1)
    assert {label: len(seconds) for label, seconds in found.items()} == {"auto": 2, "cAM-2": 2}
    wrong = replace(question, plain={"rows": F.count(F.lit(1)), "total": F.sum("v") + 1})
    with pytest.raises(ResultsDifferError, match="Spark's aggregates: auto gives"):
        on_spark.latencies(spark, files, wrong, (None,), workers=2, repeats=1)
