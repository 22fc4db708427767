"""Arrays of numbers in ``.npy`` files: rows of an array of two or more dimensions, or windows of one of one dimension.

Several files are shards of one dataset. Without ``window=`` an array of one dimension is one sample, of which
``ds.windows`` makes more. Arrays of Python objects are pickles: they are refused, and nothing is ever unpickled.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from shardex.errors import (
    ArgumentError,
    FormatError,
    SchemaError,
    ShardexError,
    TruncatedShardError,
)
from shardex.features import Array, Features, codecs
from shardex.files import Files
from shardex.formats.join_shards import JoinShards
from shardex.formats.number_rows import (
    NumberFile,
    NumberRows,
    PlacedRecords,
    data_files,
    field_and_window,
    first_bytes,
    number_dtype,
    same_dtype,
    stream_rows,
)
from shardex.formats.number_writer import HeadedShards, NumberWriter
from shardex.formats.registry import Format
from shardex.formats.sample_writer import ShardSeries
from shardex.sources import LocalSource, Source

__all__ = [
    "FORMAT",
]

_MAGIC = b"\x93NUMPY"
_OWNED = r"[^/]+\.npy"
_FIRST = 512
"""Bytes that are read first; a header is rarely longer."""
_LONGEST = 64 << 10
_HEAD_BYTES = 128
"""Bytes of the headers that are written: enough for any number of rows."""
_DTYPES = tuple(np.dtype(one).name for one in ("u2", "u4", "u1", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?"))


# -- reading --------------------------------------------------------------------------------------------------


def open(
    files: Files, *, schema: Features | None = None, window: int | None = None, field: str | None = None
) -> NumberRows:
    """Open the rows of arrays of two or more dimensions, or windows of arrays of one dimension."""
    data = data_files(files, ".npy")
    stats = data.stats()
    sizes = ((path, stat.size) for path, stat in zip(data.paths, stats, strict=True))
    heads = data.source.for_each(lambda pair: _read_head(data.source, *pair), sizes)
    dtype = same_dtype(data, [dtype for _, dtype, _ in heads])
    shape = heads[0][2]
    for number, (_, _, other) in enumerate(heads):
        if other[1:] != shape[1:]:
            expected = ", ".join(["rows", *map(str, shape[1:])])
            raise SchemaError(
                f"{data.name(number)}: expected an array of shape ({expected}), as in {data.name(0)}, got {other}"
            )
    inner = shape[1:] if len(shape) > 2 else None
    if inner is not None and schema is not None:
        schema = _flat(files, Features.of(schema), inner)
    name, size = field_and_window(files, schema, dtype, window)
    name = field or name or "tokens"
    if len(shape) == 1:
        numbers = [NumberFile(begin, count, dtype) for begin, dtype, (count,) in heads]
        return stream_rows(data, stats, numbers, size, name)
    width = math.prod(shape[1:])
    if size not in (None, width) or window is not None:
        raise ArgumentError(
            f"{files}: expected no window: each row, of {width} numbers, is a sample, got {size}; windows of rows are "
            f"sx.open(path).sliding({size})"
        )
    begins, counts = [begin for begin, _, _ in heads], [shape[0] for _, _, shape in heads]
    places = PlacedRecords(data, stats, begins, [width * dtype.itemsize] * len(heads), counts, dtype.name)
    return NumberRows(data, places, {name: dtype}, width, inner)


def _flat(files: Files, schema: Features, shape: tuple[int, ...]) -> Features:
    """Return a schema for the numbers of each row, given that of arrays of this shape."""
    for name, feature in schema.items():
        if not isinstance(feature, Array) or feature.shape not in (None, shape):
            raise SchemaError(f"{files}: expected one array of shape {shape}, got {feature} - at field {name}")
    return Features({n: Array(one.dtype, (math.prod(shape),)) for n, one in schema.items() if isinstance(one, Array)})


def _read_head(source: Source, path: str, size: int) -> tuple[int, np.dtype[Any], tuple[int, ...]]:
    """Return the first byte, the dtype and the shape of the array in a file."""
    name, first = source.full_name(path), first_bytes(source, path, _FIRST)
    wide = first[6:7] > b"\x01"  # from version 2 on, the length of the header has four bytes
    end = 12 + int.from_bytes(first[8 : 12 if wide else 10], "little")
    if first.startswith(_MAGIC) and _FIRST < end < _LONGEST:
        first = first_bytes(source, path, end)
    try:
        begin, dtype, shape, fortran = codecs.npy_header(memoryview(first))  # refuses Python objects
        dtype = number_dtype(dtype)
    except ShardexError as error:
        raise type(error)(f"{name}: {error}") from None
    if not shape or min(shape) < 0 or 0 in shape[1:]:
        raise FormatError(f"{name}: expected an array of rows, each of some numbers, got shape {shape}")
    if fortran and sum(size > 1 for size in shape) > 1:
        raise FormatError(f"{name}: expected rows one after another, got columns (Fortran order); save it in C order")
    expected = begin + math.prod(shape) * dtype.itemsize
    if size != expected:
        problem = TruncatedShardError if size < expected else FormatError
        raise problem(f"{name}: expected {expected} bytes for one array of {dtype} and shape {shape}, got {size}")
    return begin, dtype, shape


# -- writing --------------------------------------------------------------------------------------------------


class NpyWriter(NumberWriter):
    """Writes samples of one array of one length as rows of arrays of two dimensions; `dtype` converts integers."""

    def __init__(
        self,
        path: str,
        features: Features,
        *,
        mode: str = "create",
        dtype: str | None = None,
        prefix: str = "part",
        shard_size: int = 1 << 30,
    ) -> None:
        super().__init__(path, mode, features, _OWNED, dtype, _DTYPES, prefix=prefix, extension=".npy", size=shard_size)

    def _series(self, name: Callable[[int], str], first: int, rows: int, size: int) -> ShardSeries:
        return HeadedShards(self._stage, name, first, size, self._head, _HEAD_BYTES)

    def _head(self, rows: int, size: int) -> bytes:
        described = f"{{'descr': {self.dtype.str!r}, 'fortran_order': False, 'shape': ({rows}, {self.size}), }}"
        text = described.encode().ljust(_HEAD_BYTES - 11) + b"\n"
        return _MAGIC + struct.pack("<BBH", 1, 0, len(text)) + text

    def _check_existing(self) -> None:
        if not self.size:
            raise SchemaError(
                f"expected arrays of one length above 0, the rows of an array, got {self._features}; make some with "
                'windows() or pack(), or write them with format="tokens"'
            )
        place = LocalSource(self.path)
        for path in self._stage.existing:
            if path.endswith(".npy"):
                _, dtype, shape = _read_head(place, path, place.stat(path).size)
                if (dtype, shape[1:]) != (self.dtype, (self.size,)):
                    raise SchemaError(
                        f"{os.path.join(self.path, path)}: expected rows as in this array of {dtype} and shape {shape} "
                        f"to append, got {self.dtype}[{self.size}]"
                    )


FORMAT = Format(open, NpyWriter, JoinShards(_OWNED, ".npy"), only_arrays=True, only_field="tokens")
