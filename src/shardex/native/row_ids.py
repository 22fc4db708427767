"""Row ids, physical rows and live rows of a version: pure arithmetic on sorted arrays.

A row keeps its id in all versions. Its physical row is its number among the rows of all fragments, deleted ones
included; its row, the number that users see, counts only rows that are not deleted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardex.kernel import Integers


class RowIds:
    """Ids of physical rows: fragment k has `lengths[k]` rows with consecutive ids from `firsts[k]` on.

    >>> ids = RowIds([10, 0], [3, 2])
    >>> ids.ids(np.arange(5)).tolist(), ids.physical_rows(np.array([1, 12, 7])).tolist()
    ([10, 11, 12, 0, 1], [4, 2, -1])
    """

    def __init__(self, firsts: Sequence[int] | Integers, lengths: Sequence[int] | Integers) -> None:
        self._firsts = np.array(firsts, np.int64)
        self._starts: Integers = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self._sorted = np.argsort(self._firsts, kind="stable")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def ids(self, physical: Integers) -> Integers:
        """Return the id of each physical row."""
        run = np.searchsorted(self._starts, physical, "right") - 1
        return self._firsts[run] + (physical - self._starts[run])

    def physical_rows(self, ids: Integers) -> Integers:
        """Return the physical row of each id, -1 for ids that no fragment has."""
        if not len(self._firsts):
            return np.full(len(ids), -1, np.int64)
        run = self._sorted[np.searchsorted(self._firsts[self._sorted], ids, "right") - 1]
        within = ids - self._firsts[run]
        there = (within >= 0) & (within < np.diff(self._starts)[run])
        return np.where(there, self._starts[run] + within, -1)


class LiveRows:
    """The rows that are not deleted, out of `length` physical rows; ids of no row (-1) in `deleted` are ignored.

    >>> live = LiveRows(5, np.array([0, 3, -1]))
    >>> live.physical_rows(np.arange(3)).tolist(), live.rows(np.array([4, 1])).tolist()
    ([1, 2, 4], [2, 0])
    >>> live.physical_row(2)
    4
    >>> live.is_live(np.array([3, 4])).tolist()
    [False, True]
    """

    def __init__(self, length: int, deleted: Integers) -> None:
        self._deleted = np.unique(deleted[deleted >= 0])
        self._length = length - len(self._deleted)
        self._before = self._deleted - np.arange(len(self._deleted))  # live rows before each deleted physical row

    def __len__(self) -> int:
        return self._length

    def physical_rows(self, rows: Integers) -> Integers:
        """Return the physical row of each row."""
        return rows + np.searchsorted(self._before, rows, "right") if len(self._deleted) else rows

    @cached_property
    def _before_view(self) -> memoryview:
        """`_before` for a search without arrays, which for one row is three times as fast."""
        return self._before.data

    def physical_row(self, row: int) -> int:
        """Return the physical row of one row."""
        return row + bisect_right(self._before_view, row)

    def rows(self, physical: Integers) -> Integers:
        """Return the row of each physical row; for a deleted one the next row."""
        return physical - np.searchsorted(self._deleted, physical, "left") if len(self._deleted) else physical

    def is_live(self, physical: Integers) -> NDArray[np.bool_]:
        """Return for each physical row whether it is not deleted."""
        if not len(self._deleted):
            return np.ones(len(physical), np.bool_)
        at = np.minimum(np.searchsorted(self._deleted, physical, "left"), len(self._deleted) - 1)
        live: NDArray[np.bool_] = self._deleted[at] != physical
        return live
