"""Files that lie elsewhere, read through a cache: `CachedSource` makes a slow source look like a local one.

What is asked for is rounded to pages, what is here already is taken away, and the rest is fetched with one read of the
remote source, several files at once. `map` gives the whole file, of which only those bytes may be looked at that were
fetched while it was held: **hold, fetch, look**. `tables.py` does that for `Segments`, so that everything above reads
remote and local files by the same code. Where pages are kept is said in `pages.py`, how many in `cache.py`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardex.errors import ArgumentError, ShardexError, TruncatedShardError
from shardex.kernel import Integers, Segments
from shardex.sources.buffer_tables import EvictingTable, Wanted
from shardex.sources.byte_ranges import ACCESS, ByteRange, between, pages_of, reach, runs
from shardex.sources.io_threads import count_fetches, is_busy, is_ending, one_ahead, run_all, submit
from shardex.sources.page_cache import Cache, bytes_of, cache_in
from shardex.sources.page_file import PAGE, Coming, PagedFile
from shardex.sources.protocols import Source, Stat, default_cache_folder
from shardex.sources.retry import NO_ETAG

__all__ = ["CachedSource", "Traffic"]


_PART = 8 << 20
_WINDOW = 32 << 20
"""Bytes of one request, and of those that are written at once; as many again are on their way then."""


@dataclass
class Traffic:
    """What a source fetched so far."""

    reads: int = 0
    """Reads of the remote source, each of many ranges."""
    fetched: int = 0
    """Bytes that came from there."""
    served: int = 0
    """Bytes that were asked for and here already."""


class CachedSource(Source):
    """A source read through a cache in `folder` (False: in memory; by default SHARDEX_CACHE or ``~/.cache/shardex``).

    `limit` is the largest size of the cache; `access` says whether to fetch ranges or whole files (`ranges.reach`).

    >>> from shardex.sources.memory import MemorySource
    >>> remote = MemorySource({"a": bytes(50_000) + b"hello"})
    >>> source = CachedSource(remote, False, access="ranged"); view = source.map("a")
    >>> source.fetch("a", [ByteRange(50_000, 5)]); bytes(view[50_000:]), source.traffic.fetched < 10_000
    (b'hello', True)
    """

    def __init__(
        self,
        remote: Source,
        folder: str | os.PathLike[str] | bool | None = None,
        limit: int | str | None = None,
        access: str = "auto",
    ) -> None:
        if access not in ACCESS:
            raise ArgumentError(f"expected access to be one of {', '.join(ACCESS)}, got {access!r}")
        self.remote = remote
        self._now = secrets.token_hex(8)
        self._gap: int = getattr(remote, "gap", 0)
        """Bytes between two ranges that the remote source reads rather than ask twice."""
        if folder is False:
            self._folder = None
        else:
            self._folder = default_cache_folder() if folder is None or folder is True else os.fspath(folder)
        self.traffic = Traffic()
        self._config = (remote, folder, limit, access)
        self._access = access
        self._cache: Cache = cache_in(self._folder, None if limit is None else bytes_of(limit))
        self._cache.register(self)
        self._stats: dict[str, Stat] = {}
        self._keys: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        """The key of each path in the cache, and the path of each key."""
        self._tables: weakref.WeakSet[EvictingTable] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedSource, self._config

    def __repr__(self) -> str:
        return f"CachedSource({self.remote!r})"

    @property
    def url(self) -> str:
        """The remote root, as messages and keys name it: without what a web address has after its question mark."""
        return self.remote.url.partition("?")[0]

    @property
    def cache_folder(self) -> str | None:
        """Folder of the page cache; None if pages are kept in memory."""
        return self._folder

    @property
    def refused(self) -> int:
        """How often the cache folder could not be used, and memory was used instead."""
        return self._cache.refused

    def paths(self, prefix: str = "") -> list[str]:
        """All files there whose path begins with `prefix`."""
        return self.remote.paths(prefix)

    def stat(self, path: str) -> Stat:
        """Size and tag of a file, as they were when they were first asked for: a source sees one state of its files."""
        if (known := self._stats.get(path)) is None:
            known = self._stats[path] = self._told_apart(self.remote.stat(path))
        return known

    def _told_apart(self, stat: Stat) -> Stat:
        """Where a server tells no tag, only the whole address names a file; and if it tells no time, for now only."""
        if not stat.tag.startswith(NO_ETAG):
            return stat
        query = hashlib.sha256(self.remote.url.partition("?")[2].encode()).hexdigest()[:8]
        return replace(stat, tag=f"{stat.tag} {query} {'' if stat.modified else self._now}")

    def stats(self, paths: Sequence[str]) -> list[Stat]:
        """Size and tag of many files, asked for at once."""
        run_all(self.stat, [path for path in dict.fromkeys(paths) if path not in self._stats])
        return [self.stat(path) for path in paths]

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Copies of these ranges."""
        _, view = self.hold(path)
        self.fetch(path, ranges)
        return [memoryview(bytes(view[one.begin : one.end])) for one in ranges]

    def read_scattered(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Read each range by a request of its own, many at once, and keep nothing.

        For little pieces far apart: a store would read all between them, and nobody needs the pages around them.
        """
        out: list[memoryview] = [memoryview(b"")] * len(ranges)

        def read(number: int) -> None:
            out[number] = self._read_remote(path, [ranges[number]])[0]

        run_all(read, list(range(len(ranges))))
        return out

    def _read_remote(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        parts = self.remote.read(path, ranges)
        if [len(part) for part in parts] != [one.length for one in ranges]:
            raise TruncatedShardError(f"{self.url}/{path}: expected {list(ranges)}, got another number of bytes")
        self.traffic.reads += 1
        self.traffic.fetched += sum(len(part) for part in parts)
        return parts

    def load(self, path: str) -> memoryview:
        """A copy of all of it."""
        return self.read(path, [ByteRange(0, self.stat(path).size)])[0]

    def map(self, path: str) -> memoryview:
        """The whole file; look only at what `fetch` was asked for after this."""
        return self.hold(path)[1]

    @contextmanager
    def local_file(self, path: str) -> Iterator[str | None]:
        """Download the file and give its path in the cache folder; None if pages are kept in memory."""
        file, held = self.hold(path)
        self.fetch(path, [ByteRange(0, file.size)])
        yield file.path if file.on_disk else None
        del held

    def fetch(self, path: str, ranges: Sequence[ByteRange], *, wait: bool = True) -> None:
        """Have these ranges be here; with ``wait=False`` only begin to, and leave errors for who waits."""
        begin, length = (np.array([getattr(one, name) for one in ranges], np.int64) for name in ("begin", "length"))
        self.fetch_many([(path, begin, begin + length)], wait=wait)

    def fetch_many(self, wanted: Sequence[Wanted], *, wait: bool = True) -> bool:
        """Have ranges of many files be here, all at once; whether they were here already."""
        held = [_Job(path, *self.hold(path), begin, end) for path, begin, end in wanted]
        try:
            return self._fetch_all(held, wait)
        except BaseException:
            for job in held:
                self._give_back(job)  # what was claimed and not begun would be waited for for ever
            raise

    def _fetch_all(self, held: Sequence[_Job], wait: bool) -> bool:
        first = True
        while True:
            room = self._cache.limit // max(1, len(held))  # they are here together, so they share it
            others = [other for job in held for other in self._claim(job, first, room)]
            mine = [job for job in held if job.coming is not None]
            if not mine and not others:
                return first
            if not wait:
                self._begin(mine)
                return False
            count_fetches(len(mine) + len(others))
            run_all(self._run, mine)
            for other in others:
                other.done.wait()
            first = False

    def hold(self, path: str) -> tuple[PagedFile, memoryview]:
        """A file and a view of it."""
        stat = self.stat(path)
        if (key := self._keys.get(path)) is None:
            plain = "\0".join((self.url, path, stat.tag, str(stat.size), str(PAGE)))
            key = self._keys[path] = hashlib.sha256(plain.encode(errors="surrogatepass")).hexdigest()[:40]
            self._paths[key] = path
        return self._cache.hold(key, stat.size)

    def _claim(self, job: _Job, first: bool, room: int) -> list[Coming]:
        """Decide which pages to fetch for a job; those that somebody else is fetching are returned."""
        file = job.file
        with file.lock:
            missing = file.missing(job.pages)
            if first:
                self.traffic.served += (len(job.pages) - len(missing)) * PAGE
            others = [one for one in file.coming if np.isin(missing, one.pages).any()]
            job.coming = None
            if not len(missing):
                return []
            here = (file.pages - file.left) * PAGE
            now, behind = reach(self._access, file.size, here, len(missing) * PAGE, room)
            if now:
                missing = file.missing(np.arange(file.pages))
            elif self._gap and file.size <= room // 2:  # what lies between is sent anyway, so it is kept
                missing = np.union1d(missing, file.missing(between(missing, self._gap // PAGE)))
            for one in file.coming:
                missing = missing[~np.isin(missing, one.pages)]
            if len(missing):
                job.coming = Coming(missing)
                file.coming.append(job.coming)
        if behind:
            self._fetch_rest(job)
        return others

    def _run(self, job: _Job) -> None:
        """Fetch what was claimed."""
        file, coming = job.file, job.coming
        assert coming is not None
        try:
            for parts in one_ahead(lambda window: self._read_window(job, window), list(_windows(coming.pages))):
                self._cache.make_room(sum(len(part) for _, part in parts), file)
                file.put(parts)
                self._cache.look_after(file)
        finally:
            _end(file, coming)

    def _read_window(self, job: _Job, window: list[tuple[int, int]]) -> list[tuple[int, memoryview]]:
        """Runs of pages from the remote source, each with the number of its first page."""
        size = job.file.size
        ranges = [ByteRange(first * PAGE, min(count * PAGE, size - first * PAGE)) for first, count in window]
        return [(first, part) for (first, _), part in zip(window, self._read_remote(job.path, ranges), strict=True)]

    # -- not waiting -----------------------------------------------------------------------------------------

    def _begin(self, jobs: Sequence[_Job]) -> None:
        """Fetch in the background; if too much waits there already, not at all."""
        count_fetches(len(jobs))
        for job in jobs:
            if is_busy() or not submit("back", self._run_quietly, job):
                self._give_back(job)

    def _give_back(self, job: _Job) -> None:
        if job.coming is not None:
            _end(job.file, job.coming)

    def _run_quietly(self, job: _Job) -> None:
        if is_ending():
            self._give_back(job)
            return
        with suppress(ShardexError, OSError):
            self._run(job)

    def _fetch_rest(self, job: _Job) -> None:
        """Fetch the rest of a file, once, a part at a time, so that nobody who needs a page waits for all of it."""
        if not job.file.behind:
            job.file.behind = True
            submit("rest", self._run_rest, _Job(job.path, job.file, job.view, job.begin, job.end))

    def _run_rest(self, job: _Job) -> None:
        step = _PART // PAGE
        with suppress(ShardexError, OSError):
            for first in range(0, job.file.pages, step):
                if is_ending():
                    return
                with job.file.lock:
                    missing = job.file.missing(np.arange(first, min(first + step, job.file.pages)))
                    for one in job.file.coming:
                        missing = missing[~np.isin(missing, one.pages)]
                    if not len(missing):
                        continue
                    job.coming = Coming(missing)
                    job.file.coming.append(job.coming)
                self._run(job)

    # -- tables ----------------------------------------------------------------------------------------------

    def buffer_table(
        self,
        paths: Sequence[str],
        open_file: Callable[[int], Any] | None = None,
        close_file: Callable[[int], None] | None = None,
    ) -> Segments:
        """Return a table that downloads ranges before the kernel reads them and closes files that are evicted."""
        files = EvictingTable(self.fetch_many, self.hold, paths, close_file)
        table = self._table(paths, open_file, files.fetch)
        files.table = weakref.ref(table)
        self._tables.add(files)
        return table

    def let_go(self, file: PagedFile) -> None:
        """Close a file in all tables, because the cache evicts it."""
        if (path := self._paths.get(file.key)) is not None:
            for one in list(self._tables):
                one.close(path)


class _Job:
    """Ranges of a file that are wanted, and what of them is to be fetched; holds the file."""

    def __init__(self, path: str, file: PagedFile, view: memoryview, begin: Integers, end: Integers) -> None:
        if len(end) and (end.max() > file.size or (end < begin).any() or begin.min() < 0):
            raise TruncatedShardError(f"{path}: expected bytes up to {end.max()}, got a file of {file.size} bytes")
        self.path, self.file, self.view, self.begin, self.end = path, file, view, begin, end
        self.pages = pages_of(begin, end, PAGE)
        self.coming: Coming | None = None


def _end(file: PagedFile, coming: Coming) -> None:
    """Nobody fetches these pages any more; who waits for them looks again."""
    with file.lock:
        file.coming[:] = [one for one in file.coming if one is not coming]
    coming.done.set()


def _windows(pages: Integers) -> Iterator[list[tuple[int, int]]]:
    """Runs of pages, none larger than a part, as many together as are in memory at once."""
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
