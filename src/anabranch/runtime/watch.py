"""A thread that watches Spark's query: it reports the end at once, and notices when the query waits.

Spark ends a query in its own thread and does not notify anyone. This thread polls for the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql.streaming.query import StreamingQuery

from anabranch.spark.quirks import status_of, wait_for_end

POLL_SECONDS = 0.2
"""Seconds between two checks of what Spark is doing. The end of the query is noticed at once."""
_WAITING = "Waiting"
"""Spark's status message starts with this between two polls of its sources, and between two triggers."""


@dataclass(frozen=True)
class WatchStatus:
    """What the last checks of Spark's query showed."""

    quiet_at: float
    """when Spark last waited for rows or for the next trigger, by the monotonic clock"""
    idle: bool = False
    """whether its last poll of the sources found nothing"""
    message: str = ""
    """Spark's own status message"""


class Watch:
    """Checks Spark's query until it ends."""

    def __init__(
        self,
        query: StreamingQuery,
        *,
        in_epoch: Callable[[], bool],
        no_rows: Callable[[float], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self.status = WatchStatus(time.monotonic())
        self._query = query
        self._in_epoch = in_epoch
        self._no_rows = no_rows
        self._ended = ended
        self._thread = threading.Thread(target=self._run, name="anabranch-watch", daemon=True)
        self._thread.start()

    def epoch_ended(self) -> None:
        """An epoch has ended, so the query makes progress: count that like a wait."""
        self.status = WatchStatus(time.monotonic())

    def _run(self) -> None:
        ended, failed = wait_for_end(self._query, POLL_SECONDS)
        while not ended:
            if not self._in_epoch():
                self._check()
            ended, failed = wait_for_end(self._query, POLL_SECONDS)
        self._ended(failed)

    def _check(self) -> None:
        at, now = time.time(), time.monotonic()
        status = status_of(self._query)
        if status is None:
            return
        message = str(status["message"])
        if status["isTriggerActive"] or not message.startswith(_WAITING):
            before = self.status
            self.status = WatchStatus(before.quiet_at, before.idle and not status["isDataAvailable"], message)
            return
        idle = not status["isDataAvailable"]
        self.status = WatchStatus(now, idle, message)
        if idle:
            self._no_rows(at)
