"""Arrays of one field, copied one after another and joined at the end: the packers of `Array`, by what is free.

A value that is an array of the right dtype and shape is copied as it is; `fit.py` decides about all others. What a
packer is, and those of the other features, is in `packer.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.arrow.types import arrow_type, numbers, sizes, storage
from shardex.schema import Array, fit_array

__all__ = ["FixedArrays", "FreeArrays", "ShapedArrays", "array_packer"]


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
