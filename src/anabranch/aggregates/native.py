"""The built-in aggregates. Lift and lower are Spark's own functions, compiled by Spark.

Nulls are ignored, as in Spark's aggregates; an aggregate over only nulls is null (a count is 0). `first` and `last` go
by time and follow Spark's `min_by` / `max_by`, in which null is an ordinary value.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import partial

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from anabranch.aggregates import folds
from anabranch.aggregates.base import Aggregate, Bound, ColumnLike, Inputs, State
from anabranch.aggregates.sums import checked_avg, checked_sum, sum_type
from anabranch.calls import called_as
from anabranch.errors import ColumnTypeError, InvalidArgumentError

_SUM = folds.Sum()
_LEAST, _GREATEST = folds.Extreme(greatest=False), folds.Extreme(greatest=True)


@called_as("ab.count()")
def count(column: ColumnLike | None = None) -> Aggregate:
    """The number of rows; with a column, of rows in which it is not null."""

    def bind(inputs: Inputs) -> Bound:
        rows = F.count(inputs.columns[0]) if inputs.columns else F.count(F.lit(1))
        return Bound((State(rows, _SUM, F.sum),), _first, rows)

    return Aggregate("count", () if column is None else (column,), bind, invertible=True)


@called_as('ab.sum("fare")')
def sum(column: ColumnLike) -> Aggregate:
    """The sum; exact for integers, and an overflow is an error."""

    def bind(inputs: Inputs) -> Bound:
        value, kind = _numeric("sum", inputs), sum_type(inputs.types[0])
        total = checked_sum(value, kind)
        return Bound((State(total, _SUM, partial(checked_sum, kind=kind)),), _first, total)

    return Aggregate("sum", (column,), bind, invertible=True)


@called_as('ab.avg("fare")')
def avg(column: ColumnLike) -> Aggregate:
    """The mean: a double, or for decimals a decimal with four more places, as in Spark."""

    def bind(inputs: Inputs) -> Bound:
        value, kind = _numeric("avg", inputs), inputs.types[0]
        if isinstance(kind, DecimalType):
            # Divided in the fold: Spark's division of two decimals keeps fewer digits than its average.
            result = _bounded_decimal(kind.precision + 4, kind.scale + 4)
            total = F.struct(checked_sum(value, sum_type(kind)).alias("sum"), F.count(value).alias("n"))
            mean = State(total, folds.DecimalMean(result.precision, result.scale), result=result)
            return Bound((mean,), _first, checked_avg(value, result))
        value = value.cast("double")
        states = (State(F.sum(value), _SUM, F.sum), State(F.count(value), _SUM, F.sum))
        return Bound(states, lambda s: F.when(s[1] > 0, s[0] / s[1]), F.avg(value))

    return Aggregate("avg", (column,), bind, invertible=True)


@called_as('ab.min("fare")')
def min(column: ColumnLike) -> Aggregate:
    """The smallest value, of any type with an order. NaN is above every number, as in Spark."""
    return _extreme("min", column, F.min, _LEAST)


@called_as('ab.max("fare")')
def max(column: ColumnLike) -> Aggregate:
    """The largest value, of any type with an order."""
    return _extreme("max", column, F.max, _GREATEST)


@called_as('ab.variance("fare")')
def variance(column: ColumnLike, *, population: bool = False) -> Aggregate:
    """The sample variance (or population variance); null for a single row, as in Spark."""
    return _spread("variance", column, population, lambda v: v, F.var_pop if population else F.var_samp)


@called_as('ab.stddev("fare")')
def stddev(column: ColumnLike, *, population: bool = False) -> Aggregate:
    """The sample standard deviation (or population standard deviation)."""
    return _spread("stddev", column, population, F.sqrt, F.stddev_pop if population else F.stddev_samp)


@called_as('ab.first("fare")')
def first(column: ColumnLike) -> Aggregate:
    """The value of the earliest row; the smallest if several rows have that time."""
    return _by_time("first", column, F.min, last=False)


@called_as('ab.last("fare")')
def last(column: ColumnLike) -> Aggregate:
    """The value of the latest row; the largest if several rows have that time."""
    return _by_time("last", column, F.max, last=True)


@called_as('ab.count_distinct("cell")')
def count_distinct(column: ColumnLike, *, approx: bool = False, lg_k: int | None = None) -> Aggregate:
    """The number of distinct values: exact, or with `approx` by HyperLogLog with 2^lg_k registers, by default 2^12.

    The exact form keeps every pane's set of values; the approximate one keeps a sketch of at most 2^lg_k bytes, with
    a relative error of about 1.04 / sqrt(2^lg_k).
    """
    if lg_k is not None and not approx:
        raise InvalidArgumentError(
            f"lg_k={lg_k!r} without approx=True: an exact count has no sketch, so the setting would be ignored",
            hint="add approx=True, or leave lg_k out",
        )
    lg_k = 12 if lg_k is None else lg_k
    if not _whole(lg_k) or not 4 <= lg_k <= 21:
        raise InvalidArgumentError(
            f"lg_k={lg_k!r} is not between 4 and 21", hint="use 12: a HyperLogLog of 4,096 registers"
        )

    def exact(inputs: Inputs) -> Bound:
        values = F.collect_set(_orderable("count_distinct", inputs))
        # size() of the set, because streams refuse count(distinct).
        return Bound((State(values, folds.DistinctCount(), result=LongType()),), _first, F.size(values).cast("long"))

    def sketch(inputs: Inputs) -> Bound:
        value = _hashable("count_distinct(approx)", inputs)
        lift = F.hll_sketch_agg(value, F.lit(lg_k))
        return Bound((State(lift, folds.HllEstimate(), result=LongType()),), _first, F.hll_sketch_estimate(lift))

    return Aggregate("count_distinct", (column,), sketch if approx else exact, invertible=not approx)


@called_as('ab.quantile("fare", 0.95)')
def quantile(column: ColumnLike, q: float | Sequence[float], *, k: int = 200) -> Aggregate:
    """Approximate quantile(s) by a KLL sketch, with a rank error of about 1.65 / k^0.9: 1.3 % at k = 200.

    One q gives a double, several an array of doubles.
    """
    single = isinstance(q, (int, float))
    ranks = (q,) if single else tuple(q) if isinstance(q, (list, tuple)) else ()
    if not ranks or not builtins.all(isinstance(r, (int, float)) and 0.0 <= r <= 1.0 for r in ranks):
        raise InvalidArgumentError(f"quantile {q!r} is not between 0 and 1", hint="for the 95th percentile write 0.95")
    if not _whole(k) or not 8 <= k <= 65535:
        raise InvalidArgumentError(f"k={k!r} is not between 8 and 65535", hint="use 200, or more for higher precision")

    def bind(inputs: Inputs) -> Bound:
        sketch = F.kll_sketch_agg_double(_numeric("quantile", inputs).cast("double"), F.lit(k))
        fold = folds.KllQuantiles(tuple(float(r) for r in ranks))
        values = F.array(*(F.kll_sketch_get_quantile_double(sketch, F.lit(r)) for r in fold.ranks))
        direct = F.when(F.kll_sketch_get_n_double(sketch) > 0, values)
        state = State(sketch, fold, result=ArrayType(DoubleType()))
        return Bound((state,), lambda s: s[0][0] if single else s[0], direct[0] if single else direct)

    return Aggregate("quantile", (column,), bind)


@called_as('ab.top_k("cell", 3)')
def top_k(column: ColumnLike, k: int) -> Aggregate:
    """The k most frequent values, exact, as an array of (value, count); with equal counts, the smaller value first."""
    if not _whole(k) or k < 1:
        raise InvalidArgumentError(
            f"k={k!r} of top_k is not a positive whole number", hint="give a whole number, at least 1"
        )

    def bind(inputs: Inputs) -> Bound:
        value = _orderable("top_k", inputs)
        entry = F.when(value.isNotNull(), F.struct(value.alias("value"), F.lit(1).cast("long").alias("count")))
        return Bound((State(F.collect_list(entry), folds.MostFrequent(k)),), _first, None)

    return Aggregate("top_k", (column,), bind, invertible=True)


@called_as('ab.collect("fare")')
def collect(column: ColumnLike) -> Aggregate:
    """All values that are not null, as an array in the order of time. The state is as large as the window."""

    def bind(inputs: Inputs) -> Bound:
        value = _orderable("collect", inputs)
        # Sorted by time and then by value, so that a second run gives the same list.
        rows = F.array_sort(
            F.collect_list(F.when(value.isNotNull(), F.struct(inputs.time.alias("time"), value.alias("value"))))
        )

        def values(rows: Column) -> Column:
            return F.transform(rows, lambda row: row["value"])

        return Bound((State(rows, folds.Concatenate()),), lambda s: values(s[0]), values(rows))

    return Aggregate("collect", (column,), bind)


def _whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _bounded_decimal(precision: int, scale: int) -> DecimalType:
    return DecimalType(builtins.min(precision, 38), builtins.min(scale, 38))


def _first(states: Sequence[Column]) -> Column:
    return states[0]


def _extreme(name: str, column: ColumnLike, pick: Callable[[Column], Column], fold: folds.Fold) -> Aggregate:
    def bind(inputs: Inputs) -> Bound:
        value = pick(_orderable(name, inputs))
        return Bound((State(value, fold, pick),), _first, value)

    return Aggregate(name, (column,), bind)


def _spread(
    name: str,
    column: ColumnLike,
    population: bool,
    finish: Callable[[Column], Column],
    direct: Callable[[Column], Column],
) -> Aggregate:
    def bind(inputs: Inputs) -> Bound:
        value = _numeric(name, inputs).cast("double")
        n = F.count(value).cast("double")
        moments = F.struct(
            n.alias("n"),
            F.coalesce(F.avg(value), F.lit(0.0)).alias("mean"),
            F.coalesce(F.var_pop(value) * n, F.lit(0.0)).alias("m2"),
        )

        def lower(states: Sequence[Column]) -> Column:
            n, m2 = states[0]["n"], states[0]["m2"]
            least, divisor = (0, n) if population else (1, n - 1)
            return F.when(n > least, finish(m2 / divisor))

        return Bound((State(moments, folds.Moments()),), lower, direct(value))

    return Aggregate(name, (column,), bind)


def _by_time(name: str, column: ColumnLike, pick: Callable[[Column], Column], *, last: bool) -> Aggregate:
    def bind(inputs: Inputs) -> Bound:
        # The struct orders by time first and then by value, so that rows at the same time have a definite order.
        row = pick(F.struct(inputs.time.alias("time"), _orderable(name, inputs).alias("value")))
        return Bound((State(row, folds.Edge(last), pick),), lambda s: s[0]["value"], row["value"])

    return Aggregate(name, (column,), bind)


def _numeric(name: str, inputs: Inputs) -> Column:
    return _checked(name, inputs, "a number", lambda t: isinstance(t, NumericType))


_ORDERED = (
    NumericType,
    StringType,
    BinaryType,
    BooleanType,
    DateType,
    TimestampType,
    TimestampNTZType,
    DayTimeIntervalType,
)


def _orderable(name: str, inputs: Inputs) -> Column:
    return _checked(
        name, inputs, "a number, string, binary, boolean, date or timestamp", lambda t: isinstance(t, _ORDERED)
    )


def _hashable(name: str, inputs: Inputs) -> Column:
    """The value in a type that HyperLogLog can hash; other ordered types become text."""
    value, kind = _orderable(name, inputs), inputs.types[0]
    if isinstance(kind, TimestampType):
        return F.unix_micros(value)  # A time's text depends on the session's zone, in which some hours occur twice.
    if isinstance(kind, (DoubleType, FloatType)):
        value = value + F.lit(0.0).cast(kind)  # -0.0 becomes 0.0: equal numbers must have equal text.
    return value if kind.typeName() in ("integer", "long", "string", "binary") else value.cast("string")


def _checked(name: str, inputs: Inputs, wanted: str, fits: Callable[[DataType], bool]) -> Column:
    kind = inputs.types[0]
    if not fits(kind):
        raise ColumnTypeError(
            f"{name} needs {wanted}, but its column is of type {kind.simpleString()}",
            hint="cast the column, or use another one",
        )
    return inputs.columns[0]
