"""Encoders of arrays, nested values and missing values, which are given the Arrow type and the functions of a feature.

`encode_values` has those of single values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns.encode_values import ByteStrings, Encoder, offsets_of
from shardex.columns.types import has_shape, number_array, storage_dtype
from shardex.errors import SchemaError
from shardex.kernel import Integers

_MAX_OFFSET = (1 << 31) - 1
Fit = Callable[[Any], NDArray[Any]]
"""Returns a value as an array of the dtype and shape of the field."""


# -- arrays ---------------------------------------------------------------------------------------------------


class FixedArrays:
    """Arrays of one shape."""

    def __init__(self, kind: pa.DataType, dtype: np.dtype[Any], shape: tuple[int, ...], fit: Fit) -> None:
        self._type, self._fit = kind, fit
        self._dtype = dtype
        self._shape = shape
        self._width = self._dtype.itemsize * math.prod(self._shape)
        self._pieces: list[bytes] = []

    @property
    def nbytes(self) -> int:
        return len(self._pieces) * self._width

    def append(self, value: Any) -> None:
        if type(value) is not np.ndarray or value.dtype is not self._dtype or value.shape != self._shape:
            value = self._fit(value)
        self._pieces.append(value.tobytes())

    def append_filler(self) -> None:
        self._pieces.append(bytes(self._width))

    def truncate(self, rows: int) -> None:
        del self._pieces[rows:]

    def finish(self) -> pa.Array:
        pieces, self._pieces = self._pieces, []
        values = number_array(np.frombuffer(b"".join(pieces), storage_dtype(self._dtype)))
        return pa.Array.from_buffers(self._type, len(pieces), [None], 0, children=[values])


class RaggedArrays(ByteStrings):
    """Arrays of which only the first size varies."""

    _row_bytes = 8

    def __init__(self, kind: pa.DataType, dtype: np.dtype[Any], inner: tuple[int, ...], fit: Fit) -> None:
        super().__init__()
        self._type, self._fit = kind, fit
        self._dtype = dtype
        self._inner = inner
        self._ndim = 1 + len(self._inner)

    def append(self, value: Any) -> None:
        if (
            type(value) is not np.ndarray
            or value.dtype is not self._dtype
            or value.ndim != self._ndim
            or (self._inner and value.shape[1:] != self._inner)
        ):
            value = self._fit(value)
        piece = value.tobytes()
        self._pieces.append(piece)
        self.nbytes += len(piece) + 8

    def finish(self) -> pa.Array:
        rows, offsets, data = self._take()
        values = np.frombuffer(data, storage_dtype(self._dtype))
        buffers = [None, pa.py_buffer(offsets // values.itemsize)]
        return pa.Array.from_buffers(self._type, rows, buffers, 0, children=[number_array(values)])


class ShapedArrays(ByteStrings):
    """Arrays of any other shape: the elements of all of them, and their shapes."""

    _row_bytes = 24

    def __init__(self, kind: pa.DataType, dtype: np.dtype[Any], shape: tuple[int | None, ...] | None, fit: Fit) -> None:
        super().__init__()
        self._type, self._fit = kind, fit
        self._dtype, self._shape = dtype, shape
        self._filler = (0,) * len(shape or ())
        self._shapes: list[tuple[int, ...]] = []

    def append(self, value: Any) -> None:
        if type(value) is not np.ndarray or value.dtype is not self._dtype or not has_shape(value.shape, self._shape):
            value = self._fit(value)
        piece = value.tobytes()
        self._pieces.append(piece)
        self._shapes.append(value.shape)
        self.nbytes += len(piece) + 24

    def append_filler(self) -> None:
        super().append_filler()
        self._shapes.append(self._filler)

    def truncate(self, rows: int) -> None:
        super().truncate(rows)
        del self._shapes[rows:]

    def finish(self) -> pa.Array:
        rows, offsets, data = self._take()
        shapes, self._shapes = self._shapes, []
        values = np.frombuffer(data, storage_dtype(self._dtype))
        sizes = np.fromiter(chain.from_iterable(shapes), np.int64)
        bounds = offsets_of(map(len, shapes), rows)
        return shaped_arrays(self._type, values, offsets // values.itemsize, sizes, bounds)


def shaped_arrays(
    kind: pa.StructType, values: NDArray[Any], offsets: Integers, sizes: Integers, bounds: Integers
) -> pa.Array:
    """Return arrays and their shapes as structs.

    :param kind: a struct of `values` and `shape`, the latter of one length or of any
    :param values: the elements of all arrays, in their storage dtype
    :param offsets: where the elements of each array begin, and the end of the last one
    :param sizes: the shapes of all arrays, end to end
    :param bounds: where the shape of each array begins in `sizes`, and the end of the last one
    """
    rows, elements, shape = len(offsets) - 1, kind.field("values").type, kind.field("shape").type
    bounds_buffer = [] if pa.types.is_fixed_size_list(shape) else [pa.py_buffer(bounds.astype(np.int32))]
    parts = [
        pa.Array.from_buffers(elements, rows, [None, pa.py_buffer(offsets)], 0, children=[number_array(values)]),
        pa.Array.from_buffers(shape, rows, [None, *bounds_buffer], 0, children=[number_array(sizes)]),
    ]
    return pa.Array.from_buffers(kind, rows, [None], 0, children=parts)


# -- nested values --------------------------------------------------------------------------------------------


class Sequences:
    """Lists: the offsets, and all items in one encoder; `items_of` returns those of a value."""

    def __init__(self, kind: pa.DataType, item: Encoder, items_of: Callable[[Any], Iterable[Any]]) -> None:
        self._type, self._items_of = kind, items_of
        self._inner = item
        self._ends = [0]

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + 8 * len(self._ends)

    def append(self, value: Any) -> None:
        end = self._ends[-1]
        for item in self._items_of(value):
            self._inner.append(item)
            end += 1
        self._ends.append(end)

    def append_filler(self) -> None:
        self._ends.append(self._ends[-1])

    def truncate(self, rows: int) -> None:
        del self._ends[rows + 1 :]
        self._inner.truncate(self._ends[-1])

    def finish(self) -> pa.Array:
        offsets = np.array(self._ends, np.int64)
        self._ends = [0]
        return pa.LargeListArray.from_arrays(offsets, self._inner.finish(), type=self._type)


class Maps:
    """Maps: the offsets, and encoders for all keys and all values; `pairs_of` returns those of a value."""

    def __init__(
        self, kind: pa.DataType, key: Encoder, value: Encoder, pairs_of: Callable[[Any], Iterable[tuple[Any, Any]]]
    ) -> None:
        self._type, self._pairs_of = kind, pairs_of
        self._keys, self._items = key, value
        self._ends = [0]

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._items.nbytes + 4 * len(self._ends)

    def append(self, value: Any) -> None:
        end = self._ends[-1]
        for key, one in self._pairs_of(value):
            self._keys.append(key)
            self._items.append(one)
            end += 1
        self._ends.append(end)

    def append_filler(self) -> None:
        self._ends.append(self._ends[-1])

    def truncate(self, rows: int) -> None:
        del self._ends[rows + 1 :]
        self._keys.truncate(self._ends[-1])
        self._items.truncate(self._ends[-1])

    def finish(self) -> pa.Array:
        if self._ends[-1] > _MAX_OFFSET:
            raise SchemaError(f"expected at most {_MAX_OFFSET} entries of maps in a batch, got {self._ends[-1]}")
        offsets = np.array(self._ends, np.int32)
        self._ends = [0]
        fields = [self._type.key_field, self._type.item_field]
        entries = pa.StructArray.from_arrays([self._keys.finish(), self._items.finish()], fields=fields)
        return pa.Array.from_buffers(self._type, len(offsets) - 1, [None, pa.py_buffer(offsets)], 0, children=[entries])


class Structs:
    """Structs: an encoder for each part; `parts_of` returns the parts of a value with their names."""

    def __init__(
        self,
        kind: pa.DataType,
        parts: Mapping[str, Encoder],
        parts_of: Callable[[Any], Iterable[tuple[str, Any]]],
    ) -> None:
        self._type, self._parts_of = kind, parts_of
        self._inner = dict(parts)
        self._rows = 0

    @property
    def nbytes(self) -> int:
        return sum(encoder.nbytes for encoder in self._inner.values())

    def append(self, value: Any) -> None:
        for name, part in self._parts_of(value):
            try:
                self._inner[name].append(part)
            except SchemaError as error:
                raise SchemaError(f"{error} (in {name})") from None
        self._rows += 1

    def append_filler(self) -> None:
        for encoder in self._inner.values():
            encoder.append_filler()
        self._rows += 1

    def truncate(self, rows: int) -> None:
        for encoder in self._inner.values():
            encoder.truncate(rows)
        self._rows = min(self._rows, rows)

    def finish(self) -> pa.Array:
        children = [encoder.finish() for encoder in self._inner.values()]
        rows, self._rows = self._rows, 0
        return pa.Array.from_buffers(self._type, rows, [None], 0, children=children)


class Optionals:
    """Values of another encoder, and which of them are not null: `None`, and those that `is_missing` says are none."""

    def __init__(self, inner: Encoder, is_missing: Callable[[Any], bool] | None = None) -> None:
        self._is_missing = is_missing
        self._inner = inner
        self._valid: list[bool] = []

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + len(self._valid)

    def append(self, value: Any) -> None:
        if value is None or (self._is_missing is not None and self._is_missing(value)):
            self.append_filler()
        else:
            self._inner.append(value)
            self._valid.append(True)

    def append_filler(self) -> None:
        self._inner.append_filler()
        self._valid.append(False)

    def truncate(self, rows: int) -> None:
        self._inner.truncate(rows)
        del self._valid[rows:]

    def finish(self) -> pa.Array:
        array, valid = self._inner.finish(), np.array(self._valid, np.bool_)
        self._valid = []
        return array if valid.all() else with_nulls(array, valid)


def with_nulls(array: pa.Array, valid: NDArray[np.bool_]) -> pa.Array:
    """Return the array with nulls over its fillers, so that the same samples give the same bytes."""
    kind = array.type
    if pa.types.is_null(kind):
        return array
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    if pa.types.is_struct(kind):
        children = [array.field(number) for number in range(kind.num_fields)]
    else:
        children = [array.values] if kind.num_fields else []
    buffers = [bits, *array.buffers()[1 : kind.num_buffers]]
    return pa.Array.from_buffers(kind, len(array), buffers, int(len(valid) - valid.sum()), children=children)
