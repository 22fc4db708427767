"""Memory for large arrays, used again when the last view of it is gone.

The allocator gives large pieces back to the system when they are freed and gets them again page by page, which for
batches of a megabyte takes longer than filling them (measured: ragged epochs 2.5 times as fast with this). Small arrays
are numpy's own.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["pooled_empty"]

_LARGE = 256 << 10
_HUGE = 64 << 20
"""Nothing is kept of this size: what it costs to get is little beside what it costs to hold."""
_KEPT = 8
"""Pieces that wait to be used again, at most."""

_free: deque[NDArray[np.uint8]] = deque(maxlen=_KEPT)


def pooled_empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array whose content is yet to be written, as `numpy.empty` gives it.

    >>> pooled_empty((2, 3), "int32").shape
    (2, 3)
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if not _LARGE <= size <= _HUGE:
        return np.empty(shape, kind)
    piece = _taken(size)
    # A root that is no view of another array: every view of it holds on to it, and to nothing behind it.
    root = np.frombuffer(piece.data, np.uint8, size)
    weakref.finalize(root, _free.append, piece).atexit = False
    return root.view(kind).reshape(shape)


def _taken(size: int) -> NDArray[np.uint8]:
    """A piece that waits and fits, not much too large, or a new one."""
    for _ in range(len(_free)):
        try:
            piece = _free.popleft()
        except IndexError:  # another thread was faster
            break
        if size <= piece.size <= 4 * size:
            return piece
        _free.append(piece)
    return np.empty(1 << (size - 1).bit_length(), np.uint8)
