"""Panes, the batches they travel in, and the ring.

**Panes** are disjoint tumbling pieces of size gcd(all sizes, slides and distances of origins): every edge of every
window falls on an edge of a pane, so a window is a run of whole panes, and several windows of different length share
one set of panes.

**Batches** say which windows one worker evaluates: those that end in one stretch of the time line. The worker needs the
panes of that stretch and those before it, back to the start of the longest window. With one window and B windows per
batch this is the batch-window (see docs/papers.md). Several windows are grouped by their ends, so that on a stream a
short one need not wait for a long one that started with it.

**The ring** is the batch layout for an aggregate without a key: n = ceil((w-s)/s) windows per node, so that what a
node needs beyond its own panes comes from a single neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.errors import InvalidWindowError
from anabranch.windows.ids import FloorDiv, Ids, python_floordiv
from anabranch.windows.spec import Axis, Window


@dataclass(frozen=True)
class PaneWindow:
    """A window counted in panes."""

    size: int
    slide: int
    offset: int


@dataclass(frozen=True)
class Panes:
    """The panes that several windows share."""

    windows: tuple[Window, ...]

    def __post_init__(self) -> None:
        if not self.windows:
            raise InvalidWindowError("the query has no window", hint='call .window(size="5 min", slide="10 s")')
        if len({w.axis for w in self.windows}) > 1:
            raise InvalidWindowError(
                "time windows and count windows cannot share panes: they cut the stream along different axes",
                hint="write two queries",
            )

    @property
    def size(self) -> int:
        """gcd of all sizes, slides and distances between origins."""
        first = self.windows[0].origin
        return math.gcd(*(n for w in self.windows for n in (w.size, w.slide, w.origin - first)))

    @property
    def origin(self) -> int:
        return self.windows[0].origin

    @property
    def axis(self) -> Axis:
        return self.windows[0].axis

    def per_window(self, window: Window) -> int:
        """How many panes a window has: w / gcd."""
        return window.size // self.size

    def in_panes(self) -> tuple[PaneWindow, ...]:
        """The windows counted in panes; `offset` is where window 0 begins."""
        g = self.size
        return tuple(PaneWindow(w.size // g, w.slide // g, (w.origin - self.origin) // g) for w in self.windows)


@dataclass(frozen=True)
class Batches:
    """Which windows are evaluated together, counted in panes: batch k takes the panes of one stretch,
    ``[origin + k*slide, origin + k*slide + size)``, and evaluates the windows that end in its last `slide` panes.
    """

    slide: int
    size: int
    origin: int = 0

    @classmethod
    def over(cls, windows: Sequence[PaneWindow], slide: int) -> Batches:
        """Batches with that slide, just long enough for every window that ends in them.

        They are aligned to the ends of the longest window. If `slide` is B of its slides, batch k is the batch-window
        of the windows kB .. kB+B-1.
        """
        longest = max(windows, key=lambda w: w.size)
        boundary = longest.offset + longest.size - longest.slide
        reach = 0
        for w in windows:
            # Relative to a batch's boundary, the last panes of windows are `step` apart, and the first is at `first`.
            step = math.gcd(w.slide, slide)
            first = (w.offset + w.size - 1 - boundary) % step
            reach = max(reach, w.size - 1 - first)
        return cls(slide, slide + reach, boundary - reach)

    def as_window(self) -> Window:
        """The batch as a window over pane ids, for the closed forms of `ids`."""
        return Window(self.size, self.slide, self.origin)

    def first_start(self, batch: Ids, window: PaneWindow) -> Ids:
        """The first pane where a window of the batch may start; the last is `slide` - 1 panes later."""
        return batch * self.slide + (self.origin + self.size - self.slide - window.size + 1)

    def longest_wait(self, window: PaneWindow) -> int:
        """How many panes after a window's end its batch may end."""
        step = math.gcd(window.slide, self.slide)
        return self.slide - step + (self.origin + self.size - window.offset - window.size) % step

    @property
    def replication(self) -> float:
        return self.size / self.slide


@dataclass(frozen=True)
class Ring:
    """Assignment of windows and panes to the nodes of a ring, in panes."""

    size: int
    slide: int
    nodes: int

    @property
    def windows_per_node(self) -> int:
        """n = ceil((w-s)/s), at least 1."""
        return max(1, -(-(self.size - self.slide) // self.slide))

    @property
    def panes_from_split(self) -> int:
        """Panes that a node computes itself, per round: n*s."""
        return self.windows_per_node * self.slide

    @property
    def batches(self) -> Batches:
        """The ring's groups of n windows as a batch layout."""
        return Batches.over([PaneWindow(self.size, self.slide, 0)], self.panes_from_split)


def ring_node(ring_set: Ids, nodes: int, floordiv: FloorDiv = python_floordiv) -> Ids:
    """The node of a group of n windows: groups go round the ring in turn."""
    # The remainder by floordiv: negative ids must go round in the same direction, in Columns too.
    return ring_set - floordiv(ring_set, nodes) * nodes
