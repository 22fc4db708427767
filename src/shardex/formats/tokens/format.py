"""Raw numbers of one dtype, such as tokens: windows of one length, or samples of stored lengths.

Windows need no index: file and offset of a row are arithmetic, and `read` is one gather into one array. Stored lengths
are in a file next to the numbers and become an `Index`. Datasets that `create` wrote are described by ``tokens.json``;
for other files the caller passes dtype and window. Samples may have several arrays of one length, for example tokens
and a loss mask. `files` describes, scans and writes the files.
"""

from __future__ import annotations

import bisect
import hashlib
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from shardex.errors import (
    ArgumentError,
    FormatError,
    NotFoundError,
    RowError,
    SchemaError,
    ShardexError,
    TruncatedShardError,
    UnknownFormatError,
)
from shardex.features import Array, Features, check_fields
from shardex.files import Files, Index, IndexedFile
from shardex.formats.join_shards import JoinShards
from shardex.formats.record_rows import Locations, RecordRows, map_files
from shardex.formats.registry import Format, ShardRows
from shardex.formats.tokens.files import (
    HEAD,
    OWNED,
    STREAMS,
    LengthScanner,
    TokensHeader,
    TokenWriter,
    array_fields,
    file_beside,
    lengths_of,
    number_dtype,
)
from shardex.kernel import Columns, Integers, Ragged, Ranges, Segments, digest, pooled_empty, row_ranges, take
from shardex.sources import ByteRange
from shardex.workers import ExecutorLike

DTYPES = {f".{kind}{8 * size}": f"{kind}{size}" for kind in "uif" for size in (1, 2, 4, 8) if kind != "f" or size > 1}
"""Extensions that give the dtype of a file: `.u16`, `.i32`, `.f32` and so on."""
_NAMES = (".bin", ".tokens", *DTYPES)


def open(
    files: Files,
    *,
    schema: Features | None = None,
    dtype: str | None = None,
    window: int | None = None,
    field: str | None = None,
    rebuild: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> NumberWindowRows | NumberRows:
    """Open the samples of these files: windows of `window` numbers, or samples of stored lengths."""
    head = TokensHeader.read(files.source) if files.folder and HEAD in files.paths else None
    others: Mapping[str, str | None] = {} if head is None else head.arrays
    if schema is not None:
        dtypes, size = array_fields(Features.of(schema))
        first, others = _first_and_others(files, dtypes, head)
        field, dtype, window = field or first, dtype or dtypes.get(first), window or size
    if window is not None and window < 1:
        raise ArgumentError(f"expected a window of at least 1, got {window}")
    if head is not None:
        numbers = checked_dtype(files, dtype, head.dtype, HEAD)
        lengths, window, field = head.lengths or "uint32", window or head.window, field or head.field
    else:
        _refuse_header(files)
        lengths, numbers = "uint32", checked_dtype(files, dtype, dtype_of_names(files), "their extension")
    data = _data_files(files, others)
    arrays = {field or "tokens": numbers, **{name: number_dtype(dtype) for name, dtype in others.items()}}
    rows: NumberWindowRows | NumberRows
    if window is not None:
        rows = NumberWindowRows(data, arrays, window)
    else:
        _check_lengths(data, numbers)
        index = Index.of(
            data,
            LengthScanner(numbers.itemsize, lengths),
            rebuild=rebuild,
            progress=progress,
            workers=workers,
            executor=executor,
        )
        rows = NumberRows(data, index, arrays, None)
    rows.metadata = {} if head is None else head.metadata
    return rows


def _first_and_others(
    files: Files, dtypes: Mapping[str, str | None], head: TokensHeader | None
) -> tuple[str, Mapping[str, str | None]]:
    """Return the name of the first array, and the dtypes of the others, by a schema and the description of the files.

    Without a description all but the first field of the schema are others; with one, it says which are.
    """
    first, *others = dtypes
    if head is None:
        return first, {name: dtypes[name] for name in others}
    unknown = [name for name in dtypes if name not in head.arrays]
    if len(unknown) > 1:
        known = ", ".join([head.field, *head.arrays])
        raise SchemaError(f"{files}: expected the fields {known}, as {HEAD} says, got {', '.join(dtypes)}")
    return (unknown or [head.field])[0], head.arrays


def _data_files(files: Files, others: Iterable[str] = ()) -> Files:
    found = files.having(*_NAMES) if files.folder else files
    beside = tuple(f".{name}.bin" for name in ("lengths", *others))
    data = tuple(path for path in found.paths if not path.endswith(beside))
    if not data:
        raise UnknownFormatError(
            f"{files}: expected files that end in {', '.join(_NAMES)}, got {len(files.paths)} others"
        )
    return Files(files.source, data, files.what, files.folder)


def dtype_of_names(files: Files) -> str | None:
    """Return the dtype that the extensions of all these files give, such as `.u16`; None if they give none."""
    kinds = (
        {DTYPES.get(os.path.splitext(path)[1].lower()) for path in _data_files(files).paths} if files.paths else set()
    )
    return kinds.pop() if len(kinds) == 1 else None


def checked_dtype(files: Files, given: str | None, known: str | None, origin: str) -> np.dtype[Any]:
    """Return the dtype that the caller gives or that `origin` says; raise an error if both differ or there is none."""
    if given is None and known is None:
        raise ArgumentError(
            f'{files}: expected a dtype, which these files do not store; open with dtype="uint16" (for example)'
        )
    found = number_dtype(known if given is None else given)
    if known is not None and found != np.dtype(known):
        raise SchemaError(f"{files}: expected {np.dtype(known)}, as {origin} says, got dtype={given!r}")
    return found


def _refuse_header(files: Files) -> None:
    """Raise an error for a stream of tokens with a header, whose numbers would be read as tokens."""
    path, begin = _data_files(files).paths[0], struct.Struct("<ii")
    if files.source.stat(path).size >= begin.size:
        magic, version = begin.unpack(files.source.read(path, [ByteRange(0, begin.size)])[0])
        if STREAMS.get(magic, (None,))[0] == version:
            raise FormatError(
                f"{os.path.join(files.source.url, path)}: expected tokens and nothing else, got a header of llm.c "
                'before them; open with format="nanogpt", which knows it'
            )


def _check_lengths(files: Files, dtype: np.dtype[Any]) -> None:
    _check_sizes(files, [stat.size for stat in files.stats()], dtype)
    for path in files.paths:
        try:
            files.source.stat(lengths_of(path))
        except NotFoundError:
            raise ArgumentError(
                f"{files}: expected the lengths of samples, got neither {HEAD} nor {lengths_of(path)}; "
                "open with window=1024 (for example)"
            ) from None


def _check_sizes(files: Files, sizes: list[int], dtype: np.dtype[Any]) -> None:
    for number, size in enumerate(sizes):
        if size % dtype.itemsize:
            raise TruncatedShardError(
                f"{files.name(number)}: expected a multiple of {dtype.itemsize} bytes for numbers of {dtype}, "
                f"got {size} bytes"
            )


class _OtherArrays:
    """The files of all arrays but the first, which lie next to the files of the first."""

    def __init__(self, files: Files, sizes: Sequence[int], arrays: Mapping[str, np.dtype[Any]]) -> None:
        (_, first), *others = arrays.items()
        self.data: dict[str, Segments] = {}
        stamps = []
        for name, dtype in others:
            beside = Files(files.source, tuple(file_beside(path, name) for path in files.paths), files.what)
            stats = beside.stats()
            for number, (size, stat) in enumerate(zip(sizes, stats, strict=True)):
                if stat.size != (expected := size // first.itemsize * dtype.itemsize):
                    raise TruncatedShardError(
                        f"{beside.name(number)}: expected {expected} bytes, {dtype.itemsize} for each number of "
                        f"{files.name(number)}, got {stat.size}"
                    )
            known = [IndexedFile(p, s.size, s.tag, 0, "", s.identity) for p, s in zip(beside.paths, stats, strict=True)]
            self.data[name] = map_files(beside, known)
            stamps.append((name, dtype.name, [(stat.size, stat.tag) for stat in stats]))
        self.stamp = digest(stamps) if stamps else ""
        """Changes when a file changes."""


class NumberWindowRows(ShardRows):
    """Windows of one length; an incomplete window at the end of a file is ignored."""

    in_python = False

    def __init__(self, files: Files, arrays: Mapping[str, np.dtype[Any]], window: int) -> None:
        self.files, self.arrays, self.window = files, dict(arrays), window
        self.features = Features({name: Array(dtype.name, (window,)) for name, dtype in arrays.items()})
        self._names = list(arrays)
        self.dtype = arrays[self._names[0]]
        width = window * self.dtype.itemsize
        stats = files.stats()
        _check_sizes(files, sizes := [stat.size for stat in stats], self.dtype)
        counts = [size // width for size in sizes]
        self._known = [IndexedFile(p, s.size, s.tag, n) for p, s, n in zip(files.paths, stats, counts, strict=True)]
        self.starts: Integers = np.cumsum([0, *counts], dtype=np.int64)
        self._firsts: list[int] = self.starts.tolist()
        self._others = _OtherArrays(files, sizes, arrays)
        self.data = {self._names[0]: map_files(files, self._known), **self._others.data}

    def __len__(self) -> int:
        return self._firsts[-1]

    @cached_property
    def fingerprint(self) -> str:
        """A short text that changes when the files, their sizes or times, or the window change."""
        plain = (self.dtype.name, self.window, self._known)
        others = (self._others.stamp,) if self._others.stamp else ()
        return hashlib.sha256(repr((*plain, *others)).encode()).hexdigest()[:16]

    def shard_names(self) -> list[str]:
        """Paths of the files, as error messages show them."""
        return [self.files.name(number) for number in range(len(self.files.paths))]

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching these windows."""
        for name in self._names if fields is None else fields:
            if name in self.arrays:
                row_ranges(self.data[name], self.starts, rows, self.window * self.arrays[name].itemsize).advise()

    def shards(self, rows: Integers) -> list[str]:
        """Path of the file that holds each window."""
        return [self.files.name(number) for number in (np.searchsorted(self.starts, rows, "right") - 1).tolist()]

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read these windows by one gather for each array."""
        found: dict[str, Any] = {}
        for name in check_fields(self._names, fields):
            out = pooled_empty((len(rows), self.window), dtype := self.arrays[name])
            take(self.data[name], self.starts, rows, self.window * dtype.itemsize, out)
            found[name] = out
        return Columns(found, len(rows))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one window, a read-only view of the file."""
        if not 0 <= row < self._firsts[-1]:
            raise RowError(f"expected a row from 0 to {len(self) - 1}, got {row}")
        number = bisect.bisect_right(self._firsts, row) - 1
        first, found = (row - self._firsts[number]) * self.window, {}
        for name in check_fields(self._names, fields):
            item = (dtype := self.arrays[name]).itemsize
            found[name] = self.data[name].slice(number, first * item, (first + self.window) * item).view(dtype)
        return found


class NumberRows(RecordRows):
    """Samples at the locations of an index, which are those of the first array; stacked if all have one length."""

    in_python = False

    def __init__(self, files: Files, index: Locations, arrays: Mapping[str, np.dtype[Any]], window: int | None) -> None:
        super().__init__(files, index)
        self.arrays, self.window = dict(arrays), window
        self.features = Features({name: Array(dtype.name, (window,)) for name, dtype in arrays.items()})
        self._names = list(arrays)
        self.dtype = arrays[self._names[0]]
        self._others = _OtherArrays(files, [file.size for file in index.files], arrays)

    @cached_property
    def fingerprint(self) -> str:
        """A short text that changes when the files, their sizes or times change."""
        return digest(self.index.fingerprint, self._others.stamp) if self._others.stamp else self.index.fingerprint

    def _ranges_of(self, name: str, first: Ranges) -> Ranges:
        """Return the ranges of an array by those of the first."""
        if (data := self._others.data.get(name)) is None:
            return first
        item, size = self.dtype.itemsize, self.arrays[name].itemsize
        return Ranges(data, first.which, first.begin // item * size, first.length // item * size)

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching these samples."""
        with suppress(ShardexError):
            first = self.ranges(rows)
            for name in check_fields(self._names, fields):
                self._ranges_of(name, first).advise()

    def hold(self, rows: Integers, fields: Sequence[str] | None) -> Any:
        """Fetch the bytes of all these fields at once if the files are remote."""
        if self.data.fetch is None:
            return None
        first = self.ranges(rows)
        return [self._ranges_of(name, first).hold() for name in check_fields(self._names, fields)]

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read these samples: stacked if all have one length, else as `Ragged`, which copies later."""
        if not (names := check_fields(self._names, fields)):
            return Columns({}, len(rows))
        ranges = self.ranges(rows)
        odd = ranges.length % self.dtype.itemsize != 0
        if odd.any():
            k = int(odd.argmax())
            self._refuse(int(rows[k]), int(ranges.length[k]))
        found = {name: Ragged(self._ranges_of(name, ranges), self.arrays[name]) for name in names}
        if self.window is None:
            return Columns(found, len(rows))
        stacked = {name: one.values.reshape(len(rows), self.window) for name, one in found.items()}
        return Columns(stacked, len(rows))

    def lengths(self, name: str) -> Integers:
        """Return the number of tokens in each sample, from the index."""
        check_fields(list(self.features), [name])
        if self.window is not None:
            return np.full(len(self), self.window, np.int64)
        sizes, item = self.index.lengths(), self.dtype.itemsize
        if (odd := sizes & (item - 1)).any():  # the size of a number is a power of two
            row = int(np.flatnonzero(odd)[0])
            self._refuse(row, int(sizes[row]))
        return sizes >> (item.bit_length() - 1)

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one sample, read-only views of the files."""
        data = self.record(row)
        if data.size % self.dtype.itemsize:
            self._refuse(row, data.size)
        found = {}
        for name in check_fields(self._names, fields):
            if (other := self._others.data.get(name)) is None:
                found[name] = data.view(self.dtype)
            else:
                number, begin, length = self.index.at(row)
                item, size = self.dtype.itemsize, self.arrays[name].itemsize
                first = begin // item * size
                found[name] = other.slice(number, first, first + length // item * size).view(self.arrays[name])
        return found

    def _refuse(self, row: int, size: int) -> None:
        raise FormatError(
            f"{self.location(row)}: expected a multiple of {self.dtype.itemsize} bytes for numbers of {self.dtype}, "
            f"got {size} - at sample {row}; is the dtype right?"
        )


def create(
    path: str,
    features: Features,
    *,
    mode: str = "create",
    window: int | None = None,
    shard_size: int = 1 << 30,
    metadata: Mapping[str, Any] | None = None,
) -> TokenWriter:
    """Return a writer of files of numbers; all fields are arrays of one dimension, of one length in each sample.

    `metadata` is stored with the data: anything that JSON can hold.
    """
    return TokenWriter(path, Features.of(features), mode, window, shard_size, metadata)


FORMAT = Format(
    open,
    create,
    JoinShards(OWNED, ".bin", publish_last=(HEAD,)),
    stores_schema=True,
    only_arrays=True,
)
