"""The drop rule and its coin: the only copy.

`windrop` decides unit by unit on the driver; `operators.numbering` decides the units of many keys at once on a worker.
Both call the functions here, so they cannot disagree. `windrop` explains the rule.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from anabranch.compiled import kernel, splitmix64

Ints = NDArray[np.int64]

_MASK = (1 << 64) - 1


def coins(seed: int, batches: Ints) -> NDArray[np.float64]:
    """A number in [0, 1) for each batch: uniform, independent of those of other batches (splitmix64)."""
    start = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x8CB92BA72F3D8DD7) & _MASK)
    mixed = splitmix64(batches.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03) + start)
    numbers: NDArray[np.float64] = (mixed >> np.uint64(11)) / float(1 << 53)
    return numbers


def coin(seed: int, batch: int) -> float:
    """`coins` for one batch."""
    return float(coins(seed, np.array([batch], np.int64))[0])


@overload
def says_drop(u: float, p: float, bucket: int = ..., buckets: int = ...) -> bool: ...
@overload
def says_drop(u: NDArray[np.float64], p: float, bucket: Ints, buckets: int) -> NDArray[np.bool_]: ...
def says_drop(u: Any, p: float, bucket: Any = 0, buckets: int = 1) -> Any:
    """Whether the coin of a bucket says drop, for the number `u` of its batch; for one unit or for many."""
    return (u + bucket / buckets) % 1.0 < p


def may_drop(coin: bool, run: int, debt: int, bound: int, ahead: int = 0) -> bool:
    """Whether the next unit is dropped, after `run` dropped ones; `ahead` units right after it are gone already."""
    return (coin or debt > 0) and run + 1 + ahead <= bound


def run_and_debt(dropped: bool, coin: bool, run: int, debt: int) -> tuple[int, int]:
    """Units dropped in a row and units owed, after one more unit."""
    if dropped:
        return run + 1, debt if coin else max(0, debt - 1)
    return 0, debt + int(coin)


_may_drop, _run_and_debt = kernel()(may_drop), kernel()(run_and_debt)


@kernel()
def latest_kept(
    offsets: Ints, units: Ints, coins: NDArray[np.bool_], bound: int, run: Ints, debt: Ints, last: Ints
) -> Ints:
    """Decide unit by unit for each key, and return the last unit kept as of each.

    Key i has the units offsets[i]:offsets[i+1]. `coins` says which of them their coin would drop. `run`, `debt` and
    `last` (the last unit kept) have one entry per key, and are updated.
    """
    latest = np.empty(len(units), np.int64)
    for i in range(len(run)):
        for at in range(offsets[i], offsets[i + 1]):
            dropped = _may_drop(coins[at], run[i], debt[i], bound)
            run[i], debt[i] = _run_and_debt(dropped, coins[at], run[i], debt[i])
            if not dropped:
                last[i] = units[at]
            latest[at] = last[i]
    return latest
