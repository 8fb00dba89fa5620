"""Generated streams for windowed joins: Poisson arrivals, 64-byte tuples, a skewed join key (see docs/papers.md).

A tuple is eight bigint columns: `key`, `t` in microseconds and six columns of payload. Keys are 0 .. `DOMAIN` - 1,
uniform or by a **b-model**: the lower half of each interval has the share `b` of the tuples and the upper half 1 - b,
and so on within the halves, down to single keys. With b = 0.5 that is uniform. In both streams it is the lower half, so
that the heavy keys meet. Nearby keys have similar weights, so place them by a hash.

**Number of matches.** Two tuples take the same half at a level with probability b^2 + (1-b)^2, and 10^7 keys are 23 or
24 levels deep. So with b = 0.7 a tuple matches 0.0022 times the rate in ten minutes of the other stream: 3 tuples at
1,500 tuples per second. The paper does not say how many levels its model has.

Each second of a stream has its own random numbers, so a span has the same tuples whether it is made at once or in
pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.errors import InvalidArgumentError

DOMAIN = 10_000_000
"""The number of different keys."""
SECOND = 1_000_000
"""A second in microseconds."""
PAYLOAD = tuple(f"p{i}" for i in range(1, 7))
TUPLE_BYTES = 64
SCHEMA = pa.schema([(name, pa.int64()) for name in ("key", "t", *PAYLOAD)])
"""Eight columns of eight bytes."""

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JoinStream:
    """One of the streams of a join: on average `rate` tuples per second, beginning at `start`."""

    rate: float
    stream: int = 0
    """The number of this stream. The tuples of different streams are independent."""
    b: float | None = 0.7
    """Skew of the b-model; None for uniform keys."""
    seed: int = 1
    start: int = 0
    """Time of second 0, in microseconds."""
    domain: int = DOMAIN

    def __post_init__(self) -> None:
        if not (self.rate >= 0 and self.domain >= 1 and (self.b is None or 0 < self.b < 1)):
            raise InvalidArgumentError(
                f"rate {self.rate}, domain {self.domain}, b {self.b} describe no stream",
                hint="give a rate of 0 or more, a domain of 1 or more, and b between 0 and 1 or None",
            )

    def seconds(self, first: int, count: int) -> pa.Table:
        """The tuples of `count` seconds, beginning with second number `first`, in the order of time."""
        parts = [self._second(second) for second in range(first, first + count)]
        return pa.concat_tables(parts) if parts else SCHEMA.empty_table()

    def _second(self, second: int) -> pa.Table:
        rng = np.random.default_rng((self.seed, self.stream, second))
        rows = int(rng.poisson(self.rate))
        # In a Poisson process the arrivals within an interval are uniform, given their number.
        t = self.start + second * SECOND + np.sort(rng.integers(0, SECOND, rows))
        key = rng.integers(0, self.domain, rows) if self.b is None else b_model(rng, rows, self.b, domain=self.domain)
        payload = [np.full(rows, self.stream), np.arange(rows), *rng.integers(0, 1 << 40, (4, rows))]
        return pa.table([key, t, *payload], schema=SCHEMA)


def b_model(rng: np.random.Generator, rows: int, b: float, *, domain: int = DOMAIN) -> Longs:
    """`rows` keys of a b-model. A domain that is not a power of two is halved as exactly as integers allow."""
    low, size = np.zeros(rows, dtype=np.int64), np.full(rows, domain, dtype=np.int64)
    for _ in range((domain - 1).bit_length()):
        half = size // 2  # 0 for a single key, which has no lower half
        lower = (rng.random(rows) < b) & (half > 0)
        low, size = np.where(lower, low, low + half), np.where(lower, half, size - half)
    return low


def matches(rate: float, seconds: float, b: float | None = 0.7, *, domain: int = DOMAIN) -> float:
    """How many tuples a window of one stream has, on average, that match a tuple of the other stream."""
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
