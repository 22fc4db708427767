"""Packets in numbered bins, as splitdataloader keeps them: ``index.dat`` and ``bin00000000.dat`` and so on.

The index is used as it is, mapped: bin, position and length of each packet, three little-endian uint32. A packet is
its length once more and then its bytes, so every read checks that both lengths agree. A packet is one field of bytes,
or, with ``decode=``, a sample of many. Only bins that lie directly in the folder count.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shardex.codec import Codec, by_name
from shardex.columns import MISSING, Columns
from shardex.errors import ClosedError, FormatError, RowError, SchemaError, TruncatedShardError, UnknownFormatError
from shardex.formats import plain
from shardex.gather import Bytes as Buffer
from shardex.gather import Integers, Ranges, Segments, take
from shardex.index import IndexedFile
from shardex.records import PlacedRows
from shardex.rows import check_fields
from shardex.schema import Bytes, Features, Text
from shardex.shards import Files
from shardex.staging import Stage

__all__ = ["BinRows", "BinTable", "BinWriter", "create", "open", "recognise"]

INDEX = "index.dat"
_BIN = re.compile(r"bin(\d{8,})\.dat")
_WIDTH, _PREFIX = 12, 4
_LARGEST = 1 << 32
_FLUSH = 64 << 20
_FIRST = 16


def recognise(files: Files) -> bool:
    """A folder with ``index.dat`` and nothing but bins beside it."""
    beside = [path for path in files.having("").paths if "/" not in path]
    return files.folder and INDEX in beside and all(path == INDEX or _BIN.fullmatch(path) for path in beside)


def open(files: Files, *, schema: Features | None = None, decode: str = "raw") -> BinRows:
    """The packets of a folder; `decode` names a codec that makes values of them."""
    if not files.folder or INDEX not in files.paths:
        raise UnknownFormatError(f"{files}: expected a folder with {INDEX}, got none")
    numbers = sorted((int(match[1]), path) for path in files.paths if (match := _BIN.fullmatch(path)))
    bins = Files(files.source, tuple(path for _, path in numbers), files.what, files.folder)
    table = BinTable(files, bins, np.array([number for number, _ in numbers], np.int64))
    return BinRows(bins, table, decode, None if schema is None else Features.of(schema))


class BinTable:
    """Where packets lie, by ``index.dat``; `offset` and `length` are those of the bytes after the prefix."""

    def __init__(self, files: Files, bins: Files, numbers: Integers) -> None:
        self.name = os.path.join(files.source.url, INDEX)
        data = files.source.map(INDEX)
        if len(data) % _WIDTH:
            raise FormatError(
                f"{self.name}: expected {_WIDTH} bytes for each packet, got {len(data)} bytes, which end in a partial record; "
                f"cut it to {len(data) // _WIDTH * _WIDTH} bytes to read the packets before it"
            )
        self._bins, self._numbers, self._tag = bins, numbers, files.source.stat(INDEX).tag
        self._table = Segments.of(data)
        self._starts: Integers = np.array([0, len(data) // _WIDTH], np.int64)
        stats = [bins.source.stat(path) for path in bins.paths]
        self.files = tuple(IndexedFile(p, s.size, s.tag, 0) for p, s in zip(bins.paths, stats, strict=True))
        self._sizes: Integers = np.array([file.size for file in self.files], np.int64)

    def __len__(self) -> int:
        return int(self._starts[1])

    @cached_property
    def fingerprint(self) -> str:
        """Names index and bins, their sizes and times."""
        files = [(file.path, file.size, file.tag) for file in self.files]
        return hashlib.sha256(repr((len(self), self._tag, files)).encode()).hexdigest()[:16]

    def file(self, rows: Integers) -> Integers:
        """The place of each row's bin among the bins."""
        return self.locate(rows)[0]

    def locate(
        self, rows: Integers, begin: str = "offset", length: str = "length"
    ) -> tuple[Integers, Integers, Integers]:
        """File, begin and length of each packet, checked against the bins."""
        out = np.empty((len(rows), 3), "<u4")
        take(self._table, self._starts, rows, _WIDTH, out)
        number, position, size = (column.astype(np.int64) for column in out.T)
        return self._which(rows, number), self._inside(rows, number, position, size), size

    def at(self, row: int, begin: str = "offset", length: str = "length") -> tuple[int, int, int]:
        """The same for one packet."""
        if not 0 <= row < len(self):
            raise RowError(f"expected a row from 0 to {len(self) - 1}, got {row}")
        which, first, size = self.locate(np.array([row]))
        return int(which[0]), int(first[0]), int(size[0])

    def _which(self, rows: Integers, number: Integers) -> Integers:
        which = np.searchsorted(self._numbers, number)
        found = which < len(self._numbers)
        found[found] = self._numbers[which[found]] == number[found]
        if not found.all():
            k = int(found.argmin())
            raise FormatError(
                f"{self.name}: expected one of {len(self._numbers)} bins, got bin {number[k]}, of which there is no file "
                f"bin{number[k]:08d}.dat - at sample {rows[k]}"
            )
        return which

    def _inside(self, rows: Integers, number: Integers, position: Integers, size: Integers) -> Integers:
        which = np.searchsorted(self._numbers, number)
        bad = position + _PREFIX + size > self._sizes[which]
        if bad.any():
            k = int(bad.argmax())
            raise TruncatedShardError(
                f"{self._bins.name(int(which[k]))}: expected bytes {position[k]} to {position[k] + _PREFIX + size[k]} for sample {rows[k]}, "
                f"got a file of {self._sizes[which[k]]} bytes"
            )
        return position + _PREFIX
