"""Partial evaluation and aggregation without Spark, against plain dictionaries; what a strict partitioner forgets."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.aggregates.folds import Runs
from anabranch.aggregates.partial_state import Evaluate, StateFold
from anabranch.errors import OperatorError
from anabranch.io.blocks import pack
from anabranch.keys import partitioner
from anabranch.keys.partitioner import Partitioner, table_of
from anabranch.keys.policy import Partitioning
from anabranch.names import FIRST, LAST, PANE, ROWS, SPEC
from anabranch.operators.pane_runs import WindowSettings
from anabranch.operators.partial_windows import Aggregation, PartialEvaluation, WholeEvaluation
from anabranch.split.splitter import REPORT_GROUP
from anabranch.windows import Panes, Window
from anabranch.windows.ids import Stretch

Row = tuple[str | None, int | None, int | None]  # key, time, value
LISTS, SUMS = pa.list_(pa.int64()), pa.int64()
BLOCK = pa.schema([("key", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
PACKED = pa.schema([*((name, pa.int32()) for name in ("worker", "grp", "edge", "part", "seq")), ("block", pa.binary())])
EVALUATED = [("key", pa.string()), (PANE, pa.int64()), (ROWS, pa.int64()), ("__ab_s0", LISTS), ("__ab_s1", SUMS)]
COUNT_FIELDS = [("timed", pa.int64()), ("max_t", pa.int64()), ("part", pa.int64())]


def append(state: list[int | None], value: int | None) -> list[int | None]:
    state.append(value)
    return state


def extend(a: list[Any], b: list[Any]) -> list[Any]:
    """Changes its first argument, and returns its second where the first is empty."""
    if not a:
        return b
    a.extend(b)
    return a


def add(state: int, *values: int | None) -> int:
    return state + sum(value or 0 for value in values)


def same(state: Any) -> Any:
    return state


def block_of(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(BLOCK)]
    return pa.RecordBatch.from_arrays(columns, schema=BLOCK)


def sent(blocks: Sequence[tuple[int, int, Sequence[Row]]], *, worker: int = 3, edge: int = 0) -> list[pa.RecordBatch]:
    """Blocks (part, seq, rows) as the exchange brings them, one batch each, and a mark of each part first."""
    marks = [(worker, REPORT_GROUP, edge, part, 0, b"{}") for part in sorted({part for part, _, _ in blocks})]
    rows = [(worker, worker, edge, part, seq, pack(block_of(rows)).to_pybytes()) for part, seq, rows in blocks]
    return [
        pa.RecordBatch.from_arrays([pa.array([row[i]], f.type) for i, f in enumerate(PACKED)], schema=PACKED)
        for row in (*marks, *rows)
    ]


EVALUATE = (Evaluate(list, append, LISTS), Evaluate(int, add, SUMS))
"""A list of the values, and their sum."""
FOLDS = (StateFold(LISTS, extend, sorted, LISTS), StateFold(SUMS, add, same, SUMS))


def evaluation(panes: Stretch, *, with_counts: bool = False, watermark: int | None = None) -> PartialEvaluation:
    schema = pa.schema([*EVALUATED, *(COUNT_FIELDS if with_counts else [])])
    return PartialEvaluation(("key",), "t", panes, (("v",), ("v",)), EVALUATE, schema, watermark)


ONES = Stretch(1)
"""A pane is one long."""


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


# --- partial evaluation ---

drawn_rows = st.tuples(
    st.sampled_from([None, "", "a", "b"]),
    st.one_of(st.none(), st.integers(-30, 30)),
    st.one_of(st.none(), st.integers(-9, 9)),
)
drawn_blocks = st.lists(st.lists(drawn_rows, min_size=1, max_size=8), min_size=1, max_size=6)


@settings(max_examples=40)
@given(drawn_blocks, st.sampled_from([None, -7, 0, 13]), st.randoms(use_true_random=False))
def test_one_row_per_key_and_pane_whatever_came_first(
    contents: list[list[Row]], watermark: int | None, rng: random.Random
) -> None:
    #   panes of 10      -17       -7        3         13        23
    #                     [---------[---------[---------[---------[---
    #   late at 0         late     |  the pane is open: not late
    def pane(t: int | None) -> int | None:
        number = None if t is None else (t - 3) // 10
        return number if number is not None and (watermark is None or 13 + 10 * number > watermark) else None

    blocks = [(i % 2, i // 2, rows) for i, rows in enumerate(contents)]
    expected: dict[tuple[str | None, int | None], list[Row]] = defaultdict(list)
    for _, _, rows in sorted(blocks, key=lambda block: block[:2]):
        for row in rows:
            expected[row[0], pane(row[1])].append(row)
    arrived = sent(blocks)
    rng.shuffle(arrived)
    found = rows_of(evaluation(Stretch(10, 3), with_counts=True, watermark=watermark)(iter(arrived)))
    assert len(found) == len(expected)
    for row in found:
        mine = expected[row["key"], row[PANE]]
        times = [t for _, t, _ in mine if t is not None]
        assert row[ROWS] == len(mine)
        assert (row["timed"], row["max_t"], row["part"]) == (len(times), max(times, default=None), 3)
        # Rows without a pane are late, or have no time: they are counted, and have no state.
        values = None if row[PANE] is None else [v for *_, v in mine]
        assert row["__ab_s0"] == values
        assert row["__ab_s1"] == (None if values is None else add(0, *values))


def test_columns_that_nobody_counts_are_not_made() -> None:
    (made,) = evaluation(ONES)(iter(sent([(0, 0, [("a", 1, 2)])])))
    assert made.schema == pa.schema(EVALUATED)


def test_an_aggregate_without_an_input() -> None:
    schema = pa.schema([*EVALUATED[:3], ("__ab_s0", pa.int64())])
    count = PartialEvaluation(("key",), "t", ONES, ((),), (Evaluate(int, lambda n: n + 1, SUMS),), schema)
    found = rows_of(count(iter(sent([(0, 0, [("a", 0, 2), ("b", 0, 2), ("a", 0, 2)])]))))
    assert sorted((row["key"], row[PANE], row[ROWS], row["__ab_s0"]) for row in found) == [
        ("a", 0, 2, 2),
        ("b", 0, 1, 1),
    ]


@pytest.mark.parametrize("arrived", [[], sent([(0, 0, []), (1, 0, [])])[:2]], ids=["nothing", "marks only"])
def test_nothing_to_evaluate(arrived: list[pa.RecordBatch]) -> None:
    assert list(evaluation(ONES, with_counts=True)(iter(arrived))) == []
    for window in (Window(2, 1), Window(1, 1)):
        whole = WholeEvaluation(evaluation(ONES), Aggregation(settings_of(window)), FOLDS)
        assert list(whole(iter(arrived))) == []


# --- aggregation ---


def settings_of(*windows: Window) -> WindowSettings:
    panes = Panes(windows)
    names = ("key", SPEC, FIRST, LAST, ROWS, "__ab_s0", "__ab_s1")
    return WindowSettings(panes.in_panes(), panes.size, panes.origin, FOLDS, ("key",), names)


def answers(batches: Iterator[pa.RecordBatch]) -> dict[tuple[str | None, int, int], tuple[Any, ...]]:
    """(key, specification, window) -> (rows, list, sum). No window may come twice."""
    found: dict[tuple[str | None, int, int], tuple[Any, ...]] = {}
    for row in rows_of(batches):
        for window in range(row[FIRST], row[LAST] + 1):
            place = (row["key"], row[SPEC], window)
            assert place not in found
            found[place] = (row[ROWS], row["__ab_s0"], row["__ab_s1"])
    return found


def expected_answers(
    rows: Sequence[Row], windows: Sequence[Window], earliest: int | None = None
) -> dict[tuple[str | None, int, int], tuple[Any, ...]]:
    """Every window that has rows, by trying all of them."""
    found: dict[tuple[str | None, int, int], list[int]] = defaultdict(list)
    for key, t, value in rows:
        assert t is not None and value is not None
        for spec, window in enumerate(windows):
            for j in range(-40, 40):
                start = window.origin + j * window.slide
                if start <= t < start + window.size and (earliest is None or start >= earliest):
                    found[key, spec, j].append(value)
    return {place: (len(values), sorted(values), sum(values)) for place, values in found.items()}


whole_rows = st.tuples(st.sampled_from([None, "", "a", "b"]), st.integers(-6, 12), st.integers(-9, 9))
# The first has a slide of 1, so a pane is 1 long.
drawn_windows = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)).map(
    lambda drawn: (Window(drawn[0], 1), Window(max(drawn[1:]), min(drawn[1:])))
)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(whole_rows, st.integers(0, 2)), min_size=1, max_size=30),
    drawn_windows,
    st.sampled_from([None, 0, 2]),
)
def test_parts_of_workers_become_windows(
    assigned: list[tuple[Row, int]], windows: tuple[Window, Window], earliest: int | None
) -> None:
    """A key may be on any workers: their states, some for the same pane, give what one worker gives of all rows."""
    rows = [row for row, _ in assigned]
    aggregation = Aggregation(settings_of(*windows), earliest)
    expected = expected_answers(rows, windows, earliest)
    parts = [[row for row, at in assigned if at == worker] for worker in range(3)]
    evaluated = [batch for part in parts if part for batch in evaluation(ONES)(iter(sent([(0, 0, part)])))]
    assert answers(aggregation(iter(evaluated))) == expected
    assert answers(aggregation(iter(evaluated[::-1]))) == expected
    whole = WholeEvaluation(evaluation(ONES), aggregation, FOLDS)
    assert answers(whole(iter(sent([(0, 0, rows)])))) == expected


@settings(max_examples=20)
@given(st.lists(whole_rows, min_size=1, max_size=30))
def test_a_pane_that_is_a_window_needs_no_aggregation(rows: list[Row]) -> None:
    window = Window(5, 5, 2)
    aggregation, panes = Aggregation(settings_of(window)), Stretch(5, 2)
    whole = answers(WholeEvaluation(evaluation(panes), aggregation, FOLDS)(iter(sent([(0, 0, rows)]))))
    assert whole == expected_answers(rows, [window])
    assert whole == answers(aggregation(evaluation(panes)(iter(sent([(0, 0, rows)])))))


def test_final_gets_the_same_state_whether_it_travelled_or_not() -> None:
    """A sum that is an int, with the type double: else what final makes of it depends on the policy."""
    panes, window, folds = Stretch(5), Panes((Window(5, 5),)), (StateFold(pa.float64(), add, repr, pa.string()),)
    names = ("key", SPEC, FIRST, LAST, ROWS, "__ab_s0")
    aggregation = Aggregation(WindowSettings(window.in_panes(), 5, 0, folds, ("key",), names))
    schema = pa.schema([*EVALUATED[:3], ("__ab_s0", pa.float64())])
    evaluate = PartialEvaluation(("key",), "t", panes, (("v",),), (Evaluate(int, add, pa.float64()),), schema)
    rows = sent([(0, 0, [("a", 0, 1), ("a", 1, 2)])])
    whole = rows_of(WholeEvaluation(evaluate, aggregation, folds)(iter(rows)))
    assert whole == rows_of(aggregation(evaluate(iter(rows))))


def test_no_panes_give_no_windows() -> None:
    empty = pa.RecordBatch.from_pylist([], schema=pa.schema(EVALUATED))
    assert list(Aggregation(settings_of(Window(2, 1)))(iter([]))) == []
    assert list(Aggregation(settings_of(Window(2, 1)))(iter([empty, empty]))) == []


# --- states ---

drawn_runs = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 5)), min_size=1, max_size=12)


@pytest.mark.parametrize("merge", [extend, lambda a, b: a + b], ids=["in place", "anew"])
@given(drawn=drawn_runs)
def test_states_of_overlapping_windows_do_not_leak_into_each_other(
    merge: Callable[[list[int], list[int]], list[int]], drawn: list[tuple[int, int]]
) -> None:
    """Runs only grow at both ends; states are lists, which merge changes, and final too."""
    lo = sorted(low for low, _ in drawn)
    hi = np.maximum.accumulate([low + size for low, (_, size) in zip(lo, drawn, strict=True)])
    values = [[i] * (i % 3) for i in range(14)]  # some are empty

    def final(state: list[int]) -> list[int]:
        state.sort(reverse=True)
        return state

    states = pa.array(values, LISTS)
    found = StateFold(LISTS, merge, final, LISTS)(states, Runs(np.array(lo, np.int64), hi.astype(np.int64)))
    members = [[v for each in values[low:high] for v in each] for low, high in zip(lo, hi.tolist(), strict=True)]
    expected = [sorted(each, reverse=True) for each in members]
    assert found.to_pylist() == expected
    assert states.to_pylist() == values


def test_states_that_nobody_shares_are_merged_in_order() -> None:
    merged: list[tuple[str, str]] = []

    def merge(a: str, b: str) -> str:
        merged.append((a, b))
        return a + b

    fold = StateFold(pa.string(), merge, same, pa.string())
    runs = Runs(np.array([0, 2, 3], np.int64), np.array([2, 3, 6], np.int64))
    assert fold(pa.array(list("abcdef")), runs).to_pylist() == ["ab", "c", "def"]
    assert merged == [("a", "b"), ("d", "e"), ("de", "f")]


@pytest.mark.parametrize("columns", [0, 1, 2])
def test_rows_of_a_group_in_their_order(columns: int) -> None:
    def incr(state: list[str], *values: str) -> list[str]:
        return [*state, "".join(values) or "-"]

    letters = [pa.array(list("abcd")), pa.array(list("wxyz"))][:columns]
    states = Evaluate(list, incr, pa.list_(pa.string())).states(letters, np.array([0, 1, 4]))
    each = {0: "----", 1: "abcd", 2: ["aw", "bx", "cy", "dz"]}[columns]
    assert states == [[each[0]], list(each[1:])]


def evaluated(value: Any, kind: pa.DataType) -> pa.Array:
    return Evaluate(list, append, kind).typed([value])


@pytest.mark.parametrize(
    "value, kind",
    [
        ("text", pa.int64()),
        (5, pa.string()),
        (5, LISTS),
        ([1, "text"], LISTS),
        (2**40, pa.int32()),
        (True, pa.int64()),
        (object(), pa.int64()),
    ],
)
def test_a_state_of_another_type_is_an_error(value: Any, kind: pa.DataType) -> None:
    with pytest.raises(OperatorError) as raised:
        evaluated(value, kind)
    assert f"declared type {kind}" in raised.value.message
    assert "declare as `state` the type" in raised.value.hint


def test_a_state_too_large_for_a_bigint_is_an_error() -> None:
    with pytest.raises(OperatorError, match="declared type int64"):
        evaluated(2**70, pa.int64())


@pytest.mark.parametrize("value, kind", [(1.5, pa.int64()), ([1.5], LISTS)])
def test_a_fraction_is_not_cut_off(value: Any, kind: pa.DataType) -> None:
    with pytest.raises(OperatorError, match="declared type"):
        evaluated(value, kind)


def test_a_state_that_is_a_dict_arrives_as_one() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    fold = StateFold(kind, lambda a, b: {**a, **b}, lambda state: sum(state.values()), SUMS)
    states = pa.concat_arrays([evaluated({"a": 1}, kind), evaluated({"b": 2}, kind)])
    assert fold(states, Runs(np.array([0]), np.array([2]))).to_pylist() == [3]


# --- what a strict partitioner forgets ---

KEYS = np.arange(50, dtype=np.uint64)


def in_window(number: int, keys: np.ndarray = KEYS) -> tuple[np.ndarray, np.ndarray]:
    return keys, np.full(len(keys), number, np.int64)


@pytest.mark.parametrize("policy", ["am", "cam"])
def test_a_tuple_of_a_forgotten_window_is_an_error(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = Partitioner(Partitioning(policy), 4, strict=True)
    strict.assign(*in_window(0))
    # Room for two windows.
    monkeypatch.setattr(partitioner, "MOST_BYTES", 2 * strict.nbytes)
    strict.assign(*in_window(1))
    before = strict.assign(*in_window(1)).tolist()
    strict.assign(*in_window(0))  # not forgotten yet
    strict.assign(*in_window(2))  # forgets window 0
    assert strict.assign(*in_window(1)).tolist() == before
    for late in (0, -5):
        with pytest.raises(OperatorError, match=f"rows of window {late} came after") as raised:
            strict.assign(*in_window(late))
        assert 'partition="fld"' in raised.value.hint


def test_an_old_window_that_was_never_open_may_come_while_there_is_room() -> None:
    strict = Partitioner(Partitioning("cam"), 4, strict=True)
    assigned = {window: strict.assign(*in_window(window)).tolist() for window in range(100, -100, -1)}
    assert all(strict.assign(*in_window(window)).tolist() == workers for window, workers in assigned.items())


def test_whoever_is_not_strict_forgets_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioner, "MOST_OPEN_WINDOWS", 2)
    loose = Partitioner(Partitioning("cam"), 4)
    for window in (0, 1, 2, 3, 0):
        loose.assign(*in_window(window))
    assert loose.loads(0).sum() == len(KEYS)  # counted anew


# --- the table of heavy keys ---

heavy_keys = st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.integers(1, 10**6), max_size=40)


@given(heavy_keys, st.integers(1, 9), st.randoms(use_true_random=False))
def test_heavy_keys_are_spread(tuples: dict[int, int], workers: int, rng: random.Random) -> None:
    table = table_of(list(tuples.items()), workers)
    unsigned = {key % 2**64: n for key, n in tuples.items()}
    # Every key once, in order, on a worker that exists.
    assert table.keys.tolist() == sorted(unsigned)
    assert len(table.workers) == len(tuples) and all(0 <= worker < workers for worker in table.workers.tolist())
    # Whoever ends with the most had no more than the mean when it got its last key.
    loads = np.zeros(workers, np.int64)
    np.add.at(loads, table.workers, [unsigned[key] for key in table.keys.tolist()])
    heaviest, total = max(tuples.values(), default=0), sum(tuples.values())
    assert loads.max() * workers <= total + (workers - 1) * heaviest
    # The same for everybody, whatever the order in which the keys came.
    shuffled = list(tuples.items())
    rng.shuffle(shuffled)
    again = table_of(shuffled, workers)
    assert again.keys.tolist() == table.keys.tolist() and again.workers.tolist() == table.workers.tolist()


def test_the_table_is_where_heavy_keys_go() -> None:
    table = table_of([(-1, 10), (7, 9), (8, 8), (9, 1)], 3)
    heavy = Partitioner(Partitioning("heavy"), 3, heavy=table)
    assigned = dict(zip(table.keys.tolist(), table.workers.tolist(), strict=True))
    assert len({assigned[key] for key in (2**64 - 1, 7, 8)}) == 3 and assigned[9] == assigned[8]
    hashes = np.array([-1, 7, 8, 9, 7, 1234], np.int64)
    found = heavy.assign(hashes).tolist()
    assert found[:5] == [assigned[key] for key in (2**64 - 1, 7, 8, 9, 7)]
    assert found[5] == Partitioner(Partitioning("fld"), 3).assign(hashes).tolist()[5]
