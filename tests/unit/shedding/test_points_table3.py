"""The drop ledger against the exact answer, and against paper 4's own operators (table 3), over random networks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.shedding.points import Box, DropPoint, Terms, drop_points
from anabranch.windows import Window
from tests.oracles.shedding import Filters, Results, Runs, Values, evaluate, in_gap, ledger, table_3

SLIDES = [(1, 2, 4, 8), (1, 2, 3, 6), (1, 5), (1, 7), (2, 3, 4), (3, 5), (4, 6), (2, 7), (8,), (5, 5), (3, 8)]
"""Slides that meet in one network: all of 1..8, without a least common multiple above 24 or so."""


def fold(values: list[int]) -> int:
    """Another number for every other content, whatever its order."""
    return hash(tuple(sorted(values)))


@dataclass
class Case:
    """A network, its input, and what to drop of it."""

    boxes: list[Box]
    sources: dict[str, Values]
    filters: Filters
    coins: list[bool]
    """by unit, from -len/2 on; all others are kept"""

    def dropped(self, unit: int, bound: int | None = None) -> bool:
        return any(first <= unit <= last for first, last in self.runs(bound))

    def runs(self, bound: int | None = None) -> Runs:
        """The dropped units; with a bound, no more than so many in a row."""
        found: list[tuple[int, int]] = []
        for unit, drop in enumerate(self.coins, -(len(self.coins) // 2)):
            follows = bool(found) and found[-1][1] == unit - 1
            if drop and follows and (bound is None or unit - found[-1][0] < bound):
                found[-1] = (found[-1][0], unit)
            elif drop and not follows and bound != 0:
                found.append((unit, unit))
        return found

    def exact(self) -> Results:
        return evaluate(self.boxes, self.sources, self.filters, fold)[0]

    def ledger(self, point: DropPoint, bound: int | None = None) -> Results:
        return ledger(point, self.boxes, self.sources, self.filters, fold, self.runs(bound))

    def table_3(self, point: DropPoint, *, literal: bool = False) -> Results:
        gone = set()
        for first, last in self.runs():
            gone |= set(range(first, last + 1))
        times = [t for values in self.sources.values() for t in values] or [0]
        away = (
            8 * len(self.boxes)
            + point.span_without_slides.size
            + abs(point.span_without_slides.origin)
            + abs(point.span_without_slides.lo)
        )
        units = range(
            (min(times) - away) // point.span_without_slides.slide - 2,
            (max(times) + away) // point.span_without_slides.slide + 3,
        )
        return table_3(
            point, self.boxes, self.sources, self.filters, fold, gone.__contains__, units, literal=literal
        )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn, *, chain: bool = False) -> Case:
    """Networks of up to 5 boxes; with `chain`: one after the other, one window each, only the last delivered."""
    slides = draw(st.sampled_from(SLIDES))
    count = draw(st.integers(1, 4 if chain else 5))
    sources = ["s"] if chain else ["s", "r"][: draw(st.sampled_from([1, 1, 1, 2]))]
    boxes: list[Box] = []
    for n in range(count):
        windows = tuple(
            Window(draw(st.integers(slide, 8)), slide, draw(st.integers(-9, 9)))
            for slide in (
                draw(st.sampled_from(slides)) for _ in range(1 if chain else draw(st.sampled_from([1, 1, 2])))
            )
        )
        before = [*sources, *(box.name for box in boxes)]
        reads = (before[-1],) if chain else tuple(draw(st.lists(st.sampled_from(before), min_size=1, max_size=2)))
        last = n == count - 1
        delivered = last or (not chain and draw(st.booleans()))
        boxes.append(Box(f"b{n}", windows, reads, Terms(draw(st.integers(1, 60))) if delivered else None))
    read = {origin for box in boxes for origin in box.reads}
    boxes = [Box(b.name, b.windows, b.reads, b.terms if b.name in read else b.terms or Terms(9)) for b in boxes]
    rng = random.Random(draw(st.integers(0, 2**32)))
    density = draw(st.sampled_from([0.2, 0.7, 1.0]))
    filters: dict = {}
    for box in boxes:
        for origin in box.reads:
            if draw(st.sampled_from([False, False, True])):
                rest = rng.randrange(3)
                filters[origin, box.name] = lambda v, rest=rest: v % 3 != rest
    shift = draw(st.integers(-40, 40))
    streams = {
        source: {t + shift: [rng.getrandbits(40) for _ in range(rng.choice((1, 1, 2)))]
                 for t in range(-70, 70) if rng.random() < density}
        for source in sources
    }  # fmt: skip
    return Case(boxes, streams, filters, draw(st.lists(st.booleans(), min_size=1, max_size=40)))


def usable(case: Case, *, tight: bool = True) -> Iterator[DropPoint]:
    """All points with a span, also where no drop is allowed: exact results are due there, too."""
    yield from (point for point in drop_points(case.boxes, tight=tight) if point.emits)


def unit_of(point: DropPoint, window: Window, j: int) -> int:
    """The unit that a delivered window counts as: the one that its start lies in, by the slide alone."""
    return (window.origin + j * window.slide - point.span.origin) // point.span.slide


def outputs(point: DropPoint, results: Results) -> Results:
    return {key: value for key, value in results.items() if key[0] in point.outputs}


# --- what is promised ---


@given(cases(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_what_is_delivered_is_exact_and_all_of_the_kept_units(case: Case, tight: bool) -> None:
    windows = {box.name: box.windows for box in case.boxes}
    exact = case.exact()
    for point in usable(case, tight=tight):
        delivered = outputs(point, case.ledger(point))
        assert delivered.items() <= exact.items(), point.describe()
        for (name, i, j), value in outputs(point, exact).items():
            if not case.dropped(unit_of(point, windows[name][i], j)):
                assert delivered.get((name, i, j)) == value, (point.describe(), name, i, j)


@given(cases())
@settings(max_examples=60, deadline=None)
def test_gaps_stay_within_what_was_agreed(case: Case) -> None:
    """By window id, whether there are rows in these windows or not."""
    for point in usable(case):
        runs = case.runs(point.bound)
        assert all(last - first < point.bound for first, last in runs)
        for box in case.boxes:
            if box.name not in point.outputs:
                continue
            assert box.terms is not None
            for i, window in enumerate(box.windows):
                missing = 0
                for j in range(-600 // window.slide, 600 // window.slide):
                    dated = window.origin + j * window.slide + window.size - 1
                    missing = missing + 1 if in_gap(point.emits[box.name][i], runs, dated) else 0
                    assert missing <= box.terms.max_gap


@given(cases())
@settings(max_examples=80, deadline=None)
def test_tight_spans_lie_in_the_papers_and_drop_the_same(case: Case) -> None:
    readers = {origin for box in case.boxes for origin in box.reads}
    for tight, paper in zip(usable(case), usable(case, tight=False), strict=True):
        assert paper.span == paper.span_without_slides == tight.span_without_slides
        assert (tight.span.slide, tight.span.origin, tight.bound) == (paper.span.slide, paper.span.origin, paper.bound)
        assert paper.span.lo <= tight.span.lo < tight.span.hi <= paper.span.hi
        for name in tight.domain:
            for near, far in zip(tight.emits[name], paper.emits[name], strict=True):
                assert far.lo <= near.lo and near.hi <= far.hi
        # A box that others read delivers what these need, too; and with the paper's spans, that is more.
        ours, theirs = outputs(tight, case.ledger(tight)), outputs(paper, case.ledger(paper))
        assert ours.items() <= theirs.items()
        assert {key for key in ours if key[0] not in readers} == {key for key in theirs if key[0] not in readers}


# --- table 3 ---


@given(cases())
@settings(max_examples=120, deadline=None)
def test_table_3_delivers_what_the_ledger_delivers_and_windows_that_happen_to_be_whole(case: Case) -> None:
    """A superset, and exact: keep_until lets all windows through that lie in the span of a kept unit.

    The ledger lets only those of the unit itself leave, and where others read the box, what these need.
    """
    exact = case.exact()
    for point in usable(case, tight=False):
        if point.kind != "results":
            theirs = outputs(point, case.table_3(point))
            assert theirs.items() <= exact.items(), point.describe()
            assert outputs(point, case.ledger(point)).items() <= theirs.items(), point.describe()


@given(cases(chain=True))
@settings(max_examples=80, deadline=None)
def test_in_a_chain_table_3_and_the_ledger_deliver_the_same(case: Case) -> None:
    """A unit is one window there. Tight spans deliver the same, too; and so does table 3 by the letter."""
    for point in (*usable(case, tight=False), *usable(case)):
        if point.kind != "results":
            theirs = outputs(point, case.table_3(point))
            assert outputs(point, case.ledger(point)) == theirs, point.describe()
            assert outputs(point, case.table_3(point, literal=True)) == theirs, point.describe()


def figure_5(sizes: tuple[int, int] = (3, 3)) -> Case:
    """A1(3,2) and A2(3,3) of one stream, of which every second unit is dropped. The ends are turned: see the oracle."""
    boxes = [
        Box("A1", (turned_from_0(sizes[0], 2),), ("s",), Terms(9)),
        Box("A2", (turned_from_0(sizes[1], 3),), ("s",), Terms(9)),
    ]
    return Case(boxes, {"s": {t: [t + 1000] for t in range(-40, 40)}}, {}, [True, False] * 5)


def turned_from_0(size: int, slide: int) -> Window:
    """Windows that begin at multiples of the slide on the reversed time line."""
    return Window(size, slide, -(size - 1))


def test_table_3_by_the_letter_delivers_wrong_results() -> None:
    # unit 0, kept      [--------------------------)  tau = 7
    # unit 1, dropped                           0                       tuples from 7 on are gone
    # time              0   1   2   3   4   5   6   7   8   9
    # A1                [-----------)                    keep_until = 7 - 2 = 5
    #                           [-----------)            open, 2 < 5
    #                                   [-----------)    open, 4 < 5; by the letter keep_until = 4 + 3
    #                                           [-----------)    6 < 7: opens, without 7 and 8
    case = figure_5()
    (point,) = (p for p in drop_points(case.boxes) if p.kind == "source")
    assert (point.span_without_slides.size, point.span_without_slides.slide) == (7, 6)
    exact = case.exact()
    by_the_letter = case.table_3(point, literal=True)
    assert not by_the_letter.items() <= exact.items()
    assert {name for (name, _, _), _ in by_the_letter.items() - exact.items()} == {"A1"}
    assert case.table_3(point).items() <= exact.items()
    assert case.table_3(point) == case.ledger(point)


def test_table_3_opens_windows_of_the_next_unit_that_are_whole() -> None:
    # WinDrop(12, 6)    [-----------------------------------------------)
    # time              0   1   2   3   4   5   6   7   8   9  10  11  12
    # A1, unit 0        [-----------)   [-----------)
    #                           [-----------)
    # A1, unit 1                                [-----------)                 dropped, but whole
    #                                                   [-----------)
    case = figure_5((3, 9))
    case.coins = [True] * 6
    (point,) = (p for p in drop_points(case.boxes) if p.kind == "source")
    assert (point.span_without_slides.size, point.span_without_slides.slide) == (12, 6)
    ours, theirs = case.ledger(point), case.table_3(point)
    assert theirs.items() <= case.exact().items()
    assert ours.items() < theirs.items()
    assert {key[0] for key in theirs.keys() - ours.keys()} == {"A1"}
    assert len(theirs) - len(ours) == 2


@pytest.mark.parametrize("density", [1.0, 0.3])
def test_a_filter_hands_marks_on(density: float) -> None:
    """Figure 1: an aggregate, a filter that lets little through, an aggregate that counts what is left."""
    rng = random.Random(4)
    boxes = [Box("spread", (Window(5, 1),), ("s",)), Box("count", (Window(12, 4),), ("spread",), Terms(3))]
    stream = {t: [rng.getrandbits(30)] for t in range(-90, 90) if rng.random() < density}
    case = Case(boxes, {"s": stream}, {("spread", "count"): lambda v: v % 5 == 0}, [True, True, False] * 6)
    exact = outputs_of(case.exact(), "count")
    for point in usable(case, tight=False):
        if point.kind != "results":
            delivered = outputs(point, case.ledger(point))
            assert delivered == outputs(point, case.table_3(point))
            assert 0 < len(delivered) < len(exact)


def outputs_of(results: Results, name: str) -> Results:
    return {key: value for key, value in results.items() if key[0] == name}


# --- found by these tests ---


@pytest.mark.parametrize("tight", [True, False])
def test_units_begin_where_those_of_the_boxes_below_do(tight: bool) -> None:
    """A box whose windows have origins of their own must not be cut into units in two ways.

    Y(8,1) is delivered, and Z reads it with two windows of slide 2, from 0 and from 1. Units have slide 2. Counted from
    Z's first window, unit u has Z's windows at 2u and 2u+1; counted from Y's origin 1, those at 2u+1 and 2u+2. What is
    read and what leaves must go by the same units.
    """
    boxes = [
        Box("Y", (Window(8, 1, 1),), ("s",), Terms(9)),
        Box("Z", (Window(2, 2, 0), Window(2, 2, 1)), ("Y",), Terms(9)),
    ]
    case = Case(boxes, {"s": {t: [t + 1000] for t in range(-40, 40)}}, {}, [True] * 12)
    for point in usable(case, tight=tight):
        assert outputs(point, case.ledger(point)).items() <= case.exact().items(), point.describe()
