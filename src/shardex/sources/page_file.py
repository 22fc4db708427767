"""One remote file in the page cache: a sparse local file of the same size, and a journal of its present pages.

`PagedFile` reports missing pages and stores downloaded ones. It writes pages to the sparse file
and then records them in the journal next to it, one checksum per run of pages: after a crash, or with several
processes, pages may be unrecorded or recorded twice, which is harmless. Pages that another process recorded are checked
before their first use. If writing to disk fails, pages are kept in memory. Readers use a file through a `PageBuffer`,
which keeps its addresses and contents as long as a view of it exists. Needs a POSIX system. `cached_source` downloads,
`page_cache` evicts.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardex.kernel import Integers
from shardex.sources.byte_ranges import runs
from shardex.sources.local import map_block, map_pages, open_descriptor

PAGE = max(4096, mmap.PAGESIZE)
"""Bytes per page; a page is present or missing as a whole."""
_PAGES_PER_CHECKSUM = 16
"""Maximum number of pages per journal record; pages that another process recorded are checked a record at a time."""
_RECORD = np.dtype([("first", "<u8"), ("count", "<u8"), ("xxh3", "<u8")])
_TABLE_BLOCK = 1 << 18
_OPEN = os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0)
"""Opens neither links nor, for ever waiting, pipes."""


class PageBuffer:
    """`size` mapped bytes: those of an open file if a descriptor is given, else zeros.

    >>> buffer = PageBuffer(3 * PAGE); view = buffer.view()
    >>> buffer.fill(PAGE, b"hello"); bytes(view[PAGE - 2 : PAGE + 5])
    b'\\x00\\x00hello'
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = size
        self._is_file = descriptor is not None
        block = map_block(size, descriptor)
        self._address = ctypes.addressof(block)
        self._held = weakref.ref(block)
        self._first: Any = block  # keeps the block until the first view is taken

    @property
    def is_held(self) -> bool:
        """True if a view of it exists."""
        return self._held() is not None

    def view(self) -> memoryview | None:
        """Return a read-only view; None if the last view is gone, and with it the mapping."""
        block, self._first = self._held(), None
        return None if block is None else memoryview(block).cast("B").toreadonly()

    def fill(self, begin: int, data: Any) -> None:
        """Replace pages that no reader uses yet with bytes in memory; `begin` is the start of a page."""
        source = memoryview(data).cast("B")
        if self._is_file:
            map_pages(len(source), None, self._address + begin)
        held = self._held()
        assert held is not None and begin + len(source) <= self.size, "expected pages of a buffer that is held"
        memoryview(held).cast("B")[begin : begin + len(source)] = source


class PageTable:
    """A number for each page, 0 at first; it takes memory only around the pages that were set.

    A server may declare any size for a file, so no table has an entry per declared page.

    >>> table = PageTable(1 << 40, np.dtype(np.int64)); table.set(np.array([3, 1 << 39]), np.array([7, 8]))
    >>> table.get(np.array([1 << 39, 4, 3])).tolist()
    [8, 0, 7]
    """

    def __init__(self, pages: int, dtype: np.dtype[Any]) -> None:
        self._dtype, self._block = dtype, min(pages, _TABLE_BLOCK)
        self._blocks: dict[int, NDArray[Any]] = {}

    def get(self, pages: Integers) -> NDArray[Any]:
        """Return the numbers of these pages."""
        if self._block < _TABLE_BLOCK:  # all pages are in one block
            return self._open(0)[pages]
        found = np.zeros(len(pages), self._dtype)
        blocks = pages // _TABLE_BLOCK
        for number in np.unique(blocks).tolist():
            if (block := self._blocks.get(number)) is not None:
                inside = blocks == number
                found[inside] = block[pages[inside] % _TABLE_BLOCK]
        return found

    def set(self, pages: Integers, values: NDArray[Any] | int) -> None:
        """Set the numbers of these pages."""
        if self._block < _TABLE_BLOCK:
            self._open(0)[pages] = values
            return
        blocks, all_values = pages // _TABLE_BLOCK, np.broadcast_to(np.asarray(values), pages.shape)
        for number in np.unique(blocks).tolist():
            inside = blocks == number
            self._open(number)[pages[inside] % _TABLE_BLOCK] = all_values[inside]

    def _open(self, number: int) -> NDArray[Any]:
        if (block := self._blocks.get(number)) is None:
            block = self._blocks[number] = np.zeros(self._block, self._dtype)
        return block


class PendingPages:
    """Pages of a file that a thread is downloading."""

    def __init__(self, pages: Integers) -> None:
        self.pages = pages
        self.done = threading.Event()


class PagedFile:
    """A file of `size` bytes at `path` and its journal next to it; without a path it is only in memory.

    >>> file = PagedFile(3 * PAGE); view = file.view()
    >>> file.put([(1, bytes(PAGE))]); file.missing(np.array([0, 1, 2])).tolist()
    [0, 2]
    """

    def __init__(self, size: int, path: str | None = None) -> None:
        self.size, self.path = size, path
        self.pages = -(-size // PAGE)
        self.key = ""
        """Key of the file in the cache."""
        self.last_used = 0
        """Number of the last use; the file with the lowest number is evicted first."""
        self.lock = threading.Lock()
        self.pending: list[PendingPages] = []
        self.rest_requested = False
        """True if a thread downloads the rest of the file."""
        self.disk_error: OSError | None = None
        """Why pages are in memory instead of on the disk."""
        self.retired = False
        """True if the cache needs the memory of its pages: it ends with the last view of a reader."""
        self.waits = 0
        """How often readers have waited for that."""
        self.wait_again = 0.0
        """The time from which on they may wait."""
        self._buffer: PageBuffer | None = None
        self._kept: memoryview | None = None
        """A view that keeps pages that are only in memory."""
        self._identity: tuple[int, int] | None = None
        """Device and inode of the mapped file."""
        self._reset()

    def _reset(self) -> None:
        self._present = PageTable(self.pages, np.dtype(np.bool_))
        self._in_memory = 0
        """Number of pages that are only in memory."""
        self._record_of = PageTable(self.pages, np.dtype(np.int64))
        """Number of the record of each page, plus one; 0 if there is none."""
        self._records = np.empty(0, _RECORD)
        self.missing_count = self.pages
        """Number of pages not known to be present."""
        self._read_up_to = 0

    # -- the mapped file -------------------------------------------------------------------------------------

    def view(self) -> memoryview:
        """Return a view of the file; only pages that are present may be read, while this view is held."""
        with self.lock:
            buffer = self._buffer
            if buffer is None or (view := buffer.view()) is None:
                buffer = self._buffer = self._open()
                view = buffer.view()
            assert view is not None
            self._kept = None if self._identity is not None or self.retired else view
            return view

    def release(self) -> None:
        """Drop the view that keeps pages in memory: they are freed with the last view of a reader."""
        self._kept = None

    @property
    def is_held(self) -> bool:
        """True if a view of it exists."""
        return self._buffer is not None and self._buffer.is_held

    @property
    def is_complete(self) -> bool:
        """True if no page is missing."""
        return self.missing_count == 0

    @property
    def on_disk(self) -> bool:
        """True if all present pages are in the file at `path`."""
        return self._identity is not None and not self._in_memory

    @property
    def resident(self) -> int:
        """Bytes of pages that are only in memory."""
        return PAGE * self._in_memory if self.is_held else 0

    def _open(self) -> PageBuffer:
        """Create and map the file. Another process may have replaced it, so its pages are checked again."""
        self._reset()
        self.rest_requested = self.retired = False
        self.waits, self.wait_again = 0, 0.0
        if self.path is not None:
            try:
                descriptor = self._descriptor(self.path)
                try:
                    found = os.fstat(descriptor)
                    buffer, self._identity = PageBuffer(self.size, descriptor), (found.st_dev, found.st_ino)
                    return buffer
                finally:
                    os.close(descriptor)
            except OSError as error:
                self.disk_error = error
        self._identity = None
        return PageBuffer(self.size)

    def _descriptor(self, path: str) -> int:
        """Open the sparse file; one of another size is replaced."""
        for attempt in (1, 2):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN, 0o600)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    raise PermissionError(1, "expected a regular file of this user in the cache", path)
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
        """Give a new file its size; it takes no disk space yet."""
        os.ftruncate(descriptor, self.size)

    def unlink(self) -> None:
        """Remove the file from the cache folder; views of it stay valid."""
        if self.path is not None:
            for path in (self.path, self._journal):
                with suppress(OSError):
                    os.unlink(path)

    @property
    def _journal(self) -> str:
        return f"{self.path}.journal"

    # -- present pages ---------------------------------------------------------------------------------------

    def missing(self, pages: Integers) -> Integers:
        """Return which of these pages are missing; the caller holds a view and the lock."""
        missing: Integers = pages[~self._present.get(pages)]
        if len(missing) and self._identity is not None:
            with suppress(OSError):  # no page may be recorded yet
                self._read_journal()
            records = np.unique(self._record_of.get(missing))
            for number in records[records > 0].tolist():
                self._check(number - 1)
            missing = missing[~self._present.get(missing)]
        return missing

    def _read_journal(self) -> None:
        """Read new records of the journal; a record that is not complete yet is read the next time."""
        with open_descriptor(self._journal, os.O_RDONLY | _OPEN) as descriptor:
            size = os.fstat(descriptor).st_size
            if size - self._read_up_to < _RECORD.itemsize:
                return
            data = os.pread(
                descriptor, (size - self._read_up_to) // _RECORD.itemsize * _RECORD.itemsize, self._read_up_to
            )
        self._add_records(np.frombuffer(data, _RECORD, len(data) // _RECORD.itemsize))
        self._read_up_to += len(data) // _RECORD.itemsize * _RECORD.itemsize

    def _add_records(self, records: NDArray[Any]) -> None:
        before, self._records = len(self._records), np.concatenate([self._records, records])
        count, first = records["count"], records["first"]
        valid = (count > 0) & (count <= _PAGES_PER_CHECKSUM) & (first < self.pages) & (first + count <= self.pages)
        counts = np.where(valid, count, 0).astype(np.int64)
        begins = np.repeat(np.where(valid, first, 0).astype(np.int64) - (np.cumsum(counts) - counts), counts)
        numbers = np.repeat(np.arange(before, before + len(counts)) + 1, counts)
        self._record_of.set(begins + np.arange(len(begins)), numbers)

    def _check(self, number: int) -> None:
        """Check a recorded run; the data of a process that died after recording it may be missing."""
        first, count, expected = (int(value) for value in self._records[number])
        pages = np.arange(first, first + count)
        view = self._buffer.view() if self._buffer is not None else None
        assert view is not None, "expected a file with a view"
        if xxhash.xxh3_64_intdigest(view[first * PAGE : min((first + count) * PAGE, self.size)]) == expected:
            self._mark_present(pages)
        else:
            self._record_of.set(pages, 0)

    def _mark_present(self, pages: Integers) -> None:
        self.missing_count -= int(np.count_nonzero(~self._present.get(pages)))
        self._present.set(pages, True)

    # -- new pages -------------------------------------------------------------------------------------------

    def claim(self, pages: Integers) -> PendingPages | None:
        """Claim the missing pages that no other thread is downloading; the caller holds the lock."""
        for other in self.pending:
            pages = pages[~np.isin(pages, other.pages)]
        if not len(pages):
            return None
        self.pending.append(PendingPages(pages))
        return self.pending[-1]

    def finish(self, claimed: PendingPages) -> None:
        """End a download, successful or not; threads that wait for these pages check them again."""
        with self.lock:
            self.pending[:] = [one for one in self.pending if one is not claimed]
        claimed.done.set()

    def put(self, pieces: Sequence[tuple[int, Any]]) -> None:
        """Store runs of pages, given as first page and bytes; the caller holds a view."""
        on_disk = False
        if self._identity is not None and self.path is not None:
            try:
                self._write(self.path, pieces)
                on_disk = True
            except OSError as error:
                self.disk_error = error
        with self.lock:
            for first, data in pieces:
                pages = np.arange(first, first + -(-len(data) // PAGE))
                if not on_disk:
                    self._put_in_memory(first, data)
                self._mark_present(pages)

    def _put_in_memory(self, first: int, data: Any) -> None:
        """Store pages in memory, except pages that are present: a reader may be using them."""
        assert self._buffer is not None
        view = memoryview(data)
        absent = np.flatnonzero(~self._present.get(np.arange(first, first + -(-len(view) // PAGE))))
        for at, count in runs(absent):
            self._buffer.fill((first + at) * PAGE, view[at * PAGE : (at + count) * PAGE])
            self._in_memory += count

    def _write(self, path: str, pieces: Sequence[tuple[int, Any]]) -> None:
        """Write pages to the sparse file and then record them in the journal."""
        with open_descriptor(path, os.O_RDWR | _OPEN) as descriptor:
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) != self._identity:
                raise FileNotFoundError(2, "another process removed it from the cache", path)
            for first, data in pieces:
                _write_all(descriptor, memoryview(data), first * PAGE)
        self._record([(first + at, part) for first, data in pieces for at, part in _parts(data)])

    def _record(self, pieces: list[tuple[int, Any]]) -> None:
        records = np.empty(len(pieces), _RECORD)
        records["first"] = [first for first, _ in pieces]
        records["count"] = [-(-len(data) // PAGE) for _, data in pieces]
        records["xxh3"] = [xxhash.xxh3_64_intdigest(data) for _, data in pieces]
        with open_descriptor(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _OPEN) as descriptor:
            uneven = os.fstat(descriptor).st_size % _RECORD.itemsize != 0
            if uneven or os.write(descriptor, records.tobytes()) != records.nbytes:
                # All further records would be misaligned, so a new file is started; existing views stay valid.
                self.unlink()


def _parts(data: Any) -> Iterator[tuple[int, Any]]:
    for at in range(0, -(-len(data) // PAGE), _PAGES_PER_CHECKSUM):
        yield at, data[at * PAGE : (at + _PAGES_PER_CHECKSUM) * PAGE]


def _write_all(descriptor: int, data: memoryview, begin: int) -> None:
    at = 0
    while at < len(data):
        at += os.pwrite(descriptor, data[at:], begin + at)
