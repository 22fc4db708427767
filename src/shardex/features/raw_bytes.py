"""`Bytes`: raw bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from shardex.columns import (
    Blobs,
    BytesReader,
    Chunks,
    Collected,
    Encoder,
    FieldReader,
    ReadFile,
    bytes_to_arrow,
    has_offsets,
    is_binary,
    is_text,
    of_python_values,
    offset_sizes,
)
from shardex.features.codecs import RAW, Codec
from shardex.features.feature import ArrowParts, Feature, hf_value, unfit
from shardex.kernel import Column, Integers


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
        return cls() if is_binary(kind) else None

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
        return is_text(kind) or is_binary(kind)

    def encoder(self) -> Encoder:
        """Return an encoder of bytes."""
        return Blobs(RAW.encode, pa.large_binary())

    def collected(self) -> Collected | None:
        """Return how C code collects bytes."""
        return Collected("BYTES", RAW.encode)

    def sizes(self, array: pa.Array) -> Integers:
        """Return the sizes of bytes."""
        return offset_sizes(array)

    def to_arrow(self, column: Column) -> pa.Array | None:
        """Return lists of bytes."""
        return of_python_values(column, bytes, bytes_to_arrow) if isinstance(column, list) else None

    def from_arrow(self, array: pa.Array) -> Column:
        """Return a list of objects of `bytes`."""
        raw = None if is_binary(array.type) else array.to_pylist()
        return Feature.from_arrow(self, array) if raw is None else [text.encode() for text in raw]

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read offsets and bytes."""
        if has_offsets(kind):
            return BytesReader(name, self, chunks, kind)
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
