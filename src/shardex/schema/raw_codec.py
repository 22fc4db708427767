"""Bytes as they are."""

from __future__ import annotations

from typing import Any

from shardex.errors import SchemaError


def encode(value: Any) -> bytes:
    """The bytes themselves.

    >>> encode(bytearray(b"ab"))
    b'ab'
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        raise SchemaError(f"expected bytes, got {type(value).__name__}")
    return bytes(value)


def decode(data: Any) -> bytes:
    """The bytes themselves."""
    return bytes(data)
