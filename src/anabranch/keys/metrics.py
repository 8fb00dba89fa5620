"""What a partitioning costs in a window. See docs/papers.md.

L_j is the number of tuples that worker j got, CL_j the number of distinct keys among them.

| metric | |
|---|---|
| tuple imbalance | max L - avg L: how much longer the slowest worker evaluates |
| cardinality imbalance | max CL - avg CL |
| hybrid imbalance | max H - avg H, where H = p * L + (1 - p) * CL, with both loads scaled to 0..1 |
| aggregation cost | sum of CL: partial results to combine |

The aggregation cost lies between the number of keys (every key on one worker) and V times that (every key on every
worker).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class WindowLoads:
    """The loads of the V workers in one window, and its number of distinct keys."""

    tuples: tuple[int, ...]
    keys: tuple[int, ...]
    distinct: int

    @property
    def rows(self) -> int:
        return sum(self.tuples)

    @property
    def tuple_imbalance(self) -> float:
        return _imbalance(np.asarray(self.tuples))

    @property
    def cardinality_imbalance(self) -> float:
        return _imbalance(np.asarray(self.keys))

    def hybrid_imbalance(self, p: float = 0.5) -> float:
        """p is the weight of tuples in the load; 1 - p that of keys."""
        mixed = p * _scaled(np.asarray(self.tuples)) + (1.0 - p) * _scaled(np.asarray(self.keys))
        return _imbalance(mixed)

    @property
    def aggregation_cost(self) -> int:
        return sum(self.keys)

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest possible aggregation cost."""
        return self.distinct, self.distinct * len(self.tuples)

    def metrics(self, p: float = 0.5) -> Metrics:
        """All metrics, as plain numbers."""
        low, high = self.bounds
        return Metrics(
            len(self.tuples), self.rows, self.distinct, self.tuple_imbalance, self.cardinality_imbalance,
            self.hybrid_imbalance(p), self.aggregation_cost, low, high,
        )  # fmt: skip


@dataclass(frozen=True)
class Metrics:
    """The metrics of a window; see the module."""

    workers: int
    tuples: int
    keys: int
    tuple_imbalance: float
    cardinality_imbalance: float
    hybrid_imbalance: float
    aggregation_cost: int
    least_cost: int
    most_cost: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _imbalance(loads: NDArray[Any]) -> float:
    return float(loads.max() - loads.mean())


def _scaled(loads: NDArray[Any]) -> NDArray[np.float64]:
    """The loads scaled to 0..1, from the smallest to the largest; all 0 if all loads are equal."""
    low, high = loads.min(), loads.max()
    if high == low:
        return np.zeros(len(loads))
    scaled: NDArray[np.float64] = (loads - low) / (high - low)
    return scaled
