"""Checksums for files of formats that have none: computed on request and saved as an index of blocks (`sidecar`).

After files were opened with ``checksums=True``, they are checked whenever the same path or pattern is opened: reading a
sample in a changed block raises an error, and `verify` finds all changed blocks. `CheckedSource` is the local folder
whose blocks are checked before their first use: `read`, `load`, `fetch` and buffer tables check the blocks they touch,
so readers that fetch ranges before they use them, as remote files require, never see a block that has changed since.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardex.errors import ArgumentError, ChecksumError, StaleIndexError
from shardex.files.compressed_files import content_of
from shardex.files.find import STORE_FOLDER, Files
from shardex.files.sample_index import Index
from shardex.files.scan import Scan
from shardex.kernel import Integers, Segments, unchecked_ranges
from shardex.sources import ByteRange, LocalSource, Source, Stat

_SHIFT = 20
BLOCK = 1 << _SHIFT
"""Bytes per checksum."""

Checksums = NDArray[np.int64]
"""The checksum of each block of a file, without its lowest bit, which int64 has no room for."""


def block_checksums(data: memoryview) -> Checksums:
    """Return the checksum of each block of a file.

    >>> len(block_checksums(memoryview(bytes(3 * BLOCK + 1)))), len(block_checksums(memoryview(b"")))
    (4, 0)
    """
    return np.array([_sum(data, number) for number in range(-(-len(data) // BLOCK))], np.int64)


def _sum(data: memoryview, number: int) -> int:
    return xxhash.xxh3_64_intdigest(data[number * BLOCK : (number + 1) * BLOCK]) >> 1


class CheckedSource(LocalSource):
    """Files in a local folder; `checksums(path)` returns the checksums of a file, or None if it has none.

    >>> import tempfile; place = CheckedSource(tempfile.mkdtemp(), {"a": block_checksums(memoryview(b"then"))}.get)
    >>> place.put("a", b"now"); place.load("a")
    Traceback (most recent call last):
    shardex.errors.ChecksumError: ...: expected bytes 0 to 3 as they were when checksums were made, got others; ...
    """

    def __init__(self, root: str, checksums: Callable[[str], Checksums | None]) -> None:
        super().__init__(root)
        self._checksums = checksums
        self._files: dict[str, _CheckedFile | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a plain folder: other processes only scan files, and reads are checked in this one."""
        return LocalSource, (self.root,)

    def stat(self, path: str) -> Stat:
        """Return size and modification time, without identity: changed content is found by its checksums."""
        return replace(super().stat(path), identity="")

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return the bytes of each range, checked."""
        self.fetch(path, ranges)
        return super().read(path, ranges)

    def load(self, path: str) -> memoryview:
        """Return the content of a file, checked."""
        data = super().load(path)
        self.fetch(path, [ByteRange(0, len(data))])
        return data

    def load_all(self, paths: Sequence[str], known: Sequence[Stat]) -> list[bytes]:
        """Return the contents of files, checked."""
        return Source.load_all(self, paths, known)

    def fetch(self, path: str, ranges: Sequence[ByteRange], *, wait: bool = True) -> None:
        """Check the blocks that ranges touch, each once."""
        if wait and (file := self._file(path)) is not None:
            file.check(*(np.array(some, np.int64) for some in ([r.begin for r in ranges], [r.end for r in ranges])))

    def buffer_table(self, paths: Sequence[str], open_file: Any = None, close_file: Any = None) -> Segments:
        """Return a table of files whose blocks are checked before the kernel reads them."""

        def fetch(which: Integers, begin: Integers, length: Integers, wait: bool) -> bool:
            for number in np.unique(which).tolist() if wait else ():
                if (file := self._file(paths[number])) is not None:
                    file.check(begin[which == number], (begin + length)[which == number])
            return True

        return self._table(paths, open_file, fetch)

    def _file(self, path: str) -> _CheckedFile | None:
        if path not in self._files:
            sums = self._checksums(path)
            self._files[path] = None if sums is None else _CheckedFile(self.path(path), self.map(path), sums)
        return self._files[path]


class _CheckedFile:
    """A file, its checksums, and which blocks were checked."""

    def __init__(self, name: str, data: memoryview, sums: Checksums) -> None:
        self._name, self._data, self._sums = name, data, sums
        self._good = np.zeros(-(-len(data) // BLOCK), np.uint8)

    def check(self, begin: Integers, end: Integers) -> None:
        """Check the blocks that ranges touch."""
        if self._good.all():
            return
        zeros, length = np.zeros(len(begin), np.int64), np.minimum(end, len(self._data)) - begin
        for block in unchecked_ranges(self._good, _SHIFT, zeros[:1], zeros, begin, np.maximum(length, 0)).tolist():
            if block >= len(self._sums) or _sum(self._data, block) != self._sums[block]:
                at = block * BLOCK
                raise ChecksumError(
                    f"{self._name}: expected bytes {at} to {min(at + BLOCK, len(self._data))} as they were when "
                    "checksums were made, got others; the samples in them cannot be read"
                )
            self._good[block] = 1


@dataclass(frozen=True)
class SumScanner:
    """Scanner that computes the checksums of the blocks of a file."""

    name: str = "checksums 1"
    in_python: bool = False

    def scan(self, source: Source, path: str) -> Scan:
        """Return one checksum per block."""
        return {"xxh3": block_checksums(source.load(path))}


def with_checksums(files: Files, make: bool = False, **options: Any) -> Files:
    """Return the files with a source that checks them against their saved checksums; `make` computes these first.

    The options are those of `Index.of`.

    >>> import os, tempfile; from shardex.files.find import find; folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "a.jsonl"), "w") as file:
    ...     _ = file.write('{"x": 1}')
    >>> [type(with_checksums(find(folder), make).source).__name__ for make in (False, True, False)]
    ['LocalSource', 'CheckedSource', 'CheckedSource']
    """
    if files.packed is not None:
        return content_of(with_checksums(files.packed, make, **options), files)
    if (folder := files.source.data_folder) is None:
        if make:
            raise ArgumentError(f"{files}: expected local files for checksums=True; the cache checks remote files")
        return files
    if os.path.isdir(os.path.join(folder, STORE_FOLDER)):
        if make:
            raise ArgumentError(
                f"{files}: expected files without checksums, got a native dataset of shardex, which has its own"
            )
        return files
    index = Index.of(files.having(""), SumScanner(), **options) if make else _saved(files)
    if index is None:
        return files
    known = {file.path for file in index.files}

    def sums(path: str) -> Checksums | None:
        return index.scan_of(path)["xxh3"].astype("int64") if path in known else None

    return replace(files, source=CheckedSource(folder, sums))


def _saved(files: Files) -> Index | None:
    """Return the saved checksums; raises if a file has changed since. Files added later have none."""
    if (index := Index.saved(files, SumScanner())) is None:
        return None
    paths = set(files.having("").paths)
    for file in index.files:
        if file.path in paths and not file.has_stat(files.source.stat(file.path)):
            raise StaleIndexError(
                f"{files.source.url}/{file.path}: expected the file as it was when its checksums were made, but "
                "it has changed; if that is intended, make new checksums: open it with checksums=True"
            )
    return index
