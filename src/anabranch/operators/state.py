"""An operator's state for one partition-group: named numpy arrays and Arrow tables.

Arrays are one-dimensional with fixed-size items (numbers, booleans, times, structures of these), so that state is plain
bytes that can be stored in a file and memory-mapped. A view from `array` is valid until the item is resized, dropped,
cleared or loaded.
"""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.errors import InvalidArgumentError

Array: TypeAlias = npt.NDArray[Any]
Item: TypeAlias = "Array | pa.Table"

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class State(ABC):
    """Named numpy arrays and Arrow tables of one partition-group."""

    @abstractmethod
    def array(self, name: str, dtype: npt.DTypeLike, length: int = 0) -> Array:
        """The array of that name; if absent, a new one of `length` zeros."""

    @abstractmethod
    def resize(self, name: str, length: int) -> Array:
        """Resize the array, with zeros after the old content; earlier views are no longer valid."""

    @abstractmethod
    def table(self, name: str) -> pa.Table | None:
        """The table of that name."""

    @abstractmethod
    def put(self, name: str, table: pa.Table) -> None:
        """Store a table, replacing any item of that name."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove an array or a table, if present."""

    @abstractmethod
    def clear(self) -> None:
        """Remove everything."""

    @abstractmethod
    def items(self) -> Iterator[tuple[str, Item]]:
        """All items, sorted by name."""

    def names(self) -> list[str]:
        """The names, sorted."""
        return [name for name, _ in self.items()]

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    @property
    def nbytes(self) -> int:
        """Size of the content."""
        return sum(item.nbytes for _, item in self.items())

    def load(self, items: Iterable[tuple[str, Item]]) -> None:
        """Replace everything by copies of these items."""
        taken = list(items)  # they may be this state's own
        self.clear()
        for name, item in taken:
            if isinstance(item, pa.Table):
                self.put(name, item)
            else:
                self.array(name, item.dtype, len(item))[:] = item


class MemoryState(State):
    """State in plain dictionaries, for tests and simulations."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}

    def array(self, name: str, dtype: npt.DTypeLike, length: int = 0) -> Array:
        """The array of that name; if absent, a new one of zeros."""
        check_name(name)
        wanted = check_dtype(name, dtype)
        if name not in self._items:
            check_length(name, length)
            self._items[name] = np.zeros(length, wanted)
        return check_same(name, self._items[name], wanted)

    def resize(self, name: str, length: int) -> Array:
        """Resize the array, with zeros after the old content."""
        old = check_array(name, self._items.get(name))
        check_length(name, length)
        new = np.zeros(length, old.dtype)
        kept = min(length, len(old))
        new[:kept] = old[:kept]
        self._items[name] = new
        return new

    def table(self, name: str) -> pa.Table | None:
        """The table of that name."""
        item = self._items.get(name)
        return item if isinstance(item, pa.Table) else None

    def put(self, name: str, table: pa.Table) -> None:
        """Store a table, replacing any item of that name."""
        check_name(name)
        self._items[name] = table

    def drop(self, name: str) -> None:
        """Remove an array or a table."""
        self._items.pop(name, None)

    def clear(self) -> None:
        """Remove everything."""
        self._items.clear()

    def items(self) -> Iterator[tuple[str, Item]]:
        """All items, sorted by name."""
        return iter(sorted(self._items.items(), key=lambda pair: pair[0]))


def check_name(name: str) -> None:
    """Refuse a name that a file's header cannot hold."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"{name!r} is not a valid name for an item of state", hint="use letters, digits, and any of _ . -"
        )


def check_dtype(name: str, dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The dtype, if its items are plain bytes of fixed size."""
    wanted = np.dtype(dtype)
    if wanted.hasobject or wanted.itemsize == 0 or wanted.subdtype is not None or wanted.kind == "T":
        raise InvalidArgumentError(
            f"the array {name!r} cannot have dtype {wanted}: its items are not plain bytes of fixed size",
            hint="use numbers, booleans, times or structures of these; store strings and nested values in a table",
        )
    return wanted


def check_length(name: str, length: int) -> None:
    """Refuse a negative length."""
    if length < 0:
        raise InvalidArgumentError(f"the array {name!r} cannot have length {length}", hint="give 0 or more")


def check_array(name: str, item: Item | None) -> Array:
    """The item if it is an array; otherwise an error."""
    if not isinstance(item, np.ndarray):
        what = "there is no array" if item is None else "it is a table, not an array,"
        raise InvalidArgumentError(f"{what} {name!r} in the state", hint="make it with array(name, dtype) first")
    return item


def check_same(name: str, item: Item, dtype: np.dtype[Any]) -> Array:
    """The item if it is an array of that dtype; otherwise an error."""
    found = check_array(name, item)
    if found.dtype != dtype:
        raise InvalidArgumentError(
            f"the array {name!r} holds {found.dtype}, not {dtype}: its bytes would be read as something else",
            hint="use the dtype it was created with, or drop it first",
        )
    return found


def dtype_text(dtype: np.dtype[Any]) -> str:
    """A dtype as text, the way .npy files write it."""
    return repr(np.lib.format.dtype_to_descr(dtype))


def dtype_of(text: str) -> np.dtype[Any]:
    """The dtype that `dtype_text` wrote."""
    return np.lib.format.descr_to_dtype(ast.literal_eval(text))
