"""Content identifiers (CID, version 1) of DAG-CBOR and of raw bytes by SHA-256: the identifiers of ATProto.

`encode_dag_cbor` encodes data in the only form that DAG-CBOR allows, so equal data has one identifier. In the JSON of
ATProto ``{"$link": cid}`` stands for a link and ``{"$bytes": base64}`` for bytes; `from_lexicon_json` returns what they
stand for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardex.errors import ChecksumError, FormatError, SchemaError
from shardex.features import describe

__all__ = ["DAG_CBOR", "RAW", "Link", "check_cid", "cid_of", "encode_dag_cbor", "from_lexicon_json"]

DAG_CBOR, RAW = 0x71, 0x55
_DEEPEST = 200
_LINK = b"\xd8\x2a"
"""Tag 42: the bytes that follow are a zero and a CID."""


@dataclass(frozen=True)
class Link:
    """A reference to other content, by its CID."""

    cid: str


def cid_of(content: bytes | memoryview, codec: int = DAG_CBOR) -> str:
    """Return the identifier of bytes: of encoded data, or of a file with the codec `RAW`.

    >>> cid_of(encode_dag_cbor({"hello": "world"}))
    'bafyreidykglsfhoixmivffc5uwhcgshx4j465xwqntbmu43nb2dzqwfvae'
    """
    return _text_of(bytes([1, codec, 0x12, 32]) + hashlib.sha256(content).digest())


def check_cid(cid: str, content: bytes | memoryview, where: str) -> None:
    """Raise an error if this is not the identifier of these bytes.

    >>> check_cid(cid_of(b"abc", RAW), b"abd", "blob")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    shardex.errors.ChecksumError: blob: expected content with CID bafkrei..., got bafkrei...; the server changed it
    """
    codec = _bytes_of(cid)[1]
    if (found := cid_of(content, codec)) != cid:
        raise ChecksumError(f"{where}: expected content with CID {cid}, got {found}; the server changed it")


def _text_of(cid: bytes) -> str:
    return "b" + base64.b32encode(cid).decode().lower().rstrip("=")


def _bytes_of(cid: str) -> bytes:
    """Return the bytes of an identifier; raise an error if it is none, or of another kind than `cid_of` returns."""
    try:
        found = base64.b32decode(cid[1:].upper() + "=" * (-len(cid[1:]) % 8))
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != 36 or found[0] != 1 or found[1] not in (DAG_CBOR, RAW) or found[2:4] != b"\x12\x20":
        raise FormatError(f"expected a CID of version 1 with SHA-256, of DAG-CBOR or raw bytes, got {cid!r:.100}")
    if _text_of(found) != cid:
        raise FormatError(f"expected the CID {_text_of(found)}, got another spelling of it: {cid!r:.100}")
    return found


def from_lexicon_json(value: Any, depth: int = 0) -> Any:
    """Return the data that JSON of ATProto stands for.

    >>> from_lexicon_json({"metadata": {"$bytes": "gaFh"}, "n": [1]})
    {'metadata': b'\\x81\\xa1a', 'n': [1]}
    """
    if depth > _DEEPEST:
        raise FormatError(f"expected JSON nested at most {_DEEPEST} levels deep, got more")
    if isinstance(value, list):
        return [from_lexicon_json(one, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"$link"} and isinstance(value["$link"], str):
        return Link(value["$link"])
    if value.keys() == {"$bytes"} and isinstance(value["$bytes"], str):
        text = value["$bytes"].rstrip("=")
        try:
            return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except ValueError:
            raise FormatError(f"expected bytes in base64 in $bytes, got {value['$bytes']!r:.100}") from None
    return {key: from_lexicon_json(one, depth + 1) for key, one in value.items()}


def encode_dag_cbor(value: Any) -> bytes:
    """Encode None, booleans, numbers, text, bytes, links, lists, and dicts with text as keys.

    Lengths are in as few bytes as possible, floats in eight, keys sorted by length and bytes.
    """
    return _encode(value, 0)


def _encode(value: Any, depth: int) -> bytes:
    if depth > _DEEPEST:
        raise SchemaError(f"expected data nested at most {_DEEPEST} levels deep, got more, or data inside itself")
    if value is None or isinstance(value, bool):
        return b"\xf6" if value is None else b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise SchemaError(f"expected a finite number, got {value}")
        return struct.pack(">Bd", 0xFB, value)
    if isinstance(value, str):
        return _with_length(3, _utf8(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _with_length(2, bytes(value))
    if isinstance(value, Link):
        return _LINK + _with_length(2, b"\0" + _bytes_of(value.cid))
    if isinstance(value, list | tuple):
        return _head(4, len(value)) + b"".join(_encode(one, depth + 1) for one in value)
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise SchemaError(f"expected text as keys, got {describe(wrong[0])}")
        items = sorted(((_utf8(key), one) for key, one in value.items()), key=lambda item: (len(item[0]), item[0]))
        return _head(5, len(items)) + b"".join(_with_length(3, key) + _encode(one, depth + 1) for key, one in items)
    raise SchemaError(f"expected data that DAG-CBOR has, got {describe(value)}")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise SchemaError(f"expected text that UTF-8 can hold, got {text!r}") from None


def _with_length(kind: int, content: bytes) -> bytes:
    return _head(kind, len(content)) + content


def _head(kind: int, number: int) -> bytes:
    """Return the first bytes of an item: its kind and a number, in as few bytes as possible."""
    if number < 24:
        return bytes([kind << 5 | number])
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes([kind << 5 | code]) + number.to_bytes(size, "big")
    raise SchemaError(f"expected a whole number of at most 64 bits, got one of {number.bit_length()}")
