"""Checksums of byte ranges: xxh3-64 or its low 32 bits. Other rooms decide where the expected ones are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.kernel.buffers import Segments, kernel
from shardex.kernel.gather import Ranges
from shardex.kernel.threads import threads

Sums = NDArray[np.uint32]


def checksums(data: Any, begins: Any, sizes: Any, which: Any = None) -> Sums:
    """Return the low 32 bits of the xxh3-64 of byte ranges of a buffer.

    Of a `Segments` table, `which` says which buffer each is in.

    >>> [hex(sum) for sum in checksums(b"abcdef", [0, 3], [3, 3]).tolist()]
    ['0x892f3950', '0x699ef188']
    """
    ranges = _ranges(data, begins, sizes, which)
    sums = np.empty(len(ranges), np.uint32)
    ranges._call(kernel.checksums, sums, sums.itemsize, threads())
    return sums


def first_difference(data: Any, begins: Any, sizes: Any, sums: Any, which: Any = None) -> int:
    """Return the number of the first range whose checksum is not the given one, or -1 if all agree.

    Checksums of uint64 are those of the whole xxh3-64, those of uint32 its low half.

    >>> sums = checksums(b"abcdef", [0, 3], [3, 3])
    >>> first_difference(b"abcdef", [0, 3], [3, 3], sums), first_difference(b"abcdeF", [0, 3], [3, 3], sums)
    (-1, 1)
    """
    expected = np.ascontiguousarray(sums)
    if not expected.flags.aligned:
        expected = expected.copy()
    ranges = _ranges(data, begins, sizes, which)
    (found,) = ranges._call(kernel.first_difference, expected, expected.itemsize, threads())
    return int(found)


def _ranges(data: Any, begins: Any, sizes: Any, which: Any) -> Ranges:
    segments = data if isinstance(data, Segments) else Segments.of(data)
    return Ranges(segments, np.zeros(len(begins), np.int64) if which is None else which, begins, sizes)
