"""Drafts of places that cannot write a file piece by piece: a local temporary file that is put when it is complete."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Callable
from typing import BinaryIO

from shardex.errors import storage_errors


class TemporaryDraft:
    """A local temporary file that `publish` passes to `put`; it is deleted when the process ends.

    >>> draft = TemporaryDraft(lambda path, data: print(path, bytes(data)))
    >>> draft.file.write(b"hello"); draft.publish("a.txt")
    5
    a.txt b'hello'
    """

    is_elsewhere = True

    def __init__(self, put: Callable[[str, memoryview], None]) -> None:
        self._put = put
        with storage_errors(tempfile.gettempdir(), "create a temporary file in"):
            self.file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed by publish or discard

    def close(self, size: int) -> None:
        """End the writing; raise an error if the file does not have `size` bytes."""
        with storage_errors(tempfile.gettempdir(), "write a temporary file in"):
            self.file.flush()
            if (found := os.fstat(self.file.fileno()).st_size) != size:
                raise OSError(errno.EIO, f"expected {size} bytes on the disk, got {found}")

    def publish(self, path: str) -> None:
        """Put what was written."""
        with storage_errors(tempfile.gettempdir(), "write a temporary file in"):
            self.file.flush()
            size = os.fstat(self.file.fileno()).st_size
            data = mmap.mmap(self.file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
        self._put(path, memoryview(data))
        self.discard()

    def discard(self) -> None:
        """Delete the temporary file."""
        self.file.close()
