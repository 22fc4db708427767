"""The cache folder: files that lie elsewhere, as far as they are here (`pages.py`), together no larger than a limit.

What was not used for longest goes first: files that this process has not open, then those that are open. A file that is
open is not taken away from under its readers: they are asked to let go of it, and it goes when the last view of it has
gone. Without a folder, or where the folder cannot be used, files are in memory, under a limit of their own. Processes
share a folder without locks: a file that another one removed lives on where it is mapped.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import threading
import warnings
import weakref
from contextlib import suppress
from typing import Protocol

from shardex.errors import ArgumentError
from shardex.sources.page_file import PagedFile

__all__ = ["Cache", "Holder", "bytes_of", "cache_in"]

_LARGEST = 50 * 10**9
_LARGEST_IN_MEMORY = 4 << 30
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_FULL = 0.9
"""Where there is no room, so much of the limit is left, so that not every fetch has to look for room."""


class Holder(Protocol):
    """Holds views of files, and can let go of them because it can get them again."""

    def let_go(self, file: PagedFile) -> None:
        """Hold no view of this file, from now on or as soon as no read needs it."""


def bytes_of(limit: int | str) -> int:
    """A number of bytes, as people write it.

    >>> bytes_of(5), bytes_of("50 GB"), bytes_of("1.5g")
    (5, 50000000000, 1500000000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", str(limit).lower())
    if isinstance(limit, bool) or not found or float(found[1]) <= 0:
        raise ArgumentError(f'expected a limit such as 5_000_000 or "50 GB", got {limit!r}')
    return int(float(found[1]) * _UNITS[found[2]])


class Cache:
    """Files by key, in a folder or in memory."""

    def __init__(self, folder: str | None, limit: int | None = None) -> None:
        self.folder = None if folder is None else os.path.join(folder, "pages")
        self.refused = 0
        """How often the folder could not be used, and memory was."""
        self._files: dict[str, PagedFile] = {}
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._clock = itertools.count(1)
        self._given = limit
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """What a forked child must have anew."""
        self._lock = threading.RLock()
        self._ready: bool | None = None
        self._limit: int | None = None
        self._unseen: int | None = None
        """Bytes written since the folder was looked at; nothing if it never was."""
        self._owed = False
        """Whether there is too much, because all of it was held: when files are opened again, others can go."""
        for file in self._files.values():
            file.lock, file.coming = threading.Lock(), []

    @property
    def limit(self) -> int:
        """How many bytes there may be."""
        if self._limit is None:
            given = self._given or os.environ.get("SHARDEX_CACHE_LIMIT")
            usual = min(_LARGEST_IN_MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
            if self._is_ready() and self.folder is not None:
                self._limit = bytes_of(given) if given else _default_limit(self.folder)
            else:
                self._limit = min(usual, bytes_of(given or usual)) if self.folder else bytes_of(given or usual)
        return self._limit

    def register(self, holder: Holder) -> None:
        """Ask this one, too, to let go of files."""
        self._holders.add(holder)

    def hold(self, key: str, size: int) -> tuple[PagedFile, memoryview]:
        """A file, and a view of it: while a view is held, the file of this key stays the same."""
        with self._lock:
            file = self._files.get(key)
            if file is None:
                place = os.path.join(self.folder, key) if self._is_ready() and self.folder is not None else None
                file = self._files[key] = PagedFile(size, place)
                file.key = key
            file.used = next(self._clock)
            fresh = not file.alive
            view = file.view()
            if fresh and self._owed:
                self._unseen = None
                self.make_room(0, file)
            if fresh and file.path is not None:
                with suppress(OSError):  # as old as its last use, for other processes that look for room
                    os.utime(file.path, follow_symlinks=False)
            return file, view

    def _is_ready(self) -> bool:
        """Whether the folder is there, ours, and nobody else's."""
        if self.folder is None:
            return False
        if self._ready is None:
            try:
                os.makedirs(os.path.dirname(self.folder), exist_ok=True)
                with suppress(FileExistsError):
                    os.mkdir(self.folder, 0o700)
                found = os.lstat(self.folder)
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                    raise PermissionError(errno.EPERM, "expected a folder of our own, not a link or somebody else's")
                if found.st_mode & 0o077:
                    os.chmod(self.folder, 0o700)
                if not os.access(self.folder, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, "expected a folder that we may write into")
                self._ready = True
            except OSError as error:
                self._give_up(error)
        return bool(self._ready)

    def _give_up(self, error: OSError) -> None:
        """Use memory from now on, and say so once."""
        if self._ready is not False:
            warnings.warn(
                f"{self.folder}: expected a folder to cache remote files in, got {error.strerror or error}; they are "
                "kept in memory, and fetched again when that is full. Make room there, or name another folder by "
                "cache= or SHARDEX_CACHE",
                stacklevel=5,
            )
        self._ready, self._limit = False, None
        self.refused += 1

    # -- room ------------------------------------------------------------------------------------------------

    def look_after(self, file: PagedFile) -> None:
        """Look at a file into which pages were put: if it lost its place on the disk, begin another instead."""
        if (error := file.refused) is None:
            return
        file.refused = None
        with self._lock:
            # Not there any more: another process needed the room, and there is no reason not to use the disk again.
            if error.errno != errno.ENOENT:
                self._give_up(error)
            self._release(file, remove=False)

    def make_room(self, adding: int, keep: PagedFile) -> None:
        """Have others go before so many bytes are added to a file; if that is not enough, it goes too when it can."""
        with self._lock:
            in_memory = sum(file.resident for file in self._files.values())
            if not self._is_ready() or in_memory > _LARGEST_IN_MEMORY:
                self._make_room_in_memory(in_memory + adding, keep)
            if self._is_ready() and self.folder is not None:
                self._make_room_on_disk(self.folder, adding, keep)

    def _make_room_in_memory(self, total: int, keep: PagedFile) -> None:
        limit = self.limit if not self._is_ready() else _LARGEST_IN_MEMORY
        if total <= limit:
            return
        for file in sorted(self._files.values(), key=lambda file: (file is keep, file.used)):
            size = file.resident
            if size and self._release(file, remove=False):
                total -= size
            if total <= limit * _FULL:
                return

    def _make_room_on_disk(self, folder: str, adding: int, keep: PagedFile) -> None:
        if self._unseen is not None and self._unseen + adding < self.limit // 16:
            self._unseen += adding
            return
        found = _files_in(folder)
        self._unseen, total = adding, sum(size for _, size in found.values()) + adding
        if total <= self.limit:
            return
        for key in sorted(found.keys() - self._files.keys(), key=lambda key: found[key]):
            if total > self.limit * _FULL:
                PagedFile(0, os.path.join(folder, key)).unlink()
                total -= found[key][1]
        for key, file in sorted(self._files.items(), key=lambda item: (item[1] is keep, item[1].used)):
            if total > self.limit * _FULL and self._release(file, remove=True):
                total -= found.get(key, (0.0, 0))[1]
        self._owed = total > self.limit

    def _release(self, file: PagedFile, *, remove: bool) -> bool:
        """Have everybody let go of a file; whether it is gone, which it is not while somebody still looks at it."""
        for holder in list(self._holders):
            holder.let_go(file)
        file.drop()
        if file.alive or file.coming:
            return False
        if self._files.get(file.key) is file:
            del self._files[file.key]
        if remove:
            with suppress(OSError):
                file.unlink()
        return True


def _default_limit(folder: str) -> int:
    free, taken = os.statvfs(folder), sum(size for _, size in _files_in(folder).values())
    return max(1, min(_LARGEST, int(0.9 * (free.f_bavail * free.f_frsize + taken))))


def _files_in(folder: str) -> dict[str, tuple[float, int]]:
    """By key when a file was last used, and the bytes that it and its journal take on the disk."""
    found: dict[str, tuple[float, int]] = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status, key = entry.stat(follow_symlinks=False), entry.name.removesuffix(".journal")
                used, taken = found.get(key, (0.0, 0))
                found[key] = max(used, status.st_mtime), taken + status.st_blocks * 512
    return found


_caches: dict[tuple[str, int | None], Cache] = {}
"""The caches of this process: those who use one folder share its files."""
_all: weakref.WeakSet[Cache] = weakref.WeakSet()


def cache_in(folder: str | None, limit: int | None = None) -> Cache:
    """The cache of this process in a folder, or one in memory that goes with who made it."""
    if folder is None:
        return Cache(None, limit)
    place = os.path.abspath(os.path.expanduser(folder))
    return _caches.setdefault((place, limit), Cache(place, limit))


def _after_fork() -> None:
    for cache in _all:
        cache._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
