"""A local folder whose files have checksums: each block is checked before its first use.

`files.saved_checksums` saved the checksums when the files were known to be good. `read`, `load`, `fetch` and buffer
tables check the blocks they touch, so readers that fetch ranges before they use them, as remote files require, never
see a block that has changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardex.errors import ChecksumError
from shardex.kernel import Integers, Segments
from shardex.sources.byte_ranges import ByteRange, touched_pages
from shardex.sources.local import LocalSource
from shardex.sources.protocols import CloseFile, OpenFile, Source, Stat

BLOCK = 1 << 20
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

    def buffer_table(self, paths: Sequence[str], open_file: OpenFile = None, close_file: CloseFile = None) -> Segments:
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
        self._good = np.zeros(-(-len(data) // BLOCK), np.bool_)

    def check(self, begin: Integers, end: Integers) -> None:
        """Check the blocks that ranges touch."""
        if self._good.all():
            return
        blocks = touched_pages(begin, np.minimum(end, len(self._data)), BLOCK)
        for block in blocks[~self._good[blocks]].tolist():
            if block >= len(self._sums) or _sum(self._data, block) != self._sums[block]:
                at = block * BLOCK
                raise ChecksumError(
                    f"{self._name}: expected bytes {at} to {min(at + BLOCK, len(self._data))} as they were when "
                    "checksums were made, got others; the samples in them cannot be read"
                )
            self._good[block] = True
