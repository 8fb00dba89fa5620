"""Each fold over random runs of windows, against the evaluation of every run on its own."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.aggregates.folds import (
    Concatenate,
    DecimalMean,
    DistinctCount,
    Edge,
    Extreme,
    Fold,
    HllEstimate,
    KllQuantiles,
    Moments,
    MostFrequent,
    Runs,
    Sum,
    UserFold,
)
from anabranch.aggregates.objects import fold_objects
from anabranch.errors import ArithmeticOverflowError
from tests.oracles.aggregates import canonical, order, same

Bounds = list[tuple[int, int]]
I64 = np.iinfo(np.int64)
_EXACT = Context(prec=100)
nan, inf = math.nan, math.inf

per_type = settings(max_examples=40)
"""For tests that are repeated for every type."""


def runs_of(bounds: Bounds) -> Runs:
    return Runs(np.array([lo for lo, _ in bounds], np.int64), np.array([hi for _, hi in bounds], np.int64))


@st.composite
def states_and_runs(draw: st.DrawFn, elements: st.SearchStrategy[Any], most: int = 14) -> tuple[list[Any], Bounds]:
    """States of panes, and runs [lo, hi) over them as `find_runs` makes them: both ends only grow, none is empty."""
    states = draw(st.lists(elements, max_size=most))
    if not states:
        return states, []
    places = st.lists(st.integers(0, len(states) - 1), max_size=20).map(sorted)
    starts, lengths = draw(places), draw(st.lists(st.integers(1, len(states)), min_size=20, max_size=20))
    bounds: Bounds = []
    for lo, length in zip(starts, lengths, strict=False):
        hi = min(lo + length, len(states))
        bounds.append((lo, max(hi, bounds[-1][1]) if bounds else hi))
    return states, bounds


def check(fold: Fold, kind: pa.DataType, drawn: tuple[list[Any], Bounds], naive: Callable[[list[Any]], Any]) -> None:
    states, bounds = drawn
    found = fold(pa.array(states, kind, from_pandas=False), runs_of(bounds))
    expected = [naive(states[lo:hi]) for lo, hi in bounds]
    assert len(found) == len(expected)
    assert all(map(same, found.to_pylist(), expected)), (found.to_pylist(), expected)


def known(states: list[Any]) -> list[Any]:
    return [s for s in states if s is not None]


def or_null(value: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """A fold over null states only is null."""
    return lambda states: value(known(states)) if known(states) else None


maybe = st.none()
small = st.one_of(maybe, st.integers(-1000, 1000))
# Multiples of a half: sums are exact in any order, so that a wrong fold cannot hide behind rounding.
halves = st.integers(-(2**40), 2**40).map(lambda n: n / 2)
odd_floats = st.sampled_from([nan, inf, -inf, 0.0, -0.0, 1.5, -1.5, 5e-324, 1.7e308])


# --- sums ---


@given(states_and_runs(small))
def test_sum_of_integers(drawn: tuple[list[int | None], Bounds]) -> None:
    check(Sum(), pa.int64(), drawn, or_null(sum))


@given(states_and_runs(st.one_of(maybe, halves)))
def test_sum_of_floats(drawn: tuple[list[float | None], Bounds]) -> None:
    check(Sum(), pa.float64(), drawn, or_null(sum))


@given(states_and_runs(st.one_of(maybe, st.sampled_from([nan, inf, -inf, 0.5, -0.5, -0.0]))))
@example(([nan, 1.0, inf, 2.0, -inf, 3.0], [(0, 2), (1, 2), (1, 3), (2, 5), (3, 5), (5, 6)]))
def test_nan_and_infinity_leave_with_their_pane(drawn: tuple[list[float | None], Bounds]) -> None:
    """A sum that subtracts would keep a NaN for ever."""
    check(Sum(), pa.float64(), drawn, or_null(sum))


def test_a_large_float_leaves_no_error_behind() -> None:
    #   states   1e17   1   1
    #   runs     [--------)          the 1 is lost in 1e17 + 1
    #                   [---)        but must be there when 1e17 has left
    found = Sum()(pa.array([1e17, 1.0, 1.0]), runs_of([(0, 2), (1, 3)]))
    assert found.to_pylist() == [1e17, 2.0]


decimals = st.decimals(-(10**20), 10**20, places=2, allow_nan=False, allow_infinity=False)


@given(states_and_runs(st.one_of(maybe, decimals)))
def test_sum_of_decimals(drawn: tuple[list[Decimal | None], Bounds]) -> None:
    check(Sum(), pa.decimal128(38, 2), drawn, or_null(lambda ds: sum(ds, Decimal("0.00"))))


def test_sum_of_decimals_keeps_all_38_digits() -> None:
    # Python's own arithmetic would round to 28.
    large, tenth = Decimal("1234567890123456789012345678901234567.8"), Decimal("0.1")
    states = pa.array([large, tenth, None], pa.decimal128(38, 1))
    found = Sum()(states, runs_of([(0, 2), (0, 3), (1, 3), (2, 3)])).to_pylist()
    assert found == [*[Decimal("1234567890123456789012345678901234567.9")] * 2, tenth, None]


def test_sum_of_decimals_that_does_not_fit() -> None:
    half = Decimal(5 * 10**37)
    states = pa.array([half, half, -half, half], pa.decimal128(38, 0))
    with pytest.raises(ArithmeticOverflowError, match="does not fit decimal128") as raised:
        Sum()(states, runs_of([(0, 2)]))
    assert "wider decimal" in raised.value.hint
    # Two halves do not fit, but with the third taken off they do: only the window's own sum counts.
    assert Sum()(states, runs_of([(0, 3), (1, 4)])).to_pylist() == [half, half]


def mean(total: Decimal, n: int, places: int) -> Decimal:
    """Half up, in integers: no arithmetic of decimals that could round on its way."""
    scaled = Fraction(total) / n * 10**places
    rounded = math.floor(abs(scaled) + Fraction(1, 2))
    return Decimal(rounded if scaled >= 0 else -rounded).scaleb(-places, _EXACT)


@given(states_and_runs(st.one_of(maybe, st.tuples(decimals, st.integers(1, 9)))))
def test_mean_of_decimals(drawn: tuple[list[tuple[Decimal, int] | None], Bounds]) -> None:
    panes, bounds = drawn
    kind = pa.struct([("sum", pa.decimal128(38, 2)), pa.field("n", pa.int64(), nullable=False)])
    # Of nulls only, the sum is null and the count is 0.
    states = [{"sum": p[0], "n": p[1]} if p else {"sum": None, "n": 0} for p in panes]
    found = DecimalMean(38, 6)(pa.array(states, kind), runs_of(bounds))
    assert found.type == pa.decimal128(38, 6)
    for value, (lo, hi) in zip(found.to_pylist(), bounds, strict=True):
        inside = known(panes[lo:hi])
        expected = mean(sum((p[0] for p in inside), Decimal(0)), sum(p[1] for p in inside), 6) if inside else None
        assert value == expected


def test_mean_of_decimals_has_all_its_places() -> None:
    # A third of 38 digits: Spark's own division would keep 18 of these 22 places.
    states = pa.array([{"sum": Decimal("0.1"), "n": 1}, {"sum": Decimal("0.1"), "n": 2}],
                      pa.struct([("sum", pa.decimal128(38, 18)), ("n", pa.int64())]))  # fmt: skip
    found = DecimalMean(38, 22)(states, runs_of([(0, 2), (1, 2)])).to_pylist()
    assert found == [Decimal("0.0666666666666666666667"), Decimal("0.05")]
    with pytest.raises(ArithmeticOverflowError, match="the mean of a window does not fit decimal128"):
        DecimalMean(3, 2)(pa.array([{"sum": Decimal("10.00"), "n": 1}], states.type), runs_of([(0, 1)]))


extremes = st.sampled_from([I64.min, I64.min + 1, -(2**62), -1, 0, 1, 2**62, I64.max - 1, I64.max])


@given(states_and_runs(st.one_of(maybe, extremes, st.integers(int(I64.min), int(I64.max)))))
@example(([2**62, 2**62, -1], [(0, 2), (0, 3)]))  # the first sum is 2^63: one too many
@example(([2**62, 2**62 - 1, 1, -(2**63)], [(0, 2), (0, 4), (1, 4)]))
@example(([int(I64.max)] * 4, [(0, 1), (1, 2), (2, 3), (3, 4)]))  # the running total wraps, no window does
@example(([int(I64.max), 1, int(I64.min), -1, int(I64.max)], [(0, 1), (0, 3), (3, 5)]))
@example(([int(I64.min), int(I64.min)], [(0, 1), (1, 2)]))
@example(([int(I64.min)] * 14, [(0, 14)]))  # wraps seven times around to zero
def test_sum_of_integers_overflows_loudly_or_is_right(drawn: tuple[list[int | None], Bounds]) -> None:
    states, bounds = drawn
    sums = [sum(known(states[lo:hi])) for lo, hi in bounds]
    if all(I64.min <= s <= I64.max for s in sums):
        check(Sum(), pa.int64(), drawn, or_null(sum))
    else:
        with pytest.raises(ArithmeticOverflowError, match="does not fit a 64-bit integer") as raised:
            Sum()(pa.array(states, pa.int64()), runs_of(bounds))
        assert "decimal" in raised.value.hint


# --- least and greatest ---

ORDERED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), extremes),
    "float32": (pa.float32(), st.sampled_from([nan, inf, -inf, 0.0, -0.0, 1.5, -1.5])),
    "float64": (pa.float64(), odd_floats),
    "decimal": (pa.decimal128(38, 2), decimals),
    "string": (pa.string(), st.sampled_from(["", "a", "B", "é", "z", "𝄞", "\ufffd", "a\x00b"])),
    "binary": (pa.binary(), st.binary(max_size=2)),
    "boolean": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "duration": (pa.duration("us"), st.timedeltas(-dt.timedelta(9), dt.timedelta(9))),
}


@pytest.mark.parametrize("kind", ORDERED)
@pytest.mark.parametrize("greatest", [False, True])
def test_extreme(kind: str, greatest: bool) -> None:
    arrow, elements = ORDERED[kind]
    pick = max if greatest else min

    @per_type
    @given(states_and_runs(st.one_of(maybe, elements)))
    def hold(drawn: tuple[list[Any], Bounds]) -> None:
        check(Extreme(greatest), arrow, drawn, or_null(lambda states: pick(states, key=order)))

    hold()


# --- first and last ---


TIMED = pa.struct([("time", pa.timestamp("us", tz="UTC")), ("value", pa.float64())])
ticks = st.sampled_from([None, nan, -0.0, 1.5, -inf])


def timed(drawn: list[tuple[int, Any]]) -> list[dict[str, Any]]:
    """Rows in the order of time, some at the same time; in the order of their values where they are."""
    rows = [{"time": dt.datetime(2025, 1, 1, tzinfo=dt.UTC) + t * dt.timedelta(hours=1), "value": v} for t, v in drawn]
    return sorted(rows, key=in_time)


def in_time(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["time"], order(row["value"])


@pytest.mark.parametrize("last", [False, True])
def test_edge(last: bool) -> None:
    """Panes of count windows may share a time: then the least value is the first, and the greatest the last."""
    pick = max if last else min

    @given(states_and_runs(st.tuples(st.integers(0, 4), ticks)), st.data())
    def hold(drawn: tuple[list[tuple[int, Any]], Bounds], data: st.DataObject) -> None:
        hours, bounds = sorted(t for t, _ in drawn[0]), drawn[1]
        rows = [timed([(t, v)])[0] for t, (_, v) in zip(hours, drawn[0], strict=True)]
        states = [data.draw(st.sampled_from([row, row, None])) for row in rows]
        check(Edge(last), TIMED, (states, bounds), or_null(lambda found: pick(found, key=in_time)))

    hold()


# --- count, mean and squared deviations ---

MOMENTS = pa.struct([(name, pa.float64()) for name in ("n", "mean", "m2")])


def moments(values: list[float]) -> dict[str, float]:
    if not values:
        return {"n": 0.0, "mean": 0.0, "m2": 0.0}
    mean = sum(values) / len(values)
    return {"n": float(len(values)), "mean": mean, "m2": sum((v - mean) ** 2 for v in values)}


@given(states_and_runs(st.lists(st.integers(-1000, 1000).map(float), max_size=5)))
def test_moments(drawn: tuple[list[list[float]], Bounds]) -> None:
    panes, bounds = drawn
    found = Moments()(pa.array([moments(p) for p in panes], MOMENTS), runs_of(bounds)).to_pylist()
    for folded, (lo, hi) in zip(found, bounds, strict=True):
        expected = moments([v for pane in panes[lo:hi] for v in pane])
        assert folded["n"] == expected["n"]
        assert folded["mean"] == pytest.approx(expected["mean"], rel=1e-12, abs=1e-9)
        assert folded["m2"] == pytest.approx(expected["m2"], rel=1e-9, abs=1e-6)


def test_moments_of_numbers_that_are_large_and_close() -> None:
    # The sum of squares minus the square of the sum would be 0, or negative, here.
    panes = [[], [1e9 + 4.0], [1e9 + 7.0], [], [1e9 + 13.0, 1e9 + 16.0]]
    found = Moments()(pa.array([moments(p) for p in panes], MOMENTS), runs_of([(0, 1), (0, 5), (3, 5)])).to_pylist()
    assert found[0] == {"n": 0.0, "mean": 0.0, "m2": 0.0}
    assert found[1] == {"n": 4.0, "mean": 1e9 + 10.0, "m2": 90.0}
    assert found[2] == {"n": 2.0, "mean": 1e9 + 14.5, "m2": 4.5}


def test_an_empty_pane_changes_no_moments() -> None:
    # The square of the mean is infinite; times the empty pane's zero it would be NaN.
    panes = [[], [1e200], [], []]
    found = Moments()(pa.array([moments(p) for p in panes], MOMENTS), runs_of([(0, 2), (0, 3), (1, 4)])).to_pylist()
    assert found == [{"n": 1.0, "mean": 1e200, "m2": 0.0}] * 3


# --- sets, counts, lists ---

LISTED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    **ORDERED,
    "int64": (pa.int64(), st.integers(-3, 3)),
    "float64": (pa.float64(), st.sampled_from([nan, -nan, 0.0, -0.0, 1.0, inf])),
    "decimal": (pa.decimal128(10, 2), st.sampled_from([Decimal("1.00"), Decimal("-2.50"), Decimal("0.00")])),
}


def lists_and_runs(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[list[list[Any]], Bounds]]:
    return states_and_runs(st.lists(elements, max_size=5), most=8)


def flat(panes: list[list[Any]]) -> list[Any]:
    return [v for pane in panes for v in pane]


@pytest.mark.parametrize("kind", LISTED)
def test_distinct_count(kind: str) -> None:
    arrow, elements = LISTED[kind]

    @per_type
    @given(lists_and_runs(elements))
    def hold(drawn: tuple[list[list[Any]], Bounds]) -> None:
        # As Spark's collect_set, a pane has each value once.
        panes = [list({canonical(v): v for v in pane}.values()) for pane in drawn[0]]
        check(DistinctCount(), pa.list_(arrow), (panes, drawn[1]), lambda ps: len({canonical(v) for v in flat(ps)}))

    hold()


@pytest.mark.parametrize(("kind", "k"), [*((kind, 2) for kind in LISTED), ("int64", 1), ("int64", 100)])
def test_most_frequent(kind: str, k: int) -> None:
    arrow, elements = LISTED[kind]
    # Spark says of each part whether it may be null; a result of another type would be refused.
    entry = pa.struct([pa.field("value", arrow), pa.field("count", pa.int64(), nullable=False)])
    listed = pa.list_(pa.field("element", entry, nullable=False))

    @per_type
    @given(lists_and_runs(elements))
    def hold(drawn: tuple[list[list[Any]], Bounds]) -> None:
        panes, bounds = drawn
        states = pa.array([[{"value": v, "count": 1} for v in pane] for pane in panes], listed, from_pandas=False)
        found = MostFrequent(k)(states, runs_of(bounds))
        assert found.type == listed
        for top, (lo, hi) in zip(found.to_pylist(), bounds, strict=True):
            values = {canonical(v): v for v in flat(panes[lo:hi])}
            counts = Counter(canonical(v) for v in flat(panes[lo:hi]))
            ranked = sorted(counts, key=lambda c: (-counts[c], order(values[c])))
            assert [(canonical(t["value"]), t["count"]) for t in top] == [(c, counts[c]) for c in ranked[:k]]

    hold()


def test_most_frequent_adds_counts_of_panes() -> None:
    #   panes     a×2 b×1    b×2    c×1
    #   runs      [----------)                 b 3, a 2
    #                        [------------)    b 2, c 1
    kind = pa.list_(pa.struct([("value", pa.string()), ("count", pa.int64())]))
    panes = [[("a", 2), ("b", 1)], [("b", 2)], [("c", 1)]]
    states = pa.array([[{"value": v, "count": n} for v, n in pane] for pane in panes], kind)
    found = MostFrequent(2)(states, runs_of([(0, 2), (1, 3)])).to_pylist()
    assert [[(t["value"], t["count"]) for t in top] for top in found] == [[("b", 3), ("a", 2)], [("b", 2), ("c", 1)]]


@given(lists_and_runs(st.tuples(st.integers(0, 3), ticks.filter(lambda v: v is not None))))
def test_concatenate(drawn: tuple[list[list[tuple[int, float]]], Bounds]) -> None:
    """Panes of count windows may share a time: rows at that time are in the order of their values."""
    panes, bounds = drawn
    hours = iter(sorted(t for pane in panes for t, _ in pane))
    states = [timed([(next(hours), v) for _, v in pane]) for pane in panes]
    check(Concatenate(), pa.list_(TIMED), (states, bounds), lambda found: sorted(flat(found), key=in_time))


def test_lists_keep_their_type() -> None:
    kind = pa.list_(pa.field("element", TIMED, nullable=False))
    assert Concatenate()(pa.array([timed([(0, 1.5)]), []], kind), runs_of([(0, 2), (1, 2)])).type == kind


# --- sketches ---


def hll(values: list[int]) -> bytes:
    sketch = datasketches.hll_sketch(12, datasketches.tgt_hll_type.HLL_8)
    for v in values:
        sketch.update(v)
    return bytes(sketch.serialize_updatable())


def kll(values: list[float]) -> bytes:
    sketch = datasketches.kll_doubles_sketch(200)
    for v in values:
        sketch.update(v)
    return bytes(sketch.serialize())


@given(lists_and_runs(st.integers(0, 20)))
def test_hll_of_few_values_is_exact(drawn: tuple[list[list[int]], Bounds]) -> None:
    panes, bounds = drawn
    found = HllEstimate()(pa.array([hll(p) for p in panes], pa.binary()), runs_of(bounds))
    assert found.to_pylist() == [len(set(flat(panes[lo:hi]))) for lo, hi in bounds]


def test_hll_of_many_values_is_near() -> None:
    panes = [list(range(i * 1000, i * 1000 + 2000)) for i in range(10)]
    found = HllEstimate()(pa.array([hll(p) for p in panes], pa.binary()), runs_of([(0, 5), (0, 10), (9, 10)]))
    # Five standard errors of 1.04 / sqrt(4096).
    assert found.to_pylist() == [pytest.approx(n, rel=0.08) for n in (6000, 11000, 2000)]


@given(lists_and_runs(st.integers(-50, 50).map(float)))
def test_kll_of_few_values_is_exact(drawn: tuple[list[list[float]], Bounds]) -> None:
    panes, bounds = drawn
    ranks = (0.0, 0.25, 0.5, 1.0)

    def naive(ps: list[list[float]]) -> list[float] | None:
        ordered = sorted(flat(ps))
        return [ordered[max(0, math.ceil(q * len(ordered)) - 1)] for q in ranks] if ordered else None

    found = KllQuantiles(ranks)(pa.array([kll(p) for p in panes], pa.binary()), runs_of(bounds))
    assert found.to_pylist() == [naive(panes[lo:hi]) for lo, hi in bounds]


# --- user-defined states ---


def rows_of(panes: list[list[Any]], kind: pa.DataType) -> pa.Array:
    """Panes as user-defined aggregates get them: lists of (time, value)."""
    row = pa.struct([("t", pa.int64()), ("v0", kind)])
    return pa.array([[{"t": i, "v0": v} for i, v in enumerate(pane)] for pane in panes], pa.list_(row))


def append(state: list[Any], value: Any) -> list[Any]:
    state.append(value)
    return state


def extend(a: list[Any], b: list[Any]) -> list[Any]:
    a.extend(b)
    return a


def extend_or_second(a: list[Any], b: list[Any]) -> list[Any]:
    """Natural, and dangerous to a fold that keeps b: returns it as it is, and changes it as `a` the next time."""
    return extend(a, b) if a else b


def nest(a: dict[str, list[Any]], b: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Keeps parts of b inside a."""
    for name, values in b.items():
        if name in a:
            a[name].extend(values)
        else:
            a[name] = values
    return a


MERGES: dict[str, Callable[[list[Any], list[Any]], list[Any]] | None] = {
    "none": None,
    "pure": lambda a, b: a + b,
    "changes its first argument": extend,
    "may return its second argument": extend_or_second,
}


@pytest.mark.parametrize("merge", MERGES)
def test_user_fold(merge: str) -> None:
    fold = UserFold(list, append, lambda state: state, MERGES[merge], pa.list_(pa.int64()))

    # A merge of nothing and [1] may return that very [1], which then grows with the next pane.
    @example(([[], [1], [2]], [(0, 1), (0, 2), (0, 3)]))
    @given(lists_and_runs(small))
    def hold(drawn: tuple[list[list[int | None]], Bounds]) -> None:
        panes, bounds = drawn
        found = fold(rows_of(panes, pa.int64()), runs_of(bounds)).to_pylist()
        assert found == [flat(panes[lo:hi]) for lo, hi in bounds]

    hold()


@given(lists_and_runs(st.sampled_from("abc")))
def test_a_merge_that_keeps_parts_of_its_second_argument(drawn: tuple[list[list[str]], Bounds]) -> None:
    def incr(state: dict[str, list[int]], name: str) -> dict[str, list[int]]:
        state.setdefault(name, []).append(1)
        return state

    def final(state: dict[str, list[int]]) -> str:
        return " ".join(f"{name}{len(state[name])}" for name in sorted(state))

    panes, bounds = drawn
    found = UserFold(dict, incr, final, nest, pa.string())(rows_of(panes, pa.string()), runs_of(bounds)).to_pylist()
    counts = [Counter(flat(panes[lo:hi])) for lo, hi in bounds]
    assert found == [" ".join(f"{name}{c[name]}" for name in sorted(c)) for c in counts]


@given(lists_and_runs(small))
def test_a_final_that_uses_up_its_state(drawn: tuple[list[list[int | None]], Bounds]) -> None:
    def final(state: list[Any]) -> int:
        n = len(state)
        state.clear()
        return n

    panes, bounds = drawn
    found = UserFold(list, append, final, extend_or_second, pa.int64())(rows_of(panes, pa.int64()), runs_of(bounds))
    assert found.to_pylist() == [len(flat(panes[lo:hi])) for lo, hi in bounds]


@given(states_and_runs(st.text(max_size=2)))
def test_objects_are_merged_in_order_and_seldom(drawn: tuple[list[str], Bounds]) -> None:
    states, bounds = drawn
    merges = 0

    def merge(a: str, b: str) -> str:
        nonlocal merges
        merges += 1
        return a + b

    runs = runs_of(bounds)
    assert fold_objects(states, runs.lo, runs.hi, merge) == ["".join(states[lo:hi]) for lo, hi in bounds]
    assert merges <= 2 * len(states) + len(bounds)  # O(1) for each state and each run, whatever the overlap


# --- nothing at all ---


@pytest.mark.parametrize(
    ("fold", "kind"),
    [
        (Sum(), pa.int64()),
        (Sum(), pa.float64()),
        (Sum(), pa.decimal128(38, 2)),
        (Extreme(True), pa.string()),
        (Extreme(False), pa.float64()),
        (Edge(True), TIMED),
        (Edge(False), TIMED),
        (Moments(), MOMENTS),
        (DistinctCount(), pa.list_(pa.string())),
        (MostFrequent(3), pa.list_(pa.struct([("value", pa.string()), ("count", pa.int64())]))),
        (Concatenate(), pa.list_(TIMED)),
        (HllEstimate(), pa.binary()),
        (KllQuantiles((0.5,)), pa.binary()),
        (UserFold(list, append, len, extend, pa.int64()), pa.list_(pa.struct([("t", pa.int64()), ("v0", pa.int64())]))),
        (UserFold(list, append, len, None, pa.int64()), pa.list_(pa.struct([("t", pa.int64()), ("v0", pa.int64())]))),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Fold) else str(value),
)
def test_no_panes_and_no_runs(fold: Fold, kind: pa.DataType) -> None:
    assert len(fold(pa.array([], kind), runs_of([]))) == 0


def test_panes_without_runs_and_states_that_are_slices() -> None:
    assert len(Sum()(pa.array([1, 2, 3]), runs_of([]))) == 0
    # Arrow hands out slices of larger buffers: what lies before must not be counted.
    assert Sum()(pa.array([100, 1, 2, 100]).slice(1, 2), runs_of([(0, 2)])).to_pylist() == [3]
    panes = [timed([(t, float(t))]) for t in range(4)]
    rows = Concatenate()(pa.array(panes, pa.list_(TIMED)).slice(1, 2), runs_of([(0, 1), (0, 2)]))
    assert rows.to_pylist() == [panes[1], panes[1] + panes[2]]
    lists = pa.array([["x"], ["a"], ["b"], ["x"]]).slice(1, 2)
    assert DistinctCount()(lists, runs_of([(0, 2), (1, 2)])).to_pylist() == [2, 1]


def test_generated_runs_are_like_real_ones() -> None:
    """The strategy above: ends only grow, no run is empty."""

    @given(states_and_runs(small))
    def hold(drawn: tuple[list[Any], Bounds]) -> None:
        states, bounds = drawn
        assert all(0 <= lo < hi <= len(states) for lo, hi in bounds)
        assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(bounds))

    hold()
