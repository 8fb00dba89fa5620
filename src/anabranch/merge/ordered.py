"""Ordered merge: many workers' results become one stream with a bound k on its disorder.

**The bound.** Results carry a window id and leave at positions 1, 2, 3, ... A result that leaves more than k positions
after a result s has an id >= s's: two results that leave out of order are at most k positions apart. k = 0 is strict
order, k = None is order of arrival. Results with equal ids (one per key of a window, say) are never out of order.

    leaves      2  0  1  3         k = 2: window 1 leaves two positions after window 2
                └─────┘

**What is known.** Each input is non-decreasing, so its last id, or a higher one that it promised (`advance`), is the
lowest it can still send. The *low-water mark* is the lowest of these over the open inputs: nothing below it can come.
Between the mark and x at most ``per_id * (x - low)`` results exist, less those that came: `missing`. `per_id` is the
most results that one window id has over all inputs, 1 when each window has one result. While it is unknown (None) any
number may be missing, so nothing can leave early and **every k > 0 acts as k = 0**. The same holds until each input has
been heard from, unless `start` names the lowest id. A window that has all its results moves the mark past itself.

**The rule.** x, about to take position p, may leave iff in every future the bound can still be kept:

1. the results below x that can still follow it, waiting or missing, are at most k: they must fit into p+1 .. p+k;
2. for each earlier *early leaver* e <= x (one that left before all below it had), those that can still come below e
   fit into the positions after p up to e's deadline, its own position + k. For e > x nothing changes: x is one of
   those that e has room for.

This is exact. If it holds for all early leavers, sending the rest in sorted order meets every deadline, because a
smaller id never has a later deadline. If it fails for one, the future in which everything missing arrives breaks the
bound in any case. And if x may leave, any waiting result below x may leave too (fewer results are below it, and fewer
early leavers constrain it), so only the smallest waiting result needs to be checked.

**Invariants** between calls: the smallest waiting result must not leave yet; nothing at or below the mark waits; all
early leavers that still have a deadline left within the last k positions, so the bookkeeping is O(k + per_id).

Being greedy has a price: a result that leaves early uses up room that a later one might have used better. At every
moment, every k has delivered at least as much as k = 0 and no more than k = None; of two k in between, the larger is
usually earlier, but not always (see `test_a_larger_k_can_be_later`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import takewhile
from operator import index
from typing import Generic, NamedTuple, TypeVar

from anabranch.errors import DisorderError, InvalidArgumentError

T = TypeVar("T")


@dataclass(frozen=True)
class Pending:
    """What an input yields when it has no result now; with `next_id` it promises to send nothing below that id."""

    next_id: int | None = None


PENDING = Pending()


class _EarlyLeaver(NamedTuple):
    window: int
    deadline: int  # the last position at which a smaller window may leave


class OrderedMerge(Generic[T]):
    """The merge in push form: each call reports what one input did and returns the results that may leave, in order.

    `key` gives the window id of a result. The module's docstring explains `k`, `per_id` and `start`.
    A call that raises changes nothing.
    """

    def __init__(
        self,
        inputs: int,
        *,
        key: Callable[[T], int],
        k: int | None = 0,
        per_id: int | None = None,
        start: int | None = None,
    ) -> None:
        _at_least(0, "inputs", inputs)
        _at_least(0, "k", k)
        _at_least(1, "per_id", per_id)
        self._key = key
        self._k = k
        self._per_id = per_id
        # Per input the least id it can still send: -inf before it was heard from, inf once it is closed.
        self._next: list[float] = [-math.inf if start is None else start] * inputs
        self._low: float = min(self._next, default=math.inf)
        self._position = 0  # of the result that left last
        self._left: list[int] = []  # ids at or above the mark that have left, one entry per result, sorted
        # Early leavers with a deadline, both fields ascending. One that left after a larger id is not kept: its
        # deadline is later and fewer are below it, so the larger one's constraint implies its own.
        self._early: deque[_EarlyLeaver] = deque()
        self._waiting: dict[int, deque[T]] = {}
        self._ids: list[int] = []  # heap of the keys of _waiting
        self._buffered = 0
        self._peak_buffered = 0

    @property
    def buffered(self) -> int:
        """Results that wait now."""
        return self._buffered

    @property
    def peak_buffered(self) -> int:
        """The most results that ever waited after a call."""
        return self._peak_buffered

    def push(self, i: int, result: T) -> list[T]:
        """Input i sent a result."""
        window = index(self._key(result))
        self._check(i, window)
        if window not in self._waiting:
            self._waiting[window] = deque()
            heappush(self._ids, window)
        self._waiting[window].append(result)
        self._buffered += 1
        self._raise_next(i, window)
        return self._release()

    def advance(self, i: int, next_id: int) -> list[T]:
        """Input i promises to send nothing below `next_id`; a promise that is already known changes nothing."""
        self._check_input(i)
        self._raise_next(i, index(next_id))
        return self._release()

    def close(self, i: int) -> list[T]:
        """Input i has ended. Once the last one has, no result waits."""
        self._check_input(i)
        self._raise_next(i, math.inf)
        return self._release()

    def _release(self) -> list[T]:
        leaving: list[T] = []
        while self._ids and self._may_leave(self._ids[0]):
            leaving.append(self._pop_smallest())
        self._peak_buffered = max(self._peak_buffered, self._buffered)
        return leaving

    def _may_leave(self, window: int) -> bool:
        """Whether the smallest waiting result may take the next position: the rule."""
        if self._k is None:
            return True
        position = self._position + 1
        affected = takewhile(lambda early: early.window <= window, self._early)
        return self._missing_below(window) <= self._k and all(
            position + self._missing_below(early.window) <= early.deadline for early in affected
        )

    def _missing_below(self, window: int) -> float:
        """The most results below `window` that can still come; no waiting result may be below it."""
        if window <= self._low:
            return 0
        if self._per_id is None:
            return math.inf
        return self._per_id * (window - self._low) - bisect_left(self._left, window)

    def _pop_smallest(self) -> T:
        window = self._ids[0]
        queue = self._waiting[window]
        result = queue.popleft()
        if not queue:
            heappop(self._ids)
            del self._waiting[window]
        self._buffered -= 1
        self._position += 1
        if self._k is not None and self._per_id is not None and window >= self._low:
            if window > self._low and (not self._early or window > self._early[-1].window):
                self._early.append(_EarlyLeaver(window, self._position + self._k))
            insort(self._left, window)
            self._raise_low(self._low)
        return result

    def _raise_next(self, i: int, next_id: float) -> None:
        self._next[i] = max(self._next[i], next_id)
        self._raise_low(min(self._next))

    def _raise_low(self, low: float) -> None:
        """Raise the mark, also past full windows, and forget everything below it."""
        self._low = max(self._low, low)
        del self._left[: bisect_left(self._left, self._low)]
        if self._per_id is not None:
            # The list is sorted and starts at the mark: the window at the mark is full iff entry per_id - 1 is its id.
            while len(self._left) >= self._per_id and self._left[self._per_id - 1] == self._low:
                del self._left[: self._per_id]
                self._low += 1
        while self._early and self._early[0].window <= self._low:
            self._early.popleft()

    def _check_input(self, i: int) -> None:
        if not 0 <= i < len(self._next):
            raise InvalidArgumentError(
                f"there is no input {i} in a merge of {len(self._next)} inputs",
                hint="inputs are numbered from 0",
            )

    def _check(self, i: int, window: int) -> None:
        self._check_input(i)
        if window < self._next[i]:
            before = "it was closed" if self._next[i] == math.inf else f"it had reached window {self._next[i]}"
            raise DisorderError(
                f"input {i} of the ordered merge sent window {window} after {before}: results that relied on its order "
                "may have left already",
                hint="sort each worker's results by window id, and call advance or close only for what is certain",
            )
        if self._per_id is not None and self._arrived(window) >= self._per_id:
            raise DisorderError(
                f"window {window} has more than per_id = {self._per_id} results: results that relied on that number "
                "may have left already",
                hint="set per_id to the most results a window can have over all inputs, or to None if it is not known",
            )

    def _arrived(self, window: int) -> float:
        """How many results of this window have arrived so far."""
        if window < self._low:
            return math.inf  # the mark passes a window that an input may still send only if the window is full
        left = bisect_right(self._left, window) - bisect_left(self._left, window)
        return left + len(self._waiting.get(window, ()))


def merge_ordered(
    inputs: Sequence[Iterable[T | Pending]],
    *,
    key: Callable[[T], int],
    k: int | None = 0,
    per_id: int | None = None,
    start: int | None = None,
) -> Iterator[T | Pending]:
    """The merge in pull form: polls the inputs in turn and yields results with disorder at most k.

    An input yields `PENDING` when it has nothing now, so a slow one does not hold up the polling of the others. When a
    whole round brings nothing, the merge yields `PENDING` itself, so the caller can wait, work or give up.
    Inputs that never yield PENDING give a merge that never does.

    An input whose result waits is not polled: what follows cannot leave before it. So at most one result per input is
    held, and an input that runs ahead is slowed down.
    """
    merge: OrderedMerge[tuple[int, T]] = OrderedMerge(
        len(inputs), key=lambda sourced: key(sourced[1]), k=k, per_id=per_id, start=start
    )
    return _poll(merge, inputs)


def _poll(merge: OrderedMerge[tuple[int, T]], inputs: Sequence[Iterable[T | Pending]]) -> Iterator[T | Pending]:
    live = {i: iter(each) for i, each in enumerate(inputs)}
    held: set[int] = set()  # never all of live: the smallest result among one of each input may always leave
    while live:
        idle = True
        for i in [i for i in live if i not in held]:
            try:
                item = next(live[i])
            except StopIteration:
                del live[i]
                idle = False
                released = merge.close(i)
            else:
                if isinstance(item, Pending):
                    released = [] if item.next_id is None else merge.advance(i, item.next_id)
                else:
                    held.add(i)
                    idle = False
                    released = merge.push(i, (i, item))
            for source, result in released:
                held.discard(source)
                idle = False
                yield result
        if idle:
            yield PENDING


def _at_least(least: int, name: str, value: int | None) -> None:
    if value is not None and value < least:
        raise InvalidArgumentError(
            f"{name} = {value} of the ordered merge is below {least}, which no stream can satisfy",
            hint=f"give {name} as {least} or more" + ("" if name == "inputs" else ", or None for no bound"),
        )
