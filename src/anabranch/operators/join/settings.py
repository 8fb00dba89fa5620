"""What a worker needs to know about a join.

A composite of rows s_0 ... s_n-1 with equal keys is in the result iff for all i != k

    s_i.t - W_k  <=  s_k.t  <=  s_i.t + W_i

that is: of any two rows, the earlier is still in its own stream's window W at the time of the later. Times are
microseconds, and both ends are inclusive. Only times matter, never the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from anabranch.errors import InvalidArgumentError
from anabranch.windows import describe

PRESERVED: dict[str, tuple[int, ...]] = {"inner": (), "left": (0,), "right": (1,), "full": (0, 1)}
"""The streams whose rows are delivered even without a partner."""

PROBES = ("hashed", "nested")


@dataclass(frozen=True)
class JoinSettings:
    """One windowed join."""

    within: tuple[int, ...]
    """W of each stream, in microseconds"""
    keys: tuple[str, ...]
    """key columns, with the same name and type in all streams"""
    times: tuple[str, ...]
    """the time column of each stream"""
    inputs: tuple[pa.Schema, ...]
    """the schema of each stream's blocks"""
    columns: tuple[tuple[tuple[str, str], ...], ...]
    """for each stream: (column in its blocks, column in the result), without the keys"""
    schema: pa.Schema
    """the schema of the result: the keys, then the columns of stream 0, 1, ..."""
    how: str = "inner"
    where: Callable[[pa.RecordBatch], Any] | None = None
    """which candidates to keep, given as rows of the result: one bool per row; null is false"""
    theta: int = 384
    """mini-partitions are kept within [theta, 2 theta] blocks"""
    block: int = 64
    """rows per block"""
    fine_tuning: bool = True
    probe: str = "hashed"

    def __post_init__(self) -> None:
        streams = len(self.within)
        if streams < 2 or any(len(each) != streams for each in (self.times, self.inputs, self.columns)):
            raise InvalidArgumentError(
                f"{streams} windows, {len(self.times)} time columns, {len(self.inputs)} schemas and "
                f"{len(self.columns)} lists of columns do not make a join",
                hint="give one of each for every stream, for two or more streams",
            )
        if self.how not in PRESERVED or (self.how != "inner" and streams > 2):
            raise InvalidArgumentError(
                f"a {self.how!r} join of {streams} streams is not supported",
                hint=f"use one of {', '.join(PRESERVED)} for two streams, and inner for more",
            )
        if self.probe not in PROBES or self.theta < 1 or self.block < 1 or min(self.within) < 0:
            raise InvalidArgumentError(
                f"a join cannot run with probe={self.probe!r}, theta={self.theta}, block={self.block} and windows of "
                f"{', '.join(map(describe, self.within))}",
                hint=f"probe is one of {', '.join(PROBES)}; theta and block are 1 or more; windows are not negative",
            )

    @property
    def preserved(self) -> tuple[int, ...]:
        """The streams whose unmatched rows are part of the result."""
        return PRESERVED[self.how]
