"""The log: one line for each event that an operator of a query wants to see, and no more."""

from __future__ import annotations

import logging

import pytest

import anabranch
from anabranch.observe.log import QueryLog
from anabranch.observe.progress import DropProgress, EpochProgress, OperatorProgress, WorkerMeasure
from anabranch.query.settings import QoS
from anabranch.runtime.driver.settings import Settings

SETTINGS = Settings(QoS(max_latency="5 s"), "1 second", 4, 10, 30.0, "")


def epoch(number: int, at: float = 0.0, drops: tuple[DropProgress, ...] = (), **operator: object) -> EpochProgress:
    measured = OperatorProgress("window-1", **operator)  # type: ignore[arg-type]
    return EpochProgress("q", "r", number, at, 1.0, operators=(measured,), drops=drops)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="anabranch")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in log.records]


def test_start_restart_and_end(log: pytest.LogCaptureFixture) -> None:
    QueryLog(None, "ckpt", None, SETTINGS.describe()).on_started("q", "r")
    again = QueryLog("busy", "ckpt", 41, SETTINGS.describe())
    again.on_started("q", "r2")
    again.on_progress(epoch(42))
    again.on_terminated("q", None)
    again.on_terminated("q", "the disk is full (make room)")
    first, second, ended, failed = lines(log)
    assert first == (
        "INFO",
        "query q starts with epoch 0: checkpoint ckpt, trigger 1 second, 4 workers, a snapshot every 10 epochs, "
        "sources idle after 30 s, max_latency='5 s', run r",
    )
    assert second[1].startswith("query busy (q) continues after epoch 41, with epoch 42: checkpoint ckpt")
    assert ended == ("INFO", "query busy (q) ended after epoch 42")
    assert failed == ("ERROR", "query busy (q) failed after epoch 42: the disk is full (make room)")


def test_replays_restores_and_decisions_have_their_reasons(log: pytest.LogCaptureFixture) -> None:
    workers = (
        WorkerMeasure(0, 1, 1.0, rebuilt=3, rebuilt_why={"no usable live state on this host": 3}),
        WorkerMeasure(1, 1, 1.0, rebuilt=1, rebuilt_why={"live state of another epoch": 1}),
    )
    operator = OperatorProgress("window-1", workers=workers, decisions={"batch": 8, "why:batch": "B 4 -> 8"})
    QueryLog(None, "ckpt", None, SETTINGS.describe()).on_progress(
        EpochProgress("q", "r", 7, 0.0, 1.0, replayed=True, operators=(operator,))
    )
    assert lines(log) == [
        ("INFO", "query q, epoch 7: ran again, with the decisions of the first run"),
        (
            "INFO",
            "query q, epoch 7, window-1: restored 4 groups from the epoch store (1 for live state of another epoch, "
            "3 for no usable live state on this host)",
        ),
        ("INFO", "query q, epoch 7, window-1: batch = 8: B 4 -> 8"),
    ]


def test_late_and_bad_rows_are_logged_at_once_then_once_a_minute(log: pytest.LogCaptureFixture) -> None:
    written = QueryLog(None, "ckpt", None, SETTINGS.describe())
    for second in range(130):
        written.on_progress(epoch(second, float(second), late=2, bad=second % 2, watermark=0))
    written.on_terminated("q", None)
    at = "window-1 with its watermark at 1970-01-01 00:00:00Z"
    assert lines(log) == [
        ("WARNING", f"query q, epoch 0, {at}: 2 late rows, kept in the side output"),
        ("WARNING", f"query q, epoch 60, {at}: 30 bad and 120 late rows, kept in the side output"),
        ("WARNING", f"query q, epoch 120, {at}: 30 bad and 120 late rows, kept in the side output"),
        ("WARNING", "query q, window-1: 5 bad and 18 late rows, kept in the side output"),
        ("INFO", "query q ended after epoch 129"),
    ]


def test_dropping_is_logged_when_it_changes(log: pytest.LogCaptureFixture) -> None:
    written = QueryLog(None, "ckpt", None, SETTINGS.describe())
    half, more = (DropProgress("source-0", p, 3, "too much comes in") for p in (0.5, 0.75))
    for number, drops in enumerate([(), (half,), (half,), (more,), ()]):
        written.on_progress(epoch(number, drops=drops))
    logged = [message for _, message in lines(log)]
    assert [message.split(":")[0] for message in logged] == [f"query q, epoch {n}" for n in (1, 3, 4)]
    assert "p = 0.75" in logged[1] and "too much comes in" in logged[1]
    assert logged[2].endswith("windows are no longer dropped at source-0")


def test_the_library_installs_no_handler_that_writes() -> None:
    handlers = logging.getLogger(anabranch.__name__).handlers
    assert [type(each) for each in handlers if not each.__class__.__name__.startswith("LogCapture")] == [
        logging.NullHandler
    ]
