"""Routes: which partition-group each tuple of a physical window goes to. Those by key are in `key_routes`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.errors import OperatorError
from anabranch.split.gates import Census

OMIT = -1
"""The group of a tuple that is left out."""

RouteFunction = Callable[[pa.RecordBatch, int], Any]
BroadcastFunction = Callable[[pa.RecordBatch], Any]


class Route(ABC):
    """Gives the group of every tuple of a window: (groups, broadcast, the columns that travel on)."""

    def begun(self, part: int) -> Route:
        """The route of one splitter, which may keep counts of its own; `part` is the splitter's number."""
        return self

    def ended(self, census: Census) -> None:  # noqa: B027  # most routes count nothing
        """The splitter has read everything: the route may add its counts to the census."""

    @abstractmethod
    def __call__(
        self, window: pa.RecordBatch, groups: int
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None, pa.RecordBatch]: ...


@dataclass(frozen=True)
class ColumnRoute(Route):
    """Reads the route, and perhaps the broadcast, from columns that Spark computed; they do not travel on."""

    group: str
    broadcast: str | None = None

    def __call__(
        self, window: pa.RecordBatch, groups: int
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None, pa.RecordBatch]:
        to = _numbers(window.column(self.group))
        names = [self.group]
        everywhere = None
        if self.broadcast is not None:
            everywhere = window.column(self.broadcast).fill_null(False).to_numpy(zero_copy_only=False)
            names.append(self.broadcast)
        return to, everywhere, window.drop_columns(names)


@dataclass(frozen=True)
class FunctionRoute(Route):
    """Calls a user's functions on whole blocks; they return numpy or Arrow arrays with one entry per tuple."""

    route: RouteFunction | None
    broadcast: BroadcastFunction | None

    def __call__(
        self, window: pa.RecordBatch, groups: int
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None, pa.RecordBatch]:
        rows = window.num_rows
        to = np.full(rows, OMIT, np.int64) if self.route is None else _answer("route", self.route(window, groups), rows)
        everywhere = None
        if self.broadcast is not None:
            everywhere = _answer("broadcast", self.broadcast(window), rows).astype(bool)
        return to, everywhere, window


def _answer(what: str, value: Any, rows: int) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        array = value
    else:
        array = _numbers(value if isinstance(value, (pa.Array, pa.ChunkedArray)) else pa.array(value))
    if array.shape != (rows,):
        raise OperatorError(
            f"the {what} function returned shape {array.shape}, expected ({rows},): tuples would go to wrong groups",
            hint=f"return an array with one entry per tuple: {what} gets a whole record batch",
        )
    return array


def _numbers(array: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Groups as numbers; null leaves a tuple out."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count:
        array = array.fill_null(OMIT if not pa.types.is_boolean(array.type) else False)
    return np.asarray(array.to_numpy(zero_copy_only=False))
