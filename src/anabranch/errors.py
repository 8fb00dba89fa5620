"""One family of errors.

Every message says what is wrong and what it would cause; the hint says what to do. Catch `AnabranchError` to catch
them all; the subclasses are for callers that react differently to different causes.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

__all__ = [
    "AnabranchError",
    "ArithmeticOverflowError",
    "CheckpointError",
    "ColumnNotFoundError",
    "ColumnTypeError",
    "ControllerError",
    "DisorderError",
    "InvalidArgumentError",
    "InvalidWindowError",
    "JavaNotFoundError",
    "JobError",
    "ListenerError",
    "MissingDependencyError",
    "OperatorError",
    "OverloadError",
    "ReplayError",
    "StateError",
    "StrategyError",
    "StreamingError",
    "WorkerPythonError",
]


class AnabranchError(Exception):
    """Base of all errors that Anabranch raises on purpose."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(f"{message}\n  hint: {hint}")
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Spark moves exceptions from workers to the driver; the keyword-only hint needs a constructor of its own.
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(cls: type[AnabranchError], message: str, hint: str) -> AnabranchError:
    return cls(message, hint=hint)


class InvalidArgumentError(AnabranchError, ValueError):
    """A value that no query can use: a negative duration, a batch of no windows."""


class InvalidWindowError(InvalidArgumentError):
    """A window that cannot exist: size < slide, zero or negative durations."""


class ColumnNotFoundError(AnabranchError, LookupError):
    """A column that the DataFrame does not have."""


class ColumnTypeError(AnabranchError, TypeError):
    """A column whose type the query cannot use."""


class StrategyError(AnabranchError):
    """An aggregate or a stream that cannot run with the requested strategy."""


class StreamingError(AnabranchError):
    """An operation that a streaming DataFrame does not support, or a missing watermark."""


class ReplayError(StreamingError):
    """Recorded files that cannot be replayed: they changed while the stream ran, or their times go backwards."""


class ArithmeticOverflowError(AnabranchError, ArithmeticError):
    """A window's sum that does not fit its type; the wrapped value would be wrong."""


class DisorderError(AnabranchError):
    """An input of an ordered merge that goes backwards."""


class ListenerError(AnabranchError):
    """A listener that cannot do its work: a file that cannot be written, a port that is taken."""


class ControllerError(AnabranchError, LookupError):
    """A controller that does not exist, or two that claim the same name or setting."""


class OverloadError(AnabranchError):
    """More rows arrive than can be processed within the latency bound, and the query is set to stop in that case."""


class OperatorError(AnabranchError):
    """A user's operator, route or sink that did something the runtime cannot handle."""


class StateError(AnabranchError):
    """A durable file that is missing, damaged or cannot be written, or live state that another process has changed."""


class CheckpointError(AnabranchError):
    """A checkpoint folder that belongs to another query, to a newer release, or to something else."""


class JobError(AnabranchError):
    """A job file that `anabranch run` cannot run, or whose query failed."""


class JavaNotFoundError(AnabranchError):
    """No Java installation that Spark can run on."""


class WorkerPythonError(AnabranchError):
    """The workers run another Python or another release of Anabranch, or lack packages that they need."""


class MissingDependencyError(AnabranchError, ImportError):
    """An optional package that is not installed."""


def column_not_found(name: str, columns: Iterable[str]) -> ColumnNotFoundError:
    """The error for an unknown column; it suggests similar names."""
    known = list(columns)
    near = difflib.get_close_matches(name.lower(), [c.lower() for c in known], n=3, cutoff=0.5)
    names = [c for c in known if c.lower() in near]
    hint = f"did you mean {' or '.join(repr(c) for c in names)}?" if names else f"the columns are {', '.join(known)}"
    return ColumnNotFoundError(f"there is no column {name!r} in the DataFrame", hint=hint)


def cannot_write(path: str, error: OSError) -> StateError:
    """The error for a file that could not be written."""
    return StateError(
        f"{path} cannot be written: {cause_of(error)}. Nothing was lost: the epoch will run again after a restart",
        hint="make room, or restore the folder and the permission to write to it, then start the query again",
    )


def cause_of(error: OSError) -> str:
    """The operating system's reason."""
    return os.strerror(error.errno) if error.errno else str(error)
