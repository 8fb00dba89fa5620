"""Drop points: where a network can be shed, with which WinDrop, how many units in a row, and which go together."""

from __future__ import annotations

import pytest

from anabranch.shedding.points import MOST_POINTS, Box, DropPoint, Terms, cuts, drop_points
from anabranch.windows import Window

A0, A1, A2 = Window(4, 1), Window(3, 2), Window(3, 3)


def box(name: str, window: Window | None, *reads: str, gap: int | None = None) -> Box:
    return Box(name, () if window is None else (window,), reads, None if gap is None else Terms(gap))


def described(points: tuple[DropPoint, ...]) -> list[str]:
    return [point.describe() for point in points]


def named(points: tuple[DropPoint, ...]) -> dict[str, DropPoint]:
    return {point.name: point for point in points}


def names(points: tuple[DropPoint, ...]) -> list[list[str]]:
    return [[point.name for point in cut] for cut in cuts(points)]


# --- the networks of the paper ---


def test_pipeline() -> None:
    """Figure 4. Before A1 is where the source is, since nobody else reads it."""
    points = drop_points([box("A1", A1, "s"), box("A2", A2, "A1", gap=4)])
    assert described(points) == [
        "s: WinDrop(5, 3), B = 4",
        "before A2: WinDrop(3, 3), B = 4",
        "results of A2: WinDrop(1, 3), B = 4",
    ]
    assert [point.kind for point in points] == ["source", "operator", "results"]
    assert [point.at for point in points] == [("s",), ("A2",), ("A2",)]
    assert [point.domain for point in points] == [("A1", "A2"), ("A2",), ("A2",)]
    assert all(point.outputs == ("A2",) for point in points)
    assert names(points) == [["s"], ["before A2"]]


def test_which_results_a_unit_of_a_pipeline_is_made_of() -> None:
    #   unit 0, A2        [-----------)           result 2
    #   A1                                        those dated in [0, 3) are needed for it, and no other
    source = drop_points([box("A1", A1, "s"), box("A2", A2, "A1", gap=4)])[0]
    (outer,), (inner,) = source.emits["A2"], source.emits["A1"]
    assert (outer.start(0), outer.end(0)) == (2, 3)
    assert (inner.start(0), inner.end(0)) == (0, 3)
    # Unit 1 dropped: A2's result 5 stays, and A1's 3 to 5 do.
    assert outer.gap(1, 1) == (3, 8) and inner.gap(1, 1) == (3, 6)


def test_fan_out() -> None:
    """Figure 5: three windows of A1, two of A2 in a unit. B = min(floor(7*2/6), floor(5*3/6)) = 2."""
    points = drop_points([box("A1", A1, "s", gap=7), box("A2", A2, "s", gap=5)])
    assert described(points) == [
        "s: WinDrop(7, 6), B = 2",
        "before A1: WinDrop(3, 2), B = 7",
        "before A2: WinDrop(3, 3), B = 5",
        "results of A1: WinDrop(1, 2), B = 7",
        "results of A2: WinDrop(1, 3), B = 5",
    ]
    assert sorted(names(points)) == [["before A1", "before A2"], ["s"]]


def test_composite() -> None:
    """A0(4,1) before figure 5."""
    points = drop_points([box("A0", A0, "s"), box("A1", A1, "A0", gap=7), box("A2", A2, "A0", gap=5)])
    source = points[0]
    assert source.describe() == "s: WinDrop(10, 6), B = 2"
    assert source.domain == ("A0", "A1", "A2") and source.outputs == ("A1", "A2")
    assert source.paper == source.span
    assert "before A0" not in named(points)
    assert names(points) == [["s"], ["before A1", "before A2"]]


@pytest.mark.parametrize(("tight", "size"), [(True, 6), (False, 8)])
def test_tight_and_paper(tight: bool, size: int) -> None:
    """A2(6,6) over A1(3,3): nothing of A1 reaches across the edges of A2."""
    source = drop_points([box("A1", Window(3, 3), "s"), box("A2", Window(6, 6), "A1", gap=1)], tight=tight)[0]
    assert source.span.size == size and source.paper.size == 8


# --- bounds, and why not ---


def test_a_gap_of_0_is_never_shed() -> None:
    points = drop_points([box("A1", A1, "s", gap=0), box("A2", A2, "s", gap=5)])
    at = named(points)
    assert at["s"].describe() == "s: not here, max_gap of A1 is 0: it is never shed"
    assert at["before A1"].bound == 0 and at["before A1"].refused is not None
    assert at["before A2"].refused is None and at["before A2"].bound == 5
    assert names(points) == [["before A2"]]


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        # A unit has three windows of A1.
        (2, "s: not here, a unit holds more windows of A1 than its max_gap of 2 allows"),
        (3, "s: WinDrop(7, 6), B = 1"),
        (5, "s: WinDrop(7, 6), B = 1"),
        (6, "s: WinDrop(7, 6), B = 2"),
    ],
)
def test_a_unit_must_not_have_more_windows_than_may_be_missing(gap: int, expected: str) -> None:
    assert drop_points([box("A1", A1, "s", gap=gap), box("A2", A2, "s", gap=99)])[0].describe() == expected


def test_the_window_with_the_smallest_slide_sets_the_bound_of_a_box() -> None:
    both = Box("A", (Window(6, 6), Window(4, 2)), ("s",), Terms(7))
    assert drop_points([both])[0].describe() == "s: WinDrop(8, 6), B = 2"


def test_nobody_looks_into_a_users_operator() -> None:
    #   s ──▶ A ──▶ mine
    #    └──▶ B
    points = drop_points([box("A", A1, "s"), box("mine", None, "A", gap=3), box("B", A2, "s", gap=3)])
    at = named(points)
    why = "it is not known which rows mine needs for an exact answer"
    assert at["s"].refused == at["before A"].refused == why
    assert at["s"].bound == 0 and not at["s"].emits
    assert "before mine" not in at and "results of mine" not in at
    assert at["before B"].refused is None
    assert names(points) == [["before B"]]


READS = "A reads mine, and rows cannot be dropped below joins and user operators"


def test_below_a_users_operator_only_results_can_be_dropped() -> None:
    """What it emits may be ahead of the watermark: a dropped window could open again."""
    points = drop_points([box("mine", None, "s"), box("A", A1, "mine", gap=3)])
    assert described(points) == [
        "s: not here, it is not known which rows mine needs for an exact answer",
        f"before A: not here, {READS}",
        "results of A: WinDrop(1, 2), B = 3",
    ]
    assert names(points) == []


def test_a_union_with_what_a_users_operator_emits_is_refused_too() -> None:
    #   s ──▶ mine ──┬▶ A
    #   r ───────────┘
    points = drop_points([box("mine", None, "s"), box("A", A1, "mine", "r", gap=3)])
    at = named(points)
    assert at["before A"].refused == READS
    assert at["s and r"].refused == "it is not known which rows mine needs for an exact answer"
    assert at["results of A"].refused is None


def test_aggregates_over_aggregates_below_a_users_operator() -> None:
    """The results of A leave in the order of its watermark: before B windows can be dropped as anywhere."""
    #   s ──▶ mine ──▶ A ──▶ B
    points = drop_points([box("mine", None, "s"), box("A", A1, "mine"), box("B", A2, "A", gap=4)])
    at = named(points)
    assert at["before A"].refused == READS and at["before A"].domain == ("A", "B")
    assert at["before B"].refused is None and at["results of B"].refused is None
    assert names(points) == [["before B"]]


def test_other_branches_beside_a_users_operator_stay() -> None:
    #   s ──▶ mine ──▶ A        r ──▶ B
    points = drop_points([box("mine", None, "s"), box("A", A1, "mine", gap=3), box("B", A2, "r", gap=3)])
    assert names(points) == [["r"]]


def test_count_windows_below_a_users_operator_can_be_dropped() -> None:
    """Rows are counted in the order of time, after the watermark has passed them, wherever they come from."""
    counting = Box("A", (Window(4, 4),), ("mine",), Terms(3), counts_rows=True)
    points = named(drop_points([box("mine", None, "s"), counting]))
    assert points["before A"].refused is None and points["before A"].counts_rows


def test_an_output_that_others_read_is_part_of_the_unit() -> None:
    """Its own windows count for the bound, and are cut into units of its readers."""
    #   A(4,2)  [---------------)                       three of them in a unit, the last ends at 8
    #                   [---------------)
    #                           [---------------)
    #   B(6,6)  [-----------------------)               needs A's results 0 .. 5, the earliest of which began at -2
    #          -2   0   1   2   3   4   5   6   7   8
    points = drop_points([box("A", Window(4, 2), "s", gap=4), box("B", Window(6, 6), "A", gap=1)])
    at = named(points)
    assert at["s"].outputs == ("A", "B") and at["s"].describe() == "s: WinDrop(10, 6), B = 1"
    assert (at["s"].span.start(0), at["s"].span.end(0)) == (-2, 8)
    # Of A, a unit has its own results 3, 5 and 7, and what B needs, 0 to 5.
    (emitted,) = at["s"].emits["A"]
    assert (emitted.start(0), emitted.end(0)) == (0, 8)
    # Before B only B loses anything; after A nothing can be dropped for A alone.
    assert at["before B"].domain == ("B",) and at["before B"].bound == 1
    assert "results of A" not in at and "results of B" in at
    assert names(points) == [["s"], ["before B"]]
    tighter = drop_points([box("A", Window(4, 2), "s", gap=2), box("B", Window(6, 6), "A", gap=1)])
    assert tighter[0].refused == "a unit holds more windows of A than its max_gap of 2 allows"


def test_a_box_that_nobody_reads_and_nobody_gets_does_not_count() -> None:
    """Whatever it does, nothing of it is delivered: no reason to fall over it."""
    assert all(point.refused is not None for point in drop_points([box("A", A1, "s")]))
    points = drop_points([box("A", A1, "s", gap=3), box("idle", Window(5, 5), "s")])
    assert all(point.refused is None and point.outputs == ("A",) for point in points if "A" in point.domain)


# --- several sources ---


def test_sources_that_meet_are_dropped_together() -> None:
    #   s ──┬▶ A     z ──▶ C
    #   r ──┴▶ B
    #   q ───┘
    points = drop_points(
        [box("A", A1, "s", "r", gap=3), box("B", A1, "r", "q", gap=3), box("C", A2, "z", gap=3)]
    )  # fmt: skip
    at = named(points)
    assert at["s and r and q"].at == ("s", "r", "q") and at["s and r and q"].domain == ("A", "B")
    assert at["z"].domain == ("C",) and "before C" not in at
    assert sorted(map(sorted, names(points))) == [["before A", "before B", "z"], ["s and r and q", "z"]]


def test_sources_that_meet_further_down() -> None:
    points = drop_points([box("A", A1, "s"), box("B", A1, "r"), box("C", A2, "A", "B", gap=3)])
    at = named(points)
    assert at["s and r"].domain == ("A", "B", "C")
    # Each could be dropped on its own, but not both: their units would be decided twice.
    assert names(points) == [["s and r"], ["before A"], ["before B"], ["before C"]]


def test_one_reader_of_two_sources_is_where_they_are() -> None:
    assert described(drop_points([box("A", A1, "s", "r", gap=3)])) == [
        "s and r: WinDrop(3, 2), B = 3",
        "results of A: WinDrop(1, 2), B = 3",
    ]


# --- which go together ---


def networks() -> list[list[Box]]:
    return [
        [box("A1", A1, "s"), box("A2", A2, "A1", gap=4)],
        [box("A1", A1, "s", gap=7), box("A2", A2, "s", gap=5)],
        [box("A0", A0, "s"), box("A1", A1, "A0", gap=7), box("A2", A2, "A0", gap=5)],
        [box("A", A1, "s", gap=3), box("B", A1, "A", "s", gap=3), box("C", A2, "z", gap=3), box("D", A2, "C", gap=3)],
        [box("A", A1, "s", gap=0), box("B", A1, "s", gap=3), box("C", A2, "B", gap=1)],
    ]


@pytest.mark.parametrize("boxes", networks())
def test_no_box_is_below_two_points_of_a_cut_and_none_could_take_one_more(boxes: list[Box]) -> None:
    points = drop_points(boxes)
    found = cuts(points)
    assert found and len({frozenset(p.name for p in cut) for cut in found}) == len(found)
    for cut in found:
        below = [name for point in cut for name in point.domain]
        assert cut and len(set(below)) == len(below)
        for other in points:
            if other.refused is None and other.kind != "results" and other not in cut:
                assert set(other.domain) & set(below), (other.name, [p.name for p in cut])
    covered = [sum(len(point.domain) for point in cut) for cut in found]
    assert covered == sorted(covered, reverse=True)


def test_of_cuts_with_the_same_boxes_the_earlier_comes_first() -> None:
    """One drop at the source, or two behind it: the source spares more."""
    points = drop_points([box("A1", A1, "s", gap=7), box("A2", A2, "s", gap=5)])
    assert names(points) == [["s"], ["before A1", "before A2"]]


def test_nothing_to_cut() -> None:
    assert cuts(drop_points([box("mine", None, "s", gap=3)])) == ()
    assert cuts(drop_points([box("A", A1, "s", gap=0)])) == ()


def test_with_many_points_only_simple_cuts_are_tried() -> None:
    """At the sources, or at the last operators; not the 2^n between."""
    count = MOST_POINTS + 1
    points = drop_points([box(f"A{n}", A1, "s", gap=3) for n in range(count)])
    assert len([p for p in points if p.kind != "results"]) > MOST_POINTS
    assert names(points) == [["s"], [f"before A{n}" for n in range(count)]]


def test_with_many_points_sources_with_one_reader_are_in_every_cut() -> None:
    """The only reader has no point of its own. Without the source, it would not be shed at all."""
    count = MOST_POINTS - 1
    alone = [box(f"A{n}", A1, f"s{n}", gap=3) for n in range(count)]
    points = drop_points([*alone, box("X", A1, "s", gap=3), box("Y", A1, "s", gap=3)])
    found = [set(cut) for cut in names(points)]
    sources = {f"s{n}" for n in range(count)}
    assert found == [sources | {"s"}, sources | {"before X", "before Y"}]
    only = drop_points([box(f"A{n}", A1, f"s{n}", gap=3) for n in range(MOST_POINTS + 1)])
    assert names(only) == [[f"s{n}" for n in range(MOST_POINTS + 1)]]
