"""The ordered merge against brute force, over random arrivals, and over every arrival where there are few.

A scenario is a list of events in the order they reach the merge: (input, window id), (input, CLOSE), or
(input, Pending(next_id)) for a promise. Drawings show from left to right what arrives and what
leaves upon it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import DisorderError, InvalidArgumentError
from anabranch.merge import PENDING, OrderedMerge, Pending, merge_ordered
from tests.oracles.k_order import can_still_be_k_ordered, disorder, is_k_ordered

CLOSE = None
Event = tuple[int, int | Pending | None]


class Scenario(NamedTuple):
    inputs: int
    per_id: int
    events: list[Event]

    @property
    def ids(self) -> list[int]:
        return [what for _, what in self.events if isinstance(what, int)]


def identity(window: int) -> int:
    return window


def merge_of(inputs: int, *, k: int | None, per_id: int | None = 1, start: int | None = 0) -> OrderedMerge[int]:
    return OrderedMerge(inputs, key=identity, k=k, per_id=per_id, start=start)


def feed(merge: OrderedMerge[int], event: Event) -> list[int]:
    i, what = event
    if what is CLOSE:
        return merge.close(i)
    if isinstance(what, Pending):
        assert what.next_id is not None
        return merge.advance(i, what.next_id)
    return merge.push(i, what)


def deliveries(
    scenario: Scenario, k: int | None, *, per_id_known: bool = True, start: int | None = 0
) -> list[list[int]]:
    """What leaves after each event."""
    merge = merge_of(scenario.inputs, k=k, per_id=scenario.per_id if per_id_known else None, start=start)
    return [feed(merge, event) for event in scenario.events]


def flat(steps: list[list[int]]) -> list[int]:
    return [window for step in steps for window in step]


@st.composite
def scenarios(draw: st.DrawFn, ids: int = 12, per_id: int = 3, max_inputs: int = 4) -> Scenario:
    """Windows 0 .. ids-1 with up to per_id results each, dealt to the inputs and interleaved at random."""
    inputs = draw(st.integers(1, max_inputs))
    most = draw(st.integers(1, per_id))
    queues: list[list[int | Pending | None]] = [[] for _ in range(inputs)]
    for window in range(draw(st.integers(0, ids))):
        for i in draw(st.lists(st.integers(0, inputs - 1), max_size=most)):
            if draw(st.integers(0, 4)) == 0:
                queues[i].append(Pending(window))
            queues[i].append(window)
    turns = draw(st.permutations([i for i, queue in enumerate(queues) for _ in [*queue, CLOSE]]))
    ordered = [iter([*queue, CLOSE]) for queue in queues]
    return Scenario(inputs, most, [(i, next(ordered[i])) for i in turns])


def every_arrival(inputs: int, ids: int, per_id: int) -> Iterator[list[Event]]:
    """All that the inputs can do with windows 0 .. ids-1: which windows, by whom, in what order, and when they end."""

    def go(lows: tuple[int | None, ...], room: tuple[int, ...]) -> Iterator[list[Event]]:
        if all(low is None for low in lows):
            yield []
        for i, low in enumerate(lows):
            if low is None:
                continue
            for rest in go((*lows[:i], None, *lows[i + 1 :]), room):
                yield [(i, CLOSE), *rest]
            for window in range(low, ids):
                if room[window]:
                    less = (*room[:window], room[window] - 1, *room[window + 1 :])
                    for rest in go((*lows[:i], window, *lows[i + 1 :]), less):
                        yield [(i, window), *rest]

    return go((0,) * inputs, (per_id,) * ids)


# --- the guarantee, over random arrivals ---


@given(scenarios(), st.integers(0, 6), st.booleans(), st.sampled_from([None, 0]))
def test_disorder_stays_within_k_and_nothing_is_lost(
    scenario: Scenario, k: int, per_id_known: bool, start: int | None
) -> None:
    out = flat(deliveries(scenario, k, per_id_known=per_id_known, start=start))
    assert is_k_ordered(out, k)
    assert Counter(out) == Counter(scenario.ids)
    if k == 0:
        assert out == sorted(scenario.ids)


@given(scenarios())
def test_without_a_bound_everything_leaves_at_once(scenario: Scenario) -> None:
    merge = merge_of(scenario.inputs, k=None, per_id=scenario.per_id)
    for event in scenario.events:
        assert feed(merge, event) == ([event[1]] if isinstance(event[1], int) else [])
    assert merge.peak_buffered == 0


@given(scenarios(), st.integers(1, 6))
def test_with_per_id_unknown_any_k_acts_as_zero(scenario: Scenario, k: int) -> None:
    assert deliveries(scenario, k, per_id_known=False) == deliveries(scenario, 0, per_id_known=False)


@given(scenarios(), st.integers(0, 6))
def test_what_is_buffered_is_what_came_and_did_not_leave(scenario: Scenario, k: int) -> None:
    merge = merge_of(scenario.inputs, k=k, per_id=scenario.per_id)
    waiting, peak = 0, 0
    for event in scenario.events:
        waiting += isinstance(event[1], int)
        waiting -= len(feed(merge, event))
        peak = max(peak, waiting)
        assert (merge.buffered, merge.peak_buffered) == (waiting, peak)
    assert waiting == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=12), st.integers(0, 4))
def test_results_of_one_window_from_one_input_keep_their_order(sent: list[tuple[int, int]], k: int) -> None:
    # Results are (window, input, number): one input's results never pass each other within a window.
    queues = [[(w, i, n) for n, w in enumerate(sorted(w for j, w in sent if i == j))] for i in range(3)]
    merge: OrderedMerge[tuple[int, int, int]] = OrderedMerge(3, key=lambda r: r[0], k=k, per_id=12, start=0)
    turns = [iter(queue) for queue in queues]
    out = [result for i, _ in sent for result in merge.push(i, next(turns[i]))]
    out += [result for i in range(3) for result in merge.close(i)]
    assert sorted(out) == sorted(result for queue in queues for result in queue)
    for i in range(3):
        for window in range(4):
            numbers = [n for w, j, n in out if (w, j) == (window, i)]
            assert numbers == sorted(numbers)


# --- the guarantee, over every future; and no result is held that could have left ---


@pytest.mark.parametrize(("inputs", "ids", "per_id"), [(2, 4, 1), (3, 3, 1), (2, 5, 1), (2, 2, 2)])
def test_bound_holds_however_the_inputs_behave(inputs: int, ids: int, per_id: int) -> None:
    worst = dict.fromkeys(range(4), 0)
    for events in every_arrival(inputs, ids, per_id):
        scenario = Scenario(inputs, per_id, events)
        for k in worst:
            out = flat(deliveries(scenario, k))
            assert sorted(out) == sorted(scenario.ids), events
            worst[k] = max(worst[k], disorder(out))
            assert worst[k] <= k, events
    # And the room that k gives is used, as far as so few results can be apart at all.
    most = per_id * ids - 1
    assert worst == {k: min(k, most) for k in worst}


def missing(scenario: Scenario, done: int, below: int) -> list[int]:
    """What can still come below an id after the first `done` events, from the definition."""
    past = scenario.events[:done]
    least = [0] * scenario.inputs
    for i, what in past:
        known = below if what is CLOSE else what.next_id if isinstance(what, Pending) else what
        least[i] = max(least[i], known or 0)
    came = Counter(what for _, what in past if isinstance(what, int))
    return [w for w in range(min(least), below) for _ in range(scenario.per_id - came[w])]


def assert_safe_and_greedy(scenario: Scenario, k: int) -> None:
    """After each event: the bound can be kept if all that is missing comes, and could not if one more had left.

    That all comes is the worst future: to take a result out of a k-ordered sequence leaves it k-ordered.
    """
    merge = merge_of(scenario.inputs, k=k, per_id=scenario.per_id)
    left: list[int] = []
    for done, event in enumerate(scenario.events, start=1):
        left += feed(merge, event)
        came = Counter(w for _, w in scenario.events[:done] if isinstance(w, int))
        waiting = list((came - Counter(left)).elements())
        rest = waiting + missing(scenario, done, below=max(came, default=0))
        assert can_still_be_k_ordered(left, rest, k)
        for one in set(waiting):
            others = list((Counter(rest) - Counter([one])).elements())
            assert not can_still_be_k_ordered([*left, one], others, k), f"{one} could have left after event {done}"


@given(scenarios(ids=6, per_id=1, max_inputs=3), st.integers(0, 5))
def test_a_result_leaves_as_soon_as_it_is_safe(scenario: Scenario, k: int) -> None:
    assert_safe_and_greedy(scenario, k)


@given(scenarios(ids=3, per_id=2, max_inputs=3), st.integers(0, 5))
def test_a_result_leaves_as_soon_as_it_is_safe_with_several_per_window(scenario: Scenario, k: int) -> None:
    assert_safe_and_greedy(scenario, k)


# --- what a larger k brings ---


@given(scenarios(), st.integers(1, 6))
def test_any_k_is_at_least_as_early_as_strict_order(scenario: Scenario, k: int) -> None:
    strict: Counter[int] = Counter()
    loose: Counter[int] = Counter()
    for a, b in zip(deliveries(scenario, 0), deliveries(scenario, k), strict=True):
        strict.update(a)
        loose.update(b)
        assert strict <= loose


def test_a_larger_k_waits_less_on_the_whole() -> None:
    rng = random.Random(2012)
    waited = dict.fromkeys(range(6), 0)
    for _ in range(300):
        queues: list[list[int | None]] = [[], [], []]
        for window in range(12):
            queues[rng.randrange(3)].append(window)
        turns = [i for i, queue in enumerate(queues) for _ in [*queue, CLOSE]]
        rng.shuffle(turns)
        ordered = [iter([*queue, CLOSE]) for queue in queues]
        scenario = Scenario(3, 1, [(i, next(ordered[i])) for i in turns])
        for k in waited:
            merge = merge_of(3, k=k)
            for event in scenario.events:
                feed(merge, event)
                waited[k] += merge.buffered
    assert all(waited[k + 1] < waited[k] for k in range(5)), waited


def test_a_larger_k_can_be_later() -> None:
    #   input 0            0   1       3
    #   input 1    2   4           5
    #   k = 2      2   .   0  1 4  5   3        4 waits for 1, and then has room for 5 before 3
    #   k = 3      2   4   0   1   .  3 5       4 goes at once: position 5 is the last for 3, and 5 must not take it
    # To hold 4 back in the hope of a 5 would be a guess; no rule that sends what is safe can win both times.
    events: list[Event] = [(1, 2), (1, 4), (0, 0), (0, 1), (1, 5), (0, 3)]
    scenario = Scenario(2, 1, events)
    assert deliveries(scenario, 2) == [[2], [], [0], [1, 4], [5], [3]]
    assert deliveries(scenario, 3) == [[2], [4], [0], [1], [], [3, 5]]


# --- boundaries ---


def test_strict_order_waits_for_the_slowest() -> None:
    #   input 0        0       3
    #   input 1    1       2
    #   leaves     .  0 1  2   3      once 0 is there, window 1 has all its results: 2 need not wait for input 0
    scenario = Scenario(2, 1, [(1, 1), (0, 0), (1, 2), (0, 3)])
    assert deliveries(scenario, 0) == [[], [0, 1], [2], [3]]


def test_strict_order_without_per_id_waits_for_every_input_to_pass() -> None:
    #   input 0        0       3
    #   input 1    1       2
    #   leaves     .   0   .  1 2     input 0 could have sent another 1, until it sent 3
    scenario = Scenario(2, 1, [(1, 1), (0, 0), (1, 2), (0, 3)])
    assert deliveries(scenario, 0, per_id_known=False) == [[], [0], [], [1, 2]]


@pytest.mark.parametrize(("k", "leaves"), [(1, []), (2, [2]), (3, [2])])
def test_as_many_as_k_may_be_missing(k: int, leaves: list[int]) -> None:
    #   position   1   2   3   4
    #   window     2  (0) (1)             two are missing below 2: k = 2 has room, k = 1 has not
    assert merge_of(2, k=k).push(1, 2) == leaves


def test_early_leavers_share_the_room() -> None:
    #   position   1   2   3   4
    #   window     1   2  (0)             each alone may pass 0 with k = 2, and so may both
    #              1   2   3  (0)         but with 3 the missing 0 would be three after 1
    merge = merge_of(2, k=2)
    assert [merge.push(1, 1), merge.push(1, 2), merge.push(1, 3)] == [[1], [2], []]
    assert merge.buffered == 1
    #              1   2   0   3
    assert merge.push(0, 0) == [0, 3]
    assert merge.buffered == 0


def test_a_missing_result_between_two_early_leavers() -> None:
    #   position   1   2   3   4
    #   window     3  (0) (1) (2)      k = 3: all the room of 3 is taken by what may come
    #              3   2  (0) (1)      2 is one of them, so it takes no room from 3; 4 would
    merge = merge_of(3, k=3)
    assert merge.push(1, 3) == [3]
    assert merge.push(1, 4) == []
    assert merge.push(2, 2) == [2]
    assert merge.push(0, 0) == [0]
    assert merge.push(0, 1) == [1, 4]


def test_a_promise_gives_room_back() -> None:
    #   input 0                Pending(3)
    #   input 1    3    5
    #   leaves     3    .      5            0, 1, 2 will not come; 4 may, one position after 5
    merge = merge_of(2, k=3)
    assert merge.push(1, 3) == [3]
    assert merge.push(1, 5) == []
    assert merge.advance(0, 3) == [5]
    assert merge.advance(0, 1) == []  # weaker than the first promise, which still stands
    with pytest.raises(DisorderError, match="had reached window 3"):
        merge.push(0, 2)
    assert merge.push(0, 4) == [4]


def test_several_results_per_window_count_each() -> None:
    #   position   1    2    3    4
    #   window     1   (0)  (0)           per_id = 2: both results of window 0 may come after
    assert merge_of(2, k=1, per_id=2).push(1, 1) == []
    merge = merge_of(2, k=2, per_id=2)
    assert merge.push(1, 1) == [1]
    #              1    1   (0)  (0)      the second 1 would put the last 0 three after the first 1
    assert merge.push(1, 1) == []
    assert merge.push(0, 0) == [0]
    assert merge.push(0, 0) == [0, 1]


def test_equal_ids_are_never_out_of_order() -> None:
    merge = merge_of(2, k=0, per_id=None, start=5)
    assert merge.push(0, 5) == [5]
    assert merge.push(1, 5) == [5]
    assert merge.push(0, 5) == [5]


def test_nothing_leaves_early_before_every_input_was_heard_unless_start_is_known() -> None:
    assert merge_of(2, k=100, start=None).push(1, 3) == []
    assert merge_of(2, k=100, start=0).push(1, 3) == [3]
    #   input 0        2
    #   input 1    3                  with 2 every input was heard from, and nothing below 3 is missing
    #   leaves     .  2 3
    merge = merge_of(2, k=100, start=None)
    merge.push(1, 3)
    assert merge.push(0, 2) == [2, 3]


def test_negative_ids() -> None:
    merge = merge_of(2, k=1, start=-2)
    assert merge.push(0, -1) == [-1]
    assert merge.push(1, -2) == [-2]
    assert merge.push(1, 0) == [0]


def test_ids_that_are_far_apart_do_not_leave_early_and_cost_nothing() -> None:
    # Window starts in microseconds are legal ids: very many could be between, so it is strict order.
    merge = merge_of(2, k=10)
    assert merge.push(0, 1_700_000_000_000_000) == []
    assert merge.close(1) == [1_700_000_000_000_000]


def test_closing_the_slow_input_frees_what_waited() -> None:
    merge = merge_of(2, k=0)
    assert [merge.push(0, w) for w in (4, 7, 9)] == [[], [], []]
    assert merge.close(1) == [4, 7, 9]
    assert merge.peak_buffered == 3
    assert merge.close(1) == []


# --- errors ---


def test_an_input_that_goes_backwards() -> None:
    merge = merge_of(2, k=None)
    merge.push(0, 5)
    with pytest.raises(DisorderError, match=r"input 0 .* sent window 4 after it had reached window 5"):
        merge.push(0, 4)
    merge.advance(1, 9)
    with pytest.raises(DisorderError, match="hint: sort each worker's results"):
        merge.push(1, 8)
    merge.close(1)
    with pytest.raises(DisorderError, match="after it was closed"):
        merge.push(1, 10)
    assert merge.push(0, 5) == [5]  # the failed calls changed nothing


def test_more_results_than_per_id() -> None:
    merge = merge_of(2, k=1)
    assert merge.push(0, 1) == [1]
    with pytest.raises(DisorderError, match="window 1 has more than per_id = 1"):
        merge.push(1, 1)  # has left
    assert merge.push(0, 3) == []
    with pytest.raises(DisorderError, match="window 3 has more than"):
        merge.push(1, 3)  # waits
    assert merge.push(1, 0) == [0, 3]
    with pytest.raises(DisorderError, match="window 0 has more than"):
        merge.push(1, 0)  # is below the mark
    assert merge.buffered == 0


@pytest.mark.parametrize("bad", [{"k": -1}, {"per_id": 0}])
def test_arguments_that_no_stream_could_meet(bad: dict[str, int]) -> None:
    (name,) = bad
    with pytest.raises(InvalidArgumentError, match=f"{name} = "):
        OrderedMerge(2, key=identity, **bad)
    with pytest.raises(InvalidArgumentError, match=f"{name} = "):
        merge_ordered([[1]], key=identity, **bad)  # at the call, not at the first result


@pytest.mark.parametrize("i", [-1, 2])
def test_an_input_that_is_not_there(i: int) -> None:
    merge = merge_of(2, k=0)
    for what in (0, Pending(0), CLOSE):
        with pytest.raises(InvalidArgumentError, match=f"no input {i}"):
            feed(merge, (i, what))
    with pytest.raises(InvalidArgumentError, match="inputs = -1"):
        merge_of(-1, k=0)


# --- the pull form ---


@given(scenarios(), st.one_of(st.none(), st.integers(0, 6)), st.booleans(), st.data())
def test_pulled_results_keep_the_bound_with_pauses_anywhere(
    scenario: Scenario, k: int | None, per_id_known: bool, data: st.DataObject
) -> None:
    inputs: list[list[int | Pending]] = [[] for _ in range(scenario.inputs)]
    for i, what in scenario.events:
        inputs[i] += [PENDING] * data.draw(st.integers(0, 2))
        if what is not None:
            inputs[i].append(what)
    pulled = merge_ordered(inputs, key=identity, k=k, per_id=scenario.per_id if per_id_known else None, start=0)
    out = [item for item in pulled if not isinstance(item, Pending)]
    assert Counter(out) == Counter(scenario.ids)
    assert k is None or is_k_ordered(out, k)


@given(st.lists(st.lists(st.integers(-9, 9)).map(sorted), max_size=4))
def test_pulled_without_pauses_in_strict_order_is_a_sort(inputs: list[list[int]]) -> None:
    merged = merge_ordered(inputs, key=identity)
    assert list(merged) == sorted(w for each in inputs for w in each)


def test_a_round_without_anything_is_handed_to_the_caller() -> None:
    def slow() -> Iterator[int | Pending]:
        yield PENDING
        yield PENDING
        yield Pending(3)
        yield 4

    #   round      1   2   3   4
    #   slow       …   …  ≥3   4
    #   fast       2           end       not polled while its 2 waits
    #   yields         …   2   4
    fast = iter([2, 5])
    merged = merge_ordered([slow(), fast], key=identity)
    assert next(merged) == PENDING  # 2 came in the first round, and nothing in the second
    assert next(fast) == 5  # one result per input is held, no more
    assert list(merged) == [2, 4]


def test_a_silent_input_does_not_stop_the_others() -> None:
    def silent() -> Iterator[int | Pending]:
        while True:
            yield PENDING

    merged = merge_ordered([silent(), [0, 1, 2]], key=identity, k=None)
    assert [next(merged) for _ in range(3)] == [0, 1, 2]
    assert next(merged) == PENDING
    # k = 2 with 0 still missing: two may pass it
    bounded = merge_ordered([silent(), [1, 2, 3]], key=identity, k=2, per_id=1, start=0)
    assert [next(bounded) for _ in range(4)] == [1, 2, PENDING, PENDING]


def test_no_inputs() -> None:
    merged = merge_ordered([], key=identity)
    assert list(merged) == []
