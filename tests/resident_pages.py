"""Which pages of a file are in memory: tests of `advise` look there for its effect."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.waiting import becomes_true

PAGE = mmap.PAGESIZE


def resident_pages(path: Path) -> NDArray[np.bool_]:
    """Return for each page of a file whether it is in memory."""
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pages = np.zeros(-(-len(data) // PAGE), np.uint8)
    assert _libc().mincore(np.frombuffer(data, np.uint8).ctypes.data, len(data), pages.ctypes.data) == 0
    return (pages & 1).astype(np.bool_)


def _libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _unmap(path: Path) -> None:
    """Release the pages of a file from the mappings of this process; the next access loads them again."""
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        if line.endswith(str(path)):
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            _libc().madvise(first, last - first, mmap.MADV_DONTNEED)


def evict(path: Path) -> None:
    """Remove a file from the page cache; skip the test on a file system that cannot."""
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("needs Linux")
    _drop(path)
    if resident_pages(path).any():
        pytest.skip(f"{path} stays in memory")


def _drop(path: Path) -> None:
    _unmap(path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def become_resident(path: Path, pages: list[int], announce: Callable[[], object]) -> bool:
    """Announce a read of a file; return True as soon as these pages are in memory, False if a minute is not enough.

    A system that is short of memory leaves announced pages out, the last ones of a range too: the read is announced
    again from time to time, after the file was removed from the page cache.
    """

    def announced() -> bool:
        _drop(path)
        announce()
        return becomes_true(lambda: bool(resident_pages(path)[pages].all()), limit=2)

    return becomes_true(announced)
