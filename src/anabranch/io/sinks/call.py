"""Results for a user's function."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from anabranch.calls import made_as
from anabranch.errors import InvalidArgumentError
from anabranch.io.sinks.base import Published, Sink


@made_as("ab.CallSink(lambda rows, epoch: ...)")
class CallSink(Sink):
    """Calls a function with the DataFrame of each epoch's rows and the epoch's number, like Spark's `foreachBatch`."""

    guarantee = "at least once: the function may get an epoch again, with the same rows and number"

    def __init__(self, function: Callable[[DataFrame, int], object]) -> None:
        if not callable(function):
            raise InvalidArgumentError(f"{function!r} is not a function", hint="give a function of (DataFrame, epoch)")
        self.function = function

    def publish(self, result: Published) -> None:
        if result.files:
            self.function(result.frame(), result.epoch)

    def __repr__(self) -> str:
        return f"CallSink({getattr(self.function, '__qualname__', self.function)!r})"
