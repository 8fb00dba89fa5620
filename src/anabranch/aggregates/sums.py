"""Sums and means by Spark that fit their type, or are an error, whatever `spark.sql.ansi.enabled` says.

Without ANSI mode Spark's own sum of integers wraps around, and that of decimals is null. These are made of Spark's
`try_` functions, which are null on an overflow in both modes, and raise `ArithmeticOverflowError` where there were
values. On ten million dense rows they take no longer than the plain ones.
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
    """The sum as a value of that type, as an aggregate Column."""
    if isinstance(kind, DoubleType | FloatType):
        return F.sum(values).cast(kind)
    return _checked("sum", F.try_sum(values).try_cast(kind), values, kind)


def checked_avg(values: Column, kind: DecimalType) -> Column:
    """The mean of decimals as a decimal of that type, as an aggregate Column."""
    return _checked("mean", F.try_avg(values).try_cast(kind), values, kind)


def _checked(what: str, found: Column, values: Column, kind: DataType) -> Column:
    error = ArithmeticOverflowError(
        f"a {what} does not fit its type, {kind.simpleString()}, and what is left of it would be wrong",
        hint="cast the column to double, or to a decimal with room for the result",
    )
    # As a Python worker would report it, so that the runtime recognises it; on a line of its own.
    text = f"{type(error).__module__}.{type(error).__name__}: {error}\n"
    return F.when(found.isNull() & (F.count(values) > 0), F.raise_error(F.lit(text))).otherwise(found)
