"""`BlockWriter`: writes buffers to a file, in a thread of C (`_write_behind.c`) while Python makes the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from shardex.kernel.buffers import KERNEL
from shardex.kernel.gather import Sums, checksums
from shardex.kernel.threads import threads

try:
    from shardex.kernel import _write_behind  # type: ignore[attr-defined]

    FileWriter: Any = _write_behind.FileWriter
except ImportError:  # it was installed without a compiler
    FileWriter = None

_LARGE = 1 << 20
"""Bytes of the first call from which on a thread writes a file: starting one takes 0.1 ms."""
_MOST_WAITING = 4 << 20
"""Bytes that wait to be written by a thread."""
_WRITEBACK_EVERY = 2 << 20
"""Bytes after which the system starts to write pages to the disk, so that the final sync waits less."""


class BlockWriter:
    """Writes buffers to a new file and computes a checksum for each block of it: the low 32 bits of xxh3-64.

    Blocks lie at multiples of `block` in the file. The parts of one that lie in the buffers of different calls of
    `write` have a checksum each. With `later` a thread writes, if the first call has many bytes: buffers must not
    change until `wait` returns, and a later call may raise the error of an earlier one.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     writer = BlockWriter(file, 4)
    ...     writer.write([b"ab", b"cdef"]); writer.write([b"gh"])
    ...     sums = writer.checksums(); writer.close()
    >>> sums.tolist() == checksums(b"abcdefgh", [0, 4, 6], [4, 2, 2]).tolist(), writer.size
    (True, 8)
    """

    def __init__(self, file: BinaryIO, block: int, *, later: bool = False) -> None:
        self._file, self._block, self._later = file, block, later
        self._thread: Any = None
        self._sums: list[Sums] = []
        self.size = 0
        """Number of bytes given to `write`."""

    def write(self, parts: list[Any]) -> None:
        """Write buffers of bytes."""
        size = sum(map(len, parts))
        if self._later and not self.size and self._thread is None and size >= _LARGE:
            self._thread = _new_thread(self._file.fileno(), self._block)
        if self._thread is not None:
            self._thread.write(parts)
        else:
            for part in parts:
                self._file.write(part)
            self._sums.append(_block_sums(parts, self.size, self._block))
        self.size += size

    def wait(self) -> None:
        """Wait until everything is written."""
        if self._thread is not None:
            self._thread.drain()

    def checksums(self) -> Sums:
        """Wait until everything is written, and return the checksums of its blocks."""
        if self._thread is not None:
            return np.frombuffer(self._thread.checksums(), np.uint32)
        return np.concatenate([np.empty(0, np.uint32), *self._sums])

    def close(self) -> None:
        """End the thread, after which nothing may be written; its errors are not raised here, but by `wait` before."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None  # it has a descriptor of the file


def _new_thread(descriptor: int, block: int) -> Any | None:
    """Return the writer in C; None if this process should use one thread only, or cannot start another."""
    if FileWriter is None or KERNEL == "numpy" or threads() == 1:
        return None
    try:
        return FileWriter(descriptor, _MOST_WAITING, _WRITEBACK_EVERY, block)
    except RuntimeError:  # no thread can be started
        return None


def _block_sums(parts: Sequence[Any], at: int, block: int) -> Sums:
    """Return the checksum of each block of the bytes in some buffers, which are written at an offset of the file."""
    sums, rest, missing = [np.empty(0, np.uint32)], list[Any](), -at % block
    for part in parts:
        view = memoryview(part)
        if missing:  # a block that begins before this buffer
            rest.append(view[:missing])
            begin, missing = min(missing, len(view)), max(0, missing - len(view))
            if missing:
                continue
            sums.append(_sum_of(rest))
        else:
            begin = 0
        end = begin + (len(view) - begin) // block * block
        if end > begin:
            begins = np.arange(begin, end, block)
            sums.append(checksums(view, begins, np.full(len(begins), block)))
        rest, missing = ([view[end:]], block - len(view) + end) if end < len(view) else ([], 0)
    return np.concatenate([*sums, _sum_of(rest)] if missing and any(map(len, rest)) else sums)


def _sum_of(parts: Sequence[Any]) -> Sums:
    joined = b"".join(parts)
    return checksums(joined, [0], [len(joined)])
