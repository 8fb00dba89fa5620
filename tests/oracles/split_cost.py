"""Paper 5, equation (3), tuple by tuple."""

from __future__ import annotations


def split_seconds(
    routed: int, broadcast: int, omitted: int, q: int, read: float, split: float, emit: float
) -> tuple[float, float, float]:
    """(read, split, emit) seconds: each tuple is read, each copy split off and emitted, an omitted one looked at."""
    reading = splitting = emitting = 0.0
    for copies in [1] * routed + [q] * broadcast + [0] * omitted:
        reading += read
        splitting += split * max(copies, 1)
        emitting += emit * copies
    return reading, splitting, emitting
