"""A query reports its own end, once, whoever asks, with our error. A double plays Spark's handle.

Errors of tasks reach the driver as text; the handle makes errors of ours of it.
"""

from __future__ import annotations

import threading
import time
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException

from anabranch import errors
from anabranch.errors import AnabranchError, CheckpointError, OperatorError, StateError
from anabranch.observe.listeners import Watched
from anabranch.observe.progress import EpochProgress
from anabranch.observe.prometheus import Prometheus
from anabranch.query.settings import QoS
from anabranch.runtime.arrivals import Arrivals
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.handle import EpochQuery, _unwrapped
from anabranch.store.live.own_folder import OwnFolder

QUIET = {"message": "Waiting for data to arrive", "isDataAvailable": False, "isTriggerActive": False}


class SparkQuery:
    """Ends on request, with or without an error."""

    runId = "run"

    def __init__(self) -> None:
        self.end = threading.Event()
        self.failed: Exception | None = None
        self.lastProgress = None
        self.status: dict[str, Any] = QUIET

    def awaitTermination(self, timeout: float | None = None) -> bool:
        ended = self.end.wait(timeout)
        if ended and self.failed is not None:
            raise self.failed
        return ended

    def exception(self) -> Exception | None:
        return self.failed

    @property
    def isActive(self) -> bool:
        return not self.end.is_set()

    def stop(self) -> None:
        self.end.set()

    def processAllAvailable(self) -> None:
        self.awaitTermination()

    def fail(self, error: Exception) -> None:
        self.failed = error
        self.end.set()


class Runner:
    """As much of an EpochRunner as a handle needs."""

    def __init__(self) -> None:
        self.context = SimpleNamespace(checkpoint=SimpleNamespace(query="q", folder="ckpt", spark="ckpt/spark"))
        self.settings = Settings(QoS(), None, 2, 10, None, OwnFolder(None))
        self.state = SimpleNamespace(last=None)
        self.arrivals = Arrivals(None)
        self.history: list[EpochProgress] = []
        self.fails: Exception | None = None
        self.closed: list[bool] = []

    def close(self, *, finished: bool) -> None:
        self.closed.append(finished)

    def run(self, batch: Any, epoch: int) -> EpochProgress:
        if self.fails is not None:
            raise self.fails
        self.history.append(EpochProgress("q", "r", epoch, 0.0, 0.5, rows=10))
        return self.history[-1]


class Recorder:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.ended = threading.Event()

    def attach(self, query: Watched) -> None:
        self.calls.append(("attach", query.name))

    def on_started(self, query: str, run: str) -> None:
        self.calls.append(("started", query, run))

    def on_progress(self, progress: EpochProgress) -> None:
        self.calls.append(("progress", progress.epoch, progress.name))

    def on_terminated(self, query: str, error: str | None) -> None:
        self.calls.append(("terminated", query, error))
        self.ended.set()


def started(*listeners: Any) -> tuple[EpochQuery, SparkQuery, Runner]:
    runner, spark = Runner(), SparkQuery()
    query = EpochQuery(runner, "busy", listeners)  # type: ignore[arg-type]
    query._started(spark)  # type: ignore[arg-type]
    return query, spark, runner


def test_a_failed_epoch_is_reported_without_anybody_asking() -> None:
    listener = Recorder()
    with Prometheus() as metrics:
        query, spark, runner = started(listener, metrics)
        query._epoch(None, 0)  # type: ignore[arg-type]
        runner.fails = StateError("the disk is full", hint="make room")
        with pytest.raises(StateError):
            query._epoch(None, 1)  # type: ignore[arg-type]
        spark.fail(StreamingQueryException("a page of Java"))
        assert listener.ended.wait(10)
        assert listener.calls == [
            ("attach", "busy"),
            ("started", "q", "run"),
            ("progress", 0, "busy"),
            ("terminated", "q", "the disk is full (make room)"),
        ]
        with pytest.raises(StateError):
            query.awaitTermination()  # the listeners are called first: this call waits for them
        assert 'anabranch_query_running{query="q",query_name="busy"} 0' in metrics.text()
        assert 'anabranch_query_failures_total{query="q",query_name="busy"} 1' in metrics.text()
        status, body = metrics.health()
        assert status == 503 and '"state": "failed"' in body and "the disk is full" in body
    assert query.health.state == "failed"
    assert repr(query) == (
        "<EpochQuery 'busy' q: failed, epoch 0, 10 rows at 20 rows/s, the disk is full (make room)>"
    )  # fmt: skip


def test_a_failure_outside_of_an_epoch_is_reported_too() -> None:
    listener = Recorder()
    _, spark, _ = started(listener)
    spark.fail(StreamingQueryException("...\njava.io.IOException: offsets are gone\n\tat x"))
    assert listener.ended.wait(10)
    assert listener.calls[-1] == ("terminated", "q", "java.io.IOException: offsets are gone")


def test_a_lost_connection_is_a_failure() -> None:
    listener = Recorder()
    query, spark, _ = started(listener)
    spark.fail(ConnectionRefusedError("[Errno 111] Connection refused"))
    assert listener.ended.wait(10)
    assert "the connection to Spark is lost" in listener.calls[-1][2]
    assert query.health.state == "failed"


def test_a_lost_connection_is_reported_by_the_handle() -> None:
    """By whatever is asked first; Spark's own handle only says that it cannot be reached."""

    class Lost(SparkQuery):
        @property
        def isActive(self) -> bool:
            raise ConnectionRefusedError(111, "Connection refused")

        def exception(self) -> Exception | None:
            raise ConnectionRefusedError(111, "Connection refused")

        def awaitTermination(self, timeout: float | None = None) -> bool:
            self.end.wait()
            raise Py4JNetworkError("Answer from Java side is empty")

        def stop(self) -> None:
            raise ConnectionRefusedError(111, "Connection refused")

    def gone(query: EpochQuery) -> None:
        failed = query.exception()
        assert isinstance(failed, AnabranchError) and "the connection to Spark is lost" in failed.message
        assert not query.isActive and query.health.state == "failed"
        query.stop()
        with pytest.raises(AnabranchError, match="the connection to Spark is lost"):
            query.awaitTermination()

    for first in ("exception", "isActive", "stop"):
        listener, spark = Recorder(), Lost()
        query = EpochQuery(Runner(), "busy", (listener,))  # type: ignore[arg-type]
        query._started(spark)  # type: ignore[arg-type]
        asked = getattr(query, first)
        if callable(asked):
            asked()
        spark.end.set()
        gone(query)
        assert listener.ended.wait(10)
        assert [call[0] for call in listener.calls].count("terminated") == 1


def test_a_stop_is_no_failure_and_is_reported_once() -> None:
    listener = Recorder()
    query, spark, _ = started(listener)
    query.stop()
    assert query.awaitTermination()
    query.stop()
    assert [call[0] for call in listener.calls].count("terminated") == 1
    assert listener.calls[-1] == ("terminated", "q", None)
    assert query.health.state == "stopped"
    assert spark.end.is_set()


def test_a_listener_may_ask_for_the_end_while_it_hears_of_it() -> None:
    class Stops(Recorder):
        def on_terminated(self, query: str, error: str | None) -> None:
            handle.stop()
            super().on_terminated(query, error)

    listener = Stops()
    handle, spark, _ = started(listener)
    spark.fail(StreamingQueryException("x"))
    assert listener.ended.wait(10)


def test_idle_and_running_are_different_states() -> None:
    query, spark, _ = started()
    assert within(lambda: query.health.state == "idle")
    spark.status = {"message": "Writing offsets to log", "isDataAvailable": True, "isTriggerActive": True}
    query._epoch(None, 0)  # type: ignore[arg-type]
    assert within(lambda: query.health.state == "running")
    spark.status = QUIET
    assert within(lambda: query.health.state == "idle")
    assert repr(query) == "<EpochQuery 'busy' q: idle, epoch 0, 10 rows at 20 rows/s>"
    query.stop()


def within(holds: Any, seconds: float = 10.0) -> bool:
    """Whether it comes to hold: the watching thread looks a few times a second."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return False


def test_each_caller_gets_an_error_of_its_own() -> None:
    """An instance that is raised twice would collect the tracebacks of both calls."""
    query, spark, runner = started()
    runner.fails = StateError("the disk is full", hint="make room")
    with pytest.raises(StateError):
        query._epoch(None, 0)  # type: ignore[arg-type]
    spark.fail(StreamingQueryException("a page of Java"))
    raised: list[BaseException] = []
    for wait in (query.awaitTermination, query.awaitTermination, query.processAllAvailable):
        with pytest.raises(StateError, match="the disk is full") as caught:
            wait()
        raised.append(caught.value)
    for returned in (query.exception(), query.exception()):
        assert isinstance(returned, StateError) and returned.hint == "make room" and returned.__traceback__ is None
        raised.append(returned)
    assert len({id(error) for error in [runner.fails, *raised]}) == 6
    depths = [len(traceback.extract_tb(error.__traceback__)) for error in raised[:2]]
    assert depths[0] == depths[1]


def test_a_lost_connection_does_not_raise_sparks_error_again() -> None:
    query, spark, _ = started()
    failed = StreamingQueryException("java.io.IOException: offsets are gone")
    spark.fail(failed)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    spark.failed = Py4JNetworkError("Answer from Java side is empty")
    with pytest.raises(StreamingQueryException, match="offsets are gone") as caught:
        query.awaitTermination()
    assert caught.value is not failed and query.exception() is failed


ALL = sorted(
    (each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, AnabranchError)),
    key=lambda each: each.__name__,
)

# What Spark puts around a Python traceback.
JOB = "Job aborted due to stage failure: Task 1 failed 1 times: org.apache.spark.api.python.PythonException: "
FRAMES = "\n\n\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala)"


def arrived(error: BaseException) -> RuntimeError:
    """The error as the driver gets it."""
    text = "".join(traceback.format_exception(error))
    return RuntimeError(f"{JOB}{text}{FRAMES}\nCaused by: {text}{FRAMES}\n")


@pytest.mark.parametrize("kind", ALL)
def test_every_error_of_a_task_is_made_again(kind: type[AnabranchError]) -> None:
    found = _unwrapped(arrived(kind("the state is torn: 3 bytes", hint="restore it")))
    assert type(found) is kind
    assert (found.message, found.hint) == ("the state is torn: 3 bytes", "restore it")


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1), st.text("abc: .'", min_size=1))
def test_message_and_hint_come_whole(message: str, hint: str) -> None:
    found = _unwrapped(arrived(StateError(message, hint=hint)))
    assert found is not None
    assert (found.message, found.hint) == (message, hint.rstrip())


def test_a_message_of_several_lines() -> None:
    found = _unwrapped(arrived(CheckpointError("of another query\n    -by a\n    +by b", hint="take another")))
    assert isinstance(found, CheckpointError)
    assert found.message == "of another query\n    -by a\n    +by b"


def test_the_last_of_a_chain_counts() -> None:
    try:
        try:
            raise StateError("the disk is full", hint="make room")
        except StateError as cause:
            raise OperatorError("Totals failed", hint="mend it") from cause
    except OperatorError as error:
        found = _unwrapped(arrived(error))
    assert isinstance(found, OperatorError)
    assert found.hint == "mend it"


def test_an_error_of_the_driver_comes_as_it_is() -> None:
    ours = StateError("torn", hint="restore it")
    outer = RuntimeError("the batch failed")
    outer.__cause__ = ours
    assert _unwrapped(outer) is ours


def test_an_error_of_a_later_release_keeps_its_words() -> None:
    found = _unwrapped(RuntimeError("anabranch.errors.NewerError: no such thing\n  hint: take an older one\n"))
    assert type(found) is AnabranchError
    assert found.message == "no such thing"


@pytest.mark.parametrize("text", ["ValueError: nothing of ours", "anabranch.errors.StateError: and no more"])
def test_what_is_not_ours_is_left(text: str) -> None:
    assert _unwrapped(RuntimeError(text)) is None
