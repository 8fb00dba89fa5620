"""Spark Connect gives the same answers as a classic session: batch, planner, errors and streams.

The server is Spark's own, started here on the loopback interface and a free port, and stopped by its process id. The
client is a process too: see `connect_cases`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from anabranch.local import session
from tests import quick_java
from tests.conftest import ROOT
from tests.oracles.epochs import Row
from tests.spark.api.connect_cases import NO_ERROR, Answers, answers
from tests.spark.streams import Feed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="Spark's start script for servers is a shell script"),
]

SECOND = 1_000_000
START = 120
"""Seconds within which a server starts, on a busy machine too."""

EPOCHS = [
    [Row(second * SECOND, "ab"[second % 3 % 2], second % 5) for second in range(0, 12)],
    [Row(None, "a", 7), Row(9 * SECOND, None, None), *(Row(second * SECOND, "b", second) for second in range(14, 20))],
    [Row(20 * SECOND, "a", 1), Row(20 * SECOND, "a", 1), Row(33 * SECOND, "a", 4)],
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server of our own."""
    pytest.importorskip("grpc", reason='Spark Connect needs pip install "anabranch[connect]"')
    session.ensure_java()
    folder = tmp_path_factory.mktemp("connect-server")
    home, port = Path(pyspark.__file__).parent, free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={session._LOGGING.as_uri()}",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.ui.enabled": "false",
    }
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command = [home / "bin" / "spark-submit", "--master", "local[2]", *options]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {**environment_of_tests(), "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_for(port, process, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def both(server: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Answers, Answers]:
    """The answers of the Spark Connect client, and those of the classic session."""
    folder = tmp_path_factory.mktemp("connect")
    Feed(folder / "input").add(*EPOCHS)
    command = [sys.executable, "-m", "tests.spark.api.connect_cases", server, folder / "input", folder / "connect"]
    client = subprocess.Popen(
        command, cwd=ROOT, env=environment_of_tests(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        classic = json.loads(json.dumps(answers(spark, folder / "input", folder / "classic")))
        output, errors = client.communicate(timeout=600)
    finally:
        client.kill()
    assert client.returncode == 0, errors
    remote = json.loads(output)
    assert remote.pop("session") == "pyspark.sql.connect.session"
    return remote, classic


@pytest.mark.parametrize("topic", ["batch", "planner", "errors", "streams"])
def test_same_answers_as_a_classic_session(topic: str, both: tuple[Answers, Answers]) -> None:
    remote, classic = (answers[topic] for answers in both)
    assert remote.keys() == classic.keys()
    for name, answer in classic.items():
        assert answer and answer != NO_ERROR, f"{name} shows nothing"
        assert remote[name] == answer, name


def test_strategies_agree_over_connect(both: tuple[Answers, Answers]) -> None:
    batch = both[0]["batch"]
    assert batch["pane"] == batch["batch"] == batch["window"] == batch["auto"]
    assert batch["user-defined, with merge"] == batch["user-defined, without merge"]
    assert batch["observation"] == {"rows": 23, "null_time": 1}


def test_start_is_refused_early_and_leaves_no_folders(both: tuple[Answers, Answers]) -> None:
    refused = both[0]["start"]
    assert refused["message"].startswith("StreamingError: start() does not work on a Spark Connect session")
    assert not refused["left"]


def environment_of_tests() -> dict[str, str]:
    """The environment of a process that finds the tests, and this Anabranch, as this process does."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # The classic session of these tests leaves the address of its own Java there.
    foreign = ("PYSPARK_GATEWAY", "SPARK_")
    kept = {name: value for name, value in environment.items() if not name.startswith(foreign)}
    return {**kept, "SPARK_SUBMIT_OPTS": quick_java.options()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server answers; fail with its log when it ends instead, or never does."""
    for _ in range(START * 5):
        if process.poll() is not None:
            pytest.fail(f"the server ended with code {process.returncode}:\n{log.read_text()}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server did not answer within {START} s:\n{log.read_text()}")
