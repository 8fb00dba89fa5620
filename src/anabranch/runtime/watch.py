"""A thread that watches Spark's query: tells at once that it ended, and sees when it waits.

Spark ends a query in a thread of its own, and says so only to those who ask. Nobody may ask for hours, so this does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql.streaming.query import StreamingQuery

LOOK = 0.2
"""Seconds between two looks at what Spark does. Its end is heard of at once."""
_WAITING = "Waiting"
"""Spark's message begins so between two looks at its sources, and between two triggers; not while it starts up."""


@dataclass(frozen=True)
class Seen:
    """What the last looks showed."""

    quiet_at: float
    """when Spark last waited for rows or the next trigger, by the monotonic clock"""
    idle: bool = False
    """its last look at the sources had found nothing"""
    message: str = ""


class Watch:
    """Looks at Spark's query until it ends."""

    def __init__(
        self,
        query: StreamingQuery,
        *,
        in_epoch: Callable[[], bool],
        saw_nothing: Callable[[float], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self.seen = Seen(time.monotonic())
        self._query = query
        self._in_epoch = in_epoch
        self._saw_nothing = saw_nothing
        self._ended = ended
        self._thread = threading.Thread(target=self._run, name="anabranch-watch", daemon=True)
        self._thread.start()

    def epoch_ended(self) -> None:
        """The query does its work: it counts as having waited."""
        self.seen = Seen(time.monotonic())

    def _run(self) -> None:
        failed: Exception | None = None
        try:
            while not self._query.awaitTermination(LOOK):  # type: ignore[arg-type]  # takes floats, and says int
                if not self._in_epoch():
                    self._look()
        except Exception as error:  # what made it fail; or Java is gone, for which py4j has several names
            failed = error
        self._ended(failed)

    def _look(self) -> None:
        at, now = time.time(), time.monotonic()
        status = self._query.status
        message = str(status["message"])
        if status["isTriggerActive"] or not message.startswith(_WAITING):
            self.seen = Seen(self.seen.quiet_at, self.seen.idle and not status["isDataAvailable"], message)
            return
        idle = not status["isDataAvailable"]
        self.seen = Seen(now, idle, message)
        if idle:
            self._saw_nothing(at)
