"""Encodings of MDS columns: the feature of each, and its values as a column.

Nothing is unpickled: a column of pickles is read as bytes, with a warning when the dataset is opened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import FormatError, ShardexError
from shardex.features import (
    Array,
    Bytes,
    Feature,
    Features,
    Image,
    Json,
    Sequence,
    Text,
    Value,
    codecs,
    conversions,
)
from shardex.kernel import Column, Ranges

Where = Callable[[int], str]
"""Returns the location of the k-th value of a column, for error messages."""
Decode = Callable[[Ranges, str, Where], Column]
"""Returns the values in byte ranges; name and locations of the field are for error messages."""

DTYPES = {8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4", 64: "u8", 65: "i8", 66: "f8"}
"""Numbers that stand for dtypes before arrays of any dtype."""
_NUMBER = re.compile(r"u?int(8|16|32|64)|float(16|32|64)")
_BANDS = {"L": 1, "P": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4, "CMYK": 4, "RGBX": 4}
"""Modes of pictures with one byte for each band."""


@dataclass(frozen=True)
class Encoding:
    """How the values of a column are stored."""

    feature: Feature
    value: Callable[[memoryview], Any]
    """Returns the value in some bytes; raises an error that says nothing of the place."""
    at_once: Decode | None = None
    """Returns the values in many byte ranges, if that is faster than one by one."""
    size: int | None = None
    """Bytes of each value; None if values have several sizes."""

    def column(self, ranges: Ranges, name: str, where: Where) -> Column:
        """Return the values in byte ranges as a column of the field `name`."""
        if self.at_once is not None:
            with suppress(UnicodeDecodeError):  # found again below, for an error that names the sample
                return self.at_once(ranges, name, where)
        values = []
        for k, view in enumerate(ranges.views()):
            try:
                values.append(self.value(view))
            except (ValueError, KeyError, IndexError, ShardexError) as error:
                problem = "" if isinstance(error, IndexError | KeyError) else f": {error}"
                raise FormatError(
                    f"{where(k)}, field {name}: expected {self.feature}, got {bytes(view[:20])!r}{problem}"
                ) from None
        columns = conversions.to_columns({name: values}, len(values), Features({name: self.feature}), where)
        return (columns.stack() if isinstance(self.feature, Array) else columns).data[name]


def encoding(name: str, where: str) -> Encoding:
    """Return the encoding of this name, as ``column_encodings`` has it.

    >>> str(encoding("ndarray:uint16:512", "a.mds").feature), str(encoding("list[png]", "a.mds").feature)
    ('uint16[512]', 'list of image')
    """
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "int" or _NUMBER.fullmatch(name):
        return _numbers("int64" if name == "int" else name)
    kind, _, more = name.partition(":")
    if kind == "ndarray":
        dtype, _, shape = more.partition(":")
        with_shape = tuple(map(int, shape.split(","))) if re.fullmatch(r"\d+(,\d+)*", shape) else None
        if (not dtype or _NUMBER.fullmatch(dtype)) and (with_shape or not shape):
            return _arrays(dtype or None, with_shape)
    raise FormatError(f"{where}: expected an encoding of MDS, got {name!r}")


def declared(known: Encoding, feature: Feature) -> Encoding:
    """Return an encoding whose values have the feature that a schema declares; bytes are the numbers of an array."""
    if feature == known.feature:
        return known
    value = known.value
    if isinstance(known.feature, Bytes) and isinstance(feature, Array) and feature.dtype and feature.shape:
        value = partial(_numbers_in, dtype=feature.dtype, shape=(-1, *feature.shape[1:]))
    return Encoding(feature, value, None, known.size)


def _numbers_in(data: memoryview, dtype: Any, shape: Any) -> NDArray[Any]:
    """Return a copy of the numbers in some bytes."""
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _numbers(dtype: str) -> Encoding:
    unpack = Struct(f"<{np.dtype(dtype).char if dtype != 'int64' else 'q'}".replace("L", "Q")).unpack

    def at_once(ranges: Ranges, name: str, where: Where) -> Column:
        return _matrix(ranges, size, name, where).view(dtype)[:, 0]

    size = np.dtype(dtype).itemsize
    return Encoding(Value(dtype), lambda data: unpack(data)[0], at_once, size)


def _matrix(ranges: Ranges, size: int, name: str, where: Where) -> NDArray[np.uint8]:
    """Return values of one size as the rows of an array of bytes."""
    if len(wrong := np.flatnonzero(ranges.length != size)):
        raise FormatError(f"{where(int(wrong[0]))}, field {name}: expected {size} bytes, got {ranges.length[wrong[0]]}")
    return ranges.padded(size)


def _arrays(dtype: str | None, shape: tuple[int, ...] | None) -> Encoding:
    if not dtype or not shape:
        return Encoding(Array(dtype, shape), lambda data: _array(data, dtype))

    def at_once(ranges: Ranges, name: str, where: Where) -> Column:
        return _matrix(ranges, size, name, where).view(dtype).reshape(-1, *shape)

    size = math.prod(shape) * np.dtype(dtype).itemsize
    return Encoding(Array(dtype, shape), partial(_numbers_in, dtype=dtype, shape=shape), at_once, size)


def _array(data: memoryview, dtype: str | None) -> NDArray[Any]:
    """Decode an array that begins with its shape, and with its dtype if that is not known."""
    begin = 0 if dtype else 1
    kind = np.dtype(dtype or DTYPES[data[0]])
    dimensions, width = data[begin] >> 2, 1 << (data[begin] & 3)
    end = begin + 1 + dimensions * width
    shape = np.frombuffer(data[begin + 1 : end], f"<u{width}")
    return _numbers_in(data[end:], kind, shape.tolist())


def _picture(data: memoryview) -> NDArray[np.uint8]:
    """Decode a picture without compression: width, height, length of the mode, mode, pixels."""
    width, height, length = np.frombuffer(data[:12], "<u4").tolist()
    mode = bytes(data[12 : 12 + length]).decode()
    if mode not in _BANDS:
        raise FormatError(f"pictures of the mode {mode!r} are not read; known modes are {', '.join(_BANDS)}")
    shape = (height, width) if _BANDS[mode] == 1 else (height, width, _BANDS[mode])
    return _numbers_in(data[12 + length :], np.uint8, shape)


def _items(data: memoryview) -> list[bytes]:
    """Decode a ``jpeg_array``: number of items, their sizes, the items."""
    sizes = np.frombuffer(data[4 : 4 + 4 * (count := int.from_bytes(data[:4], "little"))], "<u4")
    ends = np.cumsum(sizes, dtype=np.int64) + 4 + 4 * count
    if len(sizes) != count or (int(ends[-1]) if count else 4) != len(data):
        raise FormatError(f"a list of {count} items in {len(data)} bytes")
    return [bytes(data[end - size : end]) for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)]


def _list(data: memoryview) -> list[bytes]:
    """Decode a list: a number that is not used, then what `_items` decodes."""
    return _items(data[4:])


def _stored(feature: Feature) -> Encoding:
    return Encoding(feature, bytes, lambda ranges, name, where: ranges.bytes())


def _integer(data: memoryview) -> int:
    """Decode an integer that is stored as text."""
    if not -(1 << 63) <= (found := int(bytes(data))) < 1 << 63:
        raise FormatError("it does not fit into 64 bits")
    return found


_TEXT = Encoding(Text(), lambda data: str(data, "utf-8"), lambda ranges, name, where: ranges.text())
_PICTURES = Array("uint8")
_PLAIN = {
    "bytes": _stored(Bytes()),
    "pkl": _stored(Bytes()),
    "jpeg": _stored(Image()),
    "png": _stored(Image()),
    "str": _TEXT,
    "str_decimal": _TEXT,
    "str_int": Encoding(Value("int64"), _integer),
    "str_float": Encoding(Value("float64"), lambda data: float(bytes(data))),
    "json": Encoding(Json(), codecs.JSON.decode),
    "pil": Encoding(_PICTURES, _picture),
    "list[jpeg]": Encoding(Sequence(Image()), _list),
    "list[png]": Encoding(Sequence(Image()), _list),
    "jpeg_array": Encoding(Sequence(Image()), _items),
    "jpegarray": Encoding(Sequence(Image()), _items),
    "list[pil]": Encoding(Sequence(_PICTURES), lambda data: [_picture(memoryview(one)) for one in _list(data)]),
}
