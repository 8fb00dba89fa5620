"""Windowed joins by nested loops over plain lists.

A stream is a list of rows (key, time, payload); a key is a tuple of values, and None in it is null. A result is a tuple
of payloads, one for each stream; None where an outer join has no partner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

Row = tuple[tuple[Any, ...], int, Any]
Result = tuple[Any, ...]


def comparable(key: Sequence[Any]) -> tuple[Any, ...] | None:
    """Equal keys of Spark as equal objects; None if a value is null."""
    if any(value is None for value in key):
        return None
    return tuple("NaN" if isinstance(value, float) and math.isnan(value) else value for value in key)


def joins(rows: Sequence[Row], within: Sequence[int]) -> bool:
    """Whether the rows, one of each stream, are a composite."""
    keys = [comparable(key) for key, _, _ in rows]
    return all(key is not None and key == keys[0] for key in keys) and all(
        rows[i][1] - within[k] <= rows[k][1] <= rows[i][1] + within[i]
        for i in range(len(rows))
        for k in range(len(rows))
        if i != k
    )


def inner(
    streams: Sequence[Sequence[Row]], within: Sequence[int], where: Callable[..., bool] = lambda *payloads: True
) -> list[Result]:
    """All composites."""
    found = [rows for rows in product(*streams) if joins(rows, within)]
    results = [tuple(payload for _, _, payload in rows) for rows in found]
    return [result for result in results if where(*result)]


def outer(
    streams: Sequence[Sequence[Row]],
    within: Sequence[int],
    how: str,
    where: Callable[..., bool] = lambda *payloads: True,
) -> list[Result]:
    """A join of two streams, in which payloads differ from row to row."""
    pairs = inner(streams, within, where)
    lefts, rights = {a for a, _ in pairs}, {b for _, b in pairs}
    if how in ("left", "full"):
        pairs += [(a, None) for _, _, a in streams[0] if a not in lefts]
    if how in ("right", "full"):
        pairs += [(None, b) for _, _, b in streams[1] if b not in rights]
    return pairs
