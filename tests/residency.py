"""Which pages of a file are in memory: how tests see what advice does."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE


def resident(path: Path) -> NDArray[np.bool_]:
    """Whether each page of a file is in memory."""
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
    """Have our mappings of a file let go of its pages; they come back when they are touched."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            _libc().madvise(first, last - first, mmap.MADV_DONTNEED)


def drop(path: Path) -> None:
    """Take a file out of memory; skips the test where the file system has it nowhere else."""
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("needs Linux")
    _unmap(path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(path).any():
        pytest.skip(f"{path} stays in memory")


def arrived(path: Path, pages: list[int]) -> bool:
    """Whether these pages come into memory within a few seconds."""
    for _ in range(500):
        if resident(path)[pages].all():
            return True
        time.sleep(0.01)
    return False
