"""Times and ids as Spark Columns.

`floordiv` makes the closed forms of `anabranch.windows.ids` work on Columns. `TimeColumn` is the one place that knows
which types of time there are: inside, time is always a bigint of microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
    TimestampType,
)

from anabranch.errors import ColumnTypeError

MICROS = 1_000_000
"""Of a second."""
EVENT = "__ab_event"
"""The timestamp that carries the watermark, where the user's time is of another type: Spark takes no other."""


def floordiv(value: Column, by: int) -> Column:
    """Exact division of a bigint Column towards minus infinity; Spark's own `/` is a double, its `div` truncates."""
    divisor = F.lit(by).cast("bigint")
    return F.call_function("div", value - F.pmod(value, divisor), divisor)


def changing(value: int, beside: Column) -> Column:
    """A bigint that is another one in each epoch; null where `beside`, a bigint, is.

    Spark writes plain numbers into the code that it compiles, and so would compile anew, and run slowly at first, in
    every epoch: a third of a second with millions of rows. To an array it only refers, as long as it does not see
    through the index: this one is always 0, but nothing in Spark knows it.
    """
    return F.get(F.array(F.lit(value).cast("bigint")), F.pmod(beside, F.lit(1)).cast("int"))


class TimeKind(Enum):
    """The types a time column may have. A bigint counts microseconds; a smaller integer, seconds."""

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


@dataclass(frozen=True)
class TimeColumn:
    """The time of a row: a column of the source, and what kind it is."""

    name: str
    kind: TimeKind

    @property
    def column(self) -> Column:
        return F.col(_quoted(self.name))

    @property
    def event(self) -> Column:
        """The timestamp with the watermark, on a stream."""
        return self.column if self.kind is TimeKind.TIMESTAMP else F.col(EVENT)

    def micros(self, of: Column | None = None) -> Column:
        """Microseconds; of another column of the same type, if given."""
        column = self.column if of is None else of
        if self.kind is TimeKind.LONG:
            return column
        if self.kind is TimeKind.SECONDS:
            return column.cast("bigint") * MICROS
        if self.kind is TimeKind.TIMESTAMP:
            return F.unix_micros(column)
        # A timestamp without a time zone counts as UTC, as in Spark's `window()`. The difference of two is exact, while
        # `timestamp_diff` would pass through the session's time zone, and move the hour that summer time leaves out.
        seconds = (column - _ntz_epoch()).cast("interval second").cast("decimal(18, 6)")
        return (seconds * 1_000_000).cast("bigint")

    def from_micros(self, micros: Column) -> Column:
        """Back to the user's type of time."""
        if self.kind is TimeKind.LONG:
            return micros
        if self.kind is TimeKind.SECONDS:
            return floordiv(micros, MICROS).cast("int")
        if self.kind is TimeKind.TIMESTAMP:
            return F.timestamp_micros(micros)
        return F.timestamp_add("MICROSECOND", micros, _ntz_epoch())

    def window(self, start: Column, size: Column | int) -> Column:
        """struct(start, end), as Spark's `window()` gives it."""
        return F.struct(self.from_micros(start).alias("start"), self.from_micros(start + size).alias("end"))


def _ntz_epoch() -> Column:
    return F.to_timestamp_ntz(F.lit("1970-01-01 00:00:00"))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def quoted(name: str) -> Column:
    """The column of exactly that name, dots included."""
    return F.col(_quoted(name))


def _conversion(name: str, kind: DataType) -> str:
    if kind.typeName() == "string":
        return f'convert it first: df.withColumn("{name}", F.to_timestamp("{name}"))'
    if kind.typeName() == "date":
        return f'convert it first: df.withColumn("{name}", F.col("{name}").cast("timestamp"))'
    if kind.typeName() in ("double", "float", "decimal"):
        return f'if it holds seconds: df.withColumn("{name}", F.timestamp_seconds("{name}"))'
    return "name a timestamp or bigint column with time=..."
