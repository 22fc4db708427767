"""Readers of single fields of mapped Arrow batches, directly from their buffers; `mapped_table` combines them.

`reader_of` chooses the reader by feature and Arrow type: values of one width (`_FixedWidthReader`), bits
(`_BoolReader`), offsets and bytes (`_BytesReader`, in structs `_MediaReader`), offsets and elements (`_RaggedReader`,
`_ShapedReader`). `_OptionalReader` wraps one of these and its validity bits. `FieldReader` itself reads all other types
through Arrow (`decode`), and the others fall back to it if arrays have nulls inside. Reading many rows is one gather; a
getter reads one value of one batch. `Chunks` maps rows to batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow.decode import (
    Decode,
    decode_array,
    decode_array_bytes,
    decode_value,
    reshape,
    take_rows,
    time_column,
)
from shardex.arrow.media_structs import ReadFile, holds_media_structs, media_decoder, no_file
from shardex.arrow.types import (
    fixed_sizes,
    is_binary,
    is_list,
    is_media_struct,
    is_text,
    items_per_row,
    storage_dtype,
)
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
    with_missing,
)
from shardex.schema import (
    JSON,
    TEXT,
    Array,
    Bytes,
    ClassLabel,
    Feature,
    Json,
    Map,
    Media,
    Optional,
    Sequence,
    Struct,
    Text,
    TimeFeature,
    Value,
    stack_arrays,
)


class Chunks:
    """Chunks of consecutive rows, chunk k from `starts[k]` to `starts[k + 1]`; one chunk is one record batch.

    `open(k)` must fill the segments of chunk k, `name(k)` names it in messages.

    >>> chunks = Chunks(np.array([0, 3, 4]), print, "chunk {}".format)
    >>> chunks.of(np.array([3, 0])).tolist(), chunks.rows_in(0)
    ([1, 0], 3)
    """

    __slots__ = ("_closable", "_segments", "name", "open", "starts")

    def __init__(
        self, starts: Integers, open: Callable[[int], None], name: Callable[[int], str], closable: bool = False
    ) -> None:
        self.starts = starts
        self.open = open
        self.name = name
        self._closable = closable
        """True if `close` may be called: the files are in a cache that evicts files."""
        self._segments: list[Segments] = []

    def of(self, rows: Integers) -> Integers:
        """Return the chunk of each row."""
        return np.searchsorted(self.starts, rows, "right") - 1

    def rows_in(self, chunk: int) -> int:
        """Return the number of rows of a chunk."""
        return int(self.starts[chunk + 1] - self.starts[chunk])

    def segments(self) -> Segments:
        """Return new segments of one buffer per chunk, which `open` fills."""
        segments = Segments(len(self.starts) - 1, self.open, self.name, closable=self._closable)
        self._segments.append(segments)
        return segments

    def close(self, chunk: int) -> None:
        """Close the segments of a chunk; a running read keeps its buffers until it ends."""
        for segments in self._segments:
            segments.close(chunk)

    def bits(self, segments: Segments, rows: Integers) -> NDArray[np.bool_]:
        """Return the bit of each row, from buffers of one bit per row."""
        packed, _ = self.bytes_of_bits(segments, rows).packed()
        local = rows - self.starts[self.of(rows)]
        return ((packed >> (local & 7).astype(np.uint8)) & 1).astype(np.bool_)

    def bytes_of_bits(self, segments: Segments, rows: Integers) -> Ranges:
        """Return the range of the byte that holds the bit of each row."""
        chunk = self.of(rows)
        return Ranges(segments, chunk, (rows - self.starts[chunk]) >> 3, np.ones(len(rows), np.int64))


Getter = Callable[[int], Any]
"""Returns the value of a row of one batch; rows count from the start of the batch."""


def reader_of(
    name: str, feature: Feature, kind: pa.DataType, chunks: Chunks, read_file: ReadFile = no_file
) -> FieldReader:
    """Return a reader for a feature that is stored as an Arrow type; `read_file` reads media that is stored by path."""
    match feature:
        case Media() if is_media_struct(kind):
            return _MediaReader(name, feature, chunks, kind, read_file)
        case Sequence() | Struct() | Map() if holds_media_structs(feature, kind):
            return FieldReader(name, feature, chunks, media_decoder(read_file))
        case Optional():
            return _OptionalReader(name, feature, chunks, kind, read_file)
        case Value(dtype="bool") if pa.types.is_boolean(kind):
            return _BoolReader(name, feature, chunks)
        case Value() | ClassLabel() if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return _FixedWidthReader(name, feature, chunks, np.dtype(kind.to_pandas_dtype()), ())
        case Text() | Bytes() | Json() | Array() if _has_offsets(kind):
            return _BytesReader(name, feature, chunks, kind)
        case Array() if feature.fixed and feature.shape and pa.types.is_fixed_size_list(kind):
            return _FixedWidthReader(name, feature, chunks, np.dtype(feature.dtype), fixed_sizes(feature))
        case Array() if feature.ragged and is_list(kind):
            return _RaggedReader(name, feature, chunks, kind)
        case Array() if feature.shape and pa.types.is_struct(kind) and _has_sized_shapes(kind):
            return _ShapedReader(name, feature, chunks, kind)
        case TimeFeature() if pa.types.is_temporal(kind):
            return _TimeReader(name, feature, chunks, kind)
    return FieldReader(name, feature, chunks)


def _has_offsets(kind: pa.DataType) -> bool:
    return is_text(kind) or (is_binary(kind) and not pa.types.is_fixed_size_binary(kind))


def _typed(data: ByteArray, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return the first `count` elements of a buffer (other tools may pad it) as a read-only view."""
    elements = data[: count * dtype.itemsize].view(dtype)
    elements.flags.writeable = False
    return elements


def _has_sized_shapes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind.field("shape").type))


class FieldReader:
    """Reads a field of any type through Arrow; base class and fallback of the other readers."""

    def __init__(self, name: str, feature: Feature, chunks: Chunks, decode: Decode = decode_array) -> None:
        self._name = name
        self._feature = feature
        self._chunks = chunks
        self._values = decode
        self._arrays: dict[int, pa.Array] = {}
        self._has_inner_nulls = False
        """True if arrays of some opened batch have null elements."""

    def attach(self, chunk: int, array: pa.Array) -> None:
        """Set the array from which a batch is read."""
        self._arrays[chunk] = array

    def detach(self, chunk: int) -> None:
        """Release the array of a batch."""
        self._arrays.pop(chunk, None)

    def arrays(self) -> list[pa.Array]:
        """Return the arrays of all batches; opens batches that are not open."""
        return [self.array(chunk) for chunk in range(len(self._chunks.starts) - 1)]

    def array(self, chunk: int) -> pa.Array:
        """Return the array of a batch; opens it, again if another thread closes it at the same time."""
        while (found := self._arrays.get(chunk)) is None:
            self._chunks.open(chunk)
        return found

    def read(self, rows: Integers) -> Column:
        """Return the values of these rows."""
        features = {self._name: self._feature}
        found = take_rows(rows, self._chunks.starts, features, self._open, self._chunks.name, self._values)
        return found.data[self._name]

    def views(self, rows: Integers) -> Column:
        """Return the values of these rows; those of bytes without a copy, if that is possible."""
        return self.read(rows)

    def advise(self, rows: Integers) -> None:
        """Start to download the values of rows of open batches; does nothing here, since Arrow hides the ranges."""

    def _open(self, chunk: int) -> dict[str, pa.Array]:
        return {self._name: self.array(chunk)}

    def getter(self, chunk: int) -> Getter:
        """Return a function that reads one value of an open batch."""
        array, feature, decode = self.array(chunk), self._feature, self._values
        if (get := _getter_of_lists(array, feature)) is not None:
            return get
        return lambda row: self.located(chunk, row, decode_value, array, row, feature, decode)

    def located(self, chunk: int, row: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function and add the place to a `FormatError` that it raises."""
        try:
            return function(*arguments)
        except FormatError as error:
            sample = self._chunks.starts[chunk] + row
            raise FormatError(f"{error} - at {self._chunks.name(chunk)}, sample {sample}, field {self._name}") from None


def _getter_of_lists(array: pa.Array, feature: Feature) -> Getter | None:
    """Return a getter of lists of arrays of one dimension, ten times as fast as `decode_value`; None for others."""
    match feature:
        case Sequence(feature=Array(dtype=str(dtype), shape=(None,))) if is_list(array.type):
            arrays = array.values
        case _:
            return None
    if not is_list(arrays.type) or arrays.null_count or arrays.values.null_count or np.dtype(dtype).kind not in "iuf":
        return None
    lists, bounds = array.offsets.to_numpy(), arrays.offsets.to_numpy()
    elements = np.asarray(arrays.values)
    return lambda row: [
        elements[begin:end].copy() for begin, end in pairwise(bounds[lists[row] : lists[row + 1] + 1].tolist())
    ]


class _OptionalReader(FieldReader):
    """Values that may be null: validity bits, and the reader of the other values."""

    def __init__(
        self, name: str, feature: Optional, chunks: Chunks, kind: pa.DataType, read_file: ReadFile = no_file
    ) -> None:
        super().__init__(name, feature, chunks)
        self._inner = reader_of(name, feature.feature, kind, chunks, read_file)
        self._valid = chunks.segments()

    def attach(self, chunk: int, array: pa.Array) -> None:
        super().attach(chunk, array)
        self._inner.attach(chunk, array)
        bits = array.buffers()[0] if array.null_count else None
        self._valid.put(chunk, bits or np.full(len(array) // 8 + 1, 255, np.uint8))

    def detach(self, chunk: int) -> None:
        super().detach(chunk)
        self._inner.detach(chunk)

    def read(self, rows: Integers) -> Column:
        valid = self._chunks.bits(self._valid, rows)
        return with_missing(self._inner.read(rows if valid.all() else rows[valid]), valid)

    def advise(self, rows: Integers) -> None:
        self._chunks.bytes_of_bits(self._valid, rows).advise()
        self._inner.advise(rows)

    def getter(self, chunk: int) -> Getter:
        array, get = self.array(chunk), self._inner.getter(chunk)
        if not array.null_count:
            return get
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        return lambda row: get(row) if valid[row] else None


class _BoolReader(FieldReader):
    """Booleans, eight to a byte."""

    def __init__(self, name: str, feature: Feature, chunks: Chunks) -> None:
        super().__init__(name, feature, chunks)
        self._bits = chunks.segments()

    def attach(self, chunk: int, array: pa.Array) -> None:
        super().attach(chunk, array)
        self._bits.put(chunk, array.buffers()[1] or b"")

    def read(self, rows: Integers) -> Column:
        return self._chunks.bits(self._bits, rows)

    def advise(self, rows: Integers) -> None:
        self._chunks.bytes_of_bits(self._bits, rows).advise()

    def getter(self, chunk: int) -> Getter:
        return self.array(chunk).to_numpy(zero_copy_only=False).item  # type: ignore[no-any-return]


class _FixedWidthReader(FieldReader):
    """Values of one width: numbers and arrays of one shape, read by one gather."""

    def __init__(
        self, name: str, feature: Feature, chunks: Chunks, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        super().__init__(name, feature, chunks)
        self._dtype = dtype
        self._shape = shape
        self._width = dtype.itemsize * math.prod(shape)
        self._data = chunks.segments()

    def attach(self, chunk: int, array: pa.Array) -> None:
        super().attach(chunk, array)
        visible = array  # other tools write nulls as the elements of a list that is null itself
        while pa.types.is_fixed_size_list(array.type):
            array = array.values
            visible = visible.flatten() if array.null_count else array
            self._has_inner_nulls = self._has_inner_nulls or visible.null_count > 0
        self._data.put(chunk, array.buffers()[1] or b"")

    def read(self, rows: Integers) -> Column:
        out = pooled_empty((len(rows), *self._shape), self._dtype)
        take(self._data, self._chunks.starts, rows, self._width, out)
        return super().read(rows) if self._has_inner_nulls and len(rows) else out

    def advise(self, rows: Integers) -> None:
        row_ranges(self._data, self._chunks.starts, rows, self._width).advise()

    def getter(self, chunk: int) -> Getter:
        if self._has_inner_nulls:
            return super().getter(chunk)
        rows = self._chunks.rows_in(chunk)
        view = _typed(self._data.open(chunk), self._dtype, rows * math.prod(self._shape)).reshape(rows, *self._shape)
        return view.__getitem__ if self._shape else view.item


class _TimeReader(_FixedWidthReader):
    """Dates and times: numbers of units."""

    def __init__(self, name: str, feature: TimeFeature, chunks: Chunks, kind: pa.DataType) -> None:
        super().__init__(name, feature, chunks, np.dtype(np.int32 if kind.bit_width == 32 else np.int64), ())
        self._kind = kind
        self._times = feature

    def read(self, rows: Integers) -> Column:
        return time_column(super().read(rows), self._kind, self._times)  # type: ignore[arg-type]

    def getter(self, chunk: int) -> Getter:
        numbers, times = super().getter(chunk), self._times

        def get(row: int) -> Any:
            return times.to_python(time_column(np.array([numbers(row)]), self._kind, times))[0]

        return lambda row: self.located(chunk, row, get, row)


class _Lists:
    """Offsets and items of lists, read as byte ranges; `item` is the size of an item in bytes."""

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
        """Return the byte ranges of the lists of these rows; opens their batches."""
        return locate(self._offsets, self._chunks.starts, rows, self._offset.itemsize, self._item, self.data)

    def advise(self, rows: Integers) -> None:
        """Start to download the lists of rows of open batches; waits for their offsets, which come first."""
        row_ranges(self._offsets, self._chunks.starts, rows, self._offset.itemsize).advise()
        self.ranges(rows).advise()

    def value(self, chunk: int, *, text: bool) -> Getter:
        """Return a function that reads the text or bytes of a row; valid as long as this object exists."""
        return value_reader(self._offsets, self.data, chunk, self._offset.itemsize, text=text)

    def elements(self, chunk: int, dtype: np.dtype[Any]) -> Getter:
        """Return a function that reads the elements of a row of an open batch, without a copy."""
        offset = _typed(self._offsets.open(chunk), self._offset, self._chunks.rows_in(chunk) + 1).item
        data = self.data.open(chunk)
        values = _typed(data, dtype, data.size // dtype.itemsize)
        pairs = dtype.itemsize // self._item
        if pairs == 1:
            return lambda row: values[offset(row) : offset(row + 1)]
        return lambda row: values[offset(row) // pairs : offset(row + 1) // pairs]


class _BytesReader(FieldReader):
    """Text, bytes, JSON, and arrays stored as bytes."""

    def __init__(self, name: str, feature: Feature, chunks: Chunks, kind: pa.DataType) -> None:
        super().__init__(name, feature, chunks)
        self._lists = _Lists(chunks, kind, 1)
        self._text = isinstance(feature, Text) and is_text(kind)
        self._decode: Callable[[Any], Any] | None = None
        if isinstance(feature, Json | Text):
            self._decode = (JSON if isinstance(feature, Json) else TEXT).decode
        elif isinstance(feature, Array):
            self._decode = lambda raw: decode_array_bytes(raw, feature)

    def attach(self, chunk: int, array: pa.Array) -> None:
        super().attach(chunk, array)
        self._lists.put(chunk, *array.buffers()[1:])

    def read(self, rows: Integers) -> Column:
        ranges = self._lists.ranges(rows)
        if self._text:
            return ranges.text()
        raw, decode = ranges.bytes(), self._decode
        if decode is None:
            return raw
        try:
            values = [decode(one) for one in raw]
        except FormatError:
            return super().read(rows)  # finds the bad row
        return stack_arrays(values, self._feature) if isinstance(self._feature, Array) else values

    def views(self, rows: Integers) -> Column:
        plain = self._decode is None and not self._text
        return cast("Column", self._lists.ranges(rows).views()) if plain else self.read(rows)

    def advise(self, rows: Integers) -> None:
        self._lists.advise(rows)

    def getter(self, chunk: int) -> Getter:
        get, decode, located = self._lists.value(chunk, text=self._text), self._decode, self.located
        if self._text or decode is None:
            return get
        return lambda row: located(chunk, row, decode, get(row))


class _MediaReader(_BytesReader):
    """Images, audio and video as structs: the buffers of their bytes, unless some of them are a path alone."""

    def __init__(self, name: str, feature: Media, chunks: Chunks, kind: pa.DataType, read_file: ReadFile) -> None:
        super().__init__(name, feature, chunks, kind.field("bytes").type)
        self._values = media_decoder(read_file)

    def attach(self, chunk: int, array: pa.Array) -> None:
        FieldReader.attach(self, chunk, array)
        data = array.field("bytes")
        if data.null_count:  # of structs that are not null themselves
            visible = array.flatten()[array.type.get_field_index("bytes")]
            self._has_inner_nulls = self._has_inner_nulls or visible.null_count > array.null_count
        self._lists.put(chunk, *data.buffers()[1:])

    def read(self, rows: Integers) -> Column:
        found = super().read(rows)
        return FieldReader.read(self, rows) if self._has_inner_nulls and len(rows) else found

    def views(self, rows: Integers) -> Column:
        return self.read(rows) if self._has_inner_nulls else super().views(rows)

    def getter(self, chunk: int) -> Getter:
        return FieldReader.getter(self, chunk) if self._has_inner_nulls else super().getter(chunk)


class _RaggedReader(FieldReader):
    """Arrays of which only the first size varies."""

    def __init__(self, name: str, feature: Array, chunks: Chunks, kind: pa.DataType) -> None:
        super().__init__(name, feature, chunks)
        self._dtype = np.dtype(feature.dtype)
        self._inner = fixed_sizes(feature)
        item = storage_dtype(self._dtype).itemsize
        self._step = items_per_row(feature) * item
        self._lists = _Lists(chunks, kind, item)

    def attach(self, chunk: int, array: pa.Array) -> None:
        super().attach(chunk, array)
        self._has_inner_nulls = self._has_inner_nulls or array.values.null_count > 0
        self._lists.put(chunk, array.buffers()[1], array.values.buffers()[1])

    def read(self, rows: Integers) -> Column:
        ranges = self._lists.ranges(rows)
        if self._has_inner_nulls or (self._inner and (ranges.length % self._step).any()):
            return super().read(rows)  # finds the row whose list has a wrong length
        return Ragged(ranges, self._dtype, self._inner)

    def advise(self, rows: Integers) -> None:
        self._lists.advise(rows)

    def getter(self, chunk: int) -> Getter:
        if self._has_inner_nulls:
            return super().getter(chunk)
        elements, shape = self._lists.elements(chunk, self._dtype), (-1, *self._inner)
        if not self._inner:
            return elements
        return lambda row: self.located(chunk, row, reshape, elements(row), shape)


class _ShapedReader(FieldReader):
    """Arrays of any other shape: elements and shapes."""

    def __init__(self, name: str, feature: Array, chunks: Chunks, kind: pa.DataType) -> None:
        super().__init__(name, feature, chunks)
        self._dtype = np.dtype(feature.dtype)
        self._ndim = len(feature.shape or ())
        self._lists = _Lists(chunks, kind.field("values").type, storage_dtype(self._dtype).itemsize)
        self._shapes = chunks.segments()

    def attach(self, chunk: int, array: pa.Array) -> None:
        super().attach(chunk, array)
        values, shapes = array.field("values"), array.field("shape")
        parts = (values, values.values, shapes, shapes.values)
        self._has_inner_nulls = self._has_inner_nulls or any(part.null_count for part in parts)
        self._lists.put(chunk, values.buffers()[1], values.values.buffers()[1])
        self._shapes.put(chunk, shapes.values.buffers()[1] or b"")

    def read(self, rows: Integers) -> Column:
        ranges = self._lists.ranges(rows)
        if self._has_inner_nulls:
            return super().read(rows)
        shapes = np.empty((len(rows), self._ndim), np.int64)
        take(self._shapes, self._chunks.starts, rows, shapes.itemsize * self._ndim, shapes)
        return Ragged(ranges, self._dtype, shapes=shapes)

    def advise(self, rows: Integers) -> None:
        row_ranges(self._shapes, self._chunks.starts, rows, 8 * self._ndim).advise()
        self._lists.advise(rows)

    def getter(self, chunk: int) -> Getter:
        if self._has_inner_nulls:
            return super().getter(chunk)
        elements = self._lists.elements(chunk, self._dtype)
        rows = self._chunks.rows_in(chunk)
        shapes = _typed(self._shapes.open(chunk), np.dtype(np.int64), rows * self._ndim).reshape(rows, self._ndim)
        return lambda row: self.located(chunk, row, reshape, elements(row), shapes[row].tolist())
