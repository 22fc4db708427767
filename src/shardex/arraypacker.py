"""Arrays of one field, copied one after another into one growing block: the packers of `Array`, by what is free.

A value that is an array of the right dtype and shape is copied as it is; `fit.py` decides about all others. What a
packer is, and those of the other features, is in `packer.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.fit import fit_array
from shardex.layout import arrow_type, sizes, storage
from shardex.schema import Array

__all__ = ["FixedArrays", "FreeArrays", "ShapedArrays", "array_packer"]

_FIRST_BYTES = 64 << 10
"""Room to begin with, or one array if that takes more."""


def array_packer(feature: Array) -> FixedArrays | FreeArrays | ShapedArrays:
    """The packer for arrays of a known dtype."""
    return FixedArrays(feature) if feature.fixed else FreeArrays(feature) if feature.ragged else ShapedArrays(feature)


class FixedArrays:
    """Arrays of one shape, copied into one growing matrix."""

    def __init__(self, feature: Array) -> None:
        self._feature = feature
        self._type = arrow_type(feature)
        self._dtype = np.dtype(feature.dtype)
        self._storage = storage(self._dtype)
        self._shape = sizes(feature)
        self._width = self._dtype.itemsize * math.prod(self._shape)
        self._matrix = np.empty((max(1, _FIRST_BYTES // max(1, self._width)), *self._shape), self._dtype)
        self._rows = 0

    @property
    def nbytes(self) -> int:
        return self._rows * self._width

    def append(self, value: Any) -> None:
        if type(value) is not np.ndarray or value.dtype is not self._dtype or value.shape != self._shape:
            value = fit_array(value, self._feature)
        if self._rows == len(self._matrix):
            self._grow()
        self._matrix[self._rows] = value
        self._rows += 1

    def blank(self) -> None:
        self.append(np.zeros(self._shape, self._dtype))

    def _grow(self) -> None:
        matrix = np.empty((2 * len(self._matrix), *self._shape), self._dtype)
        matrix[: self._rows] = self._matrix
        self._matrix = matrix

    def truncate(self, rows: int) -> None:
        self._rows = min(self._rows, rows)

    def finish(self) -> pa.Array:
        values = pa.array(self._matrix[: self._rows].reshape(-1).view(self._storage))
        array = pa.Array.from_buffers(self._type, self._rows, [None], 0, children=[values])
        self._rows = 0
        return array


class FreeArrays:
    """Arrays whose first size is free, copied end to end into one growing vector."""

    def __init__(self, feature: Array) -> None:
        self._feature = feature
        self._type = arrow_type(feature)
        self._dtype = np.dtype(feature.dtype)
        self._storage = storage(self._dtype)
        self._inner = sizes(feature)
        self._ndim = 1 + len(self._inner)
        self._vector = np.empty(_FIRST_BYTES // self._dtype.itemsize, self._dtype)
        self._ends = [0]

    @property
    def nbytes(self) -> int:
        return self._ends[-1] * self._dtype.itemsize + 8 * len(self._ends)

    def append(self, value: Any) -> None:
        if type(value) is not np.ndarray or value.dtype is not self._dtype or value.ndim != self._ndim:
            value = fit_array(value, self._feature)
        if self._inner:
            value = self._flat(value)
        start = self._ends[-1]
        end = start + value.size
        if end > len(self._vector):
            self._grow(end)
        self._vector[start:end] = value
        self._ends.append(end)

    def _flat(self, value: Any) -> Any:
        if value.shape[1:] != self._inner:
            value = fit_array(value, self._feature)
        return value.reshape(-1)

    def blank(self) -> None:
        self._ends.append(self._ends[-1])

    def _grow(self, least: int) -> None:
        vector = np.empty(max(least, 2 * len(self._vector)), self._dtype)
        vector[: self._ends[-1]] = self._vector[: self._ends[-1]]
        self._vector = vector

    def truncate(self, rows: int) -> None:
        del self._ends[rows + 1 :]

    def finish(self) -> pa.Array:
        offsets = np.array(self._ends, np.int64) * (self._dtype.itemsize // self._storage.itemsize)
        values = pa.array(self._vector[: self._ends[-1]].view(self._storage))
        self._ends = [0]
        return pa.Array.from_buffers(self._type, len(offsets) - 1, [None, pa.py_buffer(offsets)], 0, children=[values])


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
