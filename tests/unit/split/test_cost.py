"""Paper 5's cost model against counting tuple by tuple, its check values, and the search for W."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import InvalidArgumentError
from anabranch.observe.progress import SplitterMeasure, WorkerMeasure
from anabranch.split.cost import SplitCosts, process_cost, splitters_needed
from anabranch.split.window_size import SAMPLES
from tests.oracles.split_cost import split_seconds
from tests.oracles.window_size import next_window_bytes

cost = st.floats(1e-9, 1e-3)
counts = st.integers(0, 30)


def test_the_papers_check_values() -> None:
    assert splitters_needed(500, 123.7, 512) == 25
    assert splitters_needed(1000, 123.7, 512) == 50  # the paper prints 55, which its own formula does not give
    assert splitters_needed(500, 123.7, 512, limit=10) == 10
    assert splitters_needed(0, 123.7, 512) == 1


def test_equation_1_has_the_others_as_special_cases() -> None:
    costs = SplitCosts(cr_w=1, cs_w=2, ce_w=3, cr=4, cp=5, cm=6, cs=7, ce=8, O=9, b=0.25, r=0.5, o=0.25)
    assert costs.router() == 1 + 2 + 3
    assert costs.splitter(4) == 1 + 7 * (0.25 + 0.5 + 1) + 8 * (0.5 + 1)
    assert costs.processor(3) == 4 + 3 * (5 + 6) + 9
    assert process_cost(cr=1, u=2, cp=3, cm=4, cq=5, selectivity=0.5, cs=2, ce=4, b=0, r=1, o=0) == 1 + 14 + 5 + 3


@given(counts, counts, counts, st.integers(1, 9), cost, cost, cost)
def test_equation_3_counts_tuples(
    routed: int, broadcast: int, omitted: int, q: int, read: float, split: float, emit: float
) -> None:
    rows = routed + broadcast + omitted
    if rows == 0:
        return
    b, o = broadcast / rows, omitted / rows
    costs = SplitCosts(cr_w=read, cs=split, ce=emit, b=b, o=o, r=routed / rows)
    parts = split_seconds(routed, broadcast, omitted, q, read, split, emit)
    assert costs.splitter(q) * rows == pytest.approx(sum(parts))
    measure = SplitterMeasure(0, rows, 1, 0, 0, routed, broadcast, omitted, *parts)
    found = SplitCosts.from_measures([measure], [], q)
    assert found is not None
    assert found.splitter(q) == pytest.approx(costs.splitter(q))
    assert found.cs == pytest.approx(split)


def test_workers_parts_are_measured_per_copy_and_splitter() -> None:
    splitters = [SplitterMeasure(i, 100, 1, routed=100) for i in range(2)]
    workers = [WorkerMeasure(j, 50, 1.0, merge_seconds=0.4, query_seconds=0.2, read_seconds=0.1) for j in range(4)]
    found = SplitCosts.from_measures(splitters, workers, 4)
    assert found is not None
    assert (found.cr, found.cm, found.O) == pytest.approx((0.002, 0.004, 0.004))


def test_nothing_measured() -> None:
    assert SplitCosts.from_measures([], [], 4) is None
    assert SplitCosts.from_measures([SplitterMeasure(0, 0, 0)], [], 4) is None


@given(st.floats(1, 1e6), cost, cost, st.integers(1, 600))
def test_enough_splitters_and_no_more(rate: float, split: float, emit: float, q: int) -> None:
    costs = SplitCosts(cs=split, ce=emit)
    p = costs.splitters(rate, q, limit=10**9)
    assert p / costs.splitter(q) >= rate * (1 - 1e-6)
    assert p == 1 or (p - 1) / costs.splitter(q) < rate
    # (6) is the same where its assumptions hold: reading is free, nothing is omitted, b = 0.01.
    assert abs(p - splitters_needed(rate, 1 / (split + emit), q, limit=10**9)) <= 1


def test_efficiency_falls_with_too_many_splitters() -> None:
    costs = SplitCosts(cr_w=1e-7, cs=1e-6, ce=1e-6, cr=1e-7, cm=1e-8)
    found = [costs.efficiency(p, 64) for p in (1, 8, 64)]
    assert found == sorted(found, reverse=True)
    assert "efficiency " in costs.describe(8, 64)
    assert "window splitters" in costs.describe(8, 64)


@pytest.mark.parametrize("wrong", [{"cs": -1.0}, {"b": 0.5}, {"ce": float("nan")}])
def test_costs_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError):
        SplitCosts(**wrong)
    with pytest.raises(InvalidArgumentError):
        splitters_needed(1, 0, 1)
    with pytest.raises(InvalidArgumentError):
        splitters_needed(1, 1, 0)


# --- W ---


def search(rates: dict[int, float], epochs: int, noise: list[float] | None = None, **options: int) -> list[int]:
    """The sizes that the search asks for when each size has that rate."""
    history: list[tuple[int, float]] = []
    for i in range(epochs):
        size, _ = next_window_bytes(history, **options)
        history.append((size, rates[size] * (noise[i % len(noise)] if noise else 1.0)))
    return [size for size, _ in history]


RATES = {4096: 50.0, 8192: 80.0, 16384: 95.0, 32768: 95.1, 65536: 120.0}


def test_doubles_until_it_gains_nothing() -> None:
    sizes = search(RATES, 5 * SAMPLES)
    assert sizes == [4096] * 3 + [8192] * 3 + [16384] * 3 + [32768] * 3 + [16384] * 3
    assert next_window_bytes([(s, RATES[s]) for s in sizes]) == (16384, True)


def test_the_best_of_noisy_samples_counts() -> None:
    assert search(RATES, 30, noise=[0.7, 1.0, 0.85])[-1] == 16384


def test_stops_at_the_limit() -> None:
    assert search(RATES, 30, limit=8192)[-1] == 8192


def test_opens_again_after_a_fall_and_not_after_a_dip() -> None:
    settled = [(s, RATES[s]) for s in search(RATES, 6 * SAMPLES)]
    dip = [*settled, (16384, 40.0), (16384, 40.0), (16384, 94.0), (16384, 40.0)]
    assert next_window_bytes(dip) == (16384, True)
    assert next_window_bytes([*settled, *[(16384, 40.0)] * 3]) == (8192, False)


@given(st.lists(st.tuples(st.sampled_from([4096, 8192, 16384]), st.floats(0, 100)), max_size=60))
def test_always_within_its_bounds(history: list[tuple[int, float]]) -> None:
    size, _ = next_window_bytes(history, start=4096, limit=16384)
    assert size in (4096, 8192, 16384)
