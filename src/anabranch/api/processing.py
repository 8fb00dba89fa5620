"""Splitting a stream, and operators over its parts.

    lanes = reports.split(64, route=expressway, broadcast=is_balance_query)     # parallel split
    answers = lanes.process(Tolls, outputs={"toll": "VID bigint, Toll int", "balance": "QID bigint, Balance bigint"})
    totals = answers.combine("balance", by="QID", sums="Balance")               # aggregation tree

These run in the epoch runtime only (`start`): a fixed Spark plan cannot keep an operator's state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from anabranch.api.reprs import processed_repr
from anabranch.api.startable import Startable
from anabranch.api.stream import Stream
from anabranch.calls import called_as
from anabranch.errors import ColumnTypeError, InvalidArgumentError, StreamingError
from anabranch.keys.hashing import unhashable
from anabranch.keys.policy import KeyPartition
from anabranch.names import EVENT
from anabranch.operators.protocol import Operator, OperatorFactory
from anabranch.plan.tree import fan_in_of
from anabranch.query.describe import explain_operator, explain_routing
from anabranch.query.nodes import ONLY, CombineNode, Input, Node, ProcessNode, Routing
from anabranch.query.origins import Branch, Output
from anabranch.query.refusal import Refusal
from anabranch.query.windowed import analysed
from anabranch.spark.column_names import column_name
from anabranch.spark.columns import TimeColumn, TimeKind, check_unit
from anabranch.spark.quirks import parse_schema
from anabranch.split.routes import BroadcastFunction, RouteFunction
from anabranch.windows import Duration, micros
from anabranch.windows.ids import Stretch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Split:
    """A stream split into substreams, or partition-groups."""

    streams: tuple[Stream, ...]
    routing: Routing

    @called_as('.process(MyOperator, "cell string, n bigint")')
    def process(
        self,
        operator: OperatorFactory,
        schema: str | StructType | None = None,
        *,
        outputs: Mapping[str, str | StructType] | None = None,
    ) -> Processed:
        """Run one instance of the operator over each substream.

        `operator` is the class, or a function without arguments that creates an instance. `schema` has the columns that
        it emits (``"cell string, n bigint"``); for several outputs, give each: ``outputs={"toll": "...", ...}``.
        """
        if not callable(operator) or isinstance(operator, Operator):
            raise InvalidArgumentError(
                f"{operator!r} does not create operators: every substream needs its own instance",
                hint="pass the class itself, or lambda: MyOperator(setting)",
            )
        if (schema is None) == (outputs is None):
            raise InvalidArgumentError(
                "an operator needs the columns that it emits: either a schema or several outputs",
                hint='write schema="cell string, n bigint", or outputs={"toll": "...", "alert": "..."}',
            )
        named = {ONLY: schema} if outputs is None else dict(outputs)
        schemas = {name: _schema(name, text) for name, text in named.items()}
        node = ProcessNode(self._inputs(), self.routing, operator, schemas)
        return Processed(node, self.streams[0].source.sparkSession)

    def explain(self) -> str:
        """How the stream will be split; `EpochQuery.explain()` also has the measured costs."""
        return "\n".join(explain_routing(self.routing, self._inputs()))

    def _inputs(self) -> tuple[Input, ...]:
        return tuple(
            Input(branch, stream.time, port) for port, stream in enumerate(self.streams) for branch in stream.branches
        )


@dataclass(frozen=True)
class Processed(Startable):
    """The outputs of an operator."""

    node: ProcessNode | CombineNode
    session: SparkSession

    def __repr__(self) -> str:
        return processed_repr(self)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.node.outputs

    @called_as('.output("tolls")')
    def output(self, name: str | None = None) -> Emission:
        """One of the outputs; the name can be left out if there is only one."""
        if name is None and len(self.outputs) == 1:
            name = self.outputs[0]
        if name not in self.outputs:
            raise InvalidArgumentError(
                f"there is no output {name!r}", hint=f"the outputs are {', '.join(self.outputs)}"
            )
        return Emission(self, name)

    @called_as('.as_stream(time="at")')
    def as_stream(
        self, *, time: str, watermark: Duration = "0 s", time_unit: Literal["s", "us"] | None = None
    ) -> Stream:
        """The only output as a stream, for further operators; see `Emission.as_stream` for `watermark`."""
        return self.output().as_stream(time=time, watermark=watermark, time_unit=time_unit)

    @called_as('.combine(by="query", sums="part")')
    def combine(
        self,
        output: str | None = None,
        *,
        by: str | Sequence[str],
        sums: str | Sequence[str],
        maxima: str | Sequence[str] = (),
        fan_in: int | None = None,
    ) -> Processed:
        """Sum the partial answers of all substreams, per query (`by`), on an aggregation tree.

        For the columns `maxima` the largest value is taken: for example, the latest of several times.
        """
        source = self.output(output)
        columns = source.schema.names
        keys, totals, largest = (
            tuple(column_name(self.session, columns, name) for name in _names(what, names))
            for what, names in (("by", by), ("sums", sums), ("maxima", maxima))
        )
        if not keys or not (totals or largest):
            raise InvalidArgumentError(
                "combine() needs by=, and at least one column in sums= or maxima=",
                hint='write, for example, .combine(by="query", sums="part")',
            )
        twice = sorted({name for name in (*keys, *totals, *largest) if (*keys, *totals, *largest).count(name) > 1})
        if twice:
            raise InvalidArgumentError(
                f"combine() names the column {twice[0]!r} twice", hint="name it in only one of by, sums and maxima"
            )
        # Combining needs no time; any column will do.
        branch = Branch(Output(self.node, source.name, TimeColumn(keys[0], TimeKind.LONG)))
        schema = StructType([field for field in source.schema if field.name in {*keys, *totals, *largest}])
        level = fan_in if fan_in is not None else fan_in_of(getattr(self.node, "groups", 1))
        node = CombineNode((Input(branch, TimeColumn(keys[0], TimeKind.LONG)),), keys, totals, largest, level, schema)
        return Processed(node, self.session)

    def explain(self) -> str:
        """The operator, and how its input will be split; `EpochQuery.explain()` also has the measured costs."""
        node = self.node
        lines = explain_operator(node)
        if node.routes is not None:
            lines += explain_routing(node.routes, node.inputs)
        return "\n".join(lines)

    def _emissions(self) -> tuple[tuple[Node, str], ...]:
        return tuple((self.node, name) for name in self.outputs)


@dataclass(frozen=True)
class Emission(Startable):
    """One output of an operator."""

    origin: Processed
    name: str

    @cached_property
    def schema(self) -> StructType:
        node = self.origin.node
        return node.schemas[self.name]

    @called_as('.as_stream(time="at")')
    def as_stream(
        self, *, time: str, watermark: Duration = "0 s", time_unit: Literal["s", "us"] | None = None
    ) -> Stream:
        """The output as a stream. Rows more than `watermark` behind the operator's own watermark are late.

        So `watermark` must be at least as long as the operator holds a row back: an operator that emits a session 30 s
        after its last row, with that row's time, needs "30 s".

        A time that is a bigint must count microseconds: give `time_unit="us"`, or emit timestamps.
        """
        time = column_name(self.origin.session, self.schema.names, time)
        column = TimeColumn(time, TimeKind.of(time, self.schema[time].dataType))
        check_unit(time, column.kind, time_unit)
        if column.kind is TimeKind.LONG and time_unit != "us":
            raise ColumnTypeError(
                f"the output {self.name!r} has its time {time!r} in {time_unit}, and would be read as microseconds",
                hint="emit a timestamp, or microseconds",
            )
        branch = Branch(Output(self.origin.node, self.name, column, micros(watermark, "watermark")))
        empty = self.origin.session.createDataFrame([], self.schema)
        return Stream(empty, column, (branch,), refusal=RUNTIME_ONLY)

    def _emissions(self) -> tuple[tuple[Node, str], ...]:
        return ((self.origin.node, self.name),)


RUNTIME_ONLY = Refusal(
    "an operator keeps state from epoch to epoch, which a fixed Spark plan cannot do",
    hint="run it with start(sink, checkpoint=...) instead of to_df()",
)


def split(
    stream: Stream,
    q: int,
    *,
    route: Column | str | RouteFunction | None,
    broadcast: Column | str | BroadcastFunction | None,
    splitters: int | None,
    window_bytes: int | None,
) -> Split:
    """See `Stream.split`."""
    if not isinstance(q, int) or q < 1:
        raise InvalidArgumentError(
            f"split({q!r}): the number of substreams must be a positive whole number",
            hint="write, for example, split(8)",
        )
    if route is None and broadcast is None:
        raise InvalidArgumentError(
            "split() needs route=, broadcast=, or both: otherwise no tuple goes anywhere",
            hint='write, for example, .split(8, route="lane")',
        )
    for name, value in (("splitters", splitters), ("window_bytes", window_bytes)):
        if value is not None and value < 1:
            raise InvalidArgumentError(
                f"{name} must be above zero, not {value!r}", hint="leave it out to have it tuned while the query runs"
            )
    _check_streaming(stream)
    columns = [F.expr(each) if isinstance(each, str) else each for each in (route, broadcast)]
    for what, each in zip(("the route", "the broadcast"), columns, strict=True):
        if isinstance(each, Column):
            analysed(what, stream.source, lambda each=each: stream.source.select(each))  # type: ignore[misc]
    return Split((stream,), Routing(q, (), columns[0], columns[1], splitters, window_bytes))  # type: ignore[arg-type]


def keyed(
    stream: Stream,
    keys: Sequence[str],
    groups: int,
    partition: KeyPartition | None = None,
    stretch: Stretch | None = None,
) -> Split:
    """See `Stream.process`."""
    _check_streaming(stream)
    if not isinstance(groups, int) or groups < 1:
        raise InvalidArgumentError(
            f"groups={groups!r} is not a positive whole number", hint="give 1 or more, or leave it out"
        )
    columns = [name for name in stream.source.columns if name != EVENT]
    keys = tuple(column_name(stream.source.sparkSession, columns, key) for key in keys)
    if partition is None:
        return Split((stream,), Routing(groups, tuple(keys)) if keys else Routing(1, route=to_the_only))
    if not keys:
        raise InvalidArgumentError("partition= needs a key: there is nothing to place", hint='name the key: by="cell"')
    for key in keys:
        reason = unhashable(key, stream.source.schema[key].dataType)
        if reason is not None:
            raise ColumnTypeError(f"partition= cannot be used: {reason}", hint="cast the key, or leave partition out")
    routing = Routing(groups, tuple(keys), splitters=partition.splitters, partition=partition, stretch=stretch)
    return Split((stream,), routing)


def to_the_only(block: pa.RecordBatch, q: int) -> NDArray[np.int64]:
    """The route of an operator without a key: everything goes to its only instance."""
    return np.zeros(block.num_rows, np.int64)


def _check_streaming(stream: Stream) -> None:
    if not stream.branches:
        raise StreamingError(
            "operators run over streams only, and this is a bounded DataFrame",
            hint="read it as a stream: spark.readStream..., or anabranch.replay(spark, path, time=...)",
        )


def _names(what: str, names: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(names, str | Sequence):
        raise InvalidArgumentError(f"{what}={names!r} is not the name of a column", hint="give one name or several")
    return (names,) if isinstance(names, str) else tuple(names)


def _schema(name: str, text: Any) -> StructType:
    try:
        schema = text if isinstance(text, StructType) else parse_schema(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"the schema of output {name!r}, {text!r}, is not a Spark schema",
            hint='write, for example, "cell string, n bigint"',
        ) from error
    if not isinstance(schema, StructType) or not schema.names:
        raise InvalidArgumentError(
            f"the schema of output {name!r} has no columns", hint='write "cell string, n bigint"'
        )
    return schema
