"""What a user writes: streams, windows over them, aggregates over those.

    ab.stream(trips, time="pickup_at")
      .window(size="30 minutes", slide="1 second")
      .by("cell")
      .agg(trips=ab.count(), fare=ab.avg("fare"))
      .to_df()

Every object here is a plain value and every method returns a new one; nothing runs before the DataFrame that `to_df()`
returns is asked for rows.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from anabranch.aggregates import Aggregate, ColumnLike
from anabranch.errors import InvalidArgumentError, InvalidWindowError, StreamingError, column_not_found
from anabranch.io.frames import unpacked
from anabranch.network.columns import EVENT, MICROS, TimeColumn, TimeKind, quoted
from anabranch.network.nodes import ONLY, Input, Node, WindowNode
from anabranch.network.parts import Output, Packed, Part, Source, Step
from anabranch.network.query import Query, analysed, resolve
from anabranch.plan import batch as batch_plan
from anabranch.plan import streaming
from anabranch.plan.choose import Choice, choose, measure
from anabranch.plan.cost import UNKNOWN, Statistics
from anabranch.plan.explain import explain
from anabranch.plan.panes import WINDOW, WINDOW_SPEC
from anabranch.plan.strategy import Kind, Strategy
from anabranch.split.partitioning import AUTO, KeyPartition, key_partition
from anabranch.windows import Duration, Panes, Window, describe, micros
from anabranch.windows.ids import Stretch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from anabranch.io.sinks import Sink
    from anabranch.network.processing import Processed, Split
    from anabranch.operators.protocol import OperatorFactory
    from anabranch.runtime.deliveries import Delivery
    from anabranch.runtime.query import EpochQuery
    from anabranch.split.splitter import BroadcastFunction, RouteFunction

WINDOW_TIME = "window_time"
"""The time of a window's result, for aggregates that follow: its last instant, as Spark's `window_time()`."""

GROUPS = 60
"""Partition-groups of a keyed operator, unless told: far more than workers, so that they can be moved (paper 2)."""
WINDOW_GROUPS = 16
"""Partition-groups of a windowed aggregate with keys, in the epoch runtime."""

_WATERMARK = "spark.watermarkDelayMs"
_numbers = itertools.count(1)


def stream(source: DataFrame, *, time: str, watermark: Duration | None = None) -> Stream:
    """A stream of rows, each with a time: any DataFrame, streaming or not.

    `time` names a timestamp column (with or without time zone), a bigint column of microseconds since 1970-01-01 UTC,
    or a smaller integer of seconds. A streaming DataFrame needs a watermark: its own, or the one given here.
    """
    if not isinstance(source, DataFrame):
        raise InvalidArgumentError(f"a stream of {type(source).__name__}", hint="give a Spark DataFrame")
    if not isinstance(time, str):
        raise InvalidArgumentError(f"time={time!r} is not the name of a column", hint='write for example time="at"')
    if time not in source.columns:
        raise column_not_found(time, source.columns)
    column = TimeColumn(time, TimeKind.of(time, source.schema[time].dataType))
    if not source.isStreaming:
        return Stream(source, column)
    given = source
    derived = column.kind is not TimeKind.TIMESTAMP
    if derived:
        source = source.withColumn(EVENT, F.timestamp_micros(column.micros()))
    if watermark is not None:
        _check_no_watermark(source)
        name = EVENT if derived else time
        source = source.withWatermark(name, _delay(watermark))
        delay = micros(watermark, "watermark")
    elif derived or _WATERMARK not in source.schema[time].metadata:
        raise StreamingError(
            f"the stream has no watermark on {time!r}, so no window would ever be complete and its state would grow "
            "for ever",
            hint='say how late rows may come: ab.stream(df, time=..., watermark="10 seconds")',
        )
    else:
        delay = int(source.schema[time].metadata[_WATERMARK]) * 1_000
    return Stream(source, column, (Part(Source(given, column, delay)),))


def block_stream(
    source: DataFrame, *, time: str, watermark: Duration, schema: pa.Schema, column: str | None = None
) -> Stream:
    """A stream of blocks: tuples that are packed already, and are unpacked only where they are needed.

    Either references to blocks in files, as ``ab.replay(..., blocks=True)`` delivers them, or Arrow IPC payloads in a
    binary `column` (Kafka messages, say); `schema` has the columns of the tuples
    (`anabranch.io.blocks.schema_of(path)`). A split with a route function reads the blocks in its splitters, so the
    tuples never are rows; everything else unpacks them first.
    """
    if not source.isStreaming:
        raise StreamingError("a bounded DataFrame of blocks", hint="unpack it, and use ab.stream(...)")
    if column is not None and column not in source.columns:
        raise column_not_found(column, source.columns)
    if time not in schema.names:
        raise column_not_found(time, schema.names)
    packed = Packed(schema, column)
    rows = stream(unpacked(source, packed), time=time, watermark=watermark)
    origin = Source(source, rows.time, micros(watermark, "watermark"), packed)
    return replace(rows, parts=(Part(origin),))


@dataclass(frozen=True)
class Stream:
    """Rows with a time. Make one with `anabranch.stream`."""

    source: DataFrame
    time: TimeColumn
    parts: tuple[Part, ...] = ()
    """where the rows come from, on a stream: for the epoch runtime"""
    refusal: StreamingError | None = None
    """why no Spark plan can have this stream, so that only the epoch runtime can; then `source` has its columns only"""

    def filter(self, condition: Column | str) -> Stream:
        """Only the rows for which the condition holds."""
        return self._then("the filter", lambda rows: rows.where(condition))

    def select(self, *columns: ColumnLike) -> Stream:
        """These columns; the time column stays."""
        kept = [resolve(self.source, c) for c in columns]
        names = analysed("the selection", self.source, lambda: self.source.select(*kept)).columns
        if self.source.isStreaming and self.time.name in names:
            time_now = self.source.select(self.time.column)
            chosen = [self.source.select(c) for c in kept]
            if any(c.columns == [self.time.name] and not c.sameSemantics(time_now) for c in chosen):
                raise self._time_changed()
        time = [] if self.time.name in names else [self.time.column]

        def step(rows: DataFrame) -> DataFrame:
            hidden = [EVENT] if EVENT in rows.columns else []
            return rows.select(*kept, *time, *hidden)

        return self._then("the selection", step)

    def with_columns(self, columns: Mapping[str, Column]) -> Stream:
        """With more columns, or others of the same name."""
        if self.source.isStreaming and self.time.name.lower() in (name.lower() for name in columns):
            raise self._time_changed()
        return self._then("a new column", lambda rows: rows.withColumns(dict(columns)))

    def union(self, other: Stream) -> Stream:
        """The rows of both streams, which have the same columns and the same column of time."""
        if self.time.name != other.time.name or self.source.isStreaming != other.source.isStreaming:
            raise InvalidArgumentError(
                f"a union of streams with the times {self.time.name!r} and {other.time.name!r}, or of a stream and a "
                "table: rows would have no common time",
                hint="rename the column of time before ab.stream(...), and give two streams",
            )
        both = analysed("the union", self.source, lambda: self.source.unionByName(other.source))
        columns = [quoted(f.name).cast(f.dataType).alias(f.name) for f in both.schema if f.name != EVENT]
        # Blocks of both will be put together, which wants the same columns in the same order.
        parts = tuple(part.then(lambda rows: rows.select(*columns)) for part in (*self.parts, *other.parts))
        return Stream(both, self.time, parts, self.refusal or other.refusal)

    def split(
        self,
        q: int,
        *,
        route: Column | str | RouteFunction | None = None,
        broadcast: Column | str | BroadcastFunction | None = None,
        splitters: int | None = None,
        window_bytes: int | None = None,
    ) -> Split:
        """Split into q substreams (parasplit): each tuple goes to one of them, to all, or to none.

        `route` gives the number of a substream, 0 to q-1; -1 or null sends the tuple nowhere. `broadcast` says which
        tuples go to all. Both are Columns (or SQL text), or functions over whole blocks: ``route(block, q)`` and
        ``broadcast(block)`` take an Arrow record batch and return one entry per tuple, as a numpy or Arrow array.

        The number of splitters p and the bytes W of a physical window are tuned while running unless given.
        """
        from anabranch.network.processing import split

        return split(self, q, route=route, broadcast=broadcast, splitters=splitters, window_bytes=window_bytes)

    def process(
        self,
        operator: OperatorFactory,
        schema: str | StructType | None = None,
        *,
        by: str | Sequence[str] = (),
        groups: int = GROUPS,
        outputs: Mapping[str, str | StructType] | None = None,
        partition: str | None = None,
        choices: int = 2,
        cardinality: str = "exact",
        partition_window: Duration | None = None,
        splitters: int | None = None,
    ) -> Processed:
        """Run a stateful operator of your own, one instance for each of `groups` partition-groups of the key `by`.

        Without a key one instance sees the whole stream. See `anabranch.Operator`.

        A group sees all rows of its keys, unless a policy places them (`partition`, as in `Windowed.by`; the groups are
        its workers): then a key's rows may go to several groups, and to others in another epoch or window of
        `partition_window`. The operator must be one whose partial answers can be put together (`Processed.combine`).
        """
        from anabranch.network.processing import keyed

        keys = (by,) if isinstance(by, str) else tuple(by)
        if partition is None:
            return keyed(self, keys, groups).process(operator, schema, outputs=outputs)
        placed = key_partition(partition, choices, cardinality, groups, splitters)
        stretch = None if partition_window is None else Stretch(Window.of_time(partition_window, None, 0).size)
        return keyed(self, keys, groups, placed, stretch).process(operator, schema, outputs=outputs)

    def window(
        self,
        *,
        size: Duration | None = None,
        slide: Duration | None = None,
        origin: Duration = 0,
        rows: int | None = None,
        slide_rows: int | None = None,
        per_key: bool = True,
    ) -> Windowed:
        """A window over time (`size`, `slide`, `origin`) or over rows (`rows`, `slide_rows`).

        Without a slide it tumbles. Count windows count the rows of each key in the order of time; with
        ``per_key=False`` those of all keys.
        """
        if (size is None) == (rows is None):
            raise InvalidWindowError(
                "a window is over time or over rows, and needs one size",
                hint='write .window(size="5 min", slide="10 s") or .window(rows=100, slide_rows=10)',
            )
        if size is not None:
            if slide_rows is not None:
                raise InvalidWindowError("slide_rows goes with rows, not with size", hint="write slide=...")
            return Windowed(self, self._panes(Window.of_time(size, slide, origin)))
        if slide is not None or origin != 0:
            raise InvalidWindowError("slide and origin go with size, not with rows", hint="write slide_rows=...")
        return Windowed(self, Panes((Window.of_rows(rows or 0, slide_rows),)), rows_per_key=per_key)

    def windows(self, *sizes: tuple[Duration, Duration], origin: Duration = 0) -> Windowed:
        """Several windows over one stream, (size, slide) each; they share one set of panes."""
        for pair in sizes:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise InvalidWindowError(
                    f"{pair!r} is not a pair of size and slide",
                    hint='write .windows(("5 min", "10 s"), ("1 h", "10 s"))',
                )
        specs = tuple(Window.of_time(size, slide, origin) for size, slide in sizes)
        if len(set(specs)) < len(specs):
            raise InvalidWindowError("the same window twice", hint="leave one out: each row would come twice")
        return Windowed(self, self._panes(*specs))

    def bad_rows(self) -> DataFrame:
        """The rows that no window can take, with the reason: those without a time."""
        self._check_planned()
        reason = F.lit(f"null time in column {self.time.name}").alias("reason")
        bad = self.source.where(self.time.column.isNull())
        return bad.select(*(quoted(c) for c in self.source.columns if c != EVENT), reason)

    def to_df(self) -> DataFrame:
        """The rows as a DataFrame."""
        self._check_planned()
        return self.source.drop(EVENT)

    def _panes(self, *windows: Window) -> Panes:
        for window in windows:
            parts = {"size": window.size, "slide": window.slide, "origin": window.origin}
            fine = [name for name, value in parts.items() if value % MICROS]
            if self.time.kind is TimeKind.SECONDS and fine:
                raise InvalidWindowError(
                    f"the time {self.time.name!r} is an integer of seconds, and the {fine[0]} of the window, "
                    f"{describe(parts[fine[0]])}, is not: its bounds could not be told in seconds",
                    hint="take whole seconds, or make the time a timestamp: F.timestamp_seconds(...)",
                )
        return Panes(windows)

    def _time_changed(self) -> StreamingError:
        return StreamingError(
            f"the time {self.time.name!r} of a stream cannot be replaced: the watermark belongs to the times that came",
            hint="change it before the stream is made: ab.stream(df.withColumn(...), time=..., watermark=...)",
        )

    def _then(self, what: str, step: Step) -> Stream:
        """The stream after one more step; the time may have become one of another type."""
        source = analysed(what, self.source, lambda: step(self.source))
        name = self.time.name
        time = TimeColumn(name, TimeKind.of(name, source.schema[name].dataType))
        return Stream(source, time, tuple(part.then(step) for part in self.parts), self.refusal)

    def _check_planned(self) -> None:
        if self.refusal is not None:
            raise self.refusal


@dataclass(frozen=True)
class Windowed:
    """A stream cut into windows."""

    stream: Stream
    panes: Panes
    keys: tuple[str, ...] = ()
    rows_per_key: bool = True
    partition: KeyPartition = AUTO

    def by(
        self,
        *keys: ColumnLike,
        partition: str = "auto",
        choices: int = 2,
        cardinality: str = "exact",
        workers: int | None = None,
        splitters: int | None = None,
    ) -> Windowed:
        """Group by these columns, or expressions with an alias.

        `partition` says which worker gets which key (paper 3; `anabranch.split.partitioning` has the table): "sh",
        "fld", "pk", "cm", "am", "cam", "lm" or "heavy", with `choices` candidate workers for a key, whose keys are
        counted exactly or by HyperLogLog (`cardinality="hll"`). "auto" leaves Spark alone where it combines rows before
        it exchanges them, and chooses for aggregates in Python that can be evaluated in parts. The policy changes what
        a query costs, never its result. `explain()` shows it.
        """
        stream, names = self.stream, []
        for key in keys:
            source = stream.source
            column = resolve(source, key)
            chosen = analysed("a key", source, partial(source.select, column))
            name = chosen.columns[0]
            if name not in source.columns:
                stream = stream.with_columns({name: column})
            elif not any(chosen.sameSemantics(source.select(c)) for c in (quoted(name), quoted(name).alias(name))):
                raise InvalidArgumentError(
                    f"the key {name!r} has the name of another column, which would be hidden from the aggregates",
                    hint=f'give it a name of its own: .alias("{name}_key")',
                )
            if name in (WINDOW, WINDOW_TIME) or (name == WINDOW_SPEC and len(self.panes.windows) > 1):
                raise InvalidArgumentError(
                    f"a key cannot be called {name!r}: the result has such a column already",
                    hint=f'rename it: .by(F.col("{name}").alias("..."))',
                )
            names.append(name)
        if len(set(names)) < len(names):
            raise InvalidArgumentError(f"the same key twice in by({', '.join(names)})", hint="leave one out")
        placed = key_partition(partition, choices, cardinality, workers, splitters)
        if placed.partitioning is not None and not names:
            raise InvalidArgumentError(
                f"partition={partition!r} without a key: there is nothing to place", hint="name the key: by(...)"
            )
        return replace(self, stream=stream, keys=tuple(names), partition=placed)

    def agg(self, **aggregates: Aggregate) -> Aggregation:
        """Aggregate each window (and key): ``agg(trips=ab.count(), fare=ab.avg("fare"))``."""
        if not aggregates:
            raise InvalidArgumentError("agg() without an aggregate", hint="write for example agg(rows=ab.count())")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise InvalidArgumentError(
                    f"{name}={aggregate!r} is not an aggregate of Anabranch",
                    hint='write for example ab.avg("fare"), not the function of pyspark.sql.functions',
                )
        taken = {name.lower() for name in (*self.keys, WINDOW, WINDOW_SPEC, WINDOW_TIME)}
        for name in aggregates:
            # Spark's names are the same in upper and lower case.
            if name.lower() in taken:
                raise InvalidArgumentError(
                    f"an aggregate cannot be called {name!r}: the result has such a column already",
                    hint="choose another name",
                )
            taken.add(name.lower())
        query = Query(
            self.stream.source,
            self.stream.time,
            self.panes,
            self.keys,
            dict(aggregates),
            self.rows_per_key,
            f"anabranch-{next(_numbers)}",
            self.partition,
        )
        query.bound  # noqa: B018  # Checks columns and types now, where the user wrote them.
        return Aggregation(query, stream=self.stream)


class Startable(ABC):
    """What the epoch runtime can run."""

    @abstractmethod
    def _emissions(self) -> tuple[tuple[Node, str], ...]:
        """The outputs, as (operator, name of the output)."""

    def to(self, sink: Sink | Mapping[str, Sink]) -> Delivery:
        """Say where the results go; for `anabranch.start`, which takes several."""
        from anabranch.runtime.deliveries import deliver

        return deliver(self._emissions(), sink)

    def start(self, sink: Sink | Mapping[str, Sink], *, checkpoint: str | Path, **settings: Any) -> EpochQuery:
        """Run it in the epoch runtime, and return the handle of the running query.

        `sink` takes the results (`anabranch.FileSink`, ...); an operator with several outputs takes a dictionary of
        them. The settings are those of `anabranch.start`: trigger, qos, listeners, workers, ...
        """
        from anabranch.runtime.start import start

        return start(self.to(sink), checkpoint=checkpoint, **settings)


@dataclass(frozen=True)
class Aggregation(Startable):
    """A windowed aggregate: ready to run, and itself a stream that further windows may be put over."""

    query: Query
    strategy: Strategy | None = None
    max_delay: int | None = None
    statistics: Statistics = UNKNOWN
    stream: Stream | None = None

    def using(
        self,
        strategy: Kind | str = "auto",
        *,
        batch: int = 1,
        nodes: int | None = None,
        max_delay: Duration | None = None,
    ) -> Aggregation:
        """Run by that strategy: "auto", "window", "batch" (of `batch` windows) or "pane" (over `nodes` in a ring).

        On a stream, `max_delay` bounds how long a complete window may wait for the others of its batch.
        """
        delay = None if max_delay is None else micros(max_delay, "max_delay")
        if delay is not None and delay < 0:
            raise InvalidArgumentError(f"max_delay of {describe(delay)}", hint="give zero or more")
        asked = None if strategy == "auto" else Strategy(strategy, batch, nodes)  # type: ignore[arg-type]
        return replace(self, strategy=asked, max_delay=delay)

    def assume(self, *, rows_per_pane: float) -> Aggregation:
        """Tell the planner how many rows a pane of a key has, on average."""
        if not isinstance(rows_per_pane, (int, float)) or not rows_per_pane > 0:
            raise InvalidArgumentError(f"{rows_per_pane!r} rows per pane", hint="give a number above zero")
        return replace(self, statistics=Statistics(rows_per_pane, "as told"))

    def sample(self, share: float = 0.01) -> Aggregation:
        """Let the planner count that share of the panes; runs a small Spark job now."""
        return replace(self, statistics=measure(self.query, share))

    @property
    def metrics(self) -> str:
        """The name under which Spark reports how many rows came and how many had no time (observed metrics)."""
        return self.query.metrics

    def to_df(self, *, observation: Observation | None = None) -> DataFrame:
        """The windows as a DataFrame: batch in, batch out; stream in, stream out.

        Columns: the keys, `window` (struct of start and end), with several windows `window_spec`, the aggregates. Rows
        without a time are left out, counted as `null_time` in Spark's observed metrics (`metrics`, or your
        `observation`), and kept: `bad_rows()` of the stream has them.
        """
        self._check_planned()
        return self._build(self._choice(), observation)

    def explain(self) -> str:
        """The strategy, its price, the prices of those not taken, and the Spark plan in short."""
        self._check_planned()
        choice = self._choice()
        return explain(self.query, choice, self._build(choice, None))

    def order_by_window(self, k: int | None = 0) -> DataFrame:
        """The windows in order: two results that leave out of order are at most k apart.

        A sort gives k = 0, which keeps every other bound too; ``None`` takes them as they come. On streams the ordered
        merge of the runtime does this.
        """
        if k is not None and (not isinstance(k, int) or k < 0):
            raise InvalidArgumentError(f"a disorder of k = {k!r}", hint="k is 0 or more, or None for any order")
        windows = self.to_df()
        if k is None:
            return windows
        if self.query.streaming:
            raise StreamingError("Spark cannot sort a stream", hint="take to_df(), and order what it delivers")
        return windows.orderBy(f"{WINDOW}.start", f"{WINDOW}.end", *(quoted(key) for key in self.query.keys))

    def as_stream(self) -> Stream:
        """The results as a stream, for further windows; their time is `window_time`, the window's last instant."""
        query = self.query
        if query.counts_rows:
            raise InvalidWindowError(
                "the results of count windows have positions, not times",
                hint='aggregate a time too, at=ab.max("time"), and start anew: ab.stream(q.to_df(), time="at")',
            )
        time = TimeColumn(WINDOW_TIME, query.time.kind)
        if self.stream is None or not self.stream.parts:
            return Stream(_with_window_time(self.to_df(), query), time)
        part = Part(Output(self.node, ONLY, time), (lambda rows: _with_window_time(rows, query),))
        try:
            self._check_planned()
            inner = streaming.build_inner(query, None)
        except StreamingError as refusal:
            shape = _with_window_time(query.result_like(batch_plan.build), query)
            return Stream(shape, time, (part,), refusal)
        event = F.window_time("__ab_window")
        columns = [
            *(quoted(k) for k in query.keys),
            streaming.user_window(query, F.col("__ab_window")).alias(WINDOW),
        ]
        if query.time.kind is TimeKind.TIMESTAMP:
            times = [event.alias(WINDOW_TIME)]
        else:
            times = [query.time.from_micros(F.unix_micros(event)).alias(WINDOW_TIME), event.alias(EVENT)]
        return Stream(inner.select(*columns, *map(quoted, query.aggregates), *times), time, (part,))

    def filter(self, condition: Column | str) -> Stream:
        """Only the results for which the condition holds, as a stream."""
        return self.as_stream().filter(condition)

    def window(self, *, size: Duration, slide: Duration | None = None, origin: Duration = 0) -> Windowed:
        """A time window over the results: aggregates after aggregates."""
        return self.as_stream().window(size=size, slide=slide, origin=origin)

    def windows(self, *sizes: tuple[Duration, Duration], origin: Duration = 0) -> Windowed:
        """Several windows over the results."""
        return self.as_stream().windows(*sizes, origin=origin)

    @cached_property
    def node(self) -> WindowNode:
        """This aggregate as a node of the query network."""
        assert self.stream is not None
        inputs = tuple(Input(part, self.query.time) for part in self.stream.parts)
        batch = self.strategy.batch if self.strategy is not None and self.strategy.kind != "window" else None
        return WindowNode(inputs, self.query, WINDOW_GROUPS if self.query.keys else 1, batch)

    def _emissions(self) -> tuple[tuple[Node, str], ...]:
        if self.stream is None or not self.stream.parts:
            raise StreamingError(
                "start() runs a stream, and this is a bounded DataFrame",
                hint="use to_df(), or read it as a stream: anabranch.replay(spark, path, time=...)",
            )
        if self.query.counts_rows:
            raise StreamingError(
                "count windows over a stream have no order that a restart would find again",
                hint="use time windows, or an operator of your own that counts (Stream.process)",
            )
        return ((self.node, ONLY),)

    def _check_planned(self) -> None:
        if self.stream is not None and self.stream.refusal is not None:
            raise self.stream.refusal

    def _choice(self) -> Choice:
        return choose(self.query, self.strategy, self.max_delay, self.statistics)

    def _build(self, choice: Choice, observation: Observation | None) -> DataFrame:
        if self.query.streaming:
            return streaming.build(self.query, choice.taken, observation)
        return batch_plan.build(self.query, choice.taken, observation, self.statistics)


def sliding(
    *,
    time: str,
    size: Duration,
    slide: Duration | None = None,
    origin: Duration = 0,
    by: ColumnLike | tuple[ColumnLike, ...] | list[ColumnLike] = (),
    watermark: Duration | None = None,
    strategy: Kind | str = "auto",
    **aggregates: Aggregate,
) -> Callable[[DataFrame], DataFrame]:
    """One windowed aggregate for `df.transform`.

    >>> df.transform(ab.sliding(time="at", size="5 min", slide="10 s", by="cell", trips=ab.count()))
    """
    keys = tuple(by) if isinstance(by, (tuple, list)) else (by,)

    def transform(source: DataFrame) -> DataFrame:
        rows = stream(source, time=time, watermark=watermark)
        return rows.window(size=size, slide=slide, origin=origin).by(*keys).agg(**aggregates).using(strategy).to_df()

    return transform


def _check_no_watermark(source: DataFrame) -> None:
    marked = [field.name for field in source.schema if _WATERMARK in field.metadata]
    if marked:
        raise StreamingError(
            f"the stream has a watermark on {marked[0]!r} already, and Spark would end it at a second one",
            hint="leave watermark=... out, or the DataFrame's own withWatermark(...)",
        )


def _delay(watermark: Duration) -> str:
    """The delay of a watermark as Spark wants it: in milliseconds. Spark would round down; up keeps what was said."""
    delay = micros(watermark, "watermark")
    if delay < 0:
        raise InvalidArgumentError(
            f"a watermark of {describe(delay)}: rows would be late before they are due", hint="give zero or more"
        )
    return f"{-(-delay // 1_000)} milliseconds"


def _with_window_time(windows: DataFrame, query: Query) -> DataFrame:
    end = F.col(WINDOW)["end"]
    if query.time.kind in (TimeKind.LONG, TimeKind.SECONDS):
        return windows.withColumn(WINDOW_TIME, end - 1)
    last = end - F.expr("INTERVAL '0.000001' SECOND")
    return windows.withColumn(WINDOW_TIME, last)


__all__ = ["Aggregation", "Stream", "Windowed", "sliding", "stream"]
