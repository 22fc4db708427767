"""Cuts the rows of a job into parts. The cuts depend on the data and the options, never on the number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_PART_BYTES = 64 << 20
_LARGEST_PART_BYTES = 512 << 20
_MOST_PARTS = 256
"""Parts grow from `_PART_BYTES` to `_LARGEST_PART_BYTES` before there are more."""
_PARTS_OF_FUNCTION = 64
"""Parts of a job that calls a function, whose cost is not known."""
_ROWS_OF_FUNCTION = 64


class Part(NamedTuple):
    """A range of rows, and its place among the parts of a job."""

    number: int
    begin: int
    end: int


def cut_rows(total: int, rows: int) -> Iterator[Part]:
    """Yield the parts of `total` rows, each of `rows` rows, the last one of the rest; at least one part.

    >>> list(cut_rows(5, 2))
    [Part(number=0, begin=0, end=2), Part(number=1, begin=2, end=4), Part(number=2, begin=4, end=5)]
    """
    for number, begin in enumerate(range(0, max(1, total), rows)):
        yield Part(number, begin, min(begin + rows, total))


def rows_per_part(
    total: int, sample_bytes: float, *, shard_rows: int | None, shard_size: int | None, calls_function: bool
) -> int:
    """Return how many rows a part has; a part is stored as one shard or more.

    With `shard_rows` or `shard_size` a part is about one such shard. Otherwise a part has about 64 MiB, more if there
    would be more than 256 parts. A function may be slow for few bytes: a job that calls one is cut into at least 64
    parts, as long as a part has 64 rows.

    >>> rows_per_part(10_000, 1000.0, shard_rows=None, shard_size=None, calls_function=False)
    67108
    >>> rows_per_part(10_000, 1000.0, shard_rows=None, shard_size=None, calls_function=True)
    157
    >>> rows_per_part(10_000, 1000.0, shard_rows=500, shard_size=None, calls_function=True)
    500
    """
    if shard_size is None:
        size = min(max(_PART_BYTES, total * sample_bytes / _MOST_PARTS), _LARGEST_PART_BYTES)
    else:
        size = float(shard_size)
    rows = max(1, int(size / max(1.0, sample_bytes)))
    if shard_rows is not None:
        return max(1, min(shard_rows, rows) if shard_size is not None else shard_rows)
    if calls_function and shard_size is None:
        rows = min(rows, max(_ROWS_OF_FUNCTION, -(-total // _PARTS_OF_FUNCTION)))
    return rows
