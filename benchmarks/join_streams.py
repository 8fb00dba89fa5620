"""Streams for windowed joins (paper 2, section VI.A): Poisson arrivals, 64-byte tuples, a skewed join attribute.

A tuple is eight bigint columns: `key`, `t` in microseconds and six of payload. Keys are 0 .. `DOMAIN` - 1, uniform or
by a **b-model**: of each interval the lower half has the share `b` of the tuples and the upper 1 - b, and so on within
the halves, down to single keys; with b = 0.5 that is uniform. It is always the lower half, in both streams: otherwise
the heavy keys would not meet. Nearby keys are alike then, so place them by a hash.

**How many matches.** Two tuples go the same way at a level with probability b^2 + (1-b)^2, and 10^7 keys are 23 or 24
levels deep. With b = 0.7 a tuple so finds 0.0022 times the rate in ten minutes of the other stream: 3 at 1,500 tuples a
second. The paper does not say how deep its model goes.

A stream is cut into seconds, and each second has random numbers of its own: a span has the same tuples whether it is
made at once or in pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.errors import InvalidArgumentError

DOMAIN = 10_000_000
"""different keys"""
SECOND = 1_000_000
"""microseconds"""
PAYLOAD = tuple(f"p{i}" for i in range(1, 7))
TUPLE_BYTES = 64
SCHEMA = pa.schema([(name, pa.int64()) for name in ("key", "t", *PAYLOAD)])
"""eight columns of eight bytes"""

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JoinStream:
    """One of the streams of a join: `rate` tuples a second, on the average, from `start` on."""

    rate: float
    stream: int = 0
    """which of the streams: their tuples are independent of each other"""
    b: float | None = 0.7
    """skew of the b-model; None for uniform keys"""
    seed: int = 1
    start: int = 0
    """microseconds"""
    domain: int = DOMAIN

    def __post_init__(self) -> None:
        if not (self.rate >= 0 and self.domain >= 1 and (self.b is None or 0 < self.b < 1)):
            raise InvalidArgumentError(
                f"rate {self.rate}, domain {self.domain}, b {self.b}: no stream has fewer than no tuples or keys, nor "
                "a half with more than all of them",
                hint="give a rate of 0 or more, a domain of 1 or more, and b between 0 and 1 or None",
            )

    def seconds(self, first: int, count: int) -> pa.Table:
        """The tuples of so many seconds, from second number `first` on, in the order of time."""
        parts = [self._second(second) for second in range(first, first + count)]
        return pa.concat_tables(parts) if parts else SCHEMA.empty_table()

    def _second(self, second: int) -> pa.Table:
        rng = np.random.default_rng((self.seed, self.stream, second))
        rows = int(rng.poisson(self.rate))
        # Of a Poisson process the arrivals within an interval are uniform, once their number is known.
        t = self.start + second * SECOND + np.sort(rng.integers(0, SECOND, rows))
        key = rng.integers(0, self.domain, rows) if self.b is None else b_model(rng, rows, self.b, domain=self.domain)
        payload = [np.full(rows, self.stream), np.arange(rows), *rng.integers(0, 1 << 40, (4, rows))]
        return pa.table([key, t, *payload], schema=SCHEMA)


def b_model(rng: np.random.Generator, rows: int, b: float, *, domain: int = DOMAIN) -> Longs:
    """So many keys of a b-model. Domains that are no power of two are halved as exactly as integers allow."""
    low, size = np.zeros(rows, dtype=np.int64), np.full(rows, domain, dtype=np.int64)
    for _ in range((domain - 1).bit_length()):
        half = size // 2  # of a single key nothing, so that it is never taken for a lower half
        lower = (rng.random(rows) < b) & (half > 0)
        low, size = np.where(lower, low, low + half), np.where(lower, half, size - half)
    return low


def matches(rate: float, seconds: float, b: float | None = 0.7, *, domain: int = DOMAIN) -> float:
    """Tuples of a window of one stream, with that rate, that a tuple of the other meets on the average."""
    if b is None:
        return rate * seconds / domain
    # Probability that two tuples of the b-model are in the same interval, by the interval's size: level by level.
    together, same = {domain: 1.0}, 0.0
    while together:
        halves: dict[int, float] = {}
        for size, share in together.items():
            if size == 1:
                same += share
                continue
            for half, of_it in ((size // 2, b), (size - size // 2, 1 - b)):
                halves[half] = halves.get(half, 0.0) + share * of_it**2
        together = halves
    return rate * seconds * same
