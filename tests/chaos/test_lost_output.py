"""An executor that loses its shuffle files in mid-query: every row counts once, wherever a policy places it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.cluster import HOST, Cluster, environment_of
from tests.conftest import ROOT


@pytest.mark.slow
def test_rows_after_an_exchange_are_placed_once(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", environment_of(ROOT)) as cluster:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.chaos.lost_output", cluster.url, str(tmp_path)],
            env={**environment_of(ROOT), "SPARK_LOCAL_IP": HOST}, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3_000:]
    found = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [each["query"] for each in found] == ["running", "fld", "sh", "cam"]
    assert all(each["lost"] for each in found), found
    assert not any(each["wrong"] for each in found), found
