"""Files in memory, for tests and for data that was never on disk."""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Sequence
from typing import Any

from shardex.errors import NotFoundError, TruncatedShardError
from shardex.sources.byte_ranges import ByteRange
from shardex.sources.protocols import Place, Stat, TemporaryDraft, check_path


class _Copy(bytes):
    """A distinct object even for empty bytes, so that comparing identities shows which writer was first."""


class MemorySource(Place):
    """A dict of files.

    >>> place = MemorySource({"a.txt": b"hello"})
    >>> bytes(place.map("a.txt")), place.put_if_absent("a.txt", b""), place.paths()
    (b'hello', False, ['a.txt'])
    """

    def __init__(self, files: dict[str, bytes] | None = None, url: str = "memory:") -> None:
        self.files = {check_path(path): bytes(data) for path, data in (files or {}).items()}
        self._times = dict.fromkeys(self.files, time.time())
        self.url = url

    def _get(self, path: str) -> bytes:
        try:
            return self.files[check_path(path)]
        except KeyError:
            raise NotFoundError(errno.ENOENT, "no such file in memory", path) from None

    def stat(self, path: str) -> Stat:
        """Return size and a hash of the content as the tag."""
        data = self._get(path)
        written = self._times.get(path) or time.time()  # another thread is writing it
        return Stat(len(data), hashlib.blake2b(data, digest_size=8).hexdigest(), written)

    def paths(self, prefix: str = "") -> list[str]:
        """Return all paths that begin with `prefix`."""
        return sorted(path for path in list(self.files) if path.startswith(prefix))

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return slices of the file."""
        data = memoryview(self._get(path))
        for one in ranges:
            if one.end > len(data):
                raise TruncatedShardError(f"{path}: expected bytes up to {one.end}, got a file of {len(data)} bytes")
        return [data[one.begin : one.end] for one in ranges]

    def map(self, path: str) -> memoryview:
        """Return the file."""
        return memoryview(self._get(path))

    def put(self, path: str, data: Any) -> None:
        """Store a copy."""
        self.files[check_path(path)] = bytes(data)
        self._times[path] = time.time()

    def put_if_absent(self, path: str, data: Any) -> bool:
        """Store a copy if the path is free; `setdefault` is atomic."""
        mine = _Copy(data)
        if won := self.files.setdefault(check_path(path), mine) is mine:
            self._times[path] = time.time()
        return won

    def draft(self) -> TemporaryDraft:
        """Start a temporary file whose content `publish` stores."""
        return TemporaryDraft(self.put)

    def copy(self, path: str, to: str) -> None:
        """Store the same content under a second path."""
        self.put(to, self._get(path))

    def remove(self, path: str) -> None:
        """Delete a file."""
        if self.files.pop(check_path(path), None) is None:
            self._get(path)
        self._times.pop(path, None)
