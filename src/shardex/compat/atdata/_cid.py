"""Content identifiers: a version 1 CID of the SHA-256 hash of data in DAG-CBOR, as ATProto has them."""

import base64
import hashlib
import math
import struct
from typing import Any

from shardex.errors import ArgumentError, SchemaError
from shardex.features import describe

__all__ = ["generate_cid", "generate_cid_from_bytes", "parse_cid", "verify_cid"]

_HEAD = bytes([1, 0x71, 0x12, 32])
"""Version 1, content in DAG-CBOR, hash by SHA-256 of 32 bytes."""
_DEEPEST = 200


def generate_cid(data: Any) -> str:
    """Return the identifier of data: None, booleans, numbers, text, bytes, lists, and dicts with text as keys.

    >>> generate_cid({"hello": "world"})
    'bafyreidykglsfhoixmivffc5uwhcgshx4j465xwqntbmu43nb2dzqwfvae'
    """
    return generate_cid_from_bytes(_cbor(data))


def generate_cid_from_bytes(data_bytes: bytes) -> str:
    """Return the identifier of data that is DAG-CBOR already."""
    digest = hashlib.sha256(data_bytes).digest()
    return "b" + base64.b32encode(_HEAD + digest).decode().lower().rstrip("=")


def verify_cid(cid: str, data: Any) -> bool:
    """Return True if this is the identifier of the data.

    >>> verify_cid(generate_cid([1, 2]), [1, 2]), verify_cid(generate_cid([1, 2]), [2, 1])
    (True, False)
    """
    return cid == generate_cid(data)


def parse_cid(cid: str) -> dict[str, Any]:
    """Return the parts of an identifier in base 32: version, codec, and hash with code, size and digest.

    >>> parts = parse_cid(generate_cid([1])); parts["version"], hex(parts["codec"]), hex(parts["hash"]["code"])
    (1, '0x71', '0x12')
    """
    try:
        data = base64.b32decode(cid[1:].upper() + "=" * (-len(cid[1:]) % 8)) if cid[:1] == "b" else b""
    except ValueError:
        data = b""
    if len(data) < 4 or data[0] != 1 or max(data[:4]) > 127 or len(data) != 4 + data[3]:
        raise ArgumentError(f"expected a content identifier of version 1 in base 32, got {cid!r:.100}")
    return {"version": 1, "codec": data[1], "hash": {"code": data[2], "size": data[3], "digest": data[4:]}}


def _cbor(value: Any, depth: int = 0) -> bytes:
    """Encode a value as DAG-CBOR: lengths in as few bytes as possible, floats in eight, keys by length and bytes."""
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
    if isinstance(value, list | tuple):
        return _head(4, len(value)) + b"".join(_cbor(one, depth + 1) for one in value)
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise SchemaError(f"expected text as keys, got {describe(wrong[0])}")
        items = sorted(((_utf8(key), one) for key, one in value.items()), key=lambda item: (len(item[0]), item[0]))
        return _head(5, len(items)) + b"".join(_with_length(3, key) + _cbor(one, depth + 1) for key, one in items)
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
