"""`anabranch linearroad run --master` on a standalone cluster: as on one machine, every answer is right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.linearroad.check.validate import validate
from anabranch.linearroad.generate import Traffic, write_trace
from anabranch.linearroad.schema import Mode
from tests.chaos.cluster import HOST, Cluster, environment_of
from tests.conftest import ROOT


@pytest.mark.slow
def test_the_command_on_a_cluster(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace", Traffic(2, 240, seed=3, peak_rate=600), copies=2)
    command = [sys.executable, "-m", "anabranch.cli.main", "linearroad", "run", "--mode", "flat-lav"]
    command += ["--input", str(trace.folder / "input"), "--history", str(trace.history_file)]
    environment = {**environment_of(ROOT), "SPARK_LOCAL_IP": HOST}
    with Cluster(tmp_path / "cluster", environment_of(ROOT)) as cluster:
        ran = subprocess.run(
            [*command, "--output", str(tmp_path / "output"), "--master", cluster.url],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3_000:]
    assert f"{trace.tuples:,} tuples" in ran.stdout
    report = validate(
        trace.input_files, trace.history_file, trace.segment_history_file, tmp_path / "output", Mode.FLAT_LAV
    )
    assert not report.differences, report.to_json()
