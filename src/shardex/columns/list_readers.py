"""Readers of fields that have offsets: text, bytes, media, and arrays of different lengths and shapes.

Offsets and bytes are read by `BytesReader`, in structs by `MediaReader`; offsets and elements by `RaggedReader`, with
shapes by `ShapedReader` and `FreeShapeReader`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns.arrow_types import storage_dtype
from shardex.columns.arrow_values import ReadFile, media_decoder
from shardex.columns.buffer_layout import Layout
from shardex.columns.field_readers import Chunks, FieldReader, Getter, copies, typed
from shardex.columns.fields import Field
from shardex.errors import FormatError
from shardex.kernel import Column, Integers, Ragged, Ranges, Segments, arrays_of, locate, row_ranges, take, value_reader


class Lists:
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

    def tables(self, offsets: int, data: int) -> Iterator[tuple[Segments, int]]:
        """Yield both tables with the numbers of their buffers."""
        yield self._offsets, offsets
        yield self.data, data

    def ranges(self, rows: Integers) -> Ranges:
        """Return the byte ranges of the lists of these rows; opens their batches."""
        return locate(self._offsets, self._chunks.starts, rows, self._offset.itemsize, self._item, self.data)

    def offset_ranges(self, rows: Integers) -> Ranges:
        """Return the byte ranges of the two offsets of each row."""
        width = self._offset.itemsize
        return row_ranges(self._offsets, self._chunks.starts, rows, width, 2 * width)

    def value(self, chunk: int, *, text: bool) -> Getter:
        """Return a function that reads the text or bytes of a row; valid as long as this object exists."""
        return value_reader(self._offsets, self.data, chunk, self._offset.itemsize, text=text)

    def offsets(self, chunk: int) -> Integers:
        """Return the offsets of the lists of an open batch, and the end of the last one."""
        offsets = typed(self._offsets.open(chunk), self._offset, self._chunks.rows_in(chunk) + 1)
        size = self.data.open(chunk).size
        if offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any() or offsets[-1] > size // self._item:
            raise FormatError(f"{self._chunks.name(chunk)}: expected offsets that rise from 0 inside of {size} bytes")
        return offsets

    def items(self, chunk: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the items of all lists of an open batch."""
        data = self.data.open(chunk)
        return typed(data, dtype, data.size // dtype.itemsize)

    def elements(self, chunk: int, dtype: np.dtype[Any]) -> Getter:
        """Return a function that reads the elements of a row of an open batch, without a copy."""
        offset, values = self.offsets(chunk).item, self.items(chunk, dtype)
        pairs = dtype.itemsize // self._item
        if pairs == 1:
            return lambda row: values[offset(row) : offset(row + 1)]
        return lambda row: values[offset(row) // pairs : offset(row + 1) // pairs]


class _ListReader(FieldReader):
    """Values with offsets."""

    _reads_buffers = True
    _lists: Lists

    def first_ranges(self, rows: Integers) -> list[Ranges]:
        return [self._lists.offset_ranges(rows)]

    def then_ranges(self, rows: Integers) -> list[Ranges]:
        return [self._lists.ranges(rows)]


class BytesReader(_ListReader):
    """Text, bytes, JSON, and arrays stored as bytes."""

    def __init__(
        self,
        name: str,
        feature: Field,
        chunks: Chunks,
        kind: pa.DataType,
        *,
        text: bool = False,
        decode: Callable[[bytes], Any] | None = None,
        stack: Callable[[list[Any]], Column] | None = None,
    ) -> None:
        """`decode` returns the value of bytes, `stack` the column of values."""
        super().__init__(name, feature, chunks)
        self._lists = Lists(chunks, kind, 1)
        self._text = text
        self._decode, self._stack = decode, stack

    def attach(self, chunk: int, array: pa.Array) -> None:
        super().attach(chunk, array)
        self._lists.put(chunk, *array.buffers()[1:])

    def tables(self, layout: Layout) -> Iterator[tuple[Segments, int]]:
        return self._lists.tables(layout.buffer + 1, layout.buffer + 2)

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
        return values if self._stack is None else self._stack(values)

    def views(self, rows: Integers) -> Column:
        plain = self._decode is None and not self._text
        return cast("Column", self._lists.ranges(rows).views()) if plain else self.read(rows)

    def getter(self, chunk: int) -> Getter:
        get, decode, located = self._lists.value(chunk, text=self._text), self._decode, self.located
        if self._text or decode is None:
            return get
        return lambda row: located(chunk, row, decode, get(row))

    def list_of(self, get: Getter, bounds: Integers) -> Getter:
        return super().list_of(get, bounds) if self._stack is None else copies(get, bounds)


class MediaReader(BytesReader):
    """Images, audio and video as structs: the buffers of their bytes, unless some of them are a path alone."""

    def __init__(self, name: str, feature: Field, chunks: Chunks, kind: pa.DataType, read_file: ReadFile) -> None:
        super().__init__(name, feature, chunks, kind.field("bytes").type)
        self._values = media_decoder(read_file)

    def attach(self, chunk: int, array: pa.Array) -> None:
        FieldReader.attach(self, chunk, array)
        data = array.field("bytes")
        if data.null_count:  # of structs that are not null themselves
            visible = array.flatten()[array.type.get_field_index("bytes")]
            self._has_inner_nulls = self._has_inner_nulls or visible.null_count > array.null_count
        self._lists.put(chunk, *data.buffers()[1:])

    def tables(self, layout: Layout) -> Iterator[tuple[Segments, int]]:
        return super().tables(layout.part("bytes"))

    def read(self, rows: Integers) -> Column:
        found = super().read(rows)
        return FieldReader.read(self, rows) if self._has_inner_nulls and len(rows) else found

    def views(self, rows: Integers) -> Column:
        return self.read(rows) if self._has_inner_nulls else super().views(rows)

    def getter(self, chunk: int) -> Getter:
        return FieldReader.getter(self, chunk) if self._has_inner_nulls else super().getter(chunk)


class RaggedReader(_ListReader):
    """Arrays of which only the first size varies."""

    def __init__(
        self,
        name: str,
        feature: Field,
        chunks: Chunks,
        kind: pa.DataType,
        dtype: np.dtype[Any],
        inner: tuple[int, ...],
    ) -> None:
        super().__init__(name, feature, chunks)
        self._dtype = dtype
        self._inner = inner
        self._step = dtype.itemsize * math.prod(inner)
        self._lists = Lists(chunks, kind, storage_dtype(dtype).itemsize)

    def attach(self, chunk: int, array: pa.Array) -> None:
        super().attach(chunk, array)
        self._has_inner_nulls = self._has_inner_nulls or array.values.null_count > 0
        self._lists.put(chunk, array.buffers()[1], array.values.buffers()[1])

    def tables(self, layout: Layout) -> Iterator[tuple[Segments, int]]:
        return self._lists.tables(layout.buffer + 1, layout.parts[0].buffer + 1)

    def read(self, rows: Integers) -> Column:
        ranges = self._lists.ranges(rows)
        if self._has_inner_nulls or (self._inner and (ranges.length % self._step).any()):
            return super().read(rows)  # finds the row whose list has a wrong length
        return Ragged(ranges, self._dtype, self._inner)

    def getter(self, chunk: int) -> Getter:
        if self._has_inner_nulls:
            return super().getter(chunk)
        elements, shape = self._lists.elements(chunk, self._dtype), (-1, *self._inner)
        if not self._inner:
            return elements
        return lambda row: self.located(chunk, row, reshape, elements(row), shape)

    def list_getter(self, chunk: int, bounds: Integers) -> Getter | None:
        if self._inner or self._dtype.kind == "c":
            return self.list_of(self.getter(chunk), bounds)
        ends, elements, bound = self._lists.offsets(chunk), self._lists.items(chunk, self._dtype), bounds.item
        return lambda row: [
            elements[begin:end].copy() for begin, end in pairwise(ends[bound(row) : bound(row + 1) + 1].tolist())
        ]

    def list_of(self, get: Getter, bounds: Integers) -> Getter:
        return copies(get, bounds)


class ShapedReader(_ListReader):
    """Arrays of any other shape, but of one number of dimensions: elements and shapes."""

    def __init__(
        self, name: str, feature: Field, chunks: Chunks, kind: pa.DataType, dtype: np.dtype[Any], ndim: int
    ) -> None:
        super().__init__(name, feature, chunks)
        self._dtype = dtype
        self._ndim = ndim
        self._lists = Lists(chunks, kind.field("values").type, storage_dtype(self._dtype).itemsize)
        self._shapes = chunks.segments()

    def attach(self, chunk: int, array: pa.Array) -> None:
        super().attach(chunk, array)
        self._attach_values(chunk, array)
        self._shapes.put(chunk, array.field("shape").values.buffers()[1] or b"")

    def _attach_values(self, chunk: int, array: pa.Array) -> None:
        values, shapes = array.field("values"), array.field("shape")
        parts = (values, values.values, shapes, shapes.values)
        self._has_inner_nulls = self._has_inner_nulls or any(part.null_count for part in parts)
        self._lists.put(chunk, values.buffers()[1], values.values.buffers()[1])

    def tables(self, layout: Layout) -> Iterator[tuple[Segments, int]]:
        values, shapes = layout.part("values"), layout.part("shape")
        yield from self._lists.tables(values.buffer + 1, values.parts[0].buffer + 1)
        yield self._shapes, shapes.parts[0].buffer + 1

    def read(self, rows: Integers) -> Column:
        ranges = self._lists.ranges(rows)
        if self._has_inner_nulls:
            return super().read(rows)
        shapes = np.empty((len(rows), self._ndim), np.int64)
        take(self._shapes, self._chunks.starts, rows, shapes.itemsize * self._ndim, shapes)
        return Ragged(ranges, self._dtype, shapes=shapes)

    def first_ranges(self, rows: Integers) -> list[Ranges]:
        shapes = row_ranges(self._shapes, self._chunks.starts, rows, 8 * self._ndim)
        return [self._lists.offset_ranges(rows), shapes]

    def getter(self, chunk: int) -> Getter:
        rows = self._chunks.rows_in(chunk)
        sizes = typed(self._shapes.open(chunk), np.dtype(np.int64), rows * self._ndim)
        if self._has_inner_nulls or sizes.min(initial=0) < 0:
            return super().getter(chunk)
        shapes = sizes.reshape(rows, self._ndim)
        return self._shaped_getter(chunk, lambda row: shapes[row].tolist())

    def list_of(self, get: Getter, bounds: Integers) -> Getter:
        return copies(get, bounds)

    def _shaped_getter(self, chunk: int, shape_of: Callable[[int], list[int]]) -> Getter:
        elements = self._lists.elements(chunk, self._dtype)

        def get(row: int) -> Any:
            try:
                return elements(row).reshape(shape_of(row))
            except ValueError:
                return self.located(chunk, row, reshape, elements(row), shape_of(row))

        return get


class FreeShapeReader(ShapedReader):
    """Arrays of any number of dimensions: elements, and shapes as lists of sizes."""

    def __init__(
        self, name: str, feature: Field, chunks: Chunks, kind: pa.DataType, dtype: np.dtype[Any], ndim: int
    ) -> None:
        super().__init__(name, feature, chunks, kind, dtype, ndim)
        self._sizes = Lists(chunks, kind.field("shape").type, 8)

    def attach(self, chunk: int, array: pa.Array) -> None:
        FieldReader.attach(self, chunk, array)
        self._attach_values(chunk, array)
        shapes = array.field("shape")
        self._sizes.put(chunk, shapes.buffers()[1], shapes.values.buffers()[1])

    def tables(self, layout: Layout) -> Iterator[tuple[Segments, int]]:
        yield from super().tables(layout)
        shapes = layout.part("shape")
        yield from self._sizes.tables(shapes.buffer + 1, shapes.parts[0].buffer + 1)

    def read(self, rows: Integers) -> Column:
        ranges, sizes = self._lists.ranges(rows), self._sizes.ranges(rows)
        if self._has_inner_nulls or (ranges.length % self._dtype.itemsize).any():
            return FieldReader.read(self, rows)
        values, shapes = ranges.packed()[0].view(self._dtype), sizes.packed()[0].view(np.int64)
        try:
            return arrays_of(values, ranges.length // self._dtype.itemsize, shapes, sizes.length >> 3)
        except FormatError:
            return FieldReader.read(self, rows)  # finds the row whose list has a wrong length

    def first_ranges(self, rows: Integers) -> list[Ranges]:
        return [self._sizes.offset_ranges(rows), self._lists.offset_ranges(rows)]

    def then_ranges(self, rows: Integers) -> list[Ranges]:
        return [self._sizes.ranges(rows), self._lists.ranges(rows)]

    def getter(self, chunk: int) -> Getter:
        sizes, bounds = self._sizes.items(chunk, np.dtype(np.int64)), self._sizes.offsets(chunk)
        if self._has_inner_nulls or sizes.min(initial=0) < 0:
            return FieldReader.getter(self, chunk)
        counts = np.diff(bounds)
        if (counts == 1).all() and self._are_lengths(chunk, sizes[bounds[:-1]]):
            return self._lists.elements(chunk, self._dtype)
        sizes_of = self._sizes.elements(chunk, np.dtype(np.int64))
        return self._shaped_getter(chunk, lambda row: sizes_of(row).tolist())

    def _are_lengths(self, chunk: int, sizes: Integers) -> bool:
        """Return whether these sizes are the numbers of elements of the arrays of an open batch."""
        items = self._dtype.itemsize // storage_dtype(self._dtype).itemsize
        return bool((np.diff(self._lists.offsets(chunk)) == sizes * items).all())


def reshape(row: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Return the elements of one array in their shape."""
    try:
        return row.reshape(shape)
    except ValueError:
        raise FormatError(f"expected an array of shape {shape}, got {row.size} elements") from None
