"""Count windows in the epoch runtime, without Spark: rows are numbered, become panes, and windows leave once full."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from anabranch.aggregates.folds import Concatenate, Sum
from anabranch.names import FIRST, LAST, OPEN, PANE, POSITION, ROWS, SPEC
from anabranch.operators.count_windows import CountWindowOperator
from anabranch.operators.numbering import (
    DROPPED,
    NUMBERED,
    ROWS_NUMBERED,
    SHED,
    WINDOWS_KEPT,
    WINDOWS_SHED,
    Numbering,
    PositionsOperator,
)
from anabranch.operators.pane_runs import WindowSettings
from anabranch.operators.state import MemoryState, State
from anabranch.shedding.windrop import KEY_BUCKETS
from anabranch.windows import Panes, Window
from tests.oracles.positions import Counting, Drop, Row

POINT = pa.struct([("time", pa.int64()), ("value", pa.int64())])
TYPES = (pa.int64(), pa.string(), pa.float64(), pa.int64())
Answers = dict[tuple[int, str | None, int], list[str]]


def block_of(rows: list[Row]) -> pa.RecordBatch:
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=["at", "key", "x", "y"])


def text_of(row: Row) -> str:
    """A row in words: -0.0 is another row than 0.0, and NaN is like NaN."""
    return repr(tuple(row))


class Pipeline:
    """Both operators of a group, and what Spark does between them. `restart` gives them a copy of their state."""

    def __init__(self, windows: Panes, per_key: bool, keyed: bool = True) -> None:
        self.windows, self.per_key = windows, per_key
        self.keys = ("key",) if keyed else ()
        numbered_by = self.keys if per_key else ()
        self.numbering = Numbering(numbered_by, "at", ("key", "x", "y"), windows.windows, numbered_by)
        names = (*self.keys, SPEC, FIRST, LAST, ROWS, "sum", "all")
        folds = (Sum(), Concatenate())
        self.settings = WindowSettings(windows.in_panes(), windows.size, windows.origin, folds, self.keys, names)
        self.states: list[State] = [MemoryState(), MemoryState()]
        self.rows: list[str] = []
        self.answers: Answers = {}
        self.metrics: Counter[str] = Counter()
        self.emitted: list[tuple[str | None, int]] = []
        self.dropped: list[dict[str, Any]] = []
        self.restart()

    def restart(self) -> None:
        copies = []
        for state in self.states:
            copy = MemoryState()
            copy.load(state.items())
            copies.append(copy)
        self.states = list(copies)
        self.positions = PositionsOperator(self.numbering)
        self.counts = CountWindowOperator(self.settings, self.per_key)
        self.positions.open(copies[0])
        self.counts.open(copies[1])

    def epoch(self, rows: list[Row], watermark: int, drop: Drop | None = None) -> None:
        self.positions.decisions = {} if drop is None else {SHED: drop._asdict()}
        self.positions.metrics = self.metrics
        out = list(self.positions.process(block_of(rows))) if rows else []
        out += list(self.positions.on_watermark(watermark))
        numbered = [row for name, batch in out if name == NUMBERED for row in batch.to_pylist()]
        self.dropped += [row for name, batch in out if name == DROPPED for row in batch.to_pylist()]
        panes = self.panes_of(numbered)
        windows = [] if panes is None else list(self.counts.process(panes))
        for batch in [*windows, *self.counts.on_watermark(watermark)]:
            self.take(batch)

    def panes_of(self, rows: list[dict[str, object]]) -> pa.RecordBatch | None:
        """What Spark makes of numbered rows, in two tasks: panes come in pieces."""
        if not rows:
            return None
        found = defaultdict(list)
        for i, row in enumerate(rows):
            position = row[POSITION]
            assert isinstance(position, int)
            self.emitted.append((row["key"], position))  # type: ignore[arg-type]
            self.rows.append(repr((row["at"], row["key"], row["x"], row["y"])))
            key = row["key"] if self.keys else None
            found[i % 2, key, position // self.windows.size].append((position, len(self.rows) - 1, row[OPEN]))
        columns: list[list[object]] = [[], [], [], [], [], []]
        for (_, key, pane), points in found.items():
            lists = [{"time": t, "value": v} for t, v, _ in sorted(points)]
            opens = {opened for _, _, opened in points}
            assert len(opens) == 1, "rows of one pane are in the same windows"
            state = (key, pane, len(points), sum(v for _, v, _ in points), lists, opens.pop())
            for column, value in zip(columns, state, strict=True):
                column.append(value)
        types = [pa.string(), *[pa.int64()] * 3, pa.list_(POINT), pa.bool_()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        names = ["key", PANE, ROWS, "sum", "all", OPEN]
        skip = 0 if self.keys else 1
        return pa.RecordBatch.from_arrays(arrays[skip:], names=names[skip:])

    def take(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            for j in range(row[FIRST], row[LAST] + 1):
                place = (row[SPEC], row.get("key"), j)
                assert place not in self.answers, "a window left twice"
                values = [point["value"] for point in row["all"]]
                assert row["sum"] == sum(values) and row[ROWS] == len(values)
                self.answers[place] = [self.rows[v] for v in values]


def count_windows(largest: int) -> st.SearchStrategy[Panes]:
    one = st.tuples(st.integers(1, largest), st.integers(1, largest)).map(lambda w: Window.of_rows(max(w), min(w)))
    return st.lists(one, min_size=1, max_size=2, unique=True).map(lambda found: Panes(tuple(found)))


floats = st.sampled_from([None, math.nan, -math.inf, -1.5, -0.0, 0.0, 2.0])
drawn = st.builds(
    Row, st.integers(-20, 40), st.sampled_from(["a", "b", None]), floats, st.sampled_from([None, -1, 0, 7])
)
epochs_strategy = st.lists(st.tuples(st.lists(drawn, max_size=12), st.booleans()), max_size=8)
seeds = st.integers(0, 2**32)


def many_rows(seed: int) -> list[tuple[list[Row], bool]]:
    """Epochs with many rows, somewhat out of order, and restarts in between."""
    rng = random.Random(seed)
    return [
        (
            [
                Row(
                    10 * epoch + rng.randrange(-6, 10),
                    rng.choice(["a", "a", "b", None]),
                    rng.choice([None, math.nan, 0.5]),
                    rng.choice([None, -1, 7]),
                )
                for _ in range(rng.choice([0, 3, 10, 25]))
            ],
            rng.random() < 0.3,
        )
        for epoch in range(8)
    ]


drops = st.builds(Drop, st.sampled_from([0.0, 0.3, 0.6, 1.0]), st.integers(0, 4), st.integers(0, 99))
loads = st.tuples(drops, st.none() | drops, drops)
"""The load comes and goes."""


def play(
    pipeline: Pipeline,
    oracle: Counting,
    epochs: list[tuple[list[Row], bool]],
    delay: int,
    drops: Sequence[Drop | None] = (None,),
) -> None:
    """Epoch by epoch; the oracle must have delivered the same after each."""
    latest: int | None = None
    watermark: int | None = None
    for number, (rows, restarts) in enumerate([*epochs, ([], False)]):
        on_time = [row for row in rows if watermark is None or row.time >= watermark]
        latest = max([*(row.time for row in rows), *([] if latest is None else [latest])], default=None)
        if latest is None:
            continue
        last = number == len(epochs)
        watermark = 1000 if last else max(latest - delay, -100 if watermark is None else watermark)
        now = drops[number % len(drops)]
        pipeline.epoch(on_time, watermark, now)
        oracle.epoch(on_time, watermark, now)
        wanted = oracle.delivered(text_of)
        if not pipeline.keys:
            wanted = _without_key(oracle, wanted)
        assert {place: list(map(_zero, rows)) for place, rows in pipeline.answers.items()} == {
            place: list(map(_zero, rows)) for place, rows in wanted.items()
        }
        if restarts:
            pipeline.restart()


def _zero(row: str) -> str:
    """Rows that differ in the sign of a zero only are in any order."""
    return row.replace("-0.0", "0.0")


def _without_key(oracle: Counting, answers: Answers) -> Answers:
    """All rows of a window, whatever their key."""
    (count,) = oracle.counts.values() or [None]
    if count is None:
        return {}
    found: Answers = {}
    for spec, _, j in answers:
        window = oracle.windows[spec]
        rows = count.rows[j * window.slide : j * window.slide + window.size]
        found[spec, None, j] = [text_of(row) for row in rows]
    return found


@given(count_windows(9), epochs_strategy, st.integers(0, 15), st.sampled_from(["per key", "over all", "no key"]))
def test_windows_leave_once_when_they_are_full(
    windows: Panes, epochs: list[tuple[list[Row], bool]], delay: int, way: str
) -> None:
    per_key = way == "per key"
    pipeline = Pipeline(windows, per_key, keyed=way != "no key")
    play(pipeline, Counting(windows.windows, per_key, KEY_BUCKETS), epochs, delay)
    assert set(pipeline.metrics) <= {ROWS_NUMBERED}


@given(count_windows(5), seeds, st.integers(0, 15), st.sampled_from(["per key", "over all", "no key"]), loads)
def test_dropped_windows_do_not_leave_and_the_others_are_exact(
    windows: Panes, seed: int, delay: int, way: str, drops: tuple[Drop, Drop | None, Drop]
) -> None:
    per_key = way == "per key"
    pipeline = Pipeline(windows, per_key, keyed=way != "no key")
    oracle = Counting(windows.windows, per_key, KEY_BUCKETS)
    play(pipeline, oracle, many_rows(seed), delay, drops)
    assert len(pipeline.emitted) == sum(len(count.rows) for count in oracle.counts.values()) - oracle.dropped_rows
    for count in oracle.counts.values():
        for spec in range(len(windows.windows)):
            gaps = [len(list(g)) for kept, g in groupby(oracle.windows_begun(count, spec)) if not kept]
            assert max(gaps, default=0) <= max(drop.bound or 0 for drop in drops if drop is not None)
    listed = Counter(
        (each["window_spec"], each["key"], each["first_row"] + i * window.slide)
        for window in windows.windows
        for each in pipeline.dropped
        if each["window_spec"] == window.label
        for i in range(each["windows"])
    )
    assert listed == Counter(
        (window.label, json.dumps({"key": key}) if per_key else None, i * window.slide)
        for key, count in oracle.counts.items()
        for spec, window in enumerate(windows.windows)
        for i, kept in enumerate(oracle.windows_begun(count, spec))
        if not kept
    )
    assert sum(listed.values()) == pipeline.metrics[WINDOWS_SHED]


def test_metrics_of_a_drop() -> None:
    #   rows      0   1   2   3   4   5   6   7   8   9
    #   unit 0    x---x                                     windows of 2, p = 1, B = 2: two dropped, one kept
    #   unit 1            x---x
    #   unit 2                    ----
    #   unit 3, 4                         x---x   x---x
    pipeline = Pipeline(Panes((Window.of_rows(2),)), per_key=False, keyed=False)
    pipeline.epoch([Row(t, None, None, t) for t in range(10)], 100, Drop(1.0, 2, 5))
    assert pipeline.metrics == {ROWS_NUMBERED: 10, SHED: 8, WINDOWS_SHED: 4, WINDOWS_KEPT: 1}
    assert list(pipeline.answers) == [(0, None, 2)]
    assert [(each["first_row"], each["last_row"], each["windows"]) for each in pipeline.dropped] == [
        (0, 2, 2),
        (6, 8, 2),
    ]


def test_without_a_bound_all_windows_are_dropped_and_then_none() -> None:
    pipeline = Pipeline(Panes((Window.of_rows(3, 2),)), per_key=True)
    rows = [Row(t, "a", None, t) for t in range(20)]
    pipeline.epoch(rows[:10], 10, Drop(1.0, None, 5))  # windows 0..4, of the rows 0..10
    pipeline.epoch(rows[10:], 100)
    assert [j for _, _, j in pipeline.answers] == [5, 6, 7, 8]
    assert pipeline.metrics == {ROWS_NUMBERED: 20, SHED: 10, WINDOWS_SHED: 5, WINDOWS_KEPT: 0}


def test_overlapping_windows_that_are_kept_do_not_let_dropped_ones_out() -> None:
    """Windows of 4 rows, every row one: with B = 1 every second window is dropped, and but for the first no row."""
    pipeline = Pipeline(Panes((Window.of_rows(4, 1),)), per_key=True)
    for t in range(30):
        pipeline.epoch([Row(t, "a", None, t)], t, Drop(1.0, 1, 3))
    kept = [j for _, _, j in pipeline.answers]
    assert all(b - a == 2 for a, b in pairwise(kept)) and len(kept) == 13
    assert pipeline.metrics[SHED] == 1  # the first row, which window 0 alone has


def test_the_state_holds_what_open_windows_need() -> None:
    pipeline = Pipeline(Panes((Window.of_rows(7, 3),)), per_key=True)
    sizes = []
    for t in range(400):
        pipeline.epoch([Row(t, key, None, t) for key in ("a", "b", None)], t - 5)
        sizes.append(
            sum(item.num_rows for state in pipeline.states for _, item in state.items() if hasattr(item, "num_rows"))
        )
    # Six rows of three keys wait, seven panes of each are open; as much again may not be cleared away yet.
    assert max(sizes) == max(sizes[:100]) < 2 * 3 * (6 + 7) + 40
    assert len(pipeline.answers) == 3 * len(range(0, 395 - 7 + 1, 3))


def test_keys_of_any_type_can_be_read_in_the_report() -> None:
    # Spark knows days before the year 1, and strings that are not UTF-8: Python does not.
    odd_text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff\xc3", "ü".encode()], pa.binary()).buffers())
    keys = {
        "day": pa.array([-800_000, None], pa.int32()).cast(pa.date32()),
        "text": odd_text,
        "share": pa.array([math.nan, 0.5]),
        "bytes": pa.array([b"\x00\xff", None], pa.binary()),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "ok": pa.array([True, None]),
    }
    names = tuple(keys)
    operator = PositionsOperator(Numbering(names, "at", (), (Window.of_rows(1),), names))
    operator.open(MemoryState())
    operator.decisions = {SHED: {"p": 1.0, "bound": None, "seed": 1}}
    operator.metrics = Counter()
    block = pa.RecordBatch.from_arrays([pa.array([1, 2]), *keys.values()], names=["at", *names])
    out = [*operator.process(block), *operator.on_watermark(5)]
    ((name, dropped),) = out
    assert name == DROPPED
    assert [json.loads(key) for key in dropped.column("key").to_pylist()] == [
        {"day": "-0221-09-04", "text": "\ufffd\ufffd", "share": "nan", "bytes": "00ff", "price": "1.50", "ok": True},
        {"day": None, "text": "ü", "share": 0.5, "bytes": None, "price": None, "ok": None},
    ]
