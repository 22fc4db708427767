"""`locked_file`: a lock between processes, which is a file that exists while the lock is held.

The lock is that of the system (`flock`) on the file: a process that dies does not keep it. The file is
removed before the lock is released, so a file without a lock was left by a process that died; the next holder is told
what that process had written into it. A forked child does not hold the lock of its parent.

No data may depend on the lock: some network file systems have none, or one for each machine.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from shardex.errors import storage_errors
from shardex.sources.local import sync_file, sync_folder

_SHORTEST, _LONGEST = 0.02, 0.5
"""Seconds between two attempts to take the lock, while `waiting` is called."""


@dataclass
class LockedFile:
    """A lock that is held."""

    path: str
    descriptor: int
    is_locked: bool
    """False on a file system without locks: other processes may hold the lock too."""
    left: bytes
    """What a process that died while it held the lock had written into the file; empty if there was none."""
    stays: bool = False
    """Set it to leave the file with its content for the next holder, as if this process had died."""

    def note(self, content: bytes) -> None:
        """Write something durably into the file, for those who wait, and for the next holder if this process dies."""
        with storage_errors(self.path, "write"):
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, content, 0)
            sync_file(self.descriptor)
            sync_folder(os.path.dirname(self.path))

    @property
    def age(self) -> float:
        """Seconds since something was noted in the file."""
        return time.time() - os.fstat(self.descriptor).st_mtime

    def noted(self) -> bytes:
        """Return the content of the file that has the path now."""
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except OSError:
            return b""


@contextmanager
def locked_file(
    path: str, *, wait: bool = True, waiting: Callable[[bytes], object] | None = None
) -> Iterator[LockedFile | None]:
    """Hold the lock of a path while the block runs; wait for other holders, or with ``wait=False`` give None.

    `waiting` is called again and again while another process holds the lock, with what that has noted in the file.

    >>> import tempfile; path = tempfile.mkdtemp() + "/a.lock"
    >>> with locked_file(path) as held, locked_file(path, wait=False) as second:
    ...     held.note(b"mine"); os.path.exists(path), second
    (True, None)
    >>> os.path.exists(path)
    False
    """
    held = _take(path, wait, waiting)
    if held is None:
        yield None
        return
    _held[held.descriptor] = os.getpid()
    try:
        yield held
    finally:
        if _held.pop(held.descriptor, None) == os.getpid():  # not in a forked child
            if not held.stays and is_file_of(path, held.descriptor):
                with suppress(OSError):
                    os.unlink(path)
            os.close(held.descriptor)


def _take(path: str, wait: bool, waiting: Callable[[bytes], object] | None) -> LockedFile | None:
    """Take the lock of the file that has the path; the holder before may just have removed the one that was opened."""
    while True:
        with storage_errors(path, "create"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            is_locked = _lock(descriptor, wait, waiting)
            if is_locked is not None and is_file_of(path, descriptor):
                left = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
                return LockedFile(path, descriptor, is_locked, left)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if is_locked is None:
            return None


def _lock(descriptor: int, wait: bool, waiting: Callable[[bytes], object] | None) -> bool | None:
    """Lock a file; return False if files cannot be locked here, None if another process has it and `wait` is False."""
    at_once, seconds = not wait or waiting is not None, _SHORTEST
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if at_once else 0))
            return True
        except BlockingIOError:
            if not wait:
                return None
        except OSError:
            return False
        if waiting is not None:
            waiting(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
        time.sleep(seconds)
        seconds = min(2 * seconds, _LONGEST)


def is_file_of(path: str, descriptor: int) -> bool:
    """Return True if the open file still has this path."""
    with suppress(OSError):
        named, mine = os.stat(path), os.fstat(descriptor)
        return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)
    return False


_held: dict[int, int] = {}
"""Process that holds each descriptor."""


def _release_in_child() -> None:
    """Close the descriptors of the parent: as long as a child has them open, the lock outlives the parent."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
