"""`DecompressedSource`: a source whose compressed files look like plain ones to formats.

Path ``a.jsonl`` has the content of the file ``a.jsonl.gz``; messages name the latter. When size or bytes of a file are
first needed, the source makes what random access needs: access points (`access_points`), which are saved next to the
data or in the cache folder, or a decompressed copy in the cache folder (`plain_copies`). Later opens and other
processes use the same. Files that are not compressed are read as they are.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from shardex.errors import ArgumentError, SourceError, StaleIndexError, StorageFullError, TruncatedShardError
from shardex.kernel import Integers, Segments
from shardex.progress import Bar
from shardex.sources.access_points import AccessPoints, CellSums, Point, PointSource
from shardex.sources.byte_ranges import ByteRange
from shardex.sources.cached_source import CachedSource
from shardex.sources.compression import Archives, check_kind, decompress, read_all
from shardex.sources.find_points import frame_runs, gzip_points, has_zlib, zstd_points
from shardex.sources.io_threads import run_all
from shardex.sources.local import LocalSource
from shardex.sources.plain_copies import PlainCopies
from shardex.sources.protocols import CloseFile, OpenFile, Source, Stat, default_cache_folder

WAYS = ("access_points", "copy")
"""How compressed files can be read at random."""
_PROBE = 4 << 10
_PAGES_IN_MEMORY = 128 << 20
"""Bytes of decompressed pages that a dataset keeps in each process."""

_log = logging.getLogger("shardex")


@dataclass(frozen=True)
class CompressedFile:
    """A compressed file, or a member of a zip archive."""

    path: str
    kind: str
    """Kind of compression, as the name says."""
    member: str = ""
    member_kind: str = ""
    """Kind of compression of a member that is itself a compressed file."""

    @property
    def name(self) -> str:
        """Path for messages."""
        return f"{self.path}/{self.member}" if self.member else self.path


@dataclass(frozen=True)
class _Route:
    """Where the content of a file is read."""

    source: Source
    path: str
    stat: Stat
    way: str
    reader: Source | None = None
    """Source for reads, if not `source`: those need no pages in memory."""
    extra: int = 0
    """Bytes on disk that are needed to read it."""


class DecompressedSource(Source):
    """The files of `inner`; `packed` has those that are compressed, by the path of their content.

    `way` is one of `WAYS`, or None for access points where there are some. `folder` is the cache folder (False: copies
    are kept in memory), and `limit` the maximum size of all copies in it.

    >>> import gzip; from shardex.sources.memory import MemorySource
    >>> inner = MemorySource({"a.txt.gz": gzip.compress(b"hello"), "b.txt": b"plain"})
    >>> source = DecompressedSource(inner, {"a.txt": CompressedFile("a.txt.gz", "gzip")}, folder=False)
    >>> source.stat("a.txt").size, bytes(source.read("a.txt", [ByteRange(1, 3)])[0]), bytes(source.load("b.txt"))
    (5, b'ell', b'plain')
    """

    def __init__(
        self,
        inner: Source,
        packed: Mapping[str, CompressedFile],
        way: str | None = None,
        folder: str | os.PathLike[str] | bool | None = None,
        limit: int | str | None = None,
        progress: bool | None = None,
    ) -> None:
        if way is not None and way not in WAYS:
            raise ArgumentError(f"expected compressed to be one of {', '.join(WAYS)} or None, got {way!r}")
        self.inner, self.url, self.packed = inner, inner.url, dict(packed)
        self._config = (way, folder, limit)
        self._way, self._progress = way, progress
        place = default_cache_folder() if folder is None or folder is True else folder
        self._folder = None if place is False else os.fspath(place)
        self._copies = None if self._folder is None else PlainCopies(self._folder, limit)
        self._mapped = _MappedCopies(inner)
        self._points = PointSource(inner)
        self._pages = CachedSource(self._points, False, _PAGES_IN_MEMORY, "ranged")
        self._routes: dict[str, _Route] = {}
        self._making = threading.RLock()
        points = way != "copy" and any(one.kind in ("gzip", "zstd") for one in self.packed.values())
        self.is_remote = inner.is_remote or points

    def __reduce__(self) -> tuple[Any, ...]:
        return DecompressedSource, (self.inner, self.packed, *self._config, False)

    def __repr__(self) -> str:
        return f"DecompressedSource({self.inner!r}, {len(self.packed)} compressed files)"

    def over(self, inner: Source) -> DecompressedSource:
        """Return the same files of another source."""
        return DecompressedSource(inner, self.packed, *self._config, self._progress)

    def contained(self) -> DecompressedSource:
        """Return this source without access to files outside of its root."""
        return self.over(self.inner.contained())

    @property
    def data_folder(self) -> str | None:
        """The local folder of the compressed files."""
        return self.inner.data_folder

    @property
    def cache_folder(self) -> str | None:
        """Folder for data derived from these files."""
        return self._folder

    def full_name(self, path: str) -> str:
        """Return the address of a file as it is stored."""
        return self.inner.full_name(self.packed[path].name if path in self.packed else path)

    def paths(self, prefix: str = "") -> list[str]:
        """Return the paths of the content of all files."""
        hidden = {one.path for one in self.packed.values()}
        found = {path for path in self.inner.paths(prefix) if path not in hidden}
        return sorted(found | {path for path in self.packed if path.startswith(prefix)})

    # -- reading ---------------------------------------------------------------------------------------------

    def stat(self, path: str) -> Stat:
        """Return size and tag of the content."""
        return self._route(path).stat

    def stats(self, paths: Sequence[str]) -> list[Stat]:
        """Return size and tag of many files; compressed ones that were never read are decompressed concurrently."""
        self._prepare(paths)
        plain = [path for path in paths if path not in self.packed]
        known = dict(zip(plain, self.inner.stats(plain), strict=True))
        return [known[path] if path in known else self._routes[path].stat for path in paths]

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return the bytes of each range."""
        route = self._route(path)
        return (route.reader or route.source).read(route.path, ranges)

    def read_scattered(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Read short ranges that are far apart."""
        route = self._route(path)
        return self.read(path, ranges) if path in self.packed else route.source.read_scattered(path, ranges)

    def load(self, path: str) -> memoryview:
        """Return the content of a file."""
        route = self._route(path)
        return route.source.load(route.path)

    def map(self, path: str) -> memoryview:
        """Return the content as one buffer; read only bytes that `fetch` was called for."""
        route = self._route(path)
        return route.source.map(route.path)

    def fetch(self, path: str, ranges: Sequence[ByteRange], *, wait: bool = True) -> None:
        """Decompress or download these ranges; with ``wait=False`` only start to, for the next `read`."""
        route = self._route(path)
        source = route.source if wait or route.reader is None else route.reader
        source.fetch(route.path, ranges, wait=wait)

    @contextmanager
    def local_file(self, path: str) -> Iterator[str | None]:
        """Yield the path of a local file with the content; None if there is none."""
        route = self._route(path)
        with route.source.local_file(route.path) as found:
            yield found

    def buffer_table(self, paths: Sequence[str], open_file: OpenFile = None, close_file: CloseFile = None) -> Segments:
        """Return a kernel table of these files."""
        self._prepare(paths)
        routes = [self._route(path) for path in paths]
        if len({id(route.source) for route in routes}) == 1:
            return routes[0].source.buffer_table([route.path for route in routes], open_file, close_file)
        return self._mixed_table(paths, routes, open_file, close_file)

    def _mixed_table(
        self, paths: Sequence[str], routes: Sequence[_Route], open_file: OpenFile, close_file: CloseFile
    ) -> Segments:
        """Return a table of files of several sources; the table of each source fetches the ranges of its files."""

        def close(number: int) -> None:
            if close_file is not None:
                close_file(number)
            if (opened := table_of()) is not None:
                opened.close(number)

        sources = {id(route.source): route.source for route in routes}
        names = [route.path for route in routes]
        parts = [(key, one.buffer_table(names, open_file, close)) for key, one in sources.items()]
        owner = np.array([[key for key, _ in parts].index(id(route.source)) for route in routes], np.int64)

        def fetch(which: Integers, begin: Integers, length: Integers, wait: bool) -> bool:
            complete = True
            for number, (_, part) in enumerate(parts):
                mine = owner[which] == number
                if mine.any():
                    complete &= part.fetch(which[mine], begin[mine], length[mine], wait)
            return complete

        table = self._table(paths, open_file, fetch, any(part.evicts for _, part in parts))
        table_of = weakref.ref(table)
        return table

    # -- access points and copies ----------------------------------------------------------------------------

    def _route(self, path: str) -> _Route:
        if path not in self.packed:
            return _Route(self.inner, path, self.inner.stat(path), "plain")
        if path not in self._routes:
            self._prepare([path])
        return self._routes[path]

    def _prepare(self, paths: Iterable[str]) -> None:
        """Find or make access points or copies of these files."""
        todo = [path for path in dict.fromkeys(paths) if path in self.packed and path not in self._routes]
        if not todo:
            return
        with self._making:
            todo = [path for path in todo if path not in self._routes]
            stats = dict(zip(todo, self.inner.stats([self.packed[path].path for path in todo]), strict=True))
            tags = dict(zip(todo, self.inner.for_each(lambda path: self._tag(path, stats[path]), todo), strict=True))
            found = {path: self._saved(path, stats[path], tags[path]) for path in todo}
            missing = [path for path in todo if found[path] is None]
            made = self._make_all(missing, stats, tags) if missing else {}
            routes = {path: route for path, route in (found | made).items() if route is not None}
            self._report({path: routes[path] for path in todo}, stats, bool(missing))
            self._routes |= routes

    def _tag(self, path: str, stat: Stat) -> str:
        """Return the identity of the content: that of the compressed file, with a checksum of its begin and end."""
        packed = self.packed[path]
        tag = f"{stat.tag} {stat.size}"
        if self.inner.data_folder is not None:  # a file may be replaced without a new modification time
            size = min(_PROBE, stat.size)
            parts = self.inner.read(packed.path, [ByteRange(0, size), ByteRange(stat.size - size, size)])
            tag += f" {xxhash.xxh3_64_hexdigest(b''.join(parts))}"
        return f"{tag} {packed.member}".rstrip()

    def _saved(self, path: str, stat: Stat, tag: str) -> _Route | None:
        packed = self.packed[path]
        if self._way != "copy" and not packed.member:
            for place, name in self._places(packed):
                with suppress(SourceError):
                    points = AccessPoints.decode(data := place.map(name))
                    if points is not None and (points.packed_size, points.tag) == (stat.size, tag):
                        return self._points_route(packed, points, stat, len(data))
        if self._way == "access_points" or self._copies is None:
            return None
        view = self._copies.find(self._address(packed), tag)
        return None if view is None else self._copy_route(packed, view, stat, tag)

    def _address(self, packed: CompressedFile) -> str:
        return os.path.join(self.url.partition("?")[0], packed.name)

    def _places(self, packed: CompressedFile) -> list[tuple[LocalSource, str]]:
        """Return the folders that may hold the access points of a file, and their path in each."""
        places = []
        if self.data_folder is not None:
            places.append((LocalSource(self.data_folder), f".shardex/points-{_short_hash(packed.path)}.arrow"))
        if self._folder is not None:
            places.append((LocalSource(self._folder), f"index/points-{_short_hash(self._address(packed))}.arrow"))
        return places

    def _points_route(self, packed: CompressedFile, points: AccessPoints, stat: Stat, extra: int) -> _Route:
        self._points.add(packed.path, points, stat)
        plain = Stat(points.size, points.tag, stat.modified)
        return _Route(self._pages, packed.path, plain, "access_points", self._points, extra)

    def _copy_route(self, packed: CompressedFile, view: memoryview, stat: Stat, tag: str) -> _Route:
        plain = Stat(len(view), tag, stat.modified)
        path = None if self._copies is None else self._copies.path(self._address(packed), tag)
        self._mapped.add(packed.name, view, plain, path)
        return _Route(self._mapped, packed.name, plain, "copy", extra=len(view))

    def _make_all(self, paths: list[str], stats: Mapping[str, Stat], tags: Mapping[str, str]) -> dict[str, _Route]:
        total = sum(stats[path].size for path in paths if not self.packed[path].member)
        disable = None if self._progress is None else not self._progress
        lock, stop, errors = threading.Lock(), threading.Event(), list[BaseException]()
        with Bar(total=total or None, unit="B", unit_scale=True, desc="decompress", disable=disable) as bar:

            def report(count: int) -> None:
                if stop.is_set():
                    raise InterruptedError("stopped")
                with lock:
                    bar.update(count)

            def make(path: str) -> _Route:
                try:
                    return self._make(path, stats[path], tags[path], archives, report)
                except BaseException as error:
                    if not stop.is_set():
                        errors.append(error)
                    stop.set()  # the other threads need not go on
                    raise

            try:
                with Archives(self.inner, report) as archives:
                    return dict(zip(paths, run_all(make, paths, "decompress"), strict=True))
            except Exception as error:
                raise (errors or [error])[0] from None
            finally:
                stop.set()  # after an interrupt, threads end soon

    def _make(self, path: str, stat: Stat, tag: str, archives: Archives, report: Callable[[int], None]) -> _Route:
        """Decompress a file once: find its access points, or copy it."""
        packed = self.packed[path]
        kind = packed.kind if packed.member else check_kind(self.inner, packed.path, stat.size)
        points = self._find_points(packed, kind, stat, tag, report)
        if points is not None:
            return self._points_route(packed, points, stat, self._save_points(packed, points))
        if self._way == "access_points":
            why = "on a system without libz" if kind == "gzip" and not has_zlib() else "without access points"
            raise ArgumentError(
                f'{self.full_name(path)}: expected gzip, or zstd with several frames, for compressed="access_points", '
                f'got {kind} {why}; open with compressed="copy"'
            )
        pieces = self._content(packed, kind, stat, archives, report)
        if self._copies is None:
            return self._copy_route(packed, _in_memory(pieces, self.full_name(path)), stat, tag)
        return self._copy_route(packed, self._copies.make(self._address(packed), tag, pieces), stat, tag)

    def _content(
        self, packed: CompressedFile, kind: str, stat: Stat, archives: Archives, report: Callable[[int], None]
    ) -> Iterator[bytes]:
        """Yield the content of a file, and check in the end that the file is still the same."""
        if packed.member:
            pieces: Iterator[Any] = archives.pieces(packed.path, packed.member)
            if packed.member_kind:
                pieces = decompress(packed.member_kind, map(memoryview, pieces), self.inner.full_name(packed.name))
        else:
            pieces = decompress(kind, self._packed_bytes(packed, stat, report), self.inner.full_name(packed.path))
        yield from pieces
        self._check_unchanged(packed, stat)

    def _packed_bytes(self, packed: CompressedFile, stat: Stat, report: Callable[[int], None]) -> Iterator[memoryview]:
        for piece in read_all(self.inner, packed.path, stat.size):
            report(len(piece))
            yield piece

    def _find_points(
        self, packed: CompressedFile, kind: str, stat: Stat, tag: str, report: Callable[[int], None]
    ) -> AccessPoints | None:
        if self._way == "copy" or packed.member or kind not in ("gzip", "zstd") or (kind == "gzip" and not has_zlib()):
            return None
        name, sums = self.inner.full_name(packed.path), CellSums()
        points: Iterator[Point]
        if kind == "gzip":
            points = gzip_points(self._packed_bytes(packed, stat, report), name, sums)
        else:
            runs = frame_runs(read_all(self.inner, packed.path, stat.size), name)
            if runs is None:
                return None

            def read(begin: int, length: int) -> memoryview:
                report(length)
                return self.inner.read(packed.path, [ByteRange(begin, length)])[0]

            points = zstd_points(runs, read, name, sums)
        found = AccessPoints.of(kind, stat.size, tag, points, sums)
        self._check_unchanged(packed, stat)
        return found

    def _check_unchanged(self, packed: CompressedFile, stat: Stat) -> None:
        now = self.inner.stat(packed.path)
        if (now.size, now.tag, now.identity) != (stat.size, stat.tag, stat.identity):
            raise StaleIndexError(
                f"{self.inner.full_name(packed.path)}: expected a file that does not change while it is decompressed"
            )

    def _save_points(self, packed: CompressedFile, points: AccessPoints) -> int:
        """Save access points in the first folder that can be written; return their size."""
        data = points.encode()
        for place, name in self._places(packed):
            with suppress(SourceError):
                place.put(name, data)
                break
        return len(data)

    def _report(self, routes: Mapping[str, _Route], stats: Mapping[str, Stat], made: bool) -> None:
        """Say what was chosen and how large it is: to the logger, and next to the progress bar if work was done."""
        for way in WAYS:
            some = {path: route for path, route in routes.items() if route.way == way}
            if not some:
                continue
            packed = {self.packed[path].path: stats[path].size for path in some}
            sizes = f"{_size(sum(packed.values()))}, {_size(sum(one.stat.size for one in some.values()))} decompressed"
            extra = _size(sum(one.extra for one in some.values()))
            if way == "copy":
                where = "memory" if self._copies is None else self._copies.folder
                text = f"{_count(len(some))} ({sizes}): read from a decompressed copy in {where} ({extra})"
            else:
                text = (
                    f"{_count(len(some))} ({sizes}): read in place through access points ({extra}); "
                    'compressed="copy" is faster for shuffled samples'
                )
            _log.info("%s: %s", self.url, text)
            if made and self._progress is not False and (self._progress or sys.stderr.isatty()):
                Bar.write(f"shardex: {text}", file=sys.stderr)


class _MappedCopies(Source):
    """Decompressed copies of files of `inner`: mapped, so that they can be read even after they were removed."""

    is_remote = False

    def __init__(self, inner: Source) -> None:
        self.url = inner.url
        self._files: dict[str, tuple[memoryview, Stat, str | None]] = {}

    def add(self, path: str, view: memoryview, stat: Stat, copy: str | None) -> None:
        self._files[path] = view, stat, copy

    def stat(self, path: str) -> Stat:
        return self._files[path][1]

    def paths(self, prefix: str = "") -> list[str]:
        return sorted(path for path in self._files if path.startswith(prefix))

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        view = self._files[path][0]
        for one in ranges:
            if one.end > len(view):
                raise TruncatedShardError(
                    f"{self.full_name(path)}: expected bytes up to {one.end}, got content of {len(view)} bytes"
                )
        return [view[one.begin : one.end] for one in ranges]

    def map(self, path: str) -> memoryview:
        return self._files[path][0]

    @contextmanager
    def local_file(self, path: str) -> Iterator[str | None]:
        copy = self._files[path][2]
        yield copy if copy is not None and os.path.exists(copy) else None


def _in_memory(pieces: Iterable[bytes], name: str) -> memoryview:
    """Return content that is kept in memory; raise if it takes more than half of the memory."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    found, size = list[bytes](), 0
    for piece in pieces:
        found.append(piece)
        if (size := size + len(piece)) > most:
            raise StorageFullError(
                errno.ENOMEM,
                f"expected content of at most {most} bytes, to keep it in memory; set a cache folder",
                name,
            )
    return memoryview(b"".join(found))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _count(number: int) -> str:
    return f"{number} compressed file{'s' * (number != 1)}"


def _size(count: int) -> str:
    """Return a number of bytes as text.

    >>> _size(999), _size(1_234_567)
    ('999 B', '1.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000  # type: ignore[assignment]
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
