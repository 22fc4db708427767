"""Arrays as `.npy` files. Decoding is zero-copy where order and alignment allow; object arrays are refused."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from shardex.errors import FormatError, SchemaError, UnsafeError

MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 64 << 10


def encode(value: Any) -> bytes:
    """The bytes that `np.save` writes.

    >>> decode(encode([1.5, 2.5]))
    array([1.5, 2.5])
    """
    array = np.asanyarray(value)
    if array.dtype.hasobject:
        raise SchemaError(f"expected an array of numbers, text or bytes, got dtype {array.dtype} (objects are never stored)")
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def decode(data: Any) -> NDArray[Any]:
    """The array, a read-only view of the bytes.

    >>> decode(encode(np.array(3.5)))
    array(3.5)
    """
    view = memoryview(data).cast("B")
    start, dtype, shape, fortran = header(view)
    expected = dtype.itemsize * int(np.prod(shape, dtype=object))
    if len(view) - start != expected:
        raise FormatError(
            f"expected {expected} bytes of data for {dtype}{list(shape)}, got {len(view) - start} (is the file cut off?)"
        )
    flat = np.frombuffer(view, dtype, offset=start) if expected else np.empty(shape, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


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
    stream = io.BytesIO(raw)
    try:
        version = npy_format.read_magic(stream)
        read = {(1, 0): npy_format.read_array_header_1_0}.get(version, npy_format.read_array_header_2_0)
        shape, fortran, dtype = read(stream)
    except (ValueError, TypeError, SyntaxError) as error:
        raise FormatError(f"expected an .npy header, got one that numpy refuses: {error}") from None
    if dtype.hasobject:
        raise UnsafeError(f"expected an array of numbers, text or bytes, got dtype {dtype}: loading it would run code")
    return dtype, shape, fortran
