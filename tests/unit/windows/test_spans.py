"""Spans: the numbers of paper 4, and what windows of windows need, by looking at every window."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from anabranch.windows import Window
from anabranch.windows.spans import Span, fan_out, pipeline, results_of, scaled


@st.composite
def windows(draw: st.DrawFn, most: int = 8) -> Window:
    slide = draw(st.integers(1, most))
    return Window(draw(st.integers(slide, most)), slide, draw(st.integers(-9, 9)))


@st.composite
def spans(draw: st.DrawFn) -> Span:
    lo = draw(st.integers(-20, 20))
    return Span(draw(st.integers(1, 12)), draw(st.integers(-20, 20)), lo, lo + draw(st.integers(1, 30)))


def win_drop(span: Span) -> tuple[int, int]:
    return span.size, span.slide


def reads(*chain: Window, tight: bool) -> Span:
    """What a pipeline of these aggregates reads, so that the last delivers."""
    span = results_of(chain[-1])
    for window in reversed(chain):
        span = pipeline(window, span, tight=tight)
    return span


# --- the numbers of the paper: A1(3,2), A2(3,3) and A0(4,1) ---

A0, A1, A2 = Window(4, 1), Window(3, 2), Window(3, 3)


def test_one_aggregate_has_the_window_itself() -> None:
    #   0   1   2   3   4
    #   [-----------)        result 2
    #           [-----------)    result 4
    for tight in (True, False):
        span = reads(A1, tight=tight)
        assert win_drop(span) == (3, 2)
        assert (span.start(0), span.end(0), span.start(1), span.end(1)) == (0, 3, 2, 5)


def test_pipeline() -> None:
    assert win_drop(reads(A1, A2, tight=False)) == (5, 3)


def test_pipeline_of_the_papers_figure_4_needs_all_five() -> None:
    #          -2  -1   0   1   2   3   4   5   6
    #   A2               [-----------)-----------)
    #   A1       [-----------)-------)                 results 0 and 2: unit 0 needs [-2, 3), all five
    #                            [-----------)         result 4: unit 1 needs [2, 5) of its [1, 6)
    #
    # Slides 2 and 3 meet in all ways, so no instant can be left out for good.
    assert win_drop(reads(A1, A2, tight=True)) == (5, 3)


def test_tight_leaves_out_what_no_window_can_need() -> None:
    # A2(6,6) over A1(3,3): the results of A1 are dated 2, 5, 8, ..; of those in [0, 6) the first has [0, 3).
    #
    #         -2  -1   0   1   2   3   4   5   6
    #   A2             [-----------------------)
    #   A1             [-----------)-----------)
    #   paper  [-------------------------------)      6 + 3 - 1 = 8
    chain = (Window(3, 3), Window(6, 6))
    assert win_drop(reads(*chain, tight=False)) == (8, 6)
    tight = reads(*chain, tight=True)
    assert (tight.start(0), tight.end(0)) == (0, 6)


def test_fan_out() -> None:
    assert win_drop(fan_out([reads(A1, tight=False), reads(A2, tight=False)])) == (7, 6)


@pytest.mark.parametrize("tight", [True, False])
def test_a_pipeline_before_a_fan_out_both_ways(tight: bool) -> None:
    first = pipeline(A0, fan_out([reads(A1, tight=tight), reads(A2, tight=tight)]), tight=tight)
    last = [reads(A0, A1, tight=tight), reads(A0, A2, tight=tight)]
    assert [win_drop(each) for each in last] == [(6, 2), (6, 3)]
    assert win_drop(first) == win_drop(fan_out(last)) == (10, 6)


def test_the_formula_of_the_pipeline_rule() -> None:
    """size = sum of the sizes - (k - 1), slide of the last: for any slides and origins."""
    for chain in [(A0, A1, A2), (A2, A2), (Window(8, 3, 5), Window(7, 2, -4), Window(5, 5, 1), Window(6, 4))]:
        span = reads(*chain, tight=False)
        assert win_drop(span) == (sum(w.size for w in chain) - (len(chain) - 1), chain[-1].slide)


@given(st.lists(windows(), min_size=1, max_size=4))
def test_the_formula_of_the_fan_out_rule(siblings: list[Window]) -> None:
    """size = lcm + max(w - s), slide = lcm, where all of them start together, as the paper has it."""
    together = [Window(w.size, w.slide, 3) for w in siblings]
    slide = math.lcm(*(w.slide for w in siblings))
    span = fan_out([reads(w, tight=False) for w in together])
    assert win_drop(span) == (slide + max(w.size - w.slide for w in siblings), slide)


@given(st.lists(windows(), min_size=1, max_size=4))
def test_with_origins_of_their_own_a_unit_has_at_least_that_size(siblings: list[Window]) -> None:
    slide = math.lcm(*(w.slide for w in siblings))
    span = fan_out([reads(w, tight=False) for w in siblings])
    assert span.slide == slide
    assert span.size >= slide + max(w.size - w.slide for w in siblings)


@pytest.mark.parametrize(
    ("bound", "slide", "to", "expected"),
    [(5, 2, 6, 1), (6, 2, 6, 2), (2, 2, 6, 0), (1, 3, 3, 1), (4, 3, 6, 2), (0, 1, 1, 0), (10, 1, 6, 1)],
)
def test_the_bound_in_larger_units(bound: int, slide: int, to: int, expected: int) -> None:
    """B units of `to` have B * to / slide windows, which must not be more than `bound`."""
    assert scaled(bound, slide, to) == expected
    assert expected * (to // slide) <= bound < (expected + 1) * (to // slide)


def test_what_a_share_of_units_spares() -> None:
    """Tumbling: all of it. Windows that overlap by B or more: nothing."""
    assert Span(10, 0, 0, 10).spared(3) == 1.0
    assert Span(2, 0, 0, 6).spared(2) == 0.0
    assert Span(2, 0, 0, 6).spared(1) == 0.0
    assert Span(2, 0, 0, 6).spared(3) == pytest.approx(2 / 6)
    assert Span(2, 0, 0, 6).spared(0) == 0.0


@given(spans(), st.integers(1, 6))
def test_spared_is_the_gap_over_the_units(span: Span, bound: int) -> None:
    gap = span.gap(1, bound)
    length = gap[1] - gap[0] if gap else 0
    assert span.spared(bound) == pytest.approx(min(1.0, length / (bound * span.slide)))


# --- spans themselves ---


@given(spans(), st.integers(-60, 60))
def test_first_after_is_the_first_unit_that_needs_nothing_before(span: Span, t: int) -> None:
    unit = span.first_after(t)
    assert span.start(unit) > t
    assert span.start(unit - 1) <= t


def test_first_after_at_the_edges() -> None:
    # slide 4, unit 0 is [2, 9)     -2 .. 2   3   4   5   6   7
    #                                     [-- unit 0
    #                                                     [-- unit 1
    span = Span(4, 0, 2, 9)
    assert [span.first_after(t) for t in (-3, -2, 1, 2, 5, 6)] == [-1, 0, 0, 1, 1, 2]


@given(spans(), st.integers(1, 5), st.integers(-30, 30), st.integers(-5, 5))
def test_larger_units_have_each_unit_once(span: Span, times: int, origin: int, unit: int) -> None:
    """Those whose grid point lies in the larger unit's, and exactly what they need."""
    large = span.over(span.slide * times, origin)
    assert (large.slide, large.origin) == (span.slide * times, origin)
    inside = [
        u for u in range(-400, 400) if 0 <= span.origin + u * span.slide - origin - unit * large.slide < large.slide
    ]
    assert len(inside) == times
    assert large.start(unit) == min(map(span.start, inside))
    assert large.end(unit) == max(map(span.end, inside))


@given(spans(), st.integers(-5, 5), st.integers(0, 5))
def test_a_gap_is_what_no_kept_unit_needs(span: Span, first: int, more: int) -> None:
    """All units but first..last are kept; holes between units that are kept are no gap."""
    last = first + more
    kept = [u for u in range(first - 70, last + 71) if not first <= u <= last]
    gap = span.gap(first, last)
    before, after = span.end(first - 1), span.start(last + 1)
    assert gap == ((before, after) if before < after else None)
    if gap is not None:
        assert not any(span.start(u) < gap[1] and gap[0] < span.end(u) for u in kept)


def test_gaps_at_the_edges() -> None:
    # slide 2, size 3     0   1   2   3   4   5   6   7
    # unit 0, kept        [-----------)
    # unit 1                      [-----------)
    # unit 2                              [-----------)
    # unit 3, kept                                [-----------)
    span = Span(2, 0, 0, 3)
    assert span.gap(1, 2) == (3, 6)
    assert span.gap(1, 1) == (3, 4)
    assert Span(2, 0, 0, 4).gap(1, 1) is None
    assert Span(2, 0, 0, 2).gap(1, 1) == (2, 4)
    assert Span(2, 0, 1, 2).gap(1, 1) == (2, 5)  # and the hole of the slide, at both ends


# --- what an aggregate needs, window by window ---


def needed(window: Window, wanted: Span, unit: int) -> tuple[int, int] | None:
    """The times of all windows whose results are dated in this unit's span."""
    far = range(-400, 400)
    starts = [window.origin + j * window.slide for j in far]
    inside = [a for a in starts if wanted.start(unit) <= a + window.size - 1 < wanted.end(unit)]
    return (min(inside), max(inside) + window.size) if inside else None


@given(windows(), spans())
@settings(max_examples=200)
def test_a_tight_span_has_all_that_a_unit_needs_and_some_unit_needs_its_edges(window: Window, wanted: Span) -> None:
    tight, paper = pipeline(window, wanted), pipeline(window, wanted, tight=False)
    assert (tight.slide, tight.origin) == (wanted.slide, wanted.origin) == (paper.slide, paper.origin)
    assert paper.lo <= tight.lo and tight.hi <= paper.hi
    # Windows and units meet in the same way again after `window.slide` units.
    found = {unit: needed(window, wanted, unit) for unit in range(-window.slide, window.slide + 1)}
    some = {unit: times for unit, times in found.items() if times is not None}
    for unit, (start, end) in some.items():
        assert tight.start(unit) <= start and end <= tight.end(unit)
    if wanted.size >= window.slide:  # else a unit may have no result at all
        assert len(some) == len(found)
        assert any(tight.start(unit) == start for unit, (start, _) in some.items())
        assert any(tight.end(unit) == end for unit, (_, end) in some.items())


@given(st.lists(windows(), min_size=2, max_size=4))
@settings(max_examples=100)
def test_a_tight_pipeline_has_all_that_its_results_need(chain: list[Window]) -> None:
    tight, paper = reads(*chain, tight=True), reads(*chain, tight=False)
    assert tight.size <= paper.size
    last = chain[-1]
    for unit in range(-6, 7):
        wanted = {last.origin + unit * last.slide + last.size - 1}
        for window in reversed(chain):  # the times of inputs for the times of results
            starts = (r - window.size + 1 for r in wanted)
            wanted = {t for a in starts if (a - window.origin) % window.slide == 0 for t in range(a, a + window.size)}
        assert not wanted or (tight.start(unit) <= min(wanted) and max(wanted) < tight.end(unit))


@given(windows(), windows())
def test_where_slides_divide_tight_is_exactly_what_is_needed(first: Window, second: Window) -> None:
    """Then all units look alike."""
    assume(second.slide % first.slide == 0)
    span = reads(first, second, tight=True)
    times = needed(first, reads(second, tight=True), 0)
    assume(times is not None)
    assert (span.start(0), span.end(0)) == times


@given(windows(), spans(), st.integers(1, 4), st.integers(-9, 9))
def test_larger_units_and_then_a_window_or_the_other_way_round(
    window: Window, wanted: Span, times: int, origin: int
) -> None:
    """The paper's spans are the same both ways; the tight ones need not be, but neither leaves out what is needed."""
    slide = wanted.slide * times
    assert pipeline(window, wanted.over(slide, origin), tight=False) == pipeline(window, wanted, tight=False).over(
        slide, origin
    )
    first, last = pipeline(window, wanted.over(slide, origin)), pipeline(window, wanted).over(slide, origin)
    assert last.lo <= first.lo and first.hi <= last.hi
