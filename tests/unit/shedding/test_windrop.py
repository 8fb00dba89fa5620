"""Window drop: the gap stays within B, the share comes to p, what is past stays as it is, a replay throws the same."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.shedding.kernels import coin, says_drop
from anabranch.shedding.windrop import DropState, Ranges, Tally, most

Z = 4.0
"""How many standard deviations are still chance. Seeds are fixed: what passes once, passes always."""


def units(ranges: Ranges) -> set[int]:
    return {unit for first, last in ranges for unit in range(first, last + 1)}


def drawn(state: DropState, first: int, last: int, bucket: int = 0) -> str:
    """x dropped, . kept"""
    gone = units(state.dropped[bucket])
    return "".join("x" if unit in gone else "." for unit in range(first, last + 1))


def longest(gone: set[int]) -> int:
    run = best = 0
    for unit in range(min(gone, default=0), max(gone, default=-1) + 1):
        run = run + 1 if unit in gone else 0
        best = max(best, run)
    return best


@dataclass(frozen=True)
class Call:
    opens: int
    unseen: int
    through: int
    p: float
    needed: int = -(10**9)


def follow(state: DropState, calls: list[Call], bound: int | None, seed: int = 1) -> list[DropState]:
    states = [state]
    for call in calls:
        states.append(
            states[-1].decided(
                opens=call.opens, unseen=call.unseen, through=call.through, p=call.p, bound=bound, seed=seed,
                needed=call.needed,
            )
        )  # fmt: skip
    return states


@st.composite
def streams(draw: st.DrawFn, *, constant: bool = False) -> list[Call]:
    """Calls as a stream makes them: opens <= unseen, and neither moves back.

    How far ahead units are decided may change, but all that were decided and seen since are in it again.
    """
    opens = unseen = through = draw(st.integers(-20, 20))
    step, p = st.integers(0, 9), draw(st.floats(0, 1))
    calls = []
    for _ in range(draw(st.integers(1, 12))):
        unseen = max(unseen + draw(step), opens)
        opens = min(opens + draw(step), unseen)
        through = max(min(through, unseen), draw(st.sampled_from([through, opens, unseen])) + draw(step))
        p = p if constant else draw(st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0, p]))
        calls.append(Call(opens, unseen, through, p))
    return calls


# --- the rule, unit by unit ---


@pytest.mark.parametrize(
    ("bound", "coins", "expected"),
    [
        # One opens each time that three are missing. Two opened, so two are skipped later.
        (3, "xxx xxx xxx ... ...", "xxx .xx x.x xx. ..."),
        # Two coins, as in section 3.4: the first window of the second batch opens, the next keep is skipped.
        (3, "... xxx xxx ... ...", "... xxx .xx x.. ..."),
        (1, "x x x x . . . .", "x . x . x . x ."),
        (2, "xx .. xx ..", "xx .. xx .."),
        # Nothing is owed: a keep is a keep.
        (2, "xx xx .. ..", "xx .x x. .."),
        # A debt that would make a gap above B waits for its turn.
        (2, "xx xx xx .. ..", "xx .x x. xx .."),
    ],
)
def test_the_rule_on_paper(bound: int, coins: str, expected: str) -> None:
    tally, found = Tally(), ""
    for each in coins.replace(" ", ""):
        gone = tally.decide(each == "x", bound)
        tally = tally.after(gone, each == "x")
        found += "x" if gone else "."
    assert found == expected.replace(" ", "")
    assert tally.debt == coins.count("x") - found.count("x")


@given(st.lists(st.booleans(), max_size=80), st.integers(1, 6))
def test_debt_is_what_was_not_dropped_yet(coins: list[bool], bound: int) -> None:
    tally, gone = Tally(), []
    for each in coins:
        gone.append(tally.decide(each, bound))
        tally = tally.after(gone[-1], each)
        assert tally.run <= bound
    assert tally.debt == sum(coins) - sum(gone) >= 0


def test_units_that_are_gone_already_count() -> None:
    assert Tally(run=1).decide(True, 3, ahead=1)
    assert not Tally(run=1).decide(True, 3, ahead=2)


def test_the_most_that_can_be_dropped() -> None:
    assert most(1) == 0.5 and most(3) == 0.75


# --- decisions, epoch by epoch ---


@pytest.mark.parametrize("bound", [1, 2, 5])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_one_coin_per_batch_of_b_units(bound: int, p: float) -> None:
    """The rule above, with units kB .. kB+B-1 as batch k, also below 0."""
    state = follow(DropState.new(-30, 3), [Call(-30, -30, 120, p)], bound, seed=5)[-1]
    for g in range(3):
        tally, gone = Tally(), set()
        for unit in range(-30, 121):
            thrown = says_drop(coin(5, unit // bound), p, g, 3)
            dropped = tally.decide(thrown, bound)
            tally = tally.after(dropped, thrown)
            gone |= {unit} if dropped else set()
        assert units(state.dropped[g]) == gone


@pytest.mark.parametrize(("then", "owed"), [(1.0, 2), (0.99, 0), (0.0, 0)])
def test_what_is_owed_is_owed_as_long_as_p_does_not_fall(then: float, owed: int) -> None:
    # p = 1, B = 2     0  1  2  3  4  5 | 6         2 and 5 opened against their coins
    #                  x  x  .  x  x  . |
    after = follow(DropState.new(0, 1), [Call(0, 0, 9, 1.0), Call(6, 6, 9, then)], 2)[-1]
    assert after.tallies[0] == Tally(run=0, debt=owed)


@given(streams(), st.integers(1, 5), st.integers(0, 3), st.integers(1, 4))
@settings(max_examples=250, deadline=None)
def test_whatever_p_does_the_gap_stays_and_the_past_too(calls: list[Call], bound: int, seed: int, buckets: int) -> None:
    states = follow(DropState.new(calls[0].opens, buckets), calls, bound, seed)
    for (before, after), call in zip(pairwise(states), calls, strict=True):
        assert after.unit == max(call.opens, before.unit)
        for old, new in zip(before.dropped, after.dropped, strict=True):
            # Ascending, with kept units between.
            assert all(first <= last for first, last in new)
            assert all(last + 1 < first for (_, last), (first, _) in pairwise(new))
            was, now = units(old), units(new)
            assert longest(now) <= bound
            assert {u for u in was if u < call.opens} == {u for u in now if u < call.opens}
            assert {u for u in was if u < call.unseen} <= now
            assert max(now, default=call.through) <= max(call.through, max(was, default=call.through))


@given(streams(), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_the_same_calls_give_the_same(calls: list[Call], bound: int, buckets: int) -> None:
    new = DropState.new(calls[0].opens, buckets)
    assert follow(new, calls, bound) == follow(new, calls, bound)


@given(streams(constant=True), st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_while_p_stays_it_does_not_matter_where_epochs_end(calls: list[Call], bound: int, seed: int) -> None:
    """Units are decided ahead, and decided anew: with the same coins that is the same. Only undecided ones are kept."""
    first, last = calls[0].opens, calls[-1].through
    state = follow(DropState.new(first, 2), calls, bound, seed)[-1]
    once = follow(DropState.new(first, 2), [Call(first, first, last, calls[0].p)], bound, seed)[1]
    skipped = any(now.opens - 1 > before.through for before, now in pairwise(calls))
    if not skipped:
        assert state.dropped == once.dropped


def test_seen_units_stay_dropped_and_unseen_ones_may_open() -> None:
    # p = 1, B = 2     0  1  2  3  4  5  6  7
    #                  x  x  .  x  x  .  x  x
    # then p = 0       opens = 1  ↑ unseen = 4
    #                  x  x  .  x  .  .  .  .
    first, second = follow(DropState.new(0, 1), [Call(0, 0, 7, 1.0), Call(1, 4, 7, 0.0)], 2)[1:]
    assert drawn(first, 0, 7) == "xx.xx.xx"
    assert drawn(second, 0, 7) == "xx.x...."


def test_seen_units_that_were_kept_can_be_dropped_if_the_gap_allows_it() -> None:
    # B = 3, unit 2 is gone and seen   0  1  2  3  4
    #                                  .  .  x  .  .
    # p = 1: 0 and 1 can go with it    x  x  x  .  x
    state = DropState(0, (Tally(),), (((2, 2),),), 0.5)
    (after,) = follow(state, [Call(0, 4, 4, 1.0)], 3)[1:]
    assert drawn(after, 0, 4) == "xxx.x"
    # B = 2: 0 can go; 1 cannot, with 0 and 2 gone.
    (after,) = follow(state, [Call(0, 4, 4, 1.0)], 2)[1:]
    assert drawn(after, 0, 4) == "x.x" + "x."


def test_dropped_units_that_nobody_asks_for_are_forgotten() -> None:
    calls = [Call(0, 0, 8, 1.0), Call(6, 6, 8, 1.0, needed=4)]
    first, second = follow(DropState.new(0, 1), calls, 2)[1:]
    assert drawn(first, 0, 8) == "xx.xx.xx."
    assert second.dropped == (((4, 4), (6, 7)),)


def test_forgetting_does_not_change_decisions() -> None:
    steps = [(3 * i, 3 * i + 2, 3 * i + 9) for i in range(40)]
    asks = follow(DropState.new(0, 2), [Call(*step, p=0.6) for step in steps], 2)
    none = follow(DropState.new(0, 2), [Call(*step, p=0.6, needed=10**9) for step in steps], 2)
    for one, other in zip(asks, none, strict=True):
        assert one.tallies == other.tallies
        for g in range(2):
            assert {u for u in units(one.dropped[g]) if u >= one.unit} == units(other.dropped[g])


def test_without_load_nothing_new_is_dropped_and_nothing_is_owed() -> None:
    loaded = follow(DropState.new(0, 3), [Call(0, 0, 20, 1.0), Call(12, 15, 30, 1.0)], 2)[-1]
    assert any(tally.debt for tally in loaded.tallies)
    after = follow(loaded, [Call(14, 17, 40, 0.0)], 2)[-1]
    assert all(tally.debt == 0 for tally in after.tallies)
    for old, new in zip(loaded.dropped, after.dropped, strict=True):
        assert units(new) == {u for u in units(old) if u < 17}
    later = follow(after, [Call(40, 40, 60, 0.0, needed=40)], 2)[-1]
    assert later.empty and not loaded.empty


def test_with_less_load_no_more_than_one_gap_is_owed() -> None:
    """At p = 1 every third unit opens against its coin; paid in full, that would go on long after."""
    loaded = follow(DropState.new(0, 1), [Call(0, 0, 600, 1.0), Call(500, 500, 600, 1.0)], 2)[-1]
    assert loaded.tallies[0].debt > 100
    after = follow(loaded, [Call(500, 500, 600, 0.01)], 2)[-1]
    assert after.tallies[0].debt <= 2


def test_without_a_bound_all_are_dropped() -> None:
    """Admission control: shut, whatever was promised. What is out stays out."""
    kept = follow(DropState.new(0, 2), [Call(0, 0, 9, 0.0), Call(5, 7, 12, 0.0)], 3)[-1]
    assert kept.empty
    shut = follow(kept, [Call(6, 7, 30, 0.0)], None)[-1]
    assert shut.dropped == (((6, 30),), ((6, 30),))
    opened = follow(shut, [Call(10, 15, 40, 0.0)], 3)[-1]
    assert opened.dropped == (((6, 14),), ((6, 14),))


@pytest.mark.parametrize("times", [1, 2, 3])
def test_after_that_the_next_unit_opens(times: int) -> None:
    """However many epochs it was shut: more than B are missing already."""
    # shut             0 .. 9 | 10 11 12 13 14       past: 0 to 9
    # then p = 1, B=3  x .. x |  .  x  x  x  .
    shut = follow(DropState.new(0, 1), [Call(0, 0, 30, 1.0), *[Call(10, 10, 30, 1.0)] * (times - 1)], None)[-1]
    opened = follow(shut, [Call(10, 10, 14, 1.0)], 3)[-1]
    assert drawn(opened, 8, 14) == "xx.xxx."


def test_units_that_nobody_decided_are_not_owed() -> None:
    """Time jumps over 10,000 units at once. They were kept, but not against their coins: these were never thrown."""
    before = follow(DropState.new(0, 1), [Call(0, 0, 5, 0.5)], 3)[-1]
    after = follow(before, [Call(10_000, 10_000, 10_010, 0.5)], 3)[-1]
    assert after.tallies[0].debt <= 6


def test_time_may_jump_far() -> None:
    """A source that begins in 1970, or sleeps over night, must not keep the driver busy."""
    began = time.perf_counter()
    for p in (0.0, 0.5):
        state = follow(DropState.new(0, 4), [Call(0, 0, 9, p), Call(10**6, 10**6, 10**6 + 9, p)], 3)[-1]
        assert state.unit == 10**6
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize("p", [0.3, 1.0])
def test_a_bound_of_zero_drops_nothing(p: float) -> None:
    assert follow(DropState.new(0, 2), [Call(0, 0, 50, p), Call(20, 30, 90, p)], 0)[-1].empty


# --- p, in the long run ---


@pytest.mark.parametrize(("bound", "p"), [(1, 0.2), (1, 0.5), (2, 0.4), (3, 0.1), (3, 0.6), (3, 0.75), (5, 0.8)])
@pytest.mark.parametrize("buckets", [1, 5])
def test_the_share_comes_to_p(bound: int, p: float, buckets: int) -> None:
    """Epoch after epoch, the share of dropped units comes to p: for each bucket, and for all of them.

    Of n batches, chance drops p * n +- Z * sqrt(p (1-p) n), and a debt may be open. At p = B/(B+1) nothing draws it to
    0: it is the height of a random walk above its lowest point, and so may be twice as far away again.
    """
    batches = 3000 // buckets + 1000
    last, state = batches * bound - 1, DropState.new(0, buckets)
    counts = [0] * buckets
    for opens in range(0, last + 1, 200):
        until = min(opens + 200, last + 1)
        state = state.decided(
            opens=opens, unseen=min(opens + 50, until), through=until + 20, p=p, bound=bound, seed=7, needed=opens - 5
        )
        for g in range(buckets):
            counts[g] += sum(opens <= unit < until for unit in units(state.dropped[g]))
    chance = Z * math.sqrt(p * (1 - p) / batches)
    for count in counts:
        assert abs(count / (last + 1) - p) <= 3 * chance
        if p <= 0.8 * most(bound):  # the debt is small then
            assert abs(count / (last + 1) - p) <= chance + 10 * bound / (last + 1)
    share = sum(counts) / (last + 1) / buckets
    assert abs(share - p) <= 3 * chance


def test_more_than_the_bound_allows_is_not_dropped() -> None:
    state = follow(DropState.new(0, 1), [Call(0, 0, 9999, 0.95)], 2)[-1]
    share = len(units(state.dropped[0])) / 10_000
    assert most(2) - 0.01 <= share <= most(2) + 1e-3


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1), st.integers(1, 64))
def test_of_all_buckets_the_share_p_drops_at_any_time(u: float, p: float, buckets: int) -> None:
    said = sum(says_drop(u, p, g, buckets) for g in range(buckets))
    assert abs(said / buckets - p) <= 1 / buckets + 1e-9


def test_all_or_none_at_the_ends() -> None:
    for u in (0.0, 0.25, 1 - 2**-53):
        assert all(says_drop(u, 1.0, g, 7) for g in range(7))
        assert not any(says_drop(u, 0.0, g, 7) for g in range(7))


# --- coins ---


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 12345])
def test_coins_are_uniform_and_independent(seed: int) -> None:
    n, cells = 20_000, 50
    thrown = [coin(seed, batch) for batch in range(-n // 2, n // 2)]
    assert all(0 <= u < 1 for u in thrown) and len(set(thrown)) == n
    assert abs(sum(thrown) / n - 0.5) <= Z * math.sqrt(1 / 12 / n)
    counts = [0] * cells
    for u in thrown:
        counts[int(u * cells)] += 1
    chi = sum((count - n / cells) ** 2 / (n / cells) for count in counts)
    assert abs(chi - (cells - 1)) <= Z * math.sqrt(2 * (cells - 1))
    for lag in (1, 2, 3, 64):  # neighbours know nothing of each other
        moved = sum((a - 0.5) * (b - 0.5) for a, b in zip(thrown, thrown[lag:], strict=False)) * 12 / (n - lag)
        assert abs(moved) <= Z / math.sqrt(n - lag)


def test_seeds_have_coins_of_their_own() -> None:
    """Also seeds that differ by one, also shifted."""
    n = 5000
    for shift in (0, 1, 2):
        both = sum((coin(3, b) - 0.5) * (coin(4, b + shift) - 0.5) for b in range(n)) * 12 / n
        assert abs(both) <= Z / math.sqrt(n)


def test_coins_of_a_replay() -> None:
    """Fixed numbers: a ledger that one version wrote is continued by the next."""
    assert [coin(1, batch) for batch in (-1, 0, 1)] == [0.6672673880425896, 0.8998490578119728, 0.9170861475108351]
