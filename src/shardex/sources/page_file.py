"""One file that lies elsewhere, as far as it is here: a sparse file of the same size and a journal of its pages.

`PagedFile` is seen through a `Block`, and tells which of its pages are missing. What was fetched is written into the
sparse file and then recorded in the journal beside it, a checksum for each run of pages: a crash, or two processes at
once, leave pages that are not recorded or recorded twice, and nothing worse. Pages that somebody else recorded are
checked when they are first asked for. Where the disk refuses, pages are kept in memory. Who fetches, and which files
have to go when there is no room, is for others to say (`cached.py`, `cache.py`).

Addresses that are filled by and by: a mapped file or none at all, where bytes in memory can be laid over any page.

`Block` is what a file that lies elsewhere is seen through (`pages.py`): as long as anybody holds a part of it, its
addresses stay, and what was put there stays too. Needs a POSIX system.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardex.sources.byte_ranges import runs
from shardex.sources.local import libc

__all__ = ["PAGE", "Block", "Coming", "PagedFile"]

PAGE = max(4096, mmap.PAGESIZE)
"""Bytes that are there or not as a whole."""
_FIXED = 0x10
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_IN_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
_FAILED = ctypes.c_void_p(-1).value


class Block:
    """`size` bytes, those of an open file if a descriptor is given, else zeros.

    >>> block = Block(3 * PAGE); view = block.view()
    >>> block.fill(PAGE, b"hello"); bytes(view[PAGE - 2 : PAGE + 5])
    b'\\x00\\x00hello'
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = size
        self._lies_in_file = descriptor is not None
        self._address = _map(size, descriptor) if size else 0
        block = (ctypes.c_ubyte * size).from_address(self._address) if size else (ctypes.c_ubyte * 0)()
        self._held = weakref.ref(block)
        self._first: Any = block  # until the first view is taken, nobody else holds it
        if size:
            # Not at exit: other objects may still look at the pages then, and the process returns them anyway.
            weakref.finalize(block, libc().munmap, self._address, size).atexit = False

    @property
    def alive(self) -> bool:
        """Whether anybody holds a view of it."""
        return self._held() is not None

    def view(self) -> memoryview | None:
        """All of it, read-only; nothing if the last view was let go."""
        block, self._first = self._held(), None
        return None if block is None else memoryview(block).cast("B").toreadonly()

    def fill(self, begin: int, data: Any) -> None:
        """Put bytes in memory over pages that nobody looks at yet; `begin` is where a page begins."""
        source = memoryview(data).cast("B")
        if self._lies_in_file:
            _map(len(source), None, self._address + begin)
        held = self._held()
        assert held is not None and begin + len(source) <= self.size, "expected pages of a block that is held"
        memoryview(held).cast("B")[begin : begin + len(source)] = source


def _map(size: int, descriptor: int | None, address: int | None = None) -> int:
    """Map a file for reading, or memory for reading and writing; at an address if one is given."""
    if descriptor is not None:
        how = mmap.PROT_READ, mmap.MAP_SHARED, descriptor
    else:
        how = mmap.PROT_READ | mmap.PROT_WRITE, _IN_MEMORY | (0 if address is None else _FIXED), -1
    found = libc().mmap(address, size, *how, 0)
    if found in (None, _FAILED):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(found)


Integers = NDArray[np.int64]

_PIECE = 16
"""Pages under one checksum: of a file that another process fetched so many are looked at when one is needed."""
_RECORD = np.dtype([("first", "<u8"), ("count", "<u8"), ("xxh3", "<u8")])
_OPEN = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class Coming:
    """Pages of a file that somebody is fetching."""

    def __init__(self, pages: Integers) -> None:
        self.pages = pages
        self.done = threading.Event()


class PagedFile:
    """A file of `size` bytes at `path` and its journal beside it; without a path it is in memory only.

    >>> file = PagedFile(3 * PAGE); view = file.view()
    >>> file.put([(1, bytes(PAGE))]); file.missing(np.array([0, 1, 2])).tolist()
    [0, 2]
    """

    def __init__(self, size: int, path: str | None = None) -> None:
        self.size, self.path = size, path
        self.pages = -(-size // PAGE)
        self.key = ""
        """By what the cache knows it."""
        self.used = 0
        """Rises with each use, of all files: the lowest was not used for longest."""
        self.lock = threading.Lock()
        self.coming: list[Coming] = []
        self.behind = False
        """Whether somebody began to fetch the rest of it."""
        self.refused: OSError | None = None
        """Why pages are in memory that should be on the disk."""
        self._block: Block | None = None
        self._kept: memoryview | None = None
        """What is nowhere but in memory would go with the last view of it."""
        self._identity: tuple[int, int] | None = None
        """Of the file that is mapped: as long as it is, no other file has the same."""
        self._forget()

    def _forget(self) -> None:
        # Zeros take no memory before they are touched, so a large file of which little is here costs little.
        self.present = np.zeros(self.pages, np.bool_)
        self._in_memory = np.zeros(self.pages, np.bool_)
        self._record_of = np.zeros(self.pages, np.int64)
        """One more than the number of the record that a page is in."""
        self._records = np.empty(0, _RECORD)
        self.left = self.pages
        """How many pages are missing, as far as was looked."""
        self._read_up_to = 0

    # -- what it is seen through -----------------------------------------------------------------------------

    def view(self) -> memoryview:
        """All of it; only pages that are not missing may be looked at, as long as this view is held."""
        with self.lock:
            block = self._block
            if block is None or (view := block.view()) is None:
                block = self._block = self._opened()
                view = block.view()
            assert view is not None
            self._kept = None if self._identity is not None else view
            return view

    def drop(self) -> None:
        """Keep what is in memory no longer than others hold it."""
        self._kept = None

    @property
    def alive(self) -> bool:
        """Whether anybody holds a view of it."""
        return self._block is not None and self._block.alive

    @property
    def whole(self) -> bool:
        """Whether no page is missing."""
        return self.left == 0

    @property
    def on_disk(self) -> bool:
        """Whether all pages that are here lie in the file at `path`."""
        return self._identity is not None and not self._in_memory.any()

    @property
    def resident(self) -> int:
        """Bytes in memory that the system cannot take back."""
        return PAGE * int(np.count_nonzero(self._in_memory)) if self.alive else 0

    def _opened(self) -> Block:
        """Map the file, made if need be. It may be another than before, so its pages are checked again."""
        self._forget()
        self.behind = False
        if self.path is not None:
            try:
                descriptor = self._descriptor(self.path, os.O_RDWR | os.O_CREAT)
                try:
                    found = os.fstat(descriptor)
                    block, self._identity = Block(self.size, descriptor), (found.st_dev, found.st_ino)
                    return block
                finally:
                    os.close(descriptor)
            except OSError as error:
                self.refused = error
        self._identity = None
        return Block(self.size)

    def _descriptor(self, path: str, flags: int) -> int:
        """The sparse file, opened; one of another size is not ours, and is replaced."""
        for attempt in (1, 2):
            descriptor = os.open(path, flags | _OPEN, 0o600)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    raise PermissionError(1, "expected a file of our own in the cache", path)
                if found.st_size == 0 and self.size:
                    self._grow(descriptor)
                elif found.st_size != self.size and attempt == 1:
                    os.close(descriptor)
                    self.unlink()
                    continue
                return descriptor
            except BaseException:
                os.close(descriptor)
                raise
        raise PermissionError(1, f"expected a file of {self.size} bytes in the cache", path)

    def _grow(self, descriptor: int) -> None:
        """Give a new file its size; it takes no room yet."""
        os.ftruncate(descriptor, self.size)

    def unlink(self) -> None:
        """Take it out of the cache; who holds a view keeps what is there."""
        if self.path is not None:
            for path in (self.path, self._journal):
                with suppress(OSError):
                    os.unlink(path)

    @property
    def _journal(self) -> str:
        return f"{self.path}.journal"

    # -- which pages are here --------------------------------------------------------------------------------

    def missing(self, pages: Integers) -> Integers:
        """Those of some pages that are not here; a view must be held, and the lock."""
        missing = pages[~self.present[pages]]
        if len(missing) and self._identity is not None:
            with suppress(OSError):
                self._read_journal()
            records = np.unique(self._record_of[missing])
            for number in records[records > 0].tolist():
                self._check(number - 1)
            missing = missing[~self.present[missing]]
        return missing

    def _read_journal(self) -> None:
        """Take in what was recorded since it was last read; a record that is not whole yet is left for later."""
        try:
            descriptor = os.open(self._journal, os.O_RDONLY | _OPEN)
        except FileNotFoundError:
            return
        try:
            size = os.fstat(descriptor).st_size
            if size - self._read_up_to < _RECORD.itemsize:
                return
            data = os.pread(
                descriptor, (size - self._read_up_to) // _RECORD.itemsize * _RECORD.itemsize, self._read_up_to
            )
        finally:
            os.close(descriptor)
        self._take(np.frombuffer(data, _RECORD, len(data) // _RECORD.itemsize))
        self._read_up_to += len(data) // _RECORD.itemsize * _RECORD.itemsize

    def _take(self, records: NDArray[Any]) -> None:
        before, self._records = len(self._records), np.concatenate([self._records, records])
        count, first = records["count"], records["first"]
        likely = (count > 0) & (count <= _PIECE) & (first < self.pages) & (first + count <= self.pages)
        counts = np.where(likely, count, 0).astype(np.int64)
        begins = np.repeat(np.where(likely, first, 0).astype(np.int64) - (np.cumsum(counts) - counts), counts)
        self._record_of[begins + np.arange(len(begins))] = np.repeat(
            np.arange(before, before + len(counts)) + 1, counts
        )

    def _check(self, number: int) -> None:
        """Hold a recorded run against its checksum; what was recorded by a process that then died may not be there."""
        first, count, expected = (int(value) for value in self._records[number])
        pages = slice(first, first + count)
        view = self._block.view() if self._block is not None else None
        assert view is not None, "expected a file that is held"
        if xxhash.xxh3_64_intdigest(view[first * PAGE : min((first + count) * PAGE, self.size)]) == expected:
            self._here(pages)
        else:
            self._record_of[pages] = 0

    def _here(self, pages: slice) -> None:
        self.left -= int(np.count_nonzero(~self.present[pages]))
        self.present[pages] = True

    # -- putting pages there ---------------------------------------------------------------------------------

    def put(self, pieces: Sequence[tuple[int, Any]]) -> None:
        """Have these runs of pages (the first page, and the bytes) be here; a view must be held."""
        done = False
        if self._identity is not None and self.path is not None:
            try:
                self._write(self.path, pieces)
                done = True
            except OSError as error:
                self.refused = error
        with self.lock:
            for first, data in pieces:
                pages = slice(first, first + -(-len(data) // PAGE))
                if not done:
                    self._lay_over(first, data)
                self._here(pages)

    def _lay_over(self, first: int, data: Any) -> None:
        """In memory, but not over a page that is here already: somebody may be looking at it."""
        assert self._block is not None
        view = memoryview(data)
        absent = np.flatnonzero(~self.present[first : first + -(-len(view) // PAGE)])
        for at, count in runs(absent):
            self._block.fill((first + at) * PAGE, view[at * PAGE : (at + count) * PAGE])
            self._in_memory[first + at : first + at + count] = True

    def _write(self, path: str, pieces: Sequence[tuple[int, Any]]) -> None:
        """Into the sparse file, and then into the journal."""
        descriptor = os.open(path, os.O_RDWR | _OPEN)
        try:
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) != self._identity:
                raise FileNotFoundError(2, "another process took it out of the cache", path)
            for first, data in pieces:
                _write_all(descriptor, memoryview(data), first * PAGE)
        finally:
            os.close(descriptor)
        self._record([(first + at, part) for first, data in pieces for at, part in _parts(data)])

    def _record(self, pieces: list[tuple[int, Any]]) -> None:
        records = np.empty(len(pieces), _RECORD)
        records["first"] = [first for first, _ in pieces]
        records["count"] = [-(-len(data) // PAGE) for _, data in pieces]
        records["xxh3"] = [xxhash.xxh3_64_intdigest(data) for _, data in pieces]
        descriptor = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _OPEN, 0o600)
        try:
            uneven = os.fstat(descriptor).st_size % _RECORD.itemsize != 0
            if uneven or os.write(descriptor, records.tobytes()) != records.nbytes:
                # From here on all records would lie askew, so the file begins again; what is mapped stays.
                self.unlink()
        finally:
            os.close(descriptor)


def _parts(data: Any) -> Iterator[tuple[int, Any]]:
    for at in range(0, -(-len(data) // PAGE), _PIECE):
        yield at, data[at * PAGE : (at + _PIECE) * PAGE]


def _write_all(descriptor: int, data: memoryview, begin: int) -> None:
    at = 0
    while at < len(data):
        at += os.pwrite(descriptor, data[at:], begin + at)
