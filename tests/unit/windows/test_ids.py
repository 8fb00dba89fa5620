"""The closed forms for ids, panes, batches and rings, against the enumeration of every candidate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from anabranch.windows import Batches, Panes, PaneWindow, Ring, Window
from anabranch.windows.ids import (
    batch_window,
    first_window,
    last_window,
    pane_of,
    replication,
    window_start,
)
from tests.oracles import windows as oracle

times = st.integers(-300, 300)
batches = st.integers(1, 9)


@st.composite
def specs(draw: st.DrawFn, largest: int = 60, origin: bool = True) -> Window:
    """Any size >= slide > 0: slides that do not divide, tumbling windows, odd origins."""
    size = draw(st.integers(1, largest))
    slide = draw(st.one_of(st.integers(1, size), st.just(size)))
    return Window(size, slide, draw(st.integers(-100, 100)) if origin else 0)


# --- windows of a time ---


@given(times, specs())
def test_window_ids_are_those_that_hold_the_time(t: int, window: Window) -> None:
    ids = list(range(first_window(t, window), last_window(t, window) + 1))
    assert ids == oracle.windows_of(t, window)
    assert [window_start(j, window) for j in ids] == [window.origin + j * window.slide for j in ids]


@given(st.lists(st.integers(-(2**58), 2**58), min_size=1, max_size=30), specs(10**15))
@example([-1, 0, 1], Window(7, 3, 1))
def test_numpy_and_python_agree_also_far_from_zero(values: list[int], window: Window) -> None:
    array = np.array(values, np.int64)
    for form in (first_window, last_window):
        assert form(array, window).tolist() == [form(t, window) for t in values]
    # The definition, at both ends: the first window holds t and the one before does not; likewise the last.
    for t in values:
        first, last = first_window(t, window), last_window(t, window)
        assert oracle.holds(window, first, t) and not oracle.holds(window, first - 1, t)
        assert oracle.holds(window, last, t) and not oracle.holds(window, last + 1, t)


def test_edges_are_half_open() -> None:
    #  slide 2, size 3, origin 1      -2  -1   0   1   2   3   4   5   6
    #  window -1                           [-----------)
    #  window  0                                   [-----------)
    #  window  1                                           [-----------)
    window = Window(3, 2, 1)
    ids = {t: (first_window(t, window), last_window(t, window)) for t in range(-2, 6)}
    assert ids == {
        -2: (-2, -2),
        -1: (-2, -1),
        0: (-1, -1),
        1: (-1, 0),
        2: (0, 0),
        3: (0, 1),
        4: (1, 1),
        5: (1, 2),
    }


# --- count windows, as the paper counts: rows and windows from 1 ---


def test_paper_1_window_ids_of_a_tuple() -> None:
    # w=3 s=1: tuple 4 is in windows 2..4
    #   rows       1   2   3   4   5   6
    #   window 1   [-----------)
    #   window 2       [-----------)
    #   window 3           [-----------)
    #   window 4               [-----------)
    assert (max(1, oracle.count_first(4, 3, 1)), oracle.count_last(4, 3, 1)) == (2, 4)


@given(st.integers(1, 120), specs(40, origin=False))
def test_count_window_ids(i: int, window: Window) -> None:
    w, s = window.size, window.slide
    ids = list(range(max(1, oracle.count_first(i, w, s)), oracle.count_last(i, w, s) + 1))
    assert ids == oracle.count_windows_of(i, w, s)
    # The paper's printed forms.
    assert oracle.count_first(i, w, s) == math.ceil((i - w) / s) + 1
    assert oracle.count_last(i, w, s) == math.ceil(i / s)
    # Ours, from 0, are the same windows.
    ours = Window.of_rows(w, s)
    assert [max(0, first_window(i - 1, ours)), last_window(i - 1, ours)] == [ids[0] - 1, ids[-1] - 1]


@given(specs(30, origin=False), batches)
def test_closers(window: Window, batch: int) -> None:
    w, s = window.size, window.slide
    rows = np.arange(1, 200)
    closes = oracle.is_closer(rows, w, s)
    closes_batch = oracle.is_batch_closer(rows, w, s, batch)
    for i, closer, batch_closer in zip(rows.tolist(), closes.tolist(), closes_batch.tolist(), strict=True):
        closed = oracle.closed_by(i, w, s)
        assert closer == bool(closed)
        assert closer == oracle.is_closer(i, w, s)
        assert batch_closer == any(j % batch == 0 for j in closed)


# --- batches ---


def test_paper_1_batch_window() -> None:
    # w=3 s=1 B=3: size 5, slide 3; per 3 tuples 5 copies, against 9 with B=1
    #   rows       0   1   2   3   4   5   6   7
    #   windows    [-----------)
    #                  [-----------)
    #                      [-----------)
    #   batch 0    [-------------------)
    #   batch 1                [-------------------)
    window = Window(3, 1)
    assert batch_window(window, 3) == Window(5, 3)
    assert (3 * replication(window, 3), 3 * replication(window, 1)) == (5, 9)
    copies = sum(len(oracle.batches_of(t, window, 3)) for t in range(300))
    assert copies == 5 * 100


@given(times, specs(40), batches)
def test_batch_ids(t: int, window: Window, batch: int) -> None:
    outer = batch_window(window, batch)
    ids = list(range(first_window(t, outer), last_window(t, outer) + 1))
    assert ids == oracle.batches_of(t, window, batch)


@given(specs(30), batches)
def test_replication_is_the_mean_number_of_copies(window: Window, batch: int) -> None:
    # Over one whole period the mean is exact.
    period = batch * window.slide
    copies = sum(len(oracle.batches_of(t, window, batch)) for t in range(period))
    assert copies / period == pytest.approx(replication(window, batch))


# --- panes ---


def test_paper_1_panes() -> None:
    # w=6 s=4: panes of 2, 3 per window
    #   time       0   2   4   6   8   10
    #   window 0   [-----------)
    #   window 1           [-----------)
    panes = Panes((Window(6, 4),))
    assert (panes.size, panes.per_window(panes.windows[0])) == (2, 3)
    assert panes.in_panes() == (PaneWindow(3, 2, 0),)


@given(st.lists(specs(40), min_size=1, max_size=3), st.integers(-3, 3))
def test_windows_are_runs_of_whole_panes(windows: list[Window], j: int) -> None:
    panes = Panes(tuple(windows))
    g = panes.size
    assert g == oracle.pane_size(windows)
    for window, in_panes in zip(windows, panes.in_panes(), strict=True):
        start = window_start(j, window)
        ids = {pane_of(t, g, panes.origin) for t in range(start, start + window.size)}
        first = in_panes.offset + j * in_panes.slide
        assert ids == set(range(first, first + in_panes.size))
        assert len(ids) == panes.per_window(window)


@given(times, st.integers(1, 40), st.integers(-50, 50))
def test_pane_is_a_tumbling_window(t: int, size: int, origin: int) -> None:
    assert [pane_of(t, size, origin)] == oracle.windows_of(t, Window(size, size, origin))


@given(st.lists(specs(20), min_size=1, max_size=3), st.integers(1, 60))
def test_batches_are_just_long_enough(windows: list[Window], slide: int) -> None:
    #   batch k      [ panes from before ........ | the stretch in which its windows end )
    #                origin + k*slide                                                   + size
    in_panes = Panes(tuple(windows)).in_panes()
    layout = Batches.over(in_panes, slide)
    assert layout.as_window() == Window(layout.size, slide, layout.origin)
    assert layout.replication == layout.size / slide
    longest_reach, waits = 0, dict.fromkeys(in_panes, 0)
    # Windows repeat, seen from the batches, after the least common multiple of all slides.
    for w in in_panes:
        for start in range(w.offset, w.offset + math.lcm(w.slide, slide), w.slide):
            end = start + w.size
            near = start // slide - layout.first_start(0, w) // slide
            holding = [k for k in range(near - 3, near + 4) if 0 <= start - layout.first_start(k, w) < slide]
            assert len(holding) == 1  # every window is evaluated once
            begin = layout.origin + holding[0] * slide
            assert begin <= start and end <= begin + layout.size  # where all of its panes are
            longest_reach = max(longest_reach, begin + layout.size - slide - start)
            waits[w] = max(waits[w], begin + layout.size - end)
    assert layout.size == slide + max(0, longest_reach)  # no longer than some window needs
    assert {w: layout.longest_wait(w) for w in in_panes} == waits


@given(specs(40, origin=False), batches)
def test_pane_batches_of_one_window_are_the_papers_batch_windows(window: Window, batch: int) -> None:
    panes = Panes((window,))
    (in_panes,) = panes.in_panes()
    layout, paper = Batches.over([in_panes], batch * in_panes.slide), batch_window(window, batch)
    assert (layout.size * panes.size, layout.slide * panes.size) == (paper.size, paper.slide)
    assert layout.origin == 0  # batch k holds the windows kB .. kB+B-1
    for k in (-1, 0, 1):
        first = layout.first_start(k, in_panes)
        ids = [j for j in range(-9 * batch, 9 * batch) if first <= j * in_panes.slide < first + layout.slide]
        assert ids == list(range(k * batch, k * batch + batch))


# --- the ring ---

rings = st.builds(Ring, st.integers(1, 30), st.integers(1, 30), st.integers(1, 7)).filter(lambda r: r.size >= r.slide)


def test_paper_1_ring() -> None:
    # w_w=3 s_w=2: n=1, 2 panes, 1 result passed on
    #   panes      0   1   2   3   4   5   6
    #   node 0     [-----------)                 windows 0, 3, ...
    #   node 1             [-----------)         its panes are 2 and 3; 2 is needed by node 0 as well
    #   node 2                     [-----------)
    ring = Ring(3, 2, nodes=3)
    assert (ring.windows_per_node, ring.panes_from_split, oracle.results_from_predecessor(ring)) == (1, 2, 1)
    assert [oracle.node_of_window(ring, j) for j in range(-2, 5)] == [1, 2, 0, 1, 2, 0, 1]
    assert [oracle.node_of_pane(ring, p) for p in range(-2, 7)] == [2, 2, 0, 0, 1, 1, 2, 2, 0]


@given(rings, st.integers(-20, 20))
def test_a_node_needs_its_own_panes_and_those_of_one_neighbour(ring: Ring, k: int) -> None:
    n = ring.windows_per_node
    assert n == max(1, math.ceil((ring.size - ring.slide) / ring.slide))
    windows = range(k * n, (k + 1) * n)
    needed = oracle.panes_of_windows(windows, ring.size, ring.slide)
    own = set(range(k * ring.panes_from_split, (k + 1) * ring.panes_from_split))
    neighbours = set(range((k + 1) * ring.panes_from_split, (k + 2) * ring.panes_from_split))
    assert own <= needed
    assert needed - own <= neighbours
    assert len(needed - own) == oracle.results_from_predecessor(ring)
    # All of it on the nodes that the ring says.
    node = k % ring.nodes
    assert {oracle.node_of_window(ring, j) for j in windows} == {node}
    assert {oracle.node_of_pane(ring, p) for p in own} == {node}
    assert {oracle.node_of_pane(ring, p) for p in needed - own} <= {(k + 1) % ring.nodes}


@given(rings, st.integers(-100, 100))
def test_a_pane_is_needed_by_its_node_and_at_most_one_more(ring: Ring, pane: int) -> None:
    holders = oracle.windows_of(pane, Window(ring.size, ring.slide))
    sets = {j // ring.windows_per_node for j in holders}
    home = pane // ring.panes_from_split
    assert home in sets
    assert sets <= {home, home - 1}
    nodes = {oracle.node_of_window(ring, j) for j in holders}
    assert oracle.node_of_pane(ring, pane) in nodes
    assert len(nodes) <= 2


@given(rings)
def test_fewer_windows_per_node_would_need_two_neighbours(ring: Ring) -> None:
    n = ring.windows_per_node - 1
    assume(n >= 1)
    needed = oracle.panes_of_windows(range(n), ring.size, ring.slide)
    assert max(needed) >= 2 * n * ring.slide  # beyond its own panes and those of the next node


@given(rings)
def test_ring_as_batches(ring: Ring) -> None:
    layout = ring.batches
    assert layout.slide == ring.panes_from_split
    assert layout.size == ring.panes_from_split + oracle.results_from_predecessor(ring)
    assert layout.replication <= 2


def test_ring_of_very_long_windows_is_exact() -> None:
    # (w - s) / s as a double would be one off.
    assert Ring(10**17 + 1, 3, 1).windows_per_node == 33_333_333_333_333_333
    ids = np.array([-(10**17), 10**17], np.int64)
    assert oracle.node_of_window(Ring(5, 2, 7), ids).tolist() == [
        oracle.node_of_window(Ring(5, 2, 7), int(i)) for i in ids
    ]
