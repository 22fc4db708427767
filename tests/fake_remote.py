"""A local folder that acts as a remote store: URLs ``fakeremote:///path`` are read by ranges, and reads are counted.

`missing_pages_filled` fills pages of the cache that were not fetched with a pattern instead of zeros, so that tests
notice a read without a fetch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from shardex.errors import NotFoundError, SourceError
from shardex.sources import ByteRange, LocalSource, Stat
from shardex.sources.page_file import PagedFile
from shardex.sources.url import SCHEMES

FILL_BYTE = 0xAA


class FakeRemoteUrl(str):
    """A URL whose pickle makes another process import this module, which registers the scheme."""

    __slots__ = ()


class FakeRemote(LocalSource):
    """A folder whose files can only be read by ranges; counts reads, and can be slow or fail."""

    is_remote = True

    def __init__(self, root: str | os.PathLike[str], delay: float = 0.0) -> None:
        super().__init__(root)
        self.url = f"fakeremote://{self.root}"
        self.delay = delay
        self.failures_left = 0
        """Number of the next reads that fail."""
        self.barrier: threading.Barrier | None = None
        """Reads wait here until enough of them run concurrently."""
        self.reads: list[tuple[str, list[ByteRange]]] = []
        self.running = self.most_running = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return FakeRemote, (self.root, self.delay)

    @property
    def bytes_read(self) -> int:
        return sum(one.length for _, ranges in self.reads for one in ranges)

    def stat(self, path: str) -> Stat:
        if os.path.isdir(self.path(path)):
            raise NotFoundError(2, "an object store has no folders", path)
        return replace(super().stat(path), identity="")

    def map(self, path: str) -> memoryview:
        raise AssertionError(f"{path} was mapped, though it is remote")

    load = map

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        with self._lock:
            self.reads.append((path, list(ranges)))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            fails, self.failures_left = self.failures_left > 0, max(0, self.failures_left - 1)
        try:
            time.sleep(self.delay)
            if self.barrier is not None:
                self.barrier.wait()
            if fails:
                raise SourceError(5, "the store is out of order", path)
            return super().read(path, ranges)
        finally:
            with self._lock:
                self.running -= 1


def open_fake_remote(url: str, trusted: bool = True) -> FakeRemote:
    """Open a URL of the scheme; tests register this function in `SCHEMES`."""
    return FakeRemote(url.removeprefix("fakeremote://"))


if os.environ.setdefault("SHARDEX_TESTS", str(os.getpid())) != str(os.getpid()):  # a process that a test started
    SCHEMES["fakeremote"] = open_fake_remote


def fake_remote_url(path: str | os.PathLike[str]) -> FakeRemoteUrl:
    """Return the URL of a local folder as a remote one."""
    return FakeRemoteUrl(f"fakeremote://{os.path.abspath(path)}")


def _grow_filled(self: PagedFile, descriptor: int) -> None:
    for begin in range(0, self.size, 1 << 20):
        os.pwrite(descriptor, bytes([FILL_BYTE]) * min(1 << 20, self.size - begin), begin)


@contextmanager
def missing_pages_filled() -> Iterator[None]:
    """Fill pages that were not fetched with a pattern."""
    grow = PagedFile._grow
    PagedFile._grow = _grow_filled  # type: ignore[method-assign]
    try:
        yield
    finally:
        PagedFile._grow = grow  # type: ignore[method-assign]
