"""Brute force for the ordered merge, straight from the definition in paper 1, section 2.5."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def is_k_ordered(ids: Sequence[int], k: int) -> bool:
    """For any result s, all that leave at least k+1 positions after s have an id >= s's."""
    return all(later >= s for p, s in enumerate(ids) for later in ids[p + k + 1 :])


def disorder(ids: Sequence[int]) -> int:
    """The least k for which the sequence is k-ordered: the longest distance of two that left out of order."""
    pairs = ((p, q) for q in range(len(ids)) for p in range(q))
    return max((q - p for p, q in pairs if ids[p] > ids[q]), default=0)


def can_still_be_k_ordered(left: Sequence[int], rest: Sequence[int], k: int) -> bool:
    """Whether after `left` the `rest` can leave in some order that keeps the bound: tries them all."""
    if not is_k_ordered(left, k):
        return False
    return not rest or any(
        can_still_be_k_ordered([*left, x], list((Counter(rest) - Counter([x])).elements()), k) for x in set(rest)
    )
