"""`SharedFolder`: a temporary folder that several runs use at the same time, and that ends in one step.

A run keeps the folder open while it needs it (`opened`). On a disk that is a lock of the system, which a killed run
does not keep: so the next run knows that it is alone, and can remove leftovers. In a store there are no locks and no
folders: a run never knows that it is alone. No data may depend on a lock, as some network file systems have none.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from shardex.errors import NotFoundError, storage_errors
from shardex.sources.local import make_folder
from shardex.sources.protocols import Place
from shardex.sources.url import child_of, place_of

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
