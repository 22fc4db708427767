"""Converts one value to bytes and back: one `Codec` per encoding, chosen by name or by file extension.

Decoding never runs code: files with an extension that would need it (pickles) are left as bytes. The codecs of arrays
are in `array_codecs`. msgspec encodes and decodes JSON and MessagePack: 6x as fast as the standard library on untyped
lines, 1.2x as fast as orjson.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from shardex.errors import FormatError, SchemaError
from shardex.features.array_codecs import decode_compact, decode_npy, decode_npz, encode_compact, encode_npy, encode_npz


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
        raise SchemaError(f"expected text that UTF-8 can hold, got {value!r}: {error.reason}") from None


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
