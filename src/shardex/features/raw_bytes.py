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
        """`bytes`, and the names of it."""
        return cls() if hint is bytes or hint in ("bytes", "binary") else None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Objects of bytes."""
        return cls() if isinstance(value, bytes | bytearray | memoryview) else None

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Bytes, also of one length."""
        return cls() if is_binary(kind) else None

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return a value as `bytes`."""
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise unfit(self, value)

    def fits_unchanged(self) -> Callable[[Any], bool]:
        """Objects of `bytes`."""
        return lambda value: type(value) is bytes

    def blank(self) -> Any:
        """Return no bytes."""
        return b""

    def arrow_type(self) -> pa.DataType:
        """The type large_binary."""
        return pa.large_binary()

    def reads(self, kind: pa.DataType) -> bool:
        """Bytes, and strings as UTF-8."""
        return is_text(kind) or is_binary(kind)

    def encoder(self) -> Encoder:
        """Return an encoder of bytes."""
        return Blobs(RAW.encode, pa.large_binary())

    def collected(self) -> Collected | None:
        """Bytes."""
        return Collected("BYTES", RAW.encode)

    def sizes(self, array: pa.Array) -> Integers:
        """The bytes."""
        return offset_sizes(array)

    def to_arrow(self, column: Column) -> pa.Array | None:
        """Return lists of bytes."""
        return of_python_values(column, bytes, bytes_to_arrow) if isinstance(column, list) else None

    def from_arrow(self, array: pa.Array) -> Column:
        """Return bytes."""
        raw = None if is_binary(array.type) else array.to_pylist()
        return Feature.from_arrow(self, array) if raw is None else [text.encode() for text in raw]

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read offsets and bytes."""
        if has_offsets(kind):
            return BytesReader(name, self, chunks, kind)
        return Feature.reader(self, name, kind, chunks, read_file)

    # -- plain files ------------------------------------------------------------------------------------------

    def file_extension(self, field: str) -> str:
        """The name of the field, which is assumed to match the encoding of the bytes."""
        return field

    def codec(self, extension: str) -> Codec:
        """The bytes themselves."""
        return RAW

    def of_file(self, extension: str) -> Callable[[memoryview], Any]:
        """Copy the bytes."""
        return RAW.decode

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """A single value."""
        return hf_value("binary")
