"""Fields of mapped Arrow batches, gathered straight from their buffers: the read path of Arrow shards.

A `MappedTable` is a run of record batches, each loaded when a row of it is first asked for. Every field has a reader
by how it lies: one width (`_Dense`), bits (`_Truth`), offsets and bytes (`_Blob`, `_Ragged`), or anything else
(`_Other`, through Arrow itself, which also takes over where a batch has nulls). No Arrow object is touched per sample.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shardex import codec
from shardex.columns import Column, Columns, Ragged
from shardex.errors import FormatError
from shardex.gather import Integers, Ranges, Segments, locate, take
from shardex.layout import array_of_bytes, column_of, items_per_row, storage
from shardex.schema import Array, Bytes, ClassLabel, Feature, Features, Json, Optional, Text, Value

__all__ = ["MappedTable"]

Getter = Callable[[int], Any]


class MappedTable:
    """Record batches one after another; `load(k)` gives batch k, checked, and `rows[k]` is how many rows it has."""

    def __init__(
        self,
        features: Features,
        schema: pa.Schema,
        rows: Sequence[int],
        load: Callable[[int], pa.RecordBatch],
        name: Callable[[int], str],
    ) -> None:
        self.features = features
        self.starts: Integers = np.cumsum([0, *rows], dtype=np.int64)
        self._start_list: list[int] = self.starts.tolist()
        self._load = load
        self._name = name
        self._getters: list[dict[str, Getter] | None] = [None] * len(rows)
        self._opened: set[int] = set()
        self._fields = {n: _field(f, schema.field(n).type, self) for n, f in features.items()}

    def __len__(self) -> int:
        return self._start_list[-1]

    def read(self, rows: Integers, fields: Sequence[str]) -> Columns:
        """These fields of these rows."""
        return Columns({name: self._fields[name].read(rows) for name in fields}, len(rows))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """One row, arrays as views of the mapped file."""
        chunk = bisect_right(self._start_list, row) - 1
        getters = self._getters[chunk] or self._open_getters(chunk)
        at = row - self._start_list[chunk]
        if fields is None:
            return {name: get(at) for name, get in getters.items()}
        return {name: getters[name](at) for name in fields}

    def open(self, chunk: int) -> None:
        """Load a batch and give its arrays to the fields."""
        batch = self._load(chunk)
        rows = self._start_list[chunk + 1] - self._start_list[chunk]
        if batch.num_rows != rows:
            raise FormatError(f"{self._name(chunk)}: expected {rows} rows, got {batch.num_rows}")
        for name, field in self._fields.items():
            field.put(chunk, batch.column(name))
        self._opened.add(chunk)

    def _open_getters(self, chunk: int) -> dict[str, Getter]:
        if chunk not in self._opened:
            self.open(chunk)
        getters = {name: field.getter(chunk) for name, field in self._fields.items()}
        self._getters[chunk] = getters
        return getters

    def segments(self) -> Segments:
        """A table of one buffer per batch, opened with the batch."""
        return Segments(len(self._start_list) - 1, self.open, self._name)

    def chunk_of(self, rows: Integers) -> Integers:
        """The batch that each row lies in."""
        return np.searchsorted(self.starts, rows, "right") - 1


def _field(feature: Feature, kind: pa.DataType, table: MappedTable) -> _Other:
    inner = feature.feature if isinstance(feature, Optional) else feature
    binary = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_string(kind)
    match inner:
        case Value(dtype="bool") if pa.types.is_boolean(kind):
            return _Truth(inner, table)
        case Value() | ClassLabel() if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return _Dense(inner, table, np.dtype(kind.to_pandas_dtype()), ())
        case Array() if inner.fixed and inner.shape and pa.types.is_fixed_size_list(kind):
            return _Dense(inner, table, np.dtype(inner.dtype), tuple(n for n in inner.shape if n is not None))
        case Array() if inner.ragged and (pa.types.is_large_list(kind) or pa.types.is_list(kind)):
            return _Ragged(inner, table)
        case Text() | Bytes() | Json() | Array() if binary:
            return _Blob(inner, table)
    return _Other(inner, table)


class _Other:
    """Any field, read through Arrow; the others derive from it and fall back to it where there are nulls."""

    def __init__(self, feature: Feature, table: MappedTable) -> None:
        self._feature = feature
        self._table = table
        self._arrays: dict[int, pa.Array] = {}
        self._nulls = False

    def put(self, chunk: int, array: pa.Array) -> None:
        self._arrays[chunk] = array
        self._nulls = self._nulls or array.null_count > 0

    def read(self, rows: Integers) -> Column:
        chunks = self._table.chunk_of(rows)
        parts, places = [], []
        for chunk in np.unique(chunks).tolist():
            here = np.flatnonzero(chunks == chunk)
            array = self._array(chunk).take(pa.array(rows[here] - self._table.starts[chunk]))
            parts.append(Columns({"": column_of(array, self._feature)}, len(here)))
            places.append(here)
        return Columns.scatter(parts, places)[""] if parts else []

    def _array(self, chunk: int) -> pa.Array:
        if chunk not in self._arrays:
            self._table.open(chunk)
        return self._arrays[chunk]

    def getter(self, chunk: int) -> Getter:
        array, feature = self._arrays[chunk], self._feature

        def get(row: int) -> Any:
            column = Columns({"": column_of(array.slice(row, 1), feature)}, 1)
            return column.sample(0)[""]

        return get

    def optional(self, chunk: int, get: Getter) -> Getter:
        """A getter that gives `None` for nulls, if the batch has any."""
        array = self._arrays[chunk]
        if not array.null_count:
            return get
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        return lambda row: get(row) if valid[row] else None


class _Truth(_Other):
    """Truth values, eight to a byte."""

    def __init__(self, feature: Feature, table: MappedTable) -> None:
        super().__init__(feature, table)
        self._bits = table.segments()

    def put(self, chunk: int, array: pa.Array) -> None:
        super().put(chunk, array)
        self._bits.put(chunk, array.buffers()[1] or b"")

    def read(self, rows: Integers) -> Column:
        chunk = self._table.chunk_of(rows)
        local = rows - self._table.starts[chunk]
        packed, _ = Ranges(self._bits, chunk, local >> 3, np.ones(len(rows), np.int64)).packed()
        if self._nulls:
            return super().read(rows)
        return ((packed >> (local & 7).astype(np.uint8)) & 1).astype(np.bool_)

    def getter(self, chunk: int) -> Getter:
        values = self._arrays[chunk]
        return lambda row: values[row].as_py()


class _Dense(_Other):
    """Values of one width, stacked by one gather."""

    def __init__(self, feature: Feature, table: MappedTable, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        super().__init__(feature, table)
        self._dtype = dtype
        self._shape = shape
        self._width = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self._data = table.segments()

    def put(self, chunk: int, array: pa.Array) -> None:
        super().put(chunk, array)
        while pa.types.is_fixed_size_list(array.type):
            array = array.values
            self._nulls = self._nulls or array.null_count > 0
        self._data.put(chunk, array.buffers()[1] or b"")

    def read(self, rows: Integers) -> Column:
        out = np.empty((len(rows), *self._shape), self._dtype)
        take(self._data, self._table.starts, rows, self._width, out)
        return super().read(rows) if self._nulls else out

    def getter(self, chunk: int) -> Getter:
        if self._nulls:
            return super().getter(chunk)
        view = self._data.open(chunk).view(self._dtype).reshape(-1, *self._shape) if self._width else None
        if view is None:
            return lambda row: np.empty(self._shape, self._dtype)
        return view.__getitem__ if self._shape else view.item


class _Blob(_Other):
    """Text, bytes, JSON and arrays of any dtype: offsets and bytes."""

    def __init__(self, feature: Feature, table: MappedTable) -> None:
        super().__init__(feature, table)
        self._offsets = table.segments()
        self._data = table.segments()
        self._offset_width = 8
        self._decode: Callable[[Any], Any] | None = None
        if isinstance(feature, Json):
            self._decode = codec.by_name("json").decode
        elif isinstance(feature, Array):
            self._decode = lambda raw: array_of_bytes(raw, feature)

    def put(self, chunk: int, array: pa.Array) -> None:
        super().put(chunk, array)
        self._offset_width = 4 if pa.types.is_string(array.type) or pa.types.is_binary(array.type) else 8
        _, offsets, data = array.buffers()
        self._offsets.put(chunk, offsets or bytes(self._offset_width))
        self._data.put(chunk, data or b"")

    def _open_first(self, rows: Integers) -> None:
        # The width of offsets is known once a batch has been seen.
        if len(rows) and not self._arrays:
            self._array(int(self._table.chunk_of(rows[:1])[0]))

    def read(self, rows: Integers) -> Column:
        self._open_first(rows)
        ranges = locate(self._offsets, self._table.starts, rows, self._offset_width, 1, self._data)
        if self._nulls:
            return super().read(rows)
        if isinstance(self._feature, Text):
            return ranges.text()
        raw = ranges.bytes()
        return raw if self._decode is None else [self._decode(one) for one in raw]

    def getter(self, chunk: int) -> Getter:
        offset = self._offsets.open(chunk).view(np.int32 if self._offset_width == 4 else np.int64).item
        block = self._data.open(chunk)
        # A slice of a char array is a bytes object made in one step: half the time of a slice of a memoryview.
        data = (ctypes.c_char * block.size).from_address(int(self._data.address[chunk]))
        decode, text = self._decode, isinstance(self._feature, Text)

        def get_text(row: int, _alive: Any = block) -> str:
            return data[offset(row) : offset(row + 1)].decode()

        def get(row: int, _alive: Any = block) -> Any:
            raw = data[offset(row) : offset(row + 1)]
            return raw if decode is None else decode(raw)

        return self.optional(chunk, get_text if text else get)


class _Ragged(_Other):
    """Arrays whose first size is free: offsets and elements."""

    def __init__(self, feature: Array, table: MappedTable) -> None:
        super().__init__(feature, table)
        assert feature.dtype is not None and feature.shape is not None
        self._dtype = np.dtype(feature.dtype)
        self._item = storage(feature.dtype).itemsize
        self._inner = tuple(n for n in feature.shape[1:] if n is not None)
        self._step = items_per_row(feature) * self._item
        self._offset_width = 8
        self._offsets = table.segments()
        self._data = table.segments()

    def put(self, chunk: int, array: pa.Array) -> None:
        super().put(chunk, array)
        self._offset_width = 4 if pa.types.is_list(array.type) else 8
        self._nulls = self._nulls or array.values.null_count > 0
        self._offsets.put(chunk, array.buffers()[1] or bytes(self._offset_width))
        self._data.put(chunk, array.values.buffers()[1] or b"")

    def read(self, rows: Integers) -> Column:
        if len(rows) and not self._arrays:
            self._array(int(self._table.chunk_of(rows[:1])[0]))
        ranges = locate(self._offsets, self._table.starts, rows, self._offset_width, self._item, self._data)
        if len(rows) and (ranges.length % self._step).any():
            raise FormatError(f"expected {self._feature}, got a number of elements that does not fit")
        return super().read(rows) if self._nulls else Ragged(ranges, self._dtype, self._inner)

    def getter(self, chunk: int) -> Getter:
        if self._nulls:
            return super().getter(chunk)
        offset = self._offsets.open(chunk).view(np.int32 if self._offset_width == 4 else np.int64).item
        data = self._data.open(chunk)
        elements = data[: data.size // self._dtype.itemsize * self._dtype.itemsize].view(self._dtype)
        pairs, inner = self._dtype.itemsize // self._item, self._inner

        def get(row: int) -> Any:
            return elements[offset(row) : offset(row + 1)]

        def get_shaped(row: int) -> Any:
            return elements[offset(row) // pairs : offset(row + 1) // pairs].reshape(-1, *inner)

        return get_shaped if inner or pairs > 1 else get
