"""A pool of memory for large arrays: a piece is reused when the last view of it is gone.

The allocator returns large pieces to the system when they are freed and gets them again page by page, which for batches
of a megabyte takes longer than filling them (measured: ragged epochs are 2.5 times as fast with the pool). Small arrays
are allocated by numpy.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_LARGE = 256 << 10
_MAX_BYTES = 256 << 20
"""Largest size of all free pieces together; a larger one is not pooled."""
_MAX_FREE = 8
"""Largest number of free pieces in the pool."""

_free: deque[NDArray[np.uint8]] = deque(maxlen=_MAX_FREE)

_used: dict[int, tuple[weakref.ref[Any], NDArray[np.uint8]]] = {}
"""Pieces of arrays that live, each with the reference that tells when its array is gone."""


def pooled_empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array with undefined content, like `numpy.empty`, with pooled memory if it is large.

    >>> pooled_empty((2, 3), "int32").shape
    (2, 3)
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if not _LARGE <= size <= _MAX_BYTES:
        return np.empty(shape, kind)
    piece = _take_piece(size)
    # This array is not a view of another numpy array, so it is the base of all views and lives as long as any of them.
    root = np.frombuffer(piece.data, np.uint8, size)
    # A quarter of the time of `weakref.finalize`, which matters for batches that take a tenth of a millisecond.
    reference = weakref.ref(root, _put_back)
    _used[id(reference)] = reference, piece
    return root.view(kind).reshape(shape)


def _take_piece(size: int) -> NDArray[np.uint8]:
    """Return a free piece of sufficient size, at most four times too large, or a new one."""
    for _ in range(len(_free)):
        try:
            piece = _free.pop()  # the last one that was put back, which the cache of the processor has still
        except IndexError:  # another thread has taken it
            break
        if size <= piece.size <= 4 * size:
            return piece
        _free.appendleft(piece)
    return np.empty(1 << (size - 1).bit_length(), np.uint8)


def _put_back(reference: weakref.ref[Any]) -> None:
    piece = _used.pop(id(reference))[1]
    _free.append(piece)
    if piece.size > _MAX_BYTES // _MAX_FREE:
        with suppress(IndexError):  # another thread has taken the last one
            while sum(one.size for one in list(_free)) > _MAX_BYTES:
                _free.popleft()
