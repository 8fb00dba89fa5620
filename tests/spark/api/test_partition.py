"""`partition_by`, `partition_report`, `explain()` and `sample()`: what a user sees of partitioners on a DataFrame."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import anabranch as ab
from anabranch.errors import ColumnNotFoundError, InvalidArgumentError
from anabranch.keys.hashing import hash_keys
from anabranch.keys.partitioner import Partitioner
from anabranch.keys.policy import Partitioning
from benchmarks.partitioner_runs import loads_of

ROWS = 900


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    rng = np.random.default_rng(8)
    keys = np.minimum(rng.zipf(1.5, ROWS), 60)
    times = np.sort(rng.integers(-30_000_000, 60_000_000, ROWS))
    names = [None if k == 7 else f"k{k}" for k in keys]
    # A table is read in its own order, so a policy meets the rows in that order.
    data = pa.table({"at": times, "key": names, "n": pa.array(range(ROWS), pa.int32())})
    return spark.createDataFrame(data).coalesce(1)


def test_rows_stay_as_they_are_and_go_where_the_policy_says(rows: DataFrame) -> None:
    partitioned = rows.transform(
        ab.partition_by("key", workers=4, policy="cam", time="at", time_unit="us", window="30 s", worker="w")
    )
    assert partitioned.columns == ["at", "key", "n", "w"]
    found = partitioned.withColumn("partition", F.spark_partition_id()).orderBy("n").toArrow()
    assert found["n"].to_pylist() == list(range(ROWS))
    assert found["w"].to_pylist() == found["partition"].to_pylist()
    windows = np.floor_divide(found["at"].to_numpy(), 30_000_000)
    expected = Partitioner(Partitioning("cam"), 4).assign(hash_keys([found["key"]]), windows)
    assert found["w"].to_pylist() == expected.tolist()


def test_without_a_worker_column_the_schema_is_the_same(rows: DataFrame) -> None:
    partitioned = rows.transform(ab.partition_by("key", "n", workers=3, policy="sh"))
    assert partitioned.schema == rows.schema
    sizes = Counter(row[0] for row in partitioned.select(F.spark_partition_id()).collect())
    assert sizes == {0: 300, 1: 300, 2: 300}


def test_a_group_by_on_the_worker_needs_no_further_exchange(rows: DataFrame, capsys: pytest.CaptureFixture) -> None:
    partitioned = rows.transform(ab.partition_by("key", workers=3, worker="w"))
    partitioned.groupBy("w", "key").count().explain()
    assert capsys.readouterr().out.count("Exchange") == 1


def test_the_report_is_the_model(rows: DataFrame) -> None:
    report = ab.partition_report(
        rows, "key", workers=4, policies=("fld", "pk", "cam"), time="at", time_unit="us", window="30 s"
    )
    found = {(row["policy"], row["window"]): row.asDict() for row in report.collect()}
    table = rows.toArrow()
    windows = np.floor_divide(table["at"].to_numpy(), 30_000_000)
    hashes = hash_keys([table["key"]])
    assert set(found) == {(p, w) for p in ("FLD-1", "PK-2", "cAM-2") for w in (-1, 0, 1)}
    for policy in ("fld", "pk", "cam"):
        what = Partitioning(policy)  # type: ignore[arg-type]
        workers = Partitioner(what, 4).assign(hashes, windows)
        for window in (-1, 0, 1):
            mine = windows == window
            expected = loads_of(workers[mine], hashes[mine], 4).metrics().to_json()
            got = found[what.label, window]
            assert {name: got[name] for name in expected} == pytest.approx(expected)
    assert all(row["least_cost"] <= row["aggregation_cost"] <= row["most_cost"] for row in found.values())


def test_wrong_settings_are_refused(rows: DataFrame, spark: SparkSession) -> None:
    with pytest.raises(InvalidArgumentError, match="needs at least one key column"):
        ab.partition_by(workers=2)
    with pytest.raises(InvalidArgumentError, match="needs a time column"):
        rows.transform(ab.partition_by("key", workers=2, window="1 s"))
    with pytest.raises(InvalidArgumentError, match="need window="):
        rows.transform(ab.partition_by("key", workers=2, time="at"))
    timed = rows.withColumn("when", F.timestamp_micros("at"))
    assert timed.transform(ab.partition_by("key", workers=2, window="1 s")).columns == timed.columns
    with pytest.raises(ColumnNotFoundError):
        rows.transform(ab.partition_by("kee", workers=2))
    with pytest.raises(InvalidArgumentError, match="the previous epoch"):
        ab.partition_by("key", workers=2, policy="heavy")
    with pytest.raises(InvalidArgumentError, match="already"):
        rows.transform(ab.partition_by("key", workers=2, worker="n"))
    with pytest.raises(InvalidArgumentError, match="policies is empty"):
        ab.partition_report(rows, "key", workers=2, policies=())


# --- explain and sample ---------------------------------------------------------------------------------------------


def total() -> Any:
    return ab.user_aggregate(
        "n", init=int, incr=lambda s, v: s + v, merge=lambda a, b: a + b, final=int, returns="bigint", state="bigint"
    )


def test_explain_says_what_places_the_keys(rows: DataFrame) -> None:
    windows = ab.stream(rows, time="at", time_unit="us").window(size="30 s")
    native = windows.by("key").agg(n=ab.count()).explain()
    assert "partition   left to Spark: its aggregates are Spark's" in native
    unknown = windows.by("key", workers=4).agg(n=total()).explain()
    assert "cAM-2 over 4 workers, evaluated in Python" in unknown and "nothing measured yet" in unknown
    whole = windows.by("key", partition="am", workers=4, splitters=1).agg(n=total()).explain()
    assert "keys stay whole, nothing to combine: as requested" in whole
    spread = windows.by("key", partition="pk", workers=4).agg(n=ab.count()).explain()
    assert "PK-2 over 4 workers, evaluated by Spark; partial results are combined by key" in spread


def test_a_sample_lets_auto_choose(rows: DataFrame) -> None:
    windows = ab.stream(rows, time="at", time_unit="us").window(size="30 s")
    many = windows.by("n", workers=4).agg(sum=total()).sample(0.5)
    assert "so they should stay whole" in many.explain()
    few = windows.by(F.when(F.col("n") > 5, "a").otherwise("b").alias("k"), workers=4).agg(sum=total()).sample(1.0)
    assert "SH-w over 4 workers" in few.explain()
    assert sum(row["sum"] for row in few.to_df().collect()) == sum(range(ROWS))
    assert len(many.to_df().collect()) == ROWS
