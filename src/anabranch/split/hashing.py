"""A stable 64-bit hash of keys: Spark's `xxhash64`, once as a Column and once over Arrow arrays.

A route that is decided partly by Spark and partly by a splitter works only if both find the same group for a key, in
every process, on every machine and after a restart. Python's `hash` gives no such promise, so the hash is Spark's own:
`key_hash` asks Spark for it, `hash_keys` computes the same bits from Arrow buffers. A property test holds the two equal.

The rules, all of them Spark's but the last:

- The seed is 42. Columns are chained: the hash of one is the seed of the next.
- A value is hashed by its type: 32 bits for bool, tinyint, smallint, int, date and float; 64 bits for bigint, timestamp
  and double; the bytes of a string or binary. A decimal of up to 18 digits is its unscaled value in 64 bits, a wider
  one the shortest big-endian two's complement bytes of it. So the int 1 and the bigint 1 have different hashes.
- -0.0 counts as 0.0, and every NaN as the same NaN.
- Strings are compared by their bytes, also where the column has a collation under which more of them are equal.
- Null leaves the seed as it is. On its own that would make ('a', null) and (null, 'a') the same key. So with more than
  one key the chain begins with a bigint that says which keys are null, bit i for key i (with more than 63 keys, one
  bigint for every 63). It comes first because it is 0 nearly always: the seed after it is then the same for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F

from anabranch.errors import ColumnTypeError, InvalidArgumentError
from anabranch.io.blocks import micros_of

Hashes = NDArray[np.uint64]
Bytes = NDArray[np.uint8]

SEED = 42
"""Spark's, for `xxhash64`."""
NULL_BITS = 63
"""Keys for which one bigint says whether they are null."""
LONG_DIGITS = 18
"""Digits of a decimal that always fit 64 bits; Spark's limit for a decimal that is a long inside."""


def key_hash(keys: Sequence[Column]) -> Column:
    """The hash of the keys, as a bigint that is never null.

    Raises:
        InvalidArgumentError: no keys.
    """
    _check_some(keys)
    if len(keys) == 1:
        return F.xxhash64(keys[0])
    words = [_null_word(keys[first : first + NULL_BITS]) for first in range(0, len(keys), NULL_BITS)]
    return F.xxhash64(*words, *keys)


def _null_word(keys: Sequence[Column]) -> Column:
    """Bit i is set where key i is null."""
    bits = (F.when(key.isNull(), F.lit(1 << i)).otherwise(F.lit(0)).cast("bigint") for i, key in enumerate(keys))
    return reduce(Column.bitwiseOR, bits)


def hash_keys(columns: Sequence[pa.Array | pa.ChunkedArray]) -> NDArray[np.int64]:
    """The hash of every row of the columns: what `key_hash` gives for the same values in Spark.

    Timestamps of any unit count as the microseconds that Spark would make of them. A dictionary is hashed once, where
    the seed is the same for all rows, and else decoded.

    Raises:
        ColumnTypeError: a column of a type that has no hash here, such as a struct or a list.
        InvalidArgumentError: no columns, or columns of different lengths.
    """
    _check_some(columns)
    arrays = [_plain(column) for column in columns]
    rows = len(arrays[0])
    if any(len(array) != rows for array in arrays):
        raise InvalidArgumentError(
            f"the key columns have different lengths ({', '.join(str(len(array)) for array in arrays)}), so there are "
            "no rows to hash",
            hint="take all key columns from the same record batch",
        )
    hashes = np.empty(rows, np.uint64)
    if len(arrays) > 1 and any(array.null_count for array in arrays):
        hashes.fill(SEED)
        for first in range(0, len(arrays), NULL_BITS):
            word = _null_words(arrays[first : first + NULL_BITS], rows)
            _hash_longs(word, _ALL_VALID, 0, hashes, hashes)
        seeds = hashes
    else:
        seeds = np.array([SEED], np.uint64)
        for _ in range(0, len(arrays) if len(arrays) > 1 else 0, NULL_BITS):
            _hash_longs(np.zeros(1, np.int64), _ALL_VALID, 0, seeds, seeds)
    for array in arrays:
        _chain(array, seeds, hashes)
        seeds = hashes
    return hashes.view(np.int64)
