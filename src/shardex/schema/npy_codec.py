"""Arrays as `.npy` files. Decoding is zero-copy where order and alignment allow; object arrays are refused."""

from __future__ import annotations

import io
import math
import struct
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from shardex.errors import FormatError, SchemaError, UnsafeError

MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 64 << 10
_READERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


def encode(value: Any) -> bytes:
    """The bytes that `np.save` writes.

    >>> decode(encode([1.5, 2.5]))
    array([1.5, 2.5])
    """
    array = to_array(value)
    if array.flags.c_contiguous and array.dtype.kind in "biufcMmSU":
        return _head(array.dtype.str, array.shape) + array.tobytes()
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


@lru_cache(maxsize=4096)
def _head(descr: str, shape: tuple[int, ...]) -> bytes:
    """Kept, because making it takes longer than copying a small array."""
    out = io.BytesIO()
    npy_format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue()


def to_array(value: Any) -> NDArray[Any]:
    """The value as an array that can be stored.

    >>> to_array([1.5, 2.5])
    array([1.5, 2.5])
    """
    try:
        array: NDArray[Any] = np.asanyarray(value)
    except ValueError as error:
        raise SchemaError(f"expected an array, got {type(value).__name__} that is none: {error}") from None
    if array.dtype.hasobject:
        kind = f"dtype {array.dtype} (objects are never stored)"
        raise SchemaError(f"expected an array of numbers, text or bytes, got {kind}")
    return array


def decode(data: Any) -> NDArray[Any]:
    """The array, a read-only view of the bytes.

    >>> decode(encode(np.array(3.5)))
    array(3.5)
    """
    view = memoryview(data).cast("B")
    start, dtype, shape, fortran = header(view)
    return from_elements(view[start:], dtype, shape, "F" if fortran else "C")


def from_elements(
    data: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"] = "C"
) -> NDArray[Any]:
    """An array of exactly these bytes, not copied and read-only; an error if they are not what the shape needs.

    >>> from_elements(memoryview(b"abcdef"), np.dtype("u1"), (2, 3))
    array([[ 97,  98,  99],
           [100, 101, 102]], dtype=uint8)
    """
    expected = dtype.itemsize * math.prod(shape)
    if len(data) != expected or min(shape, default=0) < 0:
        raise FormatError(f"expected {expected} bytes for {dtype}{list(shape)}, got {len(data)} (is it cut off?)")
    try:
        return np.ndarray(shape, dtype, data.toreadonly(), order=order)
    except (ValueError, TypeError) as error:
        raise FormatError(f"expected a shape that an array can have, got {list(shape)}: {error}") from None


def header(view: memoryview) -> tuple[int, np.dtype[Any], tuple[int, ...], bool]:
    """Where the elements begin, their dtype, the shape, and whether the first size runs fastest (Fortran order).

    >>> header(memoryview(encode(np.zeros((2, 3), "<f4"))))
    (128, dtype('float32'), (2, 3), False)
    """
    start = _header_size(view)
    return start, *_header(bytes(view[:start]))


def _header_size(view: memoryview) -> int:
    if bytes(view[:6]) != MAGIC or len(view) < 10:
        raise FormatError(f"expected the magic bytes of .npy, got {bytes(view[:6])!r}")
    wide = view[6] >= 2
    size = (12 if wide else 10) + int.from_bytes(view[8 : 12 if wide else 10], "little")
    if size > min(len(view), _LONGEST_HEADER):
        raise FormatError(f"expected an .npy header of at most {min(len(view), _LONGEST_HEADER)} bytes, got {size}")
    return size


@lru_cache(maxsize=4096)
def _header(raw: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    version, rest = (raw[6], raw[7]), raw[8:]
    if version not in {*_READERS, (3, 0)}:
        raise FormatError(f"expected .npy of version 1, 2 or 3, got {raw[6]}.{raw[7]}")
    try:
        if version == (3, 0):  # like 2.0 but in UTF-8: with all else escaped, its reader does for both
            text = rest[4:].decode().encode("ascii", "backslashreplace")
            version, rest = (2, 0), struct.pack("<I", len(text)) + text
        shape, fortran, dtype = _READERS[version](io.BytesIO(rest), max_header_size=_LONGEST_HEADER)
    except Exception as error:  # there are parsers inside that raise almost anything
        raise FormatError(f"expected an .npy header, got one that numpy refuses: {error}") from None
    if dtype.hasobject:
        raise UnsafeError(f"expected an array of numbers, text or bytes, got dtype {dtype}: loading it would run code")
    return dtype, shape, fortran
