"""What a user writes: streams, windows over them, aggregates over those.

    ab.stream(trips, time="pickup_at")
      .window(size="30 minutes", slide="1 second")
      .by("cell")
      .agg(trips=ab.count(), fare=ab.avg("fare"))
      .to_df()

Every object here is a plain value, and every method returns a new one. Nothing runs until rows are requested from the
DataFrame that `to_df()` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from anabranch.aggregates import Aggregate, ColumnLike
from anabranch.api.reprs import stream_repr
from anabranch.calls import called_as
from anabranch.errors import ColumnTypeError, InvalidArgumentError, InvalidWindowError, StreamingError
from anabranch.io.blocks import Packed
from anabranch.io.frames import unpacked
from anabranch.keys.policy import key_partition
from anabranch.names import EVENT
from anabranch.query.origins import Branch, Source, Transform
from anabranch.query.refusal import Refusal
from anabranch.query.strategy import Kind
from anabranch.query.windowed import analysed, resolve
from anabranch.spark.column_names import column_name, same_name
from anabranch.spark.columns import TimeColumn, TimeKind, TimeUnit, quoted, timed
from anabranch.windows import Duration, Panes, Window, describe, micros
from anabranch.windows.durations import MICROS
from anabranch.windows.ids import Stretch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from anabranch.api.joined import Joined
    from anabranch.api.processing import Processed, Split
    from anabranch.api.windowed import Windowed
    from anabranch.operators.protocol import OperatorFactory
    from anabranch.query.join import JoinPredicate, JoinTuning
    from anabranch.split.routes import BroadcastFunction, RouteFunction

GROUPS = 60
"""default number of partition-groups of a keyed operator: many more than workers, so that they can be moved"""

_WATERMARK = "spark.watermarkDelayMs"


@called_as('ab.stream(df, time="at", watermark="10 seconds")')
def stream(
    source: DataFrame, *, time: str, watermark: Duration | None = None, time_unit: TimeUnit | None = None
) -> Stream:
    """A stream of rows, each with a time: any DataFrame, streaming or not.

    `time` names a timestamp column (with or without time zone), or an integer that counts from 1970-01-01 UTC. For a
    bigint give its unit: `time_unit` is "s", "ms" or "us". With "s" and "ms" the column becomes a timestamp; with "us"
    it stays a bigint, and windows are in microseconds too. A smaller integer counts seconds.

    A streaming DataFrame needs a watermark: its own (`withWatermark` on that column), or the one given here, not both.
    """
    if not isinstance(source, DataFrame):
        raise InvalidArgumentError(f"{type(source).__name__} is not a DataFrame", hint="give a Spark DataFrame")
    if not isinstance(time, str):
        raise InvalidArgumentError(f"time={time!r} is not the name of a column", hint='write, for example, time="at"')
    time = column_name(source.sparkSession, source.columns, time)
    source, column = timed(source, time, time_unit)
    if not source.isStreaming:
        return Stream(source, column)
    given = source
    if not column.is_event:
        # For a timestamp, copy the column itself: if it has a watermark, its copy has it too.
        copied = column.kind is TimeKind.TIMESTAMP
        source = source.withColumn(EVENT, column.column if copied else F.timestamp_micros(column.micros()))
    if watermark is not None:
        _check_no_watermark(source)
        source = source.withWatermark(time if column.is_event else EVENT, _delay(watermark))
        delay = micros(watermark, "watermark")
    elif column.kind is not TimeKind.TIMESTAMP or _WATERMARK not in source.schema[time].metadata:
        raise StreamingError(
            f"the stream has no watermark on {time!r}: no window would ever be complete, and its state would grow "
            "without limit",
            hint='give the longest delay of a row: ab.stream(df, time=..., watermark="10 seconds")',
        )
    else:
        delay = int(source.schema[time].metadata[_WATERMARK]) * 1_000
    return Stream(source, column, (Branch(Source(given, column, delay)),))


@called_as('ab.block_stream(df, time="at", watermark="10 seconds", schema=schema)')
def block_stream(
    source: DataFrame,
    *,
    time: str,
    watermark: Duration,
    schema: pa.Schema,
    column: str | None = None,
    time_unit: TimeUnit | None = None,
) -> Stream:
    """A stream of blocks: tuples that are already packed, and are unpacked only where they are needed.

    The source has either references to blocks in files, as ``ab.replay(..., blocks=True)`` delivers them, or Arrow IPC
    payloads in a binary `column` (for example Kafka messages); `schema` has the columns of the tuples
    (`anabranch.recordings.columns_of(path)`). A split with a route function reads the blocks in its splitters, so the
    tuples never become rows; everything else unpacks them first.

    A time that is a bigint must count microseconds (`time_unit="us"`): blocks are read unchanged.
    """
    if not source.isStreaming:
        raise StreamingError("block_stream() needs a streaming DataFrame", hint="unpack it, and use ab.stream(...)")
    if column is not None:
        column = column_name(source.sparkSession, source.columns, column)
    time = column_name(source.sparkSession, schema.names, time)
    packed = Packed(schema, column)
    rows = stream(unpacked(source, packed), time=time, watermark=watermark, time_unit=time_unit)
    if pa.types.is_int64(schema.field(time).type) and time_unit != "us":
        raise ColumnTypeError(
            f"the time column {time!r} of the blocks is a bigint of {time_unit}, and blocks are read unchanged: it "
            "would be taken for microseconds",
            hint="record a timestamp, or microseconds",
        )
    origin = Source(source, rows.time, micros(watermark, "watermark"), packed)
    return replace(rows, branches=(Branch(origin),))


@dataclass(frozen=True)
class Stream:
    """Rows with a time. Create one with `anabranch.stream`."""

    source: DataFrame
    time: TimeColumn
    branches: tuple[Branch, ...] = ()
    """where the rows of a stream come from, for the epoch runtime; empty for bounded data"""
    refusal: Refusal | None = None
    """why only the epoch runtime can run this stream, and no Spark plan; `source` then only has its columns"""

    @called_as('.filter("speed > 3")')
    def filter(self, condition: Column | str) -> Stream:
        """Only the rows for which the condition holds."""
        return self._then("the filter", lambda rows: rows.where(condition))

    def select(self, *columns: ColumnLike) -> Stream:
        """Keep only these columns, and the time column."""
        kept = [resolve(self.source, c) for c in columns]
        names = analysed("the selection", self.source, lambda: self.source.select(*kept)).columns
        if len(names) == len(kept):
            # F.col("AT") is the time `at`, and keeps its name.
            at = self.time.name
            kept = [c.alias(at) if n != at and self._named(n, at) else c for n, c in zip(names, kept, strict=True)]
            names = [at if self._named(n, at) else n for n in names]
        if self.source.isStreaming and self.time.name in names:
            time_now = self.source.select(self.time.column)
            chosen = [self.source.select(c) for c in kept]
            if any(c.columns == [self.time.name] and not c.sameSemantics(time_now) for c in chosen):
                raise self._time_changed()
        time = [] if self.time.name in names else [self.time.column]

        def selected(rows: DataFrame) -> DataFrame:
            hidden = [EVENT] if EVENT in rows.columns else []
            return rows.select(*kept, *time, *hidden)

        return self._then("the selection", selected)

    @called_as('.with_columns({"speed": F.col("meters") / F.col("seconds")})')
    def with_columns(self, columns: Mapping[str, Column]) -> Stream:
        """Add columns, or replace those with the same name."""
        if self.source.isStreaming and any(self._named(name, self.time.name) for name in columns):
            raise self._time_changed()
        return self._then("a new column", lambda rows: rows.withColumns(dict(columns)))

    @called_as(".union(other)")
    def union(self, other: Stream) -> Stream:
        """The rows of both streams, which must have the same columns and the same time column."""
        if not self._named(other.time.name, self.time.name):
            raise InvalidArgumentError(
                f"streams in a union must have the same time column; these have {self.time.name!r} and "
                f"{other.time.name!r}",
                hint="rename one of the columns before ab.stream(...)",
            )
        if self.source.isStreaming != other.source.isStreaming:
            raise InvalidArgumentError(
                "a union cannot mix a stream and a bounded DataFrame, which has no watermark",
                hint="read both as streams (anabranch.replay), or neither",
            )
        if self.time.kind is not other.time.kind:
            raise InvalidArgumentError(
                f"the time column {self.time.name!r} is {self.time.kind.value} in one stream of the union and "
                f"{other.time.kind.value} in the other: the same instant would be two different times",
                hint="cast one of them before ab.stream(...)",
            )
        both = analysed("the union", self.source, lambda: self.source.unionByName(other.source))
        columns = [quoted(f.name).cast(f.dataType).alias(f.name) for f in both.schema if f.name != EVENT]
        # Blocks of both will be put together, which wants the same columns in the same order.
        branches = tuple(each.then(lambda rows: rows.select(*columns)) for each in (*self.branches, *other.branches))
        return Stream(both, self.time, branches, self.refusal or other.refusal)

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
        """Join rows of streams that have equal keys and are close to each other in time.

        `within` has one duration per stream, W1 for this one: its rows wait that long for a later partner. A pair
        (a, b) is a result if ``a.t - W2 <= b.t <= a.t + W1``. So ``trades.join(quotes, ..., within=("0 s", "100 ms"))``
        takes the quotes of the last 100 ms before each trade. With more streams, every two rows of a result must be a
        pair.
        `how` is "inner", "left", "right" or "full". `where` restricts the results: a Column or SQL text over their
        columns, or a function that takes a record batch of them and returns one bool per row.

        The result has the keys `on`, then the other columns of each stream. Where a name is taken, the second stream's
        column gets the suffix, the third's `suffix` and "_3", and so on. `groups` (default 60) and `tuning` are for
        `start()`; `to_df()` refuses them.
        """
        from anabranch.api.joined import join

        return join(
            (self, *others),
            on=on,
            within=within,
            how=how,
            where=where,
            suffix=suffix,
            groups=groups,
            tuning=tuning,
        )

    @called_as('.split(8, route="lane")')
    def split(
        self,
        q: int,
        *,
        route: Column | str | RouteFunction | None = None,
        broadcast: Column | str | BroadcastFunction | None = None,
        splitters: int | None = None,
        window_bytes: int | None = None,
    ) -> Split:
        """Split into q substreams: each tuple goes to one of them, to all, or to none.

        `route` returns the number of a substream, 0 to q-1; -1 or null sends the tuple nowhere. `broadcast` selects
        tuples that go to all. Both are Columns (or SQL text), or functions over whole blocks: ``route(block, q)`` and
        ``broadcast(block)`` take an Arrow record batch and return one entry per tuple, as a numpy or Arrow array.

        Unless given, the number of splitters p and the bytes W of a physical window are tuned while the query runs.
        """
        from anabranch.api.processing import split

        return split(self, q, route=route, broadcast=broadcast, splitters=splitters, window_bytes=window_bytes)

    @called_as('.process(MyOperator, "cell string, n bigint", by="cell")')
    def process(
        self,
        operator: OperatorFactory,
        schema: str | StructType | None = None,
        *,
        by: str | Sequence[str] = (),
        groups: int | None = None,
        outputs: Mapping[str, str | StructType] | None = None,
        partition: str | None = None,
        choices: int | None = None,
        cardinality: str | None = None,
        partition_window: Duration | None = None,
        splitters: int | None = None,
    ) -> Processed:
        """Run a stateful operator of your own, one instance for each of `groups` partition-groups of the key `by`.

        There are 60 groups by default. Without a key one instance sees the whole stream. See `anabranch.Operator`.

        A group sees all rows of its keys, unless a policy places them (`partition`, as in `Windowed.by`; the groups are
        its workers): then a key's rows may go to several groups, and to others in another epoch or window of
        `partition_window`. The operator must be one whose partial answers can be combined (`Processed.combine`).
        """
        from anabranch.api.processing import keyed

        keys = (by,) if isinstance(by, str) else tuple(by)
        if groups is not None and not keys:
            raise InvalidArgumentError(
                f"groups={groups!r} has no effect without a key: one instance sees the whole stream",
                hint="name the key with by=..., or leave groups out",
            )
        groups = GROUPS if groups is None else groups
        if partition is None:
            policy_settings = {"choices": choices, "cardinality": cardinality, "partition_window": partition_window,
                           "splitters": splitters}  # fmt: skip
            unused = [name for name, given in policy_settings.items() if given is not None]
            if unused:
                raise InvalidArgumentError(
                    "without a policy, the hash of a key decides its group, and these settings have no effect: "
                    f"{', '.join(unused)}",
                    hint='name a policy, for example partition="cam"',
                )
            return keyed(self, keys, groups).process(operator, schema, outputs=outputs)
        policy = key_partition(partition, choices, cardinality, groups, splitters)
        stretch = None if partition_window is None else Stretch(Window.of_time(partition_window).size)
        return keyed(self, keys, groups, policy, stretch).process(operator, schema, outputs=outputs)

    @called_as('.window(size="1 h", slide="10 min"), or .window(rows=100, slide_rows=10)')
    def window(
        self,
        *,
        size: Duration | None = None,
        slide: Duration | None = None,
        origin: Duration = "0 s",
        rows: int | None = None,
        slide_rows: int | None = None,
        per_key: bool = True,
    ) -> Windowed:
        """A window over time (`size`, `slide`, `origin`) or over rows (`rows`, `slide_rows`).

        Without a slide it tumbles. Count windows count the rows of each key in time order; with ``per_key=False`` those
        of all keys together.
        """
        from anabranch.api.windowed import Windowed

        if (size is None) == (rows is None):
            raise InvalidWindowError(
                "a window is over time or over rows, and needs one size",
                hint='write .window(size="5 min", slide="10 s") or .window(rows=100, slide_rows=10)',
            )
        if size is not None:
            if slide_rows is not None:
                raise InvalidWindowError("slide_rows is for windows over rows, not over time", hint="write slide=...")
            if not per_key:
                raise InvalidWindowError(
                    "per_key=False is for windows over rows: windows over time are the same for all keys",
                    hint="leave it out, or leave by(...) out for windows over all keys",
                )
            return Windowed(self, self._panes(Window.of_time(size, slide, origin)))
        if slide is not None or micros(origin, "window origin") != 0:
            raise InvalidWindowError(
                "slide and origin are for windows over time, not over rows", hint="write slide_rows=..."
            )
        return Windowed(self, Panes((Window.of_rows(rows or 0, slide_rows),)), rows_per_key=per_key)

    @called_as('.windows(("5 min", "10 s"), ("1 h", "10 s"))')
    def windows(self, *sizes: tuple[Duration, Duration], origin: Duration = "0 s") -> Windowed:
        """Several windows over one stream, each as (size, slide); they share one set of panes."""
        from anabranch.api.windowed import Windowed

        for pair in sizes:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise InvalidWindowError(
                    f"{pair!r} is not a pair of size and slide",
                    hint='write .windows(("5 min", "10 s"), ("1 h", "10 s"))',
                )
        specs = tuple(Window.of_time(size, slide, origin) for size, slide in sizes)
        if len(set(specs)) < len(specs):
            raise InvalidWindowError(
                "the same window is given twice: each result would come twice", hint="leave one out"
            )
        return Windowed(self, self._panes(*specs))

    def bad_rows(self) -> DataFrame:
        """The rows that belong to no window because they have no time that windows can use, with the reason."""
        self._check_planned()
        reason = self.time.unusable.alias("reason")
        bad = self.source.where(~self.time.usable)
        return bad.select(*(quoted(c) for c in self.source.columns if c != EVENT), reason)

    def to_df(self) -> DataFrame:
        """The rows as a DataFrame."""
        self._check_planned()
        return self.source.drop(EVENT)

    def __repr__(self) -> str:
        return stream_repr(self)

    def _panes(self, *windows: Window) -> Panes:
        for window in windows:
            parts = {"size": window.size, "slide": window.slide, "origin": window.origin}
            fine = [name for name, value in parts.items() if value % MICROS]
            if self.time.kind is TimeKind.SECONDS and fine:
                raise InvalidWindowError(
                    f"the time {self.time.name!r} is an integer of seconds, and the {fine[0]} of the window, "
                    f"{describe(parts[fine[0]])}, is not in whole seconds: its bounds could not be represented",
                    hint="use whole seconds, or make the time a timestamp: F.timestamp_seconds(...)",
                )
        return Panes(windows)

    def _time_changed(self) -> StreamingError:
        return StreamingError(
            f"the time {self.time.name!r} of a stream cannot be replaced: the watermark belongs to the original times",
            hint="change it before: ab.stream(df.withColumn(...), time=..., watermark=...)",
        )

    def _then(self, what: str, transform: Transform) -> Stream:
        """The stream after one more transform, which may change the type of the time."""
        source = analysed(what, self.source, lambda: transform(self.source))
        name = column_name(source.sparkSession, source.columns, self.time.name)
        time = TimeColumn(name, TimeKind.of(name, source.schema[name].dataType))
        if time.kind is TimeKind.LONG and self.time.kind is not TimeKind.LONG:
            raise ColumnTypeError(
                f"{what} makes the time {name!r} a bigint of an unknown unit",
                hint='change it before: ab.stream(df.withColumn(...), time=..., time_unit="s")',
            )
        return Stream(source, time, tuple(branch.then(transform) for branch in self.branches), self.refusal)

    def _named(self, name: str, other: str) -> bool:
        return same_name(self.source.sparkSession, name, other)

    def _check_planned(self) -> None:
        if self.refusal is not None:
            raise StreamingError(self.refusal.message, hint=self.refusal.hint)


@called_as('df.transform(ab.sliding(time="at", size="5 min", slide="10 s", by="cell", trips=ab.count()))')
def sliding(
    *,
    time: str,
    size: Duration,
    slide: Duration | None = None,
    origin: Duration = "0 s",
    by: ColumnLike | tuple[ColumnLike, ...] | list[ColumnLike] = (),
    watermark: Duration | None = None,
    strategy: Kind | str = "auto",
    time_unit: TimeUnit | None = None,
    **aggregates: Aggregate,
) -> Callable[[DataFrame], DataFrame]:
    """One windowed aggregate for `df.transform`.

    >>> df.transform(ab.sliding(time="at", size="5 min", slide="10 s", by="cell", trips=ab.count()))
    """
    keys = tuple(by) if isinstance(by, (tuple, list)) else (by,)

    def transform(source: DataFrame) -> DataFrame:
        rows = stream(source, time=time, watermark=watermark, time_unit=time_unit)
        return rows.window(size=size, slide=slide, origin=origin).by(*keys).agg(**aggregates).using(strategy).to_df()

    return transform


def _check_no_watermark(source: DataFrame) -> None:
    marked = [field.name for field in source.schema if _WATERMARK in field.metadata]
    if marked:
        raise StreamingError(
            f"the stream already has a watermark on {marked[0]!r}, and Spark does not accept a second one",
            hint="remove watermark=..., or the DataFrame's own withWatermark(...)",
        )


def _delay(watermark: Duration) -> str:
    """A watermark's delay for Spark, in milliseconds. Rounded up: Spark would round down and drop rows too early."""
    delay = micros(watermark, "watermark")
    if delay < 0:
        raise InvalidArgumentError(
            f"a watermark of {describe(delay)} is negative: rows that are in time would count as late",
            hint="give zero or more",
        )
    return f"{-(-delay // 1_000)} milliseconds"
