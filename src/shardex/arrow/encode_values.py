"""Encoders of single values (`encode` has those of arrays and nested values): numbers, dates and times, text, bytes.

Each collects the values of one field and returns them as an Arrow array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow.types import arrow_type, number_array
from shardex.features import Decimal, Feature, fit_null, unscaled


def offsets_of(lengths: Any, count: int) -> NDArray[np.int64]:
    """Return the offsets of values of these lengths.

    >>> offsets_of(map(len, ["ab", "c"]), 2)
    array([0, 2, 3])
    """
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, count), out=offsets[1:])
    return offsets


class Numbers:
    """Numbers, booleans and class numbers."""

    def __init__(self, dtype: str, limits: tuple[Any, Any], fit: Callable[[Any], Any]) -> None:
        self._dtype = np.dtype(dtype)
        self._type: type = {"b": bool, "f": float}.get(self._dtype.kind, int)
        self._low, self._high = limits
        self._fit = fit
        self._values: list[Any] = []

    @property
    def nbytes(self) -> int:
        return len(self._values) * self._dtype.itemsize

    def append(self, value: Any) -> None:
        if type(value) is not self._type or not (self._low <= value <= self._high):
            value = self._fit(value)
        self._values.append(value)

    def append_filler(self) -> None:
        self._values.append(0)

    def truncate(self, rows: int) -> None:
        del self._values[rows:]

    def finish(self) -> pa.Array:
        array = np.array(self._values, self._dtype)
        self._values = []
        return number_array(array)


class Units:
    """Dates and times as numbers of units."""

    def __init__(self, feature: Feature, dtype: str, number: Callable[[Any], int]) -> None:
        self._type = arrow_type(feature)
        self._dtype = np.dtype(dtype)
        self._number = number
        self._values: list[int] = []

    @property
    def nbytes(self) -> int:
        return len(self._values) * self._dtype.itemsize

    def append(self, value: Any) -> None:
        self._values.append(self._number(value))

    def append_filler(self) -> None:
        self._values.append(0)

    def truncate(self, rows: int) -> None:
        del self._values[rows:]

    def finish(self) -> pa.Array:
        data = np.array(self._values, self._dtype)
        self._values = []
        return pa.Array.from_buffers(self._type, len(data), [None, pa.py_buffer(data)], 0)


class Decimals:
    """Decimal numbers as whole numbers of 16 or 32 bytes."""

    def __init__(self, feature: Decimal) -> None:
        self._feature = feature
        self._type = arrow_type(feature)
        self._width = int(self._type.byte_width)
        self._pieces: list[bytes] = []

    @property
    def nbytes(self) -> int:
        return len(self._pieces) * self._width

    def append(self, value: Any) -> None:
        self._pieces.append(unscaled(value, self._feature).to_bytes(self._width, "little", signed=True))

    def append_filler(self) -> None:
        self._pieces.append(bytes(self._width))

    def truncate(self, rows: int) -> None:
        del self._pieces[rows:]

    def finish(self) -> pa.Array:
        pieces, self._pieces = self._pieces, []
        return pa.Array.from_buffers(self._type, len(pieces), [None, pa.py_buffer(b"".join(pieces))], 0)


class Nulls:
    """Values that are all none."""

    nbytes = 0

    def __init__(self) -> None:
        self._rows = 0

    def append(self, value: Any) -> None:
        fit_null(value)
        self._rows += 1

    def append_filler(self) -> None:
        self._rows += 1

    def truncate(self, rows: int) -> None:
        self._rows = min(self._rows, rows)

    def finish(self) -> pa.Array:
        rows, self._rows = self._rows, 0
        return pa.nulls(rows)


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
