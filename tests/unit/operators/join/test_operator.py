"""The join operator against nested loops, whatever the layout, over crashes and rebuilds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import ColumnTypeError, InvalidArgumentError
from anabranch.operators.join import JoinSettings
from anabranch.operators.join import operator as operator_module
from anabranch.operators.join.operator import LOOK_EVERY
from anabranch.operators.join.rows import Rows
from anabranch.operators.state import MemoryState
from anabranch.store.live.state import LiveState
from tests.oracles.joins import inner, outer
from tests.unit.operators.join.cases import Case, block_of, cases, ended, opened, payloads, run, settings_of

HOWS = st.sampled_from(["inner", "left", "right", "full"])
LAYOUTS: list[dict[str, Any]] = [
    {"probe": probe, "fine_tuning": tuned, "theta": theta, "block": block}
    for probe in ("hashed", "nested")
    for tuned in (True, False)
    for theta, block in ((1, 1), (2, 2), (384, 64))
]


def result(case: Case, **changes: Any) -> list[dict[str, Any]]:
    chosen = settings_of(case, **changes)
    return run(opened(chosen), chosen, ended(case))


@given(cases(), HOWS, st.sampled_from(LAYOUTS))
@settings(max_examples=100)
def test_finds_what_nested_loops_find(case: Case, how: str, layout: dict[str, Any]) -> None:
    found = payloads(result(case, how=how, **layout))
    assert Counter(found) == Counter(outer(case.streams(), case.within, how))


@given(cases(streams=3, most=4), st.sampled_from(LAYOUTS))
@settings(max_examples=40)
def test_joins_three_streams(case: Case, layout: dict[str, Any]) -> None:
    assert Counter(payloads(result(case, **layout), 3)) == Counter(inner(case.streams(), case.within))


@given(cases(), HOWS, st.booleans())
@settings(max_examples=40)
def test_refused_pairs_are_no_matches(case: Case, how: str, arrow: bool) -> None:
    def where(batch: pa.RecordBatch) -> Any:
        total = pc.add(batch.column("a"), batch.column("b"))
        if not arrow:
            return total.to_numpy() % 3 != 0
        # null in the place of false
        return pa.array([True if n % 3 else None for n in total.to_pylist()], pa.bool_())

    found = payloads(result(case, how=how, where=where))
    assert Counter(found) == Counter(outer(case.streams(), case.within, how, lambda a, b: (a + b) % 3 != 0))


@given(cases(), HOWS)
@settings(max_examples=25)
def test_order_does_not_depend_on_the_layout(case: Case, how: str) -> None:
    expected = payloads(result(case, how=how))
    for layout in LAYOUTS:
        assert payloads(result(case, how=how, **layout)) == expected


@given(cases(streams=3, most=4))
@settings(max_examples=20)
def test_order_of_three_streams(case: Case) -> None:
    expected = payloads(result(case), 3)
    for layout in LAYOUTS:
        assert payloads(result(case, **layout), 3) == expected


@given(cases(), HOWS)
@settings(max_examples=40)
def test_to_begin_anew_changes_nothing(case: Case, how: str) -> None:
    """As a row far in the future makes the operator do; here after every watermark."""
    expected = payloads(result(case, how=how))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator_module, "LOOK_EVERY", 1)
        patch.setattr(Rows, "stuck", lambda self, before: True)
        assert payloads(result(case, how=how)) == expected


@pytest.mark.parametrize("how", ["inner", "full"])
def test_a_row_far_in_the_future_does_not_keep_the_others(how: str) -> None:
    ahead: list[Any] = [([[((1,), 10**12, 0)], []], 0)]
    steps = [
        ([[((t % 5,), 10 * t, 2 * t)], [((t % 5,), 10 * t + 1, 2 * t + 1)]], 10 * t) for t in range(1, 14 * LOOK_EVERY)
    ]
    case = Case("int", (30, 30), [*ahead, *steps])
    chosen = settings_of(case, how=how)
    state = MemoryState()
    found = payloads(run(opened(chosen, state), chosen, case.epochs))
    late = 10 * (14 * LOOK_EVERY - 1) - 30  # rows after it may still find a partner
    wanted = [pair for pair in outer(case.streams(), case.within, how) if 5 * max(x or 0 for x in pair) < late]
    assert Counter(pair for pair in found if 5 * max(x or 0 for x in pair) < late and pair != (0, None)) == Counter(
        pair for pair in wanted if pair != (0, None)
    )
    assert len(state.array("rows.0.column.1", "u8")) < 12 * LOOK_EVERY, "of 447 rows nearly all have expired"


def test_partners_come_newest_first() -> None:
    #  b   0 1 2        a at 3 finds 2, 1, 0
    early = [((7,), t, t) for t in range(3)]
    case = Case("int", (9, 9), [([[], early], 0), ([[((7,), 3, 10), ((7,), 4, 11)], []], 0)])
    assert payloads(result(case)) == [(10, 2), (10, 1), (10, 0), (11, 2), (11, 1), (11, 0)]


@pytest.mark.parametrize(("within", "partners"), [((0, 0), [5]), ((2, 0), [5, 6, 7]), ((0, 3), [2, 3, 4, 5])])
def test_both_ends_of_a_window_count(within: tuple[int, int], partners: list[int]) -> None:
    # a is at 5:  [5 - W2 ... 5 ... 5 + W1]
    case = Case("int", within, [([[((1,), 5, 100)], [((1,), t, t) for t in range(12)]], 0)])
    assert sorted(b for _, b in payloads(result(case))) == partners


def test_a_row_is_delivered_unmatched_when_its_window_has_passed() -> None:
    case = Case("int", (4, 1), [])
    chosen = settings_of(case, how="left")
    operator = opened(chosen)
    delivered = [payloads(run(operator, chosen, [epoch])) for epoch in [
        ([[((1,), 10, 1), ((None,), 12, 2)], []], 14),  # 10 + 4 is not before 14
        ([[], []], 15),
        ([[], []], 16),
        ([[], []], 17),
    ]]  # fmt: skip
    assert delivered == [[], [(1, None)], [], [(2, None)]]
    assert operator.metrics["null_keys"] == 1


@given(cases(), HOWS, st.integers(0, 8), st.sampled_from(LAYOUTS))
@settings(max_examples=50)
def test_goes_on_in_a_new_process(case: Case, how: str, crash: int, layout: dict[str, Any]) -> None:
    chosen, epochs = settings_of(case, how=how, **layout), ended(case)
    whole = run(opened(chosen), chosen, epochs)
    state = MemoryState()
    before = run(opened(chosen, state), chosen, epochs[:crash])
    copy = MemoryState()
    copy.load(state.items())
    after = run(opened(chosen, copy), chosen, epochs[crash:])
    assert payloads(before + after) == payloads(whole)


@given(cases(), HOWS, st.integers(1, 8), st.sampled_from(LAYOUTS))
@settings(max_examples=50)
def test_is_rebuilt_from_the_blocks_since_the_horizon(case: Case, how: str, crash: int, layout: dict[str, Any]) -> None:
    chosen, epochs = settings_of(case, how=how, **layout), ended(case)
    crash = min(crash, len(epochs))
    old = opened(chosen)
    run(old, chosen, epochs[:crash])
    horizon = old.horizon(epochs[crash - 1][1])
    needed = [
        i for i, (parts, _) in enumerate(epochs[:crash]) if any(t >= horizon for rows in parts for _, t, _ in rows)
    ]
    new = opened(chosen)
    for parts, watermark in epochs[min(needed, default=crash - 1) : crash]:
        for port, rows in enumerate(parts):
            if rows:
                new.absorb(block_of(rows, chosen.inputs[port]), port)
        list(new.on_watermark(watermark))
    expected = payloads(run(old, chosen, epochs[crash:]))
    assert payloads(run(new, chosen, epochs[crash:])) == expected


@given(cases(kinds=["string"]))
@settings(max_examples=5)
def test_live_state(tmp_path_factory: pytest.TempPathFactory, case: Case) -> None:
    chosen, folder = settings_of(case, how="full"), Path(tmp_path_factory.mktemp("live"))
    found = []
    for number, epoch in enumerate(ended(case)):
        state = LiveState(folder)  # each epoch in a new process, as it were
        state.begin()
        found += run(opened(chosen, state), chosen, [epoch])
        state.commit(number)
        state.close()
    assert payloads(found) == payloads(result(case, how="full"))


PAYLOADS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, None, False]),
    (pa.int16(), [1, -1, None]),
    (pa.float32(), [1.5, None, -0.25]),
    (pa.decimal128(20, 2), [None, 7, -3]),
    (pa.string(), ["", None, "äöü"]),
    (pa.large_binary(), [b"x", b"", None]),
    (pa.list_(pa.int64()), [[1, 2], None, []]),
    (pa.list_(pa.string()), [["a", None], [], ["bc"]]),
    (pa.list_(pa.float64(), 2), [[1.0, None], None, [3.0, 4.0]]),
    (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [], None]),
    (pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))]), [{"x": 1, "y": ["p"]}, None, {"x": None, "y": None}]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", None, "b"]),
    (pa.list_(pa.struct([("m", pa.map_(pa.int8(), pa.bool_()))])), [[{"m": [(1, True)]}], [None], None]),
    (pa.null(), [None, None, None]),
    (pa.timestamp("ns", "UTC"), [1, None, 3]),
    (pa.string_view(), ["short", None, "a string that is not inlined"]),
]


@pytest.mark.parametrize(("kind", "values"), PAYLOADS, ids=lambda value: str(value)[:30])
def test_columns_of_any_type(kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("k", pa.int32()), ("t", pa.int64()), ("v", kind)])
    chosen = JoinSettings(
        within=(6, 6), keys=("k",), times=("t", "t"), inputs=(schema, schema), columns=((("v", "a"),), (("v", "b"),)),
        schema=pa.schema([("k", pa.int32()), ("a", kind), ("b", kind)]), theta=1, block=2, how="left",
    )  # fmt: skip
    operator, state = None, MemoryState()
    expected, found = [], []
    for t in range(60):
        # Rows of both streams meet those of the last 6 steps; slices have offsets that must be respected.
        each = pa.array([values[(t + i) % 3] for i in range(4)], kind)[1:3]
        block = pa.RecordBatch.from_arrays([pa.array([0, 1], pa.int32()), pa.array([t, t]), each], schema=schema)
        if t % 7 == 0:
            operator = opened(chosen, state)
        assert operator is not None
        for port in (0, 1):
            for batch in operator.process(block, port):
                batch.validate(full=True)
                found += batch.to_pylist()
        assert not list(operator.on_watermark(t))
        for port in (0, 1):
            for key in (0, 1):
                mine = values[(t + 1 + key) % 3]
                past = range(t - 1 + port, max(-1, t - 7), -1)
                others = [values[(s + 1 + key) % 3] for s in past]
                expected += [(key, *((mine, other) if port == 0 else (other, mine))) for other in others]
    wanted = pa.Table.from_pylist([dict(zip("kab", row, strict=True)) for row in expected], schema=chosen.schema)
    assert found == wanted.to_pylist()
    alone = [row for batch in operator.on_watermark(1000) for row in batch.to_pylist()] if operator else []
    assert alone == []


@pytest.mark.parametrize("probe", ["hashed", "nested"])
def test_a_heavy_key_leaves_in_many_batches(probe: str) -> None:
    case = Case("int", (10, 10), [])
    chosen = settings_of(case, block=64, probe=probe)
    operator = opened(chosen)
    rows = [((1,), 0, n) for n in range(600)]
    assert not list(operator.process(block_of(rows, chosen.inputs[0]), 0))
    batches = list(operator.process(block_of(rows, chosen.inputs[1]), 1))
    assert max(batch.num_rows for batch in batches) <= 65_536
    a = np.concatenate([batch.column("a").to_numpy() for batch in batches])
    b = np.concatenate([batch.column("b").to_numpy() for batch in batches])
    assert (b == np.repeat(np.arange(600), 600)).all() and (a == np.tile(np.arange(600)[::-1], 600)).all()
    assert operator.metrics["pairs"] == 360_000


def test_one_row_with_more_partners_than_a_batch_holds() -> None:
    chosen = settings_of(Case("int", (10, 10), []), block=64, probe="nested")
    operator = opened(chosen)
    operator.absorb(block_of([((1,), 0, n) for n in range(70_000)], chosen.inputs[0]), 0)
    rows = [((2,), 0, -1), ((1,), 0, -2), ((1,), 0, -3), ((2,), 0, -4)]
    batches = list(operator.process(block_of(rows, chosen.inputs[1]), 1))
    assert [batch.num_rows for batch in batches] == [65_536, 70_000 - 65_536] * 2
    assert batches[1].column("a").to_pylist() == list(range(70_000 - 65_536))[::-1]


@pytest.mark.parametrize("how", ["inner", "full"])
def test_state_is_less_than_twice_the_rows(how: str) -> None:
    """64-byte tuples, as in the paper; over several windows, so that rows come and go."""
    names = ["k", "t", *"cdefgh"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    chosen = JoinSettings(
        within=(8_000, 8_000), keys=("k",), times=("t", "t"), inputs=(schema, schema),
        columns=tuple(tuple((name, f"{side}_{name}") for name in names[1:]) for side in "ab"),
        schema=pa.schema([("k", pa.int64()), *((f"{side}_{name}", pa.int64()) for side in "ab" for name in names[1:])]),
        theta=48, how=how,
    )  # fmt: skip
    state, random = MemoryState(), np.random.default_rng(1)
    operator = opened(chosen, state)
    for epoch in range(80):
        times = np.arange(250) + 250 * epoch
        for port in (0, 1):
            columns = [random.integers(0, 50_000, 250), *[times] * 7]
            list(operator.process(pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=schema), port))
        list(operator.on_watermark(250 * (epoch + 1)))
        live = 2 * min(250 * (epoch + 1), 8_000)
        assert epoch < 8 or state.nbytes < 2 * 64 * live
    assert operator.metrics["splits"] > 1


@pytest.mark.parametrize(("how", "streams"), [("left", 3), ("outer", 2), ("inner", 1)])
def test_refuses_what_is_no_join(how: str, streams: int) -> None:
    with pytest.raises(InvalidArgumentError, match="join"):
        settings_of(Case("int", (1,) * streams, []), how=how)


def test_refuses_a_column_that_it_cannot_keep() -> None:
    case = Case("int", (1, 1), [])
    odd = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("n", pa.dense_union([pa.field("x", pa.int8())]))])
    with pytest.raises(ColumnTypeError, match="union"):
        opened(settings_of(case, inputs=(odd, odd)))
