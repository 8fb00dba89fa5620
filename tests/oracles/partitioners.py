"""Paper 3's partitioners as a reader would write them down: sets, lists, one tuple at a time.

Candidates and HyperLogLog registers come from the hash of a key; they are written here once more, in plain Python.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

MASK = 2**64 - 1


def mixed(key: int, j: int) -> int:
    """splitmix64's finaliser."""
    x = (key + (j + 1) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def candidates(key: int, workers: int, d: int) -> list[int]:
    """d different workers: the j-th drawn from those that are left."""
    left, found = list(range(workers)), []
    for j in range(min(d, workers)):
        found.append(left.pop((mixed(key, j) >> 32) * len(left) >> 32))
    return found


class Exact:
    """The naive structure of section 3.2.1."""

    def __init__(self) -> None:
        self.keys: set[int] = set()

    def update(self, key: int) -> None:
        self.keys.add(key)

    def estimate(self) -> float:
        return len(self.keys)

    def contains(self, key: int) -> bool:
        return key in self.keys


class HyperLogLog:
    """Section 3.2.2, with the trial update."""

    def __init__(self) -> None:
        self.registers = [0] * 4096

    def place(self, key: int) -> tuple[int, int]:
        x = mixed(key, -1)
        rest = format((x << 12) & MASK, "064b")
        return x >> 52, min(rest.index("1") + 1 if "1" in rest else 64, 31)

    def update(self, key: int) -> None:
        at, rank = self.place(key)
        self.registers[at] = max(self.registers[at], rank)

    def estimate(self) -> float:
        return estimate_of(tuple(self.registers))

    def contains(self, key: int) -> bool:
        before, (at, _) = self.estimate(), self.place(key)
        register = self.registers[at]
        self.update(key)
        after = self.estimate()
        self.registers[at] = register
        return after == before


@lru_cache(maxsize=64)
def estimate_of(registers: tuple[int, ...]) -> float:
    """Remembered, because most tuples change no register."""
    raw = 0.7213 / (1 + 1.079 / 4096) * 4096 * 4096 / sum(2.0**-r for r in registers)
    zeros = registers.count(0)
    return 4096 * math.log(4096 / zeros) if raw <= 2.5 * 4096 and zeros else raw


def scaled(value: float, all_values: Sequence[float]) -> float:
    low, high = min(all_values), max(all_values)
    return (value - low) / (high - low) if high > low else 0.0


def decide(
    policy: str, choice: Sequence[int], k: int, L: Sequence[int], C: Sequence[Exact | HyperLogLog], p: float = 0.5
) -> int:
    """The worker of a tuple, which now has its key (algorithms 2 to 5, and PK)."""
    having = [c for c in choice if policy in ("am", "cam") and C[c].contains(k)]
    if having:
        return having[0]
    if policy in ("cm", "am"):
        w = min(choice, key=lambda c: C[c].estimate())
    elif policy == "lm":
        CL = [c.estimate() for c in C]
        w = min(choice, key=lambda c: p * scaled(L[c], L) + (1 - p) * scaled(CL[c], CL))
    else:  # fld, pk, cam
        w = min(choice, key=lambda c: L[c])
    if policy in ("cm", "am", "cam", "lm"):
        C[w].update(k)
    return w


def partition(
    keys: Sequence[int], workers: int, policy: str, d: int = 2, hll: bool = False, p: float = 0.5, first: int = 0
) -> list[int]:
    """The worker of each tuple of one window (algorithm 1)."""
    C: list[Exact | HyperLogLog] = [HyperLogLog() if hll else Exact() for _ in range(workers)]
    L = [0] * workers
    out = []
    for i, k in enumerate(keys):
        choice = candidates(k, workers, 1 if policy == "fld" else d)
        w = (first + i) % workers if policy == "sh" else decide(policy, choice, k, L, C, p)
        L[w] += 1
        out.append(w)
    return out
