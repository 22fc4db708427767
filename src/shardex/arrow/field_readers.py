"""Fields of mapped Arrow batches, read straight from their buffers; `mapped.py` makes a table of them.

Every field has a reader by how it lies: one width (`_Dense`), bits (`_Truth`), offsets and bytes (`_Blob`), offsets and
elements (`_Ragged`, `_Shaped`), or anything else (`Field` itself, through Arrow, which also takes over where arrays
have nulls inside). `_Maybe` is one of these for the rows that have a value. A read of many rows is one gather; a
getter reads one value of one batch.

Which rows lie in which chunk of a table: the arithmetic under the fields of mapped batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow.decode import decode_array_bytes, decode_value, reshape, take_rows, to_list
from shardex.arrow.types import fixed_sizes, is_binary, is_list, is_text, items_per_row, storage_dtype
from shardex.errors import FormatError
from shardex.kernel import Bytes as ByteArray
from shardex.kernel import (
    Column,
    Integers,
    Ragged,
    Ranges,
    Segments,
    locate,
    pooled_empty,
    row_ranges,
    take,
    value_reader,
)
from shardex.schema import JSON, TEXT, Array, Bytes, ClassLabel, Feature, Json, Optional, Text, Value

__all__ = ["Chunks", "Field", "Getter", "reader_of"]


class Chunks:
    """Runs of rows from `starts[k]` to `starts[k + 1]`; `open(k)` must fill the segments of run k, `name(k)` names it.

    >>> chunks = Chunks(np.array([0, 3, 4]), print, "chunk {}".format)
    >>> chunks.of(np.array([3, 0])).tolist(), chunks.rows_in(0)
    ([1, 0], 3)
    """

    __slots__ = ("_forgets", "_made", "name", "open", "starts")

    def __init__(
        self, starts: Integers, open: Callable[[int], None], name: Callable[[int], str], forgets: bool = False
    ) -> None:
        self.starts = starts
        self.open = open
        self.name = name
        self._forgets = forgets
        """True if `forget` may close chunks, because their files are in a cache that evicts files."""
        self._made: list[Segments] = []

    def of(self, rows: Integers) -> Integers:
        """The chunk that each row lies in."""
        return np.searchsorted(self.starts, rows, "right") - 1

    def rows_in(self, chunk: int) -> int:
        """How many rows a chunk has."""
        return int(self.starts[chunk + 1] - self.starts[chunk])

    def segments(self) -> Segments:
        """A table of one buffer per chunk, opened with the chunk."""
        made = Segments(len(self.starts) - 1, self.open, self.name, closable=self._forgets)
        self._made.append(made)
        return made

    def forget(self, chunk: int) -> None:
        """Close the segments of a chunk; reads that look at them keep them until they have ended."""
        for one in self._made:
            one.close(chunk)

    def bits(self, segments: Segments, rows: Integers) -> NDArray[np.bool_]:
        """The bit of each row, in buffers that hold one for each."""
        packed, _ = self.bytes_of_bits(segments, rows).packed()
        local = rows - self.starts[self.of(rows)]
        return ((packed >> (local & 7).astype(np.uint8)) & 1).astype(np.bool_)

    def bytes_of_bits(self, segments: Segments, rows: Integers) -> Ranges:
        """The byte that the bit of each row lies in."""
        chunk = self.of(rows)
        return Ranges(segments, chunk, (rows - self.starts[chunk]) >> 3, np.ones(len(rows), np.int64))


Getter = Callable[[int], Any]


def reader_of(name: str, feature: Feature, kind: pa.DataType, chunks: Chunks) -> Field:
    """The reader for a feature that lies as an Arrow type."""
    match feature:
        case Optional():
            return _Maybe(name, feature, chunks, kind)
        case Value(dtype="bool") if pa.types.is_boolean(kind):
            return _Truth(name, feature, chunks)
        case Value() | ClassLabel() if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return _Dense(name, feature, chunks, np.dtype(kind.to_pandas_dtype()), ())
        case Text() | Bytes() | Json() | Array() if _has_offsets(kind):
            return _Blob(name, feature, chunks, kind)
        case Array() if feature.fixed and feature.shape and pa.types.is_fixed_size_list(kind):
            return _Dense(name, feature, chunks, np.dtype(feature.dtype), fixed_sizes(feature))
        case Array() if feature.ragged and is_list(kind):
            return _Ragged(name, feature, chunks, kind)
        case Array() if feature.shape and pa.types.is_struct(kind) and _has_sized_shapes(kind):
            return _Shaped(name, feature, chunks, kind)
    return Field(name, feature, chunks)


def _has_offsets(kind: pa.DataType) -> bool:
    return is_text(kind) or (is_binary(kind) and not pa.types.is_fixed_size_binary(kind))


def _typed(data: ByteArray, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """The first elements of a buffer, which other tools make longer; read-only even where the buffer is not."""
    elements = data[: count * dtype.itemsize].view(dtype)
    elements.flags.writeable = False
    return elements


def _has_sized_shapes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind.field("shape").type))


class Field:
    """Any field, read through Arrow; the others derive from it and fall back to it."""

    def __init__(self, name: str, feature: Feature, chunks: Chunks) -> None:
        self._name = name
        self._feature = feature
        self._chunks = chunks
        self._arrays: dict[int, pa.Array] = {}
        self._holes = False
        """Whether values of some batch have nulls inside."""

    def put(self, chunk: int, array: pa.Array) -> None:
        """Take the array of a batch."""
        self._arrays[chunk] = array

    def drop(self, chunk: int) -> None:
        """Hold the array of a batch no longer."""
        self._arrays.pop(chunk, None)

    def arrays(self) -> list[pa.Array]:
        """The arrays of all batches, opened if need be."""
        return [self.array(chunk) for chunk in range(len(self._chunks.starts) - 1)]

    def array(self, chunk: int) -> pa.Array:
        """The array of a batch, opened if need be; another thread may let it go again meanwhile."""
        while (found := self._arrays.get(chunk)) is None:
            self._chunks.open(chunk)
        return found

    def read(self, rows: Integers) -> Column:
        """The values of these rows."""
        features = {self._name: self._feature}
        return take_rows(rows, self._chunks.starts, features, self._open, self._chunks.name).data[self._name]

    def advise(self, rows: Integers) -> None:
        """Begin to fetch the values of rows of open batches; where values lie that Arrow reads is not known."""

    def _open(self, chunk: int) -> dict[str, pa.Array]:
        return {self._name: self.array(chunk)}

    def getter(self, chunk: int) -> Getter:
        """Gives one value of an open batch."""
        array, feature = self.array(chunk), self._feature
        return lambda row: self.located(chunk, row, decode_value, array, row, feature)

    def located(self, chunk: int, row: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that may find bad data, and say where it was."""
        try:
            return function(*arguments)
        except FormatError as error:
            sample = self._chunks.starts[chunk] + row
            raise FormatError(f"{error} - at {self._chunks.name(chunk)}, sample {sample}, field {self._name}") from None


class _Maybe(Field):
    """A field with nulls: a bit for each row, and the field that reads those that have a value."""

    def __init__(self, name: str, feature: Optional, chunks: Chunks, kind: pa.DataType) -> None:
        super().__init__(name, feature, chunks)
        self._inner = reader_of(name, feature.feature, kind, chunks)
        self._valid = chunks.segments()

    def put(self, chunk: int, array: pa.Array) -> None:
        super().put(chunk, array)
        self._inner.put(chunk, array)
        bits = array.buffers()[0] if array.null_count else None
        self._valid.put(chunk, bits or np.full(len(array) // 8 + 1, 255, np.uint8))

    def drop(self, chunk: int) -> None:
        super().drop(chunk)
        self._inner.drop(chunk)

    def read(self, rows: Integers) -> Column:
        valid = self._chunks.bits(self._valid, rows)
        if valid.all():
            return self._inner.read(rows)
        values = iter(to_list(self._inner.read(rows[valid])))
        return [next(values) if there else None for there in valid.tolist()]

    def advise(self, rows: Integers) -> None:
        self._chunks.bytes_of_bits(self._valid, rows).advise()
        self._inner.advise(rows)

    def getter(self, chunk: int) -> Getter:
        array, get = self.array(chunk), self._inner.getter(chunk)
        if not array.null_count:
            return get
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        return lambda row: get(row) if valid[row] else None


class _Truth(Field):
    """Truth values, eight to a byte."""

    def __init__(self, name: str, feature: Feature, chunks: Chunks) -> None:
        super().__init__(name, feature, chunks)
        self._bits = chunks.segments()

    def put(self, chunk: int, array: pa.Array) -> None:
        super().put(chunk, array)
        self._bits.put(chunk, array.buffers()[1] or b"")

    def read(self, rows: Integers) -> Column:
        return self._chunks.bits(self._bits, rows)

    def advise(self, rows: Integers) -> None:
        self._chunks.bytes_of_bits(self._bits, rows).advise()

    def getter(self, chunk: int) -> Getter:
        return self.array(chunk).to_numpy(zero_copy_only=False).item  # type: ignore[no-any-return]


class _Dense(Field):
    """Values of one width, stacked by one gather."""

    def __init__(
        self, name: str, feature: Feature, chunks: Chunks, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        super().__init__(name, feature, chunks)
        self._dtype = dtype
        self._shape = shape
        self._width = dtype.itemsize * math.prod(shape)
        self._data = chunks.segments()

    def put(self, chunk: int, array: pa.Array) -> None:
        super().put(chunk, array)
        while pa.types.is_fixed_size_list(array.type):
            array = array.values
            self._holes = self._holes or array.null_count > 0
        self._data.put(chunk, array.buffers()[1] or b"")

    def read(self, rows: Integers) -> Column:
        out = pooled_empty((len(rows), *self._shape), self._dtype)
        take(self._data, self._chunks.starts, rows, self._width, out)
        return super().read(rows) if self._holes else out

    def advise(self, rows: Integers) -> None:
        row_ranges(self._data, self._chunks.starts, rows, self._width).advise()

    def getter(self, chunk: int) -> Getter:
        if self._holes:
            return super().getter(chunk)
        rows = self._chunks.rows_in(chunk)
        view = _typed(self._data.open(chunk), self._dtype, rows * math.prod(self._shape)).reshape(rows, *self._shape)
        return view.__getitem__ if self._shape else view.item


class _Lists:
    """Lists of a batch as ranges: offsets, and what they count."""

    def __init__(self, chunks: Chunks, kind: pa.DataType, item: int) -> None:
        wide = pa.types.is_large_list(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        self._offset = np.dtype(np.int64 if wide else np.int32)
        self._item = item
        self._chunks = chunks
        self._offsets = chunks.segments()
        self.data = chunks.segments()

    def put(self, chunk: int, offsets: pa.Buffer | None, data: pa.Buffer | None) -> None:
        self._offsets.put(chunk, offsets or bytes(self._offset.itemsize))
        self.data.put(chunk, data or b"")

    def ranges(self, rows: Integers) -> Ranges:
        """Where the lists of these rows lie; opens their batches."""
        return locate(self._offsets, self._chunks.starts, rows, self._offset.itemsize, self._item, self.data)

    def advise(self, rows: Integers) -> None:
        """Begin to fetch the lists of rows of open batches: first all offsets, for which it then waits."""
        row_ranges(self._offsets, self._chunks.starts, rows, self._offset.itemsize).advise()
        self.ranges(rows).advise()

    def offset(self, chunk: int) -> Callable[[int], int]:
        """Gives the offset of a row of an open batch."""
        return _typed(self._offsets.open(chunk), self._offset, self._chunks.rows_in(chunk) + 1).item

    def value(self, chunk: int, *, text: bool) -> Getter:
        """Gives the text or bytes of a row of an open batch; good as long as this is there."""
        return value_reader(self._offsets, self.data, chunk, self._offset.itemsize, text=text)

    def elements(self, chunk: int, dtype: np.dtype[Any]) -> Getter:
        """Gives the elements of a row of an open batch, not copied."""
        offset, data = self.offset(chunk), self.data.open(chunk)
        values = _typed(data, dtype, data.size // dtype.itemsize)
        pairs = dtype.itemsize // self._item
        if pairs == 1:
            return lambda row: values[offset(row) : offset(row + 1)]
        return lambda row: values[offset(row) // pairs : offset(row + 1) // pairs]


class _Blob(Field):
    """Text, bytes, JSON and arrays in bytes."""

    def __init__(self, name: str, feature: Feature, chunks: Chunks, kind: pa.DataType) -> None:
        super().__init__(name, feature, chunks)
        self._lists = _Lists(chunks, kind, 1)
        self._text = isinstance(feature, Text) and is_text(kind)
        self._decode: Callable[[Any], Any] | None = None
        if isinstance(feature, Json | Text):
            self._decode = (JSON if isinstance(feature, Json) else TEXT).decode
        elif isinstance(feature, Array):
            self._decode = lambda raw: decode_array_bytes(raw, feature)

    def put(self, chunk: int, array: pa.Array) -> None:
        super().put(chunk, array)
        self._lists.put(chunk, *array.buffers()[1:])

    def read(self, rows: Integers) -> Column:
        ranges = self._lists.ranges(rows)
        if self._text:
            return ranges.text()
        raw, decode = ranges.bytes(), self._decode
        if decode is None:
            return raw
        try:
            return [decode(one) for one in raw]
        except FormatError:
            return super().read(rows)  # which finds out where

    def advise(self, rows: Integers) -> None:
        self._lists.advise(rows)

    def getter(self, chunk: int) -> Getter:
        get, decode, located = self._lists.value(chunk, text=self._text), self._decode, self.located
        if self._text or decode is None:
            return get
        return lambda row: located(chunk, row, decode, get(row))


class _Ragged(Field):
    """Arrays whose first size is free."""

    def __init__(self, name: str, feature: Array, chunks: Chunks, kind: pa.DataType) -> None:
        super().__init__(name, feature, chunks)
        self._dtype = np.dtype(feature.dtype)
        self._inner = fixed_sizes(feature)
        item = storage_dtype(self._dtype).itemsize
        self._step = items_per_row(feature) * item
        self._lists = _Lists(chunks, kind, item)

    def put(self, chunk: int, array: pa.Array) -> None:
        super().put(chunk, array)
        self._holes = self._holes or array.values.null_count > 0
        self._lists.put(chunk, array.buffers()[1], array.values.buffers()[1])

    def read(self, rows: Integers) -> Column:
        ranges = self._lists.ranges(rows)
        if self._holes or (self._inner and (ranges.length % self._step).any()):
            return super().read(rows)  # which finds out where lists have an odd length
        return Ragged(ranges, self._dtype, self._inner)

    def advise(self, rows: Integers) -> None:
        self._lists.advise(rows)

    def getter(self, chunk: int) -> Getter:
        if self._holes:
            return super().getter(chunk)
        elements, shape = self._lists.elements(chunk, self._dtype), (-1, *self._inner)
        if not self._inner:
            return elements
        return lambda row: self.located(chunk, row, reshape, elements(row), shape)


class _Shaped(Field):
    """Arrays of which more is free: their elements, and their shapes."""

    def __init__(self, name: str, feature: Array, chunks: Chunks, kind: pa.DataType) -> None:
        super().__init__(name, feature, chunks)
        self._dtype = np.dtype(feature.dtype)
        self._ndim = len(feature.shape or ())
        self._lists = _Lists(chunks, kind.field("values").type, storage_dtype(self._dtype).itemsize)
        self._shapes = chunks.segments()

    def put(self, chunk: int, array: pa.Array) -> None:
        super().put(chunk, array)
        values, shapes = array.field("values"), array.field("shape")
        parts = (values, values.values, shapes, shapes.values)
        self._holes = self._holes or any(part.null_count for part in parts)
        self._lists.put(chunk, values.buffers()[1], values.values.buffers()[1])
        self._shapes.put(chunk, shapes.values.buffers()[1] or b"")

    def read(self, rows: Integers) -> Column:
        ranges = self._lists.ranges(rows)
        if self._holes:
            return super().read(rows)
        shapes = np.empty((len(rows), self._ndim), np.int64)
        take(self._shapes, self._chunks.starts, rows, shapes.itemsize * self._ndim, shapes)
        return Ragged(ranges, self._dtype, shapes=shapes)

    def advise(self, rows: Integers) -> None:
        row_ranges(self._shapes, self._chunks.starts, rows, 8 * self._ndim).advise()
        self._lists.advise(rows)

    def getter(self, chunk: int) -> Getter:
        if self._holes:
            return super().getter(chunk)
        elements = self._lists.elements(chunk, self._dtype)
        rows = self._chunks.rows_in(chunk)
        shapes = _typed(self._shapes.open(chunk), np.dtype(np.int64), rows * self._ndim).reshape(rows, self._ndim)
        return lambda row: self.located(chunk, row, reshape, elements(row), shapes[row].tolist())
