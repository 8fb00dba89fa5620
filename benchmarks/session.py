"""The Spark session of the benchmarks: a local one whose Python workers can import this package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from anabranch.local.session import local_session

REPOSITORY = Path(__file__).resolve().parents[1]


def bench_session(
    name: str, *, shuffle_partitions: int | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a local Spark for the benchmark of that name, or return the one that already runs in this process."""
    workers_import_from(REPOSITORY)
    return local_session(app_name=f"benchmarks {name}", shuffle_partitions=shuffle_partitions, config=config)


def workers_import_from(*folders: Path) -> None:
    """Put folders on the workers' import path. Call it before the session starts: the workers inherit PYTHONPATH.

    Spark sends a function of a module by its name, so a worker must be able to import the module. It does not have
    the driver's working directory on its path.
    """
    present = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    missing = [str(folder) for folder in folders if str(folder) not in present]
    os.environ["PYTHONPATH"] = os.pathsep.join([*missing, *present])
