"""Values of one field, one after another, into an Arrow array: the writing side of `layout.py`, feature by feature.

A packer copies each value when it is appended (the caller may reuse its array), so that a quick look suffices where
the value is what it should be, and `fit.py` decides about all others. A value that does not fit raises `SchemaError`;
it may have been taken in part, and `truncate` takes that back. `builder.py` makes record batches of many packers.

Arrays of one field, copied one after another and joined at the end: the packers of `Array`, by what is free.

A value that is an array of the right dtype and shape is copied as it is; `fit.py` decides about all others. What a
packer is, and those of the other features, is in `packer.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from shardex.arrow.types import arrow_type, numbers, sizes, storage
from shardex.errors import SchemaError
from shardex.schema import (
    COMPACT,
    JSON,
    RAW,
    TEXT,
    Array,
    Bytes,
    ClassLabel,
    Feature,
    Json,
    Optional,
    Sequence,
    Struct,
    Text,
    Value,
    bounds,
    fit_array,
    fit_class,
    fit_number,
    items_of,
    parts_of,
)

__all__ = ["FixedArrays", "FreeArrays", "Packer", "ShapedArrays", "array_packer", "packer_of"]


def array_packer(feature: Array) -> FixedArrays | FreeArrays | ShapedArrays:
    """The packer for arrays of a known dtype."""
    return FixedArrays(feature) if feature.fixed else FreeArrays(feature) if feature.ragged else ShapedArrays(feature)


class FixedArrays:
    """Arrays of one shape, as the bytes of each."""

    def __init__(self, feature: Array) -> None:
        self._feature = feature
        self._type = arrow_type(feature)
        self._dtype = np.dtype(feature.dtype)
        self._storage = storage(self._dtype)
        self._shape = sizes(feature)
        self._width = self._dtype.itemsize * math.prod(self._shape)
        self._pieces: list[bytes] = []

    @property
    def nbytes(self) -> int:
        return len(self._pieces) * self._width

    def append(self, value: Any) -> None:
        if type(value) is not np.ndarray or value.dtype is not self._dtype or value.shape != self._shape:
            value = fit_array(value, self._feature)
        self._pieces.append(value.tobytes())

    def blank(self) -> None:
        self._pieces.append(bytes(self._width))

    def truncate(self, rows: int) -> None:
        del self._pieces[rows:]

    def finish(self) -> pa.Array:
        pieces, self._pieces = self._pieces, []
        values = numbers(np.frombuffer(b"".join(pieces), self._storage))
        return pa.Array.from_buffers(self._type, len(pieces), [None], 0, children=[values])


class FreeArrays:
    """Arrays whose first size is free, as the bytes of each."""

    def __init__(self, feature: Array) -> None:
        self._feature = feature
        self._type = arrow_type(feature)
        self._dtype = np.dtype(feature.dtype)
        self._storage = storage(self._dtype)
        self._inner = sizes(feature)
        self._ndim = 1 + len(self._inner)
        self._pieces: list[bytes] = []
        self.nbytes = 0

    def append(self, value: Any) -> None:
        if (
            type(value) is not np.ndarray
            or value.dtype is not self._dtype
            or value.ndim != self._ndim
            or (self._inner and value.shape[1:] != self._inner)
        ):
            value = fit_array(value, self._feature)
        piece = value.tobytes()
        self._pieces.append(piece)
        self.nbytes += len(piece) + 8

    def blank(self) -> None:
        self._pieces.append(b"")
        self.nbytes += 8

    def truncate(self, rows: int) -> None:
        self.nbytes -= sum(len(piece) + 8 for piece in self._pieces[rows:])
        del self._pieces[rows:]

    def finish(self) -> pa.Array:
        pieces, self._pieces, self.nbytes = self._pieces, [], 0
        offsets = np.zeros(len(pieces) + 1, np.int64)
        np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
        offsets //= self._storage.itemsize
        values = numbers(np.frombuffer(b"".join(pieces), self._storage))
        return pa.Array.from_buffers(self._type, len(pieces), [None, pa.py_buffer(offsets)], 0, children=[values])


class ShapedArrays:
    """Arrays of which more is free: the elements end to end, and the shapes."""

    def __init__(self, feature: Array) -> None:
        self._feature = feature
        self._type = arrow_type(feature)
        self._values = FreeArrays(Array(feature.dtype, (None,)))
        self._none = (0,) * len(feature.shape or ())
        self._shapes: list[tuple[int, ...]] = []

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + 16 * len(self._shapes)

    def append(self, value: Any) -> None:
        array = fit_array(value, self._feature)
        self._values.append(array.reshape(-1))
        self._shapes.append(array.shape)

    def blank(self) -> None:
        self._values.blank()
        self._shapes.append(self._none)

    def truncate(self, rows: int) -> None:
        self._values.truncate(rows)
        del self._shapes[rows:]

    def finish(self) -> pa.Array:
        shapes = pa.array([list(shape) for shape in self._shapes], self._type.field("shape").type)
        self._shapes = []
        return pa.StructArray.from_arrays([self._values.finish(), shapes], fields=list(self._type))


class Packer(Protocol):
    """Collects the values of one field."""

    @property
    def nbytes(self) -> int:
        """About how much has been collected."""

    def append(self, value: Any) -> None:
        """Take a copy of one value."""

    def blank(self) -> None:
        """Take something that nobody will see, where a value is missing."""

    def truncate(self, rows: int) -> None:
        """Forget all values after the first `rows`."""

    def finish(self) -> pa.Array:
        """All values, valid until the next `append`; the packer is empty again."""


def packer_of(feature: Feature) -> Packer:
    """The packer for a feature.

    >>> packer = packer_of(Sequence(Value("int8"))); packer.append([1, 2]); packer.append(())
    >>> packer.finish().to_pylist()
    [[1, 2], []]
    """
    match feature:
        case Value():
            return _Numbers(feature.dtype, bounds(feature.dtype), lambda value: fit_number(value, feature))
        case ClassLabel():
            return _Numbers("int32", (0, len(feature.names) - 1), lambda value: fit_class(value, feature))
        case Text():
            return _Texts(TEXT.encode, pa.large_string())
        case Json():
            return _Blobs(JSON.encode, pa.large_string())
        case Bytes():
            return _Blobs(RAW.encode, pa.large_binary())
        case Array(dtype=None):
            return _Blobs(COMPACT.encode, pa.large_binary())
        case Array():
            return array_packer(feature)
        case Sequence():
            return _Lists(feature)
        case Struct():
            return _Structs(feature)
        case Optional():
            return _Optionals(feature)
    raise SchemaError(f"expected a feature that can be written, got {feature}")


# -- numbers and bytes ----------------------------------------------------------------------------------------


class _Numbers:
    """Numbers, truth values and classes."""

    def __init__(self, dtype: str, limits: tuple[Any, Any], fit: Callable[[Any], Any]) -> None:
        self._dtype = np.dtype(dtype)
        self._plain: type = {"b": bool, "f": float}.get(self._dtype.kind, int)
        self._low, self._high = limits
        self._fit = fit
        self._values: list[Any] = []

    @property
    def nbytes(self) -> int:
        return len(self._values) * self._dtype.itemsize

    def append(self, value: Any) -> None:
        if type(value) is not self._plain or not (self._low <= value <= self._high):
            value = self._fit(value)
        self._values.append(value)

    def blank(self) -> None:
        self._values.append(0)

    def truncate(self, rows: int) -> None:
        del self._values[rows:]

    def finish(self) -> pa.Array:
        array = np.array(self._values, self._dtype)
        self._values = []
        return numbers(array)


class _Blobs:
    """Whatever a codec turns into bytes."""

    def __init__(self, encode: Callable[[Any], bytes], kind: pa.DataType) -> None:
        self._encode = encode
        self._type = kind
        self._values: list[bytes] = []
        self.nbytes = 0

    def append(self, value: Any) -> None:
        data = self._encode(value)
        self._values.append(data)
        self.nbytes += len(data)

    def blank(self) -> None:
        self._values.append(b"")

    def truncate(self, rows: int) -> None:
        self.nbytes -= sum(map(len, self._values[rows:]))
        del self._values[rows:]

    def finish(self) -> pa.Array:
        offsets = np.zeros(len(self._values) + 1, np.int64)
        np.cumsum([len(value) for value in self._values], out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(self._values))]
        array = pa.Array.from_buffers(self._type, len(self._values), buffers, 0)
        self._values, self.nbytes = [], 0
        return array


class _Texts(_Blobs):
    """Text, most of which needs no second look."""

    def append(self, value: Any) -> None:
        data = value.encode() if type(value) is str and value.isascii() else self._encode(value)
        self._values.append(data)
        self.nbytes += len(data)


# -- nested -----------------------------------------------------------------------------------------------------


class _Lists:
    """Lists: the values end to end, in a packer of their own."""

    def __init__(self, feature: Sequence) -> None:
        self._feature = feature
        self._inner = packer_of(feature.feature)
        self._ends = [0]

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + 8 * len(self._ends)

    def append(self, value: Any) -> None:
        end = self._ends[-1]
        for item in items_of(value, self._feature):
            self._inner.append(item)
            end += 1
        self._ends.append(end)

    def blank(self) -> None:
        self._ends.append(self._ends[-1])

    def truncate(self, rows: int) -> None:
        del self._ends[rows + 1 :]
        self._inner.truncate(self._ends[-1])

    def finish(self) -> pa.Array:
        offsets = np.array(self._ends, np.int64)
        self._ends = [0]
        return pa.LargeListArray.from_arrays(offsets, self._inner.finish(), type=arrow_type(self._feature))


class _Structs:
    """Structs: a packer for each part."""

    def __init__(self, feature: Struct) -> None:
        self._feature = feature
        self._inner = {name: packer_of(inner) for name, inner in feature.fields.items()}
        self._rows = 0

    @property
    def nbytes(self) -> int:
        return sum(packer.nbytes for packer in self._inner.values())

    def append(self, value: Any) -> None:
        for name, part in parts_of(value, self._feature):
            try:
                self._inner[name].append(part)
            except SchemaError as error:
                raise SchemaError(f"{error} (in {name})") from None
        self._rows += 1

    def blank(self) -> None:
        for packer in self._inner.values():
            packer.blank()
        self._rows += 1

    def truncate(self, rows: int) -> None:
        for packer in self._inner.values():
            packer.truncate(rows)
        self._rows = min(self._rows, rows)

    def finish(self) -> pa.Array:
        children = [packer.finish() for packer in self._inner.values()]
        rows, self._rows = self._rows, 0
        return pa.Array.from_buffers(arrow_type(self._feature), rows, [None], 0, children=children)


class _Optionals:
    """Values of another packer, and which of them are there."""

    def __init__(self, feature: Optional) -> None:
        self._inner = packer_of(feature.feature)
        self._valid: list[bool] = []

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + len(self._valid)

    def append(self, value: Any) -> None:
        if value is None:
            self.blank()
        else:
            self._inner.append(value)
            self._valid.append(True)

    def blank(self) -> None:
        self._inner.blank()
        self._valid.append(False)

    def truncate(self, rows: int) -> None:
        self._inner.truncate(rows)
        del self._valid[rows:]

    def finish(self) -> pa.Array:
        array, valid = self._inner.finish(), np.array(self._valid, np.bool_)
        self._valid = []
        return array if valid.all() else _masked(array, valid)


def _masked(array: pa.Array, valid: Any) -> pa.Array:
    """The array with nulls, its values left where they are, so that the same samples give the same bytes."""
    kind = array.type
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    if pa.types.is_struct(kind):
        children = [array.field(number) for number in range(kind.num_fields)]
    else:
        children = [array.values] if kind.num_fields else []
    buffers = [bits, *array.buffers()[1 : kind.num_buffers]]
    return pa.Array.from_buffers(kind, len(array), buffers, int(len(valid) - valid.sum()), children=children)
