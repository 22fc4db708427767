"""Streams of tokens in ``.bin`` files: the plain ones of nanoGPT, and those with a header of llm.c and modded-nanogpt.

A plain file holds uint16 numbers and nothing else. A header is 256 int32: a magic number, a version and the number of
tokens that follow; the magic number gives the dtype. Documents are not stored: a sample is a window of ``window=``
numbers, or without it a whole file, of which ``ds.windows`` makes samples.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from shardex.errors import FormatError, SchemaError, TruncatedShardError
from shardex.features import Features
from shardex.files import Files
from shardex.formats.join_shards import JoinShards
from shardex.formats.number_rows import NumberFile, NumberRows, data_files, field_and_window, number_dtype, stream_rows
from shardex.formats.number_writer import HeadedShards, NumberWriter, shard_limit
from shardex.formats.registry import Format
from shardex.formats.sample_writer import ShardSeries
from shardex.formats.tokens import STREAMS
from shardex.sources import ByteRange, LocalSource, Source, Stat

__all__ = [
    "FORMAT",
]

_HEAD = struct.Struct("<iii")
_HEAD_BYTES = 256 * 4
_EXAMPLES = 20240522
"""Magic number of files of multiple-choice examples."""
_DTYPES = ("uint16", "uint32")
_OWNED = r"[^/]+\.bin"
_MOST = (1 << 31) - 1
"""Tokens of a file with a header, which counts them as int32."""


# -- reading --------------------------------------------------------------------------------------------------


def open(
    files: Files,
    *,
    schema: Features | None = None,
    dtype: str | None = None,
    window: int | None = None,
    field: str | None = None,
) -> NumberRows:
    """Open streams of tokens as windows, or each file as one sample; `dtype` is that of plain files (uint16)."""
    data = data_files(files, ".bin")
    stats = data.stats()
    heads = data.source.for_each(lambda pair: _head(data.source, *pair), zip(data.paths, stats, strict=True))
    if None in heads and any(heads):
        with_head, without = (data.name([bool(head) for head in heads].index(has)) for has in (True, False))
        raise FormatError(f"{without}: expected a header as in {with_head}, got none; open them one by one")
    given = None if dtype is None else number_dtype(dtype)
    found = [
        _plain(data.name(number), stat, given) if head is None else _with_head(data.name(number), stat, head, given)
        for number, (stat, head) in enumerate(zip(stats, heads, strict=True))
    ]
    name, window = field_and_window(files, schema, found[0].dtype, window)
    return stream_rows(data, stats, found, window, field or name or "tokens")


def _head(source: Source, path: str, stat: Stat) -> tuple[int, int, int] | None:
    """Return magic number, version and number of tokens; None for a file without a header."""
    if stat.size < _HEAD.size:
        return None
    magic, version, count = _HEAD.unpack(source.read(path, [ByteRange(0, _HEAD.size)])[0])
    return (magic, version, count) if magic in (*STREAMS, _EXAMPLES) else None


def _plain(name: str, stat: Stat, dtype: np.dtype[Any] | None) -> NumberFile:
    dtype = np.dtype(np.uint16) if dtype is None else dtype
    if stat.size % dtype.itemsize:
        raise TruncatedShardError(
            f"{name}: expected a multiple of {dtype.itemsize} bytes for numbers of {dtype}, got {stat.size} bytes"
        )
    return NumberFile(0, stat.size // dtype.itemsize, dtype)


def _with_head(name: str, stat: Stat, head: tuple[int, int, int], given: np.dtype[Any] | None) -> NumberFile:
    magic, version, count = head
    if magic == _EXAMPLES:
        raise FormatError(f"{name}: expected tokens, got multiple-choice examples, as their magic number {magic} says")
    known, kind = STREAMS[magic]
    dtype = np.dtype(kind)
    if version != known:
        raise FormatError(f"{name}: expected version {known} of files with the magic number {magic}, got {version}")
    if given is not None and given != dtype:
        raise SchemaError(f"{name}: expected {dtype}, as its header says, got dtype={given.name!r}")
    if stat.size != (expected := _HEAD_BYTES + count * dtype.itemsize) or count < 0:
        problem = TruncatedShardError if stat.size < expected else FormatError
        raise problem(f"{name}: expected {expected} bytes for {count} tokens, as its header says, got {stat.size}")
    return NumberFile(_HEAD_BYTES, count, dtype)


# -- writing --------------------------------------------------------------------------------------------------


class NanogptWriter(NumberWriter):
    """Writes streams of tokens: the arrays of samples one after another, without anything between them.

    Without `header` the files are plain, and without `shard_size` there is one. `dtype` converts integers.
    """

    def __init__(
        self,
        path: str,
        features: Features,
        *,
        mode: str = "create",
        dtype: str | None = None,
        header: bool = False,
        prefix: str = "part",
        shard_size: int | None = None,
    ) -> None:
        self._header = header
        size = shard_limit(shard_size, *[1 << 30] * header)
        super().__init__(path, mode, features, _OWNED, dtype, _DTYPES, prefix=prefix, extension=".bin", size=size)

    def _series(self, name: Callable[[int], str], first: int, rows: int, size: int) -> ShardSeries:
        if not self._header:
            return super()._series(name, first, rows, size)
        size = min(size, _MOST * self.dtype.itemsize)
        return HeadedShards(self._stage, name, first, size, self._head, _HEAD_BYTES)

    def _head(self, rows: int, size: int) -> bytes:
        magic, version = next((magic, v) for magic, (v, kind) in STREAMS.items() if kind == self.dtype.name)
        return _HEAD.pack(magic, version, size // self.dtype.itemsize)

    def _encode(self, sample: Any) -> Any:
        found = super()._encode(sample)
        if self._header and len(found) > _MOST:
            raise SchemaError(f"expected at most {_MOST} tokens in a file with a header, got a sample of {len(found)}")
        return found

    def _check_existing(self) -> None:
        place = LocalSource(self.path)
        for path in self._stage.existing:
            if not path.endswith(".bin"):
                continue
            head = _head(place, path, place.stat(path))
            if (head is not None) != self._header or (head and STREAMS.get(head[0], (0, ""))[1] != self.dtype.name):
                kind = "no header" if head is None else f"a header with the magic number {head[0]}"
                raise SchemaError(
                    f"{os.path.join(self.path, path)}: expected files with {kind} to append to, "
                    f"got header={self._header} and numbers of {self.dtype}"
                )


FORMAT = Format(
    open, NanogptWriter, JoinShards(_OWNED, ".bin"), part_format="tokens", only_arrays=True, only_field="tokens"
)
