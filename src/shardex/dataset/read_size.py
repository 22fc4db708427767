"""Chooses how many rows to read at once: enough to amortise the cost of a call, few enough to reuse memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from shardex.errors import FormatError
from shardex.kernel import Column, Columns, Integers, Masked, TimeArray, byte_size
from shardex.order import Order

if TYPE_CHECKING:
    from shardex.dataset.sample_view import SampleView

_MAX_BYTES = 6 << 20
_MAX_ROWS = 1 << 13
DECODED_BYTES = 16 << 20
"""Size of reads of decoded media: enough images for all cores."""


class ReadSize:
    """Number of batches of `size` rows to read next, chosen by the bytes read last; grows fourfold at most.

    >>> read_size = ReadSize(2); read_size.measure(rows=2, size=16_000); read_size.batches
    4
    """

    def __init__(self, size: int, most: int = _MAX_BYTES, most_rows: int = _MAX_ROWS) -> None:
        self.size = size
        self._most = most
        self._most_rows = most_rows
        self.batches = 1

    def measure(self, rows: int, size: int) -> None:
        """Choose the number of batches for the next read from the rows and bytes of the last one."""
        rows = min(self._most_rows, self._most * rows // max(1, size))
        self.batches = max(1, min(rows // self.size, 4 * self.batches))


def read_chunks(
    read: Callable[[Integers], Columns], order: Order, size: int, most: int = _MAX_BYTES
) -> Iterator[Columns]:
    """Read all rows of an order as columns, several batches of `size` rows at a time, about `most` bytes."""
    start, end, read_size = 0, len(order), ReadSize(size, most)
    while start < end:
        columns = read(order.rows(np.arange(start, min(start + read_size.batches * size, end))))
        start += len(columns)
        read_size.measure(len(columns), byte_size(columns))
        yield columns


def sample_chunks(view: SampleView[Any]) -> Iterator[Iterable[dict[str, Any]]]:
    """Yield the samples of a dataset as dicts, in chunks."""
    first = 0
    for columns in view.chunks():
        samples: Iterable[dict[str, Any]]
        try:
            samples = columns.to_samples()
        except FormatError:  # a value that Python cannot hold: read one by one, for an error that names the sample
            samples = map(view.sample, range(first, first + len(columns)))
        first += len(columns)
        yield samples


def stored_samples(columns: Columns) -> Iterable[dict[str, Any]]:
    """Return samples to be written elsewhere: dates and times that Python cannot hold are numpy values."""
    try:
        return columns.to_samples()
    except FormatError:
        return Columns({n: _numpy_times(one) for n, one in columns.data.items()}, len(columns)).to_samples()


def _numpy_times(column: Column) -> Column:
    if isinstance(column, Masked) and isinstance(column.column, TimeArray):
        present = zip(column.values, column.mask.tolist(), strict=True)
        return [value if there else None for value, there in present]
    return list(column.view(np.ndarray)) if isinstance(column, TimeArray) else column
