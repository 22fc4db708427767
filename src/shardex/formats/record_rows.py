"""Samples as byte ranges: what tar, JSONL, tokens and bins share. An index says where, a mapping gives the bytes.

`PlacedRows` turns rows into `Ranges` of the mapped files; a format decodes them into columns. `RecordRows` does so
by an `Index` of our own. A file that is no longer the one that was indexed is refused when it is first touched, before
a page of it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from shardex.errors import ShardexError, StaleIndexError, TruncatedShardError
from shardex.files import Files, Index, IndexedFile
from shardex.formats.registry import ShardRows
from shardex.kernel import Bytes, Integers, Ranges, Segments

__all__ = ["PlacedRows", "Places", "RecordRows", "map_files"]


def map_files(files: Files, known: Sequence[IndexedFile]) -> Segments:
    """A table of the files, each mapped when it is first touched, if it is still the one that is known."""

    def open_file(number: int) -> memoryview:
        file, data = known[number], files.source.map(files.paths[number])
        if len(data) < file.size:
            raise TruncatedShardError(
                f"{files.name(number)}: expected {file.size} bytes as when it was indexed, got {len(data)}"
            )
        if not file.is_unchanged(files.source.stat(files.paths[number])):
            raise StaleIndexError(
                f"{files.name(number)}: expected the file that was indexed, got another of its name; open it again"
            )
        return data

    return files.source.buffer_table(files.paths, open_file)


class Places(Protocol):
    """Where samples lie: an `Index`, or a table that somebody else made."""

    def __len__(self) -> int:
        """How many samples there are."""

    @property
    def files(self) -> tuple[IndexedFile, ...]:
        """The data files."""

    @property
    def fingerprint(self) -> str:
        """Changes when the data does."""

    def file(self, rows: Integers) -> Integers:
        """The number of the file that each row lies in."""

    def locate(self, rows: Integers, begin: str = ..., length: str = ...) -> tuple[Integers, Integers, Integers]:
        """File, begin and length of each row."""

    def at(self, row: int, begin: str = ..., length: str = ...) -> tuple[int, int, int]:
        """The same for one row."""


class PlacedRows(ShardRows):
    """Rows that lie at known places of some files. Subclasses add `features` and `read`."""

    def __init__(self, files: Files, index: Places) -> None:
        self.files = files
        self.index = index
        self.data = map_files(files, index.files)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def fingerprint(self) -> str:
        """Names the indexed files, their sizes and times."""
        return self.index.fingerprint

    def shard_names(self) -> list[str]:
        """The files, as messages name them."""
        return [self.files.name(number) for number in range(len(self.files.paths))]

    def ranges(self, rows: Integers, begin: str = "offset", length: str = "length") -> Ranges:
        """Where these rows lie, by two columns of the index."""
        return Ranges(self.data, *self.index.locate(rows, begin, length))

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Begin to fetch the bytes of these rows."""
        with suppress(ShardexError):
            self.touched(rows, fields).advise()

    def touched(self, rows: Integers, fields: Sequence[str] | None) -> Ranges:
        """The bytes that a read of these rows and fields needs."""
        return self.ranges(rows)

    def shards(self, rows: Integers) -> list[str]:
        """The file of each row."""
        return [self.files.name(number) for number in self.index.file(rows).tolist()]

    def record(self, row: int, begin: str = "offset", length: str = "length") -> Bytes:
        """The bytes of one row, not copied."""
        number, first, size = self.index.at(row, begin, length)
        data = self.data.slice(number, first, first + size)
        if data.size != size:
            raise TruncatedShardError(
                f"{self.files.name(number)}: expected bytes {first} to {first + size} for sample {row}, "
                f"got a file of {self.data.open(number).size} bytes"
            )
        return data

    def where(self, row: int) -> str:
        """The file of a row, for messages."""
        return self.files.name(int(self.index.file(np.array([row]))[0]))


class RecordRows(PlacedRows):
    """Rows over files that we indexed ourselves."""

    index: Index

    def __init__(self, files: Files, index: Index) -> None:
        super().__init__(files, index)
