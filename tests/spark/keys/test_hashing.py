"""The hash of keys over Arrow arrays against Spark's own. Each test is one or two Spark jobs over many rows."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType

from anabranch.keys.hashing import hash_keys, key_hash

ROWS = 2_000
NULLS = 0.2

# Spark's timestamps and dates: the years 1 to 9999.
FIRST_MICRO, LAST_MICRO = -62_135_596_800_000_000, 253_402_300_799_999_999
FIRST_DAY, LAST_DAY = -719_162, 2_932_896


def integers(rng: np.random.Generator, kind: type[np.signedinteger], low: int, high: int) -> np.ndarray:
    """Both ends, values of every magnitude and sign, and others from the whole range."""
    near = [sign * (1 << bits) + step for bits in range(64) for sign in (-1, 1) for step in (-1, 0, 1)]
    edges = [low, high, *(value for value in near if low <= value <= high)]
    return np.concatenate([np.array(edges), rng.integers(low, high, ROWS, np.int64, endpoint=True)])[:ROWS].astype(kind)


def all_of(rng: np.random.Generator, kind: type[np.signedinteger]) -> np.ndarray:
    return integers(rng, kind, np.iinfo(kind).min, np.iinfo(kind).max)


def floats(rng: np.random.Generator, bits: type[np.unsignedinteger], kind: type[np.floating]) -> np.ndarray:
    """Any bits are a float: both zeros, infinities, NaNs with all kinds of payload, subnormals."""
    values = rng.integers(0, np.iinfo(bits).max, ROWS, bits, endpoint=True).view(kind).copy()
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0, -1.0, np.finfo(kind).max, np.finfo(kind).tiny])
    values[: len(edges)] = edges
    exponent = np.full(100, np.inf, kind).view(bits)
    values[100:200] = (exponent | (values[100:200].view(bits) & bits(0xFFFF)) | bits(1)).view(kind)
    assert np.isnan(values[100:200]).all()
    return values


def texts(rng: np.random.Generator) -> list[str]:
    """Every length from 0 to 100 bytes, of one to four bytes per character."""
    alphabet = np.array(list("abcdefghijklm 0123456789äéßλЖ中文字😀𝄞"))
    ascii_only = ["".join(rng.choice(alphabet[:24], n)) for n in range(101)]
    return ascii_only + ["".join(rng.choice(alphabet, rng.integers(0, 40))) for _ in range(ROWS - 101)]


def decimals(rng: np.random.Generator, precision: int, scale: int) -> list[Decimal]:
    """Unscaled values of every number of bytes, at both sides of where one more is needed."""
    limit = 10**precision - 1
    near = [sign * (1 << bits) + step for bits in range(127) for sign in (-1, 1) for step in (-1, 0, 1)]
    unscaled = [0, limit, -limit, *(value for value in near if abs(value) <= limit)]
    while len(unscaled) < ROWS:
        digits = int(rng.integers(1, precision, endpoint=True))
        unscaled.append(int("".join(map(str, rng.integers(0, 10, digits)))) * int(rng.choice([-1, 1])))
    return [Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -scale)) for value in unscaled]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """A column of every type, with nulls, and `id`."""
    rng = np.random.default_rng(20)
    strings = texts(rng)
    binary = [value.encode() if i % 2 else rng.bytes(i % 101) for i, value in enumerate(strings)]
    micros = integers(rng, np.int64, FIRST_MICRO, LAST_MICRO)
    nanos = integers(rng, np.int64, -(10**18), 10**18)
    columns = {
        "bool": (rng.random(ROWS) < 0.5, pa.bool_()),
        "int8": (all_of(rng, np.int8), pa.int8()),
        "int16": (all_of(rng, np.int16), pa.int16()),
        "int32": (all_of(rng, np.int32), pa.int32()),
        "int64": (all_of(rng, np.int64), pa.int64()),
        "date32": (integers(rng, np.int32, FIRST_DAY, LAST_DAY), pa.date32()),
        "timestamp": (micros, pa.timestamp("us", "UTC")),
        "local": (micros, pa.timestamp("us")),
        "seconds": (micros // 1_000_000, pa.timestamp("s", "UTC")),
        "nanos": (nanos, pa.timestamp("ns", "UTC")),
        "float32": (floats(rng, np.uint32, np.float32), pa.float32()),
        "float64": (floats(rng, np.uint64, np.float64), pa.float64()),
        "string": (strings, pa.string()),
        "large_string": (strings[::-1], pa.large_string()),
        "binary": (binary, pa.binary()),
        "large_binary": (binary[::-1], pa.large_binary()),
        "decimal9": (decimals(rng, 9, 2), pa.decimal128(9, 2)),
        "decimal18": (decimals(rng, 18, 4), pa.decimal128(18, 4)),
        "decimal19": (decimals(rng, 19, 0), pa.decimal128(19, 0)),
        "decimal38": (decimals(rng, 38, 10), pa.decimal128(38, 10)),
    }
    arrays: dict[str, pa.Array] = {"id": pa.array(range(ROWS))}
    for name, (values, kind) in columns.items():
        arrays[name] = pa.array(values, kind, mask=rng.random(ROWS) < NULLS)
    arrays["dictionary"] = pa.array([f"road {i % 17}" if i % 5 else None for i in range(ROWS)]).dictionary_encode()
    arrays["void"] = pa.nulls(ROWS)
    arrays["full_int"] = pa.array(rng.integers(0, 9, ROWS).astype(np.int32))
    arrays["full_string"] = pa.array(strings)
    return pa.table(arrays)


COMBINATIONS = [
    ("full_int", "full_string"),
    ("full_string", "full_int"),
    ("dictionary", "int32"),
    ("int32", "dictionary"),
    ("full_int", "dictionary"),
    ("int32", "int16"),
    ("int64", "string", "decimal38"),
    ("void", "float64", "bool"),
]


def spark_hashes(spark: SparkSession, table: pa.Table, forms: dict[str, Column], *, parts: int) -> pa.Table:
    """In partitions, Spark compiles the hash; of local rows its optimizer computes it, with other code."""
    # Spark would take times without a zone for the session's local time, and move them.
    schema = spark.createDataFrame(table.slice(0, 0)).schema
    for field in schema:
        if table.schema.field(field.name).type == pa.timestamp("us"):
            field.dataType = TimestampNTZType()
    frame = spark.createDataFrame(table, schema)
    frame = frame.repartition(parts) if parts else frame
    return frame.select("id", *(form.alias(name) for name, form in forms.items())).toArrow().sort_by("id")


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("parts", [0, 2], ids=["interpreted", "compiled"])
def test_arrow_equals_spark(spark: SparkSession, table: pa.Table, parts: int) -> None:
    names = [name for name in table.column_names if name != "id"]
    keys = {",".join(some): some for some in [*((name,) for name in names), *COMBINATIONS, tuple(names)]}
    forms = {label: key_hash([F.col(name) for name in some]) for label, some in keys.items()}
    found = spark_hashes(spark, table, forms, parts=parts)
    for label, some in keys.items():
        assert found.schema.field(label).type == pa.int64()
        np.testing.assert_array_equal(hash_keys([table[name] for name in some]), found[label].to_numpy(), label)


def test_a_timestamp_without_zone_is_hashed_like_one_with(spark: SparkSession, table: pa.Table) -> None:
    form = {"hash": key_hash([F.col("local").cast("timestamp_ntz")])}
    found = spark_hashes(spark, table.select(["id", "local"]), form, parts=0)
    np.testing.assert_array_equal(hash_keys([table["local"]]), found["hash"].to_numpy())


def test_more_keys_than_bits(spark: SparkSession) -> None:
    # Row i is null in key i only: all other values are the same, so only the null bits tell the rows apart.
    width = 130
    keys = {f"k{i}": pa.array([None if row == i else 1 for row in range(width)], pa.int32()) for i in range(width)}
    table = pa.table({"id": pa.array(range(width)), **keys})
    found = spark_hashes(spark, table, {"hash": key_hash([F.col(name) for name in keys])}, parts=0)["hash"].to_numpy()
    np.testing.assert_array_equal(hash_keys(list(keys.values())), found)
    assert len(np.unique(found)) == width


def test_a_collation_does_not_matter(spark: SparkSession) -> None:
    row = spark.sql("SELECT 'AbC' COLLATE UTF8_LCASE AS a, 'abc' COLLATE UTF8_LCASE AS b")
    (found,) = row.select(key_hash([F.col("a")]).alias("a"), key_hash([F.col("b")]).alias("b")).collect()
    assert [found.a, found.b] == hash_keys([pa.array(["AbC", "abc"])]).tolist()
