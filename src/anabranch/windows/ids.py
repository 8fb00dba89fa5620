"""Window, batch and pane ids as closed forms: the one place where they are computed.

Each function is one formula over integers. It takes Python integers, numpy arrays and Spark Columns alike. They differ
in one operation only, division that rounds towards minus infinity, so that is a parameter (`floordiv`; for Columns
`anabranch.spark.columns.floordiv`). With one formula the batch plan, the streaming plan and the kernels cannot
disagree; a property test compares the forms all the same.

Ids count from the window's origin and may be negative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anabranch.windows.spec import Window

Ids = Any
"""Integers: one, a numpy array of them, or a Spark Column."""

FloorDiv = Callable[[Ids, int], Ids]

FARTHEST = 2**62 - 1
"""Times lie within so many microseconds of 1970: the difference of two, and the bounds of a window, fit 64 bits."""


def python_floordiv(value: Ids, by: int) -> Ids:
    """Division towards minus infinity for integers and numpy arrays."""
    return value // by


def first_window(t: Ids, window: Window, floordiv: FloorDiv = python_floordiv) -> Ids:
    """The lowest id of the windows that contain t."""
    return floordiv(t - (window.origin + window.size), window.slide) + 1


def last_window(t: Ids, window: Window, floordiv: FloorDiv = python_floordiv) -> Ids:
    """The highest id of the windows that contain t."""
    return floordiv(t - window.origin, window.slide)


def window_start(window_id: Ids, window: Window) -> Ids:
    """Where a window begins; it ends `window.size` later."""
    return window_id * window.slide + window.origin


def pane_of(t: Ids, size: int, origin: int = 0, floordiv: FloorDiv = python_floordiv) -> Ids:
    """The id of the pane of that size that contains t: a pane is a tumbling window."""
    return floordiv(t - origin, size)


def batch_window(window: Window, batch: int) -> Window:
    """The batch-window of B windows: size w + (B-1)s, slide Bs.

    Batch k holds the windows kB .. kB+B-1, and the batch ids of a row are the window ids of this window.
    """
    return Window(window.size + (batch - 1) * window.slide, batch * window.slide, window.origin, window.axis)


def replication(window: Window, batch: int = 1) -> float:
    """Copies of a row that leave the split: (w + (B-1)s) / (Bs); with B = 1 this is the overlap."""
    return batch_window(window, batch).overlap


@dataclass(frozen=True)
class Stretch:
    """Tumbling windows of `size` from `origin`, on any axis, in which something is counted."""

    size: int
    origin: int = 0

    def of(self, places: Ids) -> Ids:
        """The number of the window that contains each place."""
        return pane_of(places, self.size, self.origin)
