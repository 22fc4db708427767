"""Encoders of single values (`encode` has those of arrays and nested values): numbers, text, bytes.

Each collects the values of one field, appended one by one, and returns them as an Arrow array. An encoder copies a
value when it is appended (the caller may reuse its array), checks the common case itself and gives all other values to
a function of the feature. A value that does not fit raises `SchemaError`; parts of it may have been appended, which
`truncate` removes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns.types import number_array
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
    """Values as whole numbers, such as dates and times."""

    def __init__(self, kind: pa.DataType, dtype: str, number: Callable[[Any], int]) -> None:
        self._type = kind
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


class WideUnits:
    """Values as whole numbers of many bytes, such as decimal numbers."""

    def __init__(self, kind: pa.DataType, number: Callable[[Any], int]) -> None:
        self._type = kind
        self._number = number
        self._width = int(kind.byte_width)
        self._pieces: list[bytes] = []

    @property
    def nbytes(self) -> int:
        return len(self._pieces) * self._width

    def append(self, value: Any) -> None:
        self._pieces.append(self._number(value).to_bytes(self._width, "little", signed=True))

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

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes

    def append(self, value: Any) -> None:
        self._inner.append(self._convert(value))

    def append_filler(self) -> None:
        self._inner.append_filler()

    def truncate(self, rows: int) -> None:
        self._inner.truncate(rows)

    def finish(self) -> pa.Array:
        return self._inner.finish()


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
