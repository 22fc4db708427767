"""Take files out of the page cache, and find out how much of them is there. Needs numpy only."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def maps(folder: str) -> Iterator[tuple[int, int]]:
    """Address and size of every mapping of a file below a folder."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if folder in line and "/_shardex/" not in line and "/.shardex/" not in line:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            yield first, last - first


def advise(folder: str, advice: int) -> None:
    """`madvise` for every mapping of a file below a folder."""
    for address, size in maps(folder):
        LIBC.madvise(address, size, advice)


def drop(folder: str) -> None:
    """Take the data files out of the page cache; manifests and indexes stay."""
    advise(folder, mmap.MADV_DONTNEED)
    for path in files(folder):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    if (left := in_memory(folder)) > 0.01:
        raise SystemExit(f"{folder}: {left:.0%} stay in memory, so this is no cold disk (is it tmpfs?)")


def files(folder: str) -> list[Path]:
    below = (path for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_size)
    return [path for path in below if not {"_shardex", ".shardex"} & set(path.parts)]


def in_memory(folder: str) -> float:
    """The share of the data files that is in the page cache."""
    resident = total = 0
    for path in files(folder):
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        pages = np.zeros(-(-len(data) // mmap.PAGESIZE), np.uint8)
        view = np.frombuffer(data, np.uint8)
        LIBC.mincore(view.ctypes.data, len(data), pages.ctypes.data)
        resident, total = resident + int((pages & 1).sum()), total + len(pages)
        del view
    return resident / max(1, total)
