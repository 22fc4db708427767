"""Which blocks of a read have not been checked yet.

The bytes of many buffers are divided into blocks of ``1 << shift`` bytes with one flag each: 0 means that the block was
not checked. `origin` says for each buffer where it begins, in bytes counted over all blocks. What is checked when is
decided by other rooms (see `buffers.Guard`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shardex.errors import RangeError, RowError
from shardex.kernel.buffers import Bytes, Integers, integers, kernel


def unchecked_rows(
    flags: Bytes,
    shift: int,
    origin: Integers,
    starts: Integers,
    rows: Integers,
    width: int,
    *,
    items: int = 1,
    bits: bool = False,
) -> Integers:
    """Return the numbers of the blocks of rows whose flag is 0, ascending, each once.

    Row r lies in the buffer s with ``starts[s] <= r < starts[s+1]``; it is `items` consecutive numbers of `width` bytes
    (with `bits`: bits), the first one at its place in the buffer: two for the offsets of a row.

    >>> flags = np.array([0, 1, 0, 0], np.uint8)  # four blocks of 4 bytes; two buffers, which begin with blocks 0 and 2
    >>> unchecked_rows(flags, 2, np.array([0, 8]), np.array([0, 4, 8]), np.array([5, 1, 2]), 2)
    array([0, 2])
    """
    numbers = map(integers, (origin, starts, rows))
    return _blocks(kernel.unchecked_rows, flags, shift, *numbers, width if bits else 8 * width, items)


def unchecked_ranges(
    flags: Bytes, shift: int, origin: Integers, which: Integers, begin: Integers, length: Integers
) -> Integers:
    """Return the numbers of the blocks of byte ranges whose flag is 0, ascending, each once.

    >>> flags = np.array([0, 1, 0, 0], np.uint8)
    >>> unchecked_ranges(flags, 2, np.array([0, 8]), np.array([1, 0, 1]), np.array([3, 4, 0]), np.array([2, 4, 0]))
    array([2, 3])
    """
    return _blocks(kernel.unchecked_ranges, flags, shift, *map(integers, (origin, which, begin, length)))


_NONE = np.empty(0, np.int64)


def _blocks(function: Callable[..., bytes], *arguments: Any) -> Integers:
    try:
        found = function(*arguments)
    except ValueError as error:
        raise RangeError(str(error)) from None
    except IndexError as error:
        raise RowError(str(error)) from None
    return np.frombuffer(found, np.int64) if found else _NONE
