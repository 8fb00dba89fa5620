"""Windows over a stream, and aggregates over them: `Stream.window(...).by(...).agg(...)`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from anabranch.aggregates import Aggregate, ColumnLike
from anabranch.api.processing import to_the_only
from anabranch.api.reprs import aggregation_repr, windowed_repr
from anabranch.api.startable import Startable
from anabranch.api.stream import Stream
from anabranch.calls import called_as
from anabranch.errors import ColumnTypeError, InvalidArgumentError, InvalidWindowError, StreamingError
from anabranch.keys.policy import AUTO_PARTITION, KeyPartition, key_partition
from anabranch.names import EVENT, OPEN, OWN_WINDOW, POSITION, plain_name
from anabranch.operators.numbering import DROPPED, DROPPED_SCHEMA, NUMBERED, Numbering
from anabranch.plan import batch as batch_plan
from anabranch.plan import streaming
from anabranch.plan.choose import Choice, choose, default_batch, measure
from anabranch.plan.explain import explain
from anabranch.plan.panes import WINDOW, WINDOW_SPEC
from anabranch.plan.placement import check_used
from anabranch.plan.positions import tie_breaks
from anabranch.plan.prices import UNKNOWN, Statistics
from anabranch.query.nodes import ONLY, Input, Node, PositionsNode, Routing, WindowNode
from anabranch.query.origins import Branch, Output
from anabranch.query.refusal import Refusal
from anabranch.query.strategy import Kind, Strategy, asked_strategy
from anabranch.query.windowed import Query, analysed, resolve
from anabranch.spark.column_names import find_column
from anabranch.spark.columns import TimeColumn, TimeKind, quote, quoted
from anabranch.windows import Duration, Panes, describe, micros

WINDOW_TIME = "window_time"
"""the time of a window's result, for aggregates that follow: its last instant, as Spark's `window_time()`"""

WINDOW_GROUPS = 16
"""partition-groups of a windowed aggregate with keys, in the epoch runtime"""

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Windowed:
    """A stream divided into windows."""

    stream: Stream
    panes: Panes
    keys: tuple[str, ...] = ()
    rows_per_key: bool = True
    partition: KeyPartition = AUTO_PARTITION

    @called_as('.by("cell"), or .by("cell", partition="cam")')
    def by(
        self,
        *keys: ColumnLike,
        partition: str = "auto",
        choices: int | None = None,
        cardinality: str | None = None,
        workers: int | None = None,
        splitters: int | None = None,
    ) -> Windowed:
        """Group by these columns, or expressions with an alias.

        `partition` is the policy that places keys on workers (`anabranch.keys.policy` has the table): "sh", "fld",
        "pk", "cm", "am", "cam", "lm" or "heavy". For policies with candidate workers, `choices` is their number per key
        (default 2); policies that count keys do so exactly, or by HyperLogLog (`cardinality="hll"`). "auto" leaves
        the exchange to Spark where Spark combines rows before it, and chooses a policy for aggregates in Python that
        can be evaluated in parts. The policy changes what a query costs, never its result. `explain()` shows it. On a
        stream it is for `start()`: the fixed plan of `to_df()` cannot place keys.
        """
        stream, names = self.stream, []
        for key in keys:
            source = stream.source
            column = resolve(source, key)
            chosen = analysed("a key", source, partial(source.select, column))
            name = chosen.columns[0]
            known = find_column(source.sparkSession, source.columns, quote(name))
            if known is None:
                stream = stream.with_columns({name: column})
            elif not any(chosen.sameSemantics(source.select(c)) for c in (quoted(known), quoted(known).alias(name))):
                raise InvalidArgumentError(
                    f"the key {name!r} has the name of another column: the aggregates could not use that column",
                    hint=f'give it another name: .alias("{name}_key")',
                )
            else:
                name = known
            if name in (WINDOW, WINDOW_TIME) or (name == WINDOW_SPEC and len(self.panes.windows) > 1):
                raise InvalidArgumentError(
                    f"a key cannot be called {name!r}: the result already has a column of that name",
                    hint=f'rename it: .by(F.col("{name}").alias("..."))',
                )
            names.append(name)
        if len(set(names)) < len(names):
            raise InvalidArgumentError(f"by({', '.join(names)}) names the same key twice", hint="name it once")
        policy = key_partition(partition, choices, cardinality, workers, splitters)
        if policy.partitioning is not None and not names:
            raise InvalidArgumentError(
                f"partition={partition!r} needs a key: there is nothing to place",
                hint=f'name the key: by("cell", partition={partition!r})',
            )
        return replace(self, stream=stream, keys=tuple(names), partition=policy)

    @called_as('.agg(trips=ab.count(), fare=ab.avg("fare"))')
    def agg(self, **aggregates: Aggregate) -> Aggregation:
        """Aggregate each window (and key): ``agg(trips=ab.count(), fare=ab.avg("fare"))``."""
        if not aggregates:
            raise InvalidArgumentError(
                "agg() needs at least one aggregate", hint="write, for example, agg(rows=ab.count())"
            )
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise InvalidArgumentError(
                    f"{name}={aggregate!r} is not an aggregate of Anabranch",
                    hint='write, for example, ab.avg("fare"), not the function of pyspark.sql.functions',
                )
        taken = {name.lower() for name in (*self.keys, WINDOW, WINDOW_SPEC, WINDOW_TIME)}
        for name in aggregates:
            # Spark's names do not distinguish upper and lower case.
            if name.lower() in taken:
                raise InvalidArgumentError(
                    f"an aggregate cannot be called {name!r}: the result already has a column of that name",
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
        check_used(query)
        return Aggregation(query, stream=self.stream)

    def __repr__(self) -> str:
        return windowed_repr(self)


@dataclass(frozen=True)
class Aggregation(Startable):
    """A windowed aggregate: ready to run, and itself a stream for further windows."""

    query: Query
    strategy: Strategy | None = None
    batch: int | None = None
    """B, if the user gave it"""
    max_delay: int | None = None
    statistics: Statistics = UNKNOWN
    stream: Stream | None = None

    @called_as('.using("batch", batch=10)')
    def using(
        self,
        strategy: Kind | str = "auto",
        *,
        batch: int | None = None,
        nodes: int | None = None,
        max_delay: Duration | None = None,
    ) -> Aggregation:
        """Run with this strategy: "auto", "window", "batch" (of `batch` windows) or "pane" (over `nodes` in a ring).

        Panes are evaluated in batches of `batch` windows too; by default the planner chooses. On a stream the windows
        of a batch leave together, and `max_delay` bounds how long a complete one may wait for the others. `start()`
        supports panes only; see docs/options.md.
        """
        delay = None if max_delay is None else micros(max_delay, "max_delay")
        if delay is not None and delay < 0:
            raise InvalidArgumentError(
                f"max_delay={describe(delay)} is negative", hint="give zero or more, or leave it out"
            )
        on_stream = self.stream is not None and bool(self.stream.branches)
        asked = asked_strategy(strategy, batch, nodes, on_stream=on_stream, keyed=bool(self.query.keys))
        if asked is not None and asked.kind == "pane" and batch is None and self.query.streaming:
            asked = replace(asked, batch=default_batch(self.query, delay))
        return replace(self, strategy=asked, batch=batch, max_delay=delay)

    @called_as(".assume(rows_per_pane=50)")
    def assume(self, *, rows_per_pane: float) -> Aggregation:
        """Tell the planner how many rows a pane of a key has, on average."""
        if not isinstance(rows_per_pane, (int, float)) or not rows_per_pane > 0:
            raise InvalidArgumentError(
                f"rows_per_pane must be above zero, not {rows_per_pane!r}", hint="write, for example, rows_per_pane=50"
            )
        return replace(self, statistics=Statistics(rows_per_pane, "given by assume()"))

    def sample(self, share: float = 0.01) -> Aggregation:
        """Let the planner count this share of the panes; runs a small Spark job immediately."""
        return replace(self, statistics=measure(self.query, share))

    @property
    def metrics(self) -> str:
        """The name of the observed metrics in which Spark reports the rows read and the rows without a time."""
        return self.query.metrics

    @called_as(".to_df(), or .to_df(observation=Observation())")
    def to_df(self, *, observation: Observation | None = None) -> DataFrame:
        """The windows as a DataFrame: batch in, batch out; stream in, stream out.

        Columns: the keys, `window` (struct of start and end), with several windows `window_spec`, the aggregates. Rows
        without a time are left out and counted as `null_time` in Spark's observed metrics (`metrics`, or your
        `observation`); `bad_rows()` of the stream returns them.
        """
        self._check_planned()
        return self._build(self._choice(), observation)

    def explain(self) -> str:
        """The strategy, its price, the prices of the others, and a summary of the Spark plan."""
        self._check_planned()
        choice = self._choice()
        return explain(self.query, choice, self._build(choice, None))

    @called_as(".order_by_window()")
    def order_by_window(self, k: int | None = 0) -> DataFrame:
        """The windows in order: two results that are out of order are at most k apart.

        The rows are sorted completely unless k is ``None``. For bounded data only: on a stream,
        ``start(..., qos=QoS(disorder=k))`` delivers results in order.
        """
        if k is not None and (not isinstance(k, int) or k < 0):
            raise InvalidArgumentError(
                f"k={k!r} is not a bound on disorder", hint="give 0 or more, or None for any order"
            )
        windows = self.to_df()
        if k is None:
            return windows
        if self.query.streaming:
            raise StreamingError(
                "Spark cannot sort a stream", hint="run it with start(..., qos=ab.QoS(disorder=0)) instead of to_df()"
            )
        return windows.orderBy(f"{WINDOW}.start", f"{WINDOW}.end", *(quoted(key) for key in self.query.keys))

    def as_stream(self) -> Stream:
        """The results as a stream, for further windows; their time is `window_time`, the window's last instant."""
        query = self.query
        if query.counts_rows:
            raise InvalidWindowError(
                "the results of count windows have positions, not times",
                hint='aggregate a time too, at=ab.max("time"), and make a new stream: ab.stream(q.to_df(), time="at")',
            )
        time = TimeColumn(WINDOW_TIME, query.time.kind)
        if self.stream is None or not self.stream.branches:
            return Stream(_with_window_time(self.to_df(), query), time)
        branch = Branch(Output(self.node, ONLY, time), (lambda rows: _with_window_time(rows, query),))
        try:
            self._check_planned()
            inner = streaming.build_inner(query, None, self.strategy)
        except StreamingError as error:
            shape = _with_window_time(query.result_like(batch_plan.build), query)
            return Stream(shape, time, (branch,), Refusal.of(error))
        event = F.window_time(OWN_WINDOW)
        columns = [
            *(quoted(k) for k in query.keys),
            streaming.user_window(query, F.col(OWN_WINDOW)).alias(WINDOW),
        ]
        if query.time.kind is TimeKind.TIMESTAMP:
            times = [event.alias(WINDOW_TIME)]
        else:
            times = [query.time.from_micros(F.unix_micros(event)).alias(WINDOW_TIME), event.alias(EVENT)]
        return Stream(inner.select(*columns, *map(quoted, query.aggregates), *times), time, (branch,))

    @called_as('.filter("trips > 3")')
    def filter(self, condition: Column | str) -> Stream:
        """Only the results for which the condition holds, as a stream."""
        return self.as_stream().filter(condition)

    @called_as('.window(size="1 h", slide="10 min")')
    def window(self, *, size: Duration, slide: Duration | None = None, origin: Duration = "0 s") -> Windowed:
        """A time window over the results: aggregates after aggregates."""
        return self.as_stream().window(size=size, slide=slide, origin=origin)

    @called_as('.windows(("5 min", "10 s"), ("1 h", "10 s"))')
    def windows(self, *sizes: tuple[Duration, Duration], origin: Duration = "0 s") -> Windowed:
        """Several windows over the results."""
        return self.as_stream().windows(*sizes, origin=origin)

    @cached_property
    def node(self) -> WindowNode:
        """This aggregate as a node of the query network."""
        assert self.stream is not None
        if self.query.counts_rows:
            return replace(
                _count_windows(self.query, self.stream.branches), batch=self.batch, refusal=self._not_for_start()
            )
        inputs = tuple(Input(branch, self.query.time) for branch in self.stream.branches)
        groups = WINDOW_GROUPS if self.query.keys else 1
        return WindowNode(inputs, self.query, groups, self.batch, self._not_for_start())

    def _not_for_start(self) -> Refusal | None:
        """What only `to_df()` supports. Refused only when it is started, since both ways to run have this node."""
        if self.strategy is not None and self.strategy.kind != "pane":
            return Refusal(
                f"start() evaluates panes and does not support the strategy {self.strategy.kind!r}",
                hint='leave using(...) out, or write using("pane", batch=...) for windows that leave together',
            )
        if self.max_delay is not None:
            return Refusal(
                f"start() does not support max_delay={describe(self.max_delay)}: its windows wait only in a batch",
                hint="leave it out; with start(..., qos=ab.QoS(max_latency=...)) a controller chooses the batch",
            )
        if self.statistics is not UNKNOWN:
            return Refusal(
                "start() does not support assume(...): it counts rows itself while it runs",
                hint="leave assume(...) out",
            )
        return None

    def __repr__(self) -> str:
        return aggregation_repr(self)

    def _emissions(self) -> tuple[tuple[Node, str], ...]:
        if self.stream is None or not self.stream.branches:
            raise StreamingError(
                "start() runs streams, and this is a bounded DataFrame",
                hint="use to_df(), or read it as a stream: anabranch.replay(spark, path, time=...)",
            )
        return ((self.node, ONLY),)

    def _check_planned(self) -> None:
        if self.stream is not None:
            self.stream._check_planned()

    def _choice(self) -> Choice:
        return choose(self.query, self.strategy, self.max_delay, self.statistics)

    def _build(self, choice: Choice, observation: Observation | None) -> DataFrame:
        if self.query.streaming:
            return streaming.build(self.query, choice.taken, observation)
        return batch_plan.build(self.query, choice.taken, observation, self.statistics, self.strategy)


def _count_windows(query: Query, branches: Sequence[Branch]) -> WindowNode:
    """Count windows as two operators: one numbers the rows in time order, one makes windows over positions."""
    _check_countable(query)
    fields = [field for field in query.source.schema if field.name != EVENT]
    # Spark passes rows to Python by column names, without quotes: columns with odd names are renamed for the trip.
    plain = {f.name: plain_name(i) if set(f.name) & set(".`") else f.name for i, f in enumerate(fields)}
    renamed = [quoted(name).alias(to) for name, to in plain.items()]
    back = [quoted(to).alias(name) for name, to in plain.items()]
    odd = any(name != to for name, to in plain.items())
    if odd:
        branches = [branch.then(lambda rows: rows.select(*renamed)) for branch in branches]
    time = TimeColumn(plain[query.time.name], query.time.kind)
    keys = tuple(plain[key] for key in query.keys) if query.rows_per_key else ()
    ties = tuple(plain[name] for name in tie_breaks(query, query.source))
    columns = [StructField(plain[field.name], field.dataType) for field in fields]
    schema = StructType([*columns, StructField(POSITION, LongType()), StructField(OPEN, BooleanType())])
    positions = PositionsNode(
        tuple(Input(branch, time) for branch in branches),
        Routing(WINDOW_GROUPS, keys) if keys else Routing(1, route=to_the_only),
        Numbering(keys, time.name, ties, query.panes.windows, query.keys if keys else ()),
        {NUMBERED: schema, DROPPED: from_arrow_schema(DROPPED_SCHEMA)},
    )
    numbered = Branch(Output(positions, NUMBERED, time))
    if odd:
        numbered = numbered.then(lambda rows: rows.select(*back, POSITION, OPEN))
    # Counted over all rows, the windows of all keys fill up together: one group must see all rows.
    return WindowNode((Input(numbered, query.time),), query, WINDOW_GROUPS if keys else 1)


def _check_countable(query: Query) -> None:
    if query.partition != AUTO_PARTITION:
        raise InvalidArgumentError(
            "count windows over a stream do not support partition=, workers= or splitters= of by(...): to be counted, "
            "the rows of a key must be in one place",
            hint="leave them out",
        )
    for key in query.keys:
        kind = query.source.schema[key].dataType
        if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            raise ColumnTypeError(
                f"count windows over a stream cannot use the key {key!r}, which has a collation: equal strings "
                "would be counted as different keys",
                hint=f'use a key without one, for example .by(F.lower("{key}").cast("string").alias("{key}_key"))',
            )


def _with_window_time(windows: DataFrame, query: Query) -> DataFrame:
    end = F.col(WINDOW)["end"]
    if query.time.kind in (TimeKind.LONG, TimeKind.SECONDS):
        return windows.withColumn(WINDOW_TIME, end - 1)
    last = end - F.expr("INTERVAL '0.000001' SECOND")
    return windows.withColumn(WINDOW_TIME, last)
