"""`Json`: any value that JSON can hold."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from shardex.columns import (
    Chunks,
    Collected,
    Encoder,
    FieldReader,
    ReadFile,
    arrow_types,
    encoders,
    list_readers,
    tables,
)
from shardex.features.codecs import JSON, encode_plain_json, plain_json
from shardex.features.feature import ArrowParts, Convert, Feature, narrow, unfit
from shardex.kernel import MISSING, Column, Integers


@dataclass(frozen=True, slots=True)
class Json(Feature):
    """Any value that JSON can hold."""

    kind: ClassVar[str] = "json"
    takes_none: ClassVar[bool] = True
    is_json: ClassVar[bool] = True

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of any value, and of dicts, lists and tuples whose types are not given or differ."""
        plain = hint in (dict, list, tuple, Any, "json")
        return cls() if plain or typing.get_origin(hint) in (dict, tuple) else None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of a dict, list or tuple."""
        return cls() if isinstance(value, dict | list | tuple) else None

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of the extension type of JSON."""
        return cls() if isinstance(kind, getattr(pa, "JsonType", ())) else None  # not in pyarrow 18

    def join(self, other: Feature) -> Feature | None:
        """Return this feature for dicts of the same keys, too."""
        return self if other.kind in ("json", "struct") else None

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return the value; what JSON cannot hold is refused when it is encoded."""
        if value is MISSING:
            raise unfit(self, value)
        return value

    def fits_unchanged(self) -> Callable[[Any], bool]:
        """Return a function that is True for all values."""
        return lambda value: value is not MISSING

    def blank(self) -> Any:
        """Return None."""
        return None

    def plain(self) -> Convert | None:
        """Return the function that replaces numpy objects, and names the inner key of what JSON cannot hold."""
        return plain_json

    def arrow_type(self) -> pa.DataType:
        """Return the type large_string."""
        return pa.large_string()

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for strings and bytes."""
        return arrow_types.is_text(kind) or arrow_types.is_binary(kind)

    def encoder(self) -> Encoder:
        """Return an encoder of JSON text."""
        return encoders.Blobs(_encoded, pa.large_string())

    def collected(self) -> Collected | None:
        """Return how C code collects encoded values."""
        return Collected("ENCODED", encode=_encoded)

    def sizes(self, array: pa.Array) -> Integers:
        """Return the sizes of the text."""
        return encoders.offset_sizes(array)

    def from_arrow(self, array: pa.Array) -> Column:
        """Return decoded values."""
        raw = array if arrow_types.is_binary(array.type) else array.cast(pa.large_binary())
        return [JSON.decode(one) for one in raw.to_pylist()]

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read offsets and bytes."""
        if arrow_types.has_offsets(kind):
            return list_readers.BytesReader(name, self, chunks, kind, decode=JSON.decode)
        return Feature.reader(self, name, kind, chunks, read_file)

    def sql_column(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return text in which the value null is NULL."""
        text = tables.cast_for_sql(
            column, self, name, pa.large_string() if arrow_types.is_binary(column.type) else None
        )
        return pa.chunked_array([tables.without_json_null(chunk) for chunk in text.chunks], text.type)

    # -- plain files ------------------------------------------------------------------------------------------

    def refuse_lost_shape(self, value: Any, name: str) -> None:
        """Raise an error for arrays."""
        plain_json(value, arrays=False)

    def of_file(self, extension: str) -> Callable[[memoryview], Any]:
        """Return the decoder of JSON or MessagePack."""
        return self.codec(extension).decode

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for JSON."""
        return {"_type": "Json"}

    def array_to_hf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return text in their extension type."""
        return pa.ExtensionArray.from_storage(kind, narrow(array, pa.string()))


def _encoded(value: Any) -> bytes:
    """Return the text of a value; arrays, whose dtypes JSON does not have, are refused."""
    return encode_plain_json(plain_json(value, arrays=False))
