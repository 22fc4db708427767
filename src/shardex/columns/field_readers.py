"""Readers of single fields of mapped Arrow batches, directly from their buffers; `mapped_table` combines them.

`Chunks` maps rows to batches. A batch comes as an Arrow array (`attach`), or its buffers are filled in directly
(`tables`, by `checked_table`). Reading many rows is one call; a getter reads one value of one batch.

A feature chooses its reader by the Arrow type (`Field.reader`): values of one width (`FixedWidthReader`), bits
(`BoolReader`), values with offsets (`list_readers`). `OptionalReader` adds validity bits to one of these. All other
types are read through Arrow (`FieldReader`, `SequenceReader`, `StructReader`), and so are arrays with nulls inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns.arrow_types import is_list
from shardex.columns.arrow_values import Decode, decode_array, decode_value, no_file, take_rows
from shardex.columns.buffer_layout import Layout
from shardex.columns.fields import Field
from shardex.errors import FormatError
from shardex.kernel import Bytes as ByteArray
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


class Chunks:
    """Chunks of consecutive rows, chunk k from `starts[k]` to `starts[k + 1]`; one chunk is one record batch.

    `open(k)` must fill the segments of chunk k, `name(k)` names it in messages. `array(field, k)` makes the array of a
    field; without it `open` attaches it.

    >>> chunks = Chunks(np.array([0, 3, 4]), print, "chunk {}".format)
    >>> chunks.of(np.array([3, 0])).tolist(), chunks.rows_in(0)
    ([1, 0], 3)
    """

    __slots__ = ("all_segments", "array", "evicts", "name", "open", "starts", "validity")

    def __init__(
        self,
        starts: Integers,
        open: Callable[[int], None],
        name: Callable[[int], str],
        evicts: bool = False,
        array: Callable[[str, int], pa.Array] | None = None,
    ) -> None:
        self.starts = starts
        self.open = open
        self.name = name
        self.array = array
        self.evicts = evicts
        """True if `close` may be called: the files are in a cache that evicts files."""
        self.all_segments: list[Segments] = []
        self.validity: list[Segments] = []
        """Those with one bit per row that tells whether it has a value: all have one if the buffer is missing."""

    def of(self, rows: Integers) -> Integers:
        """Return the chunk of each row."""
        return np.searchsorted(self.starts, rows, "right") - 1

    def rows_in(self, chunk: int) -> int:
        """Return the number of rows of a chunk."""
        return int(self.starts[chunk + 1] - self.starts[chunk])

    def segments(self) -> Segments:
        """Return new segments of one buffer per chunk, which `open` fills."""
        segments = Segments(len(self.starts) - 1, self.open, self.name, evicts=self.evicts)
        self.all_segments.append(segments)
        return segments

    def close(self, chunk: int) -> None:
        """Close the segments of a chunk; a running read keeps its buffers until it ends."""
        for segments in self.all_segments:
            segments.close(chunk)

    def bits(self, segments: Segments, rows: Integers) -> NDArray[np.bool_]:
        """Return the bit of each row, from buffers of one bit per row."""
        packed, _ = self.bytes_of_bits(segments, rows).packed()
        local = rows - self.starts[self.of(rows)]
        return ((packed >> (local & 7).astype(np.uint8)) & 1).astype(np.bool_)

    def all_bits(self, segments: Segments, chunk: int) -> NDArray[np.bool_]:
        """Return the bits of all rows of a chunk."""
        rows, packed = self.rows_in(chunk), segments.open(chunk)
        if packed.size * 8 < rows:
            raise FormatError(f"{self.name(chunk)}: expected {rows} bits, got {packed.size} bytes")
        return np.unpackbits(packed[: rows // 8 + 1], count=rows, bitorder="little").view(np.bool_)

    def bytes_of_bits(self, segments: Segments, rows: Integers) -> Ranges:
        """Return the range of the byte that holds the bit of each row."""
        chunk = self.of(rows)
        return Ranges(segments, chunk, (rows - self.starts[chunk]) >> 3, np.ones(len(rows), np.int64))


Getter = Callable[[int], Any]
"""Returns the value of a row of one batch; rows count from the start of the batch."""


class FieldReader:
    """Reads a field of any type through Arrow; base class and fallback of the other readers."""

    _reads_buffers: ClassVar[bool] = False

    def __init__(self, name: str, feature: Field, chunks: Chunks, decode: Decode = decode_array) -> None:
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

    def tables(self, layout: Layout) -> Iterator[tuple[Segments, int]]:
        """Yield each table of buffers of this reader with the number of the buffer of a batch that fills it."""
        return iter(())

    def note_nulls(self, layout: Layout, nulls: Integers) -> None:
        """Note whether arrays have null elements, given the null counts of the parts of each batch of a file."""
        inside = [part.node for part in layout.all()][1:]
        self._has_inner_nulls = self._has_inner_nulls or bool(nulls[:, inside].any())

    @property
    def through_arrow(self) -> bool:
        """Whether a read takes the whole arrays of batches."""
        return not self._reads_buffers or self._has_inner_nulls

    def arrays(self) -> list[pa.Array]:
        """Return the arrays of all batches; opens batches that are not open."""
        return [self.array(chunk) for chunk in range(len(self._chunks.starts) - 1)]

    def array(self, chunk: int) -> pa.Array:
        """Return the array of a batch; opens it, again if another thread closes it at the same time."""
        while (found := self._arrays.get(chunk)) is None:
            if self._chunks.array is not None:
                return self._chunks.array(self._name, chunk)
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

    def first_ranges(self, rows: Integers) -> list[Ranges]:
        """Return the ranges of values of one width, and of offsets; none here, since Arrow hides the ranges."""
        return []

    def then_ranges(self, rows: Integers) -> list[Ranges]:
        """Return the ranges whose places are in other ranges, which are read for that."""
        return []

    def advise(self, rows: Integers) -> None:
        """Start to read the values of rows of open batches; waits for offsets, which come first."""
        for ranges in self.first_ranges(rows):
            ranges.advise()
        for ranges in self.then_ranges(rows):
            ranges.advise()

    def _open(self, chunk: int) -> dict[str, pa.Array]:
        return {self._name: self.array(chunk)}

    def getter(self, chunk: int) -> Getter:
        """Return a function that reads one value of an open batch."""
        array, feature, decode = self.array(chunk), self._feature, self._values
        return lambda row: self.located(chunk, row, decode_value, array, row, feature, decode)

    def list_getter(self, chunk: int, bounds: Integers) -> Getter | None:
        """Return a function that reads a list of an open batch as a Python list, given where each list begins.

        None if there is no faster way than through Arrow.
        """
        return self.list_of(self.getter(chunk), bounds)

    def list_of(self, get: Getter, bounds: Integers) -> Getter:
        """Return a function that reads a list value by value."""
        bound = bounds.item
        return lambda row: [get(k) for k in range(bound(row), bound(row + 1))]

    def located(self, chunk: int, row: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function and add the place to a `FormatError` that it raises."""
        try:
            return function(*arguments)
        except FormatError as error:
            sample = self._chunks.starts[chunk] + row
            raise FormatError(f"{error} - at {self._chunks.name(chunk)}, sample {sample}, field {self._name}") from None


# -- what readers share -------------------------------------------------------------------------------------------


def typed(data: ByteArray, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return the first `count` elements of a buffer (other tools may pad it) as a read-only view."""
    elements = data[: count * dtype.itemsize].view(dtype)
    elements.flags.writeable = False
    return elements


def copies(get: Getter, bounds: Integers) -> Getter:
    """Return a function that reads a list of arrays, which may be changed."""
    bound = bounds.item
    return lambda row: [None if one is None else one.copy() for one in map(get, range(bound(row), bound(row + 1)))]


# -- readers ------------------------------------------------------------------------------------------------------


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


class StructReader(FieldReader):
    """Structs of named members, read through Arrow; single ones from the buffers of the members."""

    def __init__(self, name: str, feature: Field, chunks: Chunks, members: Mapping[str, Field]) -> None:
        super().__init__(name, feature, chunks)
        self._members = members

    def getter(self, chunk: int) -> Getter:
        slow, array = super().getter(chunk), self.array(chunk)
        parts = {name: array.field(name) for name in self._members}
        if any(part.offset for part in parts.values()):
            return slow
        getters = {name: _getter_of(parts[name], member) for name, member in self._members.items()}

        def quick(row: int) -> Any:
            try:
                return {name: get(row) for name, get in getters.items()}
            except (FormatError, UnicodeDecodeError):
                return slow(row)  # names the place

        return quick


def _getter_of(array: pa.Array, feature: Field) -> Getter:
    """Return a getter of the values of an array that begins with its buffers."""
    chunks = Chunks(np.array([0, len(array)]), print, "item {}".format)
    reader = feature.reader("item", array.type, chunks, no_file)
    reader.attach(0, array)
    return reader.getter(0)


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
