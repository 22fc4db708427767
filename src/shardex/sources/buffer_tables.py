"""Kernel tables over files in the page cache: ranges are downloaded before they are read, evicted files are closed.

`CachedSource.buffer_table` makes a `Segments` table and gives it the `fetch` of an `EvictingTable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shardex.kernel import Integers, Segments
from shardex.sources.protocols import CloseFile

if TYPE_CHECKING:
    from shardex.sources.cached_source import CachedSource

Wanted = tuple[str, Integers, Integers]
"""A path, and begin and end of each range."""


class EvictingTable:
    """Downloads ranges of a table's files and closes files in the table when the cache evicts them."""

    def __init__(self, source: CachedSource, paths: Sequence[str], close_file: CloseFile) -> None:
        self._source, self._paths, self._close_file = source, paths, close_file
        self._numbers: dict[str, list[int]] = {}
        for number, path in enumerate(paths):
            self._numbers.setdefault(path, []).append(number)
        self._complete = np.zeros(len(paths), np.bool_)
        """Files that are open in the table and have no missing page: their ranges need no check."""
        self.table: Callable[[], Segments | None] = lambda: None

    def fetch(self, which: Integers, begin: Integers, length: Integers, wait: bool) -> bool:
        """Download these ranges; without `wait` only start to. Return True if no byte was missing."""
        if self._complete[which].all():
            return True
        order = np.argsort(which, kind="stable")
        cuts = np.flatnonzero(np.diff(which[order])) + 1
        groups = np.split(order, cuts)
        numbers = [int(which[some[0]]) for some in groups]
        pairs = zip(numbers, groups, strict=True)
        wanted = [
            (self._paths[n], begin[some], begin[some] + length[some]) for n, some in pairs if not self._complete[n]
        ]
        nothing_missing = self._source.fetch_many(wanted, wait=wait)
        self._note_complete(numbers)
        return nothing_missing

    def _note_complete(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            # While a view is held, the cache keeps this file for the path, even if the table closes and reopens it now.
            file, held = self._source.hold(self._paths[number])
            if file.is_complete and (table := self.table()) is not None and table.lock is not None:
                with table.lock:
                    self._complete[number] = number in table.buffers
                    table.complete = bool(self._complete.all())
            del held

    def close(self, path: str) -> None:
        """Close a file in the table."""
        for number in self._numbers.get(path, ()):
            if self._close_file is not None:
                self._close_file(number)
            if (table := self.table()) is not None and table.lock is not None:
                with table.lock:
                    self._complete[number] = False
                    table.close(number)
