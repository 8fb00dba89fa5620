"""Sums and means in Spark that raise an error if they do not fit their type, whatever `spark.sql.ansi.enabled` says.

Without ANSI mode Spark's sum of integers wraps around, and its sum of decimals becomes null. These sums use Spark's
`try_` functions, which give null on an overflow in both modes, and raise `ArithmeticOverflowError` if there were
values. On ten million rows they are as fast as the plain ones.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, DoubleType, FloatType, LongType

from anabranch.errors import ArithmeticOverflowError


def sum_type(kind: DataType) -> DataType:
    """The type of Spark's sum of values of that type."""
    if isinstance(kind, DecimalType):
        return DecimalType(min(kind.precision + 10, 38), kind.scale)
    return DoubleType() if isinstance(kind, DoubleType | FloatType) else LongType()


def checked_sum(values: Column, kind: DataType) -> Column:
    """The sum in that type, as an aggregate Column."""
    if isinstance(kind, DoubleType | FloatType):
        return F.sum(values).cast(kind)
    return _checked("sum", F.try_sum(values).try_cast(kind), values, kind)


def checked_avg(values: Column, kind: DecimalType) -> Column:
    """The mean of decimals in that type, as an aggregate Column."""
    return _checked("mean", F.try_avg(values).try_cast(kind), values, kind)


def _checked(what: str, found: Column, values: Column, kind: DataType) -> Column:
    error = ArithmeticOverflowError(
        f"a {what} does not fit its type {kind.simpleString()}: the truncated value would be wrong",
        hint="cast the column to double, or to a decimal with room for the result",
    )
    # In the form of a Python worker's report and on its own line, so that the runtime recognises it.
    text = f"{type(error).__module__}.{type(error).__name__}: {error}\n"
    return F.when(found.isNull() & (F.count(values) > 0), F.raise_error(F.lit(text))).otherwise(found)
