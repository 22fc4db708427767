"""Any plain value as MessagePack; arrays inside it in the compact form, as bytes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from shardex.errors import FormatError, SchemaError
from shardex.schema import compact_codec as compact


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return compact.encode(value)
    raise TypeError(f"MessagePack has no {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder = msgspec.msgpack.Decoder()


def encode(value: Any) -> bytes:
    """MessagePack bytes.

    >>> encode({"a": 1})
    b'\\x81\\xa1a\\x01'
    """
    try:
        return _encoder.encode(value)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SchemaError(f"expected a value that MessagePack can hold, got {type(value).__name__}: {error}") from None


def decode(data: Any) -> Any:
    """The value; arrays stay bytes, because nothing in the data tells them apart (`compact.decode` reads them)."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"expected MessagePack, got {bytes(data)[:40]!r}: {error}") from None
