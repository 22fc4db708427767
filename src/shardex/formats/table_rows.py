"""Rows of Arrow and Parquet files: tables next to each other, each with some of the fields."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property

import msgspec
import numpy as np
import xxhash

from shardex.columns import ReadFile, Table
from shardex.errors import FormatError, PathError, ShardexError
from shardex.features import Features
from shardex.files import Files
from shardex.formats.registry import ShardRows
from shardex.kernel import Integers, Ranges, Segments
from shardex.rows import SideBySideRows
from shardex.sources import LocalSource, check_path

_LIKELY_FOOTER = 64 << 10


class TableRows(ShardRows, SideBySideRows):
    """Rows of the tables in some files.

    `rows` are the numbers of rows in the first `shards`, which hold the first fields; the other shards hold more fields
    of the same rows. `fingerprint`, or the function that computes it, is made from the content where that is known,
    otherwise from sizes and times.
    """

    in_python = False

    def __init__(
        self,
        tables: Sequence[Table],
        rows: Sequence[int] | Integers,
        features: Features,
        fingerprint: str | Callable[[], str],
        shards: Sequence[str],
    ) -> None:
        table_of = {name: table for table in tables for name in table.features}
        super().__init__({name: table_of[name] for name in features})
        self._starts: Integers = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows, dtype=np.int64)])
        self._length = int(self._starts[-1])
        self.features, self._fingerprint, self._shards = features, fingerprint, shards

    def __len__(self) -> int:
        return self._length

    def shard_names(self) -> list[str]:
        """Paths of the files, as error messages show them."""
        return list(self._shards)

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the samples; that of a dataset of many files is computed when it is first needed."""
        return self._fingerprint() if callable(self._fingerprint) else self._fingerprint

    def shards(self, rows: Integers) -> list[str]:
        """Path of the file that holds the first fields of each row."""
        return [self._shards[number] for number in (np.searchsorted(self._starts, rows, "right") - 1).tolist()]

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching the fields of each table."""
        with suppress(ShardexError):
            super().advise(rows[(rows >= 0) & (rows < self._length)], fields)


def ranges_at(data: Segments, places: Sequence[tuple[int, int, int]]) -> Ranges:
    """Return ranges of files: number, offset and length of each."""
    return Ranges(data, *np.array(places, np.int64).reshape(-1, 3).T)


def fetch_footers(data: Segments, sizes: Sequence[int], footer_size: Callable[[int], int], head: int = 0) -> list[int]:
    """Fetch the footers of files, and their first `head` bytes; return the size of each footer.

    First as many bytes are fetched as most footers have, which tell the size, then the rest of longer footers.
    """
    ends = [(n, max(0, size - _LIKELY_FOOTER), min(size, _LIKELY_FOOTER)) for n, size in enumerate(sizes)]
    ranges_at(data, ends + [(n, 0, min(head, size)) for n, size in enumerate(sizes) if head]).fetch()
    footers = [footer_size(number) for number in range(len(sizes))]
    longer = [(n, sizes[n] - size, size) for n, size in enumerate(footers) if _LIKELY_FOOTER < size <= sizes[n]]
    ranges_at(data, longer).fetch()
    return footers


def file_reader(files: Files) -> ReadFile:
    """Return the function that reads files whose paths a table holds; only files in the folder of the table are read.

    A table may come from anywhere, so it cannot name files of the user elsewhere.
    """
    source = files.source.contained() if isinstance(files.source, LocalSource) else files.source
    root = os.path.join(source.root, "") if isinstance(source, LocalSource) else ""

    def read(path: str) -> bytes:
        inside = path.removeprefix(root) if root else path
        try:
            return bytes(source.load(check_path(os.path.normpath(inside))))
        except PathError:
            raise FormatError(
                f"expected bytes, or the path of a file in {root or files}, got the path {path!r}; "
                "load files elsewhere with `datasets`, and open the result"
            ) from None

    return read


def files_digest(files: Files) -> str:
    """Return a digest of the paths, sizes and times of files."""
    stats = zip(files.paths, files.stats(), strict=True)
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode([[path, stat.size, stat.tag] for path, stat in stats]))
