"""A split stream, tuple by tuple."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def substreams(
    tuples: Sequence[Any], route: Sequence[int | None], everywhere: Sequence[bool | None], q: int
) -> list[list[Any]]:
    """What each of q substreams receives: those routed to it and those for everyone, in the order they came in."""
    received: list[list[Any]] = [[] for _ in range(q)]
    for each, to, everyone in zip(tuples, route, everywhere, strict=True):
        for substream in range(q):
            if everyone or to == substream:
                received[substream].append(each)
    return received
