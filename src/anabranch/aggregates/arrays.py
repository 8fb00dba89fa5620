"""Arrow arrays of states as numpy arrays, and the order in which Spark sorts values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.aggregates.kernels import Ints


def is_valid(array: pa.Array) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def numbers_of(array: pa.Array) -> NDArray[Any]:
    """Numbers, with nulls as zero: the empty state of a sum."""
    filled = array.fill_null(0) if array.null_count else array
    numbers: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return numbers


def flat_lists(array: pa.Array) -> tuple[Ints, pa.Array]:
    """Where each list starts among the flat values (one more at the end), and the flat values."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int64)
    return np.concatenate(([0], np.cumsum(lengths))), array.flatten()


def canonical(values: pa.Array) -> pa.Array:
    """Values with the same bits if Spark treats them as equal: -0.0 becomes 0.0, and all NaN the same NaN."""
    if not pa.types.is_floating(values.type):
        return values
    numbers = values.to_numpy(zero_copy_only=False)
    return pa.array(np.where(np.isnan(numbers), np.nan, numbers + 0.0), type=values.type, from_pandas=False)


def spark_order(value: Any) -> Any:
    """A key that sorts Python values as Spark does: null first, NaN last, structs and arrays element by element."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, *(spark_order(each) for each in value.values()))
    if isinstance(value, list):
        return (1, *(spark_order(each) for each in value))
    if isinstance(value, float) and value != value:
        return (2,)
    return (1, value)


def take(states: pa.Array, index: Ints) -> pa.Array:
    """The states at those places; null where the place is -1."""
    return states.take(pa.array(index, mask=index < 0))


def micros_of_times(times: pa.Array) -> Ints:
    return numbers_of(times.cast(pa.int64())).astype(np.int64)


def order_keys(states: pa.Array) -> Ints:
    """Integers that have the same order as the states."""
    kind = states.type
    if pa.types.is_floating(kind):
        values = numbers_of(states).astype(np.float64)
        # + 0.0 turns -0.0 into 0.0, and all NaN become one. The IEEE bits of positive numbers grow with the number,
        # those of negative ones fall, so they are inverted.
        bits = np.where(np.isnan(values), np.nan, values + 0.0).view(np.int64)
        keys: Ints = np.where(bits < 0, np.bitwise_xor(bits, np.iinfo(np.int64).max), bits)
        return keys
    if pa.types.is_integer(kind):
        return numbers_of(states).astype(np.int64)
    ranks: Ints = pc.rank(states, tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks
