"""Where the buffers of each column are among those of a record batch in the IPC format, and arrays made of them.

The buffers of a batch follow each other column by column, those of a column before those of the parts inside it. So
their numbers follow from the schema alone, and a column is read without the header of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardex.arrow.types import is_list
from shardex.errors import FormatError

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


def _own_buffers(kind: pa.DataType) -> int:
    if any(getattr(pa.types, name)(kind) for name in (*_NOT_WRITTEN, *_VIEWS)):
        raise FormatError(f"expected types that native datasets store, got {kind}")
    return 0 if pa.types.is_null(kind) else int(kind.num_buffers)


def array_of(layout: Layout, rows: int, buffer: Callable[[int], Any], nulls: Sequence[int]) -> pa.Array:
    """Return an array made of buffers: `buffer(k)` returns buffer k of the batch, `nulls[n]` are those of node n.

    The array must be validated before it is used; buffers of offsets must be correct bytes.
    """
    kind = layout.kind
    if pa.types.is_null(kind):
        return pa.nulls(rows)
    buffers = [pa.py_buffer(buffer(number)) for number in layout.buffer_numbers]
    inside = _inner_rows(kind, rows, buffers)
    parts = [array_of(part, inside, buffer, nulls) for part in layout.parts]
    valid = buffers[0] if buffers[0].size and nulls[layout.node] else None
    return pa.Array.from_buffers(kind, rows, [valid, *buffers[1:]], nulls[layout.node] if valid else 0, 0, parts)


def _inner_rows(kind: pa.DataType, rows: int, buffers: list[pa.Buffer]) -> int:
    """Return the length of the parts inside an array."""
    if pa.types.is_fixed_size_list(kind):
        return rows * int(kind.list_size)
    if not (is_list(kind) or pa.types.is_map(kind)):
        return rows
    offset = np.dtype(np.int64 if pa.types.is_large_list(kind) else np.int32)
    if buffers[1].size < (rows + 1) * offset.itemsize:
        raise FormatError(f"expected {rows + 1} offsets of lists, got {buffers[1].size} bytes")
    last = int(np.frombuffer(buffers[1], offset, rows + 1)[-1])
    if last < 0:
        raise FormatError(f"expected offsets of lists that rise from 0, got {last}")
    return last
