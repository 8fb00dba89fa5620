"""Windowed joins of streams: `Stream.join(...)`, its checks, and its result. `query.join` defines what a pair is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from anabranch.api.reprs import joined_repr
from anabranch.api.startable import Startable
from anabranch.api.stream import GROUPS, Stream
from anabranch.api.windowed import Windowed
from anabranch.calls import called_as
from anabranch.errors import ColumnTypeError, InvalidArgumentError, StreamingError
from anabranch.keys.hashing import unhashable
from anabranch.names import EVENT
from anabranch.plan import join as plan
from anabranch.query.describe import explain_operator, explain_routing
from anabranch.query.join import Join, JoinPredicate, JoinTuning
from anabranch.query.nodes import ONLY, Input, JoinNode, Node
from anabranch.query.origins import Branch, Output
from anabranch.query.refusal import Refusal
from anabranch.query.windowed import analysed
from anabranch.spark.column_names import column_name
from anabranch.spark.columns import TimeColumn, TimeKind, quoted
from anabranch.windows import Duration, describe, micros
from anabranch.windows.durations import MICROS

JOIN_TIME = "join_time"
"""the time of a result, for what follows: the later of the pair's times"""

_HOWS = {
    "inner": "inner",
    **dict.fromkeys(("left", "left_outer", "leftouter"), "left"),
    **dict.fromkeys(("right", "right_outer", "rightouter"), "right"),
    **dict.fromkeys(("full", "outer", "full_outer", "fullouter"), "full"),
}
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_MOST_DIGITS = 38


@dataclass(frozen=True)
class Joined(Startable):
    """A join of streams: ready to run, and itself a stream for windows and further joins."""

    spec: Join
    streams: tuple[Stream, ...]
    groups: int | None
    tuning: JoinTuning | None
    """None: not given"""

    @property
    def schema(self) -> StructType:
        """The columns of the result."""
        return self.spec.schema

    def to_df(self) -> DataFrame:
        """The results as a DataFrame: batch in, batch out; stream in, stream out (Spark's own stream-stream join).

        Columns: the keys, then the other columns of each stream. Rows without a time are left out, see `bad_rows`.
        """
        self._check_planned()
        for name in ("groups", "tuning"):
            if getattr(self, name) is not None:
                raise InvalidArgumentError(
                    f"{name}=... of a join has an effect in start() only: to_df() uses Spark's own join",
                    hint=f"leave {name} out, or run it with start(sink, checkpoint=...)",
                )
        return plan.build(self.spec)

    def explain(self) -> str:
        """How the join runs, and a summary of the Spark plan; for what only `start()` can run, the operator."""
        if all(stream.refusal is None for stream in self.streams):
            return plan.explain(self.spec, plan.build(self.spec))
        return "\n".join([*explain_operator(self.node), *explain_routing(self.node.routing, self.node.inputs)])

    def bad_rows(self, stream: int) -> DataFrame:
        """The rows of a stream (0 is the left one) that cannot be joined because they have no time, with the reason."""
        if not isinstance(stream, int) or not 0 <= stream < len(self.streams):
            raise InvalidArgumentError(
                f"there is no stream {stream!r} in this join", hint=f"the streams are 0 to {len(self.streams) - 1}"
            )
        return self.streams[stream].bad_rows()

    @called_as('.as_stream(), or .as_stream(time="joined_at")')
    def as_stream(self, *, time: str = JOIN_TIME) -> Stream:
        """The results as a stream, for windows and further joins.

        Their time is a new column: the later of the pair's times (for an unmatched row of an outer join, its own), in
        the type of the first stream's time.
        """
        spec = self.spec
        if time.lower() in (name.lower() for name in self.schema.names):
            raise InvalidArgumentError(
                f"the result already has a column {time!r}, which the time of the results would hide",
                hint='give that time another name: as_stream(time="...")',
            )
        column = TimeColumn(time, spec.times[0].kind)
        if not self.streams[0].branches:
            return Stream(spec.with_time(self.to_df(), time), column)
        shape = spec.with_time(spec.sources[0].sparkSession.createDataFrame([], self.schema), time)
        branch = Branch(Output(self.node, ONLY, column, self._delay()), (lambda rows: spec.with_time(rows, time),))
        return Stream(shape, column, (branch,), _NO_WATERMARK)

    @called_as('.filter("price > bid")')
    def filter(self, condition: Column | str) -> Stream:
        """Only the results for which the condition holds, as a stream."""
        return self.as_stream().filter(condition)

    @called_as('.window(size="1 h", slide="10 min")')
    def window(self, *, size: Duration, slide: Duration | None = None, origin: Duration = "0 s") -> Windowed:
        """A time window over the results."""
        return self.as_stream().window(size=size, slide=slide, origin=origin)

    @called_as('.windows(("5 min", "10 s"), ("1 h", "10 s"))')
    def windows(self, *sizes: tuple[Duration, Duration], origin: Duration = "0 s") -> Windowed:
        """Several windows over the results."""
        return self.as_stream().windows(*sizes, origin=origin)

    @called_as('left.join(right, on="key", within=("10 minutes", "10 minutes"))')
    def join(
        self,
        *others: Stream,
        on: str | Sequence[str],
        within: Sequence[Duration],
        how: str = "inner",
        where: Column | str | JoinPredicate | None = None,
        suffix: str = "_right",
        groups: int | None = None,
        tuning: JoinTuning | None = None,
    ) -> Joined:
        """Join the results with further streams, as `Stream.join` does."""
        return join(
            (self.as_stream(), *others),
            on=on,
            within=within,
            how=how,
            where=where,
            suffix=suffix,
            groups=groups,
            tuning=tuning,
        )

    @cached_property
    def node(self) -> JoinNode:
        """This join as a node of the query network."""
        inputs = tuple(
            Input(branch, stream.time, port) for port, stream in enumerate(self.streams) for branch in stream.branches
        )
        groups = GROUPS if self.groups is None else self.groups
        return JoinNode(inputs, self.spec, groups, self.tuning or JoinTuning())

    def __repr__(self) -> str:
        return joined_repr(self)

    def _emissions(self) -> tuple[tuple[Node, str], ...]:
        if not self.streams[0].branches:
            raise StreamingError(
                "start() runs streams, and these are bounded DataFrames",
                hint="use to_df(), or read them as streams: anabranch.replay(spark, path, time=...)",
            )
        return ((self.node, ONLY),)

    def _delay(self) -> int:
        """How late a result's time may be."""
        seconds = self.spec.times[0].kind is TimeKind.SECONDS
        finer = any(time.kind is not TimeKind.SECONDS for time in self.spec.times)
        # The later time may be of a finer kind, and is then rounded down to a second.
        return self.spec.delay + (MICROS - 1 if seconds and finer else 0)

    def _check_planned(self) -> None:
        for stream in self.streams:
            stream._check_planned()


_NO_WATERMARK = Refusal(
    "in Spark the results of a stream-stream join have no watermark, so what follows would never be complete",
    hint="run it with start(sink, checkpoint=...) instead of to_df()",
)


def join(
    streams: Sequence[Stream],
    *,
    on: str | Sequence[str],
    within: Sequence[Duration],
    how: str = "inner",
    where: Column | str | JoinPredicate | None = None,
    suffix: str = "_right",
    groups: int | None = None,
    tuning: JoinTuning | None = None,
) -> Joined:
    """See `Stream.join`."""
    _check_streams(streams)
    streams, keys = _with_keys(streams, on)
    windows = _within(within, len(streams))
    kind = _how(how, len(streams))
    if groups is not None and (isinstance(groups, bool) or not isinstance(groups, int) or groups < 1):
        raise InvalidArgumentError(
            f"groups={groups!r} is not a positive whole number",
            hint=f"give 1 or more, or leave it out: the default is {GROUPS}",
        )
    if tuning is not None and not isinstance(tuning, JoinTuning):
        raise InvalidArgumentError(f"tuning={tuning!r} is not a JoinTuning", hint="write tuning=ab.JoinTuning(...)")
    streams = _with_common_keys(streams, keys)
    columns = _result_columns(streams, keys, suffix)
    schema = _schema(streams, keys, columns)
    _check_where(where, streams[0].source, schema)
    sources, times = tuple(s.source for s in streams), tuple(s.time for s in streams)
    spec = Join(sources, times, keys, windows, kind, where, columns, schema)
    return Joined(spec, tuple(streams), groups, tuning)


def _check_streams(streams: Sequence[Stream]) -> None:
    if len(streams) < 2:
        raise InvalidArgumentError(
            "a join needs at least two streams", hint="pass the other one: left.join(right, on=..., within=...)"
        )
    for stream in streams:
        if not isinstance(stream, Stream):
            way = "pass its results: .as_stream()" if hasattr(stream, "as_stream") else "pass ab.stream(df, time=...)"
            raise InvalidArgumentError(f"join() takes only streams, and {type(stream).__name__} is not one", hint=way)
    if len({bool(stream.branches) for stream in streams}) > 1:
        raise StreamingError(
            "a stream cannot be joined with a bounded DataFrame: a window over time needs rows that arrive on both "
            "sides",
            hint="read both as streams (anabranch.replay), or join a table with Spark: df.join(table, on=...)",
        )


def _with_keys(streams: Sequence[Stream], on: str | Sequence[str]) -> tuple[list[Stream], tuple[str, ...]]:
    """The streams, with keys in the same spelling, and the keys."""
    keys = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, Sequence) else ()
    if not keys or not all(isinstance(key, str) for key in keys):
        raise InvalidArgumentError(
            f"on={on!r} does not name key columns, which a join needs",
            hint='name columns that all streams have: on="symbol"; for all pairs in time, add a column F.lit(0)',
        )
    session = streams[0].source.sparkSession
    spelled = [[column_name(session, _columns(stream), key) for key in keys] for stream in streams]
    keys = tuple(spelled[0])
    if len(set(keys)) < len(keys):
        raise InvalidArgumentError(f"on={on!r} names the same key twice", hint="name it once")
    alike = []
    for stream, own in zip(streams, spelled, strict=True):
        if stream.time.name in own:
            raise InvalidArgumentError(
                f"the time {stream.time.name!r} cannot be a key: only rows of the same instant would be joined",
                hint='for those, join on another key with within=("0 s", "0 s")',
            )
        others = {key: quoted(name) for key, name in zip(keys, own, strict=True) if key != name}
        alike.append(stream.with_columns(others) if others else stream)
    return alike, keys


def _columns(stream: Stream) -> list[str]:
    return [name for name in stream.source.columns if name != EVENT]


def _within(within: Sequence[Duration], streams: int) -> tuple[int, ...]:
    if isinstance(within, str) or not isinstance(within, Sequence) or len(within) != streams:
        example = ", ".join(['"10 minutes"', '"5 minutes"', '"1 minute"'][i % 3] for i in range(streams))
        raise InvalidArgumentError(
            f"within={within!r}: each of the {streams} streams needs its own window",
            hint=f"give {streams} durations, in the order of the streams: within=({example})",
        )
    windows = tuple(micros(duration, f"window {i} of within") for i, duration in enumerate(within))
    for window in windows:
        if window < 0:
            raise InvalidArgumentError(
                f"within has a window of {describe(window)}, which is negative: no pair could match",
                hint="give durations of zero or more",
            )
    return windows


def _how(how: str, streams: int) -> str:
    if how not in _HOWS:
        raise InvalidArgumentError(f"how={how!r} is not a kind of join", hint='use "inner", "left", "right" or "full"')
    if streams > 2 and how != "inner":
        raise InvalidArgumentError(
            f"outer joins support two streams, not {streams}",
            hint="join two, then join the result with the next: a.join(b, how=...).as_stream().join(c, how=...)",
        )
    return _HOWS[how]


# --- the types of keys ----------------------------------------------------------------------------------------------


def _with_common_keys(streams: Sequence[Stream], keys: Sequence[str]) -> tuple[Stream, ...]:
    """The streams with keys of the same types."""
    common = {key: _common_type(key, [s.source.schema[key].dataType for s in streams]) for key in keys}
    return tuple(_cast(stream, common) for stream in streams)


def _cast(stream: Stream, types: dict[str, DataType]) -> Stream:
    others = {key: quoted(key).cast(kind) for key, kind in types.items() if stream.source.schema[key].dataType != kind}
    return stream.with_columns(others) if others else stream


def _common_type(key: str, kinds: Sequence[DataType]) -> DataType:
    common = kinds[0]
    for kind in kinds[1:]:
        wider = _wider(common, kind)
        if wider is None:
            raise ColumnTypeError(
                f"the key {key!r} is {common.simpleString()} in one stream and {kind.simpleString()} in another: in "
                "either type some keys would change and match others",
                hint=f'cast it in one of them: stream.with_columns({{"{key}": F.col("{key}").cast("...")}})',
            )
        common = wider
    reason = unhashable(key, common)
    if reason is not None:
        raise ColumnTypeError(
            f"streams cannot be joined on this key: {reason}", hint="use its parts as keys, or cast it"
        )
    return common


def _wider(one: DataType, other: DataType) -> DataType | None:
    """The type that can hold all values of both, if there is one."""
    if one == other:
        return one
    if isinstance(one, _INTEGERS) and isinstance(other, _INTEGERS):
        return max(one, other, key=lambda kind: _INTEGERS.index(type(kind)))
    if isinstance(one, (FloatType, DoubleType)) and isinstance(other, (FloatType, DoubleType)):
        return DoubleType()
    if isinstance(one, DecimalType) and isinstance(other, DecimalType):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return DecimalType(digits, scale) if digits <= _MOST_DIGITS else None
    return None


# --- the result -----------------------------------------------------------------------------------------------------


def _result_columns(
    streams: Sequence[Stream], keys: Sequence[str], suffix: str
) -> tuple[tuple[tuple[str, str], ...], ...]:
    """For each stream (source column, result column). Spark's names do not distinguish upper and lower case."""
    if not isinstance(suffix, str) or not suffix:
        raise InvalidArgumentError(
            f"suffix must be a non-empty string, not {suffix!r}: columns of the same name could not be told apart",
            hint='write, for example, suffix="_quote"',
        )
    taken = {key.lower() for key in keys}
    found = []
    for number, stream in enumerate(streams):
        own_suffix = suffix if number < 2 else f"{suffix}_{number + 1}"
        names = [name for name in stream.source.columns if name not in keys and name != EVENT]
        renamed = [name + own_suffix if name.lower() in taken else name for name in names]
        for name, result in zip(names, renamed, strict=True):
            if result.lower() in taken or [r.lower() for r in renamed].count(result.lower()) > 1:
                raise InvalidArgumentError(
                    f"the column {name!r} of stream {number} would be called {result!r} in the result, which is taken",
                    hint="give another suffix=..., or rename the column before ab.stream(...)",
                )
        taken |= {result.lower() for result in renamed}
        found.append(tuple(zip(names, renamed, strict=True)))
    return tuple(found)


def _schema(streams: Sequence[Stream], keys: Sequence[str], columns: Sequence[Sequence[tuple[str, str]]]) -> StructType:
    """Every column is nullable: Arrow batches of Python functions must match this schema."""
    schemas = [stream.source.schema for stream in streams]
    fields = [StructField(key, schemas[0][key].dataType) for key in keys]
    for schema, named in zip(schemas, columns, strict=True):
        fields += [StructField(to, schema[name].dataType) for name, to in named]
    return StructType(fields)


def _check_where(where: object, source: DataFrame, schema: StructType) -> None:
    if where is None or (callable(where) and not isinstance(where, Column)):
        return
    if not isinstance(where, (Column, str)):
        raise InvalidArgumentError(
            f"where={where!r} is not a condition",
            hint="give a Column or SQL text over the result's columns, or a function over record batches of results",
        )
    results = source.sparkSession.createDataFrame([], schema)
    analysed("where", results, lambda: results.where(where))
