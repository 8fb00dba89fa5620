"""The wrong Python on the workers is found before the first job, with what to set."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from anabranch.errors import WorkerPythonError
from anabranch.runtime.handle import _unwrapped
from anabranch.spark import worker_python
from anabranch.spark.worker_python import check_local_python, check_workers, worker_python_error

TASK = "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  {}\n\tat java"


def session(master: str = "local[2]", frame: Any = None) -> Any:
    settings = {"spark.master": master, "spark.app.id": "app-1"}
    return SimpleNamespace(conf=settings, range=lambda n: frame)


def python(folder: Path, script: str) -> str:
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_python_of_this_process_is_not_even_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("asked"))
    check_local_python(session())


def test_another_python_that_has_everything_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", python(tmp_path, f'exec "{sys.executable}" "$@"'))
    check_workers(session())


def test_without_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = python(tmp_path, f'exec "{sys.executable}" -I -S "$@"')
    monkeypatch.setenv("PYSPARK_PYTHON", bare)
    with pytest.raises(WorkerPythonError, match="lacks the package anabranch, numba, numpy, pyarrow") as refused:
        check_workers(session())
    assert bare in refused.value.message
    assert f"export PYSPARK_PYTHON={sys.executable}" in refused.value.hint


def test_the_python3_of_the_path_where_nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python(tmp_path, "echo '[[2, 7], []]'")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorkerPythonError, match=r"python3, which is Python 2\.7, but this program runs Python 3"):
        check_local_python(session("local[*]"))


@pytest.mark.parametrize("script", [None, "exit 3", "echo hello"])
def test_no_python_at_all(script: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "absent") if script is None else python(tmp_path, script)
    monkeypatch.setenv("PYSPARK_PYTHON", path)
    with pytest.raises(WorkerPythonError, match=r"does not exist|does not work as a Python"):
        check_local_python(session())


def test_a_cluster_is_asked_by_one_task_per_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_python, "_probed", set())
    monkeypatch.setenv("PYSPARK_PYTHON", "/only/there")
    jobs: list[str] = []
    frame = SimpleNamespace(columns=["id"], mapInArrow=lambda *_: SimpleNamespace(collect=lambda: jobs.append("ran")))
    check_workers(session("spark://host:7077", frame))
    check_workers(session("spark://host:7077", frame))
    check_local_python(session("spark://host:7077"))  # nothing to ask here
    assert jobs == ["ran"]


def test_a_cluster_with_the_wrong_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_python, "_probed", set())

    def fail() -> None:
        raise PySparkException(TASK.format("ModuleNotFoundError: No module named 'anabranch'"))

    frame = SimpleNamespace(columns=["id"], mapInArrow=lambda *_: SimpleNamespace(collect=fail))
    with pytest.raises(WorkerPythonError, match="lacks the package 'anabranch'"):
        check_workers(session("spark://host:7077", frame))


def test_errors_of_tasks_are_translated() -> None:
    versions = (
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
        "version: 3.9 than that in driver: 3.11, PySpark cannot run with different minor versions."
    )
    found = _unwrapped(RuntimeError(TASK.format(versions)))
    assert isinstance(found, WorkerPythonError)
    assert "the workers run Python 3.9, but this program runs Python 3.11" in found.message
    missing = worker_python_error(TASK.format("ModuleNotFoundError: No module named 'helpers.shapes'"))
    assert missing is not None
    assert "cannot import 'helpers.shapes'" in missing.message and "--py-files" in missing.hint


def test_errors_of_the_driver_are_not() -> None:
    text = "An exception was raised by the Python Proxy: ModuleNotFoundError: No module named 'requests'"
    assert worker_python_error(text) is None
