"""Reads files of numbers that other tools wrote: a header, and then numbers as records of one size, or as one record.

`PlacedRecords` computes where records are, so that these files need no index; `stream_rows` makes rows of them.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardex.errors import ArgumentError, RowError, SchemaError, UnknownFormatError
from shardex.features import Features
from shardex.files import Files, IndexedFile
from shardex.formats.number_rows import NumberRows, array_fields
from shardex.kernel import Integers, digest
from shardex.sources import ByteRange, Source, Stat


def data_files(files: Files, extension: str) -> Files:
    """Return the files with this extension; a file that is named may have any."""
    found = files.having(extension)
    if files.folder and not found.paths:
        raise UnknownFormatError(f"{files}: expected files that end in {extension}, got {len(files.paths)} others")
    return found if found.paths else files


def first_bytes(source: Source, path: str, count: int) -> bytes:
    """Return the first bytes of a file, fewer if it is shorter."""
    return bytes(source.read(path, [ByteRange(0, min(count, source.stat(path).size))])[0])


class PlacedRecords:
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
        known = zip(files.paths, stats, counts, strict=True)
        self.files = tuple(IndexedFile(path, stat.size, stat.tag, rows) for path, stat, rows in known)
        self._begins, self._widths = np.array(begins, np.int64), np.array(widths, np.int64)
        self._starts: Integers = np.cumsum([0, *counts], dtype=np.int64)
        self._firsts: list[int] = self._starts.tolist()
        plain = [(file.path, file.size, file.tag, file.rows) for file in self.files]
        self.fingerprint = digest(plain, list(begins), list(widths), stamp)

    def __len__(self) -> int:
        return self._firsts[-1]

    def file(self, rows: Integers) -> Integers:
        """Return the number of the file that holds each row."""
        return np.searchsorted(self._starts, rows, "right") - 1

    def locate(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Return file, offset and length of each row."""
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            self._refuse(int(rows.max() if rows.max() >= len(self) else rows.min()))
        which = self.file(rows)
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

    def _refuse(self, row: int) -> None:
        raise RowError(f"expected a row from 0 to {len(self) - 1}, got {row}")


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
