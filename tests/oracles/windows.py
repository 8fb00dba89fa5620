"""Windows, panes, batches and rings by trying every candidate, straight from the half-open definition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anabranch.windows import Ring, Window, ring_node
from anabranch.windows.ids import FloorDiv, Ids, python_floordiv


def holds(window: Window, j: int, t: int) -> bool:
    """Window j is [origin + j*slide, origin + j*slide + size)."""
    start = window.origin + j * window.slide
    return start <= t < start + window.size


def windows_of(t: int, window: Window) -> list[int]:
    """The ids of all windows that hold t."""
    far = abs(t) + abs(window.origin) + window.size  # A window that starts farther away cannot reach t.
    return [j for j in range(-far, far + 1) if holds(window, j, t)]


def batches_of(t: int, window: Window, batch: int) -> list[int]:
    """The batches (windows kB .. kB+B-1 are batch k) with a window that holds t."""
    return sorted({j // batch for j in windows_of(t, window)})


def pane_size(windows: Sequence[Window]) -> int:
    """The longest pane such that every edge of every window is an edge of a pane."""
    origin = windows[0].origin
    edges = [e for w in windows for j in (0, 1) for e in (w.origin + j * w.slide, w.origin + j * w.slide + w.size)]
    return max(g for g in range(1, max(w.size for w in windows) + 1) if all((e - origin) % g == 0 for e in edges))


# --- count windows as the paper counts them: rows and windows from 1, window j holds the rows (j-1)s+1 .. (j-1)s+w ---


def count_windows_of(i: int, size: int, slide: int) -> list[int]:
    """The windows that hold row i."""
    return [j for j in range(1, i + 1) if (j - 1) * slide + 1 <= i <= (j - 1) * slide + size]


def closed_by(i: int, size: int, slide: int) -> list[int]:
    """The windows whose last row is row i."""
    return [j for j in range(1, i + 1) if (j - 1) * slide + size == i]


# The same as closed forms, which take numpy arrays and Spark Columns too.


def count_first(i: Ids, size: int, slide: int, floordiv: FloorDiv = python_floordiv) -> Ids:
    """The first window of row i, with rows and windows counted from 1, before the limit max(1, ...).

    ceil((i-w)/s) + 1, with the ceiling written as a floor: ceil(a/s) = floor((a-1)/s) + 1.
    """
    return floordiv(i - size - 1, slide) + 2


def count_last(i: Ids, size: int, slide: int, floordiv: FloorDiv = python_floordiv) -> Ids:
    """The last window of row i, with rows and windows counted from 1: ceil(i/s)."""
    return floordiv(i - 1, slide) + 1


def is_closer(i: Ids, size: int, slide: int) -> Ids:
    """Whether row i (from 1) closes a count window: i >= w and (i-w) mod s = 0.

    For time windows, pass times; if several rows have that time, the last one is the closer.
    """
    return (i >= size) & ((i - size) % slide == 0)


def is_batch_closer(i: Ids, size: int, slide: int, batch: int) -> Ids:
    """Whether row i (from 1) closes a batch of B windows: it closes window j, and j mod B = 0."""
    # The closer of window j is row (j-1)s + w, so j mod B = 0 at every (Bs)-th row from the first batch's end on.
    return is_closer(i, size + (batch - 1) * slide, batch * slide)


# --- the ring, in panes: node r evaluates a set of n consecutive windows, then the set nodes*n windows later, ... ---


def panes_of_windows(windows: Iterable[int], size: int, slide: int) -> set[int]:
    """All panes of these windows; window j has the panes j*slide .. j*slide + size - 1."""
    return {j * slide + i for j in windows for i in range(size)}


def results_from_predecessor(ring: Ring) -> int:
    """Pane results that come from the neighbour, per round: w - s."""
    return ring.size - ring.slide


def node_of_window(ring: Ring, window_id: Ids, floordiv: FloorDiv = python_floordiv) -> Ids:
    """The node that evaluates the window: groups of n windows go round the ring in turn."""
    return ring_node(floordiv(window_id, ring.windows_per_node), ring.nodes, floordiv)


def node_of_pane(ring: Ring, pane: Ids, floordiv: FloorDiv = python_floordiv) -> Ids:
    """The node that computes the pane: the one whose windows start there."""
    return ring_node(floordiv(pane, ring.panes_from_split), ring.nodes, floordiv)
