"""Paper 1's model of the batch size, against counting; and that the planner's prices rank as they should."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import InvalidArgumentError
from anabranch.plan.prices import Statistics, UnitCosts, batch_cost, batch_rate, choose_batch, price
from anabranch.query.strategy import Strategy
from anabranch.windows import Batches, Panes, Window
from tests.oracles.windows import batches_of, windows_of


@st.composite
def specs(draw: st.DrawFn) -> Window:
    size = draw(st.integers(1, 30))
    return Window(size, draw(st.integers(1, size)))


batches = st.integers(1, 12)


# --- equations (1) to (3) ---


def updates_of_batch_0(window: Window, batch: int) -> tuple[int, int]:
    """(rows, updates) of the windows 0 .. B-1: look at each row and count the windows of the batch that it is in."""
    near = range(-window.size, window.size + batch * window.slide)
    rows = [t for t in near if 0 in batches_of(t, window, batch)]
    return len(rows), sum(len([j for j in windows_of(t, window) if j // batch == 0]) for t in rows)


@given(specs(), batches)
def test_equation_1_counts_updates_exactly(window: Window, batch: int) -> None:
    rows, updates = updates_of_batch_0(window, batch)
    assert updates == batch * window.size
    assert batch_cost(batch, window, update=1.0, open_close=0.0, other=0.0) * rows == pytest.approx(updates)
    assert batch_cost(batch, window, update=0.0, open_close=1.0, other=0.0) * rows == pytest.approx(batch)
    assert batch_cost(batch, window, update=0.0, open_close=0.0, other=7.0) == 7.0


def batch_cost_as_published(batch: int, window: Window, update: float, open_close: float, other: float) -> float:
    """The printed formula with its denominator restored: it counts s*B(B+1)/2 + (w-s) updates.

    That is right for B = 1, then too few, and beyond B = 2w/s - 2 too many.
    """
    rows = window.size + (batch - 1) * window.slide
    updates = window.slide * batch * (batch + 1) / 2 + (window.size - window.slide)
    return updates / rows * update + batch / rows * open_close + other


@given(specs(), batches)
def test_the_papers_count_is_right_for_one_window_only(window: Window, batch: int) -> None:
    exact, paper = (f(batch, window, 1.0, 0.5, 0.25) for f in (batch_cost, batch_cost_as_published))
    turn = 2 * window.size / window.slide - 2
    if batch == 1 or batch == turn:
        assert paper == pytest.approx(exact)
    elif batch < turn:
        assert paper < exact
    else:
        assert paper > exact


@given(specs(), batches, st.integers(1, 8))
def test_equation_2_is_what_the_split_sends(window: Window, batch: int, workers: int) -> None:
    # Over one period every row of the stream is looked at; batches go round the workers.
    period = batch * window.slide * workers
    received = sum(1 for t in range(period) for k in batches_of(t, window, batch) if k % workers == 0)
    rate = 1000.0
    assert batch_rate(batch, window, rate, workers) == pytest.approx(rate * received / period)


costs = st.floats(1e-6, 1e-2)


@given(
    specs(), st.floats(1.0, 1e5), st.integers(1, 8), costs, costs, costs, st.floats(0.001, 10.0), st.floats(0.0, 0.9)
)
def test_choose_batch_takes_the_smallest_that_keeps_the_latency(
    window: Window,
    rate: float,
    workers: int,
    update: float,
    open_close: float,
    other: float,
    max_latency: float,
    headroom: float,
) -> None:
    def excess(batch: int) -> float:
        capacity = (1 - headroom) / batch_cost(batch, window, update, open_close, other)
        return batch_rate(batch, window, rate, workers) - capacity

    period, largest = 2.0, 60
    chosen = choose_batch(
        window,
        rate=rate,
        workers=workers,
        update=update,
        open_close=open_close,
        other=other,
        max_latency=max_latency,
        period=period,
        headroom=headroom,
        largest=largest,
    )
    meets = [b for b in range(1, largest + 1) if excess(b) * period < max_latency]
    if meets:
        assert chosen == meets[0]
    else:
        assert 1 <= chosen <= largest
        assert excess(chosen) == min(excess(b) for b in range(1, largest + 1))


def test_choose_batch_follows_the_load() -> None:
    given_costs = {"workers": 4, "update": 1e-6, "open_close": 1e-5, "other": 2e-5, "max_latency": 1.0, "period": 1.0}
    window = Window(100, 1)
    # A stream that one window at a time can carry needs no batch; a faster one needs fewer copies; beyond all
    # capacity the nearest is taken.
    idle, busy, lost = (choose_batch(window, rate=rate, **given_costs) for rate in (100.0, 10_000.0, 1e9))
    assert idle == 1
    assert 1 < busy < lost


# --- prices ---


def priced(strategy: Strategy, *windows: Window, rows_per_pane: float = 1.0, python: bool = False) -> float:
    panes = Panes(windows)
    in_panes = panes.in_panes()
    longest = max(w.size for w in in_panes)
    layout = Batches.over(in_panes, 4 * longest)
    found = price(
        strategy,
        panes,
        Statistics(rows_per_pane),
        pane_replication=layout.replication,
        native=not python,
        python=python,
    )
    assert found.possible and found.per_row is not None
    return found.per_row


PANE, WINDOW = Strategy("pane"), Strategy("window")


def test_window_price_grows_with_the_overlap_and_the_pane_price_does_not() -> None:
    low, high = Window(100, 50), Window(100, 1)
    assert priced(WINDOW, high) > 10 * priced(WINDOW, low)
    assert priced(PANE, high) < 2 * priced(PANE, low)
    assert priced(PANE, high) < priced(WINDOW, high) / 5


@pytest.mark.parametrize("rows_per_pane", [1.0, 100.0])
def test_tumbling_windows_are_cheapest_as_windows(rows_per_pane: float) -> None:
    tumbling = Window(100, 100)
    assert priced(WINDOW, tumbling, rows_per_pane=rows_per_pane) < priced(PANE, tumbling, rows_per_pane=rows_per_pane)
    assert priced(WINDOW, tumbling) < priced(Strategy("batch", 10), tumbling)


def test_dense_panes_are_cheaper() -> None:
    window = Window(100, 10)
    prices = [priced(PANE, window, rows_per_pane=rows) for rows in (1, 2, 10, 1000)]
    assert prices == sorted(prices, reverse=True)
    assert prices[-1] == pytest.approx(UnitCosts().update, rel=0.1)  # in the end only the pane-level query is left
    assert priced(PANE, window, rows_per_pane=0.5) == prices[0]  # a pane that occurs has a row


def test_larger_batches_send_fewer_copies() -> None:
    window = Window(100, 1)
    prices = [priced(Strategy("batch", b), window) for b in (1, 2, 10, 50, 1000)]
    assert prices == sorted(prices, reverse=True)
    # Every update is still made: never cheaper than the windows' own work.
    assert prices[-1] > priced(WINDOW, window)


def test_copies_are_reported() -> None:
    window, panes = Window(3, 1), Panes((Window(3, 1), Window(6, 2)))
    one = Panes((window,))
    assert price(WINDOW, one, Statistics(), pane_replication=1.5).replication == 3
    assert price(Strategy("batch", 3), one, Statistics(), pane_replication=1.5).replication == 5 / 3
    assert price(PANE, one, Statistics(), pane_replication=1.5).replication == 1
    assert price(WINDOW, panes, Statistics(), pane_replication=1.5).replication == 6


def test_python_costs_more_and_most_where_it_sees_every_copy() -> None:
    # Without a merge each window takes all its rows anew; with one, a row is seen once.
    window = Window(100, 10)
    for strategy in (PANE, WINDOW, Strategy("batch", 10)):
        assert priced(strategy, window, python=True) > 2 * priced(strategy, window)
    assert priced(PANE, window, python=True) < priced(WINDOW, window, python=True) / 2


def test_unit_costs_can_be_replaced() -> None:
    window = Panes((Window(100, 10),))
    dear = replace(UnitCosts(), gather=1e6)
    cheap, costly = (price(PANE, window, Statistics(), pane_replication=1.0, costs=c) for c in (None, dear))
    assert cheap.per_row is not None and costly.per_row is not None
    assert costly.per_row > 1000 * cheap.per_row


# --- strategies ---


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "panes"},
        {"kind": "batch", "batch": 0},
        {"kind": "batch", "batch": -1},
        {"kind": "batch", "batch": 2.5},
        {"kind": "pane", "nodes": 0},
        {"kind": "pane", "nodes": "4"},
    ],
)
def test_strategies_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        Strategy(**wrong)  # type: ignore[arg-type]
    assert raised.value.hint
