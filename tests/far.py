"""A local folder that acts as a remote store: ``far:///path`` is read through the page cache, and reads are counted.

Pages that were not fetched hold a pattern instead of zeros, so that tests notice a read without a fetch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shardex.errors import NotFoundError, SourceError
from shardex.sources import ByteRange, LocalSource, Stat
from shardex.sources.page_file import PagedFile
from shardex.sources.url import SCHEMES

POISON = 0xAA


class FarUrl(str):
    """A URL whose pickle makes another process import this module, which registers the scheme."""

    __slots__ = ()


class FarSource(LocalSource):
    """A folder whose files can only be read by ranges; counts reads, and can be slow or fail."""

    is_remote = True

    def __init__(self, root: str | os.PathLike[str], delay: float = 0.0) -> None:
        super().__init__(root)
        self.delay = delay
        self.failing = 0
        """Number of the next reads that fail."""
        self.gate: threading.Barrier | None = None
        """Reads wait here until enough of them run concurrently."""
        self.reads: list[tuple[str, list[ByteRange]]] = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return FarSource, (self.root, self.delay)

    @property
    def url(self) -> str:
        return f"far://{self.root}"

    @property
    def bytes_read(self) -> int:
        return sum(one.length for _, ranges in self.reads for one in ranges)

    def stat(self, path: str) -> Stat:
        if os.path.isdir(self.path(path)):
            raise NotFoundError(2, "an object store has no folders", path)
        return super().stat(path)

    def map(self, path: str) -> memoryview:
        raise AssertionError(f"{path} was mapped, though it is remote")

    load = map

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        with self._lock:
            self.reads.append((path, list(ranges)))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            failing, self.failing = self.failing, max(0, self.failing - 1)
        try:
            time.sleep(self.delay)
            if self.gate is not None:
                self.gate.wait()
            if failing:
                raise SourceError(5, "the store is out of order", path)
            return super().read(path, ranges)
        finally:
            with self._lock:
                self.at_once -= 1


def open_far(url: str, trusted: bool = True) -> FarSource:
    """Open a URL of the scheme; tests register it with `monkeypatch.setitem(SCHEMES, "far", open_far)`."""
    return FarSource(url.removeprefix("far://"))


if os.environ.setdefault("SHARDEX_TESTS", str(os.getpid())) != str(os.getpid()):  # a process that a test started
    SCHEMES["far"] = open_far


def far(path: str | os.PathLike[str]) -> FarUrl:
    """Return the URL of a local folder as a remote one."""
    return FarUrl(f"far://{os.path.abspath(path)}")


def _grow_poisoned(self: PagedFile, descriptor: int) -> None:
    for begin in range(0, self.size, 1 << 20):
        os.pwrite(descriptor, bytes([POISON]) * min(1 << 20, self.size - begin), begin)


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill pages that are not fetched with a pattern."""
    grow = PagedFile._grow
    PagedFile._grow = _grow_poisoned  # type: ignore[method-assign]
    try:
        yield
    finally:
        PagedFile._grow = grow  # type: ignore[method-assign]
