"""Quality of service: the bounds that a user sets for a running query."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from anabranch.calls import made_as
from anabranch.errors import InvalidArgumentError
from anabranch.windows import Duration, micros

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


Overflow = Literal["shed", "halt"]
DropAt = Literal["auto", "source", "operators", "results"]


@made_as('ab.QoS(max_latency="5 s", disorder=0)')
@dataclass(frozen=True)
class QoS:
    """Quality of service: bounds that the controllers keep.

    `max_latency`: how long a result may take; `disorder`: how far apart two results of windows may be when they are
    delivered out of order (0: strictly in the order of their ends, within and across epochs; None: in any order).

    **Under overload** results come later and later, unless some may be missing. `max_gap` is the number of windows in a
    row that may: then whole windows are dropped, just enough of them to keep `max_latency`, and every delivered window
    is exact. With None or 0 nothing is ever dropped. ``.to(sink, max_gap=..., weight=...)`` sets it for one output.
    With ``overflow="halt"`` the query stops with an error instead of dropping.

    `drop_at` is where windows are dropped: "auto" decides by measurements; "source"; "operators" (before each aggregate
    that is delivered); or "results" (after it, for comparison). `drop_share` always drops that share, whatever the
    load. The same `seed` makes the same random choices.
    """

    max_latency: Duration | None = None
    disorder: int | None = None
    max_gap: int | None = None
    overflow: Overflow = "shed"
    drop_at: DropAt = "auto"
    drop_share: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_gap is not None and (not _whole(self.max_gap) or self.max_gap < 0):
            raise InvalidArgumentError(
                f"max_gap={self.max_gap!r} is not a number of windows", hint="give a whole number; 0 drops none"
            )
        if self.overflow not in get_args(Overflow):
            raise InvalidArgumentError(
                f"overflow={self.overflow!r} is not a way to handle overload", hint='use "shed" or "halt"'
            )
        if self.overflow == "halt" and self.max_latency is None:
            raise InvalidArgumentError(
                'overflow="halt" needs max_latency, the bound at which the query stops',
                hint='write, for example, max_latency="10 s"',
            )
        if self.drop_at not in get_args(DropAt):
            raise InvalidArgumentError(
                f"drop_at={self.drop_at!r} is not a place where windows can be dropped",
                hint=f"use one of {', '.join(get_args(DropAt))}",
            )
        share = self.drop_share
        if share is not None and (not isinstance(share, (int, float)) or not 0 <= share < 1):
            raise InvalidArgumentError(
                f"drop_share={share!r} is not a share of windows that can be dropped",
                hint="give a number from 0 to below 1, for example 0.2",
            )
        if not _whole(self.seed):
            raise InvalidArgumentError(f"seed={self.seed!r} is not a whole number", hint="write, for example, seed=1")
        for_drops = {
            "drop_share": self.drop_share is not None,
            "drop_at": self.drop_at != "auto",
            "seed": self.seed != 0,
        }
        unused = [name for name, given in for_drops.items() if given]
        if self.overflow == "halt" and unused:
            raise InvalidArgumentError(
                f'overflow="halt" drops nothing, and these settings have no effect with it: {", ".join(unused)}',
                hint='leave them out, or overflow="halt"',
            )
        if self.disorder is not None and (not isinstance(self.disorder, int) or self.disorder < 0):
            raise InvalidArgumentError(
                f"disorder={self.disorder!r} is not a bound on disorder", hint="give 0 or more, or None for any order"
            )
        if self.max_latency is not None and micros(self.max_latency, "max_latency") <= 0:
            raise InvalidArgumentError(
                f"max_latency={self.max_latency!r} is not above zero: every result would be late",
                hint='write, for example, max_latency="5 s"',
            )

    @property
    def latency_seconds(self) -> float | None:
        return None if self.max_latency is None else micros(self.max_latency, "max_latency") / 1e6


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def byte_count(value: int | str, what: str) -> int:
    """A number of bytes: an integer, or text such as "4 GB" or "512 MiB"."""
    found = re.fullmatch(r"\s*([\d_.]+)\s*([a-z]+)\s*", str(value).lower()) if isinstance(value, str) else None
    if found is not None and found[2] in _UNITS and found[1].count(".") < 2:
        value = round(float(found[1]) * _UNITS[found[2]])
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgumentError(
            f"{what}={value!r} is not a number of bytes", hint='give a positive integer, or a size such as "4 GB"'
        )
    return value
