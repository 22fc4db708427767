"""Rows of numbers of one dtype: windows of one length (`NumberWindowRows`), or samples at given places (`NumberRows`).

A sample may have several arrays of one length; those after the first are in files beside those of the first
(`file_beside`). `number_dtype`, `array_fields` and `is_array` say what such arrays are.

Files that other tools wrote have a header, and then numbers as records of one size, or as one record: `PlacedRecords`
computes where the records are, so that these files need no index, and `stream_rows` makes rows of them.
"""

from __future__ import annotations

import bisect
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardex.columns import check_fields
from shardex.errors import (
    ArgumentError,
    FormatError,
    RowError,
    SchemaError,
    ShardexError,
    TruncatedShardError,
    UnknownFormatError,
)
from shardex.features import Array, Features
from shardex.files import Files, IndexedFile
from shardex.formats.record_rows import Locations, RecordRows, map_files
from shardex.formats.registry import ShardRows
from shardex.kernel import Columns, Integers, Ragged, Ranges, Segments, digest, pooled_empty, row_ranges, take
from shardex.sources import ByteRange, Source, Stat


def number_dtype(name: Any) -> np.dtype[Any]:
    """Return the dtype of this name, which must be one of little-endian numbers.

    >>> number_dtype("u2")
    dtype('uint16')
    """
    try:
        dtype: np.dtype[Any] = np.dtype(name)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"expected a dtype of numbers such as uint16, got {name!r}: {error}") from None
    if dtype.kind not in "biufc" or not dtype.newbyteorder("<").isnative or not dtype.isnative:
        raise SchemaError(f"expected a little-endian dtype of numbers such as uint16, got {name!r}")
    return dtype


def array_fields(features: Features) -> tuple[dict[str, str | None], int | None]:
    """Return the dtype of each field of a schema, and their length; all are arrays of one dimension and one length.

    >>> array_fields(Features.of({"tokens": Array("uint16", (None,)), "mask": Array("uint8", (None,))}))
    ({'tokens': 'uint16', 'mask': 'uint8'}, None)
    """
    found = {name: one for name, one in features.items() if isinstance(one, Array) and len(one.shape or ()) == 1}
    sizes = {(one.shape or (None,))[0] for one in found.values()}
    if len(found) != len(features) or len(sizes) != 1:
        raise SchemaError(f"expected arrays of one dimension, all of one length, got {features}")
    return {name: one.dtype for name, one in found.items()}, sizes.pop()


def is_array(value: Any, dtype: np.dtype[Any]) -> bool:
    """Return True for an array of one dimension and this dtype."""
    return type(value) is np.ndarray and value.dtype == dtype and value.ndim == 1


def file_beside(path: str, name: str) -> str:
    """Return the path of the file that stores another array, or the lengths, for a file of numbers.

    >>> file_beside("a/part-00000.bin", "loss_mask")
    'a/part-00000.loss_mask.bin'
    """
    stem, extension = os.path.splitext(path)
    return f"{stem}.{name}{extension}"


def check_sizes(files: Files, sizes: list[int], dtype: np.dtype[Any]) -> None:
    """Raise an error for a file whose size is no multiple of the size of a number."""
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
        check_sizes(files, sizes := [stat.size for stat in stats], self.dtype)
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
    """Samples at the locations of an index, which are those of the first array; stacked if all have one length.

    With a `shape`, the numbers of each sample, as many as `window`, have this shape.
    """

    in_python = False

    def __init__(
        self,
        files: Files,
        index: Locations,
        arrays: Mapping[str, np.dtype[Any]],
        window: int | None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(files, index)
        self.arrays, self.window, self.shape = dict(arrays), window, shape
        self.features = Features({name: Array(dtype.name, shape or (window,)) for name, dtype in arrays.items()})
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
        if not self.data.closable:
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
        shape = self.shape or (self.window,)
        stacked = {name: one.values.reshape(len(rows), *shape) for name, one in found.items()}
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
                found[name] = data.view(self.dtype) if self.shape is None else data.view(self.dtype).reshape(self.shape)
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


def data_files(files: Files, extension: str) -> Files:
    """Return the files with this extension; a file that is named may have any."""
    found = files.having(extension)
    if files.folder and not found.paths:
        raise UnknownFormatError(f"{files}: expected files that end in {extension}, got {len(files.paths)} others")
    return found if found.paths else files


def first_bytes(source: Source, path: str, count: int) -> bytes:
    """Return the first bytes of a file, fewer if it is shorter."""
    return bytes(source.read(path, [ByteRange(0, min(count, source.stat(path).size))])[0])


class CountedRecords:
    """The records of files, one file after another, of which the number in each file is known."""

    def __init__(self, files: Files, stats: Sequence[Stat], counts: Sequence[int]) -> None:
        known = zip(files.paths, stats, counts, strict=True)
        self.files = tuple(IndexedFile(path, stat.size, stat.tag, rows) for path, stat, rows in known)
        self._starts: Integers = np.cumsum([0, *counts], dtype=np.int64)
        self._firsts: list[int] = self._starts.tolist()

    def __len__(self) -> int:
        return self._firsts[-1]

    def file(self, rows: Integers) -> Integers:
        """Return the number of the file that holds each row."""
        return np.searchsorted(self._starts, rows, "right") - 1

    def _checked_file(self, rows: Integers) -> Integers:
        """Return the number of the file that holds each row, or raise RowError."""
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            self._refuse(int(rows.max() if rows.max() >= len(self) else rows.min()))
        return self.file(rows)

    def _refuse(self, row: int) -> None:
        raise RowError(f"expected a row from 0 to {len(self) - 1}, got {row}")


class PlacedRecords(CountedRecords):
    """Locations of records by arithmetic: file k has `counts[k]` records of `widths[k]` bytes, from `begins[k]` on.

    `stamp` is added to the fingerprint: it stands for everything else that the records depend on.
    """

    def __init__(
        self,
        files: Files,
        stats: Sequence[Stat],
        begins: Sequence[int],
        widths: Sequence[int],
        counts: Sequence[int],
        stamp: Any = None,
    ) -> None:
        super().__init__(files, stats, counts)
        self._begins, self._widths = np.array(begins, np.int64), np.array(widths, np.int64)
        plain = [(file.path, file.size, file.tag, file.rows) for file in self.files]
        self.fingerprint = digest(plain, list(begins), list(widths), stamp)

    def locate(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Return file, offset and length of each row."""
        which = self._checked_file(rows)
        width = self._widths[which]
        return which, self._begins[which] + (rows - self._starts[which]) * width, width

    def at(self, row: int) -> tuple[int, int, int]:
        """Return file, offset and length of one row."""
        if not 0 <= row < len(self):
            self._refuse(row)
        which = bisect.bisect_right(self._firsts, row) - 1
        width = int(self._widths[which])
        return which, int(self._begins[which]) + (row - self._firsts[which]) * width, width

    def lengths(self) -> Integers:
        """Return the length of every row, in bytes."""
        return np.repeat(self._widths, np.diff(self._starts))


@dataclass(frozen=True)
class NumberFile:
    """The numbers of one file: `count` of them, from the byte `begin` on."""

    begin: int
    count: int
    dtype: np.dtype[Any]


def stream_rows(
    files: Files, stats: Sequence[Stat], found: Sequence[NumberFile], window: int | None, field: str
) -> NumberRows:
    """Return the rows of streams of numbers: windows, or without `window` one sample for each file."""
    if window is not None and window < 1:
        raise ArgumentError(f"expected a window of at least 1, got {window}")
    dtype = same_dtype(files, [one.dtype for one in found])
    counts = [1 if window is None else one.count // window for one in found]
    widths = [(one.count if window is None else window) * dtype.itemsize for one in found]
    places = PlacedRecords(files, stats, [one.begin for one in found], widths, counts, dtype.name)
    return NumberRows(files, places, {field: dtype}, window)


def same_dtype(files: Files, dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the dtype of all files; raise an error if they differ."""
    for number, dtype in enumerate(dtypes):
        if dtype != dtypes[0]:
            raise SchemaError(f"{files.name(number)}: expected {dtypes[0]}, as in {files.name(0)}, got {dtype}")
    return dtypes[0]


def field_and_window(
    files: Files, schema: Features | None, dtype: np.dtype[Any], window: int | None
) -> tuple[str | None, int | None]:
    """Return the name and the length of the array that a schema names, which must be of this dtype."""
    if schema is None:
        return None, window
    dtypes, size = array_fields(Features.of(schema))
    if list(dtypes.values()) != [dtype.name]:
        raise SchemaError(f"{files}: expected one array of {dtype}, got {schema}")
    return next(iter(dtypes)), window or size
