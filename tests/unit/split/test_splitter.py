"""Every tuple reaches exactly the substreams that the route and the broadcast say, in order, whatever it travels as."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import OperatorError
from anabranch.io.blocks import blocks_of, pack, unpack, write_blocks
from anabranch.runtime.tasks.worker import merge_by_time
from anabranch.split.gates import PaneGate, RowGate
from anabranch.split.readers import BlockReader, Reader, ReferenceReader, RowReader
from anabranch.split.report import SplitterReport
from anabranch.split.routes import ColumnRoute, FunctionRoute, Route
from anabranch.split.splitter import ALL_GROUPS, REPORT_GROUP, Splitter
from tests.oracles.split import substreams

TIMES = pa.schema([("t", pa.int64()), ("n", pa.int64())])
SCHEMA = pa.schema([("t", pa.int64()), ("n", pa.int32()), ("to", pa.int32()), ("all", pa.bool_()), ("s", pa.string())])


@st.composite
def splits(draw: st.DrawFn) -> tuple[int, int, list[list[dict[str, Any]]]]:
    """(q, workers, batches of tuples). Times may go back; routes and broadcasts may be null."""
    q = draw(st.sampled_from([1, 2, 3, 7, 40]))
    workers = draw(st.integers(1, 4))
    one = st.fixed_dictionaries(
        {
            "t": st.integers(-5, 40),
            "to": st.one_of(st.none(), st.integers(-1, q - 1)),
            "all": st.one_of(st.none(), st.booleans(), st.just(False)),
            "s": st.one_of(st.none(), st.text(max_size=3)),
        }
    )
    sizes = draw(st.lists(st.integers(0, 12), max_size=5))
    tuples = iter(draw(st.lists(one, min_size=sum(sizes), max_size=sum(sizes))))
    numbers = iter(range(sum(sizes)))
    return q, workers, [[{**next(tuples), "n": next(numbers)} for _ in range(size)] for size in sizes]


def by_function(column: str = "to") -> FunctionRoute:
    return FunctionRoute(lambda block, q: block.column(column), lambda block: block.column("all"))


def splitter(reader: Reader, route: Route, q: int, workers: int, window_bytes: int = 1, **more: Any) -> Splitter:
    routing = tuple(g * 5 % workers for g in range(q))
    return Splitter(0, reader, RowGate("t", None), route, routing, workers, window_bytes, **more)


def received(split: Splitter, batches: Sequence[pa.RecordBatch]) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """The numbers of the tuples that each substream gets, and the marks: what a worker does, in short."""
    found: dict[int, list[tuple[int, pa.RecordBatch]]] = defaultdict(list)
    marks = []
    for batch in split(iter(batches)):
        for row in batch.to_pylist():
            if row["grp"] == REPORT_GROUP:
                report = SplitterReport.unpacked(row["block"])
                assert (report.counters is None) == (row["worker"] > 0)  # the driver gets them once
                marks.append({**vars(report), **vars(report.counters or report), "worker": row["worker"]})
                continue
            block = unpack(row["block"])
            assert block.num_rows
            mine = [g for g, worker in enumerate(split.routing) if worker == row["worker"]]
            assert row["grp"] == ALL_GROUPS or row["grp"] in mine
            for group in mine if row["grp"] == ALL_GROUPS else [row["grp"]]:
                found[group].append((row["seq"], block))
    numbers = []
    for group in range(len(split.routing)):
        parts = [block for _, block in sorted(found[group], key=lambda part: part[0])]
        numbers.append(sorted(n for block in parts for n in block.column("n").to_pylist()))
        merged = merge_by_time(parts, "t").to_pylist() if parts else []
        assert [row["t"] for row in merged] == sorted(row["t"] for row in merged)
        for part in parts:  # a block keeps the order in which its tuples came
            assert part.column("n").to_pylist() == sorted(part.column("n").to_pylist())
    return numbers, marks


def batches_of(tuples: Sequence[Sequence[dict[str, Any]]]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(list(each), schema=SCHEMA) for each in tuples]


def expected(tuples: Sequence[Sequence[dict[str, Any]]], q: int) -> list[list[int]]:
    flat = [each for batch in tuples for each in batch]
    return substreams([e["n"] for e in flat], [e["to"] for e in flat], [e["all"] for e in flat], q)


@settings(max_examples=40)
@given(splits(), st.sampled_from([1, 300, 1 << 20]))
def test_each_tuple_goes_where_it_is_sent(case: tuple[int, int, list[list[dict[str, Any]]]], window_bytes: int) -> None:
    q, workers, tuples = case
    batches = batches_of(tuples)
    for route in (by_function(), ColumnRoute("to", "all")):
        numbers, marks = received(splitter(RowReader(), route, q, workers, window_bytes), batches)
        assert numbers == expected(tuples, q)
        flat = [each for batch in tuples for each in batch]
        assert [mark["worker"] for mark in marks] == list(range(workers))
        assert {mark["rows"] for mark in marks} == {len(flat)}
        assert {mark["max_t"] for mark in marks} == {max((e["t"] for e in flat), default=None)}
        full = marks[0]
        everyone = sum(bool(e["all"]) for e in flat)
        nobody = sum(not e["all"] and e["to"] in (None, -1) for e in flat)
        assert (full["broadcast"], full["omitted"]) == (everyone, nobody)
        assert full["routed"] == len(flat) - everyone - nobody


@settings(max_examples=25)
@given(splits())
def test_blocks_give_the_same_as_rows(case: tuple[int, int, list[list[dict[str, Any]]]]) -> None:
    q, workers, tuples = case
    payloads = pa.array([pack(batch).to_pybytes() for batch in batches_of(tuples)] + [None], pa.binary())
    packed = pa.RecordBatch.from_arrays([payloads], names=["block"])
    numbers, _ = received(splitter(BlockReader("block"), by_function(), q, workers), [packed])
    assert numbers == expected(tuples, q)


def test_references_are_read_where_they_are_split(tmp_path: Path) -> None:
    tuples = [[{"t": i, "n": i, "to": i % 3, "all": i % 5 == 0, "s": "x"} for i in range(k, k + 10)] for k in (0, 10)]
    write_blocks(tmp_path / "a.arrow", batches_of(tuples))
    refs = [
        {"path": ref.path, "block": ref.index, "first": 2, "rows": ref.rows - 2}
        for ref in blocks_of(tmp_path / "a.arrow")
    ]
    numbers, _ = received(splitter(ReferenceReader(), by_function(), 3, 2), [pa.RecordBatch.from_pylist(refs)])
    assert numbers == expected([each[2:] for each in tuples], 3)


def test_whole_windows_for_one_substream_are_not_reordered() -> None:
    tuples = [[{"t": 9 - i, "n": i, "to": 1, "all": False, "s": None} for i in range(9)]]
    numbers, _ = received(splitter(RowReader(), by_function(), 2, 1), batches_of(tuples))
    assert numbers == [[], list(range(9))]


def test_a_sliced_window_keeps_its_tuples() -> None:
    tuples = [[{"t": i, "n": i, "to": i % 4, "all": i % 7 == 0, "s": str(i)} for i in range(50)]]
    part = batches_of(tuples)[0].slice(13, 20)
    numbers, _ = received(splitter(RowReader(), by_function(), 4, 2), [part])
    assert numbers == expected([tuples[0][13:33]], 4)


def test_a_block_travels_as_pack_makes_it() -> None:
    whole = batches_of([[{"t": i, "n": i, "to": 0, "all": None, "s": "x" * i} for i in range(9)]])[0]
    for window in (whole, whole.slice(3, 4)):
        rows = next(iter(splitter(RowReader(), by_function(), 1, 1)(iter([window])))).to_pylist()
        assert [row["block"] for row in rows] == [pack(window).to_pybytes()]


def test_only_the_columns_asked_for_travel() -> None:
    split = splitter(RowReader(), ColumnRoute("to", "all"), 2, 1, columns=("n", "t"))
    tuples = [[{"t": 1, "n": 1, "to": 0, "all": False, "s": "x"}]]
    rows = [row for batch in split(iter(batches_of(tuples))) for row in batch.to_pylist() if row["grp"] != REPORT_GROUP]
    assert [unpack(row["block"]).schema.names for row in rows] == [["n", "t"]]


@pytest.mark.parametrize("wrong", [3, 7, -2, 2**40])
def test_a_route_outside_of_the_substreams_is_an_error(wrong: int) -> None:
    split = splitter(RowReader(), FunctionRoute(lambda b, q: np.full(b.num_rows, wrong), None), 3, 1)
    with pytest.raises(OperatorError, match=f"routed to substream {wrong}, but there are only 3"):
        received(split, batches_of([[{"t": 0, "n": 0, "to": 0, "all": False, "s": None}]]))


@pytest.mark.parametrize("what", ["route", "broadcast"])
def test_too_few_answers_are_an_error(what: str) -> None:
    short = FunctionRoute(
        (lambda b, q: [0]) if what == "route" else None, (lambda b: [True]) if what == "broadcast" else None
    )
    with pytest.raises(OperatorError, match=f"the {what} function returned shape"):
        received(splitter(RowReader(), short, 3, 1), batches_of([[
            {"t": i, "n": i, "to": 0, "all": False, "s": None} for i in range(2)]]))  # fmt: skip


def test_no_route_and_only_a_broadcast() -> None:
    split = splitter(RowReader(), FunctionRoute(None, lambda block: block.column("all")), 3, 2)
    tuples = [[{"t": i, "n": i, "to": None, "all": i == 1, "s": None} for i in range(3)]]
    assert received(split, batches_of(tuples))[0] == [[1], [1], [1]]


def test_late_and_timeless_tuples_are_counted_and_left_out() -> None:
    rows = [{"t": t, "n": n, "to": 0, "all": False, "s": None} for n, t in enumerate([5, None, 9, 4, 10])]
    split = Splitter(0, RowReader(), RowGate("t", 5), by_function(), (0,), 1)
    numbers, marks = received(split, batches_of([rows]))
    assert numbers == [[0, 2, 4]]
    assert (marks[0]["rows"], marks[0]["late"], marks[0]["bad"], marks[0]["max_t"]) == (5, 1, 1, 10)


def test_panes_without_an_id_are_counted_and_left_out() -> None:
    panes = pa.RecordBatch.from_pydict(
        {"n": [0, 1], "t": [0, 0], "pane": [7, None], "rows": [3, 5], "timed": [3, 4], "max_t": [70, 20], "g": [0, 0]}
    )
    split = Splitter(0, RowReader(), PaneGate("pane", "rows", "timed", "max_t"), ColumnRoute("g"), (0,), 1)
    numbers, marks = received(split, [panes])
    assert numbers == [[0]]
    assert (marks[0]["rows"], marks[0]["late"], marks[0]["bad"], marks[0]["max_t"]) == (8, 4, 1, 70)


@given(st.lists(st.lists(st.integers(-3, 3), max_size=6), min_size=1, max_size=5))
def test_merge_by_time_is_a_stable_sort(times: list[list[int]]) -> None:
    numbers: Iterator[int] = iter(range(100))
    blocks = [pa.RecordBatch.from_pylist([{"t": t, "n": next(numbers)} for t in each], schema=TIMES) for each in times]
    flat = [row for block in blocks for row in block.to_pylist()]
    assert merge_by_time(blocks, "t").to_pylist() == sorted(flat, key=lambda row: row["t"])
    assert merge_by_time(blocks, None).to_pylist() == flat
