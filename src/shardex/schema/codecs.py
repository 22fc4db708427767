"""Bytes to one value and back: the contract `Codec`, and the table that finds one by name or file extension.

A codec is anything with `encode` and `decode`; each module in `codecs/` is one. Decoding never runs code: an
extension that would need it (pickles) is left as bytes.
"""

from __future__ import annotations

from typing import Any, Protocol

from shardex.errors import FormatError
from shardex.schema import compact_codec as compact
from shardex.schema import json_codec as json
from shardex.schema import msgpack_codec as msgpack
from shardex.schema import npy_codec as npy
from shardex.schema import number_codec as number
from shardex.schema import raw_codec as raw
from shardex.schema import text_codec as text

__all__ = ["CODECS", "Codec", "by_extension", "by_name"]


class Codec(Protocol):
    """Turns a value into bytes and back."""

    def encode(self, value: Any) -> bytes:
        """The bytes of a value; `SchemaError` if it has no such form."""

    def decode(self, data: Any) -> Any:
        """The value of some bytes; `FormatError` if they have no such meaning."""


CODECS: dict[str, Codec] = {
    "compact": compact,
    "json": json,
    "msgpack": msgpack,
    "npy": npy,
    "number": number,
    "raw": raw,
    "text": text,
}

_EXTENSIONS = {
    "npy": "npy",
    "json": "json",
    "jsn": "json",
    "msgpack": "msgpack",
    "mp": "msgpack",
    "msg": "msgpack",
    "txt": "text",
    "text": "text",
    "transcript": "text",
    "cls": "number",
    "cls2": "number",
    "count": "number",
    "index": "number",
    "inx": "number",
    "id": "number",
}


def by_extension(extension: str) -> Codec:
    """The codec for a file extension, by its last part; bytes stay bytes where none is known.

    >>> by_extension("seg.json") is CODECS["json"], by_extension("pkl") is CODECS["raw"]
    (True, True)
    """
    return CODECS[_EXTENSIONS.get(extension.rpartition(".")[2].lower(), "raw")]


def by_name(name: str) -> Codec:
    """The codec of this name.

    >>> by_name("npy") is CODECS["npy"]
    True
    """
    try:
        return CODECS[name]
    except KeyError:
        raise FormatError(f"expected a codec out of {', '.join(CODECS)}, got {name!r}") from None
