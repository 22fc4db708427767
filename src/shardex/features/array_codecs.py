"""Arrays as bytes: the `.npy` format, and a compact format with a shorter header.

Decoding returns read-only views of the bytes, without a copy. Object arrays are refused in both directions: loading
one would run code.

Compact format: u8 length of the dtype text, that text (``<f4``), u8 number of dimensions, each size as int64, then the
elements in C order; all little-endian. `decode_compact` reads `.npy` too, which older files of atdata contain.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from shardex.errors import FormatError, SchemaError, ShardexError, UnsafeError

NPY_MAGIC = b"\x93NUMPY"
_MOST_EMPTY = 1 << 20
_LONGEST_HEADER = 64 << 10
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
"""Date of all members of an archive, as `np.savez` writes it: equal arrays give equal bytes."""
_MOST_COMPRESSED = 1100
"""Deflate compresses to no less than a 1032nd."""
_READERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
_COMPACT_DTYPE = re.compile(rb"[<>|]([biufcSU][0-9]{1,9}|[mM]8(\[[0-9]{0,9}[A-Za-z]{1,2}\])?)")
_tobytes = np.ndarray.tobytes
"""Not the method of the array: that of a masked one returns other numbers where it is masked."""


def encode_npy(value: Any) -> bytes:
    """Return the bytes that `np.save` writes.

    >>> decode_npy(encode_npy([1.5, 2.5]))
    array([1.5, 2.5])
    """
    array = to_array(value)
    if array.flags.c_contiguous and array.dtype.kind in "biufcMmSU":
        return _make_npy_header(array.dtype.str, array.shape) + _tobytes(array)
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def decode_npy(data: Any) -> NDArray[Any]:
    """Return the array, a read-only view of the bytes.

    >>> decode_npy(encode_npy(np.array(3.5)))
    array(3.5)
    """
    view = memoryview(data).cast("B")
    start, dtype, shape, fortran = npy_header(view)
    return _array_over(view[start:], dtype, shape, "F" if fortran else "C")


def encode_npz(value: Any) -> bytes:
    """Return the bytes that `np.savez` writes for a dict of arrays.

    >>> decode_npz(encode_npz({"x": [1, 2], "y": 0.5}))
    {'x': array([1, 2]), 'y': array(0.5)}
    """
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise SchemaError(f"expected a dict of arrays, got {type(value).__name__}")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, one in value.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _ZIP_DATE), encode_npy(one))
    return out.getvalue()


def decode_npz(data: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of an `.npz` by name.

    >>> decode_npz(b"no archive")
    Traceback (most recent call last):
    shardex.errors.FormatError: expected the arrays of an .npz, got 10 bytes: File is not a zip file
    """
    raw = bytes(data)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            return {_npz_name(one): decode_npy(_unzipped(archive, one)) for one in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, zlib.error) as error:
        raise FormatError(f"expected the arrays of an .npz, got {len(raw)} bytes: {error}") from None


def _npz_name(member: zipfile.ZipInfo) -> str:
    if not member.filename.endswith(".npy"):
        raise FormatError(f"expected .npy members in an .npz, got {member.filename!r}")
    return member.filename.removesuffix(".npy")


def _unzipped(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the bytes of a member, at most as many as a compressed one of its size can have."""
    most = max(1, member.compress_size) * _MOST_COMPRESSED
    if member.file_size > most:
        raise FormatError(f"expected at most {most} bytes in {member.filename!r}, got {member.file_size}")
    return archive.read(member)


def encode_compact(value: Any) -> bytes:
    """Return the compact bytes of an array; dtypes that it cannot express (structured ones) are stored as `.npy`.

    >>> encode_compact(np.array([[1, 2]], "<i2")).hex(" ")
    '03 3c 69 32 02 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 01 00 02 00'
    """
    array = to_array(value)
    name = array.dtype.str.encode()
    if not _COMPACT_DTYPE.fullmatch(name):
        return encode_npy(array)
    return struct.pack(f"<B{len(name)}sB{array.ndim}q", len(name), name, array.ndim, *array.shape) + _tobytes(array)


def decode_compact(data: Any) -> NDArray[Any]:
    """Return the array, a read-only view of the bytes, which may also be `.npy`.

    >>> decode_compact(encode_compact(np.array([[1, 2]], "<i2")))
    array([[1, 2]], dtype=int16)
    """
    if type(data) is bytes and (array := _plain_compact(data)) is not None:
        return array
    view = memoryview(data).cast("B")
    if bytes(view[:6]) == NPY_MAGIC:
        return decode_npy(view)
    if not view or len(view) < view[0] + 2 or len(view) < view[0] + 2 + 8 * view[view[0] + 1]:
        raise FormatError(f"expected a compact array, got {len(view)} bytes: {bytes(view[:16])!r}")
    start = view[0] + 2 + 8 * view[view[0] + 1]
    return _array_over(view[start:], *_parse_compact_header(bytes(view[:start])))


def _plain_compact(data: bytes) -> NDArray[Any] | None:
    """Return an array in half the time if its bytes are as expected; otherwise None."""
    try:
        start = data[0] + 2 + 8 * data[data[0] + 1]
        dtype, shape, size = _sized_compact_header(data[:start])
        return np.ndarray(shape, dtype, data, start) if start + size == len(data) and size else None
    except (IndexError, ShardexError, struct.error, ValueError):
        return None


def to_array(value: Any) -> NDArray[Any]:
    """Return the value as an array; `SchemaError` if it is ragged or holds objects.

    >>> to_array([1.5, 2.5])
    array([1.5, 2.5])
    """
    try:
        array: NDArray[Any] = np.asanyarray(value)
    except ValueError as error:
        raise SchemaError(f"expected an array, got {type(value).__name__} that cannot become one: {error}") from None
    if array.dtype.hasobject:
        kind = f"dtype {array.dtype} (objects are never stored)"
        raise SchemaError(f"expected an array of numbers, text or bytes, got {kind}")
    return array


def npy_header(view: memoryview) -> tuple[int, np.dtype[Any], tuple[int, ...], bool]:
    """Return the offset of the elements, their dtype, the shape, and whether they are in Fortran order.

    >>> npy_header(memoryview(encode_npy(np.zeros((2, 3), "<f4"))))
    (128, dtype('float32'), (2, 3), False)
    """
    if bytes(view[:6]) != NPY_MAGIC or len(view) < 10:
        raise FormatError(f"expected the magic bytes of .npy, got {bytes(view[:6])!r}")
    wide = view[6] >= 2
    start = (12 if wide else 10) + int.from_bytes(view[8 : 12 if wide else 10], "little")
    if start > min(len(view), _LONGEST_HEADER):
        raise FormatError(f"expected an .npy header of at most {min(len(view), _LONGEST_HEADER)} bytes, got {start}")
    return start, *_parse_npy_header(bytes(view[:start]))


def _array_over(
    data: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"] = "C"
) -> NDArray[Any]:
    """Return a read-only array over exactly these bytes; `FormatError` if the shape needs more or fewer."""
    expected = dtype.itemsize * math.prod(shape)
    if len(data) != expected or min(shape, default=0) < 0:
        raise FormatError(f"expected {expected} bytes for {dtype}{list(shape)}, got {len(data)} (is it cut off?)")
    if not dtype.itemsize and math.prod(shape) > _MOST_EMPTY:
        raise FormatError(f"expected at most {_MOST_EMPTY} elements without bytes, got {dtype}{list(shape)}")
    try:
        return np.ndarray(shape, dtype, data.toreadonly(), order=order)
    except (ValueError, TypeError) as error:
        raise FormatError(f"expected a shape that an array can have, got {list(shape)}: {error}") from None


@lru_cache(maxsize=4096)  # making a header takes longer than copying a small array
def _make_npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    npy_format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue()


@lru_cache(maxsize=4096)
def _parse_npy_header(raw: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    version, rest = (raw[6], raw[7]), raw[8:]
    if version not in {*_READERS, (3, 0)}:
        raise FormatError(f"expected .npy of version 1, 2 or 3, got {raw[6]}.{raw[7]}")
    try:
        if version == (3, 0):  # like 2.0 but in UTF-8: escaped to ASCII, the 2.0 reader accepts it
            text = rest[4:].decode().encode("ascii", "backslashreplace")
            version, rest = (2, 0), struct.pack("<I", len(text)) + text
        shape, fortran, dtype = _READERS[version](io.BytesIO(rest), max_header_size=_LONGEST_HEADER)
    except Exception as error:  # numpy parses the header as Python source and may raise almost anything
        raise FormatError(f"expected an .npy header, got one that numpy refuses: {error}") from None
    if dtype.hasobject:
        raise UnsafeError(f"expected an array of numbers, text or bytes, got dtype {dtype}: loading it would run code")
    return dtype, shape, fortran


@lru_cache(maxsize=4096)
def _sized_compact_header(raw: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return dtype, shape and size in bytes; 0 for shapes that are not plain."""
    dtype, shape = _parse_compact_header(raw)
    return dtype, shape, dtype.itemsize * math.prod(shape) if min(shape, default=0) >= 0 else 0


@lru_cache(maxsize=4096)
def _parse_compact_header(raw: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    name, count = raw[1 : 1 + raw[0]], raw[1 + raw[0]]
    if name in (b"|O", b"O"):
        raise UnsafeError("expected an array of numbers, text or bytes, got dtype object: loading it would run code")
    try:
        if not _COMPACT_DTYPE.fullmatch(name):
            raise ValueError("not a dtype of numbers, text, bytes or times")
        dtype = np.dtype(name.decode())
    except (TypeError, ValueError) as error:
        raise FormatError(f"expected the name of a dtype, got {name!r}: {error}") from None
    return dtype, struct.unpack_from(f"<{count}q", raw, 2 + len(name))
