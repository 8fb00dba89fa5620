"""Growing arrays in a `State`.

They grow by an eighth, not by a factor of two: a worker holds the windows of both streams, and spare capacity takes
memory too. A view of the array is valid until the buffer grows, so do not keep one.
"""

from __future__ import annotations

import numpy.typing as npt

from anabranch.operators.state import Array, State

_LEAST = 64


class Buffer:
    """One array of a state; `array` is its current view."""

    def __init__(self, state: State, name: str, dtype: npt.DTypeLike, length: int = 0) -> None:
        self._state, self._name = state, name
        self.array: Array = state.array(name, dtype, length)

    def resize(self, length: int) -> None:
        """Change the length, with zeros after the old content."""
        self.array = self._state.resize(self._name, length)

    def reserve(self, length: int) -> None:
        """Make room for that many items."""
        if length > len(self.array):
            self.resize(with_room(length))

    def shrink(self, length: int) -> None:
        """Free memory if the capacity is more than twice what that many items need."""
        if len(self.array) > 2 * with_room(length):
            self.resize(with_room(length))

    def move_to_front(self, begin: int, end: int) -> None:
        """Items [begin, end) become items [0, end - begin)."""
        self.array[: end - begin] = self.array[begin:end]
        self.shrink(end - begin)


def with_room(length: int) -> int:
    """A capacity for that length, so that growing item by item costs O(1) each."""
    return length + length // 8 + _LEAST
