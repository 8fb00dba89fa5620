"""Numba kernels for sliding windows over panes.

All of them work on the panes of many groups end to end, sorted by group and pane. `find_runs` walks over them once and
finds the *runs*: a run is a stretch of consecutive windows with the same content, the panes ``[lo, hi)``. From one run
to the next, lo and hi only increase, also from group to group, so every fold below costs O(1) per pane whatever the
overlap. A group's result changes only where a pane enters or leaves: there are at most two runs per pane and window
specification, and windows between them need no work at all.

Folds that cannot subtract use two stacks: the panes ``[lo, mid)`` with their suffix results, and the panes
``[mid, hi)`` as one running result; when lo reaches mid, the back becomes the front. Every pane is moved once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.compiled import kernel

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SUM = 0
MOMENTS = 1


@kernel()
def sorted_by_group(groups: Ints) -> tuple[Ints, Ints]:
    """The order that brings the members of each group together, otherwise unchanged, and where each group begins.

    Groups are numbered 0, 1, ... without gaps, so a counting sort in two passes is enough.
    """
    count = groups.max() + 1 if len(groups) else 0
    offsets = np.zeros(count + 1, np.int64)
    for group in groups:
        offsets[group + 1] += 1
    for group in range(count):
        offsets[group + 1] += offsets[group]
    at = offsets[:-1].copy()
    order = np.empty(len(groups), np.int64)
    for i in range(len(groups)):
        order[at[groups[i]]] = i
        at[groups[i]] += 1
    return order, offsets


@kernel()
def find_runs(
    offsets: Ints, panes: Ints, first_start: Ints, last_start: Ints, size: int, slide: int, offset: int
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """The runs of every group: (group, first window, last window, lo, hi).

    Group g has the panes ``offsets[g]:offsets[g+1]``, sorted (a pane in pieces occurs several times), and evaluates the
    windows that start in the panes first_start[g] .. last_start[g].
    """
    capacity = 2 * len(panes) + len(offsets)
    group = np.empty(capacity, np.int64)
    first = np.empty(capacity, np.int64)
    last = np.empty(capacity, np.int64)
    low = np.empty(capacity, np.int64)
    high = np.empty(capacity, np.int64)
    n = 0
    for g in range(len(offsets) - 1):
        end = offsets[g + 1]
        lo = hi = offsets[g]
        if lo == end:
            continue
        # Ceiling division: the first window that starts at or after first_start.
        j = -((offset - first_start[g]) // slide)
        stop = (last_start[g] - offset) // slide
        while j <= stop:
            start = offset + j * slide
            while hi < end and panes[hi] < start + size:
                hi += 1
            while lo < hi and panes[lo] < start:
                lo += 1
            if lo == hi:
                if hi == end:
                    break
                # An empty window: continue with the first that reaches the next pane.
                j = (panes[hi] - offset - size) // slide + 1
                continue
            leave = (panes[lo] - offset) // slide + 1
            change = leave
            if hi < end:
                enter = (panes[hi] - offset - size) // slide + 1
                change = min(leave, enter)
            group[n] = g
            first[n] = j
            last[n] = min(change - 1, stop)
            low[n] = lo
            high[n] = hi
            n += 1
            j = change
    return group[:n], first[:n], last[:n], low[:n], high[:n]


@kernel()
def _combine(op: int, into: Any, other: Any) -> None:
    """Add `other` to `into`, for a row of state columns."""
    if op == SUM:
        into[0] += other[0]
        return
    # Chan's update of (count, mean, sum of squared deviations). An empty side changes nothing; the formula alone would
    # give NaN if the square of the other's mean is infinite.
    if other[0] == 0.0:
        return
    if into[0] == 0.0:
        into[:] = other
        return
    n = into[0] + other[0]
    delta = other[1] - into[1]
    share = other[0] / n
    into[2] += other[2] + delta * delta * into[0] * share
    into[1] += delta * share
    into[0] = n


@kernel()
def two_stacks(op: int, states: Any, lo: Ints, hi: Ints) -> Any:
    """Fold states[lo:hi] for every run, without ever subtracting. States are the rows of a 2-D float array."""
    n, width = states.shape
    out = np.empty((len(lo), width), states.dtype)
    front = np.empty((n, width), states.dtype)
    back = np.empty(width, states.dtype)
    mid = 0
    taken = 0
    for r in range(len(lo)):
        low, high = lo[r], hi[r]
        if low >= mid:
            front[high - 1] = states[high - 1]
            for i in range(high - 2, low - 1, -1):
                front[i] = states[i]
                _combine(op, front[i], front[i + 1])
            mid = taken = high
        while taken < high:
            if taken == mid:
                back[:] = states[taken]
            else:
                _combine(op, back, states[taken])
            taken += 1
        out[r] = front[low]
        if taken > mid:
            _combine(op, out[r], back)
    return out


@kernel()
def least(order: Ints, valid: Any, lo: Ints, hi: Ints) -> Ints:
    """The state with the smallest order key in [lo, hi), for every run; -1 if none is valid.

    A queue of candidates with increasing keys: a state leaves it when a smaller one follows.
    """
    out = np.empty(len(lo), np.int64)
    queue = np.empty(len(order) + 1, np.int64)
    head = tail = 0
    taken = 0
    for r in range(len(lo)):
        taken = max(taken, lo[r])
        while taken < hi[r]:
            if valid[taken]:
                while tail > head and order[queue[tail - 1]] > order[taken]:
                    tail -= 1
                queue[tail] = taken
                tail += 1
            taken += 1
        while head < tail and queue[head] < lo[r]:
            head += 1
        out[r] = queue[head] if head < tail else -1
    return out


@kernel()
def distinct(starts: Ints, codes: Ints, n_codes: int, lo: Ints, hi: Ints) -> Ints:
    """The number of distinct codes in the panes [lo, hi); pane i has codes[starts[i]:starts[i+1]]."""
    occurrences = np.zeros(n_codes, np.int64)
    out = np.empty(len(lo), np.int64)
    count = 0
    added = removed = 0
    for r in range(len(lo)):
        # Both ends only move forward, so each code is added once and removed once.
        for i in range(starts[added], starts[hi[r]]):
            occurrences[codes[i]] += 1
            if occurrences[codes[i]] == 1:
                count += 1
        added = hi[r]
        for i in range(starts[removed], starts[lo[r]]):
            occurrences[codes[i]] -= 1
            if occurrences[codes[i]] == 0:
                count -= 1
        removed = lo[r]
        out[r] = count
    return out


@kernel()
def most_frequent(
    starts: Ints, codes: Ints, weights: Ints, n_codes: int, lo: Ints, hi: Ints, k: int
) -> tuple[Ints, Ints, Ints]:
    """The k codes with the largest weight in [lo, hi): (ends of the runs' lists, codes, weights).

    Ties go to the smaller code. The cost of choosing is proportional to the number of distinct codes in the window.
    """
    total = np.zeros(n_codes, np.int64)
    live = np.empty(n_codes, np.int64)
    place = np.full(n_codes, -1)
    n_live = 0
    ends = np.empty(len(lo), np.int64)
    top = np.empty(len(lo) * k, np.int64)
    top_weight = np.empty(len(lo) * k, np.int64)
    n = 0
    added = removed = 0
    for r in range(len(lo)):
        for i in range(starts[added], starts[hi[r]]):
            c = codes[i]
            total[c] += weights[i]
            if place[c] < 0:
                place[c] = n_live
                live[n_live] = c
                n_live += 1
        added = hi[r]
        for i in range(starts[removed], starts[lo[r]]):
            c = codes[i]
            total[c] -= weights[i]
            if total[c] == 0:
                n_live -= 1
                live[place[c]] = live[n_live]
                place[live[n_live]] = place[c]
                place[c] = -1
        removed = lo[r]
        begin = n
        for i in range(n_live):
            c = live[i]
            at = n
            while at > begin and (
                top_weight[at - 1] < total[c] or (top_weight[at - 1] == total[c] and top[at - 1] > c)
            ):
                at -= 1
            if at - begin >= k:
                continue
            if n - begin < k:
                n += 1
            for m in range(n - 1, at, -1):
                top[m] = top[m - 1]
                top_weight[m] = top_weight[m - 1]
            top[at] = c
            top_weight[at] = total[c]
        ends[r] = n
    return ends, top[:n], top_weight[:n]
