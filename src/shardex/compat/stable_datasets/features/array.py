"""Features of arrays that have the same shape in every sample, stored as their raw bytes in C order."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from shardex import features as core
from shardex.compat.stable_datasets.features.base import FeatureType, tensor_of
from shardex.errors import FormatError, SchemaError


class _FixedShapeArray(FeatureType):
    """Base class of arrays of a fixed shape."""

    _ndim: ClassVar[int]
    shape: tuple[int, ...]
    dtype: str

    def __init__(self, shape: tuple[int, ...], dtype: str = "uint8") -> None:
        self._array = core.Array(dtype, shape)
        if len(self._array.shape or ()) != self._ndim or not self._array.fixed:
            raise SchemaError(f"expected a shape of {self._ndim} sizes for {type(self).__name__}, got {shape!r}")
        self.shape = tuple(shape)
        self.dtype = dtype if isinstance(dtype, str) else np.dtype(dtype).name

    @property
    def core(self) -> core.Feature:
        """The array."""
        return self._array

    def to_arrow_type(self) -> pa.DataType:
        """Return bytes of any size."""
        return pa.large_binary()

    def encode(self, value: Any, *, cache_dir: Path | None = None) -> bytes | None:
        """Return the elements of an array as bytes; an array of another shape is refused."""
        if value is None:
            return None
        try:
            array = np.asarray(value, dtype=self.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"expected {self._array}, got {core.describe(value)}: {error}") from None
        if array.shape != self.shape:
            raise SchemaError(f"expected {self._array}, got {core.describe(array)}")
        return array.tobytes()

    def format(
        self, value: Any, *, format_type: str | None, decode_images: bool = True, cache_dir: Path | None = None
    ) -> Any:
        """Return a writable array of the declared dtype; with "torch" a tensor, of float32 instead of float64."""
        if value is None or format_type == "raw":
            return value
        data = memoryview(value).cast("B") if not isinstance(value, np.ndarray) else memoryview(value.tobytes())
        if len(data) != math.prod(self.shape) * np.dtype(self.dtype).itemsize:
            raise FormatError(f"expected the bytes of {self._array}, got {len(data)} bytes")
        array = np.frombuffer(data, self.dtype).reshape(self.shape).copy()
        return tensor_of(array) if format_type == "torch" else array

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype='{self.dtype}')"


class Array3D(_FixedShapeArray):
    """An array of three dimensions.

    >>> Array3D((2, 3, 4), "float32"), len(Array3D((1, 2, 2)).encode([[[1, 2], [3, 4]]]) or b"")
    (Array3D(shape=(2, 3, 4), dtype='float32'), 4)
    """

    _ndim = 3


class Array4D(_FixedShapeArray):
    """An array of four dimensions."""

    _ndim = 4
