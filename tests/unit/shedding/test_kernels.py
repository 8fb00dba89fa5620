"""One drop rule, one coin: all who use them decide as this plain copy does, to the bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anabranch.shedding.kernels import coin, coins, latest_kept, may_drop, run_and_debt, says_drop
from anabranch.shedding.windrop import DropState, Tally

SEEDS = st.integers(-(2**63), 2**64)
BATCHES = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20)


def plain_coin(seed: int, batch: int) -> float:
    """splitmix64, in whole numbers."""
    mask = (1 << 64) - 1
    mixed = (seed * 0x9E3779B97F4A7C15 + batch * 0xD1B54A32D192ED03 + 0x8CB92BA72F3D8DD7) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & mask
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)


def plain_rule(coins: list[bool], bound: int, run: int = 0, debt: int = 0) -> list[tuple[bool, int, int]]:
    """(dropped, run, debt) after each unit."""
    found = []
    for says in coins:
        if (says or debt > 0) and run < bound:
            run, debt, dropped = run + 1, debt - (not says), True
        else:
            run, debt, dropped = 0, debt + says, False
        found.append((dropped, run, debt))
    return found


@given(SEEDS, BATCHES)
def test_the_coin_of_one_batch_and_of_many(seed: int, batches: list[int]) -> None:
    expected = [plain_coin(seed, batch) for batch in batches]
    assert coins(seed, np.array(batches, np.int64)).tolist() == expected
    assert [coin(seed, batch) for batch in batches] == expected


@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 63)), max_size=30), st.floats(0, 1))
def test_what_one_coin_says_and_what_many_say(thrown: list[tuple[float, int]], p: float) -> None:
    one_by_one = [says_drop(u, p, bucket, 64) for u, bucket in thrown]
    numbers, buckets = np.array([u for u, _ in thrown], float), np.array([g for _, g in thrown], np.int64)
    assert says_drop(numbers, p, buckets, 64).tolist() == one_by_one


@given(st.lists(st.lists(st.booleans(), max_size=30), min_size=1, max_size=4), st.integers(0, 5), st.integers(0, 3))
def test_all_users_of_the_rule_decide_alike(thrown: list[list[bool]], bound: int, debt: int) -> None:
    offsets = np.cumsum([0, *map(len, thrown)])
    units = np.concatenate([np.arange(len(each)) for each in thrown])
    runs, debts = np.zeros(len(thrown), np.int64), np.full(len(thrown), debt)
    last = np.full(len(thrown), -1)
    said = np.array([each for key in thrown for each in key], np.bool_)
    latest = latest_kept(offsets, units, said, bound, runs, debts, last)  # of count windows, on a worker
    for i, each in enumerate(thrown):
        tally, run, owed, kept = Tally(0, debt), 0, debt, -1
        for unit, (dropped, run_after, debt_after) in enumerate(plain_rule(each, bound, debt=debt)):
            assert tally.decide(each[unit], bound) == may_drop(each[unit], run, owed, bound) == dropped
            run, owed = run_and_debt(dropped, each[unit], run, owed)
            tally = tally.after(dropped, each[unit])  # of time windows, on the driver
            assert (tally.run, tally.debt) == (run, owed) == (run_after, debt_after)
            kept = kept if dropped else unit
            assert latest[offsets[i] + unit] == kept
        assert (runs[i], debts[i], last[i]) == (run, owed, kept)


@given(st.integers(0, 2**62), st.integers(1, 5), st.floats(0, 1), st.integers(1, 4), st.integers(-50, 50))
def test_units_decided_on_the_driver_are_those_decided_on_a_worker(
    seed: int, bound: int, p: float, buckets: int, first: int
) -> None:
    units = np.arange(first, first + 60)
    state = DropState.new(first, buckets).decided(
        opens=first, unseen=first, through=first + 59, p=p, bound=bound, seed=seed, needed=first
    )
    for g in range(buckets):
        said = says_drop(coins(seed, units // bound), p, np.full(60, g), buckets)
        latest = latest_kept(np.array([0, 60]), units, said, bound, *np.array([[0], [0], [first - 1]]))
        dropped = {unit for low, high in state.dropped[g] for unit in range(low, high + 1)}
        assert dropped == set(units[latest != units].tolist())
