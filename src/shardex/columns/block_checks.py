"""Data files whose blocks are fetched and checked when a read touches them; nothing is used before it is checked.

`CheckedFiles` is the `Guard` of the buffer tables of a `CheckedTable`. It knows the files only by their sizes until a
row of one is read; then the table of the file (`BatchTable`) tells where its batches, buffers and checksums are. One
flag for each block of `BLOCK` bytes says whether it was checked. A file may have larger blocks: its flags are set
together. Files in a page cache may be closed again; that clears their flags.
"""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.columns.file_blocks import (
    BLOCK,
    BLOCK_SHIFT,
    FINISHED,
    CheckedFile,
    FileSizes,
    OpenedFile,
    distinct,
    first_of_equals,
)
from shardex.errors import ChecksumError, FormatError
from shardex.kernel import Bytes, Integers, Ranges, Segments, ends_of, unchecked_ranges
from shardex.sources import is_in_memory

_GROUP_SHIFT = 2
"""Blocks in memory are checked in groups of two to the power of this: hashing 16 KiB takes half a microsecond."""
_FEW_BLOCKS = 4
"""Blocks of a file that are checked together when no others are left; or a 64th of all its blocks."""
_LEAST_RUN = 8
"""Blocks of a run, on average, from which on the read-ahead of the system suffices."""
_ANNOUNCED_AFTER_FAULTS = 8
"""Reads that are announced in any case after a check had page faults from disk."""
_THIS_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class CheckedFiles:
    """Opens files and checks their blocks. `open_file(k)` returns file k, or None if it has no values at all.

    `mapped` is a table of the files in which ranges are fetched. `attach(k)` is called when file k is mapped, with its
    bytes, and must fill the buffer tables; `detach(k)` when it is closed.
    """

    def __init__(self, known: FileSizes, open_file: Callable[[int], CheckedFile | None], mapped: Segments) -> None:
        self.known = known
        self._open_file = open_file
        self._mapped = mapped
        self.first_chunk = ends_of(known.counts)
        self.first_row = ends_of(known.rows)
        self._first_flag = ends_of(known.ends // BLOCK + known.counts)
        self.starts = self._placeholders()
        self._all_flags = int(self._first_flag[-1])
        unstored = int(known.rows.max(initial=0)) // 8 // BLOCK + 1
        try:
            self.flags: Bytes = np.zeros(self._all_flags + unstored, np.uint8)
        except (MemoryError, ValueError):
            sizes = f"{known.ends.max()} bytes and {known.rows.max()} rows"
            raise FormatError(f"expected files that fit into the memory together, got one of {sizes}") from None
        self.flags[self._all_flags :] = 1
        self.shift = BLOCK_SHIFT
        self.left = self._all_flags
        self.closes = 0
        self.calls: dict[int, list[Bytes]] = {}
        """For each running call of a closable table: bytes that were closed since it began."""
        self.opened: dict[int, OpenedFile | None] = {}
        self.is_open: NDArray[np.bool_] = np.zeros(len(known.rows), np.bool_)
        self.all_open = not len(known.rows)
        self.lock: threading.RLock | None = threading.RLock() if mapped.evicts else None
        self._cold = _ColdReads()
        self.attach: Callable[[int], None] = lambda number: None
        self.detach: Callable[[int], None] = lambda number: None
        if mapped.evicts:
            _closable.add(self)

    def _placeholders(self) -> Integers:
        """Return the starts of all batches. All rows of a file that is not open belong to its first batch.

        The starts of its other batches equal its end, so that rows of other files are always found.
        """
        counts = self.known.counts
        starts = np.append(np.repeat(self.first_row[1:], counts), self.first_row[-1])
        starts[self.first_chunk[:-1]] = self.first_row[:-1]
        return starts

    def __len__(self) -> int:
        return int(self.first_row[-1])

    def exclusive(self) -> Any:
        """Return a context in which no file is closed; nothing may be fetched or mapped in it."""
        return self.lock or nullcontext()

    # -- opening -----------------------------------------------------------------------------------------------

    def file_of(self, chunk: int) -> int:
        """Return the file of a batch."""
        return int(np.searchsorted(self.first_chunk, chunk, "right")) - 1

    def open_rows(self, rows: Integers) -> None:
        """Open the files of these rows; rows that do not exist are ignored."""
        if self.all_open:
            return
        files = np.searchsorted(self.first_row, rows, "right") - 1
        files = files[(files >= 0) & (files < len(self.is_open))]
        if not (there := self.is_open[files]).all():
            self.open_files(distinct(files[~there]))

    def open_files(self, files: Integers) -> None:
        """Open these files; their ends, where their tables are, are fetched together."""
        ends, held = self._ends(files), None
        if self._mapped.closable:
            held = ends.hold()
        else:
            ends.advise()
        for number in files.tolist():
            self._open(number)
        self.all_open = bool(self.is_open.all())
        del held

    def _ends(self, files: Integers) -> Ranges:
        """Return the bytes behind the last batch of each file."""
        stored = files[self.known.sizes[files] > 0]
        begin = self.known.ends[stored]
        return Ranges(self._mapped, stored, begin, self.known.sizes[stored] - begin)

    def _open(self, number: int) -> None:
        if (file := self._open_file(number)) is None:
            self.opened[number] = None
            self._set_left(number, 0)
        else:
            self._open_table(number, file)
        self.attach(number)
        self.is_open[number] = True

    def _open_table(self, number: int, file: CheckedFile) -> None:
        """Read the table of a file and write the true starts of its batches."""
        table, known = file.table, self.known
        rows, last = int(table.rows.sum()), int(table.end[-1]) if len(table.end) else 0
        found = (len(table.rows), rows, last)
        if found != (expected := (int(known.counts[number]), int(known.rows[number]), int(known.ends[number]))):
            raise FormatError(f"{file.where}: expected batches, rows and bytes {expected}, got {found}")
        first, behind = int(self.first_chunk[number]), int(self.first_chunk[number + 1])
        same, spanned = table.block == BLOCK, (table.end - 1 >> BLOCK_SHIFT) - (table.begin >> BLOCK_SHIFT) + 1
        first_flag = table.first_block if same else ends_of(spanned)
        opened = OpenedFile(file, table, first_flag)
        if table.block % BLOCK:
            raise FormatError(f"{file.where}: expected blocks of a multiple of {BLOCK} bytes, got {table.block}")
        self.opened.setdefault(number, opened)
        if behind - first > 1:
            self.starts[first + 1 : behind] = self.first_row[number] + np.cumsum(table.rows)[:-1]
        self._set_left(number, int(first_flag[-1]))

    def _set_left(self, number: int, used: int) -> None:
        """Set the flags of a file that stand for no block."""
        begin, end = int(self._first_flag[number]) + used, int(self._first_flag[number + 1])
        with self.exclusive():
            self.flags[begin:end] = 1
            self._count(end - begin)

    def data(self, number: int) -> Bytes:
        """Return the bytes of a file that is not empty; map it again if its mapping was closed."""
        opened = self.opened[number]
        assert opened is not None
        while (found := opened.data) is None:
            self.attach(number)
        return found

    def map(self, number: int) -> OpenedFile | None:
        """Return a file; the caller attaches it exclusively. Of two threads that map a file one wins."""
        opened = self.opened[number]
        if opened is not None and opened.data is None:
            found = np.frombuffer(opened.file.data, np.uint8)
            with self.exclusive():
                if opened.data is None:
                    opened.data = found
        return opened

    def origins(self, number: int) -> Integers:
        """Return for each batch of a file what must be added to an offset in the file to find its block."""
        opened = self.opened[number]
        assert opened is not None
        flags = int(self._first_flag[number]) + opened.first_flag[:-1]
        return (flags - (opened.table.begin >> BLOCK_SHIFT)) << BLOCK_SHIFT

    @property
    def nowhere(self) -> int:
        """The origin of bits that are not stored in a file, and need no check."""
        return self._all_flags << BLOCK_SHIFT

    # -- checking ----------------------------------------------------------------------------------------------

    def check(self, blocks: Integers) -> None:
        """Fetch these blocks, compare their checksums and set their flags."""
        self.hold_checked(blocks)

    def hold_checked(self, blocks: Integers) -> Any:
        """Fetch these blocks, compare their checksums and set their flags; the result keeps them in the cache."""
        if not len(blocks):
            return None
        if self._mapped.closable:
            held = self._ranges(blocks).hold()
            self._check_files(blocks)
            return held
        if self.announces and _are_scattered(blocks):
            self._cold.announce(self._ranges(blocks))
            self._check_files(blocks)
        else:
            before = _faults()
            self._check_files(blocks, in_groups=not self.announces)
            self._cold.note(_faults() - before)
        return None

    @property
    def announces(self) -> bool:
        """Whether scattered blocks are announced to the system before they are checked."""
        return self._cold.announces

    def announce_if_cold(self, blocks: Integers) -> None:
        """Begin to announce scattered blocks if one of these few blocks is not in memory."""
        for number, some in self._by_file(blocks) if len(blocks) else ():
            opened, data = self.opened[number], self.data(number)
            assert opened is not None
            batch = np.searchsorted(opened.first_flag, some, "right") - 1
            begin = opened.pages(batch, some) << BLOCK_SHIFT
            if not all(map(is_in_memory, (begin + address_of(data)).tolist())):
                self._cold.note(1)

    def _check_files(self, blocks: Integers, in_groups: bool = False) -> None:
        for number, some in self._by_file(blocks):
            if in_groups:
                try:
                    self._check_file(number, self._whole_groups(number, some))
                    continue
                except ChecksumError:
                    pass  # maybe of a block that is not read
            self._check_file(number, some)

    def _whole_groups(self, number: int, some: Integers) -> Integers:
        """Return some sorted blocks of a file and their neighbours in groups, without those that have a flag.

        There are none if another thread has checked them meanwhile.
        """
        if len(some) == self._blocks(number):
            return some
        groups: Integers = some >> _GROUP_SHIFT
        groups = groups[first_of_equals(groups)]
        every = ((groups << _GROUP_SHIFT)[:, None] + np.arange(1 << _GROUP_SHIFT)).reshape(-1)
        every = every[every < self._blocks(number)]
        rest: Integers = every[self.flags[self._first_flag[number] :][every] == 0]
        return rest

    def _blocks(self, number: int) -> int:
        """Return how many blocks an open file has."""
        opened = self.opened[number]
        return 0 if opened is None else int(opened.first_flag[-1])

    def unchecked(self, number: int, batches: Integers, spans: Integers) -> Integers:
        """Return the blocks without a flag of spans (begin in the file and size) of some batches of a file."""
        which = np.repeat(np.arange(len(batches)), spans.shape[1])
        begin, size = spans.reshape(-1, 2).T
        return unchecked_ranges(self.flags, self.shift, self.origins(number)[batches], which, begin, size)

    def check_batch(self, number: int, batch: int) -> None:
        """Check all blocks of a batch."""
        opened = self.opened[number]
        assert opened is not None
        begin, end = int(opened.table.begin[batch]), int(opened.table.end[batch])
        self.check(self.unchecked(number, np.array([batch]), np.array([[[begin, end - begin]]])))

    def advise(self, blocks: Integers) -> None:
        """Start to read these blocks."""
        if len(blocks):
            self._ranges(blocks).advise()

    def _by_file(self, blocks: Integers) -> list[tuple[int, Integers]]:
        """Return files, and the blocks of each, counted from its first."""
        ends = np.searchsorted(self._first_flag, blocks[[0, -1]], "right") - 1
        if ends[0] == ends[1]:
            return [(int(ends[0]), blocks - self._first_flag[ends[0]])]
        files = np.searchsorted(self._first_flag, blocks, "right") - 1
        cuts = np.flatnonzero(np.diff(files)) + 1
        parts = np.split(blocks, cuts)
        numbers = files[np.concatenate([[0], cuts])].tolist()
        return [(number, part - self._first_flag[number]) for number, part in zip(numbers, parts, strict=True)]

    def _ranges(self, blocks: Integers) -> Ranges:
        """Return the bytes of blocks, whole ones as the file counts them."""
        places = []
        for number, some in self._by_file(blocks):
            opened = self.opened[number]
            assert opened is not None
            begin, length = opened.table.extents(opened.blocks_of(some)[1])
            places.append((np.full(len(begin), number), begin, length))
        return Ranges.concat(self._mapped, places)

    def _check_file(self, number: int, some: Integers) -> None:
        opened = self.opened[number]
        assert opened is not None
        if not len(some):
            return
        seen = self.data(number)
        if opened.table.block == BLOCK:
            flags = which = some
        else:
            batch, which = opened.blocks_of(some)
            flags = opened.flags_of(batch, which)
        opened.file.check_blocks(which, seen)
        with self.exclusive():
            if opened.data is seen:  # otherwise it was closed meanwhile, and its next mapping is checked again
                self.flags[self._first_flag[number] + flags] = 1
                self._count(len(flags))
                opened.unchecked -= len(flags)
        if self.lock is not None or not opened.left:
            return
        if opened.unchecked <= max(_FEW_BLOCKS, int(opened.first_flag[-1]) // 64):
            self._finish_file(opened, number)
        elif not self._cold.announces:
            self._finish_batches(opened, number, flags)

    def _finish_file(self, opened: OpenedFile, number: int) -> None:
        """Check the last blocks of a file: blocks without values are never read, and reads look for what is left."""
        opened.left, first = 0, int(self._first_flag[number])
        rest = np.flatnonzero(self.flags[first : first + int(opened.first_flag[-1])] == 0)
        if self._cold.announces and len(rest):
            self._cold.announce(self._ranges(first + rest))
        with suppress(ChecksumError):  # nothing has asked for these: a read of the damaged one raises
            self._check_file(number, rest)

    def _finish_batches(self, opened: OpenedFile, number: int, flags: Integers) -> None:
        """Check the rest of batches of which half is checked: all at once is faster than a few blocks in each read."""
        first = opened.first_flag
        batches = np.searchsorted(first, flags, "right") - 1
        opened.checked += np.bincount(batches, minlength=len(first) - 1)
        most = 2 * opened.checked >= np.diff(first)
        if not (done := np.flatnonzero(most & (opened.checked < FINISHED))).size:
            return
        opened.checked[done] = FINISHED
        opened.left -= len(done)
        flags_of = self.flags[int(self._first_flag[number]) :]
        rest = [int(first[k]) + np.flatnonzero(flags_of[first[k] : first[k + 1]] == 0) for k in done.tolist()]
        with suppress(ChecksumError):  # nothing has asked for these: a read of the damaged one raises
            self._check_file(number, np.concatenate(rest))

    def _count(self, checked: int) -> None:
        """Reduce the number of blocks that are left; threads may count a block twice, so 0 is counted again."""
        left = self.left - checked
        self.left = left if left > 0 else len(self.flags) - int(np.count_nonzero(self.flags))

    # -- closing -----------------------------------------------------------------------------------------------

    def close_file(self, number: int) -> None:
        """Close a file: its bytes are mapped and checked again when they are needed."""
        if self.lock is None or (opened := self.opened.get(number)) is None:
            return
        with self.lock:
            flags = self.flags[int(self._first_flag[number]) :][: int(opened.first_flag[-1])]
            self.left += int(np.count_nonzero(flags))
            flags[:] = 0
            self.detach(number)
            data, opened.data = opened.data, None
            if data is not None:
                for kept_alive in list(self.calls.values()):
                    kept_alive.append(data)
            self.closes += 1
        opened.file.close()


class _ColdReads:
    """Decides whether scattered blocks are announced to the system before they are checked.

    A page fault of a cold file may read megabytes around the page; announced blocks are read alone, and all at once.
    On warm files announcements cost as much as checks, so none are made after one that read nothing, until a check has
    page faults from disk.
    """

    def __init__(self) -> None:
        self.announces = True
        self._left = 0
        """Announcements that are made in any case: some file systems do not count what they read."""

    def announce(self, ranges: Ranges) -> None:
        """Announce ranges; stop if nothing had to be read."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock  # threads of the kernel announce, too
        ranges.advise(gap=BLOCK)
        read = resource.getrusage(resource.RUSAGE_SELF).ru_inblock - before
        self._left = max(0, self._left - 1)
        self.announces = read > 0 or self._left > 0

    def note(self, faults: int) -> None:
        """Note the page faults from disk of a check that was not announced."""
        if faults and not self.announces:
            self.announces, self._left = True, _ANNOUNCED_AFTER_FAULTS


def _faults() -> int:
    return resource.getrusage(_THIS_THREAD).ru_majflt


def _are_scattered(blocks: Integers) -> bool:
    """Return whether most blocks are far from the others; the system reads ahead by itself if they are not."""
    runs = 1 + int(np.count_nonzero(np.diff(blocks) != 1))
    return len(blocks) < _LEAST_RUN * runs


def address_of(data: Bytes) -> int:
    """Return where the bytes of an array are in memory."""
    found: int = data.__array_interface__["data"][0]
    return found


_closable: weakref.WeakSet[CheckedFiles] = weakref.WeakSet()


def _after_fork() -> None:
    """Reset locks in a forked process: the threads that would release them do not exist there."""
    for files in _closable:
        files.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
