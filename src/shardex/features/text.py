"""`Text` and `Bytes`: a string, and raw bytes."""

from __future__ import annotations

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
from shardex.features.codecs import RAW, TEXT, Codec
from shardex.features.feature import ArrowParts, Feature, hf_value, named, unfit
from shardex.kernel import Column, Integers


@dataclass(frozen=True, slots=True)
class Text(Feature):
    """A string."""

    kind: ClassVar[str] = "text"

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of `str`, and of its names."""
        return cls() if hint is str or hint in ("str", "text", "string") else None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of a string."""
        return cls() if isinstance(value, str) else None

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of strings."""
        return cls() if arrow_types.is_text(kind) else None

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return the string."""
        if isinstance(value, str):
            return value
        raise unfit(self, value)

    def fits_unchanged(self) -> Callable[[Any], bool]:
        """Return a function that is True for strings."""
        return lambda value: type(value) is str

    def blank(self) -> Any:
        """Return an empty string."""
        return ""

    def arrow_type(self) -> pa.DataType:
        """Return the type large_string."""
        return pa.large_string()

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for strings, and for bytes, which are read as UTF-8."""
        return arrow_types.is_text(kind) or arrow_types.is_binary(kind)

    def encoder(self) -> Encoder:
        """Return an encoder of UTF-8."""
        return encoders.Texts(TEXT.encode, pa.large_string())

    def collected(self) -> Collected | None:
        """Return how C code collects strings."""
        return Collected("TEXT", lambda value: TEXT.encode(value).decode())

    def sizes(self, array: pa.Array) -> Integers:
        """Return the sizes of the text in UTF-8."""
        return encoders.offset_sizes(array)

    def to_arrow(self, column: Column) -> pa.Array | None:
        """Return lists of strings."""
        return tables.of_python_values(column, str, tables.texts_to_arrow) if isinstance(column, list) else None

    def from_arrow(self, array: pa.Array) -> Column:
        """Return a list of strings."""
        raw = array.to_pylist() if arrow_types.is_binary(array.type) else None
        return Feature.from_arrow(self, array) if raw is None else [TEXT.decode(one) for one in raw]

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read offsets and bytes."""
        if not arrow_types.has_offsets(kind):
            return Feature.reader(self, name, kind, chunks, read_file)
        return list_readers.BytesReader(name, self, chunks, kind, text=arrow_types.is_text(kind), decode=TEXT.decode)

    def sql_column(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return strings, also of bytes."""
        return tables.cast_for_sql(
            column, self, name, pa.large_string() if arrow_types.is_binary(column.type) else None
        )

    # -- plain files ------------------------------------------------------------------------------------------

    def file_extension(self, field: str) -> str:
        """Return the extension txt."""
        return named(field, "txt", TEXT)

    def codec(self, extension: str) -> Codec:
        """Return the codec of UTF-8."""
        return TEXT

    def of_file(self, extension: str) -> Callable[[memoryview], Any]:
        """Return the decoder of UTF-8."""
        return TEXT.decode

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for strings."""
        return hf_value("string")


@dataclass(frozen=True, slots=True)
class Bytes(Feature):
    """Raw bytes."""

    kind: ClassVar[str] = "bytes"

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of `bytes`, and of its names."""
        return cls() if hint is bytes or hint in ("bytes", "binary") else None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of an object of bytes."""
        return cls() if isinstance(value, bytes | bytearray | memoryview) else None

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of bytes, also of one length."""
        return cls() if arrow_types.is_binary(kind) else None

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return a value as `bytes`."""
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise unfit(self, value)

    def fits_unchanged(self) -> Callable[[Any], bool]:
        """Return a function that is True for objects of `bytes`."""
        return lambda value: type(value) is bytes

    def blank(self) -> Any:
        """Return no bytes."""
        return b""

    def arrow_type(self) -> pa.DataType:
        """Return the type large_binary."""
        return pa.large_binary()

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for bytes, and for strings, which are read as UTF-8."""
        return arrow_types.is_text(kind) or arrow_types.is_binary(kind)

    def encoder(self) -> Encoder:
        """Return an encoder of bytes."""
        return encoders.Blobs(RAW.encode, pa.large_binary())

    def collected(self) -> Collected | None:
        """Return how C code collects bytes."""
        return Collected("BYTES", RAW.encode)

    def sizes(self, array: pa.Array) -> Integers:
        """Return the sizes of bytes."""
        return encoders.offset_sizes(array)

    def to_arrow(self, column: Column) -> pa.Array | None:
        """Return lists of bytes."""
        return tables.of_python_values(column, bytes, tables.bytes_to_arrow) if isinstance(column, list) else None

    def from_arrow(self, array: pa.Array) -> Column:
        """Return a list of objects of `bytes`."""
        raw = None if arrow_types.is_binary(array.type) else array.to_pylist()
        return Feature.from_arrow(self, array) if raw is None else [text.encode() for text in raw]

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read offsets and bytes."""
        if arrow_types.has_offsets(kind):
            return list_readers.BytesReader(name, self, chunks, kind)
        return Feature.reader(self, name, kind, chunks, read_file)

    # -- plain files ------------------------------------------------------------------------------------------

    def file_extension(self, field: str) -> str:
        """Return the name of the field, which is assumed to match the encoding of the bytes."""
        return field

    def codec(self, extension: str) -> Codec:
        """Return the codec of bytes as they are."""
        return RAW

    def of_file(self, extension: str) -> Callable[[memoryview], Any]:
        """Return the function that copies the bytes."""
        return RAW.decode

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for bytes."""
        return hf_value("binary")
