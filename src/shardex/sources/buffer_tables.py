"""Tables of files (`Segments`) that are fetched before they are read, and closed when the cache needs their room."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shardex.kernel import Segments
from shardex.sources.cached_source import CachedSource
from shardex.sources.checked_source import CheckedSource
from shardex.sources.protocols import Source

__all__ = ["file_table"]

Integers = NDArray[np.int64]


def file_table(
    source: Source,
    paths: Sequence[str],
    opener: Callable[[int], None],
    name: Callable[[int], str],
    let_go: Callable[[int], None] | None = None,
) -> Segments:
    """A table of files that are mapped by `opener`; if they lie elsewhere, ranges are fetched before they are read.

    `let_go` is told which file must go, so that its owner holds no view of it beside the table.
    """
    if isinstance(source, CheckedSource):
        return Segments(len(paths), opener, name, fetch=source.fetch_of(paths))
    if not isinstance(source, CachedSource):
        return Segments(len(paths), opener, name)
    hook = _Hook(source, paths, let_go)
    made = Segments(len(paths), opener, name, fetch=hook.fetch)
    hook.table = weakref.ref(made)
    source.tell(hook)
    return made


class _Hook:
    """Fetches ranges of a table's files, and has the table let go of files."""

    def __init__(self, source: CachedSource, paths: Sequence[str], let_go: Callable[[int], None] | None) -> None:
        self._source, self._paths, self._let_go = source, paths, let_go
        self._numbers: dict[str, list[int]] = {}
        for number, path in enumerate(paths):
            self._numbers.setdefault(path, []).append(number)
        self._whole = np.zeros(len(paths), np.bool_)
        """Which files are open in the table and have no page missing: most, after a while."""
        self.table: Callable[[], Segments | None] = lambda: None

    def fetch(self, which: Integers, begin: Integers, length: Integers, wait: bool) -> bool:
        """Have these ranges be here; whether they were."""
        if self._whole[which].all():
            return True
        order = np.argsort(which, kind="stable")
        cuts = np.flatnonzero(np.diff(which[order])) + 1
        groups = np.split(order, cuts)
        numbers = [int(which[some[0]]) for some in groups]
        pairs = zip(numbers, groups, strict=True)
        wanted = [(self._paths[n], begin[some], begin[some] + length[some]) for n, some in pairs if not self._whole[n]]
        were_here = self._source.fetch_many(wanted, wait=wait)
        self._note_whole(numbers)
        return were_here

    def _note_whole(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            # While it is held it is what the table has, even if the table lets go of it now and opens it again.
            file, held = self._source.hold(self._paths[number])
            if file.whole and (made := self.table()) is not None and made.lock is not None:
                with made.lock:
                    self._whole[number] = number in made.buffers
                    made.complete = bool(self._whole.all())
            del held

    def let_go(self, path: str) -> None:
        """Close a file."""
        for number in self._numbers.get(path, ()):
            if self._let_go is not None:
                self._let_go(number)
            if (made := self.table()) is not None and made.lock is not None:
                with made.lock:
                    self._whole[number] = False
                    made.forget(number)
