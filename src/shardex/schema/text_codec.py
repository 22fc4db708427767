"""Text as UTF-8."""

from __future__ import annotations

from typing import Any

from shardex.errors import FormatError, SchemaError


def encode(value: Any) -> bytes:
    """UTF-8 bytes.

    >>> encode("é")
    b'\\xc3\\xa9'
    """
    if not isinstance(value, str):
        raise SchemaError(f"expected text, got {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(f"expected text that UTF-8 can hold, got {value!r}: {error.reason}") from None


def decode(data: Any) -> str:
    """Text of UTF-8 bytes."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"expected UTF-8 text, got byte {error.start} that is not: {error.reason}") from None
