"""`anabranch run`: run a job file until its data ends or it is stopped.

A job file is a Python file with a function `build(spark)` that returns deliveries: one or a list of what `.to(sink)`
returns. The command creates the session, runs the file, and shows the metrics and the log.

The file is not a module that can be imported: what it defines is sent to the workers as a copy. Modules next to it are
sent to a cluster too (`job_modules`), and further ones with `--py-files`.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.logging import RichHandler

from anabranch.cli.job_modules import archive_of_neighbours, import_path, py_files
from anabranch.cli.live_view import LiveView
from anabranch.errors import AnabranchError, JobError
from anabranch.local.session import is_local, spark_session
from anabranch.local.signals import asked_to_stop
from anabranch.observe.listeners import JsonLines, Listener
from anabranch.observe.prometheus import LOOPBACK, Prometheus
from anabranch.query.deliveries import Delivery
from anabranch.runtime.handle import EpochQuery, cause_of
from anabranch.runtime.start import start

MODULE = "anabranch_job"
"""`__name__` of a job file while it runs; not `__main__`, so that code guarded by it does not run"""
_CHECK_EVERY = 1.0
"""seconds between two checks for a signal to stop"""

Build = Callable[[SparkSession], Delivery | Sequence[Delivery]]


def run_file(
    file: Path,
    *,
    console: Console,
    master: str | None = None,
    conf: Sequence[str] = (),
    modules: Sequence[str] = (),
    checkpoint: str | None = None,
    live: str | None = None,
    workers: int | None = None,
    trigger: str | None = None,
    prometheus: int | None = None,
    prometheus_host: str = LOOPBACK,
    json_lines: Path | None = None,
    log_level: str = "info",
) -> None:
    """Run a job file. Returns when the query has ended or was stopped; raises an error if it failed."""
    settings, sent = settings_of(conf), py_files(modules)
    sys.path[:0] = [import_path(path) for path in sent]
    build = load_job(file)
    with ExitStack() as stack:
        stack.enter_context(logged(console, log_level))
        view = LiveView(console)
        listeners: list[Listener] = [view]
        if json_lines is not None:
            listeners.append(stack.enter_context(JsonLines(json_lines)))
        if prometheus is not None:
            server = stack.enter_context(Prometheus(prometheus, host=prometheus_host))
            listeners.append(server)
            view.show_note(f"metrics at {server.url}, health at {server.health_url}")
        if checkpoint is None:
            checkpoint = stack.enter_context(tempfile.TemporaryDirectory(prefix="anabranch-run-"))
            view.show_note("no --checkpoint: a restart begins from the start of the data")
        spark = spark_session(master, config=settings, app_name=f"anabranch run {file.name}")
        if not is_local(master):
            archive = archive_of_neighbours(file, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            sent += [] if archive is None else [archive]
        # Before the job is built: a function keeps the list of files that exists when it is created.
        spark.addArtifacts(*map(str, sent), pyfile=True)
        deliveries = deliveries_of(file, build, spark)
        with asked_to_stop() as asked, view.shown():
            query = start(
                *deliveries, checkpoint=checkpoint, live=live, workers=workers, trigger=trigger, listeners=listeners
            )
            _wait(query, view, asked)
        console.print(f"{view.totals.describe()}", highlight=False)


def settings_of(conf: Sequence[str]) -> Mapping[str, str]:
    """The Spark settings of `--conf key=value`."""
    for each in conf:
        if not each.partition("=")[0].strip() or "=" not in each:
            raise JobError(
                f"--conf {each}: a setting needs a name and a value", hint="write --conf spark.sql.shuffle.partitions=8"
            )
    return {name.strip(): value.strip() for name, _, value in (each.partition("=") for each in conf)}


@contextmanager
def logged(console: Console, level: str) -> Iterator[None]:
    """A context in which the log is shown: above the table in a terminal, otherwise on stderr with times in UTC."""
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, log_time_format="%H:%M:%S")
    else:
        handler = logging.StreamHandler()
        formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%SZ")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
    logger = logging.getLogger("anabranch")
    before = logger.level
    logger.setLevel(level.upper())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def load_job(file: Path) -> Build:
    """The function `build` of a job file, after the file itself has run."""
    if not file.is_file():
        raise JobError(f"there is no file {file}", hint="give a Python file that defines build(spark)")
    folder = str(file.resolve().parent)
    # As for a script: modules next to the file can be imported, here and in workers on this machine.
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    spec = importlib.util.spec_from_file_location(MODULE, file)
    if spec is None or spec.loader is None:
        raise JobError(f"{file} is not a Python file", hint="give it a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # dataclasses look it up there while the file runs
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file may raise anything
        raise _failed(file, "the job file", error) from error
    finally:
        # Workers cannot import it: without a module of that name, its functions and classes are sent by value.
        del sys.modules[MODULE]
    build = getattr(module, "build", None)
    if not callable(build):
        raise JobError(
            f"{file} has no function build(spark): there is nothing to run",
            hint="write: def build(spark): return query.to(ab.FileSink('results/'))",
        )
    return build  # type: ignore[no-any-return]


def deliveries_of(file: Path, build: Build, spark: SparkSession) -> tuple[Delivery, ...]:
    """What `build` returned, checked."""
    try:
        built: Any = build(spark)
    except AnabranchError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise _failed(file, "build(spark)", error) from error
    found = tuple(built) if isinstance(built, list | tuple) else (built,)
    if not found or not all(isinstance(each, Delivery) for each in found):
        raise JobError(
            f"build(spark) of {file} returned {built!r}, not results with a sink",
            hint="return query.to(sink), or a list of them",
        )
    return found


def _failed(file: Path, what: str, error: Exception) -> JobError:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    where = f" at line {lines[-1]}" if lines else ""
    return JobError(
        f"{what} of {file} failed{where}: {type(error).__name__}: {error}",
        hint="fix it and run it again; the checkpoint has not changed",
    )


def _wait(query: EpochQuery, view: LiveView, asked: Callable[[], bool]) -> None:
    """Wait until the query ends; on Ctrl-C or SIGTERM, stop it after the current epoch."""
    try:
        while not query.awaitTermination(_CHECK_EVERY):
            if asked():
                view.show_note("stopping after the current epoch; press Ctrl-C again to stop at once")
                query.stop()
                return
    except StreamingQueryException as error:
        raise JobError(
            f"the query failed: {cause_of(error)}",
            hint="fix the cause and run it again with the same --checkpoint: no result is lost or delivered twice",
        ) from error
