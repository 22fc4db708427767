"""What processes share while they run: `locked_file`, a lock, and `SharedFolder`, a temporary folder of several runs.

A lock is that of the system (`flock`) on a file that exists while the lock is held: a process that dies does not keep
it. The file is removed before the lock is released, so a file without a lock was left by a process that died; the next
holder is told what that process had written into it. A forked child does not hold the lock of its parent.

A run keeps a shared folder open while it needs it (`opened`), and it ends in one step. On a disk that is a lock of the
system: so the next run knows that it is alone, and can remove leftovers. In a store there are no locks and no folders:
a run never knows that it is alone.

No data may depend on a lock: some network file systems have none, or one for each machine.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from shardex.errors import NotFoundError, storage_errors
from shardex.sources.local import make_folder, sync_file, sync_folder
from shardex.sources.protocols import Place
from shardex.sources.url import child_of, place_of

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

# -- folders ------------------------------------------------------------------------------------------------------

_OPENED = 10
"""How often a folder is created that other runs remove before it is open."""


def shared_folder(parent: str, name: str) -> SharedFolder:
    """Return the folder with this name in another folder or at a URL; it does not have to exist."""
    around = place_of(parent)
    return SharedFolder(around, name) if around.is_remote else _LocalFolder(around, name)


class SharedFolder:
    """A folder in a store."""

    ended = ".removed"
    """What is added to the name of a local folder when it ends."""

    def __init__(self, around: Place, name: str) -> None:
        self.around, self.name = around, name
        """The place that holds the folder, and the name of the folder in it."""
        self.url = child_of(around.url, name)
        self.place = place_of(self.url)

    @contextmanager
    def opened(self, sweep: Callable[[], None]) -> Iterator[None]:
        """Keep the folder open while the block runs; `sweep` is called before, if no other run has it open."""
        yield

    def is_unused(self) -> bool:
        """Return True if it is known that no other run has the folder open."""
        return False

    @contextmanager
    def locked(self, name: str) -> Iterator[bool]:
        """Let one run at a time execute the block; gives False if others may execute it, too."""
        yield False

    def exists(self, first: str) -> bool:
        """Return True if a run has created the folder; `first` is the file that it writes first."""
        return bool(self.place.paths(first))

    def is_elsewhere(self) -> bool:
        """Return True if this machine does not see the folder that another one has opened."""
        return False

    @property
    def is_ended(self) -> bool:
        """True if a run was killed while `end` removed the folder."""
        return False

    def end(self, note: Callable[[], None], remove: Callable[[str], None]) -> None:
        """End the use of the folder in one step, then remove it.

        `remove` is called with the names of what is to be removed. Where folders cannot be renamed, `note` is called
        first: it writes into the folder that its use has ended.
        """
        note()
        remove(self.name)


class _LocalFolder(SharedFolder):
    """A folder on a disk, or on a network file system."""

    @contextmanager
    def opened(self, sweep: Callable[[], None]) -> Iterator[None]:
        self._descriptor = descriptor = self._open()
        try:
            if self.is_unused():
                sweep()
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        """Open the folder, and create it if it is not there; another run may remove it in between."""
        with storage_errors(self.url, "create"):
            for _ in range(_OPENED):
                make_folder(self.url)
                with suppress(FileNotFoundError):
                    return os.open(self.url, os.O_RDONLY | os.O_CLOEXEC)
        raise NotFoundError(errno.ENOENT, "other runs have removed it again and again", self.url)

    def is_unused(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    @contextmanager
    def locked(self, name: str) -> Iterator[bool]:
        with open(os.path.join(self.url, name), "ab") as file:
            alone = False
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
                alone = True
            yield alone

    def exists(self, first: str) -> bool:
        return os.path.isdir(self.url)

    def is_elsewhere(self) -> bool:
        return not os.path.isdir(self.url)

    @property
    def is_ended(self) -> bool:
        return os.path.isdir(f"{self.url}{self.ended}")

    def end(self, note: Callable[[], None], remove: Callable[[str], None]) -> None:
        with suppress(OSError):  # it does not exist, or another run has removed it
            os.rename(self.url, f"{self.url}{self.ended}")
        remove(self.name)  # what a worker of another run may have written to it since
        remove(f"{self.name}{self.ended}")
