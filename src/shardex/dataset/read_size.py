"""How many batches to read at once: enough to spread the cost of a call, little enough that memory is used again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardex.kernel import Column, Columns
from shardex.order import Order
from shardex.rows import Rows

__all__ = ["Pace", "nbytes", "paced"]

_READ_BYTES = 1 << 20
_READ_ROWS = 1 << 12


class Pace:
    """The number of batches of `size` rows to read next, by what was read last; grows fourfold at most.

    >>> pace = Pace(2); pace.measure(Columns({"x": np.zeros((2, 1000))})); pace.batches
    4
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.batches = 1

    def measure(self, columns: Columns) -> None:
        """Take note of what was read."""
        most = min(_READ_ROWS, _READ_BYTES * len(columns) // max(1, nbytes(columns)))
        self.batches = max(1, min(most // self.size, 4 * self.batches))


def nbytes(columns: Columns) -> int:
    """About how much memory columns take."""
    return sum(_column_bytes(column) for column in columns.data.values())


def _column_bytes(column: Column) -> int:
    if isinstance(column, np.ndarray):
        return int(column.nbytes)
    if isinstance(column, list):
        return _list_bytes(column)
    return int(column.ranges.length.sum())


def _list_bytes(values: Sequence[Any]) -> int:
    """About how much memory a list takes, by a few of its values."""
    some = values[:: max(1, len(values) // 16)]
    return sum(map(_value_bytes, some)) * len(values) // max(1, len(some))


def _value_bytes(value: Any) -> int:
    if isinstance(value, str | bytes):
        return 64 + len(value)
    if isinstance(value, Mapping):
        return 256 + sum(map(_value_bytes, value.values()))
    if isinstance(value, list | tuple):
        return 64 + _list_bytes(value)
    return 64 + int(getattr(value, "nbytes", 0))


def paced(rows: Rows, order: Order, size: int) -> Iterator[Columns]:
    """All of an order as columns: several batches of `size` at once, as many as the last ones' bytes suggest."""
    start, pace = 0, Pace(size)
    while start < len(order):
        columns = rows.read(order.rows(np.arange(start, min(start + pace.batches * size, len(order)))))
        yield columns
        start += len(columns)
        pace.measure(columns)
