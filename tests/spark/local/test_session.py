"""The embedded Spark: same Python in the workers, quiet, and tidy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch.local import session


def interpreter(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replace each batch by the Python that sees it."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable]})


def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    interpreters = spark.range(4).repartition(2).mapInArrow(interpreter, "python string").distinct().collect()
    assert [row.python for row in interpreters] == [sys.executable]


def test_settings(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_second_call_returns_the_running_session(spark: SparkSession) -> None:
    again = session.local_session(cores=2, shuffle_partitions=2)
    assert again.range(3).count() == 3
    assert again.conf.get("spark.app.id") == spark.conf.get("spark.app.id")


@pytest.mark.parametrize(("gib", "memory"), [(1, 1), (4, 1), (16, 4), (23.4, 5), (512, 8)])
def test_driver_memory_is_a_quarter_within_bounds(gib: float, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_usable_memory", lambda: int(gib * (1 << 30)))
    assert session._driver_memory_gib() == memory


def test_container_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(session, "_MEMORY_LIMITS", (limit, tmp_path / "absent"))
    limit.write_text("max\n")
    machine = session._usable_memory()
    assert machine > 123_456_789
    limit.write_text("123456789\n")
    assert session._usable_memory() == 123_456_789


SCRIPT = """
from anabranch.local.session import local_session

spark = local_session(cores=1, config={"spark.sql.shuffle.partitions": "3"}, app_name="another name")
spark.range(10).write.saveAsTable("numbers")
assert spark.table("numbers").groupBy("id").count().count() == 10
assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
assert spark.conf.get("spark.app.name") == "another name"
print(spark.conf.get("spark.sql.warehouse.dir"))
spark.stop()
"""


@pytest.mark.slow
def test_new_session_is_silent_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # Settings made for another Spark and another Python must not matter.
    environment = {**os.environ, "SPARK_HOME": "/opt/another-spark", "PYSPARK_PYTHON": "/usr/bin/another-python"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert not list(tmp_path.iterdir())
    warehouse = Path(run.stdout.strip().removeprefix("file:"))
    assert warehouse.name.startswith("anabranch-warehouse-")
    assert not warehouse.exists()
