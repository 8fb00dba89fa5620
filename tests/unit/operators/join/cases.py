"""Random streams for joins, cut into epochs, and a run of the operator over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from anabranch.operators.join import JoinOperator, JoinSettings
from anabranch.operators.state import MemoryState, State
from tests.oracles.joins import Row

KEYS: dict[str, tuple[list[pa.DataType], st.SearchStrategy[Any]]] = {
    "int": ([pa.int64()], st.tuples(st.none() | st.integers(0, 9))),
    "date": ([pa.date32()], st.tuples(st.none() | st.dates().map(lambda d: d.replace(2000, 1, d.day % 5 + 1)))),
    "string": ([pa.string()], st.tuples(st.sampled_from([None, "", "a", "b", "ab", "ä"]))),
    "double": ([pa.float64()], st.tuples(st.sampled_from([None, 0.0, -0.0, float("nan"), 1.5, -float("inf")]))),
    "two": (
        [pa.string(), pa.float32()],
        st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([None, 0.0, -0.0, float("nan")])),
    ),
}
NAMES = ("k", "l")

Epoch = tuple[list[list[Row]], int]
"""The rows of each stream, sorted by time, and the watermark after them."""


@dataclass(frozen=True)
class Case:
    """Streams of an example: payloads are numbers that differ from row to row."""

    kind: str
    within: tuple[int, ...]
    epochs: list[Epoch]

    def stream(self, port: int) -> list[Row]:
        return [row for rows, _ in self.epochs for row in rows[port]]

    def streams(self) -> list[list[Row]]:
        return [self.stream(port) for port in range(len(self.within))]


@st.composite
def cases(draw: st.DrawFn, streams: int = 2, kinds: Sequence[str] = tuple(KEYS), most: int = 8) -> Case:
    """Each epoch's rows lie after the watermark, in any order across epochs and streams."""
    kind = draw(st.sampled_from(kinds))
    within = tuple(draw(st.lists(st.integers(0, 12), min_size=streams, max_size=streams)))
    watermark, number, epochs = draw(st.integers(-30, 5)), 0, []
    for _ in range(draw(st.integers(1, 8))):
        parts: list[list[Row]] = []
        for _ in range(streams):
            rows = draw(st.lists(st.tuples(KEYS[kind][1], st.integers(0, 10)), max_size=most))
            rows.sort(key=lambda row: row[1])
            parts.append([(key, watermark + t, number + i) for i, (key, t) in enumerate(rows)])
            number += len(rows)
        watermark += draw(st.integers(0, 9))
        epochs.append((parts, watermark))
    return Case(kind, within, epochs)


def settings_of(case: Case, **changes: Any) -> JoinSettings:
    types = KEYS[case.kind][0]
    keys = list(zip(NAMES, types, strict=False))
    schema = pa.schema([*keys, ("t", pa.timestamp("us")), ("n", pa.int64())])
    names = "abc"[: len(case.within)]
    return replace(
        JoinSettings(
            within=case.within,
            keys=tuple(name for name, _ in keys),
            times=("t",) * len(names),
            inputs=(schema,) * len(names),
            columns=tuple((("n", name), ("t", f"{name}_t")) for name in names),
            schema=pa.schema(
                [*keys, *(field for n in names for field in ((n, pa.int64()), (f"{n}_t", pa.timestamp("us"))))]
            ),
            theta=2,
            block=2,
        ),
        **changes,
    )


def block_of(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([key[i] for key, _, _ in rows], kind) for i, kind in enumerate(schema.types[:-2])]
    columns.append(pa.array([t for _, t, _ in rows], pa.int64()).cast(pa.timestamp("us")))
    return pa.RecordBatch.from_arrays([*columns, pa.array([n for _, _, n in rows], pa.int64())], schema=schema)


def opened(settings: JoinSettings, state: State | None = None) -> JoinOperator:
    operator = JoinOperator(settings)
    operator.metrics = Counter()
    operator.open(MemoryState() if state is None else state)
    return operator


def epoch_output(operator: JoinOperator, settings: JoinSettings, epoch: Epoch) -> Iterator[pa.RecordBatch]:
    """What one epoch yields. A stream without rows is not there, or has an empty block: both must do."""
    for port, rows in enumerate(epoch[0]):
        if rows or epoch[1] % 2:
            yield from operator.process(block_of(rows, settings.inputs[port]), port)
    yield from operator.on_watermark(epoch[1])


def run(operator: JoinOperator, settings: JoinSettings, epochs: Sequence[Epoch]) -> list[dict[str, Any]]:
    """All output, row by row."""
    return [
        row for epoch in epochs for batch in epoch_output(operator, settings, epoch) for row in batch.to_pylist()
    ]  # fmt: skip


def payloads(rows: Sequence[dict[str, Any]], streams: int = 2) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in "abc"[:streams]) for row in rows]


def ended(case: Case) -> list[Epoch]:
    """The epochs, and one more in which all windows pass."""
    return [*case.epochs, ([[] for _ in case.within], 10_000)]
