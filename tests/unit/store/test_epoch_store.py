"""The epoch store: blocks and snapshots come back as they were, or not at all."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from anabranch.errors import CheckpointError, StateError
from anabranch.io.folder import Folder
from anabranch.operators.state import MemoryState, State
from anabranch.store.epoch_store import EpochStore
from anabranch.store.live.state import LiveState


@pytest.fixture
def store(folder: Folder) -> EpochStore:
    store = EpochStore(folder, "q", "sum")
    store.create()
    return store


def batch(*values: int, name: str = "x") -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values, pa.int64())})


def tables() -> dict[str, pa.Table]:
    """Tables of all sorts."""
    return {
        "empty": pa.table({"x": pa.array([], pa.int64()), "s": pa.array([], pa.string())}),
        "no_columns": pa.table({}),
        "strings": pa.table({"s": ["a", None, "ö" * 1000], "b": [b"", b"\0", None]}),
        "nested": pa.table({"l": [[1, 2], None, []], "m": [{"a": 1, "b": [{"c": "x"}]}, None, {"a": None, "b": None}]}),
        "dictionary": pa.table({"d": pa.array(["x", "y", None, "x"]).dictionary_encode()}),
        "dictionaries": pa.table(
            {"d": pa.chunked_array([pa.array(["x", "y"]).dictionary_encode(), pa.array(["z"]).dictionary_encode()])}
        ),
        "nulls": pa.table({"n": pa.nulls(3), "i": pa.array([None, None, None], pa.int32())}),
        "times": pa.table(
            {"t": pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("us", "UTC")), "d": pa.array([1.5], pa.float32())}
        ),
        "sliced": pa.table({"x": list(range(100)), "b": [True, False] * 50}).slice(33, 10),
        "metadata": pa.table({"x": [1]}).replace_schema_metadata({"k": "v"}),
    }


DTYPES = [
    "?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", ">i4", "M8[us]", "m8[s]", "S3",
    "U2", [("a", "i1"), ("b", "f8")], [("a", "i2", (3,)), ("b", [("c", "M8[us]")])],
]  # fmt: skip


def full(state: State) -> State:
    """A state with all sorts of things."""
    for name, table in tables().items():
        state.put(f"table.{name}", table)
    for at, dtype in enumerate(DTYPES):
        array = state.array(f"array-{at:02d}", dtype, 7)
        array.view(np.uint8)[:] = 0 if array.dtype.kind in "?U" else np.arange(array.nbytes) % 50
        state.array(f"none-{at:02d}", dtype)
    aligned = state.array("aligned", np.dtype([("a", "i1"), ("b", "f8")], align=True), 3)
    aligned["a"], aligned["b"] = 1, 2.5  # and not the bytes between them, which nobody keeps
    return state


def assert_same(left: State, right: State) -> None:
    assert left.names() == right.names()
    for (name, one), (_, other) in zip(left.items(), right.items(), strict=True):
        if isinstance(one, pa.Table):
            assert isinstance(other, pa.Table) and one.schema.equals(other.schema, check_metadata=True), name
            assert one.to_pylist() == other.to_pylist() and len(one) == len(other), name
        else:
            assert isinstance(other, np.ndarray) and one.dtype == other.dtype, name
            assert one.tobytes() == other.tobytes(), name


# ---- blocks


def test_blocks_by_group(store: EpochStore) -> None:
    other = batch(9, name="y").replace_schema_metadata({"k": "v"})
    several = [(0, batch(1, 2)), (1, other), (1, batch(9, name="y")), (0, batch(3)), (0, batch())]
    blocks: dict[int, list[tuple[int, pa.RecordBatch]]] = {7: several, 3: [(0, other)], 5: []}
    size = store.write_blocks(12, 4, blocks)
    assert store.folder.sub("sum", "blocks").files() == ["000000000012-0004"] and size == store.nbytes
    for each in (store, cloudpickle.loads(cloudpickle.dumps(store))):
        for group, expected in blocks.items():
            read = each.read_blocks(12, 4, group)
            assert [port for port, _ in read] == [port for port, _ in expected]
            for (_, one), (_, wanted) in zip(read, expected, strict=True):
                assert one.equals(wanted) and one.schema.equals(wanted.schema, check_metadata=True)
        assert each.read_blocks(12, 4, 99) == []


def test_no_blocks(store: EpochStore) -> None:
    store.write_blocks(0, 0, {})
    assert store.read_blocks(0, 0, 0) == []


def test_keys_of_numpy(store: EpochStore) -> None:
    store.write_blocks(0, 0, {np.int64(3): [(np.int32(1), batch(1))]})
    assert store.read_blocks(0, 0, 3) == [(1, batch(1))]


def test_blocks_of_all_sorts(store: EpochStore) -> None:
    for at, (name, table) in enumerate(tables().items()):
        blocks = table.to_batches()
        store.write_blocks(at, 0, {0: [(0, block) for block in blocks]})
        read = [block for _, block in store.read_blocks(at, 0, 0)]
        assert [block.to_pylist() for block in read] == [block.to_pylist() for block in blocks], name
        assert all(block.schema.equals(table.schema, check_metadata=True) for block in read), name


def test_a_second_run_of_an_epoch_writes_the_same_bytes(store: EpochStore) -> None:
    path = f"{store.folder}/sum/blocks/000000000001-0000"
    contents = []
    for order in ((1, 2), (2, 1)):
        store.write_blocks(1, 0, {group: [(0, batch(group))] for group in order})
        with store.folder.filesystem.open_input_stream(path) as file:
            contents.append(file.read())
    assert contents[0] == contents[1]


def test_missing_blocks(store: EpochStore) -> None:
    with pytest.raises(StateError, match="000000000001-0000 is missing"):
        store.read_blocks(1, 0, 0)


def test_blocks_of_another_query(store: EpochStore) -> None:
    store.write_blocks(0, 0, {})
    with pytest.raises(CheckpointError, match="another query"):
        EpochStore(store.folder, "other", "sum").read_blocks(0, 0, 0)


BLOCK = st.tuples(st.integers(0, 2), st.sampled_from("xy"), st.lists(st.integers(0, 9), max_size=4))


@given(st.dictionaries(st.integers(0, 9), st.lists(BLOCK, max_size=4), max_size=4))
@settings(max_examples=50)
def test_any_blocks(
    tmp_path_factory: pytest.TempPathFactory, drawn: dict[int, list[tuple[int, str, list[int]]]]
) -> None:
    store = EpochStore(Folder.at(tmp_path_factory.getbasetemp() / "store"), "q", "n")
    store.create()
    blocks = {g: [(port, batch(*values, name=name)) for port, name, values in of] for g, of in drawn.items()}
    store.write_blocks(0, 0, blocks)
    for group in range(10):
        assert store.read_blocks(0, 0, group) == blocks.get(group, [])


def test_only_the_damaged_group_is_refused(tmp_path: Path) -> None:
    store = EpochStore(Folder.at(tmp_path), "q", "sum")
    store.create()
    store.write_blocks(0, 0, {1: [(0, batch(1))], 2: [(0, batch(2))]})
    path = tmp_path / "sum" / "blocks" / "000000000000-0000"
    whole = path.read_bytes()
    spoilt = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        for group in (1, 2):
            try:
                assert store.read_blocks(0, 0, group) == [(0, batch(group))]
            except StateError:
                spoilt += 1
    path.write_bytes(whole)
    payload = store.folder.sub("sum", "blocks").read(path.name, "blocks")[1].size
    # a byte of the payload spoils one group, and a byte before it both
    assert spoilt == payload + 2 * (len(whole) - payload)


# ---- snapshots


@pytest.mark.parametrize("live", [False, True], ids=["memory", "live"])
def test_snapshot_and_restore(store: EpochStore, tmp_path: Path, live: bool) -> None:
    state = full(LiveState(tmp_path / "one") if live else MemoryState())
    store.write_snapshot(3, 1, state)
    restored: State = LiveState(tmp_path / "two") if live else MemoryState()
    restored.put("old", pa.table({}))
    store.load_snapshot(1, 3, restored)
    assert_same(restored, full(MemoryState()))
    restored.array("array-05", "i4")[:] = 1  # what was restored can be written to
    store.load_snapshot(1, 3, restored)
    assert_same(restored, state)


def test_an_empty_state(store: EpochStore) -> None:
    store.write_snapshot(3, 1, MemoryState())
    restored = full(MemoryState())
    store.load_snapshot(1, 3, restored)
    assert restored.names() == []


def test_which_snapshot(store: EpochStore) -> None:
    assert store.snapshot_before(1, 100) is None
    for epoch in (4, 8, 12):
        store.write_snapshot(epoch, 1, MemoryState())
    store.write_snapshot(5, 2, MemoryState())
    assert [store.snapshot_before(1, epoch) for epoch in (3, 4, 7, 8, 100)] == [None, 4, 4, 8, 12]
    with pytest.raises(StateError, match="is missing"):
        store.load_snapshot(1, 5, MemoryState())


def test_forget(store: EpochStore) -> None:
    assert store.forget(100, {1: 100}) == 0
    for epoch in range(6):
        for worker in range(2):
            store.write_blocks(epoch, worker, {})
    for group in (1, 2):
        for epoch in (1, 3, 5):
            store.write_snapshot(epoch, group, MemoryState())
    assert store.forget(2, {1: 3}, most=4) == 4
    assert store.forget(2, {1: 3}) == 3 * 2 + 1 - 4
    assert store.forget(2, {1: 3}) == 0
    assert [store.snapshot_before(group, 1) for group in (1, 2)] == [None, 1]
    assert store.snapshot_before(1, 3) == 3
    with pytest.raises(StateError):
        store.read_blocks(2, 1, 0)
    assert store.read_blocks(3, 0, 0) == []


def test_two_operators_do_not_meet(store: EpochStore) -> None:
    other = EpochStore(store.folder, "q", "max")
    other.create()
    assert other.nbytes == 0
    store.write_snapshot(0, 0, MemoryState())
    assert other.nbytes == 0 and other.snapshot_before(0, 0) is None


def test_a_store_that_vanished(tmp_path: Path) -> None:
    store = EpochStore(Folder.at(tmp_path / "there"), "q", "sum")
    store.create()
    store.folder.remove()
    with pytest.raises(StateError, match="cannot be written"):
        store.write_blocks(0, 0, {})
    with pytest.raises(StateError, match="cannot be written"):
        store.write_snapshot(0, 0, MemoryState())
    assert not (tmp_path / "there").exists()


def test_a_torn_snapshot_leaves_the_state_alone(tmp_path: Path) -> None:
    store = EpochStore(Folder.at(tmp_path), "q", "sum")
    store.create()
    state = MemoryState()
    state.array("a", "i8", 3)[:] = 1
    state.put("t", pa.table({"x": [1]}))
    store.write_snapshot(0, 0, state)
    path = tmp_path / "sum" / "snapshots" / "00000" / "000000000000"
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(StateError, match="torn or damaged"):
            store.load_snapshot(0, 0, state)
        assert state.names() == ["a", "t"]
