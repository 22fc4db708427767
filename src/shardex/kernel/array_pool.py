"""Memory of large arrays that is reused: a piece serves the next array when the last view of it is gone.

The allocator returns large pieces to the system when they are freed and gets them again page by page, which for batches
of a megabyte takes longer than filling them (measured: ragged epochs are 2.5 times as fast with the pool). The pieces
are kept by the C kernel (`_memory.c`): up to eight, and 256 MB. Small arrays, and all arrays where there is
no C kernel, are allocated by numpy. A thread can have arrays allocated elsewhere for a while
(`allocating`): in memory that a device copies from, so that a reader fills it without knowing of it.

What is done with a batch allocates, too: decoded images, transformed samples. `keep_freed_memory` lets the allocator
keep their memory.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shardex.kernel.buffers import KERNEL, kernel

_LARGE = 256 << 10
_MAX_BYTES = 256 << 20 if KERNEL == "c" else 0
"""Largest size of an array that is pooled."""
_LARGEST_ADAPTED = (32 << 20) - (8 << 10)
"""Size of the largest block from which glibc learns, with what it adds to a block."""

Allocate = Callable[[int], "NDArray[np.uint8] | None"]
"""Returns memory of a size in bytes, aligned for all dtypes; None if it has no more."""


class _ThisThread(threading.local):
    allocate: Allocate | None = None


_this_thread = _ThisThread()


@contextmanager
def allocating(allocate: Allocate) -> Iterator[None]:
    """Within a ``with`` block, let `pooled_empty` in this thread use memory that a function returns, while it has some.

    >>> memory = np.zeros(64, np.uint8)
    >>> with allocating(lambda size: memory[:size]):
    ...     pooled_empty((2,), "int16")[:] = 7
    >>> memory[:4]
    array([7, 0, 7, 0], dtype=uint8)
    """
    before, _this_thread.allocate = _this_thread.allocate, allocate
    try:
        yield
    finally:
        _this_thread.allocate = before


def pooled_empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array with undefined content, like `numpy.empty`, with pooled memory if it is large.

    >>> pooled_empty((2, 3), "int32").shape
    (2, 3)
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if (allocate := _this_thread.allocate) is not None and (given := allocate(size)) is not None:
        return given.view(kind).reshape(shape)
    if not _LARGE <= size <= _MAX_BYTES:
        return np.empty(shape, kind)
    return np.ndarray(shape, kind, kernel.memory(size))


@cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MB that this process frees, unless the user has chosen its limits (``MALLOC_...``).

    glibc returns freed memory to the system if it is more than twice the size of the largest block that was freed
    before, and the next batch gets it again page by page: a loop that decodes JPEGs of 288 x 288 one by one does 1,800
    a second, and 2,400 if the memory is kept. So a block of the largest size from which glibc learns is freed here; no
    page of it is used.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]
        libc.free(libc.malloc(_LARGEST_ADAPTED))
