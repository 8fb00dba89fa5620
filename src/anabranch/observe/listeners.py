"""Listeners: callbacks that report what a query does, and a file of JSON lines.

A **listener** is called when a query starts, after each epoch with its progress, and when the query ends, like Spark's
`StreamingQueryListener`. It is called on the driver between two epochs, so it should return quickly. Exceptions that it
raises are logged and ignored (`notify`): a full disk under a metrics file must not stop a stream. A listener with a
method `attach` first receives the query itself (`Attachable`), so that it can ask for its name and its health.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from anabranch.calls import made_as
from anabranch.errors import ListenerError
from anabranch.observe.health import Health
from anabranch.observe.progress import EpochProgress

LOG = logging.getLogger(__name__)


@runtime_checkable
class Listener(Protocol):
    """Callbacks about a query. Calls for one query are sequential; several queries may call at the same time."""

    def on_started(self, query: str, run: str) -> None:
        """The query starts: its id, and the id of this run."""
        ...

    def on_progress(self, progress: EpochProgress) -> None:
        """An epoch was published."""
        ...

    def on_terminated(self, query: str, error: str | None) -> None:
        """The query ended; `error` is one line, or None."""
        ...


@runtime_checkable
class Watched(Protocol):
    """What a listener can read from a query at any time."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str | None: ...

    @property
    def health(self) -> Health: ...


@runtime_checkable
class Attachable(Protocol):
    """A listener that receives the query itself: `attach` is called once, before `on_started`."""

    def attach(self, query: Watched) -> None: ...


def attach(listeners: Iterable[Listener], query: Watched) -> None:
    """Give the query to the listeners that have an `attach`."""
    for listener in listeners:
        if isinstance(listener, Attachable):
            _call(listener, "attach", query)


def notify(
    listeners: Iterable[Listener], method: Literal["on_started", "on_progress", "on_terminated"], *args: Any
) -> None:
    """Call one method of every listener. An error in one is logged; the query and the other listeners continue."""
    for listener in listeners:
        _call(listener, method, *args)


def _call(listener: object, method: str, *args: Any) -> None:
    try:
        getattr(listener, method)(*args)
    except Exception as error:  # a user's listener may raise anything
        name, traced = type(listener).__name__, LOG.isEnabledFor(logging.DEBUG)
        LOG.error("listener %s failed in %s; the query continues: %r", name, method, error, exc_info=traced)


class Closeable(ABC):
    """A listener with a `close`, for use in a `with` statement."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


@made_as('ab.JsonLines("progress.jsonl")')
class JsonLines(Closeable):
    """One line of JSON per epoch, appended and flushed; `EpochProgress.from_json(json.loads(line))` reads it back."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Opened for reading too: a crash may have cut off the last line, and the next must start on a new one.
            self._file = self.path.open("ab+")
            if self._file.tell() > 0:
                self._file.seek(-1, 2)
                if self._file.read(1) != b"\n":
                    self._file.write(b"\n")
        except OSError as error:
            raise ListenerError(
                f"cannot append to {str(self.path)!r} ({error.strerror}): progress would not be recorded",
                hint="give a file in a folder that this process can write to",
            ) from error

    def on_started(self, query: str, run: str) -> None:
        """Nothing to write: every line names its query and run."""

    def on_progress(self, progress: EpochProgress) -> None:
        with self._lock:
            self._file.write(progress.json.encode() + b"\n")
            self._file.flush()

    def on_terminated(self, query: str, error: str | None) -> None:
        """The file stays open: another query may share it."""

    def close(self) -> None:
        with self._lock:
            self._file.close()
