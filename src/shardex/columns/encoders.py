"""Encoders: each collects the values of one field, appended one by one, and returns them as an Arrow array.

An encoder copies a value when it is appended (the caller may reuse its array), checks the common case itself and gives
all other values to a function of the feature. A value that does not fit raises `SchemaError`; parts of it may have been
appended, which `truncate` removes. Encoders are given the Arrow type and the functions of a feature, and know none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns.arrow_types import has_shape, number_array, storage_dtype
from shardex.errors import SchemaError
from shardex.kernel import Integers


class Encoder(Protocol):
    """Collects the values of one field."""

    @property
    def nbytes(self) -> int:
        """Approximate size of the collected values."""

    def append(self, value: Any) -> None:
        """Append a copy of one value."""

    def append_filler(self) -> None:
        """Append a placeholder for a missing value; a null in this field or its parent hides it."""

    def truncate(self, rows: int) -> None:
        """Remove all values after the first `rows`."""

    def finish(self) -> pa.Array:
        """Return all values as an array and start over."""


def offsets_of(lengths: Any, count: int) -> NDArray[np.int64]:
    """Return the offsets of values of these lengths.

    >>> offsets_of(map(len, ["ab", "c"]), 2)
    array([0, 2, 3])
    """
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, count), out=offsets[1:])
    return offsets


class _Listed:
    """Values of one width in a list, one for each row; `filler` is the placeholder."""

    def __init__(self, width: int, filler: Any = 0) -> None:
        self._width, self._filler = width, filler
        self._values: list[Any] = []

    @property
    def nbytes(self) -> int:
        return len(self._values) * self._width

    def append_filler(self) -> None:
        self._values.append(self._filler)

    def truncate(self, rows: int) -> None:
        del self._values[rows:]

    def _take(self) -> list[Any]:
        """Return the values, and start over."""
        values, self._values = self._values, []
        return values


class Numbers(_Listed):
    """Numbers, booleans and class numbers."""

    def __init__(self, dtype: str, limits: tuple[Any, Any], fit: Callable[[Any], Any]) -> None:
        self._dtype = np.dtype(dtype)
        super().__init__(self._dtype.itemsize)
        self._type: type = {"b": bool, "f": float}.get(self._dtype.kind, int)
        self._low, self._high = limits
        self._fit = fit

    def append(self, value: Any) -> None:
        if type(value) is not self._type or not (self._low <= value <= self._high):
            value = self._fit(value)
        self._values.append(value)

    def finish(self) -> pa.Array:
        return number_array(np.array(self._take(), self._dtype))


class Units(_Listed):
    """Values as whole numbers, such as dates and times."""

    def __init__(self, kind: pa.DataType, dtype: str, number: Callable[[Any], int]) -> None:
        self._type = kind
        self._dtype = np.dtype(dtype)
        super().__init__(self._dtype.itemsize)
        self._number = number

    def append(self, value: Any) -> None:
        self._values.append(self._number(value))

    def finish(self) -> pa.Array:
        data = np.array(self._take(), self._dtype)
        return pa.Array.from_buffers(self._type, len(data), [None, pa.py_buffer(data)], 0)


class WideUnits(_Listed):
    """Values as whole numbers of many bytes, such as decimal numbers."""

    def __init__(self, kind: pa.DataType, number: Callable[[Any], int]) -> None:
        super().__init__(kind.byte_width, bytes(kind.byte_width))
        self._type = kind
        self._number = number

    def append(self, value: Any) -> None:
        self._values.append(self._number(value).to_bytes(self._width, "little", signed=True))

    def finish(self) -> pa.Array:
        pieces = self._take()
        return pa.Array.from_buffers(self._type, len(pieces), [None, pa.py_buffer(b"".join(pieces))], 0)


class Nulls:
    """Values that are all none."""

    nbytes = 0

    def __init__(self, fit: Callable[[Any], Any]) -> None:
        self._fit = fit
        self._rows = 0

    def append(self, value: Any) -> None:
        self._fit(value)
        self._rows += 1

    def append_filler(self) -> None:
        self._rows += 1

    def truncate(self, rows: int) -> None:
        self._rows = min(self._rows, rows)

    def finish(self) -> pa.Array:
        rows, self._rows = self._rows, 0
        return pa.nulls(rows)


class ConvertedEncoder:
    """Values that a function converts, in another encoder."""

    def __init__(self, inner: Encoder, convert: Callable[[Any], Any]) -> None:
        self._inner, self._convert = inner, convert
        self.append_filler, self.truncate, self.finish = inner.append_filler, inner.truncate, inner.finish

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes

    def append(self, value: Any) -> None:
        self._inner.append(self._convert(value))


class ByteStrings:
    """Values as bytes of different lengths, joined by `finish`."""

    _row_bytes = 0
    """Bytes that a row adds to `nbytes` in addition to its data."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.nbytes = 0

    def append_filler(self) -> None:
        self._pieces.append(b"")
        self.nbytes += self._row_bytes

    def truncate(self, rows: int) -> None:
        self.nbytes -= sum(len(piece) + self._row_bytes for piece in self._pieces[rows:])
        del self._pieces[rows:]

    def _take(self) -> tuple[int, NDArray[np.int64], bytes]:
        """Return number, offsets and joined bytes of the pieces, and start over."""
        pieces, self._pieces, self.nbytes = self._pieces, [], 0
        return len(pieces), offsets_of(map(len, pieces), len(pieces)), b"".join(pieces)


class Blobs(ByteStrings):
    """Text, bytes, and values that a codec encodes."""

    def __init__(self, encode: Callable[[Any], bytes], kind: pa.DataType) -> None:
        super().__init__()
        self._encode = encode
        self._type = kind

    def append(self, value: Any) -> None:
        data = self._encode(value)
        self._pieces.append(data)
        self.nbytes += len(data)

    def finish(self) -> pa.Array:
        rows, offsets, data = self._take()
        return pa.Array.from_buffers(self._type, rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0)


class Texts(Blobs):
    """Text; ASCII is encoded without a check."""

    def append(self, value: Any) -> None:
        data = value.encode() if type(value) is str and value.isascii() else self._encode(value)
        self._pieces.append(data)
        self.nbytes += len(data)


_MAX_OFFSET = (1 << 31) - 1
Fit = Callable[[Any], NDArray[Any]]
"""Returns a value as an array of the dtype and shape of the field."""


# -- arrays ---------------------------------------------------------------------------------------------------


class FixedArrays(_Listed):
    """Arrays of one shape."""

    def __init__(self, kind: pa.DataType, dtype: np.dtype[Any], shape: tuple[int, ...], fit: Fit) -> None:
        self._type, self._fit = kind, fit
        self._dtype = dtype
        self._shape = shape
        width = dtype.itemsize * math.prod(shape)
        super().__init__(width, bytes(width))

    def append(self, value: Any) -> None:
        if type(value) is not np.ndarray or value.dtype is not self._dtype or value.shape != self._shape:
            value = self._fit(value)
        self._values.append(value.tobytes())

    def finish(self) -> pa.Array:
        pieces = self._take()
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


class _Lists:
    """Lists of any length: where each ends, and encoders of what is in them."""

    _offset_bytes = 8

    def __init__(self, *parts: Encoder) -> None:
        self._parts = parts
        self._ends = [0]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts) + self._offset_bytes * len(self._ends)

    def append_filler(self) -> None:
        self._ends.append(self._ends[-1])

    def truncate(self, rows: int) -> None:
        del self._ends[rows + 1 :]
        for part in self._parts:
            part.truncate(self._ends[-1])

    def _take(self) -> list[int]:
        """Return the offsets, and start over."""
        ends, self._ends = self._ends, [0]
        return ends


class Sequences(_Lists):
    """Lists: the offsets, and all items in one encoder; `items_of` returns those of a value."""

    def __init__(self, kind: pa.DataType, item: Encoder, items_of: Callable[[Any], Iterable[Any]]) -> None:
        super().__init__(item)
        self._type, self._items_of = kind, items_of
        self._inner = item

    def append(self, value: Any) -> None:
        end = self._ends[-1]
        for item in self._items_of(value):
            self._inner.append(item)
            end += 1
        self._ends.append(end)

    def finish(self) -> pa.Array:
        offsets = np.array(self._take(), np.int64)
        return pa.LargeListArray.from_arrays(offsets, self._inner.finish(), type=self._type)


class Maps(_Lists):
    """Maps: the offsets, and encoders for all keys and all values; `pairs_of` returns those of a value."""

    _offset_bytes = 4

    def __init__(
        self, kind: pa.DataType, key: Encoder, value: Encoder, pairs_of: Callable[[Any], Iterable[tuple[Any, Any]]]
    ) -> None:
        super().__init__(key, value)
        self._type, self._pairs_of = kind, pairs_of
        self._keys, self._items = key, value

    def append(self, value: Any) -> None:
        end = self._ends[-1]
        for key, one in self._pairs_of(value):
            self._keys.append(key)
            self._items.append(one)
            end += 1
        self._ends.append(end)

    def finish(self) -> pa.Array:
        if self._ends[-1] > _MAX_OFFSET:
            raise SchemaError(f"expected at most {_MAX_OFFSET} entries of maps in a batch, got {self._ends[-1]}")
        offsets = np.array(self._take(), np.int32)
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


# -- sizes ----------------------------------------------------------------------------------------------------


def row_sizes(array: pa.Array) -> Integers:
    """Return the sizes of the first 0, 1, 2 and so on values of one width.

    >>> row_sizes(pa.array([1, 2], pa.int16())).tolist()
    [0, 2, 4]
    """
    return np.arange(len(array) + 1) * width(array.type)


def width(kind: pa.DataType) -> int:
    """Return the size of a value in bytes, at least 1."""
    return max(1, int(kind.bit_width) // 8)


def offset_sizes(array: pa.Array) -> Integers:
    """Return where the values of each row begin, and the end of the last one."""
    kind = np.int32 if pa.types.is_map(array.type) else np.int64
    return np.frombuffer(array.buffers()[1], kind, len(array) + 1).astype(np.int64)
