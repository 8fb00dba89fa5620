"""A standalone Spark cluster on loopback, from the installed PySpark: one master, two workers of one core each."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import psutil
import pyspark

from anabranch.local.java import ensure_java
from tests import quick_java

HOST = "127.0.0.1"
PATIENCE = 120
"""Seconds for a process of the cluster to come up, on a busy machine."""


class Cluster:
    """Runs while the `with` block does. A worker that was killed comes back with `mend`."""

    def __init__(self, folder: Path, environment: dict[str, str], workers: int = 2) -> None:
        self.port = free_port()
        self._folder = folder
        # The Java is the driver's; without SPARK_HOME the scripts would look for another Spark.
        self._environment = {
            **environment,
            "JAVA_HOME": str(ensure_java()),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": quick_java.options(),
        }
        self._count = workers
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._processes: set[psutil.Process] = set()

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    def __enter__(self) -> Cluster:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._master = self._start("master.Master", "--host", HOST, "--port", str(self.port), "--webui-port", "0")
        end = time.monotonic() + PATIENCE
        while not listens(self.port):
            if self._master.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the master did not start; see {self._folder}")
            time.sleep(0.1)
        self.mend()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remember()
        kill([*self._processes])
        for process in (self._master, *self.workers):
            if process is not None:
                process.wait()

    def remember(self) -> None:
        """Note all processes of the cluster: those below one that is killed have no parent afterwards."""
        started = [process for process in (self._master, *self.workers) if process is not None]
        self._processes.update(each for process in started for each in family(process.pid))

    def mend(self) -> None:
        """Start as many workers as are missing."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < self._count:
            worker = ("worker.Worker", "--host", HOST, "--cores", "1", "--memory", "1g", "--webui-port", "0")
            self.workers.append(self._start(*worker, "--work-dir", str(self._folder / "work"), self.url))

    def executors(self) -> list[psutil.Process]:
        """The processes of the executors that run now."""
        below = [each for worker in self.workers for each in family(worker.pid)[1:]]
        return [each for each in below if "CoarseGrainedExecutorBackend" in command_of(each)]

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        script = Path(self._environment["SPARK_HOME"], "bin", "spark-class")
        with (self._folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(
                [str(script), f"org.apache.spark.deploy.{kind}", *arguments],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def family(pid: int) -> list[psutil.Process]:
    """A process that we started and all below it; nothing if it has ended."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return ""


def kill(processes: list[psutil.Process]) -> int:
    """Kill -9, by id; returns how many of them were alive. psutil makes sure that an id was not given anew."""
    hit = 0
    for process in processes:
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            process.kill()
            hit += alive
        except psutil.NoSuchProcess:
            continue
    return hit


def environment_of(root: Path) -> dict[str, str]:
    """The environment of drivers and executors: they import the tests, and the package as this process does."""
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SPARK_SUBMIT_OPTS": quick_java.options()}
