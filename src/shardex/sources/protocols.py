"""The contracts of this room: `Source` reads files below a root, `Sink` writes them, a `Place` does both.

Paths are relative to the root, use slashes and never leave the root (`check_path`). Shards and samples are left to
other rooms. They use `is_remote` where local and remote files need different work, and never test the class. A file is
written to a `Draft` first; `TemporaryDraft` is that of places that cannot write a file piece by piece.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, Protocol, TypeVar

from shardex.errors import NotFoundError, PathError, StaleIndexError, TruncatedShardError, storage_errors
from shardex.kernel import Fetch, FetchedSegments, Segments
from shardex.sources.byte_ranges import ByteRange

Item = TypeVar("Item")
Result = TypeVar("Result")
OpenFile = Callable[[int], Any] | None
"""Returns the buffer of the file with this number."""
RootKind = Literal["folder", "file", "missing"]
CloseFile = Callable[[int], None] | None
"""Drops all views of the file with this number."""

_CONCURRENT_CALLS = 16
_PIECE = 8 << 20


@dataclass(frozen=True, slots=True)
class Stat:
    """Size and identity of a file, known without reading it."""

    size: int
    tag: str
    """Changes with the content: a modification time or an ETag."""
    modified: float = 0.0
    """Time of the last write by the clock of the storage, in seconds since 1970."""
    identity: str = ""
    """Inode and time of its last change, of a local file: equal as long as the file was not replaced. A copy of the
    file has another identity.
    """


class Source(ABC):
    """Reads byte ranges of files below a root.

    A source implements `url`, `stat`, `paths`, `read` and `map`. The other methods have defaults that are right for a
    source whose `map` returns complete files.
    """

    is_remote: bool = True
    """False for files in a local folder, which `url` names; True for object stores, web servers and memory."""

    url: str
    """Address of the root, in the form that opens it again."""

    def full_name(self, path: str) -> str:
        """Return the address of a file, for messages."""
        return os.path.join(self.url, path)

    @property
    def data_folder(self) -> str | None:
        """The local folder of the files, in which derived data may be saved; None if they are elsewhere."""
        return None if self.is_remote else self.url

    @property
    def concurrent_calls(self) -> int:
        """How many calls to make at the same time: more than one if they wait for another machine."""
        return _CONCURRENT_CALLS if self.is_remote else 1

    @abstractmethod
    def stat(self, path: str) -> Stat:
        """Return size and tag of a file."""

    def stats(self, paths: Sequence[str]) -> list[Stat]:
        """Return size and tag of many files."""
        return [self.stat(path) for path in paths]

    @abstractmethod
    def paths(self, prefix: str = "") -> list[str]:
        """Return the paths of all files that begin with `prefix`, sorted."""

    def listing(self, prefix: str = "") -> dict[str, Stat] | None:
        """Return size and tag of all files that `paths` returns, if listing says them; None if each must be asked."""
        return None

    def listed_stats(self, paths: Sequence[str]) -> list[Stat]:
        """Return size and tag of many files; those that listing them has shown need no request for each."""
        return self.stats(paths)

    def pin(self, stats: Mapping[str, Stat]) -> None:  # noqa: B027
        """Check reads of files against these stats, if they are not yet checked against those of a `stat`."""

    @abstractmethod
    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return the bytes of each range; raise an error if the file ends before one does."""

    def read_scattered(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Read short ranges that are far apart: a remote source does not read the bytes between them."""
        return self.read(path, ranges)

    def load(self, path: str) -> memoryview:
        """Return the complete content of a file, for small files."""
        return self.map(path)

    def load_all(self, paths: Sequence[str], known: Sequence[Stat]) -> list[bytes]:
        """Return the contents of whole files, which must still have these sizes and tags; remote ones concurrently."""

        def load(number: int) -> bytes:
            check_unchanged_file(self.full_name(paths[number]), known[number], self.stat(paths[number]))
            return bytes(self.load(paths[number]))

        return self.for_each(load, range(len(paths)))

    def download(self, path: str, out: BinaryIO) -> None:
        """Write the whole file to an open one; a web server is asked once for all of it, as it may not know ranges."""
        size = self.stat(path).size
        for begin in range(0, size, _PIECE):
            out.write(self.read(path, [ByteRange(begin, min(_PIECE, size - begin))])[0])

    @abstractmethod
    def map(self, path: str) -> memoryview:
        """Return the file as one read-only buffer, loaded on access; no file stays open.

        If the file is in the page cache, read only bytes that `fetch` was called for.
        """

    def keep(self, data: memoryview) -> memoryview:
        """Return bytes of a mapped file that may be kept: a copy where a view would keep the whole file in memory."""
        return memoryview(bytes(data)) if self.is_remote else data

    def fetch(self, path: str, ranges: Sequence[ByteRange], *, wait: bool = True) -> None:
        """Download these ranges into the buffer that `map` returned; with ``wait=False`` only start the download."""
        return

    def buffer_table(self, paths: Sequence[str], open_file: OpenFile = None, close_file: CloseFile = None) -> Segments:
        """Return a kernel table of these files; ranges are fetched before the kernel reads them.

        A file is mapped when a range of it is first needed, or `open_file(number)` returns its buffer.
        `close_file(number)` is called when the page cache evicts a file: drop every view of it then.
        """
        return self._table(paths, open_file)

    def _table(
        self, paths: Sequence[str], open_file: OpenFile, fetch: Fetch | None = None, evicts: bool = False
    ) -> Segments:
        def open_buffer(number: int) -> None:
            table.put(number, self.map(paths[number]) if open_file is None else open_file(number))

        def name(number: int) -> str:
            return self.full_name(paths[number])

        if fetch is None:
            table = Segments(len(paths), open_buffer, name)
        else:
            table = FetchedSegments(len(paths), open_buffer, name, fetch, evicts)
        return table

    @contextmanager
    def local_file(self, path: str) -> Iterator[str | None]:
        """Yield the path of the complete file on a local disk, valid inside the context; None if there is none."""
        yield None

    def contained(self) -> Source:
        """The same source without access to files outside of its root, which links in local folders could lead to."""
        return self

    @property
    def cache_folder(self) -> str | None:
        """Folder for data derived from these files; None if nothing may be written to disk."""
        return default_cache_folder()

    def for_each(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return `function(item)` for each item; calls run concurrently if the source is remote."""
        if self.concurrent_calls == 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(self.concurrent_calls) as pool:
            return list(pool.map(function, items))


class Draft(Protocol):
    """A file that is being written and is not visible before it is published."""

    is_elsewhere: bool
    """True if the draft takes space on this machine until it is published to another one: publish it soon."""

    @property
    def file(self) -> BinaryIO:
        """The open file to write to."""

    def close(self, size: int) -> None:
        """End the writing; raise an error if the file does not have `size` bytes."""

    def publish(self, path: str) -> None:
        """Make the file durable and visible under `path` in one step; its modification time is now."""

    def discard(self) -> None:
        """Delete what was written; does nothing after `publish`."""


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


class Sink(ABC):
    """Writes files below a root; each becomes durable and visible in one step."""

    @abstractmethod
    def put(self, path: str, data: Any) -> None:
        """Create or replace a file."""

    def overwrite_start(self, path: str, data: bytes) -> None:
        """Replace the first bytes of a file, less than 512, without using space; a storage may replace all of it."""
        self.put(path, data)

    @abstractmethod
    def put_if_absent(self, path: str, data: Any) -> bool:
        """Create a file and return True; return False and change nothing if it exists.

        Of several concurrent callers exactly one gets True. A storage that cannot guarantee that raises an error.
        """

    @abstractmethod
    def draft(self) -> Draft:
        """Start a file that is too large for memory."""

    @abstractmethod
    def copy(self, path: str, to: str) -> None:
        """Give a file a second name, or copy it inside the storage; the modification time of `to` is now."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Delete a file."""

    def make_root(self) -> None:
        """Create the folder of the root, where folders exist without files."""
        return

    def remove_empty_folders(self, *folders: str) -> None:
        """Remove these folders and then the root if they are empty; only local folders exist without files."""
        return


class Place(Source, Sink):
    """A root below which files can be read and written."""

    def root_kind(self) -> RootKind:
        """Return what is at the root. A store has every folder, without a request: only local ones can be missing."""
        return "folder"

    def is_empty(self) -> bool:
        """Return True if nothing is at the root, or a folder without content."""
        return not self.paths()

    def names(self, prefix: str = "") -> set[str]:
        """Return the names of files and folders in one folder; `prefix` is its path and the begin of the names.

        >>> from shardex.sources.memory import MemorySource
        >>> sorted(MemorySource({"a/b/c": b"", "a/bc": b"", "a/d": b""}).names("a/b"))
        ['b', 'bc']
        """
        begin = prefix.rfind("/") + 1
        return {path[begin:].partition("/")[0] for path in self.paths(prefix)}

    def copy_all(self, names: Mapping[str, str]) -> None:
        """Copy many files, as `copy` does; `names` has the new path of each."""
        self.for_each(lambda pair: self.copy(*pair), names.items())

    def remove_all(self, paths: Iterable[str]) -> None:
        """Delete many files; those that are gone already are left out."""

        def remove(path: str) -> None:
            with suppress(NotFoundError):
                self.remove(path)

        self.for_each(remove, paths)

    def remove_folder(self, path: str, *, first: Sequence[str] = (), last: str = "") -> None:
        """Delete all files in a folder: those in the folders `first` before the others, the file `last` after them."""
        left = set(self.paths(f"{path}/"))
        for folder in first:
            self.remove_all(some := {one for one in left if one.startswith(f"{path}/{folder}/")})
            left -= some
        end = left & {f"{path}/{last}"}
        self.remove_all(left - end)
        self.remove_all(end)


def check_unchanged_file(name: str, known: Stat, found: Stat) -> None:
    """Raise an error if a file does not have the size and the tag that are known.

    >>> check_unchanged_file("a.jpg", Stat(5, "1"), Stat(4, "2"))
    Traceback (most recent call last):
    shardex.errors.TruncatedShardError: a.jpg: expected 5 bytes as when it was opened, got 4; open the dataset again
    """
    if found.size < known.size:
        raise TruncatedShardError(
            f"{name}: expected {known.size} bytes as when it was opened, got {found.size}; open the dataset again"
        )
    if (found.size, found.tag) != (known.size, known.tag):
        raise StaleIndexError(
            f"{name}: expected the file as when it was opened, it has changed since; open the dataset again"
        )


def default_cache_folder() -> str:
    """Return the default cache folder: ``SHARDEX_CACHE`` or ``~/.cache/shardex``."""
    return os.environ.get("SHARDEX_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "shardex")


def check_text(text: str) -> str:
    """Return a path or URL without characters that no file system and no request can hold; else raise `PathError`.

    >>> check_text("data/a b")
    'data/a b'
    """
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise PathError(f"expected a path or URL of characters that UTF-8 has, got {text!r:.200}") from None
    if "\0" in text:
        raise PathError(f"expected a path or URL without null characters, got {text!r:.200}")
    return text


def check_path(path: str) -> str:
    """Return the path if it is normalised and stays inside its root; else raise `PathError`.

    >>> check_path("data/a.arrow")
    'data/a.arrow'
    >>> check_path("../secret")
    Traceback (most recent call last):
    shardex.errors.PathError: expected a relative path inside the dataset's folder, got '../secret'
    """
    if not {"", ".", ".."}.isdisjoint(path.split("/")) or "\\" in path or "\0" in path or path[1:2] == ":":
        raise PathError(f"expected a relative path inside the dataset's folder, got {path!r}")
    return path
