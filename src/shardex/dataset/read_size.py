"""Chooses how many rows to read at once: enough to amortise the cost of a call, few enough to reuse memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardex.errors import FormatError
from shardex.kernel import Column, Columns, Integers, Masked, TimeArray
from shardex.order import Order

if TYPE_CHECKING:
    from shardex.dataset.sample_view import SampleView

_MAX_BYTES = 6 << 20
_MAX_ROWS = 1 << 13
_SIZED = {str, bytes}
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


# -- estimates of memory --------------------------------------------------------------------------------------


def byte_size(columns: Columns) -> int:
    """Return about how many bytes columns hold.

    >>> byte_size(Columns({"x": np.zeros((2, 1000))}))
    16000
    """
    return sum(map(_column_bytes, columns.data.values()))


def _column_bytes(column: Column) -> int:
    if isinstance(column, np.ndarray):
        return int(column.nbytes)
    if isinstance(column, list):
        return _list_bytes(column)
    if isinstance(column, Masked):
        return _column_bytes(column.column) + len(column)
    return int(column.ranges.length.sum())


def _list_bytes(values: Sequence[Any]) -> int:
    """Estimate the size of a list from about 16 of its values."""
    some = values[:: max(1, len(values) // 16)]
    if len(kinds := set(map(type, some))) == 1 and kinds <= _SIZED:
        return (64 + sum(map(len, some)) // len(some)) * len(values)
    return sum(map(_value_bytes, some)) * len(values) // max(1, len(some))


def _value_bytes(value: Any) -> int:
    if isinstance(value, str | bytes):
        return 64 + len(value)
    if isinstance(value, Mapping):
        return 256 + sum(map(_value_bytes, value.values()))
    if isinstance(value, list | tuple):
        return 64 + _list_bytes(value)
    return 64 + int(getattr(value, "nbytes", 0))
