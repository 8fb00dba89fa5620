"""Operators without Spark: called as the runtime calls them, on a state in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from anabranch.errors import InvalidArgumentError, OperatorError
from anabranch.io.blocks import one_batch
from anabranch.io.parquet import fitted
from anabranch.operators.protocol import Emitted, Operator, OperatorFactory
from anabranch.operators.state import MemoryState
from anabranch.query.nodes import ONLY
from anabranch.runtime.tasks.groups import fold
from anabranch.testing.results import Results
from anabranch.testing.rows import Rows, Schema, assert_rows_equal, schema_of, table_of
from anabranch.text import ZERO


class OperatorHarness:
    """One instance of an operator, for one partition-group.

        harness = OperatorHarness(Sessions, schema="car bigint, first bigint, last bigint, n bigint")
        harness.process([{"t": 0, "car": 7}, {"t": 10_000_000, "car": 7}])
        assert harness.watermark(60_000_000).rows() == [{"car": 7, "first": 0, "last": 10_000_000, "n": 2}]

    Args:
        operator: the class, or a function without arguments that makes an instance, as `Stream.process` takes it.
        group: the number of the partition-group.
        inputs: the columns of the rows that `process` takes; one schema, or one per port. Without it, rows have the
            types that Arrow finds in them.
        schema: the columns that the operator emits, as in `Stream.process`. With it, rows that do not fit are refused,
            as the runtime refuses them.
        outputs: the same for an operator with several outputs.
        state: the state to open the instance on; an empty one unless given.

    Schemas are pyarrow schemas or Spark's; text like "car bigint" needs a Spark session, which parses it.
    """

    def __init__(
        self,
        operator: OperatorFactory,
        *,
        group: int = 0,
        inputs: Schema | Sequence[Schema] | None = None,
        schema: Schema | None = None,
        outputs: Mapping[str, Schema] | None = None,
        state: MemoryState | None = None,
    ) -> None:
        if schema is not None and outputs is not None:
            raise InvalidArgumentError("schema and outputs are both given", hint="give the one that process() takes")
        if isinstance(operator, Operator):
            raise InvalidArgumentError(
                f"{operator!r} is an instance, and a restart needs a new one",
                hint="give the class, or lambda: MyOperator(setting)",
            )
        self._factory = operator
        self._group = group
        self._inputs = inputs
        several = isinstance(inputs, list | tuple)
        self._ports = None if inputs is None else [schema_of(each) for each in (inputs if several else [inputs])]
        named = {ONLY: schema} if schema is not None else outputs
        self._declared = None if named is None else {name: schema_of(each) for name, each in named.items()}
        self._watermark: int | None = None
        self.state = MemoryState() if state is None else state
        """What the operator keeps."""
        made = operator()
        if not isinstance(made, Operator):
            raise OperatorError(
                f"the factory made {type(made).__name__}, which is not an Operator",
                hint="derive your class from anabranch.Operator",
            )
        made.group, made.metrics = group, Counter()
        self.operator = made
        """The instance, to set `decisions` or to look at its attributes."""
        made.open(self.state)

    @property
    def metrics(self) -> Counter[str]:
        """What the operator counted so far."""
        return self.operator.metrics

    def process(self, rows: Rows, port: int = 0) -> Results:
        """Give the operator the rows of an epoch, in the order of time. Without rows it is not called."""
        return self._fold(self._blocks(rows, port), None)

    def watermark(self, t: int | datetime) -> Results:
        """Tell the operator that no row earlier than t will come: microseconds since 1970, or a time."""
        micros = _micros(t)
        if self._watermark is not None and micros < self._watermark:
            raise InvalidArgumentError(
                f"the watermark was at {self._watermark}, and {micros} is earlier: at run time it never goes back",
                hint="give the same or a later time",
            )
        self._watermark = micros
        return self._fold([], micros)

    def snapshot(self) -> MemoryState:
        """A copy of the state, which later calls do not change."""
        copy = MemoryState()
        copy.load(self.state.items())
        return copy

    def restored(self) -> OperatorHarness:
        """A new instance on a copy of the state, as after a crash: it must go on as this one would."""
        return self._another(self.snapshot())

    def rebuilt(self, epochs: Sequence[tuple[Rows, int | datetime | None]]) -> OperatorHarness:
        """A new instance that has absorbed these epochs, (rows, watermark) each, into an empty state.

        That is how the runtime brings back what came since the last snapshot. The rows are of port 0.
        """
        new = self._another(MemoryState())
        for rows, t in epochs:
            new._watermark = new._watermark if t is None else _micros(t)
            for _ in fold(new.operator, new._blocks(rows, 0), None if t is None else _micros(t), again=True):
                pass
        return new

    def _another(self, state: MemoryState) -> OperatorHarness:
        new = OperatorHarness(self._factory, group=self._group, inputs=self._inputs, state=state)
        new._declared, new._watermark = self._declared, self._watermark
        new.operator.decisions = self.operator.decisions
        return new

    def _blocks(self, rows: Rows, port: int) -> list[tuple[int, pa.RecordBatch]]:
        kinds = self._ports
        schema = None if kinds is None else kinds[port if len(kinds) > 1 else 0]
        block = one_batch(table_of(rows, schema))
        return [(port, block)] if block.num_rows else []

    def _fold(self, blocks: Sequence[tuple[int, pa.RecordBatch]], watermark: int | None) -> Results:
        parts = list(map(self._named, fold(self.operator, blocks, watermark)))
        return Results.of(parts, () if self._declared is None else tuple(self._declared))

    def _named(self, emitted: Emitted) -> tuple[str, pa.Table]:
        declared = self._declared
        if isinstance(emitted, pa.RecordBatch):
            if declared is not None and len(declared) != 1:
                raise OperatorError(
                    f"the operator has the outputs {', '.join(declared)}, and emitted rows without saying which",
                    hint="yield pairs: (name of the output, record batch)",
                )
            name, batch = ONLY if declared is None else next(iter(declared)), emitted
        else:
            name, batch = emitted
        if declared is not None:
            if name not in declared:
                raise OperatorError(
                    f"the operator emitted rows for {name!r}, an output that is not declared",
                    hint=f"the outputs are {', '.join(declared)}",
                )
            batch = fitted(batch, declared[name]) if batch.num_rows else batch
        return name, pa.Table.from_batches([batch])


def assert_survives_restarts(
    operator: OperatorFactory,
    epochs: Sequence[tuple[Rows, int | datetime | None]],
    *,
    group: int = 0,
    inputs: Schema | None = None,
) -> None:
    """Fail unless the operator emits the same rows however often it is restarted.

    `epochs` has the rows and the watermark of each epoch; None leaves the watermark where it is. Three instances take
    every epoch: one that was never restarted, one that was just opened on a copy of its state, and one that was rebuilt
    from the epochs before. If their rows differ, the operator keeps something outside its `State`, or is not
    deterministic: after a crash it would give wrong results.
    """
    taken = [(table_of(rows, None if inputs is None else schema_of(inputs)), t) for rows, t in epochs]
    steady = OperatorHarness(operator, group=group)
    for number, epoch in enumerate(taken):
        others = {
            "opened on the stored state": steady.restored(),
            "rebuilt from the epochs before": steady.rebuilt(taken[:number]),
        }
        wanted = _epoch(steady, epoch)
        for how, other in others.items():
            came = _epoch(other, epoch)
            for name in sorted({*wanted.tables, *came.tables}):
                try:
                    assert_rows_equal(came.rows(name), wanted.rows(name))
                except AssertionError as error:
                    message = f"epoch {number}: an instance {how} emits other rows than one that was not restarted"
                    hint = "keep what must survive in the State, and let open() build the rest from it"
                    raise AssertionError(f"{message} (output {name!r}): {error}\n  hint: {hint}") from None


def _epoch(harness: OperatorHarness, epoch: tuple[Rows, int | datetime | None]) -> Results:
    rows, t = epoch
    parts = [harness.process(rows), *([] if t is None else [harness.watermark(t)])]
    return Results.of(_pairs(parts))


def _pairs(parts: Sequence[Results]) -> Iterator[tuple[str, pa.Table]]:
    return ((name, table) for part in parts for name, table in part.tables.items())


def _micros(t: int | datetime) -> int:
    if isinstance(t, datetime):
        aware = t.replace(tzinfo=UTC) if t.tzinfo is None else t
        return (aware - ZERO) // timedelta(microseconds=1)
    return t
