"""Remote files read through the page cache: `CachedSource` makes a slow source look like a local folder.

Requested ranges are rounded to pages, present pages are skipped, and the rest is downloaded with one read of the remote
source per file, several files concurrently. `map` returns the whole file, but only ranges that were fetched while
the view was held may be read: **hold, fetch, read**. `buffer_table` does that for kernel tables, so that other rooms
read remote and local files in the same way: ranges are downloaded before the kernel reads them, and files that the
cache evicts are closed in the table. `page_file` stores the pages, `page_cache` evicts files.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from shardex.errors import ArgumentError, RemoteError, ShardexError, TruncatedShardError
from shardex.kernel import Integers, Segments
from shardex.sources.byte_ranges import ACCESS_MODES, ByteRange, fetch_policy, numbers_between, runs, touched_pages
from shardex.sources.io_threads import background_is_full, count_fetches, is_exiting, map_ahead, run_all, start
from shardex.sources.page_cache import page_cache_in, parse_size
from shardex.sources.page_file import PAGE, PagedFile, PendingPages
from shardex.sources.protocols import CloseFile, OpenFile, Source, Stat, check_unchanged_file, default_cache_folder
from shardex.sources.retry import NO_ETAG

_Wanted = tuple[str, Integers, Integers]
"""A path, and begin and end of each range."""

_LARGEST_FILE = 16 << 40
"""Largest file that common file systems can hold, and so the cache."""
_LARGEST_FETCH = 64 << 30
"""Bytes that can be downloaded by one call even if the cache is smaller."""
_GAPS, _MOST_GAPS = 64, 16
"""Pages are downloaded together that are at most gap * clamp(64 * cached / size, 1, 16) bytes apart.

Of a few rows of a large file hardly more than their pages are read; of a file of which a quarter is cached, pages that
are 16 gaps apart are read together, because the rest will probably be read, too.
"""
_LOADED_AT_ONCE = 512
"""Whole files that are mapped and downloaded together."""
_PART = 8 << 20
_WINDOW = 32 << 20
"""Maximum bytes per request, and per write to the cache; the next write is downloaded meanwhile."""


class CachedSource(Source):
    """A source read through a cache in `folder` (False: in memory; by default SHARDEX_CACHE or ``~/.cache/shardex``).

    `limit` is the maximum size of the cache; `access` is one of `byte_ranges.ACCESS_MODES`.

    >>> from shardex.sources.memory import MemorySource
    >>> remote = MemorySource({"a": bytes(50_000) + b"hello"})
    >>> source = CachedSource(remote, False, access="ranged"); view = source.map("a")
    >>> source.fetch("a", [ByteRange(50_000, 5)]); bytes(view[50_000:]), source.fetched < 10_000
    (b'hello', True)
    """

    def __init__(
        self,
        remote: Source,
        folder: str | os.PathLike[str] | bool | None = None,
        limit: int | str | None = None,
        access: str = "auto",
    ) -> None:
        if access not in ACCESS_MODES:
            raise ArgumentError(f"expected access to be one of {', '.join(ACCESS_MODES)}, got {access!r}")
        self.remote = remote
        self.url = remote.url.partition("?")[0]  # without the query, for messages and cache keys
        self._session = secrets.token_hex(8)
        self._gap: int = getattr(remote, "gap", 0)
        """The remote source reads up to this many bytes between two ranges to save a request."""
        folder_path = default_cache_folder() if folder is None or folder is True else folder
        self._folder = None if folder_path is False else os.fspath(folder_path)
        self.fetched = 0
        """Bytes downloaded so far."""
        self._config = (remote, folder, limit, access)
        self._access = access
        self._cache = page_cache_in(self._folder, None if limit is None else parse_size(limit))
        self._cache.register(self)
        self._stats: dict[str, Stat] = {}
        self._listed: dict[str, Stat] = {}
        """Size and tag of all files as they were listed last."""
        self._keys: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        """Cache key by path, and path by cache key."""
        self._tables: weakref.WeakSet[_EvictingTable] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedSource, self._config

    def __repr__(self) -> str:
        return f"CachedSource({self.remote!r})"

    @property
    def cache_folder(self) -> str | None:
        """Folder of the page cache; None if pages are kept in memory."""
        return self._folder

    def paths(self, prefix: str = "") -> list[str]:
        """Return the paths of all remote files that begin with `prefix`."""
        if (found := self.remote.listing(prefix)) is None:
            return self.remote.paths(prefix)
        self._listed = self._listed if prefix else found
        return list(found)

    def stat(self, path: str) -> Stat:
        """Return size and tag of a file as of the first call: a source sees one state of its files."""
        if (known := self._stats.get(path)) is None:
            known = self._with_unique_tag(self.remote.stat(path))
            if not 0 <= known.size <= _LARGEST_FILE:
                expected = (
                    f"expected a file of at most {_LARGEST_FILE} bytes, got one of {known.size}, as the server says"
                )
                raise RemoteError(errno.EFBIG, expected, f"{self.url}/{path}")
            self._stats[path] = known
        return known

    def _with_unique_tag(self, stat: Stat) -> Stat:
        """Add the URL's query to a tag that is no ETag; without a modification time also an id of this session."""
        if not stat.tag.startswith(NO_ETAG):
            return stat
        query = hashlib.sha256(self.remote.url.partition("?")[2].encode()).hexdigest()[:8]
        return replace(stat, tag=f"{stat.tag} {query} {'' if stat.modified else self._session}")

    def stats(self, paths: Sequence[str]) -> list[Stat]:
        """Return size and tag of many files, requested concurrently."""
        run_all(self.stat, [path for path in dict.fromkeys(paths) if path not in self._stats])
        return [self.stat(path) for path in paths]

    def listed_stats(self, paths: Sequence[str]) -> list[Stat]:
        """Return size and tag of many files, as the last `paths` has shown them.

        Each file is requested if the store says something else in its answer for the first file than in its list.
        """
        missing = [path for path in paths if path not in self._stats]
        known = {path: self._listed[path] for path in missing if path in self._listed}
        if len(known) > 1:
            first = next(iter(known))
            stat = self.stat(first)
            if (stat.size, stat.tag) == (known[first].size, known[first].tag):
                self.remote.pin(known)
                self._stats = known | self._stats
        self._listed = {}
        return self.stats(paths)

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return copies of these ranges."""
        self._cache.await_retired(self._key(path))
        _, view = self.hold(path)
        self.fetch(path, ranges)
        return [memoryview(bytes(view[one.begin : one.end])) for one in ranges]

    def read_scattered(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Read each range with a separate request, concurrently, without the cache."""
        return run_all(lambda one: self._read_remote(path, [one])[0], ranges)

    def _read_remote(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        parts = self.remote.read(path, ranges)
        if [len(part) for part in parts] != [one.length for one in ranges]:
            raise TruncatedShardError(f"{self.url}/{path}: expected {list(ranges)}, got another number of bytes")
        self.fetched += sum(len(part) for part in parts)
        return parts

    def load(self, path: str) -> memoryview:
        """Return a copy of the file."""
        if (size := self.stat(path).size) > (memory := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
            expected = f"expected a file that fits into the memory of {memory} bytes, got one of {size}"
            raise RemoteError(errno.EFBIG, f"{expected}, as the server says", f"{self.url}/{path}")
        return self.read(path, [ByteRange(0, self.stat(path).size)])[0]

    def load_all(self, paths: Sequence[str], known: Sequence[Stat]) -> list[bytes]:
        """Return copies of files, some hundred of them downloaded at once."""
        found: list[bytes] = []
        for at in range(0, len(paths), _LOADED_AT_ONCE):
            some = paths[at : at + _LOADED_AT_ONCE]
            for path, stat in zip(some, known[at:], strict=False):
                check_unchanged_file(self.full_name(path), stat, self.stat(path))
            views = {path: self.map(path) for path in dict.fromkeys(some)}
            zero = np.zeros(1, np.int64)
            self.fetch_many([(path, zero, np.array([len(view)])) for path, view in views.items()])
            found += [bytes(views[path]) for path in some]
        return found

    def map(self, path: str) -> memoryview:
        """Return the whole file; read only ranges that `fetch` was called for after this."""
        self._cache.await_retired(self._key(path))
        return self.hold(path)[1]

    @contextmanager
    def local_file(self, path: str) -> Iterator[str | None]:
        """Download the file and yield its path in the cache folder; None if pages are kept in memory."""
        file, held = self.hold(path)
        self.fetch(path, [ByteRange(0, file.size)])
        yield file.path if file.on_disk else None
        del held

    def fetch(self, path: str, ranges: Sequence[ByteRange], *, wait: bool = True) -> None:
        """Download these ranges; with ``wait=False`` only start, and leave errors to the next call that waits."""
        begin, length = (np.array([getattr(one, name) for one in ranges], np.int64) for name in ("begin", "length"))
        self.fetch_many([(path, begin, begin + length)], wait=wait)

    def fetch_many(self, wanted: Sequence[_Wanted], *, wait: bool = True) -> bool:
        """Download ranges of many files concurrently; return True if nothing was missing."""
        if (total := sum(int((end - begin).sum()) for _, begin, end in wanted)) > _LARGEST_FETCH:
            self._check_room(total, wanted[0][0])
        jobs = [_Job(path, *self.hold(path), begin, end) for path, begin, end in wanted]
        try:
            return self._fetch_all(jobs, wait)
        except BaseException:
            for job in jobs:
                self._unclaim(job)  # other threads would wait forever for pages that are claimed
            raise

    def _check_room(self, total: int, path: str) -> None:
        if total > self._cache.limit:
            expected = f"expected to fetch at most the {self._cache.limit} bytes that fit into the cache, got {total}"
            raise RemoteError(errno.EFBIG, f"{expected}; set a higher cache_limit", f"{self.url}/{path}")

    def _fetch_all(self, jobs: Sequence[_Job], wait: bool) -> bool:
        first = True
        while True:
            room = self._cache.limit // max(1, len(jobs))  # the files are needed together, so they share it
            others = [other for job in jobs for other in self._claim(job, room)]
            mine = [job for job in jobs if job.claimed is not None]
            if not mine and not others:
                return first
            if not wait:
                self._start(mine)
                return False
            count_fetches(len(mine) + len(others))
            run_all(self._run, mine)
            for other in others:
                other.done.wait()
            first = False

    def hold(self, path: str) -> tuple[PagedFile, memoryview]:
        """Return a cached file and a view of it."""
        return self._cache.hold(self._key(path), self.stat(path).size)

    def _key(self, path: str) -> str:
        if (key := self._keys.get(path)) is None:
            stat = self.stat(path)
            plain = "\0".join((self.url, path, stat.tag, str(stat.size), str(PAGE)))
            key = self._keys[path] = hashlib.sha256(plain.encode(errors="surrogatepass")).hexdigest()[:40]
            self._paths[key] = path
        return key

    def _claim(self, job: _Job, room: int) -> list[PendingPages]:
        """Decide which pages to download for a job; return the needed pages that other threads are downloading."""
        file = job.file
        with file.lock:
            missing = file.missing(job.pages)
            others = [one for one in file.pending if np.isin(missing, one.pages).any()]
            job.claimed = None
            if not len(missing):
                return []
            cached = (file.pages - file.missing_count) * PAGE
            whole, rest = fetch_policy(self._access, file.size, cached, len(missing) * PAGE, room)
            if whole:
                if file.size > _LARGEST_FETCH:
                    self._check_room(file.size, job.path)
                missing = file.missing(np.arange(file.pages))
            elif self._gap and file.size <= room // 2:  # the bytes in between are downloaded anyway, so they are kept
                missing = np.union1d(missing, file.missing(numbers_between(missing, self._near(cached, file.size))))
            job.claimed = file.claim(missing)
        if rest:
            self._fetch_rest(job)
        return others

    def _near(self, cached: int, size: int) -> int:
        """Return how many pages apart pages are downloaded together; more if much of the file was read already."""
        return self._gap // PAGE * max(1, min(_MOST_GAPS, _GAPS * cached // size))

    def _run(self, job: _Job) -> None:
        """Download the claimed pages."""
        file, claimed = job.file, job.claimed
        assert claimed is not None
        try:
            for parts in map_ahead(lambda window: self._read_window(job, window), list(_windows(claimed.pages))):
                self._cache.make_room(sum(len(part) for _, part in parts), file)
                file.put(parts)
                self._cache.check_disk(file)
        finally:
            file.finish(claimed)

    def _read_window(self, job: _Job, window: list[tuple[int, int]]) -> list[tuple[int, memoryview]]:
        """Read runs of pages from the remote source; each comes with the number of its first page."""
        size = job.file.size
        ranges = [ByteRange(first * PAGE, min(count * PAGE, size - first * PAGE)) for first, count in window]
        return [(first, part) for (first, _), part in zip(window, self._read_remote(job.path, ranges), strict=True)]

    # -- in the background -----------------------------------------------------------------------------------

    def _start(self, jobs: Sequence[_Job]) -> None:
        """Download in the background, unless too many downloads wait there."""
        count_fetches(len(jobs))
        for job in jobs:
            if job.file.retired or background_is_full() or not start("ahead", self._run_ignoring_errors, job):
                self._unclaim(job)

    def _unclaim(self, job: _Job) -> None:
        if job.claimed is not None:
            job.file.finish(job.claimed)

    def _run_ignoring_errors(self, job: _Job) -> None:
        if is_exiting() or job.file.retired:
            self._unclaim(job)
            return
        with suppress(ShardexError, OSError):
            self._run(job)

    def _fetch_rest(self, job: _Job) -> None:
        """Download the rest of a file once, in parts, so that a reader waits for a part and not for all of it."""
        if not job.file.rest_requested:
            job.file.rest_requested = True
            start("rest", self._run_rest, _Job(job.path, job.file, job.view, job.begin, job.end))

    def _run_rest(self, job: _Job) -> None:
        step = _PART // PAGE
        with suppress(ShardexError, OSError):
            for first in range(0, job.file.pages, step):
                if is_exiting():
                    return
                with job.file.lock:
                    missing = job.file.missing(np.arange(first, min(first + step, job.file.pages)))
                    job.claimed = job.file.claim(missing)
                if job.claimed is not None:
                    self._run(job)

    # -- buffer tables and eviction --------------------------------------------------------------------------

    def buffer_table(self, paths: Sequence[str], open_file: OpenFile = None, close_file: CloseFile = None) -> Segments:
        """Return a table that downloads ranges before the kernel reads them and closes files that are evicted."""
        paths = list(paths)
        files = _EvictingTable(self, paths, close_file)
        table = self._table(paths, open_file, files.fetch, evicts=True)
        files.table = weakref.ref(table)
        self._tables.add(files)
        return table

    def release(self, file: PagedFile) -> None:
        """Close a file in all tables, because the cache evicts it."""
        if (path := self._paths.get(file.key)) is not None:
            for one in list(self._tables):
                one.close(path)


class _EvictingTable:
    """Downloads ranges of a table's files and closes files in the table when the cache evicts them."""

    def __init__(self, source: CachedSource, paths: Sequence[str], close_file: CloseFile) -> None:
        self._source, self._paths, self._close_file = source, paths, close_file
        self._numbers: dict[str, list[int]] = {}
        for number, path in enumerate(paths):
            self._numbers.setdefault(path, []).append(number)
        self._complete = np.zeros(len(paths), np.bool_)
        """Files that are open in the table and have no missing page: their ranges need no check."""
        self.table: Callable[[], Segments | None] = lambda: None

    def fetch(self, which: Integers, begin: Integers, length: Integers, wait: bool) -> bool:
        """Download these ranges; without `wait` only start to. Return True if no byte was missing."""
        if self._complete[which].all():
            return True
        order = np.argsort(which, kind="stable")
        cuts = np.flatnonzero(np.diff(which[order])) + 1
        groups = np.split(order, cuts)
        numbers = [int(which[some[0]]) for some in groups]
        pairs = zip(numbers, groups, strict=True)
        wanted = [
            (self._paths[n], begin[some], begin[some] + length[some]) for n, some in pairs if not self._complete[n]
        ]
        nothing_missing = self._source.fetch_many(wanted, wait=wait)
        self._note_complete(numbers)
        return nothing_missing

    def _note_complete(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            # While a view is held, the cache keeps this file for the path, even if the table closes and reopens it now.
            file, held = self._source.hold(self._paths[number])
            if file.is_complete and (table := self.table()) is not None and table.lock is not None:
                with table.lock:
                    self._complete[number] = number in table.buffers
                    table.complete = bool(self._complete.all())
            del held

    def close(self, path: str) -> None:
        """Close a file in the table."""
        for number in self._numbers.get(path, ()):
            if self._close_file is not None:
                self._close_file(number)
            if (table := self.table()) is not None and table.lock is not None:
                with table.lock:
                    self._complete[number] = False
                    table.close(number)


class _Job:
    """Requested ranges of a file and the pages claimed for download; holds a view of the file."""

    def __init__(self, path: str, file: PagedFile, view: memoryview, begin: Integers, end: Integers) -> None:
        if len(end) and (end.max() > file.size or (end < begin).any() or begin.min() < 0):
            raise TruncatedShardError(f"{path}: expected bytes up to {end.max()}, got a file of {file.size} bytes")
        self.path, self.file, self.view, self.begin, self.end = path, file, view, begin, end
        self.pages = touched_pages(begin, end, PAGE)
        self.claimed: PendingPages | None = None


def _windows(pages: Integers) -> Iterator[list[tuple[int, int]]]:
    """Yield lists of runs of pages: a run is at most one request, a list at most one write to the cache."""
    window, size, most = list[tuple[int, int]](), 0, _PART // PAGE
    for first, count in runs(pages):
        for at in range(0, count, most):
            part = min(most, count - at)
            if size + part > _WINDOW // PAGE:
                yield window
                window, size = [], 0
            window.append((first + at, part))
            size += part
    if window:
        yield window
