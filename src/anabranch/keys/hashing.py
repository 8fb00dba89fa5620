"""A stable 64-bit hash of keys: Spark's `xxhash64`, once as a Column and once over Arrow arrays.

Spark and a splitter must route a key to the same group: in every process, on every machine and after a restart.
Python's `hash` guarantees none of this, so the hash is Spark's own. `key_hash` has Spark compute it, `hash_keys`
computes the same bits from Arrow buffers, and a property test compares the two.

The rules, all of them Spark's except the last:

- The seed is 42. Columns are chained: the hash of one is the seed of the next.
- The type says what is hashed: 32 bits of a bool, tinyint, smallint, int, date or float; 64 bits of a bigint, timestamp
  or double; the bytes of a string or binary. A decimal of up to 18 digits is its unscaled value in 64 bits, a wider one
  the bytes of that value, big-endian and as few as hold it. So the int 1 and the bigint 1 have different hashes.
- -0.0 counts as 0.0, and every NaN as the same NaN.
- A string counts as its bytes, whatever the collation: values that are equal only by collation have different hashes.
- Null leaves the seed unchanged. On its own, that would make ('a', null) and (null, 'a') the same key. So with more
  than one key the chain begins with a bigint that says which keys are null: bit i for key i (with more than 63 keys,
  one bigint for every 63). It comes first because it is nearly always 0: then the seed after it is the same for all
  rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.errors import PySparkTypeError
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType

from anabranch.errors import ColumnTypeError, InvalidArgumentError
from anabranch.io.blocks import micros_of
from anabranch.keys.xxhash64 import (
    Bytes,
    Hashes,
    Ints,
    add_null_bit,
    canonical_floats,
    hash_bytes,
    hash_ints,
    hash_longs,
)
from anabranch.spark.arrow import arrow_type

SEED = 42
"""The seed of the first column."""
NULL_BITS = 63
"""How many keys share one bigint of null bits."""
LONG_DIGITS = 18
"""The most digits of a decimal that always fit 64 bits; a wider decimal is hashed as bytes, whatever its value."""


def key_hash(keys: Sequence[Column]) -> Column:
    """The hash of the keys, as a bigint that is never null.

    Raises:
        InvalidArgumentError: there are no keys.
    """
    _check_some(keys)
    return F.xxhash64(*(_null_word(part) for part in _null_parts(keys)), *keys)


def hash_keys(columns: Sequence[pa.Array | pa.ChunkedArray]) -> NDArray[np.int64]:
    """The hash of every row of the columns: the same as `key_hash` for the same values.

    Timestamps of any unit count as the microseconds that Spark holds. Dictionary arrays count as their values.

    Raises:
        ColumnTypeError: a column has a type that cannot be hashed here, such as a struct or a list.
        InvalidArgumentError: there are no columns, or they differ in length.
    """
    _check_some(columns)
    for column in columns:
        check_key_type(column.type)
    arrays = [_whole(column) for column in columns]
    rows = len(arrays[0])
    if any(len(array) != rows for array in arrays):
        raise InvalidArgumentError(
            f"the key columns have {', '.join(str(len(array)) for array in arrays)} rows, so it is not known "
            "which values belong together",
            hint="take all key columns from the same record batch",
        )
    hashes, alike = _seeds(arrays, rows)
    for array in arrays:
        if alike and _is_small_dictionary(array):
            _hash_by_dictionary(array, hashes)
        else:
            _chain(array.dictionary_decode() if pa.types.is_dictionary(array.type) else array, hashes)
        alike = False
    return hashes.view(np.int64)


def _check_some(keys: Sequence[Any]) -> None:
    if not keys:
        raise InvalidArgumentError(
            "there are no keys, so all rows would have the same hash",
            hint="name at least one key",
        )


# --- which keys are null --------------------------------------------------------------------------------------------


def _null_parts(keys: Sequence[Any]) -> list[Sequence[Any]]:
    """The keys that share a bigint of null bits. One key needs none: it is null or it is not."""
    if len(keys) == 1:
        return []
    return [keys[first : first + NULL_BITS] for first in range(0, len(keys), NULL_BITS)]


def _null_word(keys: Sequence[Column]) -> Column:
    bits = [F.when(key.isNull(), F.lit(1 << i)).otherwise(F.lit(0)).cast("bigint") for i, key in enumerate(keys)]
    return reduce(Column.bitwiseOR, bits)


def _seeds(arrays: Sequence[pa.Array], rows: int) -> tuple[Hashes, bool]:
    """The hashes before the first key, and whether they are all the same."""
    parts = _null_parts(arrays)
    alike = not parts or not any(array.null_count for array in arrays)
    hashes = np.full(1 if alike else rows, SEED, np.uint64)
    for part in parts:
        word = np.zeros(len(hashes), np.int64)
        for i, array in enumerate(part):
            if array.null_count:
                add_null_bit(i, _validity(array), array.offset, word)
        hash_longs(_frozen(word), _ALL_VALID, 0, hashes)
    return (np.full(rows, hashes[0]) if alike else hashes), alike


# --- from Arrow arrays to what the kernels read ---------------------------------------------------------------------

_WIDTHS = {
    pa.bool_(): np.int8,
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.date32(): np.int32,
    pa.float32(): np.int32,
    pa.float64(): np.int64,
}
"""How values of a type are stored in its buffer (bool: once it has a byte per value)."""

_OFFSETS = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}

# Bits of a float without its sign: infinity, above which every pattern is a NaN, and the NaN that replaces them all.
_INFINITY = {pa.float32(): 0x7F800000, pa.float64(): 0x7FF0000000000000}
_NAN = {pa.float32(): 0x7FC00000, pa.float64(): 0x7FF8000000000000}

_DECIMAL_BYTES = 16

_ALL_VALID: Bytes = np.frombuffer(b"", np.uint8)
"""The validity bitmap of an array without nulls."""


def check_key_type(kind: pa.DataType) -> None:
    """Raise an error if keys of that type cannot be hashed here."""
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_other = pa.types.is_timestamp(values) or pa.types.is_decimal128(values) or pa.types.is_null(values)
    if not (values in _WIDTHS or values in _OFFSETS or _is_view(values) or is_other):
        raise ColumnTypeError(
            f"keys of type {kind} cannot be hashed here, so their rows cannot be routed as Spark does",
            hint="use the fields that matter as separate keys, or cast the key to an integer, a string or binary",
        )


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array whose validity bitmap covers all its nulls."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    # A dictionary may contain null as a value; the bitmap does not show those.
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        array = array.dictionary_decode()
    # A column of type null has no bitmap; any other type will do for its nulls.
    return array.cast(pa.int8()) if pa.types.is_null(array.type) else array


def _is_small_dictionary(array: pa.Array) -> bool:
    """Whether it has fewer values than rows; a slice of a few rows keeps the whole dictionary."""
    return pa.types.is_dictionary(array.type) and len(array.dictionary) < len(array)


def _hash_by_dictionary(array: pa.DictionaryArray, hashes: Hashes) -> None:
    """As `_chain`, for hashes that are all equal: each value of the dictionary is hashed once."""
    n_values = len(array.dictionary)
    of_values = np.full(n_values + 1, hashes[0])  # one more, for null
    _chain(array.dictionary, of_values[:-1])
    codes = array.indices.cast(pa.int64()).fill_null(n_values) if array.null_count else array.indices
    hashes[:] = of_values[codes.to_numpy()]


def _chain(array: pa.Array, hashes: Hashes) -> None:
    """Replace each hash by the hash of the value, with the old one as the seed; nulls leave it unchanged."""
    kind = array.type
    if not len(array):
        return
    if pa.types.is_timestamp(kind):
        array = micros_of(array)
    elif pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif _is_view(kind):
        array = array.cast(pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary())
    valid = _validity(array)
    if array.type in _OFFSETS:
        hash_bytes(*_string_bytes(array), valid, array.offset, hashes)
    elif pa.types.is_decimal128(kind) and kind.precision > LONG_DIGITS:
        hash_bytes(*_decimal_bytes(array), valid, array.offset, hashes)
    else:
        values = _numbers(array)
        hash_numbers = hash_longs if values.itemsize == 8 else hash_ints
        hash_numbers(values, valid, array.offset, hashes)


def _validity(array: pa.Array) -> Bytes:
    """The bitmap in which bit `array.offset` + i is set if value i is not null; empty if there are no nulls."""
    return np.frombuffer(array.buffers()[0], np.uint8) if array.null_count else _ALL_VALID


def _numbers(array: pa.Array) -> Ints:
    """The values as the integers that are hashed."""
    if pa.types.is_decimal128(array.type):
        # The low half of the 128 bits is the whole value: the high half only repeats the sign.
        halves = np.frombuffer(array.buffers()[1], np.int64, 2 * (array.offset + len(array)))
        return _frozen(np.ascontiguousarray(halves[2 * array.offset :: 2]))
    bits = np.frombuffer(array.buffers()[1], _WIDTHS[array.type], array.offset + len(array))[array.offset :]
    if not pa.types.is_floating(array.type):
        return bits
    return _frozen(canonical_floats(bits, np.iinfo(bits.dtype).max, _INFINITY[array.type], _NAN[array.type]))


def _string_bytes(array: pa.Array) -> tuple[Bytes, Ints, Ints]:
    """(data, where each value begins, where it ends)."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, _OFFSETS[array.type], array.offset + len(array) + 1)[array.offset :]
    return np.frombuffer(data or b"", np.uint8), ends[:-1], ends[1:]


def _decimal_bytes(array: pa.Array) -> tuple[Bytes, Ints, Ints]:
    """As `_string_bytes`: the unscaled values as Java's BigInteger gives them, big-endian and as short as possible."""
    width = _DECIMAL_BYTES
    data = np.frombuffer(array.buffers()[1], np.uint8, width * (array.offset + len(array)))
    data = np.ascontiguousarray(data.reshape(-1, width)[array.offset :, ::-1])
    # A leading byte is redundant if it is all sign and the byte after it begins with the sign too.
    sign = np.where(data[:, :1] >= 0x80, 0xFF, 0)
    idle = (data[:, :-1] == sign) & ((data[:, 1:] ^ sign) < 0x80)
    rows = np.arange(len(data), dtype=np.int64) * width
    starts = rows + np.logical_and.accumulate(idle, axis=1).sum(axis=1)
    return _frozen(data.ravel()), _frozen(starts), _frozen(rows + width)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Read-only, as Arrow's buffers are: to numba, writable is another type, and it would compile each kernel twice."""
    array.flags.writeable = False
    return array


def unhashable(key: str, kind: DataType) -> str | None:
    """Why a key of that type cannot be routed by its hash; None if it can."""
    try:
        check_key_type(arrow_type(kind))
    except (ColumnTypeError, PySparkTypeError):
        return f"the key {key!r} is of type {kind.simpleString()}, which cannot be hashed"
    if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
        # Keys that are equal by collation have different hashes, so they would become separate keys.
        return f"the key {key!r} has a collation, which makes different strings the same key"
    return None
