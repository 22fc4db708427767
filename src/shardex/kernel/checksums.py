"""Checksums (xxh3-64) of byte ranges. Where the expected ones are stored is decided by other rooms."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.kernel.buffers import Segments, kernel
from shardex.kernel.gather import Ranges
from shardex.kernel.threads import threads

Sums = NDArray[np.uint64]


def checksums(data: Any, begins: Any, sizes: Any, which: Any = None) -> Sums:
    """Return the xxh3-64 of byte ranges of a buffer; of a `Segments` table, `which` says which buffer each is in.

    >>> [hex(sum) for sum in checksums(b"abcdef", [0, 3], [3, 3]).tolist()]
    ['0x78af5f94892f3950', '0x9be4e73e699ef188']
    """
    ranges = _ranges(data, begins, sizes, which)
    sums = np.empty(len(ranges), np.uint64)
    ranges._call(kernel.checksums, sums, threads())
    return sums


def first_difference(data: Any, begins: Any, sizes: Any, sums: Any, which: Any = None) -> int:
    """Return the number of the first range whose xxh3-64 is not the given one, or -1 if all agree.

    >>> sums = checksums(b"abcdef", [0, 3], [3, 3])
    >>> first_difference(b"abcdef", [0, 3], [3, 3], sums), first_difference(b"abcdeF", [0, 3], [3, 3], sums)
    (-1, 1)
    """
    expected = np.ascontiguousarray(sums, np.uint64)
    if not expected.flags.aligned:
        expected = expected.copy()
    (found,) = _ranges(data, begins, sizes, which)._call(kernel.first_difference, expected, threads())
    return int(found)


def _ranges(data: Any, begins: Any, sizes: Any, which: Any) -> Ranges:
    segments = data if isinstance(data, Segments) else Segments.of(data)
    return Ranges(segments, np.zeros(len(begins), np.int64) if which is None else which, begins, sizes)
