"""Columns of any Arrow type as growing numpy arrays: append rows, gather any rows, remove rows at the front.

They hold the content of Arrow's buffers, with one kind of `Vector` per type:

    Fixed       values of one size: numbers, times, decimals; also bool, with one byte per value
    Text        strings and binary: int64 offsets, bytes
    Nested      lists and maps: int64 offsets, and a vector of the elements
    Even        lists of one size: a vector of the elements
    Struct      a vector for each field
    Nothing     the type null

From the first null on, one byte per row says whether a value is null; a column without nulls has no such array.

Rows are addressed by their place, counted from the first row kept. *Offsets are counted from the first row ever
appended*: then removing rows at the front changes no offset, and the first offset kept says where the data begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.compiled import kernel
from anabranch.errors import ColumnTypeError
from anabranch.operators.join.buffers import Buffer
from anabranch.operators.state import Array, State
from anabranch.spark.arrow import cast

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_VALID = ".valid"


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in which a column is stored: values instead of dictionaries, storage types instead of extensions."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    return kind


def plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array converted to a plain type."""
    if array.type == kind:
        return array
    if isinstance(array, pa.ExtensionArray):
        return plain(array.storage, kind)
    if pa.types.is_run_end_encoded(array.type):
        return plain(pa.compute.run_end_decode(array), kind)
    return cast(array, kind)


def vector(state: State, name: str, kind: pa.DataType) -> Vector:
    """The vector for a plain type, with the content that the state has under that name."""
    if pa.types.is_null(kind):
        return Nothing(state, name, kind)
    if isinstance(kind, pa.StructType):
        return Struct(state, name, kind)
    if pa.types.is_fixed_size_list(kind):
        return Even(state, name, kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return Nested(state, name, kind)
    if kind in _NARROW or kind in _WIDE:
        return Text(state, name, kind)
    try:
        return Fixed(state, name, kind)
    except ValueError as error:  # Arrow's error for a type without a bit width
        raise ColumnTypeError(
            f"a join cannot store a column of type {kind} in its window",
            hint="cast the column to a plain, list, map or struct type, or leave it out",
        ) from error


class Vector(ABC):
    """A column. `count` is the number of rows before the call."""

    def __init__(self, state: State, name: str, kind: pa.DataType) -> None:
        self._state, self._name, self._kind = state, name, kind
        has_nulls = name + _VALID in state
        self._valid = Buffer(state, name + _VALID, np.uint8) if has_nulls else None

    def append(self, array: pa.Array, count: int) -> None:
        """Append rows."""
        if array.null_count and self._valid is None:
            self._valid = Buffer(self._state, self._name + _VALID, np.uint8)
            self._valid.reserve(count)
            self._valid.array[:count] = 1
        if self._valid is not None:
            self._valid.reserve(count + len(array))
            valid = array.is_valid().cast(pa.uint8()).to_numpy() if array.null_count else 1
            self._valid.array[count : count + len(array)] = valid
        if len(array):
            self._append(array, count)

    def gather(self, places: Ints) -> pa.Array:
        """The rows at these places."""
        return self._gather(places, self._bitmap(places))

    def cut(self, begin: int, count: int) -> None:
        """Keep only the rows [begin, count)."""
        if self._valid is not None:
            self._valid.move_to_front(begin, count)
        self._cut(begin, count)

    def _bitmap(self, places: Ints) -> pa.Buffer | None:
        if self._valid is None:
            return None
        valid = self._valid.array.take(places)
        return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))

    @abstractmethod
    def _append(self, array: pa.Array, count: int) -> None: ...

    @abstractmethod
    def _gather(self, places: Ints, bitmap: pa.Buffer | None) -> pa.Array: ...

    @abstractmethod
    def _cut(self, begin: int, count: int) -> None: ...


class Fixed(Vector):
    """Values of one size."""

    def __init__(self, state: State, name: str, kind: pa.DataType) -> None:
        super().__init__(state, name, kind)
        self._is_bool = pa.types.is_boolean(kind)
        size = 1 if self._is_bool else kind.bit_width // 8
        self._values = Buffer(state, name, f"u{size}" if size in (1, 2, 4, 8) else f"V{size}")

    @property
    def values(self) -> Array:
        """The stored values as unsigned integers, followed by spare capacity."""
        return self._values.array

    def _append(self, array: pa.Array, count: int) -> None:
        end = count + len(array)
        self._values.reserve(end)
        array = array.cast(pa.uint8()) if self._is_bool else array
        self._values.array[count:end] = _items(array, 1, self._values.array.dtype, len(array))

    def _gather(self, places: Ints, bitmap: pa.Buffer | None) -> pa.Array:
        values = self._values.array.take(places)
        if self._is_bool:
            values = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(self._kind, len(places), [bitmap, pa.py_buffer(values)])

    def _cut(self, begin: int, count: int) -> None:
        self._values.move_to_front(begin, count)


_NARROW = (pa.string(), pa.binary())
_WIDE = (pa.large_string(), pa.large_binary())


class Text(Vector):
    """Strings and binary."""

    def __init__(self, state: State, name: str, kind: pa.DataType) -> None:
        super().__init__(state, name, kind)
        self._offsets = Buffer(state, name + ".offsets", np.int64, 1)
        self._data = Buffer(state, name + ".data", np.uint8)

    def _append(self, array: pa.Array, count: int) -> None:
        width = np.int32 if self._kind in _NARROW else np.int64
        offsets = _items(array, 1, width, len(array) + 1)
        begin, end = _append_offsets(self._offsets, offsets, count)
        self._data.reserve(end)
        if end > begin:
            data = np.frombuffer(array.buffers()[2], np.uint8)
            self._data.array[begin:end] = data[offsets[0] : offsets[-1]]

    def _gather(self, places: Ints, bitmap: pa.Buffer | None) -> pa.Array:
        offsets: Array = new_offsets(self._offsets.array, places)
        data = np.empty(offsets[-1], np.uint8)
        copy_bytes(self._offsets.array, self._data.array, places, offsets, data)
        if self._kind in _NARROW:
            offsets = _narrowed(offsets, self._kind)
        return pa.Array.from_buffers(
            self._kind, len(places), [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)]
        )  # fmt: skip

    def _cut(self, begin: int, count: int) -> None:
        first, start, end = self._offsets.array[[0, begin, count]]
        self._data.move_to_front(start - first, end - first)
        self._offsets.move_to_front(begin, count + 1)


class Nested(Vector):
    """Lists and maps."""

    def __init__(self, state: State, name: str, kind: pa.DataType) -> None:
        super().__init__(state, name, kind)
        self._offsets = Buffer(state, name + ".offsets", np.int64, 1)
        element = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
        self._element_type = element
        self._elements = vector(state, name + ".item", plain_type(element))

    def _append(self, array: pa.Array, count: int) -> None:
        offsets = array.offsets.to_numpy()
        begin, _ = _append_offsets(self._offsets, offsets, count)
        elements = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        self._elements.append(plain(elements, plain_type(self._element_type)), begin)

    def _gather(self, places: Ints, bitmap: pa.Buffer | None) -> pa.Array:
        offsets: Array = new_offsets(self._offsets.array, places)
        elements = self._elements.gather(element_places(self._offsets.array, places, offsets[-1]))
        if not pa.types.is_large_list(self._kind):
            offsets = _narrowed(offsets, self._kind)
        children = [_as(elements, self._element_type)]
        return pa.Array.from_buffers(self._kind, len(places), [bitmap, pa.py_buffer(offsets)], children=children)

    def _cut(self, begin: int, count: int) -> None:
        first, start, end = self._offsets.array[[0, begin, count]]
        self._elements.cut(int(start - first), int(end - first))
        self._offsets.move_to_front(begin, count + 1)


class Even(Vector):
    """Lists of one size."""

    def __init__(self, state: State, name: str, kind: pa.DataType) -> None:
        super().__init__(state, name, kind)
        self._size = kind.list_size
        self._elements = vector(state, name + ".item", plain_type(kind.value_type))

    def _append(self, array: pa.Array, count: int) -> None:
        elements = array.values.slice(array.offset * self._size, len(array) * self._size)
        self._elements.append(plain(elements, plain_type(self._kind.value_type)), count * self._size)

    def _gather(self, places: Ints, bitmap: pa.Buffer | None) -> pa.Array:
        at = (places[:, None] * self._size + np.arange(self._size)).ravel()
        children = [_as(self._elements.gather(at), self._kind.value_type)]
        return pa.Array.from_buffers(self._kind, len(places), [bitmap], children=children)

    def _cut(self, begin: int, count: int) -> None:
        self._elements.cut(begin * self._size, count * self._size)


class Struct(Vector):
    """A vector for each field."""

    def __init__(self, state: State, name: str, kind: pa.DataType) -> None:
        super().__init__(state, name, kind)
        self._types = [kind.field(i).type for i in range(kind.num_fields)]
        self._fields = [vector(state, f"{name}.{i}", plain_type(each)) for i, each in enumerate(self._types)]

    def _append(self, array: pa.Array, count: int) -> None:
        for i, (field, kind) in enumerate(zip(self._fields, self._types, strict=True)):
            field.append(plain(array.field(i), plain_type(kind)), count)

    def _gather(self, places: Ints, bitmap: pa.Buffer | None) -> pa.Array:
        children = [_as(f.gather(places), kind) for f, kind in zip(self._fields, self._types, strict=True)]
        return pa.Array.from_buffers(self._kind, len(places), [bitmap], children=children)

    def _cut(self, begin: int, count: int) -> None:
        for field in self._fields:
            field.cut(begin, count)


class Nothing(Vector):
    """The type null."""

    def append(self, array: pa.Array, count: int) -> None:
        """There is nothing to store."""

    def _append(self, array: pa.Array, count: int) -> None: ...

    def _gather(self, places: Ints, bitmap: pa.Buffer | None) -> pa.Array:
        return pa.nulls(len(places))

    def _cut(self, begin: int, count: int) -> None: ...


def _items(array: pa.Array, buffer: int, dtype: Any, count: int) -> Array:
    """The items of one of the array's buffers, from its first row on."""
    return np.frombuffer(array.buffers()[buffer], dtype, array.offset + count)[array.offset :]


def _append_offsets(buffer: Buffer, offsets: Array, count: int) -> tuple[int, int]:
    """Append the offsets of new rows; returns where their data begins and ends, counted from the first kept."""
    rows = len(offsets) - 1
    buffer.reserve(count + rows + 1)
    kept = buffer.array
    begin = kept[count]
    kept[count + 1 : count + rows + 1] = offsets[1:].astype(np.int64) + (begin - int(offsets[0]))
    return int(begin - kept[0]), int(kept[count + rows] - kept[0])


def _narrowed(offsets: Ints, kind: pa.DataType) -> Array:
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ColumnTypeError(
            f"the values of {len(offsets) - 1} rows of type {kind} take more than 2 GiB, which that type cannot hold",
            hint="cast the column to its large_ variant before the join",
        )
    return offsets.astype(np.int32)


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A plain array converted back to its original type."""
    if array.type == kind:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _as(array, kind.storage_type))
    return array.cast(kind)


@kernel(nogil=True)
def new_offsets(offsets: Ints, places: Ints) -> Ints:
    """The offsets of the gathered rows."""
    out = np.empty(len(places) + 1, np.int64)
    out[0] = 0
    for i in range(len(places)):
        out[i + 1] = out[i] + offsets[places[i] + 1] - offsets[places[i]]
    return out


@kernel(nogil=True)
def copy_bytes(offsets: Ints, data: Bytes, places: Ints, out_offsets: Ints, out: Bytes) -> None:
    """The bytes of the gathered rows."""
    for i in range(len(places)):
        begin, to = offsets[places[i]] - offsets[0], out_offsets[i]
        for j in range(out_offsets[i + 1] - to):
            out[to + j] = data[begin + j]


@kernel(nogil=True)
def element_places(offsets: Ints, places: Ints, count: int) -> Ints:
    """Where the elements of the gathered lists are."""
    out = np.empty(count, np.int64)
    k = 0
    for i in range(len(places)):
        for j in range(offsets[places[i]], offsets[places[i] + 1]):
            out[k] = j - offsets[0]
            k += 1
    return out
