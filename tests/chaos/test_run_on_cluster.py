"""`anabranch run --master` on a cluster whose workers do not have the job's folder on their path."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.io.blocks import write_blocks
from tests.chaos.cluster import HOST, Cluster, environment_of
from tests.conftest import ROOT

JOB = """
import pyarrow as pa
import anabranch as ab
from beside_the_job import half
from sent_along import twice


class Count(ab.Operator):
    def process(self, block, port=0):
        yield pa.RecordBatch.from_pydict({{"n": [twice(half(block.num_rows))]}})


def build(spark):
    rows = ab.replay(spark, {recording!r}, time="t", rows_per_epoch=500)
    stream = ab.stream(rows, time="t", time_unit="us", watermark="0 s")
    return stream.process(Count, "n bigint").to(ab.FileSink({results!r}))
"""


@pytest.mark.slow
def test_modules_beside_the_job_and_py_files_reach_the_workers(tmp_path: Path) -> None:
    recording, folder = tmp_path / "recording", tmp_path / "job"
    recording.mkdir()
    folder.mkdir()
    blocks = [pa.RecordBatch.from_pydict({"t": np.arange(i, i + 100) * 1_000}) for i in range(0, 1_000, 100)]
    write_blocks(recording / "rows.arrow", blocks)
    (folder / "job.py").write_text(JOB.format(recording=str(recording), results=str(tmp_path / "results")))
    (folder / "beside_the_job.py").write_text("def half(n):\n    return n // 2\n")
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.writestr("sent_along.py", "def twice(n):\n    return 2 * n\n")
    command = [sys.executable, "-m", "anabranch.cli.main", "run", str(folder / "job.py"), "--trigger", "availableNow"]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--py-files", str(tmp_path / "more.zip")]
    command += ["--conf", f"spark.driver.host={HOST}", "--conf", "spark.executor.memory=512m", "--workers", "1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    environment["PYTHONPATH"] = str(ROOT / "src")
    with Cluster(tmp_path / "cluster", environment_of(ROOT), workers=1) as cluster:
        ran = subprocess.run(
            [*command, "--master", cluster.url],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3_000:]
    assert sorted(row["n"] for row in pq.read_table(tmp_path / "results").to_pylist()) == [500, 500]
