"""Readers of single fields of mapped Arrow batches, directly from their buffers; `mapped_table` combines them.

`reader_of` chooses the reader by feature and Arrow type: values of one width (`_FixedWidthReader`), bits
(`_BoolReader`), values with offsets (`list_readers`). `_OptionalReader` wraps one of these and its validity bits.
All other types are read through Arrow (`FieldReader` in `chunks`, `_SequenceReader`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.arrow.buffer_layout import Layout
from shardex.arrow.chunks import Chunks, FieldReader, Getter, typed
from shardex.arrow.decode import time_column
from shardex.arrow.list_readers import BytesReader, FreeShapeReader, MediaReader, RaggedReader, ShapedReader
from shardex.arrow.media_structs import ReadFile, holds_media_structs, media_decoder, no_file
from shardex.arrow.types import fixed_sizes, is_binary, is_list, is_media_struct, is_text, number_dtype
from shardex.errors import FormatError
from shardex.features import (
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
    unwrap_optional,
)
from shardex.kernel import Column, Integers, Ranges, Segments, pooled_empty, row_ranges, take, with_missing


def reader_of(
    name: str, feature: Feature, kind: pa.DataType, chunks: Chunks, read_file: ReadFile = no_file
) -> FieldReader:
    """Return a reader for a feature that is stored as an Arrow type; `read_file` reads media that is stored by path."""
    match feature:
        case Media() if is_media_struct(kind):
            return MediaReader(name, feature, chunks, kind, read_file)
        case Sequence() | Struct() | Map() if holds_media_structs(feature, kind):
            return FieldReader(name, feature, chunks, media_decoder(read_file))
        case Optional() if not pa.types.is_null(kind):  # which has no validity bits
            return _OptionalReader(name, feature, chunks, kind, read_file)
        case Value(dtype="bool") if pa.types.is_boolean(kind):
            return _BoolReader(name, feature, chunks)
        case Value() | ClassLabel() if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return _FixedWidthReader(name, feature, chunks, number_dtype(kind), ())
        case Text() | Bytes() | Json() | Array() if _has_offsets(kind):
            return BytesReader(name, feature, chunks, kind)
        case Array() if feature.fixed and feature.shape and pa.types.is_fixed_size_list(kind):
            return _FixedWidthReader(name, feature, chunks, np.dtype(feature.dtype), fixed_sizes(feature))
        case Array() if feature.ragged and is_list(kind):
            return RaggedReader(name, feature, chunks, kind)
        case Array() if pa.types.is_struct(kind) and bool(feature.shape) == _has_sized_shapes(kind):
            return (ShapedReader if feature.shape else FreeShapeReader)(name, feature, chunks, kind)
        case TimeFeature() if pa.types.is_temporal(kind):
            return _TimeReader(name, feature, chunks, kind)
        case Sequence():
            return _SequenceReader(name, feature, chunks)
    return FieldReader(name, feature, chunks)


def _has_offsets(kind: pa.DataType) -> bool:
    return is_text(kind) or (is_binary(kind) and not pa.types.is_fixed_size_binary(kind))


def _has_sized_shapes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind.field("shape").type))


class _SequenceReader(FieldReader):
    """Lists, read through Arrow; single ones of simple values from their buffers."""

    def getter(self, chunk: int) -> Getter:
        slow = super().getter(chunk)
        if (get := _getter_of_lists(self.array(chunk), self._feature)) is None:
            return slow

        def quick(row: int) -> Any:
            try:
                return get(row)
            except (FormatError, UnicodeDecodeError):
                return slow(row)  # names the place

        return quick


def _getter_of_lists(array: pa.Array, feature: Feature) -> Getter | None:
    """Return a getter of lists of numbers, text, bytes or arrays, much faster than `decode_value`; None for others."""
    if not isinstance(feature, Sequence) or not is_list(array.type) or array.values.offset:
        return None
    items, inner = array.values, unwrap_optional(feature.feature)
    if not isinstance(inner, Value | Text | Bytes | Array) or (items.null_count and inner is feature.feature):
        return None
    reader = reader_of("item", feature.feature, items.type, Chunks(np.array([0, len(items)]), print, "item {}".format))
    if isinstance(inner, Media) or reader.through_arrow:
        return None
    reader.attach(0, items)
    get, bounds = reader.getter(0), array.offsets.to_numpy()
    bound = bounds.item
    if isinstance(reader, _FixedWidthReader) and isinstance(inner, Value):
        numbers = np.asarray(items)
        return lambda row: numbers[bound(row) : bound(row + 1)].tolist()
    if isinstance(reader, RaggedReader) and (slices := reader.slices(0)) is not None:
        ends, elements = slices
        return lambda row: [
            elements[begin:end].copy() for begin, end in pairwise(ends[bound(row) : bound(row + 1) + 1].tolist())
        ]
    if isinstance(inner, Array):  # copies, which may be changed
        return lambda row: [None if one is None else one.copy() for one in map(get, range(bound(row), bound(row + 1)))]
    return lambda row: [get(k) for k in range(bound(row), bound(row + 1))]


class _OptionalReader(FieldReader):
    """Values that may be null: validity bits, and the reader of the other values."""

    def __init__(
        self, name: str, feature: Optional, chunks: Chunks, kind: pa.DataType, read_file: ReadFile = no_file
    ) -> None:
        super().__init__(name, feature, chunks)
        self._inner = reader_of(name, feature.feature, kind, chunks, read_file)
        self._valid = chunks.segments()
        chunks.validity.append(self._valid)

    def attach(self, chunk: int, array: pa.Array) -> None:
        super().attach(chunk, array)
        self._inner.attach(chunk, array)
        bits = array.buffers()[0] if array.null_count else None
        self._valid.put(chunk, bits or np.full(len(array) // 8 + 1, 255, np.uint8))

    def tables(self, layout: Layout) -> Iterator[tuple[Segments, int]]:
        yield self._valid, layout.buffer
        yield from self._inner.tables(layout)

    def note_nulls(self, layout: Layout, nulls: Integers) -> None:
        self._inner.note_nulls(layout, nulls)

    @property
    def through_arrow(self) -> bool:
        return self._inner.through_arrow

    def detach(self, chunk: int) -> None:
        super().detach(chunk)
        self._inner.detach(chunk)

    def read(self, rows: Integers) -> Column:
        valid = self._chunks.bits(self._valid, rows)
        return with_missing(self._inner.read(rows if valid.all() else rows[valid]), valid)

    def first_ranges(self, rows: Integers) -> list[Ranges]:
        return [self._chunks.bytes_of_bits(self._valid, rows), *self._inner.first_ranges(rows)]

    def then_ranges(self, rows: Integers) -> list[Ranges]:
        return self._inner.then_ranges(rows[self._chunks.bits(self._valid, rows)])

    def getter(self, chunk: int) -> Getter:
        valid = self._chunks.all_bits(self._valid, chunk)
        if not valid.any():
            return lambda row: None
        get, has_value = self._inner.getter(chunk), valid.item
        return get if valid.all() else lambda row: get(row) if has_value(row) else None


class _BoolReader(FieldReader):
    """Booleans, eight to a byte."""

    _reads_buffers = True

    def __init__(self, name: str, feature: Feature, chunks: Chunks) -> None:
        super().__init__(name, feature, chunks)
        self._bits = chunks.segments()

    def attach(self, chunk: int, array: pa.Array) -> None:
        super().attach(chunk, array)
        self._bits.put(chunk, array.buffers()[1] or b"")

    def tables(self, layout: Layout) -> Iterator[tuple[Segments, int]]:
        yield self._bits, layout.buffer + 1

    def read(self, rows: Integers) -> Column:
        return self._chunks.bits(self._bits, rows)

    def first_ranges(self, rows: Integers) -> list[Ranges]:
        return [self._chunks.bytes_of_bits(self._bits, rows)]

    def getter(self, chunk: int) -> Getter:
        return self._chunks.all_bits(self._bits, chunk).item


class _FixedWidthReader(FieldReader):
    """Values of one width: numbers and arrays of one shape, read by one gather."""

    _reads_buffers = True

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

    def tables(self, layout: Layout) -> Iterator[tuple[Segments, int]]:
        while layout.parts:
            (layout,) = layout.parts
        yield self._data, layout.buffer + 1

    def read(self, rows: Integers) -> Column:
        out = pooled_empty((len(rows), *self._shape), self._dtype)
        take(self._data, self._chunks.starts, rows, self._width, out)
        return super().read(rows) if self._has_inner_nulls and len(rows) else out

    def first_ranges(self, rows: Integers) -> list[Ranges]:
        return [row_ranges(self._data, self._chunks.starts, rows, self._width)]

    def getter(self, chunk: int) -> Getter:
        if self._has_inner_nulls:
            return super().getter(chunk)
        rows = self._chunks.rows_in(chunk)
        view = typed(self._data.open(chunk), self._dtype, rows * math.prod(self._shape)).reshape(rows, *self._shape)
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
