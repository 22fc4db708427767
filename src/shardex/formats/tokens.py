"""Raw numbers of one dtype, such as tokens: windows of one length, or samples of stored lengths.

Windows need no index: file and offset of a row are arithmetic, and `read` is one gather into one array. Stored lengths
are in a file next to the numbers and become an `Index`. Datasets that `create` wrote are described by ``tokens.json``;
for other files the caller passes dtype and window. A folder with an index of data-forager is read through that index.
`token_files` describes, scans and writes the files.
"""

from __future__ import annotations

import bisect
import hashlib
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shardex.errors import (
    ArgumentError,
    FormatError,
    NotFoundError,
    RowError,
    SchemaError,
    TruncatedShardError,
    UnknownFormatError,
)
from shardex.files import Files, Index, IndexedFile
from shardex.formats import data_forager
from shardex.formats.join_shards import JoinShards
from shardex.formats.jsonl_lines import JSON_LINES
from shardex.formats.record_rows import Locations, RecordRows, map_files
from shardex.formats.registry import Format, ShardRows
from shardex.formats.token_files import (
    HEAD,
    OWNED,
    LengthScanner,
    TokensHeader,
    TokenWriter,
    lengths_of,
    number_dtype,
    only_array,
)
from shardex.kernel import Columns, Integers, Ragged, pooled_empty, row_ranges, take
from shardex.schema import Array, Features, check_fields
from shardex.workers import ExecutorLike

_DTYPES = {f".{kind}{8 * size}": f"{kind}{size}" for kind in "uif" for size in (1, 2, 4, 8) if kind != "f" or size > 1}
"""Extensions that give the dtype of a file: `.u16`, `.i32`, `.f32` and so on."""
_NAMES = (".bin", ".tokens", *_DTYPES)


def recognise(files: Files) -> int:
    """Recognise ``tokens.json``, an index of data-forager that names no JSON lines, and the extension `.tokens`."""
    if files.folder and HEAD in files.paths:
        return 2
    if names := data_forager.listed_files(files):
        return 0 if all(name.lower().endswith(JSON_LINES) for name in names) else 2
    return bool(files.having(".tokens").paths)


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
    trust_paths: bool = False,
) -> WindowRows | StoredRows:
    """Open the samples of these files: windows of `window` numbers, or samples of stored lengths."""
    if schema is not None:
        name, kind, size = only_array(Features.of(schema))
        field, dtype, window = field or name, dtype or kind, window or size
    if window is not None and window < 1:
        raise ArgumentError(f"expected a window of at least 1, got {window}")
    if files.folder and HEAD in files.paths:
        head = TokensHeader.read(files.source)
        numbers = _dtype(files, dtype, head.dtype, f"as {HEAD} says")
        lengths, window, field = head.lengths or "uint32", window or head.window, field or head.field
    elif data_forager.listed_files(files) is not None:
        return _open_data_forager(files, field or "tokens", dtype, window, trust_paths)
    else:
        lengths, numbers = "uint32", _dtype(files, dtype, _dtype_of_names(files), "as their extension says")
    data = _data_files(files)
    if window is not None:
        return WindowRows(data, numbers, window, field or "tokens")
    _check_lengths(data, numbers)
    index = Index.of(
        data,
        LengthScanner(numbers.itemsize, lengths),
        rebuild=rebuild,
        progress=progress,
        workers=workers,
        executor=executor,
    )
    return StoredRows(data, index, numbers, None, field or "tokens")


def _open_data_forager(
    files: Files, field: str, dtype: str | None, window: int | None, trust_paths: bool
) -> WindowRows | StoredRows:
    if "index/sample_schema.json" in files.paths:
        raise FormatError(
            f"{files}: expected samples of one array, got index/sample_schema.json, which names several; "
            "such samples cannot be read yet"
        )
    data, index = data_forager.open_index(files, trust_paths=trust_paths)
    numbers = _dtype(data, dtype, _dtype_of_names(data), "as their extension says")
    if window is not None:
        return WindowRows(data, numbers, window, field)
    same = index.same_length()
    return StoredRows(data, index, numbers, None if same is None else same // numbers.itemsize, field)


def _data_files(files: Files) -> Files:
    found = files.having(*_NAMES) if files.folder else files
    data = tuple(path for path in found.paths if not path.lower().endswith(".lengths.bin"))
    if not data:
        raise UnknownFormatError(
            f"{files}: expected files that end in {', '.join(_NAMES)}, got {len(files.paths)} others"
        )
    return Files(files.source, data, files.what, files.folder)


def _dtype_of_names(files: Files) -> str | None:
    kinds = (
        {_DTYPES.get(os.path.splitext(path)[1].lower()) for path in _data_files(files).paths} if files.paths else set()
    )
    return kinds.pop() if len(kinds) == 1 else None


def _dtype(files: Files, given: str | None, known: str | None, why: str) -> np.dtype[Any]:
    if given is None and known is None:
        raise ArgumentError(
            f'{files}: expected a dtype, which these files do not store; open with dtype="uint16" (for example)'
        )
    found = number_dtype(known if given is None else given)
    if known is not None and found != np.dtype(known):
        raise SchemaError(f"{files}: expected {np.dtype(known)}, {why}, got dtype={given!r}")
    return found


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


class WindowRows(ShardRows):
    """Windows of one length; an incomplete window at the end of a file is ignored."""

    in_python = False

    def __init__(self, files: Files, dtype: np.dtype[Any], window: int, field: str) -> None:
        self.files, self.dtype, self.window, self.field = files, dtype, window, field
        self.features = Features({field: Array(dtype.name, (window,))})
        self._width = window * dtype.itemsize
        stats = files.stats()
        _check_sizes(files, sizes := [stat.size for stat in stats], dtype)
        counts = [size // self._width for size in sizes]
        self._known = [IndexedFile(p, s.size, s.tag, n) for p, s, n in zip(files.paths, stats, counts, strict=True)]
        self.starts: Integers = np.cumsum([0, *counts], dtype=np.int64)
        self._firsts: list[int] = self.starts.tolist()
        self.data = map_files(files, self._known)

    def __len__(self) -> int:
        return self._firsts[-1]

    @cached_property
    def fingerprint(self) -> str:
        """A short text that changes when the files, their sizes or times, or the window change."""
        return hashlib.sha256(repr((self.dtype.name, self.window, self._known)).encode()).hexdigest()[:16]

    def shard_names(self) -> list[str]:
        """Paths of the files, as error messages show them."""
        return [self.files.name(number) for number in range(len(self.files.paths))]

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching these windows."""
        if fields is None or self.field in fields:
            row_ranges(self.data, self.starts, rows, self._width).advise()

    def shards(self, rows: Integers) -> list[str]:
        """Path of the file that holds each window."""
        return [self.files.name(number) for number in (np.searchsorted(self.starts, rows, "right") - 1).tolist()]

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read these windows by one gather."""
        if not check_fields([self.field], fields):
            return Columns({}, len(rows))
        out = pooled_empty((len(rows), self.window), self.dtype)
        take(self.data, self.starts, rows, self._width, out)
        return Columns({self.field: out}, len(rows))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one window, a read-only view of the file."""
        if not 0 <= row < self._firsts[-1]:
            raise RowError(f"expected a row from 0 to {len(self) - 1}, got {row}")
        number = bisect.bisect_right(self._firsts, row) - 1
        begin = (row - self._firsts[number]) * self._width
        value = self.data.slice(number, begin, begin + self._width).view(self.dtype)
        return dict.fromkeys(check_fields([self.field], fields), value)


class StoredRows(RecordRows):
    """Samples at the locations of an index; stacked if all are known to have one length."""

    in_python = False

    def __init__(self, files: Files, index: Locations, dtype: np.dtype[Any], window: int | None, field: str) -> None:
        super().__init__(files, index)
        self.dtype, self.window, self.field = dtype, window, field
        self.features = Features({field: Array(dtype.name, (window,))})

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read these samples: stacked if all have one length, else as `Ragged`, which copies later."""
        if not check_fields([self.field], fields):
            return Columns({}, len(rows))
        ranges = self.ranges(rows)
        odd = ranges.length % self.dtype.itemsize != 0
        if odd.any():
            k = int(odd.argmax())
            self._refuse(int(rows[k]), int(ranges.length[k]))
        if self.window is None:
            return Columns({self.field: Ragged(ranges, self.dtype)}, len(rows))
        values = ranges.packed()[0].view(self.dtype).reshape(len(rows), self.window)
        return Columns({self.field: values}, len(rows))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one sample, a read-only view of the file."""
        data = self.record(row)
        if data.size % self.dtype.itemsize:
            self._refuse(row, data.size)
        return {name: data.view(self.dtype) for name in check_fields([self.field], fields)}

    def _refuse(self, row: int, size: int) -> None:
        raise FormatError(
            f"{self.location(row)}: expected a multiple of {self.dtype.itemsize} bytes for numbers of {self.dtype}, "
            f"got {size} - at sample {row}; is the dtype right?"
        )


def create(
    path: str, features: Features, *, mode: str = "create", window: int | None = None, shard_size: int = 1 << 30
) -> TokenWriter:
    """Return a writer of files of numbers; the schema has one field, an array of one dimension."""
    return TokenWriter(path, Features.of(features), mode, window, shard_size)


FORMAT = Format(
    "tokens",
    recognise,
    open,
    create,
    JoinShards(OWNED, ".bin", publish_last=(HEAD,)),
    stores_schema=True,
)
