"""Members of zip archives as files: their names, and their content as a sequence of pieces.

Nothing is extracted by name: the caller chooses where content goes. Names that leave the archive, members with the same
name, encrypted members, links, and members with more or other bytes than the archive declares raise errors.
"""

from __future__ import annotations

import io
import stat
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from shardex.errors import FormatError, NotFoundError, PathError
from shardex.sources.byte_ranges import ByteRange
from shardex.sources.protocols import Source, check_path

_PIECE = 1 << 20
_ENCRYPTED = 1
_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError)


class RangeFile(io.RawIOBase):
    """A file of a source, read at any position; `report` gets the number of bytes of each read."""

    def __init__(
        self, source: Source, path: str, size: int, report: Callable[[int], None] = lambda count: None
    ) -> None:
        self._source, self._path, self._size, self._report = source, path, size, report
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read at the position."""
        out = memoryview(buffer).cast("B")
        count = max(0, min(len(out), self._size - self._at))
        if count:
            out[:count] = self._source.read(self._path, [ByteRange(self._at, count)])[0]
            self._at += count
            self._report(count)
        return count


def member_names(source: Source, path: str) -> list[str]:
    """Return the names of the files in an archive; raise an error for names that leave it or are there twice."""
    name, found = source.full_name(path), list[str]()
    with _opened(source, path) as archive:
        for member in archive.infolist():
            if member.orig_filename.endswith("/"):
                continue
            try:
                found.append(check_path(member.orig_filename))  # zipfile cuts the other one at a null character
            except PathError as error:
                raise PathError(f"{name}: {error}") from None
    if len(set(found)) < len(found):
        twice = next(one for k, one in enumerate(found) if one in found[:k])
        raise FormatError(f"{name}: expected members of different names, got {twice!r} twice")
    return found


class Archives:
    """Archives of a source, from which several threads read members; each directory is read once.

    `report` gets the number of compressed bytes of each read.
    """

    def __init__(self, source: Source, report: Callable[[int], None] = lambda count: None) -> None:
        self._source, self._report = source, report
        self._open: dict[str, zipfile.ZipFile] = {}
        self._closing = ExitStack()
        self._lock = threading.Lock()

    def __enter__(self) -> Archives:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def pieces(self, path: str, member: str) -> Iterator[bytes]:
        """Yield the content of a member."""
        name, archive = f"{self._source.full_name(path)}/{member}", self._archive(path)
        try:
            entry = archive.getinfo(member)
        except KeyError:
            raise NotFoundError(2, "no such member of the archive", name) from None
        if entry.flag_bits & _ENCRYPTED:
            raise FormatError(f"{name}: expected a member that is not encrypted; unpack the archive first")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise FormatError(f"{name}: expected a file, got a symbolic link")
        done = 0
        try:
            with archive.open(entry) as file:
                while data := file.read(_PIECE):  # never more than is declared; the end verifies the checksum
                    done += len(data)
                    yield data
        except _ERRORS as error:
            raise FormatError(
                f"{name}: expected an intact member, got damaged bytes after {done} bytes: {error}"
            ) from None
        if done != entry.file_size:
            raise FormatError(f"{name}: expected {entry.file_size} bytes as the archive declares, got {done}")

    def _archive(self, path: str) -> zipfile.ZipFile:
        with self._lock:
            if path not in self._open:
                self._open[path] = self._closing.enter_context(_opened(self._source, path, self._report))
            return self._open[path]


@contextmanager
def _opened(source: Source, path: str, report: Callable[[int], None] = lambda count: None) -> Iterator[zipfile.ZipFile]:
    size = source.stat(path).size
    try:
        archive = zipfile.ZipFile(io.BufferedReader(RangeFile(source, path, size, report), _PIECE))
    except _ERRORS as error:
        raise FormatError(f"{source.full_name(path)}: expected a zip archive, got another file: {error}") from None
    with archive:
        yield archive
