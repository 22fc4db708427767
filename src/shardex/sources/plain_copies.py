"""Decompressed copies of files in the cache folder, for files without access points.

A copy is named by the identity of the compressed file, so a file that changes gets another one. It is written to a
temporary file, synced and renamed: no other process sees a part of it. Processes that need the same copy wait for the
first one. A writer locks its temporary file, so that later ones recognise and remove what a killed one left behind. The
least recently used copies are removed when all together are larger than the limit; a process that has mapped one
can still read it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterable
from contextlib import suppress

from shardex.errors import SourceError, StorageFullError, storage_errors
from shardex.sources.byte_ranges import ByteRange
from shardex.sources.local import LocalDraft, LocalSource, open_descriptor
from shardex.sources.locks import is_file_of, locked_file
from shardex.sources.page_cache import default_limit, parse_size

FOLDER = "plain"
_TEMPORARY, _LOCK = ".tmp", ".lock"
_CHECK_EVERY = 16 << 20
_SMALL, _MOST_MAPPINGS = 4 << 10, 16_000
"""Largest size of a copy that is read, and number of copies that are mapped; Linux allows about 65 000 mappings."""
_OTHER_FOLDER = "set another folder with cache= or SHARDEX_CACHE, or keep copies in memory with cache=False"
_REMEDY = 'free disk space, set another folder with cache= or SHARDEX_CACHE, or try compressed="access_points"'


class PlainCopies:
    """Copies in the folder `plain` of a cache folder, which together have at most `limit` bytes.

    >>> import tempfile; copies = PlainCopies(tempfile.mkdtemp())
    >>> bytes(copies.make("a", "1", [b"on", b"e"])), bytes(copies.find("a", "1")), copies.find("a", "2")
    (b'one', b'one', None)
    """

    def __init__(self, cache_folder: str, limit: int | str | None = None) -> None:
        self._place = LocalSource(os.path.join(os.path.abspath(os.path.expanduser(cache_folder)), FOLDER))
        self.folder = self._place.root
        given = limit or os.environ.get("SHARDEX_CACHE_LIMIT")
        self._limit = None if given is None else parse_size(given)
        self._used: set[str] = set()
        """Names of the copies that this object has returned."""
        self._mappings = 0
        self._of_file: dict[str, set[str]] | None = None
        """Names of copies by their first part; listed once, because an archive may have thousands of members."""
        self._lock = threading.Lock()
        self._unfinished = 0
        """Bytes of the copies that are being made."""
        self._room = -1
        """Bytes that may be written before the sizes of all copies are added up again."""

    def find(self, file: str, state: str) -> memoryview | None:
        """Return the copy of a file, identified by its address, in this state; None if there is none."""
        name = _name(file, state)
        try:
            found = self._opened(name)
            os.utime(self._place.path(name))  # the time of its last use
        except OSError:
            return None
        self._used.add(name)
        return found

    def _opened(self, name: str) -> memoryview:
        """Return a copy, mapped; small ones, and those after many others, are read: a process has few mappings."""
        size = self._place.stat(name).size
        if size <= _SMALL or self._mappings >= _MOST_MAPPINGS:
            return self._place.read(name, [ByteRange(0, size)])[0]
        self._mappings += 1
        return self._place.map(name)

    def make(self, file: str, state: str, pieces: Iterable[bytes]) -> memoryview:
        """Return the copy of a file in this state; if there is none yet, of its content `pieces`."""
        self._make_folder()
        with locked_file(self._place.path(_name(file, state) + _LOCK)):  # where there are no locks, both make it
            if (found := self.find(file, state)) is not None:  # another process has made it meanwhile
                return found
            self._remove_leftovers(_name(file, ""), _name(file, state))
            self._write(file, _name(file, state), pieces)
            made = self.find(file, state)
        if made is None:
            raise SourceError(errno.EIO, "expected the copy that was just made, it is gone", self.folder)
        return made

    def path(self, file: str, state: str) -> str:
        """Return the path of a copy."""
        return self._place.path(_name(file, state))

    def _make_folder(self) -> None:
        with storage_errors(self.folder, "make decompressed copies there"):
            try:
                os.makedirs(self.folder, 0o700, exist_ok=True)
                if not os.access(self.folder, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror}; {_OTHER_FOLDER}") from None

    def _write(self, file: str, name: str, pieces: Iterable[bytes]) -> None:
        draft, held = self._locked_draft()
        sizes = list[int]()
        try:
            self._fill(draft, name, pieces, sizes)
            draft.publish(name)
        except StorageFullError as error:
            text = str(error.strerror).removeprefix("cannot decompress: ")
            remedy = "" if "cache_limit" in text else f"; {_REMEDY}"
            raise StorageFullError(error.errno, f"cannot decompress to {self.folder}: {text}{remedy}", file) from None
        finally:
            with self._lock:
                self._unfinished -= sum(sizes)
            os.close(held)
            draft.discard()

    def _locked_draft(self) -> tuple[LocalDraft, int]:
        """Return a temporary file, and a descriptor that keeps it locked until it has its name."""
        while True:
            draft = self._place.draft()
            held = os.dup(draft.file.fileno())
            with suppress(OSError):  # files cannot be locked here
                fcntl.flock(held, fcntl.LOCK_EX)
            if os.fstat(held).st_nlink:
                return draft, held
            os.close(held)  # another process took it for a leftover before it was locked
            draft.discard()

    def _fill(self, draft: LocalDraft, name: str, pieces: Iterable[bytes], sizes: list[int]) -> None:
        for piece in pieces:
            sizes.append(len(piece))
            self._reserve(len(piece))
            with storage_errors(self._place.path(name), "decompress"):
                draft.file.write(piece)
        with storage_errors(self._place.path(name), "decompress"):
            draft.close(sum(sizes))

    def _reserve(self, count: int) -> None:
        with self._lock:
            self._unfinished += count
            self._room -= count
            if self._room < 0:
                self._room = min(_CHECK_EVERY, self._make_room(self._unfinished))

    # -- other copies ----------------------------------------------------------------------------------------

    def _remove_leftovers(self, first: str, name: str) -> None:
        """Remove temporary files of killed processes, and copies of earlier states of the file."""
        with self._lock:
            if self._of_file is None:
                self._of_file = self._listed()
            earlier = self._of_file.pop(first, set()) - {name}
            self._of_file[first] = {name}
        for one in earlier:
            with suppress(OSError):
                os.unlink(self._place.path(one))

    def _listed(self) -> dict[str, set[str]]:
        """Return the names of all copies by their first part; removes temporary files that no process holds."""
        found = dict[str, set[str]]()
        for name in os.listdir(self.folder):
            if name.endswith((_TEMPORARY, _LOCK)):
                path = os.path.join(self.folder, name)
                with suppress(OSError), open_descriptor(path, os.O_RDWR) as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if is_file_of(path, file):
                        os.unlink(path)
            else:
                found.setdefault(name[: len(_name(name, ""))], set()).add(name)
        return found

    def _make_room(self, adding: int) -> int:
        """Remove the copies that were not used for longest, if there are too many bytes; never one of this dataset.

        Returns how many bytes may still be added.
        """
        limit = self._limit or default_limit(self.folder)
        found = {}
        for entry in os.scandir(self.folder):
            with suppress(OSError):
                if not entry.name.endswith((_TEMPORARY, _LOCK)):
                    found[entry.name] = entry.stat().st_mtime, entry.stat().st_size
        total = adding + sum(size for _, size in found.values())
        for name in sorted(found.keys() - self._used, key=lambda name: found[name]):
            if total <= limit:
                break
            with suppress(OSError):
                os.unlink(os.path.join(self.folder, name))
                total -= found[name][1]
        if total > limit:
            raise StorageFullError(
                errno.ENOSPC,
                f"expected decompressed copies of at most {limit} bytes, got more; set a higher cache_limit, or "
                'try compressed="access_points"',
                self.folder,
            )
        return limit - total


def _name(file: str, state: str) -> str:
    """Return the name of a copy: all copies of a file begin with the same characters."""
    first, second = (hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:20] for text in (file, state))
    return f"{first}-{second}" if state else f"{first}-"
