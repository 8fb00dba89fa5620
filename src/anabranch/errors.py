"""One family of errors.

Every message says what is wrong and why it would harm; the hint says what to do. Catch `AnabranchError` to catch
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
    """A value that no query could use: a negative duration, a batch of no windows."""


class InvalidWindowError(InvalidArgumentError):
    """A window that cannot exist: size < slide, zero or negative durations."""


class ColumnNotFoundError(AnabranchError, LookupError):
    """A column that the DataFrame does not have."""


class ColumnTypeError(AnabranchError, TypeError):
    """A column whose type the query cannot use."""


class StrategyError(AnabranchError):
    """An aggregate, or a stream, that cannot run in the strategy that was asked for."""


class StreamingError(AnabranchError):
    """Something that a streaming DataFrame cannot do, or a watermark that is missing."""


class ReplayError(StreamingError):
    """Recorded files that cannot be replayed: they changed under the stream, or go back in time."""


class ArithmeticOverflowError(AnabranchError, ArithmeticError):
    """A window's sum that does not fit its type; a wrapped value would be a wrong answer."""


class DisorderError(AnabranchError):
    """An input of an ordered merge that goes backwards."""


class ListenerError(AnabranchError):
    """A listener that cannot do its work: a file that cannot be written, a port that is taken."""


class ControllerError(AnabranchError, LookupError):
    """A controller that does not exist, or two that claim the same name or setting."""


class OverloadError(AnabranchError):
    """More comes in than can be processed within the latency bound, and the query was told to stop then."""


class OperatorError(AnabranchError):
    """An operator, a route or a sink of the user that did what the runtime cannot take."""


class StateError(AnabranchError):
    """A durable file that is missing, torn or cannot be written, or live state that another process has changed."""


class CheckpointError(AnabranchError):
    """A checkpoint folder that belongs to another query, to a newer release, or to something else."""


class JobError(AnabranchError):
    """A job file that `anabranch run` cannot run, or whose query failed."""


class JavaNotFoundError(AnabranchError):
    """No Java that Spark can run on."""


class WorkerPythonError(AnabranchError):
    """The workers run a Python of another version, or one that lacks packages."""


class MissingDependencyError(AnabranchError, ImportError):
    """An optional package that is not installed."""


def column_not_found(name: str, columns: Iterable[str]) -> ColumnNotFoundError:
    """The error for an unknown column, with the names that look like it."""
    known = list(columns)
    near = difflib.get_close_matches(name.lower(), [c.lower() for c in known], n=3, cutoff=0.5)
    names = [c for c in known if c.lower() in near]
    hint = f"did you mean {' or '.join(repr(c) for c in names)}?" if names else f"the columns are {', '.join(known)}"
    return ColumnNotFoundError(f"there is no column {name!r} in the DataFrame", hint=hint)


def cannot_write(path: str, error: OSError) -> StateError:
    """The error for a file system that does not take a file."""
    return StateError(
        f"{path} cannot be written: {cause_of(error)}. Nothing was lost: the epoch will run again after a restart",
        hint="make room, or restore the folder and the right to write to it, then start the query again",
    )


def cause_of(error: OSError) -> str:
    """What the operating system says."""
    return os.strerror(error.errno) if error.errno else str(error)
