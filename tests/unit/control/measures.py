"""What the tests of controllers share."""

from __future__ import annotations

from typing import Any

from anabranch.observe.progress import EpochProgress, OperatorProgress, SplitterMeasure


def epoch(number: int, *operators: OperatorProgress, **fields: Any) -> EpochProgress:
    """An epoch of a second and a thousand rows, one second after the one before."""
    known = {"started": float(number), "seconds": 1.0, "rows": 1_000, **fields}
    return EpochProgress("q", "r", number, operators=operators, **known)


def split(rows: int, rate: float, size: int | None = 4_096, windows: int = 10) -> OperatorProgress:
    """A splitter that takes `rate` rows per busy second."""
    each = rows / rate / 3
    splitter = SplitterMeasure(
        0, rows, windows, bytes_in=windows * (size or 1), routed=rows, read_seconds=each, split_seconds=each,
        emit_seconds=each,
    )  # fmt: skip
    decisions = {} if size is None else {"window_bytes": size}
    return OperatorProgress("split", rows=rows, splitters=(splitter,), decisions=decisions)
