"""Checks before the first job that the workers run a suitable Python, and says what to set if they do not.

Spark starts its Python workers with `PYSPARK_PYTHON`, or with the `python3` on PATH. If an environment is not
activated, that is a different Python: another version, or one without the packages. The first task then fails with a
page of Java.

- In a local session the workers run on this machine, so their Python can be checked directly.
- On a cluster it takes a task: a tiny one, once per application (`check_workers`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from anabranch.errors import WorkerPythonError
from anabranch.spark.arrow import map_in_arrow
from anabranch.spark.quirks import SPARK_ERRORS

PACKAGES = ("anabranch", "numba", "numpy", "pyarrow")
"""Packages that a worker imports."""

_ASK = (
    "import importlib.util, json, sys; "
    f"missing = [name for name in {PACKAGES!r} if importlib.util.find_spec(name) is None]; "
    "print(json.dumps([list(sys.version_info[:2]), missing]))"
)
_VERSIONS = re.compile(r"\[PYTHON_VERSION_MISMATCH\][^:]*: ([\d.]+) than that in driver: ([\d.]+)")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_OF_A_TASK = re.compile("PythonException|Python worker")
"""Found in the text of errors from workers, but not of errors in a user's function on the driver."""

_probed: set[str] = set()
"""Applications whose workers were checked."""


def is_remote(session: SparkSession) -> bool:
    """Whether this is a Spark Connect session."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def check_local_python(session: SparkSession) -> None:
    """Check the workers' Python in a local session. Runs no job.

    Raises:
        WorkerPythonError: it has another version, lacks packages, or cannot be run.
    """
    if not is_remote(session) and _is_local(session):
        wrong = _wrong_with(os.environ.get("PYSPARK_PYTHON", "python3"))
        if wrong is not None:
            raise _error(wrong)


def check_workers(session: SparkSession) -> None:
    """Check the workers' Python in any session; on a cluster with a tiny job, once per application."""
    if _is_local(session):
        check_local_python(session)
        return
    application = str(session.conf.get("spark.app.id", ""))
    if application in _probed:
        return
    try:
        map_in_arrow(session.range(1), _nothing, StructType([StructField("id", LongType())])).collect()
    except SPARK_ERRORS as error:
        found = worker_python_error(str(error))
        if found is None:
            raise
        raise found from error
    _probed.add(application)


def worker_python_error(text: str) -> WorkerPythonError | None:
    """Our error for the text of a task's error, if its Python was the wrong one or lacked a module."""
    if versions := _VERSIONS.search(text):
        return _error(f"the workers run Python {versions[1]}, but this program runs Python {versions[2]}")
    if _OF_A_TASK.search(text) and (missing := _MISSING.search(text)):
        module = missing[1]
        if module.split(".")[0] in PACKAGES:
            return _error(f"the workers' Python lacks the package {module!r}")
        return WorkerPythonError(
            f"the workers cannot import {module!r}, so the functions that need it cannot run there",
            hint="send it to them with anabranch run --py-files ... or spark.addArtifacts(path, pyfile=True), or "
            "install it there",
        )
    return None


def _error(wrong: str) -> WorkerPythonError:
    return WorkerPythonError(
        f"{wrong}: every Python task would fail",
        hint=f"set PYSPARK_PYTHON before you create the session: export PYSPARK_PYTHON={sys.executable}, or in Python "
        'os.environ["PYSPARK_PYTHON"] = sys.executable; on a cluster, give the path of a suitable Python there',
    )


@lru_cache
def _wrong_with(python: str) -> str | None:
    """What is wrong with that Python; None if it matches the one that runs this."""
    found = shutil.which(python)
    if found is None:
        return f"the workers would run {python!r}, which does not exist"
    if os.path.abspath(found) == os.path.abspath(sys.executable):
        return None
    try:
        asked = subprocess.run([found, "-c", _ASK], capture_output=True, text=True, timeout=60, check=True)
        version, missing = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return f"the workers would run {found}, which does not work as a Python"
    mine = list(sys.version_info[:2])
    if version != mine:
        theirs, ours = (".".join(map(str, each)) for each in (version, mine))
        return f"the workers would run {found}, which is Python {theirs}, but this program runs Python {ours}"
    if missing:
        return f"the workers would run {found}, which lacks the package {', '.join(missing)}"
    return None


def _is_local(session: SparkSession) -> bool:
    return str(session.conf.get("spark.master", "")).startswith("local")


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A worker must import Anabranch to find this function."""
    yield from batches
