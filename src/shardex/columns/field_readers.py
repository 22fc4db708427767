"""Readers of single fields of mapped Arrow batches, directly from their buffers; `mapped_table` combines them.

A feature chooses its reader by the Arrow type (`Field.reader`): values of one width (`FixedWidthReader`), bits
(`BoolReader`), values with offsets (`list_readers`). `OptionalReader` adds validity bits to one of these. All other
types are read through Arrow (`FieldReader` in `chunks`, `SequenceReader`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns.buffer_layout import Layout
from shardex.columns.chunks import Chunks, FieldReader, Getter, typed
from shardex.columns.fields import Field
from shardex.columns.list_readers import copies
from shardex.columns.media_structs import no_file
from shardex.columns.types import is_list
from shardex.errors import FormatError
from shardex.kernel import (
    Column,
    Integers,
    Ranges,
    Segments,
    TimeArray,
    pooled_empty,
    row_ranges,
    take,
    with_missing,
)


class SequenceReader(FieldReader):
    """Lists of values of a field, read through Arrow; single ones of simple values from their buffers."""

    def __init__(self, name: str, feature: Field, chunks: Chunks, item: Field) -> None:
        super().__init__(name, feature, chunks)
        self._item = item

    def getter(self, chunk: int) -> Getter:
        slow = super().getter(chunk)
        if (get := _getter_of_lists(self.array(chunk), self._item)) is None:
            return slow

        def quick(row: int) -> Any:
            try:
                return get(row)
            except (FormatError, UnicodeDecodeError):
                return slow(row)  # names the place

        return quick


def _getter_of_lists(array: pa.Array, item: Field) -> Getter | None:
    """Return a getter of lists of numbers, text, bytes or arrays, much faster than `decode_value`; None for others."""
    if not is_list(array.type) or array.values.offset:
        return None
    items = array.values
    if items.null_count and not item.optional:
        return None
    chunks = Chunks(np.array([0, len(items)]), print, "item {}".format)
    reader = item.reader("item", items.type, chunks, no_file)
    if reader.through_arrow:
        return None
    reader.attach(0, items)
    return None if reader.through_arrow else reader.list_getter(0, array.offsets.to_numpy())


class OptionalReader(FieldReader):
    """Values that may be null: validity bits, and the reader of the other values."""

    def __init__(self, name: str, feature: Field, chunks: Chunks, inner: FieldReader) -> None:
        super().__init__(name, feature, chunks)
        self._inner = inner
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

    def list_getter(self, chunk: int, bounds: Integers) -> Getter | None:
        if (inner := self._inner.list_getter(chunk, bounds)) is None:
            return None
        if self._chunks.all_bits(self._valid, chunk).all():
            return inner
        return self._inner.list_of(self.getter(chunk), bounds)


class BoolReader(FieldReader):
    """Booleans, eight to a byte."""

    _reads_buffers = True

    def __init__(self, name: str, feature: Field, chunks: Chunks) -> None:
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


class FixedWidthReader(FieldReader):
    """Values of one width: numbers and arrays of one shape, read by one gather."""

    _reads_buffers = True

    def __init__(self, name: str, feature: Field, chunks: Chunks, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
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
        view = self._view(chunk)
        return view.__getitem__ if self._shape else view.item

    def _view(self, chunk: int) -> NDArray[Any]:
        rows = self._chunks.rows_in(chunk)
        return typed(self._data.open(chunk), self._dtype, rows * math.prod(self._shape)).reshape(rows, *self._shape)

    def list_getter(self, chunk: int, bounds: Integers) -> Getter | None:
        if self._shape:
            return self.list_of(self.getter(chunk), bounds)
        view, bound = self._view(chunk), bounds.item
        return lambda row: view[bound(row) : bound(row + 1)].tolist()

    def list_of(self, get: Getter, bounds: Integers) -> Getter:
        return copies(get, bounds) if self._shape else super().list_of(get, bounds)


class TimeReader(FixedWidthReader):
    """Dates and times: numbers of units."""

    def __init__(
        self,
        name: str,
        feature: Field,
        chunks: Chunks,
        kind: pa.DataType,
        column_of: Callable[[Integers], TimeArray],
    ) -> None:
        """`column_of` returns stored numbers as a column."""
        super().__init__(name, feature, chunks, np.dtype(np.int32 if kind.bit_width == 32 else np.int64), ())
        self._column_of = column_of

    def read(self, rows: Integers) -> Column:
        return self._column_of(super().read(rows))  # type: ignore[arg-type]

    def getter(self, chunk: int) -> Getter:
        numbers, column_of = super().getter(chunk), self._column_of

        def get(row: int) -> Any:
            return column_of(np.array([numbers(row)])).to_list()[0]

        return lambda row: self.located(chunk, row, get, row)

    def list_getter(self, chunk: int, bounds: Integers) -> Getter | None:
        return None
