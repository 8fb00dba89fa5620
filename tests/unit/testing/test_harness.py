"""The harness calls an operator as the runtime does, and shows whether its state survives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import anabranch as ab
from anabranch.errors import InvalidArgumentError, OperatorError
from anabranch.testing import MemoryState, OperatorHarness, assert_survives_restarts
from anabranch.types import Emitted, State

ANSWER = pa.schema([("key", pa.int64()), ("n", pa.int64())])


class Count(ab.Operator):
    """Counts the rows of each key, and says how many there were at each watermark."""

    def open(self, state: State) -> None:
        self.state = state
        self.counts = state.array("counts", np.int64, 10)

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterator[Emitted]:
        for key in block.column("key").to_pylist():
            self.counts[key] += 1
            self.metrics["rows"] += 1
        yield from ()

    def on_watermark(self, t: int) -> Iterator[Emitted]:
        keys = np.flatnonzero(self.counts)
        yield pa.RecordBatch.from_pydict({"key": keys, "n": self.counts[keys]}, ANSWER)
        self.counts[:] = 0


class Forgetful(Count):
    """Keeps its counts beside the state."""

    def open(self, state: State) -> None:
        self.counts = np.zeros(10, np.int64)


class Lists(Count):
    """Returns lists, and nothing at all."""

    def process(self, block: pa.RecordBatch, port: int = 0) -> Iterable[Emitted]:
        list(super().process(block, port))
        return None  # type: ignore[return-value]

    def on_watermark(self, t: int) -> list[Emitted]:
        return list(super().on_watermark(t))


class Wrong(Count):
    """Rebuilds its state wrongly: `absorb` forgets the last row."""

    def absorb(self, block: pa.RecordBatch, port: int = 0) -> None:
        list(self.process(block.slice(0, block.num_rows - 1), port))


def rows(*keys: int) -> list[dict[str, int]]:
    return [{"key": key} for key in keys]


EPOCHS: list[tuple[Any, Any]] = [(rows(1, 2), None), (rows(1), 10), ([], 20), (rows(3, 3), None), (rows(), 30)]


@pytest.mark.parametrize("operator", [Count, Lists])
def test_rows_and_watermarks(operator: type[Count]) -> None:
    harness = OperatorHarness(operator)
    assert harness.process(rows(1, 2, 1)).rows() == []
    assert harness.watermark(10).rows() == [{"key": 1, "n": 2}, {"key": 2, "n": 1}]
    assert harness.watermark(10).rows() == []
    assert harness.metrics["rows"] == 3
    assert harness.state.names() == ["counts"]


def test_without_rows_process_is_not_called() -> None:
    class Never(ab.Operator):
        def process(self, block: pa.RecordBatch, port: int = 0) -> Iterable[Emitted]:
            raise AssertionError

    harness = OperatorHarness(Never, inputs=ANSWER)
    assert harness.process([]).rows() == []
    assert harness.process(ANSWER.empty_table()).rows() == []
    assert harness.watermark(1).rows() == []


def test_rows_have_the_declared_types_by_port() -> None:
    blocks_of: list[tuple[int, pa.Schema]] = []

    class Sees(ab.Operator):
        def process(self, block: pa.RecordBatch, port: int = 0) -> Iterable[Emitted]:
            blocks_of.append((port, block.schema))
            return []

    other = pa.schema([("t", pa.timestamp("us", tz="UTC"))])
    harness = OperatorHarness(Sees, inputs=[ANSWER, other])
    harness.process(iter([(1, 2)]))
    harness.process([{"t": datetime(2024, 1, 1)}], port=1)
    assert blocks_of == [(0, ANSWER), (1, other)]


def test_a_group_and_a_function_that_makes_instances() -> None:
    class Group(ab.Operator):
        def __init__(self, setting: int) -> None:
            self.setting = setting

        def on_watermark(self, t: int) -> Iterable[Emitted]:
            return [pa.RecordBatch.from_pydict({"group": [self.group], "setting": [self.setting], "t": [t]})]

    harness = OperatorHarness(lambda: Group(5), group=3)
    at = datetime(1970, 1, 1, 0, 0, 1)
    assert harness.watermark(at).rows() == [{"group": 3, "setting": 5, "t": 1_000_000}]
    assert harness.restored().watermark(at.replace(tzinfo=UTC)).rows()[0]["group"] == 3


def test_the_watermark_does_not_go_back() -> None:
    harness = OperatorHarness(Count)
    harness.watermark(10)
    with pytest.raises(InvalidArgumentError, match="never goes back"):
        harness.restored().watermark(9)


def test_a_snapshot_does_not_change() -> None:
    harness = OperatorHarness(Count)
    harness.process(rows(1))
    before = harness.snapshot()
    harness.process(rows(1))
    assert before.array("counts", np.int64)[1] == 1
    assert harness.state.array("counts", np.int64)[1] == 2
    assert OperatorHarness(Count, state=before).watermark(1).rows() == [{"key": 1, "n": 1}]


def test_a_restored_instance_goes_on_and_leaves_the_first_alone() -> None:
    harness = OperatorHarness(Count)
    harness.process(rows(1, 1))
    for other in (harness.restored(), harness.rebuilt([(rows(1, 1), None)])):
        assert other.operator is not harness.operator
        assert other.watermark(5).rows() == [{"key": 1, "n": 2}]
    assert harness.watermark(5).rows() == [{"key": 1, "n": 2}]


def test_several_outputs() -> None:
    class Two(ab.Operator):
        def process(self, block: pa.RecordBatch, port: int = 0) -> Iterable[Emitted]:
            yield "odd", block.filter(pa.array([key % 2 == 1 for key in block.column("key").to_pylist()]))
            yield "all", block

    schema = pa.schema([("key", pa.int64())])
    found = OperatorHarness(Two, outputs={"odd": schema, "all": schema, "none": schema}).process(rows(2, 3))
    assert (found.rows("odd"), found.rows("all"), found.rows("none")) == (rows(3), rows(2, 3), [])
    with pytest.raises(OperatorError, match="'all', an output that is not declared"):
        OperatorHarness(Two, outputs={"odd": schema}).process(rows(2, 3))


def test_rows_that_do_not_fit_are_refused_as_at_run_time() -> None:
    harness = OperatorHarness(Count, schema=pa.schema([("key", pa.int64()), ("m", pa.int64())]))
    harness.process(rows(1))
    with pytest.raises(OperatorError, match="key, n"):
        harness.watermark(1)
    narrow = OperatorHarness(Count, schema=pa.schema([("key", pa.int64()), ("n", pa.int8())]))
    narrow.process(rows(*[1] * 200))
    with pytest.raises(OperatorError, match="does not match its declared columns"):
        narrow.watermark(1)
    harness = OperatorHarness(Count, outputs={"a": ANSWER, "b": ANSWER})
    with pytest.raises(OperatorError, match="without saying which"):
        harness.watermark(1)


def test_an_error_says_where_it_happened_and_keeps_its_cause() -> None:
    harness = OperatorHarness(Count, group=4)
    with pytest.raises(OperatorError, match="Count failed in group 4: IndexError") as error:
        harness.process(rows(11))
    assert isinstance(error.value.__cause__, IndexError)


def test_what_is_no_operator_is_refused() -> None:
    with pytest.raises(OperatorError, match="dict"):
        OperatorHarness(dict)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="instance"):
        OperatorHarness(Count())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="both"):
        OperatorHarness(Count, schema=ANSWER, outputs={"a": ANSWER})


@pytest.mark.parametrize("operator", [Count, Lists])
def test_an_operator_that_keeps_everything_survives_restarts(operator: type[Count]) -> None:
    assert_survives_restarts(operator, EPOCHS, inputs=pa.schema([("key", pa.int64())]))


@pytest.mark.parametrize(("operator", "how"), [(Forgetful, "opened on the stored"), (Wrong, "rebuilt from the epochs")])
def test_an_operator_that_loses_something_does_not(operator: type[Count], how: str) -> None:
    with pytest.raises(AssertionError, match=f"epoch 1: an instance {how}.*\n.*n=|key=.*") as error:
        assert_survives_restarts(operator, EPOCHS)
    assert "keep what must survive in the State" in str(error.value)


def test_the_state_of_a_harness_can_be_prepared() -> None:
    state = MemoryState()
    state.array("counts", np.int64, 10)[7] = 3
    assert OperatorHarness(Count, state=state).watermark(0).rows() == [{"key": 7, "n": 3}]
