"""Two stacks over Python objects: for states that numpy cannot hold (sketches, decimals, user-defined states)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from anabranch.aggregates.kernels import Ints

S = TypeVar("S")


def fold_objects(
    states: Sequence[S], lo: Ints, hi: Ints, merge: Callable[[S, S], S], copy: Callable[[S], S] = lambda state: state
) -> list[S]:
    """Fold states[lo:hi] for every run with O(1) merges per state.

    `merge` may change and return its first argument, and return or keep its second, if `copy` makes real copies: a
    state that is needed again is copied before a merge can change it, directly or through what an earlier merge kept.
    """
    out: list[S] = []
    front: dict[int, S] = {}
    back: S | None = None
    mid = taken = 0
    for low, high in zip(lo.tolist(), hi.tolist(), strict=True):
        if low >= mid:
            front = {high - 1: states[high - 1]}
            for i in range(high - 2, low - 1, -1):
                front[i] = merge(copy(states[i]), front[i + 1])
            mid = taken = high
            back = None
        while taken < high:
            back = copy(states[taken]) if back is None else merge(back, copy(states[taken]))
            taken += 1
        result = copy(front[low])
        out.append(result if back is None else merge(result, copy(back)))
    return out
