"""`anabranch run`: a job file, run until its data or somebody ends it.

A job file is a Python file with a function `build(spark)` that returns deliveries: what `.to(sink)` returns, one or a
list of them. The command makes the session, runs the file, shows the metrics.

The file is no module that others can import: what it defines travels to the workers as a copy, so it need not lie
there. What it imports must.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from rich.console import Console

from anabranch.embedded import session
from anabranch.errors import AnabranchError, JobError
from anabranch.runtime.deliveries import Delivery
from anabranch.runtime.exporters import JsonLines, Listener, Prometheus
from anabranch.runtime.query import EpochQuery
from anabranch.runtime.start import start
from anabranch.ui import LiveView

MODULE = "anabranch_job"
"""`__name__` of a job file while it runs; not `__main__`, so that a guarded part is left out."""
_LOOK = 1.0
"""Seconds between two looks whether somebody wants to stop."""

Build = Callable[[SparkSession], Delivery | Sequence[Delivery]]


def run_file(
    file: Path,
    *,
    master: str | None,
    checkpoint: str | None,
    trigger: str | None,
    prometheus: int | None,
    json_lines: Path | None,
    console: Console,
) -> None:
    """Run a job file; returns when the query has ended or was stopped, and raises what made it fail."""
    build = load_job(file)
    with ExitStack() as stack:
        view = LiveView(console)
        listeners: list[Listener] = [view]
        if json_lines is not None:
            listeners.append(stack.enter_context(JsonLines(json_lines)))
        if prometheus is not None:
            server = stack.enter_context(Prometheus(prometheus))
            listeners.append(server)
            view.say(f"metrics at {server.url}")
        if checkpoint is None:
            checkpoint = stack.enter_context(tempfile.TemporaryDirectory(prefix="anabranch-run-"))
            view.say("no --checkpoint: a restart will begin from the beginning")
        deliveries = deliveries_of(file, build, session(master, app_name=f"anabranch run {file.name}"))
        with view.shown():
            query = start(*deliveries, checkpoint=checkpoint, trigger=trigger, listeners=listeners)
            _wait(query, view)
        console.print(f"{view.totals.describe()}", highlight=False)


def load_job(file: Path) -> Build:
    """The function `build` of a job file, after the file itself has run."""
    if not file.is_file():
        raise JobError(f"there is no file {file}", hint="name a Python file that defines build(spark)")
    folder = str(file.resolve().parent)
    # As for a script: what lies beside the file can be imported, here and in workers of this machine.
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    spec = importlib.util.spec_from_file_location(MODULE, file)
    if spec is None or spec.loader is None:
        raise JobError(f"{file} is not a Python file", hint="give it a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # dataclasses look for it there while the file runs
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(file, "the job file", error) from error
    finally:
        # Workers cannot import it: with no module of that name, its functions and classes are sent as they are.
        del sys.modules[MODULE]
    build = getattr(module, "build", None)
    if not callable(build):
        raise JobError(
            f"{file} has no function build(spark), so there is nothing to run",
            hint="write: def build(spark): return query.to(ab.FileSink('results/'))",
        )
    return build  # type: ignore[no-any-return]


def deliveries_of(file: Path, build: Build, spark: SparkSession) -> tuple[Delivery, ...]:
    """What `build` returns, checked."""
    try:
        built: Any = build(spark)
    except AnabranchError:
        raise
    except Exception as error:
        raise _failed(file, "build(spark)", error) from error
    found = tuple(built) if isinstance(built, list | tuple) else (built,)
    if not found or not all(isinstance(each, Delivery) for each in found):
        raise JobError(
            f"build(spark) of {file} returned {built!r}, which says of no result where it goes",
            hint="return query.to(sink), or a list of these",
        )
    return found


def _failed(file: Path, what: str, error: Exception) -> JobError:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    where = f" at line {lines[-1]}" if lines else ""
    return JobError(
        f"{what} of {file} failed{where}: {type(error).__name__}: {error}",
        hint="mend it and run again; the checkpoint is as it was",
    )


def _wait(query: EpochQuery, view: LiveView) -> None:
    """Until the query ends, or Ctrl-C (or SIGTERM) asks for it; then after the epoch that runs."""
    with asked_to_stop() as asked:
        try:
            while not query.awaitTermination(_LOOK):
                if asked():
                    view.say("stopping after the epoch that runs; Ctrl-C again stops at once")
                    query.stop()
                    return
        except StreamingQueryException as error:
            raise JobError(
                f"the query failed: {cause_of(error)}",
                hint="mend the cause and run again with the same --checkpoint: no result is lost or comes twice",
            ) from error


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM came. PySpark's own handler would cancel the epoch that runs; a second signal does."""
    asked = False
    before: dict[signal.Signals, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        for each, handler in before.items():
            signal.signal(each, handler)

    for each in (signal.SIGINT, signal.SIGTERM):
        before[each] = signal.signal(each, note)
    try:
        yield lambda: asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def cause_of(error: StreamingQueryException) -> str:
    """The line that says most: Spark's text is a page of stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (told or lines or ["Spark does not say why"])[-1]
