"""Where the buffers of each column are among those of a record batch in the IPC format, and arrays made of them.

The buffers of a batch follow each other column by column, those of a column before those of the parts inside it. So
their numbers follow from the schema alone, and a column is read without the header of its batch. Of a batch with
damaged bytes, `rows_that_need` tells which rows need them, and `RowSlices` makes arrays of other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns.arrow_types import has_offsets, is_list
from shardex.errors import FormatError
from shardex.kernel import Integers

_NOT_WRITTEN = ("is_dictionary", "is_run_end_encoded", "is_union", "is_list_view", "is_large_list_view")
_VIEWS = ("is_string_view", "is_binary_view")


class Layout(NamedTuple):
    """Numbers of the first buffer and of the field node of an array, and the layouts of the parts inside it."""

    kind: pa.DataType
    node: int
    buffer: int
    parts: tuple[Layout, ...] = ()

    def part(self, name: str) -> Layout:
        """Return the layout of a member of a struct."""
        number: int = self.kind.get_field_index(name)
        return self.parts[number]

    @property
    def own_buffers(self) -> int:
        """Number of buffers of the array itself."""
        return _own_buffers(self.kind)

    @property
    def buffer_numbers(self) -> range:
        """Numbers of the buffers of the array itself."""
        return range(self.buffer, self.buffer + self.own_buffers)

    def all(self) -> Iterator[Layout]:
        """Yield this layout and those of all parts inside, in the order of the IPC format."""
        yield self
        for part in self.parts:
            yield from part.all()


def column_layouts(schema: pa.Schema) -> dict[str, Layout]:
    """Return the layout of each column of a file.

    >>> found = column_layouts(pa.schema([("s", pa.large_string()), ("x", pa.list_(pa.int8()))]))
    >>> found["x"].buffer, found["x"].node, found["x"].parts[0].buffer
    (3, 1, 5)
    """
    found, node, buffer = {}, 0, 0
    for field in schema:
        layout = found[field.name] = _layout(field.type, node, buffer)
        inside = list(layout.all())
        node, buffer = node + len(inside), buffer + sum(one.own_buffers for one in inside)
    return found


def _layout(kind: pa.DataType, node: int, buffer: int) -> Layout:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    parts, next_node, next_buffer = [], node + 1, buffer + _own_buffers(kind)
    for number in range(kind.num_fields):
        part = _layout(kind.field(number).type, next_node, next_buffer)
        inside = list(part.all())
        next_node, next_buffer = next_node + len(inside), next_buffer + sum(one.own_buffers for one in inside)
        parts.append(part)
    return Layout(kind, node, buffer, tuple(parts))


@lru_cache(256)
def _own_buffers(kind: pa.DataType) -> int:
    if any(getattr(pa.types, name)(kind) for name in (*_NOT_WRITTEN, *_VIEWS)):
        raise FormatError(f"expected types that native datasets store, got {kind}")
    return 0 if pa.types.is_null(kind) else int(kind.num_buffers)


def array_of(layout: Layout, rows: int, buffer: Callable[[int], Any], nulls: Integers) -> pa.Array:
    """Return an array made of buffers: `buffer(k)` returns buffer k of the batch, `nulls[n]` are those of node n.

    The array must be validated before it is used; buffers of offsets must be correct bytes.
    """
    kind = layout.kind
    if pa.types.is_null(kind):
        return pa.nulls(rows)
    buffers = [pa.py_buffer(buffer(number)) for number in layout.buffer_numbers]
    inside = _inner_rows(kind, rows, buffers)
    parts = [array_of(part, inside, buffer, nulls) for part in layout.parts]
    count = int(nulls[layout.node]) if buffers[0].size else 0
    return pa.Array.from_buffers(kind, rows, [buffers[0] if count else None, *buffers[1:]], count, 0, parts)


def _inner_rows(kind: pa.DataType, rows: int, buffers: list[pa.Buffer]) -> int:
    """Return the length of the parts inside an array."""
    if pa.types.is_fixed_size_list(kind):
        return rows * int(kind.list_size)
    if not (is_list(kind) or pa.types.is_map(kind)):
        return rows
    offset = _offset_type(kind)
    if buffers[1].size < (rows + 1) * offset.itemsize:
        raise FormatError(f"expected {rows + 1} offsets of lists, got {buffers[1].size} bytes")
    last = int(np.frombuffer(buffers[1], offset, rows + 1)[-1])
    if last < 0:
        raise FormatError(f"expected offsets of lists that rise from 0, got {last}")
    return last


def _offset_type(kind: pa.DataType) -> np.dtype[Any]:
    large = ("is_large_list", "is_large_string", "is_large_binary")
    return np.dtype(np.int64 if any(getattr(pa.types, name)(kind) for name in large) else np.int32)


# -- batches with damaged bytes ---------------------------------------------------------------------------------------


def rows_that_need(
    damaged: tuple[Integers, Integers], layout: Layout, rows: int, buffers: Integers, data: Any, origin: int = 0
) -> NDArray[np.bool_]:
    """Return which rows of a column need bytes of damaged ranges of a file: their begins and ends, ascending.

    `buffers` are begin in the file and size of each buffer of the batch; `data` begins at `origin` in the file. Rows
    whose values are outside of their buffers count as well. Of a null only its validity bit is needed.

    >>> data = np.array([0, 2, 2, 5]).tobytes() + b"abcde"
    >>> layout = column_layouts(pa.schema([("s", pa.large_string())]))["s"]
    >>> buffers = np.array([[0, 0], [0, 32], [32, 5]])
    >>> rows_that_need((np.array([34]), np.array([35])), layout, 3, buffers, data).tolist()
    [False, False, True]
    """
    every = np.arange(rows)
    return _Needs(damaged, buffers, data, origin).of(layout, every, every + 1)


class _Needs:
    """Finds ranges of rows that need damaged bytes; begins and ends of these ranges are arrays."""

    def __init__(self, damaged: tuple[Integers, Integers], buffers: Integers, data: Any, origin: int) -> None:
        self._begins, self._ends = damaged
        self._buffers, self._data, self._origin = buffers, data, origin

    def of(self, layout: Layout, begin: Integers, end: Integers) -> NDArray[np.bool_]:
        """Return which ranges of rows of a column, or of a part inside it, need damaged bytes."""
        found = np.zeros(len(begin), np.bool_)
        if pa.types.is_null(layout.kind):
            return found
        left = np.flatnonzero(begin < end)
        if self._buffers[layout.buffer, 1]:
            found[left] = self._bytes(layout.buffer, begin[left] >> 3, end[left] + 7 >> 3)
            left = left[~found[left]]
            left = left[(end[left] - begin[left] > 1) | self._bits(layout.buffer, begin[left])]
        found[left] = self._values(layout, begin[left], end[left])
        return found

    def _values(self, layout: Layout, begin: Integers, end: Integers) -> NDArray[np.bool_]:
        kind, number = layout.kind, layout.buffer + 1
        if pa.types.is_struct(kind):
            parts = [self.of(part, begin, end) for part in layout.parts]
            return np.asarray(np.logical_or.reduce([np.zeros(len(begin), np.bool_), *parts]))
        if pa.types.is_fixed_size_list(kind):
            return self.of(layout.parts[0], begin * kind.list_size, end * kind.list_size)
        if pa.types.is_boolean(kind):
            return self._bytes(number, begin >> 3, end + 7 >> 3)
        if not (is_list(kind) or pa.types.is_map(kind) or has_offsets(kind)):
            width = kind.bit_width // 8
            return self._bytes(number, begin * width, end * width)
        offset = _offset_type(kind)
        found = self._bytes(number, begin * offset.itemsize, (end + 1) * offset.itemsize)
        left = np.flatnonzero(~found)
        at, size = self._buffers[number].tolist()
        offsets = np.frombuffer(self._data, offset, size // offset.itemsize, at - self._origin)
        first, last = offsets[begin[left]].astype(np.int64), offsets[end[left]].astype(np.int64)
        inside = self._bytes(number + 1, first, last) if has_offsets(kind) else self.of(layout.parts[0], first, last)
        found[left] = inside | (first < 0) | (last < first)
        return found

    def _bytes(self, number: int, begin: Integers, end: Integers) -> NDArray[np.bool_]:
        """Return which ranges of bytes of a buffer are damaged, or outside of it."""
        at, size = self._buffers[number].tolist()
        harmed = self._ends.searchsorted(at + begin, "right") < self._begins.searchsorted(at + end, "left")
        found: NDArray[np.bool_] = (begin < end) & (harmed | (begin < 0) | (end > size))
        return found

    def _bits(self, number: int, places: Integers) -> NDArray[np.bool_]:
        at, size = self._buffers[number].tolist()
        packed = np.frombuffer(self._data, np.uint8, size, at - self._origin)
        return np.asarray(packed[places >> 3] >> (places & 7).astype(np.uint8) & 1, np.bool_)


class RowSlices:
    """Makes arrays of some rows of a batch from the bytes that these rows need, and no others.

    `buffers` are begin in the file and size of each buffer; `read(begin, end)` returns bytes of the file, checked.
    """

    def __init__(self, buffers: Integers, read: Callable[[int, int], Any]) -> None:
        self._buffers, self._read = buffers, read

    def array(self, layout: Layout, begin: int, end: int) -> pa.Array:
        """Return rows of a column, or of a part inside it; the array must be validated before it is used."""
        kind, count, valid = layout.kind, end - begin, None
        if pa.types.is_null(kind) or not count:
            return pa.nulls(count, kind)
        if self._buffers[layout.buffer, 1]:
            bits = self._bits(layout.buffer, begin, end)
            if not bits.any():
                return pa.nulls(count, kind)
            valid = pa.py_buffer(np.packbits(bits, bitorder="little"))
        buffers, parts = self._values(layout, begin, end)
        return pa.Array.from_buffers(kind, count, [valid, *map(pa.py_buffer, buffers)], -1, 0, parts)

    def _values(self, layout: Layout, begin: int, end: int) -> tuple[list[Any], list[pa.Array]]:
        """Return the buffers without the validity bits, and the parts inside."""
        kind, number = layout.kind, layout.buffer + 1
        if pa.types.is_struct(kind):
            return [], [self.array(part, begin, end) for part in layout.parts]
        if pa.types.is_fixed_size_list(kind):
            return [], [self.array(layout.parts[0], begin * kind.list_size, end * kind.list_size)]
        if pa.types.is_boolean(kind):
            return [np.packbits(self._bits(number, begin, end), bitorder="little")], []
        if not (is_list(kind) or pa.types.is_map(kind) or has_offsets(kind)):
            width = kind.bit_width // 8
            return [self._bytes(number, begin * width, end * width)], []
        offset = _offset_type(kind)
        data = self._bytes(number, begin * offset.itemsize, (end + 1) * offset.itemsize)
        offsets = np.frombuffer(data, offset, end - begin + 1)
        first, last = int(offsets[0]), int(offsets[-1])
        if not 0 <= first <= last:
            raise FormatError(f"expected offsets that rise from 0, got {first} and {last}")
        if has_offsets(kind):
            return [offsets - offset.type(first), self._bytes(number + 1, first, last)], []
        return [offsets - offset.type(first)], [self.array(layout.parts[0], first, last)]

    def _bytes(self, number: int, begin: int, end: int) -> Any:
        at, size = self._buffers[number].tolist()
        if end > size:
            raise FormatError(f"expected {end} bytes in a buffer, got {size}")
        return self._read(at + begin, at + end)

    def _bits(self, number: int, begin: int, end: int) -> NDArray[np.uint8]:
        data = np.frombuffer(self._bytes(number, begin >> 3, end + 7 >> 3), np.uint8)
        return np.unpackbits(data, count=end - (begin & ~7), bitorder="little")[begin & 7 :]
