"""Arrays in a compact form: dtype, shape, bytes. Reads `.npy` too, which older files have in its place.

Layout: u8 length of the dtype text, that text (``<f4``), u8 number of dimensions, each size as int64, then the
elements in C order; all little-endian.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.codecs import npy
from shardex.errors import FormatError, SchemaError, UnsafeError

_REFUSED = "OV"


def encode(value: Any) -> bytes:
    """The compact bytes of an array; structured dtypes, which it cannot name, become `.npy`.

    >>> encode(np.array([[1, 2]], "<i2")).hex(" ")
    '03 3c 69 32 02 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 01 00 02 00'
    """
    array = np.asanyarray(value)
    if array.dtype.hasobject:
        raise SchemaError(f"expected an array of numbers, text or bytes, got dtype {array.dtype} (objects are never stored)")
    if array.dtype.kind == "V":
        return npy.encode(array)
    name = array.dtype.str.encode()
    head = struct.pack(f"<B{len(name)}sB{array.ndim}q", len(name), name, array.ndim, *array.shape)
    return head + array.tobytes()


def decode(data: Any) -> NDArray[Any]:
    """The array, a read-only view of the bytes.

    >>> decode(encode(np.array([[1, 2]], "<i2")))
    array([[1, 2]], dtype=int16)
    """
    view = memoryview(data).cast("B")
    if bytes(view[:6]) == npy.MAGIC:
        return npy.decode(view)
    if not view or len(view) < view[0] + 2 or len(view) < view[0] + 2 + 8 * view[view[0] + 1]:
        raise FormatError(f"expected a compact array, got {len(view)} bytes: {bytes(view[:16])!r}")
    start = view[0] + 2 + 8 * view[view[0] + 1]
    dtype, shape = _header(bytes(view[:start]))
    expected = dtype.itemsize * int(np.prod(shape, dtype=object))
    if min(shape, default=0) < 0 or len(view) - start != expected:
        raise FormatError(f"expected {expected} bytes for {dtype}{list(shape)}, got {len(view) - start} (is it cut off?)")
    return np.frombuffer(view, dtype, offset=start).reshape(shape) if expected else np.empty(shape, dtype)


@lru_cache(maxsize=4096)
def _header(raw: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    size = raw[0]
    try:
        dtype = np.dtype(raw[1 : 1 + size].decode("ascii"))
    except (TypeError, ValueError, SyntaxError) as error:
        raise FormatError(f"expected the name of a dtype, got {raw[1 : 1 + size]!r}: {error}") from None
    if dtype.kind in _REFUSED:
        raise UnsafeError(f"expected an array of numbers, text or bytes, got dtype {dtype}: loading it would run code")
    return dtype, struct.unpack_from(f"<{raw[1 + size]}q", raw, 2 + size)
