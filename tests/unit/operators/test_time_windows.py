"""The windowed operator against a plain reading of the definition: random rows in random epochs, panes in pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.aggregates.folds import Concatenate, Edge, Extreme, Sum
from anabranch.names import FIRST, LAST, PANE, ROWS, SPEC
from anabranch.operators.pane_runs import WindowSettings
from anabranch.operators.state import MemoryState
from anabranch.operators.time_windows import WindowOperator
from anabranch.windows import Panes, Window

Row = tuple[int, str | None, int]  # time, key, value
POINT = pa.struct([("time", pa.int64()), ("value", pa.int64())])
FOLDS = (Sum(), Extreme(greatest=True), Edge(last=False), Edge(last=True), Concatenate())
NAMES = ("key", SPEC, FIRST, LAST, ROWS, "sum", "max", "first", "last", "all")


def settings(windows: Panes) -> WindowSettings:
    return WindowSettings(windows.in_panes(), windows.size, windows.origin, FOLDS, ("key",), NAMES)


def panes_of(rows: list[Row], windows: Panes) -> pa.RecordBatch | None:
    """What Spark makes of the rows of an epoch."""
    if not rows:
        return None
    found: dict[tuple[str | None, int], list[Row]] = defaultdict(list)
    for row in rows:
        found[row[1], (row[0] - windows.origin) // windows.size].append(row)
    columns: list[list[object]] = [[], [], [], [], [], [], [], []]
    for (key, pane), mine in found.items():
        points = sorted((t, v) for t, _, v in mine)
        lists = [{"time": t, "value": v} for t, v in points]
        values = [v for _, v in points]
        state = (key, pane, len(mine), sum(values), max(values), lists[0], lists[-1], lists)
        for column, value in zip(columns, state, strict=True):
            column.append(value)
    types = [pa.string(), *[pa.int64()] * 4, POINT, POINT, pa.list_(POINT)]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["key", PANE, ROWS, "sum", "max", "first", "last", "all"])


def expected(rows: list[Row], windows: Panes, watermark: int) -> dict[tuple[int, str | None, int], tuple[object, ...]]:
    """Every window that ends at or before the watermark and has rows, by trying all of them."""
    answers = {}
    for spec, window in enumerate(windows.windows):
        members = defaultdict(list)
        for t, key, v in rows:
            j = (t - window.origin) // window.slide
            while window.origin + j * window.slide + window.size > t:
                members[key, j].append((t, v))
                j -= 1
        for (key, j), points in members.items():
            if window.origin + j * window.slide + window.size <= watermark:
                points.sort()
                values = [v for _, v in points]
                total = (len(points), sum(values), max(values), points[0][1], points[-1][1], tuple(values))
                answers[spec, key, j] = total
    return answers


def answers_of(batch: pa.RecordBatch) -> dict[tuple[int, str | None, int], tuple[object, ...]]:
    answers: dict[tuple[int, str | None, int], tuple[object, ...]] = {}
    for row in batch.to_pylist():
        for j in range(row[FIRST], row[LAST] + 1):
            key = (row[SPEC], row["key"], j)
            assert key not in answers, "a window left twice"
            values = tuple(point["value"] for point in row["all"])
            first, last = row["first"]["value"], row["last"]["value"]
            answers[key] = (row[ROWS], row["sum"], row["max"], first, last, values)
    return answers


windows_strategy = st.lists(
    st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(-5, 5)).map(
        lambda w: Window(max(w[0], w[1]), min(w[0], w[1]), w[2])
    ),
    min_size=1,
    max_size=2,
    unique=True,
).map(lambda found: Panes(tuple(found)))
epochs_strategy = st.lists(
    st.lists(st.tuples(st.integers(-30, 60), st.sampled_from(["a", "b", None]), st.integers(-5, 5)), max_size=8),
    max_size=8,
)


@given(windows_strategy, epochs_strategy, st.integers(1, 4), st.integers(0, 8))
def test_windows_leave_once_and_with_all_their_rows(
    windows: Panes, epochs: list[list[Row]], batch: int, delay: int
) -> None:
    operator, state = WindowOperator(settings(windows)), MemoryState()
    operator.open(state)
    taken: list[Row] = []
    found: dict[tuple[int, str | None, int], tuple[object, ...]] = {}
    watermark: int | None = None
    latest: int | None = None
    for number, rows in enumerate(epochs):
        on_time = [
            row for row in rows
            if watermark is None
            or ((row[0] - windows.origin) // windows.size + 1) * windows.size + windows.origin > watermark
        ]  # fmt: skip
        taken += on_time
        latest = max([row[0] for row in rows] + ([] if latest is None else [latest]), default=None)
        operator.decisions = {"batch": batch if number < len(epochs) - 1 else 1}
        emitted = []
        if (block := panes_of(on_time, windows)) is not None:
            emitted += list(operator.process(block))
        if latest is not None:
            watermark = max(latest - delay, watermark if watermark is not None else latest - delay)
            emitted += list(operator.on_watermark(watermark))
        for part in emitted:
            new = answers_of(part)
            assert not set(new) & set(found)
            found |= new
        if batch == 1 and watermark is not None:
            # Nothing waits: others may read these windows, and the watermark says that they have come.
            assert found == expected(taken, windows, watermark)
    if watermark is not None:
        # What a batch holds back is complete, but not due yet.
        operator.decisions = {"batch": 1}
        for part in operator.on_watermark(watermark):
            found |= answers_of(part)
        assert found == expected(taken, windows, watermark)


def test_state_holds_only_what_open_windows_need() -> None:
    windows = Panes((Window(10, 1),))
    operator, state = WindowOperator(settings(windows)), MemoryState()
    operator.open(state)
    for t in range(0, 2_000, 5):
        block = panes_of([(t, "a", 1), (t + 2, "b", 1)], windows)
        assert block is not None
        list(operator.process(block))
        list(operator.on_watermark(t))
        assert sum(table.num_rows for name, table in state.items() if name.startswith("panes")) <= 12
        assert len(state.names()) <= 20


def test_an_instance_goes_on_where_another_stopped() -> None:
    windows = Panes((Window(6, 2),))
    rows = [(t, "ab"[t % 2], t) for t in range(40)]
    whole, parted = {}, {}
    for target, fresh in ((whole, False), (parted, True)):
        state = MemoryState()
        operator = WindowOperator(settings(windows))
        operator.open(state)
        for begin in range(0, 40, 5):
            if fresh:
                operator = WindowOperator(settings(windows))
                operator.open(state)
            block = panes_of(rows[begin : begin + 5], windows)
            assert block is not None
            list(operator.process(block))
            for part in operator.on_watermark(rows[begin][0]):
                target.update(answers_of(part))
    assert whole == parted and whole


@pytest.mark.parametrize("keys", [(), ("key",)])
def test_no_rows_no_windows(keys: tuple[str, ...]) -> None:
    operator, state = WindowOperator(settings(Panes((Window(6, 2),)))), MemoryState()
    operator.open(state)
    assert list(operator.on_watermark(100)) == []
    assert np.array_equal(state.array("evaluated", np.int64), [1, 50])


# --- from epoch to epoch, with B = 1 ---

groups_strategy = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(-30, 60), max_size=5), max_size=4
)  # the times of an epoch's rows, by group


def ends_of_epochs(
    windows: Panes, epochs: list[Mapping[str, list[int]]], delay: int, batch: int = 1
) -> list[list[int]]:
    """The ends of the windows that all groups bring out, epoch by epoch. A group begins with its first row."""
    groups: dict[str, WindowOperator] = {}
    found: list[list[int]] = []
    watermark: int | None = None
    for epoch in epochs:
        ends: list[int] = []
        on_time: dict[str, list[Row]] = {}
        for name, times in epoch.items():
            # Late are the rows whose pane the watermark has passed.
            kept = [t for t in times if watermark is None or pane_end(windows, t) > watermark]
            on_time[name] = [(t, name, 0) for t in kept]
        latest = max((t for times in epoch.values() for t in times), default=None)
        if latest is not None:
            watermark = latest - delay if watermark is None else max(watermark, latest - delay)
        for name, rows in on_time.items():
            if rows and name not in groups:
                groups[name] = WindowOperator(settings(windows))
                groups[name].open(MemoryState())
        for name, operator in groups.items():
            operator.decisions = {"batch": batch}
            block = panes_of(on_time.get(name, []), windows)
            emitted = [] if block is None else list(operator.process(block))
            emitted += [] if watermark is None else list(operator.on_watermark(watermark))
            for row in (row for part in emitted for row in part.to_pylist()):
                window = windows.windows[row[SPEC]]
                ends += [window.origin + j * window.slide + window.size for j in range(row[FIRST], row[LAST] + 1)]
        found.append(ends)
    return found


def pane_end(windows: Panes, t: int) -> int:
    return ((t - windows.origin) // windows.size + 1) * windows.size + windows.origin


@given(windows_strategy, st.lists(groups_strategy, max_size=8), st.integers(0, 8))
def test_no_window_leaves_after_a_later_one(windows: Panes, epochs: list[Mapping[str, list[int]]], delay: int) -> None:
    before: int | None = None
    for ends in ends_of_epochs(windows, epochs, delay):
        if ends:
            assert before is None or min(ends) > before
            before = max(ends)


def test_batches_would_break_the_order_and_stay_behind() -> None:
    """Why B is 1 wherever an order is asked for, and where a query ends with its input."""
    windows = Panes((Window(10, 10),))
    # Group b is new in the second epoch, and waits for nothing.
    epochs = [{"a": [0, 12]}, {"b": [21, 33]}, {"b": [41]}]
    assert ends_of_epochs(windows, epochs, delay=0) == [[10], [20, 30], [40]]
    assert ends_of_epochs(windows, epochs, delay=0, batch=4) == [[10], [30], [20, 40]]
    # Without the last epoch, the window that ends at 20 is complete, and stays behind.
    assert ends_of_epochs(windows, epochs[:2], delay=0, batch=4) == [[10], [30]]
