"""Files in memory: for tests, and for data that was never on disk. Source and sink."""

from __future__ import annotations

import errno
import hashlib
import io
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

from shardex.errors import NotFoundError, SourceError, TruncatedShardError
from shardex.sources.byte_ranges import ByteRange
from shardex.sources.protocols import Place, Stat, check_path

__all__ = ["MemorySource"]


class _Copy(bytes):
    """Bytes that are an object of their own, even if there are none, so that identity tells who came first."""


class MemorySource(Place):
    """A dict of files.

    >>> place = MemorySource({"a.txt": b"hello"})
    >>> bytes(place.map("a.txt")), place.put_if_absent("a.txt", b""), place.paths()
    (b'hello', False, ['a.txt'])
    """

    def __init__(self, files: dict[str, bytes] | None = None, url: str = "memory:") -> None:
        self.files = {check_path(path): bytes(data) for path, data in (files or {}).items()}
        self._times = dict.fromkeys(self.files, time.time())
        self._url = url

    @property
    def url(self) -> str:
        """A name; only a source that was opened by its URL can be opened by it again."""
        return self._url

    def _get(self, path: str) -> bytes:
        try:
            return self.files[check_path(path)]
        except KeyError:
            raise NotFoundError(errno.ENOENT, "no such file in memory", path) from None

    def stat(self, path: str) -> Stat:
        """Size and a digest of the content."""
        data = self._get(path)
        written = self._times.get(path) or time.time()  # another thread is just putting it
        return Stat(len(data), hashlib.blake2b(data, digest_size=8).hexdigest(), written)

    def paths(self, prefix: str = "") -> list[str]:
        """Every path."""
        return sorted(path for path in list(self.files) if path.startswith(prefix))

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Slices of the file."""
        data = memoryview(self._get(path))
        for one in ranges:
            if one.end > len(data):
                raise TruncatedShardError(f"{path}: expected bytes up to {one.end}, got a file of {len(data)} bytes")
        return [data[one.begin : one.end] for one in ranges]

    def map(self, path: str) -> memoryview:
        """The file itself."""
        return memoryview(self._get(path))

    def put(self, path: str, data: Any) -> None:
        """Keep a copy."""
        self.files[check_path(path)] = bytes(data)
        self._times[path] = time.time()

    def put_if_absent(self, path: str, data: Any) -> bool:
        """Keep a copy if there is none; `setdefault` makes it one step."""
        mine = _Copy(data)
        if won := self.files.setdefault(check_path(path), mine) is mine:
            self._times[path] = time.time()
        return won

    def draft(self) -> MemoryDraft:
        """A buffer that `publish` puts."""
        return MemoryDraft(self)

    def touch(self, path: str) -> None:
        """Note the time."""
        self._get(path)
        self._times[path] = time.time()

    def remove(self, path: str) -> None:
        """Forget a file."""
        if self.files.pop(check_path(path), None) is None:
            self._get(path)
        self._times.pop(path, None)


class MemoryDraft:
    """A buffer that becomes a file by `publish`."""

    def __init__(self, place: MemorySource) -> None:
        self._place = place
        self._buffer = io.BytesIO()

    @property
    def file(self) -> BinaryIO:
        """Write here."""
        return self._buffer

    def close(self, size: int) -> None:
        """An error if it has another size."""
        if (found := len(self._buffer.getbuffer())) != size:
            raise SourceError(errno.EIO, f"expected {size} bytes in memory, got {found}", self._place.url)

    def publish(self, path: str) -> None:
        """Put the buffer's content."""
        self._place.put(path, self._buffer.getvalue())
        self.discard()

    def discard(self) -> None:
        """Drop the buffer."""
        self._buffer = io.BytesIO()
