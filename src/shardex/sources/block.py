"""Addresses that are filled by and by: a mapped file or none at all, where bytes in memory can be laid over any page.

`Block` is what a file that lies elsewhere is seen through (`pages.py`): as long as anybody holds a part of it, its
addresses stay, and what was put there stays too. Needs a POSIX system.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from typing import Any

from shardex.sources.local import libc

__all__ = ["PAGE", "Block"]

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
