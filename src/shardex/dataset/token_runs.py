"""Where the tokens of documents lie in mapped files: `locate_runs` finds documents that lie end to end.

In: a dataset, a field of arrays, and the first token of each document. Out: `Runs`, the byte of every token, so that a
run of tokens is copied without a look at documents; None if documents must be read to be found, as JSON must. Parts of
a `concat` are found in their own files. `token_stream` copies the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardex.dataset.combined_rows import ConcatRows
from shardex.errors import SchemaError
from shardex.kernel import Integers, Ragged, Ranges, Segments
from shardex.layers import MediaRows, RenamedRows
from shardex.rows import AbstractRows

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset

_CHUNK_ROWS, _CHUNK_BYTES = 1 << 16, 32 << 20
"""Documents and bytes of documents that are located at once; rows that are not mapped copy them all."""


@dataclass(frozen=True)
class Runs:
    """Parts of a stream that lie end to end in a buffer. `starts` has the first token of each, and the end."""

    tables: list[Segments]
    starts: Integers
    table: Integers
    """Number of the table that has the buffer of each run."""
    which: Integers
    """Number of the buffer in its table."""
    base: Integers
    """Offset in the buffer at which the whole stream would begin if it lay end to end in this buffer."""

    def ranges(self, run: Integers, begin: Integers, length: Integers, item: int) -> Iterator[tuple[Ranges, Any]]:
        """Yield the bytes of pieces of runs that are in one table, and which pieces these are."""
        first, length = self.base[run] + begin * item, length * item
        if len(self.tables) == 1:
            yield Ranges(self.tables[0], self.which[run], first, length), slice(None)
            return
        table = self.table[run]
        for number in np.unique(table).tolist():
            here = np.flatnonzero(table == number)
            yield Ranges(self.tables[number], self.which[run[here]], first[here], length[here]), here


def locate_runs(documents: Dataset[Any], name: str, dtype: np.dtype[Any], starts: Integers) -> Runs | None:
    """Return where the tokens of a field lie; None if documents must be read."""
    tables: dict[int, tuple[int, Segments]] = {}
    parts: list[tuple[Integers, ...]] = []
    if documents.in_python:
        return None
    for numbers in _chunks(starts, dtype.itemsize):
        table, which, first, size = (np.empty(len(numbers), np.int64) for _ in range(4))
        for rows, column, here in _columns(documents, numbers, name):
            if not isinstance(column, Ragged) or column.shapes is not None or column.dtype != dtype:
                return None
            ranges = column.ranges
            table[here], known = tables.setdefault(id(rows), (len(tables), ranges.segments))
            if known is not ranges.segments:
                return None  # each read has a new table: its values were copied
            which[here], first[here], size[here] = ranges.which, ranges.begin, column.lengths
        check_lengths(name, numbers, starts, size)
        begin, there = starts[numbers], np.flatnonzero(size)
        base = first - begin * dtype.itemsize
        parts.append(_joined(*(one[there] for one in (begin, table, which, base))))
    if not parts:
        return None
    begins, table, which, base = _joined(*map(np.concatenate, zip(*parts, strict=True)))
    return Runs([known for _, known in tables.values()], np.append(begins, starts[-1]), table, which, base)


def _joined(
    begin: Integers, table: Integers, which: Integers, base: Integers
) -> tuple[Integers, Integers, Integers, Integers]:
    """Join documents (or runs) that lie end to end: those in one buffer that have the same base."""
    new = np.ones(len(begin), np.bool_)
    new[1:] = (np.diff(table) != 0) | (np.diff(which) != 0) | (np.diff(base) != 0)
    return begin[new], table[new], which[new], base[new]


def _columns(rows: Any, numbers: Integers, name: str) -> Iterator[tuple[AbstractRows, Any, Integers]]:
    """Read a field of rows; yield each part that has some of the rows, its column, and their places in `numbers`."""
    if isinstance(rows, MediaRows):
        rows = rows.below
    if isinstance(rows, RenamedRows):
        yield from _columns(rows.below, numbers, rows.old_name(name))
    elif isinstance(rows, ConcatRows):
        for part, positions, here in rows.shares(numbers):
            for found, column, there in _columns(part, positions, name):
                yield found, column, here[there]
    elif hasattr(rows, "through"):  # a dataset
        yield from _columns(rows.rows, rows.order.rows(numbers), name)
    else:
        yield rows, rows.read(numbers, [name]).data[name], np.arange(len(numbers))


def _chunks(starts: Integers, item: int) -> Iterator[Integers]:
    """Yield the numbers of all documents: first one alone, then as many as may be copied at once."""
    count, first = len(starts) - 1, 0
    while first < count:
        most = int(np.searchsorted(starts, starts[first] + _CHUNK_BYTES // item, "right")) - 1
        last = min(max(first + 1, most), first + _CHUNK_ROWS, count) if first else 1
        yield np.arange(first, last)
        first = last


def check_lengths(name: str, numbers: Integers, starts: Integers, found: Integers) -> None:
    """Raise if documents have other lengths now than when the first token of each was computed."""
    expected = starts[numbers + 1] - starts[numbers]
    if not np.array_equal(expected, found):
        at = int((expected != found).argmax())
        raise SchemaError(
            f"expected {expected[at]} values as before, got {found[at]} - at sample {numbers[at]}, field {name}; "
            "the data has changed, open it again"
        )
