"""Arrays in a compact form: dtype, shape, bytes. Reads `.npy` too, which older files have in its place.

Layout: u8 length of the dtype text, that text (``<f4``), u8 number of dimensions, each size as int64, then the
elements in C order; all little-endian.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import FormatError, UnsafeError
from shardex.schema import npy_codec as npy

_DTYPE = re.compile(rb"[<>|]([biufcSU][0-9]{1,9}|[mM]8(\[[0-9]{0,9}[A-Za-z]{1,2}\])?)")


def encode(value: Any) -> bytes:
    """The compact bytes of an array; structured dtypes, which it cannot name, become `.npy`.

    >>> encode(np.array([[1, 2]], "<i2")).hex(" ")
    '03 3c 69 32 02 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 01 00 02 00'
    """
    array = npy.to_array(value)
    name = array.dtype.str.encode()
    if not _DTYPE.fullmatch(name):
        return npy.encode(array)
    return struct.pack(f"<B{len(name)}sB{array.ndim}q", len(name), name, array.ndim, *array.shape) + array.tobytes()


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
    return npy.from_elements(view[start:], *_header(bytes(view[:start])))


@lru_cache(maxsize=4096)
def _header(raw: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    name, count = raw[1 : 1 + raw[0]], raw[1 + raw[0]]
    if name in (b"|O", b"O"):
        raise UnsafeError("expected an array of numbers, text or bytes, got dtype object: loading it would run code")
    try:
        if not _DTYPE.fullmatch(name):
            raise ValueError("no name that a number, text, bytes or time has")
        dtype = np.dtype(name.decode())
    except (TypeError, ValueError) as error:
        raise FormatError(f"expected the name of a dtype, got {name!r}: {error}") from None
    return dtype, struct.unpack_from(f"<{count}q", raw, 2 + len(name))
