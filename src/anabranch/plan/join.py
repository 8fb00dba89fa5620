"""Plans for windowed joins.

**Bounded DataFrames.** An equi-join on the keys alone would compare every two rows of a key, whatever their times: the
square of a heavy key's rows. So time is divided into buckets of about W1 + W2, and rows are joined by (keys, bucket):

    bucket      |     0     |     1     |     2     |
    single           a ─────────────────────────────────  in the bucket of its time
    copied                 b ▶ 0 and 1                     in each bucket that may have a partner

The right stream is copied. A left row is in one bucket with all its partners, so a left outer join is Spark's own; a
right outer join copies the left stream instead. A full join is the left outer one, plus the unmatched right rows. More
streams are joined one by one: the time of a partial result is its latest time.

**Streaming DataFrames.** Spark's own stream-stream join; from the condition on the times Spark derives how long to keep
a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from anabranch.errors import StreamingError
from anabranch.names import join_bucket_name, join_copy_name, join_event_name, join_key_name, join_time_name
from anabranch.operators.join.predicate import mask_of
from anabranch.plan.explain import spark_plan
from anabranch.spark.arrow import map_in_arrow
from anabranch.spark.columns import floordiv, quoted
from anabranch.spark.worker_python import check_local_python
from anabranch.windows import describe
from anabranch.windows.durations import MICROS

if TYPE_CHECKING:
    from anabranch.query.join import Join, JoinPredicate

BUCKET_WINDOWS = 2
"""width of a bucket, as a multiple of W1 + W2"""


def build(join: Join) -> DataFrame:
    """The DataFrame of the join's results."""
    if join.predicate is not None and join.how != "inner":
        raise StreamingError(
            f"to_df() does not support a function as `where` of a {join.how} join: Spark could not find unmatched rows",
            hint="write it as a Column or SQL text, or run it with start() over streams",
        )
    results = _streaming(join) if join.streaming else _bounded(join)
    if join.predicate is None:
        return results
    check_local_python(results.sparkSession)
    return map_in_arrow(results, Satisfied(join.predicate), results.schema)


def bucket_width(join: Join, port: int = 1) -> int:
    """The width of the buckets in which stream `port` is joined with those before it, in microseconds."""
    return max(1, BUCKET_WINDOWS * (min(join.within[:port]) + join.within[port]))


@dataclass(frozen=True)
class Satisfied:
    """Keeps the rows for which a user's function holds, batch by batch."""

    predicate: JoinPredicate

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self.of(batch)

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pa.array(mask_of(self.predicate(rows), rows.num_rows))) if rows.num_rows else rows


# --- bounded --------------------------------------------------------------------------------------------------------


def _bounded(join: Join) -> DataFrame:
    left = _rows(join, 0)
    if join.how == "right":
        joined = _single(_rows(join, 1), join, _time(1), 1).join(
            _copied(left, join, _time(0), 1, join.within[1], join.within[0]), _matches(join), "left"
        )
        return _results(joined, join)
    for port in range(1, len(join.sources)):
        latest = F.greatest(*map(_time, range(port))) if port > 1 else _time(0)
        copies = _copied(_rows(join, port), join, _time(port), port, min(join.within[:port]), join.within[port])
        how = "left" if join.how in ("left", "full") else "inner"
        left = _single(left, join, latest, port).join(copies, _matches(join, port), how)
    results = _results(left, join)
    return results.unionByName(_right_only(join)) if join.how == "full" else results


def _right_only(join: Join) -> DataFrame:
    """The unmatched rows of the right stream, as results."""
    right = _single(_rows(join, 1), join, _time(1), 1)
    copies = _copied(_rows(join, 0), join, _time(0), 1, join.within[1], join.within[0])
    alone = right.join(copies, _matches(join), "left_anti")
    keys = [quoted(_key(1, i)).alias(key) for i, key in enumerate(join.on)]
    missing = [F.lit(None).cast(join.schema[name].dataType).alias(name) for _, name in join.columns[0]]
    return alone.select(*keys, *missing, *(quoted(name) for _, name in join.columns[1]))


def _rows(join: Join, port: int) -> DataFrame:
    """The rows of a stream that have a time, with the column names of the result and the time in microseconds."""
    time = join.times[port]
    columns = [*_side(join, port), time.micros().alias(join_time_name(port))]
    return join.sources[port].where(time.usable).select(*columns)


def _single(rows: DataFrame, join: Join, time: Column, port: int) -> DataFrame:
    """Each row in the bucket of its time."""
    return rows.withColumn(join_bucket_name(port), floordiv(time, bucket_width(join, port)))


def _copied(rows: DataFrame, join: Join, time: Column, port: int, before: int, after: int) -> DataFrame:
    """Each row in all buckets that may have partners, from `before` its time until `after` it: two at most."""
    width = bucket_width(join, port)
    first, last = floordiv(time - before, width), floordiv(time + after, width)
    buckets = F.when(first == last, F.array(first)).otherwise(F.array(first, last))
    return rows.withColumn(join_copy_name(port), F.explode(buckets))


def _matches(join: Join, port: int = 1) -> Column:
    """Whether a row of stream `port` matches a partial result."""
    met = [F.col(join_bucket_name(port)) == F.col(join_copy_name(port)), *_equal_keys(join, port)]
    near = [
        (_time(port) >= _time(other) - join.within[port]) & (_time(port) <= _time(other) + join.within[other])
        for other in range(port)
    ]
    return _all(*met, *near, *_where(join, port))


def _time(port: int) -> Column:
    return F.col(join_time_name(port))


# --- streaming ------------------------------------------------------------------------------------------------------


def _streaming(join: Join) -> DataFrame:
    joined = _events(join, 0)
    for port in range(1, len(join.sources)):
        if port > 1:
            # Spark accepts one column with a watermark on each side of a join: that of the first stream.
            plain = F.timestamp_micros(F.unix_micros(quoted(_event_name(join, port - 1))))
            joined = joined.withColumn(_event_name(join, port - 1), plain)
        joined = joined.join(_events(join, port), _meets(join, port), join.how)
    return _results(joined, join)


def _events(join: Join, port: int) -> DataFrame:
    """The rows of a stream that have a time, with Spark's watermark column under a unique name."""
    time = join.times[port]
    event = [] if time.is_event else [time.event.alias(_event_name(join, port))]
    return join.sources[port].where(time.usable).select(*_side(join, port), *event)


def _event_name(join: Join, port: int) -> str:
    time = join.result_times[port]
    return time.name if time.is_event else join_event_name(port)


def _meets(join: Join, port: int) -> Column:
    event = quoted(_event_name(join, port))
    near = []
    for other in range(port):
        earlier = quoted(_event_name(join, other))
        near += [event >= earlier - _interval(join.within[port]), event <= earlier + _interval(join.within[other])]
    return _all(*_equal_keys(join, port), *near, *_where(join, port))


def _interval(duration: int) -> Column:
    seconds, rest = divmod(duration, MICROS)
    return F.expr(f"INTERVAL '{seconds}.{rest:06}' SECOND")


# --- both -----------------------------------------------------------------------------------------------------------


def _side(join: Join, port: int) -> list[Column]:
    """The keys, and the other columns under their names in the result."""
    keys = [quoted(key).alias(_key(port, i, key)) for i, key in enumerate(join.on)]
    return [*keys, *(quoted(name).alias(to) for name, to in join.columns[port])]


def _key(port: int, number: int, name: str = "") -> str:
    """The first stream's keys keep their names, for `where`."""
    return name if port == 0 else join_key_name(port, number)


def _equal_keys(join: Join, port: int) -> list[Column]:
    return [quoted(key) == quoted(_key(port, i)) for i, key in enumerate(join.on)]


def _where(join: Join, port: int) -> list[Column]:
    last = port == len(join.sources) - 1
    return [join.condition] if last and join.condition is not None else []


def _all(*conditions: Column) -> Column:
    return reduce(lambda one, other: one & other, conditions)


def _results(joined: DataFrame, join: Join) -> DataFrame:
    keys = [quoted(key) for key in join.on]
    if join.how in ("right", "full"):
        keys = [F.coalesce(key, quoted(_key(1, i))).alias(join.on[i]) for i, key in enumerate(keys)]
    return joined.select(*keys, *(quoted(name) for columns in join.columns for _, name in columns))


# --- as text --------------------------------------------------------------------------------------------------------


def explain(join: Join, results: DataFrame) -> str:
    """The text that `explain()` returns."""
    lines = [f"join        {join.how}, on {', '.join(join.on)}"]
    for port, (window, time) in enumerate(zip(join.within, join.times, strict=True)):
        lines.append(f"stream {port}    window {describe(window)}, time {time.name} ({time.kind.value})")
    if join.where_label is not None:
        by = "Spark, with the join" if join.predicate is None else "Python, after the join"
        lines.append(f"where       {join.where_label} (by {by})")
    lines += _how_streams(join) if join.streaming else _how_bounded(join)
    lines += ["", "Spark plan, from the source to the result:", *(f"  {step}" for step in spark_plan(results))]
    return "\n".join(lines)


def _how_bounded(join: Join) -> list[str]:
    lines = []
    for port in range(1, len(join.sources)):
        width, window = bucket_width(join, port), min(join.within[:port]) + join.within[port]
        copied = {"right": "stream 0", "full": "stream 1, and stream 0 to find the right rows without a partner"}
        what = copied.get(join.how, f"stream {port}")
        lines.append(
            f"buckets     of {describe(width)}; copied: {what}, {1 + window / width:.2f} copies of a row (at most 2)"
        )
    return lines


def _how_streams(join: Join) -> list[str]:
    return [
        "runs as     Spark's own stream-stream join: a row is kept until the watermarks say that no partner can come",
        "start()     would keep rows in blocks, on workers that share the keys by load, and move them when it shifts",
    ]
