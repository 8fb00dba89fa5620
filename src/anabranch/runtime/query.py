"""The handle of a running query."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from anabranch import errors
from anabranch.errors import AnabranchError
from anabranch.io.replay import backlog
from anabranch.runtime.epochs import EpochRunner
from anabranch.runtime.exporters import Listener, notify
from anabranch.runtime.progress import EpochProgress

RECENT = 100
"""Epochs that `recentProgress` remembers."""


class EpochQuery:
    """A running query, with the names of Spark's StreamingQuery."""

    def __init__(self, runner: EpochRunner, name: str | None, listeners: Sequence[Listener]) -> None:
        self._runner = runner
        self._name = name
        self._listeners = tuple(listeners)
        self._progress: deque[EpochProgress] = deque(maxlen=RECENT)
        self._error: AnabranchError | None = None
        self._query: StreamingQuery | None = None
        self._ready = threading.Event()
        self._busy = threading.Lock()  # held while an epoch runs
        self._stopping = False
        self._refused = False  # an epoch came while stopping: Spark sees a failure, which is none
        self._told = threading.Lock()
        self._terminated = False

    # Called by `foreachBatch`, in a thread of Spark's.
    def _epoch(self, batch: DataFrame, epoch: int) -> None:
        self._ready.wait()
        with self._busy:
            if self._stopping:
                self._refused = True
                raise RuntimeError(f"epoch {epoch} came while the query was stopping; it runs after a restart")
            try:
                progress = self._runner.run(batch, epoch)
            except Exception as error:
                self._error = _unwrapped(error)
                raise
        if progress is not None:
            told = EpochProgress(**{**vars(progress), "run": self.runId, "backlog": self._backlog()})
            self._runner.history[-1] = told
            self._progress.append(told)
            notify(self._listeners, "on_progress", told)

    def _started(self, query: StreamingQuery) -> None:
        self._query = query
        notify(self._listeners, "on_started", self.id, self.runId)
        self._ready.set()

    @property
    def spark_query(self) -> StreamingQuery:
        """Spark's own handle."""
        assert self._query is not None
        return self._query

    @property
    def id(self) -> str:
        """Of the checkpoint: the same after a restart."""
        return self._runner.context.checkpoint.query

    @property
    def runId(self) -> str:
        """Of this run."""
        return str(self.spark_query.runId)

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def isActive(self) -> bool:
        return bool(self.spark_query.isActive)

    @property
    def status(self) -> dict[str, Any]:
        """What the query does now, as Spark says it."""
        return dict(self.spark_query.status)

    @property
    def lastProgress(self) -> EpochProgress | None:
        """The last epoch; None before the first."""
        return self._progress[-1] if self._progress else None

    @property
    def recentProgress(self) -> list[EpochProgress]:
        """The last epochs, oldest first."""
        return list(self._progress)

    def exception(self) -> AnabranchError | StreamingQueryException | None:
        """Why the query ended, if it failed."""
        failed = self.spark_query.exception()
        return None if failed is None or self._refused else self._ours(failed) or failed

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until the query ends; raises what made it fail. With a timeout in seconds, say whether it has ended."""
        try:
            if timeout is None:
                self.spark_query.awaitTermination()
                ended = True
            else:
                ended = bool(self.spark_query.awaitTermination(max(1, round(timeout))))
        except StreamingQueryException as failed:
            if self._refused:
                return True
            ours = self._ours(failed)
            self._terminate(str(ours or failed))
            if ours is not None:
                raise ours from failed
            raise
        if ended:
            self._terminate(None)
        return ended

    def processAllAvailable(self) -> None:
        """Wait until all rows that are there now have been processed; for tests."""
        try:
            self.spark_query.processAllAvailable()
        except StreamingQueryException as failed:
            ours = self._ours(failed)
            self._terminate(str(ours or failed))
            if ours is not None:
                raise ours from failed
            raise

    def stop(self) -> None:
        """End the query, after the epoch that runs now."""
        self._stopping = True
        # Spark would interrupt a running epoch. Nothing would be lost, it would run again; but it would be work for
        # nothing. Spark's stop() in turn waits for the next epoch's call, so the lock must be free by then.
        with self._busy:
            pass
        self.spark_query.stop()
        self._terminate(None)

    def explain(self) -> str:
        """The network, the settings in force and, once measured, what splitting costs."""
        from anabranch.runtime.explain import explain_running

        return explain_running(self._runner, self.lastProgress)

    def _backlog(self) -> int | None:
        """Rows that wait at the sources, as far as these say it; of the epoch before, which is what Spark knows now."""
        progress = self.spark_query.lastProgress
        if progress is None:
            return None
        known = [_waiting(source) for source in progress["sources"]]
        return sum(each for each in known if each is not None) if any(each is not None for each in known) else None

    def _ours(self, failed: StreamingQueryException) -> AnabranchError | None:
        """Our error behind Spark's. Those of sources come past `_epoch`, as text."""
        return self._error or _unwrapped(failed)

    def _terminate(self, error: str | None) -> None:
        with self._told:
            if self._terminated:
                return
            self._terminated = True
        notify(self._listeners, "on_terminated", self.id, error)


def _waiting(source: Any) -> int | None:
    if "anabranch-replay" in str(source["description"]) or "ReplaySource" in str(source["description"]):
        return backlog(source)
    return None


_TOLD = re.compile(r"anabranch\.errors\.(\w+): ((?:(?!anabranch\.errors\.\w+: ).)*?)\n  hint: ([^\n]*)", re.DOTALL)
"""One of our errors at the end of a Python traceback, as `AnabranchError` writes itself."""


def _unwrapped(error: BaseException) -> AnabranchError | None:
    """Our own error inside Spark's: the driver's as it is; a task's, which arrives as text, made again of that text."""
    seen: BaseException | None = error
    told: AnabranchError | None = None
    while seen is not None:
        if isinstance(seen, AnabranchError):
            return seen
        told = told or _told(str(seen))
        seen = seen.__cause__ or seen.__context__
    return told


def _told(text: str) -> AnabranchError | None:
    """The error that a traceback ends with: the last one in it, since causes come first."""
    found = list(_TOLD.finditer(text))
    if not found:
        return None
    name, message, hint = found[-1].groups()
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, AnabranchError)):
        kind = AnabranchError
    return kind(message, hint=hint.rstrip())
