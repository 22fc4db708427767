"""Content identifiers under the names of atdata: a version 1 CID of the SHA-256 hash of data in DAG-CBOR."""

import base64
from typing import Any

from shardex.catalog import cid_of, encode_dag_cbor
from shardex.errors import ArgumentError

__all__ = ["generate_cid", "generate_cid_from_bytes", "parse_cid", "verify_cid"]


def generate_cid(data: Any) -> str:
    """Return the identifier of data: None, booleans, numbers, text, bytes, lists, and dicts with text as keys.

    >>> generate_cid({"hello": "world"})
    'bafyreidykglsfhoixmivffc5uwhcgshx4j465xwqntbmu43nb2dzqwfvae'
    """
    return cid_of(encode_dag_cbor(data))


def generate_cid_from_bytes(data_bytes: bytes) -> str:
    """Return the identifier of data that is DAG-CBOR already."""
    return cid_of(data_bytes)


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
