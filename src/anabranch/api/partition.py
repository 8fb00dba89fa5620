"""Key partitioners for any DataFrame: `partition_by` places its rows, `partition_report` shows what that costs.

    df.transform(ab.partition_by("user", workers=8, policy="cam", time="at", window="10 minutes"))
    ab.partition_report(df, "user", workers=8, policies=("fld", "pk", "cam"), time="at", window="10 minutes").show()

All rows of a worker are in one partition: `mapInArrow`, `mapInPandas` or a `groupBy` on the column `worker` then need
no further exchange. With a policy that splits keys, you combine the partial results in a second step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from anabranch.aggregates import ColumnLike
from anabranch.calls import called_as
from anabranch.errors import InvalidArgumentError
from anabranch.keys.hashing import key_hash
from anabranch.keys.metrics import WindowLoads
from anabranch.keys.policy import COUNTING_KEYS, POLICIES_COMPARED, WITH_CHOICES, Partitioning, key_partition
from anabranch.names import HASH, OWN_WINDOW, WORKER, key_name
from anabranch.plan.partitioned import Assign
from anabranch.query.windowed import resolve
from anabranch.spark.arrow import arrow_schema, map_in_arrow
from anabranch.spark.column_names import column_name, find_column
from anabranch.spark.columns import TimeColumn, TimeKind, TimeUnit, check_unit, floordiv, quote, quoted
from anabranch.spark.order import in_fixed_order, order_may_change
from anabranch.spark.worker_python import check_local_python
from anabranch.split.key_routes import KeyRoute
from anabranch.windows import Duration, Window
from anabranch.windows.durations import MICROS
from anabranch.windows.ids import Stretch, pane_of

_TICKS: dict[TimeUnit, int] = {"s": MICROS, "ms": 1_000, "us": 1}

_METRICS = StructType(
    [
        StructField("policy", StringType()),
        StructField("window", LongType()),
        StructField("workers", IntegerType()),
        *(StructField(name, LongType()) for name in ("tuples", "keys")),
        *(StructField(f"{of}_imbalance", DoubleType()) for of in ("tuple", "cardinality", "hybrid")),
        *(StructField(name, LongType()) for name in ("aggregation_cost", "least_cost", "most_cost")),
    ]
)


@called_as('df.transform(ab.partition_by("user", workers=8))')
def partition_by(
    *keys: ColumnLike,
    workers: int,
    policy: str = "cam",
    choices: int | None = None,
    cardinality: str | None = None,
    time: str | None = None,
    window: Duration | None = None,
    time_unit: TimeUnit | None = None,
    splitters: int | None = None,
    worker: str | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Place the rows of a DataFrame on `workers` partitions by a policy; for ``df.transform``.

    The policies are those of `Windowed.by`. Their counts are reset with every `window` of the column `time`, which can
    be left out if there is only one timestamp; for a bigint give the `time_unit`: "s", "ms" or "us". Without a window,
    the DataFrame (on a stream: each micro-batch) is one window. Each task that reads is a splitter; `splitters` limits
    their number. With `worker`, a column of that name has the worker of each row.
    """
    partitioning = _policy(policy, choices, cardinality, workers, splitters) or Partitioning("cam")
    if worker is not None and not isinstance(worker, str):
        raise InvalidArgumentError(f"worker={worker!r} is not the name of a column", hint='write worker="worker"')
    if not keys:
        raise InvalidArgumentError(
            "partition_by() needs at least one key column", hint='write, for example, partition_by("user", workers=8)'
        )

    def transform(source: DataFrame) -> DataFrame:
        if worker is not None and find_column(source.sparkSession, source.columns, quote(worker)) is not None:
            raise InvalidArgumentError(
                f"the DataFrame already has a column {worker!r}, which worker={worker!r} would hide",
                hint="give worker=... another name",
            )
        timed = _timed(source, time, window, time_unit)
        number = F.lit(0).cast("bigint") if timed is None else timed.number
        assigned = _assigned(source, keys, partitioning, workers, number, splitters)
        exchanged = assigned.repartitionById(workers, WORKER)
        return exchanged.drop(WORKER) if worker is None else exchanged.withColumnRenamed(WORKER, worker)

    return transform


@called_as('ab.partition_report(df, "user", workers=8)')
def partition_report(
    source: DataFrame,
    *keys: ColumnLike,
    workers: int,
    policies: Sequence[str] = POLICIES_COMPARED,
    choices: int | None = None,
    cardinality: str | None = None,
    time: str | None = None,
    window: Duration | None = None,
    time_unit: TimeUnit | None = None,
    splitters: int | None = None,
) -> DataFrame:
    """What each policy would cost: one row per policy and window, with exact metrics.

    Columns: policy, window (its number; multiply by the window's size for its start), workers, tuples, keys (distinct),
    tuple_imbalance, cardinality_imbalance, hybrid_imbalance, aggregation_cost and its bounds, least_cost and most_cost;
    `anabranch.keys.metrics` defines them. `choices` is for the policies that have candidates; with
    `cardinality="hll"`, those that count keys estimate them.
    """
    if source.isStreaming:
        raise InvalidArgumentError(
            "partition_report() needs bounded data, and this is a stream",
            hint="run the stream with start(), which measures it: see lastProgress and explain()",
        )
    if not policies:
        raise InvalidArgumentError(
            "policies is empty: there is nothing to compare", hint='write, for example, policies=("fld", "pk", "cam")'
        )
    for name, given, having in (("choices", choices, WITH_CHOICES), ("cardinality", cardinality, COUNTING_KEYS)):
        if given is not None and not having & set(policies):
            raise InvalidArgumentError(
                f"{name}={given!r} has no effect on the policies {', '.join(policies)}",
                hint=f"leave it out, or add one of {', '.join(sorted(having))}",
            )
    timed = _timed(source, time, window, time_unit)
    reports = []
    for policy in policies:
        candidates = choices if policy in WITH_CHOICES else None
        counting = cardinality if policy in COUNTING_KEYS else None
        partitioning = _policy(policy, candidates, counting, workers, splitters)
        if partitioning is None:
            raise InvalidArgumentError(
                '"auto" cannot be compared: it leaves the choice of a policy to Anabranch',
                hint='name policies, for example policies=("fld", "pk", "cam")',
            )
        reports.append(_report(source, keys, partitioning, workers, timed, splitters))
    whole = reports[0]
    for each in reports[1:]:
        whole = whole.unionAll(each)
    return whole


def _policy(
    policy: str, choices: int | None, cardinality: str | None, workers: int, splitters: int | None
) -> Partitioning | None:
    if workers is None:
        raise InvalidArgumentError("workers must be a positive whole number, not None", hint="write workers=8")
    found = key_partition(policy, choices, cardinality, workers, splitters).partitioning
    if found is not None and found.policy == "heavy":
        raise InvalidArgumentError(
            'the policy "heavy" needs the keys of the previous epoch, which a DataFrame does not have',
            hint='use "cam"; "heavy" is for windowed aggregates: .by(..., partition="heavy")',
        )
    return found


@dataclass(frozen=True)
class _Timed:
    """The time column, and the windows over it."""

    time: TimeColumn
    tick: int
    """microseconds per unit of a bigint"""
    size: int

    @property
    def number(self) -> Column:
        """The number of the window that a row is in."""
        micros = self.time.micros()
        number: Column = pane_of(micros if self.tick == 1 else micros * self.tick, self.size, 0, floordiv)
        return number


def _timed(source: DataFrame, time: str | None, window: Duration | None, unit: TimeUnit | None) -> _Timed | None:
    if window is None:
        if time is not None or unit is not None:
            raise InvalidArgumentError(
                "time= and time_unit= need window=, the interval after which counts are reset",
                hint='write time="at", window="10 minutes", or leave all of them out',
            )
        return None
    if time is None:
        times = [field.name for field in source.schema if isinstance(field.dataType, TimestampType | TimestampNTZType)]
        if len(times) != 1:
            raise InvalidArgumentError(
                f"window={window!r} needs a time column; the timestamps are: {', '.join(times) or 'none'}",
                hint='name the column: time="at"',
            )
        time = times[0]
    time = column_name(source.sparkSession, source.columns, time)
    column = TimeColumn(time, TimeKind.of(time, source.schema[time].dataType))
    check_unit(time, column.kind, unit)
    tick = _TICKS[unit] if column.kind is TimeKind.LONG and unit is not None else 1
    return _Timed(column, tick, Window.of_time(window).size)


def _assigned(
    source: DataFrame,
    keys: Sequence[ColumnLike],
    partitioning: Partitioning,
    workers: int,
    window: Column,
    splitters: int | None,
) -> DataFrame:
    """The rows with their worker; `window` is the number of the window whose counts apply."""
    rows = source if splitters is None else source.coalesce(splitters)
    hashed = key_hash([resolve(source, key) for key in keys])
    rows = rows.withColumns({HASH: hashed, OWN_WINDOW: window})
    if not partitioning.by_key_alone and order_may_change(rows):
        rows = in_fixed_order(rows, OWN_WINDOW)
    route = KeyRoute(partitioning, hashed=HASH, time=OWN_WINDOW, stretch=Stretch(1))
    fields = [StructField(field.name, field.dataType) for field in source.schema]
    schema = StructType([*fields, StructField(WORKER, IntegerType())])
    check_local_python(source.sparkSession)
    return map_in_arrow(rows, Assign(route, workers, tuple(schema.names)), schema)


def _report(
    source: DataFrame,
    keys: Sequence[ColumnLike],
    partitioning: Partitioning,
    workers: int,
    timed: _Timed | None,
    splitters: int | None,
) -> DataFrame:
    plain = [key_name(i) for i in range(len(keys))]
    named = [resolve(source, key).alias(name) for key, name in zip(keys, plain, strict=True)]
    window = F.lit(0).cast("bigint") if timed is None else timed.number
    narrow = source.select(window.alias("window"), *named)
    assigned = _assigned(narrow, plain, partitioning, workers, F.col("window"), splitters)
    pairs = assigned.groupBy("window", WORKER, *plain).agg(F.count(F.lit(1)).alias("n"))
    loads = pairs.groupBy("window", WORKER).agg(F.sum("n").alias("tuples"), F.count(F.lit(1)).alias("keys"))
    per_window = loads.groupBy("window").agg(F.collect_list(F.struct(quoted(WORKER), "tuples", "keys")).alias("loads"))
    distinct = narrow.distinct().groupBy("window").agg(F.count(F.lit(1)).alias("distinct"))
    joined = per_window.join(distinct, per_window["window"].eqNullSafe(distinct["window"])).select(
        per_window["window"], "loads", "distinct"
    )
    return map_in_arrow(joined, _Metrics(partitioning.label, workers), _METRICS)


_ARROW = arrow_schema(_METRICS)


@dataclass(frozen=True)
class _Metrics:
    """Computes metrics from the loads of a window, in `map_in_arrow`."""

    label: str
    workers: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = []
            for row in batch.to_pylist():
                tuples, keys = [0] * self.workers, [0] * self.workers
                for load in row["loads"]:
                    tuples[load[WORKER]], keys[load[WORKER]] = load["tuples"], load["keys"]
                found = WindowLoads(tuple(tuples), tuple(keys), row["distinct"]).metrics().to_json()
                rows.append({"policy": self.label, "window": row["window"], **found})
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)
