"""How many rows are due by a time: walk until one is past it; rows without a time go with the one before."""

from __future__ import annotations


def due_by(times: list[int | None], time: int) -> int:
    for row, at in enumerate(times):
        if at is not None and at > time:
            return row
    return len(times)
