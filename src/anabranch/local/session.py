"""A local Spark for the command, the demos, the tests and the benchmarks.

Library code never creates a session: it uses the session of the DataFrame it is given. This module is the exception,
for programs that have no DataFrame yet:

    from anabranch.local import local_session

    spark = local_session(cores=2)

It finds a Java (`ensure_java`), and starts a Spark that is quiet, listens on the loopback interface only, leaves
nothing in the working directory, and uses the present interpreter for its Python workers.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pyspark
from pyspark.sql import SparkSession

from anabranch.errors import InvalidArgumentError
from anabranch.local.java import ensure_java
from anabranch.local.signals import shielded_children
from anabranch.spark.slots import LOCAL_MASTER

__all__ = ["ensure_java", "is_local", "local_session", "spark_session", "usable_cores"]

_LOGGING = Path(__file__).with_name("log4j2.properties")

# Each of these would replace the Spark in the pyspark package, or its settings, with another one.
_FOREIGN_SPARK = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE")

# Where a container's memory limit is found: control groups version 2, then 1.
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

_GIB = 1 << 30
_LOOPBACK = "127.0.0.1"

_EVERYWHERE = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Without it, a mapInArrow whose batches differ from its schema fails in the JVM with an unreadable error.
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Spark's web UI shows data and settings to anyone who can reach the port. `config` turns it on.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def local_session(
    *,
    cores: int | Literal["*"] = "*",
    shuffle_partitions: int | None = None,
    config: Mapping[str, str] | None = None,
    app_name: str = "anabranch",
    task_failures: int = 1,
) -> SparkSession:
    """Start a local Spark, or return the one that is already running in this process, unchanged.

    Session time is UTC. (Naive datetimes that `collect()` returns are in the time zone of the Python process, as
    always in PySpark.) Only errors are logged; `config={"spark.driver.defaultJavaOptions": ""}` restores Spark's own
    logging.

    Args:
        cores: how many tasks run at the same time; `"*"` for all cores that this process may use.
        shuffle_partitions: into how many parts an exchange splits its data; by default twice the cores.
            Spark's default of 200 is for clusters: here most of its tasks would be empty.
        config: further Spark settings. They override those made here.
        app_name: the name in Spark's own logs and web UI.
        task_failures: how often a task may fail before its job does.

    Raises:
        JavaNotFoundError: there is no Java that Spark can run on.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    ensure_java()
    _use_this_python()
    _use_packaged_spark()
    # By default Spark's web UI listens on all networks; nothing of a local Spark should.
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    tasks = usable_cores() if cores == "*" else cores
    settings = {
        **_EVERYWHERE,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.host": _LOOPBACK,
        "spark.driver.memory": f"{_driver_memory_gib()}g",
        # The default options, not the extra ones, which are left for the caller.
        "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": str(2 * tasks if shuffle_partitions is None else shuffle_partitions),
        # On a local disk the default manager starts a process per file: 60 to 80 ms of each micro-batch.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
    settings["spark.sql.warehouse.dir"] = _temporary_folder("anabranch-warehouse-").as_uri()
    master = f"local[{tasks}]" if task_failures == 1 else f"local[{tasks},{task_failures}]"
    builder = SparkSession.builder.master(master).appName(app_name)
    return builder.config(map={**settings, **(config or {})}).getOrCreate()


def spark_session(
    master: str | None = None, *, config: Mapping[str, str] | None = None, app_name: str = "anabranch"
) -> SparkSession:
    """A Spark at that master ("spark://host:7077", "yarn", "local[4]"), or a local one; or the one that is running.

    A cluster keeps its own settings (SPARK_HOME, SPARK_CONF_DIR, PYSPARK_PYTHON). This function sets only what the
    library relies on, and the workers' Python if PYSPARK_PYTHON is not set. On a cluster the driver must listen on an
    address that the executors can reach; Spark's web UI is off there too. This process handles SIGTERM, and Spark's
    JVM ends with it.
    """
    with shielded_children():
        return _session(master, config, app_name)


def _session(master: str | None, config: Mapping[str, str] | None, app_name: str) -> SparkSession:
    local = LOCAL_MASTER.fullmatch(master or "local[*]")
    if local is not None:
        wanted = local[1] or "1"  # as in Spark: without a number, one core
        cores: int | Literal["*"] = "*" if wanted == "*" else int(wanted)
        return local_session(cores=cores, config=config, app_name=app_name, task_failures=int(local[2] or 1))
    if str(master).startswith("sc://"):
        raise InvalidArgumentError(
            f"{master} is a Spark Connect server, and the epoch runtime needs a driver in this process",
            hint='give the master itself, for example --master "spark://host:7077"',
        )
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    ensure_java()
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(variable, sys.executable)
    builder = SparkSession.builder.master(str(master)).appName(app_name)
    return builder.config(map={**_EVERYWHERE, **(config or {})}).getOrCreate()


def is_local(master: str | None) -> bool:
    """Whether `spark_session` starts a Spark inside this process for that master."""
    return LOCAL_MASTER.fullmatch(master or "local[*]") is not None


def _use_this_python() -> None:
    # Spark would take `python3` from PATH: another version cannot run the driver's functions, and one without this
    # environment's packages cannot import them. A setting made for another interpreter has the same effect.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def _use_packaged_spark() -> None:
    if Path(pyspark.__file__).with_name("jars").is_dir():
        for variable in _FOREIGN_SPARK:
            os.environ.pop(variable, None)


def usable_cores() -> int:
    """The cores that this process may use; `taskset` or a batch system can allow fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _driver_memory_gib() -> int:
    """A quarter of the memory, since the Python workers need memory besides the JVM; from 1 to 8 GiB."""
    return max(1, min(8, _usable_memory() // 4 // _GIB))


def _usable_memory() -> int:
    """Bytes of memory: the machine's, or a container's limit if that is lower."""
    try:
        usable = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        usable = 4 * _GIB
    for file in _MEMORY_LIMITS:
        try:
            usable = min(usable, int(file.read_text()))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return usable


def _temporary_folder(prefix: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
