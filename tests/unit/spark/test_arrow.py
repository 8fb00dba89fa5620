"""The Arrow types in which rows travel between Spark and Python do not depend on the session."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from anabranch.spark.arrow import _InOneForm, arrow_schema, arrow_type, cast, common_schema, conformed

UTC = pa.timestamp("us", tz="UTC")


def from_session(zone: str, *, nullable: bool = False, large: bool = False) -> pa.Schema:
    """As Spark hands columns to Python; nothing can be null, unless it is said."""

    def field(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=nullable)

    text = pa.large_string() if large else pa.string()
    time = pa.timestamp("us", tz=zone)
    row = pa.struct([field("t", time), field("s", text)])
    return pa.schema(
        [
            field("t", time),
            field("rows", pa.list_(field("element", row))),
            field("by_name", pa.map_(text, field("value", time))),
            field("b", pa.large_binary() if large else pa.binary()),
            field("ntz", pa.timestamp("us")),
        ]
    )


def spark_schema(*, nullable: bool = False) -> StructType:
    row = StructType([StructField("t", TimestampType(), nullable), StructField("s", StringType(), nullable)])
    return StructType(
        [
            StructField("t", TimestampType(), nullable),
            StructField("rows", ArrayType(row, nullable), nullable),
            StructField("by_name", MapType(StringType(), TimestampType(), nullable), nullable),
            StructField("b", BinaryType(), nullable),
            StructField("ntz", TimestampNTZType(), nullable),
        ]
    )


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Europe/Berlin", "+05:30"])
@pytest.mark.parametrize(("nullable", "large"), [(False, False), (True, False), (False, True)])
def test_what_a_session_hands_out_becomes_what_was_declared(zone: str, nullable: bool, large: bool) -> None:
    declared = arrow_schema(spark_schema(nullable=nullable))
    assert common_schema(from_session(zone, nullable=nullable, large=large)).equals(declared)
    assert declared.field("t").type == UTC and declared.field("ntz").type == pa.timestamp("us")


def test_everything_may_be_null_but_the_keys_of_a_map() -> None:
    schema = arrow_schema(spark_schema())
    row = schema.field("rows").type.value_field
    assert all(field.nullable for field in [*schema, row, *row.type, schema.field("by_name").type.item_field])
    assert not schema.field("by_name").type.key_field.nullable


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (LongType(), pa.int64()),
        (DecimalType(20, 3), pa.decimal128(20, 3)),
        (StringType("UNICODE_CI"), pa.string()),
        (DayTimeIntervalType(1, 1), pa.duration("us")),
        (VariantType(), pa.struct([("value", pa.binary()), ("metadata", pa.binary())])),
    ],
)
def test_a_type_of_spark(kind: DataType, wanted: pa.DataType) -> None:
    assert arrow_type(kind) == wanted


def test_a_change_of_zone_changes_no_value() -> None:
    times = [dt.datetime(2025, 11, 2, hour, 30, tzinfo=dt.UTC) for hour in (5, 6)]  # both are half past one there
    there = pa.array(times, pa.timestamp("us", tz="America/New_York"))
    assert cast(there, UTC).to_pylist() == times
    assert cast(there, UTC).cast(pa.int64()) == there.cast(pa.int64())


def test_nanoseconds_are_rounded_down() -> None:
    nanos = pa.array([-1, 0, 1_999, 1762065000_000000_999], pa.int64())
    for zone in ("America/New_York", None):
        found = cast(nanos.cast(pa.timestamp("ns", tz=zone)), pa.timestamp("us", tz=zone and "UTC"))
        assert found.cast(pa.int64()).to_pylist() == [-1, 0, 1, 1762065000_000000]


def test_batches_of_two_sessions_are_one_table() -> None:
    """A state that was kept under one session is good under another."""
    row = {"t": dt.datetime(2025, 1, 1, tzinfo=dt.UTC), "b": b"x", "ntz": dt.datetime(2025, 1, 1), "by_name": []}
    batches = []
    for schema in (from_session("UTC"), from_session("America/New_York", nullable=True, large=True)):
        batch = pa.RecordBatch.from_pylist([{**row, "rows": [{"t": row["t"], "s": "ä"}]}], schema)
        batches.append(conformed(batch, common_schema(schema)))
    table = pa.Table.from_batches(batches)
    assert table.slice(0, 1).to_pylist() == table.slice(1, 1).to_pylist()


def test_a_function_sees_and_yields_the_common_types() -> None:
    schemas: list[pa.Schema] = []

    def passes_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            schemas.append(batch.schema)
            # What a fold makes of it: nested nulls, another zone, or none of both.
            yield batch.cast(from_session("Europe/Berlin", nullable=len(schemas) > 1))

    schema = from_session("America/New_York")
    empty = pa.RecordBatch.from_pylist([], schema)
    wrapped = _InOneForm(passes_on, tuple(schema.names), arrow_schema(spark_schema()))
    found = list(wrapped(iter([empty, empty])))
    assert all(each.equals(arrow_schema(spark_schema())) for each in [*schemas, *(batch.schema for batch in found)])


def test_columns_have_the_names_of_the_query() -> None:
    """Columns with a dot in their name travel as others."""
    batch = pa.RecordBatch.from_arrays([pa.array([1])], names=["__ab_c0"])
    schema = StructType([StructField("a.b", LongType())])
    (found,) = _InOneForm(iter, ("a.b",), arrow_schema(schema))(iter([batch]))
    assert found.schema.names == ["a.b"]
