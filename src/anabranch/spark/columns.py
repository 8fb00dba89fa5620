"""Times and ids as Spark Columns.

`floordiv` makes the closed forms of `anabranch.windows.ids` work on Columns. `TimeColumn` is the one place that knows
the types of time columns: internally, time is always a bigint of microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    CalendarIntervalType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from anabranch.errors import ColumnTypeError, InvalidArgumentError
from anabranch.names import EVENT
from anabranch.windows.durations import MICROS
from anabranch.windows.ids import FARTHEST

TimeUnit = Literal["s", "ms", "us"]
"""The unit of a bigint of time."""
LAST_SECOND = 2**31 - 1
"""The largest time that fits an int of seconds: 2038-01-19T03:14:07Z."""


def floordiv(value: Column, by: int) -> Column:
    """Exact division of a bigint Column, rounded down; Spark's `/` gives a double, and its `div` truncates."""
    divisor = F.lit(by).cast("bigint")
    return F.call_function("div", value - F.pmod(value, divisor), divisor)


def changing(value: int, beside: Column) -> Column:
    """A bigint whose value changes from epoch to epoch; null where `beside`, a bigint, is null.

    Spark writes literal numbers into the code that it generates, so it would compile again in every epoch: a third of a
    second with millions of rows. An array is only referenced, as long as Spark cannot fold the index: this one is
    always 0, but Spark does not know that.
    """
    return F.get(F.array(F.lit(value).cast("bigint")), F.pmod(beside, F.lit(1)).cast("int"))


def up_to(t: Column, limit: int | None) -> Column:
    """A time in microseconds; null if it is after the limit, which may change from epoch to epoch."""
    return t if limit is None else F.when(t <= changing(limit, t), t)


class TimeKind(Enum):
    """The types of a time column. A bigint counts microseconds (`timed` converts it), a smaller integer seconds."""

    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"
    LONG = "bigint"
    SECONDS = "int"

    @classmethod
    def of(cls, name: str, kind: DataType) -> TimeKind:
        for spark_type, found in (
            (TimestampType, cls.TIMESTAMP),
            (TimestampNTZType, cls.TIMESTAMP_NTZ),
            (LongType, cls.LONG),
            ((IntegerType, ShortType, ByteType), cls.SECONDS),
        ):
            if isinstance(kind, spark_type):
                return found
        raise ColumnTypeError(
            f"the time column {name!r} is of type {kind.simpleString()}; windows need a timestamp, or a bigint of "
            "microseconds (an int of seconds) since 1970",
            hint=_conversion(name, kind),
        )


def timed(source: DataFrame, name: str, unit: TimeUnit | None) -> tuple[DataFrame, TimeColumn]:
    """The DataFrame and its time column; a bigint of seconds or milliseconds becomes a timestamp.

    The unit of a bigint must be given. Seconds taken for microseconds would put all rows into the first hour of 1970.
    """
    kind = TimeKind.of(name, source.schema[name].dataType)
    check_unit(name, kind, unit)
    if kind is not TimeKind.LONG:
        return source, TimeColumn(name, kind)
    column = quoted(name)
    if unit == "us":
        return source, TimeColumn(name, kind)
    convert = F.timestamp_seconds if unit == "s" else F.timestamp_millis
    longest = 2**63 // (MICROS if unit == "s" else 1_000) - 1
    # A number that fits no timestamp becomes null: such rows are counted, and do not fail the query.
    time = F.when(column.between(-longest, longest), convert(column))
    return source.withColumn(name, time), TimeColumn(name, TimeKind.TIMESTAMP)


def check_unit(name: str, kind: TimeKind, unit: TimeUnit | None) -> None:
    """Refuse a bigint without a unit, and a unit for a type that has none or a fixed one."""
    if unit is not None and unit not in get_args(TimeUnit):
        raise InvalidArgumentError(
            f"time_unit={unit!r} is not a known unit",
            hint='write time_unit="s", "ms" or "us"; divide nanoseconds first: F.expr("at div 1000")',
        )
    if kind is TimeKind.LONG and unit is None:
        raise ColumnTypeError(
            f"the time column {name!r} is a bigint, which may count seconds, milliseconds or microseconds: with the "
            "wrong unit, hours of data would fall into one window in 1970",
            hint='give the unit: time_unit="s", "ms" or "us", since 1970-01-01 UTC',
        )
    wrong = kind in (TimeKind.TIMESTAMP, TimeKind.TIMESTAMP_NTZ) or (kind is TimeKind.SECONDS and unit != "s")
    if unit is not None and wrong:
        counts = "always counts seconds" if kind is TimeKind.SECONDS else "needs no unit"
        raise InvalidArgumentError(
            f"time_unit={unit!r}, but the time column {name!r} is of type {kind.value}, which {counts}",
            hint="leave time_unit out, or cast the column to bigint first",
        )


@dataclass(frozen=True)
class TimeColumn:
    """The time of a row: a column of the source, and its type."""

    name: str
    kind: TimeKind

    @property
    def column(self) -> Column:
        return F.col(quote(self.name))

    @property
    def is_event(self) -> bool:
        """Whether Spark's watermark can be on this column: a timestamp whose name has no dot."""
        return self.kind is TimeKind.TIMESTAMP and not set(self.name) & {".", "`"}

    @property
    def event(self) -> Column:
        """On a stream, the timestamp column that has the watermark."""
        return self.column if self.is_event else F.col(EVENT)

    def micros(self, of: Column | None = None) -> Column:
        """The time in microseconds; of another column of the same type if one is given.

        It is null where the time is null, and where it is so far from 1970 that a window's start or end would not fit
        64 bits: `unusable` says which.
        """
        column = self.column if of is None else of
        if self.kind is TimeKind.SECONDS:
            return column.cast("bigint") * MICROS  # always in range
        if self.kind is TimeKind.LONG:
            micros = column
        elif self.kind is TimeKind.TIMESTAMP:
            micros = F.unix_micros(column)
        else:
            # A timestamp without a time zone counts as UTC, as in Spark's `window()`. A difference of two is exact,
            # while `timestamp_diff` goes through the session's time zone and moves the hour that daylight saving time
            # skips.
            seconds = (column - _ntz_epoch()).cast("interval second").cast("decimal(20, 6)")
            micros = (seconds * MICROS).cast("bigint")
        return F.when(micros.between(-FARTHEST, FARTHEST), micros)

    @property
    def usable(self) -> Column:
        """Whether a row has a time that windows can use."""
        return self.micros().isNotNull()

    @property
    def unusable(self) -> Column:
        """Why a row's time cannot be used; null where it can."""
        return F.when(self.column.isNull(), F.lit(f"null time in column {self.name}")).when(
            self.micros().isNull(), F.lit(f"time in column {self.name} more than 146,000 years from 1970")
        )

    def from_micros(self, micros: Column) -> Column:
        """From microseconds back to the user's type."""
        if self.kind is TimeKind.LONG:
            return micros
        if self.kind is TimeKind.SECONDS:
            seconds = floordiv(micros, MICROS)
            fits = seconds.between(-LAST_SECOND - 1, LAST_SECOND)
            return F.when(fits, seconds.cast("int")).when(seconds.isNotNull(), _no_int())
        if self.kind is TimeKind.TIMESTAMP:
            return F.timestamp_micros(micros)
        return F.timestamp_add("MICROSECOND", micros, _ntz_epoch())

    def window(self, start: Column, size: Column | int) -> Column:
        """struct(start, end), as Spark's `window()` gives it."""
        return F.struct(self.from_micros(start).alias("start"), self.from_micros(start + size).alias("end"))


def _no_int() -> Column:
    """A Column that raises our error. Spark would say CAST_OVERFLOW or, without ANSI mode, wrap to 1901."""
    error = ColumnTypeError(
        "a window ends after 2038-01-19T03:14:07Z, which does not fit an int of seconds",
        hint="convert the time to a timestamp before ab.stream(...): F.timestamp_seconds(...)",
    )
    # In the form of a traceback's last line, so that it is recognised in Spark's text and raised as our error.
    return F.raise_error(F.lit(f"anabranch.errors.{type(error).__name__}: {error}")).cast("int")


def _ntz_epoch() -> Column:
    return F.to_timestamp_ntz(F.lit("1970-01-01 00:00:00"))


def quote(name: str) -> str:
    """The name in backquotes, so that Spark does not take its dots for fields."""
    return "`" + name.replace("`", "``") + "`"


def quoted(name: str) -> Column:
    """The column with exactly that name, dots included."""
    return F.col(quote(name))


def _conversion(name: str, kind: DataType) -> str:
    if kind.typeName() == "string":
        return f'convert it first: df.withColumn("{name}", F.to_timestamp("{name}"))'
    if kind.typeName() == "date":
        return f'convert it first: df.withColumn("{name}", F.col("{name}").cast("timestamp"))'
    if kind.typeName() in ("double", "float", "decimal"):
        return f'if it holds seconds: df.withColumn("{name}", F.timestamp_seconds("{name}"))'
    return "name a timestamp or bigint column with time=..."


def can_be_sorted(kind: DataType) -> bool:
    """Whether Spark can sort values of that type."""
    if isinstance(kind, ArrayType):
        return can_be_sorted(kind.elementType)
    if isinstance(kind, StructType):
        return all(can_be_sorted(field.dataType) for field in kind)
    return not isinstance(kind, (MapType, VariantType, CalendarIntervalType))
