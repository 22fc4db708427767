"""Temporary folders of writers: names, a lock that tells whether the writer lives, and removal of abandoned ones.

A writer locks its folder; the system drops the lock when the process ends, however it ends. The next writer to the same
target removes folders that it can lock. Locks may not reach other machines, so a name has digits of the machine, and
folders of other machines stay. They also stay where the file system has no locks.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import secrets
import shutil
import weakref
from collections.abc import Callable
from contextlib import suppress
from zlib import crc32

REPLACED = ".replaced"
"""Folder in a temporary one with files that were in the target: of a writer that was killed, there are no others."""
_OWN = re.compile(r"(.+)[0-9a-f]{8}(\.tmp|)")


def temporary_name(before: str, after: str = "") -> str:
    """Return a new name: twelve digits, of which the first four stand for this machine, between two texts."""
    return f"{before}{crc32(platform.node().encode()) & 0xFFFF:04x}{secrets.token_hex(4)}{after}"


def remove_abandoned(folder: str) -> None:
    """Remove the folders beside one whose names differ only in the random digits, and whose writers have ended."""
    parent, name = os.path.split(folder)
    if (own := _OWN.fullmatch(name)) is None:
        return
    like = re.compile(rf"{re.escape(own[1])}[0-9a-f]{{8}}{re.escape(own[2])}")
    with suppress(OSError):  # there is no such folder yet, or it cannot be listed
        for other in filter(like.fullmatch, os.listdir(parent)):
            _remove_unlocked(os.path.join(parent, other))


def _remove_unlocked(folder: str) -> None:
    with suppress(OSError):  # another writer has removed it, it is locked, or there are no locks
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if REPLACED not in os.listdir(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


class FolderLock:
    """Makes a folder and keeps it locked until `release`, or the end of the process."""

    def __init__(self, folder: str, make: Callable[[str], None]) -> None:
        make(folder)
        while not self._lock(folder):  # another writer has removed it before it was locked
            make(folder)

    def _lock(self, folder: str) -> bool:
        try:
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return False
        self._close = weakref.finalize(self, os.close, self._descriptor)
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._descriptor), os.stat(folder)):
                return True
        self._close()
        return False

    def release(self) -> None:
        """Unlock the folder, for forked processes too."""
        if self._close.alive:
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._close()
