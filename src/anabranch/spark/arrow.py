"""The Arrow types in which rows travel between Spark and Python. They are decided here and nowhere else.

Spark hands rows to Python in types that depend on more than the columns: timestamps carry the session's time zone,
columns that cannot be null say so at every level of nesting, and strings may be large. But state kept under one session
must be usable under another, and all batches of a task must have one schema, the one declared to Spark. So
`map_in_arrow` brings rows into one form on their way in and on their way out:

- Timestamps are in UTC. The zone is only a label; no value changes. (A timestamp without a time zone has none.)
- Everything may be null at every level, except the keys of maps.
- Strings, binaries and lists are of the small kind.

`arrow_schema` gives the Arrow types of the columns of a Spark schema. Everything that a worker receives, yields, keeps
as state or writes as results has these types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from anabranch.names import plain_name
from anabranch.spark.columns import quoted

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task runs: batches in, batches out."""


def map_in_arrow(rows: DataFrame, function: ArrowFunction, schema: StructType) -> DataFrame:
    """Spark's `mapInArrow` for columns of any name, with rows in the form described above.

    The result has the columns of `schema`, all of them nullable.
    """
    names, declared = rows.columns, _declared(schema)
    if any(set(name) & {".", "`"} for name in names):
        # PySpark looks columns up by unquoted name: a name with a dot would mean the field of a struct.
        rows = rows.toDF(*(plain_name(i) for i in range(len(names))))
    in_one_form = _InOneForm(function, tuple(names), arrow_schema(schema))
    mapped = rows.mapInArrow(in_one_form, declared)  # type: ignore[arg-type]
    if declared == _nullable(schema):
        return mapped
    # Arrow has a single type for all strings and a single one for all day-time intervals.
    back = [quoted(field.name).cast(field.dataType).alias(field.name) for field in schema]
    return mapped.select(*back)


@dataclass(frozen=True)
class _InOneForm:
    """Wraps a function: it gets batches in the common form and its results get exactly this schema."""

    function: ArrowFunction
    names: tuple[str, ...]
    """the names of the columns that come in"""
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in self.function(self._received(batches)):
            assert batch.schema.names == self.schema.names, (batch.schema.names, self.schema.names)
            yield conformed(batch, self.schema)

    def _received(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        common: pa.Schema | None = None
        for batch in batches:
            if common is None:  # all batches of a task have the same schema
                named = [field.with_name(name) for field, name in zip(batch.schema, self.names, strict=True)]
                common = common_schema(pa.schema(named))
            yield conformed(batch, common)


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with its columns cast to the types of the schema."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = [cast(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column cast to that type. Nanoseconds are rounded down, as times are everywhere."""
    if column.type == kind:
        return column
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(kind) and column.type.unit == "ns":
        # Arrow would refuse anything finer than microseconds, or round it towards 1970; and it rounds by the local time
        # of the column's zone, in which some hours occur twice.
        column = pc.floor_temporal(column.cast(pa.timestamp("ns", tz=kind.tz)), unit="microsecond")
    return column.cast(kind)


# --- types of Spark -------------------------------------------------------------------------------------------------


def _declared(kind: DataType) -> DataType:
    """The type declared to Spark as what Python returns: as exact as Arrow can express it."""
    if isinstance(kind, StringType):
        return StringType()
    if isinstance(kind, DayTimeIntervalType):
        return DayTimeIntervalType()
    return _rebuilt(kind, _declared)


def _nullable(kind: DataType) -> DataType:
    return _rebuilt(kind, _nullable)


def _rebuilt(kind: DataType, inner: Callable[[DataType], DataType]) -> DataType:
    """The type with everything inside it nullable and converted by `inner`."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, inner(f.dataType), True, f.metadata) for f in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(inner(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(inner(kind.keyType), inner(kind.valueType), True)
    return kind


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types in which these columns travel, are kept and are written."""
    return common_schema(to_arrow_schema(schema, timezone="UTC"))


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type in which a column of that type travels."""
    return arrow_schema(StructType([StructField("", kind)])).field(0).type


# --- types of Arrow -------------------------------------------------------------------------------------------------


def common_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns in the form that does not depend on the session; see the module."""
    return pa.schema([_common_field(field) for field in schema], metadata=schema.metadata)


def _common_field(field: pa.Field) -> pa.Field:
    return field.with_type(_common_type(field.type)).with_nullable(True)


def _common_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, tz="UTC")
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([_common_field(field) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_common_field(kind.value_field))
    if types.is_map(kind):
        key = kind.key_field.with_type(_common_type(kind.key_type))
        return pa.map_(key, _common_field(kind.item_field))
    return kind
