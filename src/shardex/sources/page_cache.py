"""The page cache: remote files in a folder or in memory (`page_file`), together no larger than a limit.

The least recently used files are evicted first: those that this process has not opened, then open ones. Readers of an
open file are asked to release it, and it is removed when its last view is gone. Without a folder, or
if the folder cannot be used, files are in memory under a limit of their own. Processes share a folder without locks: a
file that another process removed stays valid where it is mapped.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import threading
import time
import warnings
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from shardex.errors import ArgumentError
from shardex.sources.page_file import PAGE, PagedFile

if TYPE_CHECKING:
    from shardex.sources.cached_source import CachedSource

_MAX_ON_DISK = 50 * 10**9
_MAX_IN_MEMORY = 4 << 30
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_MOST_WAITS, _WAIT, _PAUSE = 250, 0.002, 10.0
"""How often readers wait for others to end, for how many seconds, and seconds until they wait again."""
_MANY_FILES = 4096
"""Number of files from which on those without readers are removed from the table; their pages stay on the disk."""
_FILL_AFTER_EVICTION = 0.9
"""Eviction frees space down to this fraction of the limit, so that not every download has to evict files."""


def parse_size(limit: int | str) -> int:
    """Return a number of bytes, given as a number or as text.

    >>> parse_size(5), parse_size("50 GB"), parse_size("1.5g")
    (5, 50000000000, 1500000000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", str(limit).lower())
    if isinstance(limit, bool) or not found or float(found[1]) <= 0:
        raise ArgumentError(f'expected a size such as 5_000_000 or "50 GB", got {limit!r}')
    return int(float(found[1]) * _UNITS[found[2]])


class PageCache:
    """Cached files by key, in a folder or in memory."""

    def __init__(self, folder: str | None, limit: int | None = None) -> None:
        self.folder = None if folder is None else os.path.join(folder, "pages")
        self._files: dict[str, PagedFile] = {}
        self._holders: weakref.WeakSet[CachedSource] = weakref.WeakSet()
        self._clock = itertools.count(1)
        self._requested_limit = limit
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        """Set the state that a forked child must not inherit."""
        self._lock = threading.RLock()
        self._usable: bool | None = None
        self._limit: int | None = None
        self._bytes_since_scan: int | None = None
        """Bytes written since the folder was last listed; None before the first time."""
        self._most_in_memory = self._in_memory()
        """Bytes that pages in memory take at most: counted when that exceeds the limit, as there may be many files."""
        self._sweep_at = _MANY_FILES
        self._over_limit = False
        """True if nothing more could be evicted, because all files were held; tried again when a file is opened."""
        for file in self._files.values():
            file.lock, file.pending = threading.Lock(), []

    @property
    def limit(self) -> int:
        """Maximum size in bytes."""
        if self._limit is None:
            given = self._requested_limit or os.environ.get("SHARDEX_CACHE_LIMIT")
            in_memory = min(_MAX_IN_MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
            if self._folder_is_usable() and self.folder is not None:
                self._limit = parse_size(given) if given else default_limit(self.folder)
            else:
                wanted = parse_size(given or in_memory)
                self._limit = min(in_memory, wanted) if self.folder else wanted
        return self._limit

    def register(self, holder: CachedSource) -> None:
        """Ask this source to release files before they are evicted."""
        self._holders.add(holder)

    def hold(self, key: str, size: int) -> tuple[PagedFile, memoryview]:
        """Return a file and a view of it; while the view is held, the cache does not replace the file."""
        with self._lock:
            file = self._files.get(key)
            if file is None:
                if len(self._files) >= self._sweep_at:
                    self._forget_unread()
                place = os.path.join(self.folder, key) if self._folder_is_usable() and self.folder is not None else None
                file = self._files[key] = PagedFile(size, place)
                file.key = key
            file.last_used = next(self._clock)
            opened = not file.is_held
            view = file.view()
            if opened and self._over_limit:
                self._bytes_since_scan = None
                self.make_room(0, file)
            if opened and file.path is not None:
                with suppress(OSError):  # the time of its last use, for evictions by other processes
                    os.utime(file.path, follow_symlinks=False)
            return file, view

    def _forget_unread(self) -> None:
        """Remove files without readers from the table; the disk says which pages they have when opened again."""
        self._files = {key: file for key, file in self._files.items() if file.is_held or file.pending}
        self._sweep_at = max(_MANY_FILES, 2 * len(self._files))

    def await_retired(self, key: str) -> None:
        """Before a new reader opens a file: give the others a moment to end, if the memory of its pages is needed.

        Without this, readers that overlap would keep all pages of a file that is larger than the limit. If a view is
        held for long, as an array that a user keeps, all readers together wait half a second every ten seconds.
        """
        file = self._files.get(key)
        while file is not None and file.retired and file.is_held and time.monotonic() >= file.wait_again:
            file.waits += 1
            if file.waits >= _MOST_WAITS:
                file.waits, file.wait_again = 0, time.monotonic() + _PAUSE
            time.sleep(_WAIT)

    def _folder_is_usable(self) -> bool:
        """Create the folder; return False if it cannot be used or is not private."""
        if self.folder is None:
            return False
        if self._usable is None:
            try:
                os.makedirs(os.path.dirname(self.folder), exist_ok=True)
                with suppress(FileExistsError):
                    os.mkdir(self.folder, 0o700)
                found = os.lstat(self.folder)
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                    raise PermissionError(errno.EPERM, "expected a folder of this user and not a link")
                if found.st_mode & 0o077:
                    os.chmod(self.folder, 0o700)
                if not os.access(self.folder, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, "expected a writable folder")
                self._usable = True
            except OSError as error:
                self._use_memory(error)
        return bool(self._usable)

    def _use_memory(self, error: OSError) -> None:
        """Keep files in memory from now on, and warn once."""
        if self._usable is not False:
            warnings.warn(
                f"{self.folder}: expected a folder to cache remote files in, got {error.strerror or error}; they are "
                "kept in memory, and fetched again when that is full. Free disk space, or set another folder with "
                "cache= or SHARDEX_CACHE",
                stacklevel=5,
            )
        self._usable, self._limit = False, None

    # -- eviction --------------------------------------------------------------------------------------------

    def check_disk(self, file: PagedFile) -> None:
        """Start a new file for this key if pages of this one could not be written to disk."""
        if (error := file.disk_error) is None:
            return
        file.disk_error = None
        with self._lock:
            # A missing file was evicted by another process, which is no reason to stop using the disk.
            if error.errno != errno.ENOENT:
                self._use_memory(error)
            self._evict(file, remove=False)

    def make_room(self, adding: int, keep: PagedFile) -> None:
        """Evict files before `adding` bytes are written to `keep`, which is itself evicted last."""
        with self._lock:
            self._most_in_memory += adding + PAGE
            if self._most_in_memory > (_MAX_IN_MEMORY if self._folder_is_usable() else self.limit):
                self._make_room_in_memory(self._in_memory() + adding, keep)
                self._most_in_memory = self._in_memory() + adding + PAGE
            if self._folder_is_usable() and self.folder is not None:
                self._make_room_on_disk(self.folder, adding, keep)

    def _in_memory(self) -> int:
        return sum(file.resident for file in self._files.values())

    def _make_room_in_memory(self, total: int, keep: PagedFile) -> None:
        limit = self.limit if not self._folder_is_usable() else _MAX_IN_MEMORY
        if total <= limit:
            return
        for file in sorted(self._files.values(), key=lambda file: (file is keep, file.last_used)):
            size = file.resident
            if size and self._evict(file, remove=False):
                total -= size
            if total <= limit * _FILL_AFTER_EVICTION:
                return

    def _make_room_on_disk(self, folder: str, adding: int, keep: PagedFile) -> None:
        if self._bytes_since_scan is not None and self._bytes_since_scan + adding < self.limit // 16:
            self._bytes_since_scan += adding
            return
        found = _files_in(folder)
        self._bytes_since_scan, total = adding, sum(size for _, size in found.values()) + adding
        if total <= self.limit:
            return
        for key in sorted(found.keys() - self._files.keys(), key=lambda key: found[key]):
            if total > self.limit * _FILL_AFTER_EVICTION:
                PagedFile(0, os.path.join(folder, key)).unlink()
                total -= found[key][1]
        for key, file in sorted(self._files.items(), key=lambda item: (item[1] is keep, item[1].last_used)):
            if total > self.limit * _FILL_AFTER_EVICTION and self._evict(file, remove=True):
                total -= found.get(key, (0.0, 0))[1]
        self._over_limit = total > self.limit

    def _evict(self, file: PagedFile, *, remove: bool) -> bool:
        """Ask all holders to release a file; return False if a view or a download still uses it."""
        for holder in list(self._holders):
            holder.release(file)
        file.release()
        if file.is_held or file.pending:
            file.retired = file.resident > 0
            return False
        if self._files.get(file.key) is file:
            del self._files[file.key]
        if remove:
            with suppress(OSError):
                file.unlink()
        return True


def default_limit(folder: str) -> int:
    """Return the limit of a cache folder if none is set: most of the free space, and at most 50 GB."""
    free, taken = os.statvfs(folder), sum(size for _, size in _files_in(folder).values())
    return max(1, min(_MAX_ON_DISK, int(0.9 * (free.f_bavail * free.f_frsize + taken))))


def _files_in(folder: str) -> dict[str, tuple[float, int]]:
    """Return the time of the last use and the disk space of each file with its journal, by key."""
    found: dict[str, tuple[float, int]] = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status, key = entry.stat(follow_symlinks=False), entry.name.removesuffix(".journal")
                used, taken = found.get(key, (0.0, 0))
                found[key] = max(used, status.st_mtime), taken + status.st_blocks * 512
    return found


_caches: dict[tuple[str, int | None], PageCache] = {}
"""The caches of this process, by folder and limit."""
_all: weakref.WeakSet[PageCache] = weakref.WeakSet()


def page_cache_in(folder: str | None, limit: int | None = None) -> PageCache:
    """Return the cache of this process for a folder, or a new one in memory."""
    if folder is None:
        return PageCache(None, limit)
    place = os.path.abspath(os.path.expanduser(folder))
    return _caches.setdefault((place, limit), PageCache(place, limit))


def _after_fork() -> None:
    for cache in _all:
        cache._reset()


os.register_at_fork(after_in_child=_after_fork)
