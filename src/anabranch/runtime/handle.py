"""The handle of a running query."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NoReturn

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from anabranch import errors
from anabranch.errors import AnabranchError
from anabranch.io.replay import backlog
from anabranch.observe.health import Health, Vitals, judge
from anabranch.observe.listeners import Listener, attach, notify
from anabranch.observe.log import QueryLog
from anabranch.observe.progress import EpochProgress
from anabranch.query.triggers import with_trigger
from anabranch.runtime.runner import EpochRunner
from anabranch.runtime.watch import Watch
from anabranch.spark.quirks import LOST, disk_error
from anabranch.spark.worker_python import worker_python_error
from anabranch.text import amount

RECENT = 100
"""How many epochs `recentProgress` keeps."""
_USUAL = 20
"""How many recent epochs give the usual duration of an epoch."""


@dataclass(frozen=True)
class Failure:
    """One of our errors, kept without its instance. One that is raised to several callers mixes their tracebacks."""

    kind: type[AnabranchError]
    message: str
    hint: str

    @classmethod
    def of(cls, error: AnabranchError) -> Failure:
        return cls(type(error), error.message, error.hint)

    def error(self) -> AnabranchError:
        """A new instance."""
        return self.kind(self.message, hint=self.hint)


class EpochQuery:
    """A running query, with the names of Spark's StreamingQuery."""

    def __init__(self, runner: EpochRunner, name: str | None, listeners: Sequence[Listener]) -> None:
        self._runner = runner
        self._name = name
        # The log comes first: if a listener fails, the log then has the event before the failure.
        log = QueryLog(name, str(runner.context.checkpoint.folder), runner.state.last, runner.settings.describe())
        self._listeners: tuple[Listener, ...] = (log, *listeners)
        self._progress: deque[EpochProgress] = deque(maxlen=RECENT)
        self._error: Failure | None = None  # what made an epoch fail
        self._query: StreamingQuery | None = None
        self._watch: Watch | None = None
        self._ready = threading.Event()
        self._busy = threading.Lock()  # held while an epoch runs
        self._began: float | None = None  # when that epoch began
        self._stopping = False
        self._refused = False  # an epoch came while stopping: Spark reports a failure, but there is none
        self._ending = threading.RLock()  # held while listeners are notified of the end: several threads may ask for it
        self._terminated = False
        self._failed: Failure | StreamingQueryException | None = None  # what made it end

    # Called by `foreachBatch`, in one of Spark's threads.
    def _epoch(self, batch: DataFrame, epoch: int) -> None:
        self._ready.wait()
        with self._busy:
            if self._stopping:
                self._refused = True
                raise RuntimeError(f"epoch {epoch} came while the query was stopping; it runs after a restart")
            self._began = time.monotonic()
            try:
                progress = self._runner.run(batch, epoch)
            except Exception as error:
                ours = _unwrapped(error)
                self._error = None if ours is None else Failure.of(ours)
                raise
            finally:
                self._began = None
        if self._watch is not None:
            self._watch.epoch_ended()
        if progress is not None:
            named = replace(progress, run=self.runId, name=self._name)
            self._progress.append(named)
            if not self._terminated:  # Spark may have ended the query while this epoch ran
                notify(self._listeners, "on_progress", named)

    def _writer(self, trigger: str | None) -> DataStreamWriter:
        """Build Spark's query, ready to start."""
        checkpoint = self._runner.context.checkpoint
        writer = self._runner.frame.writeStream.foreachBatch(self._epoch)
        writer = writer.option("checkpointLocation", checkpoint.spark)
        return with_trigger(writer if self._name is None else writer.queryName(self._name), trigger)

    def _started(self, query: StreamingQuery) -> None:
        self._query = query
        self._runner.backlog = self._backlog
        attach(self._listeners, self)
        notify(self._listeners, "on_started", self.id, self.runId)
        self._watch = Watch(
            query,
            in_epoch=lambda: self._began is not None,
            no_rows=self._runner.arrivals.no_rows,
            ended=self._ended,
        )
        self._ready.set()

    def __repr__(self) -> str:
        last, health = self.lastProgress, self.health
        named = f" {self._name!r}" if self._name else ""
        parts = [f"<EpochQuery{named} {self.id}: {health.state}"]
        if last is not None:
            parts.append(f"epoch {last.epoch}, {last.rows:,} rows at {amount(last.processed_rate)} rows/s")
        if not health.ok:
            parts.append(health.why)
        return ", ".join(parts) + ">"

    @property
    def spark_query(self) -> StreamingQuery:
        """Spark's own handle."""
        assert self._query is not None
        return self._query

    @property
    def id(self) -> str:
        """The checkpoint's id. It stays the same after a restart."""
        return self._runner.context.checkpoint.query

    @property
    def runId(self) -> str:
        """The id of this run. A restart gets a new one."""
        return str(self.spark_query.runId)

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def isActive(self) -> bool:
        try:
            return not self._terminated and bool(self.spark_query.isActive)
        except LOST as lost:
            self._ended(lost)
            return False

    @property
    def status(self) -> dict[str, Any]:
        """What the query is doing now, as Spark reports it."""
        return dict(self.spark_query.status)

    @property
    def lastProgress(self) -> EpochProgress | None:
        """The progress of the last epoch; None before the first."""
        return self._progress[-1] if self._progress else None

    @property
    def recentProgress(self) -> list[EpochProgress]:
        """The progress of the last epochs, oldest first."""
        return list(self._progress)

    @property
    def health(self) -> Health:
        """Whether the query is idle, running, stalled, failed or stopped, and why (see `anabranch.observe.health`)."""
        began, watch = self._began, self._watch
        now, last = time.monotonic(), self.lastProgress
        seconds = [epoch.seconds for epoch in self.recentProgress[-_USUAL:]]
        return judge(
            Vitals(
                epoch=self._runner.state.last if last is None else last.epoch,
                running=None if began is None else now - began,
                usual=median(seconds) if seconds else None,
                busy=0.0 if watch is None else now - watch.status.quiet_at,
                busy_with="" if watch is None else watch.status.message,
                idle=watch is not None and watch.status.idle,
                ended=self._terminated,
                error=None if self._failed is None else cause_of(_returned(self._failed)),
            )
        )

    def exception(self) -> AnabranchError | StreamingQueryException | None:
        """Why the query ended, if it failed."""
        if not self._terminated:
            try:
                failed = self.spark_query.exception()
            except LOST as lost:
                self._ended(lost)
            else:
                return None if failed is None or self._refused else _returned(self._ours(failed) or failed)
        return None if self._failed is None else _returned(self._failed)

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until the query ends, or for `timeout` seconds. Return whether it ended; raise its error."""
        try:
            if timeout is None:
                self.spark_query.awaitTermination()
                ended = True
            else:
                ended = bool(self.spark_query.awaitTermination(max(1, round(timeout))))
        except StreamingQueryException as failed:
            self._ended(failed)
            if self._refused:
                return True
            self._raise(failed)
        except LOST as lost:
            self._ended(lost)
            if self._failed is None:  # it had already ended without an error
                return True
            raise _new(self._failed) from lost
        if ended:
            self._ended(None)
        return ended

    def processAllAvailable(self) -> None:
        """Wait until all rows available now have been processed. Meant for tests."""
        try:
            self.spark_query.processAllAvailable()
        except StreamingQueryException as failed:
            self._ended(failed)
            self._raise(failed)
        except LOST as lost:
            self._ended(lost)
            if self._failed is not None:
                raise _new(self._failed) from lost

    def stop(self) -> None:
        """Stop the query after the current epoch."""
        self._stopping = True
        # Spark would interrupt a running epoch. It would run again after a restart, but its work would be wasted.
        # Spark's stop() waits for a call of the next epoch to return, so the lock must be free by then.
        with self._busy:
            pass
        try:
            self.spark_query.stop()
            self._ended(self.spark_query.exception())
        except LOST as lost:  # so the query has ended
            self._ended(lost)

    def explain(self) -> str:
        """The network, the current settings and, once measured, what splitting costs."""
        from anabranch.runtime.explain import explain_running

        return explain_running(self._runner, self.lastProgress)

    def _backlog(self) -> int | None:
        """Rows waiting at the sources that report them. The number is from the previous epoch, the last Spark knows."""
        progress = self.spark_query.lastProgress
        if progress is None:
            return None
        known = [_waiting(source) for source in progress["sources"]]
        return sum(each for each in known if each is not None) if any(each is not None for each in known) else None

    def _ours(self, failed: StreamingQueryException) -> Failure | None:
        """Our error behind Spark's. An error of a source does not pass through `_epoch`: it arrives as text."""
        if self._error is not None:
            return self._error
        found = _unwrapped(failed) or disk_error(failed, self._runner.context.checkpoint.spark)
        return None if found is None else Failure.of(found)

    def _raise(self, failed: StreamingQueryException) -> NoReturn:
        ours = self._ours(failed)
        if ours is None:
            raise failed
        raise ours.error() from failed

    def _ended(self, failed: Exception | None) -> None:
        """The query has ended: on its own, by `stop`, or with this error."""
        if failed is None or self._refused:
            self._terminate(None)
        elif isinstance(failed, StreamingQueryException):
            self._terminate(self._ours(failed) or failed)
        else:
            lost = Failure(
                AnabranchError,
                f"the connection to Spark is lost, so the query has ended: {cause_of(failed)}",
                hint="start it again with the same checkpoint: no result is lost or delivered twice",
            )
            self._terminate(self._error or lost)

    def _terminate(self, error: Failure | StreamingQueryException | None) -> None:
        """End the query, once. A second caller waits until the first is done."""
        with self._ending:
            if self._terminated:
                return
            self._failed = error
            self._terminated = True
            try:
                self._runner.close(finished=error is None and not self._stopping)
            finally:
                notify(self._listeners, "on_terminated", self.id, None if error is None else cause_of(_returned(error)))


def _returned(failed: Failure | StreamingQueryException) -> AnabranchError | StreamingQueryException:
    """The error for a caller who asks for it, and does not get it raised."""
    return failed.error() if isinstance(failed, Failure) else failed


def _new(failed: Failure | StreamingQueryException) -> AnabranchError | StreamingQueryException:
    """The error as a new instance, to raise it. Spark's own error keeps its text."""
    return failed.error() if isinstance(failed, Failure) else StreamingQueryException(str(failed))


def _waiting(source: Any) -> int | None:
    if "anabranch-replay" in str(source["description"]) or "ReplaySource" in str(source["description"]):
        return backlog(source)
    return None


_OUR_ERROR = re.compile(r"anabranch\.errors\.(\w+): ((?:(?!anabranch\.errors\.\w+: ).)*?)\n  hint: ([^\n]*)", re.DOTALL)
"""One of our errors at the end of a Python traceback, as `AnabranchError` prints itself."""


def _unwrapped(error: BaseException) -> AnabranchError | None:
    """Our own error inside Spark's: the driver's as it is; a task's, which arrives as text, rebuilt from that text."""
    current: BaseException | None = error
    rebuilt: AnabranchError | None = None
    while current is not None:
        if isinstance(current, AnabranchError):
            return current
        rebuilt = rebuilt or _error_in(str(current)) or worker_python_error(str(current))
        current = current.__cause__ or current.__context__
    return rebuilt


def _error_in(text: str) -> AnabranchError | None:
    """The error that a traceback ends with: the last one in it, since causes come first."""
    found = list(_OUR_ERROR.finditer(text))
    if not found:
        return None
    name, message, hint = found[-1].groups()
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, AnabranchError)):
        kind = AnabranchError
    return kind(message, hint=hint.rstrip())


def cause_of(error: BaseException) -> str:
    """The cause in one line: our message and hint, or the most useful line of Spark's stack traces."""
    if isinstance(error, AnabranchError):
        return " ".join(f"{error.message} ({error.hint})".split())
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (named or lines or [type(error).__name__])[-1]
