"""Content identifiers under the names of atdata: a version 1 CID of the SHA-256 hash of data in DAG-CBOR."""

from typing import Any

from shardex.catalog import cid_of, encode_dag_cbor

__all__ = ["generate_cid", "generate_cid_from_bytes", "verify_cid"]


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
