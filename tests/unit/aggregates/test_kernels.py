"""The runs of windows that `find_runs` reports, against a look at every window of every group."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.aggregates.folds import Concatenate, Sum
from anabranch.aggregates.kernels import find_runs
from anabranch.names import BATCH, FIRST, LAST, PANES, ROWS, SPEC
from anabranch.operators.batch_windows import SlidingOperator
from anabranch.windows import Batches, PaneWindow


class Group(NamedTuple):
    """The panes of one group, and where the windows start that it answers for: from first to last, in panes."""

    panes: list[int]
    first: int
    last: int


class Run(NamedTuple):
    group: int
    first: int
    last: int
    lo: int
    hi: int


def runs_of(groups: list[Group], window: PaneWindow) -> list[Run]:
    offsets = np.cumsum([0, *(len(g.panes) for g in groups)])
    panes = np.array([p for g in groups for p in g.panes], np.int64)
    first, last = (np.array([g[i] for g in groups], np.int64) for i in (1, 2))
    found = find_runs(offsets, panes, first, last, window.size, window.slide, window.offset)
    return [Run(*run) for run in zip(*(column.tolist() for column in found), strict=True)]


def contents(groups: list[Group], window: PaneWindow) -> dict[tuple[int, int], list[int]]:
    """(group, window id) -> the panes in it, for every window that has any: by trying them all."""
    found = {}
    for g, group in enumerate(groups):
        far = max(abs(group.first), abs(group.last)) + abs(window.offset)
        for j in range(-far, far + 1):
            start = window.offset + j * window.slide
            inside = [p for p in group.panes if start <= p < start + window.size]
            if group.first <= start <= group.last and inside:
                found[g, j] = inside
    return found


@st.composite
def pane_windows(draw: st.DrawFn) -> PaneWindow:
    size = draw(st.integers(1, 20))
    return PaneWindow(size, draw(st.integers(1, size)), draw(st.integers(-15, 15)))


groups_of_panes = st.lists(
    st.tuples(st.sets(st.integers(-60, 60), max_size=12).map(sorted), st.integers(-80, 80), st.integers(-1, 80)).map(
        lambda drawn: Group(drawn[0], drawn[1], drawn[1] + drawn[2])  # a length of -1: answers for no window
    ),
    max_size=4,
)


@given(groups_of_panes, pane_windows())
@example([Group([], 0, 10), Group([5], 0, 10), Group([], 0, 10)], PaneWindow(3, 2, 1))
@example([Group([0, 1, 2, 3, 4, 5], -80, 80)], PaneWindow(20, 1, 0))
def test_every_window_with_rows_is_in_exactly_one_run(groups: list[Group], window: PaneWindow) -> None:
    runs = runs_of(groups, window)
    expected = contents(groups, window)
    panes = [p for g in groups for p in g.panes]
    found = [(run.group, j) for run in runs for j in range(run.first, run.last + 1)]
    assert sorted(found) == sorted(expected)  # each once, and no empty one
    for run in runs:
        for j in range(run.first, run.last + 1):
            assert panes[run.lo : run.hi] == expected[run.group, j]


@given(groups_of_panes, pane_windows())
def test_runs_only_move_forward_and_are_few(groups: list[Group], window: PaneWindow) -> None:
    """What the folds rely on: both ends only grow, also from group to group, and no run is empty."""
    runs = runs_of(groups, window)
    assert all(run.lo < run.hi for run in runs)
    for before, after in pairwise(runs):
        assert before.lo <= after.lo and before.hi <= after.hi
        assert before.group <= after.group
        if before.group == after.group:
            assert before.last < after.first
            assert (before.lo, before.hi) != (after.lo, after.hi)  # or they would be one run
    assert len(runs) <= 2 * sum(len(g.panes) for g in groups)


@given(st.sets(st.integers(-60, 60), min_size=1, max_size=15).map(sorted), pane_windows(), st.integers(1, 9))
def test_batches_together_have_every_window_once(panes: list[int], window: PaneWindow, batch: int) -> None:
    """As the plan uses it: each batch gets the panes of its stretch and what its first window needs before it."""
    layout = Batches.over([window], batch * window.slide)
    far = 200
    groups = []
    for k in range(-far, far):
        begin = layout.origin + k * layout.slide
        mine = [p for p in panes if begin <= p < begin + layout.size]
        first = layout.first_start(k, window)
        groups.append(Group(mine, first, first + layout.slide - 1))
    found = {j: panes_of for (_, j), panes_of in contents([Group(panes, -far, far)], window).items()}
    flat = [p for g in groups for p in g.panes]
    windows = {j: flat[r.lo : r.hi] for r in runs_of(groups, window) for j in range(r.first, r.last + 1)}
    assert windows == found


def test_runs_of_a_few_panes() -> None:
    #   panes            0   1   2   3   4   5   6   7   8   9
    #                        x   x                       x
    #   size 3, slide 1
    #   window -1      [-----------)                            has 1 only
    #   windows 0, 1       both                                 1 and 2: one run
    #   window  2                [-----------)                  2 only
    #   windows 3 .. 5                                          empty: none
    #   windows 6 .. 8                                          8 only: one run
    runs = runs_of([Group([1, 2, 8], -10, 20)], PaneWindow(3, 1, 0))
    assert runs == [Run(0, -1, -1, 0, 1), Run(0, 0, 1, 0, 2), Run(0, 2, 2, 1, 2), Run(0, 6, 8, 2, 3)]


def test_a_batch_answers_only_for_windows_that_start_in_it() -> None:
    #   panes            0   1   2   3   4   5   6
    #                    x       x       x       x
    #   batch, slide 4   [---------------)               windows 0 .. 3
    runs = runs_of([Group([0, 2, 4, 6], 0, 3)], PaneWindow(3, 1, 0))
    assert [(r.first, r.last, r.lo, r.hi) for r in runs] == [(0, 0, 0, 2), (1, 1, 1, 2), (2, 2, 1, 3), (3, 3, 2, 3)]


@pytest.mark.parametrize("shift", [-(2**60), 2**60])
def test_panes_far_from_zero(shift: int) -> None:
    window = PaneWindow(7, 3, 0)
    near = runs_of([Group([1, 2, 8], -30, 30)], window)
    shift -= shift % 3
    far = runs_of([Group([1 + shift, 2 + shift, 8 + shift], shift - 30, shift + 30)], window)
    assert far == [r._replace(first=r.first + shift // 3, last=r.last + shift // 3) for r in near]


def test_a_gap_of_very_many_windows_costs_nothing() -> None:
    # Ten to the twelve empty windows between two panes: a loop over them would not come back.
    runs = runs_of([Group([0, 10**12], -100, 2 * 10**12)], PaneWindow(10, 1, 0))
    assert runs == [Run(0, -9, 0, 0, 1), Run(0, 10**12 - 9, 10**12, 1, 2)]


# --- the operator around it ---

sorted_panes = st.dictionaries(st.integers(-60, 60), st.integers(-9, 9), max_size=12)


@given(
    st.lists(sorted_panes, max_size=3),
    st.lists(pane_windows(), min_size=1, max_size=3),
    st.integers(1, 70),
    st.randoms(use_true_random=False),
)
def test_the_operator_has_every_window_of_every_size_once(
    keys: list[dict[int, int]], windows: list[PaneWindow], slide: int, random: st.DataObject
) -> None:
    """Several windows over the panes of several keys, in batches that come in any order, with panes in any order."""
    layout = Batches.over(windows, slide)
    rows = []
    for key, panes in enumerate(keys):
        for k in range(-150, 150):
            begin = layout.origin + k * layout.slide
            mine = [(p, 2, v, [(p, f"{p}")]) for p, v in panes.items() if begin <= p < begin + layout.size]
            random.shuffle(mine)  # type: ignore[attr-defined]
            if mine:
                rows.append((key, k, mine))
    random.shuffle(rows)  # type: ignore[attr-defined]

    element = pa.struct([("time", pa.int64()), ("value", pa.string())])
    state = pa.struct([("pane", pa.int64()), (ROWS, pa.int64()), ("sum", pa.int64()), ("list", pa.list_(element))])
    columns = [pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], pa.int64())]
    lists = [[dict(zip(("pane", ROWS, "sum", "list"), pane, strict=True)) for pane in row[2]] for row in rows]
    columns.append(pa.array(lists, pa.list_(state)))
    batch = pa.RecordBatch.from_arrays(columns, names=["key", BATCH, PANES])
    names = ("key", SPEC, FIRST, LAST, ROWS, "sum", "list")
    operator = SlidingOperator(tuple(windows), layout, (Sum(), Concatenate()), names)

    found = {}
    for result in operator(iter([batch, batch.slice(0, 0)])):
        assert tuple(result.schema.names) == names
        for run in result.to_pylist():
            for j in range(run[FIRST], run[LAST] + 1):
                assert (run["key"], run[SPEC], j) not in found
                found[run["key"], run[SPEC], j] = (run[ROWS], run["sum"], [item["value"] for item in run["list"]])
    expected = {}
    for key, panes in enumerate(keys):
        for spec, window in enumerate(windows):
            for (_, j), inside in contents([Group(sorted(panes), -200, 200)], window).items():
                values = (2 * len(inside), sum(panes[p] for p in inside), [f"{p}" for p in inside])
                expected[key, spec, j] = values
    assert found == expected
