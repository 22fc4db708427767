"""Converts one value to bytes and back: one `Codec` per encoding, chosen by name or by file extension.

Decoding never runs code: files with an extension that would need it (pickles) are left as bytes, and arrays of objects
are refused in both directions. msgspec encodes and decodes JSON and MessagePack: 6x as fast as the standard library on
untyped lines, 1.2x as fast as orjson.

Arrays are encoded as `.npy`, or with a shorter header: u8 length of the dtype text, that text (``<f4``), u8 number of
dimensions, each size as int64, then the elements in C order; all little-endian. Decoding returns read-only views of the
bytes, without a copy. `decode_compact` reads `.npy` too, which older files of atdata contain.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from shardex.errors import FormatError, SchemaError, ShardexError, UnsafeError


@dataclass(frozen=True, slots=True, eq=False)
class Codec:
    """A pair of functions that turn a value into bytes and back."""

    encode: Callable[[Any], bytes]
    """Returns a value as bytes; `SchemaError` if the encoding cannot represent it."""
    decode: Callable[[Any], Any]
    """Returns the value that bytes encode; `FormatError` if they are damaged."""


# -- JSON and MessagePack -------------------------------------------------------------------------------------

_SIMPLE = (str, int, bool, type(None))


def _msgspec_codec(name: str, encoder: Any, decoder: Any) -> Codec:
    def encode(value: Any) -> bytes:
        try:
            return encoder.encode(value)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            found = type(value).__name__
            raise SchemaError(f"expected a value that {name} can hold, got {found}: {error}") from None

    def decode(data: Any) -> Any:
        try:
            return decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:  # a dict as a key
            raise FormatError(f"expected {name}, got {bytes(data)[:40]!r}: {error}") from None

    return Codec(encode, decode)


def _encode_json(value: Any) -> bytes:
    """Return compact JSON; numpy numbers and arrays become numbers and lists.

    >>> JSON.encode({"a": [1, None, np.arange(2)]})
    b'{"a":[1,null,[0,1]]}'
    >>> JSON.encode({"a": [b"bytes"]})
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected a value that JSON can hold, got bytes b'bytes' (in a[0])
    """
    return encode_plain_json(plain_json(value))


def plain_json(value: Any, *, arrays: bool = True) -> Any:
    """Return the value with numpy objects replaced by Python ones; an error names the key of what JSON cannot hold.

    NaN, infinity, dates and bytes are refused: JSON would change them. Without `arrays` these are refused, too.

    >>> plain_json({"a": {"b": [1, np.nan]}})
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected a value that JSON can hold, got float nan (in a.b[1])
    """
    try:
        return _without_numpy(value, arrays)
    except SchemaError as error:
        place = _place_of_unfit(value, arrays)
        raise SchemaError(f"{error} (in {place})" if place else str(error)) from None
    except RecursionError:
        raise SchemaError(
            f"expected a value that JSON can hold, got {type(value).__name__} nested too deeply"
        ) from None


def _without_numpy(value: Any, arrays: bool = True) -> Any:
    """Return the value with numpy objects replaced; raise for values that JSON would change (NaN, keys)."""
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind not in "mM":  # as lists, times are numbers
        if not arrays and value.ndim:
            raise SchemaError(
                f"expected a value that JSON can hold, got an array of {value.dtype}, which would become a list of "
                "another dtype: declare a schema with a dict or sx.Struct in the place of JSON, or pass array.tolist()"
            )
        return _without_numpy(value.tolist())
    if isinstance(value, dict):
        return {_checked_key(name): _without_numpy(one, arrays) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_numpy(one, arrays) for one in value]
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, _SIMPLE):
        return value
    raise SchemaError(f"expected a value that JSON can hold, got {type(value).__name__} {value!r}"[:200])


def _place_of_unfit(value: Any, arrays: bool = True) -> str:
    """Return the keys that lead to the first value that JSON cannot hold, such as ``a.b[2]``; empty for the value."""
    if isinstance(value, np.ndarray) and value.dtype.kind not in "mM":
        value = value.tolist()
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else []
    for key, one in items:
        try:
            _without_numpy({key: one} if isinstance(value, dict) else one, arrays)
        except SchemaError:
            inner = _place_of_unfit(one, arrays)
            step = f"[{key}]" if isinstance(value, list | tuple) else str(key)
            return f"{step}{'' if not inner or inner.startswith('[') else '.'}{inner}"
    return ""


def _checked_key(name: Any) -> str:
    if not isinstance(name, str):
        raise SchemaError(f"expected text as a key of a JSON object, got {type(name).__name__} {name!r}")
    return name


def _numpy_to_msgpack(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return encode_compact(value)
    raise TypeError(f"MessagePack has no {type(value).__name__}")


_PLAIN_JSON = _msgspec_codec("JSON", msgspec.json.Encoder(), msgspec.json.Decoder())
encode_plain_json = _PLAIN_JSON.encode
"""Returns compact JSON of a value that holds no numpy objects, without checking it; NaN becomes null."""
JSON = Codec(_encode_json, _PLAIN_JSON.decode)
MSGPACK = _msgspec_codec("MessagePack", msgspec.msgpack.Encoder(enc_hook=_numpy_to_msgpack), msgspec.msgpack.Decoder())
"""Arrays become bytes in the compact format; decoded they stay bytes, which the data does not mark as arrays."""


# -- text, numbers, bytes -------------------------------------------------------------------------------------


def _encode_text(value: Any) -> bytes:
    """Return UTF-8 bytes.

    >>> TEXT.encode("é")
    b'\\xc3\\xa9'
    """
    if not isinstance(value, str):
        raise SchemaError(f"expected text, got {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(f"expected text that UTF-8 can hold, got {value[:60]!r}: {error.reason}") from None


def _decode_text(data: Any) -> str:
    """Return the text of UTF-8 bytes."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"expected UTF-8 text, got byte {error.start} that is not: {error.reason}") from None


def _encode_number(value: Any) -> bytes:
    """Return the decimal digits of a number, as WebDataset stores class numbers.

    >>> NUMBER.encode(7), NUMBER.encode(0.5)
    (b'7', b'0.5')
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SchemaError(f"expected a number, got {type(value).__name__}")
    return repr(value).encode()


def _decode_number(data: Any) -> int | float:
    """Return an int if the digits are an integer, else a float."""
    raw = bytes(data)
    for kind in (int, float):
        try:
            return kind(raw)
        except ValueError:
            continue
    raise FormatError(f"expected a number in decimal digits, got {raw[:40]!r}")


def _encode_raw(value: Any) -> bytes:
    """Return the bytes unchanged.

    >>> RAW.encode(bytearray(b"ab"))
    b'ab'
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        raise SchemaError(f"expected bytes, got {type(value).__name__}")
    return bytes(value)


# -- arrays ---------------------------------------------------------------------------------------------------

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
    try:
        with zipfile.ZipFile(ReadableView(data)) as archive:
            return {npz_name(one): decode_npy(unzipped(archive, one)) for one in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, zlib.error) as error:
        raise FormatError(f"expected the arrays of an .npz, got {len(data)} bytes: {error}") from None


class ReadableView(io.RawIOBase):
    """Bytes as a file, of which nothing is copied.

    >>> ReadableView(memoryview(b"hello")).read(4)
    b'hell'
    """

    def __init__(self, data: Any) -> None:
        self._data, self._at = memoryview(data).cast("B"), 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next read, and return it."""
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if at < 0:
            raise OSError(f"expected a position of at least 0, got {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        """Copy the next bytes into a buffer."""
        some = self._data[self._at : self._at + len(buffer)]
        buffer[: len(some)] = some
        self._at += len(some)
        return len(some)


def npz_name(member: zipfile.ZipInfo) -> str:
    """Return the name of an array in an `.npz`."""
    if not member.filename.endswith(".npy"):
        raise FormatError(f"expected .npy members in an .npz, got {member.filename!r}")
    return member.filename.removesuffix(".npy")


def unzipped(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
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


# -- the table ------------------------------------------------------------------------------------------------

COMPACT = Codec(encode_compact, decode_compact)
NPY = Codec(encode_npy, decode_npy)
NPZ = Codec(encode_npz, decode_npz)
NUMBER = Codec(_encode_number, _decode_number)
RAW = Codec(_encode_raw, bytes)
TEXT = Codec(_encode_text, _decode_text)

CODECS = {
    "compact": COMPACT,
    "json": JSON,
    "msgpack": MSGPACK,
    "npy": NPY,
    "npz": NPZ,
    "number": NUMBER,
    "raw": RAW,
    "text": TEXT,
}

_EXTENSIONS = {
    "npy": NPY,
    "npz": NPZ,
    **dict.fromkeys(("json", "jsn"), JSON),
    **dict.fromkeys(("msgpack", "mp", "msg"), MSGPACK),
    **dict.fromkeys(("txt", "text", "transcript"), TEXT),
    **dict.fromkeys(("cls", "cls2", "count", "index", "inx", "id"), NUMBER),
}


def codec_for_extension(extension: str) -> Codec:
    """Return the codec for a file extension, by its last part; `RAW` for an unknown one.

    >>> codec_for_extension("seg.json") is JSON, codec_for_extension("pkl") is RAW
    (True, True)
    """
    return _EXTENSIONS.get(extension.rpartition(".")[2].lower(), RAW)


def codec_by_name(name: str) -> Codec:
    """Return the codec of this name; `FormatError` for an unknown one.

    >>> codec_by_name("npy") is NPY
    True
    """
    try:
        return CODECS[name]
    except KeyError:
        raise FormatError(f"expected one of the codecs {', '.join(CODECS)}, got {name!r}") from None
