"""Files in memory: for tests, and for data that was never on disk. Source and sink."""

from __future__ import annotations

import errno
import hashlib
import io
from collections.abc import Sequence
from typing import Any, BinaryIO

from shardex.errors import NotFoundError, TruncatedShardError
from shardex.ranges import ByteRange
from shardex.source import Stat, inside

__all__ = ["MemorySource"]


class _Copy(bytes):
    """Bytes that are an object of their own, even if there are none, so that identity tells who came first."""


class MemorySource:
    """A dict of files.

    >>> place = MemorySource({"a.txt": b"hello"})
    >>> bytes(place.map("a.txt")), place.put_if_absent("a.txt", b""), place.paths()
    (b'hello', False, ['a.txt'])
    """

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = {inside(path): bytes(data) for path, data in (files or {}).items()}

    @property
    def url(self) -> str:
        """A name; a memory source cannot be opened by it."""
        return "memory:"

    def _get(self, path: str) -> bytes:
        try:
            return self.files[inside(path)]
        except KeyError:
            raise NotFoundError(errno.ENOENT, "no such file in memory", path) from None

    def stat(self, path: str) -> Stat:
        """Size and a digest of the content."""
        data = self._get(path)
        return Stat(len(data), hashlib.blake2b(data, digest_size=8).hexdigest())

    def paths(self, prefix: str = "") -> list[str]:
        """Every path."""
        return sorted(path for path in self.files if path.startswith(prefix))

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
        self.files[inside(path)] = bytes(data)

    def put_if_absent(self, path: str, data: Any) -> bool:
        """Keep a copy if there is none; `setdefault` makes it one step."""
        mine = _Copy(data)
        return self.files.setdefault(inside(path), mine) is mine

    def draft(self) -> MemoryDraft:
        """A buffer that `publish` puts."""
        return MemoryDraft(self)

    def remove(self, path: str) -> None:
        """Forget a file."""
        self._get(path)
        del self.files[path]


class MemoryDraft:
    """A buffer that becomes a file by `publish`."""

    def __init__(self, place: MemorySource) -> None:
        self._place = place
        self._buffer = io.BytesIO()

    @property
    def file(self) -> BinaryIO:
        """Write here."""
        return self._buffer

    def publish(self, path: str) -> None:
        """Put the buffer's content."""
        self._place.put(path, self._buffer.getvalue())

    def discard(self) -> None:
        """Drop the buffer."""
        self._buffer = io.BytesIO()
