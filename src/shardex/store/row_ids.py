"""From the ids of rows, which they keep for life, to their places in a version, and back; and to those not deleted.

Places count the rows of all fragments one after another, deleted ones too. Pure arithmetic on sorted arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardex.kernel import Integers

__all__ = ["RowIds", "Survivors"]


class RowIds:
    """Runs of ids, given by their first ones and lengths, in the order of their places.

    >>> ids = RowIds([10, 0], [3, 2])
    >>> ids.of(np.arange(5)).tolist(), ids.places(np.array([1, 12, 7])).tolist()
    ([10, 11, 12, 0, 1], [4, 2, -1])
    """

    def __init__(self, firsts: Sequence[int], lengths: Sequence[int]) -> None:
        self._firsts = np.array(firsts, np.int64)
        self._starts: Integers = np.cumsum([0, *lengths], dtype=np.int64)
        self._sorted = np.argsort(self._firsts, kind="stable")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def of(self, places: Integers) -> Integers:
        """The id of the row at each place."""
        run = np.searchsorted(self._starts, places, "right") - 1
        return self._firsts[run] + (places - self._starts[run])

    def places(self, ids: Integers) -> Integers:
        """Where the row of each id is, -1 for rows that are in no run."""
        if not len(self._firsts):
            return np.full(len(ids), -1, np.int64)
        run = self._sorted[np.searchsorted(self._firsts[self._sorted], ids, "right") - 1]
        within = ids - self._firsts[run]
        there = (within >= 0) & (within < np.diff(self._starts)[run])
        return np.where(there, self._starts[run] + within, -1)


class Survivors:
    """The places that are left when some are deleted, as an order: row k is at the k-th of them.

    >>> left = Survivors(5, np.array([0, 3]))
    >>> left.rows(np.arange(3)).tolist(), left.positions(np.array([4, 1])).tolist()
    ([1, 2, 4], [2, 0])
    >>> left.alive(np.array([3, 4])).tolist()
    [False, True]
    """

    def __init__(self, length: int, deleted: Integers) -> None:
        self._deleted = np.unique(deleted)
        self._length = length - len(self._deleted)
        self._before = self._deleted - np.arange(len(self._deleted))  # rows that are left before each deleted place

    def __len__(self) -> int:
        return self._length

    def rows(self, positions: Integers) -> Integers:
        """The place of each row."""
        return positions + np.searchsorted(self._before, positions, "right")

    def positions(self, places: Integers) -> Integers:
        """The row at each place; for a deleted place the next one."""
        return places - np.searchsorted(self._deleted, places, "left")

    def alive(self, places: Integers) -> NDArray[np.bool_]:
        """Whether each place is left."""
        if not len(self._deleted):
            return np.ones(len(places), np.bool_)
        at = np.minimum(np.searchsorted(self._deleted, places, "left"), len(self._deleted) - 1)
        alive: NDArray[np.bool_] = self._deleted[at] != places
        return alive
