"""The search for the size of a physical window, as a fold over all measurements."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.split.window_size import SEARCH_LIMIT, SEARCH_START, WindowSearch


def next_window_bytes(
    history: Sequence[tuple[int, float]], *, start: int = SEARCH_START, limit: int = SEARCH_LIMIT
) -> tuple[int, bool]:
    """The W to use next, and whether the search has settled on it. `history` is complete, oldest first."""
    search = WindowSearch(start)
    for size, rate in history:
        search = search.after(size, rate, start=start, limit=limit)
    return search.size, search.settled
